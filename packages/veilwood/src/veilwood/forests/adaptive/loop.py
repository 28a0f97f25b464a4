# SPDX-License-Identifier: Apache-2.0
"""Adaptive training loop: initial estimate, tables of class counts, then rounds that select a measurement each.

Every step is planned from values released before it. The first step estimates the number of rows and the initial score
of every row. Tables count the classes by column, for all or selected columns. A round selects the column, pair
or triple that explains most of the residual, measures rows and gradients in its cells, and adds a shrunken update.

Each phase takes a ``Fit``, the fixed inputs, and a ``State``, and returns the next state. Constants called a "need" are
numbers of rows times e, the epsilon per row (``privacy.adaptive_budget``), chosen on the development suite
(benchmarks/suite.py, alternatives in benchmarks/results/constants.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

import numpy as np

from veilwood.arrays import Floats, Int32s, Ints
from veilwood.data.counts import (
    ALL_ROWS,
    Axis,
    ClassesByCell,
    ContingencyTable,
    EvidenceGain,
    GradientSums,
    ResidualHistogram,
    RowBackend,
    RowQuery,
    RowsByCell,
    TableSet,
    TargetSums,
)
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.estimators.method import FitRequest
from veilwood.forests.adaptive import shrinkage, sparse_histogram, table_design
from veilwood.forests.adaptive.contingency import TINY, BinnedColumn
from veilwood.forests.adaptive.effects import StepMeasurement, TableScores
from veilwood.forests.adaptive.row_backend import (
    GRADIENT_UNITS,
    LEVEL_UNITS,
    SCORE_UNITS,
    gradient_norms,
    n_outputs,
    sensitivity_factor,
)
from veilwood.forests.adaptive.steps import (
    CELL_WEIGHTS,
    MAX_GAIN,
    TABLE_STEPS,
    AdaptiveStep,
    RowFacts,
    plan_choice,
    plan_sums,
)
from veilwood.privacy.adaptive_budget import AdaptiveBudget, TableNoise, release_tables
from veilwood.privacy.loss import Loss
from veilwood.privacy.steps import Step
from veilwood.progress import track_progress

# -- the first step and the number of rounds ---------------------------------------------------------------------------

START_FRACTION: Final = 0.05  # fraction of the budget for the first step: n e is then known with a standard error of 28
# Regression: need below which only the mean of the target is measured; otherwise the need of the mean, the limits of
# its fraction of the budget, and an upper bound on the need at the lower limit.
MIN_FOR_ROUND, MEAN_NEED, MEAN_FRACTIONS, MAX_MEAN_NEED = 20.0, 15.0, (0.1, 0.35), 60.0


def plan_first_step(budget: AdaptiveBudget, n_classes: int, n_rows: int | None) -> Step:
    """Plan the first step: class counts, the number of rows or, if that is declared, the target."""
    facts = RowFacts(0, n_classes, GRADIENT_UNITS)
    if n_classes:
        return plan_sums(budget, AdaptiveStep.CLASS_COUNTS, (n_classes,), START_FRACTION, facts)
    if n_rows is None:
        return plan_sums(budget, AdaptiveStep.ROW_COUNT, (1,), START_FRACTION, facts)
    return plan_target_step(budget, float(n_rows))


def plan_target_step(budget: AdaptiveBudget, n_rows: float) -> Step:
    """Plan the mean of a numeric target; with very few rows, spend the whole remaining budget on it."""
    fraction = budget.remaining
    if n_rows * budget.row_epsilon >= MIN_FOR_ROUND:
        low, high = MEAN_FRACTIONS
        low = min(low, budget.fraction_for(MAX_MEAN_NEED / n_rows))
        fraction = min(max(budget.fraction_for(MEAN_NEED / n_rows), low), high)
    return plan_sums(budget, AdaptiveStep.TARGET_SUMS, (2,), fraction, RowFacts(0, 0, GRADIENT_UNITS))


# T rounds have n e = ROUND_NEED T^(1/ROUND_POWER) together; 75 and 150 were worse, and so was a power of 0.75.
ROUND_NEED, ROUND_POWER, MAX_ROUNDS = 300.0, 0.6, 80
ROUND_BINS: Final = (0.35, 3, 16)  # bins per numeric column: exponent of n e of one round, and limits of the number
# Up to this number of rounds, the common weight of tables is measured; more rounds correct the weight themselves.
MAX_FEW_ROUNDS: Final = 3


def schedule_rounds(n_rows: float, budget: AdaptiveBudget, fraction: float, factor: int) -> tuple[int, int]:
    """Return the number of rounds that a fraction of the budget allows, and the bins per numeric column.

    ``factor`` is the ``sensitivity_factor`` of the task.
    """
    t: Floats = np.arange(1.5, MAX_ROUNDS)
    enough = n_rows * budget.row_epsilon_of(fraction / t) / factor >= ROUND_NEED * t ** (1 / ROUND_POWER - 1)
    n_rounds = 1 + int(enough.sum())  # more rounds leave less budget per round, and the need grows
    power, fewest, most = ROUND_BINS
    bins = round((n_rows * budget.row_epsilon_of(fraction / n_rounds) / factor) ** power)
    return n_rounds, min(max(bins, fewest), most)


def has_few_rounds(n_rows: float, budget: AdaptiveBudget, fraction: float, n_classes: int) -> bool:
    """Return True if a fraction of the budget allows at most ``MAX_FEW_ROUNDS`` rounds."""
    if fraction <= 0:
        return True
    return schedule_rounds(n_rows, budget, fraction, sensitivity_factor(n_classes))[0] <= MAX_FEW_ROUNDS


# -- accounting: pure epsilon or zCDP ----------------------------------------------------------------------------------

# From this epsilon per row on, a sparse histogram under pure epsilon is better than rounds under zCDP.
PURE_FROM_ROW_EPSILON: Final = 18.0


def planned_loss(columns: Sequence[BinnedColumn], n_classes: int, n_rows: int | None, request: FitRequest) -> Loss:
    """Return the loss of the fit: pure epsilon if it leaves less noise than zCDP for the expected number of steps.

    If ``n_rows`` is unknown, the accounting is chosen after the first step, and the loss covers both kinds.
    """
    loss = request.loss
    if loss.delta == 0 or loss.epsilon is None:
        return loss
    pure = Loss.pure(loss.epsilon)
    by_epsilon = AdaptiveBudget(pure, request.neighbours)
    if n_rows is None:
        sparse = n_classes and by_epsilon.row_epsilon >= PURE_FROM_ROW_EPSILON
        return pure if sparse else Loss.pure_or_zcdp(loss.epsilon, loss.delta)
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

    For k steps of equal size, zCDP leaves less noise if k is at least the square of the ratio of the epsilons per row
    of the whole budget. Tables with joint noise count as fewer steps. Sparse histograms need pure epsilon.
    """
    if n_classes and pure.row_epsilon >= PURE_FROM_ROW_EPSILON:
        return False
    n_steps: float = schedule_rounds(n_rows, zcdp, zcdp.remaining, sensitivity_factor(n_classes))[0]
    if n_classes:
        design, _ = table_design.design_tables(columns, n_classes, n_rows, pure, pure.remaining)
        n_steps = max(n_steps, design.equivalent_zcdp_steps)
    return n_steps >= (pure.row_epsilon_of(pure.remaining) / zcdp.row_epsilon_of(zcdp.remaining)) ** 2


