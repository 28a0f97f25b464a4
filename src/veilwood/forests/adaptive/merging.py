# SPDX-License-Identifier: Apache-2.0
"""Steps about the same columns become one table, and later one tree. Free: public numbers are added up.

Borders of groups differ from round to round (``loop``), so that a table of many steps is finer than each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.adaptive.cell_tables import Axis, CellTable
from veilwood.forests.adaptive.loop import Learned

MOST_MERGED: Final = 1 << 10  # cells of a table that several steps make together, at most

Floats = NDArray[np.float64]


def merged(learned: Learned) -> list[tuple[CellTable, Floats]]:
    """Add up steps about the same columns, as far as cells that all of them tell apart are few: tables and values."""
    found: dict[tuple[int, ...], list[list[int]]] = {}
    for number, table in enumerate(learned.tables):
        parts = found.setdefault(tuple(sorted(table.features)), [[]])
        together = _told_apart(learned, [*parts[-1], number])[0].n_cells
        if parts[-1] and together > max(MOST_MERGED, _told_apart(learned, parts[-1])[0].n_cells):
            parts.append([])
        parts[-1].append(number)
    return [_added_up(learned, part) for part in sorted(part for parts in found.values() for part in parts)]


def _told_apart(learned: Learned, numbers: Sequence[int]) -> tuple[CellTable, list[list[NDArray[np.int64]]]]:
    """Return the cells that steps about the same columns tell apart, and each step's group in them, by column."""
    features = sorted(learned.tables[numbers[0]].features)
    parts = [[_axis_of(learned.tables[i], feature) for i in numbers] for feature in features]
    joined = [_joined(part) for part in parts]
    return CellTable(tuple(axis for axis, _ in joined)), [places for _, places in joined]


def _added_up(learned: Learned, numbers: Sequence[int]) -> tuple[CellTable, Floats]:
    table, places = _told_apart(learned, numbers)
    values = np.zeros((table.n_cells, len(learned.start)))
    for at, number in enumerate(numbers):
        group = {feature: place[at] for feature, place in zip(table.features, places, strict=True)}
        cell = np.zeros(table.shape, np.int64)
        for axis in learned.tables[number].axes:
            shape = [len(group[feature]) if feature == axis.feature else 1 for feature in table.features]
            cell = cell * axis.size + group[axis.feature].reshape(shape)
        values += learned.values[number][cell.ravel()]
    return table, values


def _axis_of(table: CellTable, feature: int) -> Axis:
    return next(axis for axis in table.axes if axis.feature == feature)


def _joined(axes: Sequence[Axis]) -> tuple[Axis, list[NDArray[np.int64]]]:
    """Return groups that all axes of one column tell apart, and each axis's group of each of them."""
    told = np.stack([axis.groups.astype(np.int64) for axis in axes])
    groups, group = np.unique(told, axis=1, return_inverse=True)
    one = axes[0]
    joined = Axis(one.feature, group.ravel().astype(np.uint16), one.ordered, groups.shape[1], one.starts)
    return joined, list(groups)
