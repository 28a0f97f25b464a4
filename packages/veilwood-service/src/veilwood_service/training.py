# SPDX-License-Identifier: Apache-2.0
"""Plans of the service: proposed by analysts, signed by a custodian, carried out as signed. Nothing runs here."""

from __future__ import annotations

import hashlib
import inspect
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from veilwood.data.schema import Schema
from veilwood.errors import NotFoundError, ParameterError, PlanError, UseError
from veilwood.estimators import MatrixForestPredictor
from veilwood.estimators.parameters import estimator_by_name, estimator_from_plan
from veilwood.evaluation.evaluate import evaluation_plan
from veilwood.forests.matrix.answering import AnsweringParameters
from veilwood.models.file import load
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import Plan
from veilwood.safe_io import read_json
from veilwood_service import store
from veilwood_service.accounts import TooManyError
from veilwood_service.settings import Settings
from veilwood_service.store import DatabaseRow, Store, current_timestamp, new_id

__all__ = [
    "Plans",
    "RunRequest",
    "file_digest",
    "make_estimator",
    "make_predictor",
    "model_path",
    "predictor_fingerprint",
]

RunKind = Literal["train", "answer", "evaluate"]
# Classes are weighed after the release, by whoever loads the model: a plan does not hold that.
_RESERVED_PARAMETERS: Final = frozenset({"schema", "ledger", "n_jobs", "invalid", "epsilon", "delta", "class_weight"})
_MAX_CONCURRENT_PLANS: Final = 4  # plans: some take minutes to make, and each holds a thread that others need


@dataclass(frozen=True)
class RunRequest:
    """What somebody wants to run: the estimator by name, its budget and its parameters."""

    estimator: str = "private-forest"
    epsilon: float | str = 1.0
    delta: float | str = 0.0
    parameters: dict[str, Any] | None = None


def model_path(settings: Settings, model: str) -> Path:
    """The file of a trained model."""
    return settings.models_folder / f"{model}.veilwood"


