# SPDX-License-Identifier: Apache-2.0
"""Private answers to batches of questions: quoted first, charged before anything is computed, stored before it is sent.

A predictor holds exact counts, in memory alone: it is counted anew from its table when the service starts. The same
batch is answered from the store, for free, also after a crash (proofs/service.md).
"""

from __future__ import annotations

import hashlib
import json
import threading

import pandas as pd

from veilwood.data.schema import Schema
from veilwood.errors import ParameterError, UseError
from veilwood.estimators import MatrixForestPredictor
from veilwood.service import store
from veilwood.service.settings import Settings
from veilwood.service.spends import KeyedLedger, ledgers_for, remaining
from veilwood.service.store import Record, Store, new_id, now
from veilwood.service.training import Asked, predictor_of

__all__ = ["Answering"]


class Answering:
    """The predictors of the service, each counted when it is first asked."""

    def __init__(self, settings: Settings, records: Store) -> None:
        self._settings, self._records = settings, records
        self._predictors: dict[str, tuple[MatrixForestPredictor, threading.Lock]] = {}
        self._lock = threading.Lock()

    def quote(self, account: str, model: str, questions: pd.DataFrame, epsilon: float | None) -> Record:
        """Say what a batch would cost and how well it would be answered. Free."""
        predictor, lock, dataset = self._predictor(model)
        with lock:
            digest = _digest(predictor, questions)
            plan = predictor.plan_answer(questions, epsilon)
        stored = self._records.find(store.answers, model=model, digest=digest)
        left = remaining(ledgers_for(self._settings, self._records, dataset, account))
        return {
            "epsilon": str(plan.loss.epsilon),
            "delta": str(plan.loss.delta),
            "expected_squared_error": plan.expected_leaf_mse,
            "answered_before": stored is not None and stored["labels"] is not None,
            "remaining": None if left is None else str(left),
        }

    def answer(self, account: str, model: str, questions: pd.DataFrame, epsilon: float | None) -> Record:
        """Answer a batch: from the store if it was answered before, else charged first."""
        predictor, lock, dataset = self._predictor(model)
        with lock:
            digest = _digest(predictor, questions)
            price = predictor.epsilon if epsilon is None else epsilon
            self._records.add(
                store.answers,
                id=new_id(),
                model=model,
                digest=digest,
                account=account,
                epsilon=str(price),
                created=now(),
            )
            known = self._records.find(store.answers, model=model, digest=digest)
            assert known is not None
            if known["labels"] is None:
                known = self._compute(predictor, known, questions, dataset)
        return {
            "labels": json.loads(known["labels"]),
            "certificate": json.loads(known["certificate"]),
            "answered": known["created"],
        }

    def _compute(
        self, predictor: MatrixForestPredictor, known: Record, questions: pd.DataFrame, dataset: str
    ) -> Record:
        """Charge and answer; a batch that was charged and never stored goes on under its reservation."""
        books = ledgers_for(self._settings, self._records, dataset, known["account"])
        predictor.ledger_ = KeyedLedger(books, known["id"])
        price = float(known["epsilon"])
        try:
            labels = predictor.answer(questions, epsilon=price).tolist()
            certificate = predictor.privacy_.to_json()
        except BaseException:
            if not predictor.ledger_.has_spent():
                self._records.remove(store.answers, id=known["id"])  # refused: another try may name another price
            raise
        finally:
            predictor.forget_answers()
        where = {"id": known["id"], "labels": None}  # the first one that is stored is the one that is ever sent
        self._records.change(store.answers, where, labels=json.dumps(labels), certificate=certificate)
        stored = self._records.find(store.answers, id=known["id"])
        assert stored is not None
        return stored

    def _predictor(self, model: str) -> tuple[MatrixForestPredictor, threading.Lock, str]:
        found = self._records.find(store.models, id=model)
        if found is None or found["kind"] != "answering":
            raise ParameterError("model", model, "does not answer at a price", "see the list of models")
        with self._lock:
            if model not in self._predictors:
                self._predictors[model] = (self._count(found), threading.Lock())
        return *self._predictors[model], found["dataset"]

    def _count(self, model: Record) -> MatrixForestPredictor:
        plan = self._records.find(store.plans, id=model["plan"])
        dataset = self._records.find(store.datasets, name=model["dataset"])
        if plan is None or dataset is None:
            raise UseError("the data set of this model is gone.")
        asked = json.loads(plan["asked"])
        schema = Schema.from_dict(json.loads(dataset["schema"]))
        predictor = predictor_of(schema, Asked("", asked["epsilon"], asked["delta"], asked["parameters"]))
        return predictor.fit(dataset["source"])


def _digest(predictor: MatrixForestPredictor, questions: pd.DataFrame) -> str:
    codes = predictor.encode(questions)
    return hashlib.sha256(repr(codes.shape).encode() + codes.tobytes()).hexdigest()
