# SPDX-License-Identifier: Apache-2.0
"""Design of contingency tables: columns, groups and their bounds, fraction of the budget, common weight, column sets.

Designs follow from public facts only: bins of columns, classes, the noisy number of rows, the epsilon per row of a
step, and the strengths of columns if they were measured. Otherwise, or if one column is strong (``STRONG_COLUMN``), the
i-th best column is assumed to have 1/i of the squared effect of the best column on the log-odds. The gain of a table is
the effect that remains after sampling variance and noise.

| letter | meaning |
|---|---|
| m, b | columns measured, groups of a numeric column |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from veilwood.arrays import Floats, Ints
from veilwood.data.counts import Axis, ClassesByCell, ContingencyTable, RowBackend, RowsByCell
from veilwood.forests.adaptive.contingency import TINY, BinnedColumn, cumulative_mass, posterior_counts
from veilwood.forests.adaptive.row_backend import SCORE_UNITS, scores_to_probabilities, sensitivity_factor
from veilwood.forests.adaptive.steps import HISTOGRAM_STEPS, MAX_GAIN, AdaptiveStep
from veilwood.privacy.adaptive_budget import AdaptiveBudget, TableNoise, release_tables

# Histogram of one column: need for a median accurate to a tenth of the rows; largest multiple of that need; fraction of
# a round's budget (exclusive-or: accuracy 0.85 -> 0.94 at e = 4); factor by which the precision must grow for a new
# histogram.
CUT_NEED, CUT_MAX_NEED, CUT_FRACTION, CUT_AGAIN_FACTOR = 70.0, 16.0, 0.25, 4.0
# Histograms of all numeric columns before tables: fraction of the tables' budget; groups (plus octaves) with joint
# noise, all bins under zCDP; taken if the noise on half of a column is at most 1 / HISTOGRAM_NEED of the rows.
HISTOGRAM_FRACTION, HISTOGRAM_GROUPS, HISTOGRAM_NEED = 0.1, 4, 2.0


@dataclass(frozen=True, eq=False)
class GroupBounds:
    """Public group bounds of columns, from released histograms or from priors."""

    bin_mass: Mapping[int, Floats] = field(default_factory=dict)
    """Estimated rows per bin of each column with a histogram."""
    precision: Mapping[int, float] = field(default_factory=dict)
    """Epsilon per row that a separate release of each histogram would need."""
    shift: Floats | None = None
    """Shift of the group bounds of each column with a histogram, in groups."""
    cumulative: Mapping[int, Floats] = field(default_factory=dict)
    """Cached ``cumulative_mass`` of the ``bin_mass`` of columns."""

    def has_histogram(self, column: BinnedColumn | Axis) -> bool:
        """Whether a histogram of the column was released."""
        return column.feature in self.bin_mass

    def make_axis(self, column: BinnedColumn, n_groups: int, *, add_scales: bool = True) -> Axis:
        """Return the groups of a column: groups of equal mass if it has a histogram, otherwise by its prior."""
        if self.has_histogram(column):
            shift = 0.0 if self.shift is None else self.shift[column.feature]
            cumulative = self.cumulative.get(column.feature)
            if cumulative is None:
                cumulative = cumulative_mass(self.bin_mass[column.feature])
            return column.groups_by_cumulative_mass(cumulative, n_groups, shift)
        if add_scales:
            return column.default_groups(n_groups)
        return column.groups_by_cumulative_mass(column.cumulative_prior, n_groups)

    def group_fractions(self, axis: Axis) -> Floats:
        """Return the estimated fraction of rows in each group."""
        mass = self.bin_mass.get(axis.feature)
        share = np.ones(axis.size) if mass is None else np.bincount(axis.groups[: len(mass)], mass, axis.size)
        return np.asarray(share / max(share.sum(), TINY))

    def release_histogram(
        self, column: BinnedColumn, number: int, backend: RowBackend, budget: AdaptiveBudget, n_rows: float,
        fraction: float,
    ) -> GroupBounds:  # fmt: skip
        """Release a histogram of the column in a round if a fraction of the budget makes it precise enough."""
        part = min(CUT_FRACTION * fraction, budget.fraction_for(CUT_MAX_NEED * CUT_NEED / n_rows))
        precision, before = budget.row_epsilon_of(part), self.precision.get(column.feature, 0.0)
        if not column.ordered or precision < max(CUT_NEED / n_rows, CUT_AGAIN_FACTOR * before):
            return self
        name = AdaptiveStep.ROUND_HISTOGRAM.at(number, column.feature)
        step = budget.plan_counts(name, (column.n_value_bins,), part)
        axis = column.ungrouped_axis()
        counts = backend.run(RowsByCell(ContingencyTable((axis,))))[: column.n_value_bins]  # without missing values
        seen = budget.release_counts(step, counts)
        return self.with_histogram(column, axis, seen, step.variance, n_rows)

    def release_histograms(
        self, columns: Sequence[BinnedColumn], n_classes: int, backend: RowBackend, budget: AdaptiveBudget,
        n_rows: float, fraction: float,
    ) -> GroupBounds:  # fmt: skip
        """Release histograms of these columns if a fraction of the budget makes them precise enough."""
        noise = TableNoise.from_budget(budget)
        numeric = [(column, histogram_groups(column, noise.allows_joint_noise)) for column in columns if column.ordered]
        if len(numeric) < 2:
            return self
        numeric.sort(key=lambda pair: pair[1].size)
        tables, part = [ContingencyTable((axis,)) for _, axis in numeric], HISTOGRAM_FRACTION * fraction
        sizes = [table.n_cells for table in tables]
        half = float((noise.cell_variances(sizes) * sizes).max() / 2) ** 0.5
        if n_rows * budget.row_epsilon_of(part) < HISTOGRAM_NEED * half:
            return self
        # Summed over classes before the noise: every backend answers this query for all tables at once.
        exact = backend.run(ClassesByCell(tables, n_classes)).sum(axis=1, keepdims=True)
        seen, bounds = release_tables(budget, sizes, exact, part, HISTOGRAM_STEPS), self
        for (column, axis), counts, variance in zip(numeric, seen.counts, seen.variances, strict=True):
            bounds = bounds.with_histogram(column, axis, counts.ravel(), variance, n_rows)
        return bounds

    def with_histogram(
        self, column: BinnedColumn, axis: Axis, counts: Floats, variance: float, n_rows: float
    ) -> GroupBounds:
        """Add a histogram: rows are distributed over groups by their counts, and within a group by the prior."""
        groups = axis.groups[: column.n_value_bins]
        before: Floats = np.bincount(groups, column.prior).astype(np.float64)
        held = posterior_counts(counts[: len(before)], before, variance, n_rows)
        mass = column.prior * (held / before)[groups]
        precision = (2 / max(variance, TINY)) ** 0.5
        return GroupBounds(
            {**self.bin_mass, column.feature: mass}, {**self.precision, column.feature: precision},
            self.shift, {**self.cumulative, column.feature: cumulative_mass(mass)},
        )  # fmt: skip


def histogram_groups(column: BinnedColumn, joint_noise: bool) -> Axis:
    """Return the groups of a numeric column in histograms before tables: few with joint noise, else all bins."""
    return column.default_groups(HISTOGRAM_GROUPS) if joint_noise else column.ungrouped_axis()


# With b groups, the fraction 1 - b**-VISIBLE_POWER of a numeric column's effect is visible: steps inside a group are
# lost.
VISIBLE_POWER: Final = 1.0
# Fraction of the gain of the whole budget that tables must reach.
ENOUGH_GAIN: Final = 0.97
# Columns are selected only if few are strong: if strengths follow a power law with an exponent of STEEP_POWER or more,
# or, if they were not measured, if n e is below MIN_PER_CELL times the smallest number of cells of all columns. Without
# joint noise every column adds noise to all others, so columns may always be selected.
STEEP_POWER, MIN_PER_CELL = 1.0, 2.5
# With at most this many columns, selection saves little, and an error in the measured mean costs much.
FEW_COLUMNS: Final = 8
# If the best of more columns has this strength, the others add noise to it: from MIN_IF_STRONG (n e) on, numeric
# columns have at least SCORE_GROUPS groups, and columns may be selected, under the power law assumed without measured
# strengths.
STRONG_COLUMN, MIN_IF_STRONG = 0.4, 350.0
SCORE_GROUPS: Final = 8  # groups of a numeric column when strengths are measured; not varied
# If the best column explains less than MIN_BEST (as for exclusive-or) or at least DOMINANT, tables are skipped and
# rounds begin. Noise makes a strength of WEAK_BEST look like no strength in one of 40 fits.
MIN_BEST, WEAK_BEST, DOMINANT = 0.05, 0.15, 0.75
ROUNDS_IF_DOMINANT: Final = 100.0  # need of a round on that column; with 250, as after tables, +1.0 points, not +1.1
SELECTION_FRACTION: Final = 0.2  # of the tables' budget, to select columns if not all are measured
GROUP_COUNTS: Final = (2, 3, 4, 6, 8, 12, 16)
COLUMN_FRACTIONS: Final = (
    1,
    0.75,
    0.5,
    0.35,
    0.25,
    0.17,
    0.12,
    0.08,
    0.05,
    0.03,
    0.02,
    0.01,
)  # fractions of the columns, tried as m
UNIT_EFFECT_STRENGTH: Final = 0.4  # E|p - 1/2| / (1/2) for log-odds of standard deviation 1
MAX_EFFECT: Final = 2.0  # largest standard deviation of log-odds of one column
POWERS: Final = np.linspace(0.0, 3.0, 31)  # candidate exponents of the power law of strengths
MIN_FOR_ROUNDS: Final = 250.0  # need of rounds after tables; 200 and 400 were tried too
# Maximum number of columns of a set, limited by compiled loops (``kernels.MAX_AXES``), and number of columns tried per
# set.
MAX_SET_COLUMNS, MAX_SET_TRIALS = 6, 16
SET_GROUPS: Final = (4, 8)  # minimum and maximum number of groups of a numeric column in a set of columns
TABLE_FRACTIONS: Final = np.geomspace(0.05, 1.0, 25)  # fractions of the budget, tried for tables


class ColumnStrengths(NamedTuple):
    """Measured strengths: fraction of the classes explained by the best column, and the mean over columns.

    The mean is None if only the best strength was measured; ``best_error`` is then the standard deviation of its noise.
    """

    best: float
    mean: float | None = None
    best_error: float = 0.0

    def rounds_threshold(self, n_classes: int) -> float:
        """Return the n e from which tables are skipped because one column explains everything or no column helps."""
        if self.best >= DOMINANT:
            return ROUNDS_IF_DOMINANT * sensitivity_factor(n_classes)
        none_tells = self.best < min(MIN_BEST, WEAK_BEST - 2 * self.best_error)
        return MIN_FOR_ROUNDS * sensitivity_factor(n_classes) if none_tells else math.inf

    def fit_power(self, n_columns: int) -> float:
        """Return the exponent of the power law of strengths with this best and mean strength."""
        place = np.arange(1.0, n_columns + 1)
        assert self.mean is not None
        wanted = min(max(self.mean / max(self.best, 1e-9), 1 / n_columns), 1.0)
        return float(next((power for power in POWERS if (place**-power).mean() <= wanted), POWERS[-1]))

    def expected_effects(self, n_columns: int) -> Floats:
        """Return the effects of columns on the squared log-odds, best column first."""
        place = np.arange(1.0, n_columns + 1)
        return np.asarray(
            min(max(self.best, 0.0) / UNIT_EFFECT_STRENGTH, MAX_EFFECT) ** 2 * place ** (-2 * self.fit_power(n_columns))
        )


class TableDesign(NamedTuple):
    """Design of tables and its gain. It has no columns if no table has a gain."""

    gain: float
    n_columns: int
    bins: int
    variance: float = 2.0  # variance of the noise at an epsilon per row of 1, mean over columns

    @property
    def equivalent_zcdp_steps(self) -> float:
        """Number of zCDP steps with the same total noise as these tables under pure epsilon."""
        return self.variance / 2 / max(self.n_columns, 1)


class TableDesigns:
    """Gains of all designs for one schema and number of rows."""

    def __init__(
        self,
        columns: Sequence[BinnedColumn],
        n_classes: int,
        n_rows: float,
        noise: TableNoise,
        effects: Floats | None = None,
        selects_columns: bool = True,
        min_groups: int = GROUP_COUNTS[0],
    ) -> None:
        self._n_rows, self._n_classes, self._n_columns = n_rows, n_classes, len(columns)
        self._effects = 1 / np.arange(1.0, len(columns) + 1) if effects is None else effects
        numeric = np.array([column.ordered for column in columns])
        groups = [b for b in GROUP_COUNTS if b >= min_groups] if numeric.any() else GROUP_COUNTS[:1]
        parts = COLUMN_FRACTIONS if selects_columns else COLUMN_FRACTIONS[:1]
        counts = sorted({max(1, round(len(columns) * part)) for part in parts})
        # Number of cells of each column, and the visible fraction of its effect.
        self._sizes = {b: np.array([b if column.ordered else column.n_bins for column in columns]) for b in groups}
        self._visible = {b: np.where(numeric, 1 - b**-VISIBLE_POWER, 1.0) for b in groups}
        self._variances = {(m, b): self._column_variances(m, self._sizes[b], noise) for b in groups for m in counts}

    def best_design(self, row_epsilon: float, after_selection: float) -> TableDesign:
        """Return the design with the largest gain; ``after_selection`` is the fraction of the budget after
        selection."""
        best = TableDesign(0.0, 0, GROUP_COUNTS[0])
        for (m, b), variances in self._variances.items():
            worth = self._expected_gain(after_selection if m < self._n_columns else row_epsilon, m, b)
            if worth > best.gain + 1e-9:
                best = TableDesign(worth, m, b, float(variances.mean()))
        return best

    def _column_variances(self, m: int, sizes: Ints, noise: TableNoise) -> Floats:
        """Return noise variances at an epsilon per row of 1, for m columns evenly spaced by size."""
        taken = np.sort(sizes)[np.linspace(0, len(sizes) - 1, m).round().astype(int)]
        known, places = np.unique(taken, return_index=True)
        return np.interp(sizes, known, noise.cell_variances(taken.tolist())[places])

    def _expected_gain(self, row_epsilon: float, m: int, b: int) -> float:
        """Return the expected gain of m columns; each effect is equally likely to belong to any column."""
        noise = self._variances[m, b] / row_epsilon**2
        rows, effects = self._n_rows / (self._sizes[b] * self._n_classes), self._effects[:m, None]
        signal = effects * rows**2
        return float((effects * self._visible[b] * signal / (signal + rows + noise)).mean(axis=1).sum())


def design_tables(
    columns: Sequence[BinnedColumn],
    n_classes: int,
    n_rows: float,
    budget: AdaptiveBudget,
    available: float,
    strengths: ColumnStrengths | None = None,
) -> tuple[TableDesign, float]:
    """Return the design of tables, and the fraction for tables of the budget for tables and rounds."""
    noise, effects, fewest = TableNoise.from_budget(budget), None, GROUP_COUNTS[0]
    paid, many = n_rows * budget.row_epsilon_of(available), len(columns) > FEW_COLUMNS
    if strengths and strengths.mean is not None:
        effects = strengths.expected_effects(len(columns))
        few = many and strengths.fit_power(len(columns)) >= STEEP_POWER
    else:
        n_cells = sum(GROUP_COUNTS[0] if column.ordered else column.n_bins for column in columns)
        few = paid < MIN_PER_CELL * n_cells
    if strengths and strengths.best >= STRONG_COLUMN and not few and may_be_dominant(columns, budget, paid):
        few, fewest, effects = True, SCORE_GROUPS, None
    shapes = TableDesigns(
        columns,
        n_classes,
        n_rows,
        noise,
        effects,
        selects_columns=few or not noise.allows_joint_noise,
        min_groups=fewest,
    )

    prices = np.stack(
        [
            budget.row_epsilon_of(available * TABLE_FRACTIONS),
            budget.row_epsilon_of(available * TABLE_FRACTIONS * (1 - SELECTION_FRACTION)),
        ],
        axis=1,
    )
    # The smallest fraction with nearly all of the gain; the last candidate is the whole budget.
    all_of_it = shapes.best_design(*prices[-1])
    tried = ((part, shapes.best_design(*price)) for part, price in zip(TABLE_FRACTIONS[:-1], prices[:-1], strict=True))
    enough = ENOUGH_GAIN * all_of_it.gain
    part, shape = next(((part, shape) for part, shape in tried if shape.gain >= enough), (1.0, all_of_it))
    if n_rows * budget.row_epsilon_of(available * (1 - part)) < MIN_FOR_ROUNDS * sensitivity_factor(n_classes):
        return all_of_it, 1.0
    return shape, float(part)


def may_be_dominant(columns: Sequence[BinnedColumn], budget: AdaptiveBudget, row_budget: float) -> bool:
    """Return True if a strong column would change the design; ``row_budget`` is n e."""
    numeric = any(column.ordered for column in columns)
    return budget.allows_joint_noise and numeric and len(columns) > FEW_COLUMNS and row_budget >= MIN_IF_STRONG


# Pairs of columns, with three or more classes: fewest columns, groups of a numeric column in a pair, and the number of
# rows of a class that the median cell needs, in standard deviations of its noise and in rows.
MIN_PAIRED, PAIR_GROUPS, PAIR_DEVIATIONS, PAIR_ROWS = 4, 6, 4.0, 8.0


def may_be_paired(columns: Sequence[BinnedColumn], n_classes: int) -> bool:
    """Return True if tables of two columns may be better: with three or more classes and mostly numeric columns.

    Numeric columns are often correlated, and tables of single columns count their common information several times.
    With two classes, rounds are as good.
    """
    mostly_numeric = 2 * sum(column.ordered for column in columns) > len(columns)
    return n_classes > 2 and len(columns) >= MIN_PAIRED and mostly_numeric


def pair_tables(
    columns: Sequence[BinnedColumn], bounds: GroupBounds, bins: int, class_rows: float, noise: TableNoise,
    row_epsilon: float,
) -> list[ContingencyTable]:  # fmt: skip
    """Return tables of successive pairs of columns, or an empty result if cells would have too few rows of a class."""
    tables = []
    for first in range(0, len(columns), 2):
        pair = columns[first : first + 2]
        n_groups = PAIR_GROUPS if len(pair) == 2 else bins
        axes = (bounds.make_axis(column, n_groups, add_scales=False) for column in pair)
        tables.append(ContingencyTable(tuple(axes)))
    sizes = np.sort([table.n_cells for table in tables])
    deviations, rows = noise.cell_variances(sizes.tolist()) ** 0.5 / row_epsilon, class_rows / sizes
    enough = np.median(rows / deviations) >= PAIR_DEVIATIONS and np.median(rows) >= PAIR_ROWS
    return tables if enough and bins >= PAIR_GROUPS else []


def extend_pairs(column_sets: Iterable[tuple[int, ...]], n_columns: int) -> list[tuple[int, ...]]:
    """Return triples: each selected pair with one more column.

    >>> extend_pairs([(3,), (2, 0)], 4)
    [(0, 1, 2), (0, 2, 3)]
    """
    pairs = {tuple(sorted(columns)) for columns in column_sets if len(columns) == 2}
    return sorted({tuple(sorted({*pair, j})) for pair in pairs for j in range(n_columns) if j not in pair})


def random_subsets(size: int, n_columns: int, max_subsets: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Draw distinct random sets of columns.

    >>> random_subsets(3, 3, 10, np.random.default_rng(0)), random_subsets(3, 2, 10, np.random.default_rng(0))
    ([(0, 1, 2)], [])
    """
    if n_columns < size:
        return []
    drawn = (rng.choice(n_columns, size, replace=False).tolist() for _ in range(max_subsets))
    return sorted({tuple(sorted(columns)) for columns in drawn})


