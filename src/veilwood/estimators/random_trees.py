# SPDX-License-Identifier: Apache-2.0
"""Random decision trees as scikit-learn estimators; the method is in ``forests.random_trees``."""

from __future__ import annotations

from dataclasses import dataclass

from veilwood.estimators.base import SharedParameters
from veilwood.estimators.class_weights import ClassWeights
from veilwood.estimators.one_pass import OnePassForest
from veilwood.estimators.predicting import Classifier, Regressor
from veilwood.forests.random_trees import RandomTrees, RandomTreesClassifierParameters, RandomTreesParameters


@dataclass(eq=False, repr=False)
class RandomTreesClassifier(Classifier, OnePassForest, RandomTreesClassifierParameters, ClassWeights, SharedParameters):
    """Random decision trees with private leaves, for two or more classes.

    Binary trees of fixed height are grown without looking at the data; the class counts of all leaves are released
    with exact discrete noise. Predictions, probabilities included, are computed from the released counts and
    cost nothing, however many are asked for.

    By default the trees are not those of the paper's Algorithm 1, which draws every threshold from the whole range of
    its column: many of its branches are empty, and so it tells fewer rows apart. Ours cut inside what the path has
    left. The noise is the same, and without any the error on the Banknote table falls from 3 to 0.2 per cent;
    ``thresholds="range"`` grows the paper's trees.

    Parameters
    ----------
    schema : Schema, path or dict
        What is public about the data. ``"infer"`` reads it off the data, and the result is NOT PRIVATE.
    epsilon : float
        The privacy loss, from 10^-6 to 10^6; ``inf`` means no noise and no privacy (Algorithm 1 of the paper).
    delta : float
        0 for pure epsilon with Laplace noise. From 10^-30 to 0.01, Gaussian noise accounted by zCDP where that is the
        smaller one; otherwise pure noise, and the delta is not spent. So a delta never raises the error.
    privacy_unit : "row", int or dict
        Whom the guarantee protects: one row, k rows, or ``{"id": column, "at_most": k}``.
    adjacency : {"add-remove", "replace-one"}
        The neighbouring relation.
    n_estimators, max_depth : int or "auto"
        Number and height of the trees. "auto": chosen without data, as ``vw.tune`` does, from schema, budget, unit and
        the number of rows; the plan says it. Then a twentieth of the budget shows the classes of all rows, on which
        leaves fall back as far as the noise demands. Without noise trees grow until rows are told apart, and only where
        rows are, unless ``n_rows`` is declared.
    n_rows : int, optional
        The number of rows, or a guess at it, where that is public; everything is planned from it before the data.
        Otherwise the first step tells it, and rows are read once more.
    class_weight : dict, "balanced" or None
        Weights of classes, by which probabilities are multiplied. Free, and can be changed after the fit.
    max_weight : int, optional
        The largest ``sample_weight`` of a row that counts. Noise grows with it: one row can count that much.
    voting : {"auto", "majority", "threshold", "probabilistic"}
        Each tree votes for its leaf's class; or the shares are averaged and the largest wins; or a class is drawn
        with the averaged shares as probabilities. "auto": averages where the size is chosen, else votes.
    trees : {"shared", "disjoint"}
        Every row counts in every tree (noise grows with the number of trees), or in one only (drawn by a secret key).
    thresholds : {"path", "range"}
        Cut inside what the path has left of a column, or anywhere in its range, as the paper prints.
    leaves : {"auto", "plain", "empirical-bayes"}
        How noisy leaves are cleaned; "empirical-bayes" shrinks them along the tree by the known noise, at no cost.
        "auto" does so where the size is chosen.
    random_state : int, generator or None
        Public randomness: the structure. It does not seed the noise.
    ledger : Ledger, path or None
        Where the spend is recorded.
    n_jobs : int or None
        Threads; -1 for all cores.
    invalid : {"refuse", "drop"}
        What to do with rows that do not fit the schema: refuse the whole fit, or leave them out, row by row.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As usual in scikit-learn; classes come from the schema.
    privacy_ : PrivacyStatement
        The certificate.
    plan_ : Plan
        What was released.
    forest_, leaf_counts_
        The public structure and the released noisy counts.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/random-trees.md, attacked by
    tests/audit/test_audit.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.RandomTreesClassifier(car.schema, epsilon=2.0, n_estimators=10, max_depth=4, random_state=0)
    >>> print(forest.plan().mechanism)
    discrete Laplace, scale 5
    >>> forest.fit(car.X, car.y).privacy_.epsilon
    2.0
    >>> forest.predict(car.X[:3]).shape
    (3,)
    """

    _method = RandomTrees


@dataclass(eq=False, repr=False)
class RandomTreesRegressor(Regressor, OnePassForest, RandomTreesParameters, SharedParameters):
    """Random decision trees with private leaf means.

    Each leaf releases the rotated pair of its targets, which yields sum and count together at the price of one
    (proofs/rotated-pair.md). Targets outside the schema's bounds are clamped.

    It takes the parameters of ``RandomTreesClassifier`` but for voting; the schema's target is numeric, with bounds.

    Notes
    -----
    Guarantee

    That of ``RandomTreesClassifier``: proofs/random-trees.md, attacked by tests/audit/test_audit.py.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> forest = vw.RandomTreesRegressor(schema, epsilon=1.0, max_depth=3, random_state=0)
    >>> x = np.linspace(0, 1, 1000)[:, None]
    >>> bool(np.diff(forest.fit(x, 10 * x[:, 0]).predict([[0.1], [0.9]]))[0] > 0)
    True
    """

    _method = RandomTrees
