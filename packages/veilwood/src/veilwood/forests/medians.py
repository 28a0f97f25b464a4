# SPDX-License-Identifier: Apache-2.0
"""Trees whose splits are private medians (DiPriMe, Consul and Williamson), one level of all trees at a time.

The budget of a tree, its leaves and its predictions are in ``estimators.median_forest``; nothing here touches exact
numbers except to hand them to the door.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from veilwood.data.encoding import Encoding
from veilwood.estimators.base import Classifier, ClassWeights, Regressor, SharedParameters
from veilwood.estimators.parameters import Role, parameter
from veilwood.forests.levelwise import LevelNodes, LevelwiseMethod, LevelwiseParameters, Splitter
from veilwood.forests.noisy_leaves import TreeStep
from veilwood.privacy.door import Door
from veilwood.privacy.steps import Step, selection_step
from veilwood.trees.histograms import Counts, edge_scores, impurity_range, level_scores
from veilwood.trees.level_growth import CandidateSplits, GrowingForest, Longs

Variant: TypeAlias = Literal["select-then-median", "k-medians", "random-attribute"]
VARIANTS: tuple[Variant, ...] = ("select-then-median", "k-medians", "random-attribute")

BINS = 64
"""Bins into which a node's range of a column is cut: a median is one of the edges between them."""

NO_EDGE = 1 << 60
"""The spread of an edge that is not there: beyond that of any rows."""


