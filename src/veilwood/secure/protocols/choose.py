# SPDX-License-Identifier: Apache-2.0
"""Small protocols over an engine: absolute value, quotient, maximum, argmax as one-hot, products of bits.

They open nothing. Where the compared numbers come from, and what noise they carry, is decided by the callers.
"""

from __future__ import annotations

import numpy as np

from veilwood.secure.mpc.engine import Bits, Engine, Shared, concatenate

ALL_PAIRS = 16
"""Candidates that are compared each with each: more comparisons than a tournament, in a fraction of its rounds."""

RADIX, QUOTIENT_DIGITS = 16, 8
"""Digits of quotients on shares: more comparisons than bit by bit, in a quarter of the rounds."""


def absolute(engine: Engine, x: Shared) -> Shared:
    """Return \\|x\\| of signed numbers."""
    return engine.mul(x, 1 - engine.negative(x) * 2)


def maximum(engine: Engine, x: Shared) -> Shared:
    """Return the largest number along the first axis, by a tournament."""
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        left, right = x[:half], x[half : 2 * half]
        # left + max(0, right - left)
        gain = right - left
        larger = left + engine.mul(gain, 1 - engine.negative(gain))
        x = concatenate([larger, x[2 * half :]], axis=0)
    return x[0]


def quotient(engine: Engine, x: Shared, y: Shared) -> Shared:
    """Return x // y, digit by digit, for x from 0 to 2^58, y from 1 to 2^26 and quotients below 2^32.

    A digit says how many of the fifteen multiples of y, shifted to its place, the rest has room for.
    """
    rest, found = x, x * 0
    times = np.arange(1, RADIX).reshape(-1, *[1] * len(x.shape))
    for place in reversed(range(QUOTIENT_DIGITS)):
        shifted = y * RADIX**place
        multiples = shifted.reshape(1, *y.shape).broadcast_to((RADIX - 1, *y.shape)) * times
        too_large = engine.negative(rest.reshape(1, *x.shape).broadcast_to(multiples.shape) - multiples)
        digit = RADIX - 1 - too_large.sum(axis=0)
        rest = rest - engine.mul(digit, shifted)
        found = found + digit * RADIX**place
    return found


def all_true(engine: Engine, bits: Bits) -> Bits:
    """Return the "and" of words of bits along the first axis, in as many rounds as halvings."""
    while bits.shape[0] > 1:
        half = bits.shape[0] // 2
        both = engine.land(bits[:half], bits[half : 2 * half])
        bits = concatenate([both, bits[2 * half :]], axis=0)
    return bits[0]


def argmax(engine: Engine, x: Shared) -> Shared:
    """Return the place of the largest number along the first axis as one-hot; the first of equals wins.

    Up to ``ALL_PAIRS`` candidates are compared each with each, in the rounds of one comparison; more are cut into
    groups whose winners meet again.
    """
    count = x.shape[0]
    if count == 1:
        return engine.constant(np.ones(x.shape, np.int64))
    if count > ALL_PAIRS:
        return _argmax_of_groups(engine, x)
    first, second = np.triu_indices(count, 1)
    later_wins = engine.sign_bits(x[first] - x[second])  # the earlier one keeps a tie
    verdicts = concatenate([later_wins, later_wins ^ 1], axis=0)
    place = np.empty((count, count), np.int64)  # of the verdict that i wins against j
    place[second, first] = np.arange(len(first))
    place[first, second] = np.arange(len(first)) + len(first)
    others = place[~np.eye(count, dtype=bool)].reshape(count, count - 1)
    return engine.to_ring(all_true(engine, verdicts[others.T]) & 1)  # the masks of `land` leave the other bits random


def _argmax_of_groups(engine: Engine, x: Shared) -> Shared:
    groups = np.array_split(np.arange(x.shape[0]), -(-x.shape[0] // ALL_PAIRS))
    width = len(groups[0])
    # The last member stands in for the missing ones of short groups: as a later twin it never wins.
    members = np.array([np.pad(group, (0, width - len(group)), mode="edge") for group in groups])
    rest = x.shape[1:]
    within = argmax(engine, x[members.T])  # (width, groups, ...)
    best = engine.dot(within, x[members.T], axis=0)
    between = argmax(engine, best)
    chosen = engine.mul(within, between.reshape(1, len(groups), *rest))
    return concatenate([chosen[: len(group), place] for place, group in enumerate(groups)], axis=0)
