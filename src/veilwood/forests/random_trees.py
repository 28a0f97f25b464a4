# SPDX-License-Identifier: Apache-2.0
"""Random decision trees (Bojarski, Choromanska, Choromanski, LeCun 2014): structure without data, noisy leaves.

The structure is grown in ``structure``, counted in ``counting``, cleaned in ``leaves``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Count
from veilwood.data.encoding import Encoding
from veilwood.forests.base import Asked, Design, layout_of
from veilwood.forests.noisy_leaves import CountedClassifier, CountedRegressor
from veilwood.forests.one_pass import OnePassForest
from veilwood.privacy.door import Door
from veilwood.trees.forest import grow_binary


class _RandomTrees(OnePassForest):
    """Random trees for either task."""

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        privacy_unit: Any = "row",
        adjacency: str = "add-remove",
        n_estimators: int = 20,
        max_depth: int = 5,
        trees: str = "shared",
        leaves: str = "plain",
        random_state: Any = None,
        ledger: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.schema = schema
        self.epsilon = epsilon
        self.delta = delta
        self.privacy_unit = privacy_unit
        self.adjacency = adjacency
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.trees = trees
        self.leaves = leaves
        self.random_state = random_state
        self.ledger = ledger
        self.n_jobs = n_jobs

    def _design(self, asked: Asked) -> Design:
        self._check_choices()
        encoding = Encoding(asked.schema, "grid")
        forest = grow_binary(encoding.columns, self.n_estimators, self.max_depth, asked.seed)
        step = self._leaf_step(asked.schema, asked.loss, asked.neighbours, forest.n_leaves)
        plan = asked.plan(
            (step,),
            f"{step.name}, with noise, of {forest.n_trees} random trees grown without data",
            layout_of(forest, self._records),
            self._expected_leaf_mse(step),
            choices={"structure": forest.fingerprint()},
        )
        return Design(encoding, forest, plan)

    def _count(self, design: Design) -> Count:
        return self._leaf_count(design, design.forest, self._assignment(design.forest.n_trees))

    def _release(self, design: Design, exact: NDArray[np.int64], door: Door) -> NDArray[np.int64]:
        (step,) = design.plan.steps
        return door.noisy(step, exact)

    def _learn(self, design: Design, released: NDArray[np.int64]) -> None:
        self._set_leaves(design.forest, released)


class RandomTreesClassifier(CountedClassifier, _RandomTrees):
    """Random decision trees with private leaves, for two or more classes.

    Binary trees of fixed height are grown without looking at the data; the class counts of all leaves are released
    with exact discrete noise. Predictions, probabilities included, are computed from the released counts and
    cost nothing, however many are asked for.

    Parameters
    ----------
    schema : Schema, path or dict
        What is public about the data. ``"infer"`` reads it off the data, and the result is NOT PRIVATE.
    epsilon : float
        The privacy loss; ``inf`` means no noise and no privacy (Algorithm 1 of the paper).
    delta : float
        0 for pure epsilon with Laplace noise; above 0, Gaussian noise accounted by zCDP.
    privacy_unit : "row", int or dict
        Whom the guarantee protects: one row, k rows, or ``{"id": column, "at_most": k}``.
    adjacency : {"add-remove", "replace-one"}
        The neighbouring relation.
    n_estimators, max_depth : int
        Number and height of the trees.
    voting : {"majority", "threshold", "probabilistic"}
        Each tree votes for its leaf's class; or the shares are averaged and the largest wins; or a class is drawn
        with the averaged shares as probabilities.
    trees : {"shared", "disjoint"}
        Every row counts in every tree (noise grows with the number of trees), or in one only (drawn by a secret key).
    leaves : {"plain", "empirical-bayes"}
        How noisy leaves are cleaned; "empirical-bayes" shrinks them along the tree by the known noise, at no cost.
    random_state : int, generator or None
        Public randomness: the structure. It does not seed the noise.
    ledger : Ledger, path or None
        Where the spend is recorded.
    n_jobs : int or None
        Threads; -1 for all cores.

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

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        privacy_unit: Any = "row",
        adjacency: str = "add-remove",
        n_estimators: int = 20,
        max_depth: int = 5,
        voting: str = "majority",
        trees: str = "shared",
        leaves: str = "plain",
        random_state: Any = None,
        ledger: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            schema, epsilon=epsilon, delta=delta, privacy_unit=privacy_unit, adjacency=adjacency,
            n_estimators=n_estimators, max_depth=max_depth, trees=trees, leaves=leaves, random_state=random_state,
            ledger=ledger, n_jobs=n_jobs,
        )  # fmt: skip
        self.voting = voting


class RandomTreesRegressor(CountedRegressor, _RandomTrees):
    """Random decision trees with private leaf means.

    Each leaf releases the rotated pair of its targets, which yields sum and count together at the price of one
    (proofs/rotated-pair.md). Targets outside the schema's bounds are clamped.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, n_estimators, max_depth, trees, leaves, random_state, ledger
        As in ``RandomTreesClassifier``; the schema's target is numeric, with bounds.
    n_jobs : int or None
        Threads; -1 for all cores.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/random-trees.md, attacked by
    tests/audit/test_audit.py.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> x = np.linspace(0, 1, 1000)[:, None]
    >>> forest = vw.RandomTreesRegressor(schema, epsilon=1.0, max_depth=3, random_state=0).fit(x, 10 * x[:, 0])
    >>> bool(forest.predict([[0.9]])[0] > forest.predict([[0.1]])[0])
    True
    """
