# SPDX-License-Identifier: Apache-2.0
"""Backend protocol for private rows, and integer gradients with bounded sensitivity.

A row has bins, a target, and a score: the sum of the values that public steps so far assigned to its cells. Scores and
gradients are integers computed by lookup and division. Hence every backend returns the same sums, and the contribution
of one row is bounded exactly (proofs/private-forest.md). Gradients are in units of 1 / ``GRADIENT_UNITS``.

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

from veilwood.arrays import HAVE_NUMBA, Bools, Codes, Floats, Int32s, Ints
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import MechanismError
from veilwood.forests.adaptive.contingency import Axis, BinnedColumn, ContingencyTable, PackedTables
from veilwood.privacy.entropy import random_integers

GRADIENT_UNITS: Final = 1 << 12
SCORE_UNITS: Final = 1 << 10
LEVEL_UNITS: Final = 1 << 4
TARGET_CELLS: Final = 64
DRAW_UNITS: Final = 1 << 16  # secret random integers for sampling are below
PART_ROWS: Final = 1 << 18  # rows per part in memory
MAX_SCORE: Final = 1 << 24  # limit of a score: far above any fit, and sums of scores fit into 32 bits

_EXP_UNITS: Final = 1 << 20
EXP_TABLE: Final = np.rint(_EXP_UNITS * np.exp(-np.arange(15 * SCORE_UNITS) / SCORE_UNITS)).astype(np.int32)
_SIGMOID_RANGE: Final = 12 * SCORE_UNITS
SIGMOID_TABLE: Final = np.rint(
    GRADIENT_UNITS / (1 + np.exp(-np.arange(-_SIGMOID_RANGE, _SIGMOID_RANGE + 1) / SCORE_UNITS))
).astype(np.int16)  # fmt: skip

ScoredTable: TypeAlias = tuple[ContingencyTable, Int32s]
T = TypeVar("T")


@dataclass(repr=False)
class ScoredRows:
    """Rows in memory, with their scores. Private."""

    cells: NDArray[np.uint8] | Codes  # one row for each column
    target: Int32s
    scores: Int32s  # one column for each output

    @classmethod
    def from_batches(cls, columns: Sequence[BinnedColumn], batches: Iterable[Batch], n_outputs: int) -> ScoredRows:
        """Read rows from batches, with scores 0."""
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
        """Concatenate parts."""
        cells = np.concatenate([rows.cells for rows in parts], axis=1)
        target, scores = ([getattr(rows, name) for rows in parts] for name in ("target", "scores"))
        return cls(cells, np.concatenate(target), np.concatenate(scores))

    def select(self, mask: Bools) -> ScoredRows:
        """Return the rows of a mask."""
        return ScoredRows(self.cells[:, mask], self.target[mask], self.scores[mask])

    def add_scores(self, table: ContingencyTable, values: Int32s, *, fast: bool = HAVE_NUMBA) -> None:
        """Add the value of each row's cell to its scores."""
        if fast:
            from veilwood import kernels

            layout = PackedTables.pack([table]).arrays
            kernels.add_step(self.cells, *layout, np.ascontiguousarray(values), MAX_SCORE, self.scores)
            return
        self.scores += values[table.cell_indices(self.cells)]
        np.clip(self.scores, -MAX_SCORE, MAX_SCORE, out=self.scores)


