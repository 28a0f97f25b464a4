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
from veilwood.errors import ParameterError, PlanError, UseError
from veilwood.estimators import MatrixForestPredictor
from veilwood.estimators.parameters import from_plan, named
from veilwood.evaluation.evaluate import evaluation_plan
from veilwood.forests.matrix.answering import AnsweringParameters
from veilwood.models.file import load
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import Plan
from veilwood.safe_io import read_json
from veilwood_service import store
from veilwood_service.accounts import TooManyError
from veilwood_service.settings import Settings
from veilwood_service.store import Record, Store, new_id, now

__all__ = ["AskedRun", "Plans", "answering_fingerprint", "digest_of", "estimator_of", "model_path", "predictor_of"]

RunKind = Literal["train", "answer", "evaluate"]
# Classes are weighed after the release, by whoever loads the model: a plan does not hold that.
_DECIDED_HERE: Final = frozenset({"schema", "ledger", "n_jobs", "invalid", "epsilon", "delta", "class_weight"})
_MOST_AT_ONCE: Final = 4  # plans: some take minutes to make, and each holds a thread that others need


@dataclass(frozen=True)
class AskedRun:
    """What somebody wants to run: the estimator by name, its budget and its parameters."""

    estimator: str = "private-forest"
    epsilon: float | str = 1.0
    delta: float | str = 0.0
    parameters: dict[str, Any] | None = None


def model_path(settings: Settings, model: str) -> Path:
    """The file of a trained model."""
    return settings.models / f"{model}.veilwood"


def digest_of(path: Path) -> str:
    """The hash of a file, noted with a model: the file that is served is the one that was made."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Plans:
    """The plans in a store."""

    def __init__(self, settings: Settings, records: Store) -> None:
        self._settings, self._records = settings, records
        self._free = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def dataset(self, name: str) -> tuple[Record, Schema]:
        """Return a data set that has a table and a schema that somebody has reviewed."""
        found = self._records.find(store.datasets, name=name)
        if found is None:
            raise ParameterError("dataset", name, "is not a data set", "see the list of data sets")
        if found["schema"] is None or found["source"] is None:
            raise UseError(f"the data set {name} has no table or no schema yet. Hint: a custodian adds them.")
        return found, Schema.from_dict(json.loads(found["schema"]))

    def propose_training(self, account: str, dataset: str, asked: AskedRun) -> Record:
        """Plan a training: no row is read, and nothing is spent."""
        _, schema = self.dataset(dataset)
        kind = named(asked.estimator, schema.task)
        given = _checked_parameters(kind, asked)
        if kind is MatrixForestPredictor:
            return self._propose_answering(account, dataset, schema, asked)
        if not self._free.acquire(blocking=False):
            raise TooManyError("too many plans are made at this moment. Hint: try again.")
        try:
            plan = kind(schema, epsilon=asked.epsilon, delta=asked.delta, invalid="drop", **given).plan()
        finally:
            self._free.release()
        return self._add(account, dataset, "train", kind.__name__, asked, plan.to_json(), plan.fingerprint())

    def _propose_answering(self, account: str, dataset: str, schema: Schema, asked: AskedRun) -> Record:
        """Propose a predictor: it costs nothing by itself, and each batch that it answers is charged."""
        predictor_of(schema, asked)
        fingerprint = answering_fingerprint(dataset, schema, asked)
        return self._add(account, dataset, "answer", MatrixForestPredictor.__name__, asked, None, fingerprint)

    def propose_evaluation(self, account: str, model: str, asked: AskedRun) -> Record:
        """Plan an evaluation of a trained model on the rows of its data set."""
        found = self._records.find(store.models, id=model)
        if found is None or found["kind"] != "trained":
            raise ParameterError("model", model, "is not a trained model", "see the list of models")
        if asked.parameters:
            raise ParameterError("parameters", asked.parameters, "are not for an evaluation", "leave them out")
        self.dataset(found["dataset"])
        forest: Any = load(model_path(self._settings, model))
        loss = requested_loss(asked.epsilon, asked.delta)
        plan = evaluation_plan(forest, _bounded(loss), forest.plan_.neighbours, "drop")
        fingerprint = plan.fingerprint()
        return self._add(
            account, found["dataset"], "evaluate", "evaluate", asked, plan.to_json(), fingerprint, model=model
        )

    def sign(self, account: str, number: str, fingerprint: str) -> Record:
        """Sign a plan by its hash: whoever signs says the hash that they have read."""
        plan = self.get(number)
        if plan["fingerprint"] != fingerprint:
            raise PlanError("the hash is not that of the plan. Hint: read the plan again.")
        self._records.change(store.plans, {"id": number, "signed_by": None}, signed_by=account, signed=now())
        return self.get(number)

    def get(self, number: str) -> Record:
        """Return a plan."""
        found = self._records.find(store.plans, id=number)
        if found is None:
            raise ParameterError("plan", number, "is not a plan", "see the list of plans")
        return found

    def _add(
        self,
        account: str,
        dataset: str,
        kind: RunKind,
        estimator: str,
        asked: AskedRun,
        body: str | None,
        fingerprint: str,
        model: str | None = None,
    ) -> Record:
        number = new_id()
        words = {"epsilon": str(asked.epsilon), "delta": str(asked.delta), "parameters": asked.parameters or {}}
        self._records.add(
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
            created=now(),
        )
        return self.get(number)


def predictor_of(schema: Schema, asked: AskedRun) -> MatrixForestPredictor:
    """Make the predictor that was asked for."""
    given = _checked_parameters(MatrixForestPredictor, asked)
    price: dict[str, Any] = {"epsilon": asked.epsilon, "delta": asked.delta}  # numbers, or texts that are exact
    predictor = MatrixForestPredictor(schema, **{**price, "invalid": "drop", "random_state": 0, **given})
    predictor.promise()
    AnsweringParameters.of(predictor).check()
    return predictor


def answering_fingerprint(dataset: str, schema: Schema, asked: AskedRun) -> str:
    """The hash of a predictor's plan: data set, schema, the most that a batch may cost, parameters."""
    facts = [dataset, schema.fingerprint(), str(asked.epsilon), str(asked.delta), asked.parameters or {}]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def estimator_of(schema: Schema, plan: Record, ledger: Any) -> tuple[Any, Plan]:
    """Return the estimator that carries out a plan, and the plan."""
    read = Plan.from_dict(read_json(plan["body"]))
    return from_plan(schema, read, ledger), read


def _checked_parameters(kind: type[Any], asked: AskedRun) -> dict[str, Any]:
    """Refuse parameters that the estimator does not have, or that are not the analyst's to choose."""
    given: dict[str, Any] = read_json(json.dumps(asked.parameters or {}))  # no NaN, which no answer could show again
    known = [name for name in inspect.signature(kind).parameters if name not in _DECIDED_HERE]
    for name in given:
        if name not in known:
            raise ParameterError("parameters", name, f"is not a parameter of {kind.__name__}", ", ".join(known))
    _bounded(requested_loss(asked.epsilon, asked.delta))
    return given


def _bounded(loss: Loss) -> Loss:
    if not loss.is_bounded:
        raise UseError("the service releases nothing without a guarantee. Hint: give a finite epsilon.")
    return loss
