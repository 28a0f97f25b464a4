# SPDX-License-Identifier: Apache-2.0
"""Private selection, drawn exactly: one candidate by its score, or the best of a random number of private trials.

Noise that is added to numbers is in ``noise``, with the base class of all mechanisms.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, TypeVar

import numpy as np

from veilwood.arrays import ArrayLike, Bools, Floats, Ints
from veilwood.errors import MechanismError, PlanError
from veilwood.privacy import entropy, samplers
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import MAX_SCALE, Mechanism, require_fraction, require_integers, require_positive


@dataclass(frozen=True, init=False)
class _SelectionMechanism(Mechanism):
    """Base class of mechanisms that select one candidate by integer scores, along the last axis of an array."""

    epsilon: Fraction
    score_range: int
    verb = "select"
    rho_divisor: ClassVar[int] = 2  # the d in rho = epsilon^2 / d of one selection: 2 for any pure mechanism

    def __init__(self, epsilon: Fraction | int, score_range: int) -> None:
        object.__setattr__(self, "epsilon", require_positive("epsilon", epsilon, MAX_SCALE))
        if require_fraction("score_range", score_range).denominator != 1 or score_range <= 0:
            raise MechanismError(
                f"score_range must be a positive integer, got {score_range}. Hint: pass the largest amount by which "
                "the change of one score can exceed the change of another between neighbours."
            )
        object.__setattr__(self, "score_range", int(score_range))
        require_positive("score_range / epsilon", self._noise_scale, MAX_SCALE)

    @property
    def _noise_scale(self) -> Fraction:
        """Scale of the geometric noise on scores: score_range / epsilon."""
        return Fraction(self.score_range) / self.epsilon

    def cost(self, sensitivity: int, selections_per_row: int = 1) -> Loss | None:
        """Return the loss of all selections that one row can influence, or None if ``sensitivity`` exceeds the plan."""
        return _selections_cost(self, sensitivity, selections_per_row, self.rho_divisor)

    @property
    def text(self) -> str:
        """Name and epsilon."""
        return f"{self.kind}, epsilon {float(self.epsilon):.6g}"

    @abstractmethod
    def _select_columns(self, gaps: Ints, admissible: Bools) -> Ints:
        """Return the selected index in each row, given how far each score is below the best."""

    def _admissible_probabilities(self, accept: Floats) -> Floats:
        """Return the selection probabilities, given exp(-epsilon * gap / score_range) of the admissible candidates."""
        return _first_accepted_probabilities(accept)

    def select(self, scores: ArrayLike, admissible: ArrayLike | None = None) -> Ints:
        """Return the index selected along the last axis, one per row of scores.

        Parameters
        ----------
        scores
            Integers, shape (..., candidates); a larger score is better.
        admissible
            Booleans that broadcast to the shape of `scores`: candidates that may be selected. Public: it must not
            depend on the data.
        """
        gaps, mask = _score_gaps(scores, admissible)
        rows = gaps.reshape(-1, gaps.shape[-1])
        return self._select_columns(rows, mask.reshape(rows.shape)).reshape(gaps.shape[:-1])

    def probabilities(self, scores: ArrayLike, admissible: ArrayLike | None = None) -> Floats:
        """Return the exact probability of each candidate, for one vector of scores."""
        gaps, mask = _score_gaps(scores, admissible)
        if gaps.ndim != 1:
            raise MechanismError(f"scores must be one vector, got shape {gaps.shape}. Hint: pass one row at a time.")
        probabilities = np.zeros(gaps.shape)
        probabilities[mask] = self._admissible_probabilities(np.exp(-gaps[mask] / float(self._noise_scale)))
        return probabilities


class NoisyMax(_SelectionMechanism, kind="NoisyMax"):
    """Private selection: add geometric noise of scale score_range/epsilon to every score and take the largest.

    Ties are broken uniformly at random, so that the distribution is that of `PermuteAndFlip` (proofs/noisy-max.md).

    Parameters
    ----------
    epsilon
        Positive integer or ``Fraction``: the loss of one selection.
    score_range
        The largest amount by which the change of one score can exceed the change of another when one neighbour
        replaces the other. For scores that one added row can only raise, by at most 1: 1 under add-remove,
        2 under replace-one.

    Notes
    -----
    Guarantee

    Neighbours: score vectors whose difference d has max(d) - min(d) <= score_range.
    Bound: pure differential privacy with the given epsilon, each row of scores by itself.
    Proof: proofs/noisy-max.md
    Test: packages/veilwood/tests/privacy/test_selection.py::test_selection_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from veilwood.privacy.selection import NoisyMax
    >>> NoisyMax(epsilon=1, score_range=1).probabilities([3, 3]).tolist()
    [0.5, 0.5]
    >>> NoisyMax(epsilon=1, score_range=1).select([[0, 900], [900, 0]]).tolist()
    [1, 0]
    """

    def _select_columns(self, gaps: Ints, admissible: Bools) -> Ints:
        noisy = np.where(
            admissible, samplers.geometric(self._noise_scale, gaps.size).reshape(gaps.shape) - gaps, _MIN_SCORE
        )
        return _uniform_true_index(noisy == noisy.max(axis=-1, keepdims=True))


class PermuteAndFlip(_SelectionMechanism, kind="PermuteAndFlip"):
    """Private selection: visit the candidates in random order, accept each with probability exp(-epsilon gap / r).

    The first accepted candidate is selected. Coins and order are independent, so this is a uniform draw from the
    candidates whose coin accepts (McKenna and Sheldon 2020).

    Parameters
    ----------
    epsilon, score_range
        As in ``NoisyMax``; ``score_range`` is r in the formula above.

    Notes
    -----
    Guarantee

    Neighbours: score vectors whose difference d has max(d) - min(d) <= score_range.
    Bound: pure differential privacy with the given epsilon, each row of scores by itself.
    Proof: proofs/permute-and-flip.md
    Test: packages/veilwood/tests/privacy/test_selection.py::test_selection_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from veilwood.privacy.selection import PermuteAndFlip
    >>> PermuteAndFlip(epsilon=1, score_range=1).probabilities([3, 2]).round(4).tolist()
    [0.8161, 0.1839]
    """

    def _select_columns(self, gaps: Ints, admissible: Bools) -> Ints:
        # A geometric reaches the gap with probability exp(-gap/scale): an exact coin.
        return _uniform_true_index(
            admissible & (samplers.geometric(self._noise_scale, gaps.size).reshape(gaps.shape) >= gaps)
        )


class ExponentialMechanism(_SelectionMechanism, kind="ExponentialMechanism"):
    """Private selection of a candidate with probability proportional to exp(epsilon score / score_range).

    Each selection is drawn exactly from one uniform number, with the same work for all scores. Prefer
    `PermuteAndFlip` under pure epsilon, where it is never worse, and this mechanism under zCDP.

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
    Test: packages/veilwood/tests/privacy/test_selection.py::test_selection_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from veilwood.privacy.selection import ExponentialMechanism
    >>> choice = ExponentialMechanism(epsilon=1, score_range=1)
    >>> choice.rho
    Fraction(1, 8)
    >>> choice.probabilities([3, 2]).round(4).tolist()
    [0.7311, 0.2689]
    """

    rho_divisor: ClassVar[int] = 8  # by bounded range (Cesar and Rogers 2021)

    @property
    def rho(self) -> Fraction:
        """The zCDP rho of one selection."""
        return self.epsilon**2 / self.rho_divisor

    def _select_columns(self, gaps: Ints, admissible: Bools) -> Ints:
        return samplers.weighted_choice(gaps, admissible, self._noise_scale)

    def _admissible_probabilities(self, accept: Floats) -> Floats:
        return np.asarray(accept / accept.sum())


_MIN_SCORE = np.iinfo(np.int64).min


def _selections_cost(
    mechanism: _SelectionMechanism | RandomStopping, sensitivity: int, selections_per_row: int, rho_divisor: int
) -> Loss | None:
    """Return the loss of all selections together, or None if the mechanism is calibrated to a smaller score range."""
    if mechanism.score_range < sensitivity:
        return None
    epsilon = mechanism.epsilon
    return Loss(epsilon * selections_per_row, Fraction(0), epsilon**2 * selections_per_row / rho_divisor)


def _uniform_true_index(mask: Bools) -> Ints:
    """Return the index of a uniformly drawn true entry in each row; every row has at least one."""
    nth = samplers.uniform_below(mask.sum(axis=-1))
    return np.asarray((mask.cumsum(axis=-1) > nth[:, np.newaxis]).argmax(axis=-1))


def _first_accepted_probabilities(accept: Floats) -> Floats:
    """Return each candidate's probability of being accepted first, integrated over its time t in a random order.

    p_i = accept_i * integral over t in [0, 1] of the product over j != i of (1 - accept_j t): a polynomial, which
    Gauss-Legendre quadrature integrates exactly, with no cancellation as all terms are positive.
    """
    nodes, weights = np.polynomial.legendre.leggauss(accept.size // 2 + 1)
    stays = 1 - accept * ((nodes + 1) / 2)[:, np.newaxis]  # by node and candidate
    others = np.array([np.delete(stays, i, axis=1).prod(axis=1) for i in range(accept.size)])
    return np.asarray(accept * (others @ (weights / 2)))


def _score_gaps(scores: ArrayLike, admissible: ArrayLike | None) -> tuple[Ints, Bools]:
    """Return how far each score is below the best admissible one (0 where not admissible), and the mask."""
    exact = require_integers("scores", scores)
    if exact.ndim == 0 or exact.shape[-1] == 0:
        raise MechanismError(
            f"scores must have at least one candidate on the last axis, got shape {exact.shape}. "
            "Hint: pass an array of shape (..., candidates)."
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
                f"admissible has shape {given.shape}, scores have {exact.shape}. Hint: pass a mask that broadcasts."
            ) from None
        if not mask.any(axis=-1).all():
            raise MechanismError("admissible leaves a row without candidates. Hint: allow at least one in each row.")
    best = np.where(mask, exact, _MIN_SCORE).max(axis=-1, keepdims=True)
    return np.where(mask, best - exact, 0), mask


Outcome = TypeVar("Outcome")
_MAX_TRIALS = 10**6  # limit of the mean number of trials: no search needs more


class TrialBudget:
    """Loss that a search has charged for one trial. The release doors of the trial deduct their losses from it.

    A trial may hold out units by a secret key. If a unit is then either held out or trained on, but not both, each
    group of releases may cost the whole loss; otherwise all releases of a trial add up.

    Notes
    -----
    Guarantee

    The lemma "one trial" of proofs/private-search.md, attacked by packages/veilwood/tests/privacy/test_selection.py.
    """

    def __init__(self, loss: Loss, neighbours: Neighbours) -> None:
        self.loss, self.neighbours = loss, neighbours
        self._taken = [Loss.zero(), Loss.zero()]  # by releases of the units trained on, and of those held out

    def take(self, loss: Loss, neighbours: Neighbours, *, aside: bool = False) -> None:
        """Deduct the loss of a release of the held-out units (``aside``) or of the others.

        Raises
        ------
        PlanError
            If the release has different neighbours from the search, or exceeds the loss that was charged for a trial.
        """
        if neighbours != self.neighbours:
            raise PlanError(
                f"a trial that protects {neighbours} cannot be part of a search that protects {self.neighbours}."
            )
        taken = list(self._taken)
        taken[aside] += loss
        together = taken if neighbours.in_one_part else [taken[0] + taken[1]]
        if not all(part.is_within(self.loss) for part in together):
            raise PlanError(
                f"the trial costs {loss}, which exceeds the {self.loss} that the search has charged for it."
            )
        self._taken = taken


@dataclass(frozen=True)
class RandomStopping(Mechanism, kind="RandomStopping"):
    """Random stopping (Liu and Talwar): run a trial a random number of times, and release the best outcome only.

    The number follows the logarithmic distribution: P(k) proportional to (1 - 1 / odds)^k / k for k = 1, 2, ... It does
    not depend on the data. It must stay secret, as must everything else except the best outcome, including the running
    time.

    Attributes
    ----------
    trial_epsilon : Fraction
        Loss of one trial, pure.
    odds : int
        Parameter of the number of trials, whose mean is (odds - 1) / ln(odds).

    Notes
    -----
    Guarantee

    Pure epsilon of 2 ``trial_epsilon`` for the best outcome with its score (proofs/private-search.md, attacked by
    packages/veilwood/tests/privacy/test_selection.py).

    Examples
    --------
    >>> stopping = RandomStopping(Fraction(1, 4), 100)
    >>> stopping.epsilon, round(stopping.mean_trials, 1)
    (Fraction(1, 2), 21.5)
    """

    trial_epsilon: Fraction
    odds: Fraction | int
    verb = "best"

    def __post_init__(self) -> None:
        object.__setattr__(self, "odds", int(self.odds) if self.odds == int(self.odds) else self.odds)
        if not isinstance(self.odds, int) or not 2 <= self.odds <= 100 * _MAX_TRIALS or self.trial_epsilon <= 0:
            raise MechanismError("odds must be an integer of at least 2, and trial_epsilon above 0.")

    @property
    def epsilon(self) -> Fraction:
        """Loss of the best outcome."""
        return 2 * self.trial_epsilon

    @property
    def score_range(self) -> int:
        """Sensitivity of the step: always 1, because the trials themselves are private."""
        return 1

    def cost(self, sensitivity: int, selections_per_row: int = 1) -> Loss | None:
        """Return the loss of the best outcome."""
        return _selections_cost(self, sensitivity, selections_per_row, 2)

    @property
    def text(self) -> str:
        """Name and epsilon."""
        return f"{self.kind}, epsilon {float(self.epsilon):.6g}"

    @property
    def mean_trials(self) -> float:
        """Mean number of trials."""
        return (int(self.odds) - 1) / math.log(self.odds)

    @classmethod
    def with_mean(cls, trial_epsilon: Fraction, trials: float) -> RandomStopping:
        """Return random stopping with at least ``trials`` trials on average."""
        if not 1 <= trials <= _MAX_TRIALS:
            raise MechanismError(f"the mean number of trials must be from 1 to {_MAX_TRIALS:,}, got {trials}.")
        odds = 2
        while cls(trial_epsilon, odds).mean_trials < trials:
            odds += 1 + odds // 50
        return cls(trial_epsilon, odds)

    def draw_trial_count(self) -> int:
        """Draw the number of trials exactly: a geometric number k, accepted with probability 1 / k."""
        while True:
            trials = 1
            while entropy.draw_below(int(self.odds)):
                trials += 1
            if entropy.draw_below(trials) == 0:
                return trials

    def run_trials(self, trial: Callable[[], Outcome], is_better: Callable[[Outcome, Outcome], bool]) -> Outcome:
        """Run the trials and return the best outcome; ``is_better`` is a strict total order of outcomes."""
        best = trial()
        for _ in range(self.draw_trial_count() - 1):
            outcome = trial()
            if is_better(outcome, best):
                best = outcome
        return best
