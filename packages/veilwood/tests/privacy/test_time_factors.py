# SPDX-License-Identifier: Apache-2.0
"""Tests of factors of time: sensitivity of whole histories, unbiased estimates, exact variances and plans."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from veilwood.errors import MechanismError, ParameterError, PlanError, VeilwoodError
from veilwood.privacy import entropy
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, Mechanism
from veilwood.privacy.time_factors import (
    GRID,
    STRATEGIES,
    FactorName,
    SeriesNoise,
    SeriesTerms,
    TimeFactor,
    compare_factors,
    estimate_counts,
    make_factor,
)

FACTORS = [(name, squared) for name in STRATEGIES for squared in (True, False)]


def terms(release: int, factor: TimeFactor) -> SeriesTerms:
    return SeriesTerms("1", {"name": "month"}, None, "toeplitz", "largest", "zcdp", factor, release)


# -- sensitivity -------------------------------------------------------------------------------------------------------


def history(factor: TimeFactor, lost: tuple[int, ...], period: int, present: tuple[bool, ...]) -> list[int]:
    """What a row of a period adds to the measurement of every release, lost ones included, in which it is present."""
    added = []
    for release in range(1, factor.releases + 1):
        known = TimeFactor(factor.weights, tuple(number for number in lost if number < release))
        weight = known.period_weights(release)[period - 1]
        added.append(weight if present[release - 1] else 0)
    return added


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("squared", [True, False])
def test_sensitivity_by_enumeration(name: FactorName, squared: bool) -> None:
    """Every row that arrives on time or late, vanishes and comes back, with every set of lost releases."""
    factor, largest = make_factor(name, 4, squared=squared), 0
    for lost in (each for each in product((False, True), repeat=4)):
        numbers = tuple(place + 1 for place, is_lost in enumerate(lost) if is_lost)
        for period in range(1, 5):
            for present in product((False, True), repeat=4):
                added = history(factor, numbers, period, present)
                largest = max(largest, sum(each**2 if squared else each for each in added))
    assert largest == factor.norm(squared=squared)


def test_a_row_whose_period_changes_counts_as_two() -> None:
    factor = make_factor("optimized", 4)
    for before, after, change in product(range(1, 5), range(1, 5), range(1, 5)):
        old, new = (history(factor, (), period, (True,) * 4) for period in (before, after))
        moved = [old[place] if place + 1 < change else new[place] for place in range(4)]
        assert sum(each**2 for each in moved) <= 2 * factor.norm(squared=True)


def test_weights_that_change_a_column_would_be_caught() -> None:
    """Mutant: after a lost release its rows take the weights of the next period, which they were not measured with."""
    factor = make_factor("toeplitz", 3)
    column = [row[0] for row in factor.weights]
    mutant = [column[0], factor.weights[1][1], factor.weights[2][1]]
    assert sum(each**2 for each in mutant) > factor.norm(squared=True)


# -- estimates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "squared"), FACTORS)
@pytest.mark.parametrize("lost", [(), (2,), (2, 3), (1, 4)])
def test_estimates_are_the_counts_of_all_rows(name: FactorName, squared: bool, lost: tuple[int, ...]) -> None:
    """Without noise, the estimate is the sum of all periods; of lost ones too, unless they weigh too little."""
    factor, counts = TimeFactor(make_factor(name, 6, squared=squared).weights, lost), np.array([7, 1, 5, 0, 11, 3])
    measured: list[np.ndarray] = []
    for release in factor.measured(6):
        weights = np.array(factor.period_weights(release))
        measured.append(np.array([weights @ counts]))
        counted = counts[:release]
        if name != "splitting" and not squared:  # the identity: rows of a lost release are not counted again
            counted = np.delete(counted, [number - 1 for number in lost if number <= release])
        estimate = estimate_counts(factor, release, measured)[0]
        if name == "toeplitz" or squared or name == "splitting":
            assert estimate == counts[:release].sum(), (release, lost)
        else:
            assert estimate == counted.sum(), (release, lost)


def test_coefficients_match_an_independent_solution() -> None:
    """Oracle: the pseudo-inverse of the whole matrix, row by row."""
    for name, squared in FACTORS:
        factor = make_factor(name, 9, squared=squared)
        matrix = np.array([factor.period_weights(number) for number in range(1, 10)], np.float64)
        expected = np.tril(np.ones((9, 9))) @ np.linalg.pinv(matrix)
        for number in range(1, 10):
            np.testing.assert_allclose(factor.coefficients(number), expected[number - 1, :number], atol=1e-9)


@pytest.mark.parametrize(
    ("releases", "known"),
    [(4, 2.2), (12, 3.4), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((36, 4.9), (52, 5.4)))],
)
def test_ratios_to_splitting(releases: int, known: float) -> None:
    """The square root of P has closed forms; the optimum lies between it and the bound by singular values."""
    errors = compare_factors(releases, "largest", squared=True)
    squares = np.cumprod(np.append(1.0, (2 * np.arange(1, releases) - 1) / (2 * np.arange(1, releases)))) ** 2
    assert errors["splitting"] == releases
    assert errors["toeplitz"] == pytest.approx(squares.sum() ** 2, rel=1e-3)
    assert errors["toeplitz"] == pytest.approx(known, abs=0.06)
    nuclear = np.linalg.svd(np.tril(np.ones((releases, releases))), compute_uv=False).sum() / releases
    assert nuclear**2 <= errors["optimized"] * 1.001  # for the mean, hence for the largest variance
    assert errors["optimized"] < 0.82 * errors["toeplitz"]
    assert errors["optimized"] <= errors["banded"] <= 1.1 * errors["optimized"]


def test_pure_noise_is_best_on_periods() -> None:
    assert make_factor("optimized", 3, squared=False).weights == ((1,), (0, 1), (0, 0, 1))
    errors = compare_factors(12, "largest", squared=False)
    assert (errors["optimized"], errors["splitting"]) == (12, 144)


@pytest.mark.parametrize("objective", ["largest", "mean"])
def test_the_optimum_is_a_minimum(objective: str) -> None:
    """No random change of the weights by one per cent lowers the error by more than the search's tolerance."""
    factor, rng = make_factor("optimized", 5, objective), np.random.default_rng(0)  # type: ignore[arg-type]
    best = factor.error(objective, squared=True)  # type: ignore[arg-type]
    for _ in range(200):
        rows = tuple(
            tuple(max(1, round(w * (1 + 0.01 * rng.standard_normal()))) for w in row) for row in factor.weights
        )
        assert TimeFactor(rows).error(objective, squared=True) > best * 0.9995  # type: ignore[arg-type]


