# SPDX-License-Identifier: Apache-2.0
"""Greedy forests: trees whose splits are selected privately by their quality (DP-ID3, DP-RF, DP-DF).

``levelwise`` grows one level of all trees at a time, divides the budget and releases the leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from math import prod
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from veilwood.arrays import AnyArray, Ints
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.errors import ParameterError
from veilwood.estimators.base import Classifier, Regressor
from veilwood.estimators.method import FitRequest
from veilwood.estimators.parameters import ClassWeights, Role, SharedParameters, parameter
from veilwood.forests.levelwise import HALF, LevelNodes, LevelwiseMethod, LevelwiseParameters, Splitter
from veilwood.forests.noisy_leaves import AUTO, TreeStep
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, selection_step
from veilwood.trees.histograms import impurity_range, level_scores, total_impurity
from veilwood.trees.level_growth import GrowingForest

SplitQuality: TypeAlias = Literal["max", "gini", "entropy", "squared-error"]
QUALITIES: tuple[SplitQuality, ...] = ("max", "gini", "entropy")  # upper limit of the number of classes
Branching: TypeAlias = Literal["multiway", "binary"]
BRANCHINGS: tuple[Branching, ...] = ("multiway", "binary")

BINS = 32
"""Maximum number of bins of a node's range of a column, for binary splits. A threshold is an edge between two bins."""

ENTROPY_PARTS = 32  # units of entropy per bit: scores are integers
ENTROPY_ROWS = 1 << 16  # number of rows of a child up to which its entropy is exact


@cache
def _entropy_table() -> Ints:
    """Return n log2 n in units of 1 / ``ENTROPY_PARTS``, up to ``ENTROPY_ROWS``, as sums of rounded increments."""
    n = np.arange(ENTROPY_ROWS + 1)
    increments = np.diff(n * np.log2(np.maximum(n, 1))) * ENTROPY_PARTS
    # The proof only needs nondecreasing integers, however the line above rounds.
    return np.concatenate([[0], np.cumsum(np.maximum.accumulate(np.rint(increments).astype(np.int64)))])


def entropy_range() -> int:
    """Return the largest increment of the entropy table: the most that one row can add to the entropy of its child."""
    table = _entropy_table()
    return int(table[-1] - table[-2])


def _n_log_n(n: Any) -> Any:
    """Return n log2 n in units of 1 / ``ENTROPY_PARTS``, continued linearly beyond ``ENTROPY_ROWS`` rows."""
    if isinstance(n, np.ndarray | np.integer):
        return _entropy_table()[np.minimum(n, ENTROPY_ROWS)] + entropy_range() * np.maximum(n - ENTROPY_ROWS, 0)
    # A secret-shared n cannot index a table, so the same piecewise linear function is summed from its changes of slope.
    increments = np.diff(_entropy_table(), prepend=0)[1:]
    slope_changes = np.diff(increments, prepend=0)
    (places,) = np.nonzero(slope_changes)
    return sum(
        (np.maximum(n[..., None] - part, 0) * slope_changes[part]).sum(axis=-1) for part in np.array_split(places, 16)
    )


def quality_of_children(totals: Ints, quality: SplitQuality) -> Ints:
    """Return the purity of each child, from the class counts or moments on the last axis. Larger is better.

    The quality of a split is the sum over its children.

    Notes
    -----
    Guarantee

    A row added to a child changes its quality by an integer in a range of length ``quality_range``, which is the
    same for all children and splits (proofs/greedy-forest.md, checked by
    packages/veilwood/tests/forests/test_greedy.py::test_quality_range_by_enumeration).

    >>> children = np.array([[3, 1], [0, 4]])
    >>> quality_of_children(children, "max").tolist()
    [3, 4]
    >>> (quality_of_children(children, "gini") / 32).tolist()  # minus rows times Gini impurity
    [-1.5, 0.0]
    >>> (quality_of_children(children, "entropy") / 32).round(1).tolist()  # minus bits
    [-3.2, 0.0]
    """
    if quality == "max":
        return totals.max(axis=-1)  # type: ignore[no-any-return]
    if quality == "entropy":
        quality_in_units: Ints = _n_log_n(totals).sum(axis=-1) - _n_log_n(totals.sum(axis=-1))
        return quality_in_units
    return -total_impurity(totals, moments=quality == "squared-error")


def quality_range(quality: SplitQuality) -> int:
    """Return the largest change of a split's quality when a row is added. Qualities are monotone."""
    if quality == "max":
        return 1
    return entropy_range() if quality == "entropy" else impurity_range(moments=quality == "squared-error")


