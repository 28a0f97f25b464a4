# SPDX-License-Identifier: Apache-2.0
"""The distribution of each sampler as exact fractions: it reads an explicit tape of bits, and all prefixes are tried.

A draw that ends after b bits has probability 2**-b, whatever follows on the tape. Prefixes that have not ended after
``TAPE_BITS`` bits hold what is left, below 2**-40 for every outcome, so that the law of a sampler is enclosed by
fractions, without sampling. It must agree with the closed form, by Python's decimal module, and with the algorithm of
Canonne, Kamath and Steinke (The Discrete Gaussian for Differential Privacy, 2020, Algorithms 1 to 3), whose branches
are summed here independently. That algorithm is the one with a machine-checked proof (SampCert).

Words are short here, so that a tape holds many. What floating point decides of words of 64 bits is attacked in
``test_samplers``, with uniforms placed beside each threshold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from math import floor, isqrt
from typing import Any

import numpy as np
import pytest

from veilwood.arrays import Ints
from veilwood.privacy import entropy, samplers

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")

TAPE_BITS = 56  # long enough that what is left of all outcomes together is below TOLERANCE
TOLERANCE = Fraction(1, 2**40)
FINE_BITS = 96  # precision of the enclosures of the other two laws
DIGITS = 60


@dataclass(frozen=True)
class Enclosed:
    """A probability between two fractions."""

    low: Fraction
    high: Fraction

    def __add__(self, other: Enclosed) -> Enclosed:
        return Enclosed(self.low + other.low, self.high + other.high)

    def __mul__(self, other: Enclosed) -> Enclosed:
        return Enclosed(_cut(self.low * other.low), _cut(self.high * other.high, up=True))

    def __truediv__(self, other: Enclosed) -> Enclosed:
        return Enclosed(_cut(self.low / other.high), _cut(self.high / other.low, up=True))

    @property
    def without(self) -> Enclosed:
        """The probability of the opposite."""
        return Enclosed(1 - self.high, 1 - self.low)

    @property
    def width(self) -> Fraction:
        return self.high - self.low

    def meets(self, other: Enclosed) -> bool:
        """Whether both can be the same number."""
        return self.low <= other.high and other.low <= self.high


Law = dict[int, Enclosed]
NOTHING, CERTAIN = Enclosed(Fraction(0), Fraction(0)), Enclosed(Fraction(1), Fraction(1))


def _cut(value: Fraction, up: bool = False) -> Fraction:
    """Round outwards to FINE_BITS bits, so that fractions stay short."""
    scaled = value * 2**FINE_BITS
    return Fraction(-floor(-scaled) if up else floor(scaled), 2**FINE_BITS)


def exact(value: Fraction | int) -> Enclosed:
    return Enclosed(Fraction(value), Fraction(value))


# -- the tape ----------------------------------------------------------------------------------------------------------


class _EndOfTapeError(Exception):
    """The draw needs this many bits more."""


class Tape:
    """Bits that a sampler reads instead of the operating system's."""

    def __init__(self, prefix: int, n_bits: int) -> None:
        self.prefix, self.left = prefix, n_bits

    def random_integers(self, n: int, bits: int = 64) -> Any:
        words = []
        for _ in range(n):
            if bits > self.left:
                raise _EndOfTapeError(bits)
            self.left -= bits
            words.append(self.prefix >> self.left & (1 << bits) - 1)
        return np.array(words, np.uint64)


def read_all_tapes(
    draw: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, max_bits: int = TAPE_BITS, digit_bits: int = 1
) -> tuple[dict[Any, Fraction], Fraction]:
    """Return the probability that a draw has ended with each outcome, and the probability that it has not ended."""
    ended: dict[Any, Fraction] = defaultdict(Fraction)
    open_mass, prefixes = Fraction(0), [(0, 0)]
    stream = entropy._TestStream(np.random.default_rng(0), digit_bits)
    with monkeypatch.context() as patch:
        token = entropy._test_stream.set(stream)
        try:
            while prefixes:
                prefix, n_bits = prefixes.pop()
                tape = Tape(prefix, n_bits)
                patch.setattr(entropy, "random_integers", tape.random_integers)
                try:
                    outcome = draw()
                except _EndOfTapeError as error:
                    more = int(error.args[0]) - tape.left
                    if n_bits + more > max_bits:
                        open_mass += Fraction(1, 2**n_bits)
                    else:
                        prefixes += [(prefix << more | end, n_bits + more) for end in range(1 << more)]
                else:
                    assert tape.left == 0, "a draw that ends earlier was found before"
                    ended[outcome] += Fraction(1, 2**n_bits)
        finally:
            entropy._test_stream.reset(token)
    assert sum(ended.values()) + open_mass == 1
    return dict(ended), open_mass


