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
from veilwood.engines import gpu
from veilwood.engines.cluster.source import ClusterRows, ClusterSource
from veilwood.engines.gpu import DeviceRows
from veilwood.engines.sql.backend import SqlRows
from veilwood.engines.sql.dialects import EngineWords
from veilwood.engines.sql.scoring import said_by_scores
from veilwood.engines.sql.source import SqlSource
from veilwood.errors import ModelFileError, PlanError, UseError
from veilwood.estimators.base import BaseForest, Classifier, ClassWeights, Regressor, SharedParameters
from veilwood.estimators.method import (
    Arrays,
    Asked,
    Codes,
    Design,
    Floats,
    ForestModel,
    Method,
    Parameters,
    check_n_rows,
)
from veilwood.forests.adaptive.contingency import CellColumn, CellTable, columns_of, grow_tables
from veilwood.forests.adaptive.effects import MOST_PAIRS, EffectForest, Effects, check_effects, effects_of, estimates
from veilwood.forests.adaptive.loop import COUNTED, WEIGHTS, Learned, Loop, chosen_loss, first_step, in_words, settled
from veilwood.forests.adaptive.row_backend import (
    GRADIENT_UNITS,
    LEVEL_UNITS,
    SCORE_UNITS,
    AskedRows,
    HeldRows,
    MakesRows,
    RowCount,
    n_outputs,
    probabilities,
    reach,
)
from veilwood.forests.adaptive.sparse_histogram import GrownForest, most_leaves, shares_of
from veilwood.forests.adaptive.table_design import HISTOGRAMS, MOST_GAIN, seen_groups
from veilwood.forests.expected_skill import expected_quality
from veilwood.privacy.adaptive_budget import Purse
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Rows as RowsUnit
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step, joint_step, selecting_step, sparse_step
from veilwood.safe_io import are_whole, is_whole
from veilwood.trees.forest import LEAF, Forest
from veilwood.trees.lookup_forest import Tabulated
from veilwood.trees.random import public_generators

SHOWN_SIZES: Final = (1_000, 30_000, 1_000_000)  # for a plan that does not know the number of rows
LARGEST_VALUE: Final = 1e6  # that a leaf, or the start, can have; far more than any fit gives
NOTHING: Final = "nothing but the start"


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateForestParameters(Parameters):
    """What a PrivateForest can be told."""

    n_rows: int | None = None


@dataclass(frozen=True)
class PrivateForestDesign(Design):
    """What is decided before the data: columns in cells, the loss that is spent, the rows that are planned for."""

    asked: Asked
    columns: tuple[CellColumn, ...]
    n_rows: int | None


