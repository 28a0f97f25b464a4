# SPDX-License-Identifier: Apache-2.0
"""Noise mechanisms, attacked: exact losses over all small inputs, sampler fits, thresholds, mutants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats

from veilwood.errors import MechanismError, ParameterError, PlanError, UseError, VeilwoodError
from veilwood.privacy import entropy, samplers
from veilwood.privacy.certificate import NO_SCHEMA
from veilwood.privacy.door import Door
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf
from veilwood.privacy.noise import (
    MAX_SIGMA_SQUARED,
    DiscreteGaussian,
    DiscreteLaplace,
    Geometric,
    ThresholdedGaussian,
)
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip
from veilwood.privacy.steps import Step, counting_step, threshold_step
from veilwood_testing.errors import rejects
from veilwood_testing.noise_checks import ALARM_P_VALUE, selection_p_value

pytestmark = [pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")]


Noise = DiscreteLaplace | DiscreteGaussian | Geometric


def bins(expected: np.ndarray, least: float = 25.0) -> np.ndarray:
    """Number neighbouring outcomes so that each bin expects at least `least` draws."""
    ids = np.empty(expected.size, dtype=np.int64)
    current, mass = 0, 0.0
    left = expected.sum()
    for i, value in enumerate(expected):
        if mass >= least and left >= least:
            current, mass = current + 1, 0.0
        ids[i] = current
        mass, left = mass + value, left - value
    return ids


def fit(draws: np.ndarray, noise: Noise) -> float:
    """Return the lower chi-square p-value of the draws under the noise's pmf, in fine bins and in coarse ones."""
    reach = 4 + int(12 * sqrt(noise.variance))
    outcomes = np.arange(-reach, reach + 1)
    expected = draws.size * noise.pmf(outcomes)
    expected[[0, -1]] += max(0.0, draws.size - expected.sum()) / 2
    observed = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=outcomes.size)
    p_values = [1.0]
    for least in (25.0, draws.size / 50):  # fine bins see structure, coarse ones see a wrong scale
        ids = bins(expected, least)
        e, o = np.bincount(ids, expected), np.bincount(ids, observed)
        if e.size > 1:
            p_values.append(float(stats.chi2.sf(((o - e) ** 2 / e).sum(), e.size - 1)))
    return min(p_values)


def fit_two_samples(a: np.ndarray, b: np.ndarray) -> float:
    """Return the chi-square p-value of two samples of equal size having one law."""
    low = min(a.min(), b.min())
    size = int(max(a.max(), b.max()) - low) + 1
    x, y = np.bincount(a - low, minlength=size), np.bincount(b - low, minlength=size)
    ids = bins((x + y) / 2.0)
    x, y = np.bincount(ids, x), np.bincount(ids, y)
    return float(stats.chi2.sf(((x - y) ** 2 / (x + y)).sum(), x.size - 1))


def loss_lower_bound(hits: int, hits_of_neighbour: int, n: int, alpha: float = 5e-9) -> float:
    """Return a lower bound of the loss shown by an event, by two Clopper-Pearson bounds at alpha/2."""
    low = stats.beta.ppf(alpha / 2, hits, n - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - alpha / 2, hits_of_neighbour + 1, n - hits_of_neighbour)
    return log(low / high) if low > 0 else 0.0


# Laws: deterministic.


@pytest.mark.parametrize("scale", [Fraction(1, 1000), Fraction(1, 2), Fraction(1), Fraction(37, 3), Fraction(1000)])
def test_pmfs_sum_to_one_and_give_the_variance(scale: Fraction) -> None:
    for noise in (DiscreteLaplace(scale), DiscreteGaussian(scale), Geometric(scale)):
        reach = 60 + int(45 * scale)
        k = np.arange(-reach, reach + 1)
        pmf = noise.pmf(k)
        mean = (k * pmf).sum()
        assert pmf.sum() == pytest.approx(1, abs=1e-12)
        assert ((k - mean) ** 2 * pmf).sum() == pytest.approx(noise.variance, rel=1e-9, abs=1e-300)


