# SPDX-License-Identifier: Apache-2.0
r"""Noise on several tables that count the same rows: less than each would need by itself, at the same pure epsilon.

A row is in one cell of every table, so that all tables have the same number of rows, with noise as without. Noise for
every table by itself would also hide changes that no row can make. This is the K-norm mechanism (Hardt and Talwar 2010,
"On the geometry of differential privacy") for what rows can change, on the integers and drawn exactly
(proofs/joint-laplace.md). How far a row moves what is counted is not derived here, and nothing is charged here.

| letter | meaning |
|---|---|
| s | 1 / scale |
| m | cells of a table |
| x | noise of a table, m whole numbers |
| t | sum of x: the same for all tables |
| u | sum of the negative entries of x, without sign, where t is not negative; \|x\| = t + 2u |
| U | bound of u, the same for all tables |
| i, v | negative entries of x, and their sum without sign |
| l, h | places of the others among the first v - i; h = i + l (``_draw_vector``) |
| d | free numbers of all tables together: the sum of m - 1 |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import comb, exp, expm1, lgamma, prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veilwood.errors import MechanismError
from veilwood.privacy import entropy, samplers
from veilwood.privacy.noise import DiscreteLaplace, require_integers

__all__ = [
    "MAX_JOINT_CELLS",
    "MAX_JOINT_SCALE",
    "MAX_TABLE_CELLS",
    "QUADRATURE_NODES",
    "JointLaplace",
    "Moments",
    "noise_moments",
    "unit_scale_moments",
]


Floats = NDArray[np.float64]

MAX_TABLE_CELLS: Final = 48  # of one table: more hardly gain from company
MAX_JOINT_CELLS: Final = 256  # of all tables together: the boxes of the sampler grow with their square

_HALF_NODES, _QUADRATURE_WEIGHTS = (ends / 2 for ends in np.polynomial.legendre.leggauss(40))
QUADRATURE_NODES: Final[Floats] = _HALF_NODES + 0.5  # between 0 and 1, of a quadrature


class Moments(NamedTuple):
    """Variances of cells by the size of their table, as if each were independent of the others, and of all rows."""

    within: dict[int, float]
    total: float


def noise_moments(scale: Fraction, sizes: tuple[int, ...]) -> Moments:
    """Return the moments of noise of a scale."""
    apart, total = unit_scale_moments(tuple(sorted(Counter(sizes).items())))
    squared = float(scale) ** 2
    return Moments({m: _discrete_variance(squared * one) for m, one in apart}, squared * total)


@lru_cache(maxsize=4096)
def unit_scale_moments(size_counts: tuple[tuple[int, int], ...]) -> tuple[tuple[tuple[int, float], ...], float]:
    """Variances of cells by the size of their table, and of all rows, on real numbers; tables by size and number.

    >>> unit_scale_moments(((4, 1),))[0][0][1].__round__(6)  # one table by itself: Laplace noise
    2.0
    """
    logs = np.zeros_like(QUADRATURE_NODES)
    for m, times in size_counts:
        logs += times * _vector_moments(m)[0]
    density = _QUADRATURE_WEIGHTS * np.exp(logs - logs.max())
    density /= density.sum()
    free = sum((m - 1) * times for m, times in size_counts)
    squared = (free + 2) * (free + 3)  # the mean of r^2
    total = squared * float(density @ QUADRATURE_NODES**2)
    apart = tuple(
        (m, squared * float(density @ (_vector_moments(m)[1] - QUADRATURE_NODES**2 / m)) / max(m - 1, 1))
        for m, _ in size_counts
    )
    return apart, total


@lru_cache(maxsize=64)
def _vector_moments(m: int) -> tuple[Floats, Floats]:
    """For t = z and U = (1 - z) / 2: the log-volume of vectors, and the mean of their squares' sum.

    i negative entries of the sum v are v times a uniform point of a simplex, the others t + v times one.
    """
    t, most = QUADRATURE_NODES, (1 - QUADRATURE_NODES) / 2
    volume = np.exp((m - 1) * np.log(t) - lgamma(m))
    squares = volume * 2 * t**2 / (m + 1)
    v = most[:, None] * QUADRATURE_NODES
    rest = t[:, None] + v
    for i in range(1, m):
        log_ways = lgamma(m + 1) - lgamma(i + 1) - lgamma(m - i + 1) - lgamma(i) - lgamma(m - i)
        part = most[:, None] * _QUADRATURE_WEIGHTS * np.exp(log_ways + (i - 1) * np.log(v) + (m - i - 1) * np.log(rest))
        volume = volume + part.sum(axis=1)
        squares = squares + (part * (2 * v**2 / (i + 1) + 2 * rest**2 / (m - i + 1))).sum(axis=1)
    return np.log(volume), squares / volume


def _discrete_variance(variance: float) -> float:
    """Variance of the discrete Laplace law that has this one on real numbers."""
    if variance <= 0:
        return 0.0
    inverse = (2 / variance) ** 0.5
    return 2 * exp(-inverse) / expm1(-inverse) ** 2


Ints = NDArray[np.int64]

MAX_JOINT_SCALE: Final = 1 << 40
# Weights of boxes are whole numbers of 2**-WEIGHT_BITS of the largest, rounded up. Floating point is off by less than
# 2**-30 of a weight (proofs/joint-laplace.md); SLACK covers that.
WEIGHT_BITS: Final = 40
WEIGHT_SLACK: Final = 1 + 2.0**-20


@dataclass(frozen=True, init=False)
class JointLaplace:
    """Noise on tables with the same number of rows: P(x) proportional to exp(-norm(x)/scale), norm the largest L1 norm.

    Columns (classes) of the tables get noise of their own, each of this law.

    Parameters
    ----------
    scale
        Positive integer or ``Fraction``, at most 2**40. For epsilon at r rows, each in one cell of every table, it is
        r/epsilon.
    sizes
        Cells of each table, at most 48, and 256 together.

    Notes
    -----
    Guarantee

    Neighbours: tables that differ in r rows.
    Bound: pure differential privacy with epsilon = r/scale, assuming uniform bits from the operating system.
    Proof: proofs/joint-laplace.md
    Test: packages/veilwood/tests/privacy/test_joint_noise.py::test_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> noise = JointLaplace(10, (2, 3))
    >>> noise.epsilon(2)
    Fraction(1, 5)
    >>> seen = noise.perturb([[5], [5], [2], [3], [5]])  # 10 rows in two tables
    >>> bool(seen[:2].sum() == seen[2:].sum())
    True
    >>> JointLaplace(10, (2,) * 20).variances[0] < DiscreteLaplace(20 * 10).variance / 9
    True
    """

    scale: Fraction
    sizes: tuple[int, ...]

    def __init__(self, scale: Fraction | int, sizes: Sequence[int]) -> None:
        object.__setattr__(self, "scale", DiscreteLaplace(scale).scale)
        object.__setattr__(self, "sizes", tuple(sizes))
        if self.scale > MAX_JOINT_SCALE:
            raise MechanismError("scale must be at most 2**40. Hint: so much noise leaves nothing; spend more epsilon.")
        fits = all(type(m) is int and 1 <= m <= MAX_TABLE_CELLS for m in self.sizes)
        if not fits or not 0 < sum(self.sizes) <= MAX_JOINT_CELLS:
            raise MechanismError(
                f"sizes must be from 1 to {MAX_TABLE_CELLS} cells, and at most {MAX_JOINT_CELLS} together. "
                "Hint: put tables into several groups, or give large ones noise by themselves."
            )

    def epsilon(self, rows: Fraction | int) -> Fraction:
        """Return the epsilon that this noise costs where so many rows differ."""
        return DiscreteLaplace(self.scale).epsilon(rows)

    @property
    def moments(self) -> Moments:
        """How large the noise is: of what is apart in a table, and of what all have in common."""
        return noise_moments(self.scale, self.sizes)

    @property
    def variances(self) -> tuple[float, ...]:
        """Of each table, as if its cells had independent noise: of differences between them (``joint_moments``)."""
        apart = self.moments.within
        return tuple(apart[m] for m in self.sizes)

    @property
    def variance(self) -> float:
        """The mean over all cells of ``variances``."""
        return float(np.average(self.variances, weights=self.sizes))

    def norm(self, x: ArrayLike) -> int:
        """Return the norm of changes, by cell and class: the sum over classes of the largest L1 norm of a table."""
        return int(self.class_norms(x).sum())

    def class_norms(self, x: ArrayLike) -> Ints:
        """Return the largest L1 norm of a table, for each class; refuse what no rows can change."""
        change = require_integers("x", x)
        self._check_totals(change)
        return np.asarray(np.add.reduceat(np.abs(change), self._table_starts, axis=0).max(axis=0), np.int64)

    def perturb(self, counts: ArrayLike) -> Ints:
        """Return counts with noise, tables one below the other, a column for each class."""
        exact = require_integers("counts", counts)
        if exact.ndim != 2 or len(exact) != sum(self.sizes):
            raise MechanismError(f"counts must be a table of {sum(self.sizes)} rows, one for each cell.")
        self._check_totals(exact)
        return exact + self.sample(exact.shape[1])

    def _check_totals(self, counts: Ints) -> None:
        totals = np.add.reduceat(counts, self._table_starts, axis=0)
        if (totals != totals[0]).any():
            raise MechanismError("all tables must count the same rows.")

    def sample(self, n: int) -> Ints:
        """Return independent draws, one in each of `n` columns."""
        return np.array([self._draw_column() for _ in range(n)], np.int64).reshape(n, sum(self.sizes)).T

    @property
    def _table_starts(self) -> Ints:
        return np.cumsum((0, *self.sizes[:-1]))

    def _draw_column(self) -> Ints:
        boxes = _cached_sampler(self.scale, tuple(sorted(Counter(self.sizes).items())))
        bound, total = boxes.draw_bound_total()
        weights = {m: _vector_counts(m, bound, total) for m in set(self.sizes)}
        found = np.concatenate([_draw_vector(m, bound, total, weights[m]) for m in self.sizes])
        # Of t and -t one is drawn; 0 is its own opposite, and so has half of the weight in a box.
        return -found if total and _draw_below(2) else found


# -- bound and sum -------------------------------------------------------------------------------------------------


def count_vectors(m: int, bound: int, total: int) -> int:
    """How many vectors of m whole numbers have this sum, not negative, and negative entries of at most this sum.

    >>> count_vectors(2, 3, 1)  # (4, -3), (3, -2), ..., (-3, 4)
    8
    """
    return sum(_vector_counts(m, bound, total))


def _vector_counts(m: int, bound: int, total: int) -> list[int]:
    """The number of vectors by h, a sum of products of subsets (proofs/joint-laplace.md)."""
    return [comb(m + h - 1, h) * comb(bound, h) * comb(total + m - 1, m - 1 - h) for h in range(m)]


class _SegmentedAxis(NamedTuple):
    """Segments of one axis: ``n`` of one length from 0 on, then pieces of another, each half as heavy as the last."""

    n: int
    length: int
    tail: int  # lengths in a piece beyond

    @property
    def segment_ends(self) -> Ints:
        """The last point of each segment; of the first piece beyond."""
        inside = np.arange(1, self.n + 1) * self.length - 1
        return np.append(inside, (self.n + self.tail) * self.length - 1)

    @property
    def segment_starts(self) -> Ints:
        """The first point of each segment."""
        return np.arange(self.n + 1) * self.length

    def draw_point(self, segment: int) -> tuple[int, int]:
        """Draw a point of a segment, and how often its weight is halved."""
        if segment < self.n:
            return segment * self.length + _draw_below(self.length), 0
        halved = 0
        while _draw_below(2):
            halved += 1
        piece = self.tail * self.length
        return self.n * self.length + halved * piece + _draw_below(piece), halved


class _BoxSampler:
    """Draws U and t, of weight exp(-s(t + 2U)) times the number of vectors, by rejection from boxes of even weight.

    In a box the weight is at most exp(-s(t + 2U)) of its first corner, times the number of vectors of its last.
    """

    def __init__(self, scale: Fraction, size_counts: tuple[tuple[int, int], ...]) -> None:
        self._scale, self._counted = scale, size_counts
        free = sum((m - 1) * times for m, times in size_counts)
        largest = max(m for m, _ in size_counts)
        # Beyond these ends a piece more halves the weight at least: the proof has the inequality.
        self._bounds = _segment_axis(
            scale, Fraction(1, 4), largest + (Fraction(3, 4) * free + 3) * scale, Fraction(21, 20)
        )
        self._totals = _segment_axis(scale, Fraction(1, 2), (Fraction(3, 2) * free + 6) * scale, Fraction(21, 10))
        self._unit = max(int(scale), 1).bit_length()  # counts are in units of 2**unit, for floating point
        logs = self._log_weights()
        self._top = int(np.ceil(logs.max() / np.log(2)))
        weights = np.floor(np.exp2(logs / np.log(2) - self._top + WEIGHT_BITS) * WEIGHT_SLACK).astype(np.int64) + 1
        weights[-1] *= 2 * self._bounds.tail  # points in a piece, and all its halves, for points in a segment
        weights[:, -1] *= 2 * self._totals.tail
        self._weights, self._shift = weights, WEIGHT_BITS - self._top - self._unit * free
        assert float(weights.sum(dtype=np.float64)) < 2.0**62, "all weights together are whole numbers of 64 bits"
        self._reached = np.cumsum(weights.ravel())

    def _log_weights(self) -> Floats:
        """Logarithms of the largest weight in each box, numbers of vectors in units of 2**(unit d)."""
        scale, unit = float(self._scale), 2.0**self._unit
        bounds, totals = self._bounds.segment_ends / unit, self._totals.segment_ends / unit
        logs = -(2 * self._bounds.segment_starts[:, None] + self._totals.segment_starts) / scale
        for m, times in self._counted:
            ones = [np.ones_like(bounds)]
            for i in range(m - 1):
                ones.append(ones[-1] * np.maximum(bounds - i / unit, 0) / (i + 1))
            twos = [np.ones_like(totals)]
            for i in range(m - 1):
                twos.append(twos[-1] * (totals + (m - 1 - i) / unit) / (i + 1))
            ways = np.array([comb(m + h - 1, h) for h in range(m)], np.float64)
            logs += times * np.log((np.stack(ones, axis=1) * ways) @ np.stack(twos[::-1]))
        return logs

    def draw_bound_total(self) -> tuple[int, int]:
        """Return U and t."""
        while True:
            (at,) = samplers.uniform_below(self._reached[-1:])
            box = int(np.searchsorted(self._reached, at, side="right"))
            row, column = divmod(box, self._weights.shape[1])
            bound, halved = self._bounds.draw_point(row)
            total, again = self._totals.draw_point(column)
            if total == 0 and _draw_below(2):
                continue  # t and -t are one there
            if self._accepts_point(bound, total, self._box_weight(row, column), halved + again):
                return bound, total

    def _box_weight(self, row: int, column: int) -> int:
        weight = int(self._weights[row, column])
        weight //= 2 * self._bounds.tail if row == self._bounds.n else 1
        return weight // (2 * self._totals.tail if column == self._totals.n else 1)

    def _accepts_point(self, bound: int, total: int, weight: int, halved: int) -> bool:
        """Toss a coin of probability weight of (U, t) / weight of its box, exactly."""
        exponent = (total + 2 * bound) / self._scale
        vectors = prod(count_vectors(m, bound, total) ** times for m, times in self._counted)
        # Accept where V < exp(-exponent) * vectors * 2**shift / weight, V a uniform number.
        shift = self._shift + halved
        word_bits = bits = 4 * entropy.digit_bits()
        prefix = int(entropy.random_integers(1, bits)[0])
        factor_bits = max(0, vectors.bit_length() + shift)  # of what an error of exp(-exponent) is multiplied by
        while True:
            precision = bits + factor_bits + entropy.GUARD_BITS
            low, high = (end * vectors for end in samplers.exp_minus(exponent, precision))
            left, right = shift + bits, precision  # V weight 2**right < exp vectors 2**left
            if left < 0:
                left, right = 0, right - left
            if (prefix + 1) * weight << right <= low << left:
                return True
            if prefix * weight << right >= high << left:
                return False
            prefix = prefix << word_bits | int(entropy.random_integers(1, word_bits)[0])
            bits += word_bits


@lru_cache(maxsize=4)  # up to 25 MB each
def _cached_sampler(scale: Fraction, size_counts: tuple[tuple[int, int], ...]) -> _BoxSampler:
    return _BoxSampler(scale, size_counts)


def _segment_axis(scale: Fraction, part: Fraction, end: Fraction, tail: Fraction) -> _SegmentedAxis:
    length = max(1, int(part * scale))
    return _SegmentedAxis(int(end / length) + 1, length, int(tail * scale / length) + 1)


# -- vectors -------------------------------------------------------------------------------------------------------


def _draw_vector(m: int, bound: int, total: int, weights: list[int]) -> Ints:
    """Draw, each with the same probability, a vector of m whole numbers of this sum, its negative sum bounded.

    i negative entries with the sum v are i - 1 places where v is cut; the others, a sum of total + v in m - i parts
    that may be 0, are m - i - 1 places among total + v + m - i - 1, l of them among the first v - i. Places in both
    parts and v itself, i + l together, are any subset of 1..bound.
    """
    h = _draw_weighted(weights)
    if h == 0:  # none is negative
        return np.array(_gap_lengths(_draw_subset(total + m - 1, m - 1), total + m), np.int64)
    i = 1 + _draw_weighted([comb(m, i) * comb(h - 1, h - i) for i in range(1, h + 1)])
    *rest, v = _draw_subset(bound, h)
    cut = set(_draw_subset(h - 1, i - 1))
    cuts = [place for number, place in enumerate(rest, 1) if number in cut]
    others = [place for number, place in enumerate(rest, 1) if number not in cut]
    below = [place - sum(one < place for one in cuts) for place in others]  # among places that are no cuts
    above = [v - i + place for place in _draw_subset(total + m - 1, m - 1 - h)]
    positive = _gap_lengths([*below, *above], total + v + m - i)
    negative = [after - before for before, after in zip([0, *cuts], [*cuts, v], strict=True)]
    entries = np.empty(m, np.int64)
    chosen = np.zeros(m, bool)
    chosen[np.array(_draw_subset(m, i)) - 1] = True
    entries[chosen], entries[~chosen] = np.negative(negative), positive
    return entries


def _gap_lengths(bars: list[int], end: int) -> list[int]:
    """Numbers between bars, from place 1 to before the end."""
    return [after - before - 1 for before, after in zip([0, *bars], [*bars, end], strict=True)]


def _draw_subset(n: int, k: int) -> list[int]:
    """Draw k of 1..n, in ascending order (Floyd)."""
    found: set[int] = set()
    for last in range(n - k + 1, n + 1):
        one = 1 + _draw_below(last)
        found.add(last if one in found else one)
    return sorted(found)


def _draw_weighted(weights: Sequence[int]) -> int:
    """Draw a place with probability proportional to its weight."""
    reached = list(accumulate(weights))
    at = _draw_below(reached[-1])
    return next(place for place, end in enumerate(reached) if at < end)


def _draw_below(n: int) -> int:
    """Draw a whole number below n, of any size."""
    bits = (n - 1).bit_length()
    while True:
        words = entropy.random_integers(-(-bits // 64)) if bits else ()
        drawn = 0
        for word in words:
            drawn = drawn << 64 | int(word)
        drawn >>= -bits % 64
        if drawn < n:
            return drawn
