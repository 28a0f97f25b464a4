# SPDX-License-Identifier: Apache-2.0
"""The best of a random number of private trials: Liu and Talwar 2019, Papernot and Steinke 2022.

Which trials there are is not known here; a search over settings of estimators is in ``veilwood.search``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from veilwood.errors import MechanismError, PlanError
from veilwood.privacy import entropy
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours

__all__ = ["RandomStopping", "TrialBudget", "uniform_below"]

Outcome = TypeVar("Outcome")
_MOST_TRIALS = 10**6  # on average: no search needs more


def uniform_below(bound: int) -> int:
    """Return a whole number from 0 to ``bound`` - 1, each exactly as likely, from fresh random bits.

    >>> uniform_below(1)
    0
    """
    if not 1 <= bound <= 1 << 63:
        raise MechanismError(f"there is no uniform number below {bound}.")
    limit = (1 << 64) - (1 << 64) % bound
    while True:
        word = int(entropy.words(1)[0])
        if word < limit:
            return word % bound


class TrialBudget:
    """What a search has charged for one trial: its doors take from it, none for other neighbours or more than is left.

    A trial may set units aside by one secret key. Where a unit is then in one part only, what is released of each part
    may cost the whole; otherwise all that a trial releases adds up.

    Notes
    -----
    Guarantee

    The lemma "one trial" of proofs/private-search.md, attacked by tests/privacy/test_stopping.py.
    """

    def __init__(self, loss: Loss, neighbours: Neighbours) -> None:
        self.loss, self.neighbours = loss, neighbours
        self._taken = [Loss.zero(), Loss.zero()]  # of the units trained on, and of those set aside

    def take(self, loss: Loss, neighbours: Neighbours, *, aside: bool = False) -> None:
        """Take the loss of a release, of the units set aside or of the others; refuse one that was not charged."""
        if neighbours != self.neighbours:
            raise PlanError(f"a trial that protects {neighbours} is no part of a search for {self.neighbours}.")
        taken = list(self._taken)
        taken[aside] += loss
        together = taken if neighbours.in_one_part else [taken[0] + taken[1]]
        if not all(part.fits(self.loss) for part in together):
            raise PlanError(f"a trial that costs {loss} more exceeds the {self.loss} that the search has charged.")
        self._taken = taken


@dataclass(frozen=True)
class RandomStopping:
    """Run a trial a random number of times, and keep the best outcome only.

    The number follows the logarithmic law: P(k) proportional to (1 - 1 / odds)^k / k for k = 1, 2, ... It does not
    depend on the data, and must stay secret together with everything but the best outcome: so must the time it takes.

    Attributes
    ----------
    trial_epsilon : Fraction
        What one trial costs, pure.
    odds : int
        The larger, the more trials: on average (odds - 1) / ln(odds).

    Notes
    -----
    Guarantee

    2 ``trial_epsilon``, pure, for the best outcome with its score (proofs/private-search.md, attacked by
    tests/privacy/test_stopping.py).

    Examples
    --------
    >>> stopping = RandomStopping(Fraction(1, 4), 100)
    >>> stopping.epsilon, round(stopping.mean_trials, 1)
    (Fraction(1, 2), 21.5)
    """

    trial_epsilon: Fraction
    odds: Fraction | int

    def __post_init__(self) -> None:
        object.__setattr__(self, "odds", int(self.odds) if self.odds == int(self.odds) else self.odds)
        if not isinstance(self.odds, int) or not 2 <= self.odds <= 100 * _MOST_TRIALS or self.trial_epsilon <= 0:
            raise MechanismError(
                "random stopping takes odds of 2 or more, a whole number, and trials that cost something."
            )

    @property
    def epsilon(self) -> Fraction:
        """What the best outcome costs."""
        return 2 * self.trial_epsilon

    @property
    def score_range(self) -> int:
        """How far one unit moves what is compared: trials are private themselves, so it is one trial."""
        return 1

    @property
    def mean_trials(self) -> float:
        """Trials to expect."""
        return (int(self.odds) - 1) / math.log(self.odds)

    @classmethod
    def with_mean(cls, trial_epsilon: Fraction, trials: float) -> RandomStopping:
        """Return the one with at least so many trials on average."""
        if not 1 <= trials <= _MOST_TRIALS:
            raise MechanismError(f"{trials} trials on average are not between 1 and {_MOST_TRIALS:,}.")
        odds = 2
        while cls(trial_epsilon, odds).mean_trials < trials:
            odds += 1 + odds // 50
        return cls(trial_epsilon, odds)

    def draw(self) -> int:
        """Draw how many trials there are, exactly: a geometric number, kept with probability one in itself."""
        while True:
            trials = 1
            while uniform_below(int(self.odds)):
                trials += 1
            if uniform_below(trials) == 0:
                return trials

    def best(self, trial: Callable[[], Outcome], better: Callable[[Outcome, Outcome], bool]) -> Outcome:
        """Run the trials and return the best outcome; ``better`` is a strict total order of outcomes."""
        found = trial()
        for _ in range(self.draw() - 1):
            another = trial()
            if better(another, found):
                found = another
        return found