# -- text for readers of a plan ----------------------------------------------------------------------------------------


def describe(columns: Sequence[BinnedColumn], n_classes: int, n_rows: int, budget: AdaptiveBudget) -> str:
    """Describe what the loop would do at this number of rows."""
    plan_first_step(budget, n_classes, None)
    rows, budget = float(n_rows), with_accounting(columns, n_classes, float(n_rows), budget)
    left, phases = budget.remaining, []
    if n_classes:
        weight_share = table_design.weight_fraction(budget, rows)
        left -= weight_share
        design, part = table_design.design_tables(columns, n_classes, rows, budget, left)
        if not design.n_columns:
            return "too little budget for any column: the model would predict class frequencies"
        which = "all" if design.n_columns == len(columns) else f"{design.n_columns} privately selected columns of the"
        fewer = table_design.may_be_dominant(columns, budget, rows * budget.row_epsilon_of(left))
        weighted = weight_share and has_few_rounds(rows, budget, left * (1 - part), n_classes)
        paired = table_design.may_be_paired(columns, n_classes)
        phases.append(
            f"class counts of {which} {len(columns)} columns{', in pairs if cells have enough rows,' if paired else ''}"
            f"{', or of fewer if one column is strong,' if fewer else ''} ({100 * part:.0f} % of the remaining budget)"
            f"{', and one common weight for these tables' if weighted else ''}"
        )
        left *= 1 - part
    elif rows * budget.row_epsilon < MIN_FOR_ROUND:
        return "too little budget for any column: the model would predict the mean of the target"
    if left > 0:
        n_rounds, bins = schedule_rounds(rows, budget, left, sensitivity_factor(n_classes))
        rounds, what = "1 round, which" if n_rounds == 1 else f"{n_rounds} rounds; each", "column or pair"
        if not n_classes and rows * budget.row_epsilon_of(left / n_rounds) < MIN_FOR_FINE_ROUNDS:
            what, bins = "column", COARSE_GROUPS
        phases.append(
            f"{rounds} selects a {what} by its residual gain and measures it, with up to {bins} bins per numeric column"
        )
    return "; then ".join(phases)


# -- fit and state -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fit:
    """Fixed inputs of the loop. ``n_classes`` is 0 for regression; ``rng`` is public randomness."""

    columns: Sequence[BinnedColumn]
    n_classes: int
    backend: RowBackend
    budget: AdaptiveBudget
    rng: np.random.Generator
    n_jobs: int | None = None

    def with_accounting(self, n_rows: float) -> Fit:
        """Return the fit with its budget under the accounting that leaves less noise at this number of rows."""
        return replace(self, budget=with_accounting(self.columns, self.n_classes, n_rows, self.budget))


@dataclass(frozen=True, eq=False)
class State:
    """Public state of the loop: released values and their consequences. Scores are integers (``row_backend``)."""

    n_rows: float
    declared_rows: int | None
    """``n_rows`` as declared by the user; None if not declared, or if the noisy count contradicts it."""
    start: Int32s
    """Initial score of every row."""
    class_counts: Floats
    counts_variance: float = 0.0
    """Noisy class counts of the first step, and the variance of their noise."""
    frequencies: Floats = field(default_factory=lambda: np.ones(1))
    """Estimated class frequencies."""
    start_limit: int = GRADIENT_UNITS
    residual_limit: int = GRADIENT_UNITS
    """Limits of the gradient of a row: after the first step, and at present."""
    residual_variance: float = 0.2
    """Regression: variance of the gradient of a row, assumed until it is estimated."""
    bounds: table_design.GroupBounds = field(default_factory=table_design.GroupBounds)
    steps: tuple[TableScores, ...] = ()
    n_tables: int = 0
    """Score updates so far; the first ``n_tables`` come from tables of class counts."""
    decisions: tuple[str, ...] = ()
    """Decisions determined by released values, as text."""
    holdout_budget: float = 0.0
    """Fraction of the budget for the weight of the sparse histogram; 0 if no rows are held out."""
    cell_forest: sparse_histogram.FittedForest | None = None
    cell_weight: float = 0.0

    @property
    def even_rows(self) -> float:
        """Equally informative number of rows with even classes: 784 for 10,000 rows with 2 % positives."""
        impurity, n_classes = float((self.frequencies * (1 - self.frequencies)).sum()), self.class_counts.size
        return self.n_rows * impurity / (1 - 1 / n_classes) if n_classes else self.n_rows

    def with_decision(self, text: str) -> State:
        """Return the state with one more decision."""
        return replace(self, decisions=(*self.decisions, text))


