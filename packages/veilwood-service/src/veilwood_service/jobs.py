# SPDX-License-Identifier: Apache-2.0
"""The queue of jobs: each is claimed by one process of the service, runs in a worker, and survives both.

A job whose service died or stopped is queued again and goes on under the reservation that it has. A worker that died
by itself is tried again only if it had not been charged. A job that is cancelled is killed; what it had reserved is
settled as spent, since noise may have been drawn.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from veilwood.data.schema import Schema
from veilwood.errors import BudgetExceededError, LedgerError, ParameterError, PlanError, UseError, VeilwoodError
from veilwood.evaluation.evaluate import evaluate
from veilwood.models.file import load, save
from veilwood.progress import report_to
from veilwood_service import store
from veilwood_service.budgets import Book, KeyedLedger, ledgers_for, signed_off
from veilwood_service.settings import Settings
from veilwood_service.store import Record, Store, new_id, now
from veilwood_service.training import digest_of, estimator_of, model_path

__all__ = ["Jobs", "carry_out", "main"]


_LOOK_SECONDS: Final = 0.2
_BEAT_SECONDS: Final = 5.0
_MOST_DEATHS: Final = 3  # of workers of one job
_LOST_SECONDS: Final = 30.0  # without a sign of life
_PAUSE_SECONDS: Final = 1.0
_LOG: Final = logging.getLogger("veilwood.service")
_WORKER: Final = ("-m", "veilwood_service.jobs")


@dataclass
class _Running:
    job: Record
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)


class Jobs:
    """The jobs that this process of the service runs, and the queue that all of them share."""

    def __init__(self, settings: Settings, records: Store) -> None:
        self._settings, self._records = settings, records
        self._name = f"{socket.gethostname()[:40]}-{os.getpid()}"
        self._running: dict[str, _Running] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)
        self._beat = 0.0
        self._deaths: Counter[str] = Counter()

    def start(self) -> None:
        """Begin to work on the queue."""
        self._thread.start()

    def stop(self) -> None:
        """Stop working: what runs is killed, and goes on when the service is back."""
        self._stopping.set()
        self._thread.join()
        for running in self._running.values():
            running.process.kill()
            running.process.wait()
            where = {"id": running.job["id"], "state": "running", "worker": self._name}
            self._records.change(store.jobs, where, state="queued", worker=None, detail=None)

    def add(self, account: str, plan: Record, retry_key: str | None) -> Record:
        """Queue a signed plan. The same key of the same account gives the same job, however often it is asked for."""
        if plan["signed_by"] is None:
            raise UseError("the plan is not signed. Hint: a custodian reads it and signs its hash.")
        if retry_key is not None and (known := self._records.find(store.jobs, account=account, retry_key=retry_key)):
            return self._same(known, plan)
        number = new_id()
        made = self._records.add(
            store.jobs,
            id=number,
            plan=plan["id"],
            account=account,
            state="queued",
            retry_key=retry_key,
            created=now(),
        )
        if not made:  # a retry that came at the same moment
            known = self._records.find(store.jobs, account=account, retry_key=retry_key)
            return self._same(known or {}, plan)
        return self.get(number)

    @staticmethod
    def _same(known: Record, plan: Record) -> Record:
        if known.get("plan") != plan["id"]:
            raise ParameterError("Idempotency-Key", "...", "was used for another request", "take a new one")
        return known

    def get(self, number: str) -> Record:
        """Return a job."""
        found = self._records.find(store.jobs, id=number)
        if found is None:
            raise ParameterError("job", number, "is not a job", "see the list of jobs")
        return found

    def call_off(self, number: str) -> Record:
        """Stop a job. What it had reserved stays spent; a job that never began costs nothing."""
        self.get(number)
        for state in ("queued", "running"):
            where = {"id": number, "state": state}
            self._records.change(store.jobs, where, state="cancelled", message="cancelled", detail=None, ended=now())
        return self.get(number)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            try:
                self._look()
            except (sa.exc.SQLAlchemyError, LedgerError, OSError) as error:  # the database or the disk is away
                _LOG.error("jobs: %s", type(error).__name__)  # what runs goes on, and is looked at again
                self._stopping.wait(_PAUSE_SECONDS)

    def _look(self) -> None:
        for running in list(self._running.values()):
            self._attend(running)
        if time.monotonic() - self._beat > _BEAT_SECONDS:
            self._beat = time.monotonic()
            self._records.change(store.jobs, {"worker": self._name, "state": "running"}, seen=now())
            self._queue_lost_jobs()
        while len(self._running) < self._settings.limits.jobs_at_once and (job := self._claim()) is not None:
            self._running[job["id"]] = _Running(job, self._spawn(job))

    def _attend(self, running: _Running) -> None:
        number, code = running.job["id"], running.process.poll()
        job = self.get(number)  # after the look at the process: what a worker that ended has written is in it
        late = time.monotonic() - running.began > self._settings.limits.job_seconds
        ended, where = code is not None, {"id": number, "state": "running"}
        if not ended and (job["state"] != "running" or late):
            running.process.kill()
            running.process.wait()
            if late:
                told = {"message": "too long", "detail": None, "ended": now()}
                self._records.change(store.jobs, where, state="failed", **told)
            self._settle(job, "stopped before its end")
        elif ended and job["state"] == "running":
            self._after_a_death(job, f"its worker ended with status {code}")
        if running.process.poll() is not None:
            if job["state"] == "failed":
                self._settle(job, "failed after its reservation")
            del self._running[number]

    def _after_a_death(self, job: Record, how: str) -> None:
        """Try a job again whose worker died before it was charged.

        One that died later may have died of what it drew. Another draw would be shown because of the first one's value,
        so there is none: the job has failed, and its charge stays.
        """
        self._deaths[job["id"]] += 1
        where = {"id": job["id"], "state": "running"}
        if self._deaths[job["id"]] < _MOST_DEATHS and not self._has_reserved(job):
            self._records.change(store.jobs, where, state="queued", worker=None, detail=None)
            return
        told = {"message": "its worker died", "detail": how, "ended": now()}
        self._records.change(store.jobs, where, state="failed", **told)
        self._settle(job, how)

    def _settle(self, job: Record, reason: str) -> None:
        """Settle as spent what a job that will not go on has reserved."""
        for book in self._books(job):
            entry = book.ledger.find(job["id"])
            if entry is not None and entry.state == "reserved":
                book.ledger.resolve(entry.id, reason)

    def _has_reserved(self, job: Record) -> bool:
        return any(book.ledger.find(job["id"]) is not None for book in self._books(job))

    def _books(self, job: Record) -> list[Book]:
        plan = self._records.find(store.plans, id=job["plan"])
        return [] if plan is None else ledgers_for(self._settings, self._records, plan["dataset"], job["account"])

    def _claim(self) -> Record | None:
        for job in self._records.every(store.jobs, state="queued"):
            where = {"id": job["id"], "state": "queued"}
            if self._records.change(store.jobs, where, state="running", worker=self._name, seen=now()):
                return self.get(job["id"])
        return None

    def _spawn(self, job: Record) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *_WORKER, job["id"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal would kill it after its charge, as if it had died by itself
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it died before it read them: its end is noticed like any other
            process.stdin.write(self._settings.to_json().encode())
            process.stdin.flush()
        with suppress(BrokenPipeError):
            process.stdin.close()
        return process

    def _queue_lost_jobs(self) -> None:
        """Queue again what a process was running that gives no sign of life."""
        limit = (datetime.now(UTC) - timedelta(seconds=_LOST_SECONDS)).isoformat(timespec="milliseconds")
        for job in self._records.every(store.jobs, state="running"):
            if job["worker"] != self._name and ((job["seen"] or "") < limit or _is_dead(job["worker"])):
                where = {"id": job["id"], "state": "running", "worker": job["worker"]}
                self._records.change(store.jobs, where, state="queued", worker=None, detail=None)


def _is_dead(worker: str) -> bool:
    """Whether a worker was of this machine and its process is gone."""
    host, _, number = worker.rpartition("-")
    if host != socket.gethostname()[:40]:
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


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
