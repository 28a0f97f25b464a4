# SPDX-License-Identifier: Apache-2.0
"""Plans are signed, carried out and charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw

pytest.importorskip("fastapi")
from veilwood_service.jobs import LostLeaseError
from veilwood_testing.running_service import CAR, CSV, Running


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


PROMISE = {
    "epsilon": 2.0, "delta": 1e-6, "ledger": "other.db", "schema": "infer",
    "privacy_unit": 2, "adjacency": "replace-one", "max_weight": 8,
}  # fmt: skip


@pytest.mark.parametrize("name", PROMISE)
def test_a_parameter_of_the_promise_is_refused_or_stands_in_what_is_signed(name: str, running: Running) -> None:
    """Loss, ledger and schema are the service's; whom a plan protects is read by its signer and charged."""
    asked: dict[str, Any] = {
        "epsilon": 0.5,
        "estimator": "random-trees",
        "parameters": {"n_estimators": 2, name: PROMISE[name]},
    }
    if name in ("epsilon", "delta", "ledger", "schema"):
        assert running.ask("analyst", "POST", "/v1/datasets/cars/plans", json=asked).status_code == 422
        return
    plan = running.signed(**asked)
    model = running.run(plan)
    (entry,) = running.get("auditor", "/v1/datasets/cars/ledger")["entries"]
    certificate = model["certificate"]
    verb = {"add-remove": "added or removed", "replace-one": "replaced"}[certificate["adjacency"]]
    assert entry["neighbours"] == f"{certificate['unit']}, {verb}" != "one row, added or removed"
    judged = running.run(
        running.sign(running.post("analyst", f"/v1/models/{model['id']}/evaluations", {"epsilon": 0.5}))
    )
    assert judged["certificate"]["unit"] == certificate["unit"]
    assert judged["certificate"]["adjacency"] == certificate["adjacency"]


def test_a_plan_that_is_not_signed_does_not_run(running: Running) -> None:
    plan = running.post("analyst", "/v1/datasets/cars/plans", {"epsilon": 0.5})
    assert running.ask("analyst", "POST", f"/v1/plans/{plan['id']}/jobs").status_code == 422
    wrong = running.ask("custodian", "POST", f"/v1/plans/{plan['id']}/signature", json={"fingerprint": "0" * 64})
    assert wrong.status_code == 422
    assert running.get("analyst", f"/v1/plans/{plan['id']}")["signed_by"] is None
    assert running.get("analyst", f"/v1/plans/{plan['id']}")["words"]


def test_a_retry_starts_nothing_twice(running: Running) -> None:
    plan, other = running.signed(grant={"runs": 2}, epsilon=0.5), running.signed(epsilon=0.6)
    key = {"Idempotency-Key": "monday"}
    first = running.post("analyst", f"/v1/plans/{plan['id']}/jobs", headers=key)
    assert running.post("analyst", f"/v1/plans/{plan['id']}/jobs", headers=key)["id"] == first["id"]
    assert running.ask("analyst", "POST", f"/v1/plans/{other['id']}/jobs", headers=key).status_code == 422
    assert running.post("analyst", f"/v1/plans/{plan['id']}/jobs")["id"] != first["id"]


def test_a_job_that_died_goes_on_under_its_reservation(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = running.signed(epsilon=0.5, estimator="random-trees", parameters={"n_estimators": 2})
    job = running.post("analyst", f"/v1/plans/{plan['id']}/jobs")["id"]
    with monkeypatch.context() as patch:
        patch.setattr("veilwood_service.jobs.save", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
        with pytest.raises(OSError, match="full"):
            running.carry_out(job)
    running.carry_out(job)
    ledger = running.get("auditor", "/v1/datasets/cars/ledger")
    assert (ledger["spent"], len(ledger["entries"])) == ("epsilon=0.5", 1)
    model = running.ask("analyst", "GET", f"/v1/models/{job}/file").content
    with pytest.raises(LostLeaseError):  # a worker that was thought dead and comes back shows no second outcome
        running.carry_out(job)
    assert running.ask("analyst", "GET", f"/v1/models/{job}/file").content == model
