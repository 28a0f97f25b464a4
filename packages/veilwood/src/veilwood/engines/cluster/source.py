# SPDX-License-Identifier: Apache-2.0
"""A frame of Dask, Spark or Ray as a source of rows: every pass goes over the cluster, and rows never come here.

What is counted is in ``trees`` and ``forests``; noise is drawn once, by the door, where ``fit`` was called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Count, Source, Sums
from veilwood.data.contributions import no_id
from veilwood.data.encoding import Encoding, check_names
from veilwood.data.problems import Invalid, without_words_of
from veilwood.data.relations import types_from_rows
from veilwood.engines.cluster.engines import Cluster, Kept
from veilwood.engines.cluster.worker import (
    NumberedBatches,
    PartSums,
    Summed,
    ask,
    count_rows,
    encode_with_id,
    encoded_schema,
    hold,
    move,
    of_bucket,
    of_tables,
)
from veilwood.errors import FileError, OutOfSchemaError, UseError
from veilwood.forests.adaptive.contingency import Axis, CellColumn, CellTable
from veilwood.forests.adaptive.row_backend import (
    PART_ROWS,
    HeldRows,
    Ints,
    Question,
    ScoredRows,
    joined_cells,
    together,
)
from veilwood.privacy import entropy
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.neighbours import RowsOf
from veilwood.trees.counting import Assignment

__all__ = ["ClusterRows", "ClusterSource", "KeptRows", "PartitionRows", "open_frame"]


def open_frame(
    engine: Cluster, frame: Any, encoding: Encoding, *, cap: RowsOf | None, invalid: Invalid
) -> ClusterSource:
    """Make a source of a frame of Dask, Spark or Ray, which must hold the target column (``open_rows``)."""
    with _told(engine):
        if engine.guesses_types(frame):
            raise types_from_rows(f"a {engine.name} frame")
        names = engine.columns(frame)
    check_names(encoding.schema, names, allowed_extra=() if cap is None else (cap.id,), target=True)
    if cap is not None and cap.id not in names:
        raise no_id(cap)
    with _told(engine):
        wanted = engine.project(frame, _wanted(encoding, cap))
    return ClusterSource.of(engine, wanted, encoding, cap, invalid)


def _told(engine: Cluster) -> AbstractContextManager[None]:
    """Tell what an engine raises without its words."""
    return without_words_of(engine.name, "could not compute the frame", "compute the frame by itself")


def _wanted(encoding: Encoding, cap: RowsOf | None) -> list[str]:
    schema = encoding.schema
    return list(dict.fromkeys([*schema.sources, *(() if cap is None else (cap.id,))]))


@dataclass(frozen=True, repr=False, kw_only=True)
class ClusterSource(Source):
    """The rows of a frame; passes go over the cluster, and rows never come here."""

    _frame: Frame
    _filter: Callable[[Batch], Batch] | None = None  # which rows of a batch are there, where some were set aside

    @classmethod
    def of(cls, engine: Cluster, frame: Any, encoding: Encoding, cap: RowsOf | None, invalid: Invalid) -> ClusterSource:
        """Take a frame that has no columns but those that are needed."""

        def read() -> Iterator[Any]:
            raise UseError(
                f"the rows of a {engine.name} frame stay on the cluster, and they are needed here. "
                "Hint: pass files, or a sample in memory."
            )

        salt = 0 if cap is None else int(entropy.words(1)[0])
        # How many partitions there are is known after a pass only: leave room for any number.
        return cls(read, n_partitions=1 << 32, _frame=Frame(engine, frame, encoding, cap, invalid, salt))

    def add_up(self, count: Count, doing: str = "counting", *, n_jobs: int | None = 1) -> Sums:
        """Count on the workers; threads are theirs, so ``n_jobs`` has no effect."""
        counted = count if self._filter is None else partial(_count_some, count, self._filter)
        total = self._frame.checked(partial(self._frame.count, counted))
        sums: Any = total.sums
        return count([]) if sums is None else sums

    def keep(self, make: Callable[[list[Batch]], Any]) -> KeptRows:
        """Make something of the rows of each partition, and keep it there between passes."""
        made = make if self._filter is None else partial(_make_of_some, make, self._filter)
        return KeptRows(self._frame, made)

    def only(self, some: Callable[[Batch], Batch]) -> ClusterSource:
        """Return a part of the rows, which is the same in every pass."""
        return replace(self, _filter=some)


def _count_some(
    count: Count, some: Callable[[Batch], Batch], batches: Iterable[Batch], *, n_jobs: int | None = 1
) -> Sums:
    return count(map(some, batches), n_jobs=n_jobs)


def _make_of_some(make: Callable[[list[Batch]], Any], some: Callable[[Batch], Batch], batches: list[Batch]) -> Any:
    return make([some(batch) for batch in batches])


class KeptRows:
    """What was made of the rows of each partition: it is changed and asked where it is, and never comes here."""

    def __init__(self, frame: Frame, make: Callable[[list[Batch]], Any]) -> None:
        self._frame, self._make = frame, make
        self._kept: Kept | None = None

    def change(self, change: Callable[[Any], Any]) -> None:
        """Change what every partition holds into what this returns."""
        self._kept = self._now().moved(partial(move, change))

    def ask(self, question: Callable[[Any], Summed]) -> Any:
        """Add up the answers of all partitions; exact, hence private."""
        return self._frame.checked(lambda: self._now().ask(partial(ask, question))).sums

    def close(self) -> None:
        """Let everything go."""
        if self._kept is not None:
            self._kept.close()
        self._kept = None

    def _now(self) -> Kept:
        if self._kept is None:
            self._kept = self._frame.keep(self._make)
        return self._kept


@dataclass(frozen=True, repr=False, eq=False)
class Frame:
    """A frame of an engine, how it is encoded, and what its partitions looked like in earlier passes."""

    engine: Cluster
    frame: Any
    encoding: Encoding
    cap: RowsOf | None
    invalid: Invalid
    salt: int
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def count(self, count: Count) -> PartSums:
        """Count on the workers."""
        if self.cap is None:
            return self.engine.count(self.frame, partial(count_rows, count, self._tables))
        return self.engine.count_by_id(self.frame, *self._by_id, partial(count_rows, count, self._bucket))

    def keep(self, make: Callable[[list[Batch]], Any]) -> Kept:
        """Keep what is made of rows on the workers."""
        if self.cap is None:
            return self.engine.keep(self.frame, partial(hold, make, self._tables))
        return self.engine.keep_by_id(self.frame, *self._by_id, partial(hold, make, self._bucket))

    @property
    def _tables(self) -> Callable[..., NumberedBatches]:
        return partial(of_tables, self.encoding, self.invalid)

    @property
    def _bucket(self) -> Callable[..., NumberedBatches]:
        assert self.cap is not None
        return partial(of_bucket, self.cap, self.salt)

    @property
    def _by_id(self) -> tuple[Callable[[Iterable[Any]], Iterator[pa.Table]], pa.Schema]:
        assert self.cap is not None
        return partial(encode_with_id, self.encoding, self.cap, self.invalid), encoded_schema(self.encoding)

    def checked(self, run: Callable[[], PartSums]) -> PartSums:
        """Run something on the cluster and check that rows are where they were in earlier passes."""
        with _told(self.engine):
            total = run()
        if total.refusal is not None:
            raise total.refusal
        empty = total.sums is None or not any(rows for rows, _ in total.seen.values())
        if empty and self.invalid == "refuse":
            raise OutOfSchemaError(f"the {self.engine.name} frame holds no rows. Hint: check how it was made.")
        # A row that changes its place between passes would be given to another tree (proofs/disjoint-trees.md).
        if self.seen and self.seen != total.seen:
            raise FileError(
                f"the rows of the {self.engine.name} frame changed between two passes, or came in another order. "
                "Hint: write it to files and read those."
            )
        self.seen.update(total.seen)
        return total


_COINS: Final = 1 << 30  # a secret coin is a whole number below
_APART, _JUDGES, _CELLS = b"apart  ", b"judges ", b"cells  "  # what a row's coins are for: it has one for each

Move = Callable[["PartitionRows"], None]  # what changes rows where they are: public numbers, and a secret key


@dataclass(frozen=True, repr=False)  # workers log what fails with its arguments
class CoinKey:
    """The secret key of all coins of a fit."""

    key: bytes


@dataclass(frozen=True, eq=False, repr=False)
class CountedCells:
    """Cells that hold rows, ascending, and how many each; those of several partitions add up."""

    cells: Ints
    counts: Ints

    def __add__(self, other: CountedCells) -> CountedCells:
        return CountedCells(*joined_cells([(self.cells, self.counts), (other.cells, other.counts)]))

    def copy(self) -> CountedCells:
        """Return the same: it never changes."""
        return self


class PartitionRows(HeldRows):
    """What a worker holds of one partition. Coins follow from a key and a row's place, whoever tosses them. Private."""

    def __init__(self, columns: Sequence[CellColumn], n_outputs: int, batches: Sequence[Batch]) -> None:
        self._n_jobs, self._others = 1, None
        read = list(together(batches, PART_ROWS))
        self._parts = [ScoredRows.of(columns, some, n_outputs) for some in read]
        self._places = [[(b.partition, b.first_row, len(b.target)) for b in some] for some in read]
        self._left: list[NDArray[np.bool_]] = []  # which rows of each part were not set apart
        self._held_back: list[ScoredRows] = []
        self._judges: list[ScoredRows] = []
        self._key = b""

    def after(self, moves: Sequence[Move]) -> PartitionRows:
        """Return what becomes of the rows, and leave these as they are: an engine may need them once more."""
        later = copy(self)
        later._left = list(self._left)
        for name in ("_parts", "_held_back", "_judges"):
            copies = [replace(rows, scores=rows.scores.copy()) for rows in getattr(self, name)]
            setattr(later, name, copies)
        for change in moves:
            change(later)
        return later

    def hold_back_by(self, coins: CoinKey, share: float) -> None:
        """Set rows apart."""
        self._key = coins.key + _APART
        left = [~self._drawn(rows, share) for rows in self._parts]
        self.hold_back(share)
        self._left = left

    def draw_judges_by(self, coins: CoinKey, share: float) -> None:
        """Draw the rows that judge."""
        self._key = coins.key + _JUDGES
        self.draw_judges(share)

    def ask_judges(self, question: Question) -> Ints:
        """Return the answer of the rows that were drawn to judge."""
        return self.ask_some(question, 0.0)[0]

    def occupied_by(self, coins: CoinKey, axes: Sequence[Axis], n_classes: int, share: float) -> CountedCells:
        """Return the cells that hold rows."""
        coined = copy(self)
        coined._key = coins.key + _CELLS
        return CountedCells(*coined.occupied(axes, n_classes, share))

    def _drawn(self, rows: ScoredRows, share: float) -> NDArray[np.bool_]:
        """Draw each row by its place."""
        part = next(place for place, each in enumerate(self._parts) if each is rows)
        coins = Assignment(self._key, _COINS)
        tossed = np.concatenate([np.empty(0, np.int32), *(coins.trees(*place) for place in self._places[part])])
        return np.asarray((tossed[self._left[part]] if self._left else tossed) < int(share * _COINS))


