# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: give it a schema and an epsilon, and it finds out the rest, step by step.

Here are its plan, its way through the door, and the model that is learned. What is measured, and when, is in ``loop``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from veilwood.data.batches import Source
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import ModelFileError, PlanError
from veilwood.estimators.base import BaseForest, Classifier, ClassWeights, Regressor, SharedParameters
from veilwood.estimators.method import (
    Arrays,
    Codes,
    Design,
    FitRequest,
    Floats,
    ForestModel,
    Method,
    Parameters,
    check_n_rows,
)
from veilwood.forests.adaptive.contingency import BinnedColumn, ContingencyTable, bin_columns, tables_to_forest
from veilwood.forests.adaptive.effects import (
    MAX_PAIRS,
    EffectForest,
    Effects,
    check_effects,
    estimate_effects,
    read_effects,
)
from veilwood.forests.adaptive.loop import (
    CELL_WEIGHTS,
    TABLE_STEPS,
    AdaptiveLoop,
    LoopResult,
    describe,
    plan_first_step,
    planned_loss,
    with_accounting,
)
from veilwood.forests.adaptive.row_backend import (
    GRADIENT_UNITS,
    LEVEL_UNITS,
    SCORE_UNITS,
    HoldsRemoteRows,
    MemoryBackend,
    ProvidesBackend,
    RowBackend,
    RowCount,
    gradient_norms,
    n_outputs,
    scores_to_probabilities,
)
from veilwood.forests.adaptive.sparse_histogram import FittedForest, max_leaf_count, predict_probabilities
from veilwood.forests.adaptive.table_design import HISTOGRAM_STEPS, MAX_GAIN, histogram_groups
from veilwood.forests.expected_skill import estimate_skill
from veilwood.privacy.adaptive_budget import AdaptiveBudget
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Rows as RowsUnit
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step, joint_step, selection_step, sparse_step
from veilwood.safe_io import all_ints_in, is_int_in
from veilwood.trees.counting import ACCELERATOR
from veilwood.trees.forest import LEAF, Forest
from veilwood.trees.lookup_forest import LookupForest
from veilwood.trees.random import public_generators

EXAMPLE_ROWS: Final = (1_000, 30_000, 1_000_000)  # for a plan that does not know the number of rows
MAX_LEAF_VALUE: Final = 1e6  # that a leaf, or the start, can have; far more than any fit gives
NO_MEASUREMENTS: Final = "nothing but the start"


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateForestParameters(Parameters):
    """What a PrivateForest can be told."""

    n_rows: int | None = None


@dataclass(frozen=True)
class PrivateForestDesign(Design):
    """What is decided before the data: columns in cells, the loss that is spent, the rows that are planned for."""

    request: FitRequest
    columns: tuple[BinnedColumn, ...]
    n_rows: int | None


