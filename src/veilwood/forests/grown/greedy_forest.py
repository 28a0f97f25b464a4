# SPDX-License-Identifier: Apache-2.0
"""Greedy private forests (DP-ID3, DP-RF, DP-DF): splits chosen privately by how well they separate the target.

A level of splits is grown in ``greedy``; what happens at leaves is in ``noisy_leaves``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.errors import ParameterError
from veilwood.forests.grown.base import HALF, GrownMethod, GrownParameters
from veilwood.forests.grown.greedy import (
    BRANCHINGS,
    QUALITIES,
    Branching,
    GreedyLevel,
    SplitQuality,
    grow_level,
    plan_level,
)
from veilwood.forests.grown.levels import LevelNodes, Splitter
from veilwood.forests.method import Asked
from veilwood.forests.noisy_leaves import AUTO
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, selecting_step
from veilwood.trees.levelwise import Growing

LEAF_UPDATES = ("laplace", "exponential")
# Each level may spend this much more on its splits than the one above it: deeper nodes have fewer rows.
BUDGET_GROWTH = Fraction(3, 2)


@dataclass(eq=False, repr=False, kw_only=True)
class GreedyForestParameters(GrownParameters):
    """Parameters for either task."""

    branching: str = AUTO
    split_share: float = 0.3
    candidates: Any = AUTO


@dataclass(eq=False, repr=False, kw_only=True)
class GreedyForestClassifierParameters(GreedyForestParameters):
    """Parameters for classes."""

    quality: str = AUTO
    leaf_update: str = "laplace"
    voting: str = "threshold"


class GreedyForest(GrownMethod[GreedyForestParameters]):
    """Greedy forests for either task."""

    splits: ClassVar[str] = "split by private greedy choices"
    candidates_words: ClassVar[tuple[str, ...]] = (AUTO, HALF)
    without_noise: ClassVar[Mapping[str, str]] = {
        "trees": "shared", "branching": "binary", "quality": "gini", "candidates": HALF,
    }  # fmt: skip

    @property
    def numeric(self) -> Literal["grid", "bins"]:
        """A branch for each value needs few of them."""
        return "bins" if self.branching == "multiway" else "grid"

    @property
    def branching(self) -> Branching:
        """How many branches a split has; few choices are blurred less."""
        return "binary" if self.parameters.branching == "binary" else "multiway"

    @property
    def quality(self) -> SplitQuality:
        """The score of a split."""
        mine = self.parameters
        if not isinstance(mine, GreedyForestClassifierParameters):
            return "squared-error"
        return "max" if mine.quality == AUTO else cast(SplitQuality, mine.quality)

    @property
    def labels_only(self) -> bool:
        """Whether a leaf releases its label, and not its counts."""
        mine = self.parameters
        return isinstance(mine, GreedyForestClassifierParameters) and mine.leaf_update == "exponential"

    @property
    def shrinks(self) -> bool:
        """Labels cannot be shrunk."""
        return super().shrinks and not self.labels_only

    @classmethod
    def sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """A multiway tree uses each feature once on a path; without noise trees differ by the columns they may use."""
        most = 16 if parameters.branching == "binary" else len(encoding.columns)
        if noiseless:
            trees = 16 if parameters.candidates == HALF else 1
            yield from ((trees, depth) for depth in range(1, min(most, 16) + 1))
            return
        yield from ((trees, depth) for trees in (1, 2, 4, 8, 16, 32) for depth in range(1, min(most, 6) + 1))

    def check(self) -> None:
        """Refuse words that are not known or do not go together, and numbers out of range."""
        super().check()
        self.parameters.check_words(branching=(AUTO, *BRANCHINGS))
        if self.task == "classification":
            self.parameters.check_words(quality=(AUTO, *QUALITIES), leaf_update=LEAF_UPDATES)
        if self.labels_only and self.parameters.leaves == "empirical-bayes":
            raise ParameterError(
                "leaves", self.parameters.leaves,
                "needs noisy counts, and leaf_update='exponential' releases labels",
                "leaves='plain' or leaf_update='laplace'",
            )  # fmt: skip

    def level_shares(self) -> Sequence[Fraction]:
        """More for deeper levels."""
        weights = [BUDGET_GROWTH**depth for depth in range(self.parameters.max_depth)]
        return [weight / sum(weights) for weight in weights]

    def most_nodes(self, encoding: Encoding, depth: int) -> int:
        """A multiway tree can have as many as its widest columns have values."""
        if self.branching == "binary":
            return super().most_nodes(encoding, depth)
        there = len(encoding.columns)
        if depth > there:
            raise ParameterError(
                "max_depth", self.parameters.max_depth,
                f"exceeds the {there} features: a multiway tree uses each once on a path", f"max_depth={there} or less",
            )  # fmt: skip
        return int(self.parameters.n_estimators) * prod(sorted(encoding.n_codes, reverse=True)[:depth])

    def plan_level(self, nodes: LevelNodes) -> GreedyLevel:
        """Plan the choice of splits."""
        stops = self.sized and nodes.loss.epsilon is None
        return plan_level(nodes, self.quality, self.branching, stops=stops)

    def grow_level(self, growing: Growing, level: GreedyLevel, by: Splitter) -> None:
        """Split the open nodes by the best splits."""
        grow_level(growing, level, self.quality, self.branching, by)

    def expected(self, asked: Asked, encoding: Encoding) -> tuple[int, float]:
        """A label is chosen about as blurred as counts of the same budget would be."""
        if not self.labels_only:
            return super().expected(asked, encoding)
        counting: Any = replace(cast(Any, self.parameters), leaf_update="laplace")
        return replace(self, parameters=counting).expected(asked, encoding)

    def leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        """Plan the release of counts, or the choice of labels."""
        if not self.labels_only:
            return super().leaf_step(schema, loss, neighbours, n_leaves)
        return selecting_step(
            "labels of leaves", (n_leaves, len(schema.classes)), loss, neighbours,
            score_range=1, selections_per_row=self.trees_per_row, by=self.selection(loss),
        )  # fmt: skip

    def release_leaves(self, door: Door, step: Step, exact_leaves: NDArray[np.int64]) -> NDArray[Any]:
        """Release counts, or labels: 1 for the chosen class."""
        if not self.labels_only:
            return super().release_leaves(door, step, exact_leaves)
        return np.eye(step.shape[1], dtype=np.int64)[door.select(step, exact_leaves)]
