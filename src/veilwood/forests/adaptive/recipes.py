# SPDX-License-Identifier: Apache-2.0
"""Which method PrivateForest uses and in what shape, chosen from public facts alone: schema, budget, number of rows.

Nothing here looks at data or draws noise; the tables themselves are in ``counted_tables``, the rounds in ``rounds``,
the cells in ``fine_cells``.

The prior is the same for every table; its constants were settled on public benchmark tables. Every column has a main
effect on the log-odds of variance ``EFFECT``; each further column of an interaction leaves the part ``DECAY`` of that.
A table of b groups shows the part 1 - 1/b of a numeric column's effect. An effect is worth what is left of it after
noise and sampling, r (its reliability), and main effects that are mostly noise do harm: (1 + HARM) r - HARM.

| letter | meaning |
|---|---|
| m, g, b | columns measured, columns per table, groups of a numeric column |
| n | rows, k classes |
| size | n * epsilon / (half the classes): rows in units of the noise, as many classes share them |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal, TypeAlias

import numpy as np

from veilwood.data.encoding import EncodedColumn
from veilwood.privacy.loss import Loss, exact
from veilwood.privacy.sparse_noise import LARGEST_SPARSE_SCALE

Method: TypeAlias = Literal["prior", "tables", "boosting", "cells"]

EFFECT: Final = 1.0
DECAY: Final = 0.2
HARM: Final = 1.0
HOPELESS: Final = 0.1  # reliability of a single column below which nothing but the classes is measured,
# and rows times epsilon, altogether and for each column, below which nothing but the mean of a numeric target is.
HOPELESS_ROWS, HOPELESS_PER_COLUMN = 400.0, 40.0
MOST_TABLE_COLUMNS: Final = 4
MOST_CELLS: Final = 1 << 14
FEWEST_BINS, MOST_BINS = 3, 16

# A wide table of which not all columns are affordable: a part of the budget chooses the most telling ones, as many as
# the square root of the size over ROWS_PER_CHOICE.
WIDE: Final = 16
ROWS_PER_CHOICE: Final = 60.0
CHOICE_SHARE: Final = 0.25

# From this size on for each numeric column of the tables, a part of the budget finds private quantiles to cut at.
# Groups of equal width are as good where values are spread evenly over the bounds, and useless where they are not.
QUANTILES_FROM: Final = 100.0
QUANTILE_SHARE: Final = 0.2

# Fine cells (``fine_cells``): from LEAST_RICH on, epsilon for one count, a cell of one row stands out. They are used if
# the affordable ones have the part COVERED of the bits that all columns have in WANTED_GROUPS groups each, or from RICH
# on if they have HARDLY_COVERED; with a delta rounds are better up to RICH_WITH_DELTA. They are for classes: noise put
# groups of a numeric target whose bounds are too wide into the empty part, too often to be trusted.
LEAST_RICH: Final = 4.0
COVERED, HARDLY_COVERED = 0.8, 0.25
WANTED_GROUPS: Final = 16
RICH, RICH_WITH_DELTA = 12.0, 18.0
COLUMN_SHARE: Final = Fraction(1, 10)  # of the budget, for what each column tells about the target
FINDS_PER_ROW: Final = 0.5  # empty cells that turn up by chance, mostly far from all rows,
MOST_FINDS: Final = 1 << 22  # and so many at most, however many rows there are said to be

# Size from which correlations between tables hurt more than rounds cost: with a delta, and with one where tables could
# carry less than the part FEW_CARRIED of the columns; without a delta, for each column, or for each value but one of a
# column of few values,
BOOSTING_FROM, BOOSTING_WIDE_FROM, FEW_CARRIED = 4000.0, 2000.0, 1 / 8
BOOSTING_PER_COLUMN, BOOSTING_PER_VALUE = 800.0, 200.0
ONE_TABLE_FROM: Final = 40_000.0  # and, where one table holds all columns, from which its cells are too coarse
BOOSTING_BINS: Final = (8, 32)
NOISE_PER_CELL: Final = 0.06  # of the rows in an average cell, the noise that a round may have
MOST_PASSES: Final = 6
MOST_TREES: Final = 400
DEPTHS: Final = (3, 6)
ROWS_SHARE: Final = Fraction(1, 50)  # of the budget, for the number of rows where it is not public
CUT_SHARE, START_SHARE = 0.05, 0.03  # of the budget
# Regression: what a histogram of the target, and each of residuals, gets: so many rows times epsilon, between limits.
TARGET_NEEDS, TARGET_SHARES = 200.0, (0.03, 0.2)
SPREAD_NEEDS, SPREAD_SHARES = 100.0, (0.01, 0.03)
COUNT_SHARE: Final = 0.2  # of a round's budget, what the numbers of rows in its cells get


@dataclass(frozen=True)
class Recipe:
    """A method and its shape.

    Attributes
    ----------
    method : {"prior", "tables", "boosting", "cells"}
        Only how frequent classes are, or the mean; counted tables of few columns; rounds of gradient steps; an ordinary
        forest, or an additive model, learned from cells so fine that most rows have one of their own.
    n_rows : int
        The number of rows it was chosen for.
    n_columns, group, bins : int
        Tables: columns measured, columns of one table. Tables and boosting: groups of a numeric column, if any.
    passes, trees, depth : int
        Boosting: passes over all columns one by one, then so many random trees of this depth.
    selects : bool
        Tables: whether columns are chosen privately, by how well each tells classes apart, or drawn by chance.
    quantiles : bool
        Tables: whether numbers are cut at private quantiles, or into groups of equal width.
    gaussian : bool
        Whether Gaussian noise is smaller than Laplace noise here; False needs no delta.
    """

    method: Method
    n_rows: int
    n_columns: int = 0
    group: int = 0
    bins: int = 0
    passes: int = 0
    trees: int = 0
    depth: int = 0
    gaussian: bool = False
    selects: bool = False
    quantiles: bool = False

    def rounds(self, n_columns: int) -> int:
        """Rounds of boosting over a table with so many columns."""
        return self.passes * n_columns + self.trees

    def in_words(self, n_columns: int) -> str:
        """Say what is done and why, for the plan of a table with so many columns."""
        match self.method:
            case "prior":
                return (
                    "so few rows at this epsilon show nothing but how frequent the classes are, or the mean of the "
                    "target: that is predicted"
                )
            case "tables":
                how = "chosen privately as the most telling" if self.selects else "drawn by chance"
                measured = _number(self.n_columns, "column") + (f", {how}," if self.n_columns < n_columns else "")
                width = "between private quantiles" if self.quantiles else "of equal width"
                numbers = f", numbers in about {self.bins} groups {width}" if self.bins else ""
                return (
                    f"few rows for this epsilon, so {measured} counted in "
                    f"tables of up to {_number(self.group, 'column')}{numbers}; their evidence is multiplied"
                )
            case "cells":
                return (
                    "rows counted in cells as fine as this epsilon allows, and an ordinary forest, or an additive "
                    "model, learned from those that come out; where epsilon is rich, most rows have a cell of their "
                    "own that comes out as it is: little of a single row is hidden"
                )
            case _:
                trees = f", then {_number(self.trees, 'random tree')} of depth {self.depth}" if self.trees else ""
                return (
                    "rows enough at this epsilon for gradient boosting: "
                    f"{_number(self.passes, 'pass', 'passes')} over the columns one by one, numbers in up to "
                    f"{self.bins} groups between private quantiles{trees}"
                )


def _number(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def uses_cells(columns: Sequence[EncodedColumn], n_classes: int, n_rows: int | None, loss: Loss, reach: int) -> bool:
    """Whether a budget is rich enough for fine cells; ``reach`` is how far one unit can move a count.

    Without the number of rows only the budget is looked at.
    """
    if not n_classes:
        return False
    if loss.epsilon is None:
        return True
    epsilon = float(loss.epsilon) / reach
    if n_rows is None:
        return epsilon >= RICH_WITH_DELTA
    wanted = sum(math.log2(WANTED_GROUPS if column.ordered else min(column.n_codes, WANTED_GROUPS))
                 for column in columns)  # fmt: skip
    covered = cell_bits(n_classes, n_rows, epsilon) / max(wanted, 1.0)
    if epsilon >= (RICH if loss.delta == 0 else RICH_WITH_DELTA):
        return covered >= HARDLY_COVERED
    return loss.delta == 0 and epsilon >= LEAST_RICH and covered >= COVERED


def chance_finds(n_rows: int) -> float:
    """How many empty cells may turn up by chance."""
    return min(FINDS_PER_ROW * n_rows, MOST_FINDS)


def poorest_for_cells(reach: int) -> Fraction:
    """The epsilon below which the noise of fine cells would exceed what ``sparse_counts`` allows."""
    return Fraction(reach, LARGEST_SPARSE_SCALE) / ((1 - COLUMN_SHARE) * (1 - ROWS_SHARE))


def cell_bits(n_classes: int, n_rows: int, epsilon: float) -> float:
    """Bits that the affordable cells have for columns; ``epsilon`` is for one count."""
    finds = math.log2(max(chance_finds(n_rows), 1.0)) + epsilon * float(1 - COLUMN_SHARE) * math.log2(math.e)
    return finds - math.log2(n_classes)


def choose(
    columns: Sequence[EncodedColumn],
    n_classes: int,
    n_rows: int,
    loss: Loss,
    method: Method | None = None,
    reach: int = 1,
) -> Recipe:
    """Choose a recipe; ``n_classes`` is 0 for regression, ``reach`` how far one unit can move a count.

    >>> from fractions import Fraction
    >>> numeric = [EncodedColumn(f"x{i}", True, 65535, None) for i in range(10)]
    >>> budget = Loss.pure(Fraction(1))
    >>> choose(numeric, 2, 300, budget).method, choose(numeric, 2, 30_000, budget).method
    ('tables', 'boosting')
    >>> choose(numeric, 2, 20, Loss.pure(Fraction(1, 100))).method
    'prior'
    """
    epsilon = 1e6 if loss.epsilon is None else float(loss.epsilon)  # None: no noise
    n_rows = max(1, n_rows)
    if method == "cells" or (method is None and uses_cells(columns, n_classes, n_rows, loss, reach)):
        return Recipe("cells", n_rows, len(columns))
    if method is None:
        size = _size(n_rows, n_classes, epsilon)
        if not n_classes and size < max(HOPELESS_ROWS, HOPELESS_PER_COLUMN * len(columns)):
            return Recipe("prior", n_rows)
        enough = size >= _boosting_from(columns, _carried(n_rows, epsilon), loss)
        method = "boosting" if not n_classes or enough else "tables"
    if method == "boosting":
        return _boosting(columns, n_classes, n_rows, loss, epsilon)
    return _tables(columns, n_classes, n_rows, epsilon)


def _size(n_rows: int, n_classes: int, epsilon: float) -> float:
    """Rows in units of the noise, as many classes share them."""
    return n_rows * epsilon / max(1.0, n_classes / 2)


def _carried(n_rows: int, epsilon: float) -> int:
    """How many columns tables can carry."""
    return math.isqrt(int(n_rows * epsilon / ROWS_PER_CHOICE))


def _boosting_from(columns: Sequence[EncodedColumn], carried: int, loss: Loss) -> float:
    """The size from which boosting is better than tables that can carry so many columns."""
    if len(columns) <= MOST_TABLE_COLUMNS:
        return ONE_TABLE_FROM
    if loss.delta > 0:
        return BOOSTING_WIDE_FROM if carried < FEW_CARRIED * len(columns) else BOOSTING_FROM
    values = [math.inf if column.ordered else column.n_codes - 1 for column in columns]
    return sum(min(BOOSTING_PER_COLUMN, BOOSTING_PER_VALUE * number) for number in values)


def start_shares(n_classes: int, n_rows: int, loss: Loss) -> tuple[Fraction, Fraction]:
    """Parts of a budget of boosting for its start and, for a numeric target, for each look at the residuals."""
    if n_classes:
        return exact(START_SHARE), Fraction(0)
    size = math.inf if loss.epsilon is None else n_rows * float(loss.epsilon)
    target, spread = (
        exact(round(min(max(needs / size, least), most), 4))
        for needs, (least, most) in ((TARGET_NEEDS, TARGET_SHARES), (SPREAD_NEEDS, SPREAD_SHARES))
    )
    return target, spread


def _gradient_norm(n_classes: int) -> float:
    """The L1 norm (and squared L2 norm) of one row's gradient, at most: two classes need one number."""
    return 2.0 if n_classes > 2 else 1.0