def laplace_loss(scale: Fraction, sensitivity: int) -> float:
    """Return the worst log-ratio of the pmf over integer shifts of at most `sensitivity`."""
    k = np.arange(-50, 51)
    log_pmf = np.log(DiscreteLaplace(scale).pmf(np.arange(-60, 61)))
    return max(float(np.abs(log_pmf[k + 60] - log_pmf[k + 60 + s]).max()) for s in range(-sensitivity, sensitivity + 1))


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(2), Fraction(70, 3)])
@pytest.mark.parametrize("sensitivity", [1, 2, 5])
def test_laplace_loss_is_the_bound_and_attains_it(scale: Fraction, sensitivity: int) -> None:
    claimed = float(DiscreteLaplace(scale).epsilon(sensitivity))
    assert laplace_loss(scale, sensitivity) == pytest.approx(claimed, rel=1e-9)
    # The mutant that forgets one unit of sensitivity, or halves the scale, is over its claim.
    assert laplace_loss(scale, sensitivity + 1) > claimed * (1 + 1e-9)
    assert laplace_loss(scale / 2, sensitivity) > claimed * (1 + 1e-9)


def gaussian_excess(sigma_squared: Fraction, shift: int, claimed_rho: Fraction) -> float:
    """Return the largest Renyi divergence between the noise and its shift, over order * rho: at most 1 if sound."""
    reach = 40 + int(14 * sqrt(sigma_squared)) + 40 * shift
    k = np.arange(-reach, reach + 1)
    worst = 0.0
    for order in (1.1, 2.0, 5.0, 20.0):
        # log of sum p^a q^(1-a), kept in logs since the terms far out underflow
        exponent = -(order * k**2 + (1 - order) * (k - shift) ** 2) / (2 * float(sigma_squared))
        normaliser = 1 / DiscreteGaussian(sigma_squared).pmf(0)
        divergence = (np.logaddexp.reduce(exponent) - log(normaliser)) / (order - 1)
        worst = max(worst, float(divergence) / (order * float(claimed_rho)))
    return worst


@pytest.mark.parametrize("sigma_squared", [Fraction(1, 3), Fraction(1), Fraction(77, 10), Fraction(400)])
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_gaussian_renyi_divergence_is_below_the_bound(sigma_squared: Fraction, shift: int) -> None:
    claimed = DiscreteGaussian(sigma_squared).rho(shift**2)
    assert gaussian_excess(sigma_squared, shift, claimed) <= 1 + 1e-9
    assert gaussian_excess(sigma_squared, shift, claimed) > 0.99
    # The mutant with half the variance is caught.
    assert gaussian_excess(sigma_squared / 2, shift, claimed) > 1.5


# Fits of the samplers: statistical, in the seeded context so that a failure repeats.

LAWS: list[Noise] = [
    DiscreteLaplace(Fraction(1, 1000)),
    DiscreteLaplace(Fraction(1, 2)),
    DiscreteLaplace(1),
    DiscreteLaplace(10),
    DiscreteLaplace(100),
    DiscreteLaplace(1000),
    Geometric(Fraction(7, 3)),
    Geometric(1000),
    DiscreteGaussian(Fraction(1, 4)),
    DiscreteGaussian(1),
    DiscreteGaussian(Fraction(12345, 10)),
    DiscreteGaussian(10**6),
    DiscreteGaussian(Fraction(10**8, 30)),
]


@pytest.mark.parametrize("noise", LAWS, ids=str)
def test_sampler_fits_the_pmf(noise: Noise) -> None:
    with entropy.seeded_for_tests(20):
        assert fit(noise.sample(10**6), noise) > ALARM_P_VALUE


@pytest.mark.parametrize("digit_bits", [2, 6, 8])
@pytest.mark.parametrize(
    "noise", [DiscreteLaplace(3), Geometric(1), DiscreteGaussian(2), DiscreteLaplace(600)], ids=str
)
def test_sampler_fits_the_pmf_with_short_words(noise: Noise, digit_bits: int) -> None:
    # How often short words tie is asserted in test_samplers.py.
    with entropy.seeded_for_tests(21, digit_bits):
        assert fit(noise.sample(20_000 if digit_bits == 2 else 200_000), noise) > ALARM_P_VALUE


