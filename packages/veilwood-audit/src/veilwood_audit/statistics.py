# SPDX-License-Identifier: Apache-2.0
"""Statistics of audits: lower bounds on epsilon, and enumeration of small neighbouring tables.

An audit can refute a guarantee and never proves one; proofs are in ``proofs/``. Attacks on whole estimators are in
``attacks``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats
from scipy.special import ndtr, ndtri

from veilwood.arrays import Floats, Ints
from veilwood.privacy.neighbours import Adjacency, Neighbours

ALPHA = 4e-9
"""Significance level of one test. With up to 250 tests, a correct library raises one false alarm in a million runs."""

RowCells: TypeAlias = tuple[int, ...]


# -- statistics -------------------------------------------------------------------------------------------


def epsilon_lower_bound(k1: int, n1: int, k0: int, n0: int, *, delta: float = 0.0, alpha: float = ALPHA) -> float:
    """Return a lower bound on epsilon from the frequencies of an event on two neighbouring tables.

    Parameters
    ----------
    k1, n1 : int
        Hits and runs on the table that makes the event likely.
    k0, n0 : int
        Hits and runs on its neighbour.
    delta : float
        The delta of the claim.
    alpha : float
        Probability that the returned value is too large, whatever the mechanism: each of the two Clopper-Pearson
        bounds is taken at level alpha / 2. The event must have been fixed before the runs.

    Examples
    --------
    >>> round(epsilon_lower_bound(7000, 10000, 1000, 10000), 2)
    1.73
    >>> epsilon_lower_bound(500, 1000, 500, 1000)
    0.0
    """
    low = float(stats.beta.ppf(alpha / 2, k1, n1 - k1 + 1)) if k1 else 0.0
    high = float(stats.beta.ppf(1 - alpha / 2, k0 + 1, n0 - k0)) if k0 < n0 else 1.0
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def one_run_lower_bound(
    correct: int, guesses: int, *, canaries: int | None = None, delta: float = 0.0, alpha: float = ALPHA
) -> float:
    """Return a lower bound on epsilon from one run, given the number of right guesses about canaries.

    Each canary was included independently with probability 1/2. Under pure epsilon the number of right guesses is
    dominated by a binomial with success probability e^epsilon / (1 + e^epsilon). A delta adds to its tail (Steinke,
    Nasr, Jagielski 2023, Theorem 5.2).

    Parameters
    ----------
    correct, guesses : int
        Number of right guesses, and of all guesses. With a delta, the number of all guesses must have been fixed
        before the run.
    canaries : int, optional
        Number of canaries. Default: the number of guesses. Used with a delta only.
    delta : float
        The delta of the claim.
    alpha : float
        Probability that the returned value is too large, whatever the mechanism.

    Examples
    --------
    >>> round(one_run_lower_bound(7311, 10000), 2)
    0.87
    """
    if delta == 0:
        low = float(stats.beta.ppf(alpha, correct, guesses - correct + 1)) if correct else 0.0
        return max(0.0, math.log(low / (1 - low))) if low > 0 else 0.0

    slips = np.arange(1, correct + 1)

    def tail_bound(epsilon: float) -> float:
        """Bound the probability of at least ``correct`` right guesses."""
        success = 1 / (1 + math.exp(-epsilon))
        tail = float(stats.binom.sf(correct - 1, guesses, success))
        closer = stats.binom.sf(correct - slips - 1, guesses, success) - tail
        return tail + 2 * (canaries or guesses) * delta * float((closer / slips).max(initial=0.0))

    if tail_bound(0.0) > alpha:
        return 0.0
    # The bound grows with epsilon and is close to 1 beyond about log(guesses), so the root is bracketed.
    return float(optimize.brentq(lambda epsilon: tail_bound(epsilon) - alpha, 0.0, math.log(guesses) + 2, xtol=1e-6))


# -- one run, by trade-off curves -------------------------------------------------------------------------------------

TradeOff: TypeAlias = Callable[[float], float]
"""Function from the probability of an event on a table to its smallest probability on a neighbour."""


def tradeoff_between(one: ArrayLike, other: ArrayLike) -> TradeOff:
    """Return the trade-off function between two distributions over the same outcomes.

    Examples
    --------
    >>> least = tradeoff_between([0.75, 0.25], [0.25, 0.75])
    >>> least(0.75), least(0.875)
    (0.25, 0.625)
    """
    p, q = np.asarray(one, float), np.asarray(other, float)
    order = np.argsort(np.log(np.maximum(q, 1e-300)) - np.log(np.maximum(p, 1e-300)), kind="stable")
    reached_p, reached_q = (np.append(0.0, each[order].cumsum()) for each in (p, q))
    return lambda probability: float(np.interp(probability, reached_p, reached_q))


def composed_tradeoff(epsilons: Sequence[float]) -> TradeOff:
    """Return the smallest possible trade-off of independent releases, each with a pure epsilon.

    Each release is post-processed randomised response with its epsilon (Kairouz, Oh and Viswanath 2015), so the
    trade-off of all releases is that of the product distribution.

    Examples
    --------
    >>> composed_tradeoff([1.0])(0.5) < composed_tradeoff([0.5, 0.5])(0.5) < composed_tradeoff([0.1] * 10)(0.5)
    True
    """
    ratios: Floats = np.zeros(1)
    p: Floats = np.ones(1)  # probabilities of these log-ratios on one table
    for epsilon in epsilons:
        up = 1 / (1 + math.exp(-epsilon))
        ratios = np.round(np.concatenate([ratios + epsilon, ratios - epsilon]), 12)
        ratios, place = np.unique(ratios, return_inverse=True)
        p = np.bincount(place, np.concatenate([p * up, p * (1 - up)])).astype(float)
    return tradeoff_between(p, p * np.exp(-ratios))


def gaussian_tradeoff(sigma_squared: float, shift: int) -> TradeOff:
    """Return the trade-off of discrete Gaussian noise with and without an integer shift.

    Examples
    --------
    >>> gaussian_tradeoff(4.0, 2)(0.5) < gaussian_tradeoff(4.0, 1)(0.5) < 0.5
    True
    """
    sigma = math.sqrt(sigma_squared)
    if sigma > _LARGE_SIGMA:  # the continuous curve is closer than 1 / sigma^2
        return lambda probability: float(ndtr(ndtri(probability) - shift / sigma)) if probability < 1 else 1.0
    x = np.arange(-math.ceil(14 * sigma) - abs(shift), math.ceil(14 * sigma) + abs(shift) + 1)
    p, q = (np.exp(-((x - at) ** 2) / (2 * sigma_squared)) for at in (shift, 0))
    return tradeoff_between(p / p.sum(), q / q.sum())


def tradeoff_lower_bound(
    correct: int, guesses: int, *, canaries: int, claim: Callable[[float], TradeOff], alpha: float = ALPHA
) -> float:
    """Return a lower bound on epsilon from one run, for a mechanism whose whole trade-off is claimed.

    Each canary was included independently with probability 1/2, and the number of guesses was fixed before the run. A
    trade-off says more than an epsilon, so one run gives a better bound, above all with Gaussian noise, where the
    bound with a delta is close to 0 (Mahloujifar, Melis and Chaudhuri 2025; proofs/one-run-audit.md).

    Parameters
    ----------
    correct, guesses, canaries : int
        Number of right guesses, of all guesses, and of canaries.
    claim : callable
        Function from epsilon to the trade-off that the mechanism would then guarantee.
    alpha : float
        Probability that the returned value is too large, whatever the mechanism.

    Examples
    --------
    >>> one_answer = lambda epsilon: composed_tradeoff([epsilon])
    >>> round(tradeoff_lower_bound(7311, 10_000, canaries=10_000, claim=one_answer), 2)
    0.87
    """

    def is_refuted(epsilon: float) -> bool:
        return not _may_happen(alpha, correct, guesses, canaries, claim(epsilon))

    low, high = 0.0, _EPSILON_STEP
    if not is_refuted(high):
        return 0.0
    while high < _MAX_EPSILON and is_refuted(high):
        low, high = high, 2 * high
    while high - low > _EPSILON_STEP * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def _may_happen(tail: float, correct: int, guesses: int, canaries: int, least: TradeOff) -> bool:
    """Return False if at least ``correct`` right guesses cannot have the probability ``tail`` or more.

    With p_j the probability of j right guesses, ``right`` and ``wrong`` bound the sums over j >= i of j p_j / canaries
    and (guesses - j) p_j / canaries, from i = correct down.
    """
    right, wrong = tail * correct / canaries, tail * (guesses - correct) / canaries
    for j in range(correct - 1, -1, -1):
        needed = least(right)
        if right + needed > (1 + _ROUNDING) * guesses / canaries:
            return False
        if needed > wrong:
            right, wrong = right + j / (guesses - j) * (needed - wrong), needed
    return True


_ROUNDING: Final = 1e-9  # tolerance, because randomised response meets the bound exactly
_LARGE_SIGMA: Final = 1e4
_MAX_EPSILON: Final = 64.0
_EPSILON_STEP: Final = 1e-3  # relative precision of a bound


def worst_log_ratio(distribution: ArrayLike, neighbour: ArrayLike) -> float:
    """Return the largest log-ratio, in either direction, of the probabilities of an outcome in two distributions.

    Examples
    --------
    >>> round(worst_log_ratio([0.75, 0.25], [0.5, 0.5]), 4)
    0.6931
    >>> worst_log_ratio([1.0, 0.0], [0.5, 0.5])
    inf
    """
    p, q = np.asarray(distribution, float), np.asarray(neighbour, float)
    possible = (p > 0) | (q > 0)
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(p[possible]) - np.log(q[possible])).max(initial=0.0))


# -- all small tables -------------------------------------------------------------------------------------


def neighbouring_tables(
    n_cells: int, max_records: int, adjacency: Adjacency = "add-remove", rows: int = 1
) -> Iterator[tuple[RowCells, RowCells]]:
    """Yield every pair of neighbouring tables of at most ``max_records`` rows with ``n_cells`` possible values.

    A table is a sequence of cell numbers. Rows that both tables contain keep their index. Draws that depend on the
    index are independent for each row, so it suffices to append added rows at the end (proofs/disjoint-trees.md).

    Parameters
    ----------
    n_cells, max_records : int
        Number of different rows, and maximum number of rows in a table.
    adjacency : {"add-remove", "replace-one"}
        Whether up to ``rows`` rows are appended, or replaced by others.
    rows : int
        Maximum number of rows of one unit.

    Examples
    --------
    >>> list(neighbouring_tables(2, 1))
    [((), (0,)), ((), (1,))]
    >>> list(neighbouring_tables(2, 1, "replace-one"))
    [((0,), (1,)), ((1,), (0,))]
    """
    cells = range(n_cells)
    for size in range(max_records + 1):
        for table in product(cells, repeat=size):
            if adjacency == "add-remove":
                for added in range(1, min(rows, max_records - size) + 1):
                    yield from ((table, table + more) for more in product(cells, repeat=added))
                continue
            for indices in combinations(range(size), min(rows, size)):
                for other in product(cells, repeat=len(indices)):
                    changed = list(table)
                    for index, cell in zip(indices, other, strict=True):
                        changed[index] = cell
                    if tuple(changed) != table:
                        yield table, tuple(changed)


@dataclass(frozen=True)
class Distances:
    """Exact largest distances of a query between neighbouring tables.

    Attributes
    ----------
    l1 : int
        Largest sum of absolute changes.
    squared_l2 : int
        Largest sum of squared changes.
    score_range : int
        Largest difference between the highest and the lowest change.
    """

    l1: int
    squared_l2: int
    score_range: int


def worst_distances(
    query: Callable[[RowCells], Ints], n_cells: int, max_records: int, neighbours: Neighbours
) -> Distances:
    """Compute the sensitivity of an integer query by enumerating all pairs of small neighbouring tables.

    Parameters
    ----------
    query : callable
        Maps a table, given as a tuple of cell numbers, to an array of integers of fixed shape.
    n_cells, max_records : int
        Number of different rows, and maximum number of rows in a table.
    neighbours : Neighbours
        Unit and adjacency.

    Examples
    --------
    >>> worst_distances(lambda table: np.bincount(np.array(table, int), minlength=2), 2, 2, Neighbours("replace-one"))
    Distances(l1=2, squared_l2=2, score_range=2)
    """
    number: dict[RowCells, int] = {}
    pairs = [
        (number.setdefault(one, len(number)), number.setdefault(other, len(number)))
        for one, other in neighbouring_tables(n_cells, max_records, neighbours.adjacency, neighbours.unit.at_most)
    ]
    values = np.array([np.asarray(query(table)).ravel() for table in number])
    one, other = np.array(pairs).T
    l1 = squared_l2 = score_range = 0
    for start in range(0, len(pairs), 4096):
        moved = values[other[start : start + 4096]] - values[one[start : start + 4096]]
        l1 = max(l1, int(np.abs(moved).sum(axis=1).max()))
        squared_l2 = max(squared_l2, int((moved**2).sum(axis=1).max()))
        score_range = max(score_range, int(np.ptp(moved, axis=1).max()))
    return Distances(l1, squared_l2, score_range)
