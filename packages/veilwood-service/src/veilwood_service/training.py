# SPDX-License-Identifier: Apache-2.0
"""Plans of training, evaluation and private predictors: proposed by analysts, signed by custodians.

A signature has an amount: a number of runs or, for predictors, a total loss and the accounts that may query. Signed
plans are executed in ``jobs`` and ``private_queries``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Final, Literal

from veilwood import estimators
from veilwood.data.schema import Schema
from veilwood.errors import NotFoundError, ParameterError, PlanError, UseError
from veilwood.estimators import MatrixForestPredictor
from veilwood.estimators.parameters import estimator_by_name, estimator_from_plan, requestable_parameters
from veilwood.evaluation.evaluate import evaluation_plan
from veilwood.forests.matrix.answering import AnsweringParameters
from veilwood.models.file import load
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import Plan
from veilwood.safe_io import read_json
from veilwood_service import store
from veilwood_service.budgets import Ledgers, get_dataset
from veilwood_service.store import DatabaseRow, Store, current_timestamp, new_id

RunKind = Literal["train", "answer", "evaluate"]
_MAX_RUNS: Final = 1000
EVERYBODY: Final = "*"  # stands for all accounts in a list of askers


@dataclass(frozen=True)
class RunRequest:
    """Requested run: the estimator by name, its budget and its parameters."""

    estimator: str = "private-forest"
    epsilon: float | str = 1.0
    delta: float | str = 0.0
    parameters: dict[str, Any] | None = None
    name: str = ""
    note: str = ""


def load_model(database: Store, number: str) -> Any:
    """Load a trained model from the database; raise NotFoundError if no model has this id."""
    stored = database.find(store.model_files, model=number)
    if stored is None:
        raise NotFoundError("trained model", number, hint="choose one from the list of models")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.veilwood")
        with open(path, "wb") as file:
            file.write(stored["content"])
        return load(path)


class Plans:
    """Plans in a database."""

    def __init__(self, database: Store, ledgers: Ledgers) -> None:
        self._database, self._ledgers = database, ledgers

    def get_reviewed_dataset(self, name: str) -> tuple[DatabaseRow, Schema]:
        """Return a data set and its reviewed schema.

        Raises
        ------
        NotFoundError
            If the data set does not exist.
        UseError
            If it has no table or no schema yet.
        """
        dataset = get_dataset(self._database, name)
        if dataset["schema"] is None or dataset["source"] is None:
            raise UseError(f"the data set {name} has no table or no schema yet. Hint: ask a custodian to add them.")
        return dataset, Schema.from_dict(json.loads(dataset["schema"]))

    def propose_training(self, account: str, dataset: str, request: RunRequest) -> DatabaseRow:
        """Store and return the plan of a training, or of a private predictor. Reads no row and spends nothing."""
        _, schema = self.get_reviewed_dataset(dataset)
        estimator_class = estimator_by_name(request.estimator, schema.task)
        params = _validate_parameters(estimator_class, request)
        name = estimator_class.__name__
        if estimator_class is MatrixForestPredictor:  # fitting spends nothing: each batch that it answers is charged
            make_predictor(schema, request)
            fingerprint = predictor_fingerprint(dataset, schema, request)
            return self._insert_plan(account, dataset, "answer", name, request, None, fingerprint)
        epsilon, delta = request.epsilon, request.delta
        plan = estimator_class(schema, epsilon=epsilon, delta=delta, invalid="drop", **params).plan()
        return self._insert_plan(account, dataset, "train", name, request, plan.to_json(), plan.fingerprint())

    def propose_evaluation(self, account: str, model: str, request: RunRequest) -> DatabaseRow:
        """Store and return the plan of an evaluation of a trained model on the rows of its data set."""
        forest = load_model(self._database, model)
        trained = self._database.find(store.models, id=model)
        assert trained is not None
        self.get_reviewed_dataset(trained["dataset"])
        loss = _require_bounded(requested_loss(request.epsilon, request.delta))
        plan = evaluation_plan(forest, loss, forest.plan_.neighbours, "drop")
        fingerprint = plan.fingerprint()
        return self._insert_plan(
            account, trained["dataset"], "evaluate", "evaluate", request, plan.to_json(), fingerprint, model=model
        )

    def sign_plan(self, account: str, number: str, fingerprint: str, grant: Grant) -> DatabaseRow:
        """Sign a plan, for the amount of a grant. ``fingerprint`` is the hash that the signer has read.

        Raises
        ------
        PlanError
            If the hash differs from that of the plan.
        UseError
            If the plan was signed before.
        """
        plan = self.get_plan(number)
        if plan["fingerprint"] != fingerprint:
            raise PlanError("the hash does not match the plan. Hint: read the plan again.")
        values = grant.to_record(plan)
        with self._database.transaction():
            signed = {"signed_by": account, "signed": current_timestamp(), **values}
            if not self._database.update(store.plans, {"id": number, "signed_by": None}, **signed):
                known = self.get_plan(number)
                if {"signed_by": account, **values}.items() <= known.items():
                    return known  # a retry
                raise UseError("the plan is signed already. Hint: make a new plan for further runs.")
            self._database.record_event(account, "plan.sign", number, dataset=plan["dataset"], **values)
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
        with self._database.transaction():
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
                name=request.name or f"{dataset} {'quality' if kind == 'evaluate' else estimator}",
                note=request.note,
            )
            self._database.record_event(account, "plan.create", number, dataset=dataset, epsilon=str(request.epsilon))
        return self.get_plan(number)


@dataclass(frozen=True)
class Grant:
    """Amount of a signature: a number of runs or, for predictors, a total loss and the accounts that may query."""

    runs: int = 1
    total_epsilon: float | str | None = None
    askers: list[str] | None = None

    def to_record(self, plan: DatabaseRow) -> dict[str, Any]:
        """Return the fields of a signed plan.

        Raises
        ------
        ParameterError
            If the amount is not valid for this kind of plan.
        """
        if plan["kind"] != "answer":
            if isinstance(self.runs, bool) or not 1 <= self.runs <= _MAX_RUNS:
                raise ParameterError("runs", self.runs, "is not a number of runs", f"choose 1 to {_MAX_RUNS}")
            return {"runs": self.runs}
        asked = json.loads(plan["asked"])
        batch = requested_loss(asked["epsilon"], asked["delta"])
        total = requested_loss(asked["epsilon"] if self.total_epsilon is None else self.total_epsilon, 0).epsilon
        if total is None or batch.epsilon is None or total < batch.epsilon:
            hint = "pass at least the epsilon of one batch"
            raise ParameterError("total_epsilon", self.total_epsilon, "is less than the epsilon of one batch", hint)
        n_batches = max(int(total / batch.epsilon), 1)
        total_delta = min(batch.delta * n_batches, Fraction(1, 100))  # the largest delta that a budget may have
        named = {plan["account"]} if self.askers is None else set(self.askers)
        askers = None if EVERYBODY in named else json.dumps(sorted(named))
        return {"total_epsilon": str(total), "total_delta": str(total_delta), "askers": askers}


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
    allowed = requestable_parameters(estimator_class)
    known = [name for name in inspect.signature(estimator_class).parameters if name in allowed]
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


_PARAMETER_TEXT: Final = re.compile(r"^(\w[\w, ]*?) : (.+)\n((?:    .*\n)+)", re.MULTILINE)


@cache
def describe_estimators() -> list[dict[str, Any]]:
    """Return every estimator with the parameters that an analyst may choose, as the docstrings describe them."""
    kinds: list[type[Any]] = [getattr(estimators, name) for name in estimators.__all__]
    own = {kind: _described_parameters(kind) for kind in kinds}
    shared = {
        name: text for kind in kinds for name, text in own[kind].items()
    }  # one class documents the shared parameters
    return [
        {
            "name": kind.__name__,
            "task": kind._task,
            "summary": inspect.getdoc(kind).partition("\n\n")[0].replace("\n", " "),  # type: ignore[union-attr]
            "parameters": [
                {"name": name, "default": known.default, **({**shared, **own[kind]}[name])}
                for name, known in inspect.signature(kind).parameters.items()
                if name in requestable_parameters(kind)
            ],
        }
        for kind in kinds
    ]


def _described_parameters(kind: type[Any]) -> dict[str, dict[str, Any]]:
    """Return the options and the first sentence of each parameter that the docstring of a class itself describes."""
    section = (inspect.getdoc(kind) or "").partition("----------\n")[2].partition("\nAttributes\n")[0]
    described = dict[str, dict[str, Any]]()
    for names, values, text in _PARAMETER_TEXT.findall(f"{section}\n"):
        options = re.findall(r'"([\w-]+)"', values) if values.startswith("{") else []
        sentence = " ".join(text.split()).replace("``", "").partition(". ")[0].rstrip(".")
        described |= {name: {"options": options, "help": f"{sentence}."} for name in names.split(", ")}
    return described