def split_qualities(histograms: Ints, quality: SplitQuality, branching: Branching) -> tuple[Ints]:
    """Return the quality of each split of each slot: one multiway split, or one split per edge between bins."""
    if branching == "multiway":
        return (quality_of_children(histograms, quality).sum(axis=1, keepdims=True),)
    left = np.cumsum(histograms, axis=1)
    right = (left[:, -1:] - left)[:, :-1]
    return (quality_of_children(left[:, :-1], quality) + quality_of_children(right, quality),)


def split_gains(histograms: Ints, quality: SplitQuality, branching: Branching) -> tuple[Ints]:
    """Return the gain in quality of each split over the unsplit slot, or 0 if there is no gain."""
    (split,) = split_qualities(histograms, quality, branching)
    return (split - quality_of_children(histograms.sum(axis=1), quality)[:, None],)


@dataclass(frozen=True)
class GreedyLevel:
    """Planned selection of the splits of one level."""

    splits: Step
    may_stop: bool = False  # whether a node without a gain becomes a leaf: one more candidate, without noise only

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the level."""
        return (self.splits,)


def plan_level(
    nodes: LevelNodes, quality: SplitQuality, branching: Branching, *, may_stop: bool = False
) -> GreedyLevel:
    """Plan the selection of a split at each node of a level, with the privacy loss of the level in total.

    Notes
    -----
    Guarantee

    A row is in one node of each tree that counts it, so the level has no larger loss (proofs/greedy-forest.md, attacked
    by packages/veilwood/tests/forests/test_greedy.py).
    """
    splits = 1 if branching == "multiway" else BINS - 1
    return GreedyLevel(
        selection_step(
            TreeStep.SPLITS.at(nodes.depth), (nodes.max_nodes, nodes.candidates * splits + may_stop), nodes.loss,
            nodes.neighbours, score_range=quality_range(quality), selections_per_row=nodes.trees_per_row,
            by=nodes.mechanism,
        ),
        may_stop,
    )  # fmt: skip


def grow_level(
    growing: GrowingForest, level: GreedyLevel, quality: SplitQuality, branching: Branching, splitter: Splitter
) -> None:
    """Split every open node by one private selection, in one pass. A node without candidates becomes a leaf."""
    max_bins = growing.max_codes if branching == "multiway" else BINS
    slots = growing.bin_candidates(growing.draw_candidates(splitter.candidates, splitter.rng), max_bins, splitter.rng)
    open_ = np.flatnonzero(np.diff(slots.first))
    winner = np.full(growing.n_open_nodes, -1)
    edge = np.zeros(growing.n_open_nodes, np.int64)
    if len(open_):
        scored = split_gains if level.may_stop else split_qualities
        score: Callable[[Ints], tuple[Ints]] = partial(scored, quality=quality, branching=branching)
        (scores,) = level_scores(
            growing, slots, splitter.aggregate, score,
            n_classes=splitter.n_classes, max_bins=max_bins, assignment=splitter.assignment,
            n_jobs=splitter.n_jobs, fast=splitter.fast,
        )  # fmt: skip
        n_edges = scores.shape[1]
        slot, present = slots.candidates_of_nodes(open_, splitter.candidates)
        splits = np.arange(n_edges) < (slots.n_bins[slot][..., None] - 1 if branching == "binary" else 1)
        admissible = (present[..., None] & splits).reshape(len(open_), -1)
        offered = scores[slot].reshape(len(open_), -1)
        if level.may_stop:  # ties go to the first candidate, which stops
            offered = np.column_stack([np.zeros(len(open_), np.int64), offered])
            admissible = np.column_stack([np.ones(len(open_), bool), admissible])
        chosen = splitter.door.select(level.splits, offered, admissible) - level.may_stop
        winner[open_] = np.where(chosen < 0, -1, slots.first[open_] + chosen // n_edges)
        edge[open_] = chosen % n_edges
    if branching == "binary":
        growing.split_nodes(slots, winner, edge)
    else:
        growing.split_by_value(np.where(winner >= 0, slots.feature[winner], -1) if slots.n_candidates else winner)


LEAF_UPDATES = ("laplace", "exponential")
# Ratio of the splits' budgets of a level and the one above it: deeper nodes have fewer rows.
BUDGET_GROWTH = Fraction(3, 2)


@dataclass(eq=False, repr=False, kw_only=True)
class GreedyForestParameters(LevelwiseParameters):
    """Parameters of greedy forests for both tasks."""

    branching: str = parameter(AUTO, role=Role.STRUCTURE)
    split_budget: float = 0.3
    candidates: Any = AUTO


@dataclass(eq=False, repr=False, kw_only=True)
class GreedyForestClassifierParameters(GreedyForestParameters):
    """Parameters of greedy forests for classification."""

    quality: str = parameter(AUTO, role=Role.LEARNING)
    leaf_update: str = parameter("laplace", role=Role.LEARNING)
    voting: str = parameter("threshold", role=Role.LEARNING)


class GreedyForest(LevelwiseMethod[GreedyForestParameters]):
    """Greedy forests, for classification and regression."""

    splits_text: ClassVar[str] = "split by private greedy selections"
    candidates_options: ClassVar[tuple[str, ...]] = (AUTO, HALF)
    noiseless_options: ClassVar[Mapping[str, str]] = {
        "trees": "shared", "branching": "binary", "quality": "gini", "candidates": HALF,
    }  # fmt: skip

    @property
    def numeric_encoding(self) -> Literal["grid", "bins"]:
        """The encoding of numbers. Multiway trees need few values, so they use bins."""
        return "bins" if self.branching_kind == "multiway" else "grid"

    @property
    def branching_kind(self) -> Branching:
        """The branches of a split. Multiway splits offer fewer candidates, which suffer less noise."""
        return "binary" if self.parameters.branching == "binary" else "multiway"

    @property
    def split_quality(self) -> SplitQuality:
        """The score of a split."""
        parameters = self.parameters
        if not isinstance(parameters, GreedyForestClassifierParameters):
            return "squared-error"
        return "max" if parameters.quality == AUTO else cast(SplitQuality, parameters.quality)

    @property
    def labels_only(self) -> bool:
        """Whether leaves release their labels only, not their counts."""
        parameters = self.parameters
        return isinstance(parameters, GreedyForestClassifierParameters) and parameters.leaf_update == "exponential"

    @property
    def shrinks_leaves(self) -> bool:
        """Whether leaf counts are shrunk; never if leaves release labels only."""
        return super().shrinks_leaves and not self.labels_only

    @classmethod
    def candidate_sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Return the candidate sizes. A multiway tree uses each feature once on a path, which limits its depth."""
        max_depth = 16 if parameters.branching == "binary" else len(encoding.columns)
        if noiseless:
            trees = 16 if parameters.candidates == HALF else 1  # without noise, trees differ by their candidates only
            yield from ((trees, depth) for depth in range(1, min(max_depth, 16) + 1))
            return
        yield from ((trees, depth) for trees in (1, 2, 4, 8, 16, 32) for depth in range(1, min(max_depth, 6) + 1))

    def check_parameters(self) -> None:
        """Raise ParameterError if options are unknown or incompatible, or a number is out of range."""
        super().check_parameters()
        self.parameters._check_options(branching=(AUTO, *BRANCHINGS))
        if self.task == "classification":
            self.parameters._check_options(quality=(AUTO, *QUALITIES), leaf_update=LEAF_UPDATES)
        if self.labels_only and self.parameters.leaves == "empirical-bayes":
            raise ParameterError(
                "leaves", self.parameters.leaves,
                "needs noisy counts, and leaf_update='exponential' releases labels",
                "pass leaves='plain' or leaf_update='laplace'",
            )  # fmt: skip

    def level_fractions(self) -> Sequence[Fraction]:
        """Return the fraction of the splits' budget for each level; deeper levels get more."""
        weights = [BUDGET_GROWTH**depth for depth in range(self.parameters.max_depth)]
        return [weight / sum(weights) for weight in weights]

    def max_nodes(self, encoding: Encoding, depth: int) -> int:
        """Return the maximum number of nodes; for multiway trees, the product of the sizes of the widest columns."""
        if self.branching_kind == "binary":
            return super().max_nodes(encoding, depth)
        n_columns = len(encoding.columns)
        if depth > n_columns:
            raise ParameterError(
                "max_depth", self.parameters.max_depth,
                f"exceeds the {n_columns} features: a multiway tree uses each feature at most once on a path",
                f"pass max_depth={n_columns} or less",
            )  # fmt: skip
        return int(self.parameters.n_estimators) * prod(sorted(encoding.n_codes, reverse=True)[:depth])

    def plan_level(self, nodes: LevelNodes) -> GreedyLevel:
        """Plan the selection of splits."""
        stops = self.auto_sized and nodes.loss.epsilon is None
        return plan_level(nodes, self.split_quality, self.branching_kind, may_stop=stops)

    def grow_level(self, growing: GrowingForest, level: GreedyLevel, splitter: Splitter) -> None:
        """Split the open nodes by the selected splits."""
        grow_level(growing, level, self.split_quality, self.branching_kind, splitter)

    def leaves_and_error(self, request: FitRequest, encoding: Encoding) -> tuple[int, float]:
        """Return the maximum number of leaves and the squared error of a leaf; labels are as noisy as counts."""
        if not self.labels_only:
            return super().leaves_and_error(request, encoding)
        counting: Any = replace(cast(Any, self.parameters), leaf_update="laplace")
        return replace(self, parameters=counting).leaves_and_error(request, encoding)

    def leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        """Plan the release of leaf counts, or the selection of labels."""
        if not self.labels_only:
            return super().leaf_step(schema, loss, neighbours, n_leaves)
        return selection_step(
            TreeStep.LEAF_LABELS.at(), (n_leaves, len(schema.classes)), loss, neighbours,
            score_range=1, selections_per_row=self.trees_per_row, by=self.selection_mechanism(loss),
        )  # fmt: skip

    def release_leaves(self, door: Door, step: Step, exact_leaves: Ints) -> AnyArray:
        """Release leaf counts, or labels: 1 for the selected class."""
        if not self.labels_only:
            return super().release_leaves(door, step, exact_leaves)
        return np.eye(step.shape[1], dtype=np.int64)[door.select(step, exact_leaves)]


