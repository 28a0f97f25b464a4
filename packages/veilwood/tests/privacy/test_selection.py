# SPDX-License-Identifier: Apache-2.0
"""Selection mechanisms and random stopping: distributions, bounds, constant work, mutants."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from math import exp, log
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

import veilwood as vw
import veilwood_audit as audit
from veilwood.errors import MechanismError, PlanError, VeilwoodError
from veilwood.privacy import entropy, samplers
from veilwood.privacy.door import Door, TrialDoor
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf
from veilwood.privacy.noise import Geometric
from veilwood.privacy.selection import (
    ExponentialMechanism,
    NoisyMax,
    PermuteAndFlip,
    RandomStopping,
    TrialBudget,
)
from veilwood.privacy.steps import Step, counting_step
from veilwood_testing.errors import rejects
from veilwood_testing.noise_checks import ALARM_P_VALUE, selection_p_value
from veilwood_testing.plans import small_plan

pytestmark = [pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")]


SELECTIONS = [NoisyMax, PermuteAndFlip, ExponentialMechanism]


Selection = type[NoisyMax] | type[PermuteAndFlip] | type[ExponentialMechanism]


def selection_loss(choice: NoisyMax | PermuteAndFlip | ExponentialMechanism, steps: tuple[int, ...]) -> float:
    """Return the worst log-ratio over score vectors and neighbours whose scores change by one of `steps` each."""
    worst = 0.0
    vectors = [*product(range(3), repeat=3), (0, 25, 0), (0, 25, 25), (0, 0), (0, 25), (0, 12, 25), (3,)]
    laws: dict[tuple[int, ...], np.ndarray] = {}
    for scores in vectors:
        for change in product(steps, repeat=len(scores)):
            neighbour = tuple(np.add(scores, change).tolist())
            for vector in (scores, neighbour):
                laws.setdefault(vector, choice.probabilities(vector))
            worst = max(worst, float(np.abs(np.log(laws[scores] / laws[neighbour])).max()))
    return worst


@pytest.mark.parametrize("mechanism", SELECTIONS)
@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(3, 2)])
def test_selection_loss_is_the_bound_and_attains_it(mechanism: Selection, epsilon: Fraction) -> None:
    claimed = float(epsilon)
    one_sided = selection_loss(mechanism(epsilon, 1), (0, 1))
    two_sided = selection_loss(mechanism(epsilon, 2), (-1, 0, 1))
    assert max(one_sided, two_sided) <= claimed * (1 + 1e-9)
    if epsilon >= 1:  # small epsilons attain the bound only at gaps beyond the vectors tried
        assert min(one_sided, two_sided) > 0.999 * claimed


@pytest.mark.parametrize("mechanism", SELECTIONS)
def test_selection_loss_catches_a_monotone_flag_under_replace_one(mechanism: Selection) -> None:
    # Scores that move by -1, 0 or 1 have range 2; calling it 1 doubles the loss.
    assert selection_loss(mechanism(1, 1), (-1, 0, 1)) == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(2)])
def test_exponential_mechanism_has_bounded_range_and_its_rho(epsilon: Fraction) -> None:
    choice = ExponentialMechanism(epsilon, 2)
    assert choice.rho == epsilon**2 / 8
    worst_range = worst_renyi = 0.0
    for scores in [(0, 0, 0), (0, 3, 1), (5, 0, 5), (2, 1, 0)]:
        for change in product((-1, 0, 1), repeat=3):
            p, q = choice.probabilities(scores), choice.probabilities(np.add(scores, change))
            ratios = np.log(p / q)
            worst_range = max(worst_range, float(ratios.max() - ratios.min()))
            for order in (1.01, 2.0, 8.0):
                divergence = log(float((p**order * q ** (1 - order)).sum())) / (order - 1)
                worst_renyi = max(worst_renyi, divergence / order)
    assert worst_range == pytest.approx(float(epsilon), rel=1e-9)
    assert float(choice.rho) * 0.5 < worst_renyi <= float(choice.rho) * (1 + 1e-9)


def noisy_max_by_summation(scores: tuple[int, ...], scale: float) -> np.ndarray:
    """Return the law of geometric noisy max with uniform ties, by summing over every value of the maximum."""
    noise = Geometric(Fraction(scale))
    law = np.zeros(len(scores))
    for top in range(max(scores), max(scores) + 400):
        at = np.array([float(noise.pmf(top - s)) for s in scores])
        below = np.array([1 - exp(-(top - s) / scale) if top > s else 0.0 for s in scores])
        for tied in product((False, True), repeat=len(scores)):
            mask = np.array(tied)
            if mask.any():
                law[mask] += np.where(mask, at, below).prod() / mask.sum()
    return law


@pytest.mark.parametrize("scores", [(0, 0), (0, 1), (3, 0, 2), (5, 5, 4, 0)])
@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(2)])
def test_noisy_max_with_random_ties_is_permute_and_flip(scores: tuple[int, ...], epsilon: Fraction) -> None:
    by_summation = noisy_max_by_summation(scores, float(1 / epsilon))
    np.testing.assert_allclose(NoisyMax(epsilon, 1).probabilities(scores), by_summation, atol=1e-12)
    np.testing.assert_allclose(PermuteAndFlip(epsilon, 1).probabilities(scores), by_summation, atol=1e-12)


@pytest.mark.parametrize("mechanism", SELECTIONS)
def test_laws_sum_to_one_for_many_candidates_and_respect_the_mask(mechanism: Selection) -> None:
    scores = np.arange(300) % 17
    law = mechanism(Fraction(1, 3), 1).probabilities(scores, scores % 2 == 0)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert not law[scores % 2 == 1].any()
    assert mechanism(1, 1).probabilities([7]).tolist() == [1.0]


@pytest.mark.parametrize("mechanism", SELECTIONS)
@pytest.mark.parametrize("digit_bits", [6, 16])
def test_selection_fits_its_law(mechanism: Selection, digit_bits: int) -> None:
    choice = mechanism(Fraction(2, 3), 2)
    admissible = np.array([True, True, False, True])
    with entropy.seeded_for_tests(25, digit_bits):
        for scores in ([0, 0, 9, 0], [4, 0, 9, 7], [1, 2, 3, 2]):
            drawn = choice.select(np.tile(scores, (100_000, 1)), admissible)
            assert selection_p_value(drawn, choice.probabilities(scores, admissible)) > ALARM_P_VALUE
            if scores != [0, 0, 9, 0]:  # a mutant with the range forgotten is far too sharp
                assert (
                    selection_p_value(drawn, mechanism(Fraction(2, 3), 1).probabilities(scores, admissible))
                    < ALARM_P_VALUE
                )


@pytest.mark.parametrize("value", [0, -2, 1.0, Fraction(1, 2), None, 2**70])
def test_bad_ranges_are_refused(value: object) -> None:
    with pytest.raises(VeilwoodError, match="score_range"):
        PermuteAndFlip(1, value)  # type: ignore[arg-type]


def test_bad_candidates_are_refused() -> None:
    choice = NoisyMax(1, 1)
    with rejects(MechanismError, raised_in="_score_gaps"):
        choice.select(np.zeros((3, 0), dtype=np.int64))
    with rejects(MechanismError, raised_in="_score_gaps"):
        choice.select(3)
    with rejects(MechanismError, raised_in="_score_gaps"):
        choice.select([[1, 2], [3, 4]], [[True, False], [False, False]])
    with rejects(MechanismError, raised_in="_score_gaps"):
        choice.select([1, 2], [1, 0])
    with rejects(MechanismError, raised_in="_score_gaps"):
        choice.select([1, 2], [True, True, False])
    with rejects(MechanismError, raised_in="_SelectionMechanism.probabilities"):
        choice.probabilities([[1, 2]])


def test_extreme_scores_do_not_overflow() -> None:
    scores = np.array([2**61, -(2**61)])
    for mechanism in SELECTIONS:
        assert mechanism(1, 1).select(np.tile(scores, (50, 1))).tolist() == [0] * 50  # type: ignore[abstract]


CANDIDATES, CHOICES = 200, 50


SCORES = {
    "equal": np.zeros(CANDIDATES, dtype=np.int64),
    "one far above": np.r_[10**6, np.zeros(CANDIDATES - 1, dtype=np.int64)],
    "one far below": np.r_[-(10**6), np.zeros(CANDIDATES - 1, dtype=np.int64)],
    "steep": -np.arange(CANDIDATES, dtype=np.int64) * 7,
    "as far as scores go": np.r_[2**61, np.full(CANDIDATES - 1, -(2**61))],
}


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the calls for random words, the words, and the numbers that are computed to any precision."""
    counted = {"calls": 0, "words": 0, "exact": 0}
    words, exp_minus = entropy.random_integers, samplers.exp_minus

    def counting_words(n: int, bits: int = 64) -> Any:
        counted["calls"] += 1
        counted["words"] += n
        return words(n, bits)

    def counting_exp_minus(x: Fraction, bits: int) -> tuple[int, int]:
        counted["exact"] += 1
        return exp_minus(x, bits)

    monkeypatch.setattr(entropy, "random_integers", counting_words)
    monkeypatch.setattr(samplers, "exp_minus", counting_exp_minus)
    return counted


