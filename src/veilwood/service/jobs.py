# SPDX-License-Identifier: Apache-2.0
"""The queue of jobs: each is claimed by one process of the service, runs in a worker, and survives both.

A job whose service died or stopped is queued again and goes on under the reservation that it has. A worker that died
by itself is tried again only if it had not been charged. A job that is cancelled is killed; what it had reserved is
settled as spent, since noise may have been drawn.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import sqlalchemy as sa

from veilwood.errors import LedgerError, ParameterError, UseError
from veilwood.service import store
from veilwood.service.settings import Settings
from veilwood.service.spends import Book, ledgers_for
from veilwood.service.store import Record, Store, new_id, now

__all__ = ["Jobs"]

_LOOK_SECONDS: Final = 0.2
_BEAT_SECONDS: Final = 5.0
_MOST_DEATHS: Final = 3  # of workers of one job
_LOST_SECONDS: Final = 30.0  # without a sign of life
_PAUSE_SECONDS: Final = 1.0
_LOG: Final = logging.getLogger("veilwood.service")
_WORKER: Final = ("-m", "veilwood.service.worker")


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
