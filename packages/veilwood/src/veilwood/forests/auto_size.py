# SPDX-License-Identifier: Apache-2.0
"""Automatic choice of the number and depth of trees, from public facts and the number of rows.

The number of rows is declared, or estimated in a first step. This step spends a small fraction of the budget on the
class counts of all rows, towards which leaves are then shrunk. Sizes are ranked without data by ``expected_skill``, as
``veilwood.tune`` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np

from veilwood.arrays import Ints
from veilwood.data.batches import Batch, Count, Source
from veilwood.data.counts import CellQuery, RunCellQueries
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import DomainTooLargeError, MechanismError, ModelFileError, ParameterError, PlanError, UseError
from veilwood.estimators.method import Arrays, Design, FitRequest, Method, Model, OnePassMethod
from veilwood.forests import expected_skill as skill
from veilwood.forests import noisy_leaves
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step
from veilwood.safe_io import is_int_in
from veilwood.trees.random import check_counts

FIRST_FRACTION: Final = Fraction(1, 20)  # of the budget, for the counts of all rows
EXAMPLE_ROWS: Final = (1_000, 30_000)  # numbers of rows shown by a plan that does not know the true one


@dataclass(frozen=True)
class AutoSizedDesign(Design):
    """Public design of a fit: the whole forest if the number of rows is declared, otherwise the first step only."""

    request: FitRequest
    method: noisy_leaves.LeafMethod[Any] | None = None  # with the chosen size
    inner: Design | None = None


@dataclass(frozen=True)
class AutoSizedRelease:
    """Released values: the counts of all rows, and the release of the forest of the chosen size."""

    design: AutoSizedDesign
    pooled: Ints | None
    inner: Any


@dataclass(frozen=True, eq=False)
class AutoSized(Method[noisy_leaves.LeafParameters]):
    """Method that chooses the number and depth of trees of another method."""

    kind: type[noisy_leaves.LeafMethod[Any]]

    # -- parameters ------------------------------------------------------------------------------------------------

    @property
    def multi_pass(self) -> bool:  # type: ignore[override]
        """Whether rows are read more than once: a first pass counts them if their number is not declared."""
        return self.kind.multi_pass or self.parameters.n_rows is None

    @property
    def histogram_kind(self) -> Literal["counts", "moments"] | None:
        """The kind of histograms of the chosen method."""
        return self.with_size(1, 1).histogram_kind

    def for_series(self) -> Method[noisy_leaves.LeafParameters]:
        """Return this method if the counts of its trees add up over time."""
        return self if issubclass(self.kind, OnePassMethod) else super().for_series()

    def check_parameters(self) -> None:
        """Raise ParameterError if a parameter is invalid."""
        parameters = self.parameters
        for name in ("n_estimators", "max_depth"):
            value = getattr(parameters, name)
            is_list = isinstance(value, list | tuple) and len(value) > 0 and self.kind.accepts_lists
            for size in value if is_list else [value]:
                if not is_auto(size) or is_list:
                    check_counts(**{name: size})
        self.with_size(
            *(1 if is_auto(size) else size for size in (parameters.n_estimators, parameters.max_depth))
        ).check_parameters()

    def with_size(self, n_estimators: Any, max_depth: Any, *, noiseless: bool = False) -> noisy_leaves.LeafMethod[Any]:
        """Return the method with this size, and with the options that suit it."""
        sized = replace(self._resolved_options(noiseless), n_estimators=n_estimators, max_depth=max_depth)
        return self._method_class(noiseless)(sized, self.task, auto_sized=True)

    def _method_class(self, noiseless: bool) -> type[noisy_leaves.LeafMethod[Any]]:
        return self.kind.noiseless_method(self.parameters) if noiseless else self.kind

    def _resolved_options(self, noiseless: bool) -> noisy_leaves.LeafParameters:
        """Return the parameters with all "auto" options resolved; some resolve differently without noise."""
        options = self._method_class(noiseless).noiseless_options if noiseless else {}
        resolved: dict[str, Any] = {
            name: option for name, option in options.items() if is_auto(getattr(self.parameters, name, None))
        }
        return replace(self.parameters, **resolved)

    # -- the plan --------------------------------------------------------------------------------------------------

    def make_design(self, request: FitRequest) -> AutoSizedDesign:
        """Choose the size and plan the whole forest, or plan the count of rows if their number is unknown."""
        n_rows = self.parameters.n_rows
        if request.loss.epsilon is None or n_rows is not None or "n_estimators" in request.decisions:
            return self._design_for_rows(request, None if n_rows is None else int(n_rows), rows_known="declared")
        return self._plan_row_count(request)

    def _plan_row_count(self, request: FitRequest) -> AutoSizedDesign:
        encoding = Encoding(request.schema, self.with_size(1, 1).numeric_encoding)
        pure = _pure_request(request)
        step = self._pooled_step(request.schema, pure)
        notes: dict[str, Any] = {}
        for rows, (trees, depth) in zip(EXAMPLE_ROWS, self._choose_sizes(pure, encoding, *EXAMPLE_ROWS), strict=True):
            notes[f"at {rows:,} rows"] = f"{np.sum(trees)} trees of depth {np.max(depth)}, at most"
        if request.loss.delta > 0:
            notes["delta"] = "not used: its effect depends on the number of rows. Hint: declare n_rows if it is public"
        plan = pure.make_plan(
            (step,),
            f"noisy {step.name}, then, with the remaining budget, the leaves of a forest of the chosen size",
            Layout(),
            0.0,
            choices={"method": "sized"},
            notes=notes,
        )
        return AutoSizedDesign(encoding, plan, request)

    def _design_for_rows(self, request: FitRequest, n_rows: int | None, rows_known: Any) -> AutoSizedDesign:
        """Design the forest of the best size for this number of rows, or of the size in an earlier plan."""
        noiseless = request.loss.epsilon is None
        encoding = Encoding(request.schema, self.with_size(1, 1, noiseless=noiseless).numeric_encoding)
        sizes = request.decisions.get("n_estimators"), request.decisions.get("max_depth")
        if None in sizes:
            (sizes,) = self._choose_sizes(request, encoding, n_rows)
        else:
            for size in sizes:
                if not all(is_int_in(each, 1, 1 << 24) for each in (size if isinstance(size, list) else [size])):
                    raise PlanError("the plan lacks the number and depth of its trees.")
        method = self.with_size(*sizes, noiseless=noiseless)
        if noiseless:  # exact leaves need no counts of all rows
            inner = method.make_design(request)
            plan = replace(
                inner.plan,
                choices={**inner.plan.choices, **_size_decisions(method)},
                notes=_notes_with_size(inner.plan, method),
            )
            return AutoSizedDesign(encoding, plan, request, method, replace(inner, plan=plan))

        def design_remainder(request: FitRequest) -> Design:
            rest = replace(request, loss=request.loss.scaled(1 - FIRST_FRACTION), decisions={**request.decisions})
            made: Design = method.design_with_loss(rest)
            plan = replace(
                made.plan,
                loss=request.loss,
                steps=(self._pooled_step(request.schema, request), *made.plan.steps),
                released=f"the {noisy_leaves.POOLED}, and {made.plan.released}",
                layout=replace(made.plan.layout, rows_planned=n_rows, rows_known=rows_known if n_rows else None),
                choices={**made.plan.choices, **_size_decisions(method)},
                notes=_notes_with_size(made.plan, method),
            )
            return replace(made, plan=plan)

        made = noisy_leaves.lower_noise_design(request, design_remainder)
        return AutoSizedDesign(encoding, made.plan, request, method, made)

    def _pooled_step(self, schema: Schema, request: FitRequest) -> Step:
        """Plan the counts of all rows, by class or as a rotated pair."""
        adds = 1 if schema.classes else TARGET_LEVELS
        width = len(schema.classes) or 2
        loss = request.loss.scaled(FIRST_FRACTION)
        return counting_step(noisy_leaves.POOLED, (width,), loss, request.neighbours, l1=adds, squared_l2=adds**2)

    def _choose_sizes(self, request: FitRequest, encoding: Encoding, *rows: int | None) -> list[tuple[Any, Any]]:
        """Return the best number and depth of trees for each number of rows."""
        given = self.parameters.n_estimators, self.parameters.max_depth
        max_epsilon = Fraction(skill.MAX_EPSILON) * request.neighbours.l1_sensitivity(1)
        if request.loss.epsilon is not None and request.loss.epsilon > max_epsilon:  # the largest in the benchmarks
            request = replace(request, loss=Loss.pure(max_epsilon))
        rest = replace(request, loss=request.loss.scaled(1 - FIRST_FRACTION))
        best: dict[int | None, tuple[tuple[float, ...], tuple[Any, Any]]] = {}
        noiseless = request.loss.epsilon is None
        epsilon = (
            math.inf
            if request.loss.epsilon is None
            else float(request.loss.epsilon / request.neighbours.l1_sensitivity(1))
        )
        last_error: DomainTooLargeError | ParameterError | MechanismError | None = None
        for trees, depth in self._method_class(noiseless).candidate_sizes(
            encoding, self._resolved_options(noiseless), noiseless=noiseless
        ):
            size = (trees if is_auto(given[0]) else given[0], depth if is_auto(given[1]) else given[1])
            method = self.with_size(*size, noiseless=noiseless)
            try:
                leaves, noise = method.leaves_and_error(rest, encoding)
            except (DomainTooLargeError, ParameterError, MechanismError) as error:
                last_error = error
                continue
            for n_rows in rows:
                score = skill.rank_size(method, encoding, n_rows, leaves, noise, epsilon)
                if n_rows not in best or score > best[n_rows][0]:
                    best[n_rows] = (score, size)
        if not best:
            assert last_error is not None
            if isinstance(last_error, MechanismError):  # raised here, before the first step spends budget
                raise ParameterError(
                    "epsilon", float(request.loss.epsilon or 0),
                    f"requires more noise than can be drawn exactly to protect {request.neighbours.unit}",
                    "increase epsilon, or protect fewer rows per unit",
                )  # fmt: skip
            raise last_error
        return [best[n_rows][1] for n_rows in rows]

    # -- the data --------------------------------------------------------------------------------------------------

    def measure_rows(
        self, design: AutoSizedDesign, source: Source, door: Door, n_jobs: int | None = None
    ) -> AutoSizedRelease:
        """Release the counts of all rows, choose the size from them if it is not planned, and measure the forest."""
        if design.method is not None and not design.method.multi_pass:
            return self.release_sums(design, source.aggregate(self.make_count(design), n_jobs=n_jobs), door)
        pooled = None
        if design.plan.steps[0].kind == noisy_leaves.POOLED.kind:
            counted = source.aggregate(TotalCount(len(design.encoding.schema.classes)), n_jobs=n_jobs)
            pooled = door.release_counts(design.plan.steps[0], counted)
        if design.method is None:
            assert pooled is not None
            design = self._design_for_rows(
                _pure_request(design.request), self._rows_in(pooled, design.encoding.schema), rows_known="measured"
            )
            door.refine(design.plan)
        assert design.method is not None
        return AutoSizedRelease(design, pooled, design.method.measure_rows(design.inner, source, door, n_jobs))

    def make_count(self, design: AutoSizedDesign) -> Count:
        """Return one count of all rows and of the forest. Raise UseError if the size is not chosen yet."""
        if not isinstance(design.method, OnePassMethod):
            raise UseError(
                "rows that can be read only once cannot be counted before the size of the forest is chosen. "
                "Hint: declare the publicly known number of rows, for example n_rows=10_000, or set n_estimators and "
                "max_depth."
            )
        inner = design.method.make_count(design.inner)
        if design.plan.steps[0].kind != noisy_leaves.POOLED.kind:
            return inner
        return WithTotals(TotalCount(len(design.encoding.schema.classes)), inner)

    def release_sums(self, design: AutoSizedDesign, exact: Ints, door: Door) -> AutoSizedRelease:
        """Release the counts of all rows, then the counts of the forest."""
        method, first = design.method, design.plan.steps[0]
        assert isinstance(method, OnePassMethod)
        if first.kind != noisy_leaves.POOLED.kind:
            return AutoSizedRelease(design, None, method.release_sums(design.inner, exact, door))
        pooled = door.release_counts(first, exact[: first.shape[0]])
        sums = exact[first.shape[0] :].reshape(method.make_count(design.inner)([]).shape)
        return AutoSizedRelease(design, pooled, method.release_sums(design.inner, sums, door))

    # -- after the door --------------------------------------------------------------------------------------------

    def build_model(
        self, design: AutoSizedDesign, plan: Plan, released: AutoSizedRelease, n_jobs: int | None = None
    ) -> noisy_leaves.LeafModel:
        """Build the model. Its leaves are shrunk towards the counts of all rows."""
        method = released.design.method
        assert method is not None
        forest, counts = method.released_leaves(released.design.inner, released.inner)
        return method.make_model(design.encoding, forest, counts, plan, released.pooled)

    def restore_model(self, schema: Schema, plan: Plan, arrays: Arrays) -> Model:
        """Rebuild the model from the arrays of a file. Raise ``ModelFileError`` if they do not describe one."""
        model = self._method_of_plan(plan).restore_model(schema, plan, arrays)
        if plan.layout.rows_known == "measured" and self._rows_in(model.pooled, schema) != plan.layout.rows_planned:
            raise ModelFileError("the counts of all rows differ from the counts that the size was chosen for.")
        return model

    def replan_request(self, request: FitRequest, plan: Plan) -> Plan:
        """Recompute the plan of the forest of the chosen size."""
        self._method_of_plan(plan)
        counted = self.parameters.n_rows is None and request.loss.epsilon is not None
        again = _pure_request(request) if counted else request
        made = self._design_for_rows(again, plan.layout.rows_planned, plan.layout.rows_known).plan
        measured = counted and plan.opened_as is not None and is_int_in(plan.layout.rows_planned, 1)
        known = "measured" if counted else None if request.loss.epsilon is None else "declared"
        if plan.layout.rows_known != known or measured != counted:
            raise PlanError("the plan does not record how the number of rows was obtained.")
        if known == "declared" and plan.layout.rows_planned != self.parameters.n_rows:
            raise PlanError("the plan was made for a different number of rows than the declared one.")
        return replace(made, opened_as=plan.opened_as)

    def utility_warning(self, plan: Plan, model: Model) -> str | None:
        """Return a warning if the noise exceeds the leaf counts of the chosen forest."""
        return self._method_of_plan(plan).utility_warning(plan, model)

    @staticmethod
    def _rows_in(pooled: Ints | None, schema: Schema) -> int:
        """Return the noisy number of rows, at least 1."""
        n_rows = 0 if pooled is None else pooled.sum() / (1 if schema.classes else TARGET_LEVELS)
        return max(1, round(n_rows))

    def _method_of_plan(self, plan: Plan) -> noisy_leaves.LeafMethod[Any]:
        sizes = plan.choices.get("n_estimators"), plan.choices.get("max_depth")
        if None in sizes:
            raise PlanError("the plan lacks the number and depth of its trees.")
        return self.with_size(*sizes, noiseless=plan.loss.epsilon is None)


def is_auto(size: object) -> bool:
    """Return True if a size is "auto"."""
    return isinstance(size, str) and size == noisy_leaves.AUTO


def _pure_request(request: FitRequest) -> FitRequest:
    """Return the request with delta 0: a pure-epsilon release satisfies (epsilon, delta) as well."""
    loss = request.loss
    return request if loss.epsilon is None or loss.delta == 0 else replace(request, loss=Loss.pure(loss.epsilon))


def _size_decisions(method: noisy_leaves.LeafMethod[Any]) -> dict[str, Any]:
    return {"n_estimators": method.parameters.n_estimators, "max_depth": method.parameters.max_depth}


def _notes_with_size(plan: Plan, method: noisy_leaves.LeafMethod[Any]) -> dict[str, Any]:
    """Return the plan's notes with the chosen size."""
    size = ", ".join(f"{name}={value}" for name, value in _size_decisions(method).items())
    return {**plan.notes, "size": f"{size}: chosen from schema, budget and rows, without data"}