@pytest.mark.parametrize("digit_bits", [1, 16])
def test_gaussian_rejection_fits_with_short_words(digit_bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A small sigma sent through the rejection sampler, where single outcomes can be told apart. With digits of
    # one bit the floating-point filter leaves one coin in eight to the integers.
    monkeypatch.setattr(samplers, "ONE_TABLE_SIGMA", 0)
    with entropy.seeded_for_tests(22, digit_bits):
        for noise in (DiscreteGaussian(Fraction(1, 3)), DiscreteGaussian(5), DiscreteGaussian(200)):
            assert fit(noise.sample(40_000 if digit_bits == 1 else 500_000), noise) > ALARM_P_VALUE


@pytest.mark.parametrize("sigma_squared", [10**18, MAX_SIGMA_SQUARED])
def test_the_largest_gaussians_are_normal(sigma_squared: int) -> None:
    with entropy.seeded_for_tests(25):
        drawn = DiscreteGaussian(sigma_squared).sample(50_000) / sigma_squared**0.5
    assert stats.kstest(drawn, "norm").pvalue > ALARM_P_VALUE


@pytest.mark.parametrize("scale", [10**6, 10**9])
def test_large_scales_fit_digit_by_digit(scale: int) -> None:
    # Quotient and remainder of a geometric are independent and have known laws.
    with entropy.seeded_for_tests(23):
        quotient, remainder = np.divmod(Geometric(scale).sample(10**6), 1024)
    assert fit(quotient // 1024, Geometric(Fraction(scale, 1024**2))) > ALARM_P_VALUE
    for digit, digit_scale in ((remainder, scale), (quotient % 1024, scale / 1024)):
        law = np.exp(-np.arange(1024) / digit_scale)
        assert selection_p_value(digit, law / law.sum()) > ALARM_P_VALUE


@pytest.mark.parametrize("scale", [1, 10, 1000])
def test_fit_catches_a_halved_scale_and_two_percent(scale: int) -> None:
    claimed = DiscreteLaplace(scale)
    with entropy.seeded_for_tests(24):
        assert fit(DiscreteLaplace(Fraction(scale, 2)).sample(10**5), claimed) < ALARM_P_VALUE
        assert fit(DiscreteLaplace(scale * Fraction(98, 100)).sample(10**6), claimed) < ALARM_P_VALUE


def drawn_by_opendp(noise: DiscreteLaplace | DiscreteGaussian, n: int) -> np.ndarray:
    """Draws of the same distribution by another library: the oracle of the next test."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if isinstance(noise, DiscreteLaplace):
        draw = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), float(noise.scale))
    else:
        draw = dp.m.make_gaussian(domain, dp.l2_distance(T="i64"), float(noise.sigma_squared) ** 0.5)
    return np.asarray(draw(np.zeros(n, dtype=np.int64)), dtype=np.int64)


@pytest.mark.parametrize("noise", [DiscreteLaplace(2), DiscreteLaplace(Fraction(61, 3)), DiscreteGaussian(30)], ids=str)
def test_agrees_with_opendp(noise: DiscreteLaplace | DiscreteGaussian) -> None:
    parameter = noise.scale if isinstance(noise, DiscreteLaplace) else noise.sigma_squared
    other = drawn_by_opendp(noise, 40_000)
    with entropy.seeded_for_tests(26):
        ours = noise.sample(40_000)
        halved = type(noise)(parameter / 4).sample(40_000)
    assert fit_two_samples(ours, other) > ALARM_P_VALUE
    assert fit_two_samples(halved, other) < ALARM_P_VALUE


def test_low_order_bits_betray_float_noise_and_not_ours() -> None:
    # Mironov 2012: 0.0 + noise reaches numbers that 1.0 + noise cannot.
    n = 10**4

    def hits(release: Callable[[int], np.ndarray], count: int) -> int:
        y = release(count).astype(np.float64)
        return int(((np.abs(y) < 0.5) & (y * 2.0**53 != np.floor(y * 2.0**53))).sum())

    rng = np.random.default_rng(0)
    by_float = {c: hits(lambda count: count + rng.laplace(size=n), c) for c in (0, 1)}
    with entropy.seeded_for_tests(27):
        by_ours = {c: hits(lambda count: DiscreteLaplace(1).perturb(np.full(n, count)), c) for c in (0, 1)}
    assert loss_lower_bound(by_float[0], by_float[1], n) > 4
    assert loss_lower_bound(by_ours[0], by_ours[1], n) == 0
    assert by_ours == {0: 0, 1: 0}


@pytest.mark.parametrize(("scale", "is_caught"), [(Fraction(1), False), (Fraction(9, 10), True)])
def test_distinguisher_sees_ten_percent_too_little_noise(scale: Fraction, is_caught: bool) -> None:
    n = 2 * 10**6
    with entropy.seeded_for_tests(28):
        noise = DiscreteLaplace(scale).sample((2, n))
    bound = loss_lower_bound(int((noise[0] + 1 >= 1).sum()), int((noise[1] >= 1).sum()), n)
    assert (bound > 1) == is_caught


# Behaviour and refusals.


def test_shapes_are_kept_and_draws_are_fresh() -> None:
    noise = DiscreteLaplace(10**6)
    assert noise.sample((2, 3, 4)).shape == (2, 3, 4)
    assert noise.sample(5).tolist() != noise.sample(5).tolist()
    assert noise.sample(0).shape == (0,)
    assert DiscreteGaussian(3).perturb(np.zeros((0, 4), dtype=np.int32)).shape == (0, 4)
    assert noise.perturb([]).shape == (0,)
    assert NoisyMax(1, 1).select(np.zeros((0, 3), dtype=np.int64)).shape == (0,)
    assert ExponentialMechanism(1, 1).select(np.zeros((2, 5, 3), dtype=np.uint8)).shape == (2, 5)
    assert PermuteAndFlip(1, 1).select([1, 2]).shape == ()


def test_noise_is_added_to_the_counts() -> None:
    counts = np.array([[5, 0], [10**12, -7]])
    assert (DiscreteLaplace(Fraction(1, 1000)).perturb(counts) == counts).all()


@pytest.mark.parametrize("value", [0, -1, Fraction(-1, 2), float("nan"), 1.5, "1", None, True, 2**101])
def test_bad_scales_are_refused(value: object) -> None:
    for make in (DiscreteLaplace, Geometric, DiscreteGaussian):
        with pytest.raises(VeilwoodError, match=r"scale|sigma_squared"):
            make(value)  # type: ignore[arg-type]
    with pytest.raises(VeilwoodError, match="epsilon"):
        NoisyMax(value, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values", [[1.0, 2.0], [True, False], np.array([1, 2], dtype=object), ["a"], np.array([2**62, 0]), [np.nan]]
)
def test_values_that_are_not_safe_integers_are_refused(values: object) -> None:
    with rejects(MechanismError, raised_in="require_integers"):
        DiscreteLaplace(1).perturb(values)  # type: ignore[arg-type]
    with rejects(MechanismError, raised_in="require_integers"):
        NoisyMax(1, 1).select(values)  # type: ignore[arg-type]


def test_bad_sensitivities_are_refused() -> None:
    with rejects(MechanismError, raised_in="require_non_negative"):
        DiscreteLaplace(1).epsilon(-1)
    with rejects(MechanismError, raised_in="require_fraction"):
        DiscreteGaussian(1).rho(0.5)  # type: ignore[arg-type]


LOSSES = [(1.0, 1e-6), (0.3, 1e-9), (3.0, 1e-3), (8.0, 1e-2)]


def law(noise: ThresholdedGaussian, count: int) -> np.ndarray[Any, Any]:
    """Probabilities that a thing with a count does not come out, and that it comes out as each number."""
    reach = noise.threshold + count + math.ceil(12 * float(noise.sigma_squared) ** 0.5) + 2
    numbers = np.arange(noise.threshold + 1, reach + 1)
    out = DiscreteGaussian(noise.sigma_squared).pmf(numbers - count)
    return np.append(1 - out.sum(), out)


def delta_at(noise: ThresholdedGaussian, epsilon: float, one: list[int], other: list[int]) -> float:
    """The exact delta between two tables of the same names at an epsilon, both ways; a count of 0 never comes out."""
    size = max(len(law(noise, count)) for count in (*one, *other) if count)

    def table(counts: list[int]) -> np.ndarray[Any, Any]:
        laws = [np.pad(law(noise, c), (0, size - len(law(noise, c)))) if c else np.eye(1, size)[0] for c in counts]
        joint = laws[0]
        for each in laws[1:]:
            joint = np.multiply.outer(joint, each)
        return joint

    p, q = table(one), table(other)
    factor = math.exp(epsilon)
    return max(float(np.maximum(p - factor * q, 0).sum()), float(np.maximum(q - factor * p, 0).sum()))


# A unit of two rows: it adds two to something that others have too, and has something of its own.
TABLES = [([0], [2]), ([40], [42]), ([40, 0], [42, 2]), ([1, 2], [3, 0])]


def worst(noise: ThresholdedGaussian, epsilon: float) -> float:
    return max(delta_at(noise, epsilon, one, other) for one, other in TABLES)


@pytest.mark.parametrize(("epsilon", "delta"), LOSSES)
def test_the_exact_loss_is_within_the_promise(epsilon: float, delta: float) -> None:
    loss = Loss(requested_loss(epsilon, delta).epsilon, Fraction(delta))
    noise = ThresholdedGaussian.for_loss(loss, squared_l2=8, max_contribution=2, max_changed_keys=2)
    assert noise.costs_at_most(loss, 8)
    assert worst(noise, epsilon) <= delta
    # Where the threshold lies matters: counts just around it tell most.
    around = [([noise.threshold], [noise.threshold + 2]), ([noise.threshold, 0], [noise.threshold + 2, 2])]
    assert max(delta_at(noise, epsilon, *pair) for pair in around) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), LOSSES)
def test_half_the_noise_and_half_the_threshold_are_caught(epsilon: float, delta: float) -> None:
    loss = Loss(requested_loss(epsilon, delta).epsilon, Fraction(delta))
    noise = ThresholdedGaussian.for_loss(loss, squared_l2=8, max_contribution=2, max_changed_keys=2)
    low = ThresholdedGaussian(noise.sigma_squared, max(noise.threshold // 2, 2), 2, 2)
    assert not low.costs_at_most(loss, 8)
    assert worst(low, epsilon) > delta
    weak = ThresholdedGaussian(noise.sigma_squared / 4, noise.threshold, 2, 2)
    assert not weak.costs_at_most(loss, 8)
    pair = [noise.threshold + 100, noise.threshold + 100], [noise.threshold + 102, noise.threshold + 102]
    assert delta_at(noise, epsilon, *pair) <= delta
    assert delta_at(weak, epsilon, *pair) > delta


def test_the_tail_is_bounded_from_above() -> None:
    for sigma_squared in (Fraction(1, 3), Fraction(2), Fraction(50), Fraction(1000)):
        for threshold in (1, 2, 5, 20, 100):
            noise = ThresholdedGaussian(sigma_squared, threshold, 1, 1)
            numbers = np.arange(threshold, threshold + 2000)  # a thing of one row comes out above the threshold
            exact = math.fsum(DiscreteGaussian(sigma_squared).pmf(numbers).tolist())
            assert exact <= float(noise.delta) * (1 + 1e-12)


def test_one_row_less_threshold_would_cost_more() -> None:
    loss = Loss(Fraction(1), Fraction(1, 10**6))
    noise = ThresholdedGaussian.for_loss(loss, squared_l2=2, max_contribution=1, max_changed_keys=2)
    assert noise.delta <= loss.delta / 2
    assert replace_threshold(noise, noise.threshold - 1).delta > loss.delta / 2


def replace_threshold(noise: ThresholdedGaussian, threshold: int) -> ThresholdedGaussian:
    return ThresholdedGaussian(noise.sigma_squared, threshold, noise.max_contribution, noise.max_changed_keys)


def test_what_is_drawn_follows_the_law() -> None:
    noise = ThresholdedGaussian(Fraction(9), 8, 1, 1)
    n = 40_000
    places, counts = noise.perturb(np.full(n, 7))
    expected = law(noise, 7)
    assert abs(len(places) / n - (1 - expected[0])) < 5.5 * math.sqrt(0.25 / n)
    assert counts.min() > 8
    found = np.bincount(counts - 9, minlength=len(expected))[:6] / n
    assert np.all(np.abs(found - expected[1:7]) < 5.5 * np.sqrt(expected[1:7] / n))
    assert noise.perturb(np.empty(0, np.int64))[0].tolist() == []


@pytest.mark.parametrize("counts", [np.zeros(2, np.int64), np.ones(2), np.ones((1, 2), np.int64)])
def test_other_counts_are_refused(counts: Any) -> None:
    with pytest.raises(MechanismError):
        ThresholdedGaussian(2, 5, 1, 1).perturb(counts)


@pytest.mark.parametrize("wrong", [(2, 0, 1, 1), (2, 5, 0, 1), (2, 5, 1, 0), (2, 3, 4, 1), (0, 5, 1, 1)])
def test_wrong_numbers_are_refused(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(MechanismError):
        ThresholdedGaussian(*wrong)
    with rejects(MechanismError, raised_in="ThresholdedGaussian.for_loss"):
        ThresholdedGaussian.for_loss(Loss.pure(Fraction(1)), squared_l2=1, max_contribution=1, max_changed_keys=1)


# -- as a step of a plan -----------------------------------------------------------------------------------------------


def plan_of(step: Step, loss: Loss | None = None, more: tuple[Step, ...] = ()) -> Plan:
    return Plan(
        estimator="discover", parameters={}, loss=loss or step.loss, neighbours=Neighbours(), steps=(step, *more),
        released="what stands out", schema_name="s", schema_hash=NO_SCHEMA, layout=Layout(), expected_leaf_mse=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("unit", [Rows(1), Rows(3), RowsOf("id", 4)])
def test_a_step_has_the_noise_its_neighbours_need(adjacency: Any, unit: Any) -> None:
    neighbours = Neighbours(adjacency, unit)
    step = threshold_step("things", (5,), requested_loss(1.0, 1e-6), neighbours, keys_per_row=10)
    assert isinstance(step.mechanism, ThresholdedGaussian)
    sides = 1 if adjacency == "add-remove" else 2
    assert step.sensitivity == 10 * unit.at_most**2 * sides
    assert (step.mechanism.max_contribution, step.mechanism.max_changed_keys) == (
        unit.at_most,
        10 * unit.at_most * sides,
    )
    assert step.loss.rho is None  # it is no zCDP, so nothing may add it up as such
    assert Step.from_dict(step.to_dict()) == step
    assert Plan.from_dict(plan_of(step).to_dict()) == plan_of(step)


def test_steps_and_plans_that_promise_too_much_are_refused() -> None:
    step = threshold_step("things", (5,), requested_loss(1.0, 1e-6), Neighbours(), keys_per_row=10)
    for loss in (
        Loss(Fraction(1, 2), Fraction(1, 10**6)),
        Loss(Fraction(1), Fraction(1, 10**7)),
        Loss(Fraction(1)),
        Loss(Fraction(1), Fraction(1, 10**6), Fraction(1, 2)),
    ):
        with pytest.raises(PlanError):
            replace(step, loss=loss)
    pure = counting_step("more", (2,), Loss.pure(Fraction(1)), Neighbours(), l1=1, squared_l2=1)
    twice = replace(step, name="again")
    enough = Loss(Fraction(2), Fraction(1, 10**6))
    assert plan_of(step, enough, (pure,)).loss == enough
    for loss, more in (
        (step.loss, (pure,)),  # too little epsilon
        (Loss(Fraction(2), Fraction(1, 10**6)), (twice,)),  # too little delta
        (requested_loss(3.0, 1e-5), (pure,)),  # promised as zCDP, which it is not
    ):
        with pytest.raises(PlanError):
            plan_of(step, loss, more)
    rho = counting_step("more", (2,), requested_loss(1.0, 1e-6), Neighbours(), l1=1, squared_l2=1)
    with pytest.raises(PlanError):  # a part of rho has no epsilon of its own
        plan_of(step, Loss(Fraction(2), Fraction(1, 10**5)), (rho,))


def test_the_door_charges_epsilon_and_delta() -> None:
    step = threshold_step("things", (5,), requested_loss(1.0, 1e-6), Neighbours(), keys_per_row=2)
    ledger = MemoryLedger(epsilon=1.5, delta=1e-6)
    with Door(plan_of(step), ledger) as door:
        places, _ = door.release_above_threshold(step, np.array([1, 10**6, 1]))
        assert places.tolist() == [1]
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_above_threshold(step, np.array([1]))
        with pytest.raises((PlanError, UseError)):
            door.release_counts(step, np.array([1]))
    assert door.certificate().is_private
    assert ledger.remaining is not None
    assert ledger.remaining.epsilon == Fraction(1, 2)
    assert ledger.remaining.delta == 0
    with pytest.raises(ParameterError):
        requested_loss(1.0, -1)
