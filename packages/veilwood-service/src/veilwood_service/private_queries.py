# SPDX-License-Identifier: Apache-2.0
"""Private answers to batches of questions: quoted first, charged before anything is computed, stored before it is sent.

A predictor holds exact counts, in memory alone: it is counted anew from its table when the service starts. The same
batch is answered from the store, for free, also after a crash (proofs/service.md).
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

__all__ = ["PrivateQueries"]


@dataclass
class _FittedPredictor:
    """A predictor with its counts, for one thread at a time, and the table and schema that it was counted from."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    predictor: MatrixForestPredictor | None = None
    table_version: object = None


class PrivateQueries:
    """The predictors of the service, each counted when it is first asked."""

    def __init__(self, settings: Settings, database: Store) -> None:
        self._settings, self._database = settings, database
        self._predictors: dict[str, _FittedPredictor] = {}
        self._lock = threading.Lock()

    def quote_batch(self, account: str, model: str, rows: list[dict[str, Any]], epsilon: float | None) -> DatabaseRow:
        """Say what a batch would cost and how well it would be answered. Free."""
        predictor, lock, dataset = self._get_predictor(model)
        questions = rows_to_frame(rows, predictor.schema_)
        with lock:
            digest = _batch_digest(predictor, questions)
            plan = predictor.plan_answer(questions, _batch_epsilon(predictor, epsilon))  # type: ignore[arg-type]
        stored = self._database.find(store.answers, model=model, digest=digest)
        left = min_remaining(open_ledgers_for(self._settings, self._database, dataset, account))
        return {
            "epsilon": str(plan.loss.epsilon),
            "delta": str(plan.loss.delta),
            "expected_squared_error": plan.expected_leaf_mse,
            "answered_before": stored is not None and stored["labels"] is not None,
            "remaining": None if left is None else str(left),
        }

    def answer_batch(self, account: str, model: str, rows: list[dict[str, Any]], epsilon: float | None) -> DatabaseRow:
        """Answer a batch: from the store if it was answered before, else charged first."""
        predictor, lock, dataset = self._get_predictor(model)
        questions = rows_to_frame(rows, predictor.schema_)
        with lock:
            digest = _batch_digest(predictor, questions)
            price = _batch_epsilon(predictor, epsilon)
            self._database.add(
                store.answers,
                id=new_id(),
                model=model,
                digest=digest,
                account=account,
                epsilon=price,
                created=current_timestamp(),
            )
            known = self._database.find(store.answers, model=model, digest=digest)
            assert known is not None
            if known["labels"] is None:
                known = self._charge_and_answer(predictor, known, questions, dataset)
        if json.loads(known["labels"]) is None:
            raise UseError("this batch failed after it was charged, and is not drawn again. Hint: ask another one.")
        return {
            "labels": json.loads(known["labels"]),
            "certificate": json.loads(known["certificate"]),
            "answered": known["created"],
        }

    def _charge_and_answer(
        self, predictor: MatrixForestPredictor, stored_answer: DatabaseRow, query_rows: pd.DataFrame, dataset: str
    ) -> DatabaseRow:
        """Charge and answer; a batch that was charged and never stored goes on under its reservation."""
        books = open_ledgers_for(self._settings, self._database, dataset, stored_answer["account"])
        predictor.ledger_ = CompositeLedger(books, stored_answer["id"])
        where = {"id": stored_answer["id"], "labels": None}  # the first one that is stored is the one that is ever sent
        try:
            labels = predictor.answer(query_rows, epsilon=stored_answer["epsilon"]).tolist()
            certificate = json.dumps(as_issued(predictor.privacy_, books[0]))
        except Exception:
            if predictor.ledger_.was_granted:  # that it failed may depend on what was drawn: it is not drawn again
                self._database.update(store.answers, where, labels=json.dumps(None), certificate=json.dumps(None))
            elif not predictor.ledger_.has_spent():
                self._database.remove(
                    store.answers, id=stored_answer["id"]
                )  # refused: another try may name another price
            raise
        finally:
            predictor.forget_answers()
        self._database.update(store.answers, where, labels=json.dumps(labels), certificate=certificate)
        stored = self._database.find(store.answers, id=stored_answer["id"])
        assert stored is not None
        return stored

    def _get_predictor(self, model: str) -> tuple[MatrixForestPredictor, threading.Lock, str]:
        found = self._database.find(store.models, id=model)
        if found is None or found["kind"] != "answering":
            raise NotFoundError("private predictor", model, hint="choose one from the list of models")
        dataset = self._database.find(store.datasets, name=found["dataset"])
        if dataset is None:
            raise UseError("the data set of this model is gone.")
        state = (dataset["schema"], *_table_version(dataset["source"]))
        with self._lock:
            counted = self._predictors.setdefault(model, _FittedPredictor())
        with counted.lock:  # counting one table holds nobody up who asks about another
            if (
                counted.predictor is None or counted.table_version != state
            ):  # rows that were replaced are not used any longer
                counted.predictor, counted.table_version = self._fit_predictor(found, dataset), state
            return counted.predictor, counted.lock, found["dataset"]

    def _fit_predictor(self, model: DatabaseRow, dataset: DatabaseRow) -> MatrixForestPredictor:
        plan = self._database.find(store.plans, id=model["plan"])
        if plan is None:
            raise UseError("the plan of this model is gone.")
        asked = json.loads(plan["asked"])
        schema = Schema.from_dict(json.loads(dataset["schema"]))
        wanted = RunRequest("", asked["epsilon"], asked["delta"], asked["parameters"])
        if predictor_fingerprint(dataset["name"], schema, wanted) != plan["fingerprint"]:
            raise UseError("the schema has changed since this predictor was signed. Hint: plan it anew.")
        try:
            return make_predictor(schema, wanted).fit(dataset["source"])
        except VeilwoodError:  # its text may tell of the table
            raise UseError("the table of this model cannot be read now. Hint: ask a custodian.") from None


def _table_version(source: str) -> tuple[str, int, int]:
    """What changes when a table is replaced; tables in a database have no time, and are counted at the start."""
    try:
        facts = os.stat(source)
    except (OSError, ValueError):
        return source, 0, 0
    return source, facts.st_mtime_ns, facts.st_ino


def _batch_epsilon(predictor: MatrixForestPredictor, epsilon: float | None) -> str:
    """Return what a batch costs, exactly: at most what was signed."""
    signed = requested_loss(predictor.epsilon, 0).epsilon
    asked = signed if epsilon is None else requested_loss(epsilon, 0).epsilon
    if asked is None or signed is None or asked > signed:
        raise ParameterError("epsilon", epsilon, "is more than was signed for a batch", f"at most {signed}")
    return str(asked)


def _batch_digest(predictor: MatrixForestPredictor, query_rows: pd.DataFrame) -> str:
    codes = predictor._encode_rows(query_rows)
    facts = f"{predictor.schema_.fingerprint()} {codes.shape}"
    return hashlib.sha256(facts.encode() + codes.tobytes()).hexdigest()
