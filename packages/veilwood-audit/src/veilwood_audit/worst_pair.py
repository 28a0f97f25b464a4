# SPDX-License-Identifier: Apache-2.0
"""Search for the worst pair: the neighbouring tables, and the outcomes, with the largest privacy loss of a release.

The target is a black box that is only run. ``replayed_loss`` is the exact privacy loss of a fit, step by step at the
release door, under forced outcomes: it finds sums that change by more than planned, on any path of an adaptive fit.
``hockey_stick_bound`` needs only samples: it learns an event on one half of them and tests it on the other half, so it
finds noise that differs from the plan. A search can refute a claim and never proves one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from veilwood.arrays import Floats, Ints
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import LaplaceMechanism
from veilwood_audit.noninterference import DoorEvent, event_cost, force_outcomes
from veilwood_audit.statistics import ALPHA, RowCells, epsilon_lower_bound

PairLoss: TypeAlias = Callable[[RowCells, RowCells, int], float]
"""Privacy loss of two tables under the forced outcomes with a given number."""
SampledRelease: TypeAlias = Callable[[RowCells, int], Ints]
"""Runs a mechanism on a table the given number of times and returns the releases, one row per run."""

MAX_BINS: Final = 24  # bins of the values of one released number, when an event is learned
MAX_PAIRED: Final = 6  # maximum size of a release for which pairwise differences are used too
_MIN_SURPLUS: Final = 4.0  # standard errors by which a number must differ between the tables to be part of the event
_SEARCH_ALPHA: Final = 0.05  # significance level of bounds that only guide the search
_MAX_REMEMBERED: Final = (
    64  # fits whose exact inputs at the release door are cached: most pairs share a table with another pair
)
_FIRST_RUNS: Final = 2000  # runs per table of a candidate pair


@dataclass(frozen=True)
class WorstPair:
    """The worst pair that a search found.

    Attributes
    ----------
    one, other : tuple of int
        Neighbouring tables, as sequences of cell numbers.
    outcome : int
        Number of the forced outcomes.
    loss : float
        Privacy loss of the pair: exact if replayed, a lower bound if sampled.
    tried : int
        Number of pairs that were compared.
    """

    one: RowCells
    other: RowCells
    outcome: int
    loss: float
    tried: int


@dataclass(frozen=True)
class _Candidate:
    """A pair as coordinates: the common rows, the unit's rows in each table, and the index where they are inserted."""

    common: RowCells
    unit: RowCells
    replaced: RowCells
    at: int
    outcome: int

    @property
    def tables(self) -> tuple[RowCells, RowCells]:
        before, after = self.common[: self.at], self.common[self.at :]
        return before + self.unit + after, before + self.replaced + after


def search_worst_pair(
    loss_of: PairLoss,
    n_cells: int,
    neighbours: Neighbours,
    *,
    min_rows: int = 0,
    max_rows: int = 4,
    restarts: int = 6,
    sweeps: int = 2,
    outcomes: int = 1,
    enough: float = math.inf,
    seed: int = 0,
) -> WorstPair:
    """Search for the pair with the largest privacy loss: random starts, then one coordinate after the other.

    Parameters
    ----------
    loss_of : callable
        Privacy loss of two tables under numbered outcomes, such as the result of ``replayed_loss``.
    n_cells, min_rows, max_rows : int
        Number of different rows, and limits on the number of rows that both tables contain.
    neighbours : Neighbours
        Unit and adjacency of the claim. A unit has at most its bounded number of rows.
    restarts, sweeps : int
        Number of random starts, and of passes over all coordinates per start.
    outcomes : int
        Number of outcomes to choose from.
    enough : float
        Privacy loss at which the search ends.
    seed : int
        Seed of the search, which is public.

    Examples
    --------
    >>> def heavy(one, other, outcome):  # the last kind of row counts threefold
    ...     return abs(sum(3 if cell == 4 else 1 for cell in one) - sum(3 if cell == 4 else 1 for cell in other))
    >>> search_worst_pair(heavy, 5, Neighbours()).loss
    3
    """
    rng = np.random.default_rng(seed)
    best: WorstPair | None = None
    tried = 0
    for _ in range(restarts):
        now = _draw_candidate(rng, n_cells, neighbours, (min_rows, max_rows), outcomes)
        loss, tried = loss_of(*now.tables, now.outcome), tried + 1
        for _ in range(sweeps):
            for move in _coordinate_moves(now, rng, n_cells, neighbours, (min_rows, max_rows), outcomes):
                moved = move(now)
                if moved == now:
                    continue
                found, tried = loss_of(*moved.tables, moved.outcome), tried + 1
                if found >= loss:
                    now, loss = moved, found
                if loss >= enough:
                    break
        if best is None or loss > best.loss:
            best = WorstPair(*now.tables, now.outcome, loss, tried)
        if loss >= enough:
            break
    assert best is not None
    return replace(best, tried=tried)


