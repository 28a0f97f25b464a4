# SPDX-License-Identifier: Apache-2.0
"""The rounds of private boosting: their plan, and their way through the door one after the other.

What a round adds up, and how its noisy sums become a step, is in ``boosting``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Source
from veilwood.data.encoding import TARGET_LEVELS, EncodedColumn
from veilwood.forests.adaptive import boosting
from veilwood.forests.adaptive.boosting import Rows
from veilwood.forests.adaptive.recipes import CUT_SHARE, Recipe, start_shares
from veilwood.forests.adaptive.table_trees import COARSE_CELLS, Axis, CellTable, quantile_cuts
from veilwood.forests.adaptive.tables import RAREST_CLASS, Learned
from veilwood.forests.leaves import density
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss, exact
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, counting_step
from veilwood.progress import track

_START: Final = "histogram of the target"
SPREAD_AT: Final = (Fraction(1, 8), Fraction(1, 3))  # of the rounds, when residuals are measured anew

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RoundPlan:
    """The steps of private boosting, in order.

    Attributes
    ----------
    cuts : Step or None
        Histograms of the numeric columns, if there are any.
    start : Step
        Class counts, or a histogram of the target.
    spreads : tuple of Step
        Regression: histograms of residuals.
    rounds : tuple of Step
        Sums of gradients and of rows.
    count_units : int
        What one row adds to the count of a cell.
    """

    cuts: Step | None
    start: Step
    spreads: tuple[Step, ...]
    rounds: tuple[Step, ...]
    count_units: int

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them."""
        return (*((self.cuts,) if self.cuts else ()), self.start, *self.spreads, *self.rounds)


def plan_rounds(
    columns: Sequence[EncodedColumn], n_classes: int, recipe: Recipe, loss: Loss, neighbours: Neighbours
) -> RoundPlan:
    """Divide a loss over cut points, start, spreads and rounds, which all get the same part of what is left."""
    n_rounds = recipe.rounds(len(columns))
    if not n_rounds:  # so few rows that only the mean is worth measuring
        start = counting_step(_START, (COARSE_CELLS,), loss, neighbours, l1=1, squared_l2=1)
        return RoundPlan(None, start, (), (), 0)
    numeric = sum(column.ordered for column in columns)
    cut_share = exact(CUT_SHARE) if numeric else Fraction(0)
    start_share, spread_share = start_shares(n_classes, recipe.n_rows, loss)
    left = 1 - cut_share - start_share - len(SPREAD_AT) * spread_share
    units, l1, squared_l2 = boosting.row_norms(n_classes, recipe.gaussian, neighbours.adjacency == "replace-one")
    outputs = 1 if n_classes <= 2 else n_classes

    def size(number: int) -> int:
        """The most cells that a round can have."""
        if number >= recipe.passes * len(columns):
            return 1 << recipe.depth
        return max(recipe.bins + (column.missing_code is not None) if column.ordered else column.n_codes
                   for column in columns)  # fmt: skip

    return RoundPlan(
        cuts=counting_step(
            "histograms of numeric columns", (numeric, COARSE_CELLS), loss.part(cut_share), neighbours,
            l1=numeric, squared_l2=numeric,
        ) if numeric else None,
        start=counting_step(
            "class counts" if n_classes else _START, (n_classes or COARSE_CELLS,),
            loss.part(start_share), neighbours, l1=1, squared_l2=1,
        ),
        spreads=() if n_classes else tuple(
            counting_step(
                f"histogram {i + 1} of residuals", boosting.SPREAD_GRID.shape, loss.part(spread_share), neighbours,
                l1=1, squared_l2=1,
            )
            for i in range(len(SPREAD_AT))
        ),
        rounds=tuple(
            counting_step(
                f"round {i + 1}", (size(i), outputs + 1), loss.part(left / n_rounds), neighbours,
                l1=l1, squared_l2=squared_l2,
            )
            for i in range(n_rounds)
        ),
        count_units=units,
    )  # fmt: skip