@dataclass(eq=False, repr=False)
class GreedyForestClassifier(Classifier, GreedyForestClassifierParameters, ClassWeights, SharedParameters):
    """Trees whose splits are selected privately by how well they separate the classes.

    These are the greedy baselines of the literature, with proven guarantees. DP-ID3: one tree, ``quality="max"``, and
    every attribute is a candidate. DP-RF: several trees with random candidates and ``quality`` "gini", "entropy" or
    "max"; rows are assigned to trees by a key, since in bootstrap samples a row could count several times. DP-DF, as
    far as pure epsilon allows: ``quality="gini"`` and ``leaf_update="exponential"``; its smooth sensitivity has no
    pure-epsilon form.

    Parameters
    ----------
    schema, epsilon, delta, privacy_unit, adjacency, random_state, ledger, n_jobs, invalid
        As in ``RandomTreesClassifier``.
    n_estimators, max_depth, n_rows, class_weight, max_weight, selection, voting, trees, leaves
        As in ``MedianForestClassifier``.
    quality : {"auto", "max", "gini", "entropy"}
        Score of a split: the rows in the majority class of their child, or minus the children's Gini impurity or
        entropy, times their rows. "auto" is "max", which suffers least from noise; without noise and with an "auto"
        size it is "gini". Entropy is exact for children of up to 65,536 rows and linear beyond, since its change would
        otherwise be unbounded.
    leaf_update : {"laplace", "exponential"}
        Release the noisy class counts of each leaf, or only a label, selected like the splits.
    branching : {"auto", "multiway", "binary"}
        One child per value (numbers are split at the schema's ``cutoffs`` or ``bins``), or two children, split at a
        threshold. "auto" is "multiway"; without noise and with an "auto" size it is "binary".
    split_budget : float
        Fraction of the budget for splits. Each level gets 1.5 times as much as the one above it.
    candidates : int, "half", "auto" or None
        Number of attributes drawn at random at each node; None for all. "auto" is all of them; without noise and with
        an "auto" size half of them, so that several trees differ.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, privacy_, plan_, forest_
        As in ``RandomTreesClassifier``.
    leaf_counts_ : ndarray of int64
        The released noisy counts; with ``leaf_update="exponential"``, 1 for the released label of each leaf.

    Notes
    -----
    Guarantee

    All selections and leaves together cost (epsilon, delta), for the requested unit and adjacency:
    proofs/greedy-forest.md, attacked by packages/veilwood/tests/forests/test_greedy.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> tree = vw.GreedyForestClassifier(car.schema, epsilon=4.0, n_estimators=1, max_depth=2, random_state=0)
    >>> [step.name for step in tree.plan().steps]
    ['splits at depth 0', 'splits at depth 1', 'class counts of leaves']
    >>> tree.fit(car.X, car.y).privacy_.epsilon
    4.0
    """

    _method_class = GreedyForest


@dataclass(eq=False, repr=False)
class GreedyForestRegressor(Regressor, GreedyForestParameters, SharedParameters):
    """Trees whose splits are selected privately by the squared error of the target, with private means in their leaves.

    As ``GreedyForestClassifier``. Each leaf releases the rotated pair of its targets (proofs/rotated-pair.md).

    Parameters are those of ``GreedyForestClassifier`` except quality, leaf_update and voting. The schema's target must
    be numeric, with bounds.

    Notes
    -----
    Guarantee

    All selections and leaves together cost (epsilon, delta), as in ``GreedyForestClassifier``: proofs/greedy-forest.md,
    attacked by packages/veilwood/tests/forests/test_greedy.py.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    >>> x = np.linspace(0, 1, 1000)[:, None]
    >>> forest = vw.GreedyForestRegressor(schema, epsilon=5.0, max_depth=1, branching="binary", random_state=0)
    >>> low, high = forest.fit(x, 10 * x[:, 0]).predict([[0.1], [0.9]])
    >>> bool(low < high)
    True
    """

    _method_class = GreedyForest
