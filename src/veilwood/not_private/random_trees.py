# SPDX-License-Identifier: Apache-2.0
"""Random decision trees as the paper prints them (Bojarski et al. 2014, Algorithm 2). NOT PRIVATE.

The sound ones are in ``estimators.random_trees``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.base import Asked, Design
from veilwood.forests.random_trees import RandomTreesClassifier
from veilwood.not_private.shared import PARTS, AsPublished, uniform
from veilwood.privacy.door import Door
from veilwood.privacy.noise import DiscreteLaplace

INVERTED_SCALE = (
    "Algorithm 2 of Bojarski et al. (2014) prints the noise scale eta/k, the inverse of the k/eta that the proof in "
    "the same paper needs, so its true loss is k^2/eta"
)


class RandomTreesAsPrintedNotPrivate(AsPublished, RandomTreesClassifier):
    """Random decision trees exactly as Algorithm 2 of Bojarski et al. (2014) prints them. NOT PRIVATE.

    The noise on leaf counts has scale eta/k instead of k/eta, and a leaf with a negative noisy count (or with
    none above zero) gets a random share. Use ``RandomTreesClassifier`` for anything but the paper's figures.

    Parameters
    ----------
    schema : Schema, path or dict
        What is public about the data.
    epsilon_in_paper : float
        What the paper calls eta. It is not a privacy loss here.
    n_estimators, max_depth : int
        Number k and height h of the trees.
    voting : {"majority", "threshold", "probabilistic"}
        How trees are joined, as in ``RandomTreesClassifier``.
    random_state : int, generator or None
        Public randomness: the structure.
    ledger : Ledger, path or None
        Where the release is recorded, with an unbounded loss: a ledger with a budget refuses it.
    n_jobs : int or None
        Threads; -1 for all cores.

    Notes
    -----
    Guarantee

    None. ``privacy_.is_private`` is False and ``privacy_.epsilon`` is None.

    Examples
    --------
    >>> import warnings, veilwood as vw
    >>> from veilwood.not_private import RandomTreesAsPrintedNotPrivate
    >>> car = vw.datasets.car()
    >>> forest = RandomTreesAsPrintedNotPrivate(car.schema, epsilon_in_paper=1.0, n_estimators=5, random_state=0)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", vw.PrivacyWarning)
    ...     _ = forest.fit(car.X, car.y)
    >>> forest.privacy_.is_private, forest.privacy_.epsilon
    (False, None)
    """

    leaf_shares_: NDArray[np.float64]

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon_in_paper: float = 1.0,
        n_estimators: int = 20,
        max_depth: int = 5,
        voting: str = "majority",
        random_state: Any = None,
        ledger: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            schema, epsilon=float("inf"), n_estimators=n_estimators, max_depth=max_depth, voting=voting,
            random_state=random_state, ledger=ledger, n_jobs=n_jobs,
        )  # fmt: skip
        self.epsilon_in_paper = epsilon_in_paper

    def _reason(self) -> str:
        return INVERTED_SCALE

    def _design(self, asked: Asked) -> Design:
        eta = self._exact_epsilon_in_paper()
        design = super()._design(asked)
        # With eta/k far below 1 the noise decides on which side of zero an empty class falls, so it is drawn in parts.
        noise = DiscreteLaplace(PARTS * eta / design.forest.n_trees)
        (step,) = design.plan.steps
        step = replace(step, mechanism=noise, sensitivity=step.sensitivity * PARTS)
        plan = replace(design.plan, steps=(step,), expected_leaf_mse=noise.variance / PARTS**2)
        return replace(design, plan=plan)

    def _release(self, design: Design, exact: NDArray[np.int64], door: Door) -> NDArray[np.int64]:
        (step,) = design.plan.steps
        return door.noisy(step, PARTS * exact)

    def _learn(self, design: Design, released: NDArray[np.int64]) -> None:
        self.forest_ = design.forest
        self.leaf_shares_ = shares_as_printed(released)

    def _leaf_shares(self) -> NDArray[np.float64]:
        return self.leaf_shares_


def shares_as_printed(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return class shares of each leaf, drawn uniformly where a count is negative or all are zero (Algorithm 2)."""
    # Exponentials divided by their sum are uniform over all shares: uniform on [0, 1] for the paper's two classes.
    drawn = -np.log(uniform(counts.size)).reshape(counts.shape)
    unusable = (counts < 0).any(axis=1) | (counts == 0).all(axis=1)
    kept = np.where(unusable[:, None], drawn, counts)
    return np.asarray(kept / kept.sum(axis=1, keepdims=True))
