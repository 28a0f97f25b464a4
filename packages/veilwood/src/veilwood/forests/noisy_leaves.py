# SPDX-License-Identifier: Apache-2.0
"""Base classes of forests with noisy leaves: the leaf step of a plan, cleaning, votes and means.

Each family grows its trees in its own module. The interface of all families is in ``estimators.method``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from veilwood.arrays import AnyArray, Codes, Floats, Ints
from veilwood.data.batches import Count
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import DomainTooLargeError, ModelFileError, PlanError
from veilwood.estimators import method
from veilwood.estimators.parameters import Role, parameter
from veilwood.forests import leaves as cleaning
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import ALL_TO_EVERY_TREE, EACH_TO_ONE_TREE, Plan, RowAssignment
from veilwood.privacy.steps import Step, StepKind, counting_step, counting_variance
from veilwood.trees.counting import Assignment, LeafCount
from veilwood.trees.forest import LEAF, Forest

AVERAGE = "threshold"  # averages class frequencies over trees, as regression averages means
VOTINGS: tuple[str, ...] = ("auto", "majority", AVERAGE, "probabilistic")
TREES = ("auto", "shared", "disjoint")
AUTO = "auto"
MAX_LEAVES = 1 << 20  # default leaves of a forest that chooses its size
Pooled: TypeAlias = Ints | None
"""Noisy counts of all rows, or None if they were not measured."""


class TreeStep(StepKind):
    """Kinds of steps of forests with noisy leaves; a value is the displayed name, with a placeholder for the depth."""

    ALL_ROWS = "counts of all rows"
    LEAF_CLASSES = "class counts of leaves"
    LEAF_TARGETS = "rotated target sums of leaves"
    LEAF_LABELS = "labels of leaves"
    SPLITS = "splits at depth {}"
    ATTRIBUTES = "attributes at depth {}"
    MEDIANS = "medians at depth {}"


POOLED = TreeStep.ALL_ROWS.at()  # the first step, which estimates the number of rows and the class frequencies


@dataclass(eq=False, repr=False, kw_only=True)
class LeafParameters(method.Parameters):
    """Parameters of every forest with noisy leaves. Families add defaults, and classifiers add ``voting``."""

    n_estimators: Any = parameter(role=Role.STRUCTURE, tuned=True)
    max_depth: Any = parameter(role=Role.STRUCTURE, tuned=True)
    trees: str = parameter(role=Role.STRUCTURE)
    leaves: str = parameter(AUTO, role=Role.LEARNING)
    n_rows: int | None = parameter(None, role=Role.STRUCTURE)


@dataclass(frozen=True, eq=False)
class LeafModel(method.ForestModel):
    """Model of noisy class counts, or of rotated pairs of a regression target, averaged over trees."""

    leaf_counts: AnyArray
    voting: str = AVERAGE
    seed: int = 0  # seed of probabilistic voting; public, since it protects nothing
    pooled: Pooled = None
    smoothed: bool = True  # whether leaf frequencies can be 0, so that probabilities need additive smoothing

    public_attributes: ClassVar[tuple[str, ...]] = ("forest", "leaf_counts")

    @property
    def votes_by_chance(self) -> bool:
        """Whether predictions are drawn with the class frequencies as probabilities."""
        return self.voting == "probabilistic"

    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return class probabilities, from votes or averaged leaves, or the mean target."""
        mean = self.sum_leaves(codes, n_jobs) / self.forest.n_trees
        if self.encoding.schema.classes:
            return self.to_probabilities(mean)
        return self.encoding.decode_target(mean[:, 0] * TARGET_LEVELS)

    def predict_both(self, codes: Codes, n_jobs: int | None = None) -> tuple[Floats, Ints]:
        """Return class probabilities and a class index: the most probable class, or a random draw."""
        frequencies = self.sum_leaves(codes, n_jobs) / self.forest.n_trees
        probabilities = self.to_probabilities(frequencies)
        if not self.votes_by_chance:
            return probabilities, np.asarray(frequencies.argmax(axis=1))
        uniform = cleaning.row_uniforms(codes, self.seed)[:, None]
        drawn = (np.cumsum(frequencies, axis=1) <= uniform).sum(axis=1)
        return probabilities, np.minimum(drawn, frequencies.shape[1] - 1)

    def class_frequencies(self) -> Floats:
        """Return the released class frequencies of all rows."""
        counts = self.leaf_counts.sum(axis=0) if self.pooled is None else self.pooled
        return np.asarray(normalize_counts(counts[None])[0])

    def column_strengths(self) -> Floats:
        """Return the decrease in Gini impurity over the splits on each column, in noisy row counts."""
        counts = np.maximum(self.leaf_counts, 0).astype(float)
        return _impurity_decreases(self.forest, counts, len(self.encoding.columns))

    def to_probabilities(self, frequencies: Floats) -> Floats:
        """Return averaged frequencies or votes as probabilities, smoothed if they can be 0."""
        return cleaning.smooth_probabilities(frequencies, self.forest.n_trees) if self.smoothed else frequencies

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the trees, their noisy leaves and the counts of all rows, if measured."""
        pooled = {} if self.pooled is None else {"pooled": self.pooled}
        return {**self.forest.to_arrays(), "leaf_counts": self.leaf_counts, **pooled}


def _impurity_decreases(forest: Forest, counts: Floats, n_columns: int) -> Floats:
    """Return, for each column, the decrease in impurity over its splits, weighted by rows."""
    sums = forest.sum_to_nodes(counts)
    rows = np.maximum(sums.sum(axis=1), 1e-300)
    impurity = rows - (sums**2).sum(axis=1) / rows  # rows times Gini impurity
    below = np.zeros(forest.n_nodes)
    inner = np.flatnonzero(forest.level > 0)
    np.add.at(below, forest.parent[inner], impurity[inner])
    splits = np.flatnonzero(forest.feature != LEAF)
    gained = np.maximum(impurity - below, 0.0)[splits]
    return np.asarray(np.bincount(forest.feature[splits], gained, minlength=n_columns), np.float64)


def normalize_counts(counts: Ints | Floats) -> Floats:
    """Return class frequencies per leaf. Negative counts become 0; an empty leaf is uniform.

    >>> normalize_counts(np.array([[3, 1], [-2, 5], [-1, -1]])).tolist()
    [[0.75, 0.25], [0.0, 1.0], [0.5, 0.5]]
    """
    clipped = np.maximum(counts, 0).astype(np.float64)
    totals = clipped.sum(axis=1, keepdims=True)
    return np.where(totals > 0, clipped / np.where(totals > 0, totals, 1.0), 1.0 / counts.shape[1])


def normalize_pairs(pairs: Ints | Floats, levels: int) -> Floats:
    """Return the scaled mean of each rotated pair, which is 1/2 plus half the clipped mean, and its complement to 1.

    The number of rows is (first + second) / levels, at least 1. The mean, between -1 and 1, is
    (first - second) / (levels * rows).

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
    """Protocol of objects with a plan, such as designs."""

    @property
    def plan(self) -> Plan:
        """The plan."""