def small_sets(
    columns: Sequence[BinnedColumn], max_cells: float, max_sets: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Draw distinct sets of three or more columns with at most ``max_cells`` cells.

    Half of the sets have three columns. The others have as many as ``max_cells`` allows, and show interactions of any
    order.
    """
    drawn, tried = set(), min(len(columns), MAX_SET_TRIALS)
    for number in range(max_sets):
        size = 3 if number % 2 else MAX_SET_COLUMNS
        n_groups, n_cells, taken = groups_per_column(0, size), 1, list[int]()
        for j in rng.permutation(len(columns))[:tried].tolist():
            column = columns[j]
            cells = n_cells * (n_groups + column.n_bins - column.n_value_bins if column.ordered else column.n_bins)
            if cells <= max_cells and len(taken) < size:
                n_cells, taken = cells, [*taken, j]
        if len(taken) >= min(size, 4):
            drawn.add(tuple(sorted(taken)))
    return sorted(drawn)


def groups_per_column(bins: int, size: int) -> int:
    """Return the number of groups of a numeric column in a set: an even number, so that halves are separated."""
    low, high = SET_GROUPS
    return bins if size == 1 else min(max(2 * (bins // 4), low), high) if size == 2 else low if size == 3 else 2


# Need for a standard error of about a quarter; limits of the fraction of the remaining budget.
WEIGHT_NEED, WEIGHT_FRACTIONS = 20.0, (0.02, 0.1)
PRIOR_STD: Final = 0.5  # prior standard deviation of the logarithm of the weight; 0.35 and 0.7 were as good
MAX_WEIGHT: Final = (
    2.0  # largest weight or reciprocal; above it a rare class is predicted too often (balance-scale: -3 points)
)
SYNTHETIC_ROWS: Final = 2000  # synthetic rows for the slope of the gain as a function of the weight


class ShrunkenTable(NamedTuple):
    """Shrunken class counts of a table, and the scores of its cells."""

    counts: Floats
    scores: Floats


def weight_fraction(budget: AdaptiveBudget, n_rows: float) -> float:
    """Return the fraction of the budget for the common weight, or 0 if it would exceed its limit."""
    low, high = WEIGHT_FRACTIONS
    share = max(budget.fraction_for(WEIGHT_NEED / n_rows), low * budget.remaining)
    return share if share <= high * budget.remaining else 0.0


def estimate_weight(
    gain: float, noise: float, n_rows: float, start: Floats, tables: Sequence[ShrunkenTable], rng: np.random.Generator
) -> float:
    """Return the common weight of all tables, from the noisy derivative of the log-likelihood, clipped per row.

    One Newton step towards the weight with the expected gain, shrunk by noise, sampling variance and the prior
    (``PRIOR_STD``). ``noise`` is the variance of the noise on ``gain``.
    """
    expected, slope = _expected_gain(start, tables, rng)
    expected, slope = n_rows * expected, n_rows * slope
    away = (gain - expected) * PRIOR_STD**2 * slope / (PRIOR_STD**2 * slope**2 + slope + noise) if slope > 0 else 0.0
    most = math.log(MAX_WEIGHT)
    return math.exp(min(max(away, -most), most))


def _expected_gain(start: Floats, tables: Sequence[ShrunkenTable], rng: np.random.Generator) -> tuple[float, float]:
    """Return the expected gain of a row if predictions are calibrated, and its slope as a function of the weight.

    Without clipping the gain is 0. Clipping mostly removes losses, of rows with confident wrong predictions. Both are
    computed on synthetic rows whose columns are independent within a class, drawn from the released counts.
    """
    shares = scores_to_probabilities(start[None])[0]
    target = rng.choice(len(shares), SYNTHETIC_ROWS, p=shares)
    scores = np.zeros((SYNTHETIC_ROWS, len(start)))
    for table in tables:
        up_to = (table.counts / table.counts.sum(axis=0)).cumsum(axis=0)[:-1]
        drawn = rng.random(SYNTHETIC_ROWS)
        for label in range(len(shares)):
            mine = target == label
            scores[mine] += table.scores[np.searchsorted(up_to[:, label], drawn[mine])]
    predicted = scores_to_probabilities(start + scores)
    said = np.column_stack([np.zeros(SYNTHETIC_ROWS), scores]) if len(start) == 1 else scores
    gains = said - (predicted * said).sum(axis=1, keepdims=True)  # by the class that the row has
    cut = np.clip(gains, -MAX_GAIN / SCORE_UNITS, MAX_GAIN / SCORE_UNITS)
    return float((predicted * cut).sum(axis=1).mean()), float((predicted * gains * cut).sum(axis=1).mean())