def boost(
    plan: RoundPlan,
    columns: tuple[EncodedColumn, ...],
    n_classes: int,
    recipe: Recipe,
    source: Source,
    door: Door,
    rng: np.random.Generator,
    n_jobs: int | None,
) -> Learned:
    """Carry the plan out: cut points, start, then round after round, each through the door."""
    rows = Rows.of(source, columns)
    numeric = [feature for feature, column in enumerate(columns) if column.ordered]
    cuts: dict[int, NDArray[np.int64]] = {}
    if plan.cuts is not None:
        histograms = door.noisy(plan.cuts, rows.histograms(numeric))
        cuts = {
            feature: quantile_cuts(density(histogram, plan.cuts.variance, recipe.n_rows), recipe.bins)
            for feature, histogram in zip(numeric, histograms, strict=True)
        }
    start, spread = start_of(door.noisy(plan.start, _totals(rows, n_classes)), n_classes, plan.start, recipe.n_rows)
    rows.begin(start)
    due = [int(share * len(plan.rounds)) for share in SPREAD_AT]
    tables, values, errors = [], [], []
    schedule = draw_rounds(columns, recipe, cuts, rng)
    for number, step in enumerate(track(plan.rounds, "boosting")):
        for spread_step, at in zip(plan.spreads, due, strict=False):
            if at == number:
                noisy = door.noisy(spread_step, rows.residual_histogram())
                # Residuals become smaller: what seems to say otherwise is noise.
                spread = min(spread, boosting.spread_of(noisy, spread_step.variance, recipe.n_rows))
        table = next(schedule)
        exact_sums = np.zeros(step.shape, np.int64)  # cells that were planned and are not there stay empty
        exact_sums[: table.n_cells] = rows.sums(table, n_classes, plan.count_units, spread, n_jobs)
        noisy = door.noisy(step, exact_sums)[: table.n_cells]
        value, error = boosting.damped_step(
            noisy.astype(float), table, n_classes, plan.count_units, step.variance, spread
        )
        rows.step(value, n_jobs)
        tables.append(table)
        values.append(value)
        errors.append(np.broadcast_to(error, value.shape))
    if not tables:
        return Learned(start, [CellTable(())], [np.zeros((1, 1))], [np.zeros((1, 1))])
    return Learned(start, tables, values, errors)


def draw_rounds(
    columns: Sequence[EncodedColumn], recipe: Recipe, cuts: dict[int, NDArray[np.int64]], rng: np.random.Generator
) -> Iterator[CellTable]:
    """Draw the table of each round by public chance: columns one by one, then trees that take turns over them."""
    turn = _turns(len(columns), rng)
    for _ in range(recipe.passes * len(columns)):
        feature = next(turn)
        yield CellTable((Axis.of(feature, columns[feature], cuts.get(feature, ())),))
    while True:
        yield CellTable(tuple(_side(next(turn), columns, cuts, rng) for _ in range(recipe.depth)))


def _turns(n_columns: int, rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from rng.permutation(n_columns).tolist()


def _side(
    feature: int, columns: Sequence[EncodedColumn], cuts: dict[int, NDArray[np.int64]], rng: np.random.Generator
) -> Axis:
    """Split a column in two: at one of its cut points, or its categories at random with at least one on each side."""
    column = columns[feature]
    if column.ordered:
        above = np.arange(COARSE_CELLS + (column.missing_code is not None)) >= rng.choice(cuts[feature])
        return Axis(feature, above.astype(np.uint16), True, 2)
    sides = rng.random(column.n_codes) < 0.5
    if column.n_codes == 2:
        sides = np.array([False, True])
    elif sides.all() or not sides.any():
        sides[rng.integers(column.n_codes)] ^= True
    return Axis.of_sides(feature, sides)


def _totals(rows: Rows, n_classes: int) -> NDArray[np.int64]:
    if n_classes:
        return np.bincount(rows.target, minlength=n_classes).astype(np.int64)
    cell = rows.target.astype(np.int64) * COARSE_CELLS // (TARGET_LEVELS + 1)
    return np.bincount(cell, minlength=COARSE_CELLS).astype(np.int64)


def start_of(noisy: NDArray[np.int64], n_classes: int, step: Step, n_rows: int) -> tuple[Floats, float]:
    """Return the score of a row about which nothing is known, and the spread of residuals from it (1 for classes)."""
    if not n_classes:
        mean, spread = boosting.target_and_spread(noisy, step.variance, n_rows)
        return np.array([mean]), spread
    counts = np.maximum(noisy, 1).astype(float)
    shares = np.maximum(counts / counts.sum(), RAREST_CLASS)
    scores = np.log(shares / shares.sum())
    return np.asarray(scores[1:] - scores[0] if n_classes == 2 else scores), 1.0
