# SPDX-License-Identifier: Apache-2.0
"""A number for each row that mixes all its values: not secret, and the same wherever the row is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def scrambled(values: NDArray[np.integer[Any]], seed: int) -> NDArray[np.uint64]:
    """Return a 64-bit number for each row (splitmix64, one column after the other); equal rows get equal numbers.

    >>> one, other, again = scrambled(np.array([[1, 2], [2, 1], [1, 2]]), 7).tolist()
    >>> one == again != other
    True
    """
    state = np.full(len(values), seed % 2**64, np.uint64)
    for column in values.T:
        state += column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state