def run_loop(fit: Fit, declared_rows: int | None) -> State:
    """Run all steps and return the released state."""
    if fit.n_classes:
        fit, state = start_classification(fit, declared_rows)
        if _may_hold_out(fit, state):
            state = hold_out_rows(fit, state)
        state = measure_tables(fit, state)
    else:
        fit, state = start_regression(fit, declared_rows)
    state = run_rounds(fit, state)
    return try_sparse_histogram(fit, state) if state.holdout_budget else state


def _facts(fit: Fit, state: State) -> RowFacts:
    return RowFacts(len(fit.columns), fit.n_classes, state.residual_limit)


def _measure(
    fit: Fit, state: State, kind: AdaptiveStep, query: RowQuery, shape: tuple[int, ...], fraction: float,
    *at: int,
) -> tuple[Floats, float]:  # fmt: skip
    """Release the noisy sums of a query. Return them and the variance of their noise."""
    step = plan_sums(fit.budget, kind, shape, fraction, _facts(fit, state), *at)
    return fit.budget.release_counts(step, fit.backend.run(query).reshape(shape)), step.variance


def _gradient_sums(fit: Fit, state: State, tables: Sequence[ContingencyTable]) -> GradientSums:
    return GradientSums(tables, fit.n_classes, state.residual_limit)


def _with_start(fit: Fit, state: State, start: Int32s) -> State:
    """Set the initial score of every row."""
    fit.backend.add_scores(ALL_ROWS, (start - state.start)[None])
    return replace(state, start=start)


def _with_totals(fit: Fit, state: State, totals: Floats) -> State:
    """Set the initial score from class totals, and the limit of gradients from the largest total."""
    frequencies, limit = totals / totals.sum(), state.residual_limit
    if fit.n_classes == 2:
        limit = min(GRADIENT_UNITS, int(GRADIENT_UNITS * (float(frequencies.max()) + GRADIENT_MARGIN)))
    state = replace(state, frequencies=frequencies, residual_limit=limit)
    return _with_start(fit, state, shrinkage.initial_scores(totals))


def _with_step(
    fit: Fit, state: State, table: ContingencyTable, values: Floats, measurement: StepMeasurement, units: int
) -> State:
    """Add the values of a table to the scores of the rows; ``units`` converts the values to integers."""
    scores = np.rint(values * units).astype(np.int32)
    fit.backend.add_scores(table, scores)
    return replace(state, steps=(*state.steps, TableScores(table, scores, measurement)))


# -- start -------------------------------------------------------------------------------------------------------------

MIN_ROWS: Final = 10.0  # smallest estimate of the number of rows
# If n_rows exceeds DECLARED_FACTOR times the upper confidence limit of the noisy count, use the count. The limit is
# COUNT_ERRORS standard errors above it.
DECLARED_FACTOR, COUNT_ERRORS = 4.0, 3.0
GRADIENT_MARGIN: Final = 0.1  # limit of binary gradients above the frequency of the larger class


def start_classification(fit: Fit, declared_rows: int | None) -> tuple[Fit, State]:
    """Release the class counts, and choose the accounting if the number of rows was not declared."""
    step = plan_first_step(fit.budget, fit.n_classes, declared_rows)
    counts = fit.budget.release_counts(step, fit.backend.run(ClassesByCell([ALL_ROWS], fit.n_classes))[0])
    counted = max(float(counts.sum()), MIN_ROWS, 1 / fit.budget.row_epsilon)
    error, was_declared = (fit.n_classes * step.variance) ** 0.5, declared_rows is not None
    if declared_rows and declared_rows > DECLARED_FACTOR * (counted + COUNT_ERRORS * error):
        declared_rows, counted = None, counted + error  # n_rows is far above the noisy count
    n_rows = float(declared_rows or counted)
    if not was_declared:
        fit = fit.with_accounting(n_rows)
    start = np.zeros(n_outputs(fit.n_classes), np.int32)
    state = State(n_rows, declared_rows, start, counts, step.variance)
    state = _with_totals(fit, state, shrinkage.pool_class_counts([counts], [step.variance], n_rows))
    return fit, replace(state, start_limit=state.residual_limit)


# Regression: need from which rounds are as fine as in classification, and the clipping bound of residuals is estimated;
# below this need, the clipping bound, the groups per numeric column, and the selection's fraction of a coarse round.
MIN_FOR_FINE_ROUNDS, FIRST_LIMIT, COARSE_GROUPS, COARSE_SELECTION = 220.0, 0.2, 4, 0.25


