# SPDX-License-Identifier: Apache-2.0
"""Tables of class counts over a few columns each: planned, counted, and turned into evidence for classes.

The evidence of different tables is multiplied (naive Bayes); inside a table columns may interact. How many tables, of
how many columns, is decided in ``recipes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import TARGET_LEVELS, EncodedColumn
from veilwood.forests.adaptive.recipes import CHOICE_SHARE, FEWEST_BINS, MOST_BINS, QUANTILE_SHARE, Recipe
from veilwood.forests.adaptive.table_trees import (
    COARSE_CELLS,
    Axis,
    CellTable,
    coarse_codes,
    equal_cuts,
    grow_tables,
    histogram_of,
    quantile_cuts,
)
from veilwood.forests.leaves import density, shrunken_table
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.loss import exact as exact_number
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, counting_step, selecting_step
from veilwood.trees.counting import leaf_totals
from veilwood.trees.forest import Forest

LOWEST_PART: Final = 0.1  # of an even part, below which no cell falls: one table alone never rules a class out
OVERLAP: Final = 0.25  # q tables count as q^(1 - OVERLAP) independent ones: columns of different tables depend too
SAMPLED: Final = 0.5  # of a count's variance were rows drawn by chance: less for classes that follow from the columns
RAREST_CLASS: Final = 0.02  # of an even part, below which no class falls

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Learned:
    """Tables, what each of their cells adds to the scores, and the standard error of that due to noise."""

    start: Floats
    tables: Sequence[CellTable]
    values: Sequence[Floats]
    errors: Sequence[Floats]


def draw_axes(columns: Sequence[EncodedColumn], recipe: Recipe, rng: np.random.Generator) -> list[Axis]:
    """Put all columns in an order, and their numbers into groups, by public chance.

    One group more or less for each column: no single grid of cuts is unlucky for all columns alike.
    """
    order = rng.permutation(len(columns))
    bins = np.clip(recipe.bins + rng.integers(-1, 2, len(order)), FEWEST_BINS, MOST_BINS)
    return [Axis.of(int(j), columns[j], equal_cuts(int(b))) for j, b in zip(order, bins, strict=True)]


def tables_of(axes: Sequence[Axis], recipe: Recipe) -> list[CellTable]:
    """Put the first columns into tables; without columns there is one table of one cell."""
    used = axes[: recipe.n_columns]
    groups = [tuple(used[i : i + recipe.group]) for i in range(0, len(used), max(recipe.group, 1))]
    return [CellTable(group) for group in groups or [()]]


@dataclass(frozen=True)
class TablePlan:
    """The steps of counted tables, in order.

    Attributes
    ----------
    choices : tuple of Step
        One for each column that is chosen, if they are.
    histograms : Step or None
        Of the numeric columns, if they are cut at private quantiles.
    counts : Step
        All tables at once.
    """

    choices: tuple[Step, ...]
    histograms: Step | None
    counts: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them."""
        return (*self.choices, *((self.histograms,) if self.histograms else ()), self.counts)


def plan_tables(axes: Sequence[Axis], recipe: Recipe, n_classes: int, loss: Loss, neighbours: Neighbours) -> TablePlan:
    """Divide a loss over the choice of columns and their quantiles, if wanted, and the release of all tables.

    One row adds one to one cell of each histogram and of each table. Histograms are planned for as many numeric columns
    as can be measured: the steps follow from public facts, not from which columns chance draws. Where columns are
    chosen, tables are planned for the widest ones, put together so that they are largest. The score of a column is how
    many rows the most frequent class of each of its groups has: one row adds 0 or 1 to each score: their range is 1.
    """
    choice_share = exact_number(CHOICE_SHARE) if recipe.selects else Fraction(0)
    numeric = min(sum(axis.ordered for axis in axes), recipe.n_columns)
    histogram_share = exact_number(QUANTILE_SHARE) if recipe.quantiles else Fraction(0)
    largest = sorted(axes, key=lambda axis: -axis.size) if recipe.selects else axes
    tables = tables_of(largest, recipe)
    n_tables = len(tables)
    return TablePlan(
        choices=tuple(
            selecting_step(
                f"column {i + 1}", (1, len(axes)), loss.part(choice_share / recipe.n_columns), neighbours, score_range=1
            )
            for i in range(recipe.n_columns)
        ) if recipe.selects else (),
        histograms=counting_step(
            "histograms of numeric columns", (numeric, COARSE_CELLS), loss.part(histogram_share), neighbours,
            l1=numeric, squared_l2=numeric,
        ) if histogram_share else None,
        counts=counting_step(
            "class counts of tables", (sum(table.n_cells for table in tables), n_classes),
            loss.part(1 - choice_share - histogram_share), neighbours, l1=n_tables, squared_l2=n_tables,
        ),
    )  # fmt: skip


def measure(
    plan: TablePlan,
    axes: Sequence[Axis],
    columns: Sequence[EncodedColumn],
    recipe: Recipe,
    source: Source,
    door: Door,
    n_jobs: int | None,
) -> Learned:
    """Carry the plan out: choose columns, cut numbers at quantiles, count; each step through the door."""
    n_classes = plan.counts.shape[1]
    if plan.choices:
        axes = choose_columns(axes, plan.choices, n_classes, source, door, n_jobs)
    axes = axes[: recipe.n_columns]
    if plan.histograms is not None:
        axes = cut_at_quantiles(axes, columns, plan.histograms, recipe.n_rows, source, door, n_jobs)
    return count(tables_of(axes, recipe), plan.counts, source, door, n_jobs)


