# SPDX-License-Identifier: Apache-2.0
"""Base class of forests that grow from data, one level of all trees at a time: plan and order of releases.

``medians`` and ``greedy`` split a level, and ``noisy_leaves`` cleans the leaves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from veilwood.arrays import HAVE_NUMBA, AnyArray, Ints
from veilwood.data.batches import AggregatePass, Source
from veilwood.data.encoding import Encoding
from veilwood.errors import DomainTooLargeError, ParameterError
from veilwood.estimators.method import Design, FitRequest
from veilwood.estimators.parameters import Role, parameter
from veilwood.forests.noisy_leaves import AUTO, TREES, LeafMethod, LeafParameters
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss, exact_fraction
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Layout
from veilwood.privacy.steps import Step
from veilwood.trees.counting import Assignment
from veilwood.trees.forest import Forest
from veilwood.trees.level_growth import GrowingForest
from veilwood.trees.random import check_counts, public_generators


@dataclass(frozen=True)
class LevelNodes:
    """Planned nodes of one level, and the privacy loss of all private selections at these nodes together."""

    depth: int
    max_nodes: int
    """The maximum number of nodes, in all trees."""
    loss: Loss
    neighbours: Neighbours
    trees_per_row: int
    candidates: int
    """The number of columns that are compared at a node."""
    mechanism: Literal["flip", "exponential"]


@dataclass(frozen=True, eq=False)
class Splitter:
    """Everything needed to split levels: passes over the rows, public randomness, and the door for selections."""

    door: Door
    aggregate: AggregatePass
    rng: np.random.Generator
    candidates: int
    n_classes: int | None
    """None for regression."""
    assignment: Assignment | None = None
    n_jobs: int | None = None
    fast: bool = HAVE_NUMBA


HALF = "half"  # half of the columns are candidates, drawn independently at each node
SELECTIONS = ("auto", "flip", "exponential")
LEVEL_FRACTION = Fraction(3, 20)  # maximum fraction of the budget per level of splits: leaves need the rest
MAX_LEAVES = 1 << 24  # upper limit: noise is planned for every leaf that could grow


@dataclass(eq=False, repr=False, kw_only=True)
class LevelwiseParameters(LeafParameters):
    """Parameters shared by all data-dependent forests. Families add their own defaults."""

    n_estimators: Any = AUTO
    max_depth: Any = AUTO
    selection: str = parameter("auto", role=Role.LEARNING)
    split_budget: float = parameter(role=Role.LEARNING)
    candidates: Any = parameter(role=Role.LEARNING)
    trees: str = AUTO


class PlannedLevel(Protocol):
    """The selections that split the nodes of one depth."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of these selections, in order."""


@dataclass(frozen=True)
class LevelwiseDesign(Design):
    """Public design of a data-dependent forest, with the planned selections of each level."""

    levels: tuple[Any, ...]


LP = TypeVar("LP", bound=LevelwiseParameters)


class LevelwiseMethod(LeafMethod[LP]):
    """Base class of forests with privately selected splits, one level of all trees at a time, and noisy leaves."""

    splits_text: ClassVar[str]  # describes the splits in a plan
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {**LeafMethod.options, "trees": TREES}
    candidates_options: ClassVar[tuple[str, ...]] = (HALF,)
    splits_fitted: ClassVar[bool] = True

    # -- what a family defines -----------------------------------------------------------------------------------

    def level_fractions(self) -> Sequence[Fraction]:
        """Return the fraction of the splits' budget for each level."""
        depth = int(self.parameters.max_depth)
        return [Fraction(1, depth)] * depth

    def max_nodes(self, encoding: Encoding, depth: int) -> int:
        """Return the maximum number of nodes of all trees at a depth."""
        return int(self.parameters.n_estimators) << int(depth)

    @abstractmethod
    def plan_level(self, nodes: LevelNodes) -> PlannedLevel:
        """Plan the selections of one level."""

    @property
    def histogram_kind(self) -> Literal["counts", "moments"] | None:
        """The contents of histograms: class counts, or moments of a numeric target."""
        return "counts" if self.task == "classification" else "moments"

    @abstractmethod
    def grow_level(self, growing: GrowingForest, level: Any, splitter: Splitter) -> None:
        """Split all open nodes, in one pass over the rows."""

    def release_leaves(self, door: Door, step: Step, exact_leaves: Ints) -> AnyArray:
        """Release the leaves."""
        return door.release_counts(step, exact_leaves)

    # -- shared --------------------------------------------------------------------------------------------------

    def check_parameters(self) -> None:
        """Raise ParameterError if an option is unknown or a number is out of range."""
        super().check_parameters()
        parameters = self.parameters
        parameters._check_options(selection=SELECTIONS)
        check_counts(n_estimators=parameters.n_estimators, max_depth=parameters.max_depth)
        if isinstance(parameters.candidates, str):
            parameters._check_options(candidates=self.candidates_options)
        elif parameters.candidates is not None:
            check_counts(candidates=parameters.candidates)
        if not 0 < exact_fraction(parameters.split_budget, "split_budget") < 1:
            raise ParameterError(
                "split_budget", parameters.split_budget, "must be above 0 and below 1", "pass a fraction, such as 0.5"
            )

    def selection_mechanism(self, loss: Loss) -> Literal["flip", "exponential"]:
        """Return the mechanism that selects splits: permute-and-flip errs less, but has a larger loss under zCDP."""
        if self.parameters.selection == "auto":
            return "exponential" if loss.delta > 0 else "flip"
        return "flip" if self.parameters.selection == "flip" else "exponential"

    def n_candidates(self, encoding: Encoding) -> int:
        """Return the number of candidate columns at a node."""
        candidates, n_columns = self.parameters.candidates, len(encoding.columns)
        if candidates == HALF:
            return -(-n_columns // 2)
        return n_columns if candidates in (None, AUTO) else min(int(candidates), n_columns)

    def plan_nodes(self, depth: int, encoding: Encoding, loss: Loss, neighbours: Neighbours) -> LevelNodes:
        """Return the nodes of a level, as input of ``plan_level``."""
        return LevelNodes(
            depth, self.max_nodes(encoding, depth), loss, neighbours, self.trees_per_row, self.n_candidates(encoding),
            self.selection_mechanism(loss),
        )  # fmt: skip

    @property
    def leaf_fraction(self) -> Fraction:
        """The fraction of the budget that remains after splits. With an "auto" size, each level has a limit."""
        share = exact_fraction(self.parameters.split_budget, "split_budget")
        return 1 - (min(share, LEVEL_FRACTION * int(self.parameters.max_depth)) if self.auto_sized else share)

    def leaves_and_error(self, request: FitRequest, encoding: Encoding) -> tuple[int, float]:
        """Return the maximum number of leaves and a leaf's error. Raise MechanismError if splits cannot be drawn."""
        if request.loss.epsilon is not None:  # a level with little of the budget needs the most noise
            parts = self.level_fractions()
            loss = request.loss.scaled((1 - self.leaf_fraction) * min(parts))
            self.plan_level(self.plan_nodes(len(parts) - 1, encoding, loss, request.neighbours))
        return super().leaves_and_error(request, encoding)

    def n_leaves(self, encoding: Encoding) -> int:
        """The maximum number of leaves of all trees."""
        return self.max_nodes(encoding, int(self.parameters.max_depth))

    def design_with_loss(self, request: FitRequest) -> LevelwiseDesign:
        """Plan the selections of every level, and the leaves."""
        parameters, schema, loss, neighbours = self.parameters, request.schema, request.loss, request.neighbours
        encoding = Encoding(schema, self.numeric_encoding)
        n_leaves = self.max_nodes(encoding, parameters.max_depth) if parameters.max_depth <= 64 else MAX_LEAVES + 1
        if n_leaves > MAX_LEAVES:
            raise DomainTooLargeError(
                f"n_estimators={parameters.n_estimators} trees of max_depth={parameters.max_depth} could have more "
                f"than {MAX_LEAVES:,} leaves. Hint: lower max_depth or n_estimators."
            )
        share = 1 - self.leaf_fraction
        levels = tuple(
            self.plan_level(self.plan_nodes(depth, encoding, loss.scaled(share * part), neighbours))
            for depth, part in enumerate(self.level_fractions())
        )
        step = self.leaf_step(schema, loss.scaled(1 - share), neighbours, n_leaves)
        plan = request.make_plan(
            (*(part for level in levels for part in level.steps), step),
            f"{parameters.n_estimators} trees {self.splits_text}, with their splits and noisy {step.name}",
            Layout(int(parameters.n_estimators), n_leaves, int(parameters.max_depth), self.row_sharing),
            self.leaf_error(step.variance),
        )
        return LevelwiseDesign(encoding, plan, levels)

    def measure_rows(
        self, design: LevelwiseDesign, source: Source, door: Door, n_jobs: int | None = None
    ) -> tuple[Forest, AnyArray]:
        """Grow level by level, then count the leaves."""
        n_trees = self.parameters.n_estimators
        assignment = self.draw_assignment(n_trees)
        (rng,) = public_generators(design.plan.public_seed, 1)
        growing = GrowingForest(design.encoding.columns, n_trees)
        splitter = Splitter(
            door, partial(source.aggregate, progress_label="splitting"), rng, self.n_candidates(design.encoding),
            len(design.encoding.schema.classes) or None, assignment, n_jobs,
        )  # fmt: skip
        for level in design.levels:
            self.grow_level(growing, level, splitter)
        forest = growing.finish_forest()
        step = design.plan.steps[-1]
        counted = source.aggregate(self.make_leaf_count(design.encoding, forest, assignment), n_jobs=n_jobs)
        # The planned shape is released regardless of how many leaves have grown; the surplus is dropped.
        padding = np.zeros((step.shape[0] - forest.n_leaves, *step.shape[1:]), np.int64)
        leaves = np.concatenate([counted, padding])
        return forest, self.release_leaves(door, step, leaves)[: forest.n_leaves]
