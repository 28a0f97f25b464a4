# SPDX-License-Identifier: Apache-2.0
"""Decisions that a finished PrivateForest plan records, and checks of a plan that was read from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import ModelFileError
from veilwood.estimators.method import Decisions
from veilwood.forests.adaptive.contingency import BinnedColumn
from veilwood.forests.adaptive.row_backend import GRADIENT_UNITS, LEVEL_UNITS
from veilwood.forests.adaptive.steps import (
    HISTOGRAM_STEPS,
    TABLE_STEPS,
    AdaptiveStep,
    RowFacts,
    replan_step,
    steps_of,
)
from veilwood.forests.adaptive.table_design import histogram_groups
from veilwood.privacy.adaptive_budget import TableStepName
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import Step
from veilwood.safe_io import all_ints_in
from veilwood.trees.forest import LEAF, Forest


@dataclass(frozen=True, kw_only=True)
class AdaptiveDecisions(Decisions):
    """Decisions of a finished fit, determined by released values."""

    method: str | None = "adaptive"
    learned: str
    """Text for readers."""
    tables: Sequence[Sequence[int]]
    """Columns of each table of class counts: one column, or two if there are three or more classes."""
    limits: Sequence[int]
    """First and last limit of gradients."""

    def __post_init__(self) -> None:
        """Raise ValueError if a decision has the wrong type or belongs to another family."""
        lists = isinstance(self.tables, list) and isinstance(self.limits, list) and len(self.limits) == 2
        if not lists or not all(isinstance(columns, list) for columns in self.tables):
            raise ValueError("tables is a list of lists, and limits is a list")
        every = [column for columns in self.tables for column in columns]
        if not all_ints_in([*every, *self.limits], 0) or not isinstance(self.learned, str):
            raise ValueError("tables and limits hold integers, and learned is a text")
        if (self.method, self.law, self.structure) != ("adaptive", None, None):
            raise ValueError("these are decisions of another family")


def check_steps(
    plan: Plan, columns: Sequence[BinnedColumn], n_classes: int, neighbours: Neighbours
) -> tuple[Step, ...]:
    """Recompute every step of a plan; raise ValueError if steps and decisions are inconsistent."""
    decisions = AdaptiveDecisions.from_choices(plan.choices)
    _check_table_columns(plan, decisions.tables, columns, n_classes)
    _check_histograms(plan, columns, n_classes)
    check_gradient_limits(decisions.limits, n_classes)
    early = {AdaptiveStep.COLUMN_SELECTION.key, AdaptiveStep.COLUMN_STRENGTHS.key}  # planned before tables
    first, last = (RowFacts(len(columns), n_classes, limit) for limit in decisions.limits)
    return tuple(replan_step(step, first if step.kind in early else last, neighbours) for step in plan.steps)


def _check_table_columns(
    plan: Plan, tables: Sequence[Sequence[int]], columns: Sequence[BinnedColumn], n_classes: int
) -> None:
    """Raise ValueError if the tables of a plan cannot have been chosen by its steps."""
    taken, cells = [column for table in tables for column in table], table_cell_counts(plan)
    n_chosen = len(steps_of(plan, AdaptiveStep.COLUMN_SELECTION)) or len(columns)
    fits = len(cells) == len(tables) and len(taken) == len(set(taken)) and len(taken) in (0, n_chosen)
    fits &= all(len(table) in ((1, 2) if n_classes > 2 else (1,)) for table in tables)
    fits &= _are_numbered(steps_of(plan, *TABLE_STEPS), TABLE_STEPS)
    if not fits or not all_ints_in(taken, 0, len(columns) - 1):
        raise ValueError("these tables were not chosen by these steps")
    for table, n_cells in zip(tables, cells, strict=True):
        binned = [columns[column] for column in table]
        if n_cells % prod(column.n_bins for column in binned if not column.ordered):
            raise ValueError("a table has all categories of its columns")


def check_gradient_limits(limits: Sequence[int], n_classes: int) -> None:
    """Raise ValueError if a fit cannot have this first and last limit of gradients.

    With two classes the limit is at least the frequency of the larger class, hence a half. More classes have no limit.
    In regression it is a fraction of the target's range, known only after the histogram of the target.
    """
    first, last = limits
    least, most = {2: (GRADIENT_UNITS // 2, GRADIENT_UNITS)}.get(n_classes, (GRADIENT_UNITS, GRADIENT_UNITS))
    fits = all_ints_in((first,), least, most)
    if n_classes == 0:
        least, most = 1, TARGET_LEVELS * LEVEL_UNITS
    if not fits or not all_ints_in((last,), least, most):
        raise ValueError("no fit limits gradients like this")


def _check_histograms(plan: Plan, columns: Sequence[BinnedColumn], n_classes: int) -> None:
    """Raise ValueError if a plan lists histograms that these columns cannot have."""
    before_tables = steps_of(plan, *HISTOGRAM_STEPS)
    jointly = all(step.loss.delta == 0 and step.loss.epsilon is not None for step in before_tables)
    cells = [size for step in before_tables for size in step.table_cells]
    fits = not before_tables or (n_classes > 0 and len(cells) > 1)
    fits &= not Counter(cells) - Counter(histogram_groups(column, jointly).size for column in columns if column.ordered)
    fits &= _are_numbered(before_tables, HISTOGRAM_STEPS)
    fits &= all(step.shape == (sum(step.table_cells), 1) for step in before_tables)
    bins = {column.feature: column.n_value_bins for column in columns if column.ordered}
    for step in steps_of(plan, AdaptiveStep.ROUND_HISTOGRAM):
        fits &= step.shape == (bins.get(step.at[1]),)
    if not fits:
        raise ValueError("no fit measures such histograms of these columns")


def _are_numbered(steps: Sequence[Step], kinds: TableStepName) -> bool:
    """Return True if the steps of tables are numbered in order, without gaps."""
    n_before = 0
    for step in steps:
        name = kinds.format_range(n_before, len(step.table_cells))
        if (step.kind, step.at) != (name.kind, name.at):
            return False
        n_before += len(step.table_cells)
    return True


def table_cell_counts(plan: Plan) -> list[int]:
    """Return the number of cells of each table of class counts."""
    return [cells for step in steps_of(plan, *TABLE_STEPS) for cells in step.table_cells]


def check_tables(forest: Forest, plan: Plan) -> None:
    """Raise ModelFileError unless the trees of a forest are the tables and rounds that its plan measured."""
    tables, cells = AdaptiveDecisions.from_choices(plan.choices).tables, table_cell_counts(plan)
    rounds = steps_of(plan, AdaptiveStep.ROUND_GRADIENTS, AdaptiveStep.ROUND_PAIRS)
    round_cells = [step.shape[0] for step in rounds]
    counted = [step.shape for step in steps_of(plan, AdaptiveStep.ROUND_ROWS)]
    summed = [(step.shape[0],) for step in steps_of(plan, AdaptiveStep.ROUND_GRADIENTS)]
    tested = [set(part.tolist()) - {LEAF} for part in np.split(forest.feature, forest.roots[1:])]
    fits = len(tables) == len(cells) and counted == summed
    fits = fits and np.diff(forest.tree_leaves).tolist() == ([*cells, *round_cells] or [1])
    if not fits or not all(features <= set(columns) for features, columns in zip(tested, tables, strict=False)):
        raise ModelFileError("the trees of the model are not the tables and rounds that its plan measured.")