def start_regression(fit: Fit, declared_rows: int | None) -> tuple[Fit, State]:
    """Release the mean of the target, the spread of residuals and, if it was not declared, the number of rows."""
    counted, variance = float(declared_rows or 0), 0.0
    n_rows = counted
    if declared_rows is None:
        step = plan_first_step(fit.budget, 0, None)
        counted = float(fit.budget.release_counts(step, fit.backend.run(RowsByCell(ALL_ROWS)))[0])
        n_rows, variance = max(counted, MIN_ROWS, 1 / fit.budget.row_epsilon), step.variance
        fit = fit.with_accounting(n_rows)
    step, levels = plan_target_step(fit.budget, n_rows), TARGET_LEVELS * LEVEL_UNITS
    up, down = fit.budget.release_counts(step, fit.backend.run(TargetSums())) / TARGET_LEVELS
    noise = 2 * step.variance / TARGET_LEVELS**2  # variances of the noise on the sum and on the difference of the pair
    pooled = (noise * counted + variance * (up + down)) / (noise + variance) if noise else up + down
    n_rows = max(pooled, up + down - COUNT_ERRORS * noise**0.5, MIN_ROWS)
    if declared_rows and n_rows > DECLARED_FACTOR * max(up + down + COUNT_ERRORS * noise**0.5, MIN_ROWS):
        n_rows = max(up + down, MIN_ROWS) + noise**0.5  # n_rows is far above the noisy count
    mean = shrinkage.shrunken_mean(up - down, noise, n_rows)
    limit = round(FIRST_LIMIT * levels)
    state = State(n_rows, declared_rows, np.zeros(1, np.int32), np.zeros(0), residual_limit=limit)
    state = _with_start(fit, state, np.array([round(mean * levels)], np.int32))
    low, high = SPREAD_FRACTIONS
    # The step above spends the whole budget if the first count was far too small.
    if n_rows * fit.budget.row_epsilon >= MIN_FOR_FINE_ROUNDS and fit.budget.remaining >= low:
        fraction = min(max(fit.budget.fraction_for(SPREAD_NEED / n_rows), low), high)
        spread = _measure_residuals(fit, state, 1, fraction)
        # The mean of the target and the middle of clipped residuals are combined by their precision.
        error = noise / (2 * n_rows) ** 2
        moved = spread.middle * error / max(error + spread.variance, TINY)
        state = _with_start(fit, state, state.start + np.int32(round(moved * levels)))
        state = replace(state, residual_limit=round(spread.limit * levels), residual_variance=spread.gradient_variance)
    return fit, state


# -- scores of candidate tables ----------------------------------------------------------------------------------------

# Size of the sample that scores large candidate tables: minimum number of rows, and n e of the whole budget. So k equal
# rows at epsilon are scored like one row at epsilon / k.
SCORE_SAMPLE_ROWS, SCORE_SAMPLE_NEED = 1 << 16, 100_000.0
NOISE_FACTOR: Final = 0.8  # expected absolute noise on a sum, in multiples of the noise scale


def _gradient_variance(fit: Fit, state: State) -> float:
    """Return a row's gradient variance: under the initial scores (classification) or as last measured (regression)."""
    return float((state.frequencies * (1 - state.frequencies)).mean()) if fit.n_classes else state.residual_variance


def _score_tables(fit: Fit, state: State, tables: TableSet, row_epsilon: float | None) -> tuple[Ints, float]:
    """Return the score of each candidate table, and the fraction of the rows from which the scores were computed.

    The score is the L1 norm of the gradient sums minus the part expected from sampling and noise. Large tables are
    scored on a secret random sample.
    """
    query, part = _gradient_sums(fit, state, tables), 1.0
    sampled = max(SCORE_SAMPLE_ROWS, SCORE_SAMPLE_NEED / fit.budget.row_epsilon)
    if state.n_rows > 2 * sampled:
        sums, part = fit.backend.run_on_sample(query, sampled / state.n_rows)
    else:
        sums = fit.backend.run(query)
    sums = np.abs(sums).sum(axis=1)
    sizes, outputs = tables.sizes, n_outputs(fit.n_classes)
    norms = np.add.reduceat(sums, np.append(0, np.cumsum(sizes)[:-1]))
    expected = outputs * np.sqrt(2 / math.pi * state.n_rows * part * sizes * _gradient_variance(fit, state))
    if row_epsilon is not None:
        norm = gradient_norms(fit.n_classes, state.residual_limit)[0]
        expected = expected + NOISE_FACTOR * sizes * outputs * norm / GRADIENT_UNITS / row_epsilon * part
    return norms - (expected * GRADIENT_UNITS).astype(np.int64), part


def _single_column_tables(fit: Fit, state: State, n_groups: int) -> TableSet:
    return _tables_of_columns([state.bounds.make_axis(column, n_groups) for column in fit.columns])


def _tables_of_columns(axes: Sequence[Axis]) -> TableSet:
    return TableSet(tuple(axes), np.arange(len(axes), dtype=np.int32)[:, None])


# -- tables ------------------------------------------------------------------------------------------------------------


def measure_tables(fit: Fit, state: State) -> State:
    """Release class counts by column, for all columns or for selected ones, and add their log-ratios to the scores."""
    budget, strengths = fit.budget, release_strengths(fit, state)
    row_budget = state.n_rows * budget.row_epsilon_of(budget.remaining)
    if strengths and row_budget >= strengths.rounds_threshold(fit.n_classes):
        return state
    weight_share = table_design.weight_fraction(budget, state.n_rows)
    left = budget.remaining - weight_share
    design, part = table_design.design_tables(fit.columns, fit.n_classes, state.even_rows, budget, left, strengths)
    if not design.n_columns:
        return release_class_counts_only(fit, state)
    fraction = left * part
    end, selects = budget.remaining - fraction, design.n_columns < len(fit.columns)
    columns = fit.columns
    if selects:
        columns = _select_columns(fit, state, design.n_columns, fraction * table_design.SELECTION_FRACTION)
    bounds = state.bounds.release_histograms(columns, fit.n_classes, fit.backend, budget, state.n_rows, fraction)
    tables = []
    for column in columns:
        # Without histograms, the number of groups varies at random, so that the group bounds of columns differ.
        known = bounds.has_histogram(column) or design.bins == table_design.GROUP_COUNTS[0]
        n_groups = design.bins + (0 if known else int(fit.rng.integers(-1, 2)))
        tables.append(ContingencyTable((bounds.make_axis(column, n_groups, add_scales=False),)))
    if table_design.may_be_paired(columns, fit.n_classes):
        shuffled = [columns[place] for place in fit.rng.permutation(len(columns)).tolist()]
        class_rows, row_epsilon = state.n_rows / fit.n_classes, budget.row_epsilon_of(budget.remaining - end)
        noise = TableNoise.from_budget(budget)
        tables = table_design.pair_tables(shuffled, bounds, design.bins, class_rows, noise, row_epsilon) or tables
    tables.sort(key=lambda table: table.n_cells)
    exact = fit.backend.run(ClassesByCell(tables, fit.n_classes))
    counted = release_tables(budget, [table.n_cells for table in tables], exact, budget.remaining - end, TABLE_STEPS)
    variances = [state.counts_variance, *counted.total_variances]
    totals = shrinkage.pool_class_counts([state.class_counts, *counted.totals], variances, state.declared_rows)
    state = _with_totals(fit, replace(state, bounds=bounds, n_rows=float(totals.sum())), totals)
    shrunken = []
    for table, counts, variance in zip(tables, counted.counts, counted.variances, strict=True):
        shrunken.append(shrinkage.shrunken_counts(counts, totals, variance))
        values = shrinkage.log_ratios(shrunken[-1], totals, variance, len(tables))
        state = _with_step(fit, state, table, values, StepMeasurement(counts, variance), SCORE_UNITS)
    state, text = replace(state, n_tables=len(tables)), ""
    if weight_share > 0 and has_few_rounds(state.n_rows, budget, left * (1 - part), fit.n_classes):
        state, weight = _weight_tables(fit, state, weight_share, shrunken)
        text = f", common weight {weight:.2f}"
    which = f"{len(columns)} selected column{'s' * (len(columns) > 1)}" if selects else "all columns"
    which += " in pairs" * (len(tables) < len(columns))
    return state.with_decision(f"class counts of {which} ({100 * part:.0f} % of the remaining budget){text}")


