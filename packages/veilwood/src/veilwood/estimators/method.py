# SPDX-License-Identifier: Apache-2.0
"""The protocol of a method: what a family of forests must do to be planned, fitted, saved, audited and shared.

A method knows no scikit-learn, no ledger and no file. It is a frozen object made of a family's parameters and a task;
whoever runs it (``estimators``, ``secure``, ``audit``) goes through the same five calls::

    asked    = Asked(...)                                          schema, loss, neighbours, seed: all public
    design   = method.design(asked)                                public: encoding, structure, plan
    with Door(design.plan, ledger) as door:                        charges the ledger
        released = method.measure(design, source, door, n_jobs)    private rows in, noisy numbers out
    model    = method.build_model(design, door.plan, released, n_jobs)   public: arrays, ready to predict
    model.outputs(model.encoding.encode(X))                        free

    model    = method.restore(schema, plan, model.arrays())        the same model, from a file

To add an estimator, write three things and read two files, this one and ``noisy_leaves``; ``random_trees`` is short:

1. a dataclass of its parameters (``Parameters``), in ``forests``,
2. a method, and a model if no present one fits, in ``forests``,
3. a shell in ``estimators`` that inherits the parameters, names the method and has the documentation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Count, Source
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema, TaskKind
from veilwood.errors import ParameterError, UseError
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step
from veilwood.safe_io import is_int_in
from veilwood.trees.counting import sum_over_trees
from veilwood.trees.forest import Forest

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Codes: TypeAlias = NDArray[np.uint16]
Floats: TypeAlias = NDArray[np.float64]
MAX_ROWS: Final = 10**15  # that can be declared


# -- what is asked for, and what follows from it: public -------------------------------------------------------------


@dataclass(eq=False, repr=False, kw_only=True)
class Parameters:
    """What a family can be told, declared once: its scikit-learn shells inherit these fields, and so their signature.

    Subclasses are ``@dataclass(eq=False, repr=False, kw_only=True)``: shells compare and print as scikit-learn wants.
    """

    @classmethod
    def _from_estimator(cls, estimator: Any) -> Self:
        """Return the present values of a shell's parameters."""
        return cls(**{each.name: getattr(estimator, each.name) for each in fields(cls) if each.init})

    def _check_options(self, **known: tuple[str, ...]) -> None:
        """Refuse parameters that are not one of the words known for them."""
        for name, words in known.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in words:
                raise ParameterError(name, value, "is not known", f"one of {', '.join(map(repr, words))}")


def check_n_rows(n_rows: object) -> None:
    """Refuse a declared number of rows that is none."""
    if n_rows is not None and not is_int_in(n_rows, 1, MAX_ROWS):
        raise ParameterError(
            "n_rows", n_rows, "must be a whole number of at least 1 and at most 10^15",
            "the number of rows, or a guess at it, if that is public; leave it out, and a first step tells it",
        )  # fmt: skip


@dataclass(frozen=True)
class FitRequest:
    """What a fit is asked for: public facts, checked, from which a design follows without any further chance."""

    estimator: str
    parameters: dict[str, Any]
    """Who asks, and with which parameters; both stand in the plan."""
    schema: Schema
    loss: Loss
    neighbours: Neighbours
    """What is public about the data, what may be lost, and about whom."""
    seed: int
    """The public seed of the structure."""
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """What an earlier plan has chosen already and need not be searched again."""
    known_forest: Forest | None = None
    """Trees that are known already to be those of the seed and need not be grown again."""

    def make_plan(self, steps: tuple[Step, ...], released: str, layout: Layout, leaf_error: float, **more: Any) -> Plan:
        """Put a plan together; ``leaf_error`` is its expected squared error of a leaf."""
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
    """Everything about a fit that is decided before the data; families add what they need."""

    encoding: Encoding
    plan: Plan


@dataclass(frozen=True)
class ForestDesign(Design):
    """A design whose trees are grown before the data is seen."""

    forest: Forest


