# SPDX-License-Identifier: Apache-2.0
"""The loops of ``questions`` and ``rows``, compiled by numba; imported only where numba is installed.

Rows are taken in blocks whose groups and gradients stay in the cache while table after table is added up (``layouts``
says how tables lie in arrays). The numpy twins are in ``questions`` and ``rows``; all add whole numbers, so they agree
to the last one. Quotients are taken of floats: below 2^53 their floors are those of whole numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood.trees.kernels import njit

BLOCK = 2048  # rows
MOST_ROWS = 1 << 18  # in a call: no sum of gradients leaves 32 bits
MOST_AXES = 6  # of tables that are added up together
LEVEL_UNITS, GRADIENT_UNITS = 1 << 4, 1 << 12  # as in ``rows``, which imports this file late; a test compares them


@njit(inline="always")
def _groups(cells: Any, features: Any, groups: Any, first: Any, size: Any, mine: Any) -> None:
    """Find the groups of a block of rows, axis after axis."""
    for axis in range(len(features)):
        column, group, found = cells[features[axis]][first : first + size], groups[axis], mine[axis]
        for row in range(np.uint64(size)):
            found[row] = group[np.uint64(column[row])]


@njit(inline="always")
def _places(mine: Any, axes: Any, strides: Any, start: Any, size: Any, place: Any) -> None:
    """Find the places of a block of rows in a table of these axes (-1: no more)."""
    for row in range(np.uint64(size)):
        place[row] = start
    for at in range(len(axes)):
        if axes[at] < 0:
            break
        found, stride = mine[axes[at]], np.uint32(strides[at])
        for row in range(np.uint64(size)):
            place[row] += np.uint32(found[row]) * stride


@njit(inline="always")
def _units(
    scores: Any, target: Any, n_classes: Any, limit: Any, second: Any, powers: Any, size: Any, units: Any
) -> None:
    """Find what each row of a block adds: ``rows.gradients``."""
    if n_classes == 2:
        reach = np.int32(len(second) // 2)
        most = np.int32(limit)
        for row in range(np.uint64(size)):
            score = min(max(scores[row, 0], -reach), reach) + reach
            away = np.int32(target[row]) * np.int32(GRADIENT_UNITS) - np.int32(second[np.uint64(score)])
            units[row, 0] = min(max(away, -most), most)
    elif n_classes == 0:
        for row in range(np.uint64(size)):
            residual = np.float64(target[row]) * LEVEL_UNITS - np.float64(scores[row, 0])
            part = np.int32(min(abs(residual) * GRADIENT_UNITS / limit, np.float64(GRADIENT_UNITS)))
            units[row, 0] = -part if residual < 0 else part
    else:
        known = np.int32(len(powers))
        for row in range(np.uint64(size)):
            best = scores[row, 0]
            for output in range(1, n_classes):
                best = max(best, scores[row, output])
            total: Any = 0
            for output in range(n_classes):
                behind = best - scores[row, output]
                power = powers[np.uint64(behind)] if behind < known else np.int32(0)
                units[row, output] = power
                total += power
            for output in range(n_classes):
                units[row, output] = -np.int32(np.float64(units[row, output]) * GRADIENT_UNITS / total)
            units[row, np.uint64(target[row])] += GRADIENT_UNITS


@njit(nogil=True, cache=True)
def add_gradients(
    cells: Any, features: Any, groups: Any, axes: Any, strides: Any, starts: Any, scores: Any, target: Any,
    n_classes: int, limit: int, second: Any, powers: Any, sums: Any, first_row: int, last_row: int,
) -> None:  # fmt: skip
    """Add what each row from ``first_row`` up to ``last_row`` adds to one cell of each table.

    ``groups`` holds the group of each cell of each axis, an axis of column ``features``; a table has some of these
    ``axes`` (-1: none) with ``strides``, and its cells begin at ``starts`` in ``sums``.
    """
    n_outputs = sums.shape[1]
    mine = np.empty((len(features), BLOCK), groups.dtype)
    place = np.empty(BLOCK, np.uint32)
    units = np.empty((BLOCK, n_outputs), np.int32)
    for first in range(first_row, last_row, BLOCK):
        size = min(BLOCK, last_row - first)
        _groups(cells, features, groups, first, size, mine)
        _units(scores[first:last_row], target[first:last_row], n_classes, limit, second, powers, size, units)
        for table in range(len(starts)):
            _places(mine, axes[table], strides[table], starts[table], size, place)
            if n_outputs == 1:
                for row in range(np.uint64(size)):
                    sums[place[row], 0] += units[row, 0]
            else:
                for row in range(np.uint64(size)):
                    for output in range(np.uint64(n_outputs)):
                        sums[place[row], output] += units[row, output]


@njit(nogil=True, cache=True)
def add_classes(
    cells: Any, features: Any, groups: Any, axes: Any, strides: Any, starts: Any, target: Any, sums: Any
) -> None:
    """Count each row in one cell of each table, by its class where there is more than one number for a cell."""
    mine = np.empty((len(features), BLOCK), groups.dtype)
    place = np.empty(BLOCK, np.uint32)
    classes = sums.shape[1] > 1
    for first in range(0, len(target), BLOCK):
        size = min(BLOCK, len(target) - first)
        _groups(cells, features, groups, first, size, mine)
        for table in range(len(starts)):
            _places(mine, axes[table], strides[table], starts[table], size, place)
            if classes:
                for row in range(np.uint64(size)):
                    sums[place[row], np.uint64(target[first + row])] += 1
            else:
                for row in range(np.uint64(size)):
                    sums[place[row], 0] += 1


@njit(nogil=True, cache=True)
def add_step(
    cells: Any, features: Any, groups: Any, axes: Any, strides: Any, starts: Any, values: Any, largest: int, scores: Any
) -> None:
    """Add what the cells of one table give to the scores, cut to ``largest``."""
    mine = np.empty((len(features), BLOCK), groups.dtype)
    place = np.empty(BLOCK, np.uint32)
    least, most = np.int32(-largest), np.int32(largest)
    for first in range(0, len(scores), BLOCK):
        size = min(BLOCK, len(scores) - first)
        _groups(cells, features, groups, first, size, mine)
        _places(mine, axes[0], strides[0], starts[0], size, place)
        block = scores[first : first + size]
        for row in range(np.uint64(size)):
            for output in range(np.uint64(values.shape[1])):
                block[row, output] = min(max(block[row, output] + values[place[row], output], least), most)


@njit(nogil=True, cache=True)
def cover(tables: Any, sizes: Any, most_cells: int, joint: Any, of_table: Any) -> int:
    """Put tables together whose axes are few enough: ``joint`` gets the axes of each joint table, largest ones first.

    Tables are given by their axes (-1: none), those with most of them first. A joint table begins with one that is in
    none yet, and takes the axis that brings in most others while its cells are at most ``most_cells``. Returns how
    many there are; ``of_table`` says which one each table is in.
    """
    n_tables, n_axes = len(tables), len(sizes)
    inside = np.zeros(n_axes, np.bool_)
    gain = np.zeros(n_axes, np.int64)
    n_joint = 0
    for first in range(n_tables):
        if of_table[first] >= 0:
            continue
        n_cells, n_mine = 1, 0
        for axis in tables[first]:
            if axis >= 0:
                inside[axis] = True
                joint[n_joint, n_mine] = axis
                n_cells *= sizes[axis]
                n_mine += 1
        while True:
            gain[:] = 0
            for table in range(first, n_tables):
                if of_table[table] >= 0:
                    continue
                lacking, last = 0, 0
                for axis in tables[table]:
                    if axis >= 0 and not inside[axis]:
                        lacking, last = lacking + 1, axis
                if lacking == 0:
                    of_table[table] = n_joint
                elif lacking == 1 and n_cells * sizes[last] <= most_cells:
                    gain[last] += 1
            best = np.argmax(gain)
            if n_mine == MOST_AXES or gain[best] == 0:
                break
            inside[best] = True
            joint[n_joint, n_mine] = best
            n_cells *= sizes[best]
            n_mine += 1
        for at in range(n_mine):
            inside[joint[n_joint, at]] = False
        n_joint += 1
    return n_joint


@njit(nogil=True, cache=True)
def take_apart(
    joint: Any, joint_starts: Any, joint_sums: Any, sizes: Any, axes: Any, strides: Any, starts: Any, of_table: Any,
    sums: Any,
) -> None:  # fmt: skip
    """Add the sums of joint tables up to those of the tables in them."""
    n_outputs = sums.shape[1]
    size, step, at = np.empty(MOST_AXES, np.int64), np.empty(MOST_AXES, np.int64), np.empty(MOST_AXES, np.int64)
    for table in range(len(of_table)):
        whole = joint[of_table[table]]
        n_mine = 0
        while n_mine < MOST_AXES and whole[n_mine] >= 0:
            size[n_mine], step[n_mine], at[n_mine] = sizes[whole[n_mine]], 0, 0
            for own in range(axes.shape[1]):
                if axes[table, own] == whole[n_mine]:
                    step[n_mine] = strides[table, own]
            n_mine += 1
        place, cell = np.int64(starts[table]), joint_starts[of_table[table]]
        while True:
            for output in range(n_outputs):
                sums[place, output] += joint_sums[cell, output]
            cell += 1
            axis = n_mine - 1  # the last one varies fastest
            while axis >= 0:
                at[axis] += 1
                place += step[axis]
                if at[axis] < size[axis]:
                    break
                place -= step[axis] * size[axis]
                at[axis] = 0
                axis -= 1
            if axis < 0:
                break
