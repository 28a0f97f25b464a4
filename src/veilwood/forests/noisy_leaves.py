# SPDX-License-Identifier: Apache-2.0
"""What forests with noisy leaves share: the leaf step of their plan, cleaning, voting, predictions.

How a family gets its trees is in its own file; the order of a fit is in ``base``.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from veilwood.data.batches import Count, Source
from veilwood.data.cluster.engines import anywhere
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema, Task
from veilwood.errors import ModelFileError, UtilityWarning
from veilwood.forests import leaves as cleaning
from veilwood.forests.base import BaseForest, Classifies, Design
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Records
from veilwood.privacy.steps import Step, counting_step
from veilwood.trees.counting import Assignment, leaf_totals, sum_over_trees
from veilwood.trees.forest import Forest

VOTINGS = ("majority", "threshold", "probabilistic")
TREES = ("shared", "disjoint")


class CountedForest(BaseForest):
    """A forest whose leaves hold noisy class counts, or the noisy rotated pair of a regression target."""

    forest_: Forest
    leaf_counts_: NDArray[Any]
    _leaf_dtype: ClassVar[type] = np.int64

    # Set by the constructors of the families.
    n_estimators: Any
    max_depth: Any
    trees: Any
    leaves: Any

    def _check_choices(self) -> None:
        self._one_of("trees", TREES)
        self._one_of("leaves", cleaning.CLEANINGS)

    # -- the plan ------------------------------------------------------------------------------------------------

    @property
    def _trees_per_row(self) -> int:
        return 1 if self.trees == "disjoint" else int(np.sum(self.n_estimators))

    @property
    def _records(self) -> Records:
        return EACH_TO_ONE_TREE if self.trees == "disjoint" else ALL_TO_EVERY_TREE

    def _leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        """Plan the release of all leaves.

        One row adds one class count (or one rotated pair, whose sum is TARGET_LEVELS) in each tree that sees it.
        """
        classes = schema.task == "classification"
        per_tree = 1 if classes else TARGET_LEVELS
        return counting_step(
            "class counts of leaves" if classes else "rotated target sums of leaves",
            (n_leaves, len(schema.classes) if classes else 2),
            loss,
            neighbours,
            l1=self._trees_per_row * per_tree,
            squared_l2=self._trees_per_row * per_tree**2,
        )

    def _expected_leaf_mse(self, step: Step) -> float:
        # The count of rows in a regression leaf is the sum of its pair divided by TARGET_LEVELS.
        return step.variance * (1 if self._task == "classification" else 2 / TARGET_LEVELS**2)

    # -- the data ------------------------------------------------------------------------------------------------

    def _assignment(self, n_trees: int) -> Assignment | None:
        """Draw the secret key that gives each row to one tree, where trees are disjoint."""
        return Assignment(secret_key(), n_trees) if self.trees == "disjoint" else None

    def _exact_leaves(
        self, design: Design, forest: Forest, source: Source, assignment: Assignment | None
    ) -> NDArray[np.int64]:
        """Count the leaves in one pass: exact, for the door only."""
        return source.add_up(self._leaf_count(design, forest, assignment), n_jobs=self.n_jobs)

    def _leaf_count(self, design: Design, forest: Forest, assignment: Assignment | None) -> Count:
        return partial(
            leaf_totals,
            forest,
            n_classes=len(design.encoding.schema.classes) or None,
            target_levels=TARGET_LEVELS,
            assignment=assignment,
        )

    # -- after the door --------------------------------------------------------------------------------------------

    def _set_leaves(self, forest: Forest, released: NDArray[Any]) -> None:
        self.forest_ = forest
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
            cleaner = "" if self.leaves == "empirical-bayes" else ", use leaves='empirical-bayes'"
            warnings.warn(
                f"expected noise of {noise:.3g} rows on each count of a leaf of about {rows_per_leaf:.3g} rows. "
                f"Hint: vw.tune compares settings; lower max_depth or n_estimators{cleaner}, or spend more epsilon.",
                UtilityWarning,
                stacklevel=7,
            )

    def _leaf_shares(self) -> NDArray[np.float64]:
        """Class shares (or scaled mean and complement) of each leaf, by the chosen cleaning."""
        counts: NDArray[Any] = self.leaf_counts_
        if self.leaves == "empirical-bayes":
            counts = cleaning.shrunken_counts(self.forest_, counts.astype(float), self.plan_.steps[-1].variance)
        if self._task == "classification":
            return cleaning.plain_shares(counts)
        return cleaning.plain_means(counts, TARGET_LEVELS)

    def _leaf_values(self) -> NDArray[np.float64]:
        """What each leaf says; its mean over the trees is the prediction."""
        return self._leaf_shares()

    def _mean_over_trees(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        return sum_over_trees(self.forest_, codes, self._leaf_values(), n_jobs=self.n_jobs) / self.forest_.n_trees

    def _encoding(self) -> Encoding:
        return Encoding(self.schema_, "grid")

    def _model_arrays(self) -> dict[str, NDArray[Any]]:
        return {**self.forest_.to_arrays(), "leaf_counts": self.leaf_counts_}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._check_choices()
        forest = Forest.from_arrays(arrays, self._encoding().n_codes)
        shape, counts = (forest.n_leaves, len(self.schema_.classes) or 2), arrays.get("leaf_counts")
        if counts is None or counts.dtype != self._leaf_dtype or counts.shape != shape:
            raise ModelFileError(f"the leaf counts are missing, or not {shape} numbers as planned.")
        if forest.n_leaves > self.plan_.n_leaves:
            raise ModelFileError(f"{forest.n_leaves} leaves are more than the {self.plan_.n_leaves} planned.")
        self.forest_, self.leaf_counts_ = forest, counts


class CountedClassifier(Classifies, CountedForest):
    """Predictions of classes from noisy counts."""

    _task: ClassVar[Task] = "classification"
    voting: Any

    def _check_choices(self) -> None:
        super()._check_choices()
        self._one_of("voting", VOTINGS)

    @anywhere
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the share of each class: of the trees' votes, or averaged over the leaves."""
        return self._mean_over_trees(self._encode(X))

    @anywhere
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted classes. Free: computed from released counts."""
        codes = self._encode(X)
        shares = self._mean_over_trees(codes)
        if self.voting == "probabilistic":
            seed = int(self.random_state) if isinstance(self.random_state, int | np.integer) else 0
            coin = cleaning.coins(codes, seed)[:, None]
            chosen = np.minimum((np.cumsum(shares, axis=1) <= coin).sum(axis=1), shares.shape[1] - 1)
        else:
            chosen = shares.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def _leaf_values(self) -> NDArray[np.float64]:
        shares = self._leaf_shares()
        return cleaning.votes(shares) if self.voting == "majority" else shares

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._tags(tags, tags.classifier_tags)


class CountedRegressor(RegressorMixin, CountedForest):  # type: ignore[misc]
    """Predictions of numbers from noisy rotated pairs."""

    _task: ClassVar[Task] = "regression"

    @anywhere
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return predicted targets, inside the schema's bounds. Free: computed from released sums."""
        share = self._mean_over_trees(self._encode(X))[:, 0]
        return self._encoding().decode_target(share * TARGET_LEVELS)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._tags(tags, tags.regressor_tags)
