# SPDX-License-Identifier: Apache-2.0
"""Job queue and worker processes. Each job is leased by one process of the service and runs in a worker process.

* Each start of a job has a random lease, and its worker writes under this lease. Writes of older workers are ignored.
* If the service stops or crashes, its jobs are queued again and continue under their reservations.
* If a worker crashes on its own, its job is retried only if it was not charged yet.
* A job that ends without an outcome settles its reservation as spent, because noise may have been drawn.
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from veilwood import errors
from veilwood.data.schema import Schema
from veilwood.evaluation.evaluate import evaluate
from veilwood.models.file import save
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.progress import set_progress_callback
from veilwood_service import store
from veilwood_service.accounts import TooManyError
from veilwood_service.budgets import Ledgers, RunLedger, grant_of
from veilwood_service.settings import Settings
from veilwood_service.store import DatabaseRow, Store, current_timestamp, new_id
from veilwood_service.training import load_model, make_estimator

_POLL_SECONDS: Final = 0.2
_HEARTBEAT_SECONDS: Final = 5.0
_HEADS_SECONDS: Final = 60.0  # interval of writing the ledgers' last events outside the database
_MAX_TRIES: Final = 3  # maximum number of starts of a job whose worker crashes before its charge
_LOST_AFTER_SECONDS: Final = 30.0  # without a heartbeat; six times the interval of heartbeats
_ERROR_PAUSE_SECONDS: Final = 1.0
_LOG: Final = logging.getLogger("veilwood.service")
_WORKER_ARGUMENTS: Final = ("-m", "veilwood_service.jobs")
_UNFINISHED: Final = ("queued", "running")


class LostLeaseError(errors.VeilwoodError):
    """A job has ended, or was leased to another worker meanwhile. Nothing of this worker is published."""


@dataclass
class _RunningJob:
    job: DatabaseRow
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)


class Jobs:
    """Queue that all processes of a service share, and the jobs that this process runs."""

    def __init__(self, settings: Settings, database: Store, ledgers: Ledgers) -> None:
        self._settings, self._database, self._ledgers = settings, database, ledgers
        self._running: dict[str, _RunningJob] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, name="jobs", daemon=True)
        self._last_heartbeat = self._last_heads = 0.0
        self.last_poll = -math.inf  # monotonic time of the last poll that reached the database

    def start(self) -> None:
        """Start the thread that leases and watches jobs."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and kill all workers. Their jobs are queued again, and resume with the service."""
        self._stopping.set()
        self._thread.join()
        for running in self._running.values():
            running.process.kill()
            running.process.wait()
            self._database.update(store.jobs, _is_held(running.job), state="queued", lease=None, detail=None)
        with suppress(OSError, errors.LedgerError, sa.exc.SQLAlchemyError):
            self._ledgers.note_heads()

    # -- the queue ---------------------------------------------------------------------------------------------------

    def add(self, account: str, plan: DatabaseRow, retry_key: str | None) -> DatabaseRow:
        """Queue a run of a signed plan and return its job. The same retry key of the same account returns the same job.

        Raises
        ------
        UseError
            If the plan is not signed.
        BudgetExceededError
            If the signature, the budget or an allowance has no room for this run in addition to the waiting runs.
        TooManyError
            If the account has too many unfinished jobs.
        """
        if plan["signed_by"] is None:
            raise errors.UseError("the plan is not signed. Hint: ask a custodian to read it and sign its hash.")
        with self._database.transaction():
            known = retry_key and self._database.find(store.jobs, account=account, retry_key=retry_key)
            if known:
                if known["plan"] != plan["id"]:
                    raise errors.ParameterError(
                        "Idempotency-Key", "...", "was used for another request", "send a new key"
                    )
                return known
            waiting = self._database.find_all(store.jobs, dataset=plan["dataset"], state=_UNFINISHED)
            of_account = self._database.find_all(store.jobs, account=account, state=_UNFINISHED)
            if len(of_account) >= self._settings.limits.jobs_per_account:
                raise TooManyError("you have too many unfinished jobs. Hint: wait until some are done.")
            self._check_affordable(account, plan, waiting)
            number, facts = new_id(), {"plan": plan["id"], "dataset": plan["dataset"], "account": account}
            self._database.add(store.jobs, id=number, state="queued", retry_key=retry_key, tries=0, **facts)
            self._database.record_event(account, "job.create", number, plan=plan["id"])
        return self.get(number)

    def _check_affordable(self, account: str, plan: DatabaseRow, waiting: list[DatabaseRow]) -> None:
        ledger = self._ledgers.open(plan["dataset"])
        ledger.require_chargeable()
        if plan["kind"] == "answer":
            return  # fitting a predictor spends nothing; each batch is charged
        uncharged = [job for job in waiting if ledger.find(job["id"]) is None]
        plans = {job["plan"]: self._database.find(store.plans, id=job["plan"]) or {} for job in uncharged}
        losses = [_loss_of(plans[job["plan"]]) for job in uncharged]
        ledger.check_affordable(Loss.total([*losses, _loss_of(plan)]))
        ledger.check_affordable(_loss_of(plan), self._ledgers.limits_for(plan["dataset"], account, plan))
        if self.runs_left(plan) <= 0:
            message = "all runs that the signature allows were started. Hint: ask a custodian to sign another plan."
            raise errors.BudgetExceededError(message, requested=_loss_of(plan), remaining=Loss.zero())

    def runs_left(self, plan: DatabaseRow) -> int:
        """Return the number of runs of a plan that can still start: the signed less the charged and unfinished runs."""
        if plan["runs"] is None:
            return 0 if plan["kind"] != "answer" else int(not self._database.find_all(store.jobs, plan=plan["id"]))
        ledger = self._ledgers.open(plan["dataset"])
        unfinished = self._database.find_all(store.jobs, plan=plan["id"], state=_UNFINISHED)
        waiting = sum(ledger.find(job["id"]) is None for job in unfinished)
        return int(plan["runs"]) - ledger.count_releases(grant_of(plan).part) - waiting

    def get(self, number: str) -> DatabaseRow:
        """Return a job; raise NotFoundError if it does not exist."""
        job = self._database.find(store.jobs, id=number)
        if job is None:
            raise errors.NotFoundError("job", number)
        return job

    def places(self) -> dict[str, int]:
        """Return the position in the queue of every waiting job, counted from 1."""
        return {job["id"]: place for place, job in enumerate(self._in_turn(), start=1)}

    def _in_turn(self) -> list[DatabaseRow]:
        """Return the waiting jobs in the order of their turns.

        Accounts take turns. The account with the fewest jobs ahead comes first. Ties go to the account whose last start
        is longest ago.
        """
        unfinished = self._database.find_all(store.jobs, state=_UNFINISHED)
        ahead = Counter(job["account"] for job in unfinished if job["state"] == "running")
        waiting = [job for job in unfinished if job["state"] == "queued"]
        served = self._last_starts({job["account"] for job in waiting}) if len(waiting) > 1 else {}
        keyed = []
        for job in waiting:
            keyed.append((ahead[job["account"]], served.get(job["account"], ""), job["created"], job))
            ahead[job["account"]] += 1
        return [job for *_, job in sorted(keyed, key=lambda row: row[:3])]

    def _last_starts(self, accounts: Iterable[str]) -> dict[str, str]:
        """Return the time at which a job of each account was last started."""
        latest = sa.select(store.jobs.c.account, sa.func.max(store.jobs.c.started))
        latest = latest.where(store.jobs.c.account.in_(accounts)).group_by(store.jobs.c.account)
        with self._database.snapshot() as connection:
            return {account: str(started or "") for account, started in connection.execute(latest)}

    def cancel(self, account: str, number: str) -> DatabaseRow:
        """Cancel a job and return it. Its reserved loss counts as spent; a job without a reservation spends nothing."""
        with self._database.transaction():
            if self._end_job(self.get(number), "cancelled", "cancelled"):
                self._database.record_event(account, "job.cancel", number)
        return self.get(number)

    def _end_job(self, job: DatabaseRow, state: str, message: str, detail: str | None = None) -> bool:
        """End an unfinished job without an outcome, and settle its reservation as spent."""
        with self._database.transaction():
            where = {"id": job["id"], "state": _UNFINISHED}
            outcome = {"state": state, "message": message, "detail": detail, "lease": None}
            if not self._database.update(store.jobs, where, ended=current_timestamp(), **outcome):
                return False
            settle_as_spent(self._ledgers, job, message)
        return True

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            try:
                self._poll_once()
                self.last_poll = time.monotonic()
            except (
                sa.exc.SQLAlchemyError,
                errors.LedgerError,
                OSError,
            ) as error:  # the database or the disk is unavailable
                _LOG.error("jobs: %s", type(error).__name__)  # workers continue, and the next poll checks them again
                self._stopping.wait(_ERROR_PAUSE_SECONDS)

    def _poll_once(self) -> None:
        for running in list(self._running.values()):
            self._check_worker(running)
        now = time.monotonic()
        if now - self._last_heartbeat > _HEARTBEAT_SECONDS:
            self._last_heartbeat = now
            for running in self._running.values():
                self._database.update(store.jobs, _is_held(running.job), seen=current_timestamp())
            self._requeue_lost_jobs()
        if now - self._last_heads > _HEADS_SECONDS:
            self._last_heads = now
            self._ledgers.note_heads()
        while len(self._running) < self._settings.limits.jobs_at_once and (job := self.lease_next()) is not None:
            self._running[job["id"]] = _RunningJob(job, self._spawn_worker(job))

    def _check_worker(self, running: _RunningJob) -> None:
        number, code = running.job["id"], running.process.poll()
        job = self.get(number)  # read after the poll, so that it holds everything that an ended worker has written
        is_held = job["state"] == "running" and job["lease"] == running.job["lease"]
        is_late = time.monotonic() - running.started_at > self._settings.limits.job_seconds
        if code is None and (not is_held or is_late):
            running.process.kill()
            running.process.wait()
            if is_held:
                self._end_job(job, "failed", "time limit exceeded")
        elif code is not None and is_held:
            self._handle_dead_worker(job, f"its worker ended with status {code}")
        if running.process.poll() is not None:
            del self._running[number]

    def _handle_dead_worker(self, job: DatabaseRow, reason: str) -> None:
        """Queue a job again if its worker crashed before the charge; otherwise mark it as failed.

        After the charge, the crash could depend on the noise that was drawn. A second draw would then be published
        because of the value of the first. The job therefore fails and stays charged.
        """
        with self._database.transaction():
            if job["tries"] < _MAX_TRIES and self._ledgers.open(job["dataset"]).find(job["id"]) is None:
                self._database.update(store.jobs, _is_held(job), state="queued", lease=None, detail=None)
            else:
                self._end_job(job, "failed", "the worker process crashed", reason)

    def lease_next(self) -> DatabaseRow | None:
        """Lease the job whose turn it is to this process, and return it; None if no job waits."""
        with self._database.transaction():
            for job in self._in_turn():
                now = current_timestamp()
                started = {"state": "running", "lease": new_id(), "started": now, "seen": now}
                where = {"id": job["id"], "state": "queued"}
                if self._database.update(store.jobs, where, tries=job["tries"] + 1, **started):
                    return self.get(job["id"])
        return None

    def _spawn_worker(self, job: DatabaseRow) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *_WORKER_ARGUMENTS, job["id"], job["lease"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # otherwise Ctrl-C in a terminal would kill it, and a charged job would fail
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the worker ended before it read its settings: the next poll notices
            process.stdin.write(self._settings.to_json().encode())
            process.stdin.flush()
        with suppress(BrokenPipeError):
            process.stdin.close()
        return process

    def _requeue_lost_jobs(self) -> None:
        """Queue the jobs of dead processes again: their leases have had no heartbeat for some time."""
        limit = (datetime.now(UTC) - timedelta(seconds=_LOST_AFTER_SECONDS)).isoformat(timespec="microseconds")
        for job in self._database.find_all(store.jobs, state="running"):
            if job["id"] not in self._running and (job["seen"] or "") < limit:
                # Its worker did not crash on its own: the start is not counted.
                values = {"state": "queued", "lease": None, "detail": None, "tries": job["tries"] - 1}
                self._database.update(store.jobs, _is_held(job), **values)


def _is_held(job: DatabaseRow) -> dict[str, Any]:
    """Return the database condition that a job still runs under its lease."""
    return {"id": job["id"], "state": "running", "lease": job["lease"]}


def _loss_of(plan: DatabaseRow) -> Loss:
    if not plan or plan["body"] is None:
        return Loss.zero()
    request = json.loads(plan["asked"])
    return requested_loss(request["epsilon"], request["delta"])


def settle_as_spent(ledgers: Ledgers, job: DatabaseRow, reason: str) -> None:
    """Settle the reservation of a run that publishes no outcome."""
    ledger = ledgers.open(job["dataset"])
    entry = ledger.find(job["id"])
    if entry is not None and entry.state == "reserved":
        ledger.resolve(entry.id, reason)


_PROGRESS_SECONDS: Final = 0.5  # between two updates of a job's progress in the database
_FAILED_MESSAGE: Final = "the job failed. Hint: ask a custodian for the reason."


def execute_job(database: Store, ledgers: Ledgers, job: DatabaseRow) -> None:
    """Run a leased job and publish its outcome. A repeated run continues under its reservation.

    Raises
    ------
    LostLeaseError
        If the job has ended or was leased again. Nothing is published then.
    """
    plan = database.find(store.plans, id=job["plan"])
    dataset = database.find(store.datasets, name=job["dataset"])
    if plan is None or dataset is None or plan["signed_by"] is None or dataset["source"] is None:
        raise errors.PlanError("the plan is not signed, or its table no longer exists. Hint: plan the run again.")

    def require_lease() -> None:
        if database.update(store.jobs, _is_held(job), seen=current_timestamp()) == 0:
            raise LostLeaseError("the job has ended, or another worker runs it.")

    schema = Schema.from_dict(json.loads(dataset["schema"]))
    limits = ledgers.limits_for(dataset["name"], job["account"], plan)
    ledger = RunLedger(ledgers.open(dataset["name"]), job["id"], job["account"], plan, limits, require_lease)
    certificate = result = content = None
    if plan["kind"] == "train":
        forest, signed_plan = make_estimator(schema, plan, ledger)
        forest.fit(dataset["source"], plan=signed_plan)
        certificate, content = forest.privacy_, _file_content(forest)
    elif plan["kind"] == "evaluate":
        request = json.loads(plan["asked"])
        evaluation = evaluate(
            load_model(database, plan["model"]),
            dataset["source"],
            epsilon=float(request["epsilon"]),
            delta=float(request["delta"]),
            ledger=ledger,
            invalid="drop",
        )
        if evaluation.plan.fingerprint() != plan["fingerprint"]:
            raise errors.PlanError("the evaluation differs from the signed plan. Hint: plan it again.")
        certificate, result = evaluation.privacy, json.dumps(evaluation.quality.to_dict())
    issued = None if certificate is None else ledger.as_issued(certificate)
    with database.transaction():
        ended = {"state": "done", "detail": None, "lease": None, "ended": current_timestamp()}
        if database.update(store.jobs, _is_held(job), **ended) == 0:
            raise LostLeaseError("the job has ended, or another worker runs it.")
        if issued is not None:
            ledger.publish()
        if content is not None:
            database.add(store.model_files, model=job["id"], content=content)
        database.add(
            store.models,
            id=job["id"],
            plan=plan["id"],
            dataset=dataset["name"],
            account=job["account"],
            kind={"train": "trained", "answer": "answering", "evaluate": "evaluation"}[plan["kind"]],
            estimator=plan["estimator"],
            name=plan["name"],
            note=plan["note"],
            evaluated=plan["model"],
            certificate=issued,
            result=result,
            created=job["created"],  # not the time it ended, which may depend on rows
        )


def _file_content(forest: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.veilwood"
        save(forest, path)
        return path.read_bytes()


def main() -> int:
    """Run the job whose id and lease are on the command line; settings come from standard input."""
    settings = Settings.from_json(sys.stdin.read())
    database = Store(settings)
    ledgers = Ledgers(settings, database)
    warnings.simplefilter("ignore")  # the output of a worker is discarded; the certificate states what matters
    job = database.find(store.jobs, id=sys.argv[1], lease=sys.argv[2], state="running")
    if job is None:
        return 0
    set_progress_callback(_JobProgress(database, job))
    try:
        execute_job(database, ledgers, job)
    except LostLeaseError:
        return 0
    except (errors.BudgetExceededError, errors.PlanError) as error:  # these messages contain public facts only
        _mark_failed(database, ledgers, job, str(error), str(error))
    except errors.VeilwoodError as error:
        _mark_failed(database, ledgers, job, _FAILED_MESSAGE, f"{type(error).__name__}: {error}")
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]  # never the text, which may contain values of rows
        location = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
        _mark_failed(database, ledgers, job, _FAILED_MESSAGE, location)
    return 0


class _JobProgress:
    """Progress callback of a running job. Only custodians see its text, because batches and rounds depend on rows."""

    def __init__(self, database: Store, job: DatabaseRow) -> None:
        self._database, self._where, self._last_update = database, _is_held(job), time.monotonic()

    def __call__(self, activity: str, number: int) -> None:
        if time.monotonic() - self._last_update > _PROGRESS_SECONDS:
            self._database.update(store.jobs, self._where, detail=f"{activity}: {number} so far")
            self._last_update = time.monotonic()


def _mark_failed(database: Store, ledgers: Ledgers, job: DatabaseRow, message: str, detail: str) -> None:
    with database.transaction():
        outcome = {"message": message, "detail": detail[:2000], "lease": None, "ended": current_timestamp()}
        if database.update(store.jobs, _is_held(job), state="failed", **outcome):
            settle_as_spent(ledgers, job, "failed after its reservation")


if __name__ == "__main__":
    sys.exit(main())
