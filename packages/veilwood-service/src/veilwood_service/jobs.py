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
from veilwood.errors import (
    BudgetExceededError,
    LedgerError,
    NotFoundError,
    ParameterError,
    PlanError,
    UseError,
    VeilwoodError,
)
from veilwood.evaluation.evaluate import evaluate
from veilwood.models.file import load, save
from veilwood.progress import set_progress_callback
from veilwood_service import store
from veilwood_service.budgets import CompositeLedger, GuardedLedger, as_issued, open_ledgers_for
from veilwood_service.settings import Settings
from veilwood_service.store import DatabaseRow, Store, current_timestamp, new_id
from veilwood_service.training import file_digest, make_estimator, model_path

__all__ = ["Jobs", "execute_job", "main"]


_POLL_SECONDS: Final = 0.2
_HEARTBEAT_SECONDS: Final = 5.0
_MAX_WORKER_DEATHS: Final = 3  # of workers of one job
_LOST_AFTER_SECONDS: Final = 30.0  # without a sign of life
_ERROR_PAUSE_SECONDS: Final = 1.0
_LOG: Final = logging.getLogger("veilwood.service")
_WORKER_ARGUMENTS: Final = ("-m", "veilwood_service.jobs")


@dataclass
class _RunningJob:
    job: DatabaseRow
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)


class Jobs:
    """The jobs that this process of the service runs, and the queue that all of them share."""

    def __init__(self, settings: Settings, database: Store) -> None:
        self._settings, self._database = settings, database
        self._name = f"{socket.gethostname()[:40]}-{os.getpid()}"
        self._running: dict[str, _RunningJob] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, name="jobs", daemon=True)
        self._last_heartbeat = 0.0
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
            self._database.update(store.jobs, where, state="queued", worker=None, detail=None)

    def add(self, account: str, plan: DatabaseRow, retry_key: str | None) -> DatabaseRow:
        """Queue a signed plan. The same key of the same account gives the same job, however often it is asked for."""
        if plan["signed_by"] is None:
            raise UseError("the plan is not signed. Hint: a custodian reads it and signs its hash.")
        if retry_key is not None and (known := self._database.find(store.jobs, account=account, retry_key=retry_key)):
            return self._require_same_plan(known, plan)
        number = new_id()
        made = self._database.add(
            store.jobs,
            id=number,
            plan=plan["id"],
            account=account,
            state="queued",
            retry_key=retry_key,
            created=current_timestamp(),
        )
        if not made:  # a retry that came at the same moment
            known = self._database.find(store.jobs, account=account, retry_key=retry_key)
            return self._require_same_plan(known or {}, plan)
        return self.get(number)

    @staticmethod
    def _require_same_plan(stored_job: DatabaseRow, plan: DatabaseRow) -> DatabaseRow:
        if stored_job.get("plan") != plan["id"]:
            raise ParameterError("Idempotency-Key", "...", "was used for another request", "take a new one")
        return stored_job

    def get(self, number: str) -> DatabaseRow:
        """Return a job."""
        found = self._database.find(store.jobs, id=number)
        if found is None:
            raise NotFoundError("job", number)
        return found

    def cancel(self, number: str) -> DatabaseRow:
        """Stop a job. What it had reserved stays spent; a job that never began costs nothing."""
        self.get(number)
        for state in ("queued", "running"):
            where = {"id": number, "state": state}
            self._database.update(
                store.jobs, where, state="cancelled", message="cancelled", detail=None, ended=current_timestamp()
            )
        return self.get(number)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            try:
                self._poll_once()
            except (sa.exc.SQLAlchemyError, LedgerError, OSError) as error:  # the database or the disk is away
                _LOG.error("jobs: %s", type(error).__name__)  # what runs goes on, and is looked at again
                self._stopping.wait(_ERROR_PAUSE_SECONDS)

    def _poll_once(self) -> None:
        for running in list(self._running.values()):
            self._check_worker(running)
        if time.monotonic() - self._last_heartbeat > _HEARTBEAT_SECONDS:
            self._last_heartbeat = time.monotonic()
            self._database.update(store.jobs, {"worker": self._name, "state": "running"}, seen=current_timestamp())
            self._requeue_lost_jobs()
        while len(self._running) < self._settings.limits.jobs_at_once and (job := self._claim_next()) is not None:
            self._running[job["id"]] = _RunningJob(job, self._spawn_worker(job))

    def _check_worker(self, running: _RunningJob) -> None:
        number, code = running.job["id"], running.process.poll()
        job = self.get(number)  # after the look at the process: what a worker that ended has written is in it
        late = time.monotonic() - running.started_at > self._settings.limits.job_seconds
        ended, where = code is not None, {"id": number, "state": "running"}
        if not ended and (job["state"] != "running" or late):
            running.process.kill()
            running.process.wait()
            if late:
                told = {"message": "too long", "detail": None, "ended": current_timestamp()}
                self._database.update(store.jobs, where, state="failed", **told)
            self._resolve_reservations(job, "stopped before its end")
        elif ended and job["state"] == "running":
            self._handle_dead_worker(job, f"its worker ended with status {code}")
        if running.process.poll() is not None:
            if job["state"] == "failed":
                self._resolve_reservations(job, "failed after its reservation")
            del self._running[number]

    def _handle_dead_worker(self, job: DatabaseRow, reason: str) -> None:
        """Try a job again whose worker died before it was charged.

        One that died later may have died of what it drew. Another draw would be shown because of the first one's value,
        so there is none: the job has failed, and its charge stays.
        """
        self._deaths[job["id"]] += 1
        where = {"id": job["id"], "state": "running"}
        if self._deaths[job["id"]] < _MAX_WORKER_DEATHS and not self._has_reserved(job):
            self._database.update(store.jobs, where, state="queued", worker=None, detail=None)
            return
        told = {"message": "its worker died", "detail": reason, "ended": current_timestamp()}
        self._database.update(store.jobs, where, state="failed", **told)
        self._resolve_reservations(job, reason)

    def _resolve_reservations(self, job: DatabaseRow, reason: str) -> None:
        """Settle as spent what a job that will not go on has reserved."""
        for book in self._ledgers_of(job):
            entry = book.ledger.find(job["id"])
            if entry is not None and entry.state == "reserved":
                book.ledger.resolve(entry.id, reason)

    def _has_reserved(self, job: DatabaseRow) -> bool:
        return any(book.ledger.find(job["id"]) is not None for book in self._ledgers_of(job))

    def _ledgers_of(self, job: DatabaseRow) -> list[GuardedLedger]:
        plan = self._database.find(store.plans, id=job["plan"])
        return [] if plan is None else open_ledgers_for(self._settings, self._database, plan["dataset"], job["account"])

    def _claim_next(self) -> DatabaseRow | None:
        for job in self._database.find_all(store.jobs, state="queued"):
            where = {"id": job["id"], "state": "queued"}
            if self._database.update(store.jobs, where, state="running", worker=self._name, seen=current_timestamp()):
                return self.get(job["id"])
        return None

    def _spawn_worker(self, job: DatabaseRow) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *_WORKER_ARGUMENTS, job["id"]],
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

    def _requeue_lost_jobs(self) -> None:
        """Queue again what a process was running that gives no sign of life."""
        limit = (datetime.now(UTC) - timedelta(seconds=_LOST_AFTER_SECONDS)).isoformat(timespec="milliseconds")
        for job in self._database.find_all(store.jobs, state="running"):
            if job["worker"] != self._name and ((job["seen"] or "") < limit or _is_dead_worker(job["worker"])):
                where = {"id": job["id"], "state": "running", "worker": job["worker"]}
                self._database.update(store.jobs, where, state="queued", worker=None, detail=None)


