# SPDX-License-Identifier: Apache-2.0
"""Secret noise has the law it claims: exactly up to a stated distance, and no server can take it off."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import comb, exp
from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")

from veilwood.errors import VeilwoodError
from veilwood.privacy import entropy, samplers
from veilwood.privacy.joint_noise import JointLaplace
from veilwood_audit.statistics import epsilon_lower_bound
from veilwood_secure.mpc.engine import Bits, Shared
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.joint_forest import DEALT_JOINT_VARIANCE
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.noise_checks import laplace_mass

SCALES = [Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(50)]
DRAWS = 60_000


@pytest.fixture
def seeded() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"), entropy.seeded_for_tests(8):
        yield


def geometric_mass(scale: Fraction, cells: np.ndarray) -> np.ndarray:
    q = exp(-1 / scale)
    return np.where(cells < 0, 0.0, (1 - q) * q ** np.maximum(cells, 0).astype(float))


def fit(drawn: np.ndarray, mass: Any, scale: Fraction) -> float:
    """p-value of the chi-square test, over cells with an expectation of at least 5 and the two tails together."""
    reach = int(10 * scale) + 10
    cells = np.arange(-reach, reach + 1)
    expected = mass(scale, cells) * drawn.size
    kept = expected >= 5
    counts = np.array([(drawn == cell).sum() for cell in cells[kept]])
    rest = drawn.size - counts.sum(), drawn.size - expected[kept].sum()
    statistic = ((counts - expected[kept]) ** 2 / expected[kept]).sum() + (rest[0] - rest[1]) ** 2 / max(rest[1], 1)
    return float(stats.chi2.sf(statistic, kept.sum()))


# The exact law


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(5)])
def test_independent_digits_make_the_geometric_law_within_the_stated_distance(scale: Fraction) -> None:
    one = 1 << 200  # all masses in units of 2**-200, each rounded: far finer than the distance
    digits = [threshold << (200 - noise.PRECISION_BITS) for threshold in noise._digit_thresholds(scale)]
    q = samplers.exp_minus(1 / scale, 200)[0]
    mass, distance = one - q, 0
    for z in range(noise.max_draw(scale) + 1):
        drawn = one
        for j, digit in enumerate(digits):
            drawn = drawn * (digit if z >> j & 1 else one - digit) >> 200
        distance += abs(drawn - mass)
        mass = mass * q >> 200
    distance += mass * one // (one - q)  # what the law has beyond the digits
    stated = noise.total_variation(scale, 1) * one
    assert stated / 1000 < Fraction(distance, 2) <= stated


def test_a_digit_too_few_would_be_noticed() -> None:
    q = exp(-1.0)
    assert q ** ((noise.max_draw(Fraction(1)) + 1) // 2) > float(noise.total_variation(Fraction(1), 1))


def test_what_is_lost_is_far_below_2_to_the_minus_40() -> None:
    for scale in SCALES:
        assert noise.total_variation(scale, 2 * 51_200) < Fraction(1, 2**50)
    assert noise.total_variation(Fraction(1), 20) == 20 * noise.total_variation(Fraction(1), 1)


def test_thresholds_are_the_probabilities_rounded_down() -> None:
    for scale in SCALES:
        for j, threshold in enumerate(noise._digit_thresholds(scale)):
            low, high = samplers.exp_minus(2**j / scale, 300)
            bounds = [Fraction(end, (1 << 300) + end) * 2**noise.PRECISION_BITS for end in (low, high)]
            assert bounds[0] - 2 < threshold <= bounds[1]


class Rigged(PlainEngine):
    """An engine whose uniform secret numbers are chosen."""

    def __init__(self, numbers: list[list[int]]) -> None:
        super().__init__()
        self._numbers = numbers

    def random_words(self, shape: tuple[int, ...], dtype: Any = np.uint64) -> Bits:
        if len(shape) != 3:
            return super().random_words(shape, dtype)
        words = np.zeros(shape, dtype=np.uint64)
        for row, numbers in enumerate(self._numbers):
            for at, number in enumerate(numbers):
                for k in range(noise.PRECISION_BITS):
                    bit = number >> (noise.PRECISION_BITS - 1 - k) & 1
                    words[k, row, 0] |= np.uint64(bit << at)
        return Bits([words], 0)


def test_uniform_numbers_next_to_a_threshold_are_decided_exactly() -> None:
    thresholds = noise._digit_thresholds(Fraction(7, 2))
    near = [
        [0, 1, t - 1, t, t + 1, t // 2, 2**noise.PRECISION_BITS - 1, 2 * t]
        for t in map(lambda t: max(t, 1), thresholds)
    ]
    below = noise._uniform_below(Rigged(near), thresholds, 1).parts[0]
    for row, (threshold, numbers) in enumerate(zip(thresholds, near, strict=True)):
        for at, number in enumerate(numbers):
            assert int(below[row, 0]) >> at & 1 == (number < threshold)


# Draws


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("scale", SCALES)
def test_draws_fit_their_law(scale: Fraction) -> None:
    engine = PlainEngine()
    assert fit(engine.open(noise.geometric(engine, scale, (DRAWS,))), geometric_mass, scale) > 1e-4
    assert fit(engine.open(noise.discrete_laplace(engine, scale, (DRAWS,))), laplace_mass, scale) > 1e-4


@pytest.mark.usefixtures("seeded")
def test_the_fit_catches_half_the_noise_and_five_percent() -> None:
    engine = PlainEngine()
    for wrong in (Fraction(1, 2), Fraction(19, 20), Fraction(21, 20)):
        scale = Fraction(7, 2)
        drawn = engine.open(noise.discrete_laplace(engine, scale * wrong, (DRAWS,)))
        assert fit(drawn, laplace_mass, scale) < 1e-9
    drawn = engine.open(noise.discrete_laplace(engine, Fraction(1), (DRAWS,)))
    assert fit(drawn, geometric_mass, Fraction(1)) < 1e-9


def test_three_servers_draw_the_law_together() -> None:
    def program(links: Links) -> Any:
        engine = ReplicatedEngine(links)
        sampled = engine.open(noise.discrete_laplace(engine, Fraction(2), (DRAWS,)))
        dealt = engine.open(noise.dealt_laplace(engine, Fraction(2), (DRAWS,)))
        return sampled, dealt, engine.stats.rounds

    results = run_in_threads(program)
    for sampled, dealt, rounds in results:
        assert np.array_equal(sampled, results[0][0])
        assert np.array_equal(dealt, results[0][1])
        assert rounds == 9 + 1 + 1 + 1
    assert fit(results[0][0], laplace_mass, Fraction(2)) > 1e-7
    variance = 2 * exp(-0.5) / (1 - exp(-0.5)) ** 2
    assert abs(np.var(results[0][1]) / (1.5 * variance) - 1) < 0.1


def test_many_draws_are_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PlainEngine()
    monkeypatch.setattr(noise, "WORDS_PER_BATCH", 1 << 10)
    drawn = engine.open(noise.geometric(engine, Fraction(1), (7, 100)))
    assert drawn.shape == (7, 100)
    assert engine.stats.rounds > 10
    assert noise.geometric(engine, Fraction(1), (0, 3)).shape == (0, 3)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("scale", [Fraction(1), Fraction(7, 2), Fraction(50)])
def test_two_dealt_parts_are_a_laplace_and_one_is_not(scale: Fraction) -> None:
    parts = [noise.sample_polya(scale, DRAWS) - noise.sample_polya(scale, DRAWS) for _ in range(2)]
    assert fit(parts[0] + parts[1], laplace_mass, scale) > 1e-4
    assert fit(parts[0], laplace_mass, scale) < 1e-9
    assert fit(2 * parts[0], laplace_mass, scale) < 1e-9


def dealt_jointly(scale: Fraction | int, runs: int) -> tuple[Any, dict[int, Any]]:
    """Deal joint noise on two tables of two cells, many times; return what is opened and what each server dealt."""
    parts: dict[int, Any] = {}

    class Listening(PlainEngine):
        def deal_sum(self, draw: Any, shape: tuple[int, ...]) -> Shared:
            parts.update((server, draw(server)) for server in range(3))
            return self.constant(sum(parts.values()))

    engine = Listening(np.uint64)
    mechanism = JointLaplace(scale, (2, 2))
    return engine.open(noise.dealt_joint_laplace(engine, mechanism, (4, runs))), parts


@pytest.mark.usefixtures("seeded")
def test_joint_noise_keeps_its_epsilon_towards_a_server_that_knows_its_part() -> None:
    """On numbers that are not negative the norm is their sum, and a row more costs all of epsilon."""
    row, runs = np.array([1, 0, 1, 0]), 2_000

    def loss_towards(server: int, scale: int) -> float:
        opened, parts = dealt_jointly(scale, runs)
        rest = opened - parts[server]
        assert (rest[:2].sum(axis=0) == rest[2:].sum(axis=0)).all()
        without, present = (
            int(((noisy.min(axis=0) >= 0) & (noisy[0] >= 1) & (noisy[2] >= 1)).sum())
            for noisy in (rest, rest + row[:, None])
        )
        return epsilon_lower_bound(present, runs, without, runs)

    for server in (0, 1):
        assert loss_towards(server, 2) <= 0.5
    assert loss_towards(0, 1) > 0.5  # half the noise is caught
    opened, parts = dealt_jointly(2, runs)
    assert not parts[2].any()
    planned = np.repeat(JointLaplace(2, (2, 2)).variances, 2)
    between = np.var(opened[0] - opened[1]) / 2  # the variance as if cells were independent
    assert abs(between / planned[0] / DEALT_JOINT_VARIANCE - 1) < 0.15


def test_polya_masses_convolve_to_the_geometric() -> None:
    # C(2k,k)/4^k * C(2(n-k),n-k)/4^(n-k) adds up to 1 over k: two of index 1/2 make index 1.
    for n in range(12):
        assert sum(Fraction(comb(2 * k, k) * comb(2 * (n - k), n - k), 4**n) for k in range(n + 1)) == 1


@pytest.mark.usefixtures("seeded")
def test_coins_are_tossed_in_pieces_and_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "COINS_PER_BATCH", 1 << 10)
    row_draws = np.array([0, 1, 2, 63, 64, 65, 128, 200] * 500)
    heads = noise._count_heads(row_draws).reshape(500, 8)
    assert (heads[:, 0] == 0).all()
    for at, n in enumerate(row_draws[:8]):
        assert abs(heads[:, at].mean() - n / 2) <= 5 * (n / 4 / 500) ** 0.5
        assert heads[:, at].max() <= n
    assert set(heads[:, 1]) == {0, 1}
    # Coins of the same person must not repeat from piece to piece.
    assert all(not np.array_equal(a, b) for a, b in pairwise(heads[:, 7].reshape(10, 50)))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda engine: noise.geometric(engine, Fraction(0), (1,)), "sensitivity / epsilon"),
        (lambda engine: noise.geometric(engine, Fraction(2**30), (1,)), "uint64"),
        (lambda engine: noise.dealt_laplace(engine, Fraction(5000), (1,)), "discrete_laplace"),
        (lambda engine: noise.dealt_laplace(engine, Fraction(-1), (1,)), "discrete_laplace"),
    ],
)
def test_scales_that_cannot_be_are_refused(draw: Any, message: str) -> None:
    with pytest.raises(VeilwoodError, match=message):
        draw(PlainEngine())


def test_large_scales_fit_64_bit_words() -> None:
    engine = PlainEngine(np.uint64)
    drawn = engine.open(noise.geometric(engine, Fraction(2**30), (2000,)))
    assert abs(drawn.mean() / 2**30 - 1) < 0.15