class ClusterRows:
    """Asks rows where they are."""

    holds_back: ClassVar[bool] = True

    def __init__(self, columns: Sequence[CellColumn], source: ClusterSource, n_outputs: int) -> None:
        make = partial(PartitionRows, tuple(columns), n_outputs)
        self._rows, self._none = source.keep(make), make([])
        self._moves: list[Move] = []
        self._judges_drawn = False
        self._coins: CoinKey | None = None

    def _secret(self) -> CoinKey:
        """One key for all coins of a fit."""
        self._coins = self._coins or CoinKey(secret_key())
        return self._coins

    def _answer(self, question: Callable[[PartitionRows], Any]) -> Any:
        if self._moves:
            self._rows.change(methodcaller("after", tuple(self._moves)))
            self._moves = []
        answer = self._rows.ask(question)
        return question(self._none) if answer is None else answer

    def ask(self, question: Question) -> Ints:
        """Return the answer, added up over all rows that were not set apart."""
        sums: Ints = self._answer(methodcaller("ask", question))
        return sums

    def ask_some(self, question: Question, share: float) -> tuple[Ints, float]:
        """Ask about a share of the rows, drawn once by secret coins; return the share too."""
        if not self._judges_drawn:
            self._moves.append(methodcaller("draw_judges_by", self._secret(), share))
            self._judges_drawn = True
        return self._answer(methodcaller("ask_judges", question)), share

    def add(self, table: CellTable, values: NDArray[np.int32]) -> None:
        """Take a step; it is sent with the next question."""
        self._moves.append(methodcaller("add", table, values))

    def hold_back(self, share: float) -> None:
        """Set rows apart by secret coins, one for each row: no question reaches them but the last one."""
        self._moves.append(methodcaller("hold_back_by", self._secret(), share))

    def ask_held_back(self, question: Question) -> Ints:
        """Return the answer of the rows that were set apart."""
        sums: Ints = self._answer(methodcaller("ask_held_back", question))
        return sums

    def occupied(self, axes: Sequence[Axis], n_classes: int, share: float = 1.0) -> tuple[Ints, Ints]:
        """Return the cells of columns and classes that hold rows, ascending, and how many each."""
        found = self._answer(methodcaller("occupied_by", self._secret(), tuple(axes), n_classes, share))
        return found.cells, found.counts

    def close(self) -> None:
        """Let the workers forget all of it."""
        self._rows.close()
