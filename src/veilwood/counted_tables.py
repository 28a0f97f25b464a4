# SPDX-License-Identifier: Apache-2.0
"""Tables of class counts over a few columns each: planned, counted in one pass, and turned into evidence for classes.

Naive Bayes between tables and full interaction inside them. Which tables is decided in ``recipes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.batches import Source
from veilwood.counting import leaf_totals
from veilwood.encoding import TARGET_LEVELS, EncodedColumn
from veilwood.leaves import shrunken_table
from veilwood.plan import Step, counting_step, selecting_step
from veilwood.privacy import Loss, Neighbours
from veilwood.privacy import exact as exact_number
from veilwood.recipes import CHOICE_SHARE, FEWEST_BINS, MOST_BINS, Recipe
from veilwood.release import Door
from veilwood.structure import Forest
from veilwood.table_trees import Axis, CellTable, equal_cuts, grow_tables

LOWEST_PART: Final = 0.1  # of an even part, below which no cell falls: one table alone never rules a class out
OVERLAP: Final = 0.25  # q tables count as q^(1 - OVERLAP) independent ones: columns of different tables depend too
SAMPLED: Final = 0.75  # of a count's variance were rows drawn by chance: less for classes that follow from the columns
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


def plan_tables(
    axes: Sequence[Axis], recipe: Recipe, n_classes: int, loss: Loss, neighbours: Neighbours
) -> tuple[Step, ...]:
    """Plan the choice of columns, if there is one, and the release of all tables at once.

    One row adds one to one cell of each table. Where columns are chosen, the counts are planned for the widest ones,
    put together so that the tables are largest. The score of a column is how many rows the most frequent class of each
    of its groups has: one row adds 0 or 1 to each score, so their range is 1.
    """
    choices: tuple[Step, ...] = ()
    if recipe.selects:
        part = exact_number(CHOICE_SHARE) / recipe.n_columns
        choices = tuple(
            selecting_step(f"column {i + 1}", (1, len(axes)), loss.part(part), neighbours, score_range=1)
            for i in range(recipe.n_columns)
        )
        loss = loss.part(1 - exact_number(CHOICE_SHARE))
        axes = sorted(axes, key=lambda axis: -axis.size)
    tables = tables_of(axes, recipe)
    shape = (sum(table.n_cells for table in tables), n_classes)
    n = len(tables)
    return (*choices, counting_step("class counts of tables", shape, loss, neighbours, l1=n, squared_l2=n))


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
        errors.append(weight * np.sqrt(variance) / np.maximum(cleaned, np.sqrt(variance) + 1.0))
    return Learned(np.log(totals / totals.sum()), tables, values, errors)
