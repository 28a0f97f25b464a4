# SPDX-License-Identifier: Apache-2.0
"""What PrivateForest asks its rows: each question is a frozen object of public numbers.

Called with rows in memory, a question answers in numpy or a compiled twin. An engine that holds rows elsewhere looks
at the question's type and fields, and adds up the same whole numbers there. What one row adds is bounded, whatever the
row (proofs/private-forest.md). One more question, about fine cells, is ``cell_forests.RightAnswers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.cells.cell_tables import CellTable
from veilwood.forests.cells.layouts import Laid
from veilwood.forests.cells.rows import (
    GRADIENT_UNITS,
    LEVEL_UNITS,
    POWERS,
    SECOND_SHARES,
    TARGET_CELLS,
    Ints,
    ScoredRows,
    gradients,
)
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
    fast: bool = HAVE_NUMBA

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each cell."""
        if self.fast:
            return _fast_counts([self.table], 1, rows).ravel()
        return np.bincount(self.table.cells(rows.cells), minlength=self.table.n_cells).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ClassesByCell:
    """Count the rows of each class in each cell of several tables, one below the other."""

    tables: Sequence[CellTable]
    n_classes: int
    fast: bool = HAVE_NUMBA

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a row for each cell, a column for each class."""
        if self.fast:
            return _fast_counts(self.tables, self.n_classes, rows)
        parts = []
        for table in self.tables:
            place = table.cells(rows.cells) * np.int64(self.n_classes) + rows.target
            parts.append(np.bincount(place, minlength=table.n_cells * self.n_classes))
        return np.concatenate(parts).reshape(-1, self.n_classes).astype(np.int64)


def _fast_counts(tables: Sequence[CellTable], n_classes: int, rows: ScoredRows) -> Ints:
    from veilwood.forests.cells import row_kernels

    laid = Laid.of(tables)
    sums = np.zeros((laid.n_cells, n_classes), np.int64)
    row_kernels.add_classes(rows.cells, *laid.layout, rows.target, sums)
    return sums


@dataclass(frozen=True, eq=False)
class GradientSums:
    """Add up gradients (``rows.gradients``) in each cell of several tables, one below the other."""

    tables: Sequence[CellTable]
    n_classes: int
    limit: int
    fast: bool = HAVE_NUMBA

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a row for each cell, a column for each output."""
        if self.fast:
            return self._fast(rows)
        units = gradients(rows.scores, rows.target, self.n_classes, self.limit)
        # Sums of whole numbers below 2^53 are exact in floating point.
        by_output = [np.ascontiguousarray(units[:, output], np.float64) for output in range(units.shape[1])]
        parts = []
        for table in self.tables:
            cell = table.cells(rows.cells).astype(np.intp)
            parts.append(np.stack([np.bincount(cell, weights, table.n_cells) for weights in by_output], axis=1))
        return np.concatenate(parts).astype(np.int64)

    def _fast(self, rows: ScoredRows) -> Ints:
        from veilwood.forests.cells import row_kernels

        laid, (n_rows, n_outputs) = Laid.of(self.tables), rows.scores.shape
        joined = laid.joined(n_rows, n_outputs)
        walked = laid if joined is None else joined[0]
        task = (self.n_classes, self.limit, SECOND_SHARES, POWERS)
        sums = np.zeros((walked.n_cells, n_outputs), np.int64)
        for first in range(0, n_rows, row_kernels.MOST_ROWS):
            last = min(first + row_kernels.MOST_ROWS, n_rows)
            part = np.zeros(sums.shape, np.int32)
            row_kernels.add_gradients(rows.cells, *walked.layout, rows.scores, rows.target, *task, part, first, last)
            sums += part
        if joined is None:
            return sums
        apart = np.zeros((laid.n_cells, n_outputs), np.int64)
        row_kernels.take_apart(
            walked.layout.axes, walked.layout.starts, sums, laid.sizes, *laid.layout[2:], joined[1], apart
        )
        return apart


@dataclass(frozen=True, eq=False)
class EvidenceGain:
    """Add up how fast each row's log-likelihood grows with the weight of all steps since the start, cut to ``most``.

    That is the gradient times what these steps say, in ``SCORE_UNITS``: above 0 where they say too little.
    """

    start: NDArray[np.int32]
    n_classes: int
    limit: int
    most: int

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return one number."""
        units = gradients(rows.scores, rows.target, self.n_classes, self.limit).astype(np.int64)
        gain = (units * (rows.scores - self.start)).sum(axis=1)
        size = np.minimum(np.abs(gain) // GRADIENT_UNITS, self.most)
        return np.array([(np.sign(gain) * size).sum()], np.int64)
