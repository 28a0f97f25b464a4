# SPDX-License-Identifier: Apache-2.0
"""Checks of a PrivateForest plan that was read from a file: its steps, its decisions and the trees of its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import ModelFileError
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


def check_steps(
    plan: Plan, columns: Sequence[BinnedColumn], n_classes: int, neighbours: Neighbours
) -> tuple[Step, ...]:
    """Recompute every step of a plan; raise ValueError if its steps and decisions do not fit each other."""
    start_limit, residual_limit = plan.choices["limits"]
    _check_table_columns(plan, len(columns))
    _check_histograms(plan, columns, n_classes)
    check_gradient_limits((start_limit, residual_limit), n_classes)
    early = {AdaptiveStep.COLUMN_SELECTION.key, AdaptiveStep.COLUMN_STRENGTHS.key}  # planned before tables
    first, last = (RowFacts(len(columns), n_classes, limit) for limit in (start_limit, residual_limit))
    return tuple(replan_step(step, first if step.kind in early else last, neighbours) for step in plan.steps)


def _check_table_columns(plan: Plan, n_columns: int) -> None:
    """Raise ValueError if the tables of a plan are not those that its steps can have chosen."""
    n_chosen = len(steps_of(plan, AdaptiveStep.COLUMN_SELECTION)) or n_columns
    columns = plan.choices["tables"]
    fits = len(table_cell_counts(plan)) == len(columns) == len(set(columns)) and len(columns) in (0, n_chosen)
    fits &= _are_numbered(steps_of(plan, *TABLE_STEPS), TABLE_STEPS)
    if not fits or not all_ints_in(columns, 0, n_columns - 1):
        raise ValueError("these tables were not chosen by these steps")


def check_gradient_limits(limits: Sequence[object], n_classes: int) -> None:
    """Raise ValueError if these cannot be the limits of gradients, the first one and the last one.

    Two classes are cut at the frequency of the larger one, which is half or more. More classes are not cut. Residuals
    are cut at some part of the target's range, which is only known once a histogram was released.
    """
    first, last = limits
    least, most = {2: (GRADIENT_UNITS // 2, GRADIENT_UNITS)}.get(n_classes, (GRADIENT_UNITS, GRADIENT_UNITS))
    fits = all_ints_in((first,), least, most)
    if n_classes == 0:
        least, most = 1, TARGET_LEVELS * LEVEL_UNITS
    if not fits or not all_ints_in((last,), least, most):
        raise ValueError("gradients are not cut so")


def _check_histograms(plan: Plan, columns: Sequence[BinnedColumn], n_classes: int) -> None:
    """Raise ValueError if a plan lists histograms that these columns cannot have."""
    together = steps_of(plan, *HISTOGRAM_STEPS)
    jointly = all(step.loss.delta == 0 and step.loss.epsilon is not None for step in together)
    cells = [size for step in together for size in step.table_cells]
    fits = not together or (n_classes > 0 and len(cells) > 1)
    fits &= not Counter(cells) - Counter(histogram_groups(column, jointly).size for column in columns if column.ordered)
    fits &= _are_numbered(together, HISTOGRAM_STEPS)
    fits &= all(step.shape == (sum(step.table_cells), 1) for step in together)
    bins = {column.feature: column.n_value_bins for column in columns if column.ordered}
    for step in steps_of(plan, AdaptiveStep.ROUND_HISTOGRAM):
        fits &= step.shape == (bins.get(step.at[1]),)
    if not fits:
        raise ValueError("no such histograms of these columns are taken")


def _are_numbered(steps: Sequence[Step], kinds: TableStepName) -> bool:
    """Return True if steps of tables are numbered without gaps, in their order."""
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
    columns, cells = plan.choices.get("tables", []), table_cell_counts(plan)
    of_rounds = [step.shape[0] for step in steps_of(plan, AdaptiveStep.ROUND_GRADIENTS)]
    rows_of_rounds = [step.shape for step in steps_of(plan, AdaptiveStep.ROUND_ROWS)]
    tested = [set(part.tolist()) - {LEAF} for part in np.split(forest.feature, forest.roots[1:])]
    fits = isinstance(columns, list) and all_ints_in(columns, 0) and len(columns) == len(cells)
    fits = fits and rows_of_rounds == [(cells,) for cells in of_rounds]
    fits = fits and np.diff(forest.tree_leaves).tolist() == ([*cells, *of_rounds] or [1])
    if not fits or not all(features <= {column} for features, column in zip(tested, columns, strict=False)):
        raise ModelFileError("its trees are not the tables and rounds that the plan says were measured.")
