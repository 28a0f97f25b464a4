# SPDX-License-Identifier: Apache-2.0
"""Two tables that differ in one row leave the same trace everywhere a person without the custodian's role can look."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("fastapi")

from veilwood_audit.noninterference import force_outcomes
from veilwood_service import store
from veilwood_service.budgets import Ledgers
from veilwood_service.jobs import execute_job
from veilwood_service.store import DatabaseRow, Store
from veilwood_testing.running_service import CAR, TABLE, Running, serving

ROWS = TABLE[:60]
BAD = ROWS.iloc[[0]].assign(buying="unheard of")
NEIGHBOURS = {
    "one row less": ROWS[1:],
    "a row that does not fit": pd.concat([ROWS, BAD]),
    "another class": ROWS.assign(**{"class": ["vgood", *ROWS["class"][1:]]}),
}
OUTSIDERS = ("analyst", "auditor", "operator")


def trace(folder: Path, table: Any) -> list[str]:
    """Everything that others see of a training, private answers, a refusal and an evaluation."""
    seen: list[str] = []
    with serving(folder) as running, force_outcomes():
        running.add_cars(table=table.to_csv(index=False).encode())
        parameters = {"n_estimators": 2, "max_depth": 2, "random_state": 0}
        model = running.trained(epsilon=0.5, parameters=parameters)
        request: dict[str, Any] = {
            "estimator": "MatrixForestPredictor",
            "parameters": {"n_estimators": 2, "max_depth": 1},
        }
        predictor = running.run(running.signed(**request))["id"]
        rows = {"rows": CAR.X[:3].to_dict("records"), "epsilon": 0.5}
        running.post("analyst", f"/v1/models/{predictor}/quote", rows)
        seen.append(str(running.post("analyst", f"/v1/models/{predictor}/answers", rows)))
        parts = {**request, "parameters": {"mode": "subsample", "n_estimators": 2, "max_depth": 1}}
        of_parts = running.run(running.signed(**parts))["id"]
        for route in ("quote", "answers"):
            seen.append(str(running.post("analyst", f"/v1/models/{of_parts}/{route}", rows)))
        evaluation = running.run(running.sign(running.post("analyst", f"/v1/models/{model}/evaluations", {})))["id"]
        for role in OUTSIDERS:
            seen += look(running, role, model, predictor, evaluation)
    return seen


def look(running: Running, role: str, model: str, predictor: str, evaluation: str) -> Iterator[str]:
    places = [
        "/v1/datasets",
        "/v1/plans",
        "/v1/jobs",
        "/v1/models",
        "/v1/datasets/cars/ledger",
        "/v1/datasets/cars/schema",
        "/v1/datasets/cars/allowances",
        "/v1/datasets/cars/budget.svg",
        "/v1/events",
        "/v1/tokens",
    ]
    places += [f"/v1/models/{number}" for number in (model, predictor, evaluation)]
    places += [f"/v1/models/{model}/{part}" for part in ("file", "onnx", "effects", "report", "evaluations")]
    places += [f"/v1/jobs/{model}", "/v1/datasets/cars/expected", "/readyz", "/v1/metrics"]
    for place in places:
        found = running.ask(role, "GET", place)
        yield f"{role} {place} {found.status_code} {found.content!r}"


def neutral(seen: list[str]) -> list[str]:
    """Without random numbers and times."""
    text = "\n".join(seen)
    for number in dict.fromkeys(re.findall(r"\b[0-9a-f]{24}\b", text)):
        text = text.replace(number, "NUMBER")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", text)
    text = re.sub(r"(ledger_hash\W+)[0-9a-f]{64}", r"\1HASH", text)  # of a charge, which holds its time
    text = re.sub(r"/[^ '\"]*/tables/", "FOLDER/", text)
    text = re.sub(r"seconds_(sum|bucket\S*) [\d.e-]+", "SECONDS", text)
    return text.split("\n")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return neutral(trace(tmp_path_factory.mktemp("usual"), ROWS))


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_neighbours_look_alike_to_everybody_but_the_custodian(usual: list[str], tmp_path: Path, neighbour: str) -> None:
    assert neutral(trace(tmp_path, NEIGHBOURS[neighbour])) == usual


def test_a_planted_leak_is_seen(usual: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_as_message(records: Store, ledgers: Ledgers, job: DatabaseRow) -> None:
        execute_job(records, ledgers, job)
        size = (tmp_path / "tables" / "cars.csv").stat().st_size
        records.update(store.jobs, {"id": job["id"]}, message=f"{size} bytes")

    monkeypatch.setattr("veilwood_testing.running_service.execute_job", rows_as_message)
    assert neutral(trace(tmp_path, NEIGHBOURS["one row less"])) != usual
