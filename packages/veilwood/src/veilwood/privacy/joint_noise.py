# SPDX-License-Identifier: Apache-2.0
r"""Joint noise on several tables that count the same rows, with its exact sampler and its variances.

At the same pure epsilon, joint noise is less than separate noise for each table. A row is in one cell of every table,
so that all tables have the same number of rows, with noise as without. Separate noise would also hide changes that no
row can make. This is the K-norm mechanism (Hardt and Talwar 2010, "On the geometry of differential privacy") for the
changes that rows can make, on the integers and drawn exactly (proofs/joint-laplace.md). Variances are computed on real
numbers, by quadrature. No sensitivity is derived here, and nothing is charged here.

| letter | meaning |
|---|---|
| s | 1 / scale |
| m | number of cells of a table |
| x | noise of a table, m integers |
| t | sum of x: the same for all tables |
| u | absolute sum of the negative entries of x, if t is not negative; \|x\| = t + 2u |
| U | upper bound of u, the same for all tables |
| i, v | number of negative entries of x, and their absolute sum |
| l, h | number of bars of the other entries among the first v - i positions; h = i + l (``_draw_vector``) |
| d | degrees of freedom of all tables together: the sum of m - 1 |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import comb, exp, expm1, lgamma, prod
from typing import Final, NamedTuple, Self

import numpy as np

from veilwood.arrays import ArrayLike, Floats, Ints
from veilwood.errors import MechanismError, PlanError
from veilwood.privacy import entropy, samplers
from veilwood.privacy.loss import format_number
from veilwood.privacy.noise import LaplaceMechanism, require_integers
from veilwood.safe_io import parse_fraction

MAX_TABLE_CELLS: Final = 48  # of one table: larger tables gain little from joint noise
MAX_JOINT_CELLS: Final = 256  # of all tables together: the number of boxes of the sampler grows with their square

_HALF_NODES, _QUADRATURE_WEIGHTS = (ends / 2 for ends in np.polynomial.legendre.leggauss(40))
QUADRATURE_NODES: Final[Floats] = _HALF_NODES + 0.5  # of a Gauss-Legendre quadrature from 0 to 1


class Moments(NamedTuple):
    """Variances of joint noise.

    Attributes
    ----------
    within : dict
        Variance of a cell by the size of its table, as if cells were independent.
    total : float
        Variance of the sum of a table's cells, which all tables share.
    """

    within: dict[int, float]
    total: float


def noise_moments(scale: Fraction, sizes: tuple[int, ...]) -> Moments:
    """Return the variances of joint noise of scale ``scale`` on tables with these sizes."""
    within, total = unit_scale_moments(tuple(sorted(Counter(sizes).items())))
    squared = float(scale) ** 2
    return Moments({m: _discrete_variance(squared * variance) for m, variance in within}, squared * total)


@lru_cache(maxsize=4096)
def unit_scale_moments(size_counts: tuple[tuple[int, int], ...]) -> tuple[tuple[tuple[int, float], ...], float]:
    """Return the variance within tables by table size, and the variance of the total, at scale 1 on real numbers.

    ``size_counts`` holds pairs of a size and the number of tables of that size.

    >>> unit_scale_moments(((4, 1),))[0][0][1].__round__(6)  # a single table: Laplace noise
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
    within = tuple(
        (m, squared * float(density @ (_vector_moments(m)[1] - QUADRATURE_NODES**2 / m)) / max(m - 1, 1))
        for m, _ in size_counts
    )
    return within, total


@lru_cache(maxsize=64)
def _vector_moments(m: int) -> tuple[Floats, Floats]:
    """Return the log-volume of vectors and the mean of their squared norm, for t = z and U = (1 - z) / 2.

    The i negative entries with sum -v are v times a uniform point of a simplex; the others, t + v times one.
    """
    t, bound = QUADRATURE_NODES, (1 - QUADRATURE_NODES) / 2
    volume = np.exp((m - 1) * np.log(t) - lgamma(m))
    squares = volume * 2 * t**2 / (m + 1)
    v = bound[:, None] * QUADRATURE_NODES
    rest = t[:, None] + v
    for i in range(1, m):
        log_ways = lgamma(m + 1) - lgamma(i + 1) - lgamma(m - i + 1) - lgamma(i) - lgamma(m - i)
        part = (
            bound[:, None] * _QUADRATURE_WEIGHTS * np.exp(log_ways + (i - 1) * np.log(v) + (m - i - 1) * np.log(rest))
        )
        volume = volume + part.sum(axis=1)
        squares = squares + (part * (2 * v**2 / (i + 1) + 2 * rest**2 / (m - i + 1))).sum(axis=1)
    return np.log(volume), squares / volume