@dataclass(frozen=True, eq=False)
class PrivateForestModel(ForestModel):
    """Scores that columns and pairs add up to, from a start: log-odds, or a part of the target's range."""

    start: Floats
    effects: EffectForest  # what columns and pairs do, for ``explain``
    cell_forest: FittedForest | None = None  # what was learned from fine cells, and how much it counts
    cell_weight: float = 0.0

    public_attributes: ClassVar[tuple[str, ...]] = ("forest", "leaf_values", "start")

    @cached_property
    def lookup_forest(self) -> LookupForest | None:
        """The trees as tables, in which predictions are looked up."""
        return LookupForest.from_forest(self.forest, self.leaf_values, self.encoding.n_codes)

    def sum_leaves(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return, for each row, the sum of what its cells say."""
        if self.lookup_forest is None or ACCELERATOR.get() is not None:
            return super().sum_leaves(codes, n_jobs)
        return self.lookup_forest.sum_leaf_values(codes, n_jobs)

    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return class probabilities, or predicted numbers inside the schema's bounds."""
        scores = self.start + self.sum_leaves(codes, n_jobs)
        if not self.encoding.schema.classes:
            return self.encoding.decode_target(np.clip(scores[:, 0], 0.0, 1.0) * TARGET_LEVELS)
        if self.cell_forest is None:
            return scores_to_probabilities(scores)
        theirs = predict_probabilities(self.cell_forest, codes, n_jobs)
        return (1 - self.cell_weight) * scores_to_probabilities(scores) + self.cell_weight * theirs

    def class_frequencies(self) -> Floats:
        """Return the shares of classes where no column says anything."""
        return np.asarray(scores_to_probabilities(self.start[None])[0])

    def explain(self) -> Effects:
        """Return main effects and interactions of the additive part, with error bars."""
        return read_effects(self.effects, self.encoding)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the forest, the values of its leaves, the start, and what explanations are read off."""
        told = {"leaf_values": self.leaf_values, "start": self.start}
        theirs = {**self.effects.forest.to_arrays(), "values": self.effects.values, "errors": self.effects.errors}
        told |= {f"effects_{name}": array for name, array in theirs.items()}
        if self.cell_forest is not None:
            theirs = {**self.cell_forest.forest.to_arrays(), "values": self.cell_forest.values}
            told |= {f"cells_{name}": array for name, array in theirs.items()} | {
                "weight": np.array([self.cell_weight])
            }
        return {**self.forest.to_arrays(), **told}


class PrivateForest(Method[PrivateForestParameters]):
    """One adaptive loop, for either task."""

    multi_pass: ClassVar[bool] = True

    def check_parameters(self) -> None:
        """Refuse a number of rows that is none."""
        check_n_rows(self.parameters.n_rows)

    def make_design(self, request: FitRequest) -> PrivateForestDesign:
        """Plan the start; what follows is planned from what is released, and told in words."""
        given = self.parameters.n_rows
        return self._design_for_rows(request, None if given is None else int(given), declared=True)

    def _design_for_rows(
        self, request: FitRequest, n_rows: int | None, *, declared: bool, loss: Loss | None = None
    ) -> PrivateForestDesign:
        encoding, n_classes = Encoding(request.schema, "grid"), len(request.schema.classes)
        columns = bin_columns(encoding)
        loss = loss or planned_loss(columns, n_classes, n_rows, request)
        purse = AdaptiveBudget(loss, request.neighbours)
        if n_rows is not None:
            purse = with_accounting(columns, n_classes, float(n_rows), purse)
        step = plan_first_step(purse, n_classes, n_rows)
        known = None if n_rows is None else ("declared" if declared else "counted")
        sizes = EXAMPLE_ROWS if n_rows is None else (n_rows,)
        notes = {
            f"at {n:,} rows": describe(columns, n_classes, n, AdaptiveBudget(loss, request.neighbours))
            + _describe_expected_skill(request, n)
            for n in sizes
        }
        if loss.accounting_open:
            notes["delta"] = "spent only where the number of rows shows that it pays; else epsilon alone is"
        plan = request.make_plan(
            (step,),
            f"the {step.name}, with noise, and then, step by step with the rest of the budget, what is chosen from it",
            Layout(rows_planned=n_rows, rows_known=known),  # type: ignore[arg-type]
            0.0,
            loss=loss,
            choices={"method": "adaptive"},
            notes=notes,
        )
        return PrivateForestDesign(encoding, plan, request, columns, n_rows)

    def measure_rows(
        self, design: PrivateForestDesign, source: Source, door: Door, n_jobs: int | None = None
    ) -> LoopResult:
        """Carry the loop out."""
        rows = _open_backend(design.columns, source, len(design.encoding.schema.classes), n_jobs)
        as_many = source.is_complete and source.preserves_rows
        del source  # rows that are held need it no more
        try:
            return self._run_loop(design, rows, door, n_jobs, as_many)
        finally:
            if isinstance(rows, HoldsRemoteRows):
                rows.close()

    def _run_loop(
        self, design: PrivateForestDesign, backend: RowBackend, door: Door, n_jobs: int | None, one_per_input: bool
    ) -> LoopResult:
        asked, n_classes = design.request, len(design.encoding.schema.classes)
        if design.n_rows is None and one_per_input and _rows_are_public(asked):
            (n,) = backend.run(RowCount())
            design = self._design_for_rows(asked, max(int(n), 1), declared=False, loss=design.plan.loss)
            door.refine(design.plan)
        purse = AdaptiveBudget(design.plan.loss, asked.neighbours, door)
        if design.n_rows is not None:
            purse = with_accounting(design.columns, n_classes, float(design.n_rows), purse)
        (rng,) = public_generators(design.plan.public_seed, 1)
        learned = AdaptiveLoop(design.columns, n_classes, backend, purse, design.n_rows, rng, n_jobs).run()
        layout = Layout(
            max(len(learned.steps), 1),
            max(sum(step.table.n_cells for step in learned.steps), 1),
            rows_planned=design.n_rows or max(1, round(learned.n_rows)),
            rows_known=design.plan.layout.rows_known or "measured",
        )
        found = "; ".join(learned.decisions) or NO_MEASUREMENTS
        door.refine(door.plan.refined(
            released=_released_text(door.plan), layout=layout,
            choices={
                "method": "adaptive", "learned": found,
                "tables": [step.table.features[0] for step in learned.steps[: learned.n_tables]],
                "limits": [learned.start_limit, learned.residual_limit],
            },
        ))  # fmt: skip
        return learned

    def build_model(
        self, design: PrivateForestDesign, plan: Plan, released: LoopResult, n_jobs: int | None = None
    ) -> PrivateForestModel:
        """Write each step as a tree."""
        schema, width = design.encoding.schema, len(released.start)
        units = SCORE_UNITS if schema.classes else TARGET_LEVELS * LEVEL_UNITS
        steps = [step._replace(values=step.values / units) for step in released.steps]
        forest, cells = tables_to_forest([step.table for step in steps] or [ContingencyTable(())])
        parts = np.split(cells, forest.tree_leaves[1:-1])
        said = [step.values[part] for step, part in zip(steps, parts, strict=False)]
        values = np.concatenate(said or [np.zeros((1, width))])
        start = released.start / units
        told = EffectForest.from_estimates(estimate_effects(steps, start, len(schema.classes)), width)
        return PrivateForestModel(
            design.encoding, forest, values, start, told, released.cell_forest, released.cell_weight
        )

    def restore_model(self, schema: Schema, plan: Plan, arrays: Arrays) -> PrivateForestModel:
        """Check the arrays of a file."""
        encoding = Encoding(schema, "grid")
        forest = Forest.from_arrays(dict(arrays), encoding.n_codes)
        width = n_outputs(len(schema.classes))
        if (forest.n_trees, forest.n_leaves) != (plan.layout.trees, plan.layout.leaves):
            raise ModelFileError(f"{forest.n_leaves} leaves are not the {plan.layout.leaves} planned, tree by tree.")
        check_tables(forest, plan)
        values = _read_numbers(arrays, "leaf_values", (forest.n_leaves, width))
        start, told = _read_numbers(arrays, "start", (width,)), _read_effects(arrays, encoding, width)
        check_effects(told.forest, forest, encoding)
        if "weight" not in arrays:
            return PrivateForestModel(encoding, forest, values, start, told)
        weight, taken = float(_read_numbers(arrays, "weight", (1,))[0]), {step.name for step in plan.steps}
        if weight not in CELL_WEIGHTS[1:] or not schema.classes:
            raise ModelFileError("the weight of fine cells is none that can be chosen.")
        if not {"classes by column", "fine cells", "weight of fine cells"} <= taken:
            raise ModelFileError("it holds fine cells that no step of its plan has released.")
        return PrivateForestModel(encoding, forest, values, start, told, _read_cell_forest(arrays, encoding), weight)

    def replan_request(self, request: FitRequest, plan: Plan) -> Plan:
        """Plan every step that was taken once more, from its name, shape and loss: sensitivity and noise follow.

        What was chosen from released numbers is taken from the plan, as far as steps can have chosen it.
        """
        design = self.make_design(request)
        fresh, opened = design.plan, replace(design.plan, loss=plan.loss)
        known = plan.layout.rows_planned
        counted = plan.layout.rows_known == "counted" and self.parameters.n_rows is None
        if counted and _rows_are_public(request) and known is not None:
            fresh = self._design_for_rows(request, known, declared=False, loss=fresh.loss).plan
        n_columns, n_classes = len(request.schema.features), len(request.schema.classes)
        if set(plan.choices) != {"method", "learned", "tables", "limits"} or not is_int_in(known, 1):
            raise PlanError("this plan does not say what was chosen on the way.")
        try:
            check_table_columns(plan, n_columns)
            check_histograms(plan, design.columns, n_classes)
            check_gradient_limits(plan.choices["limits"], n_classes)
            steps = [replan_step(step, n_columns, n_classes, plan.choices, request) for step in plan.steps]
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            raise PlanError("this plan does not say what was chosen on the way.") from None
        layout = fresh.layout
        if layout.rows_known is None:
            layout = replace(layout, rows_planned=known, rows_known="measured")
        choices = {**plan.choices, "method": "adaptive", "learned": str(plan.choices["learned"])}
        return replace(
            fresh, steps=(fresh.steps[0], *steps[1:]), released=_released_text(plan), choices=choices,
            layout=replace(layout, trees=plan.layout.trees, leaves=plan.layout.leaves), opened_as=opened.fingerprint(),
        )  # fmt: skip

    def utility_warning(self, plan: Plan, model: Any) -> str | None:
        """Say so where nothing but the start was worth measuring."""
        if plan.choices.get("learned") != NO_MEASUREMENTS:
            return None
        return (
            "so few rows at this epsilon show nothing but how frequent the classes are, or the mean of the target, "
            "and that is all this model predicts. Hint: spend more epsilon, or gather more rows."
        )


def _open_backend(columns: Sequence[BinnedColumn], source: Source, n_classes: int, n_jobs: int | None) -> RowBackend:
    """Ask rows where they are."""
    if isinstance(source, ProvidesBackend):
        return source.make_backend(columns, n_outputs(n_classes))
    accelerator = ACCELERATOR.get()
    if accelerator is not None and source.is_complete:
        backend: RowBackend = accelerator.make_backend(columns, source, n_outputs(n_classes))
        return backend
    return MemoryBackend(columns, source, n_outputs(n_classes), n_jobs)


def _rows_are_public(request: FitRequest) -> bool:
    """Whether neighbours have as many rows: where rows, not people, are replaced, and none is dropped or copied."""
    replaced = request.neighbours.adjacency == "replace-one" and isinstance(request.neighbours.unit, RowsUnit)
    return replaced and request.parameters.get("invalid") != "drop"


UNIT_COUNT_STEPS: Final = {  # steps in which one row adds 1 to one number
    "class counts", "class counts once more", TABLE_STEPS.quantity, "number of rows", "rows", HISTOGRAM_STEPS.quantity,
    "histogram of column", "histogram of the target", "histogram of residuals before round",
}  # fmt: skip


def check_table_columns(plan: Plan, n_columns: int) -> None:
    """Raise ValueError where the tables that a plan says were counted are not those that its steps can have chosen."""
    n_chosen = sum(step.name.startswith("column ") for step in plan.steps) or n_columns
    columns = plan.choices["tables"]
    fits = len(table_cell_counts(plan)) == len(columns) == len(set(columns)) and len(columns) in (0, n_chosen)
    if not fits or not all_ints_in(columns, 0, n_columns - 1):
        raise ValueError("these tables were not chosen by these steps")


def check_gradient_limits(limits: Sequence[object], n_classes: int) -> None:
    """Raise ValueError where gradients cannot have been cut so: at first, and at the end.

    Two classes are cut at the share of the larger one, which is half or more; many are not cut, and residuals at some
    part of the target's range, which is only known once a histogram was released.
    """
    first, last = limits
    least, most = {2: (GRADIENT_UNITS // 2, GRADIENT_UNITS)}.get(n_classes, (GRADIENT_UNITS, GRADIENT_UNITS))
    fits = all_ints_in((first,), least, most)
    if n_classes == 0:
        least, most = 1, TARGET_LEVELS * LEVEL_UNITS
    if not fits or not all_ints_in((last,), least, most):
        raise ValueError("gradients are not cut so")


def check_histograms(plan: Plan, columns: Sequence[BinnedColumn], n_classes: int) -> None:
    """Raise ValueError where a plan says that histograms were taken which these columns cannot have."""
    together = [step for step in plan.steps if step.name.endswith(f": {HISTOGRAM_STEPS.quantity}")]
    jointly = all(step.loss.delta == 0 and step.loss.epsilon is not None for step in together)
    cells = [size for step in together for size in step.table_cells]
    fits = not together or (n_classes > 0 and len(cells) > 1)
    fits &= not Counter(cells) - Counter(histogram_groups(column, jointly).size for column in columns if column.ordered)
    first = 0
    for step in together:
        n_tables = len(step.table_cells)
        fits &= step.name == HISTOGRAM_STEPS.format_range(first, n_tables) and step.shape == (sum(step.table_cells), 1)
        first += n_tables
    for step in plan.steps:
        _, alone, place = step.name.partition(": histogram of column ")
        fits &= not alone or step.shape in [
            (one.n_value_bins,) for one in columns if one.ordered and str(one.feature) == place
        ]
    if not fits:
        raise ValueError("no such histograms of these columns are taken")


def table_cell_counts(plan: Plan) -> list[int]:
    """How many cells each table has that was counted."""
    return [
        cells for step in plan.steps if step.name.endswith(f": {TABLE_STEPS.quantity}") for cells in step.table_cells
    ]


def check_tables(forest: Forest, plan: Plan) -> None:
    """Refuse a forest whose first trees are not the tables that were counted, or that has trees of no step."""
    columns, cells = plan.choices.get("tables", []), table_cell_counts(plan)
    of_rounds = [step.shape[0] for step in plan.steps if step.name.endswith(": gradients")]
    rows_of_rounds = [step.shape for step in plan.steps if re.fullmatch(r"round \d+: rows", step.name)]
    tested = [set(part.tolist()) - {LEAF} for part in np.split(forest.feature, forest.roots[1:])]
    told = isinstance(columns, list) and all_ints_in(columns, 0) and len(columns) == len(cells)
    told = told and rows_of_rounds == [(cells,) for cells in of_rounds]
    told = told and np.diff(forest.tree_leaves).tolist() == ([*cells, *of_rounds] or [1])
    if not told or not all(mine <= {column} for mine, column in zip(tested, columns, strict=False)):
        raise ModelFileError("its trees are not the tables and rounds that the plan says were measured.")


STEP_NAMES: Final = re.compile(
    r"class counts( once more)?|number of rows|sums? of (the target|residuals)|histogram of the target|fine cells"
    r"|histogram of residuals before round \d+|strengths of columns|weight of (tables|fine cells)|classes by column"
    r"|column \d+ of tables|tables? \d+( to \d+)?: classes by cell|histograms? \d+( to \d+)?: rows by group"
    r"|round \d+: (choice|rows|gradients|histogram of column \d+)"
)


def _matches_kind(step: Step, kind: str, n_columns: int, n_classes: int) -> bool:
    """Whether a step has a name and a shape that one of its kind can have; None stands for any number."""
    many: tuple[int | None, ...] = (None,)
    shapes: dict[str, tuple[int | None, ...]] = {
        "class counts": (n_classes,), "class counts once more": (n_classes,), "number of rows": (1,),
        "sums of the target": (2,), "sum of residuals": (1, 1), "weight of tables": (1,), "choice": (1, None),
        "column of tables": (1, n_columns), "weight of fine cells": (1, len(CELL_WEIGHTS)), HISTOGRAM_STEPS.quantity: (None, 1),
        TABLE_STEPS.quantity: (None, n_classes), "classes by column": (None, n_classes),
        "gradients": (None, n_outputs(n_classes)),
    }  # fmt: skip
    shape = shapes.get(kind, many)
    alike = len(shape) == len(step.shape) and all(b in (None, a) for a, b in zip(step.shape, shape, strict=True))
    return alike and STEP_NAMES.fullmatch(step.name) is not None


def replan_step(step: Step, n_columns: int, n_classes: int, decisions: Mapping[str, Any], request: FitRequest) -> Step:
    """Plan a step of its name, shape and loss; what one row can move is known by name (proofs/private-forest.md)."""
    kind = re.sub(r" ?\d+", "", step.name.split(": ")[-1])
    if not _matches_kind(step, kind, n_columns, n_classes):
        raise ValueError("there is no such step")
    first, last = decisions["limits"]
    gaussian, signed = step.loss.delta > 0, request.neighbours.adjacency == "replace-one"
    l1, squared = gradient_norms(n_classes, first if kind in ("column of tables", "strengths of columns") else last)
    if kind in (TABLE_STEPS.quantity, HISTOGRAM_STEPS.quantity) and len(step.table_cells) > 1:
        outputs = n_classes if kind == TABLE_STEPS.quantity else 1
        return joint_step(step.name, step.table_cells, outputs, step.loss, request.neighbours)
    if kind == "fine cells":
        return replace(sparse_step(step.name, 1, step.loss, request.neighbours, l1=1), shape=step.shape)
    if kind in ("choice", "column of tables", "weight of fine cells"):
        return selection_step(
            step.name, step.shape, step.loss, request.neighbours, by="exponential" if gaussian else "flip",
            score_range=1 if kind == "weight of fine cells" else 2 * l1,
        )  # fmt: skip
    numbers = prod(step.shape)
    norms = {
        "gradients": (l1, squared * (2 if signed else 1)),
        "sum of residuals": (l1, squared * (2 if signed else 1)),
        "strengths of columns": (numbers * n_columns * l1, numbers * (n_columns * l1) ** 2 * (2 if signed else 1)),
        "weight of tables": (numbers * MAX_GAIN, numbers * MAX_GAIN**2 * (2 if signed else 1)),
        "sums of the target": (TARGET_LEVELS, TARGET_LEVELS**2),
        "classes by column": (n_columns, n_columns),
    }
    l1, squared = (1, 1) if kind in UNIT_COUNT_STEPS else norms[kind]
    return counting_step(step.name, step.shape, step.loss, request.neighbours, l1=l1, squared_l2=squared)


def _describe_expected_skill(request: FitRequest, n_rows: int) -> str:
    """Say how good predictions were for such a table; nothing is known of fits without noise."""
    if request.loss.epsilon is None:
        return ""
    price = AdaptiveBudget(
        Loss.pure(request.loss.epsilon), request.neighbours
    ).row_epsilon  # a delta is spent only where it is worth more
    return f". What to expect: {estimate_skill(request.schema.task, n_rows, len(request.schema.features), price)}"


def _released_text(plan: Plan) -> str:
    kinds: dict[str, int] = {}
    for step in plan.steps:
        kind = step.name.split(": ")[-1].rstrip("0123456789 ")
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{kind} ({times} times)" if times > 1 else kind for kind, times in kinds.items()) + ", with noise"


def _read_cell_forest(arrays: Arrays, encoding: Encoding) -> FittedForest:
    """Check what was learned from fine cells: shares of classes."""
    own = {name.removeprefix("cells_"): array for name, array in arrays.items() if name.startswith("cells_")}
    forest, n_classes = Forest.from_arrays(own, encoding.n_codes), len(encoding.schema.classes)
    if forest.n_leaves > max_leaf_count(n_classes):
        raise ModelFileError(f"{forest.n_leaves} leaves are more than fine cells can have.")
    grown = FittedForest(forest, _read_numbers(own, "values", (forest.n_leaves, n_classes)))
    shares = grown.values.sum(axis=1)
    if grown.values.min() < 0 or shares.max() > 1 + 1e-9 or shares.min() <= 0:
        raise ModelFileError("what was learned from fine cells does not consist of class shares.")
    return grown


def _read_effects(arrays: Arrays, encoding: Encoding, width: int) -> EffectForest:
    """Check what explanations are read off: a tree for each column, and for some pairs."""
    own = {name.removeprefix("effects_"): array for name, array in arrays.items() if name.startswith("effects_")}
    forest = Forest.from_arrays(own, encoding.n_codes)
    if forest.n_trees > len(encoding.columns) + MAX_PAIRS:
        raise ModelFileError("the model explains more than there are columns and pairs.")
    values, errors = (_read_numbers(own, name, (forest.n_leaves, width)) for name in ("values", "errors"))
    if errors.min(initial=0) < 0:
        raise ModelFileError("errors of what the model explains are below 0.")
    return EffectForest(forest, values, errors)


def _read_numbers(arrays: Arrays, name: str, shape: tuple[int, ...]) -> Floats:
    found = arrays.get(name)
    if found is None or found.dtype != np.float64 or found.shape != shape or not np.isfinite(found).all():
        raise ModelFileError(f"{name} of the model is missing, or not as many numbers as there are leaves.")
    if not np.abs(found).max(initial=0) < MAX_LEAF_VALUE:
        raise ModelFileError(f"{name} of the model holds no scores.")
    return found


_PARAMETERS = """
    Parameters
    ----------
    schema : Schema, path or dict
        The public facts about the table.
    epsilon, delta : float
        The privacy budget; delta=0 is pure epsilon. With delta above 0 large tables are learned better.
    n_rows : int, optional
        The number of rows, or a guess at it, where that is public; ``plan()`` then says what would be done for it.
        Otherwise the first step, a twentieth of the budget, tells it.
    privacy_unit, adjacency
        Whom the guarantee protects (see the README).
    max_weight : int, optional
        The largest ``sample_weight`` of a row that counts; noise grows with it. Classifiers also take ``class_weight``,
        by which probabilities are multiplied, at no cost.
    random_state : int, optional
        Public randomness only: which columns meet in a table, and which pairs a round looks at.
    ledger : Ledger or path, optional
        Where the spend is recorded.
    n_jobs : int, optional
        Threads.
    invalid : {"refuse", "drop"}
        What to do with rows that do not fit the schema: refuse the whole fit, or leave them out, row by row.
"""


class _ExplainableForest(BaseForest):
    """What both tasks share: explanations."""

    _method_class = PrivateForest

    def explain(self) -> Effects:
        """Return main effects and the strongest interactions, with error bars that hold noise and sampling.

        Free: computed from what was released. Effects are not shrunk, as predictions are.

        Returns
        -------
        Effects
            Print it, or look at it with ``veilwood.plots.plot_effects`` and ``veilwood.plots.plot_pair``.
        """
        check_is_fitted(self, "model_")
        effects: Effects = self.model_.explain()
        return effects


@dataclass(eq=False, repr=False)
class PrivateForestClassifier(Classifier, _ExplainableForest, PrivateForestParameters, ClassWeights, SharedParameters):  # noqa: D101
    __doc__ = f"""The classifier most people should use: it needs a schema and an epsilon and chooses the rest.
{_PARAMETERS}
    Notes
    -----
    Guarantee

    Everything in the fitted model is computed from steps of the plan, whose losses add up to at most (epsilon, delta)
    (proofs/private-forest.md, attacked by packages/veilwood/tests/forests/adaptive/test_rows.py,
    packages/veilwood/tests/forests/adaptive/test_attacks.py and packages/veilwood-audit/tests/test_attacks.py).

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=1.0, n_rows=len(car.X), random_state=0)
    >>> [step.name for step in forest.plan().steps]
    ['class counts']
    >>> forest.fit(car.X, car.y).predict_proba(car.X).shape
    (1728, 4)
    """


@dataclass(eq=False, repr=False)
class PrivateForestRegressor(Regressor, _ExplainableForest, PrivateForestParameters, SharedParameters):  # noqa: D101
    __doc__ = f"""The regressor most people should use: it needs a schema and an epsilon and chooses the rest.
{_PARAMETERS}
    Notes
    -----
    Guarantee

    As for ``PrivateForestClassifier`` (proofs/private-forest.md, attacked by packages/veilwood/tests/forests/adaptive/test_rows.py).

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.from_dict({{
    ...     "name": "line", "task": "regression", "target": "y", "columns": [
    ...         {{"name": "x", "kind": "numeric", "lower": 0, "upper": 1}},
    ...         {{"name": "y", "kind": "numeric", "lower": 0, "upper": 1}}]}})
    >>> x = np.linspace(0, 1, 20_000)
    >>> forest = vw.PrivateForestRegressor(schema, epsilon=1.0, n_rows=20_000, random_state=0).fit(x[:, None], x)
    >>> bool(np.abs(forest.predict([[0.2], [0.8]]) - [0.2, 0.8]).max() < 0.1)
    True
    """
