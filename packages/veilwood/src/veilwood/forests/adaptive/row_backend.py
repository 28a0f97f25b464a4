# SPDX-License-Identifier: Apache-2.0
"""Backend of private rows in memory for queries (``data.counts``), and integer gradients with bounded sensitivity.

A row has bins, a target, and a score: the sum of the values that public steps so far assigned to its cells. Scores and
gradients are integers computed by lookup and division. Hence every backend returns the same sums, and the contribution
of one row is bounded exactly (proofs/private-forest.md). Gradients are in units of 1 / ``GRADIENT_UNITS``.

| task | score | gradient |
|---|---|---|
| two classes | log-odds of the second class, in ``SCORE_UNITS`` | class minus probability, clipped to a limit |
| more classes | log-odds of each, in ``SCORE_UNITS`` | class minus probability, one number for each |
| numbers | target, in 1 / ``LEVEL_UNITS`` of its levels | residual / limit, clipped to [-1, 1] |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar, assert_never

import numpy as np

from veilwood.arrays import (
    HAVE_NUMBA,
    AnyArray,
    Bools,
    Codes,
    Floats,
    Int32s,
    Ints,
    NDArray,
    map_on_threads,
    row_ranges,
)  # fmt: skip
from veilwood.data import counts as queries
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.adaptive.contingency import BinnedColumn, PackedTables
from veilwood.privacy.entropy import random_integers

GRADIENT_UNITS: Final = 1 << 12
SCORE_UNITS: Final = 1 << 10
LEVEL_UNITS: Final = 1 << 4
DRAW_UNITS: Final = 1 << 16  # upper bound of secret random integers for sampling
PART_ROWS: Final = 1 << 20  # rows per chunk in memory; threads divide a chunk
MAX_SCORE: Final = 1 << 24  # limit of a score: far above the scores of any fit; sums of scores fit into 32 bits

_EXP_UNITS: Final = 1 << 20
EXP_TABLE: Final = np.rint(_EXP_UNITS * np.exp(-np.arange(15 * SCORE_UNITS) / SCORE_UNITS)).astype(np.int32)
_SIGMOID_RANGE: Final = 12 * SCORE_UNITS
SIGMOID_TABLE: Final = np.rint(
    GRADIENT_UNITS / (1 + np.exp(-np.arange(-_SIGMOID_RANGE, _SIGMOID_RANGE + 1) / SCORE_UNITS))
).astype(np.int16)  # fmt: skip

ScoredTable: TypeAlias = tuple[queries.ContingencyTable, Int32s]
T = TypeVar("T")


@dataclass(repr=False)
class ScoredRows:
    """Private rows in memory, with their scores."""

    cells: NDArray[np.uint8] | Codes  # one row for each column
    target: Int32s
    scores: Int32s  # one column for each output

    @classmethod
    def from_batches(
        cls, columns: Sequence[BinnedColumn], batches: Iterable[Batch], n_outputs: int, n_jobs: int | None = 1
    ) -> ScoredRows:
        """Read rows from batches, with scores 0."""
        dtype = np.uint8 if all(column.n_bins <= 256 for column in columns) else np.uint16
        read = list(batches)
        ends = np.cumsum([0, *(len(batch.target) for batch in read)]).tolist()
        cells, target = np.empty((len(columns), ends[-1]), dtype), np.empty(ends[-1], np.int32)

        def fill(part: tuple[Batch, int, int]) -> None:
            batch, first, last = part
            for column in columns:
                cells[column.feature, first:last] = column.bin_codes(batch.codes[:, column.feature])
            target[first:last] = batch.target

        map_on_threads(fill, list(zip(read, ends[:-1], ends[1:], strict=True)), n_jobs)
        return cls(cells, target, np.zeros((ends[-1], n_outputs), np.int32))

    @classmethod
    def concatenate(cls, parts: Sequence[ScoredRows]) -> ScoredRows:
        """Concatenate chunks of rows."""
        cells = np.concatenate([rows.cells for rows in parts], axis=1)
        target, scores = ([getattr(rows, name) for rows in parts] for name in ("target", "scores"))
        return cls(cells, np.concatenate(target), np.concatenate(scores))

    def select(self, mask: Bools) -> ScoredRows:
        """Return the rows selected by a mask."""
        cells: Any = np.compress(mask, self.cells, axis=1)  # in C order, unlike an index, for vector loads
        return ScoredRows(cells, self.target[mask], self.scores[mask])

    def add_scores(
        self, table: queries.ContingencyTable, values: Int32s, *, n_jobs: int | None = 1, fast: bool = HAVE_NUMBA
    ) -> None:
        """Add the value of each row's cell to its scores."""
        if fast:
            from veilwood import kernels

            layout, added = PackedTables.pack([table]).arrays, np.ascontiguousarray(values)
            map_on_threads(
                lambda rows: kernels.add_step(self.cells, *layout, added, MAX_SCORE, self.scores, *rows),
                row_ranges(len(self.target), n_jobs), n_jobs,
            )  # fmt: skip
            return
        self.scores += values[table.cell_indices(self.cells)]
        np.clip(self.scores, -MAX_SCORE, MAX_SCORE, out=self.scores)


