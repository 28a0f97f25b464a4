# SPDX-License-Identifier: Apache-2.0
"""What PrivateForest asks its rows: each question is a frozen object of public numbers.

Called with rows in memory, a question answers in numpy or a compiled twin. An engine that holds rows elsewhere looks
at the question's type and fields, and adds up the same whole numbers there. What one row adds is bounded, whatever the
row (proofs/private-forest.md). One more question, about fine cells, is ``cell_forests.RightAnswers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.adaptive.cell_tables import CellTable
from veilwood.forests.adaptive.rows import LEVEL_UNITS, TARGET_CELLS, Ints, ScoredRows, gradients
from veilwood.trees.counting import HAVE_NUMBA


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

    table: CellTable

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each cell."""
        return np.bincount(self.table.cells(rows.cells), minlength=self.table.n_cells).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ClassesByCell:
    """Count the rows of each class in each cell of several tables, one below the other."""

    tables: Sequence[CellTable]
    n_classes: int

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a row for each cell, a column for each class."""
        parts = []
        for table in self.tables:
            place = table.cells(rows.cells) * np.int64(self.n_classes) + rows.target
            parts.append(np.bincount(place, minlength=table.n_cells * self.n_classes))
        return np.concatenate(parts).reshape(-1, self.n_classes).astype(np.int64)


@dataclass(frozen=True, eq=False)
class GradientSums:
    """Add up gradients (``rows.gradients``) in each cell of several tables, one below the other."""

    tables: Sequence[CellTable]
    n_classes: int
    limit: int
    fast: bool = HAVE_NUMBA

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a row for each cell, a column for each output."""
        units = gradients(rows.scores, rows.target, self.n_classes, self.limit)
        if self.fast:
            return _fast_sums(self.tables, rows.cells, units)
        # Sums of whole numbers below 2^53 are exact in floating point.
        by_output = [np.ascontiguousarray(units[:, output], np.float64) for output in range(units.shape[1])]
        parts = []
        for table in self.tables:
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
