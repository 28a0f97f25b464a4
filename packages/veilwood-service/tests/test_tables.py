# SPDX-License-Identifier: Apache-2.0
"""Rows have a life: one file per data set, cleaned at the start, deleted and retired."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from veilwood_service import routes_data, store
from veilwood_service.tables import save_upload
from veilwood_testing.running_service import CAR, CSV, SMALL_JOB, TABLE, Running, serving, upload_table

PARQUET = "application/vnd.apache.parquet"


def tables(running: Running) -> list[str]:
    return sorted(path.name for path in running.service.settings.tables_folder.iterdir())


def test_a_new_table_replaces_the_old_one_whatever_their_types(running: Running, tmp_path: Path) -> None:
    assert tables(running) == ["cars.csv"]
    TABLE.to_parquet(tmp_path / "cars.parquet")
    assert upload_table(running, (tmp_path / "cars.parquet").read_bytes(), PARQUET).is_success
    assert tables(running) == ["cars.parquet"]
    assert upload_table(running, CSV, "text/csv").is_success
    assert tables(running) == ["cars.csv"]


def test_a_start_removes_what_nobody_uses_and_nothing_else(tmp_path: Path) -> None:
    with serving(tmp_path / "service") as running:
        running.add_cars()
        folder = running.service.settings.tables_folder
        for name in (".cars.csv.0123456789", "gone.csv", ".new.csv.now"):
            (folder / name).write_bytes(CSV)
        for name in ("cars.csv", ".cars.csv.0123456789", "gone.csv"):
            os.utime(folder / name, (time.time() - 3600,) * 2)
    (tmp_path / "service").rename(tmp_path / "moved")  # a folder that was moved keeps its tables
    with serving(tmp_path / "moved") as running:
        assert tables(running) == [".new.csv.now", "cars.csv"]  # an upload of another process may be under way


def test_rows_are_deleted_and_a_retired_data_set_releases_nothing(running: Running) -> None:
    model, plan = running.trained(), running.signed(**SMALL_JOB)
    waiting = running.post("analyst", f"/v1/plans/{running.signed(**SMALL_JOB)['id']}/jobs")["id"]
    assert running.ask("custodian", "DELETE", "/v1/datasets/cars/table").status_code == 204
    assert tables(running) == []
    assert not running.get("analyst", "/v1/datasets/cars")["has_table"]
    assert running.ask("analyst", "POST", "/v1/datasets/cars/plans", json=SMALL_JOB).status_code == 422
    assert upload_table(running, CSV, "text/csv").is_success  # deleted rows can be replaced ...
    retired = running.post("custodian", "/v1/datasets/cars/retire", {"reason": "the study has ended"})
    assert (retired["retired"], retired["has_table"], tables(running)) == (True, False, [])
    assert running.get("analyst", f"/v1/jobs/{waiting}")["state"] == "failed"
    assert upload_table(running, CSV, "text/csv").status_code == 422  # ... and not those of a retired data set
    assert running.ask("analyst", "POST", f"/v1/plans/{plan['id']}/jobs").status_code == 409
    assert len(running.ledger()["entries"]) == 1
    rows = {"rows": CAR.X[:1].to_dict("records")}
    assert running.ask("analyst", "POST", f"/v1/models/{model}/predict", json=rows).is_success  # what is released stays


def test_an_upload_that_ends_after_its_data_set_was_retired_leaves_no_rows(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def save_and_retire(*given: Any) -> Path:
        path = await save_upload(*given)
        running.service.database.update(store.datasets, {"name": "cars"}, retired=1, source=None)
        return path

    monkeypatch.setattr(routes_data, "save_upload", save_and_retire)
    assert upload_table(running, CSV, "text/csv").status_code == 422
    assert tables(running) == []
