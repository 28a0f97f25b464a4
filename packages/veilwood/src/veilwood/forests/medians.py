# SPDX-License-Identifier: Apache-2.0
"""Median forests: trees split at private medians (DiPriMe, Consul and Williamson), one level at a time.

Exact values are passed to the door only. ``levelwise`` divides the budget and releases the leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from veilwood.arrays import Ints
from veilwood.data.encoding import Encoding
from veilwood.estimators.base import Classifier, Regressor
from veilwood.estimators.parameters import ClassWeights, Role, SharedParameters, parameter
from veilwood.forests.levelwise import LevelNodes, LevelwiseMethod, LevelwiseParameters, Splitter
from veilwood.forests.noisy_leaves import TreeStep
from veilwood.privacy.door import Door
from veilwood.privacy.steps import Step, selection_step
from veilwood.trees.histograms import edge_scores, impurity_range, level_scores
from veilwood.trees.level_growth import CandidateSplits, GrowingForest

Variant: TypeAlias = Literal["select-then-median", "k-medians", "random-attribute"]
VARIANTS: tuple[Variant, ...] = ("select-then-median", "k-medians", "random-attribute")

BINS = 64
"""Maximum number of bins of a node's range of a column. A median is an edge between two bins."""

NO_EDGE = 1 << 60
"""Impurity of a missing edge, larger than any impurity of rows."""


@dataclass(frozen=True)
class MedianLevel:
    """Planned selections of one level: attributes (None if they are drawn at random) and medians."""

    attributes: Step | None
    medians: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the level, in the order of ``Plan.steps``."""
        return (self.medians,) if self.attributes is None else (self.attributes, self.medians)


def plan_level(nodes: LevelNodes, variant: Variant, *, moments: bool) -> MedianLevel:
    """Plan the selections at the nodes of a level. Together the selections have the privacy loss of the level.

    Attributes and medians get half of the level's budget each (section 4 of the paper). Medians get all of it if
    attributes are drawn at random.

    Notes
    -----
    Guarantee

    A row is in one node of each tree that counts it, so the level has no larger loss (proofs/median-forest.md, attacked
    by packages/veilwood/tests/forests/test_medians.py).
    """
    select = partial(selection_step, neighbours=nodes.neighbours, by=nodes.mechanism)
    median = TreeStep.MEDIANS.at(nodes.depth)
    if variant == "random-attribute":
        step = select(
            median, (nodes.max_nodes, BINS - 1), nodes.loss, score_range=2, selections_per_row=nodes.trees_per_row
        )
        return MedianLevel(None, step)
    half = nodes.loss.scaled(Fraction(1, 2))
    medians_per_node = nodes.candidates if variant == "k-medians" else 1
    return MedianLevel(
        attributes=select(
            TreeStep.ATTRIBUTES.at(nodes.depth), (nodes.max_nodes, nodes.candidates), half,
            score_range=impurity_range(moments), selections_per_row=nodes.trees_per_row,
        ),
        medians=select(
            median, (nodes.max_nodes * medians_per_node, BINS - 1), half,
            score_range=2, selections_per_row=nodes.trees_per_row * medians_per_node,
        ),
    )  # fmt: skip


def grow_level(growing: GrowingForest, level: MedianLevel, variant: Variant, splitter: Splitter) -> None:
    """Split every open node at a private median, in one pass over the rows. A node without candidates is a leaf."""
    door, candidates, moments = splitter.door, splitter.candidates, splitter.n_classes is None
    chosen = growing.draw_candidates(1 if variant == "random-attribute" else candidates, splitter.rng)
    slots = growing.bin_candidates(chosen, BINS, splitter.rng)
    if slots.n_candidates == 0:
        growing.split_nodes(slots, np.full(growing.n_open_nodes, -1), np.zeros(growing.n_open_nodes, np.int64))
        return
    imbalance, *more = level_scores(
        growing, slots, splitter.aggregate,
        partial(edge_scores, moments=moments, with_impurity=variant != "random-attribute"),
        n_classes=splitter.n_classes, max_bins=BINS, assignment=splitter.assignment,
        n_jobs=splitter.n_jobs, fast=splitter.fast,
    )  # fmt: skip
    edges = np.arange(BINS - 1) < slots.n_bins[:, None] - 1  # public: the edges of each slot
    open_ = np.flatnonzero(np.diff(slots.first))
    winner = np.full(growing.n_open_nodes, -1)
    if variant == "select-then-median":
        (impurity,) = more
        scores = -np.where(edges, impurity, NO_EDGE).min(axis=1)  # impurity of each attribute's best edge
        winner[open_] = _select_slots(door, level, slots, open_, scores, candidates)
        edge = door.select(level.medians, -imbalance[winner[open_]], edges[winner[open_]])
    elif variant == "k-medians":
        (impurity,) = more
        medians = door.select(level.medians, -imbalance, edges)
        scores = -np.take_along_axis(impurity, medians[:, None], axis=1)[:, 0]
        winner[open_] = _select_slots(door, level, slots, open_, scores, candidates)
        edge = medians[winner[open_]]
    else:
        winner[open_] = slots.first[open_]
        edge = door.select(level.medians, -imbalance, edges)
    all_edges = np.zeros(growing.n_open_nodes, np.int64)
    all_edges[open_] = edge
    growing.split_nodes(slots, winner, all_edges)


def _select_slots(
    door: Door, level: MedianLevel, slots: CandidateSplits, open_: Ints, scores: Ints, candidates: int
) -> Ints:
    """Select one slot for each open node with slots, by their scores."""
    assert level.attributes is not None
    slot, present = slots.candidates_of_nodes(open_, candidates)
    return slots.first[open_] + door.select(level.attributes, np.where(present, scores[slot], 0), present)


@dataclass(eq=False, repr=False, kw_only=True)
class MedianForestParameters(LevelwiseParameters):
    """Parameters of median forests for both tasks."""

    variant: str = parameter("select-then-median", role=Role.LEARNING)
    split_budget: float = 0.5
    candidates: int = 5


@dataclass(eq=False, repr=False, kw_only=True)
class MedianForestClassifierParameters(MedianForestParameters):
    """Parameters of median forests for classification."""

    voting: str = parameter("threshold", role=Role.LEARNING)


class MedianForest(LevelwiseMethod[MedianForestParameters]):
    """Median forests, for classification and regression."""

    numeric_encoding: Literal["grid"] = "grid"
    splits_text: ClassVar[str] = "split at private medians"
    variants: ClassVar[tuple[str, ...]] = VARIANTS

    @property
    def selection_variant(self) -> Variant:
        """The order in which attributes and medians are selected."""
        return cast(Variant, self.parameters.variant)

    @classmethod
    def candidate_sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Return the candidate sizes. Trees count disjoint rows, so with more trees each one has fewer rows."""
        if noiseless:
            yield 16, 10
            return
        yield from product((1, 2, 4, 8, 16, 32), range(1, 9))

    def check_parameters(self) -> None:
        """Raise ParameterError if an option is unknown or a number is out of range."""
        super().check_parameters()
        self.parameters._check_options(variant=self.variants)

    def plan_level(self, nodes: LevelNodes) -> MedianLevel:
        """Plan the selection of attributes and medians."""
        return plan_level(nodes, self.selection_variant, moments=self.task == "regression")

    def grow_level(self, growing: GrowingForest, level: MedianLevel, splitter: Splitter) -> None:
        """Split the open nodes at private medians."""
        grow_level(growing, level, self.selection_variant, splitter)


