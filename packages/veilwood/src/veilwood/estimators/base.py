# SPDX-License-Identifier: Apache-2.0
"""What all scikit-learn shells share: common parameters, and the order of a fit around a method of ``forests``.

A shell has parameters and documentation. What is grown, measured and learned is the method's (``forests.method``).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from os import PathLike
from typing import Any, ClassVar, Final, Literal, Protocol, Self, TypeAlias, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from veilwood.data.batches import Source
from veilwood.data.canonical import to_canonical_texts
from veilwood.data.contributions import Weights, check_max_weight, scale_unit
from veilwood.data.encoding import Encoding, class_labels
from veilwood.data.open_rows import open_rows
from veilwood.data.problems import Invalid
from veilwood.data.schema import Schema, TaskKind
from veilwood.engines.cluster.engines import predict_on_clusters
from veilwood.errors import ParameterError, PlanError, PrivacyWarning, SchemaError, UseError, UtilityWarning
from veilwood.estimators.method import Codes, Design, FitRequest, Floats, Method, Model, Parameters, method_of
from veilwood.evaluation.evaluate import Evaluation, HoldoutSplit, evaluation_loss, evaluation_plan, measure_quality
from veilwood.forests.auto_size import AutoSized
from veilwood.forests.noisy_leaves import AUTO, LeafMethod
from veilwood.privacy.accountant import DataHandle, register_fit, warn_once
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.door import INFERRED_SCHEMA, Door, ParallelDoor, parallel_loss, record_rejection
from veilwood.privacy.ledger_stores import Ledger, open_ledger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf, resolve_unit
from veilwood.privacy.plan import Plan
from veilwood.safe_io import MAX_DIGITS, is_int_in
from veilwood.trees.forest import LEAF, Forest
from veilwood.trees.random import check_random_state, public_seed

__all__ = [
    "MAX_THREADS",
    "PRIVACY_PARAMETERS",
    "RUN_PARAMETERS",
    "BaseForest",
    "ClassWeights",
    "Classifier",
    "JointRows",
    "PlanOrPath",
    "Regressor",
    "ReweightedModel",
    "RunParameters",
    "SharedParameters",
    "compute_importances",
    "explicit_weights",
    "resolve_weights",
    "to_plain_value",
    "weighted_model",
]


_HINT = "'balanced', or a number above 0 for some classes: {'yes': 5}"


@dataclass(eq=False, repr=False, kw_only=True)
class ClassWeights:
    """The parameter of every classifier."""

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None


@dataclass(frozen=True, eq=False)
class ReweightedModel(Model):
    """A model whose class shares are multiplied by weights, as if each class had so many times its rows."""

    model: Model
    weights: Floats

    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the weighed probability of each class."""
        shares = self.model.predict_outputs(codes, n_jobs) * self.weights
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """A file holds the model as it was released; weights are a parameter."""
        return self.model.to_arrays()


def weighted_model(class_weight: object, classes: NDArray[Any], model: Model) -> Model:
    """Return a model with its classes weighed: post-processing of what it was released as."""
    weights = resolve_weights(class_weight, classes, model)
    return model if weights is None else ReweightedModel(model.encoding, model, weights)


def resolve_weights(class_weight: object, classes: NDArray[Any], model: Model) -> Floats | None:
    """Return the weight of each class; None where all count alike."""
    if class_weight is None:
        return None
    given = explicit_weights(class_weight, classes)
    if given is not None:
        return given
    found = 1 / np.maximum(model.class_frequencies(), 1e-6)
    return np.asarray(found / found.mean())


def explicit_weights(class_weight: object, classes: NDArray[Any]) -> Floats | None:
    """Return the weights that are given; None where they are to be balanced."""
    if isinstance(class_weight, str) and class_weight == "balanced":
        return None
    if not isinstance(class_weight, Mapping):
        raise ParameterError("class_weight", class_weight, "is not understood", _HINT)
    known = to_canonical_texts(list(classes))
    found = np.ones(len(known))
    for label, weight in zip(to_canonical_texts(list(class_weight)), class_weight.values(), strict=True):
        number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        if label not in known or not number or not 0 < float(weight) < float("inf"):
            raise ParameterError("class_weight", class_weight, f"does not fit the classes {list(classes)}", _HINT)
        found[known.index(label)] = float(weight)
    return found


