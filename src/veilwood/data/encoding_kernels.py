# SPDX-License-Identifier: Apache-2.0
"""The loop of ``encoding`` over numbers, compiled by numba; imported only where numba is installed.

The numpy twin is in ``encoding``: every operation is the same IEEE operation in the same order, so codes are equal.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

njit: Any = numba.njit  # its dispatchers take arrays of any type


@njit(nogil=True, cache=True)
def grid_codes(values: Any, lower: float, scale: float, last: float, codes: Any) -> int:
    """Write the grid cell of each number, clamped to 0 .. last, and return how many numbers are NaN."""
    missing = 0
    for i in range(len(values)):
        value = np.float64(values[i])
        cell: Any = (value - lower) * scale
        cell = cell if cell > 0.0 else 0.0  # NaN too
        cell = cell if cell < last else last
        codes[i] = np.uint16(np.int32(cell))
        missing += value != value
    return missing
