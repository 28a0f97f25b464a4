# SPDX-License-Identifier: Apache-2.0
"""The paper's noise in fixed point: about the law of Laplace, and it gives the count away."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from fractions import Fraction
from math import log
from typing import Any

import numpy as np
import pytest
from scipy import stats

from veilwood.errors import VeilwoodError
from veilwood.privacy import entropy
from veilwood_papers.mpc import plain as fixed_point
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.noise_checks import laplace_mass


@pytest.fixture
def seeded() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"), entropy.seeded_for_tests(8):
        yield


def every_logarithm(scale: Fraction) -> np.ndarray:
    """scale * ln U for each of the 2**16 uniform numbers, in the integers of the fixed-point protocol."""
    factor, bits = float(scale) * log(2), fixed_point.UNIFORM_BITS
    numbers = 2 * np.arange(1 << bits) + 1  # U in units of 2**-17
    place = bits - np.floor(np.log2(numbers)).astype(np.int64)
    t = (numbers << place) - 3 * 2 ** (bits - 1)
    terms = [
        round(factor * c * 2 ** (fixed_point.FRACTION_BITS - bits * k)) * t**k for k, c in enumerate(fixed_point.LOG2)
    ]
    return np.unique(sum(terms) - (place + 1) * round(factor * 2**fixed_point.FRACTION_BITS))


@pytest.mark.usefixtures("seeded")
def test_fixed_point_noise_has_about_the_law_of_laplace() -> None:
    engine = PlainEngine(np.uint64)
    drawn = engine.open(fixed_point.log_laplace_not_private(engine, Fraction(3), (4, 5000))) / 2**42
    assert drawn.shape == (4, 5000)
    assert stats.kstest(drawn.ravel(), "laplace", args=(0, 3)).statistic < 0.02
    assert abs(drawn.var() / 18 - 1) < 0.1


@pytest.mark.usefixtures("seeded")
def test_fixed_point_noise_gives_the_count_away_and_ours_does_not() -> None:
    scale = Fraction(1)
    engine = PlainEngine(np.uint64)
    possible = every_logarithm(scale)
    one = 1 << fixed_point.FRACTION_BITS
    reached = {
        count: np.mean([
            np.isin(released - count * one + possible, possible).any()
            for released in engine.open(fixed_point.log_laplace_not_private(engine, scale, (60,)))  # the count is 0
        ])
        for count in (0, 1)
    }  # fmt: skip
    assert reached[0] == 1  # a log that the formula does not know would show here
    assert reached[1] < 0.1  # more than nine outputs in ten cannot come from a count of 1
    assert (laplace_mass(scale, np.arange(-30, 31)) > 0).all()
    with pytest.raises(VeilwoodError, match="uint64"):
        fixed_point.log_laplace_not_private(PlainEngine(), scale, (1,))


def test_three_servers_draw_fixed_point_noise() -> None:
    def program(links: Links) -> Any:
        engine = ReplicatedEngine(links, ring=np.uint64)
        return engine.open(fixed_point.log_laplace_not_private(engine, Fraction(3), (5000,))) / 2**42

    first, second, third = run_in_threads(program)
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)
    assert stats.kstest(first, "laplace", args=(0, 3)).pvalue > 1e-7
