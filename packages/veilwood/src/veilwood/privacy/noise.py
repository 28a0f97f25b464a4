# SPDX-License-Identifier: Apache-2.0
"""Noise mechanisms on integers, drawn exactly: dense counts, sparse histograms and counts of unknown keys.

``Mechanism`` is the base class of everything that a planned step can apply; those that choose a candidate are in
``selection``, those that share noise between tables in ``joint_noise``. No sensitivity of a query is derived here,
nothing is charged here, and random bits come from ``entropy``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from math import ceil, exp, expm1, log, pi, prod, sqrt
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

import numpy as np

from veilwood.arrays import ArrayLike, Floats, Ints
from veilwood.errors import MechanismError, short_repr
from veilwood.privacy import samplers
from veilwood.privacy.loss import Loss, format_number, zcdp_epsilon, zcdp_rho
from veilwood.safe_io import check_digits, parse_fraction

Shape = int | tuple[int, ...]
Verb: TypeAlias = Literal["noisy", "sparse", "above_threshold", "select", "best"]
"""Which method of the door applies a mechanism: ``release_counts``, ``release_sparse``, ``release_above_threshold``,
``select`` or ``release_best_trial``."""

# A scale of 2**50 with values up to 2**61 leaves int64 with probability below exp(-4096): such sums are safe.
MAX_SCALE = 2**50
MAX_SIGMA_SQUARED = MAX_SCALE**2
_SHORT_BITS = 64  # fractions of at most this many bits are short enough; the digits of longer ones are counted
MAX_VALUE = 2**61  # of a number that gets noise: sums of a few cannot overflow
_SAMPLER: Final = "veilwood"  # value of the key "backend" in plan files, from when noise had a second source


class Mechanism(ABC):
    """Base class of mechanisms: the interface that plans, the release door and files use.

    A subclass with the class keyword ``kind`` can be written to plan files and is read from them by this name.

    Attributes
    ----------
    kind : str
        Name of the mechanism in plan files.
    verb : str
        The method of the release door that applies the mechanism.

    Examples
    --------
    >>> noise = DiscreteLaplace(Fraction(3, 2))
    >>> noise.to_dict()
    {'kind': 'DiscreteLaplace', 'scale': '3/2', 'backend': 'veilwood'}
    >>> Mechanism.from_dict(noise.to_dict()) == noise
    True
    >>> noise.verb, noise.text, noise.cost(sensitivity=3).epsilon
    ('noisy', 'discrete Laplace, scale 1.5', Fraction(2, 1))
    """

    kind: ClassVar[str]
    verb: ClassVar[Verb]
    _by_kind: ClassVar[dict[str, type[Mechanism]]] = {}

    def __init_subclass__(cls, *, kind: str | None = None, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if kind is not None:
            cls.kind = kind
            cls._by_kind[kind] = cls

    @abstractmethod
    def cost(self, sensitivity: int, selections_per_row: int = 1) -> Loss | None:
        """Return the privacy loss at a sensitivity, or None if the sensitivity alone does not determine a loss.

        Parameters
        ----------
        sensitivity : int
            L1 sensitivity, squared L2 sensitivity for Gaussian noise, or the range of scores for a selection.
        selections_per_row : int
            The number of a step's selections that one row can influence; noise ignores it.
        """

    def costs_at_most(self, loss: Loss, sensitivity: int, selections_per_row: int = 1) -> bool:
        """Return True if the mechanism costs at most ``loss``.

        A loss has up to two bounds, epsilon and rho, and plans may add up either, so both must hold.
        """
        cost = self.cost(sensitivity, selections_per_row)
        if cost is None or cost.rho is None:
            return False
        if loss.rho is not None and cost.rho > loss.rho:
            return False
        if loss.delta > 0:  # a fraction of rho, whose epsilon is not its own (Loss.scaled)
            return loss.rho is not None
        return cost.epsilon is not None and loss.epsilon is not None and cost.epsilon <= loss.epsilon

    @property
    @abstractmethod
    def text(self) -> str:
        """Name and parameters for plans and certificates."""

    @property
    def variance(self) -> float:
        """Variance of the noise on one number; 0 for mechanisms that add none."""
        return 0.0

    def table_sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of cells of each table that a step of this shape releases. The default is one table."""
        return shape[:1]

    @property
    def table_variances(self) -> tuple[float, ...]:
        """Variance of the noise on a cell of each of these tables."""
        return (self.variance,)

    def total_variance(self, n_cells: int) -> float:
        """Return the variance of the noise on the sum of a table's cells."""
        return n_cells * self.variance

    def to_dict(self) -> dict[str, str]:
        """Return the kind and the exact parameters as strings."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return {"kind": self.kind} | {name: str(getattr(self, name)) for name in names}

    @staticmethod
    def from_dict(data: Mapping[str, str]) -> Mechanism:
        """Read what ``to_dict`` wrote. Raise an error if the mechanism is unknown."""
        kind = Mechanism._by_kind[data["kind"]]  # first: from a forged file, ``data`` may not be a dictionary
        return kind._from_texts({key: text for key, text in data.items() if key != "kind"})

    @classmethod
    def _from_texts(cls, texts: dict[str, str]) -> Self:
        return cls(**{key: parse_fraction(text, key) for key, text in texts.items()})


class _AdditiveNoise(Mechanism):
    """Base class of independent noise that is added to integers."""

    verb = "noisy"

    def sample(self, shape: Shape) -> Ints:
        """Return independent draws of the given shape."""
        return self._draw_noise(_count_draws(shape)).reshape(shape)

    @abstractmethod
    def _draw_noise(self, n: int) -> Ints:
        """Return `n` independent draws."""

    def perturb(self, counts: ArrayLike) -> Ints:
        """Return integer `counts` of any shape with independent noise on every entry, zeros included."""
        exact = require_integers("counts", counts)
        return exact + self.sample(exact.shape)

    def to_dict(self) -> dict[str, str]:
        """Return the kind and the exact parameters, as text."""
        return super().to_dict() | {"backend": _SAMPLER}

    @classmethod
    def _from_texts(cls, texts: dict[str, str]) -> Self:
        if texts.pop("backend", _SAMPLER) != _SAMPLER:
            raise MechanismError(f"backend must be {_SAMPLER!r}. Hint: make the plan again, with this version.")
        return super()._from_texts(texts)


@dataclass(frozen=True, init=False)
class Geometric:
    """One-sided geometric noise: P(z) = (1 - a) a^z for z = 0, 1, 2, ... with a = exp(-1/scale).

    ``NoisyMax`` and ``PermuteAndFlip`` draw from this distribution; added to a count it gives no guarantee by itself.

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
        object.__setattr__(self, "scale", require_positive("scale", scale, MAX_SCALE))

    def sample(self, shape: Shape) -> Ints:
        """Return independent draws of the given shape."""
        return samplers.geometric(self.scale, _count_draws(shape)).reshape(shape)

    def pmf(self, k: ArrayLike) -> Floats:
        """Return the probability of each integer in `k`."""
        at = np.asarray(k)
        return np.where(at >= 0, -expm1(-1 / self.scale) * np.exp(-np.maximum(at, 0) / float(self.scale)), 0.0)

    @property
    def variance(self) -> float:
        """Exact variance, a / (1 - a)^2."""
        return exp(-1 / self.scale) / expm1(-1 / self.scale) ** 2