def _weight_tables(fit: Fit, state: State, fraction: float, shrunken: Sequence[Floats]) -> tuple[State, float]:
    """Measure the common weight of all tables and apply it to their scores."""
    query = EvidenceGain(state.start, fit.n_classes, state.residual_limit, MAX_GAIN)
    sums, variance = _measure(fit, state, AdaptiveStep.TABLE_WEIGHT, query, (1,), fraction)
    (gain,) = (sums / SCORE_UNITS).tolist()
    scores = (step.values / SCORE_UNITS for step in state.steps)
    tables = [table_design.ShrunkenTable(*each) for each in zip(shrunken, scores, strict=True)]
    weight = table_design.estimate_weight(
        gain, variance / SCORE_UNITS**2, state.n_rows, state.start / SCORE_UNITS, tables, fit.rng
    )
    steps = []
    for step in state.steps:
        weighted = np.rint(weight * step.values).astype(np.int32)
        fit.backend.add_scores(step.table, weighted - step.values)
        steps.append(step._replace(values=weighted))
    return replace(state, steps=tuple(steps)), weight


# Strengths of columns (``table_design``): which strengths are measured and their need, for standard errors of 0.025,
# 0.05 and 0.1; limits of their fraction of the budget.
STRENGTH_NEED, STRENGTH_FRACTIONS = ((2, 120.0), (1, 32.0), (1, 16.0)), (0.01, 0.1)


def release_strengths(fit: Fit, state: State) -> table_design.ColumnStrengths | None:
    """Release the best and the mean strength of columns, or the best only; return None if the budget is too small."""
    low, high = STRENGTH_FRACTIONS
    options = [(n, max(fit.budget.fraction_for(need / state.even_rows), low)) for n, need in STRENGTH_NEED]
    n_strengths, fraction = next((option for option in options if option[1] <= high), (0, 0.0))
    if not n_strengths:
        return None
    scores, part = _score_tables(fit, state, _single_column_tables(fit, state, table_design.SCORE_GROUPS), None)
    exact = np.stack([scores.max() * len(scores), np.maximum(scores, 0).sum()][:n_strengths])
    step = plan_sums(fit.budget, AdaptiveStep.COLUMN_STRENGTHS, (n_strengths,), fraction, _facts(fit, state))
    impurity = float((state.frequencies * (1 - state.frequencies)).sum())
    most = impurity * (1 if fit.n_classes == 2 else 2) * len(scores)
    units = GRADIENT_UNITS * state.n_rows * part * most
    best, *mean = (fit.budget.release_counts(step, exact) / units).tolist()
    if mean:
        return table_design.ColumnStrengths(max(best, *mean), *mean)
    return table_design.ColumnStrengths(best, best_error=step.variance**0.5 / units)


def release_class_counts_only(fit: Fit, state: State) -> State:
    """Spend the remaining budget on class counts if every other measurement would be dominated by noise."""
    shape, query = (fit.n_classes,), ClassesByCell([ALL_ROWS], fit.n_classes)
    again, variance = _measure(fit, state, AdaptiveStep.CLASS_COUNTS_AGAIN, query, shape, fit.budget.remaining)
    counts, variances = [state.class_counts, again], [state.counts_variance, variance]
    totals = shrinkage.pool_class_counts(counts, variances, state.declared_rows)
    return replace(_with_totals(fit, state, totals), n_rows=float(totals.sum()))


def _select_columns(fit: Fit, state: State, n_columns: int, fraction: float) -> list[BinnedColumn]:
    """Select columns one after the other, by the L1 norm of their gradients under the initial score."""
    scores, _ = _score_tables(fit, state, _single_column_tables(fit, state, table_design.SCORE_GROUPS), None)
    allowed, chosen, part = np.ones(len(fit.columns), bool), [], fraction / n_columns
    for number in range(1, n_columns + 1):
        kind, facts = AdaptiveStep.COLUMN_SELECTION, _facts(fit, state)
        step = plan_choice(fit.budget, kind, len(scores), part, facts, number)
        chosen.append(fit.budget.select(step, scores, allowed))
        allowed[chosen[-1]] = False
    return [fit.columns[index] for index in chosen]


