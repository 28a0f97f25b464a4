# SPDX-License-Identifier: Apache-2.0
"""Job queue and worker processes. Each job is claimed by one process of the service and runs in a worker process.

* If the service stops or crashes, its jobs are queued again and continue under their reservations.
* If a worker crashes on its own, its job is retried only if it was not charged yet.
* A cancelled job is killed. Its reservation is settled as spent, because noise may have been drawn.
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

_POLL_SECONDS: Final = 0.2
_HEARTBEAT_SECONDS: Final = 5.0
_MAX_WORKER_DEATHS: Final = 3  # crashes of uncharged workers of one job, after which it fails
_LOST_AFTER_SECONDS: Final = 30.0  # without a heartbeat: six times its interval
_ERROR_PAUSE_SECONDS: Final = 1.0
_LOG: Final = logging.getLogger("veilwood.service")
_WORKER_ARGUMENTS: Final = ("-m", "veilwood_service.jobs")


@dataclass
class _RunningJob:
    job: DatabaseRow
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)


class Jobs:
    """Queue that all processes of a service share, and the jobs that this process runs."""

    def __init__(self, settings: Settings, database: Store) -> None:
        self._settings, self._database = settings, database
        self._name = f"{socket.gethostname()[:40]}-{os.getpid()}"
        self._running: dict[str, _RunningJob] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, name="jobs", daemon=True)
        self._last_heartbeat = 0.0
        self._deaths: Counter[str] = Counter()

    def start(self) -> None:
        """Start the thread that claims and watches jobs."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and kill all workers. Their jobs are queued again, and resume with the service."""
        self._stopping.set()
        self._thread.join()
        for running in self._running.values():
            running.process.kill()
            running.process.wait()
            where = {"id": running.job["id"], "state": "running", "worker": self._name}
            self._database.update(store.jobs, where, state="queued", worker=None, detail=None)

    def add(self, account: str, plan: DatabaseRow, retry_key: str | None) -> DatabaseRow:
        """Queue a signed plan and return its job. The same retry key of the same account returns the same job."""
        if plan["signed_by"] is None:
            raise UseError("the plan is not signed. Hint: ask a custodian to read it and sign its hash.")
        if retry_key is not None and (known := self._database.find(store.jobs, account=account, retry_key=retry_key)):
            return self._require_same_plan(known, plan)
        number = new_id()
        is_new = self._database.add(
            store.jobs,
            id=number,
            plan=plan["id"],
            account=account,
            state="queued",
            retry_key=retry_key,
            created=current_timestamp(),
        )
        if not is_new:  # a concurrent retry was faster
            known = self._database.find(store.jobs, account=account, retry_key=retry_key)
            return self._require_same_plan(known or {}, plan)
        return self.get(number)

    @staticmethod
    def _require_same_plan(stored_job: DatabaseRow, plan: DatabaseRow) -> DatabaseRow:
        if stored_job.get("plan") != plan["id"]:
            raise ParameterError("Idempotency-Key", "...", "was used for another request", "send a new key")
        return stored_job

    def get(self, number: str) -> DatabaseRow:
        """Return a job; raise NotFoundError if it does not exist."""
        job = self._database.find(store.jobs, id=number)
        if job is None:
            raise NotFoundError("job", number)
        return job

    def cancel(self, number: str) -> DatabaseRow:
        """Cancel a job and return it. Its reservation counts as spent; a job that never started is free."""
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
            except (sa.exc.SQLAlchemyError, LedgerError, OSError) as error:  # the database or the disk is unavailable
                _LOG.error("jobs: %s", type(error).__name__)  # workers continue, and the next poll checks them again
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
        job = self.get(number)  # read after the poll, so that it holds everything that an ended worker has written
        is_late = time.monotonic() - running.started_at > self._settings.limits.job_seconds
        ended, where = code is not None, {"id": number, "state": "running"}
        if not ended and (job["state"] != "running" or is_late):
            running.process.kill()
            running.process.wait()
            if is_late:
                outcome = {"message": "time limit exceeded", "detail": None, "ended": current_timestamp()}
                self._database.update(store.jobs, where, state="failed", **outcome)
            self._resolve_reservations(job, "stopped before its end")
        elif ended and job["state"] == "running":
            self._handle_dead_worker(job, f"its worker ended with status {code}")
        if running.process.poll() is not None:
            if job["state"] == "failed":
                self._resolve_reservations(job, "failed after its reservation")
            del self._running[number]

    def _handle_dead_worker(self, job: DatabaseRow, reason: str) -> None:
        """Queue a job again if its worker crashed before the charge; otherwise mark it as failed.

        After the charge, the crash could depend on the noise that was drawn. Another draw would then be published
        because of the value of the first. So there is no other draw: the job fails and stays charged.
        """
        self._deaths[job["id"]] += 1
        where = {"id": job["id"], "state": "running"}
        if self._deaths[job["id"]] < _MAX_WORKER_DEATHS and not self._has_reserved(job):
            self._database.update(store.jobs, where, state="queued", worker=None, detail=None)
            return
        outcome = {"message": "the worker process crashed", "detail": reason, "ended": current_timestamp()}
        self._database.update(store.jobs, where, state="failed", **outcome)
        self._resolve_reservations(job, reason)

    def _resolve_reservations(self, job: DatabaseRow, reason: str) -> None:
        """Settle the reservations of a job that will not continue as spent."""
        for guarded in self._ledgers_of(job):
            entry = guarded.ledger.find(job["id"])
            if entry is not None and entry.state == "reserved":
                guarded.ledger.resolve(entry.id, reason)

    def _has_reserved(self, job: DatabaseRow) -> bool:
        return any(guarded.ledger.find(job["id"]) is not None for guarded in self._ledgers_of(job))

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
            start_new_session=True,  # else Ctrl-C in a terminal kills the worker, which after a charge fails the job
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the worker ended before it read its settings: the next poll notices
            process.stdin.write(self._settings.to_json().encode())
            process.stdin.flush()
        with suppress(BrokenPipeError):
            process.stdin.close()
        return process

    def _requeue_lost_jobs(self) -> None:
        """Queue the jobs of other processes again that are gone or send no heartbeat."""
        limit = (datetime.now(UTC) - timedelta(seconds=_LOST_AFTER_SECONDS)).isoformat(timespec="milliseconds")
        for job in self._database.find_all(store.jobs, state="running"):
            if job["worker"] != self._name and ((job["seen"] or "") < limit or _is_dead_worker(job["worker"])):
                where = {"id": job["id"], "state": "running", "worker": job["worker"]}
                self._database.update(store.jobs, where, state="queued", worker=None, detail=None)