@dataclass(frozen=True, init=False)
class LaplaceMechanism(Mechanism):
    """Base class of noise with a Laplace scale: at a sensitivity s it costs epsilon = s/scale, pure."""

    scale: Fraction
    max_scale: ClassVar[int] = MAX_SCALE

    def __init__(self, scale: Fraction | int) -> None:
        object.__setattr__(self, "scale", require_positive("scale", scale, self.max_scale))

    def epsilon(self, l1_sensitivity: Fraction | int) -> Fraction:
        """Return the epsilon that this noise costs at the given L1 sensitivity."""
        return require_non_negative("l1_sensitivity", l1_sensitivity) / self.scale

    def cost(self, sensitivity: int, selections_per_row: int = 1) -> Loss:
        """Return the loss at an L1 sensitivity."""
        return Loss.pure(self.epsilon(sensitivity))

    @property
    def variance(self) -> float:
        """Exact variance 2q / (1 - q)^2 of ``DiscreteLaplace``, with q = exp(-1/scale): a little below 2 scale^2."""
        return 2 * exp(-1 / self.scale) / expm1(-1 / self.scale) ** 2


class DiscreteLaplace(_AdditiveNoise, LaplaceMechanism, kind="DiscreteLaplace"):
    """Discrete Laplace noise: P(x) proportional to exp(-abs(x)/scale) on the integers.

    Drawn exactly, as the difference of two geometrics (Ghosh, Roughgarden and Sundararajan 2009).

    Parameters
    ----------
    scale
        Positive integer or ``Fraction``, at most 2**50. For epsilon at L1 sensitivity s it is s/epsilon.

    Notes
    -----
    Guarantee

    Neighbours: integer vectors that differ by at most s in L1 norm.
    Bound: pure differential privacy with epsilon = s/scale, assuming uniform bits from the operating system.
    Proof: proofs/discrete-laplace.md
    Test: packages/veilwood/tests/privacy/test_noise.py::test_laplace_loss_is_the_bound_and_attains_it

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

    def _draw_noise(self, n: int) -> Ints:
        return samplers.laplace(self.scale, n)

    @property
    def text(self) -> str:
        """Name and parameters."""
        return f"discrete Laplace, scale {format_number(float(self.scale))}"

    def pmf(self, k: ArrayLike) -> Floats:
        """Return the probability of each integer in `k`."""
        # (1 - q) / (1 + q) with q = exp(-1/scale), without cancellation.
        peak = float(np.tanh(1 / (2 * float(self.scale))))
        return np.asarray(peak * np.exp(-np.abs(np.asarray(k)) / float(self.scale)))


@dataclass(frozen=True, init=False)
class DiscreteGaussian(_AdditiveNoise, kind="DiscreteGaussian"):
    """Discrete Gaussian noise: P(x) proportional to exp(-x^2 / (2 sigma_squared)) on the integers.

    Parameters
    ----------
    sigma_squared
        Positive integer or ``Fraction``, at most 2**100. For rho at squared L2 sensitivity s it is s/(2 rho).

    Notes
    -----
    Guarantee

    Neighbours: integer vectors that differ by at most sqrt(s) in L2 norm.
    Bound: zero-concentrated differential privacy with rho = s/(2 sigma_squared), assuming uniform bits from the
    operating system.
    Proof: proofs/discrete-gaussian.md
    Test: packages/veilwood/tests/privacy/test_noise.py::test_gaussian_renyi_divergence_is_below_the_bound

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

    def __init__(self, sigma_squared: Fraction | int) -> None:
        checked = require_positive("sigma_squared", sigma_squared, MAX_SIGMA_SQUARED)
        object.__setattr__(self, "sigma_squared", checked)

    def _draw_noise(self, n: int) -> Ints:
        return samplers.gaussian(self.sigma_squared, n)

    def cost(self, sensitivity: int, selections_per_row: int = 1) -> Loss:
        """Return the zCDP loss rho = sensitivity / (2 sigma^2), where the sensitivity is a squared L2 norm."""
        return Loss(None, Fraction(0), self.rho(sensitivity))

    @property
    def text(self) -> str:
        """Name and parameters."""
        return f"discrete Gaussian, sigma {format_number(float(self.sigma_squared) ** 0.5)}"

    def pmf(self, k: ArrayLike) -> Floats:
        """Return the probability of each integer in `k`."""
        normaliser, _ = self._normaliser_and_variance()
        return np.asarray(
            np.exp(-(np.asarray(k, dtype=np.float64) ** 2) / (2 * float(self.sigma_squared))) / normaliser
        )

    @property
    def variance(self) -> float:
        """Exact variance: below sigma_squared, and equal to it within rounding once sigma exceeds 2."""
        return self._normaliser_and_variance()[1]

    def rho(self, squared_l2_sensitivity: Fraction | int) -> Fraction:
        """Return the zCDP rho that adding this noise costs at the given squared L2 sensitivity."""
        return require_non_negative("squared_l2_sensitivity", squared_l2_sensitivity) / (2 * self.sigma_squared)

    def _normaliser_and_variance(self) -> tuple[float, float]:
        if self.sigma_squared >= 4:
            # Poisson summation: both differ from the continuous ones by a factor 1 + O(exp(-2 pi^2 sigma^2)).
            return sqrt(2 * pi * self.sigma_squared), float(self.sigma_squared)
        x = np.arange(-80, 81)  # sigma is below 2: beyond 40 sigma every weight is 0 in floating point
        weights = np.exp(-(x**2) / (2 * float(self.sigma_squared)))
        normaliser = float(weights.sum())
        return normaliser, float((x**2 * weights).sum()) / normaliser


