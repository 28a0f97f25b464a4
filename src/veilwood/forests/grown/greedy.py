# SPDX-License-Identifier: Apache-2.0
"""Trees whose splits are chosen privately by how well they separate the target (DP-ID3, DP-RF, DP-DF).

One level of all trees at a time; the budget of a tree, its leaves and its predictions are in
``estimators.greedy_forest``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeAlias

import numpy as np

from veilwood.forests.grown.levels import LevelNodes, Splitter
from veilwood.privacy.steps import Step, selecting_step
from veilwood.trees.histograms import Counts, level_scores, spread, spread_range
from veilwood.trees.levelwise import Growing

SplitQuality: TypeAlias = Literal["max", "gini", "entropy", "squared-error"]
QUALITIES: tuple[SplitQuality, ...] = ("max", "gini", "entropy")  # of classes
Branching: TypeAlias = Literal["multiway", "binary"]
BRANCHINGS: tuple[Branching, ...] = ("multiway", "binary")

BINS = 32
"""Bins into which a node's range of a column is cut, for binary splits: a threshold is an edge between two."""

ENTROPY_PARTS = 32  # entropy is measured in this many parts of a bit
ENTROPY_ROWS = 1 << 16  # rows of a child up to which its entropy is exact


@cache
def _entropy_table() -> Counts:
    """Running sums of the increments of n log2 n, in parts, up to ``ENTROPY_ROWS``."""
    n = np.arange(ENTROPY_ROWS + 1)
    increments = np.diff(n * np.log2(np.maximum(n, 1))) * ENTROPY_PARTS
    # Whole numbers that never fall, whatever the rounding of the line above: all that the proof needs.
    return np.concatenate([[0], np.cumsum(np.maximum.accumulate(np.rint(increments).astype(np.int64)))])


def entropy_range() -> int:
    """The largest increment of the table: the most that one row can add to the entropy of its child."""
    table = _entropy_table()
    return int(table[-1] - table[-2])


def _n_log_n(n: Any) -> Any:
    """n log2 n in parts, continued by a straight line beyond ``ENTROPY_ROWS`` rows."""
    if isinstance(n, np.ndarray | np.integer):
        return _entropy_table()[np.minimum(n, ENTROPY_ROWS)] + entropy_range() * np.maximum(n - ENTROPY_ROWS, 0)
    # Servers that hold n in shares look nothing up: the same line, by the places where it bends.
    increments = np.diff(_entropy_table(), prepend=0)[1:]
    bends = np.diff(increments, prepend=0)
    (places,) = np.nonzero(bends)
    return sum((np.maximum(n[..., None] - some, 0) * bends[some]).sum(axis=-1) for some in np.array_split(places, 16))


def quality_of_children(totals: Counts, quality: SplitQuality) -> Counts:
    """Return how pure each child is, from the class counts (or moments) on the last axis; larger is better.

    The quality of a split is the sum over its children.

    Notes
    -----
    Guarantee

    A row added to a child changes its quality by a whole number in a range of length ``quality_range``, which is the
    same for all children and splits (proofs/greedy-forest.md, checked by
    tests/forests/grown/test_greedy.py::test_quality_range_by_enumeration).

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
        found: Counts = _n_log_n(totals).sum(axis=-1) - _n_log_n(totals.sum(axis=-1))
        return found
    return -spread(totals, moments=quality == "squared-error")


def quality_range(quality: SplitQuality) -> int:
    """Range of the quality of splits when a row is added; every quality is monotone, so this is also its change."""
    if quality == "max":
        return 1
    return entropy_range() if quality == "entropy" else spread_range(moments=quality == "squared-error")


def split_qualities(histograms: Counts, quality: SplitQuality, branching: Branching) -> tuple[Counts]:
    """Return the quality of each split of each slot: a single one by value, or one for each edge between bins."""
    if branching == "multiway":
        return (quality_of_children(histograms, quality).sum(axis=1, keepdims=True),)
    left = np.cumsum(histograms, axis=1)
    right = (left[:, -1:] - left)[:, :-1]
    return (quality_of_children(left[:, :-1], quality) + quality_of_children(right, quality),)


def gains(histograms: Counts, quality: SplitQuality, branching: Branching) -> tuple[Counts]:
    """Return how much purer each split makes the rows of its slot: 0 where nothing is gained."""
    (split,) = split_qualities(histograms, quality, branching)
    return (split - quality_of_children(histograms.sum(axis=1), quality)[:, None],)


@dataclass(frozen=True)
class GreedyLevel:
    """The planned choice of splits of one level."""

    splits: Step
    stops: bool = False  # whether a node that no split makes purer is a leaf: one more choice, without noise only

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the level."""
        return (self.splits,)


def plan_level(nodes: LevelNodes, quality: SplitQuality, branching: Branching, *, stops: bool = False) -> GreedyLevel:
    """Plan the choice of a split at each node of a level, at the price of its loss together.

    Notes
    -----
    Guarantee

    A row is in one node of each tree that sees it, so the level costs no more (proofs/greedy-forest.md, attacked by
    tests/forests/grown/test_greedy.py).
    """
    splits = 1 if branching == "multiway" else BINS - 1
    return GreedyLevel(
        selecting_step(
            f"splits at depth {nodes.depth}", (nodes.most, nodes.candidates * splits + stops), nodes.loss,
            nodes.neighbours, score_range=quality_range(quality), selections_per_row=nodes.trees_per_row, by=nodes.by,
        ),
        stops,
    )  # fmt: skip


def grow_level(growing: Growing, level: GreedyLevel, quality: SplitQuality, branching: Branching, by: Splitter) -> None:
    """Split every open node by one private choice, in one pass over the rows; nothing to split makes a leaf."""
    max_bins = growing.most_codes if branching == "multiway" else BINS
    slots = growing.slots(growing.candidates(by.candidates, by.rng), max_bins, by.rng)
    open_ = np.flatnonzero(np.diff(slots.first))
    winner = np.full(growing.n_open, -1)
    edge = np.zeros(growing.n_open, np.int64)
    if len(open_):
        scored = gains if level.stops else split_qualities
        score: Callable[[Counts], tuple[Counts]] = partial(scored, quality=quality, branching=branching)
        (scores,) = level_scores(
            growing, slots, by.add_up, score,
            n_classes=by.n_classes, max_bins=max_bins, assignment=by.assignment, n_jobs=by.n_jobs, fast=by.fast,
        )  # fmt: skip
        n_edges = scores.shape[1]
        slot, present = slots.by_node(open_, by.candidates)
        splits = np.arange(n_edges) < (slots.n_bins[slot][..., None] - 1 if branching == "binary" else 1)
        admissible = (present[..., None] & splits).reshape(len(open_), -1)
        offered = scores[slot].reshape(len(open_), -1)
        if level.stops:  # of equals the first is chosen
            offered = np.column_stack([np.zeros(len(open_), np.int64), offered])
            admissible = np.column_stack([np.ones(len(open_), bool), admissible])
        chosen = by.door.select(level.splits, offered, admissible) - level.stops
        winner[open_] = np.where(chosen < 0, -1, slots.first[open_] + chosen // n_edges)
        edge[open_] = chosen % n_edges
    if branching == "binary":
        growing.split(slots, winner, edge)
    else:
        growing.split_by_value(np.where(winner >= 0, slots.feature[winner], -1) if slots.n_slots else winner)
