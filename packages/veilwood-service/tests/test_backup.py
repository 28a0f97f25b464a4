# SPDX-License-Identifier: Apache-2.0
"""A copy of a service, brought back: nothing that was released since is forgotten, and old ledgers go on."""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from veilwood.errors import FileError, UseError
from veilwood_service import store
from veilwood_service.backup import back_up, freeze_ledgers, restore_backup
from veilwood_service.settings import Settings
from veilwood_testing.running_service import CAR, SMALL_JOB, Running, serving, settings_for_store


def frozen(running: Running) -> bool:
    return running.get("analyst", "/v1/datasets/cars")["frozen"] is not None


def charge(running: Running, *certificates: Any) -> Any:
    body = {"certificates": list(certificates)}
    return running.post("custodian", "/v1/datasets/cars/ledger/certificates", body)


def thaw(running: Running, missing_epsilon: Any = "0") -> Any:
    body = {"reason": "the disk broke", "missing_epsilon": missing_epsilon}
    return running.ask("custodian", "POST", "/v1/datasets/cars/ledger/thaw", json=body)


def test_a_copy_comes_back_frozen_until_later_releases_are_charged(tmp_path: Path) -> None:
    before, after, archive = tmp_path / "before", tmp_path / "after", tmp_path / "monday.tar"
    with serving(before) as running:
        running.add_cars()
        kept = running.trained(epsilon=0.5)
        running.post("custodian", "/v1/datasets/cars/allowances", {"account": "analyst", "epsilon": 2})
        back_up(Settings(before), archive)
        later = running.get("analyst", f"/v1/models/{running.trained(epsilon=1)}")["certificate"]
        file = running.ask("analyst", "GET", f"/v1/models/{kept}/file").content
        certificate = running.get("analyst", f"/v1/models/{kept}")["certificate"]
        token = running.tokens["analyst"]
    assert archive.stat().st_mode & 0o077 == 0
    assert restore_backup(archive, Settings(after)) == ["cars"]
    with serving(after) as running:
        old = running.test_client.get("/v1/datasets", headers={"Authorization": f"Bearer {token}"})
        assert old.status_code == 401, "a token that was taken back since must not come alive"
        assert running.ask("analyst", "GET", f"/v1/models/{kept}/file").content == file
        rows = {"rows": CAR.X[:2].to_dict("records")}
        assert len(running.post("analyst", f"/v1/models/{kept}/predict", rows)["predictions"]) == 2
        assert frozen(running)
        plan = running.signed(epsilon=0.1)
        assert running.ask("analyst", "POST", f"/v1/plans/{plan['id']}/jobs").status_code == 409
        unreadable = running.ask(
            "custodian", "POST", "/v1/datasets/cars/ledger/certificates", json={"certificates": [{}]}
        )
        assert unreadable.status_code == 409
        found = charge(running, later, certificate)
        assert (len(found["charged"]), found["spent"]) == (1, "epsilon=1.5")
        reason = {"reason": "the disk broke"}
        typed = running.ask("custodian", "POST", "/v1/datasets/cars/ledger/thaw", json=reason)
        assert typed.status_code == 422, "the loss of what has no certificate is stated, 0 included"
        assert thaw(running).status_code == 200
        running.run(plan)
        assert running.ledger()["spent"] == "epsilon=1.6"


def test_certificates_are_taken_at_any_time(tmp_path: Path) -> None:
    """Handed in a minute after the ledger was thawed, one could never be charged."""
    archive = tmp_path / "monday.tar"
    with serving(tmp_path / "before") as running:
        running.add_cars()
        back_up(running.service.settings, archive)
        late = running.get("analyst", f"/v1/models/{running.trained(epsilon=1)}")["certificate"]
        assert charge(running, late)["charged"] == []
    restore_backup(archive, Settings(tmp_path / "after"))
    with serving(tmp_path / "after") as running:
        assert thaw(running).status_code == 200
        running.trained(epsilon=0.5)
        assert charge(running, late)["spent"] == "epsilon=1.5"
        assert charge(running, late, late)["charged"] == []
        running.post("auditor", "/v1/datasets/cars/ledger/verify")