def compute_importances(model: Any, names: list[str]) -> NDArray[np.float64]:
    """Return the importance of each column; they add up to 1, or are all 0 where nothing was learned.

    Where a model explains itself, the mean square of a column's main effect; otherwise how much the splits on a column
    set the noisy counts of its branches apart (Gini). Noise alone gives every column some importance.
    """
    if hasattr(model, "explain"):
        strength = {main.column: main.strength**2 for main in model.explain().main}
        found = np.array([strength.get(name, 0.0) for name in names])
    else:
        found = _split_importances(model.forest, np.maximum(model.leaf_counts, 0).astype(float), len(names))
    total = found.sum()
    return found / total if total > 0 else found


def _split_importances(forest: Forest, counts: NDArray[np.float64], n_columns: int) -> NDArray[np.float64]:
    """Add up, for each column, by how much its splits lower the impurity of their branches, weighted by rows."""
    sums = forest.sum_to_nodes(counts)
    rows = np.maximum(sums.sum(axis=1), 1e-300)
    impurity = rows - (sums**2).sum(axis=1) / rows  # rows times Gini
    below = np.zeros(forest.n_nodes)
    inner = np.flatnonzero(forest.level > 0)
    np.add.at(below, forest.parent[inner], impurity[inner])
    splits = np.flatnonzero(forest.feature != LEAF)
    gained = np.maximum(impurity - below, 0.0)[splits]
    return np.asarray(np.bincount(forest.feature[splits], gained, minlength=n_columns), np.float64)


MAX_THREADS = 4096

PlanOrPath: TypeAlias = Plan | str | PathLike[str]


@dataclass(eq=False, repr=False, kw_only=True)
class RunParameters:
    """Parameters of every shell, with a guarantee or without: what is run on what."""

    schema: Schema | Mapping[str, Any] | str | PathLike[str] | None = field(default=None, kw_only=False)
    random_state: int | np.random.RandomState | np.random.Generator | None = None
    ledger: Ledger | str | PathLike[str] | None = None
    n_jobs: int | None = None
    invalid: Invalid = "refuse"


@dataclass(eq=False, repr=False, kw_only=True)
class SharedParameters(RunParameters):
    """Parameters of every estimator: its guarantee too."""

    epsilon: float = 1.0
    delta: float = 0.0
    privacy_unit: Literal["row"] | int | Mapping[str, Any] | Rows | RowsOf = "row"
    adjacency: str = "add-remove"
    max_weight: int | None = None


PRIVACY_PARAMETERS: Final = frozenset(
    {"schema", "epsilon", "delta", "privacy_unit", "adjacency", "max_weight", "ledger"}
)
"""Parameters that say what is promised, about which rows and to whom, and where it is written down.

Whatever tries settings inside a promise leaves them alone: a search would otherwise run under another one.
"""
RUN_PARAMETERS: Final = frozenset({"n_jobs", "invalid"})
"""Parameters that say how rows are read: the same for all that is done with them. ``random_state`` is none of them, but
a setting like others: it draws public structure, and no noise."""

_MAX_CHARACTERS = 10_000
_NOT_IN_A_PLAN = PRIVACY_PARAMETERS | {"random_state", "n_jobs", "epsilon_in_paper", "class_weight"}


def to_plain_value(name: str, value: Any) -> Any:
    """Return a parameter as JSON can hold it; exact numbers as text, which every estimator reads as the same number."""
    try:
        return _to_plain(name, value)
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of too many digits
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(name, value, "cannot be saved", "give numbers or text") from None


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
    raise ParameterError(name, value, "cannot be saved", "give numbers or text")


