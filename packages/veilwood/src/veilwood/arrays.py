# SPDX-License-Identifier: Apache-2.0
"""Names for the types of arrays, whether numba is installed, and threads that divide the work on an array.

Compiled loops are in ``kernels``, which can be imported only with numba.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike as ArrayLike
from numpy.typing import NDArray as NDArray

HAVE_NUMBA: Final = importlib.util.find_spec("numba") is not None
"""Whether loops are compiled. Without numba, NumPy gives the same results, more slowly."""

Floats: TypeAlias = NDArray[np.float64]
"""Real numbers."""
Ints: TypeAlias = NDArray[np.int64]
"""Counts and sums, which must not overflow."""
Int32s: TypeAlias = NDArray[np.int32]
"""Targets of rows, and indices of nodes, trees and leaves."""
Codes: TypeAlias = NDArray[np.uint16]
"""Encoded values of rows (``data.encoding``)."""
Bools: TypeAlias = NDArray[np.bool_]
"""Masks of rows."""
Indices: TypeAlias = NDArray[np.intp]
"""Positions in another array."""
AnyArray: TypeAlias = NDArray[Any]
"""Values of any type."""


def run_on_threads(work: Callable[[int, int], None], n_items: int, n_jobs: int | None) -> None:
    """Divide ``n_items`` evenly among threads, which call ``work`` with the first item and the end of their part.

    Compiled loops release the interpreter lock, so threads run at the same time. They must not share output.

    Parameters
    ----------
    work : callable
        Called with ``(first, last)`` for the items ``first`` up to, but not including, ``last``.
    n_items : int
        Number of items.
    n_jobs : int or None
        Number of threads, as joblib reads it: -1 is one per core.

    Examples
    --------
    >>> parts = []
    >>> run_on_threads(lambda first, last: parts.append((int(first), int(last))), 5, n_jobs=2)
    >>> sorted(parts)
    [(0, 2), (2, 5)]
    """
    n_threads = max(1, min(effective_n_jobs(n_jobs), n_items))
    if n_threads == 1:
        work(0, n_items)
        return
    bounds = np.linspace(0, n_items, n_threads + 1).astype(int)
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(work, bounds[:-1], bounds[1:]))
