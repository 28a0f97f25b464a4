# SPDX-License-Identifier: Apache-2.0
"""How many columns tables of class counts should have, in which shape, at what part of the budget.

Chosen from public facts alone: cells of columns, classes, the noisy number of rows, the price of a step, and how strong
columns are if that has been asked. Columns are unlike: unasked, the i-th best is taken to have the i-th part of the
squared effect of the best one on the log-odds, and each further column of an interaction leaves ``INTERACTS`` of it. An
effect is worth what is left of it after sampling and noise.

| letter | meaning |
|---|---|
| m, g, b | columns measured, columns of one table, groups of a numeric column |
| n, k | rows, classes |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.adaptive.purse import Purse
from veilwood.forests.cells.columns import CellColumn

INTERACTS: Final = 0.05  # measured on the development suite beside 0.2
SHOWN: Final = 1.5  # b groups show 1 - b^-SHOWN of a numeric column's effect; not varied
ENOUGH: Final = 0.97  # of the worth that all of the budget would buy; 0.995 was worse by 1.6 to 4 points
SELECT: Final = 0.2  # of the tables' budget chooses columns where not all are measured
GROUPS: Final = (2, 3, 4, 6, 8, 12, 16)
MOST_TABLE_COLUMNS: Final = 4
MOST_CELLS: Final = 1 << 14
LARGEST_SIZE: Final = 64  # of a column, as far as its size counts in the mean size
PARTS: Final = (1, 0.75, 0.5, 0.35, 0.25, 0.17, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01)  # of the columns, tried as m
STRONG: Final = 0.4  # what a column of effect 1 explains: E|p - 1/2| / (1/2) for log-odds of deviation 1
MOST_EFFECT: Final = 2.0  # deviations of log-odds that one column can have
POWERS: Final = np.linspace(0.0, 3.0, 31)  # tried for the power law of strengths
LEAST_ROUNDS: Final = 250.0  # rows times e below which no round is worth it after tables; measured beside 200 and 400
SETS: Final = (4, 8)  # groups of a numeric column in a set of columns, at least and at most
SHARES: Final = np.geomspace(0.05, 1.0, 25)  # of the budget, tried for tables

Floats = NDArray[np.float64]


class Strengths(NamedTuple):
    """What the best column explains of all there is to explain, and the mean of all columns, as parts of 1."""

    best: float
    mean: float

    def effects(self, n_columns: int) -> Floats:
        """Effects on the squared log-odds, from the best column on: as a power law that has this mean."""
        place = np.arange(1.0, n_columns + 1)
        wanted = min(max(self.mean / max(self.best, 1e-9), 1 / n_columns), 1.0)
        power = next((power for power in POWERS if (place**-power).mean() <= wanted), POWERS[-1])
        return np.asarray(min(max(self.best, 0.0) / STRONG, MOST_EFFECT) ** 2 * place ** (-2 * power))


class TableShape(NamedTuple):
    """A shape of tables, and what it is worth; no columns: nothing is."""

    worth: float
    n_columns: int
    together: int
    bins: int

    @property
    def n_tables(self) -> int:
        """Tables that one row is counted in."""
        return -(-self.n_columns // max(self.together, 1))


class TableShapes:
    """Chooses shapes for one schema and number of rows."""

    def __init__(
        self,
        columns: Sequence[CellColumn],
        n_classes: int,
        n_rows: float,
        gaussian: bool,
        effects: Floats | None = None,
    ) -> None:
        self._n, self._k, self._gaussian = n_rows, n_classes, gaussian
        self._effects = 1 / np.arange(1.0, len(columns) + 1) if effects is None else effects
        self._numeric = float(np.mean([column.ordered for column in columns]))
        self._sizes = [None if column.ordered else column.n_cells for column in columns]  # None: as many as asked for
        self._shapes = [
            (m, g, b) for b in (GROUPS if self._numeric else GROUPS[:1]) for g in self._tables_of(b)
            for m in sorted({min(len(columns), max(g, round(len(columns) * part))) for part in PARTS} | {g})
        ]  # fmt: skip
        self._usual = {b: self._usual_size(b) for b in GROUPS}
        self._own = {b: self._own_sizes(b) for b in GROUPS}

    def best(self, price: float, selecting: float) -> TableShape:
        """Return the shape of largest worth at a price; ``selecting`` is what is left of it after choosing columns."""
        best = TableShape(0.0, 0, 1, GROUPS[0])
        for m, g, b in self._shapes:
            worth = self._worth(selecting if m < len(self._sizes) else price, m, g, b)
            if worth > best.worth + 1e-9:
                best = TableShape(worth, m, g, b)
        return best

    def _tables_of(self, b: int) -> list[int]:
        sizes = sorted((b if size is None else size for size in self._sizes), reverse=True)
        most = min(MOST_TABLE_COLUMNS, len(sizes))
        fits = [g for g in range(2, most + 1) if math.prod(sizes[:g]) * self._k <= MOST_CELLS]
        return [1, *fits]

    def _usual_size(self, b: int) -> float:
        sizes = [b if size is None else min(size, LARGEST_SIZE) for size in self._sizes]
        return float(np.exp(np.log(sizes).mean()))

    def _own_sizes(self, b: int) -> tuple[Floats, Floats, Floats]:
        """Cells of each column, what they can show of its effect, and its share where all columns are counted alone."""
        sizes = np.array([b if size is None else size for size in self._sizes], np.float64)
        shown = np.array([1 - b**-SHOWN if size is None else 1.0 for size in self._sizes])
        return sizes, shown, shares_of_tables(sizes, self._gaussian)

    def _alone(self, price: float, m: int, b: int) -> float:
        """What m columns are worth that are counted alone: any effect may be that of any column."""
        sizes, shown, shares = self._own[b]
        noise = 2 / (price**2 * (shares * len(sizes) / m) ** (1 if self._gaussian else 2))
        rows, effects = self._n / (sizes * self._k), self._effects[:m, None]
        signal = effects * rows**2
        return float((effects * shown * signal / (signal + rows + noise)).mean(axis=1).sum())

    def _worth(self, price: float, m: int, g: int, b: int) -> float:
        if g == 1:
            return self._alone(price, m, b)
        tables, cells = -(-m // g), self._usual[b]
        noise = 2 * tables ** (1 if self._gaussian else 2) / price**2
        shown = self._numeric * (1 - b**-SHOWN) + 1 - self._numeric
        effects = self._effects[:m]
        total = 0.0
        for size, count in ((g, m // g), (m % g, int(m % g > 0))):
            for order in range(1, size + 1):
                rows = self._n / (cells**order * self._k)
                others = noise * cells ** (size - order)
                if order == 1:
                    signal = effects * rows**2
                    total += float((effects * signal / (signal + rows + others)).sum()) * shown * count * size / m
                    continue
                effect = float(effects.mean()) * INTERACTS ** (order - 1)
                signal_of_all = rows**2 * effect
                kept = signal_of_all / (signal_of_all + rows + others)
                total += count * math.comb(size, order) * effect * kept * shown**order
        return total


def shares_of_tables(n_cells: Sequence[int] | Floats, gaussian: bool) -> Floats:
    """Return the share of a budget that each table gets: their cells have the least squared noise together.

    That is the least sum of cells / share^2, or cells / share under rho; cells are rounded to powers of 4, so that
    tables of about one size get the same. Measured: 2,000 towns beside six columns 0.678 -> 0.716 at e = 1, 0.682 ->
    0.739 at 4; 500 towns 0.674 -> 0.690, 0.685 -> 0.706; 21 other tables -0.002 +- 0.002.

    >>> shares_of_tables([4, 5, 256], gaussian=False).round(3).tolist()
    [0.167, 0.167, 0.667]
    """
    weights = 4.0 ** (np.rint(np.log2(n_cells) / 2) * (1 / 2 if gaussian else 1 / 3))
    return np.asarray(weights / weights.sum())


def division(
    columns: Sequence[CellColumn], n_classes: int, n_rows: float, purse: Purse, strengths: Strengths | None = None
) -> tuple[TableShape, float]:
    """Return the shape of tables, and the part of what is left that they get; the rest goes to rounds."""
    effects = strengths.effects(len(columns)) if strengths else None
    shapes, left = TableShapes(columns, n_classes, n_rows, purse.gaussian, effects), purse.left

    prices = np.stack([purse.price(left * SHARES), purse.price(left * SHARES * (1 - SELECT))], axis=1)
    # As much as is needed for nearly all of the worth; the last share is all of it.
    all_of_it = shapes.best(*prices[-1])
    tried = ((part, shapes.best(*price)) for part, price in zip(SHARES[:-1], prices[:-1], strict=True))
    enough = ENOUGH * all_of_it.worth
    part, shape = next(((part, shape) for part, shape in tried if shape.worth >= enough), (1.0, all_of_it))
    if n_rows * purse.price(left * (1 - part)) < LEAST_ROUNDS * (2 if n_classes > 2 else 1):
        return all_of_it, 1.0
    return shape, float(part)


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
