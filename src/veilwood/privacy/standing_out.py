# SPDX-License-Identifier: Apache-2.0
"""Counts of things that are not known before, such as categories: noise on each, and only what stands out is released.

Which things there are is private too: one that a single unit has stays below the threshold but for a small probability,
which is a part of delta. After Korolova, Kenthapadi, Mishra and Ntoulas (2009), with Gaussian noise that is drawn
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log, sqrt

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import MechanismError
from veilwood.privacy import samplers
from veilwood.privacy.loss import Loss, zcdp_epsilon, zcdp_rho
from veilwood.privacy.noise import DiscreteGaussian

__all__ = ["StandingOut"]

Ints = NDArray[np.int64]

_BITS = 128


@dataclass(frozen=True, init=False)
class StandingOut:
    """Gaussian noise on the counts of unknown things, of which those above a threshold are released.

    Parameters
    ----------
    sigma_squared
        Of the noise, as in ``DiscreteGaussian``.
    threshold
        What is released has a noisy count above it.
    most
        How much one unit adds to the count of one thing, at most.
    things
        How many things two neighbouring tables can have that the other does not have, both together.

    Notes
    -----
    Guarantee

    Neighbours: tables of counts, by name, that differ by at most sqrt(s) in L2 norm; at most ``things`` names are in
    one table only, with counts of at most ``most``.
    Bound: (epsilon, delta)-differential privacy, epsilon being that of zCDP with rho = s/(2 sigma_squared) at a part of
    delta; the rest of delta bounds the probability that a thing of one table only is released. Assumes uniform bits
    from the operating system.
    Proof: proofs/discover.md
    Test: tests/privacy/test_standing_out.py::test_the_exact_loss_is_within_the_promise

    Examples
    --------
    >>> noise = StandingOut.for_loss(Loss(Fraction(1), Fraction(1, 10**6)), squared_l2=2, most=1, things=2)
    >>> noise.threshold
    37
    >>> places, counts = noise.perturb(np.array([1, 5000, 1]))
    >>> places
    array([1])
    """

    sigma_squared: Fraction
    threshold: int
    most: int
    things: int

    def __init__(
        self, sigma_squared: Fraction | int, threshold: Fraction | int, most: Fraction | int, things: Fraction | int
    ) -> None:
        whole = {"threshold": threshold, "most": most, "things": things}
        for name, number in whole.items():
            if int(number) != number or number < 1:
                raise MechanismError(f"{name}={number} must be a whole number of 1 or more.")
            object.__setattr__(self, name, int(number))
        object.__setattr__(self, "sigma_squared", DiscreteGaussian(Fraction(sigma_squared)).sigma_squared)
        if self.threshold < self.most:
            raise MechanismError(f"threshold={threshold} is below what one unit can reach, {most}.")

    @classmethod
    def for_loss(cls, loss: Loss, *, squared_l2: int, most: int, things: int) -> StandingOut:
        """Return the least noise and threshold that keep a loss with a delta: half of it for either."""
        if loss.epsilon is None or loss.delta <= 0:
            raise MechanismError("what is not known before can only be released with a delta above 0.")
        half = loss.delta / 2
        sigma_squared = Fraction(squared_l2) / (2 * zcdp_rho(loss.epsilon, half))
        start = most - 1 + ceil(sqrt(2 * float(sigma_squared) * max(log(things / float(half)), 0.0)))
        threshold = max(start - 2, most)  # the estimate is within rounding; the loop makes sure
        while cls(sigma_squared, threshold, most, things).delta > half:
            threshold += 1
        return cls(sigma_squared, threshold, most, things)

    @property
    def delta(self) -> Fraction:
        """Bound the probability that any thing of one table only is released: exact, rounded up."""
        above = self.threshold + 1 - self.most
        _, tail = samplers.exp_minus(Fraction(above * above) / (2 * self.sigma_squared), _BITS)
        return Fraction(self.things * tail, 1 << _BITS)

    @property
    def variance(self) -> float:
        """Exact variance of the noise on one count."""
        return DiscreteGaussian(self.sigma_squared).variance

    def keeps(self, loss: Loss, squared_l2: int) -> bool:
        """Whether this noise, at the given squared L2 sensitivity, costs no more than a loss, which is no zCDP."""
        if loss.epsilon is None or loss.rho is not None or loss.delta <= self.delta:
            return False
        rho = DiscreteGaussian(self.sigma_squared).rho(squared_l2)
        return zcdp_epsilon(rho, loss.delta - self.delta) <= loss.epsilon

    def perturb(self, counts: Ints) -> tuple[Ints, Ints]:
        """Return the places of the things that are released, and their noisy counts; counts are of 1 or more."""
        if counts.ndim != 1 or counts.dtype != np.int64 or (len(counts) and counts.min() < 1):
            raise MechanismError("counts must be an int64 vector of numbers of 1 or more: leave out what is not there.")
        noisy = DiscreteGaussian(self.sigma_squared).perturb(counts)
        places = np.flatnonzero(noisy > self.threshold).astype(np.int64)
        return places, noisy[places]
