# SPDX-License-Identifier: Apache-2.0
"""Circuits on shared integers and on bit-sliced shares: comparison, argmax, addition, lookup tables, counting.

In bit slicing, a number is a stack of planes: its binary digits in two's complement, lowest first. A plane holds one
bit per row, 64 rows to a word. "Exclusive or" is local and "and" takes a message, so circuits use few and shallow
"and"s. Nothing is opened here, and messages depend on shapes only.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from veilwood.arrays import AnyArray, Bools, NDArray
from veilwood_secure.mpc.engine import Bits, Engine, Shared, concatenate, stack

MAX_ALL_PAIRS = 16
"""Maximum number of candidates of which all pairs are compared: more comparisons than a tournament, but fewer
rounds."""

RADIX, QUOTIENT_DIGITS = 16, 8
"""Base and number of digits of quotients: more comparisons than with base 2, but a quarter of the rounds."""


def absolute(engine: Engine, x: Shared) -> Shared:
    """Return \\|x\\| of signed numbers."""
    return engine.mul(x, 1 - engine.is_negative(x) * 2)


def maximum(engine: Engine, x: Shared) -> Shared:
    """Return the maximum along the first axis, by a tournament."""
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        left, right = x[:half], x[half : 2 * half]
        # left + max(0, right - left)
        gain = right - left
        larger = left + engine.mul(gain, 1 - engine.is_negative(gain))
        x = concatenate([larger, x[2 * half :]], axis=0)
    return x[0]


def clip(engine: Engine, x: Shared, limit: int) -> Shared:
    """Return signed numbers clipped to [-limit, limit]."""
    beyond = stack([limit - x, x + limit])
    return x + engine.mul(engine.is_negative(beyond), beyond * np.array([1, -1]).reshape(2, *[1] * len(x.shape))).sum(
        axis=0
    )


def floor_divide(engine: Engine, x: Shared, y: Shared) -> Shared:
    """Return x // y, digit by digit, for x from 0 to 2^58, y from 1 to 2^26 and quotients below 2^32.

    A digit is the number of multiples of y (1 to 15 times, shifted to the digit's place) that do not exceed the
    remainder.
    """
    remainder, quotient = x, x * 0
    times = np.arange(1, RADIX).reshape(-1, *[1] * len(x.shape))
    for place in reversed(range(QUOTIENT_DIGITS)):
        shifted = y * RADIX**place
        multiples = shifted.reshape(1, *y.shape).broadcast_to((RADIX - 1, *y.shape)) * times
        too_large = engine.is_negative(remainder.reshape(1, *x.shape).broadcast_to(multiples.shape) - multiples)
        digit = RADIX - 1 - too_large.sum(axis=0)
        remainder = remainder - engine.mul(digit, shifted)
        quotient = quotient + digit * RADIX**place
    return quotient


def and_reduce(engine: Engine, bits: Bits) -> Bits:
    """Return the bitwise "and" along the first axis, in log2(n) rounds."""
    while bits.shape[0] > 1:
        half = bits.shape[0] // 2
        both = engine.land(bits[:half], bits[half : 2 * half])
        bits = concatenate([both, bits[2 * half :]], axis=0)
    return bits[0]


def argmax(engine: Engine, x: Shared) -> Shared:
    """Return the index of the maximum along the first axis, one-hot encoded. Ties go to the lowest index.

    Up to ``MAX_ALL_PAIRS`` candidates are compared pairwise, in the rounds of one comparison. More are split into
    groups, and the winners of the groups are compared again.
    """
    count = x.shape[0]
    if count == 1:
        return engine.constant(np.ones(x.shape, np.int64))
    if count > MAX_ALL_PAIRS:
        return _argmax_by_groups(engine, x)
    first, second = np.triu_indices(count, 1)
    later_wins = engine.sign_bits(x[first] - x[second])  # ties go to the earlier candidate
    verdicts = concatenate([later_wins, later_wins ^ 1], axis=0)
    place = np.empty((count, count), np.int64)  # index of the verdict that i wins against j
    place[second, first] = np.arange(len(first))
    place[first, second] = np.arange(len(first)) + len(first)
    others = place[~np.eye(count, dtype=bool)].reshape(count, count - 1)
    return engine.to_ring(and_reduce(engine, verdicts[others.T]) & 1)  # the masks of `land` leave the other bits random


def _argmax_by_groups(engine: Engine, x: Shared) -> Shared:
    groups = np.array_split(np.arange(x.shape[0]), -(-x.shape[0] // MAX_ALL_PAIRS))
    width = len(groups[0])
    # Short groups are padded with copies of their last member, which lose ties and so never win.
    members = np.array([np.pad(group, (0, width - len(group)), mode="edge") for group in groups])
    rest = x.shape[1:]
    within = argmax(engine, x[members.T])  # (width, groups, ...)
    best = engine.dot(within, x[members.T], axis=0)
    between = argmax(engine, best)
    chosen = engine.mul(within, between.reshape(1, len(groups), *rest))
    return concatenate([chosen[: len(group), place] for place, group in enumerate(groups)], axis=0)


WORD_BITS: Final = 64
ALL_ONES: Final = np.uint64(2**WORD_BITS - 1)

BitWords = NDArray[np.unsignedinteger[Any]]


def decompose_bits(engine: Engine, x: Shared) -> Bits:
    """Convert shared integers, the words into which owners packed their rows, to shared bits (A2B)."""
    u, v = engine.split(x)
    carries, propagates, reach = engine.land(u, v), u ^ v, 1
    total = propagates
    while reach < WORD_BITS:
        both = engine.land(propagates[None], stack([carries << reach, propagates << reach]))
        carries, propagates, reach = carries ^ both[0], both[1], 2 * reach
    return total ^ (carries << 1)


def public_planes(like: Bits, digits: Bools) -> Bits:
    """Return one constant plane per public digit, all ones or all zeros. ``like`` is any plane of the right shape."""
    words = np.where(digits, ALL_ONES, np.uint64(0)).reshape(*digits.shape, *[1] * len(like.shape))
    return (like & 0).broadcast_to((*digits.shape, *like.shape)) ^ words


def binary_digits(values: Any, n_digits: int) -> Bools:
    """Return the lowest binary digits of public integers, along a new first axis.

    >>> binary_digits([5, -1], 4).astype(int).T.tolist()
    [[1, 0, 1, 0], [1, 1, 1, 1]]
    """
    integers = np.asarray(values, np.int64)
    return np.stack([(integers >> digit & 1).astype(bool) for digit in range(n_digits)])


def add_bits(engine: Engine, x: Bits, y: Bits, *, plus_one: bool = False) -> Bits:
    """Return x + y (+ 1 if ``plus_one``), modulo 2 to the number of digits, by a parallel prefix adder."""
    propagates, carries, reach = x ^ y, engine.land(x, y), 1
    total = propagates
    if plus_one:
        carries = concatenate([carries[:1] ^ propagates[:1], carries[1:]])
    while reach < len(total):
        both = engine.land(propagates[reach:][None], stack([carries[:-reach], propagates[:-reach]]))
        carries = concatenate([carries[:reach], carries[reach:] ^ both[0]])
        propagates = concatenate([propagates[:reach], both[1]])
        reach *= 2
    first = (total[:1] & 0) ^ (ALL_ONES if plus_one else np.uint64(0))
    return total ^ concatenate([first, carries[:-1]])


def subtract_bits(engine: Engine, x: Bits, y: Bits) -> Bits:
    """Return x - y, modulo 2 to the number of digits."""
    return add_bits(engine, x, ~y, plus_one=True)


def mux(engine: Engine, condition: Bits, x: Bits, y: Bits) -> Bits:
    """Return x where the condition bit is set, else y."""
    return y ^ engine.land(condition.broadcast_to(x.shape), x ^ y)


def saturate(engine: Engine, x: Bits, n_digits: int) -> Bits:
    """Return a non-negative number in ``n_digits`` digits, saturated at the largest value."""
    if len(x) <= n_digits:
        return concatenate([x, (x[:1] & 0).broadcast_to((n_digits - len(x), *x.shape[1:]))])
    small = and_reduce(engine, ~x[n_digits:])
    # All ones unless the number is small: ~(small & ~x).
    return ~engine.land(small[None].broadcast_to((n_digits, *x.shape[1:])), ~x[:n_digits])


def one_hot_bits(engine: Engine, x: Bits, n_values: int) -> Bits:
    """Return one plane per value below ``n_values``, which marks the rows with that value. Other values set no bit."""
    if len(x) == 0:
        raise ValueError("a number without digits has no planes")
    if len(x) == 1:
        return stack([~x[0], x[0]])[:n_values]
    half = len(x) // 2
    low = one_hot_bits(engine, x[:half], 1 << half)
    high = one_hot_bits(engine, x[half:], -(-n_values >> half))
    both = engine.land(high[:, None], low[None])
    return both.reshape(-1, *x.shape[1:])[:n_values]


def lookup(planes: Bits, values: Any, n_digits: int) -> Bits:
    """Return the digits of the entry of a public table that one-hot planes select. No message."""
    digits = binary_digits(values, n_digits)
    return planes.map_parts(lambda part: np.stack([np.bitwise_xor.reduce(part[chosen], axis=0) for chosen in digits]))


def popcount(engine: Engine, planes: Bits) -> Shared:
    """Return the number of set bits of each plane (last axis: words), as shared integers."""
    number = planes[None]
    while number.shape[-1] > 1:
        if number.shape[-1] % 2:
            number = concatenate([number, number[..., :1] & 0], axis=-1)
        number = concatenate([number, number[:1] & 0])
        half = number.shape[-1] // 2
        number = add_bits(engine, number[..., :half], number[..., half:])
    lanes = WORD_BITS // 2
    while lanes:  # fold the word: lanes above the remaining lanes are ignored
        number = concatenate([number, number[:1] & 0])
        number = add_bits(engine, number, number >> lanes)
        lanes //= 2
    weights = (1 << np.arange(len(number))).reshape(-1, *[1] * (len(planes.shape) - 1))
    return (engine.to_ring(number[..., 0] & 1) * weights).sum(axis=0)


def to_rows(engine: Engine, planes: Bits) -> Shared:
    """Convert the bits of planes to integers 0 and 1, one per row along the last axis (B2A)."""
    return engine.to_ring(planes.map_parts(unpack_bits))


def unpack_bits(words: BitWords) -> BitWords:
    """Return the bits of words along the last axis, one in each byte."""
    flat = np.ascontiguousarray(words)
    return np.unpackbits(flat.view(np.uint8), axis=-1, bitorder="little")


def pack_bits(bits: AnyArray) -> BitWords:
    """Pack bits into words along the last axis, padded with zeros. Inverse of ``unpack_bits``.

    >>> pack_bits(np.array([[1, 0, 1]])).tolist()
    [[5]]
    """
    filled = np.zeros((*bits.shape[:-1], -(-bits.shape[-1] // WORD_BITS) * WORD_BITS), np.uint8)
    filled[..., : bits.shape[-1]] = bits
    return np.packbits(filled, axis=-1, bitorder="little").view(np.uint64)
