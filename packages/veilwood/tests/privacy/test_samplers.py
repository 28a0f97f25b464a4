# SPDX-License-Identifier: Apache-2.0
"""Attacks the exactness of the samplers with uniforms placed next to a threshold, and with short words.

The laws themselves are fitted in test_mechanisms.py.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from veilwood.privacy import entropy, samplers

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")

BITS = 320  # length of a scripted uniform
DIGITS = 160  # decimal digits of the independent reference: more than BITS needs


def decimal_exp(exponent: Fraction) -> Decimal:
    """Return exp(exponent) by Python's decimal module, which shares no code with the samplers."""
    with localcontext() as context:
        context.prec = DIGITS
        return (Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()


def reference_geometric(scale: Fraction, count: int) -> list[Decimal]:
    return [1 - decimal_exp(Fraction(-(k + 1)) / scale) for k in range(count)]


def reference_remainder(scale: Fraction, count: int) -> list[Decimal]:
    whole = 1 - decimal_exp(-samplers.RADIX / scale)
    return [tail / whole for tail in reference_geometric(scale, count)]


def reference_gaussian(sigma_squared: Fraction, count: int) -> list[Decimal]:
    reach = int(40 * float(sigma_squared) ** 0.5) + 40
    weights = [decimal_exp(-(Fraction(x) ** 2) / (2 * sigma_squared)) for x in range(reach)]
    total = 2 * sum(weights) - 1
    sums, cumulative = Decimal(0), []
    for rank in range(count):
        sums += weights[(rank + 1) // 2]
        cumulative.append(sums / total)
    return cumulative


def script(monkeypatch: pytest.MonkeyPatch, uniform: int) -> None:
    """Make the sampler read the `BITS` bits of `uniform`, from the top."""
    text = iter(f"{uniform:0{BITS}b}")

    def words(n: int, bits: int = 64) -> np.ndarray:
        return np.array([int("".join(next(text) for _ in range(bits)), 2) for _ in range(n)], dtype=np.uint64)

    monkeypatch.setattr(entropy, "random_integers", words)


CASES: list[tuple[Callable[[Fraction, int], entropy.LazyTable], Callable[..., list[Decimal]], Fraction]] = [
    (samplers._geometric_table, reference_geometric, Fraction(1, 3)),
    (samplers._geometric_table, reference_geometric, Fraction(1)),
    (samplers._geometric_table, reference_geometric, Fraction(73, 2)),
    (samplers._remainder_table, reference_remainder, Fraction(10**9)),
    (samplers._remainder_table, reference_remainder, Fraction(2001, 7)),
    (samplers._gaussian_table, reference_gaussian, Fraction(1, 4)),
    (samplers._gaussian_table, reference_gaussian, Fraction(1)),
    (samplers._gaussian_table, reference_gaussian, Fraction(901, 3)),
]


def wrong_next_to_thresholds(monkeypatch: pytest.MonkeyPatch, digit_bits: int = 16) -> int:
    """Count wrong outcomes of uniforms that lie 2**-250 to 2**-20 beside a threshold."""
    wrong = 0
    with localcontext() as context:
        context.prec = DIGITS
        for table_of, reference, parameter in CASES:
            table = table_of(parameter, digit_bits)
            for threshold in reference_cache(reference, parameter)[:24]:
                for distance in (20, 60, 64, 100, 250):
                    for side in (-1, 1):
                        uniform = threshold + side * Decimal(2) ** -distance
                        if not 0 < uniform < 1:
                            continue
                        expected = sum(f <= uniform for f in reference_cache(reference, parameter))
                        script(monkeypatch, int(uniform * 2**BITS))
                        wrong += int(table.draw(1)[0]) != expected
    return wrong


_cache: dict[tuple[object, Fraction], list[Decimal]] = {}


def reference_cache(reference: Callable[..., list[Decimal]], parameter: Fraction) -> list[Decimal]:
    """Return the first 60 reference thresholds, computed once."""
    key = (reference, parameter)
    if key not in _cache:
        _cache[key] = reference(parameter, 60)
    return _cache[key]


@pytest.mark.parametrize("bits", [2, 16, 64, 128])
def test_enclosures_hold_the_thresholds_and_are_narrow(bits: int) -> None:
    with localcontext() as context:
        context.prec = DIGITS
        unit = Decimal(2) ** (bits + entropy.GUARD_BITS)
        for table_of, reference, parameter in CASES:
            low, high = table_of(parameter, 16)._enclose(bits)
            assert low == sorted(low)
            assert high == sorted(high)
            thresholds = reference_cache(reference, parameter)[: len(low)]
            is_bounded = table_of is samplers._remainder_table
            for i, threshold in enumerate(thresholds):
                assert low[i] <= threshold * unit <= high[i]
                if is_bounded or i < len(low) - 1:  # the last one stands for all that follow
                    assert high[i] - low[i] < 2**40


@pytest.mark.parametrize("digit_bits", [2, 6, 16])
def test_uniforms_next_to_a_threshold_are_decided_exactly(monkeypatch: pytest.MonkeyPatch, digit_bits: int) -> None:
    assert wrong_next_to_thresholds(monkeypatch, digit_bits) == 0


def test_threshold_test_catches_ties_that_are_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entropy.LazyTable, "_resolve_outcome", lambda self, prefix: 0)
    assert wrong_next_to_thresholds(monkeypatch) > 100


@pytest.mark.parametrize("planted", ["no error", "a wrong probability"])
def test_threshold_test_catches_floating_point_that_decides_too_much(
    planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if planted == "no error":
        monkeypatch.setattr(entropy, "FLOAT_ERROR", 0.0)
    else:
        start = entropy.LazyTable.__init__
        monkeypatch.setattr(
            entropy.LazyTable, "__init__",
            lambda self, cumulative, *rest: start(self, cumulative + 4 * entropy.FLOAT_ERROR, *rest),
        )  # fmt: skip
        for table_of, _, _ in CASES:
            table_of.cache_clear()  # type: ignore[attr-defined]
    try:
        assert wrong_next_to_thresholds(monkeypatch) > 20
    finally:
        for table_of, _, _ in CASES:
            table_of.cache_clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("table_of", "parameter"),
    [
        *((table_of, parameter) for table_of, _, parameter in CASES),
        (samplers._geometric_table, Fraction(10) ** -400),
        (samplers._geometric_table, Fraction(samplers.ONE_TABLE_SCALE)),
        (samplers._remainder_table, Fraction(10) ** 30),
        (samplers._gaussian_table, Fraction(10) ** -400),
        (samplers._gaussian_table, Fraction(1 << 14)),
        pytest.param(samplers._gaussian_table, Fraction(samplers.ONE_TABLE_SIGMA**2), marks=pytest.mark.slow),
    ],
)
def test_floating_point_is_within_its_error(table_of: Callable[..., entropy.LazyTable], parameter: Fraction) -> None:
    table = table_of(parameter, 16)
    low, high = table._enclose(64)
    floats, unit = table._cumulative, 1 << 64 + entropy.GUARD_BITS
    exact = np.array([float(Fraction(one + other, 2 * unit)) for one, other in zip(low, high, strict=True)])
    assert len(floats) > 0
    assert np.abs(floats[: len(exact)] - exact[: len(floats)]).max() < entropy.FLOAT_ERROR / 4
    assert (np.diff(floats) >= 0).all()
    assert floats[-1] > 1 - entropy.FLOAT_ERROR / 4 or len(floats) == len(exact)  # what is beyond is always open


@pytest.mark.parametrize("scale", [Fraction(1, 1000), Fraction(1, 2), Fraction(1), Fraction(20)])
@pytest.mark.parametrize("depth", [10, 70, 200])
def test_geometric_tail_is_exact_beyond_every_table(
    monkeypatch: pytest.MonkeyPatch, scale: Fraction, depth: int
) -> None:
    # U = 1 - 2**-depth: the outcome counts the k with exp(-k/scale) >= 2**-depth.
    script(monkeypatch, 2**BITS - 2 ** (BITS - depth))
    assert samplers._geometric_table(scale, 16).draw(1)[0] == int(depth * float(np.log(2)) * float(scale))


@pytest.mark.parametrize("depth", [10, 70, 200])
def test_gaussian_tail_is_exact_beyond_every_table(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    with localcontext() as context:
        context.prec = DIGITS
        uniform = 1 - Decimal(2) ** -depth
        expected = sum(f <= uniform for f in reference_gaussian(Fraction(9), 250))
    script(monkeypatch, 2**BITS - 2 ** (BITS - depth))
    assert samplers._gaussian_table(Fraction(9), 16).draw(1)[0] == expected


@pytest.mark.parametrize("bits", [8, 64, 300])
@pytest.mark.parametrize(
    "x", [Fraction(0), Fraction(1, 10**9), Fraction(1, 3), Fraction(1), Fraction(355, 113), Fraction(1000)]
)
def test_exp_enclosure_is_right_and_tight(x: Fraction, bits: int) -> None:
    low, high = samplers.exp_minus(x, bits)
    with localcontext() as context:
        context.prec = DIGITS
        assert low <= decimal_exp(-x) * 2**bits <= high
    assert high - low <= 2


@pytest.fixture
def resolutions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the uniforms that needed a second digit, and those that needed a second word."""
    counts = [0, 0]
    draw_word, resolve = entropy.LazyTable._draw_word, entropy.LazyTable._resolve_outcome

    def counting_draw_word(self: entropy.LazyTable, digit: np.ndarray) -> np.ndarray:
        counts[0] += digit.size
        return draw_word(self, digit)

    def counting_resolve(self: entropy.LazyTable, prefix: int) -> int:
        counts[1] += 1
        return resolve(self, prefix)

    monkeypatch.setattr(entropy.LazyTable, "_draw_word", counting_draw_word)
    monkeypatch.setattr(entropy.LazyTable, "_resolve_outcome", counting_resolve)
    return counts


@pytest.mark.parametrize(("digit_bits", "scale"), [(8, 3), (6, 1), (2, 1)])
def test_short_words_really_tie(resolutions: list[int], digit_bits: int, scale: int) -> None:
    n = 50_000
    with entropy.seeded_for_tests(3, digit_bits):
        samplers.geometric(Fraction(scale), n)
    assert resolutions[0] > 0.03 * n
    if digit_bits == 2:  # words of eight bits: the slow path of arbitrary length is common too
        assert resolutions[1] > 0.01 * n


def test_uniform_below_is_uniform_and_rejects_the_surplus(monkeypatch: pytest.MonkeyPatch) -> None:
    with entropy.seeded_for_tests(4):
        counts = np.bincount(samplers.uniform_below(np.full(60_000, 6)), minlength=6)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 60
    # 2**64 = 4 mod 6: the four largest words must be drawn again.
    drawn = iter([2**64 - 1, 2**64 - 4, 2**64 - 5])
    monkeypatch.setattr(
        entropy, "random_integers", lambda n: np.array([next(drawn) for _ in range(n)], dtype=np.uint64)
    )
    assert samplers.uniform_below(np.array([6])) == (2**64 - 5) % 6


@pytest.mark.parametrize("bound", [1, 2, 2**32])
def test_uniform_below_a_power_of_two_draws_once(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    drawn = iter([2**64 - 1])
    monkeypatch.setattr(
        entropy, "random_integers", lambda n: np.array([next(drawn) for _ in range(n)], dtype=np.uint64)
    )
    assert samplers.uniform_below(np.array([bound])) == bound - 1


def test_coin_is_decided_by_integers_inside_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    exponent = Fraction(1, 7)
    with localcontext() as context:
        context.prec = DIGITS
        for side in (-1, 1):
            uniform = int((decimal_exp(-exponent) + side * Decimal(2) ** -200) * 2**BITS)
            script(monkeypatch, (uniform % 2 ** (BITS - 64)) << 64)
            assert samplers._flip_exp_coin(exponent, uniform >> (BITS - 64), 64) is (side < 0)
