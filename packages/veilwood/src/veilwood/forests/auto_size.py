# SPDX-License-Identifier: Apache-2.0
"""Forests that choose how many trees they have and how high: from public facts, and from how many rows there are.

How many rows there are is declared, or told by a first step that takes a small part of the budget and shows the classes
of all rows, on which leaves then fall back. Settings are ranked without data by ``skill``, as ``veilwood.tune`` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Count, Source
from veilwood.data.counts import CellQuery, RunCellQueries
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import DomainTooLargeError, ModelFileError, ParameterError, PlanError, UseError
from veilwood.estimators.method import Arrays, Design, FitRequest, Method, Model, OnePassMethod
from veilwood.forests import expected_skill as skill
from veilwood.forests.noisy_leaves import (
    AUTO,
    POOLED,
    LeafMethod,
    LeafModel,
    LeafParameters,
    lower_noise_design,
)
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step
from veilwood.safe_io import is_int_in
from veilwood.trees.random import check_counts

FIRST_FRACTION: Final = Fraction(1, 20)  # of the budget, for the counts of all rows
MAX_NOISE_RATIO: Final = (
    0.3  # noise over the rows of a leaf, averaged over trees: beyond it less is better, whatever the score
)
MAX_MEAN_ERROR: Final = (
    0.035  # noise of the mean of all rows, as a part of its range: beyond it less is better for numbers
)
EXAMPLE_ROWS: Final = (1_000, 30_000)  # for a plan that does not know the number of rows


@dataclass(frozen=True)
class AutoSizedDesign(Design):
    """What is decided before the data: all of it where the number of rows is declared, else the first step."""

    request: FitRequest
    method: LeafMethod[Any] | None = None  # of the size that was chosen
    inner: Design | None = None


@dataclass(frozen=True)
class AutoSizedRelease:
    """What was released: the counts of all rows, and what the forest of the chosen size released."""

    design: AutoSizedDesign
    pooled: NDArray[np.int64] | None
    inner: Any


@dataclass(frozen=True, eq=False)
class AutoSized(Method[LeafParameters]):
    """A method around another one, whose size it chooses."""

    kind: type[LeafMethod[Any]]

    # -- what is asked for -----------------------------------------------------------------------------------------

    @property
    def multi_pass(self) -> bool:  # type: ignore[override]
        """Whether rows are read more than once: the first time to count them, if nobody said how many there are."""
        return self.kind.multi_pass or self.parameters.n_rows is None

    @property
    def histogram_kind(self) -> Literal["counts", "moments"] | None:
        """What histograms hold, in the forest whose size is chosen."""
        return self.with_size(1, 1).histogram_kind

    def check_parameters(self) -> None:
        """Refuse parameters that cannot be used."""
        mine = self.parameters
        for name in ("n_estimators", "max_depth"):
            given = getattr(mine, name)
            several = isinstance(given, list | tuple) and len(given) > 0 and self.kind.accepts_lists
            for size in given if several else [given]:
                if not is_auto(size) or several:
                    check_counts(**{name: size})
        self.with_size(
            *(1 if is_auto(size) else size for size in (mine.n_estimators, mine.max_depth))
        ).check_parameters()

    def with_size(self, n_estimators: Any, max_depth: Any, *, noiseless: bool = False) -> LeafMethod[Any]:
        """Return the method with a size, and with the words that suit it."""
        sized = replace(self._resolved_options(noiseless), n_estimators=n_estimators, max_depth=max_depth)
        return self._method_class(noiseless)(sized, self.task, auto_sized=True)

    def _method_class(self, noiseless: bool) -> type[LeafMethod[Any]]:
        return self.kind.noiseless_method(self.parameters) if noiseless else self.kind

    def _resolved_options(self, noiseless: bool) -> LeafParameters:
        """Say what is left open, where no noise makes few choices and few rows in a count better."""
        open_words = self._method_class(noiseless).noiseless_options if noiseless else {}
        said: dict[str, Any] = {
            name: word for name, word in open_words.items() if is_auto(getattr(self.parameters, name, None))
        }
        return replace(self.parameters, **said)

    # -- the plan --------------------------------------------------------------------------------------------------

    def make_design(self, request: FitRequest) -> AutoSizedDesign:
        """Choose the size and plan everything; or plan to count the rows first."""
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
            notes["delta"] = "not used: whether it pays depends on the rows. Hint: declare n_rows if it is public"
        plan = pure.make_plan(
            (step,),
            f"the {step.name}, with noise, and with the rest of the budget the leaves of a forest whose size follows",
            Layout(),
            0.0,
            choices={"method": "sized"},
            notes=notes,
        )
        return AutoSizedDesign(encoding, plan, request)

    def _design_for_rows(self, request: FitRequest, n_rows: int | None, rows_known: Any) -> AutoSizedDesign:
        """Design the forest whose size suits so many rows, or that an earlier plan has chosen."""
        noiseless = request.loss.epsilon is None
        encoding = Encoding(request.schema, self.with_size(1, 1, noiseless=noiseless).numeric_encoding)
        found = request.decisions.get("n_estimators"), request.decisions.get("max_depth")
        if None in found:
            (found,) = self._choose_sizes(request, encoding, n_rows)
        else:
            for size in found:
                if not all(is_int_in(each, 1, 1 << 24) for each in (size if isinstance(size, list) else [size])):
                    raise PlanError("the plan does not say how many trees it has, and how high.")
        method = self.with_size(*found, noiseless=noiseless)
        if noiseless:  # without noise leaves tell all that there is to know of the rows
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
                released=f"the {POOLED}, and {made.plan.released}",
                layout=replace(made.plan.layout, rows_planned=n_rows, rows_known=rows_known if n_rows else None),
                choices={**made.plan.choices, **_size_decisions(method)},
                notes=_notes_with_size(made.plan, method),
            )
            return replace(made, plan=plan)

        made = lower_noise_design(request, design_remainder)
        return AutoSizedDesign(encoding, made.plan, request, method, replace(made, plan=_drop_first_step(made.plan)))

    def _pooled_step(self, schema: Schema, request: FitRequest) -> Step:
        """Plan the counts of all rows: by class, or as a rotated pair."""
        adds = 1 if schema.classes else TARGET_LEVELS
        width = len(schema.classes) or 2
        loss = request.loss.scaled(FIRST_FRACTION)
        return counting_step(POOLED, (width,), loss, request.neighbours, l1=adds, squared_l2=adds**2)

    def _choose_sizes(self, request: FitRequest, encoding: Encoding, *rows: int | None) -> list[tuple[Any, Any]]:
        """Return the number and the height of trees that promise the most, for each number of rows."""
        given = self.parameters.n_estimators, self.parameters.max_depth
        most = Fraction(skill.MAX_EPSILON) * request.neighbours.l1_sensitivity(1)
        if request.loss.epsilon is not None and request.loss.epsilon > most:  # beyond what was tried: like the largest
            request = replace(request, loss=Loss.pure(most))
        rest = replace(request, loss=request.loss.scaled(1 - FIRST_FRACTION))
        best: dict[int | None, tuple[tuple[float, ...], tuple[Any, Any]]] = {}
        noiseless = request.loss.epsilon is None
        epsilon = (
            math.inf
            if request.loss.epsilon is None
            else float(request.loss.epsilon / request.neighbours.l1_sensitivity(1))
        )
        refused: DomainTooLargeError | ParameterError | None = None
        for trees, depth in self._method_class(noiseless).candidate_sizes(
            encoding, self._resolved_options(noiseless), noiseless=noiseless
        ):
            size = (trees if is_auto(given[0]) else given[0], depth if is_auto(given[1]) else given[1])
            method = self.with_size(*size, noiseless=noiseless)
            try:
                leaves, noise = method.leaves_and_error(rest, encoding)
            except (DomainTooLargeError, ParameterError) as error:
                refused = error
                continue
            for n_rows in rows:
                score = _size_rank(method, encoding, n_rows, leaves, noise, epsilon)
                if n_rows not in best or score > best[n_rows][0]:
                    best[n_rows] = (score, size)
        if not best:
            assert refused is not None
            raise refused
        return [best[n_rows][1] for n_rows in rows]

    # -- the data --------------------------------------------------------------------------------------------------

    def measure_rows(
        self, design: AutoSizedDesign, source: Source, door: Door, n_jobs: int | None = None
    ) -> AutoSizedRelease:
        """Count all rows first, choose the size from what is released if nobody said it, and go on."""
        if design.method is not None and isinstance(design.method, OnePassMethod):
            return self.release_sums(design, source.aggregate(self.make_count(design), n_jobs=n_jobs), door)
        pooled = None
        if design.plan.steps[0].name == POOLED:
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
        """Count all rows, and what the forest counts, in one pass; the size must be known."""
        if not isinstance(design.method, OnePassMethod):
            raise UseError(
                "rows that are read once cannot be counted before the size of the forest is chosen. "
                "Hint: n_rows=10_000, or what is publicly known of it; or set n_estimators and max_depth."
            )
        inner = design.method.make_count(design.inner)
        if design.plan.steps[0].name != POOLED:
            return inner
        return WithTotals(TotalCount(len(design.encoding.schema.classes)), inner)

    def release_sums(self, design: AutoSizedDesign, exact: NDArray[np.int64], door: Door) -> AutoSizedRelease:
        """Release the counts of all rows, and then the forest's."""
        method, first = design.method, design.plan.steps[0]
        assert isinstance(method, OnePassMethod)
        if first.name != POOLED:
            return AutoSizedRelease(design, None, method.release_sums(design.inner, exact, door))
        pooled = door.release_counts(first, exact[: first.shape[0]])
        sums = exact[first.shape[0] :].reshape(method.make_count(design.inner)([]).shape)
        return AutoSizedRelease(design, pooled, method.release_sums(design.inner, sums, door))

    # -- after the door --------------------------------------------------------------------------------------------

    def build_model(
        self, design: AutoSizedDesign, plan: Plan, released: AutoSizedRelease, n_jobs: int | None = None
    ) -> LeafModel:
        """Clean the leaves, which fall back on the counts of all rows."""
        method = released.design.method
        assert method is not None
        forest, counts = method.released_leaves(released.design.inner, released.inner)
        return method.make_model(design.encoding, forest, counts, plan, released.pooled)

    def restore_model(self, schema: Schema, plan: Plan, arrays: Arrays) -> Model:
        """Check the arrays of a file."""
        model = self._method_of_plan(plan).restore_model(schema, plan, arrays)
        if plan.layout.rows_known == "measured" and self._rows_in(model.pooled, schema) != plan.layout.rows_planned:
            raise ModelFileError("the counts of all rows are not those that the size was chosen for.")
        return model

    def replan_request(self, request: FitRequest, plan: Plan) -> Plan:
        """Plan the forest of the chosen size once more."""
        self._method_of_plan(plan)
        counted = self.parameters.n_rows is None and request.loss.epsilon is not None
        again = _pure_request(request) if counted else request
        made = self._design_for_rows(again, plan.layout.rows_planned, plan.layout.rows_known).plan
        measured = counted and plan.opened_as is not None and is_int_in(plan.layout.rows_planned, 1)
        known = "measured" if counted else None if request.loss.epsilon is None else "declared"
        if plan.layout.rows_known != known or measured != counted:
            raise PlanError("the plan does not say how the number of rows was known.")
        if known == "declared" and plan.layout.rows_planned != self.parameters.n_rows:
            raise PlanError("the plan was made for another number of rows than was declared.")
        return replace(made, opened_as=plan.opened_as)

    def utility_warning(self, plan: Plan, model: Model) -> str | None:
        """Say so when the noise is larger than the leaves of the chosen size."""
        return self._method_of_plan(plan).utility_warning(plan, model)

    @staticmethod
    def _rows_in(pooled: NDArray[np.int64] | None, schema: Schema) -> int:
        """Say how many rows were counted, by class or as a rotated pair."""
        counted = 0 if pooled is None else pooled.sum() / (1 if schema.classes else TARGET_LEVELS)
        return max(1, round(counted))

    def _method_of_plan(self, plan: Plan) -> LeafMethod[Any]:
        found = plan.choices.get("n_estimators"), plan.choices.get("max_depth")
        if None in found:
            raise PlanError("the plan does not say how many trees it has, and how high.")
        return self.with_size(*found, noiseless=plan.loss.epsilon is None)


