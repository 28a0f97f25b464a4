# SPDX-License-Identifier: Apache-2.0
"""What is added up over private rows, in whole numbers: counts, and gradients in units of 1 / ``GRADIENT_UNITS``.

A row is its cells, its target, and its score: the sum of what public steps so far give its cells. Scores and gradients
are whole numbers found by lookup and division, so that every engine gets the same ones, and what one row adds is
bounded exactly (proofs/private-forest.md).

| task | score | gradient |
|---|---|---|
| two classes | log-odds of the second class, in ``SCORE_UNITS`` | class less probability, cut to a limit |
| more classes | log-odds of each, in ``SCORE_UNITS`` | class less probability, one number for each |
| numbers | target, in 1 / ``LEVEL_UNITS`` of its levels | residual by a limit, cut to 1 |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.adaptive.cell_tables import Axis, CellTable
from veilwood.forests.adaptive.columns import CellColumn
from veilwood.privacy.entropy import words
from veilwood.trees.counting import HAVE_NUMBA

GRADIENT_UNITS: Final = 1 << 12
SCORE_UNITS: Final = 1 << 10
LEVEL_UNITS: Final = 1 << 4
TARGET_CELLS: Final = 64
COINS: Final = 1 << 16  # a secret coin is a whole number below
LARGEST_SCORE: Final = 1 << 24  # far beyond what steps add up to; sums of scores stay within 32 bits

_EXP_UNITS: Final = 1 << 20
_EXP: Final = np.rint(_EXP_UNITS * np.exp(-np.arange(15 * SCORE_UNITS) / SCORE_UNITS)).astype(np.int64)
_REACH: Final = 12 * SCORE_UNITS
_SECOND: Final = np.rint(
    GRADIENT_UNITS / (1 + np.exp(-np.arange(-_REACH, _REACH + 1) / SCORE_UNITS))
).astype(np.int32)  # fmt: skip

Ints: TypeAlias = NDArray[np.int64]
Step: TypeAlias = tuple[CellTable, NDArray[np.int32]]
Question: TypeAlias = "Callable[[ScoredRows], Ints]"


@dataclass(repr=False)
class ScoredRows:
    """Rows in memory. Private."""

    cells: NDArray[np.uint8] | NDArray[np.uint16]  # one row for each column
    target: NDArray[np.int32]
    scores: NDArray[np.int32]  # one column for each output

    @classmethod
    def of(cls, columns: Sequence[CellColumn], batches: Iterable[Batch], n_outputs: int) -> ScoredRows:
        """Read batches once."""
        dtype = np.uint8 if all(column.n_cells <= 256 for column in columns) else np.uint16
        cells, target = [np.empty((len(columns), 0), dtype)], [np.empty(0, np.int32)]
        for batch in batches:
            mine = np.empty((len(columns), len(batch.target)), dtype)
            for column in columns:
                mine[column.feature] = column.cells(batch.codes[:, column.feature])
            cells.append(mine)
            target.append(batch.target)
        joined = np.concatenate(target)
        scores = np.zeros((len(joined), n_outputs), np.int32)
        return cls(np.concatenate(cells, axis=1), joined, scores)

    def some(self, kept: NDArray[np.bool_]) -> ScoredRows:
        """Return some of the rows."""
        return ScoredRows(self.cells[:, kept], self.target[kept], self.scores[kept])

    def add(self, table: CellTable, values: NDArray[np.int32]) -> None:
        """Add what a step gives each cell to the scores."""
        self.scores += values[table.cells(self.cells)]
        np.clip(self.scores, -LARGEST_SCORE, LARGEST_SCORE, out=self.scores)


class HeldRows:
    """Asks rows that are held in memory, with their scores. Private."""

    def __init__(self, columns: Sequence[CellColumn], source: Source, n_outputs: int) -> None:
        self._rows = ScoredRows.of(columns, source.batches(), n_outputs)
        self._held_back: ScoredRows | None = None
        self._judges: ScoredRows | None = None

    def ask(self, question: Question) -> Ints:
        """Return the answer, added up over all rows."""
        return question(self._rows)

    def add(self, table: CellTable, values: NDArray[np.int32]) -> None:
        """Take a step."""
        for rows in (self._rows, self._held_back, self._judges):
            if rows is not None:
                rows.add(table, values)

    def ask_some(self, question: Question, share: float) -> tuple[Ints, float]:
        """Ask about a share of the rows, drawn once by secret coins, one for each row; return the share too."""
        if self._judges is None:
            self._judges = self._rows.some(self._drawn(share))
        return question(self._judges), share

    def hold_back(self, share: float) -> None:
        """Set rows apart by secret coins, one for each row: no question reaches them but the last one."""
        apart = self._drawn(share)
        self._held_back, self._rows = self._rows.some(apart), self._rows.some(~apart)

    def _drawn(self, share: float) -> NDArray[np.bool_]:
        """Draw each row by itself, whatever it is and however many there are."""
        return np.asarray(words(len(self._rows.target), 16) < int(share * COINS))

    def ask_held_back(self, question: Question) -> Ints:
        """Return the answer of the rows that were set apart."""
        assert self._held_back is not None
        return question(self._held_back)

    def occupied(self, axes: Sequence[Axis], n_classes: int) -> tuple[Ints, Ints]:
        """Return the cells of columns and classes that hold rows, ascending, and how many each."""
        every = np.zeros(len(self._rows.target), np.int64)  # there may be more cells than 32 bits can number
        for axis in axes:
            every *= axis.size
            every += axis.groups[self._rows.cells[axis.feature]]
        every *= n_classes
        every += self._rows.target
        every.sort()  # in place, where np.unique would sort a copy
        firsts = np.flatnonzero(np.append(True, every[1:] != every[:-1])[: len(every)])
        return every[firsts], np.diff(firsts, append=len(every))


class StreamedRows:
    """Asks rows that stay where they are: each batch walks all steps so far before it is asked."""

    def __init__(self, columns: Sequence[CellColumn], source: Source, n_outputs: int, n_jobs: int | None) -> None:
        self._walk = Walk(tuple(columns), n_outputs, ())
        self._source, self._n_jobs = source, n_jobs

    def ask(self, question: Question) -> Ints:
        """Return the answer, added up over all rows."""
        return self._source.add_up(replace(self._walk, question=question), n_jobs=self._n_jobs)

    def ask_some(self, question: Question, share: float) -> tuple[Ints, float]:
        """Ask about all rows: a worker has no coins that it would toss alike in every pass."""
        return self.ask(question), 1.0

    def add(self, table: CellTable, values: NDArray[np.int32]) -> None:
        """Take a step."""
        self._walk = replace(self._walk, steps=(*self._walk.steps, (table, values)))


@dataclass(frozen=True, eq=False, repr=False)
class Walk:
    """Asks batch after batch (``batches.Count``)."""

    columns: tuple[CellColumn, ...]
    n_outputs: int
    steps: tuple[Step, ...]
    question: Question | None = None

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Ints:
        """Return the sum of the answers."""
        assert self.question is not None
        total = self.question(ScoredRows.of(self.columns, (), self.n_outputs))
        for batch in batches:
            rows = ScoredRows.of(self.columns, [batch], self.n_outputs)
            for table, values in self.steps:
                rows.add(table, values)
            total = total + self.question(rows)
        return total


# -- questions: what one row adds is bounded, whatever the row -----------------------------------------------------


def n_rows(rows: ScoredRows) -> Ints:
    """Count the rows."""
    return np.array([len(rows.target)], np.int64)


def class_counts(n_classes: int, rows: ScoredRows) -> Ints:
    """Count the rows of each class."""
    return np.bincount(rows.target, minlength=n_classes).astype(np.int64)


def target_histogram(rows: ScoredRows) -> Ints:
    """Count the rows in equal cells of a numeric target."""
    cell = rows.target.astype(np.int64) * TARGET_CELLS // (TARGET_LEVELS + 1)
    return np.bincount(cell, minlength=TARGET_CELLS).astype(np.int64)


def target_sums(rows: ScoredRows) -> Ints:
    """Add up the target, and what it lacks of its upper bound, in levels: together ``TARGET_LEVELS`` for each row."""
    up = int(rows.target.sum(dtype=np.int64))
    return np.array([up, TARGET_LEVELS * len(rows.target) - up], np.int64)


def residual_histogram(marks: Ints, rows: ScoredRows) -> Ints:
    """Count the rows whose absolute residual is at most a mark and above the one before; the last takes the rest."""
    away = np.abs(rows.target.astype(np.int64) * LEVEL_UNITS - rows.scores[:, 0])
    return np.bincount(np.minimum(np.searchsorted(marks, away), len(marks) - 1), minlength=len(marks)).astype(np.int64)


def histogram(column: int, n_cells: int, rows: ScoredRows) -> Ints:
    """Count the rows in the first cells of a column; missing values are in none of them."""
    return np.bincount(rows.cells[column], minlength=n_cells)[:n_cells].astype(np.int64)


def rows_by_cell(table: CellTable, rows: ScoredRows) -> Ints:
    """Count the rows in each cell of a table."""
    return np.bincount(table.cells(rows.cells), minlength=table.n_cells).astype(np.int64)


def classes_by_cell(tables: Sequence[CellTable], n_classes: int, rows: ScoredRows) -> Ints:
    """Count the rows of each class in each cell of several tables, one below the other."""
    parts = [
        np.bincount(table.cells(rows.cells) * np.int64(n_classes) + rows.target, minlength=table.n_cells * n_classes)
        for table in tables
    ]
    return np.concatenate(parts).reshape(-1, n_classes).astype(np.int64)


def gradient_sums(
    tables: Sequence[CellTable], n_classes: int, limit: int, rows: ScoredRows, *, fast: bool = HAVE_NUMBA
) -> Ints:
    """Add up gradients in each cell of several tables, one below the other."""
    units = gradients(rows.scores, rows.target, n_classes, limit)
    if fast:
        return _fast_sums(tables, rows.cells, units)
    # Sums of whole numbers below 2^53 are exact in floating point.
    by_output = [np.ascontiguousarray(units[:, output], np.float64) for output in range(units.shape[1])]
    parts = []
    for table in tables:
        cell = table.cells(rows.cells).astype(np.intp)
        parts.append(np.stack([np.bincount(cell, weights, table.n_cells) for weights in by_output], axis=1))
    return np.concatenate(parts).astype(np.int64)


def _fast_sums(tables: Sequence[CellTable], cells: NDArray[Any], units: NDArray[np.int32]) -> Ints:
    from veilwood.forests.adaptive import row_kernels

    axes = list({id(axis): axis for table in tables for axis in table.axes}.values())
    number = {id(axis): place for place, axis in enumerate(axes)}
    most = max((len(table.axes) for table in tables), default=0)
    groups = np.zeros((len(axes), max((len(axis.groups) for axis in axes), default=1)), np.uint16)
    for place, axis in enumerate(axes):
        groups[place, : len(axis.groups)] = axis.groups
    mine, strides = np.full((len(tables), most), -1, np.int32), np.zeros((len(tables), most), np.uint32)
    for place, table in enumerate(tables):
        stride = table.n_cells
        for at, axis in enumerate(table.axes):
            stride //= axis.size
            mine[place, at], strides[place, at] = number[id(axis)], stride
    sizes = np.array([table.n_cells for table in tables])
    starts = (np.cumsum(sizes) - sizes).astype(np.uint32)
    sums = np.zeros((int(sizes.sum()), units.shape[1]), np.int64)
    features = np.array([axis.feature for axis in axes], np.int64)
    row_kernels.add_gradients(cells, features, groups, mine, strides, starts, units, sums)
    return sums


def gradients(scores: NDArray[np.int32], target: NDArray[Any], n_classes: int, limit: int) -> NDArray[np.int32]:
    """Return what each row adds, in ``GRADIENT_UNITS``: one whole number, or one for each of three or more classes.

    ``limit`` bounds the gradient of two classes, in these units, and is what a residual is divided by, in those of
    scores; more classes need none.
    """
    if n_classes == 0:
        residual = target[:, None].astype(np.int64) * LEVEL_UNITS - scores
        size = np.minimum(np.abs(residual) * GRADIENT_UNITS // limit, GRADIENT_UNITS)
        return np.asarray(np.sign(residual) * size, np.int32)
    if n_classes == 2:
        second = _SECOND[np.clip(scores[:, 0], -_REACH, _REACH) + _REACH]
        return np.asarray(np.clip(target * GRADIENT_UNITS - second, -limit, limit)[:, None], np.int32)
    behind = scores.max(axis=1, keepdims=True) - scores
    powers = np.where(behind < len(_EXP), _EXP[np.minimum(behind, len(_EXP) - 1)], 0)
    away = np.asarray(-(powers * GRADIENT_UNITS // powers.sum(axis=1, keepdims=True)), np.int32)
    away[np.arange(len(target)), target] += GRADIENT_UNITS
    return away


def reach(n_classes: int, limit: int) -> tuple[int, int]:
    """Return the L1 norm and the squared L2 norm of one row's gradient, at most, in ``GRADIENT_UNITS``."""
    if n_classes == 0:
        return GRADIENT_UNITS, GRADIENT_UNITS**2
    return (limit, limit**2) if n_classes == 2 else (2 * GRADIENT_UNITS, 2 * GRADIENT_UNITS**2)