def _discrete_variance(variance: float) -> float:
    """Return the variance of the discrete Laplace distribution whose continuous analogue has ``variance``."""
    if variance <= 0:
        return 0.0
    inverse = (2 / variance) ** 0.5
    return 2 * exp(-inverse) / expm1(-inverse) ** 2


MAX_JOINT_SCALE: Final = 1 << 40  # box weights are proved accurate up to this scale (proofs/joint-laplace.md)
# Box weights are integer multiples of 2**-WEIGHT_BITS times the largest weight, rounded up. The floating-point error is
# below 2**-30 of a weight (proofs/joint-laplace.md); WEIGHT_SLACK covers it.
WEIGHT_BITS: Final = 40
WEIGHT_SLACK: Final = 1 + 2.0**-20


@dataclass(frozen=True, init=False)
class JointLaplace(LaplaceMechanism, kind="JointLaplace"):
    """Noise on tables with the same number of rows: P(x) proportional to exp(-norm(x)/scale), norm the largest L1 norm.

    Columns (classes) of the tables get independent noise, each of this distribution.

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
    >>> from veilwood.privacy.noise import DiscreteLaplace
    >>> JointLaplace(10, (2,) * 20).variances[0] < DiscreteLaplace(20 * 10).variance / 9
    True
    """

    sizes: tuple[int, ...]
    verb = "noisy"
    max_scale = MAX_JOINT_SCALE

    def __init__(self, scale: Fraction | int, sizes: Sequence[int]) -> None:
        super().__init__(scale)
        object.__setattr__(self, "sizes", tuple(sizes))
        fits = all(type(m) is int and 1 <= m <= MAX_TABLE_CELLS for m in self.sizes)
        if not fits or not 0 < sum(self.sizes) <= MAX_JOINT_CELLS:
            raise MechanismError(
                f"sizes must be from 1 to {MAX_TABLE_CELLS} cells, and at most {MAX_JOINT_CELLS} together. "
                "Hint: divide the tables into several groups, or give large ones separate noise."
            )

    @property
    def text(self) -> str:
        """Name and scale."""
        return f"joint Laplace, scale {format_number(float(self.scale))}"

    def to_dict(self) -> dict[str, str]:
        """Return the kind and the exact parameters as strings; sizes are separated by spaces."""
        return super().to_dict() | {"sizes": " ".join(map(str, self.sizes))}

    @classmethod
    def _from_texts(cls, texts: dict[str, str]) -> Self:
        sizes_text = texts["sizes"]
        sizes = sizes_text.split() if isinstance(sizes_text, str) and len(sizes_text) <= 4 * MAX_JOINT_CELLS else None
        if sizes is None or not all(size.isdecimal() and size.isascii() for size in sizes):
            raise PlanError("the sizes of tables must be integers separated by spaces.")
        others = {key: parse_fraction(text, key) for key, text in texts.items() if key != "sizes"}
        return cls(**others, sizes=tuple(map(int, sizes)))

    @property
    def moments(self) -> Moments:
        """Variances of the noise within each table, and of the total that all tables share."""
        return noise_moments(self.scale, self.sizes)

    @property
    def variances(self) -> tuple[float, ...]:
        """Variance per cell of each table, as if cells were independent: half the variance of their differences."""
        within = self.moments.within
        return tuple(within[m] for m in self.sizes)

    @property
    def variance(self) -> float:
        """Mean of ``variances`` over all cells."""
        return float(np.average(self.variances, weights=self.sizes))

    def table_sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of cells of each table."""
        return self.sizes

    @property
    def table_variances(self) -> tuple[float, ...]:
        """Variance of the noise on a cell of each table."""
        return self.variances

    def total_variance(self, n_cells: int) -> float:
        """Return the variance of the noise on the sum of a table's cells, which all tables share."""
        return self.moments.total

    def norm(self, x: ArrayLike) -> int:
        """Return the norm of changes by cell and class: per class, the largest L1 norm of any table, summed."""
        return int(self.class_norms(x).sum())

    def class_norms(self, x: ArrayLike) -> Ints:
        """Return the largest L1 norm among the tables, for each class. Raise MechanismError if no rows can cause it."""
        change = require_integers("x", x)
        self._check_totals(change)
        return np.asarray(np.add.reduceat(np.abs(change), self._table_starts, axis=0).max(axis=0), np.int64)

    def perturb(self, counts: ArrayLike) -> Ints:
        """Return the counts with noise. Tables are stacked, with one column per class."""
        exact = require_integers("counts", counts)
        if exact.ndim != 2 or len(exact) != sum(self.sizes):
            raise MechanismError(f"counts must have {sum(self.sizes)} rows, one per cell, and one column per class.")
        self._check_totals(exact)
        return exact + self.sample(exact.shape[1])

    def _check_totals(self, counts: Ints) -> None:
        totals = np.add.reduceat(counts, self._table_starts, axis=0)
        if (totals != totals[0]).any():
            raise MechanismError("all tables must have the same total: they count the same rows.")

    def sample(self, n: int) -> Ints:
        """Return `n` independent draws, one per column."""
        return np.array([self._draw_column() for _ in range(n)], np.int64).reshape(n, sum(self.sizes)).T

    @property
    def _table_starts(self) -> Ints:
        return np.cumsum((0, *self.sizes[:-1]))

    def _draw_column(self) -> Ints:
        boxes = _cached_sampler(self.scale, tuple(sorted(Counter(self.sizes).items())))
        bound, total = boxes.draw_bound_total()
        weights = {m: _vector_counts(m, bound, total) for m in set(self.sizes)}
        column = np.concatenate([_draw_vector(m, bound, total, weights[m]) for m in self.sizes])
        # The boxes cover t >= 0; a fair coin draws the sign. t = 0 has one sign only, and so half the weight in a box.
        return -column if total and entropy.draw_below(2) else column


