# SPDX-License-Identifier: Apache-2.0
"""How many columns have tables of class counts, in how many groups, at what part of the budget; and sets of columns.

Chosen from public facts alone: cells of columns, classes, the noisy number of rows, the price of a step, and how strong
columns are if that has been asked. Columns are unlike: unasked, or where one tells much (``ONE_TELLS``), the i-th best
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
from veilwood.forests.adaptive.contingency import TINY, Axis, CellColumn, CellTable, divided
from veilwood.forests.adaptive.row_backend import SCORE_UNITS, AskedRows, dearer, probabilities
from veilwood.privacy.adaptive_budget import Purse, TablesName, TablesNoise, count_tables

# Histogram of one column: rows times e for a median to a tenth of the rows; at most so many times that; a share of a
# round's budget, measured (exclusive-or 0.85 -> 0.94 at e = 4); taken anew where that is so many times better.
CUT_NEEDS, CUT_MOST, CUT_SHARE, CUT_ANEW = 70.0, 16.0, 0.25, 4.0
# Histograms of all numbers of tables: a share of their budget, with noise together in so many groups and octaves, by
# rho of all cells, where the noise on half of a column is at most 1 / HISTOGRAM_NEEDS of the rows; measured.
HISTOGRAM_SHARE, HISTOGRAM_GROUPS, HISTOGRAM_NEEDS = 0.1, 4, 2.0
HISTOGRAMS: Final = TablesName("histogram", "rows by group")

Floats = NDArray[np.float64]


class Borders:
    """What is known of how the values of columns are spread; public."""

    def __init__(self, rows: AskedRows, n_columns: int) -> None:
        self._rows = rows
        self._mass: dict[int, Floats] = {}
        self._precision: dict[int, float] = {}  # the price of a histogram by itself
        self._shift = np.zeros(n_columns)  # in groups

    def known(self, column: CellColumn | Axis) -> bool:
        """Whether a histogram of the column was released."""
        return column.feature in self._mass

    def move(self, shift: Floats) -> None:
        """Move the borders of each column that is known by such a part of a group."""
        self._shift = shift

    def axis(self, column: CellColumn, n_groups: int, *, scales: bool = True) -> Axis:
        """Groups by what is known of a column."""
        if self.known(column):
            return column.of_mass(self._mass[column.feature], n_groups, self._shift[column.feature])
        return column.of_scales(n_groups) if scales else column.of_mass(column.prior, n_groups)

    def shares(self, axis: Axis) -> Floats:
        """The share of rows that each group is taken to have."""
        mass = self._mass.get(axis.feature)
        share = np.ones(axis.size) if mass is None else np.bincount(axis.groups[: len(mass)], mass, axis.size)
        return np.asarray(share / max(share.sum(), TINY))

    def see(self, column: CellColumn, name: str, purse: Purse, n_rows: float, budget: float) -> None:
        """Take a histogram of the column, where a share of the budget buys a good one."""
        share = min(CUT_SHARE * budget, purse.share(CUT_MOST * CUT_NEEDS / n_rows))
        price, before = purse.price(share), self._precision.get(column.feature, 0.0)
        if not column.ordered or price < max(CUT_NEEDS / n_rows, CUT_ANEW * before):
            return
        step = purse.counting(f"{name}: histogram of column {column.feature}", (column.n_inside,), share)
        seen = purse.measure(step, self._rows.ask(asked.Histogram(column.feature, column.n_inside)))
        self._spread(column, column.values(), seen, step.variance, n_rows)

    def see_all(
        self, columns: Sequence[CellColumn], n_classes: int, purse: Purse, n_rows: float, budget: float
    ) -> None:
        """Take histograms of these columns, where a share of the budget buys good ones."""
        noise = TablesNoise.of(purse)
        numeric = [(column, seen_groups(column, noise.jointly)) for column in columns if column.ordered]
        if purse.among_servers or len(numeric) < 2:  # servers would draw the noise of each by itself: too much
            return
        numeric.sort(key=lambda one: one[1].size)
        tables, share = [CellTable((axis,)) for _, axis in numeric], HISTOGRAM_SHARE * budget
        sizes = [table.n_cells for table in tables]
        half = float((noise.variances(sizes) * sizes).max() / 2) ** 0.5
        if n_rows * purse.price(share) < HISTOGRAM_NEEDS * half:
            return
        # Classes are added up before noise: all who hold rows answer that question, for all tables at once.
        exact = self._rows.ask(asked.ClassesByCell(tables, n_classes)).sum(axis=1, keepdims=True)
        seen = count_tables(purse, sizes, exact, share, HISTOGRAMS)
        for (column, axis), counts, variance in zip(numeric, seen.counts, seen.variances, strict=True):
            self._spread(column, axis, counts.ravel(), variance, n_rows)

    def _spread(self, column: CellColumn, axis: Axis, counts: Floats, variance: float, n_rows: float) -> None:
        """Spread rows over the cells of a column: over its groups by their counts, inside of each as before."""
        groups = axis.groups[: column.n_inside]
        before: Floats = np.bincount(groups, column.prior).astype(np.float64)
        held = divided(counts[: len(before)], before, variance, n_rows)
        self._mass[column.feature] = column.prior * (held / before)[groups]
        self._precision[column.feature] = (2 / max(variance, TINY)) ** 0.5


def seen_groups(column: CellColumn, jointly: bool) -> Axis:
    """The groups of a numeric column in histograms before tables: few with noise together, to which others' cells add.

    Else all cells.
    """
    return column.of_scales(HISTOGRAM_GROUPS) if jointly else column.values()


# Of a numeric column's effect b groups show 1 - b^-SHOWN: a step inside a group is lost; measured.
SHOWN: Final = 1.0
# Of the worth that all of the budget would buy; measured.
ENOUGH: Final = 0.97
# Columns are chosen only where few stand out: where strengths fall by a power law of STEEP or more, or, unasked, where
# rows times e are fewer than LEAST_PER_CELL for each cell that all columns have at least; measured. By rho, or table by
# table, every column adds noise to all others: there they may always be chosen.
STEEP, LEAST_PER_CELL = 1.0, 2.5
# Of so few columns little is saved by leaving some out, and a mean that is misread costs much; measured.
FEW_COLUMNS: Final = 8
# Where the best of more columns tells so much, others blur it: from LEAST_IF_ONE rows times e on numbers have at least
# as many groups as it was seen in, and columns may be chosen, by the law that holds if nothing was asked; measured.
ONE_TELLS, LEAST_IF_ONE = 0.4, 350.0
SCORE_GROUPS: Final = 8  # of a numeric column, in which its score is judged; not varied
# Where the best column explains less than LEAST_BEST (the exclusive-or of two) or DOMINANT and more, others beside it
# blur it, and rounds begin at once; noise takes one of WEAK_BEST for none in one of 40 fits. Measured.
LEAST_BEST, WEAK_BEST, DOMINANT = 0.05, 0.15, 0.75
ROUNDS_IF_DOMINANT: Final = 100.0  # rows times e for a round on that column; 250, as after tables: +1.0 instead of +1.1
SELECT: Final = 0.2  # of the tables' budget chooses columns where not all are measured
GROUPS: Final = (2, 3, 4, 6, 8, 12, 16)
PARTS: Final = (1, 0.75, 0.5, 0.35, 0.25, 0.17, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01)  # of the columns, tried as m
STRONG: Final = 0.4  # what a column of effect 1 explains: E|p - 1/2| / (1/2) for log-odds of deviation 1
MOST_EFFECT: Final = 2.0  # deviations of log-odds that one column can have
POWERS: Final = np.linspace(0.0, 3.0, 31)  # tried for the power law of strengths
LEAST_ROUNDS: Final = 250.0  # rows times e below which no round is worth it after tables; measured beside 200 and 400
SETS: Final = (4, 8)  # groups of a numeric column in a set of columns, at least and at most
SHARES: Final = np.geomspace(0.05, 1.0, 25)  # of the budget, tried for tables


class Strengths(NamedTuple):
    """What the best column explains of all there is to explain, and the mean of all columns, as parts of 1.

    The mean is None if only the best was asked; ``unsure`` is then the deviation of the noise.
    """

    best: float
    mean: float | None = None
    unsure: float = 0.0

    def rounds_from(self, n_classes: int) -> float:
        """Rows times e from which on rounds begin at once, as one column tells all, or none tells anything."""
        if self.best >= DOMINANT:
            return ROUNDS_IF_DOMINANT * dearer(n_classes)
        none_tells = self.best < min(LEAST_BEST, WEAK_BEST - 2 * self.unsure)
        return LEAST_ROUNDS * dearer(n_classes) if none_tells else math.inf

    def power(self, n_columns: int) -> float:
        """Of the power law by which strengths fall from column to column, so that they have this mean."""
        place = np.arange(1.0, n_columns + 1)
        assert self.mean is not None
        wanted = min(max(self.mean / max(self.best, 1e-9), 1 / n_columns), 1.0)
        return float(next((power for power in POWERS if (place**-power).mean() <= wanted), POWERS[-1]))

    def effects(self, n_columns: int) -> Floats:
        """Effects on the squared log-odds, from the best column on."""
        place = np.arange(1.0, n_columns + 1)
        return np.asarray(min(max(self.best, 0.0) / STRONG, MOST_EFFECT) ** 2 * place ** (-2 * self.power(n_columns)))


class TableShape(NamedTuple):
    """A shape of tables, and what it is worth; no columns: nothing is."""

    worth: float
    n_columns: int
    bins: int
    variance: float = 2.0  # of the noise at a price of 1, the mean over columns

    @property
    def steps_by_rho(self) -> float:
        """As many steps by rho would need as much noise as these tables do by epsilon."""
        return self.variance / 2 / max(self.n_columns, 1)


class TableShapes:
    """Chooses shapes for one schema and number of rows."""

    def __init__(
        self,
        columns: Sequence[CellColumn],
        n_classes: int,
        n_rows: float,
        noise: TablesNoise,
        effects: Floats | None = None,
        chooses: bool = True,
        fewest_groups: int = GROUPS[0],
    ) -> None:
        self._n, self._k, self._n_columns = n_rows, n_classes, len(columns)
        self._effects = 1 / np.arange(1.0, len(columns) + 1) if effects is None else effects
        numeric = np.array([column.ordered for column in columns])
        groups = [b for b in GROUPS if b >= fewest_groups] if numeric.any() else GROUPS[:1]
        parts = PARTS if chooses else PARTS[:1]
        counts = sorted({max(1, round(len(columns) * part)) for part in parts})
        # Cells of each column, and what they can show of its effect.
        self._sizes = {b: np.array([b if column.ordered else column.n_cells for column in columns]) for b in groups}
        self._shown = {b: np.where(numeric, 1 - b**-SHOWN, 1.0) for b in groups}
        self._variances = {(m, b): self._by_column(m, self._sizes[b], noise) for b in groups for m in counts}

    def best(self, price: float, selecting: float) -> TableShape:
        """Return the shape of largest worth at a price; ``selecting`` is what is left of it after choosing columns."""
        best = TableShape(0.0, 0, GROUPS[0])
        for (m, b), variances in self._variances.items():
            worth = self._worth(selecting if m < self._n_columns else price, m, b)
            if worth > best.worth + 1e-9:
                best = TableShape(worth, m, b, float(variances.mean()))
        return best

    def _by_column(self, m: int, sizes: NDArray[np.int64], noise: TablesNoise) -> Floats:
        """Variances at a price of 1. Which m columns is not known: those at even distances, by size, stand for them."""
        taken = np.sort(sizes)[np.linspace(0, len(sizes) - 1, m).round().astype(int)]
        known, places = np.unique(taken, return_index=True)
        return np.interp(sizes, known, noise.variances(taken.tolist())[places])

    def _worth(self, price: float, m: int, b: int) -> float:
        """What m columns are worth: any effect may be that of any column."""
        noise = self._variances[m, b] / price**2
        rows, effects = self._n / (self._sizes[b] * self._k), self._effects[:m, None]
        signal = effects * rows**2
        return float((effects * self._shown[b] * signal / (signal + rows + noise)).mean(axis=1).sum())


def division(
    columns: Sequence[CellColumn],
    n_classes: int,
    n_rows: float,
    purse: Purse,
    left: float,
    strengths: Strengths | None = None,
) -> tuple[TableShape, float]:
    """Return the shape of tables, and the part of what is left for them and rounds that they get."""
    noise, effects, fewest = TablesNoise.of(purse), None, GROUPS[0]
    paid, many = n_rows * purse.price(left), len(columns) > FEW_COLUMNS
    if strengths and strengths.mean is not None:
        effects = strengths.effects(len(columns))
        few = many and strengths.power(len(columns)) >= STEEP
    else:
        n_cells = sum(GROUPS[0] if column.ordered else column.n_cells for column in columns)
        few = paid < LEAST_PER_CELL * n_cells
    if strengths and strengths.best >= ONE_TELLS and not few and one_may_tell(columns, purse, paid):
        few, fewest, effects = True, SCORE_GROUPS, None
    shapes = TableShapes(
        columns, n_classes, n_rows, noise, effects, chooses=few or not noise.jointly, fewest_groups=fewest
    )

    prices = np.stack([purse.price(left * SHARES), purse.price(left * SHARES * (1 - SELECT))], axis=1)
    # As much as is needed for nearly all of the worth; the last share is all of it.
    all_of_it = shapes.best(*prices[-1])
    tried = ((part, shapes.best(*price)) for part, price in zip(SHARES[:-1], prices[:-1], strict=True))
    enough = ENOUGH * all_of_it.worth
    part, shape = next(((part, shape) for part, shape in tried if shape.worth >= enough), (1.0, all_of_it))
    if n_rows * purse.price(left * (1 - part)) < LEAST_ROUNDS * dearer(n_classes):
        return all_of_it, 1.0
    return shape, float(part)


def one_may_tell(columns: Sequence[CellColumn], purse: Purse, paid: float) -> bool:
    """Whether one column that tells much would change how tables are counted, for so many rows times e."""
    numeric = any(column.ordered for column in columns)
    return purse.jointly and numeric and len(columns) > FEW_COLUMNS and paid >= LEAST_IF_ONE


def triples(chosen: Iterable[tuple[int, ...]], n_columns: int) -> list[tuple[int, ...]]:
    """Pairs that were chosen, each with one column more.

    >>> triples([(3,), (2, 0)], 4)
    [(0, 1, 2), (0, 2, 3)]
    """
    pairs = {tuple(sorted(columns)) for columns in chosen if len(columns) == 2}
    return sorted({tuple(sorted({*pair, j})) for pair in pairs for j in range(n_columns) if j not in pair})


def by_chance(size: int, n_columns: int, most: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Draw so many sets of columns, and leave out those that come again.

    >>> by_chance(3, 3, 10, np.random.default_rng(0)), by_chance(3, 2, 10, np.random.default_rng(0))
    ([(0, 1, 2)], [])
    """
    if n_columns < size:
        return []
    drawn = (rng.choice(n_columns, size, replace=False).tolist() for _ in range(most))
    return sorted({tuple(sorted(columns)) for columns in drawn})


