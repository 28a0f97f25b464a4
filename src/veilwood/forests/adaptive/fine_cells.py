# SPDX-License-Identifier: Apache-2.0
"""For rich budgets: cells so fine that most rows have one of their own, chosen, counted sparsely and released.

With epsilon e, a table of n * exp(e) cells turns up about as many empty cells by chance as it has rows
(``sparse_noise``). At e = 20 that is 28 bits beyond log2(n) to tell rows apart by: enough for a forest nearly as good
as one grown from the rows (``cell_forests``). A column's groups are worth the part of a random effect that they show,
1 - (sum of squared shares of the groups), times the column's strength, and cost the logarithm of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.cells.cell_tables import Axis, CellTable
from veilwood.forests.cells.columns import CellColumn, divided
from veilwood.forests.cells.questions import ClassesByCell
from veilwood.forests.cells.rows import AskedRows
from veilwood.privacy.purse import Purse

# From LEAST_RICH on, epsilon of one row, a cell of one row stands out. Cells are tried if the affordable ones have the
# part COVERED of the bits that all columns have in WANTED_GROUPS groups each, or from RICH on HARDLY_COVERED of them.
# With a LEAST_RICH of 4, three development tables that try them at e = 4 lose 4.7, 0.7, 0.6 points (s.e. 0.3 to 1.2).
LEAST_RICH, RICH = 6.0, 12.0
COVERED, HARDLY_COVERED = 0.7, 0.25
# Of fewer, too few are held back to tell whether cells help; measured.
LEAST_ROWS: Final = 400.0
WANTED_GROUPS: Final = 16
CELL_SHARE: Final = 0.6  # of the budget; 0.3 and 0.4 were worse at e = 20 (pen strokes by 5 points)
COLUMN_PART: Final = 0.1  # of that, for what each column tells about the classes
FINDS_PER_ROW: Final = 0.5  # empty cells that turn up by chance, mostly far from all rows,
MOST_FINDS: Final = 1 << 22  # and so many at most, however many rows there are said to be
MOST_ROWS: Final = 1 << 22  # drawn by secret coins: of their cells at most MOST_KEPT are learned from
FINEST, MOST_VALUES = 64, 256  # groups of a numeric column, and of a categorical one
STRENGTH_GROUPS: Final = 16  # of a numeric column, in which its strength is judged
MOST_KEPT: Final = 1 << 18  # of the cells that were released, and of the rows they stand for, what is learned from
UNSEEN: Final = 0.05  # of the mean strength of the STRONGEST columns, what every column may have in interactions
STRONGEST: Final = 5
LEAST_SPREAD: Final = 0.05  # of a column, below which it is not taken to be stronger than it looks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class FineCells:
    """The released cells; public.

    Attributes
    ----------
    axes : tuple of Axis
        The columns and their groups.
    groups : ndarray of uint8, shape (n_cells, n_axes)
        Where each cell lies.
    label : ndarray of int
        Its class.
    weight : ndarray of int
        Its noisy count, at least 1.
    """

    axes: tuple[Axis, ...]
    groups: NDArray[np.uint8]
    label: Ints
    weight: Ints


def may_win(columns: Sequence[CellColumn], n_classes: int, n_rows: float, price: float) -> bool:
    """Whether cells may be better than the loop, at an epsilon of one row."""
    if not n_classes or price < LEAST_RICH or n_rows < LEAST_ROWS:
        return False
    wanted = sum(log2(WANTED_GROUPS if column.ordered else min(column.n_cells, WANTED_GROUPS)) for column in columns)
    bits = log2(max(chance_finds(n_rows), 1.0)) + price * CELL_SHARE * (1 - COLUMN_PART) * log2(np.e) - log2(n_classes)
    return bits >= (HARDLY_COVERED if price >= RICH else COVERED) * max(wanted, 1.0)


def chance_finds(n_rows: float) -> float:
    """How many empty cells may turn up by chance."""
    return min(FINDS_PER_ROW * n_rows, MOST_FINDS)


def measure(
    columns: Sequence[CellColumn],
    n_classes: int,
    n_rows: float,
    rows: AskedRows,
    purse: Purse,
    rng: np.random.Generator,
) -> FineCells:
    """Release classes by column, choose cells by them, and release those that hold rows, and some that do not.

    Where very many cells were released, some are kept, by public chance.
    """
    step = purse.counting(
        "classes by column", (sum(column.n_cells for column in columns), n_classes), COLUMN_PART * CELL_SHARE,
        l1=len(columns), squared_l2=len(columns),
    )  # fmt: skip
    alone = [CellTable((column.values(),)) for column in columns]
    noisy = purse.measure(step, rows.ask(ClassesByCell(alone, n_classes)))
    tables = np.split(noisy, np.cumsum([column.n_cells for column in columns])[:-1])
    cells = purse.sparse("fine cells", chance_finds(n_rows), n_classes, (1 - COLUMN_PART) * CELL_SHARE)
    axes = choose_axes(columns, tables, step.variance, cells.shape[0] // n_classes)
    n_cells = prod(axis.size for axis in axes) * n_classes
    held = rows.occupied(axes, n_classes, min(1.0, MOST_ROWS / n_rows))
    found, weight = purse.measure_sparse(cells, *held, n_cells)
    kept = np.sort(rng.permutation(len(found))[:MOST_KEPT])
    where, label = np.divmod(found[kept], n_classes)
    groups = np.empty((len(where), len(axes)), np.uint8)  # at most MOST_VALUES of them
    for number in reversed(range(len(axes))):
        where, groups[:, number] = np.divmod(where, axes[number].size)
    return FineCells(axes, groups, label, weight[kept])


# -- which columns, and how fine -------------------------------------------------------------------------------


def choose_axes(
    columns: Sequence[CellColumn], tables: Sequence[Floats], variance: float, most_cells: int
) -> tuple[Axis, ...]:
    """Choose columns and groups from noisy counts of classes by column, of at most ``most_cells`` cells together."""
    masses = [_mass(column, table.sum(axis=1), variance * table.shape[1])
              for column, table in zip(columns, tables, strict=True)]  # fmt: skip
    options = [_groupings(column, table, mass)
               for column, table, mass in zip(columns, tables, masses, strict=True)]  # fmt: skip
    spread = [[_spread(axis, mass) for axis in axes] for axes, mass in zip(options, masses, strict=True)]
    strengths = np.array([
        _strength(column, table, mass, variance) / max(shown[-1], LEAST_SPREAD) if shown else 0.0
        for column, table, mass, shown in zip(columns, tables, masses, spread, strict=True)
    ])  # fmt: skip
    strongest = np.sort(strengths)[-STRONGEST:].mean()
    strengths += UNSEEN * strongest if strongest > 0 else 1.0
    return _refined(options, spread, strengths, most_cells)


def _refined(
    options: Sequence[Sequence[Axis]], spread: Sequence[Sequence[float]], strengths: Floats, most_cells: int
) -> tuple[Axis, ...]:
    """From one group for each column on, make the refinement that is worth most for its cost while one fits."""
    at = [-1] * len(options)  # the grouping of each column so far
    cells = 1  # a whole number: what was planned must not be exceeded
    while True:
        best, best_worth = None, 0.0
        for j, axes in enumerate(options):
            size, shown = (axes[at[j]].size, spread[j][at[j]]) if at[j] >= 0 else (1, 0.0)
            for i in range(at[j] + 1, min(at[j] + 3, len(axes))):
                finer = cells // size * axes[i].size
                worth = strengths[j] * (spread[j][i] - shown) / log2(axes[i].size / size)
                if finer <= most_cells and worth > best_worth:
                    best, best_worth = (j, i, finer), worth
        if best is None:
            return tuple(axes[i] for axes, i in zip(options, at, strict=True) if i >= 0)
        j, i, cells = best
        at[j] = i


def _mass(column: CellColumn, counts: Floats, variance: float) -> Floats:
    """How many rows each cell of a column has, noise removed where neighbours allow it."""
    if not column.ordered:
        return np.maximum(counts, 0).astype(float)
    inside = counts[: column.n_inside]
    rows = max(float(inside.sum()), 1.0)
    return np.append(divided(inside, column.prior, variance, rows), np.maximum(counts[column.n_inside :], 0))


def _groupings(column: CellColumn, table: Floats, mass: Floats) -> list[Axis]:
    """Ways to put a column's cells into groups, from two on, each with about twice as many as the one before."""
    found: list[Axis] = []
    most = FINEST if column.ordered else min(column.n_cells, MOST_VALUES)
    n_groups = 2
    while n_groups < 2 * most:
        wanted = min(n_groups, most)
        if column.ordered:
            axis = column.of_mass(mass[: column.n_inside], wanted)
        else:
            axis = _grouped_values(column, table, mass, wanted)
        if axis.size > (found[-1].size if found else 1):
            found.append(axis)
        n_groups *= 2
    return found