def _count_draws(shape: Shape) -> int:
    """Return the number of draws that fill `shape`."""
    return shape if isinstance(shape, int) else prod(shape)


# -- inputs of mechanisms: only integers and exact fractions are accepted -------------------------------------------


def require_integers(name: str, values: ArrayLike) -> Ints:
    """Return `values` as int64. Raise MechanismError for other types: low-order bits of floats would leak."""
    array = np.asarray(values)
    if array.size == 0 and not isinstance(values, np.ndarray):
        array = array.astype(np.int64)  # numpy makes an empty list a float array
    if array.dtype.kind not in "iu":
        raise MechanismError(
            f"{name} must be integers, got {array.dtype}. Hint: count in integer units, or quantise each row first."
        )
    if array.size and (int(array.max()) > MAX_VALUE or int(array.min()) < -MAX_VALUE):
        raise MechanismError(f"{name} must lie within ±2**61, or sums could overflow. Hint: use a coarser unit.")
    return array.astype(np.int64)


def require_fraction(name: str, value: Fraction | int) -> Fraction:
    """Return `value` as a Fraction. Raise MechanismError if it is not exact."""
    if isinstance(value, bool) or not isinstance(value, int | Fraction | np.integer):
        raise MechanismError(
            f"{name} must be an integer or a Fraction, got {short_repr(value)}. Hint: write Fraction('0.1'), not 0.1."
        )
    exact = Fraction(value) if isinstance(value, Fraction) else Fraction(int(value))
    short = max(exact.numerator.bit_length(), exact.denominator.bit_length()) <= _SHORT_BITS
    return exact if short else check_digits(exact, name)