@pytest.mark.parametrize("mechanism", [ExponentialMechanism, PermuteAndFlip, NoisyMax])
@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(2)])
def test_the_work_does_not_depend_on_the_scores(mechanism: Any, epsilon: Fraction, work: dict[str, int]) -> None:
    choice = mechanism(epsilon, 1)
    choice.select(SCORES["equal"])  # tables are made once
    done = {}
    for name, scores in SCORES.items():
        before = dict(work)
        with entropy.seeded_for_tests(31):  # the same bits each time
            choice.select(np.tile(scores, (CHOICES, 1)))
        done[name] = {key: work[key] - before[key] for key in work}
    assert len({tuple(count.values()) for count in done.values()}) == 1, done


# -- the choice is exact next to every cumulative probability ---------------------------------------------------------

BITS, DIGITS = 320, 160


CASES = [
    ([0, 3, 1, 7], [True] * 4, Fraction(5, 3)),
    ([0, 0, 0], [True] * 3, Fraction(1)),
    ([9, 0, 4, 0, 2], [False, True, True, False, True], Fraction(2)),
    ([0, 5, 2, 1], [True, True, True, False], Fraction(7, 2)),
    ([900, 0, 40, 2**62], [True] * 4, Fraction(1)),
    ([11, 30, 0], [True] * 3, Fraction(1, 2)),
]