def choose_columns(
    axes: Sequence[Axis], choices: Sequence[Step], n_classes: int, source: Source, door: Door, n_jobs: int | None
) -> list[Axis]:
    """Choose the columns that tell classes apart best, one after the other, in one pass over the rows."""
    forest, _ = grow_tables([CellTable((axis,)) for axis in axes])
    counts = _totals(forest, n_classes, source, n_jobs)
    scores = np.add.reduceat(counts.max(axis=1), forest.tree_leaves[:-1])[None, :]
    free = np.ones((1, len(axes)), bool)
    chosen = []
    for step in choices:
        (best,) = door.select(step, scores, free)
        free[0, best] = False
        chosen.append(axes[best])
    return chosen


def cut_at_quantiles(
    axes: Sequence[Axis],
    columns: Sequence[EncodedColumn],
    step: Step,
    n_rows: int,
    source: Source,
    door: Door,
    n_jobs: int | None,
) -> list[Axis]:
    """Cut numeric columns into as many groups as they have, of about equal mass by a noisy histogram."""
    numeric = [axis.feature for axis in axes if axis.ordered]
    exact = np.zeros(step.shape, np.int64)  # of columns that were planned and not chosen nothing is counted
    if numeric:
        exact[: len(numeric)] = source.add_up(partial(histograms, columns, numeric), n_jobs=n_jobs)
    noisy = iter(door.noisy(step, exact))
    recut = []
    for axis in axes:
        if axis.ordered:
            n_groups = int(axis.groups[COARSE_CELLS - 1]) + 1  # that of missing numbers apart
            cuts = quantile_cuts(density(next(noisy), step.variance, n_rows), n_groups)
            recut.append(Axis.of_cuts(axis.feature, columns[axis.feature], cuts))
        else:
            recut.append(axis)
    return recut


def histograms(
    columns: Sequence[EncodedColumn], numeric: list[int], batches: Iterable[Batch], *, n_jobs: int | None = 1
) -> NDArray[np.int64]:
    """Count the rows in the coarse cells of some numeric columns. Private."""
    totals = np.zeros((len(numeric), COARSE_CELLS), np.int64)
    for batch in batches:
        coarse = coarse_codes([columns[j] for j in numeric], batch.codes[:, numeric])
        totals += np.stack([histogram_of(codes) for codes in coarse])
    return totals


def count(tables: Sequence[CellTable], step: Step, source: Source, door: Door, n_jobs: int | None) -> Learned:
    """Count all tables in one pass, let the counts out, and turn them into evidence."""
    forest, cells = grow_tables(tables)
    exact = np.zeros(step.shape, np.int64)  # cells that were planned and are not there stay empty
    exact[: forest.n_leaves] = _totals(forest, step.shape[1], source, n_jobs)
    noisy = door.noisy(step, exact)
    counts = []
    for table, first, last in zip(tables, forest.tree_leaves[:-1], forest.tree_leaves[1:], strict=True):
        by_cell = np.empty((table.n_cells, step.shape[1]))
        by_cell[cells[first:last]] = noisy[first:last]
        counts.append(by_cell)
    return evidence(tables, counts, step.variance)


def _totals(forest: Forest, n_classes: int, source: Source, n_jobs: int | None) -> NDArray[np.int64]:
    count = partial(leaf_totals, forest, n_classes=n_classes, target_levels=TARGET_LEVELS, assignment=None)
    return source.add_up(count, n_jobs=n_jobs)


def evidence(tables: Sequence[CellTable], counts: Sequence[Floats], variance: float) -> Learned:
    """Turn noisy counts into log-ratios: how much more frequent a cell is in each class than in an even spread.

    Every table tells how many rows each class has; the fewer cells it has, the better. They are pooled, and shrunk
    towards equal classes by the James-Stein rule.
    """
    n_classes = counts[0].shape[1]
    weights = np.array([1 / table.n_cells for table in tables])
    totals = np.average([table.sum(axis=0) for table in counts], axis=0, weights=weights)
    rows = max(float(totals.sum()), float(n_classes))
    apart = totals - rows / n_classes
    energy = float((apart**2).sum())
    kept = max(0.0, 1 - (n_classes - 1) * variance / weights.sum() / energy) if energy > 0 else 0.0
    totals = np.maximum(rows / n_classes + kept * apart, RAREST_CLASS * rows / n_classes)
    weight = len(tables) ** -OVERLAP
    values, errors = [], []
    for table, noisy in zip(tables, counts, strict=True):
        even = totals / table.n_cells
        chance = variance + SAMPLED * even.mean()  # cells of few rows must not be taken at their word without noise
        shrunk = shrunken_table(noisy.reshape(*table.shape, n_classes), chance, totals).reshape(-1, n_classes)
        cleaned = np.maximum(shrunk, LOWEST_PART * even)
        values.append(weight * np.log(cleaned / even))
        errors.append(weight * np.sqrt(variance) / np.maximum(cleaned, np.sqrt(variance) / 2 + 1.0))
    return Learned(np.log(totals / totals.sum()), tables, values, errors)
