# SPDX-License-Identifier: Apache-2.0
"""Random decision trees (Bojarski, Choromanska, Choromanski, LeCun 2014): structure without data, noisy leaves.

The structure is grown in ``structure``, counted in ``counting``, cleaned in ``leaves``.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from veilwood import leaves as cleaning
from veilwood.counting import Assignment, leaf_totals, sum_over_trees
from veilwood.encoding import TARGET_LEVELS, Encoding
from veilwood.entropy import secret_key
from veilwood.errors import UtilityWarning
from veilwood.estimators.base import BaseForest, Design
from veilwood.plan import Plan, counting_step
from veilwood.privacy import Loss, Neighbours
from veilwood.release import Door
from veilwood.schema import Schema, Task
from veilwood.sources import Source
from veilwood.structure import Forest, grow_binary

Voting = Literal["majority", "threshold", "probabilistic"]
VOTINGS = ("majority", "threshold", "probabilistic")
TREES = ("shared", "disjoint")


class _RandomTrees(BaseForest):
    """Random trees for either task: a leaf holds class counts, or the rotated pair of a regression target."""

    forest_: Forest
    leaf_counts_: NDArray[np.int64]

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

    def _design(self, schema: Schema, loss: Loss, neighbours: Neighbours) -> Design:
        self._one_of("trees", TREES)
        self._one_of("leaves", cleaning.CLEANINGS)
        encoding = Encoding(schema, "grid")
        forest = grow_binary(encoding.columns, self.n_estimators, self.max_depth, self.random_state)
        # One row adds one class count (or one rotated pair, whose sum is TARGET_LEVELS) in each tree that sees it.
        visits = 1 if self.trees == "disjoint" else forest.n_trees
        per_tree = 1 if schema.task == "classification" else TARGET_LEVELS
        columns = len(schema.classes) if schema.task == "classification" else 2
        step = counting_step(
            "class counts of leaves" if schema.task == "classification" else "rotated target sums of leaves",
            (forest.n_leaves, columns),
            loss,
            neighbours,
            l1=visits * per_tree,
            squared_l2=visits * per_tree**2,
        )
        plan = Plan(
            estimator=type(self).__name__,
            loss=loss,
            neighbours=neighbours,
            steps=(step,),
            released=f"{step.name}, with noise, of {forest.n_trees} random trees grown without data",
            schema_name=schema.name,
            schema_hash=schema.fingerprint(),
            structure={
                "trees": forest.n_trees,
                "leaves": forest.n_leaves,
                "depth": forest.depth,
                "records": "each to one tree" if self.trees == "disjoint" else "all to every tree",
            },
            # The count of rows in a regression leaf is the sum of its pair divided by TARGET_LEVELS.
            expected_leaf_mse=step.variance * (1 if schema.task == "classification" else 2 / TARGET_LEVELS**2),
        )
        return Design(encoding, forest, plan)

    def _measure(self, design: Design, source: Source, door: Door) -> NDArray[np.int64]:
        (step,) = design.plan.steps
        assignment = Assignment(secret_key(), design.forest.n_trees) if self.trees == "disjoint" else None
        schema = design.encoding.schema
        exact = leaf_totals(
            design.forest,
            source.batches(),
            n_classes=len(schema.classes) if schema.task == "classification" else None,
            target_levels=TARGET_LEVELS,
            assignment=assignment,
            n_jobs=self.n_jobs,
        )
        return door.noisy(step, exact)

    def _learn(self, design: Design, released: NDArray[np.int64]) -> None:
        self.forest_ = design.forest
        self.leaf_counts_ = released
        self._warn_if_drowned()

    def _warn_if_drowned(self) -> None:
        """Warn when the noise is larger than the leaves, judged from the noisy counts themselves."""
        noise = self.plan_.expected_leaf_mse**0.5
        if noise == 0:
            return
        unit = 1 if self._task == "classification" else TARGET_LEVELS
        rows_per_leaf = max(0.0, float(self.leaf_counts_.sum()) / unit) / self.forest_.n_leaves
        if noise > rows_per_leaf:
            warnings.warn(
                f"expected noise of {noise:.3g} rows on each count of a leaf of about {rows_per_leaf:.3g} rows. "
                "Hint: lower max_depth or n_estimators, use leaves='empirical-bayes', or spend more epsilon.",
                UtilityWarning,
                stacklevel=4,
            )

    def _leaf_shares(self) -> NDArray[np.float64]:
        """Class shares (or scaled mean and complement) of each leaf, by the chosen cleaning."""
        counts: NDArray[Any] = self.leaf_counts_
        if self.leaves == "empirical-bayes":
            counts = cleaning.shrunken_counts(self.forest_, counts.astype(float), self.plan_.steps[0].variance)
        if self._task == "classification":
            return cleaning.plain_shares(counts)
        return cleaning.plain_means(counts, TARGET_LEVELS)

    def _mean_over_trees(self, codes: NDArray[np.uint16], leaf_values: NDArray[np.float64]) -> NDArray[np.float64]:
        return sum_over_trees(self.forest_, codes, leaf_values, n_jobs=self.n_jobs) / self.forest_.n_trees

    def _encoding(self) -> Encoding:
        return Encoding(self.schema_, "grid")


class RandomTreesClassifier(ClassifierMixin, _RandomTrees):  # type: ignore[misc]
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

    Guarantee
    ---------
    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/random-trees.md, attacked by
    tests/test_audit.py.

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

    _task: ClassVar[Task] = "classification"

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

    def _design(self, schema: Schema, loss: Loss, neighbours: Neighbours) -> Design:
        self._one_of("voting", VOTINGS)
        return super()._design(schema, loss, neighbours)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the share of each class: of the trees' votes, or averaged over the leaves."""
        return self._probabilities(self._encode(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted classes. Free: computed from released counts."""
        codes = self._encode(X)
        shares = self._probabilities(codes)
        if self.voting == "probabilistic":
            seed = self.random_state if isinstance(self.random_state, int) else 0
            coin = cleaning.coins(codes, seed)[:, None]
            chosen = np.minimum((np.cumsum(shares, axis=1) <= coin).sum(axis=1), shares.shape[1] - 1)
        else:
            chosen = shares.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def _probabilities(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        shares = self._leaf_shares()
        return self._mean_over_trees(codes, cleaning.votes(shares) if self.voting == "majority" else shares)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        tags.non_deterministic = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


class RandomTreesRegressor(RegressorMixin, _RandomTrees):  # type: ignore[misc]
    """Random decision trees with private leaf means.

    Each leaf releases the rotated pair of its targets, which yields sum and count together at the price of one
    (proofs/rotated-pair.md). Targets outside the schema's bounds are clamped.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, n_estimators, max_depth, trees, leaves, random_state, ledger
        As in ``RandomTreesClassifier``; the schema's target is numeric, with bounds.
    n_jobs : int or None
        Threads; -1 for all cores.

    Guarantee
    ---------
    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/random-trees.md, attacked by
    tests/test_audit.py.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> x = np.linspace(0, 1, 1000)[:, None]
    >>> forest = vw.RandomTreesRegressor(schema, epsilon=1.0, max_depth=3, random_state=0).fit(x, 10 * x[:, 0])
    >>> bool(forest.predict([[0.9]])[0] > forest.predict([[0.1]])[0])
    True
    """

    _task: ClassVar[Task] = "regression"

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return predicted targets, inside the schema's bounds. Free: computed from released sums."""
        share = self._mean_over_trees(self._encode(X), self._leaf_shares())[:, 0]
        return self._encoding().decode_target(share * TARGET_LEVELS)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        tags.non_deterministic = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags
