# SPDX-License-Identifier: Apache-2.0
"""What forests with noisy leaves share: the leaf step of their plan, one pass over the rows, votes and means.

How a family gets its trees is in its own file; the protocol that all families follow is in ``method``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Count, Source
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import DomainTooLargeError, ModelFileError, PlanError
from veilwood.estimators.method import (
    Arrays,
    Codes,
    FitRequest,
    Floats,
    ForestDesign,
    ForestModel,
    Method,
    Model,
    Parameters,
)
from veilwood.forests import leaves as cleaning
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Plan, RowAssignment
from veilwood.privacy.steps import Noise, Step, counting_step
from veilwood.trees.counting import Assignment, LeafCount
from veilwood.trees.forest import Forest

AVERAGE = "threshold"  # the vote by averaged shares, which is also how numbers are predicted
VOTINGS: tuple[str, ...] = ("auto", "majority", AVERAGE, "probabilistic")
TREES = ("auto", "shared", "disjoint")
AUTO = "auto"
MAX_LEAVES = 1 << 20  # of a forest that chooses its size
Pooled: TypeAlias = NDArray[np.int64] | None
"""Noisy counts of all rows, where they were measured."""
POOLED = "counts of all rows"  # the step that tells how many rows there are, and of which classes, before all others


@dataclass(eq=False, repr=False, kw_only=True)
class LeafParameters(Parameters):
    """Parameters of every forest with noisy leaves; families have their own defaults, and classifiers ``voting``."""

    n_estimators: Any
    max_depth: Any
    trees: str
    leaves: str = AUTO
    n_rows: int | None = None


@dataclass(frozen=True, eq=False)
class LeafModel(ForestModel):
    """Noisy class counts, or rotated pairs of a regression target, in the leaves; what they say is averaged."""

    leaf_counts: NDArray[Any]
    voting: str = AVERAGE
    seed: int = 0  # of the coins of probabilistic voting, which protect nobody
    pooled: Pooled = None
    smoothed: bool = True  # whether shares can be 0, so that probabilities need one more vote

    public_attributes: ClassVar[tuple[str, ...]] = ("forest", "leaf_counts")

    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the probability of each class, by the trees' votes or averaged over leaves; or the mean target."""
        mean = self.sum_leaves(codes, n_jobs) / self.forest.n_trees
        if self.encoding.schema.classes:
            return self.to_probabilities(mean)
        return self.encoding.decode_target(mean[:, 0] * TARGET_LEVELS)

    def predict_both(self, codes: Codes, n_jobs: int | None = None) -> tuple[Floats, NDArray[np.int64]]:
        """Return probabilities, and the class with the largest share or one that is drawn by the shares."""
        shares = self.sum_leaves(codes, n_jobs) / self.forest.n_trees
        said = self.to_probabilities(shares)
        if self.voting != "probabilistic":
            return said, np.asarray(shares.argmax(axis=1))
        coin = cleaning.row_uniforms(codes, self.seed)[:, None]
        return said, np.minimum((np.cumsum(shares, axis=1) <= coin).sum(axis=1), shares.shape[1] - 1)

    def class_frequencies(self) -> Floats:
        """Return the shares of classes among all rows."""
        counts = self.leaf_counts.sum(axis=0) if self.pooled is None else self.pooled
        return np.asarray(normalize_counts(counts[None])[0])

    def to_probabilities(self, frequencies: Floats) -> Floats:
        """Return averaged shares or votes as probabilities, none of which is 0."""
        return cleaning.smooth_probabilities(frequencies, self.forest.n_trees) if self.smoothed else frequencies

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The trees, their noisy leaves, and the counts of all rows."""
        told = {} if self.pooled is None else {"pooled": self.pooled}
        return {**self.forest.to_arrays(), "leaf_counts": self.leaf_counts, **told}


def normalize_counts(counts: NDArray[np.int64] | Floats) -> Floats:
    """Return class shares per leaf: negative counts become 0, a leaf without any becomes uniform.

    >>> normalize_counts(np.array([[3, 1], [-2, 5], [-1, -1]])).tolist()
    [[0.75, 0.25], [0.0, 1.0], [0.5, 0.5]]
    """
    kept = np.maximum(counts, 0).astype(np.float64)
    totals = kept.sum(axis=1, keepdims=True)
    return np.where(totals > 0, kept / np.where(totals > 0, totals, 1.0), 1.0 / counts.shape[1])


def normalize_pairs(pairs: NDArray[np.int64] | Floats, levels: int) -> Floats:
    """Return the shares of a rotated pair: half plus half the clipped ratio of difference to count.

    The number of rows is (first + second) / levels, taken as at least 1;
    the mean, between -1 and 1, is (first - second) / (levels * rows).

    >>> normalize_pairs(np.array([[30, 10], [0, 0]]), 10)[:, 0].tolist()
    [0.75, 0.5]
    """
    rows = np.maximum(pairs.sum(axis=1) / levels, 1.0)
    first = 0.5 + 0.5 * np.clip((pairs[:, 0] - pairs[:, 1]) / (levels * rows), -1.0, 1.0)
    return np.column_stack([first, 1.0 - first])


def majority_votes(frequencies: Floats) -> Floats:
    """Return one vote per leaf for its most frequent class; a tie shares the vote.

    >>> majority_votes(np.array([[0.2, 0.8], [0.5, 0.5]])).tolist()
    [[0.0, 1.0], [0.5, 0.5]]
    """
    best = frequencies >= frequencies.max(axis=1, keepdims=True)
    return np.asarray(best / best.sum(axis=1, keepdims=True))


class SupportsPlan(Protocol):
    """A design, or what else holds a plan."""

    @property
    def plan(self) -> Plan:
        """The plan."""


H = TypeVar("H", bound=SupportsPlan)


def lower_noise_design(request: FitRequest, make_design: Callable[[FitRequest], H]) -> H:
    """Design what is asked for under pure epsilon and, with a delta, also under zCDP; return the one with less noise.

    Pure noise keeps any promise with a delta too, and is the smaller one where a row moves few counts. Then the delta
    is not spent, and the plan says so. What was decided stands in the plan, and is carried out without asking again.
    """
    loss, decided = request.loss, request.decisions.get("law")
    if loss.epsilon is None or (loss.delta == 0 and decided is None):
        return make_design(request)
    laws = {"pure": replace(request, loss=Loss.pure(loss.epsilon))}
    if loss.delta > 0:
        laws["zcdp"] = request
    if decided is not None and decided not in laws:
        raise PlanError("the plan does not say whether its noise is pure or zCDP.")
    made = {law: make_design(each) for law, each in laws.items() if decided in (None, law)}
    law = min(made, key=lambda name: _noise_rank(made[name].plan))
    plan = made[law].plan
    notes = {"delta": "not spent, as pure noise is the smaller one here", **plan.notes} if law == "pure" else plan.notes
    told = replace(plan, choices={**plan.choices, "law": law}, notes=notes)
    return replace(made[law], plan=told)  # type: ignore[type-var]


def _noise_rank(plan: Plan) -> tuple[float, float]:
    """Rank by the error of a leaf; where leaves release labels, by how blurred their choice is."""
    last = plan.steps[-1].mechanism
    return plan.expected_leaf_mse, 0.0 if last is None or isinstance(last, Noise) else float(-last.epsilon)


L = TypeVar("L", bound=LeafParameters)


@dataclass(frozen=True, eq=False)
class LeafMethod(Method[L]):
    """A forest whose leaves hold noisy class counts, or the noisy rotated pair of a regression target."""

    auto_sized: bool = False  # whether the size was chosen, not set by hand

    leaf_dtype: ClassVar[type] = np.int64
    accepts_lists: ClassVar[bool] = False  # of sizes, one for each ensemble
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "trees": TREES[1:], "leaves": cleaning.CLEANINGS, "voting": VOTINGS,
    }  # fmt: skip
    splits_fitted: ClassVar[bool] = False  # whether splits follow the rows
    noiseless_options: ClassVar[Mapping[str, str]] = {
        "trees": "shared"
    }  # what "auto" means where nothing blurs choices

    @property
    @abstractmethod
    def numeric_encoding(self) -> Literal["grid", "bins"]:
        """How numbers are encoded."""

    @classmethod
    def noiseless_method(cls, parameters: Any) -> type[LeafMethod[Any]]:
        """Return the method that takes over where there is no noise and the size is chosen: usually the same."""
        return cls

    # -- the plan ------------------------------------------------------------------------------------------------

    def make_design(self, request: FitRequest) -> Any:
        """Decide everything that can be decided before the data, under the law that leaves less noise."""
        return lower_noise_design(request, self.design_with_loss)

    @abstractmethod
    def design_with_loss(self, request: FitRequest) -> Any:
        """Decide everything under one law: pure epsilon, or zCDP."""

    @classmethod
    def candidate_sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Return numbers and heights of trees among which a size is chosen; without noise, of which the last is best.

        What a size costs must be told in no time: a leaf for each row is enough.
        """
        if noiseless:
            yield 64, 14
            return
        yield from product((1, 2, 4, 8, 16, 32, 64), (1, 2, 3, 4, 5, 6, 8, 10))

    @property
    def leaf_fraction(self) -> Fraction:
        """The part of the budget that leaves get."""
        return Fraction(1)

    def n_leaves(self, encoding: Encoding) -> int:
        """The most leaves that the trees can have."""
        return int(self.parameters.n_estimators) << int(self.parameters.max_depth)

    def leaves_and_error(self, request: FitRequest, encoding: Encoding) -> tuple[int, float]:
        """Return how many leaves there are at most, and the squared error of one, by the law with less noise."""
        leaves = self.n_leaves(encoding)
        if leaves > MAX_LEAVES:
            raise DomainTooLargeError(f"{leaves:,} leaves are more than {MAX_LEAVES:,}. Hint: lower max_depth.")
        laws = [request.loss]
        if request.loss.epsilon is not None and request.loss.delta > 0:
            laws.append(Loss.pure(request.loss.epsilon))
        steps = [
            self.leaf_step(request.schema, law.scaled(self.leaf_fraction), request.neighbours, leaves) for law in laws
        ]
        return leaves, min(self.expected_leaf_mse(step) for step in steps)

    @property
    def uses_disjoint_trees(self) -> bool:
        """Whether each row counts in one tree only."""
        return self.parameters.trees in ("disjoint", AUTO)

    @property
    def trees_per_row(self) -> int:
        """In how many trees a row counts."""
        return 1 if self.uses_disjoint_trees else int(np.sum(self.parameters.n_estimators))

    @property
    def row_sharing(self) -> RowAssignment:
        """In which trees a row counts, in the words of a plan."""
        return EACH_TO_ONE_TREE if self.uses_disjoint_trees else ALL_TO_EVERY_TREE

    def leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        """Plan the release of all leaves.

        One row adds one class count (or one rotated pair, whose sum is TARGET_LEVELS) in each tree that sees it.
        """
        classes = schema.task == "classification"
        per_tree = 1 if classes else TARGET_LEVELS
        return counting_step(
            "class counts of leaves" if classes else "rotated target sums of leaves",
            (n_leaves, len(schema.classes) if classes else 2),
            loss,
            neighbours,
            l1=self.trees_per_row * per_tree,
            squared_l2=self.trees_per_row * per_tree**2,
        )

    def expected_leaf_mse(self, step: Step) -> float:
        """Return the squared error of a leaf; its rows, in regression, are the sum of its pair over TARGET_LEVELS."""
        return step.variance * (1 if self.task == "classification" else 2 / TARGET_LEVELS**2)

    # -- the data ------------------------------------------------------------------------------------------------

    def draw_assignment(self, n_trees: int) -> Assignment | None:
        """Draw the secret key that gives each row to one tree, where trees are disjoint."""
        return Assignment(secret_key(), n_trees) if self.uses_disjoint_trees else None

    def make_leaf_count(self, encoding: Encoding, forest: Forest, assignment: Assignment | None) -> Count:
        """Say what is added up for the leaves: exact, for the door only."""
        return LeafCount(forest, len(encoding.schema.classes) or None, TARGET_LEVELS, assignment)

    # -- after the door ------------------------------------------------------------------------------------------

    @property
    def shrinks_leaves(self) -> bool:
        """Whether leaves fall back on what is above them: on request, and where the forest chooses its size."""
        return self.parameters.leaves == "empirical-bayes" or (self.parameters.leaves == AUTO and self.auto_sized)

    @property
    def voting_rule(self) -> str:
        """How leaves are put together."""
        chosen: str = getattr(self.parameters, "voting", AVERAGE)
        if chosen == AUTO:
            return AVERAGE if self.auto_sized else "majority"
        return chosen

    def make_model(
        self, encoding: Encoding, forest: Forest, counts: NDArray[Any], plan: Plan, pooled: Pooled = None
    ) -> LeafModel:
        """Make the model of noisy leaves: the only place where they are cleaned."""
        values = self.clean_leaves(forest, counts, plan, pooled)
        said = majority_votes(values) if self.voting_rule == "majority" else values
        doubtful = self.voting_rule == "majority" or not self.shrinks_leaves
        return LeafModel(encoding, forest, said, counts, self.voting_rule, plan.public_seed, pooled, doubtful)

    def clean_leaves(self, forest: Forest, counts: NDArray[Any], plan: Plan, pooled: Pooled = None) -> Floats:
        """Class shares (or scaled mean and complement) of each leaf, by the chosen cleaning."""
        classes = self.task == "classification"
        if self.shrinks_leaves:
            rows = 1 if classes else TARGET_LEVELS  # what one row adds to a leaf
            noise = self.leaf_variance(plan) / rows**2
            above = self._pooled_per_tree(pooled, plan, forest, rows)
            if not classes:
                return cleaning.shrunken_means(forest, counts / rows, noise, above)
            return cleaning.shrunken_frequencies(forest, counts / rows, noise, above, splits_fitted=self.splits_fitted)
        return normalize_counts(counts) if classes else normalize_pairs(counts, TARGET_LEVELS)

    def leaf_variance(self, plan: Plan) -> float:
        """Variance of the noise on each number of a leaf."""
        return plan.steps[-1].variance

    def _pooled_per_tree(self, pooled: Pooled, plan: Plan, forest: Forest, rows: int) -> tuple[Floats, float] | None:
        """Return the counts of the rows that one tree sees, and the variance of their noise."""
        if pooled is None:
            return None
        share = rows * (forest.n_trees if self.uses_disjoint_trees else 1)
        return pooled / share, plan.steps[0].variance / share**2

    def restore_model(self, schema: Schema, plan: Plan, arrays: Arrays) -> LeafModel:
        """Check trees and leaves, and clean the leaves again."""
        encoding = Encoding(schema, self.numeric_encoding)
        forest = Forest.from_arrays(arrays, encoding.n_codes)
        width = len(schema.classes) or 2
        shape, counts = (forest.n_leaves, width), arrays.get("leaf_counts")
        if counts is None or counts.dtype != self.leaf_dtype or counts.shape != shape:
            raise ModelFileError(f"the leaf counts are missing, or not {shape} numbers as planned.")
        if forest.n_leaves > plan.n_leaves:
            raise ModelFileError(f"{forest.n_leaves} leaves are more than the {plan.n_leaves} planned.")
        pooled = arrays.get("pooled")
        measured = plan.steps[0].name == POOLED
        if measured != (pooled is not None) or (
            pooled is not None and (pooled.dtype != np.int64 or pooled.shape != (width,))
        ):
            raise ModelFileError("the counts of all rows are missing, or not as planned.")
        return self.make_model(encoding, forest, counts, plan, pooled)

    def utility_warning(self, plan: Plan, model: Model) -> str | None:
        """Say so when the noise is larger than the leaves, judged from the noisy counts themselves."""
        assert isinstance(model, LeafModel)
        unit = 1 if self.task == "classification" else TARGET_LEVELS
        rows_per_leaf = max(0.0, float(model.leaf_counts.sum()) / unit) / model.forest.n_leaves
        noise = plan.expected_leaf_mse**0.5
        averaged = noise / model.forest.n_trees**0.5 if self.auto_sized else noise  # shrunken leaves are averaged
        if averaged <= rows_per_leaf or noise == 0:
            return None
        cleaner = "" if self.shrinks_leaves else ", use leaves='empirical-bayes'"
        return (
            f"expected noise of {noise:.3g} rows on each count of a leaf of about {rows_per_leaf:.3g} rows. "
            f"Hint: vw.tune compares settings; lower max_depth or n_estimators{cleaner}, or spend more epsilon."
        )


