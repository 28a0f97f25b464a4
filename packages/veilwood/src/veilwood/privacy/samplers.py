# SPDX-License-Identifier: Apache-2.0
"""Exact batched samplers of integer distributions, by inverse tables that resolve undecided draws lazily.

No sensitivity and no privacy claim is here: see ``noise``. The tables that reveal bits are in ``entropy``.

Why a draw is exact: a uniform real U is revealed a few bits at a time. Every cumulative probability F is known
only as an enclosure [low, high] of integers over a power of two, computed with directed rounding. If the revealed
bits of U lie on one side of every enclosure, the outcome is certain. Otherwise more bits are drawn and narrower
enclosures computed. No rounded number ever decides a draw.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import ceil, isqrt

import numpy as np

from veilwood.arrays import Bools, Ints
from veilwood.privacy import entropy
from veilwood.privacy.entropy import GUARD_BITS, Enclosures, LazyTable

CHUNK_SIZE = 1 << 17  # draws made together, so that the working set stays in the processor's cache
RADIX = 1 << 10  # a geometric of large scale is written in this radix, with one table per digit
ONE_TABLE_SCALE = 256  # the largest geometric scale that is drawn from a single table
TINY = 1e-300  # replaces smaller scales: their noise is 0 except with probability far below FLOAT_ERROR
ONE_TABLE_SIGMA = 1 << 10  # the largest Gaussian sigma that is drawn from a single table


def geometric(scale: Fraction, n: int) -> Ints:
    """Draw `n` times from P(z) proportional to exp(-z/scale) on z = 0, 1, 2, ..."""
    return _draw_geometric(scale, n, entropy.digit_bits())


def laplace(scale: Fraction, n: int) -> Ints:
    """Draw `n` times from P(x) proportional to exp(-abs(x)/scale) on the integers: a difference of geometrics."""
    digit_bits = entropy.digit_bits()
    return _draw_geometric(scale, n, digit_bits) - _draw_geometric(scale, n, digit_bits)


def _draw_geometric(scale: Fraction, n: int, digit_bits: int) -> Ints:
    if scale <= ONE_TABLE_SCALE:
        return _draw_in_chunks(_geometric_table(scale, digit_bits).draw, n)
    # z = RADIX * quotient + remainder: the probability factorises, so the two are independent.
    quotient = _draw_geometric(scale / RADIX, n, digit_bits)
    remainder = _draw_in_chunks(_remainder_table(scale, digit_bits).draw, n)
    return quotient * RADIX + remainder


def gaussian(sigma_squared: Fraction, n: int) -> Ints:
    """Draw `n` times from P(x) proportional to exp(-x^2 / (2 sigma_squared)) on the integers."""
    if sigma_squared > ONE_TABLE_SIGMA**2:
        return _gaussian_by_rejection(sigma_squared, n)
    rank = _draw_in_chunks(_gaussian_table(sigma_squared, entropy.digit_bits()).draw, n)
    magnitude = (rank + 1) >> 1  # ranks 0, 1, 2, 3, 4, ... stand for 0, 1, -1, 2, -2, ...
    return np.where(rank & 1, magnitude, -magnitude)


def uniform_below(bounds: Ints) -> Ints:
    """Draw one uniform integer below each of the positive `bounds`."""
    bound = bounds.astype(np.uint64)
    # Words above the largest multiple of the bound would favour small remainders: draw them again.
    surplus = (np.uint64(2**64 - 1) % bound + np.uint64(1)) % bound
    word = entropy.random_integers(bound.size).reshape(bound.shape).astype(np.uint64)
    while (again := word > np.uint64(2**64 - 1) - surplus).any():
        word[again] = entropy.random_integers(int(again.sum()))
    return (word % bound).astype(np.int64)


def weighted_choice(gaps: Ints, admissible: Bools, scale: Fraction) -> Ints:
    """Draw one admissible column in each row, with probability proportional to exp(-gap/scale).

    Gaps are at least 0, and 0 for one admissible column of each row. The index drawn is the number of cumulative
    probabilities at or below a uniform number, of which one word is drawn. Floating point decides only the clear cases,
    with the same operations whatever the gaps. A word within its error of a cumulative probability is refined exactly.
    """
    bits = 4 * entropy.digit_bits()
    word = entropy.random_integers(len(gaps), bits)
    # Subnormal numbers are slow on most processors, so exponents are at least -700: the difference is within the error.
    weights = np.where(admissible, np.exp(-np.minimum(gaps / float(scale), 700.0)), 0.0)
    reached = weights.cumsum(axis=1)
    uniform = ((word / 2.0**bits) * reached[:, -1])[:, np.newaxis]
    # The error is below (m + 4) 2**-50 of the total (proofs/exponential.md).
    band = ((gaps.shape[1] + 4) * 2.0**-48 + 2.0**-bits) * reached[:, -1:]
    # Nothing lies beyond the last admissible column: its cumulative probability is 1, and the uniform is below.
    last = gaps.shape[1] - 1 - admissible[:, ::-1].argmax(axis=1)
    before_last = np.arange(gaps.shape[1]) < last[:, np.newaxis]
    chosen: Ints = ((reached <= uniform) & before_last).sum(axis=1)
    is_open = ((np.abs(reached - uniform) <= band) & before_last).any(axis=1)
    for row in np.flatnonzero(is_open):
        columns = np.flatnonzero(admissible[row])
        chosen[row] = columns[_refined_choice(gaps[row, columns], scale, int(word[row]), bits)]
    return chosen


def _refined_choice(gaps: Ints, scale: Fraction, prefix: int, bits: int) -> int:
    """Return the exact number of cumulative probabilities that are at most the uniform that begins with `prefix`."""
    word_bits = bits
    while True:
        precision = bits + GUARD_BITS
        weights = [exp_minus(Fraction(int(gap)) / scale, precision) for gap in gaps]
        total_low, total_high = (sum(ends) for ends in zip(*weights, strict=True))
        rank, is_open, low, high = 0, False, 0, 0
        for weight_low, weight_high in weights[:-1]:
            low, high = low + weight_low, high + weight_high
            # The uniform lies in [prefix, prefix + 1) / 2**bits.
            is_above = prefix * total_low >= high << bits
            is_open |= not is_above and (prefix + 1) * total_high > low << bits
            rank += is_above
        if not is_open:
            return rank
        prefix = prefix << word_bits | int(entropy.random_integers(1, word_bits)[0])
        bits += word_bits


def exp_minus(x: Fraction, bits: int) -> tuple[int, int]:
    """Return integers around exp(-x) * 2**bits, for x >= 0: the alternating series at x / 2**k, squared k times.

    Examples
    --------
    >>> from fractions import Fraction
    >>> low, high = exp_minus(Fraction(1), 40)
    >>> low <= 0.36787944117144233 * 2**40 <= high, high - low <= 2
    (True, True)
    """
    halvings = ceil(x).bit_length()
    work = bits + halvings + 16
    small = x / 2**halvings  # below 1, so that the terms fall and the remainder is below the last term
    numerator, denominator = small.numerator, small.denominator
    low = high = term_low = term_high = 1 << work
    order = 0
    while term_high > 1:
        order += 1
        term_low = term_low * numerator // (denominator * order)
        term_high = -(-term_high * numerator // (denominator * order))
        if order % 2:
            low, high = low - term_high, high - term_low
        else:
            low, high = low + term_low, high + term_high
    low, high = low - term_high, high + term_high
    for _ in range(halvings):
        low, high = low * low >> work, _shift_up(high * high, work)
    return low >> (work - bits), min(_shift_up(high, work - bits), 1 << bits)


@lru_cache(maxsize=256)
def _geometric_table(scale: Fraction, digit_bits: int) -> LazyTable:
    """Return the table of the geometric distribution on 0, 1, 2, ..."""

    def enclose_chances(bits: int) -> Enclosures:
        precision = bits + GUARD_BITS
        one = 1 << precision
        # 7/10 > ln 2: the probability beyond the table is below one unit of the bits revealed.
        length = ceil(bits * scale * Fraction(7, 10)) + 1
        tails = _exp_powers(scale, length, precision)
        low = [one - high for _, high in tails]
        high = [one - low for low, _ in tails]
        high[-1] = one
        return low, high

    length = ceil(28 * scale) + 1  # exp(-28) < FLOAT_ERROR / 16: what is beyond is resolved exactly
    return LazyTable(-np.expm1(-np.arange(1, length + 1) / max(float(scale), TINY)), enclose_chances, digit_bits)


@lru_cache(maxsize=256)
def _remainder_table(scale: Fraction, digit_bits: int) -> LazyTable:
    """Return the table of a geometric's remainder modulo RADIX: the geometric distribution truncated to 0..RADIX-1."""

    def enclose_chances(bits: int) -> Enclosures:
        # 1 - exp(-RADIX/scale) is about RADIX/scale, so a large scale needs log2(scale) more bits.
        precision = bits + GUARD_BITS + int(scale).bit_length()
        extra = precision - bits - GUARD_BITS
        one = 1 << precision
        tails = _exp_powers(scale, RADIX, precision)
        last_low, last_high = tails.pop()
        low = [((one - high) << precision) // (one - last_low) >> extra for _, high in tails]
        high = [_shift_up(_divide_up((one - low) << precision, one - last_high), extra) for low, _ in tails]
        return low, high

    below = np.expm1(-np.arange(1, RADIX + 1) / float(scale))
    return LazyTable(below[:-1] / below[-1], enclose_chances, digit_bits)


@lru_cache(maxsize=256)
def _gaussian_table(sigma_squared: Fraction, digit_bits: int) -> LazyTable:
    """Return the table of the discrete Gaussian, with outcomes in the order 0, 1, -1, 2, -2, ..."""

    def enclose_chances(bits: int) -> Enclosures:
        precision = bits + GUARD_BITS
        one = 1 << precision
        weights, tail = _gaussian_weights(sigma_squared, precision)
        total_low = 2 * sum(low for low, _ in weights) - one
        total_high = 2 * sum(high for _, high in weights) - one + 2 * tail
        low, high = [], []
        sum_low = sum_high = 0
        for x, (weight_low, weight_high) in enumerate(weights):
            for _ in range(2 if x else 1):
                sum_low, sum_high = sum_low + weight_low, sum_high + weight_high
                low.append((sum_low << precision) // total_high)
                high.append(min(_divide_up(sum_high << precision, total_low), one))
        high[-1] = one
        return low, high

    variance = max(float(sigma_squared), TINY)
    weights = np.exp(-(np.arange(ceil(8 * variance**0.5) + 2) ** 2) / (2 * variance))  # beyond: below FLOAT_ERROR / 8
    ranked = np.repeat(weights, 2)[1:]
    return LazyTable(np.cumsum(ranked) / ranked.sum(), enclose_chances, digit_bits)


def _gaussian_weights(sigma_squared: Fraction, precision: int) -> tuple[list[tuple[int, int]], int]:
    """Return enclosures of exp(-x^2 / (2 sigma_squared)) for x = 0, 1, ... and an upper bound of the rest."""
    one = 1 << precision
    low = high = one
    ratio_low, ratio_high = exp_minus(1 / (2 * sigma_squared), precision)  # from x to x+1, here x = 0
    fall_low, fall_high = exp_minus(1 / sigma_squared, precision)  # from one ratio to the next
    weights = []
    while high > 1 << (GUARD_BITS // 2):  # below half the guard bits a weight no longer moves a threshold
        weights.append((low, high))
        low, high = low * ratio_low >> precision, _shift_up(high * ratio_high, precision)
        ratio_low, ratio_high = ratio_low * fall_low >> precision, _shift_up(ratio_high * fall_high, precision)
    # Ratios fall, so the rest is below a geometric series that starts at the first weight left out.
    return weights, _divide_up(high << precision, one - ratio_high)


def _gaussian_by_rejection(sigma_squared: Fraction, n: int) -> Ints:
    """Draw from the discrete Gaussian by rejection (Canonne, Kamath and Steinke 2020, Algorithm 3)."""
    scale = isqrt(int(sigma_squared)) + 1
    outcome = np.empty(n, dtype=np.int64)
    missing = np.arange(n)
    while missing.size:
        proposal = laplace(Fraction(scale), missing.size)
        accepted = _accept_proposals(np.abs(proposal), scale, sigma_squared)
        outcome[missing[accepted]] = proposal[accepted]
        missing = missing[~accepted]
    return outcome


def _accept_proposals(magnitude: Ints, scale: int, sigma_squared: Fraction) -> Bools:
    """Accept each proposal with probability exactly exp(-(magnitude - sigma_squared/scale)^2 / (2 sigma_squared))."""
    bits = 4 * entropy.digit_bits()
    word = entropy.random_integers(magnitude.size, bits)
    # Floating point decides only the clear cases. Its error is below 2**-40 here; the band is 1000 times wider
    # and everything inside it is decided by integers.
    centre = sigma_squared / scale
    probability = np.exp(-((magnitude - float(centre)) ** 2) / (2 * float(sigma_squared)))
    uniform = word / 2.0**bits
    accepted = np.asarray(uniform < probability)
    band = 2.0**-30 + 2.0**-bits
    for at in np.flatnonzero(np.abs(uniform - probability) <= band):
        exponent = (int(magnitude[at]) - centre) ** 2 / (2 * sigma_squared)
        accepted[at] = _flip_exp_coin(exponent, int(word[at]), bits)
    return accepted


def _flip_exp_coin(exponent: Fraction, prefix: int, bits: int) -> bool:
    """Return True if the uniform that begins with `prefix` is below exp(-exponent). Draws more bits if needed."""
    word_bits = bits
    while True:
        low, high = exp_minus(exponent, bits)
        if prefix < low:
            return True
        if prefix >= high:
            return False
        prefix = prefix << word_bits | int(entropy.random_integers(1, word_bits)[0])
        bits += word_bits


def _exp_powers(scale: Fraction, count: int, precision: int) -> list[tuple[int, int]]:
    """Return enclosures of exp(-k/scale) for k = 1..count, in units of 2**-precision."""
    base_low, base_high = exp_minus(1 / scale, precision)
    low = high = 1 << precision
    powers = []
    for _ in range(count):
        low, high = low * base_low >> precision, _shift_up(high * base_high, precision)
        powers.append((low, high))
    return powers


def _draw_in_chunks(draw: Callable[[int], Ints], n: int) -> Ints:
    """Return `n` draws, made in chunks of ``CHUNK_SIZE``."""
    if n <= CHUNK_SIZE:
        return draw(n)
    outcome = np.empty(n, dtype=np.int64)
    for start in range(0, n, CHUNK_SIZE):
        outcome[start : start + CHUNK_SIZE] = draw(min(CHUNK_SIZE, n - start))
    return outcome


def _shift_up(value: int, bits: int) -> int:
    """Return value / 2**bits, rounded up."""
    return -(-value >> bits)


def _divide_up(value: int, divisor: int) -> int:
    """Return value / divisor, rounded up."""
    return -(-value // divisor)