H = TypeVar("H", bound=SupportsPlan)


def lower_noise_design(request: method.FitRequest, make_design: Callable[[method.FitRequest], H]) -> H:
    """Return the design with less noise, under pure epsilon or, if delta > 0, under zCDP.

    Pure-epsilon noise satisfies (epsilon, delta) too, and is smaller if a row contributes to few counts. The delta is
    then not spent, and the plan records this. The decision is recorded in the plan and is not made again when the plan
    is executed.
    """
    loss, decided = request.loss, request.decisions.get("law")
    if loss.epsilon is None or (loss.delta == 0 and decided is None):
        return make_design(request)
    laws = {"pure": replace(request, loss=Loss.pure(loss.epsilon))}
    if loss.delta > 0:
        laws["zcdp"] = request
    if decided is not None and decided not in laws:
        raise PlanError("the plan must record its accounting: pure or zCDP.")
    designs = {law: make_design(each) for law, each in laws.items() if decided in (None, law)}
    law = min(designs, key=lambda name: _noise_rank(designs[name].plan))
    plan = designs[law].plan
    notes = {"delta": "not spent, as pure noise is the smaller one here", **plan.notes} if law == "pure" else plan.notes
    decided_plan = replace(plan, choices={**plan.choices, "law": law}, notes=notes)
    return replace(designs[law], plan=decided_plan)  # type: ignore[type-var]


