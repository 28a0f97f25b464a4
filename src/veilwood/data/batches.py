# SPDX-License-Identifier: Apache-2.0
"""One pass over private rows: batches of them, and sums of whatever is counted in each.

Where batches come from is in ``open_rows`` and ``cluster``, what is counted in ``trees``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from joblib import effective_n_jobs

from veilwood.errors import UseError
from veilwood.progress import track

__all__ = ["AddUp", "Batch", "Count", "Source"]

Sums: TypeAlias = npt.NDArray[np.int64]
Made = TypeVar("Made")

MOST_CELLS_BY_THREAD = 1 << 20  # above it threads share the sums instead of adding up their own


class Batch(NamedTuple):
    """Encoded rows, and their place: row ``i`` of the batch is row ``first_row + i`` of ``partition``."""

    codes: npt.NDArray[np.uint16]
    target: npt.NDArray[np.int32]
    partition: int
    first_row: int


class Count(Protocol):
    """Adds up whole numbers over batches; sums over parts of the data add up to those of all of it.

    It must survive pickling, since workers of a cluster get it, and must not change anything but what it returns.
    """

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Sums:
        """Return the sums of these batches."""


class AddUp(Protocol):
    """Starts a pass over all rows and returns what ``count`` adds up: ``Source.add_up``."""

    def __call__(self, count: Count, /, *, n_jobs: int | None = 1) -> Sums:
        """Return the sums of all batches."""


@dataclass(frozen=True, repr=False)
class Source:
    """Rows that can be read several times, each time in the same batches with the same numbering.

    Attributes
    ----------
    once : bool
        The exception: an iterator of batches, which is gone after one pass.
    n_partitions : int
        Partitions are numbered below this.
    one_for_one : bool
        Whether each row of the table is one row here, whatever it holds: where weights make copies of rows, or contents
        decide which part of the table a row is in, a replaced row changes how many there are.
    """

    _read: Callable[[], Iterator[Callable[[], Batch]]]  # batches yet to be encoded, by whoever takes them
    once: bool = False
    n_partitions: int = 1
    one_for_one: bool = field(default=True, kw_only=True)

    def batches(self) -> Iterator[Batch]:
        """Read all rows once."""
        for unread in self._read():
            yield unread()

    def each(self, make: Callable[[Batch], Made], *, n_jobs: int | None = 1) -> Iterator[Made]:
        """Read all rows once and make something of each batch, in order; threads encode and make, a few at a time."""
        if (n_threads := effective_n_jobs(n_jobs)) == 1:
            yield from map(make, self.batches())
            return
        made: deque[Future[Made]] = deque()
        with ThreadPoolExecutor(n_threads) as pool:
            for unread in self._read():
                made.append(pool.submit(lambda unread: make(unread()), unread))
                if len(made) > 2 * n_threads:
                    yield made.popleft().result()
            while made:
                yield made.popleft().result()

    def add_up(self, count: Count, doing: str = "counting", *, n_jobs: int | None = 1) -> Sums:
        """Read all rows once and return what ``count`` adds up: exact, hence private.

        Threads take turns in reading and each encodes and counts its own batches, so that no core waits for another.
        """
        n_threads = effective_n_jobs(n_jobs)
        if n_threads == 1 or count([]).size > MOST_CELLS_BY_THREAD:
            return self.hand_over(count(track(self.batches(), doing), n_jobs=n_jobs))
        unread = track(self._read(), doing)
        turn, stopped = threading.Lock(), threading.Event()

        def share() -> Iterator[Batch]:
            try:
                while not stopped.is_set():
                    with turn:
                        mine = next(unread, None)
                    if mine is None:
                        return
                    yield mine()
            except BaseException:
                stopped.set()  # the others need not go on
                raise

        with ThreadPoolExecutor(n_threads) as pool:
            try:
                contexts = [copy_context() for _ in range(n_threads)]  # in which a GPU may be in use
                parts = list(pool.map(lambda context: context.run(partial(count, n_jobs=1), share()), contexts))
            finally:
                stopped.set()
        total: Sums = parts[0]
        for part in parts[1:]:
            total += part
        return self.hand_over(total)

    @property
    def alone(self) -> bool:
        """Whether all rows are here; otherwise their sums are only a part of what is asked for, or no part at all."""
        return True

    def hand_over(self, sums: Sums) -> Sums:
        """Return what stands for sums of these rows: the sums, unless others have rows too (``secure.protocols``)."""
        return sums

    def check_passes(self, several: bool, who: str) -> None:
        """Refuse, before anything is spent, rows that can be read once where they are needed several times."""
        if self.once and several:
            raise UseError(
                f"{who} reads the rows several times, and an iterator of batches can be read once. "
                "Hint: allow a temporary file by vw.spool(rows), or write Parquet files and pass their folder."
            )
