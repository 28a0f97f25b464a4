# SPDX-License-Identifier: Apache-2.0
"""The mechanisms that make a value private: exact integer noise and exact private selection, with their cost.

No sensitivity of a query is derived here, nothing is charged here, and the bits come from entropy.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from math import exp, expm1, pi, prod, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veilwood.bounded import check_digits, shown
from veilwood.errors import VeilwoodError
from veilwood.privacy import samplers

__all__ = [
    "DiscreteGaussian",
    "DiscreteLaplace",
    "ExponentialMechanism",
    "Geometric",
    "NoisyMax",
    "PermuteAndFlip",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Shape = int | tuple[int, ...]
Backend = Literal["veilwood", "opendp"]

# A scale of 2**50 with values up to 2**61 leaves int64 with probability below exp(-4096): such sums are safe.
LARGEST_SCALE = 2**50
LARGEST_SIGMA_SQUARED = 2**80
LARGEST_VALUE = 2**61


class _AdditiveNoise(ABC):
    """Noise that is added to integers."""

    @abstractmethod
    def sample(self, shape: Shape) -> Ints:
        """Return independent draws."""

    def perturb(self, counts: ArrayLike) -> Ints:
        """Return integer `counts` of any shape with independent noise on every entry, zeros included."""
        exact = _integers("counts", counts)
        return exact + self.sample(exact.shape)


@dataclass(frozen=True, init=False)
class Geometric:
    """One-sided geometric noise: P(z) = (1 - a) a^z for z = 0, 1, 2, ... with a = exp(-1/scale).

    The selections below draw this law by ``samplers.geometric``; added to a count it gives no guarantee by itself.

    Parameters
    ----------
    scale
        Positive integer or ``Fraction``, at most 2**50.

    Examples
    --------
    >>> from veilwood.privacy.noise import Geometric
    >>> Geometric(2).sample((2, 3)).shape
    (2, 3)
    """

    scale: Fraction

    def __init__(self, scale: Fraction | int) -> None:
        object.__setattr__(self, "scale", _positive("scale", scale, LARGEST_SCALE))

    def sample(self, shape: Shape) -> Ints:
        """Return independent draws of the given shape."""
        return samplers.geometric(self.scale, _size(shape)).reshape(shape)

    def pmf(self, k: ArrayLike) -> Floats:
        """Return the probability of each integer in `k`."""
        at = np.asarray(k)
        return np.where(at >= 0, -expm1(-1 / self.scale) * np.exp(-np.maximum(at, 0) / float(self.scale)), 0.0)

    @property
    def variance(self) -> float:
        """Exact variance, a / (1 - a)^2."""
        return exp(-1 / self.scale) / expm1(-1 / self.scale) ** 2


@dataclass(frozen=True, init=False)
class DiscreteLaplace(_AdditiveNoise):
    """Discrete Laplace noise: P(x) proportional to exp(-abs(x)/scale) on the integers.

    Drawn exactly, as the difference of two geometrics (Ghosh, Roughgarden and Sundararajan 2009).

    Parameters
    ----------
    scale
        Positive integer or ``Fraction``, at most 2**50. For epsilon at L1 sensitivity s it is s/epsilon.
    backend
        ``"veilwood"`` for the built-in sampler, ``"opendp"`` for OpenDP's. OpenDP takes a floating-point scale:
        it is rounded up, so that the noise is never lower than asked for.

    Notes
    -----
    Guarantee

    Neighbours: integer vectors that differ by at most s in L1 norm.
    Bound: pure differential privacy with epsilon = s/scale, assuming uniform bits from the operating system.
    Proof: proofs/discrete-laplace.md
    Test: tests/privacy/test_noise.py::test_laplace_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from fractions import Fraction
    >>> from veilwood.privacy.noise import DiscreteLaplace
    >>> noise = DiscreteLaplace(Fraction(3, 2))
    >>> noise.epsilon(l1_sensitivity=1)
    Fraction(2, 3)
    >>> noise.perturb([10, 0, 7]).dtype
    dtype('int64')
    >>> round(noise.variance, 4)
    4.337
    """

    scale: Fraction
    backend: Backend

    def __init__(self, scale: Fraction | int, backend: Backend = "veilwood") -> None:
        object.__setattr__(self, "scale", _positive("scale", scale, LARGEST_SCALE))
        object.__setattr__(self, "backend", _known(backend))

    def sample(self, shape: Shape) -> Ints:
        """Return independent draws of the given shape."""
        n = _size(shape)
        if self.backend == "opendp":
            return samplers.opendp_laplace(self.scale, n).reshape(shape)
        return (samplers.geometric(self.scale, n) - samplers.geometric(self.scale, n)).reshape(shape)

    def pmf(self, k: ArrayLike) -> Floats:
        """Return the probability of each integer in `k`."""
        # (1 - q) / (1 + q) with q = exp(-1/scale), without cancellation.
        peak = float(np.tanh(1 / (2 * float(self.scale))))
        return np.asarray(peak * np.exp(-np.abs(np.asarray(k)) / float(self.scale)))

    @property
    def variance(self) -> float:
        """Exact variance 2q / (1 - q)^2, with q = exp(-1/scale): a little below 2 scale^2."""
        return 2 * exp(-1 / self.scale) / expm1(-1 / self.scale) ** 2

    def epsilon(self, l1_sensitivity: Fraction | int) -> Fraction:
        """Return the epsilon that adding this noise costs at the given L1 sensitivity."""
        return _not_negative("l1_sensitivity", l1_sensitivity) / self.scale


@dataclass(frozen=True, init=False)
class DiscreteGaussian(_AdditiveNoise):
    """Discrete Gaussian noise: P(x) proportional to exp(-x^2 / (2 sigma_squared)) on the integers.

    Parameters
    ----------
    sigma_squared
        Positive integer or ``Fraction``, at most 2**80. For rho at squared L2 sensitivity s it is s/(2 rho).
    backend
        ``"veilwood"`` for the built-in sampler, ``"opendp"`` for OpenDP's. OpenDP takes a floating-point scale:
        it is rounded up, so that the noise is never lower than asked for.

    Notes
    -----
    Guarantee

    Neighbours: integer vectors that differ by at most sqrt(s) in L2 norm.
    Bound: zero-concentrated differential privacy with rho = s/(2 sigma_squared), assuming uniform bits from the
    operating system.
    Proof: proofs/discrete-gaussian.md
    Test: tests/privacy/test_noise.py::test_gaussian_renyi_divergence_is_below_the_bound

    Examples
    --------
    >>> from veilwood.privacy.noise import DiscreteGaussian
    >>> noise = DiscreteGaussian(8)
    >>> noise.rho(squared_l2_sensitivity=1)
    Fraction(1, 16)
    >>> round(noise.variance, 6)
    8.0
    """

    sigma_squared: Fraction
    backend: Backend

    def __init__(self, sigma_squared: Fraction | int, backend: Backend = "veilwood") -> None:
        checked = _positive("sigma_squared", sigma_squared, LARGEST_SIGMA_SQUARED)
        object.__setattr__(self, "sigma_squared", checked)
        object.__setattr__(self, "backend", _known(backend))

    def sample(self, shape: Shape) -> Ints:
        """Return independent draws of the given shape."""
        n = _size(shape)
        if self.backend == "opendp":
            return samplers.opendp_gaussian(self.sigma_squared, n).reshape(shape)
        return samplers.gaussian(self.sigma_squared, n).reshape(shape)

    def pmf(self, k: ArrayLike) -> Floats:
        """Return the probability of each integer in `k`."""
        normaliser, _ = self._moments()
        return np.asarray(
            np.exp(-(np.asarray(k, dtype=np.float64) ** 2) / (2 * float(self.sigma_squared))) / normaliser
        )

    @property
    def variance(self) -> float:
        """Exact variance: below sigma_squared, and equal to it within rounding once sigma exceeds 2."""
        return self._moments()[1]

    def rho(self, squared_l2_sensitivity: Fraction | int) -> Fraction:
        """Return the zCDP rho that adding this noise costs at the given squared L2 sensitivity."""
        return _not_negative("squared_l2_sensitivity", squared_l2_sensitivity) / (2 * self.sigma_squared)

    def _moments(self) -> tuple[float, float]:
        """Return the normaliser and the variance."""
        if self.sigma_squared >= 4:
            # Poisson summation: both differ from the continuous ones by a factor 1 + O(exp(-2 pi^2 sigma^2)).
            return sqrt(2 * pi * self.sigma_squared), float(self.sigma_squared)
        x = np.arange(-80, 81)
        weights = np.exp(-(x**2) / (2 * float(self.sigma_squared)))
        normaliser = float(weights.sum())
        return normaliser, float((x**2 * weights).sum()) / normaliser


@dataclass(frozen=True, init=False)
class _Selection(ABC):
    """Choice of one candidate by integer scores, over the last axis of an array."""

    epsilon: Fraction
    score_range: int

    def __init__(self, epsilon: Fraction | int, score_range: int) -> None:
        object.__setattr__(self, "epsilon", _positive("epsilon", epsilon, LARGEST_SCALE))
        if _rational("score_range", score_range).denominator != 1 or score_range <= 0:
            raise VeilwoodError(
                f"score_range must be a positive integer, got {score_range}. Hint: it is the most that the "
                "change of one score can exceed the change of another between neighbours."
            )
        object.__setattr__(self, "score_range", int(score_range))
        _positive("score_range / epsilon", self._scale, LARGEST_SCALE)

    @property
    def _scale(self) -> Fraction:
        return Fraction(self.score_range) / self.epsilon

    @abstractmethod
    def _choose(self, gaps: Ints, admissible: Bools) -> Ints:
        """Return the chosen index in each row, given how far each score is below the best."""

    def _law(self, accept: Floats) -> Floats:
        """Return the probabilities, given exp(-epsilon * gap / score_range) of the admissible candidates."""
        return _first_flip(accept)

    def select(self, scores: ArrayLike, admissible: ArrayLike | None = None) -> Ints:
        """Return the index chosen along the last axis, one for each row of scores.

        Parameters
        ----------
        scores
            Integers, shape (..., candidates); a larger score is better.
        admissible
            Booleans that broadcast to the shape of `scores`: candidates that may be chosen. Public: it must not
            depend on the data.
        """
        gaps, mask = _gaps(scores, admissible)
        rows = gaps.reshape(-1, gaps.shape[-1])
        return self._choose(rows, mask.reshape(rows.shape)).reshape(gaps.shape[:-1])

    def law(self, scores: ArrayLike, admissible: ArrayLike | None = None) -> Floats:
        """Return the exact probability of each candidate, for one vector of scores."""
        gaps, mask = _gaps(scores, admissible)
        if gaps.ndim != 1:
            raise VeilwoodError(f"scores must be one vector, got shape {gaps.shape}. Hint: call law row by row.")
        probabilities = np.zeros(gaps.shape)
        probabilities[mask] = self._law(np.exp(-gaps[mask] / float(self._scale)))
        return probabilities


class NoisyMax(_Selection):
    """Private choice: add geometric noise of scale score_range/epsilon to every score and take the largest.

    Ties are broken uniformly at random, which makes the law that of `PermuteAndFlip` (proofs/noisy-max.md).

    Parameters
    ----------
    epsilon
        Positive integer or ``Fraction``: what one choice costs.
    score_range
        The largest amount by which the change of one score can exceed the change of another when one neighbour
        replaces the other. For scores that one added record can only raise, by at most 1: 1 under add-remove,
        2 under replace-one.

    Notes
    -----
    Guarantee

    Neighbours: score vectors whose difference d has max(d) - min(d) <= score_range.
    Bound: pure differential privacy with the given epsilon, each row of scores by itself.
    Proof: proofs/noisy-max.md
    Test: tests/privacy/test_noise.py::test_selection_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from veilwood.privacy.noise import NoisyMax
    >>> NoisyMax(epsilon=1, score_range=1).law([3, 3]).tolist()
    [0.5, 0.5]
    >>> NoisyMax(epsilon=1, score_range=1).select([[0, 900], [900, 0]]).tolist()
    [1, 0]
    """

    def _choose(self, gaps: Ints, admissible: Bools) -> Ints:
        noisy = np.where(admissible, samplers.geometric(self._scale, gaps.size).reshape(gaps.shape) - gaps, _LOWEST)
        return _one_of(noisy == noisy.max(axis=-1, keepdims=True))


class PermuteAndFlip(_Selection):
    """Private choice: go through the candidates in random order, keep each with probability exp(-epsilon gap / r).

    The first one kept is the choice. Since coins and order are independent, that is a uniform one among those kept
    (McKenna and Sheldon 2020).

    Parameters
    ----------
    epsilon
        Positive integer or ``Fraction``: what one choice costs.
    score_range
        The r above: the largest amount by which the change of one score can exceed the change of another when
        one neighbour replaces the other.

    Notes
    -----
    Guarantee

    Neighbours: score vectors whose difference d has max(d) - min(d) <= score_range.
    Bound: pure differential privacy with the given epsilon, each row of scores by itself.
    Proof: proofs/permute-and-flip.md
    Test: tests/privacy/test_noise.py::test_selection_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from veilwood.privacy.noise import PermuteAndFlip
    >>> PermuteAndFlip(epsilon=1, score_range=1).law([3, 2]).round(4).tolist()
    [0.8161, 0.1839]
    """

    def _choose(self, gaps: Ints, admissible: Bools) -> Ints:
        # A geometric reaches the gap with probability exp(-gap/scale): an exact coin.
        return _one_of(admissible & (samplers.geometric(self._scale, gaps.size).reshape(gaps.shape) >= gaps))


class ExponentialMechanism(_Selection):
    """Private choice: each candidate with probability proportional to exp(epsilon score / score_range).

    Drawn exactly by rejection, so its running time, unlike that of the other two, depends on the scores: on
    average at most as many rounds as there are candidates. Prefer `PermuteAndFlip` under pure epsilon (it is
    never worse) and this one under zCDP.

    Parameters
    ----------
    epsilon
        Positive integer or ``Fraction``: what one choice costs.
    score_range
        The largest amount by which the change of one score can exceed the change of another when one neighbour
        replaces the other.

    Notes
    -----
    Guarantee

    Neighbours: score vectors whose difference d has max(d) - min(d) <= score_range.
    Bound: pure differential privacy with the given epsilon, and zero-concentrated with rho = epsilon^2/8, each row
    of scores by itself.
    Proof: proofs/exponential.md
    Test: tests/privacy/test_noise.py::test_selection_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from veilwood.privacy.noise import ExponentialMechanism
    >>> choice = ExponentialMechanism(epsilon=1, score_range=1)
    >>> choice.rho
    Fraction(1, 8)
    >>> choice.law([3, 2]).round(4).tolist()
    [0.7311, 0.2689]
    """

    @property
    def rho(self) -> Fraction:
        """The zCDP rho of one choice, by bounded range (Cesar and Rogers 2021)."""
        return self.epsilon**2 / 8

    def _choose(self, gaps: Ints, admissible: Bools) -> Ints:
        chosen = np.empty(len(gaps), dtype=np.int64)
        missing = np.arange(len(gaps))
        while missing.size:
            proposal = _one_of(admissible[missing])
            kept = samplers.geometric(self._scale, missing.size) >= gaps[missing, proposal]
            chosen[missing[kept]] = proposal[kept]
            missing = missing[~kept]
        return chosen

    def _law(self, accept: Floats) -> Floats:
        return np.asarray(accept / accept.sum())


_LOWEST = np.iinfo(np.int64).min


def _one_of(mask: Bools) -> Ints:
    """Return the index of a uniformly chosen true entry in each row; every row has one."""
    nth = samplers.uniform_below(mask.sum(axis=-1))
    return np.asarray((mask.cumsum(axis=-1) > nth[:, np.newaxis]).argmax(axis=-1))


def _first_flip(accept: Floats) -> Floats:
    """Return each candidate's probability to be the first kept, by its time of arrival t in a random order.

    p_i = accept_i * integral over t in [0, 1] of the product over j != i of (1 - accept_j t): a polynomial, which
    Gauss-Legendre quadrature integrates exactly, with no cancellation as all terms are positive.
    """
    nodes, weights = np.polynomial.legendre.leggauss(accept.size // 2 + 1)
    stays = 1 - accept * ((nodes + 1) / 2)[:, np.newaxis]  # by node and candidate
    others = np.array([np.delete(stays, i, axis=1).prod(axis=1) for i in range(accept.size)])
    return np.asarray(accept * (others @ (weights / 2)))


def _gaps(scores: ArrayLike, admissible: ArrayLike | None) -> tuple[Ints, Bools]:
    """Return how far each score is below the best admissible one (0 where not admissible), and the mask."""
    exact = _integers("scores", scores)
    if exact.ndim == 0 or exact.shape[-1] == 0:
        raise VeilwoodError(
            f"scores must have at least one candidate on the last axis, got shape {exact.shape}. "
            "Hint: the shape is (..., candidates)."
        )
    mask = np.ones(exact.shape, dtype=np.bool_)
    if admissible is not None:
        given = np.asarray(admissible)
        if given.dtype != np.bool_:
            raise VeilwoodError(f"admissible must be booleans, got {given.dtype}. Hint: pass `mask.astype(bool)`.")
        try:
            mask = np.broadcast_to(given, exact.shape)
        except ValueError:
            raise VeilwoodError(
                f"admissible has shape {given.shape}, scores have {exact.shape}. Hint: they must broadcast."
            ) from None
        if not mask.any(axis=-1).all():
            raise VeilwoodError("admissible leaves a row without candidates. Hint: allow at least one in each.")
    best = np.where(mask, exact, _LOWEST).max(axis=-1, keepdims=True)
    return np.where(mask, best - exact, 0), mask


def _integers(name: str, values: ArrayLike) -> Ints:
    """Return `values` as int64, or refuse: floating-point values would leak through their low-order bits."""
    array = np.asarray(values)
    if array.size == 0 and not isinstance(values, np.ndarray):
        array = array.astype(np.int64)  # numpy makes an empty list a float array
    if array.dtype.kind not in "iu":
        raise VeilwoodError(
            f"{name} must be integers, got {array.dtype}. Hint: count in whole units, or quantise each record first."
        )
    if array.size and (int(array.max()) > LARGEST_VALUE or int(array.min()) < -LARGEST_VALUE):
        raise VeilwoodError(f"{name} must lie within ±2**61, or sums could overflow. Hint: use a coarser unit.")
    return array.astype(np.int64)


def _rational(name: str, value: Fraction | int) -> Fraction:
    """Return `value` as a Fraction, refusing what is not exact."""
    if isinstance(value, bool) or not isinstance(value, int | Fraction | np.integer):
        raise VeilwoodError(
            f"{name} must be an integer or a Fraction, got {shown(value)}. Hint: write Fraction('0.1'), not 0.1."
        )
    return check_digits(Fraction(value) if isinstance(value, Fraction) else Fraction(int(value)), name)


def _positive(name: str, value: Fraction | int, largest: int) -> Fraction:
    """Return `value` as a Fraction, refusing what is not positive or too large."""
    exact = _rational(name, value)
    if not 0 < exact <= largest:
        limit = f"2**{largest.bit_length() - 1}"
        raise VeilwoodError(f"{name} must be above 0 and at most {limit}, got {shown(value)}. Hint: check its unit.")
    return exact


def _not_negative(name: str, value: Fraction | int) -> Fraction:
    """Return `value` as a Fraction, refusing negative ones."""
    exact = _rational(name, value)
    if exact < 0:
        raise VeilwoodError(f"{name} must not be negative, got {shown(value)}. Hint: a sensitivity is a distance.")
    return exact


def _size(shape: Shape) -> int:
    """Return how many draws fill `shape`."""
    return shape if isinstance(shape, int) else prod(shape)


def _known(backend: Backend) -> Backend:
    """Return the name of a sampler we have, or refuse."""
    if backend not in ("veilwood", "opendp"):
        raise VeilwoodError(f"backend must be 'veilwood' or 'opendp', got {shown(backend)}. Hint: leave it out.")
    return backend