class OnePassMethod(LeafMethod[L]):
    """A method whose trees are grown without data: all that is learned from rows is one array of sums.

    Such forests can be trained batch by batch, and by owners who share sums and no rows.
    """

    multi_pass: ClassVar[bool] = False

    @abstractmethod
    def make_count(self, design: Any) -> Count:
        """Say what is added up; where trees are disjoint, under a fresh secret key."""

    @abstractmethod
    def release_sums(self, design: Any, exact: NDArray[np.int64], door: Door) -> Any:
        """Release the sums through the door."""

    def measure_rows(self, design: Any, source: Source, door: Door, n_jobs: int | None = None) -> Any:
        """Add up in one pass, and release."""
        return self.release_sums(design, source.aggregate(self.make_count(design), n_jobs=n_jobs), door)


class PregrownForest(OnePassMethod[L]):
    """Trees grown before the data is seen; their leaves are counted in one pass, and released as they are"""

    trees_text: ClassVar[str]  # what trees they are, in the words of a plan

    @abstractmethod
    def grow_trees(self, request: FitRequest) -> tuple[Encoding, Forest]:
        """Grow the trees, which needs no data."""

    def design_with_loss(self, request: FitRequest) -> ForestDesign:
        """Grow the trees, and plan the release of their leaves."""
        known = (
            None
            if request.known_forest is None
            else (Encoding(request.schema, self.numeric_encoding), request.known_forest)
        )
        encoding, forest = known or self.grow_trees(request)
        layout, structure = forest.plan_fields(self.row_sharing)
        step = self.leaf_step(request.schema, request.loss, request.neighbours, layout.leaves)
        plan = request.make_plan(
            (step,),
            f"{step.name}, with noise, of {layout.trees} {self.trees_text}",
            layout,
            self.expected_leaf_mse(step),
            choices=structure,
        )
        return ForestDesign(encoding, plan, forest)

    def make_count(self, design: ForestDesign) -> Count:
        """Count the rows of each class in each leaf."""
        return self.make_leaf_count(design.encoding, design.forest, self.draw_assignment(design.forest.n_trees))

    def release_sums(self, design: ForestDesign, exact: NDArray[np.int64], door: Door) -> NDArray[np.int64]:
        """Release the leaves, with noise."""
        (step,) = design.plan.steps
        return door.release_counts(step, exact)

    def build_model(
        self, design: ForestDesign, plan: Plan, released: NDArray[np.int64], n_jobs: int | None = None
    ) -> LeafModel:
        """Clean the leaves."""
        return self.make_model(design.encoding, design.forest, released, plan)
