# SPDX-License-Identifier: Apache-2.0
"""Geometric and discrete Laplace noise in shares: sampled on shares, unknown to every server, or dealt by the servers.

The exponential mechanism, whose randomness cannot be drawn before the data arrive, is at the end.

Sensitivities and privacy claims are in the calling modules, plaintext samplers in ``veilwood.privacy.samplers``.

| symbol | meaning |
|---|---|
| b | scale: the geometric distribution is P(z) proportional to exp(-z/b) on z = 0, 1, 2, ... |
| z_j | binary digit j of z; digits are independent, P(z_j = 1) = 1 / (1 + exp(2**j / b)) |
| J | number of digits drawn; P(z >= 2**J) is at most 2**-PRECISION |

Proof page: proofs/secure-noise.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from veilwood.arrays import Ints, NDArray
from veilwood.errors import MechanismError
from veilwood.privacy import entropy, samplers
from veilwood.privacy.joint_noise import JointLaplace
from veilwood_secure.mpc.checked import DeviationError
from veilwood_secure.mpc.engine import Bits, Engine, Shared, concatenate, stack
from veilwood_secure.protocols.circuits import maximum

PRECISION_BITS = 80  # of the secret uniform number that is compared with a digit's probability
WORD_BITS = 64
WORDS_PER_BATCH = 1 << 22  # words of secret random bits per batch: bounds memory
COINS_PER_BATCH = 1 << 26  # plaintext coins per batch: bounds memory
MAX_DEALT_SCALE = 1 << 12  # rejection sampling takes about b**1.5 coins per draw


def geometric(engine: Engine, scale: Fraction, shape: tuple[int, ...]) -> Shared:
    """Draw secret integers, unknown to every server, from P(z) proportional to exp(-z/scale) on z = 0, 1, 2, ...

    Examples
    --------
    >>> from veilwood_testing.mpc_engines import PlainEngine
    >>> engine = PlainEngine()
    >>> draws = engine.open(geometric(engine, Fraction(2), (1000,)))
    >>> bool((draws >= 0).all()), int(draws.max()) <= max_draw(Fraction(2))
    (True, True)
    """
    return _sum_signed_geometrics(engine, scale, shape, signs=(1,))


def discrete_laplace(engine: Engine, scale: Fraction, shape: tuple[int, ...]) -> Shared:
    """Draw secret integers, unknown to every server, from P(x) proportional to exp(-abs(x)/scale).

    The noise does not depend on data and can be drawn before the data arrive.

    Examples
    --------
    >>> from veilwood_testing.mpc_engines import PlainEngine
    >>> engine = PlainEngine()
    >>> discrete_laplace(engine, Fraction(1), (10, 3))
    Shared(shape=(10, 3), dtype=uint32)
    """
    return _sum_signed_geometrics(engine, scale, shape, signs=(1, -1))


def dealt_laplace(engine: Engine, scale: Fraction, shape: tuple[int, ...]) -> Shared:
    """Return the shared sum of three draws, one known to each server. Any two draws sum to a discrete Laplace variable.

    This takes one round. A server can subtract its own draw; discrete Laplace noise of this scale remains. For
    everybody else the noise has 1.5 times the variance.
    """
    if not 0 < scale <= MAX_DEALT_SCALE:
        raise MechanismError(
            f"the scale of dealt noise must be above 0 and at most {MAX_DEALT_SCALE}, got {scale}. "
            "Hint: sample it on shares, with discrete_laplace."
        )
    count = int(np.prod(shape))
    return engine.deal_sum(
        lambda server: (sample_polya(scale, count) - sample_polya(scale, count)).reshape(shape), shape
    )


def dealt_joint_laplace(engine: Engine, mechanism: JointLaplace, shape: tuple[int, ...]) -> Shared:
    """Return the sum of two draws of joint noise, one known by server 0 and one by server 1; one round.

    A server can subtract only its own draw; the noise of the mechanism remains. Checked servers verify that the sum is
    possible for two such draws.
    """
    total = engine.deal_sum(
        lambda server: mechanism.sample(shape[1]) if server < 2 else np.zeros(shape, np.int64), shape
    )
    if engine.is_checked:
        bound = 2 * joint_noise_bound(mechanism)
        too_large = engine.is_negative(concatenate([total + bound, bound - total]))
        if not engine.is_all_zero(too_large.sum().reshape(1)):
            raise DeviationError("the noise dealt by a server exceeds its bound")
    return total


TAIL_EXPONENT: Final = 60 * math.log(2)  # draws exceed their bound with probability below 2^-60


def joint_noise_bound(mechanism: JointLaplace) -> int:
    """Return a bound that all entries of a draw satisfy, except with probability 2^-60.

    On real numbers the norm, divided by the scale, has a gamma distribution with as many degrees of freedom as the
    tables have; unit cubes around integers change the norm by at most half a table (proofs/secure-checked.md).

    Examples
    --------
    >>> bound = joint_noise_bound(JointLaplace(Fraction(2), (2, 3)))
    >>> bool(abs(JointLaplace(Fraction(2), (2, 3)).sample(1000)).max() < bound)
    True
    """
    scale, sizes = float(mechanism.scale), mechanism.sizes
    freedom, half = sum(size - 1 for size in sizes) + 1, max(sizes) / 2
    exponent = TAIL_EXPONENT + 2 * half / scale
    return math.ceil(scale * (freedom + math.sqrt(2 * freedom * exponent) + exponent) + half)


def max_draw(scale: Fraction) -> int:
    """Return the largest integer that `geometric` can draw; no magnitude drawn by `discrete_laplace` exceeds it."""
    return (1 << len(_digit_thresholds(scale))) - 1


def total_variation(scale: Fraction, count: int) -> Fraction:
    """Bound the total variation distance of `count` geometric draws from exact draws; a Laplace draw counts as two.

    Examples
    --------
    >>> total_variation(Fraction(1), 1000) < Fraction(1, 2**60)
    True
    """
    # The error of each digit's probability is below 2 units of the last bit; truncation at J digits adds one unit.
    return Fraction(count * (2 * len(_digit_thresholds(scale)) + 1), 1 << PRECISION_BITS)


def sample_polya(scale: Fraction, n: int) -> Ints:
    """Draw exactly from the Polya distribution of index 1/2, in plaintext: two draws sum to a geometric.

    P(k) is proportional to C(2k, k) / 4**k * exp(-k/scale): a geometric draw k, accepted if 2k coins show k heads.
    """
    drawn = np.empty(n, dtype=np.int64)
    missing = np.arange(n)
    while missing.size:
        proposal = samplers.geometric(scale, missing.size)
        accepted = _count_heads(2 * proposal) == proposal
        drawn[missing[accepted]] = proposal[accepted]
        missing = missing[~accepted]
    return drawn


def _count_heads(coins: Ints) -> Ints:
    """Toss ``coins[i]`` fair coins for each i and return the numbers of heads."""
    heads = np.zeros(coins.size, dtype=np.int64)
    words = -(-coins // WORD_BITS)
    ends = np.cumsum(words)
    start = 0
    while start < coins.size:
        done = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, done + COINS_PER_BATCH // WORD_BITS, side="right")), start + 1)
        batch = words[start:stop]
        owner = np.repeat(np.arange(start, stop), batch)
        tossed = entropy.random_integers(int(batch.sum()), WORD_BITS).copy()
        # The last word of each draw is partly used: shift the surplus bits out.
        last = np.cumsum(batch)[batch > 0] - 1
        surplus = (batch * WORD_BITS - coins[start:stop])[batch > 0]
        tossed[last] >>= surplus.astype(np.uint64)
        heads += np.bincount(owner, weights=np.bitwise_count(tossed), minlength=coins.size).astype(np.int64)
        start = stop
    return heads


def _sum_signed_geometrics(engine: Engine, scale: Fraction, shape: tuple[int, ...], signs: tuple[int, ...]) -> Shared:
    """Return the sum over the signs of sign times a geometric draw."""
    if scale <= 0:
        raise MechanismError(f"scale must be positive, got {scale}. Hint: pass sensitivity / epsilon.")
    thresholds = _digit_thresholds(scale)
    digits = len(thresholds)
    if digits > engine.counted_bits - 3:
        raise MechanismError(
            f"noise of scale {scale} does not fit {engine.counted_bits} bits. "
            "Hint: use ring=numpy.uint64, or increase epsilon."
        )
    count = int(np.prod(shape))
    if not count or not digits:  # no digits: values other than 0 have probability below 2**-PRECISION
        return engine.constant(np.zeros(shape, dtype=np.int64))
    weights = np.array([[sign << j] for sign in signs for j in range(digits)], dtype=np.int64)
    words_per_draw = PRECISION_BITS * len(weights) / WORD_BITS
    batch_size = max(int(WORDS_PER_BATCH / words_per_draw), WORD_BITS)
    drawn = []
    for start in range(0, count, batch_size):
        now = min(batch_size, count - start)
        bits = _uniform_below(engine, thresholds * len(signs), -(-now // WORD_BITS))
        # x = sum_j w_j (c_j ^ d_j), where a ^ b = a + b - 2ab: one round for all products, summed locally before.
        c, d = engine.split_bits(bits.map_parts(partial(unpack_first_bits, count=now)))
        weighted = c * weights
        drawn.append(weighted.sum(axis=0) + (d * weights).sum(axis=0) - engine.dot(weighted, d, axis=0) * 2)
    return concatenate(drawn).reshape(*shape)


def _uniform_below(engine: Engine, thresholds: list[int], words: int) -> Bits:
    """Return secret bits that are 1 if a fresh uniform number of PRECISION bits is below its row's threshold.

    The numbers are bit-sliced: words[k] holds bit k of 64 numbers. A tree of depth log2(PRECISION) combines `less` and
    `equal` of increasingly long pieces, the most significant first.
    """
    uniform = engine.random_words((PRECISION_BITS, len(thresholds), words))
    ones = np.uint64(2**WORD_BITS - 1)
    bit_set = [[threshold >> (PRECISION_BITS - 1 - k) & 1 for threshold in thresholds] for k in range(PRECISION_BITS)]
    public = np.array(bit_set, dtype=np.uint64)[:, :, None] * ones
    less = ~uniform & public
    equal = uniform ^ (public ^ ones)
    while len(less) > 1:
        pairs = len(less) // 2
        high, low = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        joined = engine.land(equal[high][None], stack([less[low], equal[low]]))
        rest = slice(2 * pairs, None)
        less = concatenate([less[high] ^ joined[0], less[rest]])
        equal = concatenate([joined[1], equal[rest]])
    return less[0]


def unpack_first_bits(words: NDArray[np.unsignedinteger[Any]], count: int) -> NDArray[np.uint8]:
    """Return the first bits of each row of words, one in each byte."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, count=count)


