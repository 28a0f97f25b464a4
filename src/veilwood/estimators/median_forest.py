# SPDX-License-Identifier: Apache-2.0
"""Median forests as scikit-learn estimators; the method is in ``forests.grown.median_forest``."""

from __future__ import annotations

from dataclasses import dataclass

from veilwood.estimators.base import SharedParameters
from veilwood.estimators.class_weights import ClassWeights
from veilwood.estimators.predicting import Classifier, Regressor
from veilwood.forests.grown.median_forest import (
    MedianForest,
    MedianForestClassifierParameters,
    MedianForestParameters,
)


@dataclass(eq=False, repr=False)
class MedianForestClassifier(Classifier, MedianForestClassifierParameters, ClassWeights, SharedParameters):
    """Trees split at private medians, with private class counts in their leaves (DiPriMe).

    Medians keep leaves equally full, so that none drowns in noise. At each node a few attributes are drawn at random;
    one of them is chosen privately by how well it separates the classes, and cut at its private median; categorical
    attributes are cut into two balanced random subsets. Each row is given to one tree, so that trees cost nothing
    extra.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger, n_jobs, invalid
        As in ``RandomTreesClassifier``.
    n_estimators, max_depth, n_rows, class_weight, max_weight
        As in ``RandomTreesClassifier``: by default a size is chosen.
    variant : {"select-then-median", "k-medians", "random-attribute"}
        Choose an attribute, then its median; or the medians of all candidates first (at a budget divided among them)
        and then the best of these splits (DiPriMeExp, DiPriMeFlip); or the median of a random attribute (DiPriMe).
    selection : {"auto", "flip", "exponential"}
        Choose splits by permute-and-flip, which errs less, or by the exponential mechanism, which costs less with a
        ``delta``; "auto" takes the better one: permute-and-flip where noise is pure, else the exponential mechanism.
    split_share : float
        Share of the budget spent on splits, in equal parts over the levels; the rest is for leaves.
    candidates : int or "half"
        Attributes drawn at random at each node.
    voting : {"threshold", "majority", "probabilistic"}
        Average the shares of leaves, or let each tree vote for its leaf's class, or draw by the averaged shares.
    trees : {"auto", "disjoint", "shared"}
        Give each row to one tree, drawn by a secret key, or to all trees, which share the budget. "auto": to one,
        but for a chosen size without noise.
    leaves : {"auto", "plain", "empirical-bayes"}
        How noisy leaves are cleaned, as in ``RandomTreesClassifier``; costs nothing.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_, forest_, leaf_counts_
        As in ``RandomTreesClassifier``.

    Notes
    -----
    Guarantee

    All medians, choices and leaves together cost (epsilon, delta): proofs/median-forest.md, attacked by
    tests/forests/grown/test_medians.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.MedianForestClassifier(car.schema, epsilon=2.0, n_estimators=4, max_depth=2).fit(car.X, car.y)
    >>> [step.name for step in forest.plan_.steps][:3]
    ['attributes at depth 0', 'medians at depth 0', 'attributes at depth 1']
    >>> forest.predict(car.X[:3]).shape
    (3,)
    """

    _method = MedianForest


@dataclass(eq=False, repr=False)
class MedianForestRegressor(Regressor, MedianForestParameters, SharedParameters):
    """Trees split at private medians, with private means in their leaves (DiPriMe).

    As ``MedianForestClassifier``; attributes are chosen by the squared error of the target, and each leaf releases the
    rotated pair of its targets (proofs/rotated-pair.md).

    It takes the parameters of ``MedianForestClassifier`` but for voting; the schema's target is numeric, with bounds.

    Notes
    -----
    Guarantee

    Medians, choices and leaves together cost (epsilon, delta): proofs/median-forest.md, attacked by
    tests/forests/grown/test_medians.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> forest = vw.MedianForestRegressor(schema, epsilon=5.0, n_estimators=4, max_depth=1, random_state=0)
    >>> [step.name for step in forest.plan().steps]
    ['attributes at depth 0', 'medians at depth 0', 'rotated target sums of leaves']
    >>> forest.fit([[0.1], [0.9]], [1.0, 9.0]).privacy_.epsilon
    5.0
    """

    _method = MedianForest