# -- bound and sum -------------------------------------------------------------------------------------------------


def count_vectors(m: int, bound: int, total: int) -> int:
    """Return the number of integer vectors of length m with this total and bounded negative entries.

    ``total`` is not negative; the absolute sum of the negative entries is at most ``bound``.

    >>> count_vectors(2, 3, 1)  # (4, -3), (3, -2), ..., (-3, 4)
    8
    """
    return sum(_vector_counts(m, bound, total))


def _vector_counts(m: int, bound: int, total: int) -> list[int]:
    """Return the terms of ``count_vectors`` by h, each a product of two binomials (proofs/joint-laplace.md)."""
    return [comb(m + h - 1, h) * comb(bound, h) * comb(total + m - 1, m - 1 - h) for h in range(m)]


class _SegmentedAxis(NamedTuple):
    """Partition of one axis: ``n`` equal segments from 0 on, then tail pieces of halving weight."""

    n: int
    length: int
    tail: int  # length of a piece of the tail, in segments

    @property
    def segment_ends(self) -> Ints:
        """Last point of each segment, and of the first piece of the tail."""
        inside = np.arange(1, self.n + 1) * self.length - 1
        return np.append(inside, (self.n + self.tail) * self.length - 1)

    @property
    def segment_starts(self) -> Ints:
        """First point of each segment, and of the tail."""
        return np.arange(self.n + 1) * self.length

    def draw_point(self, segment: int) -> tuple[int, int]:
        """Draw a point of a segment, and return it with the number of times that its weight is halved."""
        if segment < self.n:
            return segment * self.length + entropy.draw_below(self.length), 0
        halved = 0
        while entropy.draw_below(2):
            halved += 1
        piece = self.tail * self.length
        return self.n * self.length + halved * piece + entropy.draw_below(piece), halved


class _BoxSampler:
    """Rejection sampler of U and t, with weight exp(-s(t + 2U)) times the number of vectors. Proposals are boxes.

    In a box, the weight is at most exp(-s(t + 2U)) at its first corner times the number of vectors at its last corner.
    """

    def __init__(self, scale: Fraction, size_counts: tuple[tuple[int, int], ...]) -> None:
        self._scale, self._counted = scale, size_counts
        free = sum((m - 1) * times for m, times in size_counts)
        largest = max(m for m, _ in size_counts)
        # Beyond these ends each further piece at least halves the weight (proofs/joint-laplace.md).
        self._bounds = _segment_axis(
            scale, Fraction(1, 4), largest + (Fraction(3, 4) * free + 3) * scale, Fraction(21, 20)
        )
        self._totals = _segment_axis(scale, Fraction(1, 2), (Fraction(3, 2) * free + 6) * scale, Fraction(21, 10))
        self._unit = max(int(scale), 1).bit_length()  # counts in units of 2**unit stay within floating point
        logs = self._log_weights()
        self._top = int(np.ceil(logs.max() / np.log(2)))
        weights = np.floor(np.exp2(logs / np.log(2) - self._top + WEIGHT_BITS) * WEIGHT_SLACK).astype(np.int64) + 1
        weights[-1] *= 2 * self._bounds.tail  # pieces of the tail halve: together they weigh as 2 * tail segments
        weights[:, -1] *= 2 * self._totals.tail
        self._weights, self._shift = weights, WEIGHT_BITS - self._top - self._unit * free
        assert float(weights.sum(dtype=np.float64)) < 2.0**62, "the sum of all weights fits into 64 bits"
        self._reached = np.cumsum(weights.ravel())

    def _log_weights(self) -> Floats:
        """Return the logarithm of the largest weight in each box, with numbers of vectors in units of 2**(unit d)."""
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
            if total == 0 and entropy.draw_below(2):
                continue  # t and -t coincide at 0
            if self._accepts_point(bound, total, self._proposal_weight(row, column), halved + again):
                return bound, total

    def _proposal_weight(self, row: int, column: int) -> int:
        """Return the proposal weight of each point of a box; in a tail, that of its first piece."""
        weight = int(self._weights[row, column])
        weight //= 2 * self._bounds.tail if row == self._bounds.n else 1
        return weight // (2 * self._totals.tail if column == self._totals.n else 1)

    def _accepts_point(self, bound: int, total: int, weight: int, halved: int) -> bool:
        """Return True with probability exactly (weight of (U, t)) / (weight of its box)."""
        exponent = (total + 2 * bound) / self._scale
        vectors = prod(count_vectors(m, bound, total) ** times for m, times in self._counted)
        # Accept where V < exp(-exponent) * vectors * 2**shift / weight, V a uniform number.
        shift = self._shift + halved
        word_bits = bits = 4 * entropy.digit_bits()
        prefix = int(entropy.random_integers(1, bits)[0])
        factor_bits = max(0, vectors.bit_length() + shift)  # size of the factor that multiplies an error of exp
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