def _grouped_values(column: CellColumn, table: Floats, mass: Floats, n_groups: int) -> Axis:
    """Put categories with similar classes together, in groups of about equal mass; keep them in that order."""
    order = np.argsort(_class_scores(table), kind="stable")
    if n_groups >= len(order):
        group = np.arange(len(order))
    else:
        middle = (np.cumsum(mass[order]) - mass[order] / 2) / max(mass.sum(), 1e-9)
        group = np.unique(np.minimum((middle * n_groups).astype(int), n_groups - 1), return_inverse=True)[1]
    groups = np.empty(len(order), np.uint16)
    groups[order] = group
    return Axis(column.feature, groups, False, int(group.max()) + 1, column.starts)


def _class_scores(table: Floats) -> Floats:
    """One number for each category: along the direction in which the classes of categories differ most."""
    counts = np.maximum(table, 0) + 1.0
    shares = counts / counts.sum(axis=1, keepdims=True)
    apart = shares - counts.sum(axis=0) / counts.sum()
    direction = np.linalg.svd(apart * np.sqrt(counts.sum(axis=1, keepdims=True)), full_matrices=False)[2][0]
    return np.asarray(apart @ direction)


def _spread(axis: Axis, mass: Floats) -> float:
    shares = np.bincount(axis.groups[: len(mass)], mass) / max(mass.sum(), 1e-9)
    return float(1 - (shares**2).sum())


def _strength(column: CellColumn, table: Floats, mass: Floats, variance: float) -> float:
    """How much of the classes' variance a column shows by itself (chi-squared over rows), less what noise adds."""
    if column.ordered:
        groups = column.of_mass(mass[: column.n_inside], STRENGTH_GROUPS).groups
    else:
        groups = np.arange(len(table), dtype=np.uint16)
    n_cells = np.bincount(groups)[:, None]
    counts = np.stack([np.bincount(groups, one) for one in table.T.astype(float)], axis=1)
    rows, total = counts.sum(axis=1, keepdims=True), max(float(counts.sum()), 1.0)
    apart = counts - rows * counts.sum(axis=0) / total
    noise = variance * n_cells
    return max(0.0, float(((apart**2 - noise) / np.maximum(rows, np.sqrt(noise * table.shape[1]) + 1)).sum()) / total)