def _is_dead_worker(worker: str) -> bool:
    """Return True if a worker belongs to a process of this machine that no longer exists."""
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


_PROGRESS_SECONDS: Final = 0.5  # between two updates of a job's progress in the database
_FAILED_MESSAGE: Final = "the job failed. Hint: ask a custodian for the reason."


def execute_job(settings: Settings, database: Store, job: DatabaseRow) -> None:
    """Run a job in state ``running``. A repeated run continues under its reservation."""
    plan = database.find(store.plans, id=job["plan"])
    dataset = None if plan is None else database.find(store.datasets, name=plan["dataset"])
    if plan is None or dataset is None or plan["signed_by"] is None:
        raise PlanError("the plan is not signed, or its data set no longer exists. Hint: plan the run again.")
    schema = Schema.from_dict(json.loads(dataset["schema"]))
    ledgers = open_ledgers_for(settings, database, dataset["name"], job["account"])
    ledger = CompositeLedger(ledgers, job["id"])
    outcome: dict[str, Any] = {"certificate": None, "result": None, "digest": None}
    if plan["kind"] == "train":
        path = model_path(settings, job["id"])
        if not path.exists():
            forest, signed_plan = make_estimator(schema, plan, ledger)
            forest.fit(dataset["source"], plan=signed_plan)
            _save_once(forest, path)
        outcome["certificate"] = json.dumps(as_issued(load(path).privacy_, ledgers[0]))
        outcome["digest"] = file_digest(path)
    elif plan["kind"] == "evaluate":
        request = json.loads(plan["asked"])
        evaluation = evaluate(
            load(model_path(settings, plan["model"])),
            dataset["source"],
            epsilon=float(request["epsilon"]),
            delta=float(request["delta"]),
            ledger=ledger,
            invalid="drop",
        )
        if evaluation.plan.fingerprint() != plan["fingerprint"]:
            raise PlanError("the evaluation differs from the signed plan. Hint: plan it again.")
        outcome["certificate"] = json.dumps(as_issued(evaluation.privacy, ledgers[0]))
        outcome["result"] = json.dumps(evaluation.quality.to_dict())
    database.add(
        store.models,
        id=job["id"],
        job=job["id"],
        plan=plan["id"],
        dataset=dataset["name"],
        kind={"train": "trained", "answer": "answering", "evaluate": "evaluation"}[plan["kind"]],
        estimator=plan["estimator"],
        created=job["created"],  # not the time it ended, which may depend on rows
        **outcome,
    )
    database.update(
        store.jobs, {"id": job["id"], "state": "running"}, state="done", detail=None, ended=current_timestamp()
    )


def _save_once(forest: Any, path: Path) -> None:
    """Write a model file unless it exists: a worker that was thought dead must not publish a second outcome."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    save(forest, unfinished)
    try:
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        unfinished.unlink()


def main() -> int:
    """Run the job whose id is on the command line; settings come from standard input."""
    settings = Settings.from_json(sys.stdin.read())
    database = Store(settings)
    warnings.simplefilter("ignore")  # the output of a worker is discarded; the certificate states what matters
    job = database.find(store.jobs, id=sys.argv[1])
    if job is None or job["state"] != "running":
        return 0
    set_progress_callback(_JobProgress(database, job))
    try:
        execute_job(settings, database, job)
    except (BudgetExceededError, PlanError) as error:  # these messages contain public facts only
        _mark_failed(database, job, str(error), str(error))
    except VeilwoodError as error:
        _mark_failed(database, job, _FAILED_MESSAGE, f"{type(error).__name__}: {error}")
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]  # never the text, which may contain values of rows
        location = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
        _mark_failed(database, job, _FAILED_MESSAGE, location)
    return 0


class _JobProgress:
    """Progress callback of a running job. Only custodians see its text, because batches and rounds depend on rows."""

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
