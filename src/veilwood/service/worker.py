# SPDX-License-Identifier: Apache-2.0
"""One job in a process of its own: carry out a signed plan, store the outcome whole, say that it is done.

Started by ``jobs``; the settings come by standard input, since they may hold passwords. What it prints goes nowhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from veilwood.data.schema import Schema
from veilwood.errors import BudgetExceededError, PlanError, VeilwoodError
from veilwood.evaluate import evaluate
from veilwood.models.file import load, save
from veilwood.progress import report_to
from veilwood.service import store
from veilwood.service.settings import Settings
from veilwood.service.spends import KeyedLedger, ledgers_for, signed_off
from veilwood.service.store import Record, Store, now
from veilwood.service.training import digest_of, estimator_of, model_path

__all__ = ["carry_out", "main"]

_TOLD_SECONDS: Final = 0.5


def carry_out(settings: Settings, records: Store, job: Record) -> None:
    """Run a job that is marked as running. A job that runs again goes on under the reservation that it has."""
    plan = records.find(store.plans, id=job["plan"])
    dataset = None if plan is None else records.find(store.datasets, name=plan["dataset"])
    if plan is None or dataset is None or plan["signed_by"] is None:
        raise PlanError("the plan is not signed, or its data set is gone.")
    schema = Schema.from_dict(json.loads(dataset["schema"]))
    books = ledgers_for(settings, records, dataset["name"], job["account"])
    ledger = KeyedLedger(books, job["id"])
    outcome: dict[str, Any] = {"certificate": None, "result": None, "digest": None}
    if plan["kind"] == "train":
        path = model_path(settings, job["id"])
        if not path.exists():
            forest, planned = estimator_of(schema, plan, ledger)
            forest.fit(dataset["source"], plan=planned)
            _store_once(forest, path)
        outcome["certificate"] = json.dumps(signed_off(load(path).privacy_, books[0]))
        outcome["digest"] = digest_of(path)
    elif plan["kind"] == "evaluate":
        asked = json.loads(plan["asked"])
        found = evaluate(
            load(model_path(settings, plan["model"])),
            dataset["source"],
            epsilon=float(asked["epsilon"]),
            delta=float(asked["delta"]),
            ledger=ledger,
            invalid="drop",
        )
        if found.plan.fingerprint() != plan["fingerprint"]:  # it was planned from the same model and promise
            raise PlanError("the evaluation is not the one that was signed.")
        outcome["certificate"] = json.dumps(signed_off(found.privacy, books[0]))
        outcome["result"] = json.dumps(found.quality.to_dict())
    records.add(
        store.models,
        id=job["id"],
        job=job["id"],
        plan=plan["id"],
        dataset=dataset["name"],
        kind={"train": "trained", "answer": "answering", "evaluate": "evaluation"}[plan["kind"]],
        estimator=plan["estimator"],
        created=job["created"],  # when it ended may tell of rows
        **outcome,
    )
    records.change(store.jobs, {"id": job["id"], "state": "running"}, state="done", detail=None, ended=now())


def _store_once(forest: Any, path: Path) -> None:
    """Write a model unless there is one: a second worker that was thought dead must not show a second outcome."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    save(forest, unfinished)
    try:
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        unfinished.unlink()


def main() -> int:
    """Run the job named on the command line."""
    settings = Settings.from_json(sys.stdin.read())
    records = Store(settings)
    warnings.simplefilter("ignore")  # texts for a terminal; the certificate says what matters
    job = records.find(store.jobs, id=sys.argv[1])
    if job is None or job["state"] != "running":
        return 0
    report_to(_RunProgress(records, job))
    try:
        carry_out(settings, records, job)
    except (BudgetExceededError, PlanError) as error:  # texts about public facts alone
        _fail(records, job, str(error), str(error))
    except VeilwoodError as error:
        _fail(records, job, "the training failed; a custodian can see why.", f"{type(error).__name__}: {error}")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]  # never its text, which may hold what was being read
        where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        _fail(records, job, "the training failed; a custodian can see why.", where)
    return 0


class _RunProgress:
    """How far a job is, for custodians alone and while it runs: batches and rounds tell of rows."""

    def __init__(self, records: Store, job: Record) -> None:
        self._records, self._where, self._told = records, {"id": job["id"], "state": "running"}, time.monotonic()

    def __call__(self, doing: str, number: int) -> None:
        if time.monotonic() - self._told > _TOLD_SECONDS:
            self._records.change(store.jobs, self._where, detail=f"{doing}: {number} so far")
            self._told = time.monotonic()


def _fail(records: Store, job: Record, message: str, detail: str) -> None:
    where = {"id": job["id"], "state": "running"}
    records.change(store.jobs, where, state="failed", message=message, detail=detail[:2000], ended=now())


if __name__ == "__main__":
    sys.exit(main())
