# SPDX-License-Identifier: Apache-2.0
"""Private rows that can be asked, and what one of them adds, in whole numbers.

A row is its cells, its target, and its score: the sum of what public steps so far give its cells. Scores and gradients
are whole numbers found by lookup and division, so that every engine gets the same ones, and what one row adds is
bounded exactly (proofs/private-forest.md). What can be asked is in ``questions``; whoever answers, in memory or where
the rows are (``RowBackend``), gives the same whole numbers. Gradients are in units of 1 / ``GRADIENT_UNITS``.

| task | score | gradient |
|---|---|---|
| two classes | log-odds of the second class, in ``SCORE_UNITS`` | class less probability, cut to a limit |
| more classes | log-odds of each, in ``SCORE_UNITS`` | class less probability, one number for each |
| numbers | target, in 1 / ``LEVEL_UNITS`` of its levels | residual by a limit, cut to 1 |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import MechanismError
from veilwood.forests.adaptive.contingency import Axis, BinnedColumn, ContingencyTable, PackedTables
from veilwood.privacy.entropy import random_integers
from veilwood.trees.counting import HAVE_NUMBA

GRADIENT_UNITS: Final = 1 << 12
SCORE_UNITS: Final = 1 << 10
LEVEL_UNITS: Final = 1 << 4
TARGET_CELLS: Final = 64
DRAW_UNITS: Final = 1 << 16  # a secret coin is a whole number below
PART_ROWS: Final = 1 << 18  # that are held together
MAX_SCORE: Final = 1 << 24  # far beyond what steps add up to; sums of scores stay within 32 bits

_EXP_UNITS: Final = 1 << 20
EXP_TABLE: Final = np.rint(_EXP_UNITS * np.exp(-np.arange(15 * SCORE_UNITS) / SCORE_UNITS)).astype(np.int32)
_SIGMOID_RANGE: Final = 12 * SCORE_UNITS
SIGMOID_TABLE: Final = np.rint(
    GRADIENT_UNITS / (1 + np.exp(-np.arange(-_SIGMOID_RANGE, _SIGMOID_RANGE + 1) / SCORE_UNITS))
).astype(np.int16)  # fmt: skip

Ints: TypeAlias = NDArray[np.int64]
ScoredTable: TypeAlias = tuple[ContingencyTable, NDArray[np.int32]]
T = TypeVar("T")


@dataclass(repr=False)
class ScoredRows:
    """Rows in memory. Private."""

    cells: NDArray[np.uint8] | NDArray[np.uint16]  # one row for each column
    target: NDArray[np.int32]
    scores: NDArray[np.int32]  # one column for each output

    @classmethod
    def from_batches(cls, columns: Sequence[BinnedColumn], batches: Iterable[Batch], n_outputs: int) -> ScoredRows:
        """Read batches once."""
        dtype = np.uint8 if all(column.n_bins <= 256 for column in columns) else np.uint16
        read = list(batches)
        n_rows = sum(len(batch.target) for batch in read)
        cells, target = np.empty((len(columns), n_rows), dtype), np.empty(n_rows, np.int32)
        first = 0
        for batch in read:
            last = first + len(batch.target)
            for column in columns:
                cells[column.feature, first:last] = column.bin_codes(batch.codes[:, column.feature])
            target[first:last] = batch.target
            first = last
        return cls(cells, target, np.zeros((n_rows, n_outputs), np.int32))

    @classmethod
    def concatenate(cls, parts: Sequence[ScoredRows]) -> ScoredRows:
        """Put parts together."""
        cells = np.concatenate([rows.cells for rows in parts], axis=1)
        target, scores = ([getattr(rows, name) for rows in parts] for name in ("target", "scores"))
        return cls(cells, np.concatenate(target), np.concatenate(scores))

    def select(self, mask: NDArray[np.bool_]) -> ScoredRows:
        """Return some of the rows."""
        return ScoredRows(self.cells[:, mask], self.target[mask], self.scores[mask])

    def add_scores(self, table: ContingencyTable, values: NDArray[np.int32], *, fast: bool = HAVE_NUMBA) -> None:
        """Add what a step gives each cell to the scores."""
        if fast:
            from veilwood import kernels

            layout = PackedTables.pack([table]).arrays
            kernels.add_step(self.cells, *layout, np.ascontiguousarray(values), MAX_SCORE, self.scores)
            return
        self.scores += values[table.cell_indices(self.cells)]
        np.clip(self.scores, -MAX_SCORE, MAX_SCORE, out=self.scores)


class RowQuery(Protocol):
    """What is added up over rows: a frozen object of public numbers, so that an engine can see what is asked."""

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return the sum over these rows; sums over parts of the rows add up."""


