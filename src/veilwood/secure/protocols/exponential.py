# SPDX-License-Identifier: Apache-2.0
"""The paper's exponential mechanism on shares (Algorithm 13, repaired): for comparison with noisy maxima, not for use.

A noisy maximum (``hidden_tree``, ``id3.noisy_feature``) is sharper at the same epsilon, exact to 2^-60 and cheaper.

As printed, the algorithm compares with scores instead of running sums and always ends at the last candidate; the
paper also sets weights below exp(-5) to zero, which is not private. Here weights are whole numbers of a table, in which
only those below 2^-WEIGHT_BITS of the largest become zero; what that changes is counted in delta.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from veilwood.errors import MechanismError
from veilwood.secure.mpc.engine import Engine, Ints, Shared, concatenate
from veilwood.secure.protocols.choose import maximum
from veilwood.secure.protocols.public_tree import ChooseLabel, Select, WaitingLevel

WEIGHT_BITS = 28  # of the largest weight
COIN_BITS = 29  # of the uniform number; weight times number must fit 63 bits
MOST_COMPARISONS = 1 << 24


def exponential_delta(epsilon: Fraction, candidates: int, choices: int) -> float:
    """Return a bound on the delta of ``choices`` choices: weights and the uniform number are rounded.

    A weight is off by less than one unit of a total of at least 2^WEIGHT_BITS, a boundary by less than one coin.
    """
    distance = choices * candidates * (2.0**-WEIGHT_BITS + 2.0**-COIN_BITS)
    return (1 + math.exp(epsilon)) * distance


def _running_weights(engine: Engine, scores: Shared, epsilon: Fraction, allowed: Ints) -> Shared:
    """Return running sums of the weights exp(epsilon (score - largest) / 2) of candidates along the first axis."""
    if engine.ring != np.uint64:
        raise MechanismError("weights need 64-bit words. Hint: an engine with ring=numpy.uint64.")
    rate = float(epsilon) / 2  # the paper's form, with twice the sensitivity 1
    table = np.floor(2.0**WEIGHT_BITS * np.exp(-rate * np.arange(math.ceil(WEIGHT_BITS * math.log(2) / rate) + 1)))
    if len(table) * scores.size > MOST_COMPARISONS:
        raise MechanismError(
            f"epsilon={float(epsilon):g} needs {len(table) * scores.size:,} comparisons. Hint: noisy maxima need few."
        )
    steps = (table - np.append(table[1:], 0)).astype(np.int64)
    gap = (maximum(engine, scores).reshape(1, *scores.shape[1:]) - scores).reshape(1, -1)
    # A weight is the sum of the steps from its gap on: as many comparisons as the table is long, and no exponential.
    reached = engine.negative(gap - np.arange(1, len(steps) + 1)[:, None])  # gap <= 0, 1, 2, ...
    weights: Shared = (reached * steps[:, None]).sum(axis=0).reshape(*scores.shape)
    return (weights * allowed).cumsum(axis=0)


def _mark(engine: Engine, total: Shared) -> Shared:
    """Return a uniform secret number below each total, in units of 2^-COIN_BITS."""
    bits = engine.random_bits((COIN_BITS, total.size))
    uniform = (bits * (1 << np.arange(COIN_BITS))[:, None]).sum(axis=0)
    return engine.mul(uniform.reshape(*total.shape), total)


def exponential_choice(engine: Engine, scores: Shared, epsilon: Fraction) -> Shared:
    """Choose along the first axis by the exponential mechanism; one-hot, by comparing with every candidate in turn."""
    running = _running_weights(engine, scores, epsilon, np.ones(scores.shape, np.int64))
    mark = _mark(engine, running[-1]).reshape(1, *scores.shape[1:])
    below = engine.negative(mark - running[:-1] * (1 << COIN_BITS))  # 0 ... 0 1 ... 1
    first = below[:1] * 0
    return concatenate([below, first + 1], axis=0) - concatenate([first, below], axis=0)


def exponential_opened(engine: Engine, scores: Shared, epsilon: Fraction, allowed: Ints) -> Ints:
    """Choose as `exponential_choice` and open the place, found by binary search: log2 of the candidates comparisons."""
    running = _running_weights(engine, scores, epsilon, allowed)
    mark = _mark(engine, running[-1])
    columns = np.arange(scores.shape[1])
    low, high = np.zeros(len(columns), np.int64), np.full(len(columns), scores.shape[0] - 1)
    while (low < high).any():
        middle = (low + high) // 2
        left = engine.open(engine.negative(mark - running[middle, columns] * (1 << COIN_BITS))) == 1
        low, high = np.where(left | (low == high), low, middle + 1), np.where(left, middle, high)
    return low


def exponential_feature(epsilon: Fraction) -> Select:
    """Return the paper's choice of splits (Algorithm 8)."""

    def select(engine: Engine, level: WaitingLevel) -> Ints:
        return exponential_opened(engine, level.scores(engine), epsilon, level.free.astype(np.int64))

    return select


def exponential_class(epsilon: Fraction) -> ChooseLabel:
    """Return the paper's choice of classes of leaves (Algorithm 10)."""

    def label(engine: Engine, totals: Shared) -> Ints:
        return exponential_opened(engine, totals, epsilon, np.ones(totals.shape, np.int64))

    return label