def _size_rank(
    method: LeafMethod[Any], encoding: Encoding, n_rows: int | None, leaves: int, noise: float, epsilon: float
) -> tuple[float, ...]:
    """Return what sizes are ranked by, for so many rows; without noise, the larger the better."""
    if n_rows is None:
        return (float(leaves),)
    setting = skill.ForestSize.from_method(method, encoding, n_rows, leaves, noise, epsilon)
    drowned = setting.noise / setting.rows_per_leaf / math.sqrt(setting.trees)  # after averaging
    score = (-max(drowned, MAX_NOISE_RATIO), skill.score_size(setting))
    if encoding.schema.classes:
        return score
    astray = math.sqrt(noise * leaves) / method.trees_per_row / n_rows  # what leaves tell together: each adds its noise
    return (-max(astray, MAX_MEAN_ERROR), *score)


def is_auto(size: object) -> bool:
    """Return True if a size is left open."""
    return isinstance(size, str) and size == AUTO


def _pure_request(request: FitRequest) -> FitRequest:
    """Ask for pure noise, which keeps a promise with a delta as well."""
    loss = request.loss
    return request if loss.epsilon is None or loss.delta == 0 else replace(request, loss=Loss.pure(loss.epsilon))


def _size_decisions(method: LeafMethod[Any]) -> dict[str, Any]:
    return {"n_estimators": method.parameters.n_estimators, "max_depth": method.parameters.max_depth}


