# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: an adaptive tree ensemble with differential privacy.

The plan, the release and the fitted model. What is measured, and when, is in ``loop``; kinds and sensitivities of
steps are in ``steps``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veilwood.arrays import AnyArray, Codes, Floats, Int32s, Ints
from veilwood.data.batches import Source
from veilwood.data.counts import ALL_ROWS, ContingencyTable, RowBackend, RowsByCell
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import ModelFileError, ParameterError, PlanError
from veilwood.estimators import method
from veilwood.estimators.base import BaseForest, Classifier, Regressor
from veilwood.estimators.parameters import ClassWeights, Role, SharedParameters, parameter
from veilwood.forests.adaptive import effects as effects_module
from veilwood.forests.adaptive import fixed_tables, loop, plan_checks, row_backend, steps
from veilwood.forests.adaptive.contingency import BinnedColumn, bin_columns, tables_to_forest
from veilwood.forests.adaptive.effects import EffectForest, Effects, TableScores
from veilwood.forests.adaptive.plan_checks import AdaptiveDecisions
from veilwood.forests.adaptive.row_backend import n_outputs, scores_to_probabilities
from veilwood.forests.adaptive.sparse_histogram import FittedForest, max_leaf_count, predict_probabilities
from veilwood.forests.adaptive.steps import AdaptiveStep
from veilwood.forests.expected_skill import estimate_skill
from veilwood.privacy.adaptive_budget import AdaptiveBudget
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, RowsOf
from veilwood.privacy.neighbours import Rows as RowsUnit
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import counting_step
from veilwood.privacy.time_factors import SeriesStep, own_decisions
from veilwood.safe_io import is_int_in
from veilwood.trees.counting import ACCELERATOR, LeafCount
from veilwood.trees.forest import Forest
from veilwood.trees.lookup_forest import LookupForest
from veilwood.trees.random import public_generators

EXAMPLE_ROWS: Final = (1_000, 30_000, 1_000_000)  # numbers of rows to describe if n_rows is not declared
MAX_LEAF_VALUE: Final = 1e6  # largest absolute leaf value or initial score in a file; fits stay far below
MAX_ROWS: Final = 1e15  # largest absolute number of rows of a group in a file
NO_MEASUREMENTS: Final = "initial estimate only"


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateForestParameters(method.Parameters):
    """Parameters of PrivateForest."""

    n_rows: int | None = parameter(None, role=Role.STRUCTURE)


@dataclass(frozen=True)
class PrivateForestDesign(method.Design):
    """Design of a fit: binned columns, the plan with its loss, and the number of rows for which it is planned."""

    request: method.FitRequest
    columns: tuple[BinnedColumn, ...]
    n_rows: int | None


