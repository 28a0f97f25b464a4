# SPDX-License-Identifier: Apache-2.0
"""Private answers to batches of queries: charged before anything is computed, stored before they are sent.

A predictor holds exact counts in memory only, and is fitted again from its table after a restart. A repeated batch is
answered from the database, for free, also after a crash (proofs/service.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from veilwood.data.schema import Schema
from veilwood.errors import NotFoundError, ParameterError, UseError, VeilwoodError
from veilwood.estimators import MatrixForestPredictor
from veilwood.privacy.loss import requested_loss
from veilwood_service import store
from veilwood_service.budgets import CompositeLedger, as_issued, min_remaining, open_ledgers_for
from veilwood_service.predictions import rows_to_frame
from veilwood_service.settings import Settings
from veilwood_service.store import DatabaseRow, Store, current_timestamp, new_id
from veilwood_service.training import RunRequest, make_predictor, predictor_fingerprint


@dataclass
class _FittedPredictor:
    """Cached predictor with its counts, a lock for one thread at a time, and the version of its table and schema."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    predictor: MatrixForestPredictor | None = None
    table_version: object = None


class PrivateQueries:
    """Private predictors of the service. Each is fitted on first use."""

    def __init__(self, settings: Settings, database: Store) -> None:
        self._settings, self._database = settings, database
        self._predictors: dict[str, _FittedPredictor] = {}
        self._lock = threading.Lock()

    def quote_batch(self, account: str, model: str, rows: list[dict[str, Any]], epsilon: float | None) -> DatabaseRow:
        """Return the loss and the expected error of a batch. Free."""
        predictor, lock, dataset = self._get_predictor(model)
        query_rows = rows_to_frame(rows, predictor.schema_)
        with lock:
            digest = _batch_digest(predictor, query_rows)
            plan = predictor.plan_answer(query_rows, _batch_epsilon(predictor, epsilon))  # type: ignore[arg-type]
        stored = self._database.find(store.answers, model=model, digest=digest)
        remaining = min_remaining(open_ledgers_for(self._settings, self._database, dataset, account))
        return {
            "epsilon": str(plan.loss.epsilon),
            "delta": str(plan.loss.delta),
            "expected_squared_error": plan.expected_leaf_mse,
            "answered_before": stored is not None and stored["labels"] is not None,
            "remaining": None if remaining is None else str(remaining),
        }

    def answer_batch(self, account: str, model: str, rows: list[dict[str, Any]], epsilon: float | None) -> DatabaseRow:
        """Answer a batch. A repeated batch is returned from the database; any other is charged first."""
        predictor, lock, dataset = self._get_predictor(model)
        query_rows = rows_to_frame(rows, predictor.schema_)
        with lock:
            digest = _batch_digest(predictor, query_rows)
            batch_epsilon = _batch_epsilon(predictor, epsilon)
            self._database.add(
                store.answers,
                id=new_id(),
                model=model,
                digest=digest,
                account=account,
                epsilon=batch_epsilon,
                created=current_timestamp(),
            )
            stored = self._database.find(store.answers, model=model, digest=digest)
            assert stored is not None
            if stored["labels"] is None:
                stored = self._charge_and_answer(predictor, stored, query_rows, dataset)
        if json.loads(stored["labels"]) is None:
            raise UseError("this batch failed after its charge, and is not drawn again. Hint: send another batch.")
        return {
            "labels": json.loads(stored["labels"]),
            "certificate": json.loads(stored["certificate"]),
            "answered": stored["created"],
        }

    def _charge_and_answer(
        self, predictor: MatrixForestPredictor, stored_answer: DatabaseRow, query_rows: pd.DataFrame, dataset: str
    ) -> DatabaseRow:
        """Charge and answer a batch. One that was charged but not stored continues under its reservation."""
        ledgers = open_ledgers_for(self._settings, self._database, dataset, stored_answer["account"])
        predictor.ledger_ = CompositeLedger(ledgers, stored_answer["id"])
        where = {"id": stored_answer["id"], "labels": None}  # only the answer that is stored first is ever sent
        try:
            labels = predictor.answer(query_rows, epsilon=stored_answer["epsilon"]).tolist()
            certificate = json.dumps(as_issued(predictor.privacy_, ledgers[0]))
        except Exception:
            if predictor.ledger_.was_granted:  # the failure may depend on the noise, so the batch is not drawn again
                self._database.update(store.answers, where, labels=json.dumps(None), certificate=json.dumps(None))
            elif not predictor.ledger_.has_spent():  # rejected before any charge: it may be sent with another epsilon
                self._database.remove(store.answers, id=stored_answer["id"])
            raise
        finally:
            predictor.forget_answers()
        self._database.update(store.answers, where, labels=json.dumps(labels), certificate=certificate)
        stored = self._database.find(store.answers, id=stored_answer["id"])
        assert stored is not None
        return stored

    def _get_predictor(self, model: str) -> tuple[MatrixForestPredictor, threading.Lock, str]:
        record = self._database.find(store.models, id=model)
        if record is None or record["kind"] != "answering":
            raise NotFoundError("private predictor", model, hint="choose one from the list of models")
        dataset = self._database.find(store.datasets, name=record["dataset"])
        if dataset is None:
            raise UseError("the data set of this model no longer exists. Hint: choose another model.")
        version = (dataset["schema"], *_table_version(dataset["source"]))
        with self._lock:
            fitted = self._predictors.setdefault(model, _FittedPredictor())
        with fitted.lock:  # one lock per predictor: fitting one does not block the others
            if fitted.predictor is None or fitted.table_version != version:  # never answer from replaced rows
                fitted.predictor, fitted.table_version = self._fit_predictor(record, dataset), version
            return fitted.predictor, fitted.lock, record["dataset"]

    def _fit_predictor(self, model: DatabaseRow, dataset: DatabaseRow) -> MatrixForestPredictor:
        plan = self._database.find(store.plans, id=model["plan"])
        if plan is None:
            raise UseError("the plan of this model no longer exists. Hint: plan the predictor again.")
        payload = json.loads(plan["asked"])
        schema = Schema.from_dict(json.loads(dataset["schema"]))
        request = RunRequest("", payload["epsilon"], payload["delta"], payload["parameters"])
        if predictor_fingerprint(dataset["name"], schema, request) != plan["fingerprint"]:
            raise UseError("the schema has changed since this predictor was signed. Hint: plan the predictor again.")
        try:
            return make_predictor(schema, request).fit(dataset["source"])
        except VeilwoodError:  # the text of the error may depend on rows
            raise UseError("the table of this model is unavailable. Hint: ask a custodian.") from None


def _table_version(source: str) -> tuple[str, int, int]:
    """Return path, modification time and inode, which change when a table is replaced; zeros for other sources."""
    try:
        facts = os.stat(source)
    except (OSError, ValueError):
        return source, 0, 0
    return source, facts.st_mtime_ns, facts.st_ino


def _batch_epsilon(predictor: MatrixForestPredictor, epsilon: float | None) -> str:
    """Return the exact epsilon of a batch: the requested one, at most the signed one."""
    signed = requested_loss(predictor.epsilon, 0).epsilon
    requested = signed if epsilon is None else requested_loss(epsilon, 0).epsilon
    if requested is None or signed is None or requested > signed:
        raise ParameterError("epsilon", epsilon, "exceeds the signed epsilon of a batch", f"pass at most {signed}")
    return str(requested)


def _batch_digest(predictor: MatrixForestPredictor, query_rows: pd.DataFrame) -> str:
    codes = predictor._encode_rows(query_rows)
    facts = f"{predictor.schema_.fingerprint()} {codes.shape}"
    return hashlib.sha256(facts.encode() + codes.tobytes()).hexdigest()
