# SPDX-License-Identifier: Apache-2.0
"""Jobs in workers of their own: cancelled, killed, and left behind by a service that went away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from veilwood.errors import LedgerError
from veilwood_service import jobs, store
from veilwood_service.settings import Limits, Settings
from veilwood_testing.running_service import SMALL_JOB, Running, serving

# A worker that has reserved and drawn its noise, and is never done. That others are is in test_client.
STUCK = """
import time
from veilwood_service import budgets as spends, jobs as worker
spends.CompositeLedger.settle = lambda *_: time.sleep(600)
worker.main()
"""


def started(running: Running) -> str:
    job = running.post("analyst", f"/v1/plans/{running.signed(**SMALL_JOB)['id']}/jobs")
    running.service.jobs.start()
    return str(job["id"])


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def state(running: Running, job: str) -> str:
    return str(running.get("analyst", f"/v1/jobs/{job}")["state"])


def ledger(running: Running) -> list[tuple[str, str]]:
    entries = running.get("auditor", "/v1/datasets/cars/ledger")["entries"]
    return [(entry["state"], entry["loss"]) for entry in entries]


def stuck(running: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job whose worker has reserved, and goes no further."""
    monkeypatch.setattr(jobs, "_WORKER_ARGUMENTS", ("-c", STUCK))
    job = started(running)
    wait_for(lambda: ledger(running) == [("reserved", "epsilon=0.5")])
    monkeypatch.undo()
    return job


def test_no_worker_hears_the_key_that_stops_the_service(running: Running) -> None:
    """Ctrl-C goes to all processes of a terminal: a worker that died of it had failed, and its charge was lost."""
    process = running.service.jobs._spawn_worker({"id": "0" * 24})
    try:
        assert os.getpgid(process.pid) == process.pid
    finally:
        process.kill()
        process.wait()


def test_a_worker_that_dies_before_it_hears_anything_is_noticed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe to it was broken then, and its job had stayed as running for ever."""
    monkeypatch.setattr(jobs, "_WORKER_ARGUMENTS", ("-S", "-c", "raise SystemExit(7)"))
    monkeypatch.setattr(Settings, "to_json", lambda _: "x" * 2**20)  # more than a pipe holds
    assert running.service.jobs._spawn_worker({"id": "0" * 24}).wait() == 7


def test_a_job_that_waits_is_cancelled_for_free(running: Running) -> None:
    job = running.post("analyst", f"/v1/plans/{running.signed(**SMALL_JOB)['id']}/jobs")["id"]
    running.ask("analyst", "DELETE", f"/v1/jobs/{job}")
    running.service.jobs.start()
    time.sleep(0.5)
    running.service.jobs.stop()
    assert (state(running, job), ledger(running)) == ("cancelled", [])


def test_a_job_that_is_cancelled_is_killed_and_stays_spent(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    job = stuck(running, monkeypatch)
    process = running.service.jobs._running[job].process
    assert running.ask("analyst", "DELETE", f"/v1/jobs/{job}").json()["state"] == "cancelled"
    wait_for(lambda: job not in running.service.jobs._running)
    running.service.jobs.stop()
    assert process.poll() is not None
    assert ledger(running) == [("resolved", "epsilon=0.5")]
    assert running.ask("analyst", "GET", f"/v1/models/{job}").status_code == 404


@pytest.mark.slow
def test_a_worker_that_dies_after_its_charge_is_not_tried_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died of what it drew: a second draw would be shown because of the first."""
    job = stuck(running, monkeypatch)
    running.service.jobs._running[job].process.kill()
    wait_for(lambda: job not in running.service.jobs._running)
    running.service.jobs.stop()
    assert (state(running, job), ledger(running)) == ("failed", [("resolved", "epsilon=0.5")])
    assert running.get("custodian", f"/v1/jobs/{job}")["detail"] == "its worker ended with status -9"


@pytest.mark.slow
def test_a_worker_that_dies_before_its_charge_is_tried_again(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_WORKER_ARGUMENTS", ("-c", "import sys; sys.stdin.read(); sys.exit(7)"))
    job = started(running)
    wait_for(lambda: running.service.jobs._deaths[job] > 0)
    monkeypatch.undo()
    wait_for(lambda: state(running, job) == "done")
    running.service.jobs.stop()
    assert ledger(running) == [("committed", "epsilon=0.5")]


def test_a_worker_that_dies_again_and_again_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_WORKER_ARGUMENTS", ("-S", "-c", "raise SystemExit(7)"))
    job = started(running)
    wait_for(lambda: state(running, job) == "failed")
    running.service.jobs.stop()
    assert ledger(running) == []
    assert running.get("custodian", f"/v1/jobs/{job}")["detail"] == "its worker ended with status 7"
    assert "status" not in running.get("analyst", f"/v1/jobs/{job}")


@pytest.mark.slow
def test_a_service_that_stops_goes_on_when_it_is_back(
    running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = stuck(running, monkeypatch)
    process = running.service.jobs._running[job].process
    running.service.jobs.stop()
    assert process.poll() is not None
    assert state(running, job) == "queued"
    with serving(tmp_path) as again:
        again.service.jobs.start()
        wait_for(lambda: state(again, job) == "done")
        again.service.jobs.stop()
        assert ledger(again) == [("committed", "epsilon=0.5")]


def test_a_job_of_a_process_that_is_gone_is_taken_over(running: Running) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = running.service.jobs._name.rpartition("-")[0]
    job = running.post("analyst", f"/v1/plans/{running.signed(**SMALL_JOB)['id']}/jobs")["id"]
    where: dict[str, Any] = {"id": job, "state": "queued"}
    running.service.database.update(
        store.jobs, where, state="running", worker=f"{host}-{gone.pid}", seen=store.current_timestamp()
    )
    running.service.jobs._requeue_lost_jobs()
    assert state(running, job) == "queued"
    running.service.database.update(
        store.jobs, where, state="running", worker="elsewhere-1", seen=store.current_timestamp()
    )
    running.service.jobs._requeue_lost_jobs()
    assert state(running, job) == "running"
    running.service.database.update(store.jobs, {"id": job}, seen="2020-01-01T00:00:00.000+00:00")
    running.service.jobs._requeue_lost_jobs()
    assert state(running, job) == "queued"


def test_a_job_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, limits=Limits(job_seconds=0)) as running:
        running.add_cars()
        monkeypatch.setattr(jobs, "_WORKER_ARGUMENTS", ("-c", STUCK))
        job = started(running)
        wait_for(lambda: state(running, job) == "failed")
        running.service.jobs.stop()
        assert running.get("analyst", f"/v1/jobs/{job}")["message"] == "time limit exceeded"


def test_a_ledger_that_is_away_for_a_moment_stops_no_queue(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_ERROR_PAUSE_SECONDS", 0.01)
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise LedgerError("the database is away")

    monkeypatch.setattr(running.service.jobs, "_poll_once", look)
    running.service.jobs.start()
    wait_for(lambda: len(looks) > 1)
    running.service.jobs.stop()
