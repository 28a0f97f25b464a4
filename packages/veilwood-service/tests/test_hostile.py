# SPDX-License-Identifier: Apache-2.0
"""Requests that were made to break the service: for others, for good, or without an account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from veilwood_testing.running_service import CAR, Running, serving, settings_for_store

JSON = {"Content-Type": "application/json"}
SUBSAMPLE: dict[str, Any] = {
    "estimator": "MatrixForestPredictor",
    "parameters": {"mode": "subsample", "n_estimators": 4, "max_depth": 1},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service")) as found:
        found.add_cars()
        yield found


@pytest.mark.parametrize("given", ['{"class_weight": NaN}', '{"class_weight": "balanced"}', '{"random_state": 1e999}'])
def test_no_plan_of_one_keeps_others_from_seeing_theirs(running: Running, given: str) -> None:
    """A number that JSON cannot show was kept with a plan, and the list of plans was broken for everybody."""
    text = f'{{"estimator": "random-trees", "parameters": {given}}}'
    found = running.ask("analyst", "POST", "/v1/datasets/cars/plans", content=text, headers=JSON)
    assert found.status_code == 422, found.text
    running.get("custodian", "/v1/plans")


@pytest.mark.parametrize("epsilon", ["Infinity", "1e999"])
@pytest.mark.parametrize("estimator", ["MatrixForestPredictor", "random-trees"])
def test_nothing_without_a_guarantee_is_proposed(running: Running, estimator: str, epsilon: str) -> None:
    text = f'{{"estimator": "{estimator}", "epsilon": {epsilon}}}'
    found = running.ask("analyst", "POST", "/v1/datasets/cars/plans", content=text, headers=JSON)
    assert (found.status_code, "finite epsilon" in found.text) == (422, True), found.text


def test_no_name_of_a_page_breaks_anything(running: Running) -> None:
    for name in ("a" * 300 + ".html", "%00.html", "..%2f..%2fapp.py", "\u00e9" * 200 + ".js"):
        assert running.test_client.get(f"/page/{name}").status_code == 404, name


def test_records_are_for_their_owner_whatever_the_rights_of_the_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with serving(tmp_path) as running:
        running.add_cars()
        rights = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert rights
    assert set(rights.values()) == {0}, rights


def test_plans_that_take_long_leave_room_for_others(running: Running) -> None:
    lane = running.service.lanes.plans
    lane._n_present += lane._max_present
    try:
        busy = running.ask("analyst", "POST", "/v1/datasets/cars/plans", json={"estimator": "random-trees"})
        assert busy.status_code == 429
        running.get("analyst", "/v1/plans")
    finally:
        lane._n_present -= lane._max_present
    running.post("analyst", "/v1/datasets/cars/plans", {"estimator": "random-trees"})


def test_subsamples_are_quoted_answered_and_charged_once(tmp_path: Path) -> None:
    rows = {"rows": CAR.X[:4].to_dict("records"), "epsilon": 0.5}
    with serving(tmp_path) as first:
        first.add_cars(epsilon=0.75)
        model = first.run(first.signed(**SUBSAMPLE))["id"]
        quoted = first.post("analyst", f"/v1/models/{model}/quote", rows)
        assert (quoted["epsilon"], quoted["answered_before"]) == ("1/2", False)
        answer = first.post("analyst", f"/v1/models/{model}/answers", rows)
        assert (len(answer["labels"]), answer["certificate"]["epsilon"]) == (4, 0.5)
    with serving(tmp_path) as again:  # counted anew, and answered from the store
        assert again.post("analyst", f"/v1/models/{model}/answers", rows) == answer
        assert again.get("auditor", "/v1/datasets/cars")["spent"] == "epsilon=0.5"
        turned = {"rows": rows["rows"][::-1], "epsilon": 0.5}  # type: ignore[index]
        refused = again.ask("analyst", "POST", f"/v1/models/{model}/answers", json=turned)
        assert (refused.status_code, refused.json()["remaining"]) == (409, "epsilon=0.25")
        again.post("analyst", f"/v1/models/{model}/answers", {**turned, "epsilon": 0.25})
        assert again.get("auditor", "/v1/datasets/cars")["remaining"] == "epsilon=0"


@pytest.mark.slow
def test_what_postgresql_cannot_keep_is_refused(tmp_path: Path) -> None:
    """Null characters, and texts longer than their columns, which SQLite takes."""
    with (
        settings_for_store("PostgreSQL", tmp_path) as settings,
        serving(tmp_path, database=settings.database) as running,
    ):
        running.add_cars()
        for limit in ({"account": "\x00", "epsilon": 1}, {"epsilon": "0." + "3" * 60}):
            found = running.ask("custodian", "POST", "/v1/datasets/cars/allowances", json=limit)
            assert found.status_code == 422, found.text
        for place in ("/v1/plans/%00", "/v1/models/%00", "/v1/jobs/%00", "/v1/datasets/%00"):
            assert running.ask("custodian", "GET", place).status_code in (404, 422), place
