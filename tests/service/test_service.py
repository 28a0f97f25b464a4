# SPDX-License-Identifier: Apache-2.0
"""What people do with a service: register rows, plan, sign, run, predict, ask at a price, evaluate, download."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw

pytest.importorskip("fastapi")

from fixtures.serving import CAR, CSV, Running, serving


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with serving(tmp_path) as found:
        found.add_cars()
        yield found


def test_a_signed_plan_is_carried_out_and_charged_once(running: Running, tmp_path: Path) -> None:
    plan = running.signed(epsilon=0.5, estimator="random-trees", parameters={"n_estimators": 3})
    model = running.run(plan)
    assert (model["certificate"]["epsilon"], model["certificate"]["plan_hash"]) == (0.5, plan["fingerprint"])
    ledger = running.get("auditor", "/v1/datasets/cars/ledger")
    assert (ledger["spent"], [entry["state"] for entry in ledger["entries"]]) == ("epsilon=0.5", ["committed"])
    rows = CAR.X[:7].to_dict("records")
    answer = running.post("analyst", f"/v1/models/{model['id']}/predict", {"rows": rows})
    (tmp_path / "m.veilwood").write_bytes(running.ask("analyst", "GET", f"/v1/models/{model['id']}/file").content)
    loaded = vw.load(tmp_path / "m.veilwood")
    assert answer["predictions"] == loaded.predict(CAR.X[:7]).tolist()
    np.testing.assert_allclose(answer["probabilities"], loaded.predict_proba(CAR.X[:7]), atol=1e-6)
    text = running.ask("analyst", "POST", f"/v1/models/{model['id']}/predict.csv", content=CSV).text.splitlines()
    assert text[0] == "prediction,probability_unacc,probability_acc,probability_good,probability_vgood"
    assert [line.split(",")[0] for line in text[1:]] == loaded.predict(CAR.X).tolist()


def test_a_plan_that_is_not_signed_does_not_run(running: Running) -> None:
    plan = running.post("analyst", "/v1/datasets/cars/plans", {"epsilon": 0.5})
    assert running.ask("analyst", "POST", f"/v1/plans/{plan['id']}/jobs").status_code == 422
    wrong = running.ask("custodian", "POST", f"/v1/plans/{plan['id']}/signature", json={"fingerprint": "0" * 64})
    assert wrong.status_code == 422
    assert running.get("analyst", f"/v1/plans/{plan['id']}")["signed_by"] is None
    assert running.get("analyst", f"/v1/plans/{plan['id']}")["words"]


def test_a_retry_starts_nothing_twice(running: Running) -> None:
    plan, other = running.signed(epsilon=0.5), running.signed(epsilon=0.6)
    key = {"Idempotency-Key": "monday"}
    first = running.post("analyst", f"/v1/plans/{plan['id']}/jobs", headers=key)
    assert running.post("analyst", f"/v1/plans/{plan['id']}/jobs", headers=key)["id"] == first["id"]
    assert running.ask("analyst", "POST", f"/v1/plans/{other['id']}/jobs", headers=key).status_code == 422
    assert running.post("analyst", f"/v1/plans/{plan['id']}/jobs")["id"] != first["id"]


def test_a_job_that_died_goes_on_under_its_reservation(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = running.signed(epsilon=0.5, estimator="random-trees", parameters={"n_estimators": 2})
    job = running.post("analyst", f"/v1/plans/{plan['id']}/jobs")["id"]
    with monkeypatch.context() as patch:
        patch.setattr("veilwood.service.worker.save", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
        with pytest.raises(OSError, match="full"):
            running.carry_out(job)
    running.carry_out(job)
    ledger = running.get("auditor", "/v1/datasets/cars/ledger")
    assert (ledger["spent"], len(ledger["entries"])) == ("epsilon=0.5", 1)
    model = running.ask("analyst", "GET", f"/v1/models/{job}/file").content
    running.carry_out(job)  # a worker that was thought dead and comes back shows no second outcome
    assert running.ask("analyst", "GET", f"/v1/models/{job}/file").content == model


def test_budgets_of_people_and_periods_bind_together(running: Running) -> None:
    limit = {"account": "analyst", "epsilon": 0.6}
    running.post("custodian", "/v1/datasets/cars/allowances", limit)
    yearly = running.post("custodian", "/v1/datasets/cars/allowances", {"period": "year", "epsilon": 2})
    assert "starts anew" in yearly["warning"]
    running.trained(epsilon=0.5)
    assert running.get("analyst", "/v1/datasets/cars")["remaining_for_you"] == "epsilon=0.1"
    assert running.get("custodian", "/v1/datasets/cars")["remaining_for_you"] == "epsilon=1.5"
    plan = running.signed(epsilon=0.5, estimator="random-trees")
    job = running.post("analyst", f"/v1/plans/{plan['id']}/jobs")["id"]
    with pytest.raises(vw.BudgetExceededError):
        running.carry_out(job)
    entries = running.get("auditor", "/v1/datasets/cars/ledger")["entries"]
    assert sum(entry["state"] == "committed" for entry in entries) == 1
    assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=0.5"


def test_private_answers_are_quoted_charged_and_stored(running: Running) -> None:
    asked: dict[str, Any] = {
        "estimator": "MatrixForestPredictor",
        "epsilon": 2.75,
        "parameters": {"n_estimators": 4, "max_depth": 2},
    }
    model = running.run(running.signed(**asked))["id"]
    rows = {"rows": CAR.X[:4].to_dict("records"), "epsilon": 0.5}
    quote = running.post("analyst", f"/v1/models/{model}/quote", rows)
    assert (quote["epsilon"], quote["answered_before"], quote["remaining"]) == ("1/2", False, "epsilon=3")
    first = running.post("analyst", f"/v1/models/{model}/answers", rows)
    assert running.post("analyst", f"/v1/models/{model}/answers", rows) == first
    assert running.post("analyst", f"/v1/models/{model}/quote", rows)["answered_before"]
    assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=0.5"
    more = {"rows": CAR.X[4:8].to_dict("records"), "epsilon": 2.75}
    refused = running.ask("analyst", "POST", f"/v1/models/{model}/answers", json=more)
    assert (refused.status_code, refused.json()["remaining"]) == (409, "epsilon=2.5")
    more["epsilon"] = 2.5
    assert len(running.post("analyst", f"/v1/models/{model}/answers", more)["labels"]) == 4
    dearer = {"rows": CAR.X[8:9].to_dict("records"), "epsilon": 2.8}
    assert running.ask("analyst", "POST", f"/v1/models/{model}/answers", json=dearer).status_code == 422
    assert running.ask("analyst", "POST", f"/v1/models/{model}/predict", json=rows).status_code == 404


def test_an_answer_that_was_charged_and_never_stored_is_not_charged_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {
        "estimator": "MatrixForestPredictor",
        "epsilon": 0.5,
        "parameters": {"n_estimators": 4, "max_depth": 2},
    }
    model = running.run(running.signed(**asked))["id"]
    rows = {"rows": CAR.X[:4].to_dict("records")}
    with monkeypatch.context() as patch:
        patch.setattr(running.service.records, "change", lambda *_, **__: (_ for _ in ()).throw(OSError("killed")))
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


def test_an_older_copy_of_a_ledger_is_frozen_until_it_is_reconciled(running: Running) -> None:
    path = running.service.settings.ledgers / "data_cars.db"
    older = path.read_bytes()
    running.trained(epsilon=1)
    path.write_bytes(older)
    assert running.get("analyst", "/v1/datasets/cars")["frozen"]
    plan = running.signed(epsilon=0.5)
    job = running.post("analyst", f"/v1/plans/{plan['id']}/jobs")["id"]
    with pytest.raises(vw.LedgerError, match="frozen"):
        running.carry_out(job)
    found = running.post("custodian", "/v1/datasets/cars/ledger/reconcile", {"reason": "restored on Monday"})
    assert (len(found["charged"]), found["spent"], found["frozen"]) == (1, "epsilon=1", False)
    again = running.ask("custodian", "POST", "/v1/datasets/cars/ledger/reconcile", json={"reason": "again"})
    assert again.status_code == 422
    running.carry_out(job)
    assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=1.5"


def test_a_model_file_that_was_exchanged_is_not_served(running: Running) -> None:
    first, second = running.trained(), running.trained()
    folder = running.service.settings.models
    (folder / f"{first}.veilwood").write_bytes((folder / f"{second}.veilwood").read_bytes())
    running.service.predicting._models.clear()
    assert running.ask("analyst", "GET", f"/v1/models/{first}/file").status_code == 409
    assert running.ask("analyst", "GET", f"/v1/models/{second}/file").status_code == 200


def test_a_draft_is_for_custodians_and_is_not_accepted_as_a_schema(running: Running) -> None:
    draft = running.post("custodian", "/v1/datasets/cars/draft")
    assert running.ask("analyst", "POST", "/v1/datasets/cars/draft").status_code == 403
    assert running.ask("custodian", "PUT", "/v1/datasets/cars/schema", json=draft).status_code == 422


def test_a_regressor_and_onnx(running: Running) -> None:
    model = running.trained(estimator="private-forest", parameters={})
    assert running.ask("analyst", "GET", f"/v1/models/{model}/onnx").content[:4] != b'{"ty'
    assert running.ask("analyst", "GET", f"/v1/models/{model}/effects").status_code == 200