def test_gaps_that_no_certificate_explains_are_charged_or_refused(tmp_path: Path) -> None:
    archive = tmp_path / "monday.tar"
    with serving(tmp_path / "before") as running:
        running.add_cars()
        back_up(running.service.settings, archive)
        lost, kept = (running.get("analyst", f"/v1/models/{running.trained(epsilon=e)}") for e in (0.5, 1))
        assert lost["certificate"]["ledger_hash"] != kept["certificate"]["ledger_hash"]
    restore_backup(archive, Settings(tmp_path / "after"))
    with serving(tmp_path / "after") as running:
        charge(running, kept["certificate"], kept["certificate"])
        assert thaw(running).status_code == 409
        assert frozen(running)
        assert (thaw(running, "0.75").json()["spent"], frozen(running)) == ("epsilon=1.75", False)
    restore_backup(archive, Settings(tmp_path / "third"))
    with serving(tmp_path / "third") as running:
        charge(running, kept["certificate"], lost["certificate"])
        assert thaw(running).json()["spent"] == "epsilon=1.5"


def test_a_certificate_stands_for_its_own_event_alone(tmp_path: Path) -> None:
    """A run that was charged and never shown is no excuse for another of the same plan."""
    archive = tmp_path / "monday.tar"
    with serving(tmp_path / "before") as running:
        running.add_cars()
        request: dict[str, Any] = {"estimator": "random-trees", "parameters": {"n_estimators": 2, "max_depth": 2}}
        plan = running.signed(grant={"runs": 2}, epsilon=0.5, **request)
        first = running.run(plan)["id"]
        running.service.database.remove(store.models, id=first)  # as if it had died after its charge
        back_up(running.service.settings, archive)
        later = running.run(plan)["certificate"]
    restore_backup(archive, Settings(tmp_path / "after"))
    with serving(tmp_path / "after") as running:
        assert charge(running, later)["spent"] == "epsilon=1"


def test_unfinished_runs_end_with_a_restore_and_stay_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as running:
        running.add_cars()
        plan = running.signed(**SMALL_JOB)
        job = running.post("analyst", f"/v1/plans/{plan['id']}/jobs")["id"]
        with monkeypatch.context() as patch:
            patch.setattr("veilwood_service.jobs.save", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
            with pytest.raises(OSError, match="full"):
                running.carry_out(job)
        assert running.ledger()["entries"][0]["state"] == "reserved"
        assert freeze_ledgers(Settings(tmp_path)) == ["cars"]
    with serving(tmp_path) as running:
        assert running.get("analyst", f"/v1/jobs/{job}")["state"] == "failed"
        assert running.ledger()["entries"][0]["state"] == "resolved"


def test_copies_overwrite_nothing_and_come_back_for_their_owner_alone(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as running:
        running.add_cars()
        back_up(running.service.settings, tmp_path / "a.tar")
    with pytest.raises(FileError):
        back_up(Settings(tmp_path / "s"), tmp_path / "a.tar")
    with pytest.raises(UseError):
        restore_backup(tmp_path / "a.tar", Settings(tmp_path / "s"))
    (tmp_path / "b.tar").write_bytes(b"not an archive")
    with pytest.raises(FileError):
        restore_backup(tmp_path / "b.tar", Settings(tmp_path / "t"))
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert set(tar.getnames()) == {"service.db", "tables/cars.csv"}
    (tmp_path / "open").mkdir(mode=0o755)
    restore_backup(tmp_path / "a.tar", Settings(tmp_path / "open"))
    rights = {path.name: path.stat().st_mode & 0o077 for path in [tmp_path / "open", *(tmp_path / "open").rglob("*")]}
    assert set(rights.values()) == {0}, rights
    with closing(sqlite3.connect(tmp_path / "open" / "service.db")) as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
def test_a_backup_beside_postgresql_leaves_no_database_behind(tmp_path: Path) -> None:
    with settings_for_store("PostgreSQL", tmp_path / "s") as settings:
        with serving(settings.folder, database=settings.database) as running:
            running.add_cars()
            model = running.trained(epsilon=0.5)
        back_up(settings, tmp_path / "a.tar")
        assert not (settings.folder / "service.db").exists()
        restored = Settings(tmp_path / "t", database=settings.database)
        assert restore_backup(tmp_path / "a.tar", restored) == ["cars"]
        with serving(tmp_path / "t", database=settings.database) as running:
            assert frozen(running)
            assert thaw(running).status_code == 200
            assert running.get("analyst", f"/v1/models/{model}")["kind"] == "trained"
            running.trained(epsilon=0.5)


def test_a_thaw_states_the_loss_of_releases_without_a_certificate(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.add_cars()
        running.service.ledgers.freeze("cars", "a backup was restored")
        path, reason = "/v1/datasets/cars/ledger/thaw", {"reason": "disk"}
        assert running.ask("custodian", "POST", path, json=reason).status_code == 422
        assert frozen(running)
        assert thaw(running, "1/2").is_success
        assert running.ledger()["spent"] == "epsilon=0.5"
