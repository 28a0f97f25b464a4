# SPDX-License-Identifier: Apache-2.0
"""Exact integer noise that makes a number private, with its cost. Private choices are in ``selection``.

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

from veilwood.bounded import check_digits
from veilwood.errors import MechanismError
from veilwood.privacy import samplers
from veilwood.wording import shown

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Shape = int | tuple[int, ...]
Backend = Literal["veilwood", "opendp"]

# A scale of 2**50 with values up to 2**61 leaves int64 with probability below exp(-4096): such sums are safe.
LARGEST_SCALE = 2**50
LARGEST_SIGMA_SQUARED = 2**80
_SHORT = 64  # bits, beyond which the digits of a number are counted
LARGEST_VALUE = 2**61  # of a number that gets noise: sums of a few cannot overflow


class _AdditiveNoise(ABC):
    """Noise that is added to integers."""

    def sample(self, shape: Shape) -> Ints:
        """Return independent draws of the given shape."""
        return self._draw(_size(shape)).reshape(shape)

    @abstractmethod
    def _draw(self, n: int) -> Ints:
        """Return `n` independent draws."""

    def perturb(self, counts: ArrayLike) -> Ints:
        """Return integer `counts` of any shape with independent noise on every entry, zeros included."""
        exact = integers("counts", counts)
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
        object.__setattr__(self, "scale", positive("scale", scale, LARGEST_SCALE))

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
        object.__setattr__(self, "scale", positive("scale", scale, LARGEST_SCALE))
        object.__setattr__(self, "backend", _known(backend))

    def _draw(self, n: int) -> Ints:
        return (samplers.opendp_laplace if self.backend == "opendp" else samplers.laplace)(self.scale, n)

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
        return not_negative("l1_sensitivity", l1_sensitivity) / self.scale


@dataclass(frozen=True, init=False)
class DiscreteGaussian(_AdditiveNoise):
    """Discrete Gaussian noise: P(x) proportional to exp(-x^2 / (2 sigma_squared)) on the integers.

    Parameters
    ----------
    sigma_squared
        Positive integer or ``Fraction``, at most 2**80. For rho at squared L2 sensitivity s it is s/(2 rho).
    backend
        As in ``DiscreteLaplace``.

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
        checked = positive("sigma_squared", sigma_squared, LARGEST_SIGMA_SQUARED)
        object.__setattr__(self, "sigma_squared", checked)
        object.__setattr__(self, "backend", _known(backend))

    def _draw(self, n: int) -> Ints:
        return (samplers.opendp_gaussian if self.backend == "opendp" else samplers.gaussian)(self.sigma_squared, n)

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
        return not_negative("squared_l2_sensitivity", squared_l2_sensitivity) / (2 * self.sigma_squared)

    def _moments(self) -> tuple[float, float]:
        """Return the normaliser and the variance."""
        if self.sigma_squared >= 4:
            # Poisson summation: both differ from the continuous ones by a factor 1 + O(exp(-2 pi^2 sigma^2)).
            return sqrt(2 * pi * self.sigma_squared), float(self.sigma_squared)
        x = np.arange(-80, 81)
        weights = np.exp(-(x**2) / (2 * float(self.sigma_squared)))
        normaliser = float(weights.sum())
        return normaliser, float((x**2 * weights).sum()) / normaliser


def _size(shape: Shape) -> int:
    """Return how many draws fill `shape`."""
    return shape if isinstance(shape, int) else prod(shape)


def _known(backend: Backend) -> Backend:
    """Return the name of a sampler we have, or refuse."""
    if backend not in ("veilwood", "opendp"):
        raise MechanismError(f"backend must be 'veilwood' or 'opendp', got {shown(backend)}. Hint: leave it out.")
    return backend


# -- what mechanisms take: whole numbers and exact ratios; anything else is refused ---------------------------------


def integers(name: str, values: ArrayLike) -> Ints:
    """Return `values` as int64, or refuse: floating-point values would leak through their low-order bits."""
    array = np.asarray(values)
    if array.size == 0 and not isinstance(values, np.ndarray):
        array = array.astype(np.int64)  # numpy makes an empty list a float array
    if array.dtype.kind not in "iu":
        raise MechanismError(
            f"{name} must be integers, got {array.dtype}. Hint: count in whole units, or quantise each record first."
        )
    if array.size and (int(array.max()) > LARGEST_VALUE or int(array.min()) < -LARGEST_VALUE):
        raise MechanismError(f"{name} must lie within ±2**61, or sums could overflow. Hint: use a coarser unit.")
    return array.astype(np.int64)


def fraction(name: str, value: Fraction | int) -> Fraction:
    """Return `value` as a Fraction, refusing what is not exact."""
    if isinstance(value, bool) or not isinstance(value, int | Fraction | np.integer):
        raise MechanismError(
            f"{name} must be an integer or a Fraction, got {shown(value)}. Hint: write Fraction('0.1'), not 0.1."
        )
    exact = Fraction(value) if isinstance(value, Fraction) else Fraction(int(value))
    short = max(exact.numerator.bit_length(), exact.denominator.bit_length()) <= _SHORT
    return exact if short else check_digits(exact, name)


def positive(name: str, value: Fraction | int, largest: int) -> Fraction:
    """Return `value` as a Fraction, refusing what is not positive or too large."""
    exact = fraction(name, value)
    if not 0 < exact <= largest:
        limit = f"2**{largest.bit_length() - 1}"
        raise MechanismError(f"{name} must be above 0 and at most {limit}, got {shown(value)}. Hint: check its unit.")
    return exact


def not_negative(name: str, value: Fraction | int) -> Fraction:
    """Return `value` as a Fraction, refusing negative ones."""
    exact = fraction(name, value)
    if exact < 0:
        raise MechanismError(f"{name} must not be negative, got {shown(value)}. Hint: a sensitivity is a distance.")
    return exact
