# SPDX-License-Identifier: Apache-2.0
"""Random stopping: the law of the number of trials, its bound, exactly and by sampling, and twins that are caught."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

import veilwood as vw
import veilwood_audit as audit
from veilwood.errors import PlanError
from veilwood.privacy import entropy
from veilwood.privacy.door import Door, TrialDoor
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf
from veilwood.privacy.selection import RandomStopping, TrialBudget
from veilwood.privacy.steps import Step, counting_step
from veilwood_testing.steps_cases import plan_of

QUARTER = Fraction(1, 4)
ALARM = 1e-7


def law(odds: int, most: int) -> np.ndarray:
    k = np.arange(1, most + 1)
    return (1 - 1 / odds) ** k / (k * math.log(odds))


@pytest.mark.parametrize("odds", [2, 5, pytest.param(40, marks=pytest.mark.slow)])
def test_the_number_of_trials_has_its_law(odds: int) -> None:
    draws = np.array([RandomStopping(QUARTER, odds).draw_trial_count() for _ in range(4000)])
    expected = law(odds, 12)
    counts = np.append(np.bincount(np.minimum(draws, 13), minlength=14)[1:13], (draws > 12).sum())
    expected = np.append(expected, 1 - expected.sum()) * len(draws)
    kept = expected > 5
    pooled = np.append(expected[kept], expected[~kept].sum() + 1e-9), np.append(counts[kept], counts[~kept].sum())
    pooled = (pooled[0][pooled[0] > 1], pooled[1][pooled[0] > 1])
    assert chisquare(pooled[1], pooled[0] * pooled[1].sum() / pooled[0].sum()).pvalue > ALARM
    wrong = law(odds * 3, 12)
    wrong = np.append(wrong, 1 - wrong.sum()) * len(draws)
    assert chisquare(counts, np.maximum(wrong, 1e-9) * counts.sum() / wrong.sum()).pvalue < ALARM


def test_uniform_numbers_are_uniform() -> None:
    counts = np.bincount([entropy.draw_below(3) for _ in range(6000)], minlength=3)
    assert chisquare(counts).pvalue > ALARM
    with pytest.raises(vw.VeilwoodError):
        entropy.draw_below(0)


def best_of(trial: np.ndarray, odds: int, most: int = 4000) -> np.ndarray:
    """The exact law of the best of a random number of trials, given the law of one; outcomes in rising order."""
    below = np.concatenate([[0.0], np.cumsum(trial)])
    number = law(odds, most)
    power = below[:, None] ** np.arange(1, most + 1)
    return np.diff(power @ number)


def worst_ratio(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(np.log(one / other)).max())


def pairs(epsilon: float, n: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    """Laws of one trial on two neighbours, at the edge of what epsilon allows: all ways to raise some outcomes."""
    found = []
    rng = np.random.default_rng(0)
    for base in [np.full(n, 1 / n), np.array([0.9, 0.05, 0.03, 0.02]), *rng.dirichlet(np.ones(n), 6)]:
        for raised in range(1, 2**n - 1):
            mask = np.array([raised >> i & 1 for i in range(n)], bool)
            p = base[mask].sum()
            # Randomised response on the event: both it and its complement move by e^epsilon where that is possible.
            q = min(p * math.exp(epsilon), 1 - (1 - p) * math.exp(-epsilon))
            other = base.copy()
            other[mask] *= q / p
            other[~mask] *= (1 - q) / (1 - p)
            found.append((base, other))
    return found


@pytest.mark.parametrize("odds", [2, 10, 300])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_the_best_outcome_keeps_twice_the_trial(odds: int, epsilon: float) -> None:
    worst = 0.0
    for one, other in pairs(epsilon):
        assert worst_ratio(one, other) <= epsilon + 1e-9
        worst = max(worst, worst_ratio(best_of(one, odds), best_of(other, odds)))
    assert worst <= 2 * epsilon + 1e-6


def test_the_bound_is_nearly_reached() -> None:
    """A rare best outcome, and many trials: less than twice would be a wrong claim."""
    one = np.array([1 - 1e-4, 1e-4])
    other = np.array([1 - 1e-4 * math.exp(0.5), 1e-4 * math.exp(0.5)])
    assert worst_ratio(best_of(one, 2), best_of(other, 2)) > 0.49  # few trials: hardly more than one
    even = np.array([0.5, 0.5]), np.array([0.5, 0.5])
    assert worst_ratio(best_of(even[0], 300), best_of(even[1], 300)) == 0
    likely = [(best_of(a, 300), best_of(b, 300)) for a, b in pairs(0.5)]
    assert max(worst_ratio(a, b) for a, b in likely) > 1.4 * 0.5


def test_a_fixed_number_of_trials_is_caught() -> None:
    """The twin: twenty trials, whatever happens."""

    def twenty(trial: np.ndarray) -> np.ndarray:
        return np.diff(np.concatenate([[0.0], np.cumsum(trial)]) ** 20)

    assert max(worst_ratio(twenty(one), twenty(other)) for one, other in pairs(0.5)) > 2 * 0.5 + 1


def attacked(epsilon: float, runs: int = 20_000) -> float:
    """Two outcomes, as far apart on two neighbours as a trial may be; is the best one bad? Return what that shows."""
    hits = []
    stopping, rng = RandomStopping(QUARTER, 20), np.random.default_rng(1)
    for good in (1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))):

        def trial(good: float = good) -> bool:
            return bool(rng.random() < good)

        hits.append(sum(not stopping.run_trials(trial, lambda one, other: one and not other) for _ in range(runs)))
    return audit.epsilon_lower_bound(hits[0], runs, hits[1], runs)


@pytest.mark.slow
def test_sampled_searches_keep_their_epsilon_and_trials_of_twice_the_price_are_caught() -> None:
    with entropy.seeded_for_tests(3):
        assert 0.5 < attacked(0.5) <= 1.0  # more than one trial shows, and no more than twice that
        assert attacked(1.0) > 1.0  # the twin: trials that cost 1 are sold at a half


def test_what_a_step_must_promise() -> None:
    stopping = RandomStopping(QUARTER, 10)
    Step("best", Loss.pure(Fraction(1, 2)), stopping, 1, (3,))
    with pytest.raises(vw.VeilwoodError, match="does not keep"):
        Step("best", Loss.pure(Fraction(49, 100)), stopping, 1, (3,))
    again = Step.from_dict(Step("best", Loss.pure(Fraction(1, 2)), stopping, 1, (3,)).to_dict())
    assert again.mechanism == stopping
    for odds in (1, 0, Fraction(5, 2)):
        with pytest.raises(vw.VeilwoodError):
            RandomStopping(QUARTER, odds)


ROW, PERSON = Neighbours(), Neighbours("add-remove", RowsOf("person", 8))
BOTH_PARTS = [Neighbours("replace-one"), Neighbours("add-remove", Rows(2)), Neighbours("replace-one", RowsOf("p", 8))]


@pytest.mark.parametrize("neighbours", [ROW, PERSON, *BOTH_PARTS], ids=str)
def test_a_trial_takes_no_more_than_was_charged(neighbours: Neighbours) -> None:
    charged = TrialBudget(Loss.pure(QUARTER), neighbours)
    if neighbours in BOTH_PARTS:  # training and judging add up
        charged.take(Loss.pure(QUARTER * 3 / 4), neighbours)
        with pytest.raises(PlanError, match="exceeds"):
            charged.take(Loss.pure(QUARTER), neighbours, aside=True)
        charged.take(Loss.pure(QUARTER / 4), neighbours, aside=True)
    else:
        charged.take(Loss.pure(QUARTER), neighbours)
        charged.take(Loss.pure(QUARTER), neighbours, aside=True)
    for aside in (False, True):  # nothing is left, of either part
        with pytest.raises(PlanError, match="exceeds"):
            charged.take(Loss.pure(Fraction(1, 10**6)), neighbours, aside=aside)


@pytest.mark.parametrize("loss", [Loss.pure(Fraction(26, 100)), Loss(QUARTER, Fraction(1, 10**9)), Loss.unbounded()])
def test_a_trial_that_is_not_pure_or_too_dear_is_refused(loss: Loss) -> None:
    with pytest.raises(PlanError, match="exceeds"):
        TrialBudget(Loss.pure(QUARTER), ROW).take(loss, ROW)


@pytest.mark.parametrize("others", [*BOTH_PARTS, PERSON, Neighbours("add-remove", RowsOf("person", 1))], ids=str)
def test_a_trial_for_others_is_refused_before_its_door_opens(others: Neighbours) -> None:
    """Fewer rows of the same person too: their loss is not that of eight."""
    searched = ROW if others == PERSON else PERSON
    step = counting_step("counts", (3,), Loss.pure(QUARTER), others, l1=1, squared_l2=1)
    plan = replace(plan_of(step), loss=Loss.pure(QUARTER), neighbours=others)
    with pytest.raises(PlanError, match="no part of a search"):
        TrialDoor(plan, TrialBudget(Loss.pure(QUARTER), searched))
    TrialDoor(plan, TrialBudget(Loss.pure(QUARTER), others))


@pytest.mark.parametrize("price", [QUARTER, 2 * QUARTER])
def test_each_trial_is_given_what_the_search_has_charged(price: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomStopping, "draw_trial_count", lambda self: 3)
    stopping = RandomStopping(QUARTER, 10)
    step = Step("best", Loss.pure(2 * QUARTER), stopping, 1, (3,))
    of_trial = replace(plan_of(counting_step("counts", (3,), Loss.pure(price), ROW, l1=1, squared_l2=1)),
                       loss=Loss.pure(price))  # fmt: skip
    seen: list[TrialBudget] = []

    def trial(charged: TrialBudget) -> int:
        seen.append(charged)
        with TrialDoor(of_trial, charged) as door:
            return int(door.release_counts(of_trial.steps[0], np.zeros(3, np.int64))[0])

    with Door(replace(plan_of(step), loss=Loss.pure(2 * QUARTER)), vw.MemoryLedger()) as door:
        if price > QUARTER:
            with pytest.raises(PlanError, match="exceeds"):
                door.release_best_trial(step, trial, lambda one, other: one > other)
            assert len(seen) == 1
        else:
            door.release_best_trial(step, trial, lambda one, other: one > other)
            assert len({id(charged) for charged in seen}) == 3  # none eats what another was given
    assert {charged.loss for charged in seen} == {Loss.pure(QUARTER)}


@pytest.mark.parametrize("trials", [2.0, 10.0, 100.0])
def test_the_mean_is_at_least_what_was_asked_for(trials: float) -> None:
    found = RandomStopping.with_mean(QUARTER, trials)
    assert trials <= found.mean_trials < 1.1 * trials + 1
    assert found.mean_trials == pytest.approx(
        float((law(int(found.odds), 20000) * np.arange(1, 20001)).sum()), rel=0.01
    )