def require_positive(name: str, value: Fraction | int, maximum: int) -> Fraction:
    """Return `value` as a Fraction. Raise MechanismError unless it is above 0 and at most `maximum`, a power of 2."""
    exact = require_fraction(name, value)
    if not 0 < exact <= maximum:
        limit = f"2**{maximum.bit_length() - 1}"
        raise MechanismError(
            f"{name} must be above 0 and at most {limit}, got {short_repr(value)}. Hint: check its unit."
        )
    return exact


def require_non_negative(name: str, value: Fraction | int) -> Fraction:
    """Return `value` as a Fraction. Raise MechanismError if it is negative."""
    exact = require_fraction(name, value)
    if exact < 0:
        raise MechanismError(
            f"{name} must not be negative, got {short_repr(value)}. Hint: check the sign; a sensitivity is a distance."
        )
    return exact


# -- sparse histograms ----------------------------------------------------------------------------------------------

MAX_SPARSE_CELLS: Final = 1 << 53
MAX_SPARSE_SCALE: Final = 4  # from 5 on, false positives would outnumber the released cells of one row
_GAP_BITS: Final = 128  # precision of exp(-1/scale), rounded up


class SparseLaplace(LaplaceMechanism, kind="SparseLaplace"):
    """Noise on a huge table of counts. Only cells with a positive noisy count are released.

    A cell with rows gets discrete Laplace noise. An empty cell is released with a small probability, as if it had at
    least one row. These false positives are drawn without visiting the other empty cells.

    Parameters
    ----------
    scale
        Positive integer or ``Fraction``, at most 4. For epsilon at L1 sensitivity s it is s/epsilon.

    Notes
    -----
    Guarantee

    Neighbours: tables of counts that differ by at most s in L1 norm.
    Bound: that of ``DiscreteLaplace``, epsilon = s/scale, though whether a cell is released depends on its count.
    Proof: proofs/sparse-counts.md
    Test: packages/veilwood/tests/privacy/test_sparse_noise.py::test_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from fractions import Fraction
    >>> noise = SparseLaplace(Fraction(1, 20))
    >>> noise.epsilon(l1_sensitivity=1)
    Fraction(20, 1)
    >>> noise.gap
    485165195
    >>> cells, counts = noise.perturb(np.array([3, 10**9]), np.array([5, 700]), 10**10)
    >>> bool(set([3, 10**9]) <= set(cells.tolist()))
    True
    """

    verb = "sparse"

    def __init__(self, scale: Fraction | int) -> None:
        super().__init__(scale)
        if self.scale > MAX_SPARSE_SCALE:
            raise MechanismError(
                f"scale must be at most {MAX_SPARSE_SCALE}, got {scale}: more noise would release most of the empty "
                "cells. Hint: list fewer cells and add noise to every one, or raise epsilon."
            )

    @property
    def gap(self) -> int:
        """Approximate number of empty cells per false positive: exp(1/scale), rounded down."""
        _, above = samplers.exp_minus(1 / self.scale, _GAP_BITS)
        return min((1 << _GAP_BITS) // above, MAX_SCALE)

    @property
    def text(self) -> str:
        """Name and parameters, with the probability of a false positive."""
        scale = format_number(float(self.scale))
        return f"sparse Laplace, scale {scale}, an empty cell turns up with probability {-expm1(-1 / self.gap):.3g}"

    def probabilities(self, count: int, max_count: int) -> Floats:
        """Return the probabilities of noisy counts 0 (not released) to ``max_count`` of a cell with ``count`` rows."""
        a = exp(-1 / self.scale)
        values = np.arange(1, max_count + 1)
        if count == 0:
            return np.append(exp(-1 / self.gap), -expm1(-1 / self.gap) * (1 - a) * a ** (values - 1.0))
        return np.append(a**count / (1 + a), (1 - a) / (1 + a) * a ** np.abs(values - float(count)))

    def perturb(self, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
        """Return the cells that are released, in ascending order, and their noisy counts, which are positive.

        Parameters
        ----------
        cells, counts
            Different cells from 0 to ``n_cells`` - 1 with their counts, at least 1 each; all others are empty.
        n_cells
            Public: the number of cells, at most 2**53.
        """
        if not 0 < n_cells <= MAX_SPARSE_CELLS:
            raise MechanismError(f"n_cells={n_cells} must be between 1 and 2**53. Hint: use coarser cells.")
        if cells.dtype != np.int64 or counts.dtype != np.int64 or cells.ndim != 1 or cells.shape != counts.shape:
            raise MechanismError("cells and counts must be int64 vectors of one length. Hint: count in integer units.")
        if (cells[:-1] > cells[1:]).any():
            order = np.argsort(cells)
            cells, counts = cells[order], counts[order]
        if len(cells) and (cells[0] < 0 or cells[-1] >= n_cells or (cells[:-1] == cells[1:]).any()):
            raise MechanismError(f"cells must be different numbers from 0 up to {n_cells - 1}.")
        if len(counts) and (counts.min() < 1 or counts.max() > MAX_VALUE):
            raise MechanismError("counts must be at least 1 and at most 2**61. Hint: leave empty cells out.")
        noisy = counts + samplers.laplace(self.scale, len(counts))
        drawn = self._draw_false_positives(n_cells)
        is_occupied = np.append(cells, -1)[np.searchsorted(cells, drawn)] == drawn  # cells ascend
        drawn = drawn[~is_occupied]
        drawn_counts = 1 + samplers.geometric(self.scale, len(drawn))
        is_released = noisy > 0
        cells, noisy = cells[is_released], noisy[is_released]
        places = np.searchsorted(cells, drawn)  # ascending again: the order must not reveal which were occupied
        return np.insert(cells, places, drawn), np.insert(noisy, places, drawn_counts)

    def _draw_false_positives(self, n_cells: int) -> Ints:
        """Draw each cell with probability 1 - exp(-1/g): the gaps between drawn ones are geometric of scale g."""
        gap, last, parts = Fraction(self.gap), -1, []
        max_gaps = max(1, (1 << 62) // (n_cells + 1))  # the sum of these, each cut at n_cells, cannot overflow
        while last < n_cells:
            expected = (n_cells - last) / float(gap)
            gaps = samplers.geometric(gap, min(max_gaps, int(expected + 4 * expected**0.5) + 8))
            places = last + np.cumsum(np.minimum(gaps, n_cells) + 1)
            parts.append(places[places < n_cells])
            last = int(places[-1])
        return np.concatenate(parts)


# -- counts of unknown keys -----------------------------------------------------------------------------------------


@dataclass(frozen=True, init=False)
class ThresholdedGaussian(Mechanism, kind="ThresholdedGaussian"):
    """Gaussian noise on the counts of unknown keys. Only keys with a noisy count above a threshold are released.

    Parameters
    ----------
    sigma_squared
        Parameter of the noise, as in ``DiscreteGaussian``.
    threshold
        A key is released if its noisy count is above the threshold.
    max_contribution
        The largest amount that one unit adds to the count of one key.
    max_changed_keys
        The largest number of keys that occur in only one of two neighbouring tables.

    Notes
    -----
    Guarantee

    Neighbours: tables of counts, by key, that differ by at most sqrt(s) in L2 norm; at most ``max_changed_keys`` keys
    occur in only one table, with counts of at most ``max_contribution``.
    Bound: (epsilon, delta)-differential privacy, epsilon being that of zCDP with rho = s/(2 sigma_squared) at a part of
    delta; the rest of delta bounds the probability that a key of one table only is released. Assumes uniform bits
    from the operating system.
    Proof: proofs/discover.md
    Test: packages/veilwood/tests/privacy/test_noise.py::test_the_exact_loss_is_within_the_promise

    Examples
    --------
    >>> loss = Loss(Fraction(1), Fraction(1, 10**6))
    >>> noise = ThresholdedGaussian.for_loss(loss, squared_l2=2, max_contribution=1, max_changed_keys=2)
    >>> noise.threshold
    37
    >>> places, counts = noise.perturb(np.array([1, 5000, 1]))
    >>> places
    array([1])
    """

    sigma_squared: Fraction
    threshold: int
    max_contribution: int
    max_changed_keys: int
    verb = "above_threshold"

    def __init__(
        self,
        sigma_squared: Fraction | int,
        threshold: Fraction | int,
        max_contribution: Fraction | int,
        max_changed_keys: Fraction | int,
    ) -> None:
        names = ("threshold", "max_contribution", "max_changed_keys")
        for name, number in zip(names, (threshold, max_contribution, max_changed_keys), strict=True):
            if int(number) != number or number < 1:
                raise MechanismError(f"{name}={number} must be an integer of at least 1.")
            object.__setattr__(self, name, int(number))
        object.__setattr__(self, "sigma_squared", DiscreteGaussian(Fraction(sigma_squared)).sigma_squared)
        if self.threshold < self.max_contribution:
            raise MechanismError(f"threshold={threshold} must be at least max_contribution, {max_contribution}.")

    @classmethod
    def for_loss(
        cls, loss: Loss, *, squared_l2: int, max_contribution: int, max_changed_keys: int
    ) -> ThresholdedGaussian:
        """Return the mechanism with the least noise and threshold for a loss, each with half of its delta."""
        if loss.epsilon is None or loss.delta <= 0:
            raise MechanismError("releasing unknown categories requires delta > 0. Hint: set delta, such as 1e-6.")
        half = loss.delta / 2
        sigma_squared = Fraction(squared_l2) / (2 * zcdp_rho(loss.epsilon, half))
        start = (
            max_contribution - 1 + ceil(sqrt(2 * float(sigma_squared) * max(log(max_changed_keys / float(half)), 0.0)))
        )
        threshold = max(start - 2, max_contribution)  # the estimate is within rounding; the loop makes sure
        while cls(sigma_squared, threshold, max_contribution, max_changed_keys).delta > half:
            threshold += 1
        return cls(sigma_squared, threshold, max_contribution, max_changed_keys)

    @property
    def delta(self) -> Fraction:
        """Exact upper bound of the probability that a key that occurs in only one table is released."""
        above = self.threshold + 1 - self.max_contribution
        _, tail = samplers.exp_minus(Fraction(above * above) / (2 * self.sigma_squared), _GAP_BITS)
        return Fraction(self.max_changed_keys * tail, 1 << _GAP_BITS)

    @property
    def variance(self) -> float:
        """Exact variance of the noise on one count."""
        return DiscreteGaussian(self.sigma_squared).variance

    def cost(self, sensitivity: int, selections_per_row: int = 1) -> None:
        """Return None: how the loss divides into epsilon and delta depends on what is promised (``satisfies``)."""
        return None

    def costs_at_most(self, loss: Loss, sensitivity: int, selections_per_row: int = 1) -> bool:
        """Return True if this noise, at a squared L2 sensitivity, costs at most ``loss``, which is not zCDP."""
        if loss.epsilon is None or loss.rho is not None or loss.delta <= self.delta:
            return False
        rho = DiscreteGaussian(self.sigma_squared).rho(sensitivity)
        return zcdp_epsilon(rho, loss.delta - self.delta) <= loss.epsilon

    @property
    def text(self) -> str:
        """Name and parameters."""
        return f"{DiscreteGaussian(self.sigma_squared).text}, what is above {self.threshold} comes out"

    def perturb(self, counts: Ints) -> tuple[Ints, Ints]:
        """Return the indices of the keys that are released, and their noisy counts; counts are at least 1."""
        if counts.ndim != 1 or counts.dtype != np.int64 or (len(counts) and counts.min() < 1):
            raise MechanismError("counts must be an int64 vector of at least 1 each. Hint: leave absent keys out.")
        noisy = DiscreteGaussian(self.sigma_squared).perturb(counts)
        places = np.flatnonzero(noisy > self.threshold).astype(np.int64)
        return places, noisy[places]