def _draw_candidate(
    rng: np.random.Generator, n_cells: int, neighbours: Neighbours, sizes: tuple[int, int], outcomes: int
) -> _Candidate:
    def draw_rows(n: int) -> RowCells:
        return tuple(rng.integers(n_cells, size=n).tolist())

    size = int(rng.integers(1, neighbours.unit.at_most + 1))
    n_common = int(rng.integers(sizes[0], sizes[1] + 1))
    replaced = draw_rows(size) if neighbours.adjacency == "replace-one" else ()
    at = int(rng.integers(n_common + 1))
    return _Candidate(draw_rows(n_common), draw_rows(size), replaced, at, int(rng.integers(outcomes)))


def _coordinate_moves(
    start: _Candidate,
    rng: np.random.Generator,
    n_cells: int,
    neighbours: Neighbours,
    sizes: tuple[int, int],
    outcomes: int,
) -> Iterator[Callable[[_Candidate], _Candidate]]:
    """Yield changes of one coordinate each, in random order."""

    def change_cell(name: str, place: int) -> Callable[[_Candidate], _Candidate]:
        cell = int(rng.integers(n_cells))

        def move(now: _Candidate) -> _Candidate:
            rows: RowCells = getattr(now, name)
            if place >= len(rows):
                return now
            rows = (*rows[:place], cell, *rows[place + 1 :])
            if name == "common":
                return replace(now, common=rows)
            return replace(now, unit=rows) if name == "unit" else replace(now, replaced=rows)

        return move

    def resize(now: _Candidate) -> _Candidate:
        """Add a common row or remove the last one."""
        fewest, most = sizes
        if len(now.common) < most and (len(now.common) <= fewest or rng.random() < 0.5):
            return replace(now, common=(*now.common, int(rng.integers(n_cells))))
        common = now.common[: max(fewest, len(now.common) - 1)]
        return replace(now, common=common, at=min(now.at, len(common)))

    def resize_unit(now: _Candidate) -> _Candidate:
        size = int(rng.integers(1, neighbours.unit.at_most + 1))
        unit, replaced = (now.unit * size)[:size], (now.replaced * size)[:size]
        return replace(now, unit=unit, replaced=replaced)

    moves: list[Callable[[_Candidate], _Candidate]] = [
        *(change_cell("common", place) for place in range(sizes[1])),
        *(change_cell(name, place) for name in ("unit", "replaced") for place in range(len(getattr(start, name)))),
        *(change_cell("unit", 0) for _ in range(2)),
        resize,
        resize_unit,
        lambda now: replace(now, at=int(rng.integers(len(now.common) + 1))),
        lambda now: replace(now, outcome=int(rng.integers(outcomes))),
    ]
    yield from (moves[index] for index in rng.permutation(len(moves)))


# -- exact losses at the release door ----------------------------------------------------------------------------------


