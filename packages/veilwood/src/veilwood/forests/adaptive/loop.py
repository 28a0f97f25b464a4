# SPDX-License-Identifier: Apache-2.0
"""One adaptive loop: start, tables of class counts, then rounds that choose what to measure next.

Every step is planned from what was released before, and passes the door. The start tells how many rows there are and
where a row begins about which nothing is known. Tables (classes) count columns, all of them if that pays. A round
chooses the column or pair that explains most of what is left, measures rows and gradients in its cells, and takes a
step as far as the noise allows. All constants are for the epsilon e of one row (``privacy.purse``); where they come
from is said beside them: measured means on the development suite of benchmarks/suite.py (results/constants.md there).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import TARGET_LEVELS
from veilwood.estimators.method import Asked
from veilwood.forests.adaptive import row_backend as asked
from veilwood.forests.adaptive import sparse_histogram as cell_forests
from veilwood.forests.adaptive.contingency import TINY, CellColumn, CellTable, divided
from veilwood.forests.adaptive.effects import Seen, TableScores
from veilwood.forests.adaptive.row_backend import (
    GRADIENT_UNITS,
    LEVEL_UNITS,
    SCORE_UNITS,
    TARGET_CELLS,
    AskedRows,
    dearer,
    n_outputs,
    reach,
)
from veilwood.forests.adaptive.shrinkage import believed_counts, evidence, newton_step, shrunken_mean, totals_of
from veilwood.forests.adaptive.sparse_histogram import CELL_SHARE, may_win
from veilwood.forests.adaptive.sparse_histogram import measure as measure_cells
from veilwood.forests.adaptive.table_design import (  # fmt: skip
    GROUPS,
    MOST_GAIN,
    SCORE_GROUPS,
    SELECT,
    BelievedTable,
    Borders,
    Strengths,
    by_chance,
    division,
    groups_in_set,
    one_may_tell,
    share_of,
    triples,
    weight_of,
)
from veilwood.privacy.adaptive_budget import Purse, TablesName, count_tables
from veilwood.privacy.loss import Loss
from veilwood.privacy.steps import Step
from veilwood.progress import track

START: Final = 0.05  # share for class counts, or the number of rows: n e is then known to 28
# Rows times e below which only the mean of numbers is asked for; measured.
LEAST_START: Final = 200.0
# Rows times e that a histogram of the target needs, and limits of its share.
TARGET_NEEDS, TARGET_SHARES = 100.0, (0.05, 0.25)
# Rounds: T rounds have n e = ROUND_NEEDS T^(1/ROUND_POWER) together; 75 and 150 were worse, and so was a power of 0.75.
ROUND_NEEDS, ROUND_POWER, MOST_ROUNDS = 300.0, 0.6, 80
ROUND_BINS: Final = (0.35, 3, 16)  # groups: a power of rows times e of a round, and limits
# Rounds up to which the weight of tables is asked (``weighing``); more bring themselves what is missing; measured.
FEW_ROUNDS: Final = 3
RICH_WITH_DELTA: Final = 18.0  # the e from which on fine cells are better than rounds with a delta


def first_step(purse: Purse, n_classes: int, n_rows: int | None) -> Step:
    """Take the first step out of a full purse."""
    if n_classes:
        return purse.counting("class counts", (n_classes,), START)
    if n_rows is None:
        return purse.counting("number of rows", (1,), START)
    return mean_step(purse) if n_rows * purse.whole < LEAST_START else target_step(purse, float(n_rows))


def mean_step(purse: Purse) -> Step:
    """All that is left, on the mean of a numeric target."""
    return purse.counting("sums of the target", (2,), purse.left, l1=TARGET_LEVELS, squared_l2=TARGET_LEVELS**2)


def target_step(purse: Purse, n_rows: float) -> Step:
    """A histogram of a numeric target."""
    low, high = TARGET_SHARES
    return purse.counting(
        "histogram of the target", (TARGET_CELLS,), min(max(purse.share(TARGET_NEEDS / n_rows), low), high)
    )


def schedule(n_rows: float, purse: Purse, share: float, outputs: int) -> tuple[int, int]:
    """Return how many rounds a share of the budget is for, and groups of a numeric column in them."""
    t: NDArray[np.float64] = np.arange(1.5, MOST_ROUNDS)
    paid = n_rows * purse.price(share / t) / outputs >= ROUND_NEEDS * t ** (1 / ROUND_POWER - 1)
    n_rounds = 1 + int(paid.sum())  # what a round gets falls with their number, and what it needs grows
    power, fewest, most = ROUND_BINS
    return n_rounds, min(max(round((n_rows * purse.price(share / n_rounds) / outputs) ** power), fewest), most)


def few_rounds(n_rows: float, purse: Purse, share: float, n_classes: int) -> bool:
    """Whether a share of the budget is for few rounds, or none."""
    return share <= 0 or schedule(n_rows, purse, share, dearer(n_classes))[0] <= FEW_ROUNDS


# -- by epsilon or by rho ------------------------------------------------------------------------------------------


def chosen_loss(columns: Sequence[CellColumn], n_classes: int, n_rows: int | None, asked: Asked) -> Loss:
    """Return the loss that is promised: with a delta, pure epsilon where so few steps come that it is more.

    Without a number of rows that is not known before the first step has told it: then either way is.
    """
    loss = asked.loss
    if loss.delta == 0 or loss.epsilon is None:
        return loss
    pure = Loss.pure(loss.epsilon)
    by_epsilon = Purse(pure, asked.neighbours)
    if n_rows is None:
        fine_cells = n_classes and by_epsilon.whole >= RICH_WITH_DELTA
        return pure if fine_cells else Loss.pure_or_zcdp(loss.epsilon, loss.delta)
    by_rho = Purse(loss, asked.neighbours)
    return loss if pays_by_rho(columns, n_classes, float(n_rows), by_epsilon, by_rho) else pure


def settled(columns: Sequence[CellColumn], n_classes: int, n_rows: float, purse: Purse) -> Purse:
    """Return the purse by rho, where it may be spent so and so many steps come that it is more."""
    other = purse.by_rho()
    return other if other and pays_by_rho(columns, n_classes, n_rows, purse, other) else purse


def pays_by_rho(columns: Sequence[CellColumn], n_classes: int, n_rows: float, by_epsilon: Purse, by_rho: Purse) -> bool:
    """Whether rho buys more for so many rows.

    By prices: steps of equal parts are worth more under rho from as many on as the square of how much more the whole is
    worth by epsilon. Tables that get their noise together need less. By rho every number has a histogram of all its
    cells before them, a step each; by epsilon they have coarse ones together (the robot at e = 1, 24 columns of
    numbers: 0.79 by epsilon without any, 0.84 by rho). Fine cells take pure epsilon.
    """
    if n_classes and by_epsilon.whole >= RICH_WITH_DELTA:
        return False
    n_steps: float = schedule(n_rows, by_rho, by_rho.left, dearer(n_classes))[0]
    if n_classes:
        shape, _ = division(columns, n_classes, n_rows, by_epsilon, by_epsilon.left)
        n_histograms = sum(column.ordered for column in columns) * shape.n_columns / len(columns)
        n_steps = max(n_steps, shape.steps_by_rho + n_histograms)
    return n_steps >= (by_epsilon.price(by_epsilon.left) / by_rho.price(by_rho.left)) ** 2


# -- in words ------------------------------------------------------------------------------------------------------


def in_words(columns: Sequence[CellColumn], n_classes: int, n_rows: int, purse: Purse) -> str:
    """Say what the loop would do for so many rows."""
    first_step(purse, n_classes, None)
    purse = settled(columns, n_classes, float(n_rows), purse)
    left, said = purse.left, []
    if n_classes:
        weight_share = share_of(purse, float(n_rows))
        left -= weight_share
        shape, part = division(columns, n_classes, float(n_rows), purse, left)
        if not shape.n_columns:
            return "nothing but how frequent the classes are would stand out: that is predicted"
        how = "all" if shape.n_columns == len(columns) else f"{shape.n_columns} privately chosen"
        tells = one_may_tell(columns, purse, float(n_rows) * purse.price(left))
        asked = weight_share and few_rounds(float(n_rows), purse, left * (1 - part), n_classes)
        said.append(
            f"class counts of {how} of {len(columns)} columns{' (or fewer, if one tells much)' if tells else ''}, "
            f"with {part:.0%} of what is left{', and how much they should count together' if asked else ''}"
        )
        left *= 1 - part
    elif n_rows * purse.whole < LEAST_START:
        return "nothing but the mean of the target would stand out: that is predicted"
    if left > 0:
        n_rounds, bins = schedule(float(n_rows), purse, left, dearer(n_classes))
        times = "1 round, which" if n_rounds == 1 else f"{n_rounds} rounds, each of which"
        said.append(
            f"{times} chooses a column or pair by what it explains of the rest and measures it, numbers in up to "
            f"{bins} groups"
        )
    return "; then ".join(said)


COUNTED: Final = TablesName("table", "classes by cell")
FEWEST_ROWS: Final = 10.0
# So many times as many rows declared as there can be, with so many standard errors: the count is believed; measured.
MISTAKEN, SURELY = 4.0, 3.0
# Numbers: rows times e that the mean of residuals and a histogram of residuals need, and limits of their shares.
MEAN_NEEDS, MEAN_SHARE = 30.0, 0.15
SPREAD_NEEDS, SPREAD_SHARE, SPREAD_PART, SPREAD_AT = 40.0, 0.5, 0.9, (4, 2)
MARKED, BEYOND = 0.8, 1.5  # the limit of residuals is BEYOND times the mark below which MARKED of the rows lie
RESIDUAL_MARKS: Final = np.geomspace(1e-3, 1.0, 17)[1:]
# Rows times e below which no round is worth it. After tables ``division`` asks for more, of the rows as they were known
# then: what it left for rounds is spent on them.
LEAST_ALONE: Final = 30.0
# Rows times e for each log-candidate, and limits of a round's share; measured.
CHOICE_NEEDS, CHOICE_SHARES = 30.0, (0.2, 0.35)
# Of the rest, for the rows of cells; and how far these are from the product of histograms, as a part of it, where not
# all columns have one and where they have; measured.
COUNT_SHARE, AWAY, AWAY_IF_KNOWN = 0.25, 1.0, 0.25
# Pairs are drawn; chosen ones are tried with a column more from so many rows times e of a round on; measured.
MOST_PAIRS, MOST_TRIPLES, TRIPLE_NEEDS, MOST_SET_CELLS = 200, 200, 1000.0, 64
# Every so many rounds triples by chance are tried too, not in all: they take the place of pairs; measured.
CHANCE_EVERY: Final = 4
# From the third round on borders of groups that are known move by chance, up to half a group: many rounds see finer
# than one; measured.
MOVED, MOVED_FROM = 0.5, 2
SCORED_ROWS: Final = 1 << 16  # so many rows judge candidates well enough
NOISE_SHOWN: Final = 0.8  # of the noise's scale, what it adds to the size of a sum
SPREAD_OF_NUMBERS: Final = 0.2  # of a gradient of numbers, its variance
# Strengths of columns (``shapes``): rows times e for both numbers with an error of 0.025, for the first alone with one
# of 0.05, and of 0.1; the least and the largest share. Measured.
STRENGTH_NEEDS, STRENGTH_SHARES = ((2, 120.0), (1, 32.0), (1, 16.0)), (0.01, 0.1)
OVER_LARGEST: Final = 0.1  # how far above the share of the largest class the gradient of two classes is cut
# Fine cells: a part of the rows is held back to choose what they count; rows times e that the choice needs, and limits.
HELD_BACK, WEIGHTS, GATE_NEEDS, GATE_SHARES = 0.1, (0.0, 0.5, 1.0), 40.0, (0.01, 0.1)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Learned:
    """What was released; public. Scores are whole numbers (``rows``)."""

    start: NDArray[np.int32]
    steps: list[TableScores] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    rows: float = 0.0
    limit: int = GRADIENT_UNITS
    first_limit: int = GRADIENT_UNITS
    n_counted: int = 0  # of the steps, those that are tables of class counts
    cells: cell_forests.GrownForest | None = None
    weight: float = 0.0


class Loop:
    """The loop, for one table: ``columns`` in cells, 0 classes for a number, rows that can be asked, a purse."""

    def __init__(
        self,
        columns: Sequence[CellColumn],
        n_classes: int,
        rows: AskedRows,
        purse: Purse,
        n_rows: int | None,
        rng: np.random.Generator,
        n_jobs: int | None = None,
    ) -> None:
        self._columns, self._k, self._rows, self._purse, self._rng = columns, n_classes, rows, purse, rng
        self._known = n_rows
        self._n = float(n_rows or 0)
        self._borders = Borders(rows, len(columns))
        self._limit = GRADIENT_UNITS
        self._shares = np.full(max(n_classes, 1), 1 / max(n_classes, 1))
        self._learned = Learned(np.zeros(n_outputs(n_classes), np.int32))
        self._gate = 0.0
        self._n_jobs = n_jobs

    def run(self) -> Learned:
        """Carry it out."""
        if self._k:
            self._start_classes()
            rich = not self._purse.gaussian and may_win(self._columns, self._k, self._n, self._purse.whole)
            if rich and self._rows.holds_back:
                self._hold_back()
            self._tables()
        else:
            self._start_numbers()
        self._rounds()
        if self._gate:
            self._try_cells()
        self._learned.rows, self._learned.limit = self._n, self._limit
        return self._learned

    # -- start -------------------------------------------------------------------------------------------------------

    def _start_classes(self) -> None:
        step, declared = first_step(self._purse, self._k, self._known), self._known is not None
        self._counts = self._purse.measure(step, self._rows.ask(asked.ClassCounts(self._k)))
        self._counts_variance = step.variance
        counted = max(float(self._counts.sum()), FEWEST_ROWS, 1 / self._purse.whole)
        error = (self._k * step.variance) ** 0.5
        if self._known and self._known > MISTAKEN * (counted + SURELY * error):
            self._known, counted = None, counted + error  # far more rows were declared than are there
        self._n = float(self._known or counted)
        if not declared:
            self._purse = settled(self._columns, self._k, self._n, self._purse)
        self._begin_classes(totals_of([self._counts], [step.variance], self._n))
        self._learned.first_limit = self._limit

    def _begin_classes(self, totals: Floats) -> None:
        """Start from class totals; the limit of a gradient follows from the largest."""
        self._shares = totals / totals.sum()
        logs = np.log(self._shares)
        scores = logs[1:] - logs[:1] if self._k == 2 else logs
        self._begin(np.rint(scores * SCORE_UNITS).astype(np.int32))
        if self._k == 2:
            self._limit = min(GRADIENT_UNITS, int(GRADIENT_UNITS * (float(self._shares.max()) + OVER_LARGEST)))

    def _begin(self, start: NDArray[np.int32]) -> None:
        self._rows.add(CellTable(()), (start - self._learned.start)[None])
        self._learned.start = start

    def _start_numbers(self) -> None:
        purse = self._purse
        counted, variance = float(self._known or 0), 0.0
        if self._known is None:
            step = first_step(purse, 0, None)
            counted, variance = float(purse.measure(step, self._rows.ask(asked.RowCount()))[0]), step.variance
            self._n = max(counted, FEWEST_ROWS, 1 / purse.whole)
            self._purse = purse = settled(self._columns, 0, self._n, purse)
        levels = TARGET_LEVELS * LEVEL_UNITS
        if self._n * purse.whole < LEAST_START:
            step = first_step(purse, 0, self._known) if self._known else mean_step(purse)
            up, down = purse.measure(step, self._rows.ask(asked.TargetSums())) / TARGET_LEVELS
            noise = 2 * step.variance / TARGET_LEVELS**2  # of the sum and of the difference of both
            pooled = (noise * counted + variance * (up + down)) / (noise + variance) if noise else up + down
            self._n = max(pooled, up + down - SURELY * noise**0.5, FEWEST_ROWS)
            self._begin(np.array([round(shrunken_mean(up - down, noise, self._n) * levels)], np.int32))
            return
        step = first_step(purse, 0, self._known) if self._known else target_step(purse, self._n)
        seen = purse.measure(step, self._rows.ask(asked.TargetHistogram()))
        if self._known and self._n > MISTAKEN * (total := max(float(seen.sum()), FEWEST_ROWS)):
            self._n = total + (TARGET_CELLS * step.variance) ** 0.5  # far more rows were declared than are there
        even = np.full(TARGET_CELLS, 1 / TARGET_CELLS)
        mass = divided(seen, even, step.variance, self._n)
        mass /= mass.sum()
        middle = (np.arange(TARGET_CELLS) + 0.5) / TARGET_CELLS
        mean = float((mass * middle).sum())
        away = np.abs(middle - mean) + 0.5 / TARGET_CELLS
        order = np.argsort(away, kind="stable")
        mark = away[order][np.searchsorted(np.cumsum(mass[order]), MARKED)]
        self._limit = max(1, round(min(BEYOND * float(mark), 1.0) * levels))
        self._begin(np.array([round(mean * levels)], np.int32))
        # The histogram's mean leans to the middle: residuals from it, cut, tell where the mean is.
        share = min(purse.share(MEAN_NEEDS / self._n), MEAN_SHARE)
        step = purse.counting("sum of residuals", (1, 1), share, **self._norms(), signed=True)
        (rest,) = purse.measure(step, self._sums([CellTable(())])[0]).ravel() / GRADIENT_UNITS
        kept = max(0.0, 1 - step.variance / GRADIENT_UNITS**2 / max(rest**2, TINY))
        moved = self._limit * min(max(kept * rest / self._n, -1.0), 1.0)
        self._begin(self._learned.start + np.int32(round(moved)))

    # -- fine cells, where the budget is rich ------------------------------------------------------------------------

    def _hold_back(self) -> None:
        """Keep a part of the rows, and of the budget, to try fine cells; the loop goes on with the others."""
        self._rows.hold_back(HELD_BACK)
        low, high = GATE_SHARES
        self._gate = min(max(self._purse.share(GATE_NEEDS / (HELD_BACK * self._n)), low), high)
        self._purse.set_aside(CELL_SHARE + self._gate)
        kept = 1 - HELD_BACK
        self._n *= kept
        self._known = None if self._known is None else max(1, round(kept * self._known))
        self._counts, self._counts_variance = self._counts * kept, self._counts_variance * kept**2

    def _try_cells(self) -> None:
        """Learn from fine cells, and let the rows that were held back choose how much they count."""
        self._purse.set_aside(0.0)
        cells = measure_cells(self._columns, self._k, self._n, self._rows, self._purse, self._rng)
        grown = cell_forests.grow(cells, self._k, self._rng, self._n_jobs)
        step = self._purse.choosing("weight of fine cells", len(WEIGHTS), self._purse.left, score_range=1)
        right = self._rows.ask_held_back(cell_forests.RightAnswers(self._columns, grown, WEIGHTS))
        self._learned.weight = WEIGHTS[self._purse.choose(step, right)]
        self._learned.cells = grown if self._learned.weight else None
        self._learned.told.append(f"fine cells, which count {self._learned.weight:.0%}")

    # -- what steps share --------------------------------------------------------------------------------------------

    def _norms(self) -> dict[str, int]:
        l1, squared = reach(self._k, self._limit)
        return {"l1": l1, "squared_l2": squared}

    def _sums(self, tables: Sequence[CellTable], share: float = 1.0) -> tuple[Ints, float]:
        """Ask for gradient sums, of a share of the rows where that will do; return the share that was asked."""
        question = asked.GradientSums(tables, self._k, self._limit)
        return (self._rows.ask(question), 1.0) if share >= 1 else self._rows.ask_some(question, share)

    @property
    def _variance(self) -> float:
        """Of a gradient, of rows that nothing is known about."""
        return float((self._shares * (1 - self._shares)).mean()) if self._k else SPREAD_OF_NUMBERS

    def _scores(self, tables: Sequence[CellTable], price: float | None) -> tuple[Ints, float]:
        """How much each table shows of what is left: the size of its gradient sums, less what chance and noise add.

        Of very many rows some judge, by their secret coins: the part that did is returned too.
        """
        some = self._n > 2 * SCORED_ROWS and not self._purse.among_servers  # who must all ask about the same rows
        sums, part = self._sums(tables, SCORED_ROWS / self._n if some else 1.0)
        sums = np.abs(sums).sum(axis=1)
        sizes = np.array([table.n_cells for table in tables])
        found = np.add.reduceat(sums, np.append(0, np.cumsum(sizes)[:-1]))
        outputs = n_outputs(self._k)
        chance = outputs * np.sqrt(2 / math.pi * self._n * part * sizes * self._variance)
        noise = 0.0 if price is None else NOISE_SHOWN * sizes * outputs * self._norms()["l1"] / GRADIENT_UNITS / price
        return found - ((chance + noise * part) * GRADIENT_UNITS).astype(np.int64), part

    def _columns_alone(self, n_groups: int) -> list[CellTable]:
        return [CellTable((self._borders.axis(column, n_groups),)) for column in self._columns]

    def _take(self, table: CellTable, values: Floats, seen: Seen, units: int) -> None:
        whole = np.rint(values * units).astype(np.int32)
        self._rows.add(table, whole)
        self._learned.steps.append(TableScores(table, whole, seen))

    # -- tables ------------------------------------------------------------------------------------------------------

    def _tables(self) -> None:
        purse, strengths = self._purse, self._strengths()
        if strengths and self._n * purse.price(purse.left) >= strengths.rounds_from(self._k):
            return
        weight_share = 0.0 if purse.among_servers else share_of(purse, self._n)
        left = purse.left - weight_share
        shape, part = division(self._columns, self._k, self._n, purse, left, strengths)
        if not shape.n_columns:
            self._abstain()
            return
        budget = left * part
        end = purse.left - budget
        chooses = shape.n_columns < len(self._columns)
        columns = self._chosen(shape.n_columns, budget * SELECT) if chooses else self._columns
        self._borders.see_all(columns, self._k, purse, self._n, budget)
        tables = []
        for column in columns:
            # Where nobody has seen a column's values, a group more or fewer by chance: not all borders are then alike.
            seen = self._borders.known(column) or shape.bins == GROUPS[0]
            n_groups = shape.bins + (0 if seen else int(self._rng.integers(-1, 2)))
            tables.append(CellTable((self._borders.axis(column, n_groups, scales=False),)))
        tables.sort(key=lambda table: table.n_cells)
        exact = self._rows.ask(asked.ClassesByCell(tables, self._k))
        counted = count_tables(purse, [table.n_cells for table in tables], exact, purse.left - end, COUNTED)
        errors = [self._counts_variance, *counted.total_variances]
        totals = totals_of([self._counts, *counted.totals], errors, self._known)
        self._n = float(totals.sum())
        self._begin_classes(totals)
        believed = []
        for table, counts, variance in zip(tables, counted.counts, counted.variances, strict=True):
            believed.append(believed_counts(counts, totals, variance))
            values = evidence(believed[-1], totals, variance, len(tables))
            self._take(table, values, Seen(counts, variance), SCORE_UNITS)
        self._learned.n_counted = len(tables)
        asks = weight_share > 0 and few_rounds(self._n, purse, left * (1 - part), self._k)
        weight = f", weight {self._weigh(weight_share, believed):.2f}" if asks else ""
        names = f"{len(tables)} chosen column{'s' * (len(tables) > 1)}" if chooses else "all columns"
        self._learned.told.append(f"tables of {names}, {part:.0%} of what was left{weight}")

    def _weigh(self, share: float, believed: Sequence[Floats]) -> float:
        """Ask how much tables should count together, and let them."""
        step = self._purse.counting("weight of tables", (1,), share, l1=MOST_GAIN, squared_l2=MOST_GAIN**2, signed=True)
        question = asked.EvidenceGain(self._learned.start, self._k, self._limit, MOST_GAIN)
        (gain,) = (self._purse.measure(step, self._rows.ask(question)) / SCORE_UNITS).tolist()
        steps, noise = self._learned.steps, step.variance / SCORE_UNITS**2
        tables = [BelievedTable(*one) for one in zip(believed, (s.values / SCORE_UNITS for s in steps), strict=True)]
        weight = weight_of(gain, noise, self._n, self._learned.start / SCORE_UNITS, tables, self._rng)
        for place, (table, values, seen) in enumerate(steps):
            now = np.rint(weight * values).astype(np.int32)
            self._rows.add(table, now - values)
            steps[place] = TableScores(table, now, seen)
        return weight

    def _strengths(self) -> Strengths | None:
        """Ask what the best and the mean column explain, where that is cheap; else the best alone, or nothing."""
        low, high = STRENGTH_SHARES
        shares = [(numbers, max(self._purse.share(needs / self._n), low)) for numbers, needs in STRENGTH_NEEDS]
        numbers, share = next((one for one in shares if one[1] <= high), (0, 0.0))
        if not numbers:
            return None
        scores, part = self._scores(self._columns_alone(SCORE_GROUPS), None)
        exact = np.stack([scores.max() * len(scores), np.maximum(scores, 0).sum()][:numbers])
        l1 = self._norms()["l1"] * len(scores)  # of each: no score moves further than a gradient
        step = self._purse.counting(
            "strengths of columns", (numbers,), share, l1=numbers * l1, squared_l2=numbers * l1**2, signed=True
        )
        most = float((self._shares * (1 - self._shares)).sum()) * (1 if self._k == 2 else 2) * len(scores)
        units = GRADIENT_UNITS * self._n * part * most
        best, *mean = (self._purse.measure(step, exact) / units).tolist()
        return Strengths(max(best, *mean), *mean) if mean else Strengths(best, unsure=step.variance**0.5 / units)

    def _abstain(self) -> None:
        """Spend all on class counts: nothing else would stand out."""
        step = self._purse.counting("class counts once more", (self._k,), self._purse.left)
        again = self._purse.measure(step, self._rows.ask(asked.ClassCounts(self._k)))
        totals = totals_of([self._counts, again], [self._counts_variance, step.variance], self._known)
        self._begin_classes(totals)
        self._n = float(totals.sum())

    def _chosen(self, n_columns: int, share: float) -> list[CellColumn]:
        """Choose columns one after the other, by how far the classes of their cells are from the start."""
        scores, free = self._scores(self._columns_alone(SCORE_GROUPS), None)[0], np.ones(len(self._columns), bool)
        chosen = []
        for number in range(n_columns):
            step = self._purse.choosing(
                f"column {number + 1} of tables", len(scores), share / n_columns, score_range=2 * self._norms()["l1"]
            )
            chosen.append(self._purse.choose(step, scores, free))
            free[chosen[-1]] = False
        return [self._columns[place] for place in chosen]

    # -- rounds ------------------------------------------------------------------------------------------------------

    def _rounds(self) -> None:
        purse, outputs = self._purse, dearer(self._k)
        if purse.left <= 0 or self._n * purse.price(purse.left) < LEAST_ALONE * outputs:
            return
        n_rounds, bins = schedule(self._n, purse, purse.left, outputs)
        pairs: list[tuple[int, ...]] = list(combinations(range(len(self._columns)), 2))
        for number in track(range(n_rounds), "rounds"):
            if not self._k and n_rounds >= SPREAD_AT[0] and number in {n_rounds // at for at in SPREAD_AT}:
                self._respread(number, purse.left / (n_rounds - number))
            budget = purse.left / (n_rounds - number)
            if number >= MOVED_FROM:
                self._borders.move(self._rng.uniform(-MOVED, MOVED, len(self._columns)))
            drawn = self._drawn(pairs, MOST_PAIRS) if number >= min(2, n_rounds // 3) else []
            if self._n * purse.price(budget) / outputs >= TRIPLE_NEEDS:
                chosen = (step.table.features for step in self._learned.steps[self._learned.n_counted :])
                drawn += self._drawn(triples(chosen, len(self._columns)), MOST_TRIPLES)
                if number % CHANCE_EVERY == CHANCE_EVERY - 1:
                    drawn += by_chance(3, len(self._columns), MOST_TRIPLES, self._rng)
            self._round(f"round {number + 1}", budget, bins, drawn)
        self._learned.told.append(f"{n_rounds} round{'s' * (n_rounds > 1)} of up to {bins} groups")

    def _drawn(self, sets: list[tuple[int, ...]], most: int) -> list[tuple[int, ...]]:
        return [sets[i] for i in self._rng.choice(len(sets), min(len(sets), most), replace=False)] if sets else []

    def _round(self, name: str, budget: float, bins: int, sets: list[tuple[int, ...]]) -> None:
        purse = self._purse
        first = purse.left
        candidates = self._candidates(bins, sets)
        chosen = candidates[0]
        l1 = self._norms()["l1"]
        if len(candidates) > 1:
            needs = CHOICE_NEEDS * l1 / GRADIENT_UNITS * math.log(len(candidates)) / self._n
            low, high = CHOICE_SHARES
            share = min(max(purse.share(needs), low * budget), high * budget)
            scores, _ = self._scores(candidates, purse.price(budget - share))
            step = purse.choosing(f"{name}: choice", len(candidates), share, score_range=2 * l1)
            chosen = candidates[purse.choose(step, scores)]
        wanted = groups_in_set(bins, len(chosen.axes))
        axes = []
        for axis in chosen.axes:
            column = self._columns[axis.feature]
            self._borders.see(column, name, purse, self._n, budget / len(chosen.axes))
            axes.append(self._borders.axis(column, wanted) if self._borders.known(column) else axis)
        table = CellTable(tuple(axes))
        left = max(budget - (first - purse.left), 0.0)
        counting = purse.counting(f"{name}: rows", (table.n_cells,), COUNT_SHARE * left)
        summing = purse.counting(
            f"{name}: gradients", (table.n_cells, n_outputs(self._k)), left - COUNT_SHARE * left,
            **self._norms(), signed=True,
        )  # fmt: skip
        counts = purse.measure(counting, self._rows.ask(asked.RowsByCell(table)))
        sums = purse.measure(summing, self._sums([table])[0]) / GRADIENT_UNITS
        noise, cells = summing.variance / GRADIENT_UNITS**2, self._cells(table, counts, counting.variance)
        values = newton_step(sums, noise, cells, table, self._k, self._variance)
        seen = Seen(sums, noise, cells, counting.variance, self._limit / (TARGET_LEVELS * LEVEL_UNITS))
        self._take(table, values, seen, SCORE_UNITS if self._k else self._limit)

    def _candidates(self, bins: int, sets: list[tuple[int, ...]]) -> list[CellTable]:
        alone = self._columns_alone(bins)
        coarse = {
            size: [self._borders.axis(column, groups_in_set(bins, size), scales=False) for column in self._columns]
            for size in {len(columns) for columns in sets}
        }
        together = [CellTable(tuple(coarse[len(columns)][j] for j in columns)) for columns in sets]
        return [*alone, *(table for table in together if table.n_cells <= MOST_SET_CELLS)]

    def _cells(self, table: CellTable, counts: Floats, variance: float) -> Floats:
        """How many rows each cell has: noisy counts and the product of histograms, weighted by their variances."""
        prior: Floats = np.ones(1)
        for axis in table.axes:
            prior = np.outer(prior, self._borders.shares(axis)).ravel()
        prior, even = prior * self._n, self._n / table.n_cells
        away = AWAY_IF_KNOWN if all(map(self._borders.known, table.axes)) else AWAY
        trust = (away * np.maximum(prior, even / 4)) ** 2
        cells = (trust * counts + variance * prior) / (trust + variance)
        return np.maximum(cells, max(even / 20, 1.0))

    def _respread(self, number: int, budget: float) -> None:
        """Cut residuals anew: they become smaller, and what seems to say otherwise is noise."""
        share = min(self._purse.share(SPREAD_NEEDS / self._n), SPREAD_SHARE * budget)
        marks = np.rint(RESIDUAL_MARKS * TARGET_LEVELS * LEVEL_UNITS).astype(np.int64)
        step = self._purse.counting(f"histogram of residuals before round {number + 1}", marks.shape, share)
        seen = self._purse.measure(step, self._rows.ask(asked.ResidualHistogram(marks)))
        mass = np.cumsum(divided(seen, np.full(len(marks), 1 / len(marks)), step.variance, self._n))
        mark = marks[np.searchsorted(mass / mass[-1], SPREAD_PART)]
        self._limit = min(self._limit, round(1.2 * float(mark)))
