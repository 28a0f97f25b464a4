# SPDX-License-Identifier: Apache-2.0
"""Variances of joint noise, against draws, against what is known of single tables, and against a finer quadrature."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from veilwood.privacy import entropy
from veilwood.privacy import joint_noise as joint_moments
from veilwood.privacy.joint_noise import JointLaplace, unit_scale_moments
from veilwood.privacy.noise import DiscreteLaplace

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")

SIGMAS = 6.0


def off_by(squares: np.ndarray, variance: float) -> float:
    """How many standard errors the mean of squares is from a variance."""
    return float(abs(squares.mean() - variance) / (squares.std() / len(squares) ** 0.5))


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (2, 2, 5), (8,) * 4, (2,) * 20], ids=str)
def test_variances_are_those_of_draws(sizes: tuple[int, ...]) -> None:
    noise, runs = JointLaplace(60, sizes), 600
    with entropy.seeded_for_tests(90):
        drawn = noise.sample(runs).astype(np.float64)
    assert off_by(drawn[: sizes[0]].sum(axis=0) ** 2, noise.moments.total) < SIGMAS
    first = 0
    for m, variance in zip(sizes, noise.variances, strict=True):
        table = drawn[first : first + m]
        first += m
        apart = ((table - table.mean(axis=0)) ** 2).sum(axis=0) / (m - 1)
        assert off_by(apart, variance) < SIGMAS
        assert off_by(apart, variance / 4) > SIGMAS  # half the noise


def test_a_table_by_itself_has_the_variance_of_discrete_laplace_noise() -> None:
    for scale in (Fraction(1, 3), Fraction(1), Fraction(20)):
        for m in (2, 5, 48):
            assert JointLaplace(scale, (m,)).variance == pytest.approx(DiscreteLaplace(scale).variance, rel=1e-6)
        assert JointLaplace(scale, (7,)).moments.total == pytest.approx(14 * float(scale) ** 2, rel=1e-6)


@pytest.mark.parametrize("sizes", [(2,) * 128, (48,) * 5 + (16,), (8,) * 32, (3, *(40,) * 5), tuple(range(1, 22))])
def test_the_quadrature_is_fine_enough(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    counted = tuple(sorted(Counter(sizes).items()))
    apart, total = unit_scale_moments(counted)
    nodes, weights = np.polynomial.legendre.leggauss(150)
    monkeypatch.setattr(joint_moments, "QUADRATURE_NODES", (nodes + 1) / 2)
    monkeypatch.setattr(joint_moments, "_QUADRATURE_WEIGHTS", weights / 2)
    # What is kept of the others stays theirs: the functions below the caches are called.
    monkeypatch.setattr(joint_moments, "_vector_moments", joint_moments._vector_moments.__wrapped__)
    finer, total_of_finer = unit_scale_moments.__wrapped__(counted)
    assert total == pytest.approx(total_of_finer, rel=1e-6)
    assert dict(apart) == pytest.approx(dict(finer), rel=1e-6)


def test_company_costs_less_than_noise_alone() -> None:
    for m, n_tables in ((2, 2), (2, 20), (8, 8), (48, 5)):
        together = JointLaplace(1000, (m,) * n_tables).variance
        assert 0.95 * DiscreteLaplace(1000).variance < together < 0.95 * DiscreteLaplace(1000 * n_tables).variance


def test_a_table_of_one_cell_has_nothing_apart() -> None:
    noise = JointLaplace(5, (1, 1))
    assert noise.variances == (0.0, 0.0)
    assert noise.moments.total == pytest.approx(50.0)


def test_small_noise_is_nearly_none() -> None:
    noise = JointLaplace(Fraction(1, 50), (2, 3))
    assert max(noise.variances) < 1e-10
