# SPDX-License-Identifier: Apache-2.0
"""Bounds that runs give, and enumerations of neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import veilwood_audit as audit
from veilwood.arrays import Ints
from veilwood.privacy.neighbours import Neighbours
from veilwood_audit import statistics
from veilwood_audit.statistics import (
    ALPHA,
    TradeOff,
    composed_tradeoff,
    epsilon_lower_bound,
    gaussian_tradeoff,
    tradeoff_between,
    worst_distances,
)
from veilwood_testing.noise_checks import CODE_TARGET_PAIRS, NEIGHBOUR_UNITS

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_class_counts_as_scores_have_the_range_of_the_adjacency() -> None:
    def counts(cells: tuple[int, ...]) -> Ints:
        return np.bincount([CODE_TARGET_PAIRS[cell][1] for cell in cells], minlength=2)

    for neighbours in NEIGHBOUR_UNITS:
        assert worst_distances(counts, len(CODE_TARGET_PAIRS), 3, neighbours).score_range == neighbours.score_range(1)
    # Mutant: scores that only rise are called monotone, which they no longer are when a record is replaced.
    assert worst_distances(counts, len(CODE_TARGET_PAIRS), 3, Neighbours("replace-one")).score_range > 1


def test_lower_bounds_are_lower_bounds_and_close() -> None:
    assert epsilon_lower_bound(0, 100, 0, 100) == 0
    assert epsilon_lower_bound(100, 100, 100, 100) == 0
    assert epsilon_lower_bound(500_000, 10**6, 183_940, 10**6) == pytest.approx(1, abs=0.03)
    assert epsilon_lower_bound(500_000, 10**6, 183_940, 10**6) < 1
    assert epsilon_lower_bound(5_000, 10**6, 0, 10**6, delta=0.01) == 0
    assert epsilon_lower_bound(50_000, 10**6, 0, 10**6, delta=0.01) > 5
    assert audit.one_run_lower_bound(0, 100) == audit.one_run_lower_bound(50, 100) == 0
    assert 0.8 < audit.one_run_lower_bound(7311, 10**4) < 1


def test_the_one_run_bound_is_the_binomial_tail() -> None:
    epsilon = audit.one_run_lower_bound(700, 1000)
    success = np.exp(epsilon) / (1 + np.exp(epsilon))
    assert stats.binom.sf(699, 1000, success) == pytest.approx(ALPHA, rel=1e-6)


def test_the_one_run_bound_with_delta_is_below_and_approaches_the_one_without() -> None:
    pure = audit.one_run_lower_bound(700, 1000)
    bounds = [audit.one_run_lower_bound(700, 1000, canaries=5000, delta=delta) for delta in (1e-15, 1e-12, 1e-6, 1e-2)]
    assert pure >= bounds[0] >= bounds[1] >= bounds[2] >= bounds[3] == 0
    assert bounds[0] == pytest.approx(pure, abs=1e-3)
    assert audit.one_run_lower_bound(1000, 1000, delta=1e-15) > 3


# -- trade-offs --------------------------------------------------------------------------------------------------------


def test_a_tradeoff_is_the_best_test_there_is() -> None:
    """Compared with all events of a small distribution, of which it is the lower convex hull."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    least = tradeoff_between(p, q)
    events = [np.array(event, bool) for event in np.ndindex(*(2,) * 6)]
    points = [(p[event].sum(), q[event].sum()) for event in events]
    assert all(least(float(x)) <= y + 1e-12 for x, y in points)
    on_curve = [x for x, y in points if abs(least(float(x)) - y) < 1e-12]
    assert len(on_curve) >= 7  # of the events by likelihood ratio
    assert least(0.0) == 0
    assert least(1.0) == pytest.approx(1)


def test_composed_tradeoffs_are_those_of_the_product() -> None:
    one = np.array([np.e**0.3, 1]) / (1 + np.e**0.3)
    two = np.array([np.e**0.7, 1]) / (1 + np.e**0.7)
    product = np.outer(one, two).ravel(), np.outer(one[::-1], two[::-1]).ravel()
    composed, direct = composed_tradeoff([0.3, 0.7]), tradeoff_between(*product)
    for p in np.linspace(0, 1, 41).tolist():
        assert composed(p) == pytest.approx(direct(p), abs=1e-9)
        assert composed(p) >= composed_tradeoff([1.0])(p) - 1e-12  # parts tell no more than their sum


