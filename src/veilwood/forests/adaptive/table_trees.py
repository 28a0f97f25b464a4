# SPDX-License-Identifier: Apache-2.0
"""Tables over a few columns: how codes fall into the cells of a table, and a table as a tree.

Which tables are measured is decided in ``recipes``; what their cells hold is counted in ``counting`` and ``boosting``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import GRID_CELLS, EncodedColumn
from veilwood.trees.forest import LEAF, Forest

COARSE_CELLS: Final = 256
"""Cells of equal width into which numbers fall before anything is measured; a missing number has a cell of its own."""
_STEP: Final = (GRID_CELLS + 1) // COARSE_CELLS


@dataclass(frozen=True, eq=False)
class Axis:
    """One column of a table, its codes put into groups.

    Attributes
    ----------
    feature : int
        The column.
    groups : ndarray of uint16
        The group of each coarse code.
    ordered : bool
        Whether groups are intervals of numbers (a missing number is in the last group).
    size : int
        Number of groups.
    """

    feature: int
    groups: NDArray[np.uint16]
    ordered: bool
    size: int

    @classmethod
    def of(cls, feature: int, column: EncodedColumn, cuts: Sequence[int] | NDArray[np.integer]) -> Axis:
        """Cut a column of numbers; take every category of another as a group."""
        return cls.of_cuts(feature, column, cuts) if column.ordered else cls.of_values(feature, column)

    @classmethod
    def of_cuts(cls, feature: int, column: EncodedColumn, cuts: Sequence[int] | NDArray[np.integer]) -> Axis:
        """Cut a numeric column at coarse codes: a group begins at each of them, missing numbers are one more."""
        inside = sorted({int(cut) for cut in cuts if 0 < cut < COARSE_CELLS})
        groups = np.searchsorted(inside, np.arange(COARSE_CELLS), side="right").astype(np.uint16)
        if column.missing_code is not None:
            groups = np.append(groups, np.uint16(groups[-1] + 1))
        return cls(feature, groups, True, int(groups[-1]) + 1)

    @classmethod
    def of_values(cls, feature: int, column: EncodedColumn) -> Axis:
        """Take every category as a group."""
        return cls(feature, np.arange(column.n_codes, dtype=np.uint16), False, column.n_codes)

    @classmethod
    def of_sides(cls, feature: int, sides: NDArray[np.bool_]) -> Axis:
        """Put each category on one of two sides."""
        return cls(feature, sides.astype(np.uint16), False, 2)

    @property
    def thresholds(self) -> list[int]:
        """The grid codes at which the groups of a numeric column begin, the first apart."""
        starts = np.flatnonzero(np.diff(self.groups.astype(np.int64), prepend=-1))[1:]
        return [min(int(start) * _STEP, GRID_CELLS) for start in starts]

    @property
    def first_codes(self) -> NDArray[np.int64]:
        """A code of each group: the lowest."""
        return np.array([0, *self.thresholds]) if self.ordered else np.unique(self.groups, return_index=True)[1]


@dataclass(frozen=True, eq=False)
class CellTable:
    """The cells that a few columns make together: the last column varies fastest."""

    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Groups of each column."""
        return tuple(axis.size for axis in self.axes)

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return prod(self.shape)

    @property
    def features(self) -> tuple[int, ...]:
        """The columns."""
        return tuple(axis.feature for axis in self.axes)

    def cells(self, coarse: NDArray[np.uint8] | NDArray[np.uint16]) -> NDArray[np.uint32]:
        """Return the cell of each row; ``coarse`` holds one row of codes for each column."""
        cell = np.zeros(coarse.shape[1], np.uint32)
        for axis in self.axes:
            cell *= np.uint32(axis.size)
            cell += axis.groups[coarse[axis.feature]]
        return cell


def coarse_codes(columns: Sequence[EncodedColumn], codes: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Return codes as tables use them, one row for each column: categories as they are, numbers in coarse cells."""
    coarse = np.empty((len(columns), len(codes)), np.uint16)
    for feature, column in enumerate(columns):
        coarse[feature] = codes[:, feature]
        if column.ordered:
            missing = None if column.missing_code is None else codes[:, feature] == column.missing_code
            coarse[feature] //= _STEP
            if missing is not None:
                coarse[feature, missing] = COARSE_CELLS
    return coarse


def equal_cuts(bins: int) -> list[int]:
    """Cut the coarse cells into so many groups of equal width."""
    return [round(COARSE_CELLS * i / bins) for i in range(1, bins)]


def histogram_of(coarse: NDArray[np.uint8] | NDArray[np.uint16]) -> NDArray[np.int64]:
    """Count the rows in each coarse cell of a numeric column; missing numbers are left out. Private."""
    return np.bincount(coarse, minlength=COARSE_CELLS + 1)[:COARSE_CELLS]


def quantile_cuts(mass: NDArray[Any], bins: int) -> NDArray[np.int64]:
    """Return the cells that begin groups of about equal mass, at most ``bins``.

    >>> quantile_cuts(np.array([5, 5, 0, 0, 10] + [0] * 251), 4).tolist()
    [1, 2, 5]
    """
    below = np.cumsum(mass)
    if below[-1] <= 0:
        return np.array([len(mass) // 2])
    # A hair more, so that a quantile which a cell just reaches is reached in floating point too.
    cuts = np.searchsorted(below / below[-1] + 1e-9, np.arange(1, bins) / bins) + 1
    cuts = np.unique(cuts[cuts < len(mass)])
    return cuts if len(cuts) else np.array([len(mass) // 2])


def grow_tables(tables: Sequence[CellTable]) -> tuple[Forest, NDArray[np.int32]]:
    """Write each table as a tree, and return the forest and the cell of each leaf.

    A numeric column becomes a search tree over its thresholds, a categorical one a node with a branch for each group.
    """
    roots: list[int] = []
    leaf_starts: list[int] = [0]
    cells: list[int] = []
    feature: list[int] = []
    cut: list[int] = []
    child: list[int] = []
    lookup: list[NDArray[np.uint16]] = []
    lookup_starts: dict[bytes, int] = {}
    lookup_length = 0
    for table in tables:
        axes = [axis for axis in table.axes if axis.size > 1]
        roots.append(len(feature))
        # The state of a node: column, the groups low <= g < high that are left of it, and the cell so far.
        level = [(0, 0, axes[0].size if axes else 1, 0)]
        n_nodes = len(feature) + 1
        while level:
            below = []
            for state in level:
                position, low, high, cell = _resolved(axes, state)
                if position == len(axes):
                    feature.append(LEAF)
                    cut.append(0)
                    child.append(len(cells))
                    cells.append(cell)
                    continue
                axis = axes[position]
                feature.append(axis.feature)
                child.append(n_nodes)
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
                n_nodes += len(children)
                below += children
            level = below
        leaf_starts.append(len(cells))
    forest = Forest(
        roots=np.array(roots, np.int32),
        feature=np.array(feature, np.int32),
        cut=np.array(cut, np.int32),
        child=np.array(child, np.int32),
        lookup=np.concatenate([*lookup, np.zeros(1, np.uint16)]),
        tree_leaves=np.array(leaf_starts, np.int32),
    )
    return forest, np.array(cells, np.int32)


def _resolved(axes: Sequence[Axis], state: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Go on to the next column once a single group of this one is left."""
    position, low, high, cell = state
    while position < len(axes) and high - low == 1:
        cell = cell * axes[position].size + low
        position += 1
        if position < len(axes):
            low, high = 0, axes[position].size
    return position, low, high, cell
