# SPDX-License-Identifier: Apache-2.0
"""Private answers across starts: counts are made anew from the table, answers come from the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fixtures.serving import CAR, serving
from veilwood.service.answering import Answering

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
        assert isinstance(running.service.answering, Answering)
        assert running.service.answering._predictors == {}
        assert running.post("analyst", f"/v1/models/{model}/answers", rows) == first
        assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=0.5"
        more = {"rows": CAR.X[3:6].to_dict("records")}
        assert len(running.post("analyst", f"/v1/models/{model}/answers", more)["labels"]) == 3
        assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=1"


def test_a_trained_model_does_not_answer_at_a_price(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.add_cars()
        model = running.trained()
        refused = running.ask("analyst", "POST", f"/v1/models/{model}/answers", json={"rows": [{}]})
        assert refused.status_code == 422
