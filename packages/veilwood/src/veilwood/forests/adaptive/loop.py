# SPDX-License-Identifier: Apache-2.0
"""Adaptive training loop: initial estimate, tables of class counts, then rounds that select what to measure.

Every step is planned from values released before it. The first step estimates the number of rows and the initial score
of every row. Tables count the classes by column, for all columns or for selected ones. A round selects the column, pair
or triple that explains most of the residual, measures rows and gradients in its cells, and applies a shrunken update.

Constants that are a "need" are numbers of rows times e, the epsilon of one row (``privacy.adaptive_budget``). Their
values were chosen on the development suite of benchmarks/suite.py; alternatives are in benchmarks/results/constants.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import numpy as np

from veilwood.arrays import Floats, Int32s, Ints
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.estimators.method import FitRequest
from veilwood.forests.adaptive import row_backend as asked
from veilwood.forests.adaptive import sparse_histogram as cell_forests
from veilwood.forests.adaptive.contingency import TINY, BinnedColumn, ContingencyTable, posterior_counts
from veilwood.forests.adaptive.effects import StepMeasurement, TableScores
from veilwood.forests.adaptive.row_backend import (
    GRADIENT_UNITS,
    LEVEL_UNITS,
    SCORE_UNITS,
    TARGET_CELLS,
    RowBackend,
    gradient_norms,
    n_outputs,
    sensitivity_factor,
)
from veilwood.forests.adaptive.shrinkage import (
    log_ratios,
    newton_step,
    pool_class_counts,
    shrunken_counts,
    shrunken_mean,
)
from veilwood.forests.adaptive.sparse_histogram import CELL_FRACTION, is_worth_trying
from veilwood.forests.adaptive.sparse_histogram import release_sparse_histogram as measure_cells
from veilwood.forests.adaptive.steps import (
    CELL_WEIGHTS,
    MAX_GAIN,
    TABLE_STEPS,
    AdaptiveStep,
    RowFacts,
    plan_choice,
    plan_sums,
)
from veilwood.forests.adaptive.table_design import (  # fmt: skip
    GROUP_COUNTS,
    SCORE_GROUPS,
    SELECTION_FRACTION,
    ColumnStrengths,
    GroupBounds,
    ShrunkenTable,
    design_tables,
    estimate_weight,
    extend_pairs,
    groups_per_column,
    may_be_dominant,
    random_subsets,
    weight_fraction,
)
from veilwood.privacy.adaptive_budget import AdaptiveBudget, release_tables
from veilwood.privacy.loss import Loss
from veilwood.privacy.steps import Step
from veilwood.progress import track_progress

START_FRACTION: Final = 0.05  # of the budget, for the first step: n e is then known with a standard error of 28
# Regression: need below which only the mean of the target is measured.
MIN_FOR_TARGET: Final = 200.0
# Regression: need of the histogram of the target, and limits of its fraction of the budget.
TARGET_NEED, TARGET_FRACTIONS = 100.0, (0.05, 0.25)
# Rounds: T rounds have n e = ROUND_NEED T^(1/ROUND_POWER) together; 75 and 150 were worse, and so was a power of 0.75.
ROUND_NEED, ROUND_POWER, MAX_ROUNDS = 300.0, 0.6, 80
ROUND_BINS: Final = (0.35, 3, 16)  # bins per numeric column: a power of n e of one round, and its limits
# Up to this number of rounds the common weight of tables is measured; more rounds correct the weight themselves.
MAX_FEW_ROUNDS: Final = 3
PURE_FROM_ROW_EPSILON: Final = (
    18.0  # from this e on, a sparse histogram under pure epsilon is better than rounds under zCDP
)


def plan_first_step(budget: AdaptiveBudget, n_classes: int, n_rows: int | None) -> Step:
    """Plan the first step: class counts, the number of rows or, if that is declared, the target."""
    facts = RowFacts(0, n_classes, GRADIENT_UNITS)
    if n_classes:
        return plan_sums(budget, AdaptiveStep.CLASS_COUNTS, (n_classes,), START_FRACTION, facts)
    if n_rows is None:
        return plan_sums(budget, AdaptiveStep.ROW_COUNT, (1,), START_FRACTION, facts)
    return (
        plan_mean_step(budget)
        if n_rows * budget.row_epsilon < MIN_FOR_TARGET
        else plan_target_step(budget, float(n_rows))
    )


def plan_mean_step(budget: AdaptiveBudget) -> Step:
    """Plan the mean of a numeric target, with the whole remaining budget."""
    facts = RowFacts(0, 0, GRADIENT_UNITS)
    return plan_sums(budget, AdaptiveStep.TARGET_SUMS, (2,), budget.remaining, facts)


def plan_target_step(budget: AdaptiveBudget, n_rows: float) -> Step:
    """Plan the histogram of a numeric target."""
    low, high = TARGET_FRACTIONS
    fraction = min(max(budget.fraction_for(TARGET_NEED / n_rows), low), high)
    return plan_sums(budget, AdaptiveStep.TARGET_HISTOGRAM, (TARGET_CELLS,), fraction, RowFacts(0, 0, GRADIENT_UNITS))


def schedule_rounds(n_rows: float, budget: AdaptiveBudget, fraction: float, outputs: int) -> tuple[int, int]:
    """Return the number of rounds that a fraction of the budget allows, and the bins per numeric column."""
    t: Floats = np.arange(1.5, MAX_ROUNDS)
    paid = n_rows * budget.row_epsilon_of(fraction / t) / outputs >= ROUND_NEED * t ** (1 / ROUND_POWER - 1)
    n_rounds = 1 + int(paid.sum())  # more rounds leave less budget per round, and the need grows
    power, fewest, most = ROUND_BINS
    return n_rounds, min(
        max(round((n_rows * budget.row_epsilon_of(fraction / n_rounds) / outputs) ** power), fewest), most
    )


def has_few_rounds(n_rows: float, budget: AdaptiveBudget, fraction: float, n_classes: int) -> bool:
    """Return True if a fraction of the budget allows at most ``MAX_FEW_ROUNDS`` rounds."""
    return (
        fraction <= 0 or schedule_rounds(n_rows, budget, fraction, sensitivity_factor(n_classes))[0] <= MAX_FEW_ROUNDS
    )


# -- by epsilon or by rho ------------------------------------------------------------------------------------------


def planned_loss(columns: Sequence[BinnedColumn], n_classes: int, n_rows: int | None, request: FitRequest) -> Loss:
    """Return the loss of the fit: pure epsilon if it leaves less noise than zCDP for the expected number of steps.

    If ``n_rows`` is unknown, the first step decides, and the loss allows for either accounting.
    """
    loss = request.loss
    if loss.delta == 0 or loss.epsilon is None:
        return loss
    pure = Loss.pure(loss.epsilon)
    by_epsilon = AdaptiveBudget(pure, request.neighbours)
    if n_rows is None:
        fine_cells = n_classes and by_epsilon.row_epsilon >= PURE_FROM_ROW_EPSILON
        return pure if fine_cells else Loss.pure_or_zcdp(loss.epsilon, loss.delta)
    by_rho = AdaptiveBudget(loss, request.neighbours)
    return loss if prefers_zcdp(columns, n_classes, float(n_rows), by_epsilon, by_rho) else pure


def with_accounting(
    columns: Sequence[BinnedColumn], n_classes: int, n_rows: float, budget: AdaptiveBudget
) -> AdaptiveBudget:
    """Return the budget under the accounting that leaves less noise for the expected number of steps."""
    other = budget.under_zcdp()
    return other if other and prefers_zcdp(columns, n_classes, n_rows, budget, other) else budget


def prefers_zcdp(
    columns: Sequence[BinnedColumn], n_classes: int, n_rows: float, pure: AdaptiveBudget, zcdp: AdaptiveBudget
) -> bool:
    """Return True if zCDP accounting leaves less noise than pure epsilon at this number of rows.

    For k steps of equal size zCDP leaves less noise if k is at least the square of the ratio of the row epsilons of the
    whole budget. Tables with joint noise count as fewer steps. Under zCDP every numeric column has a histogram of its
    own before the tables; under pure epsilon coarse histograms share their noise (accuracy on the robot table at e = 1,
    24 numeric columns: 0.79 under epsilon without histograms, 0.84 under zCDP). Sparse histograms need pure epsilon.
    """
    if n_classes and pure.row_epsilon >= PURE_FROM_ROW_EPSILON:
        return False
    n_steps: float = schedule_rounds(n_rows, zcdp, zcdp.remaining, sensitivity_factor(n_classes))[0]
    if n_classes:
        shape, _ = design_tables(columns, n_classes, n_rows, pure, pure.remaining)
        n_histograms = sum(column.ordered for column in columns) * shape.n_columns / len(columns)
        n_steps = max(n_steps, shape.equivalent_zcdp_steps + n_histograms)
    return n_steps >= (pure.row_epsilon_of(pure.remaining) / zcdp.row_epsilon_of(zcdp.remaining)) ** 2


# -- in words ------------------------------------------------------------------------------------------------------


def describe(columns: Sequence[BinnedColumn], n_classes: int, n_rows: int, budget: AdaptiveBudget) -> str:
    """Describe what the loop would do at this number of rows."""
    plan_first_step(budget, n_classes, None)
    budget = with_accounting(columns, n_classes, float(n_rows), budget)
    left, said = budget.remaining, []
    if n_classes:
        weight_share = weight_fraction(budget, float(n_rows))
        left -= weight_share
        shape, part = design_tables(columns, n_classes, float(n_rows), budget, left)
        if not shape.n_columns:
            return "nothing but how frequent the classes are would stand out: that is predicted"
        how = "all" if shape.n_columns == len(columns) else f"{shape.n_columns} privately chosen"
        tells = may_be_dominant(columns, budget, float(n_rows) * budget.row_epsilon_of(left))
        asked = weight_share and has_few_rounds(float(n_rows), budget, left * (1 - part), n_classes)
        said.append(
            f"class counts of {how} of {len(columns)} columns{' (or fewer, if one tells much)' if tells else ''}, "
            f"with {part:.0%} of what is left{', and how much they should count together' if asked else ''}"
        )
        left *= 1 - part
    elif n_rows * budget.row_epsilon < MIN_FOR_TARGET:
        return "nothing but the mean of the target would stand out: that is predicted"
    if left > 0:
        n_rounds, bins = schedule_rounds(float(n_rows), budget, left, sensitivity_factor(n_classes))
        times = "1 round, which" if n_rounds == 1 else f"{n_rounds} rounds, each of which"
        said.append(
            f"{times} chooses a column or pair by what it explains of the rest and measures it, numbers in up to "
            f"{bins} groups"
        )
    return "; then ".join(said)


MIN_ROWS: Final = 10.0
# If n_rows exceeds DECLARED_FACTOR times the upper confidence limit of the noisy count, use the count. The limit is
# COUNT_ERRORS standard errors above it.
DECLARED_FACTOR, COUNT_ERRORS = 4.0, 3.0
# Regression: needs of the mean and of the histogram of residuals, and limits of their fractions of the budget.
MEAN_NEED, MEAN_FRACTION = 30.0, 0.15
LIMIT_NEED, LIMIT_FRACTION, LIMIT_QUANTILE, LIMIT_ROUNDS = 40.0, 0.5, 0.9, (4, 2)
# The first limit of residuals is START_LIMIT_FACTOR times their START_QUANTILE.
START_QUANTILE, START_LIMIT_FACTOR = 0.8, 1.5
RESIDUAL_MARKS: Final = np.geomspace(1e-3, 1.0, 17)[1:]
# Need of the first round. After tables ``design_tables`` requires more; what it left for rounds is spent on them even
# if the number of rows has been corrected since.
MIN_FIRST_ROUND: Final = 30.0
# Need of a selection, per logarithm of the number of candidates, and limits of its fraction of a round.
SELECTION_NEED, SELECTION_FRACTIONS = 30.0, (0.2, 0.35)
# Fraction of a round for the row counts of cells; relative standard deviation of these counts from the product of
# histograms, if some column has none and if all have one.
COUNT_FRACTION, PRIOR_ERROR, KNOWN_PRIOR_ERROR = 0.25, 1.0, 0.25
# Largest numbers of drawn pairs and triples per round, need of triples, and cells of a candidate table.
MAX_PAIRS, MAX_TRIPLES, TRIPLE_NEED, MAX_SET_CELLS = 200, 200, 1000.0, 64
# Random triples are candidates in every fourth round only: in the selection they compete with pairs.
RANDOM_TRIPLES_EVERY: Final = 4
# From round SHIFT_FROM_ROUND (0-based) on, group bounds from histograms are shifted at random by up to MAX_BOUND_SHIFT
# groups, so that many rounds together resolve more than one.
MAX_BOUND_SHIFT, SHIFT_FROM_ROUND = 0.5, 2
SCORE_SAMPLE_ROWS: Final = 1 << 16  # rows in the sample that scores candidates of large tables
NOISE_FACTOR: Final = 0.8  # expected absolute noise on a sum, in scales of the noise
RESIDUAL_VARIANCE: Final = 0.2  # assumed variance of a regression gradient
# Strengths of columns (``table_design``): numbers measured and their need, for standard errors of 0.025, 0.05 and 0.1;
# limits of their fraction of the budget.
STRENGTH_NEED, STRENGTH_FRACTIONS = ((2, 120.0), (1, 32.0), (1, 16.0)), (0.01, 0.1)
GRADIENT_MARGIN: Final = 0.1  # limit of binary gradients above the frequency of the larger class
# Sparse histogram: fraction of the rows that is held out to select its weight, need of the selection, limits of its
# fraction of the budget.
HOLDOUT_FRACTION, HOLDOUT_NEED, HOLDOUT_BUDGETS = 0.1, 40.0, (0.01, 0.1)


@dataclass
class LoopResult:
    """Result of the loop: released values only. Scores are integers (``row_backend``)."""

    start: Int32s
    steps: list[TableScores] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    n_rows: float = 0.0
    residual_limit: int = GRADIENT_UNITS
    start_limit: int = GRADIENT_UNITS
    n_tables: int = 0  # of the steps, those from tables of class counts
    cell_forest: cell_forests.FittedForest | None = None
    cell_weight: float = 0.0


class AdaptiveLoop:
    """Training loop for one table. ``n_classes`` is 0 for regression."""

    def __init__(
        self,
        columns: Sequence[BinnedColumn],
        n_classes: int,
        backend: RowBackend,
        budget: AdaptiveBudget,
        n_rows: int | None,
        rng: np.random.Generator,
        n_jobs: int | None = None,
    ) -> None:
        self._columns, self._n_classes, self._backend, self._budget, self._rng = (
            columns,
            n_classes,
            backend,
            budget,
            rng,
        )
        self._declared_rows = n_rows
        self._n_rows = float(n_rows or 0)
        self._group_bounds = GroupBounds(backend, len(columns))
        self._residual_limit = GRADIENT_UNITS
        self._frequencies = np.full(max(n_classes, 1), 1 / max(n_classes, 1))
        self._result = LoopResult(np.zeros(n_outputs(n_classes), np.int32))
        self._holdout_budget = 0.0
        self._n_jobs = n_jobs

    def run(self) -> LoopResult:
        """Run the loop and return what was released."""
        if self._n_classes:
            self._start_classification()
            rich = not self._budget.uses_gaussian and is_worth_trying(
                self._columns, self._n_classes, self._n_rows, self._budget.row_epsilon
            )
            if rich and self._backend.supports_holdout:
                self._hold_out_rows()
            self._measure_tables()
        else:
            self._start_regression()
        self._run_rounds()
        if self._holdout_budget:
            self._try_sparse_histogram()
        self._result.n_rows, self._result.residual_limit = self._n_rows, self._residual_limit
        return self._result

    # -- start -------------------------------------------------------------------------------------------------------

    def _start_classification(self) -> None:
        step, declared = (
            plan_first_step(self._budget, self._n_classes, self._declared_rows),
            self._declared_rows is not None,
        )
        self._class_counts = self._budget.release_counts(step, self._backend.run(asked.ClassCounts(self._n_classes)))
        self._counts_variance = step.variance
        counted = max(float(self._class_counts.sum()), MIN_ROWS, 1 / self._budget.row_epsilon)
        error = (self._n_classes * step.variance) ** 0.5
        if self._declared_rows and self._declared_rows > DECLARED_FACTOR * (counted + COUNT_ERRORS * error):
            self._declared_rows, counted = None, counted + error  # n_rows is far above the noisy count
        self._n_rows = float(self._declared_rows or counted)
        if not declared:
            self._budget = with_accounting(self._columns, self._n_classes, self._n_rows, self._budget)
        self._start_from_totals(pool_class_counts([self._class_counts], [step.variance], self._n_rows))
        self._result.start_limit = self._residual_limit

    def _start_from_totals(self, totals: Floats) -> None:
        """Set the initial score from class totals, and the limit of gradients from the largest."""
        self._frequencies = totals / totals.sum()
        logs = np.log(self._frequencies)
        scores = logs[1:] - logs[:1] if self._n_classes == 2 else logs
        self._set_start(np.rint(scores * SCORE_UNITS).astype(np.int32))
        if self._n_classes == 2:
            self._residual_limit = min(
                GRADIENT_UNITS, int(GRADIENT_UNITS * (float(self._frequencies.max()) + GRADIENT_MARGIN))
            )

    def _set_start(self, start: Int32s) -> None:
        self._backend.add_scores(ContingencyTable(()), (start - self._result.start)[None])
        self._result.start = start

    def _start_regression(self) -> None:
        purse = self._budget
        counted, variance = float(self._declared_rows or 0), 0.0
        if self._declared_rows is None:
            step = plan_first_step(purse, 0, None)
            counted, variance = float(purse.release_counts(step, self._backend.run(asked.RowCount()))[0]), step.variance
            self._n_rows = max(counted, MIN_ROWS, 1 / purse.row_epsilon)
            self._budget = purse = with_accounting(self._columns, 0, self._n_rows, purse)
        levels = TARGET_LEVELS * LEVEL_UNITS
        if self._n_rows * purse.row_epsilon < MIN_FOR_TARGET:
            step = plan_first_step(purse, 0, self._declared_rows) if self._declared_rows else plan_mean_step(purse)
            up, down = purse.release_counts(step, self._backend.run(asked.TargetSums())) / TARGET_LEVELS
            noise = 2 * step.variance / TARGET_LEVELS**2  # of the sum and of the difference of both
            pooled = (noise * counted + variance * (up + down)) / (noise + variance) if noise else up + down
            self._n_rows = max(pooled, up + down - COUNT_ERRORS * noise**0.5, MIN_ROWS)
            self._set_start(np.array([round(shrunken_mean(up - down, noise, self._n_rows) * levels)], np.int32))
            return
        step = (
            plan_first_step(purse, 0, self._declared_rows)
            if self._declared_rows
            else plan_target_step(purse, self._n_rows)
        )
        seen = purse.release_counts(step, self._backend.run(asked.TargetHistogram()))
        if self._declared_rows and self._n_rows > DECLARED_FACTOR * (total := max(float(seen.sum()), MIN_ROWS)):
            self._n_rows = total + (TARGET_CELLS * step.variance) ** 0.5  # far more rows were declared than are there
        even = np.full(TARGET_CELLS, 1 / TARGET_CELLS)
        mass = posterior_counts(seen, even, step.variance, self._n_rows)
        mass /= mass.sum()
        middle = (np.arange(TARGET_CELLS) + 0.5) / TARGET_CELLS
        mean = float((mass * middle).sum())
        away = np.abs(middle - mean) + 0.5 / TARGET_CELLS
        order = np.argsort(away, kind="stable")
        mark = away[order][np.searchsorted(np.cumsum(mass[order]), START_QUANTILE)]
        self._residual_limit = max(1, round(min(START_LIMIT_FACTOR * float(mark), 1.0) * levels))
        self._set_start(np.array([round(mean * levels)], np.int32))
        # The shrunken histogram biases its mean towards the middle; the mean of clipped residuals corrects that.
        share = min(purse.fraction_for(MEAN_NEED / self._n_rows), MEAN_FRACTION)
        step = plan_sums(purse, AdaptiveStep.RESIDUAL_SUM, (1, 1), share, self._facts)
        (rest,) = purse.release_counts(step, self._sum_gradients([ContingencyTable(())])[0]).ravel() / GRADIENT_UNITS
        kept = max(0.0, 1 - step.variance / GRADIENT_UNITS**2 / max(rest**2, TINY))
        moved = self._residual_limit * min(max(kept * rest / self._n_rows, -1.0), 1.0)
        self._set_start(self._result.start + np.int32(round(moved)))

    # -- fine cells, where the budget is rich ------------------------------------------------------------------------

    def _hold_out_rows(self) -> None:
        """Hold out rows and budget for the sparse histogram; the loop continues without them."""
        self._backend.hold_out(HOLDOUT_FRACTION)
        low, high = HOLDOUT_BUDGETS
        self._holdout_budget = min(
            max(self._budget.fraction_for(HOLDOUT_NEED / (HOLDOUT_FRACTION * self._n_rows)), low), high
        )
        self._budget.earmark(CELL_FRACTION + self._holdout_budget)
        kept = 1 - HOLDOUT_FRACTION
        self._n_rows *= kept
        self._declared_rows = None if self._declared_rows is None else max(1, round(kept * self._declared_rows))
        self._class_counts, self._counts_variance = self._class_counts * kept, self._counts_variance * kept**2

    def _try_sparse_histogram(self) -> None:
        """Fit a forest to a sparse histogram and select its weight on the held-out rows."""
        self._budget.earmark(0.0)
        cells = measure_cells(self._columns, self._n_classes, self._n_rows, self._backend, self._budget, self._rng)
        grown = cell_forests.fit_best_forest(cells, self._n_classes, self._rng, self._n_jobs)
        remaining = self._budget.remaining
        step = plan_choice(self._budget, AdaptiveStep.CELL_WEIGHT, len(CELL_WEIGHTS), remaining, self._facts)
        right = self._backend.run_on_holdout(cell_forests.CorrectPredictions(self._columns, grown, CELL_WEIGHTS))
        self._result.cell_weight = CELL_WEIGHTS[self._budget.select(step, right)]
        self._result.cell_forest = grown if self._result.cell_weight else None
        self._result.decisions.append(f"fine cells, which count {self._result.cell_weight:.0%}")

    # -- what steps share --------------------------------------------------------------------------------------------

    @property
    def _facts(self) -> RowFacts:
        return RowFacts(len(self._columns), self._n_classes, self._residual_limit)

    @property
    def _gradient_norm(self) -> int:
        return gradient_norms(self._n_classes, self._residual_limit)[0]

    def _sum_gradients(self, tables: Sequence[ContingencyTable], fraction: float = 1.0) -> tuple[Ints, float]:
        """Return gradient sums over a random fraction of the rows, and that fraction."""
        question = asked.GradientSums(tables, self._n_classes, self._residual_limit)
        return (self._backend.run(question), 1.0) if fraction >= 1 else self._backend.run_on_sample(question, fraction)

    @property
    def _gradient_variance(self) -> float:
        """Variance of the gradient of a row under the initial scores."""
        return float((self._frequencies * (1 - self._frequencies)).mean()) if self._n_classes else RESIDUAL_VARIANCE

    def _score_tables(self, tables: Sequence[ContingencyTable], row_epsilon: float | None) -> tuple[Ints, float]:
        """Return the score of each candidate table, and the fraction of the rows that it was computed from.

        The score is the L1 norm of the gradient sums minus the part expected from sampling and noise.

        Large tables are scored on a secret random sample.
        """
        some = (
            self._n_rows > 2 * SCORE_SAMPLE_ROWS and not self._budget.servers_draw_noise
        )  # who must all ask about the same rows
        sums, part = self._sum_gradients(tables, SCORE_SAMPLE_ROWS / self._n_rows if some else 1.0)
        sums = np.abs(sums).sum(axis=1)
        sizes = np.array([table.n_cells for table in tables])
        found = np.add.reduceat(sums, np.append(0, np.cumsum(sizes)[:-1]))
        outputs = n_outputs(self._n_classes)
        chance = outputs * np.sqrt(2 / math.pi * self._n_rows * part * sizes * self._gradient_variance)
        noise = (
            0.0
            if row_epsilon is None
            else NOISE_FACTOR * sizes * outputs * self._gradient_norm / GRADIENT_UNITS / row_epsilon
        )
        return found - ((chance + noise * part) * GRADIENT_UNITS).astype(np.int64), part

    def _single_column_tables(self, n_groups: int) -> list[ContingencyTable]:
        return [ContingencyTable((self._group_bounds.make_axis(column, n_groups),)) for column in self._columns]

    def _apply_step(self, table: ContingencyTable, values: Floats, measurement: StepMeasurement, units: int) -> None:
        whole = np.rint(values * units).astype(np.int32)
        self._backend.add_scores(table, whole)
        self._result.steps.append(TableScores(table, whole, measurement))

    # -- tables ------------------------------------------------------------------------------------------------------

    def _measure_tables(self) -> None:
        purse, strengths = self._budget, self._release_strengths()
        if strengths and self._n_rows * purse.row_epsilon_of(purse.remaining) >= strengths.rounds_threshold(
            self._n_classes
        ):
            return
        weight_share = 0.0 if purse.servers_draw_noise else weight_fraction(purse, self._n_rows)
        left = purse.remaining - weight_share
        shape, part = design_tables(self._columns, self._n_classes, self._n_rows, purse, left, strengths)
        if not shape.n_columns:
            self._release_class_counts_only()
            return
        budget = left * part
        end = purse.remaining - budget
        chooses = shape.n_columns < len(self._columns)
        columns = self._select_columns(shape.n_columns, budget * SELECTION_FRACTION) if chooses else self._columns
        self._group_bounds.release_histograms(columns, self._n_classes, purse, self._n_rows, budget)
        tables = []
        for column in columns:
            # Without histograms the number of groups varies at random, so that bounds of columns differ.
            seen = self._group_bounds.has_histogram(column) or shape.bins == GROUP_COUNTS[0]
            n_groups = shape.bins + (0 if seen else int(self._rng.integers(-1, 2)))
            tables.append(ContingencyTable((self._group_bounds.make_axis(column, n_groups, add_scales=False),)))
        tables.sort(key=lambda table: table.n_cells)
        exact = self._backend.run(asked.ClassesByCell(tables, self._n_classes))
        counted = release_tables(purse, [table.n_cells for table in tables], exact, purse.remaining - end, TABLE_STEPS)
        errors = [self._counts_variance, *counted.total_variances]
        totals = pool_class_counts([self._class_counts, *counted.totals], errors, self._declared_rows)
        self._n_rows = float(totals.sum())
        self._start_from_totals(totals)
        believed = []
        for table, counts, variance in zip(tables, counted.counts, counted.variances, strict=True):
            believed.append(shrunken_counts(counts, totals, variance))
            values = log_ratios(believed[-1], totals, variance, len(tables))
            self._apply_step(table, values, StepMeasurement(counts, variance), SCORE_UNITS)
        self._result.n_tables = len(tables)
        asks = weight_share > 0 and has_few_rounds(self._n_rows, purse, left * (1 - part), self._n_classes)
        weight = f", weight {self._weight_tables(weight_share, believed):.2f}" if asks else ""
        names = f"{len(tables)} chosen column{'s' * (len(tables) > 1)}" if chooses else "all columns"
        self._result.decisions.append(f"tables of {names}, {part:.0%} of what was left{weight}")

    def _weight_tables(self, fraction: float, shrunken: Sequence[Floats]) -> float:
        """Measure the common weight of all tables and apply it to their scores."""
        step = plan_sums(self._budget, AdaptiveStep.TABLE_WEIGHT, (1,), fraction, self._facts)
        question = asked.EvidenceGain(self._result.start, self._n_classes, self._residual_limit, MAX_GAIN)
        (gain,) = (self._budget.release_counts(step, self._backend.run(question)) / SCORE_UNITS).tolist()
        steps, noise = self._result.steps, step.variance / SCORE_UNITS**2
        tables = [ShrunkenTable(*one) for one in zip(shrunken, (s.values / SCORE_UNITS for s in steps), strict=True)]
        weight = estimate_weight(gain, noise, self._n_rows, self._result.start / SCORE_UNITS, tables, self._rng)
        for place, (table, values, seen) in enumerate(steps):
            now = np.rint(weight * values).astype(np.int32)
            self._backend.add_scores(table, now - values)
            steps[place] = TableScores(table, now, seen)
        return weight

    def _release_strengths(self) -> ColumnStrengths | None:
        """Measure the best and the mean strength of columns, or the best only; None if the budget is too small."""
        low, high = STRENGTH_FRACTIONS
        shares = [
            (numbers, max(self._budget.fraction_for(needs / self._n_rows), low)) for numbers, needs in STRENGTH_NEED
        ]
        numbers, share = next((one for one in shares if one[1] <= high), (0, 0.0))
        if not numbers:
            return None
        scores, part = self._score_tables(self._single_column_tables(SCORE_GROUPS), None)
        exact = np.stack([scores.max() * len(scores), np.maximum(scores, 0).sum()][:numbers])
        step = plan_sums(self._budget, AdaptiveStep.COLUMN_STRENGTHS, (numbers,), share, self._facts)
        most = (
            float((self._frequencies * (1 - self._frequencies)).sum())
            * (1 if self._n_classes == 2 else 2)
            * len(scores)
        )
        units = GRADIENT_UNITS * self._n_rows * part * most
        best, *mean = (self._budget.release_counts(step, exact) / units).tolist()
        return (
            ColumnStrengths(max(best, *mean), *mean)
            if mean
            else ColumnStrengths(best, best_error=step.variance**0.5 / units)
        )

    def _release_class_counts_only(self) -> None:
        """Spend the remaining budget on class counts, if nothing else would exceed the noise."""
        remaining = self._budget.remaining
        step = plan_sums(self._budget, AdaptiveStep.CLASS_COUNTS_AGAIN, (self._n_classes,), remaining, self._facts)
        again = self._budget.release_counts(step, self._backend.run(asked.ClassCounts(self._n_classes)))
        totals = pool_class_counts(
            [self._class_counts, again], [self._counts_variance, step.variance], self._declared_rows
        )
        self._start_from_totals(totals)
        self._n_rows = float(totals.sum())

    def _select_columns(self, n_columns: int, fraction: float) -> list[BinnedColumn]:
        """Select columns one after the other, by the L1 norm of their gradients under the initial score."""
        scores, free = (
            self._score_tables(self._single_column_tables(SCORE_GROUPS), None)[0],
            np.ones(len(self._columns), bool),
        )
        chosen = []
        for number in range(n_columns):
            part = fraction / n_columns
            step = plan_choice(self._budget, AdaptiveStep.COLUMN_SELECTION, len(scores), part, self._facts, number + 1)
            chosen.append(self._budget.select(step, scores, free))
            free[chosen[-1]] = False
        return [self._columns[place] for place in chosen]

    # -- rounds ------------------------------------------------------------------------------------------------------

    def _run_rounds(self) -> None:
        purse, outputs = self._budget, sensitivity_factor(self._n_classes)
        if purse.remaining <= 0 or self._n_rows * purse.row_epsilon_of(purse.remaining) < MIN_FIRST_ROUND * outputs:
            return
        n_rounds, bins = schedule_rounds(self._n_rows, purse, purse.remaining, outputs)
        pairs: list[tuple[int, ...]] = list(combinations(range(len(self._columns)), 2))
        for number in track_progress(range(n_rounds), "rounds"):
            if (
                not self._n_classes
                and n_rounds >= LIMIT_ROUNDS[0]
                and number in {n_rounds // at for at in LIMIT_ROUNDS}
            ):
                self._update_residual_limit(number, purse.remaining / (n_rounds - number))
            budget = purse.remaining / (n_rounds - number)
            if number >= SHIFT_FROM_ROUND:
                self._group_bounds.shift_bounds(
                    self._rng.uniform(-MAX_BOUND_SHIFT, MAX_BOUND_SHIFT, len(self._columns))
                )
            drawn = self._draw_sets(pairs, MAX_PAIRS) if number >= min(2, n_rounds // 3) else []
            if self._n_rows * purse.row_epsilon_of(budget) / outputs >= TRIPLE_NEED:
                chosen = (step.table.features for step in self._result.steps[self._result.n_tables :])
                drawn += self._draw_sets(extend_pairs(chosen, len(self._columns)), MAX_TRIPLES)
                if number % RANDOM_TRIPLES_EVERY == RANDOM_TRIPLES_EVERY - 1:
                    drawn += random_subsets(3, len(self._columns), MAX_TRIPLES, self._rng)
            self._run_round(number + 1, budget, bins, drawn)
        self._result.decisions.append(f"{n_rounds} round{'s' * (n_rounds > 1)} of up to {bins} groups")

    def _draw_sets(self, sets: list[tuple[int, ...]], max_sets: int) -> list[tuple[int, ...]]:
        return [sets[i] for i in self._rng.choice(len(sets), min(len(sets), max_sets), replace=False)] if sets else []

    def _run_round(self, number: int, budget: float, bins: int, sets: list[tuple[int, ...]]) -> None:
        purse = self._budget
        first = purse.remaining
        candidates = self._candidate_tables(bins, sets)
        chosen = candidates[0]
        if len(candidates) > 1:
            needs = SELECTION_NEED * self._gradient_norm / GRADIENT_UNITS * math.log(len(candidates)) / self._n_rows
            low, high = SELECTION_FRACTIONS
            share = min(max(purse.fraction_for(needs), low * budget), high * budget)
            scores, _ = self._score_tables(candidates, purse.row_epsilon_of(budget - share))
            step = plan_choice(purse, AdaptiveStep.ROUND_SELECTION, len(candidates), share, self._facts, number)
            chosen = candidates[purse.select(step, scores)]
        wanted = groups_per_column(bins, len(chosen.axes))
        axes = []
        for axis in chosen.axes:
            column = self._columns[axis.feature]
            self._group_bounds.release_histogram(column, number, purse, self._n_rows, budget / len(chosen.axes))
            axes.append(
                self._group_bounds.make_axis(column, wanted) if self._group_bounds.has_histogram(column) else axis
            )
        table = ContingencyTable(tuple(axes))
        left = max(budget - (first - purse.remaining), 0.0)
        counting = plan_sums(
            purse, AdaptiveStep.ROUND_ROWS, (table.n_cells,), COUNT_FRACTION * left, self._facts, number
        )
        shape = (table.n_cells, n_outputs(self._n_classes))
        summing = plan_sums(
            purse, AdaptiveStep.ROUND_GRADIENTS, shape, left - COUNT_FRACTION * left, self._facts, number
        )
        counts = purse.release_counts(counting, self._backend.run(asked.RowsByCell(table)))
        sums = purse.release_counts(summing, self._sum_gradients([table])[0]) / GRADIENT_UNITS
        noise, cells = summing.variance / GRADIENT_UNITS**2, self._estimate_cell_rows(table, counts, counting.variance)
        values = newton_step(sums, noise, cells, table, self._n_classes, self._gradient_variance)
        seen = StepMeasurement(
            sums, noise, cells, counting.variance, self._residual_limit / (TARGET_LEVELS * LEVEL_UNITS)
        )
        self._apply_step(table, values, seen, SCORE_UNITS if self._n_classes else self._residual_limit)

    def _candidate_tables(self, bins: int, sets: list[tuple[int, ...]]) -> list[ContingencyTable]:
        alone = self._single_column_tables(bins)
        coarse = {
            size: [
                self._group_bounds.make_axis(column, groups_per_column(bins, size), add_scales=False)
                for column in self._columns
            ]
            for size in {len(columns) for columns in sets}
        }
        together = [ContingencyTable(tuple(coarse[len(columns)][j] for j in columns)) for columns in sets]
        return [*alone, *(table for table in together if table.n_cells <= MAX_SET_CELLS)]

    def _estimate_cell_rows(self, table: ContingencyTable, counts: Floats, variance: float) -> Floats:
        """Return the rows per cell: noisy counts and the product of histograms, weighted by precision."""
        prior: Floats = np.ones(1)
        for axis in table.axes:
            prior = np.outer(prior, self._group_bounds.group_fractions(axis)).ravel()
        prior, even = prior * self._n_rows, self._n_rows / table.n_cells
        away = KNOWN_PRIOR_ERROR if all(map(self._group_bounds.has_histogram, table.axes)) else PRIOR_ERROR
        trust = (away * np.maximum(prior, even / 4)) ** 2
        cells = (trust * counts + variance * prior) / (trust + variance)
        return np.maximum(cells, max(even / 20, 1.0))

    def _update_residual_limit(self, number: int, budget: float) -> None:
        """Lower the limit of residuals to their noisy quantile; it never rises, since residuals shrink."""
        share = min(self._budget.fraction_for(LIMIT_NEED / self._n_rows), LIMIT_FRACTION * budget)
        marks = np.rint(RESIDUAL_MARKS * TARGET_LEVELS * LEVEL_UNITS).astype(np.int64)
        step = plan_sums(self._budget, AdaptiveStep.RESIDUAL_HISTOGRAM, marks.shape, share, self._facts, number + 1)
        seen = self._budget.release_counts(step, self._backend.run(asked.ResidualHistogram(marks)))
        mass = np.cumsum(posterior_counts(seen, np.full(len(marks), 1 / len(marks)), step.variance, self._n_rows))
        mark = marks[np.searchsorted(mass / mass[-1], LIMIT_QUANTILE)]
        self._residual_limit = min(self._residual_limit, round(1.2 * float(mark)))