def _notes_with_size(plan: Plan, method: LeafMethod[Any]) -> dict[str, Any]:
    """Say in the notes what was chosen."""
    size = ", ".join(f"{name}={value}" for name, value in _size_decisions(method).items())
    return {**plan.notes, "size": f"{size}: chosen from schema, budget and rows, without data"}


def _drop_first_step(plan: Plan) -> Plan:
    return replace(plan, steps=plan.steps[1:])


@dataclass(frozen=True)
class TotalCount:
    """Counts all rows by class, or adds up their rotated pairs (``batches.Count``, ``cells.DeclarativeCount``)."""

    n_classes: int

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> NDArray[np.int64]:
        """Return the sums of these batches."""
        totals = np.zeros(self.n_classes or 2, np.int64)
        for batch in batches:
            totals += self.sum_batch(batch)
        return totals

    def sum_batch(self, batch: Batch) -> NDArray[np.int64]:
        """Return the sums of one batch."""
        if self.n_classes:
            return np.bincount(batch.target, minlength=self.n_classes).astype(np.int64)
        first = int(batch.target.sum(dtype=np.int64))
        return np.array([first, len(batch.target) * TARGET_LEVELS - first], np.int64)

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> NDArray[np.int64]:
        """Return the same, out of answers about a table of one cell."""
        (totals,) = run_queries([CellQuery((0,), 1)], "classes" if self.n_classes else "pair")
        return np.asarray(totals[0])


@dataclass(frozen=True)
class WithTotals:
    """Counts all rows as they pass on their way to another count, in one pass."""

    total_count: TotalCount
    inner_count: Any

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> NDArray[np.int64]:
        """Return both sums, one after the other."""
        totals = self.total_count([])

        def count_passing() -> Iterator[Batch]:
            for batch in batches:
                totals[:] += self.total_count.sum_batch(batch)
                yield batch

        sums = self.inner_count(count_passing(), n_jobs=n_jobs)
        return np.concatenate([totals, sums.ravel()])

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> NDArray[np.int64]:
        """Return the same, out of answers about cells."""
        sums = self.inner_count.via_cell_queries(run_queries, n_codes)
        return np.concatenate([self.total_count.via_cell_queries(run_queries, n_codes), sums.ravel()])