RowPart = TypeVar("RowPart", Batch, ScoredRows)


class _Selectable(Protocol):
    def select(self, mask: Bools) -> Self: ...


SelectablePart = TypeVar("SelectablePart", bound=_Selectable)


def split_off(
    parts: list[SelectablePart], fraction: float, draw_mask: Callable[[SelectablePart, float], Bools]
) -> list[SelectablePart]:
    """Move a random fraction of the rows out of all chunks, and return them."""
    found = []
    for place, rows in enumerate(parts):
        apart = draw_mask(rows, fraction)
        found.append(rows.select(apart))
        parts[place] = rows.select(~apart)
    return found


class MemoryBackend(queries.RowBackend):
    """Private backend for rows in memory, in chunks that threads divide."""

    def __init__(
        self, columns: Sequence[BinnedColumn], source: Source, n_outputs: int, n_jobs: int | None = None
    ) -> None:
        self._n_jobs = n_jobs
        read = group_batches(source.map_batches(lambda batch: batch, n_jobs=n_jobs), PART_ROWS)
        self._parts = [ScoredRows.from_batches(columns, some, n_outputs, n_jobs) for some in read]
        self._joint_source = None if source.is_complete else source  # a complete source is no longer referenced
        self._holdout: list[ScoredRows] = []
        self._sample: list[ScoredRows] = []

    def run(self, query: queries.RowQuery) -> Ints:
        """Return the sum of a query over all rows that are not held out."""
        return self._sum_parts(query, self._parts)

    @property
    def supports_holdout(self) -> bool:
        """True if all rows are in this process."""
        return self._joint_source is None

    def run_together(self, asked: Sequence[queries.RowQuery]) -> list[Ints]:
        """Return the sums of several queries. The rows and gradients of a table are found in one pass."""
        match asked:
            case [queries.RowsByCell(table), queries.GradientSums([same]) as gradients] if table is same and HAVE_NUMBA:
                parts = [_sum_gradients_compiled(gradients, rows, self._n_jobs, True) for rows in self._parts]
                sums = sum_answers(parts)
                return [self._share_sums(np.ascontiguousarray(part)) for part in (sums[:, -1], sums[:, :-1])]
        return super().run_together(asked)

    def _sum_parts(self, query: queries.RowQuery, parts: Sequence[ScoredRows]) -> Ints:
        return self._share_sums(sum_answers([answer_query(query, rows, n_jobs=self._n_jobs) for rows in parts]))

    def _share_sums(self, sums: Ints) -> Ints:
        return sums if self._joint_source is None else self._joint_source.share_sums(sums)

    def add_scores(self, table: queries.ContingencyTable, values: Int32s) -> None:
        """Add the value of each row's cell to its scores."""
        for rows in (*self._parts, *self._holdout, *self._sample):
            rows.add_scores(table, values, n_jobs=self._n_jobs)

    def run_on_sample(self, query: queries.RowQuery, fraction: float) -> tuple[Ints, float]:
        """Return the sum over a secret random sample of the rows (all rows if owners are several), and the fraction."""
        if self._joint_source is not None:  # servers do not sample shared rows, nor does any other party
            return self.run(query), 1.0
        self.draw_sample(fraction)
        return self._sum_parts(query, self._sample), fraction

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

    def run_on_holdout(self, count: Callable[[ScoredRows], Ints]) -> Ints:
        """Return the sum of a function over the held-out rows."""
        return sum_answers(map_on_threads(count, self._holdout, self._n_jobs))

    def nonempty_cells(self, axes: Sequence[queries.Axis], n_classes: int, fraction: float = 1.0) -> tuple[Ints, Ints]:
        """Return the non-empty cells of columns and classes in ascending order, and their counts."""
        drawn = self._parts if fraction >= 1 else (rows.select(self._draw_mask(rows, fraction)) for rows in self._parts)
        return merge_cells([_count_nonempty(rows, axes, n_classes) for rows in drawn])