@lru_cache(maxsize=256)
def _digit_thresholds(scale: Fraction) -> list[int]:
    """Return P(z_j = 1) for j = 0, 1, ..., J-1, in units of 2**-PRECISION, rounded down."""
    bits = PRECISION_BITS + 32
    thresholds: list[int] = []
    while True:
        low, high = samplers.exp_minus(2 ** len(thresholds) / scale, bits)
        if high <= 1 << (bits - PRECISION_BITS):  # exp(-2**J / b): the probability beyond J digits
            return thresholds
        thresholds.append((low << PRECISION_BITS) // ((1 << bits) + low))


# -- the exponential mechanism ----------------------------------------------------------------------------------------

WEIGHT_BITS = 28  # of the largest weight
COIN_BITS = 29  # of the uniform number; its product with the total weight must fit 63 bits
MAX_COMPARISONS = 1 << 24  # per selection, which bounds memory


def exponential_delta(epsilon: Fraction, n_candidates: int, n_selections: int) -> float:
    """Return a bound on the delta of ``n_selections`` selections, due to rounding of weights and of the uniform number.

    The error of a weight is less than one unit of a total of at least 2^WEIGHT_BITS; the error of a boundary is less
    than one coin.
    """
    distance = n_selections * n_candidates * (2.0**-WEIGHT_BITS + 2.0**-COIN_BITS)
    return (1 + math.exp(epsilon)) * distance


def weight_steps(epsilon: Fraction, n_scores: int) -> Ints:
    """Return the decreases of the weights exp(-epsilon gap / 2) from each gap to the next, down to a weight of 0.

    Raise MechanismError if ``n_scores`` scores need more comparisons than memory holds.
    """
    rate = float(epsilon) / 2  # the paper's form, with twice the sensitivity 1
    n_gaps = math.ceil(WEIGHT_BITS * math.log(2) / rate) + 1
    if n_gaps * n_scores > MAX_COMPARISONS:
        raise MechanismError(
            f"epsilon={float(epsilon):g} needs {n_gaps * n_scores:,} comparisons for exponential weights. "
            "Hint: reduce the depth, or choose a mechanism with fewer comparisons."
        )
    table = np.floor(2.0**WEIGHT_BITS * np.exp(-rate * np.arange(n_gaps)))
    steps: Ints = (table - np.append(table[1:], 0)).astype(np.int64)
    return steps


def cumulative_weights(engine: Engine, scores: Shared, epsilon: Fraction, allowed: Ints) -> Shared:
    """Return running sums of the weights exp(epsilon (score - largest) / 2) of candidates along the first axis."""
    if engine.counted_bits < 64:
        raise MechanismError("exponential weights need 64-bit words. Hint: create the engine with ring=numpy.uint64.")
    steps = weight_steps(epsilon, scores.size)
    gap = (maximum(engine, scores).reshape(1, *scores.shape[1:]) - scores).reshape(1, -1)
    # A weight is the sum of the table's steps from its gap on: one comparison per entry, and no exponential on shares.
    reached = engine.is_negative(gap - np.arange(1, len(steps) + 1)[:, None])  # gap <= 0, 1, 2, ...
    weights: Shared = (reached * steps[:, None]).sum(axis=0).reshape(*scores.shape)
    return (weights * allowed).cumsum(axis=0)


def draw_threshold(engine: Engine, total: Shared) -> Shared:
    """Return a uniform secret number below each total, in units of 2^-COIN_BITS."""
    bits = engine.random_bits((COIN_BITS, total.size))
    uniform = (bits * (1 << np.arange(COIN_BITS))[:, None]).sum(axis=0)
    return engine.mul(uniform.reshape(*total.shape), total)


def select_exponential(engine: Engine, scores: Shared, epsilon: Fraction) -> Shared:
    """Select along the first axis by the exponential mechanism; one-hot, with one comparison per candidate."""
    running = cumulative_weights(engine, scores, epsilon, np.ones(scores.shape, np.int64))
    mark = draw_threshold(engine, running[-1]).reshape(1, *scores.shape[1:])
    below = engine.is_negative(mark - running[:-1] * (1 << COIN_BITS))  # 0 ... 0 1 ... 1
    first = below[:1] * 0
    return concatenate([below, first + 1], axis=0) - concatenate([first, below], axis=0)
