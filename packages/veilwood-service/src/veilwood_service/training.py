# SPDX-License-Identifier: Apache-2.0
"""Plans of training, evaluation and private predictors: proposed by analysts, signed by custodians.

Signed plans are executed in ``jobs`` and ``private_queries``.
"""

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

RunKind = Literal["train", "answer", "evaluate"]
# The service sets these itself. class_weight applies after the release, to a loaded model, and is part of no plan.
_RESERVED_PARAMETERS: Final = frozenset({"schema", "ledger", "n_jobs", "invalid", "epsilon", "delta", "class_weight"})
_MAX_CONCURRENT_PLANS: Final = 4  # some take minutes, and each occupies a thread that other requests need


@dataclass(frozen=True)
class RunRequest:
    """Requested run: the estimator by name, its budget and its parameters."""

    estimator: str = "private-forest"
    epsilon: float | str = 1.0
    delta: float | str = 0.0
    parameters: dict[str, Any] | None = None


def model_path(settings: Settings, model: str) -> Path:
    """Return the path of the file of a trained model."""
    return settings.models_folder / f"{model}.veilwood"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file. It is stored with each model, so that a changed file is not served."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Plans:
    """Plans in a database."""

    def __init__(self, settings: Settings, database: Store) -> None:
        self._settings, self._database = settings, database
        self._planning_slots = threading.BoundedSemaphore(_MAX_CONCURRENT_PLANS)

    def get_reviewed_dataset(self, name: str) -> tuple[DatabaseRow, Schema]:
        """Return a data set and its reviewed schema.

        Raises
        ------
        NotFoundError
            If the data set does not exist.
        UseError
            If it has no table or no schema yet.
        """
        dataset = self._database.find(store.datasets, name=name)
        if dataset is None:
            raise NotFoundError("data set", name)
        if dataset["schema"] is None or dataset["source"] is None:
            raise UseError(f"the data set {name} has no table or no schema yet. Hint: ask a custodian to add them.")
        return dataset, Schema.from_dict(json.loads(dataset["schema"]))

    def propose_training(self, account: str, dataset: str, request: RunRequest) -> DatabaseRow:
        """Store and return the plan of a training, or of a private predictor. Reads no row and spends nothing."""
        _, schema = self.get_reviewed_dataset(dataset)
        estimator_class = estimator_by_name(request.estimator, schema.task)
        params = _validate_parameters(estimator_class, request)
        if estimator_class is MatrixForestPredictor:
            return self._propose_predictor(account, dataset, schema, request)
        if not self._planning_slots.acquire(blocking=False):
            raise TooManyError("too many plans at this moment. Hint: try again.")
        try:
            epsilon, delta = request.epsilon, request.delta
            plan = estimator_class(schema, epsilon=epsilon, delta=delta, invalid="drop", **params).plan()
        finally:
            self._planning_slots.release()
        name = estimator_class.__name__
        return self._insert_plan(account, dataset, "train", name, request, plan.to_json(), plan.fingerprint())

    def _propose_predictor(self, account: str, dataset: str, schema: Schema, request: RunRequest) -> DatabaseRow:
        """Store the plan of a private predictor. The predictor is free; each batch that it answers is charged."""
        make_predictor(schema, request)
        fingerprint = predictor_fingerprint(dataset, schema, request)
        return self._insert_plan(account, dataset, "answer", MatrixForestPredictor.__name__, request, None, fingerprint)

    def propose_evaluation(self, account: str, model: str, request: RunRequest) -> DatabaseRow:
        """Store and return the plan of an evaluation of a trained model on the rows of its data set."""
        trained = self._database.find(store.models, id=model)
        if trained is None or trained["kind"] != "trained":
            raise NotFoundError("trained model", model, hint="choose one from the list of models")
        if request.parameters:
            raise ParameterError("parameters", request.parameters, "do not apply to an evaluation", "omit them")
        self.get_reviewed_dataset(trained["dataset"])
        forest: Any = load(model_path(self._settings, model))
        loss = requested_loss(request.epsilon, request.delta)
        plan = evaluation_plan(forest, _require_bounded(loss), forest.plan_.neighbours, "drop")
        fingerprint = plan.fingerprint()
        return self._insert_plan(
            account, trained["dataset"], "evaluate", "evaluate", request, plan.to_json(), fingerprint, model=model
        )

    def sign_plan(self, account: str, number: str, fingerprint: str) -> DatabaseRow:
        """Sign a plan. ``fingerprint`` is the hash that the signer has read; raise PlanError if it differs."""
        plan = self.get_plan(number)
        if plan["fingerprint"] != fingerprint:
            raise PlanError("the hash does not match the plan. Hint: read the plan again.")
        self._database.update(
            store.plans, {"id": number, "signed_by": None}, signed_by=account, signed=current_timestamp()
        )
        return self.get_plan(number)

    def get_plan(self, number: str) -> DatabaseRow:
        """Return a plan; raise NotFoundError if it does not exist."""
        plan = self._database.find(store.plans, id=number)
        if plan is None:
            raise NotFoundError("plan", number)
        return plan

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
        payload = {"epsilon": str(request.epsilon), "delta": str(request.delta), "parameters": request.parameters or {}}
        self._database.add(
            store.plans,
            id=number,
            dataset=dataset,
            account=account,
            kind=kind,
            estimator=estimator,
            asked=json.dumps(payload),
            body=body,
            fingerprint=fingerprint,
            model=model,
            created=current_timestamp(),
        )
        return self.get_plan(number)


def make_predictor(schema: Schema, request: RunRequest) -> MatrixForestPredictor:
    """Return an unfitted predictor with the parameters of a request, validated."""
    params = _validate_parameters(MatrixForestPredictor, request)
    budget: dict[str, Any] = {"epsilon": request.epsilon, "delta": request.delta}  # floats, or exact decimal strings
    predictor = MatrixForestPredictor(schema, **{**budget, "invalid": "drop", "random_state": 0, **params})
    predictor._requested_privacy()
    AnsweringParameters._from_estimator(predictor)._check_parameters()
    return predictor


def predictor_fingerprint(dataset: str, schema: Schema, request: RunRequest) -> str:
    """Return the hash of a predictor's plan: data set, schema, maximum loss per batch and parameters."""
    facts = [dataset, schema.fingerprint(), str(request.epsilon), str(request.delta), request.parameters or {}]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def make_estimator(schema: Schema, plan: DatabaseRow, ledger: Any) -> tuple[Any, Plan]:
    """Return the estimator that executes a stored plan, and the parsed plan."""
    parsed = Plan.from_dict(read_json(plan["body"]))
    return estimator_from_plan(schema, parsed, ledger), parsed


def _validate_parameters(estimator_class: type[Any], request: RunRequest) -> dict[str, Any]:
    """Return the parameters of a request.

    Raises
    ------
    ParameterError
        If the estimator lacks a parameter, or an analyst may not choose it.
    """
    params: dict[str, Any] = read_json(json.dumps(request.parameters or {}))  # rejects NaN, which JSON cannot return
    known = [name for name in inspect.signature(estimator_class).parameters if name not in _RESERVED_PARAMETERS]
    for name in params:
        if name not in known:
            hint = f"choose from {', '.join(known)}"
            raise ParameterError("parameters", name, f"is not a parameter of {estimator_class.__name__}", hint)
    _require_bounded(requested_loss(request.epsilon, request.delta))
    return params


def _require_bounded(loss: Loss) -> Loss:
    if not loss.is_bounded:
        raise UseError("the service releases nothing without a guarantee. Hint: pass a finite epsilon.")
    return loss
