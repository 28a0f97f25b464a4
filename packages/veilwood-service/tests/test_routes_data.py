# SPDX-License-Identifier: Apache-2.0
"""Tables over HTTP: where they may come from, and what they may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from veilwood_service.settings import Limits
from veilwood_testing.running_service import CSV, SMALL_JOB, Running, serving, upload_table


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), limits=Limits(upload_bytes=200_000)) as found:
        found.add_cars()
        yield found


@pytest.mark.parametrize("source", ["/etc/passwd", "../../etc/passwd", "allowed/../secret.csv", "allowed/link.csv", ""])
def test_tables_are_registered_from_allowed_folders_alone(tmp_path: Path, source: str) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (tmp_path / "secret.csv").write_bytes(CSV)
    (allowed / "link.csv").symlink_to(tmp_path / "secret.csv")
    (allowed / "good.csv").write_bytes(CSV)
    with serving(tmp_path / "service", allowed=(str(allowed),)) as running:
        request = {"name": "a", "people": "x", "epsilon": 1, "source": str(tmp_path / source)}
        refused = running.ask("custodian", "POST", "/v1/datasets", json=request)
        assert refused.status_code == 422
        assert str(tmp_path) not in refused.text
        request["source"] = str(allowed / "good.csv")
        assert running.ask("custodian", "POST", "/v1/datasets", json=request).status_code == 201


def test_hostile_uploads_are_refused_and_leave_nothing(running: Running) -> None:
    folder = running.service.settings.tables_folder
    before = {path: path.read_bytes() for path in folder.iterdir()}
    parquet = "application/vnd.apache.parquet"
    secret = b"name,diagnosis\nOtto,secret\n"
    found = [
        upload_table(running, secret * 20_000, "text/csv"),  # too long
        upload_table(running, b"", "text/csv"),
        upload_table(running, secret, "application/zip"),
        upload_table(running, secret, parquet),
        upload_table(running, b"PAR1" + b"\0" * 100 + b"PAR1", parquet),
        upload_table(running, b"\x1f\x8b" + secret, "text/csv", **{"Content-Encoding": "gzip"}),
    ]
    assert [answer.status_code for answer in found] == [413, 422, 422, 422, 422, 415]
    assert not any("Otto" in answer.text or "secret" in answer.text for answer in found)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_allowances_are_possible_and_bind_whom_they_name(running: Running) -> None:
    def add(**body: Any) -> int:
        return running.ask("custodian", "POST", "/v1/datasets/cars/allowances", json=body).status_code

    assert add(account="annalyst", epsilon=1) == 404  # a typo would limit nobody
    assert add(account="analyst", epsilon=4) == 422  # above the budget of 3
    assert [add(account=name, epsilon=1) for name in ("analyst", "custodian", "")] == [201] * 3
    assert add(account="analyst", epsilon=2) == 422
    visible = {
        role: [one["account"] for one in running.get(role, "/v1/datasets/cars/allowances")]
        for role in ("analyst", "operator", "auditor")
    }
    assert visible == {"analyst": ["analyst", ""], "operator": [""], "auditor": ["analyst", "custodian", ""]}


def test_lists_come_in_pages(running: Running) -> None:
    for i in range(3):
        running.post("analyst", "/v1/datasets/cars/plans", {**SMALL_JOB, "name": f"plan {i}"})
    names, after = list[str](), ""
    for _ in range(3):
        page = running.get("analyst", f"/v1/plans?limit=1{after}")
        names += [plan["name"] for plan in page["items"]]
        after = f"&after={page['next']}"
    assert (names, page["next"]) == (["plan 2", "plan 1", "plan 0"], None)
    for path in ("plans", "jobs", "models", "datasets", "datasets/cars/ledger", "events"):
        assert len(str(running.get("auditor", f"/v1/{path}?limit=1"))) > 0
        assert running.ask("auditor", "GET", f"/v1/{path}?limit=501").status_code == 422
