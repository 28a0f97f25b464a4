# SPDX-License-Identifier: Apache-2.0
"""The paper's Laplace noise on shares by logarithms of fixed-point numbers (Algorithm 12): for comparison, NOT PRIVATE.

Noise that keeps its promise is in noise.py.

A logarithm of a 17-bit number takes 2**16 values, so most values of a noisy count are possible under one data set and
impossible under its neighbour: seeing one of them tells the two apart, whatever epsilon is (Mironov, CCS 2012).
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from math import log

import numpy as np

from veilwood.errors import MechanismError
from veilwood.secure.mpc.engine import Bits, Engine, Shared, concatenate, stack
from veilwood.secure.protocols.noise import WORD_BITS, unpacked

__all__ = ["FRACTION_BITS", "log_laplace_not_private"]

UNIFORM_BITS = 16
FRACTION_BITS = 2 * UNIFORM_BITS + 10  # of the result: the square of a 16-bit fraction, and 10 bits of coefficients
# log2(y) for 1 <= y < 2 is within 0.005 of this polynomial in y - 3/2, its interpolation at Chebyshev's points.
_POINTS = 1.5 + 0.5 * np.cos(np.pi * (2 * np.arange(3) + 1) / 6)
LOG2: list[float] = np.polynomial.polynomial.polyfit(_POINTS - 1.5, np.log2(_POINTS), 2).tolist()


def log_laplace_not_private(engine: Engine, scale: Fraction, shape: tuple[int, ...]) -> Shared:
    """Draw Laplace noise as scale * (ln U1 - ln U2), in units of 2**-FRACTION_BITS.

    Repaired: the paper's U may be 0, whose logarithm is not a number. Here U is the middle of one of 2**16 intervals.
    """
    if engine.ring != np.uint64:
        raise MechanismError(f"fixed-point noise needs 64-bit words, got {engine.ring}. Hint: use ring=numpy.uint64.")
    logarithms = _log2_uniform(engine, float(scale) * log(2), (2, int(np.prod(shape))))
    return (logarithms[0] - logarithms[1]).reshape(*shape)


def _log2_uniform(engine: Engine, factor: float, shape: tuple[int, int]) -> Shared:
    """Return factor * log2(U) for secret uniform U, in units of 2**-FRACTION_BITS."""
    rows, count = shape
    words = engine.random_words((UNIFORM_BITS, rows * -(-count // WORD_BITS)))
    # Most significant first, with a last digit that is always 1: U = 0.b_1 b_2 ... b_16 1
    digits = concatenate([words, ~(words[:1] & 0)])
    leading = _leading(engine, digits)
    bits = stack([digits, leading]).reshape(2, UNIFORM_BITS + 1, rows, -1).map(partial(unpacked, count=count))
    numbers = engine.to_ring(bits)
    digit, first = numbers[0], numbers[1]
    place = np.arange(UNIFORM_BITS + 1)[:, None, None]
    # U = y 2**-(place + 1) with 1 <= y < 2: shift the leading digit in front of the point.
    y = engine.mul((digit * (1 << (UNIFORM_BITS - place))).sum(axis=0), (first * (1 << place)).sum(axis=0))
    t = y - 3 * (1 << (UNIFORM_BITS - 1))
    square = engine.mul(t, t)
    constant, linear, quadratic = (
        round(factor * coefficient * 2.0 ** (FRACTION_BITS - UNIFORM_BITS * power))
        for power, coefficient in enumerate(LOG2)
    )
    exponent = (first * -(place + 1)).sum(axis=0) * round(factor * 2.0**FRACTION_BITS)
    return square * quadratic + t * linear + constant + exponent


def _leading(engine: Engine, digits: Bits) -> Bits:
    """Return the first 1 of each number alone: running products of inverted digits, in log2 many rounds."""
    none_yet = ~digits
    reach = 1
    while reach < len(digits):
        none_yet = concatenate([none_yet[:reach], engine.land(none_yet[reach:], none_yet[:-reach])])
        reach *= 2
    # none_yet[k]: no 1 among the digits 0..k. It ends at the first 1.
    before = concatenate([~(digits[:1] & 0), none_yet[:-1]])
    return before ^ none_yet
