# SPDX-License-Identifier: Apache-2.0
"""For rich budgets: cells so fine that most rows have one of their own, chosen, counted sparsely and let out.

With epsilon e, a table of n * exp(e) cells turns up about as many empty cells by chance as it has rows
(``sparse_counts``). At e = 20 that is 28 bits beyond log2(n) to tell rows apart by: enough for a forest nearly as good
as one grown from the rows (``cell_forests``). A column's groups are worth the part of a random effect that they show,
1 - (sum of squared shares of the groups), times the column's strength, and cost the logarithm of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2, prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.batches import Source
from veilwood.boosting import Rows, quantile_cuts
from veilwood.encoding import TARGET_LEVELS, EncodedColumn
from veilwood.leaves import density
from veilwood.plan import Step, counting_step, sparse_step
from veilwood.privacy import Loss, Neighbours
from veilwood.recipes import COLUMN_SHARE, TARGET_GROUPS, TARGET_SHARE, cell_share, chance_finds
from veilwood.release import Door
from veilwood.sparse_counts import MOST_SPARSE_CELLS, SparseLaplace
from veilwood.table_trees import COARSE_CELLS, Axis

FINEST, MOST_VALUES = 64, 256  # groups of a numeric column, and of a categorical one
STRENGTH_GROUPS: Final = 16  # of a numeric column, in which its strength is judged,
STRENGTH_TARGETS: Final = 8  # and of a numeric target
TARGET_CELLS: Final = 1024  # in which a numeric target is measured
MOST_KEPT: Final = 1 << 18  # of the cells that came out, what is learned from
UNSEEN: Final = 0.05  # of the mean strength of the STRONGEST columns, what every column may have in interactions
STRONGEST: Final = 5
LEAST_SPREAD: Final = 0.05  # of a column, below which it is not taken to be stronger than it looks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class CellPlan:
    """The steps, in order: spread of a numeric target, outcomes by column, and the cells."""

    target: Step | None
    columns: Step
    cells: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them."""
        return (*((self.target,) if self.target else ()), self.columns, self.cells)


@dataclass(frozen=True)
class FineCells:
    """The cells that came out; public.

    Attributes
    ----------
    axes : tuple of Axis
        The columns and their groups.
    groups : ndarray of uint16, shape (n_cells, n_axes)
        Where each cell lies.
    outcome : ndarray of int
        Its class, or the group of its target.
    weight : ndarray of int
        Its noisy count, at least 1.
    target_values : ndarray
        Regression: the target of each group, from 0 to 1.
    finds : float
        How many of them are expected to be empty.
    variance : float
        Of the noise on the count of one that is not.
    """

    axes: tuple[Axis, ...]
    groups: NDArray[np.uint16]
    outcome: Ints
    weight: Ints
    target_values: Floats
    finds: float = 0.0
    variance: float = 0.0


