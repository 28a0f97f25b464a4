# SPDX-License-Identifier: Apache-2.0
"""Greedy forests as scikit-learn estimators; the method is in ``forests.grown.greedy_forest``."""

from __future__ import annotations

from dataclasses import dataclass

from veilwood.estimators.base import SharedParameters
from veilwood.estimators.class_weights import ClassWeights
from veilwood.estimators.predicting import Classifier, Regressor
from veilwood.forests.grown.greedy_forest import (
    GreedyForest,
    GreedyForestClassifierParameters,
    GreedyForestParameters,
)


@dataclass(eq=False, repr=False)
class GreedyForestClassifier(Classifier, GreedyForestClassifierParameters, ClassWeights, SharedParameters):
    """Trees whose splits are chosen privately by how well they separate the classes.

    The greedy baselines of the literature, made sound: DP-ID3 (one tree, ``quality="max"``, every attribute a
    candidate), DP-RF (several trees and random candidates; ``quality`` "gini", "entropy" or "max"; keyed assignment of
    rows instead of bootstrap samples, which would let a row count several times), and DP-DF as far as pure epsilon
    allows (``quality="gini"``, ``leaf_update="exponential"``; its smooth sensitivity has no pure-epsilon form).

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger, n_jobs, invalid
        As in ``RandomTreesClassifier``.
    n_estimators, max_depth, n_rows, class_weight, max_weight, selection, voting, trees, leaves
        As in ``MedianForestClassifier``.
    quality : {"auto", "max", "gini", "entropy"}
        Score of a split: rows in the majority class of their child, or minus the children's Gini impurity or entropy,
        times their rows. "auto" is "max", which noise blurs least; without noise, where the size is chosen too, it is
        "gini". Entropy is exact for children of up to 65,536 rows; no bound on its change would hold for
        more.
    leaf_update : {"laplace", "exponential"}
        Release the class counts of each leaf with noise, or only a label, chosen like the splits.
    branching : {"auto", "multiway", "binary"}
        One child for each value (numbers are cut at the schema's ``cutoffs`` or ``bins``), or two, at a threshold.
        "auto" is the first; without noise, where the size is chosen too, it is the second.
    split_share : float
        Share of the budget spent on splits, each level getting 1.5 times what the one above it gets.
    candidates : int, "half", "auto" or None
        Attributes drawn at random at each node; None for all. "auto" is all of them; without noise, where the size is
        chosen too, half of them, so that several trees differ.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_, forest_
        As in ``RandomTreesClassifier``.
    leaf_counts_ : ndarray of int64
        The released noisy counts; with ``leaf_update="exponential"``, 1 for the released label of each leaf.

    Notes
    -----
    Guarantee

    All choices and leaves together cost (epsilon, delta), for the unit and adjacency asked for:
    proofs/greedy-forest.md, attacked by tests/forests/grown/test_greedy.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> tree = vw.GreedyForestClassifier(car.schema, epsilon=4.0, n_estimators=1, max_depth=2, random_state=0)
    >>> [step.name for step in tree.plan().steps]
    ['splits at depth 0', 'splits at depth 1', 'class counts of leaves']
    >>> tree.fit(car.X, car.y).privacy_.epsilon
    4.0
    """

    _method = GreedyForest


@dataclass(eq=False, repr=False)
class GreedyForestRegressor(Regressor, GreedyForestParameters, SharedParameters):
    """Trees whose splits are chosen privately by the squared error of the target, with private means in their leaves.

    As ``GreedyForestClassifier``; each leaf releases the rotated pair of its targets (proofs/rotated-pair.md).

    It takes the parameters of ``GreedyForestClassifier`` but for quality, leaf_update and voting; the schema's target
    is numeric, with bounds.

    Notes
    -----
    Guarantee

    All choices and leaves together cost (epsilon, delta), as in ``GreedyForestClassifier``: proofs/greedy-forest.md,
    attacked by tests/forests/grown/test_greedy.py.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> x = np.linspace(0, 1, 1000)[:, None]
    >>> forest = vw.GreedyForestRegressor(schema, epsilon=5.0, max_depth=1, branching="binary", random_state=0)
    >>> low, high = forest.fit(x, 10 * x[:, 0]).predict([[0.1], [0.9]])
    >>> bool(low < high)
    True
    """

    _method = GreedyForest
