# SPDX-License-Identifier: Apache-2.0
"""A copy of a service, brought back: nothing that was released since is forgotten, and old ledgers go on."""

from __future__ import annotations

import shutil
import sqlite3
import tarfile
from pathlib import Path

import pytest

from veilwood_testing import FILES

pytest.importorskip("fastapi")

import veilwood as vw
from veilwood.errors import FileError, UseError
from veilwood_service import store
from veilwood_service.backup import back_up, freeze_ledgers, restore_backup
from veilwood_service.settings import Settings
from veilwood_testing.running_service import CAR, serving

OLD = FILES / "ledger-0.1.0.db"


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
    assert restore_backup(archive, after) == ["data_cars"]
    with serving(after) as running:
        old = running.test_client.get("/v1/datasets", headers={"Authorization": f"Bearer {token}"})
        assert old.status_code == 401, "a token that was taken back since must not come alive"
        assert running.ask("analyst", "GET", f"/v1/models/{kept}/file").content == file
        rows = {"rows": CAR.X[:2].to_dict("records")}
        assert len(running.post("analyst", f"/v1/models/{kept}/predict", rows)["predictions"]) == 2
        assert running.get("analyst", "/v1/datasets/cars")["frozen"]
        plan = running.signed(epsilon=0.1)
        job = running.post("analyst", f"/v1/plans/{plan['id']}/jobs")["id"]
        with pytest.raises(vw.LedgerError, match="frozen"):
            running.carry_out(job)
        path = "/v1/datasets/cars/ledger/reconcile"
        unreadable = running.ask("custodian", "POST", path, json={"reason": "x", "certificates": [{}]})
        assert (unreadable.status_code, "certificate" in unreadable.text) == (409, True)
        told = {"reason": "the disk broke", "certificates": [later, certificate]}
        found = running.post("custodian", path, told)
        assert (len(found["charged"]), found["spent"], found["frozen"]) == (1, "epsilon=1.5", False)
        running.carry_out(job)
        assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=1.6"


def test_gaps_that_no_certificate_explains_are_charged_or_refused(tmp_path: Path) -> None:
    archive = tmp_path / "monday.tar"
    with serving(tmp_path / "before") as running:
        running.add_cars()
        back_up(running.service.settings, archive)
        lost, kept = (running.get("analyst", f"/v1/models/{running.trained(epsilon=e)}") for e in (0.5, 1))
        assert lost["certificate"]["ledger_hash"] != kept["certificate"]["ledger_hash"]
    restore_backup(archive, tmp_path / "after")
    path = "/v1/datasets/cars/ledger/reconcile"
    told = {"reason": "the disk broke", "certificates": [kept["certificate"]] * 2}
    with serving(tmp_path / "after") as running:
        refused = running.ask("custodian", "POST", path, json=told)
        assert (refused.status_code, "1 events" in refused.text) == (409, True)
        assert running.get("analyst", "/v1/datasets/cars")["frozen"]
        found = running.post("custodian", path, {**told, "missing_epsilon": "0.75"})
        assert (len(found["charged"]), found["spent"], found["frozen"]) == (2, "epsilon=1.75", False)
    restore_backup(archive, tmp_path / "third")
    with serving(tmp_path / "third") as running:
        told["certificates"] = [kept["certificate"], lost["certificate"]]
        assert running.post("custodian", path, told)["spent"] == "epsilon=1.5"


def test_a_certificate_stands_for_its_own_event_alone(tmp_path: Path) -> None:
    """A run that was charged and never shown is no excuse for another of the same plan."""
    archive = tmp_path / "monday.tar"
    with serving(tmp_path / "before") as running:
        running.add_cars()
        plan = running.signed(epsilon=0.5, estimator="random-trees", parameters={"n_estimators": 2, "max_depth": 2})
        first = running.run(plan)["id"]
        running.service.database.remove(store.models, id=first)  # as if it had died after its charge
        back_up(running.service.settings, archive)
        later = running.run(plan)["certificate"]
    restore_backup(archive, tmp_path / "after")
    with serving(tmp_path / "after") as running:
        told = {"reason": "the disk broke", "certificates": [later]}
        found = running.post("custodian", "/v1/datasets/cars/ledger/reconcile", told)
        assert found["spent"] == "epsilon=1"


def test_limits_that_were_frozen_thaw_with_their_data_set(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.add_cars()
        running.post("custodian", "/v1/datasets/cars/allowances", {"account": "analyst", "epsilon": 2})
        running.trained(epsilon=0.5)
    assert len(freeze_ledgers(Settings(tmp_path))) == 2
    with serving(tmp_path) as running:
        running.post("custodian", "/v1/datasets/cars/ledger/reconcile", {"reason": "restored"})
        running.trained(epsilon=0.5)
        assert running.get("analyst", "/v1/datasets/cars")["remaining_for_you"] == "epsilon=1"


def test_copies_overwrite_nothing_and_hold_whole_databases(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as running:
        running.add_cars()
        back_up(running.service.settings, tmp_path / "a.tar")
    with pytest.raises(FileError, match="exists"):
        back_up(Settings(tmp_path / "s"), tmp_path / "a.tar")
    with pytest.raises(UseError, match="not empty"):
        restore_backup(tmp_path / "a.tar", tmp_path / "s")
    (tmp_path / "b.tar").write_bytes(b"not an archive")
    with pytest.raises(FileError, match="cannot be read"):
        restore_backup(tmp_path / "b.tar", tmp_path / "t")
    with tarfile.open(tmp_path / "a.tar") as tar:
        names = set(tar.getnames())
        tar.extract("ledgers/data_cars.db", tmp_path, filter="data")
    assert names == {"service.db", "tables/cars.csv", "ledgers/data_cars.db", "ledgers/data_cars.head.json"}
    with sqlite3.connect(tmp_path / "ledgers" / "data_cars.db") as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_ledger_of_the_first_version_goes_on_in_the_service(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        shutil.copy(OLD, running.service.settings.ledgers_folder / "data_cars.db")
        other = {"name": "cars", "people": "makers of cars", "epsilon": 50}
        assert running.ask("custodian", "POST", "/v1/datasets", json=other).status_code == 409
        running.add_cars(epsilon=3)
        ledger = running.get("auditor", "/v1/datasets/cars/ledger")
        assert (ledger["spent"], len(ledger["entries"])) == ("epsilon=0.75", 2)
        running.trained(epsilon=1)
        assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=1.75"
        running.post("auditor", "/v1/datasets/cars/ledger/verify")
