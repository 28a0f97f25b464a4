# SPDX-License-Identifier: Apache-2.0
"""Protocol of a method: how a family of forests is planned, measured, built into a model and restored from a file.

A method uses no scikit-learn, no ledger and no file. It is a frozen object made of a family's parameters and a task.
Estimators, federated training and audits run a method by the same calls::

    request  = FitRequest(...)                                           schema, loss, neighbours, seed: all public
    design   = method.make_design(request)                               public: encoding, structure, plan
    with Door(design.plan, ledger) as door:                              charges the ledger
        released = method.measure_rows(design, source, door, n_jobs)     private rows in, noisy numbers out
    model    = method.build_model(design, door.plan, released, n_jobs)   public: arrays, ready to predict
    model.predict_outputs(model.encoding.encode(X))                      spends no budget

    model    = method.restore_model(schema, plan, model.to_arrays())     the same model, from a file

To add an estimator, read this module and ``forests.noisy_leaves``, take ``forests.random_trees`` as an example, and
write in one module of ``forests``:

1. a dataclass of its parameters (``Parameters``), each declared with its role (``estimators.parameters``),
2. a method, and a model if no existing one fits,
3. an estimator class that inherits the parameters, names the method and has the documentation.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np

from veilwood.arrays import AnyArray, Codes, Floats, Ints
from veilwood.data.batches import Count, Source
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import ParameterError, PlanError, UseError, shorten_text
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step
from veilwood.safe_io import is_int_in
from veilwood.trees.counting import sum_over_trees
from veilwood.trees.forest import Forest

Arrays: TypeAlias = Mapping[str, AnyArray]
MAX_ROWS: Final = 10**15  # largest n_rows that a caller can declare


# -- public inputs of a fit, and the design that follows from them -----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Decisions that a plan records besides its steps and layout. Executing the plan does not decide them again.

    A family inherits this class and adds one field per decision. A plan holds the JSON form (``Plan.choices``), which
    omits fields that are None. Because a plan may come from a file, ``__post_init__`` checks the values;
    ``from_choices`` turns its errors into PlanError.

    Examples
    --------
    >>> Decisions(law="pure").to_choices()
    {'law': 'pure'}
    >>> Decisions.from_choices({"law": "pure"})
    Decisions(method=None, law='pure', structure=None)
    """

    method: str | None = None
    """Variant of the fit, if its family has several."""
    law: str | None = None
    """Accounting with the smaller noise: "pure" or "zcdp"."""
    structure: str | None = None
    """SHA-256 of the trees, if they are grown before the data is read."""

    def __post_init__(self) -> None:
        """Raise ValueError if a decision is not one of its options."""
        if not all(isinstance(text, str | None) for text in (self.method, self.law, self.structure)):
            raise ValueError("method, law and structure must be strings")

    def to_choices(self) -> dict[str, Any]:
        """Return the decisions as plain JSON values."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        choices: dict[str, Any] = json.loads(
            json.dumps({name: value for name, value in known.items() if value is not None})
        )
        return choices

    @classmethod
    def from_choices(cls, choices: Mapping[str, Any]) -> Self:
        """Read the decisions of a plan. Raise PlanError if they are not valid for this family."""
        try:
            return cls(**choices)
        except (TypeError, ValueError, KeyError, IndexError, ArithmeticError) as error:
            raise PlanError(f"the decisions of the plan cannot be read: {shorten_text(str(error))}.") from None


@dataclass(eq=False, repr=False, kw_only=True)
class Parameters:
    """Parameters of an estimator family. The scikit-learn estimators inherit these fields, and hence their signature.

    Subclasses are ``@dataclass(eq=False, repr=False, kw_only=True)``, because scikit-learn defines how estimators are
    compared and printed.
    """

    @classmethod
    def _from_estimator(cls, estimator: Any) -> Self:
        """Read the current parameter values of an estimator."""
        return cls(**{each.name: getattr(estimator, each.name) for each in fields(cls) if each.init})

    def _check_options(self, **known: tuple[str, ...]) -> None:
        """Raise ParameterError if a parameter is not one of its options."""
        for name, words in known.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in words:
                raise ParameterError(name, value, "is not known", f"choose one of {', '.join(map(repr, words))}")


def check_n_rows(n_rows: object) -> None:
    """Raise ParameterError if ``n_rows`` is not a valid number of rows."""
    if n_rows is not None and not is_int_in(n_rows, 1, MAX_ROWS):
        raise ParameterError(
            "n_rows", n_rows, "must be an integer from 1 to 10^15",
            "pass the number of rows, or an estimate of it, if that is public; otherwise omit n_rows, and a first step "
            "estimates it",
        )  # fmt: skip


@dataclass(frozen=True)
class FitRequest:
    """Validated public inputs of a fit. The design is a deterministic function of them."""

    estimator: str
    parameters: dict[str, Any]
    """Name and parameters of the estimator, both listed in the plan."""
    schema: Schema
    loss: Loss
    neighbours: Neighbours
    """Public schema, privacy loss of the fit, and the protected unit with its adjacency."""
    seed: int
    """Public seed of the structure."""
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """Decisions of an earlier plan, which need not be made again."""
    known_forest: Forest | None = None
    """Trees already grown from the seed, which need not be grown again."""

    def make_plan(self, steps: tuple[Step, ...], released: str, layout: Layout, leaf_error: float, **more: Any) -> Plan:
        """Assemble a plan. ``leaf_error`` is the expected squared error of a leaf."""
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
            expected_leaf_mse=leaf_error,
            **more,
        )


@dataclass(frozen=True)
class Design:
    """Public decisions of a fit, made before the data is read; families add fields of their own."""

    encoding: Encoding
    plan: Plan


@dataclass(frozen=True)
class ForestDesign(Design):
    """Design whose trees are grown before the data is read."""

    forest: Forest


# -- learned models: public ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """Learned model. Contains public arrays only, prepared once so that predictions are table lookups.

    ``public_attributes`` names the attributes that a fitted estimator exposes, each with a trailing underscore.
    """

    encoding: Encoding

    public_attributes: ClassVar[tuple[str, ...]] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cached values, so that copies are equal before and after predictions."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @property
    def votes_by_chance(self) -> bool:
        """Whether the predicted class is drawn from the class probabilities instead of being the most probable."""
        return False

    @abstractmethod
    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return class probabilities, shape (rows, classes), or predicted numbers, shape (rows,)."""

    def predict_both(self, codes: Codes, n_jobs: int | None = None) -> tuple[Floats, Ints]:
        """Return class probabilities and predicted class indices, in one pass."""
        shares = self.predict_outputs(codes, n_jobs)
        return shares, np.asarray(shares.argmax(axis=1))

    def class_frequencies(self) -> Floats:
        """Return the released class frequencies: the prediction for a row of which all values are unknown."""
        raise UseError(f"{type(self).__name__} is a regression model and has no classes.")

    def column_strengths(self) -> Floats:
        """Return the contribution of each column, from released values. Noise makes every contribution positive."""
        raise UseError(f"{type(self).__name__} does not attribute its predictions to columns.")

    @abstractmethod
    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the arrays from which ``Method.restore_model`` rebuilds the model."""


@dataclass(frozen=True, eq=False)
class ForestModel(Model):
    """Model that sums leaf values over trees; subclasses turn the sums into outputs."""

    forest: Forest
    leaf_values: Floats  # one row per leaf

    public_attributes: ClassVar[tuple[str, ...]] = ("forest",)

    def sum_leaves(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return the sum of the leaf values of each row over all trees."""
        return sum_over_trees(self.forest, codes, self.leaf_values, n_jobs=n_jobs)