@dataclass(frozen=True, eq=False)
class PrivateForestModel(ForestModel):
    """Scores that columns and pairs add up to, from a start: log-odds, or a part of the target's range."""

    start: Floats
    told: EffectForest  # what columns and pairs do, for ``explain``
    cells: GrownForest | None = None  # what was learned from fine cells, and how much it counts
    weight: float = 0.0

    shown: ClassVar[tuple[str, ...]] = ("forest", "leaf_values", "start")

    @cached_property
    def tables(self) -> Tabulated | None:
        """The trees as tables, in which predictions are looked up."""
        return Tabulated.of(self.forest, self.leaf_values, self.encoding.n_codes)

    def sums(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return, for each row, the sum of what its cells say."""
        if self.tables is None or gpu.in_use():
            return super().sums(codes, n_jobs)
        return self.tables.sums(codes, n_jobs)

    def outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return class probabilities, or predicted numbers inside the schema's bounds."""
        scores = self.start + self.sums(codes, n_jobs)
        if not self.encoding.schema.classes:
            return self.encoding.decode_target(np.clip(scores[:, 0], 0.0, 1.0) * TARGET_LEVELS)
        if self.cells is None:
            return probabilities(scores)
        theirs = shares_of(self.cells, codes, n_jobs)
        return (1 - self.weight) * probabilities(scores) + self.weight * theirs

    def class_shares(self) -> Floats:
        """Return the shares of classes where no column says anything."""
        return np.asarray(probabilities(self.start[None])[0])

    def said_in_sql(self, words: EngineWords, sums: Sequence[str]) -> tuple[list[str], list[str]]:
        """Write ``outputs`` for a database, and what the class is chosen by."""
        if self.cells is not None:
            raise UseError("what was learned from fine cells cannot be said in a database. Hint: evaluate on files.")
        return said_by_scores(words, self.start, sums, self.encoding.schema)

    def explain(self) -> Effects:
        """Return main effects and interactions of the additive part, with error bars."""
        return effects_of(self.told, self.encoding)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the forest, the values of its leaves, the start, and what explanations are read off."""
        told = {"leaf_values": self.leaf_values, "start": self.start}
        theirs = {**self.told.forest.to_arrays(), "values": self.told.values, "errors": self.told.errors}
        told |= {f"effects_{name}": array for name, array in theirs.items()}
        if self.cells is not None:
            theirs = {**self.cells.forest.to_arrays(), "values": self.cells.values}
            told |= {f"cells_{name}": array for name, array in theirs.items()} | {"weight": np.array([self.weight])}
        return {**self.forest.to_arrays(), **told}


class PrivateForest(Method[PrivateForestParameters]):
    """One adaptive loop, for either task."""

    several_passes: ClassVar[bool] = True

    def check(self) -> None:
        """Refuse a number of rows that is none."""
        check_n_rows(self.parameters.n_rows)

    def design(self, asked: Asked) -> PrivateForestDesign:
        """Plan the start; what follows is planned from what is released, and told in words."""
        given = self.parameters.n_rows
        return self._design(asked, None if given is None else int(given), declared=True)

    def _design(
        self, asked: Asked, n_rows: int | None, *, declared: bool, loss: Loss | None = None
    ) -> PrivateForestDesign:
        encoding, n_classes = Encoding(asked.schema, "grid"), len(asked.schema.classes)
        columns = columns_of(encoding)
        loss = loss or chosen_loss(columns, n_classes, n_rows, asked)
        purse = Purse(loss, asked.neighbours)
        if n_rows is not None:
            purse = settled(columns, n_classes, float(n_rows), purse)
        step = first_step(purse, n_classes, n_rows)
        known = None if n_rows is None else ("declared" if declared else "counted")
        sizes = SHOWN_SIZES if n_rows is None else (n_rows,)
        notes = {
            f"at {n:,} rows": in_words(columns, n_classes, n, Purse(loss, asked.neighbours)) + _to_expect(asked, n)
            for n in sizes
        }
        if loss.undecided:
            notes["delta"] = "spent only where the number of rows shows that it pays; else epsilon alone is"
        plan = asked.plan(
            (step,),
            f"the {step.name}, with noise, and then, step by step with the rest of the budget, what is chosen from it",
            Layout(rows_planned=n_rows, rows_known=known),  # type: ignore[arg-type]
            0.0,
            loss=loss,
            choices={"method": "adaptive"},
            notes=notes,
        )
        return PrivateForestDesign(encoding, plan, asked, columns, n_rows)

    def measure(self, design: PrivateForestDesign, source: Source, door: Door, n_jobs: int | None = None) -> Learned:
        """Carry the loop out."""
        rows = _opened(design.columns, source, len(design.encoding.schema.classes), n_jobs)
        as_many = source.alone and source.one_for_one
        del source  # rows that are held need it no more
        try:
            return self._measure(design, rows, door, n_jobs, as_many)
        finally:
            if isinstance(rows, ClusterRows):
                rows.close()

    def _measure(
        self, design: PrivateForestDesign, rows: AskedRows, door: Door, n_jobs: int | None, as_many: bool
    ) -> Learned:
        asked, n_classes = design.asked, len(design.encoding.schema.classes)
        if design.n_rows is None and as_many and _rows_are_public(asked):
            (n,) = rows.ask(RowCount())
            design = self._design(asked, max(int(n), 1), declared=False, loss=design.plan.loss)
            door.refine(design.plan)
        purse = Purse(design.plan.loss, asked.neighbours, door)
        if design.n_rows is not None:
            purse = settled(design.columns, n_classes, float(design.n_rows), purse)
        (rng,) = public_generators(design.plan.public_seed, 1)
        learned = Loop(design.columns, n_classes, rows, purse, design.n_rows, rng, n_jobs).run()
        layout = Layout(
            max(len(learned.steps), 1),
            max(sum(step.table.n_cells for step in learned.steps), 1),
            rows_planned=design.n_rows or max(1, round(learned.rows)),
            rows_known=design.plan.layout.rows_known or "measured",
        )
        found = "; ".join(learned.told) or NOTHING
        door.refine(door.plan.refined(
            released=_released(door.plan), layout=layout,
            choices={
                "method": "adaptive", "learned": found,
                "tables": [step.table.features[0] for step in learned.steps[: learned.n_counted]],
                "limits": [learned.first_limit, learned.limit],
            },
        ))  # fmt: skip
        return learned

    def learn(
        self, design: PrivateForestDesign, plan: Plan, released: Learned, n_jobs: int | None = None
    ) -> PrivateForestModel:
        """Write each step as a tree."""
        schema, width = design.encoding.schema, len(released.start)
        units = SCORE_UNITS if schema.classes else TARGET_LEVELS * LEVEL_UNITS
        steps = [step._replace(values=step.values / units) for step in released.steps]
        forest, cells = grow_tables([step.table for step in steps] or [CellTable(())])
        parts = np.split(cells, forest.tree_leaves[1:-1])
        said = [step.values[part] for step, part in zip(steps, parts, strict=False)]
        values = np.concatenate(said or [np.zeros((1, width))])
        start = released.start / units
        told = EffectForest.of(estimates(steps, start, len(schema.classes)), width)
        return PrivateForestModel(design.encoding, forest, values, start, told, released.cells, released.weight)

    def restore(self, schema: Schema, plan: Plan, arrays: Arrays) -> PrivateForestModel:
        """Check the arrays of a file."""
        encoding = Encoding(schema, "grid")
        forest = Forest.from_arrays(dict(arrays), encoding.n_codes)
        width = n_outputs(len(schema.classes))
        if (forest.n_trees, forest.n_leaves) != (plan.layout.trees, plan.layout.leaves):
            raise ModelFileError(f"{forest.n_leaves} leaves are not the {plan.layout.leaves} planned, tree by tree.")
        check_tables(forest, plan)
        values = _numbers(arrays, "leaf_values", (forest.n_leaves, width))
        start, told = _numbers(arrays, "start", (width,)), _told(arrays, encoding, width)
        check_effects(told.forest, forest, encoding)
        if "weight" not in arrays:
            return PrivateForestModel(encoding, forest, values, start, told)
        weight, taken = float(_numbers(arrays, "weight", (1,))[0]), {step.name for step in plan.steps}
        if weight not in WEIGHTS[1:] or not schema.classes:
            raise ModelFileError("the weight of fine cells is none that can be chosen.")
        if not {"classes by column", "fine cells", "weight of fine cells"} <= taken:
            raise ModelFileError("it holds fine cells that no step of its plan has released.")
        return PrivateForestModel(encoding, forest, values, start, told, _cells(arrays, encoding), weight)

    def replan(self, asked: Asked, plan: Plan) -> Plan:
        """Plan every step that was taken once more, from its name, shape and loss: sensitivity and noise follow.

        What was chosen from released numbers is taken from the plan, as far as steps can have chosen it.
        """
        design = self.design(asked)
        fresh, opened = design.plan, replace(design.plan, loss=plan.loss)
        known = plan.layout.rows_planned
        counted = plan.layout.rows_known == "counted" and self.parameters.n_rows is None
        if counted and _rows_are_public(asked) and known is not None:
            fresh = self._design(asked, known, declared=False, loss=fresh.loss).plan
        n_columns, n_classes = len(asked.schema.features), len(asked.schema.classes)
        if set(plan.choices) != {"method", "learned", "tables", "limits"} or not is_whole(known, 1):
            raise PlanError("this plan does not say what was chosen on the way.")
        try:
            check_columns_of_tables(plan, n_columns)
            check_histograms(plan, design.columns, n_classes)
            check_limits(plan.choices["limits"], n_classes)
            steps = [planned_again(step, n_columns, n_classes, plan.choices, asked) for step in plan.steps]
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            raise PlanError("this plan does not say what was chosen on the way.") from None
        layout = fresh.layout
        if layout.rows_known is None:
            layout = replace(layout, rows_planned=known, rows_known="measured")
        choices = {**plan.choices, "method": "adaptive", "learned": str(plan.choices["learned"])}
        return replace(
            fresh, steps=(fresh.steps[0], *steps[1:]), released=_released(plan), choices=choices,
            layout=replace(layout, trees=plan.layout.trees, leaves=plan.layout.leaves), opened_as=opened.fingerprint(),
        )  # fmt: skip

    def warning(self, plan: Plan, model: Any) -> str | None:
        """Say so where nothing but the start was worth measuring."""
        if plan.choices.get("learned") != NOTHING:
            return None
        return (
            "so few rows at this epsilon show nothing but how frequent the classes are, or the mean of the target, "
            "and that is all this model predicts. Hint: spend more epsilon, or gather more rows."
        )


def _opened(columns: Sequence[CellColumn], source: Source, n_classes: int, n_jobs: int | None) -> AskedRows:
    """Ask rows where they are."""
    if isinstance(source, MakesRows):
        return source.asked_rows(columns, n_outputs(n_classes))
    if isinstance(source, SqlSource):
        return SqlRows(columns, source, n_classes)
    if isinstance(source, ClusterSource):
        return ClusterRows(columns, source, n_outputs(n_classes))
    if gpu.in_use() and source.alone:
        return DeviceRows(columns, source, n_outputs(n_classes))
    return HeldRows(columns, source, n_outputs(n_classes), n_jobs)


def _rows_are_public(asked: Asked) -> bool:
    """Whether neighbours have as many rows: where rows, not people, are replaced, and none is dropped or copied."""
    replaced = asked.neighbours.adjacency == "replace-one" and isinstance(asked.neighbours.unit, RowsUnit)
    return replaced and asked.parameters.get("invalid") != "drop"


ONE_COUNT: Final = {  # steps in which one row adds 1 to one number
    "class counts", "class counts once more", COUNTED.counted, "number of rows", "rows", HISTOGRAMS.counted,
    "histogram of column", "histogram of the target", "histogram of residuals before round",
}  # fmt: skip


def check_columns_of_tables(plan: Plan, n_columns: int) -> None:
    """Raise ValueError where the tables that a plan says were counted are not those that its steps can have chosen."""
    n_chosen = sum(step.name.startswith("column ") for step in plan.steps) or n_columns
    columns = plan.choices["tables"]
    fits = len(cells_of_tables(plan)) == len(columns) == len(set(columns)) and len(columns) in (0, n_chosen)
    if not fits or not are_whole(columns, 0, n_columns - 1):
        raise ValueError("these tables were not chosen by these steps")


def check_limits(limits: Sequence[object], n_classes: int) -> None:
    """Raise ValueError where gradients cannot have been cut so: at first, and at the end.

    Two classes are cut at the share of the larger one, which is half or more; many are not cut, and residuals at some
    part of the target's range, which is only known once a histogram was released.
    """
    first, last = limits
    least, most = {2: (GRADIENT_UNITS // 2, GRADIENT_UNITS)}.get(n_classes, (GRADIENT_UNITS, GRADIENT_UNITS))
    fits = are_whole((first,), least, most)
    if n_classes == 0:
        least, most = 1, TARGET_LEVELS * LEVEL_UNITS
    if not fits or not are_whole((last,), least, most):
        raise ValueError("gradients are not cut so")


def check_histograms(plan: Plan, columns: Sequence[CellColumn], n_classes: int) -> None:
    """Raise ValueError where a plan says that histograms were taken which these columns cannot have."""
    together = [step for step in plan.steps if step.name.endswith(f": {HISTOGRAMS.counted}")]
    jointly = all(step.loss.delta == 0 and step.loss.epsilon is not None for step in together)
    cells = [size for step in together for size in step.table_cells]
    fits = not together or (n_classes > 0 and len(cells) > 1)
    fits &= not Counter(cells) - Counter(seen_groups(column, jointly).size for column in columns if column.ordered)
    first = 0
    for step in together:
        n_tables = len(step.table_cells)
        fits &= step.name == HISTOGRAMS.of(first, n_tables) and step.shape == (sum(step.table_cells), 1)
        first += n_tables
    for step in plan.steps:
        _, alone, place = step.name.partition(": histogram of column ")
        fits &= not alone or step.shape in [
            (one.n_inside,) for one in columns if one.ordered and str(one.feature) == place
        ]
    if not fits:
        raise ValueError("no such histograms of these columns are taken")


def cells_of_tables(plan: Plan) -> list[int]:
    """How many cells each table has that was counted."""
    return [cells for step in plan.steps if step.name.endswith(f": {COUNTED.counted}") for cells in step.table_cells]


def check_tables(forest: Forest, plan: Plan) -> None:
    """Refuse a forest whose first trees are not the tables that were counted, or that has trees of no step."""
    columns, cells = plan.choices.get("tables", []), cells_of_tables(plan)
    of_rounds = [step.shape[0] for step in plan.steps if step.name.endswith(": gradients")]
    rows_of_rounds = [step.shape for step in plan.steps if re.fullmatch(r"round \d+: rows", step.name)]
    tested = [set(part.tolist()) - {LEAF} for part in np.split(forest.feature, forest.roots[1:])]
    told = isinstance(columns, list) and are_whole(columns, 0) and len(columns) == len(cells)
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


def _fits_its_name(step: Step, kind: str, n_columns: int, n_classes: int) -> bool:
    """Whether a step has a name and a shape that one of its kind can have; None stands for any number."""
    many: tuple[int | None, ...] = (None,)
    shapes: dict[str, tuple[int | None, ...]] = {
        "class counts": (n_classes,), "class counts once more": (n_classes,), "number of rows": (1,),
        "sums of the target": (2,), "sum of residuals": (1, 1), "weight of tables": (1,), "choice": (1, None),
        "column of tables": (1, n_columns), "weight of fine cells": (1, len(WEIGHTS)), HISTOGRAMS.counted: (None, 1),
        COUNTED.counted: (None, n_classes), "classes by column": (None, n_classes),
        "gradients": (None, n_outputs(n_classes)),
    }  # fmt: skip
    shape = shapes.get(kind, many)
    alike = len(shape) == len(step.shape) and all(b in (None, a) for a, b in zip(step.shape, shape, strict=True))
    return alike and STEP_NAMES.fullmatch(step.name) is not None


def planned_again(step: Step, n_columns: int, n_classes: int, choices: Mapping[str, Any], asked: Asked) -> Step:
    """Plan a step of its name, shape and loss; what one row can move is known by name (proofs/private-forest.md)."""
    kind = re.sub(r" ?\d+", "", step.name.split(": ")[-1])
    if not _fits_its_name(step, kind, n_columns, n_classes):
        raise ValueError("there is no such step")
    first, last = choices["limits"]
    gaussian, signed = step.loss.delta > 0, asked.neighbours.adjacency == "replace-one"
    l1, squared = reach(n_classes, first if kind in ("column of tables", "strengths of columns") else last)
    if kind in (COUNTED.counted, HISTOGRAMS.counted) and len(step.table_cells) > 1:
        outputs = n_classes if kind == COUNTED.counted else 1
        return joint_step(step.name, step.table_cells, outputs, step.loss, asked.neighbours)
    if kind == "fine cells":
        return replace(sparse_step(step.name, 1, step.loss, asked.neighbours, l1=1), shape=step.shape)
    if kind in ("choice", "column of tables", "weight of fine cells"):
        return selecting_step(
            step.name, step.shape, step.loss, asked.neighbours, by="exponential" if gaussian else "flip",
            score_range=1 if kind == "weight of fine cells" else 2 * l1,
        )  # fmt: skip
    numbers = prod(step.shape)
    norms = {
        "gradients": (l1, squared * (2 if signed else 1)),
        "sum of residuals": (l1, squared * (2 if signed else 1)),
        "strengths of columns": (numbers * n_columns * l1, numbers * (n_columns * l1) ** 2 * (2 if signed else 1)),
        "weight of tables": (numbers * MOST_GAIN, numbers * MOST_GAIN**2 * (2 if signed else 1)),
        "sums of the target": (TARGET_LEVELS, TARGET_LEVELS**2),
        "classes by column": (n_columns, n_columns),
    }
    l1, squared = (1, 1) if kind in ONE_COUNT else norms[kind]
    return counting_step(step.name, step.shape, step.loss, asked.neighbours, l1=l1, squared_l2=squared)


def _to_expect(asked: Asked, n_rows: int) -> str:
    """Say how good predictions were for such a table; nothing is known of fits without noise."""
    if asked.loss.epsilon is None:
        return ""
    price = Purse(Loss.pure(asked.loss.epsilon), asked.neighbours).whole  # a delta is spent only where it is worth more
    return f". What to expect: {expected_quality(asked.schema.task, n_rows, len(asked.schema.features), price)}"


def _released(plan: Plan) -> str:
    kinds: dict[str, int] = {}
    for step in plan.steps:
        kind = step.name.split(": ")[-1].rstrip("0123456789 ")
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{kind} ({times} times)" if times > 1 else kind for kind, times in kinds.items()) + ", with noise"


def _cells(arrays: Arrays, encoding: Encoding) -> GrownForest:
    """Check what was learned from fine cells: shares of classes."""
    own = {name.removeprefix("cells_"): array for name, array in arrays.items() if name.startswith("cells_")}
    forest, n_classes = Forest.from_arrays(own, encoding.n_codes), len(encoding.schema.classes)
    if forest.n_leaves > most_leaves(n_classes):
        raise ModelFileError(f"{forest.n_leaves} leaves are more than fine cells can have.")
    grown = GrownForest(forest, _numbers(own, "values", (forest.n_leaves, n_classes)))
    shares = grown.values.sum(axis=1)
    if grown.values.min() < 0 or shares.max() > 1 + 1e-9 or shares.min() <= 0:
        raise ModelFileError("what was learned from fine cells does not consist of class shares.")
    return grown


def _told(arrays: Arrays, encoding: Encoding, width: int) -> EffectForest:
    """Check what explanations are read off: a tree for each column, and for some pairs."""
    own = {name.removeprefix("effects_"): array for name, array in arrays.items() if name.startswith("effects_")}
    forest = Forest.from_arrays(own, encoding.n_codes)
    if forest.n_trees > len(encoding.columns) + MOST_PAIRS:
        raise ModelFileError("the model explains more than there are columns and pairs.")
    values, errors = (_numbers(own, name, (forest.n_leaves, width)) for name in ("values", "errors"))
    if errors.min(initial=0) < 0:
        raise ModelFileError("errors of what the model explains are below 0.")
    return EffectForest(forest, values, errors)


def _numbers(arrays: Arrays, name: str, shape: tuple[int, ...]) -> Floats:
    found = arrays.get(name)
    if found is None or found.dtype != np.float64 or found.shape != shape or not np.isfinite(found).all():
        raise ModelFileError(f"{name} of the model is missing, or not as many numbers as there are leaves.")
    if not np.abs(found).max(initial=0) < LARGEST_VALUE:
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


class _PrivateForest(BaseForest):
    """What both tasks share: explanations."""

    _method = PrivateForest

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
class PrivateForestClassifier(Classifier, _PrivateForest, PrivateForestParameters, ClassWeights, SharedParameters):  # noqa: D101
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
class PrivateForestRegressor(Regressor, _PrivateForest, PrivateForestParameters, SharedParameters):  # noqa: D101
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
