# SPDX-License-Identifier: Apache-2.0
"""For rich budgets: cells so fine that most rows have one of their own, chosen, counted sparsely and let out.

With epsilon e, a table of n * exp(e) cells turns up about as many empty cells by chance as it has rows
(``sparse_counts``). At e = 20 that is 28 bits beyond log2(n) to tell rows apart by: enough for a forest nearly as good
as one grown from the rows (``cell_forests``). A column's groups are worth the part of a random effect that they show,
1 - (sum of squared shares of the groups), times the column's strength, and cost the logarithm of their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log2, prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import EncodedColumn
from veilwood.forests.adaptive.recipes import COLUMN_SHARE, chance_finds
from veilwood.forests.adaptive.table_trees import COARSE_CELLS, Axis, coarse_codes, quantile_cuts
from veilwood.forests.leaves import density
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.sparse_noise import MOST_SPARSE_CELLS, SparseLaplace
from veilwood.privacy.steps import Step, counting_step, sparse_step

MORE_THAN_CHANCE: Final = 3.0  # standard deviations of the chance finds in a group, up to which it seems to be empty
FINEST, MOST_VALUES = 64, 256  # groups of a numeric column, and of a categorical one
STRENGTH_GROUPS: Final = 16  # of a numeric column, in which its strength is judged
MOST_KEPT: Final = 1 << 18  # of the cells that came out, and of the rows they stand for, what is learned from
MOST_LOST: Final = 0.01  # of the rows, where groups seem to be empty
UNSEEN: Final = 0.05  # of the mean strength of the STRONGEST columns, what every column may have in interactions
STRONGEST: Final = 5
LEAST_SPREAD: Final = 0.05  # of a column, below which it is not taken to be stronger than it looks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class CellPlan:
    """The steps, in order: classes by column, and the cells."""

    columns: Step
    cells: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        """Both."""
        return (self.columns, self.cells)


@dataclass(frozen=True)
class FineCells:
    """The cells that came out; public.

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
    finds : float
        How many of them are expected to be empty.
    variance : float
        Of the noise on the count of one that is not.
    """

    axes: tuple[Axis, ...]
    groups: NDArray[np.uint8]
    label: Ints
    weight: Ints
    finds: float = 0.0
    variance: float = 0.0


def plan_cells(
    columns: Sequence[EncodedColumn], n_classes: int, n_rows: int, loss: Loss, neighbours: Neighbours
) -> CellPlan:
    """Divide a loss over the two steps; the number of cells follows from the chance finds it allows."""
    n = len(columns)
    cells = sparse_step("fine cells", MOST_SPARSE_CELLS, loss.part(1 - COLUMN_SHARE), neighbours, l1=1)
    if isinstance(cells.mechanism, SparseLaplace):
        affordable = int(chance_finds(n_rows) * cells.mechanism.gap)
        cells = replace(cells, shape=(min(max(affordable, n_classes), MOST_SPARSE_CELLS),))
    return CellPlan(
        columns=counting_step(
            "classes by column", (sum(map(_size, columns)), n_classes), loss.part(COLUMN_SHARE), neighbours,
            l1=n, squared_l2=n,
        ),
        cells=cells,
    )  # fmt: skip


def _size(column: EncodedColumn) -> int:
    return COARSE_CELLS + (column.missing_code is not None) if column.ordered else column.n_codes


def measure(
    plan: CellPlan,
    columns: Sequence[EncodedColumn],
    n_classes: int,
    source: Source,
    door: Door,
    rng: np.random.Generator,
) -> FineCells:
    """Carry the plan out, reading the rows twice; of very many cells that came out some are kept, by public chance."""
    count = partial(_classes_by_column, columns, n_classes)
    noisy = door.noisy(plan.columns, source.add_up(count, "counting classes by column"))
    tables = np.split(noisy, np.cumsum([_size(column) for column in columns])[:-1])
    axes = choose_axes(columns, tables, plan.columns.variance, plan.cells.shape[0] // n_classes)
    occupied, counts = _occupied(columns, axes, n_classes, source)
    n_cells = prod(axis.size for axis in axes) * n_classes
    found, weight = door.sparse(plan.cells, occupied, counts, n_cells)
    del occupied, counts  # private, and as large as the rows
    kept = np.sort(rng.permutation(len(found))[:MOST_KEPT])
    noise = plan.cells.mechanism
    finds = n_cells / noise.gap * len(kept) / max(len(found), 1) if isinstance(noise, SparseLaplace) else 0.0
    found, weight = found[kept], weight[kept]
    where, label = np.divmod(found, n_classes)
    groups = np.empty((len(where), len(axes)), np.uint8)  # at most MOST_VALUES of them
    for number in reversed(range(len(axes))):
        where, groups[:, number] = np.divmod(where, axes[number].size)
    return without_empty_groups(FineCells(axes, groups, label, weight, finds, plan.cells.variance))


def _classes_by_column(
    columns: Sequence[EncodedColumn], n_classes: int, batches: Iterable[Batch], *, n_jobs: int | None = 1
) -> Ints:
    """Count the rows of each class in the coarse cells of each column, one column below the other."""
    totals = [np.zeros(_size(column) * n_classes, np.int64) for column in columns]
    for batch in batches:
        for total, codes in zip(totals, coarse_codes(columns, batch.codes), strict=True):
            total += np.bincount(codes * np.int64(n_classes) + batch.target, minlength=len(total))
    return np.concatenate(totals).reshape(-1, n_classes)


def _occupied(
    columns: Sequence[EncodedColumn], axes: Sequence[Axis], n_classes: int, source: Source
) -> tuple[Ints, Ints]:
    """Return the cells that hold rows, ascending, and how many each: of a row nothing is kept but its cell."""
    cells = [np.empty(0, np.int64)]
    for batch in source.batches():
        coarse, cell = coarse_codes(columns, batch.codes), np.zeros(len(batch.target), np.int64)
        for axis in axes:
            cell *= axis.size
            cell += axis.groups[coarse[axis.feature]]
        cells.append(cell * n_classes + batch.target)
    every = np.concatenate(cells)
    every.sort()  # in place, where np.unique would sort a copy
    firsts = np.flatnonzero(np.append(True, every[1:] != every[:-1])[: len(every)])
    return every[firsts], np.diff(firsts, append=len(every))


def without_empty_groups(cells: FineCells) -> FineCells:
    """Leave out cells in groups of a numeric column that hold no more rows than chance finds do.

    Noise can put a group into an empty part of the bounds. A column of which too many rows would go is left as it is:
    its groups hold too few rows to tell. Rare categories are no such parts, and stay.
    """
    kept, finds = np.ones(len(cells.weight), bool), cells.finds
    for number, axis in enumerate(cells.axes):
        size, group = axis.size, cells.groups[:, number]
        expected = cells.finds / size
        rows = np.bincount(group, cells.weight, size) - expected
        empty = rows <= MORE_THAN_CHANCE * np.sqrt(expected * (1 + cells.variance))
        if axis.ordered and rows.sum() > 0 and rows[empty].sum() <= MOST_LOST * rows.sum():
            kept &= ~empty[group]
            finds *= float(1 - empty.mean())
    return replace(cells, groups=cells.groups[kept], label=cells.label[kept], weight=cells.weight[kept], finds=finds)


# -- which columns, and how fine -------------------------------------------------------------------------------


def choose_axes(
    columns: Sequence[EncodedColumn], tables: Sequence[Ints], variance: float, most_cells: int
) -> tuple[Axis, ...]:
    """Choose columns and groups from noisy counts of classes by column, of at most ``most_cells`` cells together."""
    masses = [_mass(column, table.sum(axis=1), variance * table.shape[1])
              for column, table in zip(columns, tables, strict=True)]  # fmt: skip
    options = [_groupings(feature, column, table, mass)
               for feature, (column, table, mass) in enumerate(zip(columns, tables, masses, strict=True))]  # fmt: skip
    spread = [[_spread(axis, mass) for axis in axes] for axes, mass in zip(options, masses, strict=True)]
    strengths = np.array([
        _strength(column, feature, table, mass, variance) / max(shown[-1], LEAST_SPREAD) if shown else 0.0
        for feature, (column, table, mass, shown) in enumerate(zip(columns, tables, masses, spread, strict=True))
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


def _mass(column: EncodedColumn, counts: Ints, variance: float) -> Floats:
    """How many rows each cell of a column has, noise removed where neighbours allow it."""
    if not column.ordered:
        return np.maximum(counts, 0).astype(float)
    inside = counts[:COARSE_CELLS]
    return np.append(density(inside, variance, float(inside.sum())), np.maximum(counts[COARSE_CELLS:], 0))


def _groupings(feature: int, column: EncodedColumn, table: Ints, mass: Floats) -> list[Axis]:
    """Ways to put a column's cells into groups, from two on, each with about twice as many as the one before."""
    found: list[Axis] = []
    most = FINEST if column.ordered else min(column.n_codes, MOST_VALUES)
    n_groups = 2
    while n_groups < 2 * most:
        wanted = min(n_groups, most)
        if column.ordered:
            axis = Axis.of_cuts(feature, column, quantile_cuts(mass[:COARSE_CELLS], wanted))
        else:
            axis = _grouped_values(feature, table, mass, wanted)
        if axis.size > (found[-1].size if found else 1):
            found.append(axis)
        n_groups *= 2
    return found


