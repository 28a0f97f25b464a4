# SPDX-License-Identifier: Apache-2.0
"""Trees whose splits are private medians (DiPriMe, Consul and Williamson), one level of all trees at a time.

The budget of a tree, its leaves and its predictions are in ``estimators.median_forest``; nothing here touches exact
numbers except to hand them to the door.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from veilwood.forests.grown.levels import LevelNodes, Splitter
from veilwood.privacy.door import Door
from veilwood.privacy.steps import Step, selecting_step
from veilwood.trees.histograms import Counts, edge_scores, level_scores, spread_range
from veilwood.trees.levelwise import Growing, Longs, Slots

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
    tests/forests/grown/test_medians.py).
    """
    select = partial(selecting_step, neighbours=nodes.neighbours, by=nodes.by)
    median = f"medians at depth {nodes.depth}"
    if variant == "random-attribute":
        step = select(median, (nodes.most, BINS - 1), nodes.loss, score_range=2, selections_per_row=nodes.trees_per_row)
        return MedianLevel(None, step)
    half = nodes.loss.part(Fraction(1, 2))
    medians_per_node = nodes.candidates if variant == "k-medians" else 1
    return MedianLevel(
        attributes=select(
            f"attributes at depth {nodes.depth}", (nodes.most, nodes.candidates), half,
            score_range=spread_range(moments), selections_per_row=nodes.trees_per_row,
        ),
        medians=select(
            median, (nodes.most * medians_per_node, BINS - 1), half,
            score_range=2, selections_per_row=nodes.trees_per_row * medians_per_node,
        ),
    )  # fmt: skip


def grow_level(growing: Growing, level: MedianLevel, variant: Variant, by: Splitter) -> None:
    """Split every open node at a private median, in one pass over the rows; a node with nothing to split is a leaf."""
    door, candidates, moments = by.door, by.candidates, by.n_classes is None
    chosen = growing.candidates(1 if variant == "random-attribute" else candidates, by.rng)
    slots = growing.slots(chosen, BINS, by.rng)
    if slots.n_slots == 0:
        growing.split(slots, np.full(growing.n_open, -1), np.zeros(growing.n_open, np.int64))
        return
    imbalance, *more = level_scores(
        growing, slots, by.add_up, partial(edge_scores, moments=moments, spreads=variant != "random-attribute"),
        n_classes=by.n_classes, max_bins=BINS, assignment=by.assignment, n_jobs=by.n_jobs, fast=by.fast,
    )  # fmt: skip
    edges = np.arange(BINS - 1) < slots.n_bins[:, None] - 1  # public: which edges each slot has
    open_ = np.flatnonzero(np.diff(slots.first))
    winner = np.full(growing.n_open, -1)
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
    all_edges = np.zeros(growing.n_open, np.int64)
    all_edges[open_] = edge
    growing.split(slots, winner, all_edges)


def _select_slots(door: Door, level: MedianLevel, slots: Slots, open_: Longs, merit: Counts, candidates: int) -> Longs:
    """Release one slot for each open node that has any, by the merit of its slots."""
    assert level.attributes is not None
    slot, present = slots.by_node(open_, candidates)
    return slots.first[open_] + door.select(level.attributes, np.where(present, merit[slot], 0), present)