def _is_dead_worker(worker: str) -> bool:
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


_PROGRESS_SECONDS: Final = 0.5


def execute_job(settings: Settings, database: Store, job: DatabaseRow) -> None:
    """Run a job that is marked as running. A job that runs again goes on under the reservation that it has."""
    plan = database.find(store.plans, id=job["plan"])
    dataset = None if plan is None else database.find(store.datasets, name=plan["dataset"])
    if plan is None or dataset is None or plan["signed_by"] is None:
        raise PlanError("the plan is not signed, or its data set is gone.")
    schema = Schema.from_dict(json.loads(dataset["schema"]))
    books = open_ledgers_for(settings, database, dataset["name"], job["account"])
    ledger = CompositeLedger(books, job["id"])
    outcome: dict[str, Any] = {"certificate": None, "result": None, "digest": None}
    if plan["kind"] == "train":
        path = model_path(settings, job["id"])
        if not path.exists():
            forest, planned = make_estimator(schema, plan, ledger)
            forest.fit(dataset["source"], plan=planned)
            _save_once(forest, path)
        outcome["certificate"] = json.dumps(as_issued(load(path).privacy_, books[0]))
        outcome["digest"] = file_digest(path)
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
        outcome["certificate"] = json.dumps(as_issued(found.privacy, books[0]))
        outcome["result"] = json.dumps(found.quality.to_dict())
    database.add(
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
    database.update(
        store.jobs, {"id": job["id"], "state": "running"}, state="done", detail=None, ended=current_timestamp()
    )


def _save_once(forest: Any, path: Path) -> None:
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
    set_progress_callback(_JobProgress(records, job))
    try:
        execute_job(settings, records, job)
    except (BudgetExceededError, PlanError) as error:  # texts about public facts alone
        _mark_failed(records, job, str(error), str(error))
    except VeilwoodError as error:
        _mark_failed(records, job, "the training failed; a custodian can see why.", f"{type(error).__name__}: {error}")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]  # never its text, which may hold what was being read
        where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        _mark_failed(records, job, "the training failed; a custodian can see why.", where)
    return 0


class _JobProgress:
    """How far a job is, for custodians alone and while it runs: batches and rounds tell of rows."""

    def __init__(self, database: Store, job: DatabaseRow) -> None:
        self._database, self._where, self._last_update = (
            database,
            {"id": job["id"], "state": "running"},
            time.monotonic(),
        )

    def __call__(self, activity: str, number: int) -> None:
        if time.monotonic() - self._last_update > _PROGRESS_SECONDS:
            self._database.update(store.jobs, self._where, detail=f"{activity}: {number} so far")
            self._last_update = time.monotonic()


def _mark_failed(database: Store, job: DatabaseRow, message: str, detail: str) -> None:
    where = {"id": job["id"], "state": "running"}
    database.update(store.jobs, where, state="failed", message=message, detail=detail[:2000], ended=current_timestamp())


if __name__ == "__main__":
    sys.exit(main())