def _equal_or_false(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # an array somewhere: rather plan again
        return False


@runtime_checkable
class JointRows(Protocol):
    """Rows of several owners that only three servers together can count (``secure.protocols.joint_forest``)."""

    def fit_estimator(self, estimator: Any) -> None:
        """Fit the estimator from what the servers release."""


class BaseForest(BaseEstimator):  # type: ignore[misc]
    """The order of a fit: public design, then the data through the door, then free post-processing.

    Beside the methods of scikit-learn, other rooms call ``_make_method``, ``_requested_privacy``, ``_resolve_schema``, ``_fit_request``,
    ``_design_for``, ``_run_release`` and ``_encode_rows``.
    """

    _task: ClassVar[TaskKind]
    _method_class: ClassVar[type[Method[Any]]]

    # Parameters.
    schema: Any
    epsilon: Any
    delta: Any
    privacy_unit: Any
    adjacency: Any
    random_state: Any
    ledger: Any
    n_jobs: Any
    invalid: Any

    _prepared: tuple[Any, Design] | None = None  # by plan(), for the next fit
    _unfinished: Any = None  # by partial_fit(), for release()

    # Set by fit, beside what the model shows.
    schema_: Schema
    plan_: Plan
    privacy_: PrivacyCertificate
    model_: Any
    evaluation_: Evaluation
    statements_: tuple[str, ...]  # by their SHA-256, where rows were counted in a database
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    classes_: NDArray[Any]

    # -- public ----------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Return what ``fit`` will release and what it will cost. No data is needed, nothing is spent."""
        if isinstance(self.schema, str) and self.schema == "infer":
            raise UseError(
                "a plan is made before the data is seen, and schema='infer' reads the data. Hint: declare a schema."
            )
        return self._design_for(self._resolve_schema()[0]).plan

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        plan: PlanOrPath | None = None,
        holdout_fraction: float | None = None,
        evaluate_epsilon: float | None = None,
        sample_weight: Any = None,
        **unsupported: Any,
    ) -> Self:
        """Train on a table, releasing noisy counts through the door and charging the ledger once.

        Parameters
        ----------
        X : dataframe, array, path, folder, glob, pyarrow dataset, iterator of tables, or frame of a cluster
            The rows; a file, or a table without ``y``, must hold the target column of the schema. Frames of Dask,
            Spark and Ray are counted where they are. An iterator can be read once: forests that grow level by level
            refuse it.
            Owners and servers of ``veilwood_secure`` take the place of rows that nobody may see.
        y : array-like, optional
            The target.
        plan : Plan or path, optional
            What was planned, and perhaps signed, before: exactly that is carried out, or the fit is refused with what
            differs. Without it, the plan that ``plan()`` returned last, as long as no parameter has changed since.
        holdout_fraction : float, optional
            A share of the units, such as 0.2, that a secret key sets aside: the model is not trained on them but
            evaluated, and ``evaluation_`` says how good it is. Where a unit is one row or all rows of an id, added or
            removed, that costs nothing more: a unit is in one of the parts only (proofs/evaluation.md).
        evaluate_epsilon : float, optional
            For other units and adjacencies: what the evaluation costs beside the fit, in an entry of its own.
        sample_weight : array-like, optional
            How much each row counts, from 0 to the parameter ``max_weight``; larger ones are cut to it. Noise grows
            with ``max_weight``, since one row can count that much.

        Returns
        -------
        self
        """
        self._reject_arguments(unsupported)
        if isinstance(X, JointRows) and hasattr(type(X), "fit_estimator"):  # a frame may have a column of that name
            if holdout_fraction is not None:
                raise UseError("rows of several owners cannot be set aside. Hint: vw.evaluate on a table of their own.")
            if sample_weight is not None:
                raise UseError("rows of several owners cannot be weighed. Hint: fit without sample_weight.")
            X.fit_estimator(self)
            return self
        weights = None if sample_weight is None else Weights.validated(sample_weight, getattr(self, "max_weight", None))
        schema, not_private = self._resolve_schema(X, y)
        method = self._make_method()
        design = self._design_for(schema, plan, method)
        loss, unit = design.plan.loss, design.plan.neighbours.unit
        if getattr(self, "max_weight", None) is not None:
            unit = resolve_unit(self.privacy_unit)  # of rows; weights make copies of them
        aside = None if holdout_fraction is None else HoldoutSplit.draw(holdout_fraction)
        more = None
        if holdout_fraction is not None or evaluate_epsilon is not None:
            more = evaluation_loss(design.plan, holdout_fraction, evaluate_epsilon)
        # First of all: once a budget is spent, whether rows fit must not be told for nothing.
        if self.ledger is not None and loss.is_bounded:
            open_ledger(self.ledger).check_affordable(loss if more is None else loss + more)
        held_out: Source | None = None
        table = register_fit(X, with_ledger=self.ledger is not None)
        with self._record_rejections(design.plan, not_private, table):
            if aside is None:
                sources = [open_rows(X, y, design.encoding, unit=unit, invalid=self.invalid, weights=weights)]
            else:
                who = type(self).__name__
                mine, held_out = aside.open_parts(
                    X, y, design.encoding, unit=unit, invalid=self.invalid, estimator=who, weights=weights
                )
                sources = [mine]
        if sources[0].single_pass:
            sources[0].check_passes(method.multi_pass or aside is not None, type(self).__name__)
        record = sources[0].record
        self.__dict__.pop("statements_", None)
        # Taken out of the list, so that the encoded rows are gone from memory before anything is learned.
        door = self._fit_through_door(
            design,
            method,
            not_private,
            lambda door: method.measure_rows(design, sources.pop(), door, self.n_jobs),
            table,
        )
        if held_out is not None:
            self._evaluate_held_out(held_out, door, more, float(holdout_fraction or 0))
        if record is not None:
            self.statements_ = tuple(record)
        return self

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """How much each column does, adding up to 1. Free: computed from what was released."""
        check_is_fitted(self, "model_")
        return compute_importances(self.model_, list(self.schema_.feature_names))

    # -- for other rooms -------------------------------------------------------------------------------------------

    def _make_method(self) -> Method[Any]:
        """Return the method that the parameters ask for, checked; where they leave its size open, it chooses that."""
        bases = (base for base in type(self).__mro__ if issubclass(base, Parameters))
        own = next(base for base in bases if not issubclass(base, BaseForest))  # the family's, without the shell
        sizes = getattr(self, "n_estimators", None), getattr(self, "max_depth", None)
        kind = self._method_class
        if issubclass(kind, LeafMethod) and any(isinstance(size, str) and size == AUTO for size in sizes):
            return method_of(partial(AutoSized, kind=kind), own, self)
        return method_of(kind, own, self)

    def _requested_privacy(self) -> tuple[Loss, Neighbours]:
        """Read what is asked for; wrong values are refused here, before anything is spent."""
        if self.n_jobs is not None and (not is_int_in(self.n_jobs, -MAX_THREADS, MAX_THREADS) or self.n_jobs == 0):
            raise ParameterError(
                "n_jobs", self.n_jobs, "is not a number of threads", f"1, 2, ... up to {MAX_THREADS}, or -1 for all"
            )
        if not isinstance(self.invalid, str) or self.invalid not in get_args(Invalid):
            raise ParameterError("invalid", self.invalid, "is not known", "'refuse' or 'drop'")
        neighbours, most = (
            Neighbours.from_parameters(self.adjacency, self.privacy_unit),
            getattr(self, "max_weight", None),
        )
        if most is not None:
            neighbours = replace(neighbours, unit=scale_unit(neighbours.unit, check_max_weight(most)))
        return requested_loss(self.epsilon, self.delta), neighbours

    def _resolve_schema(self, X: Any = None, y: Any = None) -> tuple[Schema, str | None]:
        """Return the schema, and why using it is not private if it was read off the data."""
        if isinstance(self.schema, str) and self.schema == "infer":
            schema = Schema.infer(X, y, self._task)
        else:
            schema = self.schema if isinstance(self.schema, Schema) else Schema.resolve(self.schema)
            schema = schema if y is None else schema.for_labels(y)
            self._warn_unit_mismatch(schema)
        weights = getattr(self, "class_weight", None)
        if weights is not None:  # used after the fit, when it has been paid for: so refused before
            explicit_weights(weights, class_labels(schema))
        return self._check_task(schema), INFERRED_SCHEMA if schema.inferred else None

    def _fit_request(self, schema: Schema, seed: int, decisions: Mapping[str, Any] | None = None) -> FitRequest:
        """Put together what a method designs a fit from."""
        promise = self._requested_privacy()  # checked first: it says best what is wrong
        parameters = {
            name: to_plain_value(name, value)
            for name, value in self.get_params(deep=False).items()
            if name not in _NOT_IN_A_PLAN
        }
        return FitRequest(type(self).__name__, parameters, schema, *promise, seed, decisions or {})

    def _design_for(self, schema: Schema, plan: PlanOrPath | None = None, method: Method[Any] | None = None) -> Design:
        """Return the public design: of the given plan, or of the latest one, or a new one."""
        method = method or self._make_method()
        if plan is not None:
            check_random_state(self.random_state)
            plan = plan if isinstance(plan, Plan) else Plan.load(plan)
            design = method.make_design(self._fit_request(schema, plan.public_seed, plan.choices))
            differs = plan.differences(design.plan)
            if is_int_in(self.random_state, 0) and int(self.random_state) != plan.public_seed:
                differs.append(f"random_state: {plan.public_seed} planned, {self.random_state} now")
            if differs:
                raise PlanError(
                    f"this would not carry out the plan {plan.fingerprint()[:12]}: {'; '.join(differs)}. "
                    "Hint: use the planned parameters and schema, or make a new plan."
                )
            return replace(design, plan=plan)  # to the last digit of what was signed
        asked = self._fit_request(schema, 0)
        key = (asked, self.random_state)
        if self._prepared is None or not _equal_or_false(self._prepared[0], key):
            self._prepared = (key, method.make_design(replace(asked, seed=public_seed(self.random_state))))
        return self._prepared[1]

    def _run_release(self, door: Door, design: Design, method: Method[Any], measure: Callable[[Door], Any]) -> None:
        """Measure inside a door, and take in what was released."""
        earlier = {name: getattr(self, name) for name in self._fitted_attributes()}
        with door:
            released = measure(door)
        self._prepared = self._unfinished = None  # carried out: the next fit has a plan and counts of its own
        self._remove_attributes(
            list(earlier)
        )  # only now: a refused or interrupted refit keeps the model that was paid for
        try:
            self._set_certificate(door)
            self._set_model(design.encoding.schema, method.build_model(design, door.plan, released, self.n_jobs))
        except BaseException as error:
            self._remove_attributes(self._fitted_attributes())
            self.__dict__.update(earlier)
            error.add_note(f"{door.plan.loss} was spent; nothing was learned from it.")
            raise
        told = method.utility_warning(self.plan_, self.model_)
        if told is not None:
            warnings.warn(told, UtilityWarning, stacklevel=4)

    def _set_model(self, schema: Schema, model: Model) -> None:
        """Take in a model, learned or loaded, and show what it shows."""
        self._set_schema_attributes(schema, model.encoding)
        self.model_ = model
        for name in model.public_attributes:
            setattr(self, f"{name}_", getattr(model, name))

    def _encode_rows(self, X: Any) -> NDArray[np.uint16]:
        """Encode rows to predict for; needs a fitted estimator."""
        if "model_" not in vars(self):
            check_is_fitted(self, "model_")
        return self._encode_with(self.model_.encoding, X)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _fit_through_door(
        self,
        design: Design,
        method: Method[Any],
        not_private: str | None,
        measure: Callable[[Door], Any],
        table: DataHandle,
    ) -> Door:
        """Open the door, measure, and take in what was released; return the door, closed."""
        ledger = None if self.ledger is None else open_ledger(self.ledger)
        door = Door(design.plan, ledger, not_private=not_private, table=table)
        self._run_release(door, design, method, measure)
        return door

    def _evaluate_held_out(self, held_out: Source, fit_door: Door, extra_loss: Loss | None, fraction: float) -> None:
        """Measure the model on the units set aside, covered by what the fit has cost, or at a price of its own."""
        plan, loss = fit_door.plan, parallel_loss(fit_door.plan.loss) if extra_loss is None else extra_loss
        own = evaluation_plan(self, loss, plan.neighbours, self.invalid, share=fraction)
        not_private = None if self.privacy_.is_private else self.privacy_.reason
        door: Door = ParallelDoor(own, fit_door)
        if extra_loss is not None:
            door = Door(own, open_ledger(self.ledger), not_private=not_private, table=fit_door._table)
        self.evaluation_ = measure_quality(self, held_out, door, n_jobs=self.n_jobs)

    def _record_rejections(
        self, plan: Plan, not_private: str | None, table: DataHandle
    ) -> AbstractContextManager[None]:
        """Write into the ledger that rows were refused: it tells something for nothing, so it must not go unseen."""
        if self.ledger is None:
            return nullcontext()
        return record_rejection(partial(Door, plan, open_ledger(self.ledger), not_private=not_private, table=table))

    def _encode_with(self, encoding: Encoding, X: Any) -> NDArray[np.uint16]:
        unit = resolve_unit(self.privacy_unit)
        extra = (unit.id,) if isinstance(unit, RowsOf) else ()
        return encoding.encode(X, allowed_extra=extra, estimator=type(self).__name__)

    def _warn_unit_mismatch(self, schema: Schema) -> None:
        """Say so where the schema names whom to protect, and the estimator was not told."""
        if schema.privacy_unit is not None and schema.privacy_unit != (unit := resolve_unit(self.privacy_unit)):
            warnings.warn(
                f"schema {schema.name!r} names {schema.privacy_unit} as whom to protect, and this fit protects {unit}. "
                "Hint: privacy_unit=schema.privacy_unit.",
                PrivacyWarning,
                stacklevel=4,
            )

    def _fitted_attributes(self) -> list[str]:
        """Name the attributes that a fit has set."""
        return [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]

    def _remove_attributes(self, names: list[str]) -> None:
        """Drop what an earlier fit left, so that no certificate ever stands beside another fit's leaves."""
        for name in names:
            delattr(self, name)

    def _set_certificate(self, door: Door) -> None:
        """Keep the certificate of a finished release, and say so when there is no guarantee."""
        self.privacy_, self.plan_ = door.certificate(), door.plan
        if not self.privacy_.is_private:
            warnings.warn(f"the result is NOT PRIVATE: {self.privacy_.reason}", PrivacyWarning, stacklevel=5)

    def _reject_arguments(self, unsupported: dict[str, Any]) -> None:
        if unsupported:
            raise UseError(f"{', '.join(unsupported)} cannot be given here. Hint: drop the argument.")

    def _check_task(self, schema: Schema) -> Schema:
        if schema.task != self._task:
            raise SchemaError(
                f"schema {schema.name!r} is for {schema.task}, and {type(self).__name__} does {self._task}. "
                "Hint: use the other estimator of the pair, or another schema."
            )
        return schema

    def _set_schema_attributes(self, schema: Schema, encoding: Encoding) -> None:
        """Set what follows from the schema alone."""
        self.schema_ = schema
        self.n_features_in_ = len(schema.features)
        self.feature_names_in_ = np.array(schema.feature_names, dtype=object)
        if self._task == "classification":
            self.classes_ = encoding.labels.copy()

    def _adjust_tags(self, tags: Any, task_tags: Any) -> Any:
        """Tell scikit-learn what its checks may expect."""
        task_tags.poor_score = True
        tags.non_deterministic = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        state.pop("_prepared", None)
        return state

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text: str = super().__repr__(N_CHAR_MAX)
        if "epsilon" in self.get_params(deep=False) and "epsilon=" not in text:  # a default is a promise too
            name = f"{type(self).__name__}("
            rest = text.removeprefix(name)
            text = f"{name}epsilon={self.epsilon!r}{'' if rest == ')' else ', '}{rest}"
        fitted: PrivacyCertificate | None = self.__dict__.get("privacy_")
        return text if fitted is None or fitted.is_private else f"{text}  # NOT PRIVATE: {fitted.reason}"


