# SPDX-License-Identifier: Apache-2.0
"""Steps about the same columns become one table, and later one tree. Free: public numbers are added up.

Borders of groups differ from round to round (``loop``), so that a table of many steps is finer than each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.cells.cell_tables import Axis, CellTable
from veilwood.forests.explained.estimates import TableScores

MOST_MERGED: Final = 1 << 10  # cells of a table that several steps make together, at most

Floats = NDArray[np.float64]


def merged(steps: Sequence[TableScores]) -> list[tuple[CellTable, Floats]]:
    """Add up steps about the same columns, as far as cells that all of them tell apart are few: tables and values."""
    found: dict[tuple[int, ...], list[list[int]]] = {}
    for number, step in enumerate(steps):
        parts = found.setdefault(tuple(sorted(step.table.features)), [[]])
        together = _told_apart([steps[i] for i in (*parts[-1], number)]).n_cells
        if parts[-1] and together > max(MOST_MERGED, _told_apart([steps[i] for i in parts[-1]]).n_cells):
            parts.append([])
        parts[-1].append(number)
    return [_added_up([steps[i] for i in part]) for part in sorted(part for parts in found.values() for part in parts)]


def _told_apart(steps: Sequence[TableScores]) -> CellTable:
    """Return the cells that steps about the same columns tell apart."""
    axes = [[_axis_of(step, feature) for step in steps] for feature in sorted(steps[0].table.features)]
    return CellTable(tuple(_joined(same) for same in axes))


def _added_up(steps: Sequence[TableScores]) -> tuple[CellTable, Floats]:
    table = _told_apart(steps)
    firsts = [np.unique(axis.groups, return_index=True)[1] for axis in table.axes]  # a cell of each group
    places = dict(zip(table.features, np.meshgrid(*firsts, indexing="ij"), strict=True))
    values = np.zeros((table.n_cells, steps[0].values.shape[1]))
    for step in steps:
        cell = np.zeros(table.shape, np.int64)
        for axis in step.table.axes:
            cell = cell * axis.size + axis.groups[places[axis.feature]]
        values += step.values[cell.ravel()]
    return table, values


def _axis_of(step: TableScores, feature: int) -> Axis:
    return next(axis for axis in step.table.axes if axis.feature == feature)


def _joined(axes: Sequence[Axis]) -> Axis:
    """Return groups that all axes of one column tell apart."""
    told = np.stack([axis.groups for axis in axes])
    group, one = np.unique(told, axis=1, return_inverse=True)[1].ravel(), axes[0]
    return Axis(one.feature, group.astype(np.uint16), one.ordered, int(group.max()) + 1, one.starts)
