# SPDX-License-Identifier: Apache-2.0
"""A private choice takes the same work whatever the scores: words and exact refinements are counted, not time."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from veilwood.privacy import entropy, samplers
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")

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
