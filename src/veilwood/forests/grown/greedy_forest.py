# SPDX-License-Identifier: Apache-2.0
"""Greedy private forests (DP-ID3, DP-RF, DP-DF): splits chosen privately by how well they separate the target.

A level of splits is grown in ``greedy``; what happens at leaves is in ``counted``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import AddUp
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.errors import VeilwoodError
from veilwood.forests.grown.base import GrownForest
from veilwood.forests.grown.greedy import BRANCHINGS, QUALITIES, Branching, Level, Quality, grow_level, plan_level
from veilwood.forests.noisy_leaves import CountedClassifier, CountedRegressor
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, selecting_step
from veilwood.trees.counting import Assignment
from veilwood.trees.levelwise import Growing

LEAF_UPDATES = ("laplace", "exponential")
# Each level may spend this much more on its splits than the one above it: deeper nodes have fewer rows.
BUDGET_GROWTH = Fraction(3, 2)


class _GreedyForest(GrownForest):
    """Greedy forests for either task."""

    _splits: ClassVar[str] = "split by private greedy choices"

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        privacy_unit: Any = "row",
        adjacency: str = "add-remove",
        n_estimators: int = 10,
        max_depth: int = 3,
        selection: str = "exponential",
        branching: str = "multiway",
        split_share: float = 0.3,
        candidates: int | None = None,
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
        self.selection = selection
        self.branching = branching
        self.split_share = split_share
        self.candidates = candidates
        self.trees = trees
        self.leaves = leaves
        self.random_state = random_state
        self.ledger = ledger
        self.n_jobs = n_jobs

    @property
    def _numeric(self) -> Any:  # type: ignore[override]  # decided by a parameter here
        return "bins" if self.branching == "multiway" else "grid"

    @property
    def _quality(self) -> Quality:
        return "squared-error"

    def _check_choices(self) -> None:
        super()._check_choices()
        self._one_of("branching", BRANCHINGS)

    def _level_shares(self) -> Sequence[Fraction]:
        weights = [BUDGET_GROWTH**depth for depth in range(self.max_depth)]
        return [weight / sum(weights) for weight in weights]

    def _most_nodes(self, encoding: Encoding, depth: int) -> int:
        if self.branching == "binary":
            return super()._most_nodes(encoding, depth)
        if depth > len(encoding.columns):
            raise VeilwoodError(
                f"max_depth={self.max_depth} exceeds the {len(encoding.columns)} features: a multiway tree uses each "
                f"once on a path. Hint: max_depth={len(encoding.columns)} or less."
            )
        return int(self.n_estimators) * prod(sorted(encoding.n_codes, reverse=True)[:depth])

    def _plan_level(self, encoding: Encoding, depth: int, n_nodes: int, loss: Loss, neighbours: Neighbours) -> Level:
        return plan_level(
            depth,
            self._quality,
            cast(Branching, self.branching),
            loss,
            neighbours,
            n_nodes=n_nodes,
            trees_per_row=self._trees_per_row,
            candidates=self._n_candidates(encoding),
            by=self.selection,
        )

    def _grow_level(
        self, encoding: Encoding, growing: Growing, level: Level, door: Door, add_up: AddUp,
        rng: np.random.Generator, assignment: Assignment | None,
    ) -> None:  # fmt: skip
        grow_level(
            growing,
            level,
            self._quality,
            cast(Branching, self.branching),
            door,
            add_up,
            rng,
            candidates=self._n_candidates(encoding),
            max_codes=max(encoding.n_codes),
            n_classes=len(encoding.schema.classes) or None,
            assignment=assignment,
            n_jobs=self.n_jobs,
        )


class GreedyForestClassifier(CountedClassifier, _GreedyForest):
    """Trees whose splits are chosen privately by how well they separate the classes.

    The greedy baselines of the literature, made sound: DP-ID3 (one tree, ``quality="max"``, every attribute a
    candidate), DP-RF (several trees and random candidates; ``quality`` "gini", "entropy" or "max"; keyed assignment of
    rows instead of bootstrap samples, which would let a row count several times), and DP-DF as far as pure epsilon
    allows (``quality="gini"``, ``leaf_update="exponential"``; its smooth sensitivity has no pure-epsilon form).

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger, n_jobs
        As in ``RandomTreesClassifier``.
    n_estimators, max_depth : int
        Number and height of the trees.
    quality : {"max", "gini", "entropy"}
        Score of a split: rows in the majority class of their child, or minus the children's Gini impurity or entropy,
        times their rows. Entropy is exact for children of up to 65,536 rows; no bound on its change would hold for
        more.
    selection : {"exponential", "flip"}
        Choose splits by the exponential mechanism or by permute-and-flip.
    leaf_update : {"laplace", "exponential"}
        Release the class counts of each leaf with noise, or only a label, chosen like the splits.
    branching : {"multiway", "binary"}
        One child for each value (numbers are cut at the schema's ``cutoffs`` or ``bins``), or two, at a threshold.
    split_share : float
        Share of the budget spent on splits, each level getting 1.5 times what the one above it gets.
    candidates : int or None
        Attributes drawn at random at each node; None for all.
    voting : {"threshold", "majority", "probabilistic"}
        Average the shares of leaves, or let each tree vote for its leaf's class, or draw by the averaged shares.
    trees : {"disjoint", "shared"}
        Give each row to one tree, drawn by a secret key, or to all trees, which share the budget.
    leaves : {"plain", "empirical-bayes"}
        How noisy leaves are cleaned; costs nothing.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_, forest_
        As in ``RandomTreesClassifier``.
    leaf_counts_ : ndarray of int64
        The released noisy counts; with ``leaf_update="exponential"``, 1 for the released label of each leaf.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/greedy-forest.md, attacked by
    tests/forests/test_greedy.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> tree = vw.GreedyForestClassifier(car.schema, epsilon=4.0, n_estimators=1, max_depth=2, random_state=0)
    >>> tree.fit(car.X, car.y).privacy_.epsilon
    4.0
    >>> tree.predict(car.X[:3]).shape
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
        max_depth: int = 3,
        quality: str = "max",
        selection: str = "exponential",
        leaf_update: str = "laplace",
        branching: str = "multiway",
        split_share: float = 0.3,
        candidates: int | None = None,
        voting: str = "threshold",
        trees: str = "disjoint",
        leaves: str = "plain",
        random_state: Any = None,
        ledger: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            schema, epsilon=epsilon, delta=delta, privacy_unit=privacy_unit, adjacency=adjacency,
            n_estimators=n_estimators, max_depth=max_depth, selection=selection, branching=branching,
            split_share=split_share, candidates=candidates, trees=trees, leaves=leaves, random_state=random_state,
            ledger=ledger, n_jobs=n_jobs,
        )  # fmt: skip
        self.quality = quality
        self.leaf_update = leaf_update
        self.voting = voting

    @property
    def _quality(self) -> Quality:
        return cast(Quality, self.quality)

    def _check_choices(self) -> None:
        super()._check_choices()
        self._one_of("quality", QUALITIES)
        if self._one_of("leaf_update", LEAF_UPDATES) == "exponential" and self.leaves != "plain":
            raise VeilwoodError(
                f"leaves={self.leaves!r} needs noisy counts, and leaf_update='exponential' releases labels. "
                "Hint: leaves='plain' or leaf_update='laplace'."
            )

    def _leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        if self.leaf_update == "laplace":
            return super()._leaf_step(schema, loss, neighbours, n_leaves)
        return selecting_step(
            "labels of leaves", (n_leaves, len(schema.classes)), loss, neighbours,
            score_range=1, selections_per_row=self._trees_per_row, by=self.selection,
        )  # fmt: skip

    def _release_leaves(self, door: Door, step: Step, exact_leaves: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.leaf_update == "laplace":
            return super()._release_leaves(door, step, exact_leaves)
        return np.eye(step.shape[1], dtype=np.int64)[door.select(step, exact_leaves)]


class GreedyForestRegressor(CountedRegressor, _GreedyForest):
    """Trees whose splits are chosen privately by the squared error of the target, with private means in their leaves.

    As ``GreedyForestClassifier``; each leaf releases the rotated pair of its targets (proofs/rotated-pair.md).

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, n_estimators, max_depth
        As in ``GreedyForestClassifier``; the schema's target is numeric, with bounds.
    selection, branching, split_share, candidates, trees, leaves, random_state, ledger, n_jobs
        As in ``GreedyForestClassifier``.

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/greedy-forest.md, attacked by
    tests/forests/test_greedy.py.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> x = np.linspace(0, 1, 1000)[:, None]
    >>> forest = vw.GreedyForestRegressor(schema, epsilon=5.0, max_depth=1, random_state=0).fit(x, 10 * x[:, 0])
    >>> bool(forest.predict([[0.9]])[0] > forest.predict([[0.1]])[0])
    True
    """