@dataclass(frozen=True)
class MedianLevel:
    """The planned selections of one level: of attributes (None: drawn at random), and of medians."""

    attributes: Step | None
    medians: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the level in the order of ``Plan.steps``."""
        return (self.medians,) if self.attributes is None else (self.attributes, self.medians)


def plan_level(nodes: LevelNodes, variant: Variant, *, moments: bool) -> MedianLevel:
    """Plan the selections of the nodes of a level, at the price of its loss together.

    Half goes to the choice of attributes and half to medians (the paper's section 4), all of it to medians where
    attributes are drawn at random.

    Notes
    -----
    Guarantee

    A row is in one node of each tree that sees it, so the level costs no more (proofs/median-forest.md, attacked by
    packages/veilwood/tests/forests/test_medians.py).
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
    """Split every open node at a private median, in one pass over the rows; a node with nothing to split is a leaf."""
    door, candidates, moments = splitter.door, splitter.candidates, splitter.n_classes is None
    chosen = growing.draw_candidates(1 if variant == "random-attribute" else candidates, splitter.rng)
    slots = growing.bin_candidates(chosen, BINS, splitter.rng)
    if slots.n_candidates == 0:
        growing.split_nodes(slots, np.full(growing.n_open_nodes, -1), np.zeros(growing.n_open_nodes, np.int64))
        return
    imbalance, *more = level_scores(
        growing, slots, splitter.aggregate, partial(edge_scores, moments=moments, with_impurity=variant != "random-attribute"),
        n_classes=splitter.n_classes, max_bins=BINS, assignment=splitter.assignment, n_jobs=splitter.n_jobs, fast=splitter.fast,
    )  # fmt: skip
    edges = np.arange(BINS - 1) < slots.n_bins[:, None] - 1  # public: which edges each slot has
    open_ = np.flatnonzero(np.diff(slots.first))
    winner = np.full(growing.n_open_nodes, -1)
    if variant == "select-then-median":
        (spreads,) = more
        merit = -np.where(edges, spreads, NO_EDGE).min(axis=1)  # of each attribute's best edge
        winner[open_] = _select_slots(door, level, slots, open_, merit, candidates)
        edge = door.select(level.medians, -imbalance[winner[open_]], edges[winner[open_]])
    elif variant == "k-medians":
        (spreads,) = more
        medians = door.select(level.medians, -imbalance, edges)
        merit = -np.take_along_axis(spreads, medians[:, None], axis=1)[:, 0]
        winner[open_] = _select_slots(door, level, slots, open_, merit, candidates)
        edge = medians[winner[open_]]
    else:
        winner[open_] = slots.first[open_]
        edge = door.select(level.medians, -imbalance, edges)
    all_edges = np.zeros(growing.n_open_nodes, np.int64)
    all_edges[open_] = edge
    growing.split_nodes(slots, winner, all_edges)


def _select_slots(
    door: Door, level: MedianLevel, slots: CandidateSplits, open_: Longs, merit: Counts, candidates: int
) -> Longs:
    """Release one slot for each open node that has any, by the merit of its slots."""
    assert level.attributes is not None
    slot, present = slots.candidates_of_nodes(open_, candidates)
    return slots.first[open_] + door.select(level.attributes, np.where(present, merit[slot], 0), present)


@dataclass(eq=False, repr=False, kw_only=True)
class MedianForestParameters(LevelwiseParameters):
    """Parameters for either task."""

    variant: str = parameter("select-then-median", role=Role.LEARNING)
    split_budget: float = 0.5
    candidates: int = 5


@dataclass(eq=False, repr=False, kw_only=True)
class MedianForestClassifierParameters(MedianForestParameters):
    """Parameters for classes."""

    voting: str = parameter("threshold", role=Role.LEARNING)


class MedianForest(LevelwiseMethod[MedianForestParameters]):
    """Median forests for either task."""

    numeric_encoding: Literal["grid"] = "grid"
    splits_text: ClassVar[str] = "split at private medians"
    variants: ClassVar[tuple[str, ...]] = VARIANTS

    @property
    def selection_variant(self) -> Variant:
        """How attributes and medians are chosen."""
        return cast(Variant, self.parameters.variant)

    @classmethod
    def candidate_sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Rows are divided among trees, so that more of them leave fewer rows for each."""
        if noiseless:
            yield 16, 10
            return
        yield from product((1, 2, 4, 8, 16, 32), range(1, 9))

    def check_parameters(self) -> None:
        """Refuse words that are not known, and numbers out of range."""
        super().check_parameters()
        self.parameters._check_options(variant=self.variants)

    def plan_level(self, nodes: LevelNodes) -> MedianLevel:
        """Plan the choice of attributes and medians."""
        return plan_level(nodes, self.selection_variant, moments=self.task == "regression")

    def grow_level(self, growing: GrowingForest, level: MedianLevel, splitter: Splitter) -> None:
        """Split the open nodes at medians."""
        grow_level(growing, level, self.selection_variant, splitter)


@dataclass(eq=False, repr=False)
class MedianForestClassifier(Classifier, MedianForestClassifierParameters, ClassWeights, SharedParameters):
    """Trees split at private medians, with private class counts in their leaves (DiPriMe).

    Medians keep leaves equally full, so that none drowns in noise. At each node a few attributes are drawn at random;
    one of them is chosen privately by how well it separates the classes, and cut at its private median; categorical
    attributes are cut into two balanced random subsets. Each row is given to one tree, so that trees cost nothing
    extra.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger, n_jobs, invalid
        As in ``RandomTreesClassifier``.
    n_estimators, max_depth, n_rows, class_weight, max_weight
        As in ``RandomTreesClassifier``: by default a size is chosen.
    variant : {"select-then-median", "k-medians", "random-attribute"}
        Choose an attribute, then its median; or the medians of all candidates first (at a budget divided among them)
        and then the best of these splits (DiPriMeExp, DiPriMeFlip); or the median of a random attribute (DiPriMe).
    selection : {"auto", "flip", "exponential"}
        Choose splits by permute-and-flip, which errs less, or by the exponential mechanism, which costs less with a
        ``delta``; "auto" takes the better one: permute-and-flip where noise is pure, else the exponential mechanism.
    split_budget : float
        Share of the budget spent on splits, in equal parts over the levels; the rest is for leaves.
    candidates : int or "half"
        Attributes drawn at random at each node.
    voting : {"threshold", "majority", "probabilistic"}
        Average the shares of leaves, or let each tree vote for its leaf's class, or draw by the averaged shares.
    trees : {"auto", "disjoint", "shared"}
        Give each row to one tree, drawn by a secret key, or to all trees, which share the budget. "auto": to one,
        but for a chosen size without noise.
    leaves : {"auto", "plain", "empirical-bayes"}
        How noisy leaves are cleaned, as in ``RandomTreesClassifier``; costs nothing.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_, forest_, leaf_counts_
        As in ``RandomTreesClassifier``.

    Notes
    -----
    Guarantee

    All medians, choices and leaves together cost (epsilon, delta): proofs/median-forest.md, attacked by
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

    As ``MedianForestClassifier``; attributes are chosen by the squared error of the target, and each leaf releases the
    rotated pair of its targets (proofs/rotated-pair.md).

    It takes the parameters of ``MedianForestClassifier`` but for voting; the schema's target is numeric, with bounds.

    Notes
    -----
    Guarantee

    Medians, choices and leaves together cost (epsilon, delta): proofs/median-forest.md, attacked by
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