# -- noise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [DiscreteGaussian(Fraction(9 * GRID**2)), DiscreteLaplace(Fraction(2 * GRID))])
def test_measured_variance_is_the_expected_one(noise: DiscreteGaussian | DiscreteLaplace) -> None:
    """200,000 estimates of every release: the standard error is 0.3 to 0.7 %, and the limit 3 %."""
    factor = make_factor("toeplitz", 4)
    with entropy.seeded_for_tests(5):
        measured = [SeriesNoise(noise, factor, number).perturb(np.zeros(200_000, np.int64)) for number in range(1, 5)]
    for number in range(1, 5):
        estimates = estimate_counts(factor, number, measured[:number])
        expected = SeriesNoise(noise, factor, number).variance
        assert estimates.var() == pytest.approx(expected, rel=0.03), number


def test_the_loss_counts_every_release() -> None:
    factor = make_factor("toeplitz", 12)
    norm = factor.norm(squared=True)
    noise = SeriesNoise(DiscreteGaussian(Fraction(norm * 6, 2)), factor, 3)
    cost = noise.cost(6)
    assert cost is not None
    assert cost.rho == 1
    laplace = SeriesNoise(DiscreteLaplace(Fraction(factor.norm(squared=False))), factor, 3).cost(2)
    assert laplace is not None
    assert laplace.epsilon == 2


def test_a_mechanism_is_read_back_from_its_texts() -> None:
    for factor in (TimeFactor(((3,), (2, 3)), (1,)), make_factor("optimized", 12)):
        noise = SeriesNoise(DiscreteGaussian(Fraction(7, 2)), factor, 2)
        assert Mechanism.from_dict(noise.to_dict()) == noise
    with pytest.raises(MechanismError):
        SeriesNoise(DiscreteGaussian(2), TimeFactor(((1,),)), 0).perturb(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    "change",
    [{"weights": "0; 1 2"}, {"weights": "1; 2"}, {"weights": "1; -1 2"}, {"lost": "2 1"}, {"lost": "9"},
     {"release": "7"}, {"base": "SparseLaplace"}, {"base": "nothing"}, {"weights": "1 " * 300}],
)  # fmt: skip
def test_forged_mechanisms_are_refused(change: dict[str, str]) -> None:
    texts = SeriesNoise(DiscreteGaussian(2), TimeFactor(((3,), (2, 3))), 1).to_dict()
    with pytest.raises((VeilwoodError, ValueError, KeyError, TypeError)):
        Mechanism.from_dict({**texts, **change})


@pytest.mark.parametrize(
    "weights",
    [(), ((0,),), ((1,), (1,)), ((1,), (1, 0)), ((1,), (-1, 2)), ((1.5,),), tuple((1,) * n for n in range(1, 107))],
)  # fmt: skip
def test_invalid_weights_are_refused(weights: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(MechanismError):
        TimeFactor(weights)


def test_invalid_requests_are_refused() -> None:
    for releases in (0, 105, 2.5, True):
        with pytest.raises(ParameterError):
            make_factor("toeplitz", releases)  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        make_factor("banded", 4, bands=5)
    with pytest.raises(MechanismError):
        TimeFactor(((1,), (1, 1)), (1,)).period_weights(1)


def test_terms_are_read_back_from_a_plan() -> None:
    given = terms(2, make_factor("toeplitz", 3))
    assert SeriesTerms.from_choices(given.to_choices()).to_choices() == given.to_choices()
    for change in ({"law": "both"}, {"release": 4}, {"id": 3}, {"weights": 7}, {"period": 1}, {"strategy": "guess"}):
        with pytest.raises(PlanError):
            SeriesTerms.from_choices({**given.to_choices(), **change})


def test_a_design_loss_has_the_noise_of_the_series() -> None:
    """A release of the series has at most the variance of one release at the loss that forests are designed for."""
    for law, delta in (("pure", 0), ("zcdp", 1e-6)):
        factor = make_factor("toeplitz", 12, squared=law == "zcdp")
        series = SeriesTerms("1", {}, None, "toeplitz", "largest", law, factor)  # type: ignore[arg-type]
        requested = requested_loss(3.0, delta)
        base = series.design_loss(requested)
        error = factor.error("largest", squared=law == "zcdp")
        if law == "zcdp":
            assert base.rho is not None
            assert requested.rho is not None
            assert float(requested.rho / base.rho) == pytest.approx(error, rel=1e-3)
        else:
            assert base.epsilon is not None
            assert float(3 / base.epsilon) ** 2 == pytest.approx(error, rel=1e-3)
