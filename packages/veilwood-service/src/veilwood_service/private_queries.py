# SPDX-License-Identifier: Apache-2.0
"""Private answers to batches of queries: charged before anything is computed, published on a schedule.

A predictor holds exact counts in memory only, and is fitted again from its table after a restart. A repeated batch is
answered from the database without a further charge, even after a crash. Response times could reveal noise and rows, so
an answer is stored and sent at a time that is fixed before it is computed (proofs/service.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd

from veilwood.data.schema import Schema
from veilwood.errors import NotFoundError, ParameterError, UseError, VeilwoodError
from veilwood.estimators import MatrixForestPredictor
from veilwood.privacy.loss import requested_loss
from veilwood_service import store
from veilwood_service.accounts import DeniedError
from veilwood_service.budgets import Ledgers, RunLedger, get_dataset
from veilwood_service.predictions import rows_to_frame
from veilwood_service.settings import Settings
from veilwood_service.store import DatabaseRow, Store, new_id
from veilwood_service.training import RunRequest, make_predictor, predictor_fingerprint

_MAX_PREDICTORS: Final = 16  # maximum number in memory; each holds the counts of one table


@dataclass
class _FittedPredictor:
    """Cached predictor with its counts, a lock for one request at a time, and the version of its table and schema."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    predictor: MatrixForestPredictor | None = None
    table_version: object = None


class PrivateQueries:
    """Private predictors of the service. Each is fitted on first use."""

    def __init__(self, settings: Settings, database: Store, ledgers: Ledgers) -> None:
        self._settings, self._database, self._ledgers = settings, database, ledgers
        self._predictors: dict[str, _FittedPredictor] = {}
        self._lock = threading.Lock()

    def quote_batch(self, account: str, model: str, rows: list[dict[str, Any]], epsilon: float | None) -> DatabaseRow:
        """Return the privacy loss and the expected error of a batch, without charging it."""
        record, plan = self._get_records(account, model)
        with self._wait_turn(record, plan) as predictor:
            query_rows = rows_to_frame(rows, predictor.schema_)
            digest = _batch_digest(predictor, query_rows)
            planned = predictor.plan_answer(query_rows, _batch_epsilon(predictor, epsilon))  # type: ignore[arg-type]
        stored = self._database.find(store.answers, model=model, digest=digest)
        remaining = self._ledgers.remaining_for(record["dataset"], account, plan)
        return {
            "epsilon": str(planned.loss.epsilon),
            "delta": str(planned.loss.delta),
            "expected_squared_error": planned.expected_leaf_mse,
            "remaining": None if remaining is None else str(remaining),
            "answered_before": stored is not None and stored["labels"] is not None,
        }

    def answer_batch(self, account: str, model: str, rows: list[dict[str, Any]], epsilon: float | None) -> DatabaseRow:
        """Return the answers to a batch, with their certificate. A batch is charged first; repeating it spends nothing.

        Raises
        ------
        UseError
            If the batch failed after its charge. It stays charged and cannot be answered again, because the failure
            may depend on the noise.
        BudgetExceededError
            If the signature, the budget or an allowance has no room for the batch.
        """
        record, plan = self._get_records(account, model)
        with self._wait_turn(record, plan) as predictor:
            query_rows = rows_to_frame(rows, predictor.schema_)
            digest = _batch_digest(predictor, query_rows)
            stored = self._database.find(store.answers, model=model, digest=digest)
            if stored is None:
                facts = {"account": account, "epsilon": _batch_epsilon(predictor, epsilon)}
                self._database.add(store.answers, id=new_id(), model=model, digest=digest, **facts)
                stored = self._database.find(store.answers, model=model, digest=digest)
            assert stored is not None
            if stored["labels"] is None:
                stored = self._charge_and_answer(predictor, stored, query_rows, plan)
        if json.loads(stored["labels"]) is None:
            raise UseError(
                "this batch failed after it was charged, and cannot be sent again. Hint: send a different batch."
            )
        return {
            "labels": json.loads(stored["labels"]),
            "certificate": json.loads(stored["certificate"]),
            "answered": stored["created"],
        }

    def _charge_and_answer(
        self, predictor: MatrixForestPredictor, stored_answer: DatabaseRow, query_rows: pd.DataFrame, plan: DatabaseRow
    ) -> DatabaseRow:
        """Charge and answer a batch. A batch that was charged but not published continues under its reservation.

        The answer is computed, delayed, and published in one transaction with the commit of its charge.
        """
        number, account, dataset = stored_answer["id"], stored_answer["account"], plan["dataset"]
        limits = self._ledgers.limits_for(dataset, account, plan)
        ledger = RunLedger(self._ledgers.open(dataset), number, account, plan, limits)
        predictor.ledger_ = ledger
        try:  # a refusal is public, and need not wait
            ledger.check_affordable(requested_loss(stored_answer["epsilon"], predictor.delta))
        except VeilwoodError:
            self._database.remove(store.answers, id=number, labels=None)
            raise
        labels, certificate = json.dumps(None), json.dumps(None)
        error: Exception | None = None
        with _hold_back(self._settings.limits.answer_milliseconds / 1000):
            try:
                answered = predictor.answer(query_rows, epsilon=stored_answer["epsilon"]).tolist()
                labels, certificate = json.dumps(answered), ledger.as_issued(predictor.privacy_)
            except Exception as caught:
                error = caught
            finally:
                predictor.forget_answers()
        if ledger.reservation is None:  # rejected before any charge: it may be sent with another epsilon
            if not ledger.has_spent():
                self._database.remove(store.answers, id=number, labels=None)
            assert error is not None
            raise error
        with self._database.transaction():  # a failure after the charge may depend on the noise: no second draw
            where = {"id": number, "labels": None}  # only the outcome that is published first is ever sent
            if self._database.update(store.answers, where, labels=labels, certificate=certificate):
                ledger.publish()
                self._database.record_event(account, "model.answer", stored_answer["model"], rows=len(query_rows))
        if error is not None:
            raise error
        stored = self._database.find(store.answers, id=number)
        if stored is None:
            raise UseError("the data set of this model was frozen or retired meanwhile. Hint: ask a custodian.")
        return stored

    def _get_records(self, account: str, model: str) -> tuple[DatabaseRow, DatabaseRow]:
        """Return a predictor's record and plan. Raise DeniedError if the account may not query the predictor."""
        record = self._database.find(store.models, id=model)
        if record is None or record["kind"] != "answering":
            raise NotFoundError("private predictor", model, hint="choose one from the list of models")
        plan = self._database.find(store.plans, id=record["plan"])
        assert plan is not None
        if plan["askers"] is not None and account not in json.loads(plan["askers"]):
            raise DeniedError(
                "the signature of this predictor does not name your account. Hint: ask a custodian to sign a plan for "
                "you.",
                is_authenticated=True,
            )
        return record, plan

    @contextmanager
    def _wait_turn(self, model: DatabaseRow, plan: DatabaseRow) -> Iterator[MatrixForestPredictor]:
        """Lock a predictor for this request, and fit it if it is not in memory."""
        dataset = get_dataset(self._database, model["dataset"])
        if dataset["source"] is None:
            raise UseError("the rows of this model were deleted. Hint: ask a custodian to upload the table.")
        version = (dataset["schema"], *_table_version(dataset["source"]))
        with self._lock:
            if len(self._predictors) >= _MAX_PREDICTORS and model["id"] not in self._predictors:
                self._predictors.pop(next(iter(self._predictors)))
            fitted = self._predictors.setdefault(model["id"], _FittedPredictor())
        with fitted.lock:  # one lock per predictor: fitting one does not block the others
            if fitted.predictor is None or fitted.table_version != version:  # never answer from replaced rows
                with _hold_back(self._settings.limits.answer_milliseconds / 1000):
                    fitted.predictor, fitted.table_version = self._fit_predictor(plan, dataset), version
            yield fitted.predictor

    def forget(self, dataset: str) -> None:
        """Delete the counts of a data set whose rows are deleted."""
        for model in self._database.find_all(store.models, kind="answering", dataset=dataset):
            self._predictors.pop(model["id"], None)

    def _fit_predictor(self, plan: DatabaseRow, dataset: DatabaseRow) -> MatrixForestPredictor:
        payload = json.loads(plan["asked"])
        schema = Schema.from_dict(json.loads(dataset["schema"]))
        request = RunRequest("", payload["epsilon"], payload["delta"], payload["parameters"])
        if predictor_fingerprint(dataset["name"], schema, request) != plan["fingerprint"]:
            raise UseError("the schema has changed since this predictor was signed. Hint: plan the predictor again.")
        try:
            return make_predictor(schema, request).fit(dataset["source"])
        except VeilwoodError:  # the text of the error may depend on rows
            raise UseError("the table of this model is unavailable. Hint: ask a custodian.") from None