def _warn_exact_score() -> None:
    warn_once(
        "score",
        "score() is exact: whoever sees it learns something about each of its rows that no certificate covers. On "
        "public rows that is fine. Hint: on private rows use vw.evaluate(model, X, y, epsilon=0.1, ledger=...).",
    )


class Classifier(ClassifierMixin, BaseForest):  # type: ignore[misc]
    """Predicts classes of the schema."""

    _task: ClassVar[TaskKind] = "classification"

    @predict_on_clusters
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class. Free: computed from what was released."""
        return self._predict_encoded(self._encode_rows(X))[0]

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of each class's probability. Free: computed from what was released."""
        logs: NDArray[np.float64] = np.log(self.predict_proba(X))
        return logs

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return log-odds: of the second of two classes, or of each class against the mean of all. Free.

        For two classes, above 0 is where the second one is the more probable.
        """
        logs = self.predict_log_proba(X)
        if logs.shape[1] == 2:
            return np.asarray(logs[:, 1] - logs[:, 0])
        return np.asarray(logs - logs.mean(axis=1, keepdims=True))

    @predict_on_clusters
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted classes. Free: computed from what was released."""
        return self._predict_encoded(self._encode_rows(X))[1]

    def _predict_both(self, X: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the predicted classes and the probability of each, from one walk through the trees."""
        shares, labels = self._predict_encoded(self._encode_rows(X))
        return labels, shares

    def _predict_encoded(self, codes: Codes) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return the probability of each class and the predicted class, for rows that are encoded already.

        All predictions go this way, so that ``class_weight`` counts in each of them.
        """
        shares, places = self._weighted_model().predict_both(codes, self.n_jobs)
        return shares, self.classes_[places]

    def _weighted_model(self) -> Model:
        """Return the model, with classes weighed as ``class_weight`` says."""
        return weighted_model(getattr(self, "class_weight", None), self.classes_, self.model_)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose class is predicted.

        Classes are compared as in ``fit``, whether ``y`` has them as numbers or as text. The number is exact: rows
        that are private are judged by ``vw.evaluate``.
        """
        _warn_exact_score()
        predicted, encode = self.predict(X), self.model_.encoding.encode_target
        return float(accuracy_score(encode(y), encode(predicted), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._adjust_tags(tags, tags.classifier_tags)


class Regressor(RegressorMixin, BaseForest):  # type: ignore[misc]
    """Predicts numbers between the bounds of the schema's target."""

    _task: ClassVar[TaskKind] = "regression"

    @predict_on_clusters
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return predicted targets, inside the schema's bounds. Free: computed from what was released."""
        return self._predict_encoded(self._encode_rows(X))

    def _predict_encoded(self, codes: Codes) -> NDArray[np.float64]:
        """Return predicted targets, for rows that are encoded already: all predictions go this way."""
        numbers: NDArray[np.float64] = self.model_.predict_outputs(codes, self.n_jobs)
        return numbers

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R2. The number is exact: rows that are private are judged by ``vw.evaluate``."""
        _warn_exact_score()
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._adjust_tags(tags, tags.regressor_tags)
