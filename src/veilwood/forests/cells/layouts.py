# SPDX-License-Identifier: Apache-2.0
"""How tables lie in arrays, for the loops of ``row_kernels``, and which of them are added up together.

A row adds to one cell of each table. Where several tables are about the same few columns it is quicker to add up a
joint table of them first, and to take that apart once all rows are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.cells.cell_tables import CellTable

MOST_JOINT_CELLS = 1 << 10  # numbers of a joint table: they stay in the cache beside the groups of a block
LEAST_TABLES = 4  # for which it is worth looking
ROWS_PER_CELL = 8  # fewer rows than that for each of its cells, and a joint table costs more than it saves


class TableArrays(NamedTuple):
    """Tables in arrays.

    Attributes
    ----------
    features : ndarray of int64, shape (n_axes,)
        The column of each axis that a table has.
    groups : ndarray, shape (n_axes, most cells)
        The group of each of its cells.
    axes : ndarray of int32, shape (n_tables, most axes)
        The axes of each table; -1 where it has no more.
    strides : ndarray of uint32, like ``axes``
        How far apart the cells of successive groups lie.
    starts : ndarray of uint32
        Where the cells of each table begin.
    """

    features: NDArray[np.int64]
    groups: NDArray[np.uint8] | NDArray[np.uint16]
    axes: NDArray[np.int32]
    strides: NDArray[np.uint32]
    starts: NDArray[np.uint32]


class Laid(NamedTuple):
    """Tables in arrays, with the sizes of their axes, and how many cells they have together."""

    layout: TableArrays
    sizes: NDArray[np.int64]
    n_cells: int

    @classmethod
    def of(cls, tables: Sequence[CellTable]) -> Laid:
        """Lay tables one below the other; kept a while, as part after part of the rows is asked the same question."""
        return _laid_tables(tuple(tables))

    @classmethod
    def new(cls, tables: Sequence[CellTable]) -> Laid:
        """Lay tables one below the other."""
        every = list({id(axis): axis for table in tables for axis in table.axes}.values())
        number = {id(axis): place for place, axis in enumerate(every)}
        most = max((len(table.axes) for table in tables), default=0)
        sizes = np.array([axis.size for axis in every], np.int64)
        wide = max((len(axis.groups) for axis in every), default=1)
        groups = np.zeros((len(every), wide), np.uint8 if sizes.max(initial=0) <= 256 else np.uint16)
        for place, axis in enumerate(every):
            groups[place, : len(axis.groups)] = axis.groups
        axes = np.array([[number[id(axis)] for axis in table.axes] + [-1] * (most - len(table.axes))
                         for table in tables], np.int32).reshape(len(tables), most)  # fmt: skip
        features = np.array([axis.feature for axis in every], np.int64)
        return cls._laid(features, groups, axes, sizes)

    @classmethod
    def _laid(
        cls, features: NDArray[np.int64], groups: NDArray[np.uint8] | NDArray[np.uint16], axes: NDArray[np.int32],
        sizes: NDArray[np.int64],
    ) -> Laid:  # fmt: skip
        each = np.where(axes >= 0, np.append(sizes, 1)[axes], 1)  # -1 is the last
        cells = each.prod(axis=1)
        strides = (cells[:, None] // np.cumprod(each, axis=1)).astype(np.uint32)
        starts = (np.cumsum(cells) - cells).astype(np.uint32)
        return cls(TableArrays(features, groups, axes, strides, starts), sizes, int(cells.sum()))

    def joined(self, n_rows: int, n_outputs: int) -> tuple[Laid, NDArray[np.int32]] | None:
        """Return joint tables and the one that each table is in; None where that saves nothing."""
        from veilwood.forests.cells import row_kernels

        layout = self.layout
        most = min(MOST_JOINT_CELLS // n_outputs, n_rows // ROWS_PER_CELL)
        n_tables, most_axes = layout.axes.shape
        if n_tables < LEAST_TABLES or not 0 < most_axes <= row_kernels.MOST_AXES:
            return None
        order = np.argsort((layout.axes < 0).sum(axis=1), kind="stable")
        joint = np.full((n_tables, row_kernels.MOST_AXES), -1, np.int32)
        of_ordered = np.full(n_tables, -1, np.int32)
        n_joint = row_kernels.cover(layout.axes[order], self.sizes, most, joint, of_ordered)
        if 2 * n_joint > n_tables:
            return None
        of_table = np.empty(n_tables, np.int32)
        of_table[order] = of_ordered
        return self._laid(layout.features, layout.groups, joint[:n_joint], self.sizes), of_table


@lru_cache(maxsize=16)
def _laid_tables(tables: tuple[CellTable, ...]) -> Laid:
    return Laid.new(tables)