@dataclass(frozen=True)
class TotalCount:
    """Count of all rows by class, or sum of their rotated pairs: a ``Count`` that databases can run as well."""

    n_classes: int

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Ints:
        """Return the sums over these batches."""
        totals = np.zeros(self.n_classes or 2, np.int64)
        for batch in batches:
            totals += self.sum_batch(batch)
        return totals

    def sum_batch(self, batch: Batch) -> Ints:
        """Return the sums of one batch."""
        if self.n_classes:
            return np.bincount(batch.target, minlength=self.n_classes).astype(np.int64)
        first = int(batch.target.sum(dtype=np.int64))
        return np.array([first, len(batch.target) * TARGET_LEVELS - first], np.int64)

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> Ints:
        """Return the sums from a query with one cell."""
        (totals,) = run_queries([CellQuery((0,), 1)], "classes" if self.n_classes else "pair")
        return np.asarray(totals[0])


@dataclass(frozen=True)
class WithTotals:
    """Total counts and another count, computed in one pass."""

    total_count: TotalCount
    inner_count: Any

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Ints:
        """Return the totals, followed by the flattened sums of the other count."""
        totals = self.total_count([])

        def count_passing() -> Iterator[Batch]:
            for batch in batches:
                totals[:] += self.total_count.sum_batch(batch)
                yield batch

        sums = self.inner_count(count_passing(), n_jobs=n_jobs)
        return np.concatenate([totals, sums.ravel()])

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> Ints:
        """Return the same sums from cell queries."""
        sums = self.inner_count.via_cell_queries(run_queries, n_codes)
        return np.concatenate([self.total_count.via_cell_queries(run_queries, n_codes), sums.ravel()])
