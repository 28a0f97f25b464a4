# SPDX-License-Identifier: Apache-2.0
"""One charge, one outcome: races of two tries, copies that were put back, tables and schemas that change."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi")

from veilwood.privacy.noise import DiscreteLaplace
from veilwood_service import store
from veilwood_service.backup import freeze_ledgers
from veilwood_service.private_queries import PrivateQueries
from veilwood_service.store import DatabaseRow
from veilwood_testing.running_service import CAR, TABLE, Running

PREDICTOR: dict[str, Any] = {
    "estimator": "MatrixForestPredictor",
    "epsilon": 0.5,
    "parameters": {"n_estimators": 2, "max_depth": 1, "mechanism": "laplace"},
}
ROWS: dict[str, Any] = {"rows": CAR.X[:3].to_dict("records")}


def test_a_copy_that_was_put_back_shows_no_second_outcome(running: Running) -> None:
    model = running.run(running.signed(**PREDICTOR))["id"]
    running.post("analyst", f"/v1/models/{model}/answers", ROWS)
    records = running.service.database
    records.update(store.answers, {"model": model}, labels=None)  # as in a copy made between charge and storing
    freeze_ledgers(running.service.settings)
    assert records.find_all(store.answers, model=model) == []


def test_a_batch_costs_no_more_than_was_signed_and_hashes_tell_prices_apart(running: Running) -> None:
    plans = [running.post("analyst", "/v1/datasets/cars/plans", {**PREDICTOR, "epsilon": e}) for e in (0.1, 2)]
    assert plans[0]["fingerprint"] != plans[1]["fingerprint"]
    model = running.run(running.sign(plans[0]))["id"]
    dear = running.ask("analyst", "POST", f"/v1/models/{model}/answers", json={**ROWS, "epsilon": 2})
    assert (dear.status_code, "signed" in dear.text) == (422, True)


def test_a_predictor_follows_its_table_and_ends_with_its_schema(running: Running) -> None:
    model = running.run(running.signed(**{**PREDICTOR, "epsilon": 1}))["id"]
    running.post("analyst", f"/v1/models/{model}/quote", ROWS)
    before = running.service.private_queries._predictors[model].predictor
    table = TABLE[:1000].to_csv(index=False).encode()
    kind = {"Content-Type": "text/csv"}
    assert running.ask("custodian", "PUT", "/v1/datasets/cars/table", content=table, headers=kind).is_success
    running.post("analyst", f"/v1/models/{model}/quote", ROWS)
    assert running.service.private_queries._predictors[model].predictor is not before
    schema = CAR.schema.to_dict()
    schema["columns"][1]["values"] = schema["columns"][1]["values"][::-1]
    assert running.ask("custodian", "PUT", "/v1/datasets/cars/schema", json=schema).is_success
    refused = running.ask("analyst", "POST", f"/v1/models/{model}/answers", json=ROWS)
    assert (refused.status_code, "plan the predictor again" in refused.text) == (422, True)


def test_only_uploads_may_be_long(running: Running) -> None:
    limits = running.service.settings.limits
    for path, most in (("/v1/accounts/table", limits.small_body_bytes), ("/v1/models/x/answers", limits.body_bytes)):
        assert running.test_client.post(path, content=b"x" * (most + 1)).status_code == 413


def test_an_answer_that_failed_after_its_charge_is_not_drawn_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = running.run(running.signed(**PREDICTOR))["id"]
    path = f"/v1/models/{model}/answers"
    with monkeypatch.context() as patch:  # as if what was drawn were to blame
        patch.setattr(DiscreteLaplace, "perturb", lambda *_: (_ for _ in ()).throw(ArithmeticError("secret")))
        broken = running.ask("analyst", "POST", path, json=ROWS)
        assert (broken.status_code, "secret" in broken.text) == (500, False)
    again = running.ask("analyst", "POST", path, json=ROWS)
    assert (again.status_code, "after it was charged" in again.text) == (422, True)
    assert running.get("auditor", "/v1/datasets/cars/ledger")["spent"] == "epsilon=0.5"


def test_counting_one_table_holds_up_nobody_who_asks_about_another(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = (running.run(running.signed(**PREDICTOR))["id"] for _ in range(2))
    counting, go_on = threading.Event(), threading.Event()
    count = PrivateQueries._fit_predictor

    plan = running.get("analyst", f"/v1/models/{slow}")["plan"]

    def held_up(self: PrivateQueries, signed: DatabaseRow, dataset: DatabaseRow) -> Any:
        if signed["id"] == plan:
            counting.set()
            assert go_on.wait(60)
        return count(self, signed, dataset)

    monkeypatch.setattr(PrivateQueries, "_fit_predictor", held_up)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(running.post, "analyst", f"/v1/models/{slow}/quote", ROWS)
        assert counting.wait(60)
        try:
            assert running.post("analyst", f"/v1/models/{quick}/quote", ROWS)["epsilon"] == "1/2"
            assert not waiting.done()
        finally:
            go_on.set()
        assert waiting.result()["epsilon"] == "1/2"
