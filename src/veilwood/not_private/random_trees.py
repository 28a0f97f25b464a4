# SPDX-License-Identifier: Apache-2.0
"""Random decision trees as the paper prints them (Bojarski et al. 2014, Algorithm 2). NOT PRIVATE.

The sound ones are in ``forests.random_trees``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from veilwood.estimators.base import RunParameters
from veilwood.estimators.one_pass import OnePassForest
from veilwood.estimators.predicting import Classifier
from veilwood.forests.method import Asked, Floats, ForestDesign
from veilwood.forests.random_trees import RandomTrees, RandomTreesClassifierParameters
from veilwood.not_private.shared import PARTS, AsPublished, PaperParameters, uniform
from veilwood.privacy.door import Door
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.trees.forest import Forest


@dataclass(eq=False, repr=False, kw_only=True)
class AsPrintedParameters(PaperParameters, RandomTreesClassifierParameters):
    """Parameters of the paper, which leaves no choice in trees and leaves."""

    n_estimators: int = 20
    max_depth: int = 5
    trees: str = field(default="shared", init=False)
    thresholds: str = field(default="range", init=False)
    voting: str = "majority"


class RandomTreesAsPrinted(RandomTrees):
    """Algorithm 2: the inverse of the noise scale that its proof needs, and random shares where counts are odd."""

    parameters: AsPrintedParameters

    def design(self, asked: Asked) -> ForestDesign:
        """Plan noise of scale eta/k."""
        eta = self.parameters.exact_epsilon()
        design: ForestDesign = super().design(asked)
        # With eta/k far below 1 the noise decides on which side of zero an empty class falls, so it is drawn in parts.
        noise = DiscreteLaplace(PARTS * eta / design.forest.n_trees)
        (step,) = design.plan.steps
        step = replace(step, mechanism=noise, sensitivity=step.sensitivity * PARTS)
        plan = replace(design.plan, steps=(step,), expected_leaf_mse=noise.variance / PARTS**2)
        return replace(design, plan=plan)

    def release(self, design: ForestDesign, exact: NDArray[np.int64], door: Door) -> NDArray[np.int64]:
        """Release parts of counts."""
        return super().release(design, PARTS * exact, door)

    def leaf_values(self, forest: Forest, counts: NDArray[np.int64], plan: Plan, pooled: object = None) -> Floats:
        """Return shares as printed, random ones among them."""
        return shares_as_printed(counts)

    def warning(self, plan: Plan, model: object) -> None:
        """Say nothing of noise: there is no guarantee that it pays for."""


@dataclass(eq=False, repr=False)
class RandomTreesAsPrintedNotPrivate(AsPublished, Classifier, OnePassForest, AsPrintedParameters, RunParameters):
    """Random decision trees exactly as Algorithms 1 and 2 of Bojarski et al. (2014) print them. NOT PRIVATE.

    Thresholds are drawn from the whole range of a column, whatever the path has left of it. The noise on leaf counts
    has scale eta/k instead of k/eta, and a leaf with a negative noisy count (or with none above zero) gets a random
    share. Use ``RandomTreesClassifier`` for anything but the paper's figures.

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
    n_jobs, invalid
        As in ``RandomTreesClassifier``.

    Notes
    -----
    Guarantee

    None, as the scale of the noise is turned upside down: ``privacy_.is_private`` is False.

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

    _method = RandomTreesAsPrinted

    def _reason(self) -> str:
        return (
            "Algorithm 2 of Bojarski et al. (2014) prints the noise scale eta/k, the inverse of the k/eta that the "
            "proof in the same paper needs, so its true loss is k^2/eta"
        )


def shares_as_printed(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return class shares of each leaf, drawn uniformly where a count is negative or all are zero (Algorithm 2)."""
    # Exponentials divided by their sum are uniform over all shares: uniform on [0, 1] for the paper's two classes.
    drawn = -np.log(uniform(counts.size)).reshape(counts.shape)
    unusable = (counts < 0).any(axis=1) | (counts == 0).all(axis=1)
    kept = np.where(unusable[:, None], drawn, counts)
    return np.asarray(kept / kept.sum(axis=1, keepdims=True))
