# SPDX-License-Identifier: Apache-2.0
"""Declaration of estimator parameters by role, and lookup of estimators by name or plan.

The role of a parameter decides what may vary it. A new parameter needs one line, in the dataclass of its family; the
lists of names that a plan, a model file, a search, the command line and the service use follow from it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from veilwood import estimators
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import ParameterError, PlanError
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.plan import Plan

_KEY: Final = "veilwood"  # of the metadata of a dataclass field


class Role(Enum):
    """What a parameter decides.

    Whatever tries settings within one guarantee varies STRUCTURE and LEARNING only: with another SCHEMA or PROMISE it
    would run under another guarantee, and RUN is the same for everything that is done with an estimator.
    """

    SCHEMA = "public facts about the data"
    PROMISE = "the guarantee: privacy loss, protected unit, and the ledger that records it"
    STRUCTURE = "number, shape and public randomness of the trees"
    LEARNING = "what is measured, and how the model is built from it"
    RUN = "how rows are read and computed on"


@dataclass(frozen=True)
class ParameterInfo:
    """Declaration of one parameter: its role, and where it is recorded or set.

    Attributes
    ----------
    role : Role
        What it decides.
    in_plan : bool
        Whether a plan lists it among its parameters. The schema and the promise have fields of their own in a plan.
    in_file : bool
        Whether a model file lists it among its parameters.
    separate : bool
        Whether the command line and the service take it as an argument of its own, not among the parameters.
    tuned : bool
        Whether ``veilwood.tune`` varies it.
    """

    role: Role
    in_plan: bool
    in_file: bool
    separate: bool
    tuned: bool


def parameter_metadata(
    role: Role, *, in_plan: bool | None = None, in_file: bool = True, separate: bool = False, tuned: bool = False
) -> Mapping[str, Any]:
    """Return the metadata of a dataclass field that declares a parameter.

    By default a plan lists every parameter but those of the roles SCHEMA and PROMISE.
    """
    listed = role not in (Role.SCHEMA, Role.PROMISE) if in_plan is None else in_plan
    return MappingProxyType({_KEY: ParameterInfo(role, listed, in_file, separate, tuned)})


def parameter(default: Any = MISSING, *, role: Role, **where: Any) -> Any:
    """Declare a parameter of an estimator, as a dataclass field.

    Parameters
    ----------
    default : optional
        Its default value. Without one, each family declares its own default.
    role : Role
        What it decides.
    **where
        As in ``parameter_metadata``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(kw_only=True)
    ... class Shape:
    ...     max_depth: int = parameter(3, role=Role.STRUCTURE)
    >>> Shape().max_depth, parameter_infos(Shape)["max_depth"].role.name
    (3, 'STRUCTURE')
    """
    return field(default=default, metadata=parameter_metadata(role, **where))


def parameter_infos(kind: type[Any]) -> dict[str, ParameterInfo]:
    """Return the declaration of each parameter of an estimator class.

    A family that redeclares a parameter, for another default, keeps its declaration: the role stays what it was.
    """
    infos: dict[str, ParameterInfo] = {}
    for base in (each for each in kind.__mro__ if is_dataclass(each)):
        for each in fields(base):
            if _KEY in each.metadata:
                infos.setdefault(each.name, each.metadata[_KEY])
    hidden = {each.name for each in fields(kind) if not each.init} if is_dataclass(kind) else set()
    return {name: info for name, info in infos.items() if name not in hidden}


def searchable_parameters(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that a search may vary: those of structure and learning, and no others."""
    return _with_role(kind, Role.STRUCTURE, Role.LEARNING)


def parameters_in_plan(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that a plan lists."""
    return frozenset(name for name, info in parameter_infos(kind).items() if info.in_plan)


def parameters_in_file(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that a model file lists."""
    return frozenset(name for name, info in parameter_infos(kind).items() if info.in_file)


def separate_parameters(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that the command line and the service take as arguments of their own."""
    return frozenset(name for name, info in parameter_infos(kind).items() if info.separate)


def requestable_parameters(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that an analyst may choose for a release that somebody else runs.

    Not among them are those with arguments of their own, those of the run, and those of learning that a plan does not
    list, since they are applied after the release.
    """
    return frozenset(
        name
        for name, info in parameter_infos(kind).items()
        if not info.separate and info.role is not Role.RUN and (info.role is not Role.LEARNING or info.in_plan)
    )


def tuned_parameters(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that ``veilwood.tune`` varies."""
    return frozenset(name for name, info in parameter_infos(kind).items() if info.tuned)


def _with_role(kind: type[Any], *roles: Role) -> frozenset[str]:
    return frozenset(name for name, info in parameter_infos(kind).items() if info.role in roles)


def estimator_by_name(name: str, task: TaskKind) -> type[Any]:
    """Return an estimator class by the name of its family, or by its own name.

    >>> estimator_by_name("private-forest", "regression").__name__
    'PrivateForestRegressor'
    >>> estimator_by_name("MatrixForestPredictor", "classification").__name__
    'MatrixForestPredictor'
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
    """Make the estimator that a saved plan describes. ``fit(plan=...)`` compares the plan itself."""
    kind = getattr(estimators, plan.estimator, None) if plan.estimator in estimators.__all__ else None
    if kind is None:
        raise PlanError(f"the plan is of {plan.estimator!r}, which this version does not know. Hint: update veilwood.")
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