def thresholds(gaps: list[int], admissible: list[bool], scale: Fraction) -> list[Decimal]:
    """Cumulative probabilities by Python's decimal module, which shares no code with the samplers."""
    weights = [
        (Decimal(-gap * scale.denominator) / Decimal(scale.numerator)).exp() if allowed else Decimal(0)
        for gap, allowed in zip(gaps, admissible, strict=True)
    ]
    return [sum(weights[: i + 1], Decimal(0)) / sum(weights, Decimal(0)) for i in range(len(weights))]


def script(monkeypatch: pytest.MonkeyPatch, uniform: int) -> None:
    """Make the sampler read the `BITS` bits of `uniform`, from the top."""
    text = iter(f"{uniform:0{BITS}b}")

    def words(n: int, bits: int = 64) -> np.ndarray:
        return np.array([int("".join(next(text) for _ in range(bits)), 2) for _ in range(n)], dtype=np.uint64)

    monkeypatch.setattr(entropy, "random_integers", words)


def wrong_choices(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many choices next to a cumulative probability are wrong, of how many."""
    wrong = tried = 0
    with localcontext() as context:
        context.prec = DIGITS
        for gaps, admissible, scale in CASES:
            reference = thresholds(gaps, admissible, scale)
            for threshold in reference:
                for distance in (20, 50, 60, 64, 100, 250):
                    for side in (-1, 1):
                        uniform = threshold + side * Decimal(2) ** -distance
                        if not 0 < uniform < 1:
                            continue
                        expected = sum(f <= uniform for f in reference)
                        script(monkeypatch, int(uniform * 2**BITS))
                        drawn = samplers.weighted_choice(np.array([gaps]), np.array([admissible]), scale)
                        wrong, tried = wrong + (int(drawn[0]) != expected), tried + 1
    return wrong, tried


def test_choices_next_to_a_threshold_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, tried = wrong_choices(monkeypatch)
    assert wrong == 0
    assert tried > 150


def test_the_exactness_test_catches_floating_point_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_floats(gaps: np.ndarray, scale: Fraction, prefix: int, bits: int) -> int:
        reached = np.exp(-gaps / float(scale)).cumsum()
        return int((reached[:-1] <= prefix / 2.0**bits * reached[-1]).sum())

    monkeypatch.setattr(samplers, "_refined_choice", by_floats)
    assert wrong_choices(monkeypatch)[0] > 20


@pytest.mark.parametrize("digit_bits", [1, 2, 6])
def test_choices_refined_again_and_again_fit_their_law(digit_bits: int, work: dict[str, int]) -> None:
    choice = ExponentialMechanism(Fraction(2, 3), 2)
    scores, n = [4, 0, 9, 7], 20_000
    with entropy.seeded_for_tests(32, digit_bits):
        drawn = choice.select(np.tile(scores, (n, 1)))
    expected = n * choice.probabilities(scores)
    observed = np.bincount(drawn, minlength=4)
    assert ((observed - expected) ** 2 / expected).sum() < 50  # three degrees of freedom: 1e-10
    if digit_bits < 6:
        assert work["exact"] > n / 20  # words of 4 or 8 bits are often refined


def test_refinements_are_rare_whatever_the_scores(work: dict[str, int]) -> None:
    choice = ExponentialMechanism(Fraction(1, 10), 1)
    with entropy.seeded_for_tests(33):
        for scores in SCORES.values():
            choice.select(np.tile(scores, (2000, 1)))
    assert work["exact"] == 0  # each has a probability below 1e-9


QUARTER = Fraction(1, 4)


CHI_SQUARE_ALARM = 1e-7


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
    assert chisquare(pooled[1], pooled[0] * pooled[1].sum() / pooled[0].sum()).pvalue > CHI_SQUARE_ALARM
    wrong = law(odds * 3, 12)
    wrong = np.append(wrong, 1 - wrong.sum()) * len(draws)
    assert chisquare(counts, np.maximum(wrong, 1e-9) * counts.sum() / wrong.sum()).pvalue < CHI_SQUARE_ALARM


def test_uniform_numbers_are_uniform() -> None:
    counts = np.bincount([entropy.draw_below(3) for _ in range(6000)], minlength=3)
    assert chisquare(counts).pvalue > CHI_SQUARE_ALARM
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
    with rejects(PlanError, raised_in="Step.__post_init__"):
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
        with rejects(PlanError, raised_in="TrialBudget.take"):
            charged.take(Loss.pure(QUARTER), neighbours, aside=True)
        charged.take(Loss.pure(QUARTER / 4), neighbours, aside=True)
    else:
        charged.take(Loss.pure(QUARTER), neighbours)
        charged.take(Loss.pure(QUARTER), neighbours, aside=True)
    for aside in (False, True):  # nothing is left, of either part
        with rejects(PlanError, raised_in="TrialBudget.take"):
            charged.take(Loss.pure(Fraction(1, 10**6)), neighbours, aside=aside)


@pytest.mark.parametrize("loss", [Loss.pure(Fraction(26, 100)), Loss(QUARTER, Fraction(1, 10**9)), Loss.unbounded()])
def test_a_trial_that_is_not_pure_or_too_dear_is_refused(loss: Loss) -> None:
    with rejects(PlanError, raised_in="TrialBudget.take"):
        TrialBudget(Loss.pure(QUARTER), ROW).take(loss, ROW)


@pytest.mark.parametrize("others", [*BOTH_PARTS, PERSON, Neighbours("add-remove", RowsOf("person", 1))], ids=str)
def test_a_trial_for_others_is_refused_before_its_door_opens(others: Neighbours) -> None:
    """Fewer rows of the same person too: their loss is not that of eight."""
    searched = ROW if others == PERSON else PERSON
    step = counting_step("counts", (3,), Loss.pure(QUARTER), others, l1=1, squared_l2=1)
    plan = replace(small_plan(step), loss=Loss.pure(QUARTER), neighbours=others)
    with rejects(PlanError, raised_in="TrialBudget.take"):
        TrialDoor(plan, TrialBudget(Loss.pure(QUARTER), searched))
    TrialDoor(plan, TrialBudget(Loss.pure(QUARTER), others))


@pytest.mark.parametrize("price", [QUARTER, 2 * QUARTER])
def test_each_trial_is_given_what_the_search_has_charged(price: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomStopping, "draw_trial_count", lambda self: 3)
    stopping = RandomStopping(QUARTER, 10)
    step = Step("best", Loss.pure(2 * QUARTER), stopping, 1, (3,))
    of_trial = replace(small_plan(counting_step("counts", (3,), Loss.pure(price), ROW, l1=1, squared_l2=1)),
                       loss=Loss.pure(price))  # fmt: skip
    seen: list[TrialBudget] = []

    def trial(charged: TrialBudget) -> int:
        seen.append(charged)
        with TrialDoor(of_trial, charged) as door:
            return int(door.release_counts(of_trial.steps[0], np.zeros(3, np.int64))[0])

    with Door(replace(small_plan(step), loss=Loss.pure(2 * QUARTER)), vw.MemoryLedger()) as door:
        if price > QUARTER:
            with rejects(PlanError, raised_in="TrialBudget.take"):
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