@lru_cache(maxsize=4)  # each sampler takes up to 25 MB
def _cached_sampler(scale: Fraction, size_counts: tuple[tuple[int, int], ...]) -> _BoxSampler:
    """Return the sampler for a scale and for pairs of a table size and the number of tables with that size."""
    return _BoxSampler(scale, size_counts)


def _segment_axis(scale: Fraction, part: Fraction, end: Fraction, tail: Fraction) -> _SegmentedAxis:
    length = max(1, int(part * scale))
    return _SegmentedAxis(int(end / length) + 1, length, int(tail * scale / length) + 1)


# -- vectors -------------------------------------------------------------------------------------------------------


def _draw_vector(m: int, bound: int, total: int, weights: list[int]) -> Ints:
    """Draw a vector uniformly from the vectors that ``count_vectors`` counts.

    Stars and bars: i negative entries with absolute sum v are i - 1 cuts of v. The other entries, m - i parts of
    total + v that may be 0, are m - i - 1 bars among total + v + m - i - 1 positions, l of them among the first v - i.
    These l bars, the cuts and v itself, i + l numbers together, are any subset of 1..bound.
    """
    h = _draw_weighted(weights)
    if h == 0:  # no entry is negative
        return np.array(_gap_lengths(_draw_subset(total + m - 1, m - 1), total + m), np.int64)
    i = 1 + _draw_weighted([comb(m, i) * comb(h - 1, h - i) for i in range(1, h + 1)])
    *rest, v = _draw_subset(bound, h)
    cut = set(_draw_subset(h - 1, i - 1))
    cuts = [place for number, place in enumerate(rest, 1) if number in cut]
    others = [place for number, place in enumerate(rest, 1) if number not in cut]
    below = [place - sum(each < place for each in cuts) for place in others]  # numbered without the cuts
    above = [v - i + place for place in _draw_subset(total + m - 1, m - 1 - h)]
    positive = _gap_lengths([*below, *above], total + v + m - i)
    negative = [after - before for before, after in zip([0, *cuts], [*cuts, v], strict=True)]
    entries = np.empty(m, np.int64)
    chosen = np.zeros(m, bool)
    chosen[np.array(_draw_subset(m, i)) - 1] = True
    entries[chosen], entries[~chosen] = np.negative(negative), positive
    return entries


def _gap_lengths(bars: list[int], end: int) -> list[int]:
    """Return the number of positions between successive bars, from position 1 to ``end`` - 1."""
    return [after - before - 1 for before, after in zip([0, *bars], [*bars, end], strict=True)]


def _draw_subset(n: int, k: int) -> list[int]:
    """Draw k distinct integers from 1 to n, in ascending order (Floyd's algorithm)."""
    drawn: set[int] = set()
    for last in range(n - k + 1, n + 1):
        number = 1 + entropy.draw_below(last)
        drawn.add(last if number in drawn else number)
    return sorted(drawn)


def _draw_weighted(weights: Sequence[int]) -> int:
    """Draw an index with probability proportional to its weight."""
    reached = list(accumulate(weights))
    at = entropy.draw_below(reached[-1])
    return next(place for place, end in enumerate(reached) if at < end)