@dataclass(eq=False, repr=False)
class MedianForestClassifier(Classifier, MedianForestClassifierParameters, ClassWeights, SharedParameters):
    """Trees split at private medians, with private class counts in their leaves (DiPriMe).

    Medians keep leaves about equally full, so that noise dominates none of them. At each node a few attributes are
    drawn at random. One of them is selected privately by how well it separates the classes, and is split at its private
    median. Categorical attributes are split into two balanced random subsets. Each row is assigned to one tree, so more
    trees need no more budget.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger, n_jobs, invalid
        As in ``RandomTreesClassifier``.
    n_estimators, max_depth, n_rows, class_weight, max_weight
        As in ``RandomTreesClassifier``. By default the size is "auto".
    variant : {"select-then-median", "k-medians", "random-attribute"}
        Select an attribute, then its median; or the medians of all candidates, which share the budget, and then the
        best of these splits (DiPriMeExp, DiPriMeFlip); or the median of a random attribute (DiPriMe).
    selection : {"auto", "flip", "exponential"}
        Mechanism that selects splits: permute-and-flip errs less, and the exponential mechanism costs less with a
        ``delta``. "auto" is permute-and-flip under pure epsilon, otherwise the exponential mechanism.
    split_budget : float
        Fraction of the budget for splits, divided equally among the levels. Leaves get the rest.
    candidates : int or "half"
        Number of attributes drawn at random at each node.
    voting : {"threshold", "majority", "probabilistic"}
        Average the class frequencies of leaves; or let each tree vote for its leaf's class; or draw a class with the
        averaged frequencies as probabilities.
    trees : {"auto", "disjoint", "shared"}
        Assign each row to one tree by a secret key, or to all trees, which then share the budget. "auto" is "disjoint",
        except without noise if the size is "auto" too.
    leaves : {"auto", "plain", "empirical-bayes"}
        Cleaning of noisy leaves, as in ``RandomTreesClassifier``. Spends no budget.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_, forest_, leaf_counts_
        As in ``RandomTreesClassifier``.

    Notes
    -----
    Guarantee

    All medians, selections and leaves together cost (epsilon, delta): proofs/median-forest.md, attacked by
    packages/veilwood/tests/forests/test_medians.py.

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

    _method_class = MedianForest


@dataclass(eq=False, repr=False)
class MedianForestRegressor(Regressor, MedianForestParameters, SharedParameters):
    """Trees split at private medians, with private means in their leaves (DiPriMe).

    As ``MedianForestClassifier``. Attributes are selected by the squared error of the target, and each leaf releases
    the rotated pair of its targets (proofs/rotated-pair.md).

    Parameters are those of ``MedianForestClassifier`` except voting. The schema's target must be numeric, with bounds.

    Notes
    -----
    Guarantee

    Medians, selections and leaves together cost (epsilon, delta): proofs/median-forest.md, attacked by
    packages/veilwood/tests/forests/test_medians.py.

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

    _method_class = MedianForest
