# SPDX-License-Identifier: Apache-2.0
"""Private choices: noisy max, permute-and-flip and the exponential mechanism, drawn exactly.

Noise that is added to numbers is in ``noise``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veilwood.errors import MechanismError
from veilwood.privacy import samplers
from veilwood.privacy.noise import LARGEST_SCALE, Ints, fraction, integers, positive

Floats = NDArray[np.float64]


Bools = NDArray[np.bool_]


@dataclass(frozen=True, init=False)
class _Selection(ABC):
    """Choice of one candidate by integer scores, over the last axis of an array."""

    epsilon: Fraction
    score_range: int

    def __init__(self, epsilon: Fraction | int, score_range: int) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", epsilon, LARGEST_SCALE))
        if fraction("score_range", score_range).denominator != 1 or score_range <= 0:
            raise MechanismError(
                f"score_range must be a positive integer, got {score_range}. Hint: it is the most that the "
                "change of one score can exceed the change of another between neighbours."
            )
        object.__setattr__(self, "score_range", int(score_range))
        positive("score_range / epsilon", self._scale, LARGEST_SCALE)

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
            raise MechanismError(f"scores must be one vector, got shape {gaps.shape}. Hint: call law row by row.")
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
    Test: tests/privacy/test_selection.py::test_selection_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from veilwood.privacy.selection import NoisyMax
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
    epsilon, score_range
        As in ``NoisyMax``; the latter is the r above.

    Notes
    -----
    Guarantee

    Neighbours: score vectors whose difference d has max(d) - min(d) <= score_range.
    Bound: pure differential privacy with the given epsilon, each row of scores by itself.
    Proof: proofs/permute-and-flip.md
    Test: tests/privacy/test_selection.py::test_selection_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from veilwood.privacy.selection import PermuteAndFlip
    >>> PermuteAndFlip(epsilon=1, score_range=1).law([3, 2]).round(4).tolist()
    [0.8161, 0.1839]
    """

    def _choose(self, gaps: Ints, admissible: Bools) -> Ints:
        # A geometric reaches the gap with probability exp(-gap/scale): an exact coin.
        return _one_of(admissible & (samplers.geometric(self._scale, gaps.size).reshape(gaps.shape) >= gaps))


class ExponentialMechanism(_Selection):
    """Private choice: each candidate with probability proportional to exp(epsilon score / score_range).

    Drawn exactly, from one uniform number for each choice, with the same work whatever the scores. Prefer
    `PermuteAndFlip` under pure epsilon (it is never worse) and this one under zCDP.

    Parameters
    ----------
    epsilon, score_range
        As in ``NoisyMax``.

    Notes
    -----
    Guarantee

    Neighbours: score vectors whose difference d has max(d) - min(d) <= score_range.
    Bound: pure differential privacy with the given epsilon, and zero-concentrated with rho = epsilon^2/8, each row
    of scores by itself.
    Proof: proofs/exponential.md
    Test: tests/privacy/test_selection.py::test_selection_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from veilwood.privacy.selection import ExponentialMechanism
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
        return samplers.weighted_choice(gaps, admissible, self._scale)

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
    exact = integers("scores", scores)
    if exact.ndim == 0 or exact.shape[-1] == 0:
        raise MechanismError(
            f"scores must have at least one candidate on the last axis, got shape {exact.shape}. "
            "Hint: the shape is (..., candidates)."
        )
    mask = np.ones(exact.shape, dtype=np.bool_)
    if admissible is not None:
        given = np.asarray(admissible)
        if given.dtype != np.bool_:
            raise MechanismError(f"admissible must be booleans, got {given.dtype}. Hint: pass `mask.astype(bool)`.")
        try:
            mask = np.broadcast_to(given, exact.shape)
        except ValueError:
            raise MechanismError(
                f"admissible has shape {given.shape}, scores have {exact.shape}. Hint: they must broadcast."
            ) from None
        if not mask.any(axis=-1).all():
            raise MechanismError("admissible leaves a row without candidates. Hint: allow at least one in each.")
    best = np.where(mask, exact, _LOWEST).max(axis=-1, keepdims=True)
    return np.where(mask, best - exact, 0), mask