@contextmanager
def _hold_back(seconds: float) -> Iterator[None]:
    """Delay the end of a block to ``seconds`` after its start, or to twice, four times ... as long if it takes longer.

    The duration reveals only the number of doublings: usually none, if ``seconds`` is well above the usual time.
    """
    start = time.monotonic()
    try:
        yield
    finally:
        while (rest := start + seconds - time.monotonic()) < 0:
            seconds *= 2
        time.sleep(rest)


def _table_version(source: str) -> tuple[str, int, int]:
    """Return path, modification time and inode, which change when a table is replaced; zeros for other sources."""
    try:
        facts = os.stat(source)
    except (OSError, ValueError):
        return source, 0, 0
    return source, facts.st_mtime_ns, facts.st_ino


def _batch_epsilon(predictor: MatrixForestPredictor, epsilon: float | None) -> str:
    """Return the exact epsilon of a batch. Raise ParameterError if it exceeds the signed epsilon."""
    signed = requested_loss(predictor.epsilon, 0).epsilon
    requested = signed if epsilon is None else requested_loss(epsilon, 0).epsilon
    if requested is None or signed is None or requested > signed:
        raise ParameterError("epsilon", epsilon, "exceeds the signed epsilon of a batch", f"pass at most {signed}")
    return str(requested)


def _batch_digest(predictor: MatrixForestPredictor, query_rows: pd.DataFrame) -> str:
    codes = predictor._encode_rows(query_rows)
    facts = f"{predictor.schema_.fingerprint()} {codes.shape}"
    return hashlib.sha256(facts.encode() + codes.tobytes()).hexdigest()
