# SPDX-License-Identifier: Apache-2.0
"""Counted records, as a strategy asks for them: exact, hence private. What is measured is in ``strategies``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.data import cells as said
from veilwood.data.batches import Batch
from veilwood.forests.matrix.workloads import Ints, PathWorkload
from veilwood.trees.counting import leaf_totals
from veilwood.trees.ways import tree_tables

__all__ = ["AskedCounts", "CountedRecords", "CountedRows", "CountedTable"]


class CountedRecords(ABC):
    """Counted records, asked for one marginal table at a time."""

    @abstractmethod
    def table(self, features: tuple[int, ...]) -> Ints:
        """Counts [*sizes, k] by the values of ``features``."""

    @abstractmethod
    def leaves(self, workload: PathWorkload) -> Ints:
        """Counts [leaves, k] of the leaves of a forest."""


class CountedRows(CountedRecords):
    """Counts out of records, never of the size of the whole domain."""

    def __init__(
        self, codes: Ints, classes: Ints, n_classes: int, shape: tuple[int, ...], unmerged: NDArray[Any]
    ) -> None:
        self.codes, self.classes, self.n_classes, self.shape = codes, classes, n_classes, shape
        self.unmerged = unmerged

    def table(self, features: tuple[int, ...]) -> Ints:
        """Count the records by their cell."""
        sizes = (*(self.shape[i] for i in features), self.n_classes)
        cell = np.zeros(len(self.codes), np.int64)
        for i in features:
            cell = cell * self.shape[i] + self.codes[:, i]
        counted = np.bincount(cell * self.n_classes + self.classes, minlength=math.prod(sizes))
        return counted.astype(np.int64).reshape(sizes)

    def leaves(self, workload: PathWorkload) -> Ints:
        """Send the records down the trees."""
        assert workload.forest is not None
        rows = Batch(self.unmerged.astype(np.uint16), self.classes.astype(np.int32), partition=0, first_row=0)
        return leaf_totals(workload.forest, [rows], n_classes=self.n_classes)


class AskedCounts(CountedRecords):
    """Counts of records that are somewhere else, asked for in cells (``data.cells``).

    ``columns`` are the columns of the features, ``maps`` merge their codes: a record with a code that is merged into
    nothing is not counted.
    """

    def __init__(
        self, answer: said.AddsUpCells, n_codes: Sequence[int], columns: Sequence[int], maps: Sequence[Ints],
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.answer, self.n_codes, self.columns, self.maps, self.shape = answer, n_codes, columns, maps, shape

    def table(self, features: tuple[int, ...]) -> Ints:
        """Ask for the cells of a marginal."""
        parts, stride = [], math.prod(self.shape[i] for i in features)
        n_cells = stride
        for i in features:
            stride //= self.shape[i]
            parts.append(said.codes_of(self.columns[i], np.where(self.maps[i] < 0, -1, self.maps[i] * stride)))
        (found,) = self.answer([said.Cells((*parts, *self._gone(features)), n_cells)], "classes")
        return found.reshape(*(self.shape[i] for i in features), -1)

    def leaves(self, workload: PathWorkload) -> Ints:
        """Ask for the leaves of each tree."""
        forest = workload.forest
        assert forest is not None
        tables = tree_tables(forest, self.n_codes, self.columns, self._gone(()))
        return np.concatenate(self.answer(tables, "classes"))

    def _gone(self, features: tuple[int, ...]) -> list[said.Way]:
        """Tests of the other features for codes that are merged into nothing."""
        return [
            said.codes_of(self.columns[i], np.where(to < 0, -1, 0))
            for i, to in enumerate(self.maps)
            if i not in features and (to < 0).any()
        ]


class CountedTable(CountedRecords):
    """Counts out of a table of all cells."""

    def __init__(self, cells: Ints) -> None:
        self.cells = cells

    def table(self, features: tuple[int, ...]) -> Ints:
        """Add up over the other features."""
        others = tuple(i for i in range(self.cells.ndim - 1) if i not in features)
        summed: Ints = self.cells.sum(axis=others)
        return summed

    def leaves(self, workload: PathWorkload) -> Ints:
        """Add up the cells of each leaf."""
        return np.rint(workload.answer_cells(self.cells.astype(float))).astype(np.int64)