def group_batches(batches: Iterable[RowPart], max_rows: int) -> Iterator[list[RowPart]]:
    """Group batches into chunks of about ``max_rows`` rows; yield at least one chunk."""
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
    """Add up the sums of all chunks."""
    return answers[0] if len(answers) == 1 else np.asarray(np.sum(answers, axis=0))


def merge_cells(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Merge the cells of all chunks in ascending order and add up their counts."""
    cells, place = np.unique(np.concatenate([cells for cells, _ in parts]), return_inverse=True)
    counts = np.zeros(len(cells), np.int64)
    np.add.at(counts, place, np.concatenate([counts for _, counts in parts]))
    return cells, counts


def _count_nonempty(rows: ScoredRows, axes: Sequence[queries.Axis], n_classes: int) -> tuple[Ints, Ints]:
    every = np.zeros(len(rows.target), np.int64)  # there may be more cells than 32 bits can number
    for axis in axes:
        every *= axis.size
        every += axis.groups[rows.cells[axis.feature]]
    every *= n_classes
    every += rows.target
    every.sort()  # in place; np.unique would sort a copy
    firsts = np.flatnonzero(np.append(True, every[1:] != every[:-1])[: len(every)])
    return every[firsts], np.diff(firsts, append=len(every))


def scores_to_probabilities(scores: Floats) -> Floats:
    """Return class probabilities from log-odds of the second of two classes, or from one score per class."""
    if scores.shape[1] == 1:
        both = np.empty((len(scores), 2))
        second = np.clip(scores[:, 0], -50, 50, out=both[:, 1])
        np.exp(np.negative(second, out=second), out=second)
        np.divide(1, np.add(second, 1, out=second), out=second)
        np.subtract(1, second, out=both[:, 0])
        return both
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


# -- what one row adds ------------------------------------------------------------------------------------------------


def row_gradients(scores: Int32s, target: AnyArray, n_classes: int, limit: int) -> Int32s:
    """Return the gradient of each row, in ``GRADIENT_UNITS``: one integer, or one per class if there are three or more.

    For two classes ``limit`` bounds the gradient, in these units. For regression it divides the residual, in units of
    scores. Three or more classes need no limit.
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
    """Return the number of values in a score: one for two classes or regression, otherwise one per class."""
    return n_classes if n_classes > 2 else 1


def sensitivity_factor(n_classes: int) -> int:
    """Return the L1 norm of a gradient relative to that of a count: 2 for three or more classes, else 1."""
    return 2 if n_classes > 2 else 1


def gradient_norms(n_classes: int, limit: int) -> tuple[int, int]:
    """Return upper bounds on the L1 norm and the squared L2 norm of one row's gradient, in ``GRADIENT_UNITS``."""
    if n_classes == 0:
        return GRADIENT_UNITS, GRADIENT_UNITS**2
    return (limit, limit**2) if n_classes == 2 else (2 * GRADIENT_UNITS, 2 * GRADIENT_UNITS**2)


# -- answers in memory ------------------------------------------------------------------------------------------------


def answer_query(query: queries.RowQuery, rows: ScoredRows, *, n_jobs: int | None = 1, fast: bool = HAVE_NUMBA) -> Ints:
    """Return the answer for these rows; answers for disjoint rows add up. NumPy and compiled loops return the same."""
    match query:
        case queries.RowsByCell(table):
            return _count_cells([table], 1, rows, n_jobs, fast).ravel()
        case queries.ClassesByCell(tables, n_classes):
            return _count_cells(tables, n_classes, rows, n_jobs, fast)
        case queries.TargetSums():
            up = int(rows.target.sum(dtype=np.int64))
            return np.array([up, TARGET_LEVELS * len(rows.target) - up], np.int64)
        case queries.ResidualHistogram(marks):
            residual = rows.target.astype(np.int64) * LEVEL_UNITS - rows.scores[:, 0]
            return _count_indices(np.minimum(np.searchsorted(marks, residual), len(marks) - 1), len(marks))
        case queries.GradientSums():
            return _sum_gradients_compiled(query, rows, n_jobs) if fast else _sum_gradients(query, rows)
        case queries.EvidenceGain(start, n_classes, limit, max_gain):
            units = row_gradients(rows.scores, rows.target, n_classes, limit).astype(np.int64)
            gain = (units * (rows.scores - start)).sum(axis=1)
            size = np.minimum(np.abs(gain) // GRADIENT_UNITS, max_gain)
            return np.array([(np.sign(gain) * size).sum()], np.int64)
    assert_never(query)


def _count_indices(indices: Ints, n_cells: int) -> Ints:
    return np.bincount(indices, minlength=n_cells).astype(np.int64)


def _sum_ranges(add: Callable[[Ints, int, int], None], shape: tuple[int, int], n_rows: int, n_jobs: int | None) -> Ints:
    """Return the sums over all rows; ``add`` adds a range of rows to an array, and each thread has its own array."""

    def add_range(rows: tuple[int, int]) -> Ints:
        sums = np.zeros(shape, np.int64)
        add(sums, *rows)
        return sums

    return sum_answers(map_on_threads(add_range, row_ranges(n_rows, n_jobs), n_jobs))


def _count_cells(
    tables: Sequence[queries.ContingencyTable], n_classes: int, rows: ScoredRows, n_jobs: int | None, fast: bool
) -> Ints:
    """Count the rows per cell and class; with one class, all rows."""
    if fast:
        from veilwood import kernels

        packed = PackedTables.pack(tables)
        return _sum_ranges(
            lambda sums, *span: kernels.add_classes(rows.cells, *packed.arrays, rows.target, sums, *span),
            (packed.n_cells, n_classes), len(rows.target), n_jobs,
        )  # fmt: skip
    label = rows.target if n_classes > 1 else 0
    counts = [
        _count_indices(table.cell_indices(rows.cells) * np.int64(n_classes) + label, table.n_cells * n_classes)
        for table in tables
    ]
    return np.concatenate(counts).reshape(-1, n_classes)


def _sum_gradients(query: queries.GradientSums, rows: ScoredRows) -> Ints:
    units = row_gradients(rows.scores, rows.target, query.n_classes, query.limit)
    # Sums of integers below 2^53 are exact in floating point.
    by_output = [np.ascontiguousarray(units[:, output], np.float64) for output in range(units.shape[1])]
    parts = []
    for table in query.tables:
        cell = table.cell_indices(rows.cells).astype(np.intp)
        parts.append(np.stack([np.bincount(cell, weights, table.n_cells) for weights in by_output], axis=1))
    return np.concatenate(parts).astype(np.int64)


def _sum_gradients_compiled(
    query: queries.GradientSums, rows: ScoredRows, n_jobs: int | None, with_rows: bool = False
) -> Ints:
    """Sum gradients by compiled loops; ``with_rows`` adds a column with the number of rows."""
    from veilwood import kernels

    packed, (n_rows, n_outputs) = PackedTables.pack(query.tables), rows.scores.shape
    joined = packed.merge_tables(n_rows, n_outputs)
    walked = packed if joined is None else joined[0]
    task = (query.n_classes, query.limit, SIGMOID_TABLE, EXP_TABLE)
    width = n_outputs + with_rows
    sums = _sum_ranges(
        lambda sums, *span: kernels.add_gradients(
            rows.cells, *walked.arrays, rows.scores, rows.target, *task, sums, *span
        ),
        (walked.n_cells, width), n_rows, n_jobs,
    )  # fmt: skip
    if joined is None:
        return sums
    apart = np.zeros((packed.n_cells, width), np.int64)
    kernels.split_sums(
        walked.arrays.axes, walked.arrays.starts, sums, packed.sizes, *packed.arrays[2:], joined[1], apart
    )
    return apart
