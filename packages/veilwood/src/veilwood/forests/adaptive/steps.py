# SPDX-License-Identifier: Apache-2.0
"""Kinds of steps of PrivateForest, and the sensitivity of each kind.

Norms of a row's contribution are defined in ``row_reach`` only. The loop plans its steps by it, and ``replan_step``
recomputes a step of a plan that was read from a file (proofs/private-forest.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.adaptive.row_backend import GRADIENT_UNITS, SCORE_UNITS, gradient_norms, n_outputs
from veilwood.privacy import steps
from veilwood.privacy.adaptive_budget import AdaptiveBudget, TableStepName
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Plan


class AdaptiveStep(steps.StepKind):
    """Kinds of steps; a value is the displayed name, with placeholders for rounds, columns and tables."""

    CLASS_COUNTS = "class counts"
    CLASS_COUNTS_AGAIN = "class counts once more"
    ROW_COUNT = "number of rows"
    TARGET_SUMS = "sums of the target"
    RESIDUAL_HISTOGRAM = "histogram of residuals before round {}"
    COLUMN_STRENGTHS = "strengths of columns"
    COLUMN_SELECTION = "column {} of tables"
    HISTOGRAM = "histogram {}: rows by group"
    JOINT_HISTOGRAMS = "histograms {} to {}: rows by group"
    TABLE = "table {}: classes by cell"
    JOINT_TABLES = "tables {} to {}: classes by cell"
    TABLE_WEIGHT = "weight of tables"
    ROUND_SELECTION = "round {}: choice"
    ROUND_HISTOGRAM = "round {}: histogram of column {}"
    ROUND_ROWS = "round {}: rows"
    ROUND_GRADIENTS = "round {}: gradients"
    ROUND_PAIRS = "round {}: rows and residuals"
    COLUMN_CLASSES = "classes by column"
    SPARSE_CELLS = "fine cells"
    CELL_WEIGHT = "weight of fine cells"
    SERIES_TABLES = "classes by cell of all tables"

    @classmethod
    def kind_of(cls, step: steps.Step) -> AdaptiveStep:
        """Return the kind of a step; raise ValueError if this method has no such kind."""
        for kind in cls:
            if kind.key == step.kind:
                return kind
        raise ValueError("no step of this method is of that kind")

    @property
    def short_name(self) -> str:
        """The name without its round or table numbers."""
        return str(self.value).rpartition(": ")[2].removesuffix(" {}")


TABLE_STEPS: Final = TableStepName(AdaptiveStep.TABLE, AdaptiveStep.JOINT_TABLES)
HISTOGRAM_STEPS: Final = TableStepName(AdaptiveStep.HISTOGRAM, AdaptiveStep.JOINT_HISTOGRAMS)
CELL_WEIGHTS: Final = (0.0, 0.5, 1.0)  # candidate weights of the sparse histogram; one is selected
MAX_GAIN: Final = SCORE_UNITS  # of one row: a log-odds of 1; 1.5, 2 and 3 were no better and need more


class RowFacts(NamedTuple):
    """Public facts that determine the sensitivity of a step."""

    n_columns: int
    n_classes: int
    """0 for regression."""
    limit: int
    """Limit of a gradient when the step is planned, in ``GRADIENT_UNITS``."""


class Reach(NamedTuple):
    """Sensitivity of a step: norms of what one row adds, or the range by which it moves scores."""

    l1: int = 1
    squared_l2: int = 1
    signed: bool = False
    score_range: int | None = None


def row_reach(kind: AdaptiveStep, shape: tuple[int, ...], facts: RowFacts) -> Reach:
    """Return the sensitivity of a step of this kind and shape to one row.

    >>> row_reach(AdaptiveStep.CLASS_COUNTS, (3,), RowFacts(9, 3, 4096))
    Reach(l1=1, squared_l2=1, signed=False, score_range=None)
    """
    l1, squared_l2 = gradient_norms(facts.n_classes, facts.limit)
    match kind:
        case AdaptiveStep.ROUND_GRADIENTS:
            return Reach(l1, squared_l2, signed=True)
        case AdaptiveStep.ROUND_PAIRS:  # Q + g and Q - g: not negative, and 2Q together
            return Reach(2 * GRADIENT_UNITS, 4 * GRADIENT_UNITS**2)
        case AdaptiveStep.COLUMN_STRENGTHS:  # a score changes by at most the size of a gradient
            best = facts.n_columns * l1
            return Reach(prod(shape) * best, prod(shape) * best**2, signed=True)
        case AdaptiveStep.COLUMN_SELECTION | AdaptiveStep.ROUND_SELECTION:  # one score can rise as another falls
            return Reach(score_range=2 * l1)
        case AdaptiveStep.CELL_WEIGHT:  # a row is predicted correctly or not
            return Reach(score_range=1)
        case AdaptiveStep.TABLE_WEIGHT:
            return Reach(MAX_GAIN, MAX_GAIN**2, signed=True)
        case AdaptiveStep.TARGET_SUMS:
            return Reach(TARGET_LEVELS, TARGET_LEVELS**2)
        case AdaptiveStep.COLUMN_CLASSES:  # a row is in one cell of every column
            return Reach(facts.n_columns, facts.n_columns)
        case _:
            return Reach()


def plan_sums(
    budget: AdaptiveBudget, kind: AdaptiveStep, shape: tuple[int, ...], fraction: float, facts: RowFacts, *at: int
) -> steps.Step:
    """Spend a fraction of the budget on noisy sums."""
    reach = row_reach(kind, shape, facts)
    return budget.plan_counts(
        kind.at(*at), shape, fraction, l1=reach.l1, squared_l2=reach.squared_l2, signed=reach.signed
    )


def plan_choice(
    budget: AdaptiveBudget, kind: AdaptiveStep, n_candidates: int, fraction: float, facts: RowFacts, *at: int
) -> steps.Step:
    """Spend a fraction of the budget on the selection of one candidate."""
    reach = row_reach(kind, (1, n_candidates), facts)
    assert reach.score_range is not None
    return budget.plan_selection(kind.at(*at), n_candidates, fraction, score_range=reach.score_range)


def plan_cells(budget: AdaptiveBudget, false_positives: float, min_cells: int, fraction: float) -> steps.Step:
    """Spend a fraction of the budget on a sparse histogram; a row is in one of its cells."""
    return budget.plan_sparse(AdaptiveStep.SPARSE_CELLS.at(), false_positives, min_cells, fraction, l1=1)


def replan_step(step: steps.Step, facts: RowFacts, neighbours: Neighbours) -> steps.Step:
    """Plan a step of the same kind, numbers, shape and loss; raise ValueError if this method plans no such step."""
    kind, loss = AdaptiveStep.kind_of(step), step.loss
    if loss.delta == 0 and loss.epsilon is not None and loss != Loss.pure(loss.epsilon):
        raise ValueError("the rho of a pure loss follows from its epsilon")
    name = kind.at(*step.at)
    _check_shape(kind, step.shape, facts)
    if kind in (AdaptiveStep.JOINT_TABLES, AdaptiveStep.JOINT_HISTOGRAMS):
        outputs = facts.n_classes if kind is AdaptiveStep.JOINT_TABLES else 1
        return steps.joint_step(name, step.table_cells, outputs, step.loss, neighbours)
    reach = row_reach(kind, step.shape, facts)
    if kind is AdaptiveStep.SPARSE_CELLS:
        return replace(steps.sparse_step(name, 1, step.loss, neighbours, l1=reach.l1), shape=step.shape)
    if reach.score_range is not None:
        by = "exponential" if step.loss.delta > 0 else "flip"
        return steps.selection_step(name, step.shape, step.loss, neighbours, score_range=reach.score_range, by=by)  # type: ignore[arg-type]
    return steps.counting_step(
        name, step.shape, step.loss, neighbours, l1=reach.l1, squared_l2=reach.squared_l2, signed=reach.signed
    )


def _check_shape(kind: AdaptiveStep, shape: tuple[int, ...], facts: RowFacts) -> None:
    """Raise ValueError if no step of this kind has this shape. In the code, None stands for any number."""
    n_classes = facts.n_classes
    shapes: dict[AdaptiveStep, tuple[int | None, ...]] = {
        AdaptiveStep.CLASS_COUNTS: (n_classes,),
        AdaptiveStep.CLASS_COUNTS_AGAIN: (n_classes,),
        AdaptiveStep.ROW_COUNT: (1,),
        AdaptiveStep.TARGET_SUMS: (2,),
        AdaptiveStep.TABLE_WEIGHT: (1,),
        AdaptiveStep.ROUND_SELECTION: (1, None),
        AdaptiveStep.COLUMN_SELECTION: (1, facts.n_columns),
        AdaptiveStep.CELL_WEIGHT: (1, len(CELL_WEIGHTS)),
        AdaptiveStep.HISTOGRAM: (None, 1),
        AdaptiveStep.JOINT_HISTOGRAMS: (None, 1),
        AdaptiveStep.TABLE: (None, n_classes),
        AdaptiveStep.JOINT_TABLES: (None, n_classes),
        AdaptiveStep.COLUMN_CLASSES: (None, n_classes),
        AdaptiveStep.ROUND_GRADIENTS: (None, n_outputs(n_classes)),
        AdaptiveStep.ROUND_PAIRS: (None, 2),
    }
    expected = shapes.get(kind, (None,))
    if len(expected) != len(shape) or any(b not in (None, a) for a, b in zip(shape, expected, strict=True)):
        raise ValueError("a step of this kind has another shape")


# -- summaries of the steps of a plan --------------------------------------------------------------------------------


def steps_of(plan: Plan, *kinds: steps.StepKind) -> list[steps.Step]:
    """Return the steps of the given kinds, in order."""
    keys = {kind.key for kind in kinds}
    return [step for step in plan.steps if step.kind in keys]


def only_initial_estimate(plan: Plan) -> bool:
    """Return True if only class counts or the mean of the target were measured: no table, round or fine cell."""
    rounds = (AdaptiveStep.ROUND_ROWS, AdaptiveStep.ROUND_PAIRS)
    return not steps_of(plan, AdaptiveStep.TABLE, AdaptiveStep.JOINT_TABLES, *rounds, AdaptiveStep.SPARSE_CELLS)


def describe_released(plan: Plan) -> str:
    """Describe what the steps of a plan release; steps of one kind are counted."""
    texts: Counter[str] = Counter(AdaptiveStep.kind_of(step).short_name.format(*step.at) for step in plan.steps)
    described = (f"{text} ({times} times)" if times > 1 else text for text, times in texts.items())
    return f"{', '.join(described)}, with noise"
