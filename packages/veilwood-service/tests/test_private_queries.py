# SPDX-License-Identifier: Apache-2.0
"""Private answers across starts: counts are made anew from the table, answers come from the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from veilwood_service.private_queries import PrivateQueries
from veilwood_testing.running_service import CAR, VISITS, serving

ASKED: dict[str, Any] = {
    "estimator": "MatrixForestPredictor",
    "epsilon": 0.5,
    "parameters": {"n_estimators": 2, "max_depth": 1, "mechanism": "laplace"},
}


def test_a_service_that_starts_again_counts_anew_and_charges_nothing_twice(tmp_path: Path) -> None:
    rows = {"rows": CAR.X[:3].to_dict("records")}
    with serving(tmp_path) as running:
        running.add_cars()
        model = running.run(running.signed(**ASKED))["id"]
        first = running.post("analyst", f"/v1/models/{model}/answers", rows)
        on_disk = {path.name for path in tmp_path.rglob("*") if path.is_file()}
        assert not any(model in name for name in on_disk), "exact counts are never on disk"
    with serving(tmp_path) as running:
        assert isinstance(running.service.private_queries, PrivateQueries)
        assert running.service.private_queries._predictors == {}
        assert running.post("analyst", f"/v1/models/{model}/answers", rows) == first
        assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=0.5"
        more = {"rows": CAR.X[3:6].to_dict("records")}
        assert len(running.post("analyst", f"/v1/models/{model}/answers", more)["labels"]) == 3
        assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=1"


def test_a_trained_model_is_no_private_predictor(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.add_cars()
        model = running.trained()
        refused = running.ask("analyst", "POST", f"/v1/models/{model}/answers", json={"rows": [{}]})
        assert refused.status_code == 404


@pytest.mark.parametrize(
    "parameters",
    [
        {"mode": "subsample"},
        pytest.param({"mode": "batch"}, marks=pytest.mark.slow),
        pytest.param({"mode": "subsample", "voting": "hard"}, marks=pytest.mark.slow),
    ],
)
def test_each_kind_of_private_answers_is_quoted_charged_kept_and_refused(
    tmp_path: Path, parameters: dict[str, str]
) -> None:
    """Also subsample-and-aggregate: each start draws its secret key anew, and stored answers stay what they were."""
    request = {**ASKED, "parameters": {"n_estimators": 4, "max_depth": 2, **parameters}}
    rows = VISITS.drop(columns="ill").to_dict("records")
    with serving(tmp_path) as running:
        running.add_visits(epsilon=1.25)
        model = running.run(running.signed("visits", **request))["id"]
        quoted = running.post("analyst", f"/v1/models/{model}/quote", {"rows": rows[:3]})
        assert (quoted["epsilon"], quoted["answered_before"], quoted["remaining"]) == ("1/2", False, "epsilon=1.25")
        assert quoted["expected_squared_error"] > 0
        assert running.get("auditor", "/v1/datasets/visits/ledger")["entries"] == []
        first = running.post("analyst", f"/v1/models/{model}/answers", {"rows": rows[:3]})
        assert set(first["labels"]) <= {"no", "yes"}
        assert (first["certificate"]["is_private"], first["certificate"]["epsilon"]) == (True, 0.5)
        assert running.post("analyst", f"/v1/models/{model}/quote", {"rows": rows[:3]})["answered_before"]
    with serving(tmp_path) as running:
        texts = [{name: str(cell) for name, cell in row.items()} for row in rows[:3]]  # as the page sends them
        assert running.post("analyst", f"/v1/models/{model}/answers", {"rows": texts}) == first
        running.post("analyst", f"/v1/models/{model}/answers", {"rows": rows[20:24]})
        refused = running.ask("analyst", "POST", f"/v1/models/{model}/answers", json={"rows": rows[40:43]})
        assert (refused.status_code, refused.json()["remaining"]) == (409, "epsilon=0.25")
        cheaper = {"rows": rows[40:43], "epsilon": 0.25}
        assert len(running.post("analyst", f"/v1/models/{model}/answers", cheaper)["labels"]) == 3
        assert running.get("auditor", "/v1/datasets/visits/ledger")["remaining"] == "epsilon=0"


def test_a_file_with_numbers_is_predicted_for(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.add_visits()
        request: dict[str, Any] = {"estimator": "random-trees", "parameters": {"n_estimators": 2, "max_depth": 2}}
        model = running.run(running.signed("visits", **request))["id"]
        rows = VISITS[:50].drop(columns="ill")
        file = {"content": VISITS[:50].to_csv(index=False), "headers": {"Content-Type": "text/csv"}}
        found = running.ask("analyst", "POST", f"/v1/models/{model}/predict.csv", **file)
        assert found.status_code == 200, found.text
        labels = [line.split(",")[0] for line in found.text.splitlines()[1:]]
        assert (
            labels
            == running.post("analyst", f"/v1/models/{model}/predict", {"rows": rows.to_dict("records")})["predictions"]
        )