# -- what is learned: public -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """What was learned: public arrays only, prepared once so that predictions are a lookup.

    ``public_attributes`` names the attributes that a fitted estimator shows, each with an underscore behind it.
    """

    encoding: Encoding

    public_attributes: ClassVar[tuple[str, ...]] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was derived on the way: copies are alike whether or not anything was predicted."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @abstractmethod
    def predict_outputs(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return class probabilities, shape (rows, classes), or predicted numbers, shape (rows,)."""

    def predict_both(self, codes: Codes, n_jobs: int | None = None) -> tuple[Floats, NDArray[np.int64]]:
        """Return class probabilities and the place of each row's predicted class, from one walk."""
        shares = self.predict_outputs(codes, n_jobs)
        return shares, np.asarray(shares.argmax(axis=1))

    def predict_index(self, codes: Codes, n_jobs: int | None = None) -> NDArray[np.int64]:
        """Return the place of each row's predicted class."""
        return self.predict_both(codes, n_jobs)[1]

    def class_frequencies(self) -> Floats:
        """Return how frequent each class is, as far as was released: the prediction where nothing is known."""
        raise UseError(f"{type(self).__name__} knows no classes.")

    @abstractmethod
    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that ``Method.restore_model`` needs, for a file."""


@dataclass(frozen=True, eq=False)
class ForestModel(Model):
    """A model that adds up what the leaves of its trees say; subclasses turn the sums into outputs."""

    forest: Forest
    leaf_values: Floats  # what each leaf says, one row a leaf

    public_attributes: ClassVar[tuple[str, ...]] = ("forest",)

    def sum_leaves(self, codes: Codes, n_jobs: int | None = None) -> Floats:
        """Return, for each row, the sum over trees of what its leaves say."""
        return sum_over_trees(self.forest, codes, self.leaf_values, n_jobs=n_jobs)


# -- the method ------------------------------------------------------------------------------------------------------

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, eq=False)
class Method(ABC, Generic[P]):
    """A way to learn privately, for one task. It holds parameters and nothing else: no schema, no data, no result."""

    parameters: P
    task: TaskKind

    multi_pass: ClassVar[bool] = True  # over the rows; then an iterator, which can be read once, is refused
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # that are known for a parameter

    @classmethod
    def from_parameters(cls, parameters: P, task: TaskKind) -> Method[P]:
        """Return the method for these parameters. A family may return one that chooses what they leave open."""
        return cls(parameters, task)

    @property
    def histogram_kind(self) -> Literal["counts", "moments"] | None:
        """What sums along three axes hold: servers check that rows can have it before they compute more than sums."""
        return None

    def check_parameters(self) -> None:
        """Refuse parameters that cannot be used, before anything else is done; words that are not known, first."""
        check_n_rows(getattr(self.parameters, "n_rows", None))
        has = vars(self.parameters)
        self.parameters._check_options(**{name: known for name, known in self.options.items() if name in has})

    @abstractmethod
    def make_design(self, request: FitRequest) -> Design:
        """Decide everything that can be decided before the data: encoding, structure, plan."""

    @abstractmethod
    def measure_rows(self, design: Any, source: Source, door: Door, n_jobs: int | None = None) -> Any:
        """Count the rows, and release the counts through the door; return what was released."""

    @abstractmethod
    def build_model(self, design: Any, plan: Plan, released: Any, n_jobs: int | None = None) -> Model:
        """Turn what was released into a model. ``plan`` is the door's: refined, if the method refines it."""

    @abstractmethod
    def restore_model(self, schema: Schema, plan: Plan, arrays: Arrays) -> Model:
        """Check the arrays of a file, and return the model that they are of; ``ModelFileError`` if they are of none."""

    def replan_request(self, request: FitRequest, plan: Plan) -> Plan:
        """Plan once more what was carried out as ``plan``, for an audit to compare."""
        return self.make_design(request).plan

    def utility_warning(self, plan: Plan, model: Model) -> str | None:
        """Return what a user should know about a new model, judged from public numbers alone."""
        return None


class OnePassMethod(Method[P]):
    """Base class of methods that learn one array of sums from the rows, in one pass.

    Such a forest can be trained batch by batch, and by owners who share sums and no rows.
    """

    multi_pass: ClassVar[bool] = False

    @abstractmethod
    def make_count(self, design: Any) -> Count:
        """Return the count that the pass makes. Disjoint trees draw a fresh secret key for it."""

    @abstractmethod
    def release_sums(self, design: Any, exact: NDArray[np.int64], door: Door) -> Any:
        """Release the sums through the door."""

    def measure_rows(self, design: Any, source: Source, door: Door, n_jobs: int | None = None) -> Any:
        """Compute the sums in one pass, and release them."""
        return self.release_sums(design, source.aggregate(self.make_count(design), n_jobs=n_jobs), door)


def method_of(
    kind: Callable[[Any, TaskKind], Method[Any]], parameters: type[Parameters], estimator: Any
) -> Method[Any]:
    """Return the method of a shell's present parameters, checked."""
    method = kind(parameters._from_estimator(estimator), estimator._task)
    method.check_parameters()
    return method
