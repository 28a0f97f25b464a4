# SPDX-License-Identifier: Apache-2.0
"""Array types, a flag for whether numba is installed, and threads that share the work on an array.

Compiled loops are in ``kernels``, which can be imported only with numba.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from joblib import effective_n_jobs
from joblib.parallel import get_active_backend
from numpy.typing import ArrayLike as ArrayLike
from numpy.typing import NDArray as NDArray

HAVE_NUMBA: Final = importlib.util.find_spec("numba") is not None
"""Whether loops are compiled. Without numba, NumPy gives the same results but is slower."""

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

Item = TypeVar("Item")
Result = TypeVar("Result")


AMBIENT_JOBS: ContextVar[int | None] = ContextVar("n_jobs", default=1)
"""Value of ``n_jobs`` for code without such a parameter, such as encoding. Set by the estimator."""
MIN_THREAD_ROWS: Final = 1 << 14  # rows; with fewer, starting a thread takes longer than it saves
_pools: dict[int, ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()
_is_worker = (
    threading.local()
)  # set in threads of a pool: nested calls run without threads, as they would wait for each other


def _forget_pools() -> None:
    """Discard the pools in a forked process, which does not inherit threads."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


def count_threads(n_jobs: int | None) -> int:
    """Return the number of threads that ``n_jobs`` allows, as in scikit-learn.

    None is 1 unless a joblib context sets another number, and -1 is one per core. In a worker of a search or another
    parallel job, at most the number that the job allows, so that all workers together start at most one per core.
    """
    n_threads: int = effective_n_jobs(n_jobs)
    if n_threads > 1 and getattr(get_active_backend()[0], "nesting_level", None):
        return min(
            n_threads, int(os.environ.get("NUMBA_NUM_THREADS") or 1)
        )  # joblib sets this variable in its processes
    return n_threads


def map_on_threads(work: Callable[[Item], Result], items: Sequence[Item], n_jobs: int | None) -> list[Result]:
    """Apply ``work`` to each item and return the results in order. The calling thread processes the last items.

    Compiled loops release the interpreter lock, so threads run at the same time. They must not share output.
    """
    n_threads = min(count_threads(n_jobs), len(items)) if len(items) > 1 else 1
    if n_threads <= 1 or getattr(_is_worker, "flag", False):
        return [work(item) for item in items]
    with _pools_lock:
        if n_threads not in _pools:
            _pools[n_threads] = ThreadPoolExecutor(
                n_threads - 1, "veilwood", initializer=partial(setattr, _is_worker, "flag", True)
            )
        pool = _pools[n_threads]
    bounds = np.linspace(0, len(items), n_threads + 1).astype(int).tolist()
    parts = [
        pool.submit(copy_context().run, _map_items, work, items[first:last]) for first, last in pairwise(bounds[:-1])
    ]
    try:
        own = _map_items(work, items[bounds[-2] :])
    finally:
        wait(parts)  # the threads write to arrays of the caller
    return [result for part in parts for result in part.result()] + own


def _map_items(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [work(item) for item in items]


def row_ranges(n_rows: int, n_jobs: int | None) -> list[tuple[int, int]]:
    """Return the start and end of one range of rows per thread. Few rows form a single range.

    >>> row_ranges(1 << 16, n_jobs=2), row_ranges(10, n_jobs=2)
    ([(0, 32768), (32768, 65536)], [(0, 10)])
    """
    n_ranges = max(1, min(count_threads(n_jobs), n_rows // MIN_THREAD_ROWS)) if n_rows > MIN_THREAD_ROWS else 1
    bounds = np.linspace(0, n_rows, n_ranges + 1).astype(int).tolist()
    return list(pairwise(bounds))


def run_on_threads(
    work: Callable[[int, int], None], n_items: int, n_jobs: int | None, *, rows: int | None = None
) -> None:
    """Divide ``n_items`` evenly among threads. Each thread calls ``work`` with the start and end of its range.

    Parameters
    ----------
    work : callable
        Called with ``(first, last)`` for the items ``first`` up to, but not including, ``last``. Ranges must not
        share output.
    n_items : int
        Number of items.
    n_jobs : int or None
        Number of threads, as joblib reads it: -1 is one per core.
    rows : int, optional
        Number of rows that each item reads. If few, one thread does all the work.

    Examples
    --------
    >>> parts = []
    >>> run_on_threads(lambda first, last: parts.append((first, last)), 5, n_jobs=2)
    >>> sorted(parts)
    [(0, 2), (2, 5)]
    """
    if n_items <= 1 or (rows is not None and rows < MIN_THREAD_ROWS):
        work(0, n_items)
        return
    n_threads = max(1, min(count_threads(n_jobs), n_items))
    bounds = np.linspace(0, n_items, n_threads + 1).astype(int).tolist()
    map_on_threads(lambda part: work(*part), list(pairwise(bounds)), n_threads)