def _tables(columns: Sequence[EncodedColumn], n_classes: int, n_rows: int, epsilon: float) -> Recipe:
    bins = round(min(max((n_rows * epsilon) ** 0.25, FEWEST_BINS), MOST_BINS))
    bins *= any(column.ordered for column in columns)
    sizes = np.array([bins if column.ordered else column.n_codes for column in columns], float)
    shown = float(np.mean([1 - 1 / bins if column.ordered else 1.0 for column in columns]))
    usual, widest = float(np.exp(np.log(sizes).mean())), np.sort(sizes)[::-1]
    if _reliability(n_rows, n_classes, epsilon, usual) < HOPELESS:
        return Recipe("prior", n_rows)
    best, best_worth = Recipe("prior", n_rows), -math.inf
    for group in range(1, min(MOST_TABLE_COLUMNS, len(columns)) + 1):
        if math.prod(widest[:group]) * n_classes > MOST_CELLS and group > 1:
            break
        for n_columns in _column_numbers(len(columns), group):
            worth = _worth(n_rows, n_classes, epsilon, usual, shown, n_columns, group)
            if worth > best_worth:
                best, best_worth = Recipe("tables", n_rows, n_columns, group, bins), worth
    affordable = _carried(n_rows, epsilon)
    if len(columns) >= WIDE and 0 < affordable < len(columns):
        pairs = affordable > 1 and widest[0] * widest[1] * n_classes <= MOST_CELLS  # any two may be chosen
        best = Recipe("tables", n_rows, min(affordable, len(columns)), 1 + pairs, bins, selects=True)
    numeric = min(sum(column.ordered for column in columns), best.n_columns)
    affordable_cuts = _size(n_rows, n_classes, epsilon) >= QUANTILES_FROM * numeric
    return replace(best, quantiles=numeric > 0 and affordable_cuts)


