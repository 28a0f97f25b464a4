# SPDX-License-Identifier: Apache-2.0
"""Jobs in workers of their own: cancelled, killed, and left behind by a service that went away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from veilwood.errors import BudgetExceededError, LedgerError
from veilwood.privacy.loss import requested_loss
from veilwood_service import jobs, store
from veilwood_service.budgets import RunLedger
from veilwood_service.jobs import LostLeaseError, execute_job
from veilwood_service.settings import Limits, Settings
from veilwood_testing.running_service import ENTRY_FACTS, SMALL_JOB, Running, serving

# A worker that has reserved and drawn its noise, and is never done. That others are is in test_client.
STUCK = """
import time
from veilwood_service import budgets, jobs
budgets.RunLedger.settle = lambda *_: time.sleep(600)
jobs.main()
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
    process = running.service.jobs._spawn_worker({"id": "0" * 24, "lease": "x"})
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
    assert running.service.jobs._spawn_worker({"id": "0" * 24, "lease": "x"}).wait() == 7


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
    wait_for(lambda: running.service.jobs.get(job)["tries"] > 1)
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


def test_a_job_whose_lease_is_not_extended_is_taken_over(running: Running) -> None:
    """In a container the process after a restart has host and number of the one before, and had kept its jobs."""
    jobs_ = running.service.jobs
    job = running.post("analyst", f"/v1/plans/{running.signed(**SMALL_JOB)['id']}/jobs")["id"]
    leased = jobs_.lease_next()
    assert leased is not None
    jobs_._requeue_lost_jobs()
    assert state(running, job) == "running"
    running.service.database.update(store.jobs, {"id": job}, seen="2020-01-01T00:00:00.000000+00:00")
    jobs_._requeue_lost_jobs()
    assert state(running, job) == "queued"
    again = jobs_.lease_next()
    assert again is not None
    assert again["lease"] != leased["lease"]


def test_what_a_worker_of_an_old_lease_does_is_ignored(running: Running) -> None:
    """A cancelled job had published its model, from a worker that outlived a killed service."""
    plan = running.signed(grant={"runs": 2}, **SMALL_JOB)
    service, path = running.service, f"/v1/plans/{plan['id']}/jobs"
    for end in ("cancelled", "leased again"):
        job = running.post("analyst", path)["id"]
        leased = service.jobs.lease_next()
        assert leased is not None
        reserved = RunLedger(service.ledgers.open("cars"), job, "analyst", plan, [])
        signed_plan = running.get("analyst", f"/v1/plans/{plan['id']}")["body"]
        facts = {**ENTRY_FACTS, "plan": plan["fingerprint"], "neighbours": "one row, added or removed"}
        assert signed_plan is not None
        reserved.reserve(requested_loss(0.5, 0), **facts)
        if end == "cancelled":
            running.ask("analyst", "DELETE", f"/v1/jobs/{job}")
        else:
            service.database.update(store.jobs, {"id": job}, lease="another")
        with pytest.raises(LostLeaseError):
            execute_job(service.database, service.ledgers, leased)
        assert running.ask("analyst", "GET", f"/v1/models/{job}").status_code == 404
        if end == "cancelled":
            assert ledger(running) == [("resolved", "epsilon=0.5")], "what ended without an outcome is settled"


def test_a_job_that_was_cancelled_charges_nothing_any_more(running: Running) -> None:
    job = running.post("analyst", f"/v1/plans/{running.signed(**SMALL_JOB)['id']}/jobs")["id"]
    leased = running.service.jobs.lease_next()
    assert leased is not None
    running.ask("analyst", "DELETE", f"/v1/jobs/{job}")
    with pytest.raises(LostLeaseError):
        execute_job(running.service.database, running.service.ledgers, leased)
    assert ledger(running) == []


def test_a_signature_is_used_up_by_its_runs(running: Running) -> None:
    """A plan that was signed once had been run four times, at epsilon 1 each."""
    plan = running.signed(**SMALL_JOB)
    path = f"/v1/plans/{plan['id']}/jobs"
    assert plan["runs_left"] == 1
    job = running.post("analyst", path)["id"]
    assert running.get("analyst", f"/v1/plans/{plan['id']}")["runs_left"] == 0
    assert running.ask("analyst", "POST", path).status_code == 409, "one that waits counts"
    running.carry_out(job)
    assert running.ask("analyst", "POST", path).status_code == 409
    # Where it is charged: also for a job that came past the check.
    forged = {"plan": plan["id"], "dataset": "cars", "account": "analyst", "state": "queued", "tries": 0}
    running.service.database.add(store.jobs, id="f" * 24, **forged)
    with pytest.raises(BudgetExceededError):
        running.carry_out("f" * 24)
    assert running.ledger()["spent"] == "epsilon=0.5"
    other = running.signed(grant={"runs": 2}, **SMALL_JOB)
    waiting = running.post("analyst", f"/v1/plans/{other['id']}/jobs")["id"]
    running.ask("analyst", "DELETE", f"/v1/jobs/{waiting}")
    assert running.get("analyst", f"/v1/plans/{other['id']}")["runs_left"] == 2, "a job that never ran used nothing"


def test_what_cannot_be_paid_is_refused_when_it_is_asked_for(running: Running) -> None:
    plan = running.signed(grant={"runs": 9}, epsilon=1, estimator="random-trees")
    for _ in range(3):
        running.post("analyst", f"/v1/plans/{plan['id']}/jobs")
    assert running.ask("analyst", "POST", f"/v1/plans/{plan['id']}/jobs").status_code == 409
    big = running.signed(epsilon=50, estimator="random-trees")
    assert running.ask("analyst", "POST", f"/v1/plans/{big['id']}/jobs").status_code == 409
    assert running.get("analyst", f"/v1/plans/{big['id']}")["warnings"] != []


def test_accounts_take_turns(tmp_path: Path) -> None:
    """200 jobs of one account had kept another person waiting for 17 minutes."""
    with serving(tmp_path, limits=Limits(jobs_per_account=4)) as running:
        running.add_cars(epsilon=100)
        plan = running.signed(grant={"runs": 20}, **SMALL_JOB)
        path = f"/v1/plans/{plan['id']}/jobs"
        first = [running.post("analyst", path)["id"] for _ in range(4)]
        assert running.ask("analyst", "POST", path).status_code == 429
        other = running.post("custodian", path)
        assert other["place"] == 2, "after one of those who came before"
        assert running.get("analyst", f"/v1/jobs/{first[3]}")["place"] == 5
        order = [running.service.jobs.lease_next() for _ in range(5)]
        assert [job and job["id"] for job in order] == [first[0], other["id"], *first[1:]]
        assert running.service.jobs.lease_next() is None
        assert running.get("analyst", f"/v1/jobs/{first[0]}")["seconds"] >= 0


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