# -- the method ------------------------------------------------------------------------------------------------------

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, eq=False)
class Method(ABC, Generic[P]):
    """Private learning algorithm for one task. It holds parameters only: no schema, no data, no result."""

    parameters: P
    task: TaskKind

    multi_pass: ClassVar[bool] = True  # reads the rows several times, so a single-pass iterator is rejected
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # allowed values of string parameters

    @classmethod
    def from_parameters(cls, parameters: P, task: TaskKind) -> Method[P]:
        """Return the method for these parameters. A family may return a method that chooses unset parameters."""
        return cls(parameters, task)

    @property
    def histogram_kind(self) -> Literal["counts", "moments"] | None:
        """Contents of the three-dimensional sums. Servers first check that the uploaded rows support this kind."""
        return None

    def check_parameters(self) -> None:
        """Raise ParameterError if a parameter is invalid. Called before anything else."""
        check_n_rows(getattr(self.parameters, "n_rows", None))
        has = vars(self.parameters)
        self.parameters._check_options(**{name: known for name, known in self.options.items() if name in has})

    @abstractmethod
    def make_design(self, request: FitRequest) -> Design:
        """Make all decisions that need no data: encoding, structure, plan."""

    @abstractmethod
    def measure_rows(self, design: Any, source: Source, door: Door, n_jobs: int | None = None) -> Any:
        """Count the rows, release the counts through the door and return the released values."""

    @abstractmethod
    def build_model(self, design: Any, plan: Plan, released: Any, n_jobs: int | None = None) -> Model:
        """Build a model from the released values. ``plan`` is the door's plan, which the method may have refined."""

    @abstractmethod
    def restore_model(self, schema: Schema, plan: Plan, arrays: Arrays) -> Model:
        """Rebuild a model from the arrays of a file. Raise ``ModelFileError`` if they do not describe one."""

    def may_promise(self, requested: Loss) -> tuple[Loss, ...]:
        """Return the losses that a plan may have for a requested loss: the same, or a pure loss, which is stronger."""
        return (requested,) if requested.epsilon is None else (requested, Loss.pure(requested.epsilon))

    def replan_request(self, request: FitRequest, plan: Plan) -> Plan:
        """Recompute the plan of a finished fit, so that an audit can compare it with ``plan``."""
        return self.make_design(request).plan

    def utility_warning(self, plan: Plan, model: Model) -> str | None:
        """Return a warning about the utility of a new model, from released values alone, or None."""
        return None

    def for_series(self) -> Method[P]:
        """Return the method that a series of releases runs. Raise UseError if counts do not add up over time."""
        raise UseError(
            f"{type(self).__name__} for {self.task} chooses its trees by the rows: its counts do not add up over time. "
            "Hint: use RandomTreesClassifier, RandomTreesRegressor, MatrixForestClassifier or PrivateForestClassifier."
        )


class OnePassMethod(Method[P]):
    """Base class of methods that learn one array of sums from the rows, in one pass.

    Such a forest can be trained batch by batch, or by owners who share sums but no rows.
    """

    multi_pass: ClassVar[bool] = False

    def for_series(self) -> Method[P]:
        """Return this method: the counts of its trees add up over time."""
        return self

    @abstractmethod
    def make_count(self, design: Any) -> Count:
        """Return the count to run on the rows. For disjoint trees, draw a fresh secret key."""

    @abstractmethod
    def release_sums(self, design: Any, exact: Ints, door: Door) -> Any:
        """Release the sums through the door."""

    def measure_rows(self, design: Any, source: Source, door: Door, n_jobs: int | None = None) -> Any:
        """Compute the sums in one pass and release them."""
        return self.release_sums(design, source.aggregate(self.make_count(design), n_jobs=n_jobs), door)


def method_of(
    kind: Callable[[Any, TaskKind], Method[Any]], parameters: type[Parameters], estimator: Any
) -> Method[Any]:
    """Return the method for the current parameters of an estimator, validated."""
    method = kind(parameters._from_estimator(estimator), estimator._task)
    method.check_parameters()
    return method
