# SPDX-License-Identifier: Apache-2.0
"""How many columns have tables of class counts, in how many groups, at what part of the budget; and sets of columns.

Chosen from public facts alone: cells of columns, classes, the noisy number of rows, the price of a step, and how strong
columns are if that has been asked. Columns are unlike: unasked, or where one tells much (``STRONG_COLUMN``), the i-th best
is taken to have the i-th part of the squared effect of the best one on the log-odds. An effect is worth what is left of
it after sampling and noise.

| letter | meaning |
|---|---|
| m, b | columns measured, groups of a numeric column |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.adaptive import row_backend as asked
from veilwood.forests.adaptive.contingency import TINY, Axis, BinnedColumn, ContingencyTable, posterior_counts
from veilwood.forests.adaptive.row_backend import SCORE_UNITS, RowBackend, scores_to_probabilities, sensitivity_factor
from veilwood.forests.adaptive.steps import HISTOGRAM_STEPS, MAX_GAIN, AdaptiveStep
from veilwood.privacy.adaptive_budget import AdaptiveBudget, TableNoise, release_tables

# Histogram of one column: rows times e for a median to a tenth of the rows; at most so many times that; a share of a
# round's budget, measured (exclusive-or 0.85 -> 0.94 at e = 4); taken anew where that is so many times better.
CUT_NEED, CUT_MAX_NEED, CUT_FRACTION, CUT_AGAIN_FACTOR = 70.0, 16.0, 0.25, 4.0
# Histograms of all numbers of tables: a share of their budget, with noise together in so many groups and octaves, by
# rho of all cells, where the noise on half of a column is at most 1 / HISTOGRAM_NEED of the rows; measured.
HISTOGRAM_FRACTION, HISTOGRAM_GROUPS, HISTOGRAM_NEED = 0.1, 4, 2.0

Floats = NDArray[np.float64]


class GroupBounds:
    """What is known of how the values of columns are spread; public."""

    def __init__(self, backend: RowBackend, n_columns: int) -> None:
        self._backend = backend
        self._bin_mass: dict[int, Floats] = {}
        self._precision: dict[int, float] = {}  # the price of a histogram by itself
        self._shift = np.zeros(n_columns)  # in groups

    def has_histogram(self, column: BinnedColumn | Axis) -> bool:
        """Whether a histogram of the column was released."""
        return column.feature in self._bin_mass

    def shift_bounds(self, shift: Floats) -> None:
        """Move the borders of each column that is known by such a part of a group."""
        self._shift = shift

    def make_axis(self, column: BinnedColumn, n_groups: int, *, add_scales: bool = True) -> Axis:
        """Groups by what is known of a column."""
        if self.has_histogram(column):
            return column.equal_mass_groups(self._bin_mass[column.feature], n_groups, self._shift[column.feature])
        return column.default_groups(n_groups) if add_scales else column.equal_mass_groups(column.prior, n_groups)

    def group_fractions(self, axis: Axis) -> Floats:
        """The share of rows that each group is taken to have."""
        mass = self._bin_mass.get(axis.feature)
        share = np.ones(axis.size) if mass is None else np.bincount(axis.groups[: len(mass)], mass, axis.size)
        return np.asarray(share / max(share.sum(), TINY))

    def release_histogram(
        self, column: BinnedColumn, number: int, adaptive_budget: AdaptiveBudget, n_rows: float, fraction: float
    ) -> None:
        """Take a histogram of the column, where a share of the budget buys a good one."""
        share = min(CUT_FRACTION * fraction, adaptive_budget.fraction_for(CUT_MAX_NEED * CUT_NEED / n_rows))
        price, before = adaptive_budget.row_epsilon_of(share), self._precision.get(column.feature, 0.0)
        if not column.ordered or price < max(CUT_NEED / n_rows, CUT_AGAIN_FACTOR * before):
            return
        name = AdaptiveStep.ROUND_HISTOGRAM.at(number, column.feature)
        step = adaptive_budget.plan_counts(name, (column.n_value_bins,), share)
        seen = adaptive_budget.release_counts(
            step, self._backend.run(asked.Histogram(column.feature, column.n_value_bins))
        )
        self._store_mass(column, column.ungrouped_axis(), seen, step.variance, n_rows)

    def release_histograms(
        self,
        columns: Sequence[BinnedColumn],
        n_classes: int,
        adaptive_budget: AdaptiveBudget,
        n_rows: float,
        fraction: float,
    ) -> None:
        """Take histograms of these columns, where a share of the budget buys good ones."""
        noise = TableNoise.from_budget(adaptive_budget)
        numeric = [(column, histogram_groups(column, noise.allows_joint_noise)) for column in columns if column.ordered]
        if (
            adaptive_budget.servers_draw_noise or len(numeric) < 2
        ):  # servers would draw the noise of each by itself: too much
            return
        numeric.sort(key=lambda one: one[1].size)
        tables, share = [ContingencyTable((axis,)) for _, axis in numeric], HISTOGRAM_FRACTION * fraction
        sizes = [table.n_cells for table in tables]
        half = float((noise.cell_variances(sizes) * sizes).max() / 2) ** 0.5
        if n_rows * adaptive_budget.row_epsilon_of(share) < HISTOGRAM_NEED * half:
            return
        # Classes are added up before noise: all who hold rows answer that question, for all tables at once.
        exact = self._backend.run(asked.ClassesByCell(tables, n_classes)).sum(axis=1, keepdims=True)
        seen = release_tables(adaptive_budget, sizes, exact, share, HISTOGRAM_STEPS)
        for (column, axis), counts, variance in zip(numeric, seen.counts, seen.variances, strict=True):
            self._store_mass(column, axis, counts.ravel(), variance, n_rows)

    def _store_mass(self, column: BinnedColumn, axis: Axis, counts: Floats, variance: float, n_rows: float) -> None:
        """Spread rows over the cells of a column: over its groups by their counts, inside of each as before."""
        groups = axis.groups[: column.n_value_bins]
        before: Floats = np.bincount(groups, column.prior).astype(np.float64)
        held = posterior_counts(counts[: len(before)], before, variance, n_rows)
        self._bin_mass[column.feature] = column.prior * (held / before)[groups]
        self._precision[column.feature] = (2 / max(variance, TINY)) ** 0.5


def histogram_groups(column: BinnedColumn, joint_noise: bool) -> Axis:
    """The groups of a numeric column in histograms before tables: few with noise together, to which others' cells add.

    Else all cells.
    """
    return column.default_groups(HISTOGRAM_GROUPS) if joint_noise else column.ungrouped_axis()


# Of a numeric column's effect b groups show 1 - b^-SHOWN: a step inside a group is lost; measured.
VISIBLE_POWER: Final = 1.0
# Of the worth that all of the budget would buy; measured.
ENOUGH_GAIN: Final = 0.97
# Columns are chosen only where few stand out: where strengths fall by a power law of STEEP or more, or, unasked, where
# rows times e are fewer than MIN_PER_CELL for each cell that all columns have at least; measured. By rho, or table by
# table, every column adds noise to all others: there they may always be chosen.
STEEP_POWER, MIN_PER_CELL = 1.0, 2.5
# Of so few columns little is saved by leaving some out, and a mean that is misread costs much; measured.
FEW_COLUMNS: Final = 8
# Where the best of more columns tells so much, others blur it: from MIN_IF_STRONG rows times e on numbers have at least
# as many groups as it was seen in, and columns may be chosen, by the law that holds if nothing was asked; measured.
STRONG_COLUMN, MIN_IF_STRONG = 0.4, 350.0
SCORE_GROUPS: Final = 8  # of a numeric column, in which its score is judged; not varied
# Where the best column explains less than MIN_BEST (the exclusive-or of two) or DOMINANT and more, others beside it
# blur it, and rounds begin at once; noise takes one of WEAK_BEST for none in one of 40 fits. Measured.
MIN_BEST, WEAK_BEST, DOMINANT = 0.05, 0.15, 0.75
ROUNDS_IF_DOMINANT: Final = 100.0  # rows times e for a round on that column; 250, as after tables: +1.0 instead of +1.1
SELECTION_FRACTION: Final = 0.2  # of the tables' budget chooses columns where not all are measured
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
)  # of the columns, tried as m
UNIT_EFFECT_STRENGTH: Final = 0.4  # what a column of effect 1 explains: E|p - 1/2| / (1/2) for log-odds of deviation 1
MAX_EFFECT: Final = 2.0  # deviations of log-odds that one column can have
POWERS: Final = np.linspace(0.0, 3.0, 31)  # tried for the power law of strengths
MIN_FOR_ROUNDS: Final = 250.0  # rows times e below which no round is worth it after tables; measured beside 200 and 400
SET_GROUPS: Final = (4, 8)  # groups of a numeric column in a set of columns, at least and at most
TABLE_FRACTIONS: Final = np.geomspace(0.05, 1.0, 25)  # of the budget, tried for tables


class ColumnStrengths(NamedTuple):
    """What the best column explains of all there is to explain, and the mean of all columns, as parts of 1.

    The mean is None if only the best was asked; ``best_error`` is then the deviation of the noise.
    """

    best: float
    mean: float | None = None
    best_error: float = 0.0

    def rounds_threshold(self, n_classes: int) -> float:
        """Rows times e from which on rounds begin at once, as one column tells all, or none tells anything."""
        if self.best >= DOMINANT:
            return ROUNDS_IF_DOMINANT * sensitivity_factor(n_classes)
        none_tells = self.best < min(MIN_BEST, WEAK_BEST - 2 * self.best_error)
        return MIN_FOR_ROUNDS * sensitivity_factor(n_classes) if none_tells else math.inf

    def fit_power(self, n_columns: int) -> float:
        """Of the power law by which strengths fall from column to column, so that they have this mean."""
        place = np.arange(1.0, n_columns + 1)
        assert self.mean is not None
        wanted = min(max(self.mean / max(self.best, 1e-9), 1 / n_columns), 1.0)
        return float(next((power for power in POWERS if (place**-power).mean() <= wanted), POWERS[-1]))

    def expected_effects(self, n_columns: int) -> Floats:
        """Effects on the squared log-odds, from the best column on."""
        place = np.arange(1.0, n_columns + 1)
        return np.asarray(
            min(max(self.best, 0.0) / UNIT_EFFECT_STRENGTH, MAX_EFFECT) ** 2 * place ** (-2 * self.fit_power(n_columns))
        )


class TableDesign(NamedTuple):
    """A shape of tables, and what it is worth; no columns: nothing is."""

    gain: float
    n_columns: int
    bins: int
    variance: float = 2.0  # of the noise at a price of 1, the mean over columns

    @property
    def equivalent_zcdp_steps(self) -> float:
        """As many steps by rho would need as much noise as these tables do by epsilon."""
        return self.variance / 2 / max(self.n_columns, 1)


class TableDesigns:
    """Chooses shapes for one schema and number of rows."""

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
        # Cells of each column, and what they can show of its effect.
        self._sizes = {b: np.array([b if column.ordered else column.n_bins for column in columns]) for b in groups}
        self._visible = {b: np.where(numeric, 1 - b**-VISIBLE_POWER, 1.0) for b in groups}
        self._variances = {(m, b): self._column_variances(m, self._sizes[b], noise) for b in groups for m in counts}

    def best_design(self, row_epsilon: float, after_selection: float) -> TableDesign:
        """Return the shape of largest worth at a price; ``after_selection`` is what is left of it after choosing columns."""
        best = TableDesign(0.0, 0, GROUP_COUNTS[0])
        for (m, b), variances in self._variances.items():
            worth = self._expected_gain(after_selection if m < self._n_columns else row_epsilon, m, b)
            if worth > best.gain + 1e-9:
                best = TableDesign(worth, m, b, float(variances.mean()))
        return best

    def _column_variances(self, m: int, sizes: NDArray[np.int64], noise: TableNoise) -> Floats:
        """Variances at a price of 1. Which m columns is not known: those at even distances, by size, stand for them."""
        taken = np.sort(sizes)[np.linspace(0, len(sizes) - 1, m).round().astype(int)]
        known, places = np.unique(taken, return_index=True)
        return np.interp(sizes, known, noise.cell_variances(taken.tolist())[places])

    def _expected_gain(self, row_epsilon: float, m: int, b: int) -> float:
        """What m columns are worth: any effect may be that of any column."""
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
    """Return the shape of tables, and the part of what is left for them and rounds that they get."""
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
    # As much as is needed for nearly all of the worth; the last share is all of it.
    all_of_it = shapes.best_design(*prices[-1])
    tried = ((part, shapes.best_design(*price)) for part, price in zip(TABLE_FRACTIONS[:-1], prices[:-1], strict=True))
    enough = ENOUGH_GAIN * all_of_it.gain
    part, shape = next(((part, shape) for part, shape in tried if shape.gain >= enough), (1.0, all_of_it))
    if n_rows * budget.row_epsilon_of(available * (1 - part)) < MIN_FOR_ROUNDS * sensitivity_factor(n_classes):
        return all_of_it, 1.0
    return shape, float(part)


def may_be_dominant(columns: Sequence[BinnedColumn], budget: AdaptiveBudget, row_budget: float) -> bool:
    """Whether one column that tells much would change how tables are counted, for so many rows times e."""
    numeric = any(column.ordered for column in columns)
    return budget.allows_joint_noise and numeric and len(columns) > FEW_COLUMNS and row_budget >= MIN_IF_STRONG


def extend_pairs(column_sets: Iterable[tuple[int, ...]], n_columns: int) -> list[tuple[int, ...]]:
    """Pairs that were chosen, each with one column more.

    >>> extend_pairs([(3,), (2, 0)], 4)
    [(0, 1, 2), (0, 2, 3)]
    """
    pairs = {tuple(sorted(columns)) for columns in column_sets if len(columns) == 2}
    return sorted({tuple(sorted({*pair, j})) for pair in pairs for j in range(n_columns) if j not in pair})


def random_subsets(size: int, n_columns: int, max_subsets: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Draw so many sets of columns, and leave out those that come again.

    >>> random_subsets(3, 3, 10, np.random.default_rng(0)), random_subsets(3, 2, 10, np.random.default_rng(0))
    ([(0, 1, 2)], [])
    """
    if n_columns < size:
        return []
    drawn = (rng.choice(n_columns, size, replace=False).tolist() for _ in range(max_subsets))
    return sorted({tuple(sorted(columns)) for columns in drawn})


