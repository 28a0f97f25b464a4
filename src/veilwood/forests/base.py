# SPDX-License-Identifier: Apache-2.0
"""What all estimators share: parameters every forest takes, the order of a fit, and the encoding of queries.

What a family of forests grows, measures and predicts is in its own file.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from os import PathLike
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from veilwood.bounded import MOST_DIGITS, is_whole
from veilwood.data.batches import Source
from veilwood.data.cluster.engines import open_rows
from veilwood.data.encoding import Encoding, class_labels
from veilwood.data.schema import Schema, Task
from veilwood.errors import ParameterError, PlanError, PrivacyWarning, VeilwoodError
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.door import INFERRED, Door
from veilwood.privacy.ledger import open_ledger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf, unit_of
from veilwood.privacy.plan import Layout, Plan, Records
from veilwood.privacy.steps import Step
from veilwood.trees.forest import Forest, check_random_state, public_seed
from veilwood.wording import shown

MOST_THREADS = 4096


@dataclass(frozen=True)
class Asked:
    """What a fit is asked for: public facts, checked, from which a design follows without any further chance.

    Attributes
    ----------
    estimator, parameters
        Who asks, and with which parameters.
    schema, loss, neighbours
        What is public about the data, what may be lost, and about whom.
    seed : int
        The public seed of the structure.
    choices : dict
        What an earlier plan has chosen already and need not be searched again.
    """

    estimator: str
    parameters: dict[str, Any]
    schema: Schema
    loss: Loss
    neighbours: Neighbours
    seed: int
    choices: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, steps: tuple[Step, ...], released: str, layout: Layout, noise: float, **more: Any) -> Plan:
        """Put a plan together; ``noise`` is its expected squared error of a leaf."""
        return Plan(
            estimator=self.estimator,
            parameters=self.parameters,
            public_seed=self.seed,
            loss=more.pop("loss", self.loss),
            neighbours=self.neighbours,
            steps=steps,
            released=released,
            schema_name=self.schema.name,
            schema_hash=self.schema.fingerprint(),
            layout=layout,
            expected_leaf_mse=noise,
            **more,
        )


@dataclass(frozen=True)
class Design:
    """Everything about a fit that is decided before the data: public."""

    encoding: Encoding
    forest: Forest
    plan: Plan


def layout_of(forest: Forest, records: Records, **more: Any) -> Layout:
    """Return the layout of a forest that is grown without data."""
    return Layout(forest.n_trees, forest.n_leaves, forest.depth, records, **more)


_MOST_CHARACTERS = 10_000
_NOT_IN_A_PLAN = {
    "schema", "epsilon", "delta", "privacy_unit", "adjacency", "random_state", "ledger", "n_jobs", "epsilon_in_paper",
}  # fmt: skip


def plain_value(name: str, value: Any) -> Any:
    """Return a parameter as JSON can hold it; exact numbers as text, which every estimator reads as the same number."""
    match value:
        case np.generic():
            return plain_value(name, value.item())
        case float() if math.isinf(value):
            return "inf"
        case None | bool() | float():
            return value
        case int() if is_whole(value, -(10 ** (MOST_DIGITS - 1)), 10 ** (MOST_DIGITS - 1)):
            return value
        case str() if len(value) <= _MOST_CHARACTERS:
            return value
        case Fraction() | Decimal():
            return str(value)
        case Rows(k=k):
            return k
        case RowsOf(id=column, at_most=at_most):
            return {"id": column, "at_most": at_most}
        case list() | tuple():
            return [plain_value(name, entry) for entry in value]
        case dict():
            return {str(key): plain_value(name, entry) for key, entry in value.items()}
    raise ParameterError(name, value, "cannot be saved", "give numbers or text")


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # an array somewhere: rather plan again
        return False


@runtime_checkable
class JointRows(Protocol):
    """Rows of several owners that only three servers together can count (``secure.joint``)."""

    def teach(self, estimator: Any) -> None:
        """Fit the estimator from what the servers release."""


class Classifies(ClassifierMixin):  # type: ignore[misc]
    """Predicts classes of the schema."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose class is predicted.

        Classes are compared as in ``fit``, whether ``y`` has them as numbers or as text.
        """
        encode = self._encoding().encode_target
        return float(accuracy_score(encode(y), encode(self.predict(X)), sample_weight=sample_weight))


class BaseForest(BaseEstimator):  # type: ignore[misc]
    """The order of a fit: public design, then the data through the door, then free post-processing."""

    _task: ClassVar[Task]
    _several_passes: ClassVar[bool] = True  # over the rows

    # Set by the constructors of the families.
    schema: Any
    epsilon: Any
    delta: Any
    privacy_unit: Any
    adjacency: Any
    random_state: Any
    ledger: Any
    n_jobs: Any

    _prepared: tuple[Any, Design] | None = None  # by plan(), for the next fit

    # Set by fit.
    schema_: Schema
    plan_: Plan
    privacy_: PrivacyStatement

    # -- what a family defines -----------------------------------------------------------------------------

    def _design(self, asked: Asked) -> Design:
        """Grow the structure and plan the release, from public facts alone."""
        raise NotImplementedError

    def _measure(self, design: Design, source: Source, door: Door) -> Any:
        """Count, and let the counts out through the door."""
        raise NotImplementedError

    def _learn(self, design: Design, released: Any) -> None:
        """Turn what was released into what predictions need."""
        raise NotImplementedError

    def _model_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the public arrays that predictions need, for a model file."""
        raise VeilwoodError(f"{type(self).__name__} cannot be saved: it holds more than was released.")

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Check and take back what ``_model_arrays`` gave; schema, plan and certificate are set already."""
        raise NotImplementedError

    # -- public ----------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Return what ``fit`` will release and what it will cost. No data is needed, nothing is spent."""
        if isinstance(self.schema, str) and self.schema == "infer":
            raise VeilwoodError(
                "a plan is made before the data is seen, and schema='infer' reads the data. Hint: declare a schema."
            )
        return self._prepare(self._for_task(Schema.resolve(self.schema))).plan

    def fit(self, X: Any, y: Any = None, *, plan: Plan | str | PathLike[str] | None = None, **unsupported: Any) -> Self:
        """Train on a table, releasing noisy counts through the door and charging the ledger once.

        Parameters
        ----------
        X : dataframe, array, path, folder, glob, pyarrow dataset, iterator of tables, or frame of a cluster
            The rows; a file, or a table without ``y``, must hold the target column of the schema. Frames of Dask,
            Spark and Ray are counted where they are. An iterator can be read once: forests that grow level by level
            refuse it.
            Owners and servers of ``veilwood.secure`` take the place of rows that nobody may see.
        y : array-like, optional
            The target.
        plan : Plan or path, optional
            What was planned, and perhaps signed, before: exactly that is carried out, or the fit is refused with what
            differs. Without it, the plan that ``plan()`` returned last, as long as no parameter has changed since.

        Returns
        -------
        self
        """
        self._refuse(unsupported)
        if isinstance(X, JointRows) and hasattr(type(X), "teach"):  # a frame may have a column of that name
            X.teach(self)
            return self
        schema, not_private = self._declared_schema(X, y)
        design = self._prepare(schema, plan)
        sources = [open_rows(X, y, design.encoding, unit=design.plan.neighbours.unit)]
        sources[0].check_passes(self._several_passes, type(self).__name__)
        # Taken out of the list, so that the encoded rows are gone from memory before anything is learned.
        self._carry_out(design, not_private, lambda door: self._measure(design, sources.pop(), door))
        return self

    # -- shared by the families --------------------------------------------------------------------------------

    def _prepare(self, schema: Schema, plan: Plan | str | PathLike[str] | None = None) -> Design:
        """Return the public design: of the given plan, or of the latest one, or a new one."""
        loss, neighbours = self._promise()
        parameters = self._plan_parameters()
        if plan is not None:
            plan = plan if isinstance(plan, Plan) else Plan.load(plan)
            asked = Asked(type(self).__name__, parameters, schema, loss, neighbours, plan.public_seed, plan.choices)
            design = self._design(asked)
            differs = plan.differences(design.plan)
            if is_whole(self.random_state, 0) and int(self.random_state) != plan.public_seed:
                differs.append(f"random_state: {plan.public_seed} planned, {self.random_state} now")
            if differs:
                raise PlanError(
                    f"this would not carry out the plan {plan.fingerprint()[:12]}: {'; '.join(differs)}. "
                    "Hint: use the planned parameters and schema, or make a new plan."
                )
            return design
        key = (parameters, schema.fingerprint(), loss, neighbours, self.random_state)
        if self._prepared is None or not _same(self._prepared[0], key):
            asked = Asked(type(self).__name__, parameters, schema, loss, neighbours, public_seed(self.random_state))
            self._prepared = (key, self._design(asked))
        return self._prepared[1]

    def _plan_parameters(self) -> dict[str, Any]:
        """Return the parameters that a plan names: all that are not in its other fields."""
        return {
            name: plain_value(name, value)
            for name, value in self.get_params(deep=False).items()
            if name not in _NOT_IN_A_PLAN
        }

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        state.pop("_prepared", None)
        return state

    def _carry_out(self, design: Design, not_private: str | None, measure: Callable[[Door], Any]) -> None:
        """Open the door, measure, and take in what came out."""
        door = Door(design.plan, open_ledger(self.ledger), not_private=not_private)
        self._go_through(door, design, measure)
        self._prepared = None  # carried out: the next fit has a plan of its own

    def _go_through(self, door: Door, design: Design, measure: Callable[[Door], Any]) -> None:
        """Measure inside a door, and take in what came out."""
        earlier = {name: getattr(self, name) for name in self._fitted()}
        with door:
            released = measure(door)
        self._forget(list(earlier))  # only now: a refused or interrupted refit keeps the model that was paid for
        try:
            self._certify(door)
            self._set_public(design.encoding.schema)
            self._learn(design, released)
        except BaseException as error:
            self._forget(self._fitted())
            self.__dict__.update(earlier)
            error.add_note(f"{door.plan.loss} was spent; nothing was learned from it.")
            raise

    def _fitted(self) -> list[str]:
        """Name the attributes that a fit has set."""
        return [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]

    def _forget(self, earlier: list[str]) -> None:
        """Drop what an earlier fit left, so that no certificate ever stands beside another fit's leaves."""
        for name in earlier:
            delattr(self, name)

    def _certify(self, door: Door) -> None:
        """Keep the certificate of a finished release, and say so when there is no guarantee."""
        self.privacy_, self.plan_ = door.statement(), door.plan
        if not self.privacy_.is_private:
            warnings.warn(f"the result is NOT PRIVATE: {self.privacy_.reason}", PrivacyWarning, stacklevel=5)

    def _refuse(self, unsupported: dict[str, Any]) -> None:
        if unsupported:
            raise VeilwoodError(
                f"fit does not take {', '.join(unsupported)}. Hint: weights would change what one row can do, "
                "so rows count once; repeat no rows and drop the argument."
            )

    def _promise(self) -> tuple[Loss, Neighbours]:
        """Read what is asked for; wrong values are refused here, before anything is spent."""
        if self.n_jobs is not None and (not is_whole(self.n_jobs, -MOST_THREADS, MOST_THREADS) or self.n_jobs == 0):
            raise VeilwoodError(
                f"n_jobs={shown(self.n_jobs)} is no number of threads. "
                f"Hint: 1, 2, ... up to {MOST_THREADS}, or -1 for all cores."
            )
        check_random_state(self.random_state)
        return requested_loss(self.epsilon, self.delta), Neighbours(self.adjacency, unit_of(self.privacy_unit))

    def _declared_schema(self, X: Any, y: Any) -> tuple[Schema, str | None]:
        """Return the schema, and why using it is not private if it was read off the data."""
        if isinstance(self.schema, str) and self.schema == "infer":
            schema = Schema.infer(X, y, self._task)
        else:
            schema = Schema.resolve(self.schema)
        return self._for_task(schema), INFERRED if schema.inferred else None

    def _for_task(self, schema: Schema) -> Schema:
        if schema.task != self._task:
            raise VeilwoodError(
                f"schema {schema.name!r} is for {schema.task}, and {type(self).__name__} does {self._task}. "
                "Hint: use the other estimator of the pair, or another schema."
            )
        return schema

    def _set_public(self, schema: Schema) -> None:
        """Set what follows from the schema alone."""
        self.schema_ = schema
        self.n_features_in_ = len(schema.features)
        self.feature_names_in_ = np.array(schema.feature_names, dtype=object)
        if self._task == "classification":
            self.classes_ = class_labels(schema)

    def _replanned(self) -> Plan:
        """Plan a fitted forest afresh from its parameters and the public seed, for an audit."""
        return self._design(self._asked_again()).plan

    def _asked_again(self) -> Asked:
        """Return what the fit was asked for."""
        plan, promise = self.plan_, self._promise()
        return Asked(
            type(self).__name__, self._plan_parameters(), self.schema_, *promise, plan.public_seed, plan.choices
        )

    def _encode(self, X: Any) -> NDArray[np.uint16]:
        """Encode rows to predict for; needs a fitted estimator."""
        check_is_fitted(self, "schema_")
        unit = unit_of(self.privacy_unit)
        extra = (unit.id,) if isinstance(unit, RowsOf) else ()
        return self._encoding().encode(X, allowed_extra=extra, estimator=type(self).__name__)

    def _encoding(self) -> Encoding:
        raise NotImplementedError

    def _tags(self, tags: Any, of_task: Any) -> Any:
        """Tell scikit-learn what its checks may expect."""
        of_task.poor_score = True
        tags.non_deterministic = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def _one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        value = getattr(self, name)
        if not isinstance(value, str) or value not in allowed:
            raise VeilwoodError(f"{name}={shown(value)} is not known. Hint: one of {', '.join(map(repr, allowed))}.")
        return str(value)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text: str = super().__repr__(N_CHAR_MAX)
        fitted: PrivacyStatement | None = self.__dict__.get("privacy_")
        return text if fitted is None or fitted.is_private else f"{text}  # NOT PRIVATE: {fitted.reason}"