def law_on_tape(draw: Callable[[], Ints], monkeypatch: pytest.MonkeyPatch, **more: int) -> tuple[Law, Fraction]:
    """Return the law of a draw of one number."""
    ended, open_mass = read_all_tapes(lambda: int(draw()[0]), monkeypatch, **more)
    return {outcome: Enclosed(mass, mass + open_mass) for outcome, mass in ended.items()}, open_mass


def difference(law: Law, open_mass: Fraction) -> Law:
    """Return the law of the difference of two independent draws."""
    result: dict[int, Fraction] = defaultdict(Fraction)
    for one, first in law.items():
        for other, second in law.items():
            result[one - other] += first.low * second.low
    return {outcome: Enclosed(mass, mass + 2 * open_mass) for outcome, mass in result.items()}


# -- the closed form ---------------------------------------------------------------------------------------------------


def exp_of(exponent: Fraction) -> Enclosed:
    """Enclose exp(-exponent)."""
    with localcontext() as context:
        context.prec = DIGITS
        value = Fraction((-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp())
    error = Fraction(1, 10 ** (DIGITS - 3))
    return Enclosed(_cut(value - error), _cut(value + error, up=True))


def closed_geometric(scale: Fraction, reach: int) -> Law:
    ratio = exp_of(1 / scale)
    return {k: exp_of(Fraction(k) / scale) * ratio.without for k in range(reach)}


def closed_laplace(scale: Fraction, reach: int) -> Law:
    ratio = exp_of(1 / scale)
    peak = ratio.without / (CERTAIN + ratio)
    return {k: exp_of(abs(Fraction(k)) / scale) * peak for k in range(-reach, reach + 1)}


def closed_gaussian(sigma_squared: Fraction, reach: int) -> Law:
    far = isqrt(int(200 * sigma_squared)) + 20  # weights beyond sum to less than 2**-FINE_BITS
    weights = {k: exp_of(Fraction(k * k) / (2 * sigma_squared)) for k in range(-far, far + 1)}
    return _normalised(weights, Fraction(1, 2**80), reach)


# -- the algorithm of Canonne, Kamath and Steinke ----------------------------------------------------------------------


@cache
def coin_of_exp(gamma: Fraction) -> Enclosed:
    """Algorithm 1: the probability that the coin of exp(-gamma) comes up, summed over its branches."""
    if gamma > 1:
        whole = CERTAIN
        for _ in range(floor(gamma)):
            whole = whole * coin_of_exp(Fraction(1))
        return whole * coin_of_exp(gamma - floor(gamma))
    reached, up, k = Fraction(1), Fraction(0), 1
    while reached > Fraction(1, 2 ** (FINE_BITS + 8)):  # k is drawn again while a coin of gamma / k comes up
        up += reached * (1 - gamma / k) * (k % 2)
        reached, k = reached * gamma / k, k + 1
    return Enclosed(_cut(up), _cut(up + reached, up=True))


def laplace_by_algorithm(scale: Fraction, reach: int) -> Law:
    """Algorithm 2 with s / t = 1 / scale: one pass, summed over its branches, and divided by the chance to end."""
    s, t = scale.denominator, scale.numerator
    again, half = coin_of_exp(Fraction(1)), exact(Fraction(1, 2))
    law: dict[int, Enclosed] = defaultdict(lambda: NOTHING)
    for u in range(t):  # u uniform below t, kept with probability exp(-u / t)
        weight = exact(Fraction(1, t)) * coin_of_exp(Fraction(u, t))
        v = 0
        while weight.high > Fraction(1, 2 ** (FINE_BITS - 8)):  # v geometric
            size = (u + t * v) // s
            for sign in (1, -1):
                if size or sign == 1:  # minus nothing is drawn again
                    law[sign * size] += weight * again.without * half
            weight, v = weight * again, v + 1
    rest = Fraction(2 * t, 2 ** (FINE_BITS - 8))  # what the inner loops left out, as further v have half of it at most
    return _normalised(law, rest, reach)


def _normalised(law: Mapping[int, Enclosed], rest: Fraction, reach: int) -> Law:
    """Divide by the total; any outcome may have what was left out besides."""
    total = sum(law.values(), NOTHING) + Enclosed(Fraction(0), rest)
    left_out = Enclosed(Fraction(0), rest)
    return {k: (law.get(k, NOTHING) + left_out) / total for k in range(-reach, reach + 1)}


def gaussian_by_algorithm(sigma_squared: Fraction, reach: int) -> Law:
    """Algorithm 3: a Laplace draw of scale t, accepted by a coin, summed over its branches."""
    t = isqrt(floor(sigma_squared)) + 1
    far = 12 * t + 8  # the coin of what is beyond comes up with a chance below exp(-60)
    proposals = laplace_by_algorithm(Fraction(t), far)
    centre = sigma_squared / t
    law = {y: proposals[y] * coin_of_exp((abs(y) - centre) ** 2 / (2 * sigma_squared)) for y in range(-far, far + 1)}
    return _normalised(law, Fraction(1, 2**80), reach)  # of what is beyond ``far``


# -- comparing ---------------------------------------------------------------------------------------------------------


def disagreements(found: Law, open_mass: Fraction, *others: Law) -> list[int]:
    """Return the outcomes at which laws differ, or are not known to TOLERANCE."""
    assert open_mass <= TOLERANCE
    laws = [{k: found.get(k, Enclosed(Fraction(0), open_mass)) for k in others[0]}, *others]
    return [
        k
        for k in others[0]
        if any(law[k].width > 2 * TOLERANCE for law in laws)
        or not all(one[k].meets(other[k]) for one in laws for other in laws)
    ]


REACH = 60
SMALL = [Fraction(1), Fraction(1, 3), Fraction(5, 2)]
"""Scales of one table. Larger ones have the same code and more thresholds."""


def wrong_geometric(scale: Fraction, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found, open_mass = law_on_tape(lambda: samplers.geometric(scale, 1), monkeypatch)
    return disagreements(found, open_mass, closed_geometric(scale, REACH))


def wrong_gaussian(sigma_squared: Fraction, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found, open_mass = law_on_tape(lambda: samplers.gaussian(sigma_squared, 1), monkeypatch)
    others = closed_gaussian(sigma_squared, 20), gaussian_by_algorithm(sigma_squared, 20)
    return disagreements(found, open_mass, *others)


@pytest.fixture
def fresh_tables() -> Iterator[None]:
    """Forget all tables before a defect is planted, and after."""
    tables = (samplers._geometric_table, samplers._remainder_table, samplers._gaussian_table)
    for table in tables:
        table.cache_clear()
    yield
    for table in tables:
        table.cache_clear()


# -- the laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SMALL, ids=str)
def test_the_laplace_law_is_that_of_the_algorithm_and_the_closed_form(
    scale: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Laplace draw is the difference of two geometric ones, which share no bit: the test after this one."""
    found, open_mass = law_on_tape(lambda: samplers.geometric(scale, 1), monkeypatch)
    assert disagreements(found, open_mass, closed_geometric(scale, REACH)) == []
    laplace = difference(found, open_mass)
    others = closed_laplace(scale, REACH), laplace_by_algorithm(scale, REACH)
    assert disagreements(laplace, 2 * open_mass, *others) == []


def joint_errors(
    draw: Callable[[], Ints], combine: Callable[[int, int], Any], monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """Return outcomes of two numbers drawn in one call that two independent draws cannot have with that probability."""
    single, open_single = law_on_tape(lambda: samplers.geometric(Fraction(1), 1), monkeypatch, max_bits=24)
    ended, open_mass = read_all_tapes(lambda: combine(*_pair(draw())), monkeypatch, max_bits=15)
    expected: dict[Any, Fraction] = defaultdict(Fraction)
    for one, first in single.items():
        for other, second in single.items():
            expected[combine(one, other)] += first.low * second.low
    assert open_mass < Fraction(1, 8)
    slack = 2 * open_single
    return [
        outcome
        for outcome in ended.keys() | expected.keys()
        if ended.get(outcome, Fraction(0)) > expected[outcome] + slack
        or expected[outcome] > ended.get(outcome, Fraction(0)) + open_mass
    ]


def _pair(drawn: Ints) -> tuple[int, int]:
    """The two numbers of a draw; a single one counts as a difference from 0."""
    return int(drawn[0]), int(drawn[1]) if len(drawn) > 1 else 0


@pytest.mark.parametrize("guided", [False, True])
def test_draws_of_one_call_are_independent(guided: bool, monkeypatch: pytest.MonkeyPatch, fresh_tables: None) -> None:
    if guided:  # the table of all first digits, which large calls use
        monkeypatch.setattr(entropy, "MIN_GUIDED_DRAWS", 0)
    scale = Fraction(1)
    assert joint_errors(lambda: samplers.geometric(scale, 2), lambda one, other: (one, other), monkeypatch) == []
    assert joint_errors(lambda: samplers.laplace(scale, 1), lambda one, other: one - other, monkeypatch) == []


def test_a_large_scale_in_two_digits_has_the_law(monkeypatch: pytest.MonkeyPatch, fresh_tables: None) -> None:
    """The same code with a radix of 4 in place of 1024: a quotient, and a remainder from a table of its own."""
    monkeypatch.setattr(samplers, "ONE_TABLE_SCALE", 1)
    monkeypatch.setattr(samplers, "RADIX", 4)
    scale = Fraction(7, 3)
    quotient, open_quotient = law_on_tape(lambda: samplers.geometric(scale / 4, 1), monkeypatch)
    remainder, open_remainder = law_on_tape(
        lambda: samplers._remainder_table(scale, entropy.digit_bits()).draw(1), monkeypatch
    )
    law = {
        4 * one + other: Enclosed(first.low * second.low, first.high * second.high)
        for one, first in quotient.items()
        for other, second in remainder.items()
    }
    assert set(remainder) == set(range(4))
    assert disagreements(law, open_quotient + open_remainder, closed_geometric(scale, 40)) == []
    whole, open_mass = read_all_tapes(lambda: int(samplers.geometric(scale, 1)[0]), monkeypatch, max_bits=13)
    assert open_mass < Fraction(1, 8)  # put together as they should be, as far as short tapes tell
    assert all(mass <= law[k].high and law[k].low <= mass + open_mass for k, mass in whole.items())


@pytest.mark.parametrize("sigma_squared", [Fraction(1), Fraction(7, 3)], ids=str)
def test_the_gaussian_law_is_that_of_the_algorithm_and_the_closed_form(
    sigma_squared: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wrong_gaussian(sigma_squared, monkeypatch) == []


def law_by_rejection(sigma_squared: Fraction, monkeypatch: pytest.MonkeyPatch) -> Law:
    """Return the law of the rejection sampler: proposals by their law, and the coin of each on a tape."""
    scale = isqrt(int(sigma_squared)) + 1
    reach = 12 * scale + 8
    coins = {}
    for size in range(reach + 1):
        magnitude = np.array([size], np.int64)

        def draw_accepted(magnitude: Ints = magnitude) -> Ints:
            return samplers._accept_proposals(magnitude, scale, sigma_squared).astype(np.int64)

        coins[size], _ = law_on_tape(draw_accepted, monkeypatch)
    proposals = closed_laplace(Fraction(scale), reach)
    undecided = Enclosed(Fraction(0), Fraction(1, 2**TAPE_BITS))
    weights = {y: coins[abs(y)].get(1, undecided) * weight for y, weight in proposals.items()}
    return _normalised(weights, Fraction(1, 2**80), 20)


def wrong_rejection(sigma_squared: Fraction, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    others = closed_gaussian(sigma_squared, 20), gaussian_by_algorithm(sigma_squared, 20)
    return disagreements(law_by_rejection(sigma_squared, monkeypatch), Fraction(0), *others)


def test_the_gaussian_law_by_rejection_is_that_of_the_algorithm_and_the_closed_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wrong_rejection(Fraction(7, 3), monkeypatch) == []


def test_a_rejected_proposal_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two numbers of which one is drawn again: each is the first of its proposals that its own coin accepted."""
    proposals = iter([np.array([3, -1]), np.array([5]), np.array([2])])
    coins = iter([np.array([False, True]), np.array([False]), np.array([True])])
    seen = []
    monkeypatch.setattr(samplers, "laplace", lambda scale, n: next(proposals)[:n])

    def accept(magnitude: Ints, scale: int, sigma_squared: Fraction) -> Any:
        seen.append(magnitude.tolist())
        return next(coins)

    monkeypatch.setattr(samplers, "_accept_proposals", accept)
    assert samplers._gaussian_by_rejection(Fraction(9), 2).tolist() == [2, -1]
    assert seen == [[3, 1], [5], [2]]


# -- what the enumeration finds: defects of a billionth, which no sample shows -----------------------------------------


def shift_thresholds(change: Fraction) -> Callable[..., tuple[int, int]]:
    """exp(-x) with a relative error, in every enclosure."""
    sound = samplers.exp_minus

    def wrong(x: Fraction, bits: int) -> tuple[int, int]:
        low, high = sound(x, bits)
        return int(low * (1 - change)), int(high * (1 - change))

    return wrong


def test_a_law_wrong_by_a_billionth_is_found(monkeypatch: pytest.MonkeyPatch, fresh_tables: None) -> None:
    monkeypatch.setattr(samplers, "exp_minus", shift_thresholds(Fraction(1, 10**9)))
    monkeypatch.setattr(entropy, "FLOAT_ERROR", 2.0**-20)  # floating point leaves these draws to the enclosures
    assert wrong_geometric(Fraction(1), monkeypatch)
    assert wrong_gaussian(Fraction(1), monkeypatch)


def test_ties_that_are_not_resolved_are_found(monkeypatch: pytest.MonkeyPatch, fresh_tables: None) -> None:
    monkeypatch.setattr(entropy.LazyTable, "_resolve_outcome", lambda self, prefix: 0)
    assert wrong_geometric(Fraction(1), monkeypatch)


def test_a_tail_that_is_cut_is_found(monkeypatch: pytest.MonkeyPatch, fresh_tables: None) -> None:
    sound = samplers.geometric
    monkeypatch.setattr(samplers, "geometric", lambda scale, n: np.minimum(sound(scale, n), 20))  # beyond: 2e-9
    assert wrong_geometric(Fraction(1), monkeypatch)


def test_bits_used_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_bits(scale: Fraction, n: int) -> Ints:
        return np.repeat(samplers.geometric(scale, 1), n)

    assert joint_errors(lambda: same_bits(Fraction(1), 2), lambda one, other: (one, other), monkeypatch)


@pytest.mark.parametrize("planted", ["the centre", "the scale"])
def test_a_wrong_coin_of_proposals_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = samplers._accept_proposals

    def wrong(magnitude: Ints, scale: int, sigma_squared: Fraction) -> Any:
        if planted == "the scale":
            return sound(magnitude, scale, sigma_squared * (1 + Fraction(1, 10**7)))
        return sound(magnitude + (magnitude > 9), scale, sigma_squared)  # with a chance of 1e-10

    monkeypatch.setattr(samplers, "_accept_proposals", wrong)
    assert wrong_rejection(Fraction(7, 3), monkeypatch)


def test_an_algorithm_with_a_wrong_coin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is no tautology: the second law fails it too when it is wrong."""
    found, open_mass = law_on_tape(lambda: samplers.geometric(Fraction(1), 1), monkeypatch)
    laplace = difference(found, open_mass)
    assert disagreements(laplace, 2 * open_mass, closed_laplace(Fraction(10**9 + 1, 10**9), 5))
    sound = coin_of_exp
    monkeypatch.setitem(globals(), "coin_of_exp", lambda gamma: sound(gamma * (1 - Fraction(1, 10**9))))
    assert disagreements(laplace, 2 * open_mass, laplace_by_algorithm(Fraction(1), 5))


@pytest.mark.slow
@pytest.mark.parametrize("scale", [Fraction(20), Fraction(73, 2)], ids=str)
def test_the_law_of_larger_scales(scale: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    found, open_mass = law_on_tape(lambda: samplers.geometric(scale, 1), monkeypatch)
    assert disagreements(found, open_mass, closed_geometric(scale, 400)) == []
    laplace = difference(found, open_mass)
    others = closed_laplace(scale, 200), laplace_by_algorithm(scale, 200)
    assert disagreements(laplace, 2 * open_mass, *others) == []


@pytest.mark.slow
def test_the_law_of_a_large_scale_with_the_radix_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Fraction(300)
    remainder, open_mass = law_on_tape(
        lambda: samplers._remainder_table(scale, entropy.digit_bits()).draw(1), monkeypatch
    )
    whole = exp_of(Fraction(samplers.RADIX) / scale).without
    closed = {k: law / whole for k, law in closed_geometric(scale, samplers.RADIX).items()}
    assert disagreements(remainder, open_mass, closed) == []


@pytest.mark.slow
@pytest.mark.parametrize("sigma_squared", [Fraction(50), Fraction(1000, 3)], ids=str)
def test_the_gaussian_law_of_larger_variances(sigma_squared: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_gaussian(sigma_squared, monkeypatch) == []
    assert wrong_rejection(sigma_squared, monkeypatch) == []