@dataclass(frozen=True, eq=False)
class PrivateForestModel(method.ForestModel):
    """Model of additive scores of columns, pairs and triples: log-odds, or fractions of the target's range."""

    start: Floats
    effect_source: EffectForest | tuple[TableScores, ...]  # from a file, or the released steps that determine them
    cell_forest: FittedForest | None = None  # fitted to the sparse histogram, mixed in with ``cell_weight``
    cell_weight: float = 0.0

    public_attributes: ClassVar[tuple[str, ...]] = ("forest", "leaf_values", "start")

    @cached_property
    def effects(self) -> EffectForest:
        """Estimated effects, computed on first access."""
        if isinstance(self.effect_source, EffectForest):
            return self.effect_source
        estimates = effects_module.estimate_effects(self.effect_source, self.start, len(self.encoding.schema.classes))
        return EffectForest.from_estimates(estimates, len(self.start))

    @cached_property
    def lookup_forest(self) -> LookupForest | None:
        """The forest as lookup tables, or None if it cannot be written as tables."""
        return LookupForest.from_forest(self.forest, self.leaf_values, self.encoding.n_codes)

    def sum_leaves(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the sum of leaf values of each row."""
        if self.lookup_forest is None or ACCELERATOR.get() is not None:
            return super().sum_leaves(codes, n_jobs)
        return self.lookup_forest.sum_leaf_values(codes, n_jobs)

    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return class probabilities, or predictions within the target's bounds."""
        scores = self.start + self.sum_leaves(codes, n_jobs)
        if not self.encoding.schema.classes:
            return self.encoding.decode_target(np.clip(scores[:, 0], 0.0, 1.0) * TARGET_LEVELS)
        if self.cell_forest is None:
            return scores_to_probabilities(scores)
        from_cells = predict_probabilities(self.cell_forest, codes, n_jobs)
        return (1 - self.cell_weight) * scores_to_probabilities(scores) + self.cell_weight * from_cells

    def class_frequencies(self) -> Floats:
        """Return the class frequencies of the initial score."""
        return np.asarray(scores_to_probabilities(self.start[None])[0])

    def explain(self) -> Effects:
        """Return main effects and interactions of the additive part, with error bars."""
        return effects_module.read_effects(self.effects, self.encoding)

    def column_strengths(self) -> Floats:
        """Return the mean square of the main effect of each column."""
        strength = {main.column: main.strength**2 for main in self.explain().main}
        return np.array([strength.get(name, 0.0) for name in self.encoding.schema.feature_names])

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the arrays of a model file: forest, leaf values, start and effects."""
        arrays = {"leaf_values": self.leaf_values, "start": self.start}
        effects = {**self.effects.forest.to_arrays(), "values": self.effects.values, "errors": self.effects.errors}
        effects["rows"] = self.effects.rows
        arrays |= {f"effects_{name}": array for name, array in effects.items()}
        if self.cell_forest is not None:
            cells = {**self.cell_forest.forest.to_arrays(), "values": self.cell_forest.values}
            arrays |= {f"cells_{name}": array for name, array in cells.items()} | {
                "weight": np.array([self.cell_weight])
            }
        return {**self.forest.to_arrays(), **arrays}


class PrivateForest(method.Method[PrivateForestParameters]):
    """Method of PrivateForest, for classification and regression."""

    multi_pass: ClassVar[bool] = True

    def may_promise(self, requested: Loss) -> tuple[Loss, ...]:
        """Return the losses that a plan may have; the accounting of later steps may not be chosen yet."""
        if requested.epsilon is None or requested.delta == 0:
            return super().may_promise(requested)
        return (*super().may_promise(requested), Loss.pure_or_zcdp(requested.epsilon, requested.delta))

    def check_parameters(self) -> None:
        """Raise ParameterError if ``n_rows`` is not a valid number of rows."""
        method.check_n_rows(self.parameters.n_rows)

    def make_design(self, request: method.FitRequest) -> PrivateForestDesign:
        """Plan the first step; later steps are planned from released values, and the notes describe them."""
        given = None if self.parameters.n_rows is None else int(self.parameters.n_rows)
        if given is not None and isinstance(request.neighbours.unit, RowsOf):  # rows of an id are repeated or omitted
            return self._design_for_rows(request, None, declared=False, examples=(given,))
        return self._design_for_rows(request, given, declared=True)

    def _design_for_rows(
        self, request: method.FitRequest, n_rows: int | None, *, declared: bool, loss: Loss | None = None,
        examples: Sequence[int] = EXAMPLE_ROWS,
    ) -> PrivateForestDesign:  # fmt: skip
        encoding, n_classes = Encoding(request.schema, "grid"), len(request.schema.classes)
        columns = bin_columns(encoding)
        loss = loss or loop.planned_loss(columns, n_classes, n_rows, request)
        budget = AdaptiveBudget(loss, request.neighbours)
        budget.check_row_epsilon()
        if n_rows is not None:
            budget = loop.with_accounting(columns, n_classes, float(n_rows), budget)
        step = loop.plan_first_step(budget, n_classes, n_rows)
        notes, skills = {}, {}
        for n in examples if n_rows is None else (n_rows,):
            key = f"at {n:,} rows"
            notes[key] = loop.describe(columns, n_classes, n, AdaptiveBudget(loss, request.neighbours))
            if skill := _describe_expected_skill(request, n):
                skills[key] = skill
        if loss.accounting_open:
            notes["delta"] = "zCDP accounting if it leaves less noise at the measured number of rows, else pure epsilon"
        plan = request.make_plan(
            (step,),
            f"noisy {step.name}, then adaptively chosen measurements within the remaining budget",
            Layout(rows_planned=n_rows, rows_known=None if n_rows is None else "declared" if declared else "counted"),
            0.0,
            loss=loss,
            choices=method.Decisions(method="adaptive").to_choices(),
            notes=notes,
            expected=skills,
        )
        return PrivateForestDesign(encoding, plan, request, columns, n_rows)

    def measure_rows(
        self, design: PrivateForestDesign, source: Source, door: Door, n_jobs: int | None = None
    ) -> loop.State:
        """Run the adaptive loop on the rows of a source."""
        backend = _open_backend(design.columns, source, len(design.encoding.schema.classes), n_jobs)
        one_per_input = source.is_complete and source.preserves_rows
        del source  # a backend in memory no longer needs the source: free its memory
        try:
            return self._run_loop(design, backend, door, n_jobs, one_per_input)
        finally:
            backend.close()

    def _run_loop(
        self, design: PrivateForestDesign, backend: RowBackend, door: Door, n_jobs: int | None,
        one_per_input: bool,
    ) -> loop.State:  # fmt: skip
        request, n_classes = design.request, len(design.encoding.schema.classes)
        if design.n_rows is None and one_per_input and _rows_are_public(request):
            (n,) = backend.run(RowsByCell(ALL_ROWS))
            design = self._design_for_rows(request, max(int(n), 1), declared=False, loss=design.plan.loss)
            door.refine(design.plan)
        (rng,) = public_generators(design.plan.public_seed, 1)
        budget = AdaptiveBudget(design.plan.loss, request.neighbours, door)
        fit = loop.Fit(design.columns, n_classes, backend, budget, rng, n_jobs)
        if design.n_rows is not None:
            fit = fit.with_accounting(float(design.n_rows))
        state = loop.run_loop(fit, design.n_rows)
        layout = Layout(
            max(len(state.steps), 1),
            max(sum(step.table.n_cells for step in state.steps), 1),
            rows_planned=design.n_rows or max(1, round(state.n_rows)),
            rows_known=design.plan.layout.rows_known or "measured",
        )
        decisions = AdaptiveDecisions(
            learned="; ".join(state.decisions) or NO_MEASUREMENTS,
            tables=[list(step.table.features) for step in state.steps[: state.n_tables]],
            limits=[state.start_limit, state.residual_limit],
        )
        released = steps.describe_released(door.plan)
        door.refine(replace(door.plan, released=released, layout=layout, choices=decisions.to_choices()))
        return state

    def build_model(
        self, design: method.Design, plan: Plan, released: loop.State | fixed_tables.FixedScores,
        n_jobs: int | None = None,
    ) -> PrivateForestModel:  # fmt: skip
        """Build the model: one tree per step, and the forest of the sparse histogram."""
        schema, width = design.encoding.schema, len(released.start)
        units = row_backend.SCORE_UNITS if schema.classes else TARGET_LEVELS * row_backend.LEVEL_UNITS
        scores = [step._replace(values=step.values / units) for step in released.steps]
        forest, cells = tables_to_forest([step.table for step in scores] or [ContingencyTable(())])
        parts = np.split(cells, forest.tree_leaves[1:-1])
        leaves = [step.values[part] for step, part in zip(scores, parts, strict=False)]
        values, start = np.concatenate(leaves or [np.zeros((1, width))]), released.start / units
        return PrivateForestModel(
            design.encoding, forest, values, start, tuple(scores), released.cell_forest, released.cell_weight
        )

    def for_series(self) -> FixedTables | method.Method[PrivateForestParameters]:
        """Return the method whose counts add up over time: for classification, tables that are chosen once."""
        return FixedTables(self.parameters, self.task) if self.task == "classification" else super().for_series()

    def restore_model(self, schema: Schema, plan: Plan, arrays: method.Arrays) -> PrivateForestModel:
        """Rebuild a model from the arrays of a file; raise ModelFileError if they do not fit the plan."""
        encoding = Encoding(schema, "grid")
        forest = Forest.from_arrays(dict(arrays), encoding.n_codes)
        width = n_outputs(len(schema.classes))
        if (forest.n_trees, forest.n_leaves) != (plan.layout.trees, plan.layout.leaves):
            raise ModelFileError(
                f"the plan has {plan.layout.trees} trees with {plan.layout.leaves} leaves, but the file has "
                f"{forest.n_trees} with {forest.n_leaves}."
            )
        if "series" in plan.choices:
            FixedTables.require_forest(forest, encoding, plan)
        else:
            plan_checks.check_tables(forest, plan)
        values = _read_numbers(arrays, "leaf_values", (forest.n_leaves, width))
        start, effects = _read_numbers(arrays, "start", (width,)), _read_effects(arrays, encoding, width)
        effects_module.check_effects(effects.forest, forest, encoding)
        if "weight" not in arrays:
            return PrivateForestModel(encoding, forest, values, start, effects)
        weight = float(_read_numbers(arrays, "weight", (1,))[0])
        needed = (AdaptiveStep.COLUMN_CLASSES, AdaptiveStep.SPARSE_CELLS, AdaptiveStep.CELL_WEIGHT)
        if weight not in steps.CELL_WEIGHTS[1:] or not schema.classes:
            raise ModelFileError("the weight of the sparse histogram is not one of those that can be selected.")
        if not all(steps.steps_of(plan, kind) for kind in needed):
            raise ModelFileError("the model uses a sparse histogram that no step of its plan released.")
        return PrivateForestModel(encoding, forest, values, start, effects, _read_cell_forest(arrays, encoding), weight)

    def replan_request(self, request: method.FitRequest, plan: Plan) -> Plan:
        """Recompute every step from its kind, shape and loss, which determine sensitivity and noise.

        Decisions that follow from released values are taken from the plan if its steps can have led to them.
        """
        design = self.make_design(request)
        fresh, opened = design.plan, replace(design.plan, loss=plan.loss)
        n_rows = plan.layout.rows_planned
        counted = plan.layout.rows_known == "counted" and self.parameters.n_rows is None
        if counted and _rows_are_public(request) and n_rows is not None:
            fresh = self._design_for_rows(request, n_rows, declared=False, loss=fresh.loss).plan
        decisions, incomplete = AdaptiveDecisions.from_choices(plan.choices), not is_int_in(n_rows, 1)
        try:
            replanned = plan_checks.check_steps(plan, design.columns, len(request.schema.classes), request.neighbours)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            incomplete = True
        if incomplete:
            raise PlanError("the plan lacks the decisions of its adaptive steps, so it cannot be recomputed.")
        layout = replace(fresh.layout, trees=plan.layout.trees, leaves=plan.layout.leaves)
        if layout.rows_known is None:
            layout = replace(layout, rows_planned=n_rows, rows_known="measured")
        return replace(
            fresh, steps=(fresh.steps[0], *replanned[1:]), released=steps.describe_released(plan), layout=layout,
            choices=decisions.to_choices(), opened_as=opened.fingerprint(),
        )  # fmt: skip

    def utility_warning(self, plan: Plan, model: Any) -> str | None:
        """Return a warning if only the class counts or the target mean were measured."""
        if not steps.only_initial_estimate(plan):
            return None
        return (
            "the budget is too small for this table: the model predicts class frequencies (or the target mean) only. "
            "Hint: increase epsilon or use more rows."
        )


@dataclass(frozen=True)
class FixedTablesDesign(method.Design):
    """Design of a series: binned columns, sizes of the tables, the chosen tables, and the trees that count them."""

    columns: tuple[BinnedColumn, ...]
    sizes: fixed_tables.TableSizes
    decisions: fixed_tables.TableDecisions
    tables: tuple[ContingencyTable, ...]
    forest: Forest
    cells: Int32s
    """Cell of each leaf in its table."""


class FixedTables(method.OnePassMethod[PrivateForestParameters]):
    """Method of PrivateForest in a series of releases, for classification: tables that are chosen once."""

    def make_design(self, request: method.FitRequest) -> FixedTablesDesign:
        """Plan the choice of tables and their counts. Before the choice, the tables are determined by priors."""
        if self.parameters.n_rows is None:
            raise ParameterError(
                "n_rows", None, "is needed: the size of the tables is chosen once for the whole series",
                "declare the expected number of rows, such as n_rows=20_000",
            )  # fmt: skip
        encoding, n_classes = Encoding(request.schema, "grid"), len(request.schema.classes)
        columns, neighbours = bin_columns(encoding), request.neighbours
        decisions = fixed_tables.TableDecisions.from_choices(request.decisions)
        loss = request.loss.scaled(1 - fixed_tables.CHOICE_FRACTION)
        sizes = fixed_tables.TableSizes.from_facts(columns, n_classes, int(self.parameters.n_rows), loss, neighbours)
        n_bins = sum(column.n_bins for column in columns)
        if decisions.chosen is None:
            tables = fixed_tables.choose_tables(columns, sizes, np.zeros((n_bins, n_classes)), 1.0)
        else:
            tables = _read_tables(columns, decisions)
            if len(tables) > sizes.n_columns:
                raise PlanError("the plan has more tables than its noise covers.")
        forest, cells = tables_to_forest(tables)
        choice = counting_step(
            SeriesStep.CHOICE.at(), (n_bins, n_classes), request.loss.scaled(fixed_tables.CHOICE_FRACTION), neighbours,
            l1=len(columns), squared_l2=len(columns),
        )  # fmt: skip
        counts = counting_step(
            AdaptiveStep.SERIES_TABLES.at(), (forest.n_leaves, n_classes), loss, neighbours,
            l1=sizes.n_columns, squared_l2=sizes.n_columns,
        )  # fmt: skip
        plan = request.make_plan(
            (choice, counts),
            f"noisy class counts of {sizes.n_columns} of {len(columns)} columns in groups, which a noisy first look at "
            "every column has chosen",
            Layout(len(tables), forest.n_leaves, rows_planned=int(self.parameters.n_rows), rows_known="declared"),
            counts.variance,
            choices=decisions.to_choices(),
        )
        return FixedTablesDesign(encoding, plan, columns, sizes, decisions, tuple(tables), forest, cells)

    def make_choice_count(self, design: FixedTablesDesign) -> LeafCount:
        """Return the count of classes by bin of every column."""
        axes = [ContingencyTable((column.ungrouped_axis(),)) for column in design.columns]
        return LeafCount(tables_to_forest(axes)[0], len(design.encoding.schema.classes))

    def choose(self, design: FixedTablesDesign, noisy: Ints, variance: float) -> dict[str, Any]:
        """Return the decisions of the series: the tables that the noisy counts of a choice select."""
        tables = fixed_tables.choose_tables(design.columns, design.sizes, noisy.astype(np.float64), variance)
        return replace(design.decisions, chosen=fixed_tables.to_plain(tables)).to_choices()

    def make_count(self, design: FixedTablesDesign) -> LeafCount:
        """Return the count of classes by cell of every table."""
        return LeafCount(design.forest, len(design.encoding.schema.classes))

    def release_sums(self, design: FixedTablesDesign, exact: Ints, door: Door) -> Ints:
        """Release the counts."""
        released: Ints = door.release_counts(design.plan.steps[-1], exact)
        return released

    def measure_rows(self, design: FixedTablesDesign, source: Source, door: Door, n_jobs: int | None = None) -> Ints:
        """Release the choice, if it was made, and the counts."""
        if design.decisions.chosen is not None:
            exact = source.aggregate(self.make_choice_count(design), n_jobs=n_jobs)
            door.release_counts(design.plan.steps[0], exact)
        counts: Ints = super().measure_rows(design, source, door, n_jobs)
        return counts

    def build_model(
        self, design: FixedTablesDesign, plan: Plan, released: Ints, n_jobs: int | None = None
    ) -> PrivateForestModel:
        """Build the model from estimated counts: one tree per table."""
        variance = plan.steps[-1].variance
        scores = fixed_tables.score_tables(design.tables, design.cells, design.forest, released, variance)
        return PrivateForest(self.parameters, self.task).build_model(design, plan, scores, n_jobs)

    def restore_model(self, schema: Schema, plan: Plan, arrays: method.Arrays) -> PrivateForestModel:
        """Rebuild a model from the arrays of a file."""
        return PrivateForest(self.parameters, self.task).restore_model(schema, plan, arrays)

    @staticmethod
    def require_forest(forest: Forest, encoding: Encoding, plan: Plan) -> None:
        """Raise ModelFileError if a plan records chosen tables and the forest has different ones."""
        decisions = fixed_tables.TableDecisions.from_choices(own_decisions(plan))
        if decisions.chosen is not None:
            tables = _read_tables(bin_columns(encoding), decisions)
            if forest.fingerprint() != tables_to_forest(tables)[0].fingerprint():
                raise ModelFileError("the trees of the model are not the tables of its plan.")


def _read_tables(columns: Sequence[BinnedColumn], decisions: fixed_tables.TableDecisions) -> list[ContingencyTable]:
    try:
        return fixed_tables.from_plain(columns, decisions.chosen or [])
    except ValueError as error:
        raise PlanError(f"the tables of the plan cannot be read: {error}.") from None


def _open_backend(columns: Sequence[BinnedColumn], source: Source, n_classes: int, n_jobs: int | None) -> RowBackend:
    width, accelerator = n_outputs(n_classes), ACCELERATOR.get()
    backend = source.make_backend(columns, width)
    if backend is None and accelerator is not None and source.is_complete:
        backend = accelerator.make_backend(columns, source, width)
    return backend or row_backend.MemoryBackend(columns, source, width, n_jobs)


def _rows_are_public(request: method.FitRequest) -> bool:
    """Return True if all neighbouring tables have the same number of rows: rows are replaced and none are dropped."""
    replaced = request.neighbours.adjacency == "replace-one" and isinstance(request.neighbours.unit, RowsUnit)
    return replaced and request.parameters.get("invalid") != "drop"


def _describe_expected_skill(request: method.FitRequest, n_rows: int) -> str | None:
    """Describe the quality of predictions on benchmark tables of this size, or return None for a fit without noise."""
    if request.loss.epsilon is None:
        return None
    row_epsilon = row_epsilon_of(request.loss, request.neighbours)
    return str(estimate_skill(request.schema.task, n_rows, len(request.schema.features), row_epsilon))


def row_epsilon_of(loss: Loss, neighbours: Neighbours) -> float:
    """Return the epsilon per row under pure epsilon; a delta is spent only if it leaves less noise."""
    return AdaptiveBudget(Loss.pure(loss.epsilon or Fraction(0)), neighbours).row_epsilon


def _read_cell_forest(arrays: method.Arrays, encoding: Encoding) -> FittedForest:
    """Rebuild the forest of the sparse histogram; its leaves hold class frequencies."""
    own = {name.removeprefix("cells_"): array for name, array in arrays.items() if name.startswith("cells_")}
    forest, n_classes = Forest.from_arrays(own, encoding.n_codes), len(encoding.schema.classes)
    if forest.n_leaves > max_leaf_count(n_classes):
        raise ModelFileError(f"{forest.n_leaves} leaves are more than the forest of a sparse histogram can have.")
    grown = FittedForest(forest, _read_numbers(own, "values", (forest.n_leaves, n_classes)))
    shares = grown.values.sum(axis=1)
    if grown.values.min() < 0 or shares.max() > 1 + 1e-9 or shares.min() <= 0:
        raise ModelFileError("the leaves of the sparse histogram's forest do not hold class frequencies.")
    return grown


def _read_effects(arrays: method.Arrays, encoding: Encoding, width: int) -> EffectForest:
    """Rebuild the effects: one tree per column, and one for some of the pairs."""
    own = {name.removeprefix("effects_"): array for name, array in arrays.items() if name.startswith("effects_")}
    forest = Forest.from_arrays(own, encoding.n_codes)
    if forest.n_trees > len(encoding.columns) + effects_module.MAX_PAIRS:
        raise ModelFileError("the model holds effects of more columns and pairs than there are.")
    values, errors = (_read_numbers(own, name, (forest.n_leaves, width)) for name in ("values", "errors"))
    if errors.min(initial=0) < 0:
        raise ModelFileError("standard errors of effects must not be negative.")
    rows = _read_numbers(own, "rows", (forest.n_leaves, 1), MAX_ROWS)
    return EffectForest(forest, values, errors, rows)


def _read_numbers(arrays: method.Arrays, name: str, shape: tuple[int, ...], limit: float = MAX_LEAF_VALUE) -> Floats:
    found = arrays.get(name)
    if found is None or found.dtype != np.float64 or found.shape != shape or not np.isfinite(found).all():
        raise ModelFileError(f"{name} of the model is missing, or its length is not the number of leaves.")
    if not np.abs(found).max(initial=0) < limit:
        raise ModelFileError(f"{name} of the model contains values that are too large.")
    return found


_PARAMETERS = """
    Parameters
    ----------
    schema : Schema, path or dict
        Public facts about the table.
    epsilon, delta : float
        Privacy budget. ``delta=0`` is pure epsilon; a delta above 0 yields better models of large tables.
    n_rows : int, optional
        Public number of rows, or a public estimate of it; ``plan()`` then describes the fit for this number.
        Otherwise the first step measures it with a twentieth of the budget. It is always measured if the unit is all
        rows of an id, because such rows are repeated.
    privacy_unit : "row", int, dict or None
        Unit that the guarantee protects: one row, k rows, or all rows of an id, ``{"id": column, "at_most": k}``,
        each of which counts k / m times if the id has m rows. Default: the unit that the schema declares, or one row.
        A unit that may protect less than the declared unit issues a warning once.
    adjacency : {"add-remove", "replace-one"}
        Neighbouring relation: whether the data of one unit is added or removed, or replaced.
    max_weight : int, optional
        Upper limit of a row's ``sample_weight``; noise grows with it. Classifiers also take ``class_weight``, by which
        probabilities are multiplied; it spends no budget.
    random_state : int, optional
        Seed of public randomness: which columns form a table, and which pairs are candidates in a round.
    ledger : Ledger or path, optional
        Ledger to charge.
    n_jobs : int, optional
        Number of threads, as in scikit-learn: None is one, -1 one per core. The model is the same for any number.
    invalid : {"refuse", "drop"}
        Treatment of rows that violate the schema: reject the fit, or drop these rows.
"""


class _ExplainableForest(BaseForest):
    """Base class of both estimators: explanations."""

    _method_class = PrivateForest

    def explain(self) -> Effects:
        """Return main effects and the strongest interactions, with error bars for noise and sampling.

        Spends no budget: effects are computed from released values. Unlike predictions, they are not shrunk.

        Returns
        -------
        Effects
            Print it, or plot it with ``veilwood.plots.plot_effects`` and ``veilwood.plots.plot_pair``.
        """
        check_is_fitted(self, "model_")
        effects: Effects = self.model_.explain()
        return effects


@dataclass(eq=False, repr=False)
class PrivateForestClassifier(Classifier, _ExplainableForest, PrivateForestParameters, ClassWeights, SharedParameters):  # noqa: D101
    __doc__ = f"""The recommended classifier: needs a schema and an epsilon, and chooses everything else.
{_PARAMETERS}
    Notes
    -----
    Guarantee

    Everything in the fitted model is computed from steps of the plan, whose losses add up to at most (epsilon, delta)
    (proofs/private-forest.md, attacked by packages/veilwood/tests/forests/adaptive/test_row_backend.py,
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
    __doc__ = f"""The recommended regressor: needs a schema and an epsilon, and chooses everything else.
{_PARAMETERS}
    Notes
    -----
    Guarantee

    As for ``PrivateForestClassifier`` (proofs/private-forest.md, attacked by
    packages/veilwood/tests/forests/adaptive/test_row_backend.py).

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