def groups_in_set(bins: int, size: int) -> int:
    """Groups of a numeric column beside others, where it has so many alone: an even number, so that halves are told."""
    low, high = SETS
    return bins if size == 1 else min(max(2 * (bins // 4), low), high) if size == 2 else low


# Rows times e for an error of about a quarter; limits of the share of what is left.
NEEDS, WEIGHT_SHARES = 20.0, (0.02, 0.1)
MOST_GAIN: Final = SCORE_UNITS  # of one row: a log-odds of 1; 1.5, 2 and 3 were no better and need more
VARY: Final = 0.5  # deviation of the logarithm of the best weight, from table to table; 0.35 and 0.7 were as good
FURTHEST: Final = 2.0  # a weight, or its reciprocal; beyond it a rare class is predicted too often (balance-scale -3)
MADE_UP: Final = 2000  # rows, to know how fast the gain falls with the weight


class BelievedTable(NamedTuple):
    """A table as made-up rows need it: what is believed of its class counts, and what each cell adds to scores."""

    counts: Floats
    scores: Floats


def share_of(purse: Purse, n_rows: float) -> float:
    """Return the share of the budget that the weight of tables gets; 0 where that would be too much of what is left."""
    low, high = WEIGHT_SHARES
    share = max(purse.share(NEEDS / n_rows), low * purse.left)
    return share if share <= high * purse.left else 0.0


def weight_of(
    gain: float, noise: float, n_rows: float, start: Floats, tables: Sequence[BelievedTable], rng: np.random.Generator
) -> float:
    """Return how much tables count, from the gain of all rows, each cut to 1, with its variance of noise.

    One step of Newton's method towards the weight whose gain is the expected one, shortened as the noise, the chance of
    sampling and the usual weights (``VARY``) tell.
    """
    expected, slope = _expected_gain(start, tables, rng)
    expected, slope = n_rows * expected, n_rows * slope
    away = (gain - expected) * VARY**2 * slope / (VARY**2 * slope**2 + slope + noise) if slope > 0 else 0.0
    most = math.log(FURTHEST)
    return math.exp(min(max(away, -most), most))


def _expected_gain(start: Floats, tables: Sequence[BelievedTable], rng: np.random.Generator) -> tuple[float, float]:
    """Return the gain of a row if the shares of classes are as predicted, and how much more it is per weight if not.

    Without cuts the first is 0: what is cut off are mostly losses, of rows about which tables are sure and wrong. Both
    are found on made-up rows whose columns are independent inside a class, as what was released tells them.
    """
    shares = probabilities(start[None])[0]
    target = rng.choice(len(shares), MADE_UP, p=shares)
    scores = np.zeros((MADE_UP, len(start)))
    for table in tables:
        up_to = (table.counts / table.counts.sum(axis=0)).cumsum(axis=0)[:-1]
        drawn = rng.random(MADE_UP)
        for label in range(len(shares)):
            mine = target == label
            scores[mine] += table.scores[np.searchsorted(up_to[:, label], drawn[mine])]
    predicted = probabilities(start + scores)
    said = np.column_stack([np.zeros(MADE_UP), scores]) if len(start) == 1 else scores
    gains = said - (predicted * said).sum(axis=1, keepdims=True)  # by the class that the row has
    cut = np.clip(gains, -MOST_GAIN / SCORE_UNITS, MOST_GAIN / SCORE_UNITS)
    return float((predicted * cut).sum(axis=1).mean()), float((predicted * gains * cut).sum(axis=1).mean())
