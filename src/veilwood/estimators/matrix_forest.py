# SPDX-License-Identifier: Apache-2.0
"""The matrix forest as a scikit-learn estimator; the method is in ``forests.matrix.training``."""

from __future__ import annotations

from dataclasses import dataclass

from veilwood.estimators.base import SharedParameters
from veilwood.estimators.class_weights import ClassWeights
from veilwood.estimators.one_pass import OnePassForest
from veilwood.estimators.predicting import Classifier
from veilwood.forests.matrix.training import MatrixForest, MatrixForestParameters


@dataclass(eq=False, repr=False)
class MatrixForestClassifier(Classifier, OnePassForest, MatrixForestParameters, ClassWeights, SharedParameters):
    """Random multiway trees whose leaves are estimated together, with noise optimised across all trees.

    Every leaf of every tree is a sum over cells of one contingency table. Instead of noising each tree at an equal
    share of the budget, a strategy is chosen from public facts alone (all cells, weighted marginals, products, the
    leaves of trees themselves, or of some beside marginals for the others) that answers all leaves with the least total
    error; it is measured with exact noise, and leaves are reconstructed. It is never worse than the baselines, and the
    plan says what the alternatives would have cost.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger
        As in ``RandomTreesClassifier``. Numeric columns are cut at the schema's ``cutoffs`` or into its ``bins``.
    n_estimators : "auto", int or list of int
        Trees of all ensembles together, or for each ensemble.
    max_depth : "auto", int or list of int
        Depth; a multiway tree uses a feature once on a path.
    n_rows, class_weight, max_weight
        As in ``RandomTreesClassifier``: by default a size is chosen.
    mechanism : {"optimized", "laplace"}
        Optimise what is measured, or release every tree's leaves at an equal share (the paper's baseline).
    trees : {"shared", "disjoint"}
        Every row counts in every tree, or in one only (a baseline; with ``mechanism="laplace"``).
    n_ensembles, max_features : int or None
        Number of ensembles (q in the paper), each over so many random features (d-bar). Each gets the share of the
        budget that its error asks for. By default there is one over all features; but where its trees would drown in
        noise, as in wide tables, all features are cut into disjoint parts that at least halve the error.
    feature_subsets : {"independent", "disjoint"}
        Draw the features of each ensemble independently, or cut all features into ``n_ensembles`` disjoint parts.
    voting : {"hard", "weight"}
        Leaves vote for their largest class, or add up their counts.
    branching : {"auto", "multiway", "binary"}
        One branch per value, or two. "auto" is the first; without noise, where the size is chosen too, the second.
    leaves : {"auto", "plain", "empirical-bayes"}
        How noisy leaves are cleaned; "empirical-bayes" shrinks them along the trees by the known noise, at no cost.
    n_jobs, invalid
        As in ``RandomTreesClassifier``.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_
        As in ``RandomTreesClassifier``.
    forest_, leaf_counts_
        The public structure and the estimated leaf counts.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/matrix-forest.md, attacked
    by tests/forests/matrix/test_training.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.MatrixForestClassifier(car.schema, epsilon=2.0, n_estimators=32, max_depth=2, random_state=0)
    >>> plain = vw.MatrixForestClassifier(
    ...     car.schema, epsilon=2.0, n_estimators=32, max_depth=2, random_state=0, mechanism="laplace")
    >>> forest.plan().expected_leaf_mse < plain.plan().expected_leaf_mse / 3
    True
    >>> forest.fit(car.X, car.y).privacy_.epsilon
    2.0
    """

    _method = MatrixForest