class RowQuery(Protocol):
    """Aggregate query over rows: a frozen object of public numbers, which backends can translate."""

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return the sum over these rows. Sums over disjoint parts add up."""


class RowBackend(Protocol):
    """Private rows with scores that answer aggregate queries, in memory or elsewhere. Answers are exact, hence private.

    Sparse histograms need ``hold_out``, ``run_on_holdout`` and ``nonempty_cells``; ``supports_holdout`` is True if
    these are available.
    """

    @property
    def supports_holdout(self) -> bool:
        """Whether rows can be held out."""

    def run(self, query: RowQuery) -> Ints:
        """Return the sum over all rows that are not held out."""

    def run_on_sample(self, query: RowQuery, fraction: float) -> tuple[Ints, float]:
        """Return the sum over a secret random sample of the rows, drawn once, and the fraction that was sampled."""

    def add_scores(self, table: ContingencyTable, values: Int32s) -> None:
        """Add the value of each row's cell to its scores, for all rows."""

    def hold_out(self, fraction: float) -> None:
        """Hold out a secret random fraction of the rows, drawn independently; only ``run_on_holdout`` reaches them."""

    def run_on_holdout(self, query: RowQuery) -> Ints:
        """Return the sum over the held-out rows."""

    def nonempty_cells(self, axes: Sequence[Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Return the non-empty cells of columns and classes, ascending, and their counts.

        With a ``fraction`` below 1, of a secret random sample of the rows.
        """


RowPart = TypeVar("RowPart", Batch, ScoredRows)


class NoHoldout:
    """Base class of backends that cannot hold out rows (``supports_holdout`` is False)."""

    supports_holdout: ClassVar[bool] = False

    def hold_out(self, fraction: float) -> None:
        """Raise MechanismError."""
        raise MechanismError("this backend cannot hold out rows.")

    def run_on_holdout(self, query: RowQuery) -> Ints:
        """Raise MechanismError."""
        raise MechanismError("this backend cannot hold out rows.")

    def nonempty_cells(self, axes: Sequence[Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Raise MechanismError: cells this fine would reveal rows."""
        raise MechanismError("this backend cannot list non-empty cells.")


class _Selectable(Protocol):
    def select(self, mask: Bools) -> Self: ...


SelectablePart = TypeVar("SelectablePart", bound=_Selectable)


def split_off(
    parts: list[SelectablePart], fraction: float, draw_mask: Callable[[SelectablePart, float], Bools]
) -> list[SelectablePart]:
    """Move a random fraction of the rows out of all parts, and return them."""
    found = []
    for place, rows in enumerate(parts):
        apart = draw_mask(rows, fraction)
        found.append(rows.select(apart))
        parts[place] = rows.select(~apart)
    return found


@runtime_checkable
class ProvidesBackend(Protocol):
    """A source with a backend of its own: a database, a cluster, secret-shared rows."""

    def make_backend(self, columns: Sequence[BinnedColumn], n_outputs: int) -> RowBackend:
        """Return the backend for these rows."""


@runtime_checkable
class HoldsRemoteRows(Protocol):
    """A backend that keeps rows on other machines until it is closed."""

    def close(self) -> None:
        """Let the rows go."""


class MemoryBackend:
    """Backend for rows in memory, in parts that threads share. Private."""

    def __init__(
        self, columns: Sequence[BinnedColumn], source: Source, n_outputs: int, n_jobs: int | None = None
    ) -> None:
        self._n_jobs = n_jobs
        made = source.map_batches(lambda batch: ScoredRows.from_batches(columns, [batch], n_outputs), n_jobs=n_jobs)
        found = (ScoredRows.concatenate(some) for some in group_batches(made, PART_ROWS) if some)
        self._parts = list(found) or [ScoredRows.from_batches(columns, [], n_outputs)]
        self._joint_source = None if source.is_complete else source  # a complete source is freed
        self._holdout: list[ScoredRows] = []
        self._sample: list[ScoredRows] = []

    def run(self, query: RowQuery) -> Ints:
        """Return the sum over all rows that are not held out."""
        return self._share_sums(sum_answers(_map_parts(query, self._parts, self._n_jobs)))

    @property
    def supports_holdout(self) -> bool:
        """True if all rows are in this process."""
        return self._joint_source is None

    def _share_sums(self, sums: Ints) -> Ints:
        return sums if self._joint_source is None else self._joint_source.share_sums(sums)

    def add_scores(self, table: ContingencyTable, values: Int32s) -> None:
        """Add the value of each row's cell to its scores."""
        every = [*self._parts, *self._holdout, *self._sample]
        _map_parts(lambda rows: rows.add_scores(table, values), every, self._n_jobs)

    def run_on_sample(self, query: RowQuery, fraction: float) -> tuple[Ints, float]:
        """Return the sum over a secret random sample of the rows, and the fraction; over all rows of several owners."""
        if (
            self._joint_source is not None
        ):  # servers that hold rows in shares do not sample, and all parties do the same
            return self.run(query), 1.0
        self.draw_sample(fraction)
        return sum_answers(_map_parts(query, self._sample, self._n_jobs)), fraction

    def draw_sample(self, fraction: float) -> None:
        """Draw the sample of ``run_on_sample``, once."""
        if not self._sample:
            drawn = [rows.select(self._draw_mask(rows, fraction)) for rows in self._parts]
            self._sample = [ScoredRows.concatenate(drawn)]

    def hold_out(self, fraction: float) -> None:
        """Hold out a secret random fraction of the rows, drawn independently."""
        self._holdout += split_off(self._parts, fraction, self._draw_mask)

    def _draw_mask(self, rows: ScoredRows, fraction: float) -> Bools:
        """Draw each row independently of its values and of the other rows."""
        return np.asarray(random_integers(len(rows.target), 16) < int(fraction * DRAW_UNITS))

    def run_on_holdout(self, query: RowQuery) -> Ints:
        """Return the sum over the held-out rows."""
        return sum_answers(_map_parts(query, self._holdout, self._n_jobs))

    def nonempty_cells(self, axes: Sequence[Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Return the non-empty cells of columns and classes, ascending, and their counts."""
        drawn = self._parts if fraction >= 1 else (rows.select(self._draw_mask(rows, fraction)) for rows in self._parts)
        return merge_cells([_count_nonempty(rows, axes, n_classes) for rows in drawn])


def group_batches(batches: Iterable[RowPart], max_rows: int) -> Iterator[list[RowPart]]:
    """Group batches into parts of about ``max_rows`` rows; at least one part."""
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
    """Add up the sums of parts."""
    return answers[0] if len(answers) == 1 else np.asarray(np.sum(answers, axis=0))


def merge_cells(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Merge the cells of parts and add up their counts; ascending."""
    cells, place = np.unique(np.concatenate([cells for cells, _ in parts]), return_inverse=True)
    counts = np.zeros(len(cells), np.int64)
    np.add.at(counts, place, np.concatenate([counts for _, counts in parts]))
    return cells, counts


def _map_parts(work: Callable[[ScoredRows], T], parts: Sequence[ScoredRows], n_jobs: int | None) -> list[T]:
    """Apply a function to every part, on threads: loops over rows release the interpreter lock."""
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


def scores_to_probabilities(scores: Floats) -> Floats:
    """Return class probabilities from log-odds of the second of two classes, or from one score per class."""
    if scores.shape[1] == 1:
        second = 1 / (1 + np.exp(-np.clip(scores[:, 0], -50, 50)))
        return np.column_stack([1 - second, second])
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


# -- what one row adds ------------------------------------------------------------------------------------------------


def row_gradients(scores: Int32s, target: NDArray[Any], n_classes: int, limit: int) -> Int32s:
    """Return the gradient of each row, in ``GRADIENT_UNITS``: one integer, or one per class if there are three or more.

    For two classes ``limit`` bounds the gradient, in these units. For regression it divides the residual, in units of
    scores. More classes need no limit.
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
    """Return the L1 norm of a gradient relative to that of a count: 2 for three or more classes, else 1."""
    return 2 if n_classes > 2 else 1


def gradient_norms(n_classes: int, limit: int) -> tuple[int, int]:
    """Return upper bounds on the L1 norm and the squared L2 norm of one row's gradient, in ``GRADIENT_UNITS``."""
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
    """Sum the target and its distance to the upper bound, in levels: together ``TARGET_LEVELS`` per row."""

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return the two sums."""
        up = int(rows.target.sum(dtype=np.int64))
        return np.array([up, TARGET_LEVELS * len(rows.target) - up], np.int64)


@dataclass(frozen=True, eq=False)
class ResidualHistogram:
    """Count the rows by absolute residual: at most a mark and above the one before; the last mark takes the rest."""

    marks: Ints

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each mark."""
        away = np.abs(rows.target.astype(np.int64) * LEVEL_UNITS - rows.scores[:, 0])
        mark = np.minimum(np.searchsorted(self.marks, away), len(self.marks) - 1)
        return np.bincount(mark, minlength=len(self.marks)).astype(np.int64)


@dataclass(frozen=True)
class Histogram:
    """Count the rows in the value bins of a column, without missing values."""

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
    """Sum the derivative of each row's log-likelihood by the common weight of all steps, clipped to ``max_gain``.

    It is the gradient times the score that these steps added, in ``SCORE_UNITS``: positive if they are underweighted.
    """

    start: Int32s
    n_classes: int
    limit: int
    max_gain: int

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return one number."""
        units = row_gradients(rows.scores, rows.target, self.n_classes, self.limit).astype(np.int64)
        gain = (units * (rows.scores - self.start)).sum(axis=1)
        size = np.minimum(np.abs(gain) // GRADIENT_UNITS, self.max_gain)
        return np.array([(np.sign(gain) * size).sum()], np.int64)
