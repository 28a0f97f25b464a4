# SPDX-License-Identifier: Apache-2.0
"""Median forests (DiPriMe, Consul and Williamson 2020): splits at private medians, noisy leaves.

A level of splits is grown in ``medians``; what happens at leaves is in ``counted``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from veilwood.encoding import Encoding
from veilwood.errors import VeilwoodError
from veilwood.estimators.base import Design
from veilwood.estimators.counted import CountedClassifier, CountedForest, CountedRegressor
from veilwood.growing import Growing
from veilwood.medians import VARIANTS, Level, Variant, grow_level, plan_level
from veilwood.plan import Plan
from veilwood.privacy import Loss, Neighbours, exact
from veilwood.progress import track
from veilwood.release import Door
from veilwood.schema import Schema
from veilwood.sources import Source
from veilwood.structure import Forest, check_size, public_generators

SELECTIONS = ("flip", "exponential")


@dataclass(frozen=True)
class MedianDesign(Design):
    """The public design of a median forest: trees without any split yet, and what each level may spend."""

    levels: tuple[Level, ...]


class _MedianForest(CountedForest):
    """Median forests for either task."""

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
        self._one_of("variant", VARIANTS)
        self._one_of("selection", SELECTIONS)
        check_size(self.n_estimators, self.max_depth, 2)
        candidates, share = self.candidates, exact(self.split_share, "split_share")
        if not isinstance(candidates, int | np.integer) or isinstance(candidates, bool) or candidates < 1:
            raise VeilwoodError(f"candidates={candidates!r} must be a whole number of at least 1.")
        if not 0 < share < 1:
            raise VeilwoodError(f"split_share={self.split_share!r} must be above 0 and below 1. Hint: 0.5.")

    def _design(self, schema: Schema, loss: Loss, neighbours: Neighbours) -> MedianDesign:
        self._check_choices()
        encoding = Encoding(schema, "grid")
        share = exact(self.split_share, "split_share")
        levels = tuple(
            plan_level(
                depth,
                cast(Variant, self.variant),
                loss.part(share / self.max_depth),
                neighbours,
                n_trees=self.n_estimators,
                trees_per_row=self._trees_per_row,
                candidates=self._n_candidates(encoding),
                by=self.selection,  # type: ignore[arg-type]  # checked above
                moments=schema.task == "regression",
            )
            for depth in range(self.max_depth)
        )
        step = self._leaf_step(schema, loss.part(1 - share), neighbours, self.n_estimators * 2**self.max_depth)
        plan = Plan(
            estimator=type(self).__name__,
            loss=loss,
            neighbours=neighbours,
            steps=(*(part for level in levels for part in level.steps), step),
            released=f"the splits and {step.name}, with noise, of {self.n_estimators} trees split at private medians",
            schema_name=schema.name,
            schema_hash=schema.fingerprint(),
            structure={
                "trees": self.n_estimators,
                "leaves": self.n_estimators * 2**self.max_depth,
                "depth": self.max_depth,
                "records": self._records,
            },
            expected_leaf_mse=self._expected_leaf_mse(step),
        )
        return MedianDesign(encoding, Growing(encoding.columns, self.n_estimators).finish(), plan, levels)

    def _n_candidates(self, encoding: Encoding) -> int:
        return min(int(self.candidates), len(encoding.columns))

    def _measure(self, design: Design, source: Source, door: Door) -> tuple[Forest, NDArray[np.int64]]:
        assert isinstance(design, MedianDesign)
        assignment = self._assignment(self.n_estimators)
        (rng,) = public_generators(self.random_state, 1)
        growing = Growing(design.encoding.columns, self.n_estimators)
        for level in design.levels:
            grow_level(
                growing,
                level,
                cast(Variant, self.variant),
                door,
                lambda: track(source.batches(), "splitting"),
                rng,
                candidates=self._n_candidates(design.encoding),
                n_classes=len(design.encoding.schema.classes) or None,
                assignment=assignment,
                n_jobs=self.n_jobs,
            )
        forest = growing.finish()
        leaf_step = design.plan.steps[-1]
        exact_leaves = np.zeros(leaf_step.shape, np.int64)  # leaves that were planned and never grown stay empty
        exact_leaves[: forest.n_leaves] = self._exact_leaves(design, forest, source, assignment)
        return forest, door.noisy(leaf_step, exact_leaves)[: forest.n_leaves]

    def _learn(self, design: Design, released: tuple[Forest, NDArray[np.int64]]) -> None:
        self._set_leaves(*released)


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

    Guarantee
    ---------
    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/median-forest.md, attacked by
    tests/test_medians.py.

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

    Guarantee
    ---------
    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/median-forest.md, attacked by
    tests/test_medians.py.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> x = np.linspace(0, 1, 1000)[:, None]
    >>> forest = vw.MedianForestRegressor(schema, epsilon=5.0, max_depth=2, random_state=0).fit(x, 10 * x[:, 0])
    >>> bool(forest.predict([[0.9]])[0] > forest.predict([[0.1]])[0])
    True
    """