# -- rounds ------------------------------------------------------------------------------------------------------------

# Need of the first round, in classification and in regression. After tables, ``design_tables`` requires more; the
# budget that it left for rounds is spent on rounds even if the number of rows has been corrected since.
MIN_FIRST_ROUND, MIN_COARSE_ROUND = 30.0, 10.0
# Largest numbers of drawn pairs and triples per round, need of triples, and cells of a candidate table.
MAX_PAIRS, MAX_TRIPLES, TRIPLE_NEED, MAX_SET_CELLS = 200, 200, 1000.0, 64
# Sets of three or more columns are candidates in every round if they have few cells: minimum of rows times e per cell,
# and number of sets drawn.
ROWS_PER_SET_CELL, MAX_SMALL_SETS = 16.0, 20
# Random triples are candidates in every fourth round only: in the selection they compete with pairs.
RANDOM_TRIPLES_EVERY: Final = 4
# From round SHIFT_FROM_ROUND (0-based) on, group bounds from histograms are shifted at random by up to MAX_BOUND_SHIFT
# groups, so that many rounds together have a finer resolution than one.
MAX_BOUND_SHIFT, SHIFT_FROM_ROUND = 0.5, 2


def run_rounds(fit: Fit, state: State) -> State:
    """Run the rounds that the remaining budget allows."""
    budget, factor = fit.budget, sensitivity_factor(fit.n_classes)
    least = MIN_FIRST_ROUND * factor if fit.n_classes else MIN_COARSE_ROUND
    if budget.remaining <= 0 or state.n_rows * budget.row_epsilon_of(budget.remaining) < least:
        return state
    n_rounds, bins = schedule_rounds(state.even_rows, budget, budget.remaining, factor)
    pairs: list[tuple[int, ...]] = list(combinations(range(len(fit.columns)), 2))
    limit_rounds = {n_rounds // part for part in LIMIT_ROUNDS} if n_rounds >= LIMIT_ROUNDS[0] else set()
    for number in track_progress(range(n_rounds), "rounds"):
        if not fit.n_classes and number in limit_rounds:
            most_fraction = MAX_SPREAD_FRACTION * budget.remaining / (n_rounds - number)
            part = min(budget.fraction_for(SPREAD_NEED / state.n_rows), most_fraction)
            most = state.residual_limit / (TARGET_LEVELS * LEVEL_UNITS)  # residuals shrink
            spread = _measure_residuals(fit, state, number + 1, part, most)
            limit = round(spread.limit * TARGET_LEVELS * LEVEL_UNITS)
            state = replace(state, residual_limit=limit, residual_variance=spread.gradient_variance)
        fraction = budget.remaining / (n_rounds - number)
        if number >= SHIFT_FROM_ROUND:
            shift = fit.rng.uniform(-MAX_BOUND_SHIFT, MAX_BOUND_SHIFT, len(fit.columns))
            state = replace(state, bounds=replace(state.bounds, shift=shift))
        sets = _draw_sets(fit, pairs, MAX_PAIRS) if number >= min(2, n_rounds // 3) else []
        row_budget = state.n_rows * budget.row_epsilon_of(fraction) / factor
        if row_budget >= TRIPLE_NEED:
            sets += _draw_triples(fit, state, number)
        if sets:
            sets += _draw_small_sets(fit, state, row_budget / ROWS_PER_SET_CELL)
        state = _run_round(fit, state, number + 1, fraction, bins, sets)
    text = f"{n_rounds} round{'s' * (n_rounds > 1)} with up to {bins} bins per numeric column"
    return state.with_decision(text)


def _draw_triples(fit: Fit, state: State, number: int) -> list[tuple[int, ...]]:
    """Draw extensions of measured pairs and, in some rounds, random triples."""
    measured = (step.table.features for step in state.steps[state.n_tables :])
    triples = _draw_sets(fit, table_design.extend_pairs(measured, len(fit.columns)), MAX_TRIPLES)
    if number % RANDOM_TRIPLES_EVERY == RANDOM_TRIPLES_EVERY - 1:
        triples += table_design.random_subsets(3, len(fit.columns), MAX_TRIPLES, fit.rng)
    return triples


def _draw_small_sets(fit: Fit, state: State, max_cells: float) -> list[tuple[int, ...]]:
    """Draw sets of three or more columns with few cells, and add the sets that were measured before."""
    most = min(max_cells, MAX_SET_CELLS)
    sets = table_design.small_sets(fit.columns, most, MAX_SMALL_SETS, fit.rng)
    measured = {tuple(sorted(step.table.features)) for step in state.steps[state.n_tables :]}
    return sorted({*sets, *(columns for columns in measured if len(columns) > 2)})


def _draw_sets(fit: Fit, sets: list[tuple[int, ...]], max_sets: int) -> list[tuple[int, ...]]:
    return [sets[i] for i in fit.rng.choice(len(sets), min(len(sets), max_sets), replace=False)] if sets else []


# Need of a selection, per logarithm of the number of candidates, and limits of its fraction of a round.
SELECTION_NEED, SELECTION_FRACTIONS = 30.0, (0.2, 0.35)
# Fraction of a round for the row counts of cells; relative standard deviation of these counts from the product of
# histograms, if a column has no histogram and if all columns have one.
COUNT_FRACTION, PRIOR_ERROR, KNOWN_PRIOR_ERROR = 0.25, 1.0, 0.25


def _run_round(fit: Fit, state: State, number: int, fraction: float, bins: int, sets: list[tuple[int, ...]]) -> State:
    """Select a table, measure rows and gradients in its cells, and add a shrunken update to the scores."""
    budget, before = fit.budget, fit.budget.remaining
    coarse = not fit.n_classes and state.n_rows * budget.row_epsilon_of(fraction) < MIN_FOR_FINE_ROUNDS
    candidates = _coarse_tables(fit) if coarse else _candidate_tables(fit, state, bins, sets)
    table = _select_table(fit, state, candidates, number, fraction, COARSE_SELECTION if coarse else None)
    if not coarse:
        state, table = _refine_table(fit, state, table, number, fraction, bins)
    left = max(fraction - (before - budget.remaining), 0.0)
    if fit.n_classes or budget.uses_gaussian:
        sums, noise, counts, variance = _measure_apart(fit, state, table, number, left)
    else:
        sums, noise, counts, variance = _measure_pairs(fit, state, table, number, left)
    cells = _cell_rows(state, table, counts, variance)
    spread, scores_per_gradient = _gradient_variance(fit, state), state.residual_limit / (TARGET_LEVELS * LEVEL_UNITS)
    if fit.n_classes:
        values = shrinkage.newton_step(sums, noise, cells, table, spread, state.frequencies)
    else:
        values = shrinkage.posterior_means(sums, noise, cells, table, spread)
    measurement = StepMeasurement(sums, noise, cells, variance, scores_per_gradient, spread)
    return _with_step(fit, state, table, values, measurement, SCORE_UNITS if fit.n_classes else state.residual_limit)


def _refine_table(
    fit: Fit, state: State, table: ContingencyTable, number: int, fraction: float, bins: int
) -> tuple[State, ContingencyTable]:
    """Release histograms of the columns of a table if they are precise enough, and group the columns by them."""
    n_groups, part = table_design.groups_per_column(bins, len(table.axes)), fraction / len(table.axes)
    axes = []
    for axis in table.axes:
        column = fit.columns[axis.feature]
        bounds = state.bounds.release_histogram(column, number, fit.backend, fit.budget, state.n_rows, part)
        state = replace(state, bounds=bounds)
        axes.append(bounds.make_axis(column, n_groups) if bounds.has_histogram(column) else axis)
    return state, ContingencyTable(tuple(axes))


def _measure_apart(
    fit: Fit, state: State, table: ContingencyTable, number: int, fraction: float
) -> tuple[Floats, float, Floats, float]:
    """Measure gradients and row counts of cells in separate steps. Return both, each followed by its noise variance."""
    by_rows, outputs = COUNT_FRACTION * fraction, n_outputs(fit.n_classes)
    facts, kind = _facts(fit, state), AdaptiveStep.ROUND_GRADIENTS
    rows, gradients = fit.backend.run_together([RowsByCell(table), _gradient_sums(fit, state, [table])])
    step = plan_sums(fit.budget, AdaptiveStep.ROUND_ROWS, (table.n_cells,), by_rows, facts, number)
    counts, variance = fit.budget.release_counts(step, rows), step.variance
    step = plan_sums(fit.budget, kind, (table.n_cells, outputs), fraction - by_rows, facts, number)
    sums, noise = fit.budget.release_counts(step, gradients), step.variance
    return sums / GRADIENT_UNITS, noise / GRADIENT_UNITS**2, counts, variance


def _measure_pairs(
    fit: Fit, state: State, table: ContingencyTable, number: int, fraction: float
) -> tuple[Floats, float, Floats, float]:
    """Measure residuals and row counts of cells in one step. Return the same values as ``_measure_apart``.

    At the same privacy loss, residuals have 12 % more variance than with a separate count of rows, and row counts have
    an eighth of the variance.
    """
    kind, facts = AdaptiveStep.ROUND_PAIRS, _facts(fit, state)
    step = plan_sums(fit.budget, kind, (table.n_cells, 2), fraction, facts, number)
    rows, sums = fit.backend.run_together([RowsByCell(table), _gradient_sums(fit, state, [table])])
    seen = fit.budget.release_counts(step, rotate_sums(rows, sums)) / (2 * GRADIENT_UNITS)
    variance = 2 * step.variance / (2 * GRADIENT_UNITS) ** 2
    return seen[:, :1] - seen[:, 1:], variance, seen.sum(axis=1), variance


def rotate_sums(rows: Ints, sums: Ints) -> Ints:
    """Return Q rows + sums and Q rows - sums of each cell: a row with gradient g adds Q + g and Q - g, together 2Q."""
    return np.stack([GRADIENT_UNITS * rows + sums.ravel(), GRADIENT_UNITS * rows - sums.ravel()], axis=1)


def _select_table(
    fit: Fit, state: State, candidates: TableSet, number: int, fraction: float,
    selection: float | None = None,
) -> ContingencyTable:  # fmt: skip
    """Select the table whose gradients exceed what sampling and noise explain by the most.

    ``selection`` is the fraction of the round's budget for the choice. By default it follows from the number of
    candidates.
    """
    if len(candidates) == 1:
        return candidates[0]
    norm = gradient_norms(fit.n_classes, state.residual_limit)[0]
    need = SELECTION_NEED * norm / GRADIENT_UNITS * math.log(len(candidates)) / state.n_rows
    low, high = SELECTION_FRACTIONS if selection is None else (selection, selection)
    part = min(max(fit.budget.fraction_for(need), low * fraction), high * fraction)
    scores, _ = _score_tables(fit, state, candidates, fit.budget.row_epsilon_of(fraction - part))
    kind = AdaptiveStep.ROUND_SELECTION
    step = plan_choice(fit.budget, kind, len(candidates), part, _facts(fit, state), number)
    return candidates[fit.budget.select(step, scores)]


def _coarse_tables(fit: Fit) -> TableSet:
    """Return the table of each column in few groups of equal prior mass."""
    return _tables_of_columns([column.equal_mass_groups(column.prior, COARSE_GROUPS) for column in fit.columns])


def _candidate_tables(fit: Fit, state: State, bins: int, sets: list[tuple[int, ...]]) -> TableSet:
    """Return the table of each column and, unless it has too many cells, of each set of columns."""
    singles, n_columns = _single_column_tables(fit, state, bins), len(fit.columns)
    axes, lengths = list(singles.axes), np.array([len(columns) for columns in sets], np.int64)
    members = np.full((len(sets), max(lengths, default=1)), -1, np.int32)
    for size in np.unique(lengths).tolist():
        n_groups = table_design.groups_per_column(bins, size)
        members[lengths == size, :size] = len(axes) + np.array([columns for columns in sets if len(columns) == size])
        axes += [state.bounds.make_axis(column, n_groups, add_scales=False) for column in fit.columns]
    members = members[TableSet(tuple(axes), members).sizes <= MAX_SET_CELLS]
    alone = np.full((n_columns, members.shape[1]), -1, np.int32)
    alone[:, 0] = np.arange(n_columns)
    return TableSet(tuple(axes), np.concatenate([alone, members]))


def _cell_rows(state: State, table: ContingencyTable, counts: Floats, variance: float) -> Floats:
    """Return estimated rows per cell: the precision-weighted mean of noisy counts and the product of histograms."""
    prior: Floats = np.ones(1)
    for axis in table.axes:
        prior = np.outer(prior, state.bounds.group_fractions(axis)).ravel()
    prior, even = prior * state.n_rows, state.n_rows / table.n_cells
    away = KNOWN_PRIOR_ERROR if all(map(state.bounds.has_histogram, table.axes)) else PRIOR_ERROR
    prior_variance = (away * np.maximum(prior, even / 4)) ** 2
    cells = (prior_variance * counts + variance * prior) / (prior_variance + variance)
    return np.maximum(cells, max(even / 20, 1.0))


# Regression: need of the histogram of residuals, limits of its fraction of the budget at the start, and of a round's
# budget later. With n rounds it is repeated before rounds n // 4 and n // 2 (0-based).
SPREAD_NEED, SPREAD_FRACTIONS, MAX_SPREAD_FRACTION, LIMIT_ROUNDS = 120.0, (0.02, 0.12), 0.5, (4, 2)
GRADIENT_FRACTION: Final = 0.7  # minimum fraction of a round that remains for gradients


def _measure_residuals(
    fit: Fit, state: State, number: int, fraction: float, max_limit: float = 1.0
) -> shrinkage.ResidualSpread:
    """Release a histogram of residuals, and choose the clipping bound of residuals for the remaining rounds."""
    marks = np.rint(shrinkage.RESIDUAL_ENDS * TARGET_LEVELS * LEVEL_UNITS).astype(np.int64)
    kind, query = AdaptiveStep.RESIDUAL_HISTOGRAM, ResidualHistogram(marks)
    counts, variance = _measure(fit, state, kind, query, marks.shape, fraction, number)
    n_rounds, bins = schedule_rounds(state.n_rows, fit.budget, fit.budget.remaining, 1)
    row_budget = state.n_rows * fit.budget.row_epsilon_of(fit.budget.remaining / n_rounds)
    noise_risk = n_rounds * (2 * bins / (GRADIENT_FRACTION * row_budget)) ** 2
    return shrinkage.limit_residuals(counts, variance, state.n_rows, noise_risk, max_limit)


# -- sparse histogram, for large budgets -------------------------------------------------------------------------------

# Fraction of the rows that is held out to select the weight of the sparse histogram, need of the selection, limits of
# its fraction of the budget.
HOLDOUT_FRACTION, HOLDOUT_NEED, HOLDOUT_BUDGETS = 0.1, 40.0, (0.01, 0.1)


def _may_hold_out(fit: Fit, state: State) -> bool:
    """Return True if a sparse histogram may improve the model and the backend can hold out rows to evaluate it."""
    if fit.budget.uses_gaussian or not fit.backend.supports_holdout:
        return False
    return sparse_histogram.is_worth_trying(fit.columns, fit.n_classes, state.n_rows, fit.budget.row_epsilon)


def hold_out_rows(fit: Fit, state: State) -> State:
    """Hold out rows and earmark budget for the sparse histogram; the loop continues without both."""
    fit.backend.hold_out(HOLDOUT_FRACTION)
    (low, high), kept = HOLDOUT_BUDGETS, 1 - HOLDOUT_FRACTION
    fraction = min(max(fit.budget.fraction_for(HOLDOUT_NEED / (HOLDOUT_FRACTION * state.n_rows)), low), high)
    fit.budget.earmark(sparse_histogram.CELL_FRACTION + fraction)
    declared = None if state.declared_rows is None else max(1, round(kept * state.declared_rows))
    return replace(
        state, holdout_budget=fraction, n_rows=state.n_rows * kept, declared_rows=declared,
        class_counts=state.class_counts * kept, counts_variance=state.counts_variance * kept**2,
    )  # fmt: skip


def try_sparse_histogram(fit: Fit, state: State) -> State:
    """Fit a forest to a sparse histogram and select its weight on the held-out rows."""
    fit.budget.earmark(0.0)
    cells = sparse_histogram.release_sparse_histogram(
        fit.columns, fit.n_classes, state.n_rows, fit.backend, fit.budget, fit.rng
    )
    forest = sparse_histogram.fit_best_forest(cells, fit.n_classes, fit.rng, fit.n_jobs)
    kind, remaining, facts = AdaptiveStep.CELL_WEIGHT, fit.budget.remaining, _facts(fit, state)
    step = plan_choice(fit.budget, kind, len(CELL_WEIGHTS), remaining, facts)
    correct = fit.backend.run_on_holdout(sparse_histogram.CorrectPredictions(fit.columns, forest, CELL_WEIGHTS))
    weight = CELL_WEIGHTS[fit.budget.select(step, correct)]
    state = replace(state, cell_weight=weight, cell_forest=forest if weight else None)
    return state.with_decision(f"sparse histogram with weight {100 * weight:.0f} %")