def file_digest(path: Path) -> str:
    """The hash of a file, noted with a model: the file that is served is the one that was made."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Plans:
    """The plans in a store."""

    def __init__(self, settings: Settings, database: Store) -> None:
        self._settings, self._database = settings, database
        self._planning_slots = threading.BoundedSemaphore(_MAX_CONCURRENT_PLANS)

    def get_reviewed_dataset(self, name: str) -> tuple[DatabaseRow, Schema]:
        """Return a data set that has a table and a schema that somebody has reviewed."""
        found = self._database.find(store.datasets, name=name)
        if found is None:
            raise NotFoundError("data set", name)
        if found["schema"] is None or found["source"] is None:
            raise UseError(f"the data set {name} has no table or no schema yet. Hint: a custodian adds them.")
        return found, Schema.from_dict(json.loads(found["schema"]))

    def propose_training(self, account: str, dataset: str, request: RunRequest) -> DatabaseRow:
        """Plan a training: no row is read, and nothing is spent."""
        _, schema = self.get_reviewed_dataset(dataset)
        kind = estimator_by_name(request.estimator, schema.task)
        given = _validate_parameters(kind, request)
        if kind is MatrixForestPredictor:
            return self._propose_predictor(account, dataset, schema, request)
        if not self._planning_slots.acquire(blocking=False):
            raise TooManyError("too many plans are made at this moment. Hint: try again.")
        try:
            plan = kind(schema, epsilon=request.epsilon, delta=request.delta, invalid="drop", **given).plan()
        finally:
            self._planning_slots.release()
        return self._insert_plan(account, dataset, "train", kind.__name__, request, plan.to_json(), plan.fingerprint())

    def _propose_predictor(self, account: str, dataset: str, schema: Schema, request: RunRequest) -> DatabaseRow:
        """Propose a predictor: it costs nothing by itself, and each batch that it answers is charged."""
        make_predictor(schema, request)
        fingerprint = predictor_fingerprint(dataset, schema, request)
        return self._insert_plan(account, dataset, "answer", MatrixForestPredictor.__name__, request, None, fingerprint)

    def propose_evaluation(self, account: str, model: str, request: RunRequest) -> DatabaseRow:
        """Plan an evaluation of a trained model on the rows of its data set."""
        found = self._database.find(store.models, id=model)
        if found is None or found["kind"] != "trained":
            raise NotFoundError("trained model", model, hint="choose one from the list of models")
        if request.parameters:
            raise ParameterError("parameters", request.parameters, "are not for an evaluation", "leave them out")
        self.get_reviewed_dataset(found["dataset"])
        forest: Any = load(model_path(self._settings, model))
        loss = requested_loss(request.epsilon, request.delta)
        plan = evaluation_plan(forest, _require_bounded(loss), forest.plan_.neighbours, "drop")
        fingerprint = plan.fingerprint()
        return self._insert_plan(
            account, found["dataset"], "evaluate", "evaluate", request, plan.to_json(), fingerprint, model=model
        )

    def sign_plan(self, account: str, number: str, fingerprint: str) -> DatabaseRow:
        """Sign a plan by its hash: whoever signs says the hash that they have read."""
        plan = self.get_plan(number)
        if plan["fingerprint"] != fingerprint:
            raise PlanError("the hash is not that of the plan. Hint: read the plan again.")
        self._database.update(
            store.plans, {"id": number, "signed_by": None}, signed_by=account, signed=current_timestamp()
        )
        return self.get_plan(number)

    def get_plan(self, number: str) -> DatabaseRow:
        """Return a plan."""
        found = self._database.find(store.plans, id=number)
        if found is None:
            raise NotFoundError("plan", number)
        return found

    def _insert_plan(
        self,
        account: str,
        dataset: str,
        kind: RunKind,
        estimator: str,
        request: RunRequest,
        body: str | None,
        fingerprint: str,
        model: str | None = None,
    ) -> DatabaseRow:
        number = new_id()
        words = {"epsilon": str(request.epsilon), "delta": str(request.delta), "parameters": request.parameters or {}}
        self._database.add(
            store.plans,
            id=number,
            dataset=dataset,
            account=account,
            kind=kind,
            estimator=estimator,
            asked=json.dumps(words),
            body=body,
            fingerprint=fingerprint,
            model=model,
            created=current_timestamp(),
        )
        return self.get_plan(number)


def make_predictor(schema: Schema, request: RunRequest) -> MatrixForestPredictor:
    """Make the predictor that was asked for."""
    given = _validate_parameters(MatrixForestPredictor, request)
    price: dict[str, Any] = {"epsilon": request.epsilon, "delta": request.delta}  # numbers, or texts that are exact
    predictor = MatrixForestPredictor(schema, **{**price, "invalid": "drop", "random_state": 0, **given})
    predictor._requested_privacy()
    AnsweringParameters._from_estimator(predictor)._check_parameters()
    return predictor


def predictor_fingerprint(dataset: str, schema: Schema, request: RunRequest) -> str:
    """The hash of a predictor's plan: data set, schema, the most that a batch may cost, parameters."""
    facts = [dataset, schema.fingerprint(), str(request.epsilon), str(request.delta), request.parameters or {}]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def make_estimator(schema: Schema, plan: DatabaseRow, ledger: Any) -> tuple[Any, Plan]:
    """Return the estimator that carries out a plan, and the plan."""
    read = Plan.from_dict(read_json(plan["body"]))
    return estimator_from_plan(schema, read, ledger), read


def _validate_parameters(estimator_class: type[Any], request: RunRequest) -> dict[str, Any]:
    """Refuse parameters that the estimator does not have, or that are not the analyst's to choose."""
    given: dict[str, Any] = read_json(json.dumps(request.parameters or {}))  # no NaN, which no answer could show again
    known = [name for name in inspect.signature(estimator_class).parameters if name not in _RESERVED_PARAMETERS]
    for name in given:
        if name not in known:
            raise ParameterError(
                "parameters", name, f"is not a parameter of {estimator_class.__name__}", ", ".join(known)
            )
    _require_bounded(requested_loss(request.epsilon, request.delta))
    return given


def _require_bounded(loss: Loss) -> Loss:
    if not loss.is_bounded:
        raise UseError("the service releases nothing without a guarantee. Hint: give a finite epsilon.")
    return loss
