# SPDX-License-Identifier: Apache-2.0
"""What people do with a service: register rows, plan, sign, run, predict, ask at a price, evaluate, download."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

from veilwood_service.budgets import RunLedger
from veilwood_testing.running_service import CAR, Running


def test_budgets_of_people_and_periods_bind_together(running: Running) -> None:
    limit = {"account": "analyst", "epsilon": 0.6}
    running.post("custodian", "/v1/datasets/cars/allowances", limit)
    yearly = running.post("custodian", "/v1/datasets/cars/allowances", {"period": "year", "epsilon": 2})
    assert "renews" in yearly["warning"]
    running.trained(epsilon=0.5)
    assert running.get("analyst", "/v1/datasets/cars")["remaining_for_you"] == "epsilon=0.1"
    assert running.get("custodian", "/v1/datasets/cars")["remaining_for_you"] == "epsilon=1.5"
    plan = running.signed(epsilon=0.5, estimator="random-trees")
    refused = running.ask("analyst", "POST", f"/v1/plans/{plan['id']}/jobs")
    assert (refused.status_code, refused.json()["remaining"]) == (409, "epsilon=0.1")
    entries = running.get("auditor", "/v1/datasets/cars/ledger")["entries"]
    assert sum(entry["state"] == "committed" for entry in entries) == 1
    assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=0.5"


def test_private_answers_are_quoted_charged_and_stored(running: Running) -> None:
    request: dict[str, Any] = {
        "estimator": "MatrixForestPredictor",
        "epsilon": 2.75,
        "parameters": {"n_estimators": 4, "max_depth": 2},
    }
    model = running.run(running.signed(**request))["id"]
    rows = {"rows": CAR.X[:4].to_dict("records"), "epsilon": 0.5}
    quote = running.post("analyst", f"/v1/models/{model}/quote", rows)
    assert (quote["epsilon"], quote["answered_before"], quote["remaining"]) == ("1/2", False, "epsilon=3")
    first = running.post("analyst", f"/v1/models/{model}/answers", rows)
    assert running.post("analyst", f"/v1/models/{model}/answers", rows) == first
    assert running.post("analyst", f"/v1/models/{model}/quote", rows)["answered_before"]
    ledger = running.ledger()
    assert (ledger["spent"], ledger["entries"][0]["model"]) == ("epsilon=0.5", model)
    more = {"rows": CAR.X[4:8].to_dict("records"), "epsilon": 2.75}
    refused = running.ask("analyst", "POST", f"/v1/models/{model}/answers", json=more)
    assert (refused.status_code, refused.json()["remaining"]) == (409, "epsilon=2.5")
    more["epsilon"] = 2.5
    assert len(running.post("analyst", f"/v1/models/{model}/answers", more)["labels"]) == 4
    larger = {"rows": CAR.X[8:9].to_dict("records"), "epsilon": 2.8}
    assert running.ask("analyst", "POST", f"/v1/models/{model}/answers", json=larger).status_code == 422
    assert running.ask("analyst", "POST", f"/v1/models/{model}/predict", json=rows).status_code == 404


def test_an_answer_that_was_charged_and_never_stored_is_not_charged_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: dict[str, Any] = {
        "estimator": "MatrixForestPredictor",
        "epsilon": 0.5,
        "parameters": {"n_estimators": 4, "max_depth": 2},
    }
    model = running.run(running.signed(**request))["id"]
    rows = {"rows": CAR.X[:4].to_dict("records")}
    with monkeypatch.context() as patch:
        patch.setattr(RunLedger, "publish", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        assert running.ask("analyst", "POST", f"/v1/models/{model}/answers", json=rows).status_code == 500
    assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=0.5"
    assert len(running.post("analyst", f"/v1/models/{model}/answers", rows)["labels"]) == 4
    assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=0.5"


def test_a_model_is_evaluated_on_private_rows_at_a_price(running: Running) -> None:
    model = running.trained(epsilon=1)
    plan = running.post("analyst", f"/v1/models/{model}/evaluations", {"epsilon": 0.5})
    found = running.run(running.sign(plan))
    assert found["kind"] == "evaluation"
    assert 0 <= found["result"]["scores"]["accuracy"]["value"] <= 1
    assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=1.5"


def test_a_draft_is_for_custodians_and_is_not_accepted_as_a_schema(running: Running) -> None:
    draft = running.post("custodian", "/v1/datasets/cars/draft")
    assert running.ask("analyst", "POST", "/v1/datasets/cars/draft").status_code == 403
    assert running.ask("custodian", "PUT", "/v1/datasets/cars/schema", json=draft).status_code == 422


def test_a_regressor_and_onnx(running: Running) -> None:
    model = running.trained(estimator="private-forest", parameters={})
    assert running.ask("analyst", "GET", f"/v1/models/{model}/onnx").content[:4] != b'{"ty'
    assert running.ask("analyst", "GET", f"/v1/models/{model}/effects").status_code == 200