def plan_cells(
    columns: Sequence[EncodedColumn], n_classes: int, n_rows: int, loss: Loss, neighbours: Neighbours
) -> CellPlan:
    """Divide a loss over the three steps; the number of cells follows from the chance finds it allows."""
    n = len(columns)
    cells = sparse_step("fine cells", MOST_SPARSE_CELLS, loss.part(cell_share(n_classes)), neighbours, l1=1)
    if isinstance(cells.mechanism, SparseLaplace):
        affordable = int(chance_finds(n_rows) * cells.mechanism.gap)
        cells = replace(cells, shape=(min(max(affordable, n_classes or TARGET_GROUPS), MOST_SPARSE_CELLS),))
    return CellPlan(
        target=None if n_classes else counting_step(
            "histogram of the target", (TARGET_CELLS,), loss.part(TARGET_SHARE), neighbours, l1=1, squared_l2=1,
        ),
        columns=counting_step(
            "outcomes by column", (sum(map(_size, columns)), n_classes or STRENGTH_TARGETS),
            loss.part(COLUMN_SHARE), neighbours, l1=n, squared_l2=n,
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
    """Carry the plan out; of very many cells that came out some are kept, by public chance."""
    rows = Rows.of(source, tuple(columns))
    outcome, judged, target_values = _outcomes(plan, rows, door)
    n_judged, n_outcomes = plan.columns.shape[1], n_classes or len(target_values)
    exact = [
        np.bincount(codes.astype(np.int64) * n_judged + judged, minlength=_size(column) * n_judged)
        for codes, column in zip(rows.coarse, columns, strict=True)
    ]
    noisy = door.noisy(plan.columns, np.concatenate(exact).reshape(-1, n_judged))
    tables = np.split(noisy, np.cumsum([_size(column) for column in columns])[:-1])
    axes = choose_axes(columns, tables, plan.columns.variance, plan.cells.shape[0] // n_outcomes)
    key = np.zeros(len(outcome), np.int64)
    for axis in axes:
        key *= axis.size
        key += axis.groups[rows.coarse[axis.feature]]
    key *= n_outcomes
    key += outcome
    occupied, counts = np.unique(key, return_counts=True)
    n_cells = prod(axis.size for axis in axes) * n_outcomes
    found, weight = door.sparse(plan.cells, occupied, counts.astype(np.int64), n_cells)
    kept = np.sort(rng.permutation(len(found))[:MOST_KEPT])
    noise = plan.cells.mechanism
    finds = n_cells / noise.gap * len(kept) / max(len(found), 1) if isinstance(noise, SparseLaplace) else 0.0
    found, weight = found[kept], weight[kept]
    where, which = np.divmod(found, n_outcomes)
    groups = np.empty((len(where), len(axes)), np.uint16)
    for number in reversed(range(len(axes))):
        where, groups[:, number] = np.divmod(where, axes[number].size)
    return FineCells(axes, groups, which, weight, target_values, finds, plan.cells.variance)


def _outcomes(plan: CellPlan, rows: Rows, door: Door) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """Return the outcome of each row that cells tell apart, the one that columns are judged by, and target values."""
    if plan.target is None:
        return rows.target, rows.target, np.empty(0)
    cell = rows.target.astype(np.int64) * TARGET_CELLS // (TARGET_LEVELS + 1)
    noisy = door.noisy(plan.target, np.bincount(cell, minlength=TARGET_CELLS).astype(np.int64))
    few, _ = _target_groups(noisy, STRENGTH_TARGETS, plan.target.variance)
    fine, target_values = _target_groups(noisy, TARGET_GROUPS, plan.target.variance)
    return fine[cell], few[cell], target_values


def _target_groups(histogram: Ints, n_groups: int, variance: float) -> tuple[NDArray[np.int32], Floats]:
    """Put the cells of a noisy histogram into groups of about equal mass; return them and the mean of each."""
    mass = density(histogram, variance) + 1e-9
    cuts = quantile_cuts(mass, n_groups)
    groups = np.searchsorted(cuts, np.arange(len(histogram)), side="right").astype(np.int32)
    middles = (np.arange(len(histogram)) + 0.5) / len(histogram)
    return groups, np.bincount(groups, mass * middles) / np.bincount(groups, mass)


# -- which columns, and how fine -------------------------------------------------------------------------------


def choose_axes(
    columns: Sequence[EncodedColumn], tables: Sequence[Ints], variance: float, most_cells: int
) -> tuple[Axis, ...]:
    """Choose columns and groups from noisy counts of outcomes by column, of at most ``most_cells`` cells together."""
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
    return np.append(density(counts[:COARSE_CELLS], variance), np.maximum(counts[COARSE_CELLS:], 0))


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
    """Put categories with similar outcomes together, in groups of about equal mass; keep them in that order."""
    order = np.argsort(_outcome_scores(table), kind="stable")
    if n_groups >= len(order):
        group = np.arange(len(order))
    else:
        middle = (np.cumsum(mass[order]) - mass[order] / 2) / max(mass.sum(), 1e-9)
        group = np.unique(np.minimum((middle * n_groups).astype(int), n_groups - 1), return_inverse=True)[1]
    groups = np.empty(len(order), np.uint16)
    groups[order] = group
    return Axis(feature, groups, False, int(group.max()) + 1)


def _outcome_scores(table: Ints) -> Floats:
    """One number for each category: along the direction in which the outcomes of categories differ most."""
    counts = np.maximum(table, 0) + 1.0
    shares = counts / counts.sum(axis=1, keepdims=True)
    apart = shares - counts.sum(axis=0) / counts.sum()
    direction = np.linalg.svd(apart * np.sqrt(counts.sum(axis=1, keepdims=True)), full_matrices=False)[2][0]
    return np.asarray(apart @ direction)


def _spread(axis: Axis, mass: Floats) -> float:
    shares = np.bincount(axis.groups[: len(mass)], mass) / max(mass.sum(), 1e-9)
    return float(1 - (shares**2).sum())


def _strength(column: EncodedColumn, feature: int, table: Ints, mass: Floats, variance: float) -> float:
    """How much of the outcomes' variance a column shows by itself (chi-squared over rows), less what noise adds."""
    if column.ordered:
        groups = Axis.of_cuts(feature, column, quantile_cuts(mass[:COARSE_CELLS], STRENGTH_GROUPS)).groups
    else:
        groups = np.arange(len(table), dtype=np.uint16)
    n_cells = np.bincount(groups)[:, None]
    counts = np.stack([np.bincount(groups, outcome) for outcome in table.T.astype(float)], axis=1)
    rows, total = counts.sum(axis=1, keepdims=True), max(float(counts.sum()), 1.0)
    apart = counts - rows * counts.sum(axis=0) / total
    noise = variance * n_cells
    return max(0.0, float(((apart**2 - noise) / np.maximum(rows, np.sqrt(noise * table.shape[1]) + 1)).sum()) / total)
