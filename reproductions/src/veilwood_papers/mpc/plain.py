# SPDX-License-Identifier: Apache-2.0
"""Plaintext versions of the secure protocols: the same trees from the same rows and noise, in the clear.

They are written for clarity, share only the tree structure with the protocols, and give the same integers. Tests
compare both, and accuracy is measured on the plaintext versions. Nothing here is private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import expm1, log, log1p

import numpy as np

from veilwood.arrays import Ints
from veilwood.errors import MechanismError
from veilwood_secure.mpc.engine import Bits, Engine, Shared, concatenate, stack
from veilwood_secure.protocols.noise import WORD_BITS, unpack_first_bits
from veilwood_secure.protocols.public_trees import PlainTree


def poisson_epsilon(epsilon: float, rate: float, n_trees: int) -> float:
    """Return the loss of ``n_trees`` trees, each at ``epsilon`` on a Poisson sample of the rows at ``rate``.

    The paper's Claim D.1 says ``n_trees * rate * epsilon``; the tight bound of one tree is
    ``log(1 + rate (exp(epsilon) - 1))``, which is always larger (Balle, Barthe, Gaboardi 2018, Theorem 8). Trees on
    disjoint rows, a fraction 1/n_trees each, have a loss of only ``epsilon``; the forests here use disjoint rows.

    >>> round(poisson_epsilon(2.0, 0.25, 4), 2)  # claimed: 2
    3.82
    """
    return n_trees * log1p(rate * expm1(epsilon))


UNIFORM_BITS = 16
FRACTION_BITS = (
    2 * UNIFORM_BITS + 10
)  # fraction bits of the result: the square of a 16-bit fraction, and coefficients of 10 bits
# log2(y) for 1 <= y < 2 is within 0.005 of this polynomial in y - 3/2, its interpolation at Chebyshev's points.
_POINTS = 1.5 + 0.5 * np.cos(np.pi * (2 * np.arange(3) + 1) / 6)
LOG2: list[float] = np.polynomial.polynomial.polyfit(_POINTS - 1.5, np.log2(_POINTS), 2).tolist()


def log_laplace_not_private(engine: Engine, scale: Fraction, shape: tuple[int, ...]) -> Shared:
    """Draw Laplace noise as scale * (ln U1 - ln U2), in units of 2**-FRACTION_BITS.

    Fixed: the paper's U may be 0, which has no logarithm. Here U is the midpoint of one of 2**16 intervals.
    """
    if engine.ring != np.uint64:
        raise MechanismError(f"fixed-point noise needs 64-bit words, got {engine.ring}. Hint: use ring=numpy.uint64.")
    logarithms = _log2_uniform(engine, float(scale) * log(2), (2, int(np.prod(shape))))
    return (logarithms[0] - logarithms[1]).reshape(*shape)


def _log2_uniform(engine: Engine, factor: float, shape: tuple[int, int]) -> Shared:
    """Return factor * log2(U) for secret uniform U, in units of 2**-FRACTION_BITS."""
    rows, count = shape
    words = engine.random_words((UNIFORM_BITS, rows * -(-count // WORD_BITS)))
    # Digits, most significant first; the last digit is always 1: U = 0.b_1 b_2 ... b_16 1
    digits = concatenate([words, ~(words[:1] & 0)])
    leading = _leading_ones(engine, digits)
    bits = (
        stack([digits, leading])
        .reshape(2, UNIFORM_BITS + 1, rows, -1)
        .map_parts(partial(unpack_first_bits, count=count))
    )
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


def _leading_ones(engine: Engine, digits: Bits) -> Bits:
    """Return the leading 1 of each number alone, by running products of inverted digits in log2 rounds."""
    none_yet = ~digits
    reach = 1
    while reach < len(digits):
        none_yet = concatenate([none_yet[:reach], engine.land(none_yet[reach:], none_yet[:-reach])])
        reach *= 2
    # none_yet[k] is 1 if there is no 1 among the digits 0..k, otherwise 0.
    before = concatenate([~(digits[:1] & 0), none_yet[:-1]])
    return before ^ none_yet


SelectionRule = Callable[[int, Ints], Ints]
"""Selection at all nodes of a level: (level, scores of shape (nodes, candidates)) -> selected index per node."""

USED = -1
"""Score of a feature that an ancestor uses, below every other score."""


def first_largest(level: int, scores: Ints) -> Ints:
    """Return the index of the largest score, without noise. Ties go to the lowest index."""
    return np.asarray(scores.argmax(axis=1))


def noisy_largest(noise: Sequence[Ints | None]) -> SelectionRule:
    """Return the selection rule that adds the given noise to the scores: one (candidates, nodes) array per level."""

    def select_noisy(level: int, scores: Ints) -> Ints:
        extra = noise[level]
        noisy = scores if extra is None else scores + extra.T
        return np.asarray(np.where(scores == USED, np.iinfo(np.int64).min, noisy).argmax(axis=1))

    return select_noisy


def grow_tree(
    codes: Ints,
    target: Ints,
    *,
    sizes: Sequence[int],
    n_classes: int,
    depth: int,
    split: SelectionRule,
    label: SelectionRule,
) -> PlainTree:
    """Train a tree: ``split`` selects by the max operator of features, ``label`` by the class counts of leaves.

    ``sizes`` is the number of branches per feature, which is the common width in a hidden tree. Rows of class -1 are
    padding. ``label`` is called with level ``depth``.
    """
    real = target >= 0
    codes, target = codes[real], target[real]
    branches = np.array(sizes)
    node, used = np.zeros(len(codes), np.int64), np.zeros((1, len(sizes)), bool)
    splits = []
    for level in range(depth):
        scores = np.full(used.shape, USED)
        for feature, size in enumerate(sizes):
            cell = (node * size + codes[:, feature]) * n_classes + target
            counts = np.bincount(cell, minlength=used.shape[0] * size * n_classes).reshape(-1, size, n_classes)
            # Number of rows in the most frequent class of their value (equation 1 of the paper).
            scores[:, feature] = counts.max(axis=2).sum(axis=1)
        chosen = split(level, np.where(used, USED, scores))
        splits.append(chosen)
        first = np.cumsum(branches[chosen]) - branches[chosen]
        node = first[node] + codes[np.arange(len(codes)), chosen[node]]
        used[np.arange(len(chosen)), chosen] = True
        used = np.repeat(used, branches[chosen], axis=0)
    leaves = np.bincount(node * n_classes + target, minlength=len(used) * n_classes).reshape(-1, n_classes)
    return PlainTree(tuple(splits), label(depth, leaves), tuple(sizes))


def majority_vote(trees: Sequence[PlainTree], codes: Ints, n_classes: int) -> Ints:
    """Return the class with the most votes for each row. Ties go to the lowest class."""
    votes = np.zeros((len(codes), n_classes), np.int64)
    for tree in trees:
        votes[np.arange(len(codes)), tree.predict(codes)] += 1
    return np.asarray(votes.argmax(axis=1))