def _reliability(n_rows: int, n_classes: int, epsilon: float, cells: float) -> float:
    """How much of the effect of one column, measured alone with the whole budget, is not noise."""
    rows = n_rows / (cells * n_classes)
    return rows**2 * EFFECT / (rows**2 * EFFECT + rows + 2 / epsilon**2)


def _column_numbers(n_columns: int, group: int) -> list[int]:
    """Numbers of columns to consider: all, three quarters, half, a quarter, an eighth, three, one table."""
    parts = (n_columns, 3 * n_columns // 4, n_columns // 2, n_columns // 4, n_columns // 8, 3, group)
    return sorted({min(max(group, part), n_columns) for part in parts}, reverse=True)


def _worth(n: int, k: int, epsilon: float, cells: float, shown: float, m: int, g: int) -> float:
    """The expected effect that so many columns, in tables of g, show after noise and sampling."""
    noise = 2 * (math.ceil(m / g) / epsilon) ** 2
    total = 0.0
    for size in [g] * (m // g) + [m % g] * (m % g > 0):
        for order in range(1, size + 1):
            effect = EFFECT * DECAY ** (order - 1)
            rows = n / (cells**order * k)  # of one class in a cell of these columns
            signal = rows**2 * effect
            reliability = signal / (signal + rows + noise * cells ** (size - order))
            worth = (1 + HARM) * reliability - HARM if order == 1 else reliability
            total += math.comb(size, order) * effect * worth * shown**order
    return total


def _boosting(columns: Sequence[EncodedColumn], n_classes: int, n_rows: int, loss: Loss, epsilon: float) -> Recipe:
    norm, kept = _gradient_norm(n_classes), 1 - COUNT_SHARE
    power = math.floor(math.log2(max(n_rows * epsilon, 1.0)) / 3)
    bins = min(max(2**power, BOOSTING_BINS[0]), BOOSTING_BINS[1])
    noise = NOISE_PER_CELL * n_rows / bins
    by_laplace = noise * kept * epsilon / (math.sqrt(2) * norm)
    by_gauss = 0.0 if loss.delta == 0 or loss.rho is None else noise**2 * 2 * float(loss.rho) * kept / norm
    affordable = max(by_laplace, by_gauss, 1.0)
    n_columns = len(columns)
    passes = int(min(max(affordable // n_columns, 1), MOST_PASSES))
    trees = int(min(max(affordable - passes * n_columns, 0), MOST_TREES))
    rounds = passes * n_columns + trees
    laplace = math.sqrt(2) * rounds * norm / (kept * epsilon)  # standard deviation of the noise in a cell, in rows
    gauss = math.sqrt(rounds * norm / (2 * float(loss.rho or 1) * kept)) if by_gauss else math.inf
    gaussian = gauss < laplace
    depth = math.floor(math.log2(max(NOISE_PER_CELL * n_rows / min(gauss, laplace), 1)))
    depth = min(max(depth, DEPTHS[0]), DEPTHS[1])
    return Recipe("boosting", n_rows, n_columns, 0, bins, passes, trees, depth, gaussian)
