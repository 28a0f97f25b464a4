# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/matrix/test_marginals.py and other tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def value_of(objective: Any) -> Callable[[NDArray[np.float64]], float]:
    """The value alone, of what returns it with its gradient."""
    return lambda x: float(objective(x)[0])