class RowBackend(Protocol):
    """Rows that answer questions and remember their scores, wherever they are. Answers are exact, hence private.

    ``supports_holdout`` says whether ``hold_out``, ``run_on_holdout`` and ``nonempty_cells`` can be called, which fine cells need.
    """

    @property
    def supports_holdout(self) -> bool:
        """Whether rows can be set apart."""

    def run(self, query: RowQuery) -> Ints:
        """Return the answer, added up over all rows that were not set apart."""

    def run_on_sample(self, query: RowQuery, fraction: float) -> tuple[Ints, float]:
        """Ask about a share of the rows, drawn once by secret coins; return the share that was really asked too."""

    def add_scores(self, table: ContingencyTable, values: NDArray[np.int32]) -> None:
        """Take a step: add what it gives each cell to the scores of all rows."""

    def hold_out(self, fraction: float) -> None:
        """Set rows apart by secret coins, one for each row: no question reaches them but the last one."""

    def run_on_holdout(self, query: RowQuery) -> Ints:
        """Return the answer of the rows that were set apart."""

    def nonempty_cells(self, axes: Sequence[Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Return the cells of columns and classes that hold rows, ascending, and how many each.

        With a share, of so many rows, drawn by secret coins.
        """


RowPart = TypeVar("RowPart", Batch, ScoredRows)


class NoHoldout:
    """What rows say that cannot be set apart: nobody asks them to (``supports_holdout``)."""

    supports_holdout: ClassVar[bool] = False

    def hold_out(self, fraction: float) -> None:
        """Refuse."""
        raise MechanismError("these rows cannot be set apart.")

    def run_on_holdout(self, query: RowQuery) -> Ints:
        """Refuse."""
        raise MechanismError("these rows cannot be set apart.")

    def nonempty_cells(self, axes: Sequence[Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Refuse: cells so fine would be rows."""
        raise MechanismError("the cells that hold these rows cannot be listed.")


class _Selectable(Protocol):
    def select(self, mask: NDArray[np.bool_]) -> Self: ...


SelectablePart = TypeVar("SelectablePart", bound=_Selectable)


def split_off(
    parts: list[SelectablePart], fraction: float, draw_mask: Callable[[SelectablePart, float], NDArray[np.bool_]]
) -> list[SelectablePart]:
    """Take the rows that are drawn out of all parts, and return them."""
    found = []
    for place, rows in enumerate(parts):
        apart = draw_mask(rows, fraction)
        found.append(rows.select(apart))
        parts[place] = rows.select(~apart)
    return found


@runtime_checkable
class ProvidesBackend(Protocol):
    """A source whose rows are asked where they are: in a database, on a cluster, in shares."""

    def make_backend(self, columns: Sequence[BinnedColumn], n_outputs: int) -> RowBackend:
        """Return them ready to be asked."""


@runtime_checkable
class HoldsRemoteRows(Protocol):
    """A backend that keeps rows on other machines until it is closed."""

    def close(self) -> None:
        """Let the rows go."""


class MemoryBackend:
    """Asks rows that are held in memory, with their scores: in parts, which threads can share. Private."""

    def __init__(
        self, columns: Sequence[BinnedColumn], source: Source, n_outputs: int, n_jobs: int | None = None
    ) -> None:
        self._n_jobs = n_jobs
        made = source.map_batches(lambda batch: ScoredRows.from_batches(columns, [batch], n_outputs), n_jobs=n_jobs)
        found = (ScoredRows.concatenate(some) for some in group_batches(made, PART_ROWS) if some)
        self._parts = list(found) or [ScoredRows.from_batches(columns, [], n_outputs)]
        self._joint_source = None if source.is_complete else source  # what the rows were read from is let go
        self._holdout: list[ScoredRows] = []
        self._sample: list[ScoredRows] = []

    def run(self, query: RowQuery) -> Ints:
        """Return the answer, added up over all rows."""
        return self._share_sums(sum_answers(_map_parts(query, self._parts, self._n_jobs)))

    @property
    def supports_holdout(self) -> bool:
        """Cells that hold rows can be listed where all rows are here."""
        return self._joint_source is None

    def _share_sums(self, sums: Ints) -> Ints:
        return sums if self._joint_source is None else self._joint_source.share_sums(sums)

    def add_scores(self, table: ContingencyTable, values: NDArray[np.int32]) -> None:
        """Take a step."""
        every = [*self._parts, *self._holdout, *self._sample]
        _map_parts(lambda rows: rows.add_scores(table, values), every, self._n_jobs)

    def run_on_sample(self, query: RowQuery, fraction: float) -> tuple[Ints, float]:
        """Ask about a share of the rows, drawn once by secret coins, one for each row; return the share too."""
        self.draw_sample(fraction)
        return self._share_sums(sum_answers(_map_parts(query, self._sample, self._n_jobs))), fraction

    def draw_sample(self, fraction: float) -> None:
        """Draw the rows that ``run_on_sample`` asks, once."""
        if not self._sample:
            drawn = [rows.select(self._draw_mask(rows, fraction)) for rows in self._parts]
            self._sample = [ScoredRows.concatenate(drawn)]

    def hold_out(self, fraction: float) -> None:
        """Set rows apart by secret coins, one for each row: no question reaches them but the last one."""
        self._holdout += split_off(self._parts, fraction, self._draw_mask)

    def _draw_mask(self, rows: ScoredRows, fraction: float) -> NDArray[np.bool_]:
        """Draw each row by itself, whatever it is and however many there are."""
        return np.asarray(random_integers(len(rows.target), 16) < int(fraction * DRAW_UNITS))

    def run_on_holdout(self, query: RowQuery) -> Ints:
        """Return the answer of the rows that were set apart."""
        return sum_answers(_map_parts(query, self._holdout, self._n_jobs))

    def nonempty_cells(self, axes: Sequence[Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Return the cells of columns and classes that hold rows, ascending, and how many each."""
        drawn = self._parts if fraction >= 1 else (rows.select(self._draw_mask(rows, fraction)) for rows in self._parts)
        return merge_cells([_count_nonempty(rows, axes, n_classes) for rows in drawn])


def group_batches(batches: Iterable[RowPart], max_rows: int) -> Iterator[list[RowPart]]:
    """Put batches together to parts of about so many rows; there is always one."""
    some: list[RowPart] = []
    any_yet = False
    for batch in batches:
        some.append(batch)
        if sum(len(each.target) for each in some) >= max_rows:
            yield some
            some, any_yet = [], True
    if some or not any_yet:
        yield some


def sum_answers(answers: Sequence[Ints]) -> Ints:
    """Add up the answers of parts."""
    return answers[0] if len(answers) == 1 else np.asarray(np.sum(answers, axis=0))


def merge_cells(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Put cells of parts, and how many rows each holds, together; ascending."""
    cells, place = np.unique(np.concatenate([cells for cells, _ in parts]), return_inverse=True)
    counts = np.zeros(len(cells), np.int64)
    np.add.at(counts, place, np.concatenate([counts for _, counts in parts]))
    return cells, counts


def _map_parts(work: Callable[[ScoredRows], T], parts: Sequence[ScoredRows], n_jobs: int | None) -> list[T]:
    """Do the same with every part; loops over rows release the interpreter lock."""
    n_threads = min(effective_n_jobs(n_jobs), len(parts))
    if n_threads == 1:
        return [work(rows) for rows in parts]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(work, parts))


def _count_nonempty(rows: ScoredRows, axes: Sequence[Axis], n_classes: int) -> tuple[Ints, Ints]:
    every = np.zeros(len(rows.target), np.int64)  # there may be more cells than 32 bits can number
    for axis in axes:
        every *= axis.size
        every += axis.groups[rows.cells[axis.feature]]
    every *= n_classes
    every += rows.target
    every.sort()  # in place, where np.unique would sort a copy
    firsts = np.flatnonzero(np.append(True, every[1:] != every[:-1])[: len(every)])
    return every[firsts], np.diff(firsts, append=len(every))


def scores_to_probabilities(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn scores into class probabilities: log-odds of the second of two classes, or one score for each class."""
    if scores.shape[1] == 1:
        second = 1 / (1 + np.exp(-np.clip(scores[:, 0], -50, 50)))
        return np.column_stack([1 - second, second])
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


# -- what one row adds ------------------------------------------------------------------------------------------------


def row_gradients(scores: NDArray[np.int32], target: NDArray[Any], n_classes: int, limit: int) -> NDArray[np.int32]:
    """Return what each row adds, in ``GRADIENT_UNITS``: one whole number, or one for each of three or more classes.

    ``limit`` bounds the gradient of two classes, in these units, and is what a residual is divided by, in those of
    scores; more classes need none.
    """
    if n_classes == 0:
        residual = target[:, None].astype(np.int64) * LEVEL_UNITS - scores
        size = np.minimum(np.abs(residual) * GRADIENT_UNITS // limit, GRADIENT_UNITS)
        return np.asarray(np.sign(residual) * size, np.int32)
    if n_classes == 2:
        second = SIGMOID_TABLE[np.clip(scores[:, 0], -_SIGMOID_RANGE, _SIGMOID_RANGE) + _SIGMOID_RANGE].astype(np.int32)
        return np.asarray(np.clip(target * GRADIENT_UNITS - second, -limit, limit)[:, None], np.int32)
    behind = scores.max(axis=1, keepdims=True) - scores
    powers = np.where(behind < len(EXP_TABLE), EXP_TABLE[np.minimum(behind, len(EXP_TABLE) - 1)], 0).astype(np.int64)
    away = np.asarray(-(powers * GRADIENT_UNITS // powers.sum(axis=1, keepdims=True)), np.int32)
    away[np.arange(len(target)), target] += GRADIENT_UNITS
    return away


def n_outputs(n_classes: int) -> int:
    """Numbers in a score: two classes need one."""
    return n_classes if n_classes > 2 else 1


def sensitivity_factor(n_classes: int) -> int:
    """How many times as far one row moves gradients as it moves counts: a gradient of many classes has two sides."""
    return 2 if n_classes > 2 else 1


def gradient_norms(n_classes: int, limit: int) -> tuple[int, int]:
    """Return the L1 norm and the squared L2 norm of one row's gradient, at most, in ``GRADIENT_UNITS``."""
    if n_classes == 0:
        return GRADIENT_UNITS, GRADIENT_UNITS**2
    return (limit, limit**2) if n_classes == 2 else (2 * GRADIENT_UNITS, 2 * GRADIENT_UNITS**2)


@dataclass(frozen=True)
class RowCount:
    """Count the rows."""

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return one number."""
        return np.array([len(rows.target)], np.int64)


@dataclass(frozen=True)
class ClassCounts:
    """Count the rows of each class."""

    n_classes: int

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each class."""
        return np.bincount(rows.target, minlength=self.n_classes).astype(np.int64)


@dataclass(frozen=True)
class TargetHistogram:
    """Count the rows in equal cells of a numeric target."""

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each of ``TARGET_CELLS`` cells."""
        cell = rows.target.astype(np.int64) * TARGET_CELLS // (TARGET_LEVELS + 1)
        return np.bincount(cell, minlength=TARGET_CELLS).astype(np.int64)


@dataclass(frozen=True)
class TargetSums:
    """Add up the target, and what it lacks of its upper bound, in levels: together ``TARGET_LEVELS`` for each row."""

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return the two sums."""
        up = int(rows.target.sum(dtype=np.int64))
        return np.array([up, TARGET_LEVELS * len(rows.target) - up], np.int64)


@dataclass(frozen=True, eq=False)
class ResidualHistogram:
    """Count the rows whose absolute residual is at most a mark and above the one before; the last takes the rest."""

    marks: Ints

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each mark."""
        away = np.abs(rows.target.astype(np.int64) * LEVEL_UNITS - rows.scores[:, 0])
        mark = np.minimum(np.searchsorted(self.marks, away), len(self.marks) - 1)
        return np.bincount(mark, minlength=len(self.marks)).astype(np.int64)


@dataclass(frozen=True)
class Histogram:
    """Count the rows in the first cells of a column; missing values are in none of them."""

    column: int
    n_cells: int

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each cell."""
        return np.bincount(rows.cells[self.column], minlength=self.n_cells)[: self.n_cells].astype(np.int64)


@dataclass(frozen=True, eq=False)
class RowsByCell:
    """Count the rows in each cell of a table."""

    table: ContingencyTable
    fast: bool = HAVE_NUMBA

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each cell."""
        if self.fast:
            return _fast_counts([self.table], 1, rows).ravel()
        return np.bincount(self.table.cell_indices(rows.cells), minlength=self.table.n_cells).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ClassesByCell:
    """Count the rows of each class in each cell of several tables, one below the other."""

    tables: Sequence[ContingencyTable]
    n_classes: int
    fast: bool = HAVE_NUMBA

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a row for each cell, a column for each class."""
        if self.fast:
            return _fast_counts(self.tables, self.n_classes, rows)
        parts = []
        for table in self.tables:
            place = table.cell_indices(rows.cells) * np.int64(self.n_classes) + rows.target
            parts.append(np.bincount(place, minlength=table.n_cells * self.n_classes))
        return np.concatenate(parts).reshape(-1, self.n_classes).astype(np.int64)


def _fast_counts(tables: Sequence[ContingencyTable], n_classes: int, rows: ScoredRows) -> Ints:
    from veilwood import kernels

    laid = PackedTables.pack(tables)
    sums = np.zeros((laid.n_cells, n_classes), np.int64)
    kernels.add_classes(rows.cells, *laid.arrays, rows.target, sums)
    return sums


@dataclass(frozen=True, eq=False)
class GradientSums:
    """Add up gradients (``rows.row_gradients``) in each cell of several tables, one below the other."""

    tables: Sequence[ContingencyTable]
    n_classes: int
    limit: int
    fast: bool = HAVE_NUMBA

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a row for each cell, a column for each output."""
        if self.fast:
            return self._sum_compiled(rows)
        units = row_gradients(rows.scores, rows.target, self.n_classes, self.limit)
        # Sums of whole numbers below 2^53 are exact in floating point.
        by_output = [np.ascontiguousarray(units[:, output], np.float64) for output in range(units.shape[1])]
        parts = []
        for table in self.tables:
            cell = table.cell_indices(rows.cells).astype(np.intp)
            parts.append(np.stack([np.bincount(cell, weights, table.n_cells) for weights in by_output], axis=1))
        return np.concatenate(parts).astype(np.int64)

    def _sum_compiled(self, rows: ScoredRows) -> Ints:
        from veilwood import kernels

        laid, (n_rows, n_outputs) = PackedTables.pack(self.tables), rows.scores.shape
        joined = laid.merge_tables(n_rows, n_outputs)
        walked = laid if joined is None else joined[0]
        task = (self.n_classes, self.limit, SIGMOID_TABLE, EXP_TABLE)
        sums = np.zeros((walked.n_cells, n_outputs), np.int64)
        for first in range(0, n_rows, kernels.MAX_BLOCK_ROWS):
            last = min(first + kernels.MAX_BLOCK_ROWS, n_rows)
            part = np.zeros(sums.shape, np.int32)
            kernels.add_gradients(rows.cells, *walked.arrays, rows.scores, rows.target, *task, part, first, last)
            sums += part
        if joined is None:
            return sums
        apart = np.zeros((laid.n_cells, n_outputs), np.int64)
        kernels.split_sums(
            walked.arrays.axes, walked.arrays.starts, sums, laid.sizes, *laid.arrays[2:], joined[1], apart
        )
        return apart


@dataclass(frozen=True, eq=False)
class EvidenceGain:
    """Add up how fast each row's log-likelihood grows with the weight of all steps since the start, cut to ``max_gain``.

    That is the gradient times what these steps say, in ``SCORE_UNITS``: above 0 where they say too little.
    """

    start: NDArray[np.int32]
    n_classes: int
    limit: int
    max_gain: int

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return one number."""
        units = row_gradients(rows.scores, rows.target, self.n_classes, self.limit).astype(np.int64)
        gain = (units * (rows.scores - self.start)).sum(axis=1)
        size = np.minimum(np.abs(gain) // GRADIENT_UNITS, self.max_gain)
        return np.array([(np.sign(gain) * size).sum()], np.int64)
