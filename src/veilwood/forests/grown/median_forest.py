# SPDX-License-Identifier: Apache-2.0
"""Median forests (DiPriMe, Consul and Williamson 2020): splits at private medians, noisy leaves.

A level of splits is grown in ``medians``; what happens at leaves is in ``counted``.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np

from veilwood.data.batches import AddUp
from veilwood.data.encoding import Encoding
from veilwood.forests.grown.base import GrownForest
from veilwood.forests.grown.medians import VARIANTS, Level, Variant, grow_level, plan_level
from veilwood.forests.noisy_leaves import CountedClassifier, CountedRegressor
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.trees.counting import Assignment
from veilwood.trees.levelwise import Growing


class _MedianForest(GrownForest):
    """Median forests for either task."""

    _splits: ClassVar[str] = "split at private medians"
    _variants: ClassVar[tuple[str, ...]] = VARIANTS

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        privacy_unit: Any = "row",
        adjacency: str = "add-remove",
        n_estimators: int = 10,
        max_depth: int = 6,
        variant: str = "select-then-median",
        selection: str = "flip",
        split_share: float = 0.5,
        candidates: int = 5,
        trees: str = "disjoint",
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
        self.variant = variant
        self.selection = selection
        self.split_share = split_share
        self.candidates = candidates
        self.trees = trees
        self.leaves = leaves
        self.random_state = random_state
        self.ledger = ledger
        self.n_jobs = n_jobs

    def _check_choices(self) -> None:
        super()._check_choices()
        self._one_of("variant", self._variants)

    def _plan_level(self, encoding: Encoding, depth: int, n_nodes: int, loss: Loss, neighbours: Neighbours) -> Level:
        return plan_level(
            depth,
            cast(Variant, self.variant),
            loss,
            neighbours,
            n_nodes=n_nodes,
            trees_per_row=self._trees_per_row,
            candidates=self._n_candidates(encoding),
            by=self.selection,
            moments=self._task == "regression",
        )

    def _grow_level(
        self, encoding: Encoding, growing: Growing, level: Level, door: Door, add_up: AddUp,
        rng: np.random.Generator, assignment: Assignment | None,
    ) -> None:  # fmt: skip
        grow_level(
            growing,
            level,
            cast(Variant, self.variant),
            door,
            add_up,
            rng,
            candidates=self._n_candidates(encoding),
            n_classes=len(encoding.schema.classes) or None,
            assignment=assignment,
            n_jobs=self.n_jobs,
        )


class MedianForestClassifier(CountedClassifier, _MedianForest):
    """Trees split at private medians, with private class counts in their leaves (DiPriMe).

    Medians keep leaves equally full, so that none drowns in noise. At each node a few attributes are drawn at random;
    one of them is chosen privately by how well it separates the classes, and cut at its private median; categorical
    attributes are cut into two balanced random subsets. Each row is given to one tree, so that trees cost nothing
    extra.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger, n_jobs
        As in ``RandomTreesClassifier``.
    n_estimators, max_depth : int
        Number and height of the trees.
    variant : {"select-then-median", "k-medians", "random-attribute"}
        Choose an attribute, then its median; or the medians of all candidates first (at a budget divided among them)
        and then the best of these splits (DiPriMeExp, DiPriMeFlip); or the median of a random attribute (DiPriMe).
    selection : {"flip", "exponential"}
        Choose by permute-and-flip or by the exponential mechanism; with ``delta`` above 0 the latter costs less.
    split_share : float
        Share of the budget spent on splits, in equal parts over the levels; the rest is for leaves.
    candidates : int
        Attributes drawn at random at each node.
    voting : {"threshold", "majority", "probabilistic"}
        Average the shares of leaves, or let each tree vote for its leaf's class, or draw by the averaged shares.
    trees : {"disjoint", "shared"}
        Give each row to one tree, drawn by a secret key, or to all trees, which share the budget.
    leaves : {"plain", "empirical-bayes"}
        How noisy leaves are cleaned; costs nothing.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_, forest_, leaf_counts_
        As in ``RandomTreesClassifier``.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/median-forest.md, attacked by
    tests/forests/test_medians.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.MedianForestClassifier(car.schema, epsilon=2.0, n_estimators=4, max_depth=3, random_state=0)
    >>> len(forest.plan().steps)  # attributes and medians of three levels, and leaves
    7
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
        n_estimators: int = 10,
        max_depth: int = 6,
        variant: str = "select-then-median",
        selection: str = "flip",
        split_share: float = 0.5,
        candidates: int = 5,
        voting: str = "threshold",
        trees: str = "disjoint",
        leaves: str = "plain",
        random_state: Any = None,
        ledger: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            schema, epsilon=epsilon, delta=delta, privacy_unit=privacy_unit, adjacency=adjacency,
            n_estimators=n_estimators, max_depth=max_depth, variant=variant, selection=selection,
            split_share=split_share, candidates=candidates, trees=trees, leaves=leaves, random_state=random_state,
            ledger=ledger, n_jobs=n_jobs,
        )  # fmt: skip
        self.voting = voting


class MedianForestRegressor(CountedRegressor, _MedianForest):
    """Trees split at private medians, with private means in their leaves (DiPriMe).

    As ``MedianForestClassifier``; attributes are chosen by the squared error of the target, and each leaf releases the
    rotated pair of its targets (proofs/rotated-pair.md).

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, n_estimators, max_depth
        As in ``MedianForestClassifier``; the schema's target is numeric, with bounds.
    variant, selection, split_share, candidates, trees, leaves, random_state, ledger, n_jobs
        As in ``MedianForestClassifier``.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/median-forest.md, attacked by
    tests/forests/test_medians.py.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> x = np.linspace(0, 1, 1000)[:, None]
    >>> forest = vw.MedianForestRegressor(schema, epsilon=5.0, max_depth=2, random_state=0).fit(x, 10 * x[:, 0])
    >>> bool(forest.predict([[0.9]])[0] > forest.predict([[0.1]])[0])
    True
    """
