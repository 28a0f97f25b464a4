# SPDX-License-Identifier: Apache-2.0
"""Declaration of estimator parameters by role, and lookup of estimators by name or from a plan.

The role of a parameter decides which searches may vary it. A new parameter needs one line in the dataclass of its
family; the parameter lists of plans, model files, searches, the command line and the service are derived from it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from os import PathLike
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from veilwood import estimators
from veilwood.data.problems import Invalid
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import ParameterError, PlanError
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.neighbours import Rows, RowsOf
from veilwood.privacy.plan import Plan
from veilwood.safe_io import MAX_DIGITS

_KEY: Final = "veilwood"  # key in the metadata of a dataclass field


class Role(Enum):
    """Role of a parameter.

    A search within one guarantee may vary STRUCTURE and LEARNING only. Changing SCHEMA or PROMISE would change the
    guarantee; RUN stays the same for all trials.
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
        Role of the parameter.
    in_plan : bool
        Whether a plan lists it among its parameters. A plan has separate fields for the schema and the guarantee.
    in_file : bool
        Whether a model file lists it among its parameters.
    separate : bool
        Whether the command line and the service take it as a separate argument, not among the parameters.
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

    By default, a plan lists every parameter except those with the roles SCHEMA and PROMISE.
    """
    listed = role not in (Role.SCHEMA, Role.PROMISE) if in_plan is None else in_plan
    return MappingProxyType({_KEY: ParameterInfo(role, listed, in_file, separate, tuned)})


def parameter(default: Any = MISSING, *, role: Role, **where: Any) -> Any:
    """Return a dataclass field that declares an estimator parameter.

    Parameters
    ----------
    default : optional
        Default value. If omitted, each family declares its own default.
    role : Role
        Role of the parameter.
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

    If a family redeclares a parameter to change its default, the original declaration and role still apply.
    """
    infos: dict[str, ParameterInfo] = {}
    for base in (each for each in kind.__mro__ if is_dataclass(each)):
        for each in fields(base):
            if _KEY in each.metadata:
                infos.setdefault(each.name, each.metadata[_KEY])
    hidden = {each.name for each in fields(kind) if not each.init} if is_dataclass(kind) else set()
    return {name: info for name, info in infos.items() if name not in hidden}


def searchable_parameters(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that a search may vary: those with the roles STRUCTURE and LEARNING."""
    return _with_role(kind, Role.STRUCTURE, Role.LEARNING)


def parameters_in_plan(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that a plan lists."""
    return frozenset(name for name, info in parameter_infos(kind).items() if info.in_plan)


def parameters_in_file(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that a model file lists."""
    return frozenset(name for name, info in parameter_infos(kind).items() if info.in_file)


def separate_parameters(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that the command line and the service take as separate arguments."""
    return frozenset(name for name, info in parameter_infos(kind).items() if info.separate)


def requestable_parameters(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that an analyst may choose for a release that someone else runs.

    Excluded are separate arguments, parameters of the run, and learning parameters that a plan does not list, because
    these apply after the release.
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


# -- parameters of every estimator ---

MAX_THREADS: Final = 4096  # limit of n_jobs, to catch mistakes such as passing the number of rows


@dataclass(eq=False, repr=False, kw_only=True)
class RunParameters:
    """Parameters shared by all estimators, private or not: schema, random state, ledger, threads, invalid rows."""

    schema: Schema | Mapping[str, Any] | str | PathLike[str] | None = field(
        default=None, kw_only=False, metadata=parameter_metadata(Role.SCHEMA, in_file=False, separate=True)
    )
    # Used to draw public structure, never noise. A plan records the seed drawn from it.
    random_state: int | np.random.RandomState | np.random.Generator | None = parameter(
        None, role=Role.STRUCTURE, in_plan=False
    )
    # Not saved in model files: a ledger exists on one machine, and the certificate names it.
    ledger: Ledger | str | PathLike[str] | None = parameter(None, role=Role.PROMISE, in_file=False, separate=True)
    n_jobs: int | None = parameter(None, role=Role.RUN, in_plan=False)
    invalid: Invalid = parameter("refuse", role=Role.RUN)


@dataclass(eq=False, repr=False, kw_only=True)
class SharedParameters(RunParameters):
    """Parameters of every private estimator: the run parameters and the parameters of the guarantee."""

    epsilon: float = parameter(1.0, role=Role.PROMISE, separate=True)
    delta: float = parameter(0.0, role=Role.PROMISE, separate=True)
    # None means the unit that the schema declares, or one row.
    privacy_unit: Literal["row"] | int | Mapping[str, Any] | Rows | RowsOf | None = parameter(None, role=Role.PROMISE)
    adjacency: str = parameter("add-remove", role=Role.PROMISE)
    max_weight: int | None = parameter(None, role=Role.PROMISE)


@dataclass(eq=False, repr=False, kw_only=True)
class ClassWeights:
    """Parameter of every classifier: class weights in predictions."""

    # Applied after the release, so no plan lists it.
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = parameter(None, role=Role.LEARNING, in_plan=False)


_MAX_CHARACTERS = 10_000  # limit for a string parameter in a file


def to_plain_value(name: str, value: Any) -> Any:
    """Return a parameter as a JSON value. Exact numbers become strings, which estimators parse to the same number."""
    try:
        return _to_plain(name, value)
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number with too many digits
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(name, value, "cannot be saved", "pass numbers or text") from None


def _to_plain(name: str, value: Any) -> Any:
    match value:
        case np.floating():
            return _to_plain(name, float(value))
        case np.generic():
            return _to_plain(name, value.item())
        case float() if math.isinf(value):
            return "inf"
        case None | bool() | float():
            return value
        case int() if abs(value) <= 10 ** (MAX_DIGITS - 1):
            return value
        case str() if len(value) <= _MAX_CHARACTERS:
            return value
        case Fraction() | Decimal():
            return str(value)
        case Rows(k=k):
            return _to_plain(name, k)
        case RowsOf(id=column, at_most=at_most):
            return _to_plain(name, {"id": column, "at_most": at_most})
        case list() | tuple():
            return [_to_plain(name, entry) for entry in value]
        case dict():
            return {str(key): _to_plain(name, entry) for key, entry in value.items()}
    raise ParameterError(name, value, "cannot be saved", "pass numbers or text")


# -- estimators by name ---


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
        raise ParameterError("estimator", name, f"must be an estimator for {task}", f"choose one of {known}")
    return found[0]  # type: ignore[no-any-return]


def estimator_from_plan(schema: Schema, plan: Plan, ledger: Ledger | None = None) -> Any:
    """Return the estimator that a saved plan describes. ``fit(plan=...)`` checks the plan itself."""
    kind = getattr(estimators, plan.estimator, None) if plan.estimator in estimators.__all__ else None
    if kind is None:
        raise PlanError(f"the plan is for {plan.estimator!r}, which this version lacks. Hint: update veilwood.")
    if not set(inspect.signature(kind).parameters).issuperset(plan.parameters):
        raise PlanError(f"the plan has parameters that {plan.estimator} lacks in this version. Hint: update veilwood.")
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
