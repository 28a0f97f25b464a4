# SPDX-License-Identifier: Apache-2.0
"""Estimators by their names, and the one that a saved plan describes."""

from __future__ import annotations

import inspect
import math
from typing import Any

from veilwood import estimators
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import ParameterError, PlanError
from veilwood.privacy.ledger_stores import Ledger
from veilwood.privacy.plan import Plan

__all__ = ["estimator_by_name", "estimator_from_plan"]


def estimator_by_name(name: str, task: TaskKind) -> type[Any]:
    """Return an estimator by the name of its family, or by its own.

    >>> estimator_by_name("private-forest", "regression").__name__, estimator_by_name("MatrixForestPredictor", "classification").__name__
    ('PrivateForestRegressor', 'MatrixForestPredictor')
    """
    kinds = [getattr(estimators, known) for known in estimators.__all__]
    own = [kind for kind in kinds if kind.__name__ == name]
    family = [k for k in kinds if estimators.family_of(k.__name__) == name and not k.__name__.endswith("Predictor")]
    found = [kind for kind in own or family if kind._task == task]
    if not found:
        known = ", ".join(dict.fromkeys(estimators.family_of(kind.__name__) for kind in kinds if kind._task == task))
        raise ParameterError("estimator", name, f"is not an estimator for {task}", f"one of {known}")
    return found[0]  # type: ignore[no-any-return]


def estimator_from_plan(schema: Schema, plan: Plan, ledger: Ledger | None = None) -> Any:
    """Make the estimator that a saved plan describes; the plan itself is compared when it is carried out."""
    kind = getattr(estimators, plan.estimator, None) if plan.estimator in estimators.__all__ else None
    if kind is None:
        raise PlanError(f"the plan is of {plan.estimator!r}, which this version does not know.")
    if not set(inspect.signature(kind).parameters).issuperset(plan.parameters):
        raise PlanError(f"the plan has parameters that {plan.estimator} does not have in this version.")
    return kind(
        schema,
        ledger=ledger,
        random_state=plan.public_seed,
        epsilon=math.inf if plan.loss.epsilon is None else plan.loss.epsilon,
        delta=plan.loss.delta,
        privacy_unit=plan.neighbours.unit,
        adjacency=plan.neighbours.adjacency,
        **plan.parameters,
    )