def groups_per_column(bins: int, size: int) -> int:
    """Groups of a numeric column beside others, where it has so many alone: an even number, so that halves are told."""
    low, high = SET_GROUPS
    return bins if size == 1 else min(max(2 * (bins // 4), low), high) if size == 2 else low


# Rows times e for an error of about a quarter; limits of the share of what is left.
WEIGHT_NEED, WEIGHT_FRACTIONS = 20.0, (0.02, 0.1)
PRIOR_STD: Final = 0.5  # deviation of the logarithm of the best weight, from table to table; 0.35 and 0.7 were as good
MAX_WEIGHT: Final = 2.0  # a weight, or its reciprocal; beyond it a rare class is predicted too often (balance-scale -3)
SYNTHETIC_ROWS: Final = 2000  # rows, to know how fast the gain falls with the weight


class ShrunkenTable(NamedTuple):
    """A table as made-up rows need it: what is believed of its class counts, and what each cell adds to scores."""

    counts: Floats
    scores: Floats


def weight_fraction(budget: AdaptiveBudget, n_rows: float) -> float:
    """Return the share of the budget that the weight of tables gets; 0 where that would be too much of what is left."""
    low, high = WEIGHT_FRACTIONS
    share = max(budget.fraction_for(WEIGHT_NEED / n_rows), low * budget.remaining)
    return share if share <= high * budget.remaining else 0.0


def estimate_weight(
    gain: float, noise: float, n_rows: float, start: Floats, tables: Sequence[ShrunkenTable], rng: np.random.Generator
) -> float:
    """Return how much tables count, from the gain of all rows, each cut to 1, with its variance of noise.

    One step of Newton's method towards the weight whose gain is the expected one, shortened as the noise, the chance of
    sampling and the usual weights (``PRIOR_STD``) tell.
    """
    expected, slope = _expected_gain(start, tables, rng)
    expected, slope = n_rows * expected, n_rows * slope
    away = (gain - expected) * PRIOR_STD**2 * slope / (PRIOR_STD**2 * slope**2 + slope + noise) if slope > 0 else 0.0
    most = math.log(MAX_WEIGHT)
    return math.exp(min(max(away, -most), most))


def _expected_gain(start: Floats, tables: Sequence[ShrunkenTable], rng: np.random.Generator) -> tuple[float, float]:
    """Return the gain of a row if the shares of classes are as predicted, and how much more it is per weight if not.

    Without cuts the first is 0: what is cut off are mostly losses, of rows about which tables are sure and wrong. Both
    are found on made-up rows whose columns are independent inside a class, as what was released tells them.
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