def test_the_gaussian_tradeoff_approaches_the_continuous_one() -> None:
    for sigma, tolerance in ((2.0, 1e-2), (40.0, 1e-3)):
        shift = round(sigma)
        discrete, continuous = gaussian_tradeoff(sigma**2, shift), gaussian_tradeoff(1e10 * sigma**2, shift * 10**5)
        assert max(abs(discrete(p) - continuous(p)) for p in np.linspace(0.01, 0.99, 99).tolist()) < tolerance


def exact_tail(correct: int, guesses: int, epsilon: float) -> float:
    """The probability of so many right guesses of independent answers at random, the worst there is."""
    return float(stats.binom.sf(correct - 1, guesses, 1 / (1 + np.exp(-epsilon))))


@pytest.mark.parametrize("guesses", [20, 200, 2000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_no_tail_that_can_happen_is_excluded(guesses: int, epsilon: float) -> None:
    """Independent answers at random happen: whatever they do with a probability, the bound allows."""
    curve = composed_tradeoff([epsilon])
    for correct in range(guesses // 2, guesses + 1, max(1, guesses // 17)):
        tail = exact_tail(correct, guesses, epsilon)
        if tail > 1e-12:
            assert statistics._may_happen(tail, correct, guesses, guesses, curve)
    close = int(stats.binom.isf(1e-6, guesses, 1 / (1 + np.exp(-epsilon)))) + guesses // 10
    if close <= guesses:  # and little more: at a tenth more right guesses, 1e-6 is excluded
        assert not statistics._may_happen(1e-6, close, guesses, guesses, curve)


def test_no_tail_of_correlated_answers_is_excluded() -> None:
    """All canaries have one fate: with probability delta everything is shown. The trade-off allows for that."""
    delta, n = 1e-3, 50
    curve = tradeoff_between(
        [delta, 0.0, (1 - delta) / 2, (1 - delta) / 2], [0.0, delta, (1 - delta) / 2, (1 - delta) / 2]
    )
    assert statistics._may_happen(delta, n, n, n, curve)
    assert not statistics._may_happen(3 * delta, n, n, n, curve)


def test_bounds_by_tradeoff_are_close_to_the_binomial_one_and_find_more_of_several_trees() -> None:
    def one_answer(epsilon: float) -> TradeOff:
        return composed_tradeoff([epsilon])

    for correct, guesses in ((700, 1000), (7311, 10_000), (1000, 1000)):
        curve = audit.tradeoff_lower_bound(correct, guesses, canaries=guesses, claim=one_answer)
        assert curve == pytest.approx(audit.one_run_lower_bound(correct, guesses), rel=0.02)
    assert audit.tradeoff_lower_bound(500, 1000, canaries=1000, claim=one_answer) == 0
    assert audit.tradeoff_lower_bound(0, 1000, canaries=1000, claim=one_answer) == 0

    def eight_answers(epsilon: float) -> TradeOff:
        return composed_tradeoff([epsilon / 8] * 8)

    alone = audit.one_run_lower_bound(700, 1000)
    assert audit.tradeoff_lower_bound(700, 1000, canaries=10_000, claim=eight_answers) > alone


def test_enumeration_is_complete() -> None:
    pairs = list(audit.neighbouring_tables(3, 3))
    assert len(pairs) == len(set(pairs)) == 3 + 9 + 27
    replaced = set(audit.neighbouring_tables(3, 2, "replace-one"))
    assert len(replaced) == 3 * 2 + 9 * 2 * 2
    assert all((other, one) in replaced for one, other in replaced)
    two = set(audit.neighbouring_tables(2, 2, "replace-one", rows=2))
    assert two == {(a, b) for n in (1, 2) for a in np.ndindex(*(2,) * n) for b in np.ndindex(*(2,) * n) if a != b}
