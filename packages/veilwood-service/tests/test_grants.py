# SPDX-License-Identifier: Apache-2.0
"""Signatures with an amount: what a predictor may cost in total, and who may ask it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

from veilwood_testing.running_service import CAR, PASSWORD, Running

PREDICTOR: dict[str, Any] = {
    "estimator": "MatrixForestPredictor",
    "epsilon": 0.5,
    "parameters": {"n_estimators": 2, "max_depth": 1, "mechanism": "laplace"},
}


def batch(number: int, epsilon: float = 0.5) -> dict[str, Any]:
    return {"rows": CAR.X[number : number + 1].to_dict("records"), "epsilon": epsilon}


def test_a_predictor_is_asked_up_to_its_signed_total_by_those_who_were_named(running: Running) -> None:
    """One that was signed for ana at epsilon 0.5 had been spent to the end of the budget by eve."""
    accounts = running.service.accounts
    accounts.accept_invitation(accounts.invite("test", "eve", ["analyst"]) or "", PASSWORD)
    caller = accounts.authenticate(accounts.open_session("eve")[0], "session")
    running.tokens["eve"] = accounts.issue_token(caller, "test", ["ask"], 1)[0]
    plan = running.signed(grant={"total_epsilon": 1.25, "askers": ["analyst"]}, **PREDICTOR)
    assert (plan["total_epsilon"], plan["askers"]) == ("5/4", ["analyst"])
    model = running.run(plan)["id"]
    path = f"/v1/models/{model}/answers"
    assert running.ask("eve", "POST", path, json=batch(0)).status_code == 403
    assert running.ask("eve", "POST", f"/v1/models/{model}/quote", json=batch(0)).status_code == 403
    for number in range(2):
        running.post("analyst", path, batch(number))
    assert running.get("analyst", f"/v1/plans/{plan['id']}")["remaining"] == "epsilon=0.25"
    refused = running.ask("analyst", "POST", path, json=batch(2))
    assert (refused.status_code, refused.json()["remaining"]) == (409, "epsilon=0.25")
    running.post("analyst", path, batch(2, 0.25))
    assert running.ask("analyst", "POST", path, json=batch(3, 0.125)).status_code == 409
    running.post("analyst", path, batch(0))  # a repeated batch is free
    assert running.ledger()["spent"] == "epsilon=1.25"
    assert [entry["account"] for entry in running.ledger()["entries"]] == ["analyst"] * 3


def test_a_signature_of_a_predictor_is_for_one_batch_unless_it_says_more(running: Running) -> None:
    plan = running.signed(grant={}, **PREDICTOR)
    assert plan["askers"] == ["analyst"], "nobody but who planned it"
    model = running.run(plan)["id"]
    assert running.ask("custodian", "POST", f"/v1/models/{model}/answers", json=batch(0)).status_code == 403
    running.post("analyst", f"/v1/models/{model}/answers", batch(0))
    assert running.ask("analyst", "POST", f"/v1/models/{model}/answers", json=batch(1)).status_code == 409


def test_a_signature_can_let_everybody_ask(running: Running) -> None:
    plan = running.signed(grant={"total_epsilon": 1, "askers": ["analyst", "*"]}, **PREDICTOR)
    assert plan["askers"] is None
    running.post("custodian", f"/v1/models/{running.run(plan)['id']}/answers", batch(0))


def test_amounts_that_make_no_sense_are_refused(running: Running) -> None:
    predictor = running.post("analyst", "/v1/datasets/cars/plans", PREDICTOR)
    training = running.post("analyst", "/v1/datasets/cars/plans", {"estimator": "random-trees"})
    cases: list[tuple[Any, dict[str, Any]]] = [
        (predictor, {"total_epsilon": 0.25}), (predictor, {"total_epsilon": -1}), (predictor, {"total_epsilon": "x"}),
        (training, {"runs": 0}), (training, {"runs": 10**6}), (training, {"runs": True}), (training, {"runs": 1.5}),
    ]  # fmt: skip
    for plan, grant in cases:
        body = {"fingerprint": plan["fingerprint"], **grant}
        found = running.ask("custodian", "POST", f"/v1/plans/{plan['id']}/signature", json=body)
        assert found.status_code == 422, (grant, found.text)
    signed = running.sign(training, runs=2)
    assert running.sign(training, runs=2) == signed, "a retry is the same signature"
    again = {"fingerprint": training["fingerprint"], "runs": 3}
    path = f"/v1/plans/{training['id']}/signature"
    assert running.ask("custodian", "POST", path, json=again).status_code == 422


def test_true_is_no_number(running: Running) -> None:
    assert running.ask("analyst", "POST", "/v1/datasets/cars/plans", json={"epsilon": True}).status_code == 422


def test_a_misspelt_field_is_refused(running: Running) -> None:
    """Otherwise the plan would have the default epsilon."""
    body = {"epsilom": 0.1, "estimator": "random-trees"}
    assert running.ask("analyst", "POST", "/v1/datasets/cars/plans", json=body).status_code == 422