def replayed_loss(fit: Callable[[RowCells], object], allowed: Loss) -> PairLoss:
    """Return a function that computes the exact privacy loss of fits on two tables, as a fraction of the planned loss.

    Both fits run under the same forced outcomes. The function returns the larger of two fractions: the loss of all
    steps relative to ``allowed``, and the loss of the worst step relative to its plan. Steps add up by epsilon if all
    are pure, otherwise by rho. The result is infinite if the fits do not take the same steps at the release door: then
    something public depends on the rows.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> def fit(table):
    ...     forest = vw.RandomTreesClassifier(car.schema, n_estimators=2, max_depth=2, random_state=0)
    ...     return forest.fit(car.X.iloc[list(table)], car.y.iloc[list(table)])
    >>> replayed_loss(fit, Loss.pure(Fraction(1)))((1, 2, 3), (1, 3), 0)
    1.0
    """

    @lru_cache(_MAX_REMEMBERED)
    def run(table: RowCells, outcome: int) -> list[DoorEvent]:
        with force_outcomes(outcome) as passed:
            fit(table)
        return passed

    def loss_of(one: RowCells, other: RowCells, outcome: int) -> float:
        events = run(one, outcome), run(other, outcome)
        if len(events[0]) != len(events[1]):
            return math.inf
        pure, rho, worst_step, is_pure = Fraction(0), Fraction(0), Fraction(0), True
        for event, neighbour in zip(*events, strict=True):
            step = event.step
            if step is None or step != neighbour.step or event.public != neighbour.public:
                return math.inf
            cost = event_cost(step, event.exact, neighbour.exact)[0]
            step_is_pure = step.loss.delta == 0
            if not step_is_pure and isinstance(
                step.mechanism, LaplaceMechanism
            ):  # a step of pure epsilon in a plan by rho
                cost = cost**2 / 2
            pure, rho = pure + cost, rho + (cost**2 / 2 if step_is_pure else cost)
            planned = step.loss.epsilon if step_is_pure else step.loss.rho
            worst_step = max(worst_step, cost / planned if planned else Fraction(0))
            is_pure = is_pure and step_is_pure
        total, limit = (pure, allowed.epsilon) if is_pure else (rho, allowed.rho)
        return float(max(total / limit, worst_step)) if limit else math.inf

    return loss_of


# -- samples -----------------------------------------------------------------------------------------------------------


def find_worst_pair(
    release: SampledRelease,
    n_cells: int,
    neighbours: Neighbours,
    *,
    runs: int = 100_000,
    search_runs: int = _FIRST_RUNS,
    delta: float = 0.0,
    alpha: float = ALPHA,
    seed: int = 0,
    max_rows: int = 3,
    restarts: int = 4,
    sweeps: int = 1,
) -> WorstPair:
    """Search for the worst pair by samples, and return it with the privacy loss that fresh runs show.

    The search uses few runs per pair. Only the best pair is tested, with new runs, so that the bound is too large with
    probability ``alpha`` at most, however many pairs were tried.

    Examples
    --------
    >>> from veilwood.privacy.noise import DiscreteLaplace
    >>> def count_rows(table, runs):  # the noise for an epsilon of 2
    ...     return DiscreteLaplace(1).perturb(np.full((runs, 1), 2 * len(table)))
    >>> 1.6 < find_worst_pair(count_rows, 2, Neighbours(), runs=20_000).loss < 2
    True
    """

    def guide(one: RowCells, other: RowCells, outcome: int) -> float:
        return hockey_stick_bound(
            release(one, search_runs), release(other, search_runs), delta=delta, alpha=_SEARCH_ALPHA
        )

    found = search_worst_pair(
        guide, n_cells, neighbours, max_rows=max_rows, restarts=restarts, sweeps=sweeps, seed=seed
    )
    one, other = (release(table, runs) for table in (found.one, found.other))
    return replace(found, loss=hockey_stick_bound(one, other, delta=delta, alpha=alpha))