def _noise_rank(plan: Plan) -> tuple[float, float]:
    """Return the rank of a plan's noise: the error of a leaf, or the noise of the selection of labels."""
    last: Any = plan.steps[-1].mechanism
    return plan.expected_leaf_mse, float(-last.epsilon) if last is not None and last.verb == "select" else 0.0


@lru_cache(maxsize=256)  # cached, since many sizes have leaves with the same noise
def _lower_variance(loss: Loss, fraction: Fraction, neighbours: Neighbours, l1: int, squared_l2: int) -> float:
    """Return the variance of a count under the accounting with less noise, for a fraction of the loss."""
    pure = [] if loss.epsilon is None or loss.delta == 0 else [Loss.pure(loss.epsilon)]
    return min(
        counting_variance(law.scaled(fraction), neighbours, l1=l1, squared_l2=squared_l2) for law in (loss, *pure)
    )


L = TypeVar("L", bound=LeafParameters)


@dataclass(frozen=True, eq=False)
class LeafMethod(method.Method[L]):
    """Base class of forests whose leaves hold noisy class counts, or noisy rotated pairs of a regression target."""

    auto_sized: bool = False  # whether the size was "auto"

    leaf_dtype: ClassVar[type] = np.int64
    accepts_lists: ClassVar[bool] = False  # whether sizes may be lists, one entry per ensemble
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "trees": TREES[1:], "leaves": cleaning.CLEANINGS, "voting": VOTINGS,
    }  # fmt: skip
    splits_fitted: ClassVar[bool] = False  # whether splits depend on the data
    noiseless_options: ClassVar[Mapping[str, str]] = {"trees": "shared"}  # value of "auto" without noise

    @property
    @abstractmethod
    def numeric_encoding(self) -> Literal["grid", "bins"]:
        """The encoding of numeric columns."""

    @classmethod
    def noiseless_method(cls, parameters: Any) -> type[LeafMethod[Any]]:
        """Return the method to use without noise if the size is "auto": this method, unless a family overrides it."""
        return cls

    @classmethod
    def from_parameters(cls, parameters: Any, task: TaskKind) -> method.Method[Any]:
        """Return the method with this size, or a method that chooses the size if it is "auto"."""
        from veilwood.forests.auto_size import AutoSized, is_auto  # ``auto_size`` imports this module

        if is_auto(parameters.n_estimators) or is_auto(parameters.max_depth):
            return AutoSized(parameters, task, kind=cls)
        return cls(parameters, task)

    # -- the plan ------------------------------------------------------------------------------------------------

    def make_design(self, request: method.FitRequest) -> Any:
        """Design the forest under the accounting that leaves less noise."""
        return lower_noise_design(request, self.design_with_loss)

    @abstractmethod
    def design_with_loss(self, request: method.FitRequest) -> Any:
        """Design the forest under one accounting: pure epsilon or zCDP."""

    @classmethod
    def candidate_sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Return the candidate numbers and depths of trees. Without noise the last candidate is the best.

        The error of a candidate must be fast to compute. No candidate needs more leaves than there are rows.
        """
        if noiseless:
            yield 64, 14
            return
        yield from product((1, 2, 4, 8, 16, 32, 64), (1, 2, 3, 4, 5, 6, 8, 10))

    @property
    def leaf_fraction(self) -> Fraction:
        """The fraction of the budget for the leaves."""
        return Fraction(1)

    def n_leaves(self, encoding: Encoding) -> int:
        """Return the maximum number of leaves of all trees."""
        return int(self.parameters.n_estimators) << int(self.parameters.max_depth)

    def leaves_and_error(self, request: method.FitRequest, encoding: Encoding) -> tuple[int, float]:
        """Return the maximum number of leaves, and the squared error of a leaf under the better accounting."""
        leaves = self.n_leaves(encoding)
        if leaves > MAX_LEAVES:
            raise DomainTooLargeError(f"{leaves:,} leaves exceed the limit of {MAX_LEAVES:,}. Hint: lower max_depth.")
        variance = _lower_variance(request.loss, self.leaf_fraction, request.neighbours, *self.row_norms)
        return leaves, self.leaf_error(variance)

    @property
    def uses_disjoint_trees(self) -> bool:
        """Whether each row is counted in one tree only."""
        return self.parameters.trees in ("disjoint", AUTO)

    @property
    def trees_per_row(self) -> int:
        """The number of trees that count a row."""
        return 1 if self.uses_disjoint_trees else int(np.sum(self.parameters.n_estimators))

    @property
    def row_sharing(self) -> RowAssignment:
        """The assignment of rows to trees, as recorded in the plan."""
        return EACH_TO_ONE_TREE if self.uses_disjoint_trees else ALL_TO_EVERY_TREE

    @property
    def row_norms(self) -> tuple[int, int]:
        """L1 norm and squared L2 norm of what one row adds to all leaves.

        That is one class count, or one rotated pair with sum TARGET_LEVELS, in each tree that counts it.
        """
        per_tree = 1 if self.task == "classification" else TARGET_LEVELS
        return self.trees_per_row * per_tree, self.trees_per_row * per_tree**2

    def leaf_step(self, schema: Schema, loss: Loss, neighbours: Neighbours, n_leaves: int) -> Step:
        """Plan the release of all leaves."""
        classes = schema.task == "classification"
        name = (TreeStep.LEAF_CLASSES if classes else TreeStep.LEAF_TARGETS).at()
        l1, squared_l2 = self.row_norms
        shape = n_leaves, len(schema.classes) if classes else 2
        return counting_step(name, shape, loss, neighbours, l1=l1, squared_l2=squared_l2)

    def leaf_error(self, variance: float) -> float:
        """Return the expected squared error of a leaf's row count: in regression, the pair's sum over TARGET_LEVELS."""
        return variance * (1 if self.task == "classification" else 2 / TARGET_LEVELS**2)

    # -- the data ------------------------------------------------------------------------------------------------

    def draw_assignment(self, n_trees: int) -> Assignment | None:
        """Return the assignment of rows to disjoint trees under a fresh secret key, or None if rows are shared."""
        return Assignment(secret_key(), n_trees) if self.uses_disjoint_trees else None

    def make_leaf_count(self, encoding: Encoding, forest: Forest, assignment: Assignment | None) -> Count:
        """Return the count of the leaves. Its exact sums are private and are passed to the release door only."""
        return LeafCount(forest, len(encoding.schema.classes) or None, TARGET_LEVELS, assignment)

    # -- after the release door
    # ------------------------------------------------------------------------------------------

    @property
    def shrinks_leaves(self) -> bool:
        """Whether leaves are shrunk towards their ancestors: on request, or if the size is "auto"."""
        return self.parameters.leaves == "empirical-bayes" or (self.parameters.leaves == AUTO and self.auto_sized)

    @property
    def voting_rule(self) -> str:
        """The rule that combines the leaves of a row."""
        chosen: str = getattr(self.parameters, "voting", AVERAGE)
        if chosen == AUTO:
            return AVERAGE if self.auto_sized else "majority"
        return chosen

    def released_leaves(self, design: Any, released: Any) -> tuple[Forest, AnyArray]:
        """Return the forest and its noisy leaf counts. Data-dependent trees are part of what was released."""
        forest, counts = released
        return forest, counts

    def build_model(self, design: Any, plan: Plan, released: Any, n_jobs: int | None = None) -> LeafModel:
        """Build the model from the noisy leaves."""
        return self.make_model(design.encoding, *self.released_leaves(design, released), plan)

    def make_model(
        self, encoding: Encoding, forest: Forest, counts: AnyArray, plan: Plan, pooled: Pooled = None
    ) -> LeafModel:
        """Build the model from a forest and its noisy leaves. Leaves are cleaned here only."""
        values = self.clean_leaves(forest, counts, plan, pooled)
        if self.voting_rule == "majority":
            values = majority_votes(values)
        smoothed = self.voting_rule == "majority" or not self.shrinks_leaves
        return LeafModel(encoding, forest, values, counts, self.voting_rule, plan.public_seed, pooled, smoothed)

    def clean_leaves(self, forest: Forest, counts: AnyArray, plan: Plan, pooled: Pooled = None) -> Floats:
        """Return the class frequencies, or scaled mean and complement, of each leaf under the chosen cleaning."""
        classes = self.task == "classification"
        if self.shrinks_leaves:
            rows = 1 if classes else TARGET_LEVELS  # contribution of one row to a leaf
            noise = self.leaf_variance(plan) / rows**2
            above = self._pooled_per_tree(pooled, plan, forest, rows)
            if not classes:
                return cleaning.shrunken_means(forest, counts / rows, noise, above)
            return cleaning.shrunken_frequencies(forest, counts / rows, noise, above, splits_fitted=self.splits_fitted)
        return normalize_counts(counts) if classes else normalize_pairs(counts, TARGET_LEVELS)

    def leaf_variance(self, plan: Plan) -> float:
        """Return the variance of the noise on each value of a leaf."""
        return plan.steps[-1].variance

    def _pooled_per_tree(self, pooled: Pooled, plan: Plan, forest: Forest, rows: int) -> tuple[Floats, float] | None:
        """Return the counts of the rows that one tree counts, and the variance of their noise."""
        if pooled is None:
            return None
        share = rows * (forest.n_trees if self.uses_disjoint_trees else 1)
        return pooled / share, plan.steps[0].variance / share**2

    def restore_model(self, schema: Schema, plan: Plan, arrays: method.Arrays) -> LeafModel:
        """Rebuild the model from the arrays of a file. Raise ``ModelFileError`` if they do not describe one."""
        encoding = Encoding(schema, self.numeric_encoding)
        forest = Forest.from_arrays(arrays, encoding.n_codes)
        width = len(schema.classes) or 2
        shape, counts = (forest.n_leaves, width), arrays.get("leaf_counts")
        if counts is None or counts.dtype != self.leaf_dtype or counts.shape != shape:
            raise ModelFileError(f"the leaf counts are missing, or their shape is not {shape} as planned.")
        if forest.n_leaves > plan.n_leaves:
            raise ModelFileError(f"the trees have {forest.n_leaves} leaves, more than the {plan.n_leaves} planned.")
        pooled = arrays.get("pooled")
        measured = plan.steps[0].kind == POOLED.kind
        if measured != (pooled is not None) or (
            pooled is not None and (pooled.dtype != np.int64 or pooled.shape != (width,))
        ):
            raise ModelFileError("the counts of all rows do not match the plan.")
        return self.make_model(encoding, forest, counts, plan, pooled)

    def utility_warning(self, plan: Plan, model: method.Model) -> str | None:
        """Return a warning if the noise exceeds the leaf counts, as estimated from the noisy counts themselves."""
        assert isinstance(model, LeafModel)
        unit = 1 if self.task == "classification" else TARGET_LEVELS
        rows_per_leaf = max(0.0, float(model.leaf_counts.sum()) / unit) / model.forest.n_leaves
        noise = plan.expected_leaf_mse**0.5
        averaged = noise / model.forest.n_trees**0.5 if self.auto_sized else noise  # shrunken leaves are averaged
        if averaged <= rows_per_leaf or noise == 0:
            return None
        shrink_hint = "" if self.shrinks_leaves else ", use leaves='empirical-bayes'"
        return (
            f"expected noise of {noise:.3g} rows on each count of a leaf of about {rows_per_leaf:.3g} rows. Hint: "
            f"compare settings with vw.tune; lower max_depth or n_estimators{shrink_hint}, or increase epsilon."
        )


class PregrownForest(method.OnePassMethod[L], LeafMethod[L]):
    """Base class of forests that are grown without data and release only their leaf counts."""

    trees_text: ClassVar[str]  # describes the trees in a plan

    @abstractmethod
    def grow_trees(self, request: method.FitRequest) -> tuple[Encoding, Forest]:
        """Grow the trees from public facts and the public seed."""

    def design_with_loss(self, request: method.FitRequest) -> method.ForestDesign:
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
            f"noisy {step.name} of {layout.trees} {self.trees_text}",
            layout,
            self.leaf_error(step.variance),
            choices=structure,
        )
        return method.ForestDesign(encoding, plan, forest)

    def make_count(self, design: method.ForestDesign) -> Count:
        """Return the count of the leaves."""
        return self.make_leaf_count(design.encoding, design.forest, self.draw_assignment(design.forest.n_trees))

    def release_sums(self, design: method.ForestDesign, exact: Ints, door: Door) -> Ints:
        """Release the noisy leaf counts."""
        return door.release_counts(design.plan.steps[-1], exact)

    def released_leaves(self, design: method.ForestDesign, released: Ints) -> tuple[Forest, Ints]:
        """Return the designed forest with the released counts."""
        return design.forest, released