def _grouped_values(feature: int, table: Ints, mass: Floats, n_groups: int) -> Axis:
    """Put categories with similar classes together, in groups of about equal mass; keep them in that order."""
    order = np.argsort(_class_scores(table), kind="stable")
    if n_groups >= len(order):
        group = np.arange(len(order))
    else:
        middle = (np.cumsum(mass[order]) - mass[order] / 2) / max(mass.sum(), 1e-9)
        group = np.unique(np.minimum((middle * n_groups).astype(int), n_groups - 1), return_inverse=True)[1]
    groups = np.empty(len(order), np.uint16)
    groups[order] = group
    return Axis(feature, groups, False, int(group.max()) + 1)


def _class_scores(table: Ints) -> Floats:
    """One number for each category: along the direction in which the classes of categories differ most."""
    counts = np.maximum(table, 0) + 1.0
    shares = counts / counts.sum(axis=1, keepdims=True)
    apart = shares - counts.sum(axis=0) / counts.sum()
    direction = np.linalg.svd(apart * np.sqrt(counts.sum(axis=1, keepdims=True)), full_matrices=False)[2][0]
    return np.asarray(apart @ direction)


def _spread(axis: Axis, mass: Floats) -> float:
    shares = np.bincount(axis.groups[: len(mass)], mass) / max(mass.sum(), 1e-9)
    return float(1 - (shares**2).sum())


def _strength(column: EncodedColumn, feature: int, table: Ints, mass: Floats, variance: float) -> float:
    """How much of the classes' variance a column shows by itself (chi-squared over rows), less what noise adds."""
    if column.ordered:
        groups = Axis.of_cuts(feature, column, quantile_cuts(mass[:COARSE_CELLS], STRENGTH_GROUPS)).groups
    else:
        groups = np.arange(len(table), dtype=np.uint16)
    n_cells = np.bincount(groups)[:, None]
    counts = np.stack([np.bincount(groups, one) for one in table.T.astype(float)], axis=1)
    rows, total = counts.sum(axis=1, keepdims=True), max(float(counts.sum()), 1.0)
    apart = counts - rows * counts.sum(axis=0) / total
    noise = variance * n_cells
    return max(0.0, float(((apart**2 - noise) / np.maximum(rows, np.sqrt(noise * table.shape[1]) + 1)).sum()) / total)
