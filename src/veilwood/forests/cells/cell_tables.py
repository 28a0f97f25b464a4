# SPDX-License-Identifier: Apache-2.0
"""Tables over a few columns: how cells of columns fall into cells of a table, and a table as a tree.

Cells of columns are in ``columns``; which tables are measured is decided in ``loop``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from veilwood.trees.forest import LEAF, Forest, build_forest


@dataclass(frozen=True, eq=False)
class Axis:
    """One column of a table, its cells put into groups."""

    feature: int
    """The column."""
    groups: NDArray[np.uint16]
    """The group of each cell of the column."""
    ordered: bool
    """Whether groups are intervals of numbers (a missing number is in the last group)."""
    size: int
    """Number of groups."""
    starts: NDArray[np.int64]
    """The code at which each cell begins."""

    @property
    def thresholds(self) -> list[int]:
        """The codes at which the groups of a numeric column begin, the first apart."""
        first = np.flatnonzero(np.diff(self.groups.astype(np.int64), prepend=-1))[1:]
        return [int(start) for start in self.starts[first]]

    @property
    def first_codes(self) -> NDArray[np.int64]:
        """A code of each group: the lowest."""
        return np.array([0, *self.thresholds]) if self.ordered else np.unique(self.groups, return_index=True)[1]


@dataclass(frozen=True, eq=False)
class CellTable:
    """The cells that a few columns make together: the last column varies fastest."""

    axes: tuple[Axis, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Groups of each column."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def n_cells(self) -> int:
        """Number of cells."""
        return prod(self.shape)

    @cached_property
    def features(self) -> tuple[int, ...]:
        """The columns."""
        return tuple(axis.feature for axis in self.axes)

    def cells(self, columns: NDArray[np.uint8] | NDArray[np.uint16]) -> NDArray[np.uint32]:
        """Return the cell of each row; ``columns`` holds the cells of one column in each row."""
        cell = np.zeros(columns.shape[1], np.uint32)
        for axis in self.axes:
            cell *= np.uint32(axis.size)
            cell += axis.groups[columns[axis.feature]]
        return cell


def grow_tables(tables: Sequence[CellTable]) -> tuple[Forest, NDArray[np.int32]]:
    """Write each table as a tree, and return the forest and the cell of each leaf.

    A numeric column becomes a search tree over its thresholds, a categorical one a node with a branch for each group.
    """
    sizes: list[int] = []
    cells: list[int] = []
    feature: list[int] = []
    cut: list[int] = []
    branches: list[int] = []
    lookup: list[NDArray[np.uint16]] = []
    lookup_starts: dict[bytes, int] = {}
    lookup_length = 0
    for table in tables:
        axes = [axis for axis in table.axes if axis.size > 1]
        first_node = len(feature)
        # The state of a node: column, the groups low <= g < high that are left of it, and the cell so far.
        level = [(0, 0, axes[0].size if axes else 1, 0)]
        while level:
            below = []
            for state in level:
                position, low, high, cell = _resolved(axes, state)
                if position == len(axes):
                    feature.append(LEAF)
                    cut.append(0)
                    branches.append(0)
                    cells.append(cell)
                    continue
                axis = axes[position]
                feature.append(axis.feature)
                if axis.ordered:
                    middle = (low + high) // 2
                    cut.append(axis.thresholds[middle - 1])
                    children = [(position, low, middle, cell), (position, middle, high, cell)]
                else:
                    key = axis.groups.tobytes()
                    if key not in lookup_starts:
                        lookup_starts[key] = lookup_length
                        lookup.append(axis.groups)
                        lookup_length += len(axis.groups)
                    cut.append(-1 - lookup_starts[key])
                    children = [(position, group, group + 1, cell) for group in range(axis.size)]
                branches.append(len(children))
                below += children
            level = below
        sizes.append(len(feature) - first_node)
    return build_forest(sizes, feature, cut, branches, lookup), np.array(cells, np.int32)


def _resolved(axes: Sequence[Axis], state: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Go on to the next column once a single group of this one is left."""
    position, low, high, cell = state
    while position < len(axes) and high - low == 1:
        cell = cell * axes[position].size + low
        position += 1
        if position < len(axes):
            low, high = 0, axes[position].size
    return position, low, high, cell