def hockey_stick_bound(
    one: NDArray[np.int64], other: NDArray[np.int64], *, delta: float = 0.0, alpha: float = ALPHA
) -> float:
    """Return a lower bound on epsilon from samples of a release on two tables. The event is learned.

    An event is a set of releases that the first half of the samples shows to be more likely on one table: a sum of
    estimated log-ratios, number by number, above a threshold. The second half tests it. Both directions are tested.

    Parameters
    ----------
    one, other : ndarray of int
        Releases on both tables, one row per run.
    delta : float
        The delta of the claim.
    alpha : float
        Probability that the bound is too large, whatever the mechanism.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> fair, biased = (rng.random((20_000, 1)) < p for p in (0.5, 0.75))
    >>> 0.5 < hockey_stick_bound(biased.astype(int), fair.astype(int)) < 0.7  # true: ln 2 = 0.69
    True
    """
    one, other = (_with_differences(np.asarray(side).reshape(len(side), -1)) for side in (one, other))
    cut_one, cut_other = len(one) // 2, len(other) // 2
    score = _learn_score(one[:cut_one], other[:cut_other])
    bounds = []
    for likely, unlikely, sign in ((one, other, 1.0), (other, one, -1.0)):
        n1, n0 = len(likely) // 2, len(unlikely) // 2
        mine, theirs = sign * score(likely), sign * score(unlikely)
        threshold = _best_threshold(mine[:n1], theirs[:n0], delta, alpha)
        k1, k0 = int((mine[n1:] >= threshold).sum()), int((theirs[n0:] >= threshold).sum())
        bounds.append(epsilon_lower_bound(k1, len(mine) - n1, k0, len(theirs) - n0, delta=delta, alpha=alpha / 2))
    return max(bounds)


def _with_differences(rows: Ints) -> Ints:
    """Append the differences of all pairs of released numbers, which reveal noise that several numbers share."""
    if not 1 < rows.shape[1] <= MAX_PAIRED:
        return rows
    first, second = np.triu_indices(rows.shape[1], 1)
    return np.concatenate([rows, rows[:, first] - rows[:, second]], axis=1)


def _learn_score(one: Ints, other: Ints) -> Callable[[Ints], Floats]:
    """Return a function that adds estimated log-ratios of the numbers that differ between the tables."""
    parts: list[tuple[float, int, Ints, Floats]] = []
    for column in range(one.shape[1]):
        pooled = np.concatenate([one[:, column], other[:, column]])
        values = np.unique(pooled)
        if len(values) > MAX_BINS:
            values = np.unique(np.quantile(pooled, np.linspace(0, 1, MAX_BINS + 1), method="lower"))
        counts = [
            np.bincount(np.searchsorted(values, side[:, column], side="right"), minlength=len(values) + 1)
            for side in (one, other)
        ]
        first, second = ((each + 0.5) / (each.sum() + 0.5 * len(each)) for each in counts)
        both = counts[0] + counts[1]
        expected = both * len(one) / len(pooled)
        spread = np.maximum(expected * len(other) / len(pooled), 1e-9)
        surplus = float(((counts[0] - expected) ** 2 / spread)[both > 0].sum()) - (int((both > 0).sum()) - 1)
        parts.append((surplus / math.sqrt(2 * max(len(values), 1)), column, values, np.log(first / second)))
    parts.sort(key=lambda part: -part[0])
    used = [part for part in parts if part[0] > _MIN_SURPLUS] or parts[:1]

    def score(rows: Ints) -> Floats:
        total = np.zeros(len(rows))
        for _, column, values, ratios in used:
            total += ratios[np.searchsorted(values, rows[:, column], side="right")]
        return total

    return score


def _best_threshold(likely: Floats, unlikely: Floats, delta: float, alpha: float) -> float:
    """Return the threshold whose event gives the largest bound, if the other half of the samples looks the same."""
    candidates = np.unique(np.quantile(likely, np.linspace(0.01, 0.99, 50), method="lower"))
    likely, unlikely = np.sort(likely), np.sort(unlikely)
    k1, k0 = (len(side) - np.searchsorted(side, candidates, side="left") for side in (likely, unlikely))
    low = stats.beta.ppf(alpha / 4, np.maximum(k1, 1), len(likely) - k1 + 1)
    high = np.where(k0 < len(unlikely), stats.beta.ppf(1 - alpha / 4, k0 + 1, np.maximum(len(unlikely) - k0, 1)), 1.0)
    return float(candidates[np.argmax((low - delta) / high)])
