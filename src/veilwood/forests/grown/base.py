# SPDX-License-Identifier: Apache-2.0
"""What forests share whose trees are grown from data, level by level: their plan and the order of their release.

How a level is split is in ``medians`` and ``greedy``; what happens at leaves is in ``counted``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import AddUp, Source
from veilwood.data.encoding import Encoding
from veilwood.errors import DomainTooLargeError, VeilwoodError
from veilwood.forests.base import Asked, Design
from veilwood.forests.noisy_leaves import CountedForest
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss, exact
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Layout
from veilwood.privacy.steps import Step
from veilwood.trees.counting import Assignment
from veilwood.trees.forest import Forest, check_counts, public_generators
from veilwood.trees.levelwise import Growing
from veilwood.wording import shown

SELECTIONS = ("flip", "exponential")
MAX_LEAVES = 1 << 24  # noise is planned for every leaf that could be grown


class PlannedLevel(Protocol):
    """The selections that split the nodes of one depth."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Their steps, in order."""


@dataclass(frozen=True)
class GrownDesign(Design):
    """The public design of a grown forest: trees without any split yet, and what each level may spend."""

    levels: tuple[Any, ...]


class GrownForest(CountedForest):
    """A forest whose splits are chosen privately, one level of all trees at a time, and whose leaves are noisy."""

    _numeric: Literal["grid", "bins"] = "grid"
    _splits: ClassVar[str]

    # Set by the constructors of the families.
    selection: Any
    split_share: Any
    candidates: Any

    # -- what a family defines -----------------------------------------------------------------------------------

    def _level_shares(self) -> Sequence[Fraction]:
        """How the budget for splits is divided over the levels."""
        depth = int(self.max_depth)
        return [Fraction(1, depth)] * depth

    def _most_nodes(self, encoding: Encoding, depth: int) -> int:
        """The most nodes that all trees together can have at a depth."""
        return int(self.n_estimators) << depth

    def _plan_level(
        self, encoding: Encoding, depth: int, n_nodes: int, loss: Loss, neighbours: Neighbours
    ) -> PlannedLevel:
        """Plan the selections of one level."""
        raise NotImplementedError

    def _grow_level(
        self, encoding: Encoding, growing: Growing, level: Any, door: Door, add_up: AddUp,
        rng: np.random.Generator, assignment: Assignment | None,
    ) -> None:  # fmt: skip
        """Split the open nodes, in one pass over the rows."""
        raise NotImplementedError

    def _release_leaves(self, door: Door, step: Step, exact_leaves: NDArray[np.int64]) -> NDArray[np.int64]:
        """Let the leaves out."""
        return door.noisy(step, exact_leaves)

    # -- shared --------------------------------------------------------------------------------------------------

    def _check_choices(self) -> None:
        super()._check_choices()
        self._one_of("selection", SELECTIONS)
        check_counts(n_estimators=self.n_estimators, max_depth=self.max_depth)
        if self.candidates is not None:
            check_counts(candidates=self.candidates)
        if not 0 < exact(self.split_share, "split_share") < 1:
            raise VeilwoodError(f"split_share={shown(self.split_share)} must be above 0 and below 1. Hint: 0.5.")

    def _n_candidates(self, encoding: Encoding) -> int:
        return len(encoding.columns) if self.candidates is None else min(int(self.candidates), len(encoding.columns))

    def _design(self, asked: Asked) -> GrownDesign:
        self._check_choices()
        schema, loss, neighbours = asked.schema, asked.loss, asked.neighbours
        encoding = Encoding(schema, self._numeric)
        n_leaves = self._most_nodes(encoding, self.max_depth) if self.max_depth <= 64 else MAX_LEAVES + 1
        if n_leaves > MAX_LEAVES:
            raise DomainTooLargeError(
                f"n_estimators={self.n_estimators} trees of max_depth={self.max_depth} could have more than "
                f"{MAX_LEAVES:,} leaves. Hint: lower max_depth or n_estimators."
            )
        share = exact(self.split_share, "split_share")
        levels = tuple(
            self._plan_level(encoding, depth, self._most_nodes(encoding, depth), loss.part(share * part), neighbours)
            for depth, part in enumerate(self._level_shares())
        )
        step = self._leaf_step(schema, loss.part(1 - share), neighbours, n_leaves)
        plan = asked.plan(
            (*(part for level in levels for part in level.steps), step),
            f"{step.name}, with noise, of {self.n_estimators} trees {self._splits}, and these splits",
            Layout(int(self.n_estimators), n_leaves, int(self.max_depth), self._records),
            self._expected_leaf_mse(step),
        )
        return GrownDesign(encoding, Growing(encoding.columns, self.n_estimators).finish(), plan, levels)

    def _measure(self, design: Design, source: Source, door: Door) -> tuple[Forest, NDArray[np.int64]]:
        assert isinstance(design, GrownDesign)
        assignment = self._assignment(self.n_estimators)
        (rng,) = public_generators(design.plan.public_seed, 1)
        growing = Growing(design.encoding.columns, self.n_estimators)
        for level in design.levels:
            self._grow_level(
                design.encoding, growing, level, door, partial(source.add_up, doing="splitting"), rng, assignment
            )
        forest = growing.finish()
        step = design.plan.steps[-1]
        leaves = np.zeros(step.shape, np.int64)  # leaves that were planned and never grown stay empty
        leaves[: forest.n_leaves] = self._exact_leaves(design, forest, source, assignment)
        return forest, self._release_leaves(door, step, leaves)[: forest.n_leaves]

    def _learn(self, design: Design, released: tuple[Forest, NDArray[np.int64]]) -> None:
        self._set_leaves(*released)

    def _encoding(self) -> Encoding:
        return Encoding(self.schema_, self._numeric)
