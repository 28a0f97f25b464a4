# SPDX-License-Identifier: Apache-2.0
"""The client against a real server, on a network that loses requests and answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("fastapi")
import httpx

import veilwood as vw
from veilwood.errors import ParameterError
from veilwood_service import client as module
from veilwood_service.client import ServiceError
from veilwood_testing.errors import rejects
from veilwood_testing.running_service import CAR, TABLE, Running, listening, serving

Client = vw.service.Client

PREDICTOR: dict[str, Any] = {"estimator": "MatrixForestPredictor", "n_estimators": 2, "max_depth": 1}


class Lossy(httpx.HTTPTransport):
    """Of each request the first answer is lost on its way back, the second try is lost on its way there."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[tuple[str, str]] = Counter()
        self.tries: Counter[tuple[str, str, bytes]] = Counter()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        one = (request.method, request.url.path, request.read())
        self.tries[one] += 1
        match self.tries[one] % 4:
            case 2:
                raise httpx.ConnectError("lost on its way")
            case 3:
                return httpx.Response(503)
        self.sent[one[:2]] += 1
        answer = super().handle_request(request)
        if self.tries[one] % 4 == 1:
            answer.read()
            raise httpx.ReadTimeout("the answer is lost")
        return answer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    with serving(tmp_path_factory.mktemp("service")) as running, listening(running) as address:
        yield running, address


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_WAIT_SECONDS", 0.001)


def test_custodian_and_analyst_work_by_the_client(place: tuple[Running, str], tmp_path: Path) -> None:
    running, address = place
    table = tmp_path / "cars.csv"
    TABLE.to_csv(table, index=False)
    with Client(address, running.tokens["custodian"]) as custodian, Client(address, running.tokens["analyst"]) as ana:
        custodian.add_dataset("cars", "makers of cars", 3)
        custodian.upload("cars", table)
        custodian.set_schema("cars", CAR.schema.to_dict())
        assert ana.schema("cars") == CAR.schema.to_dict()
        plan = ana.plan("cars", "random-trees", epsilon=0.5, n_estimators=2, max_depth=2)
        with pytest.raises(ServiceError, match="not signed"):
            ana.run(plan["id"])
        custodian.sign(plan["id"], plan["fingerprint"])
        model = ana.run(plan["id"])
        assert model["certificate"]["epsilon"] == 0.5
        ana.download(model["id"], tmp_path / "cars.veilwood")
        forest = vw.load(tmp_path / "cars.veilwood")
        assert ana.predict(model["id"], CAR.X[:5])["predictions"] == forest.predict(CAR.X[:5]).tolist()
        assert [one["name"] for one in ana.datasets()] == ["cars"]
        assert [one["id"] for one in ana.models()] == [model["id"]]
        assert running.tokens["analyst"] not in repr(ana)


def test_a_retry_never_spends_twice(place: tuple[Running, str], quick: None) -> None:
    running, address = place
    running.add_cars("lossy")
    lossy = Lossy()
    with Client(address, running.tokens["analyst"], transport=lossy) as client:
        plan = running.signed("lossy", estimator="random-trees", epsilon=0.5, parameters={"n_estimators": 2})
        client.run(plan["id"])
        assert lossy.sent["POST", f"/v1/plans/{plan['id']}/jobs"] == 2, "the retry must have arrived"
        predictor = client.plan("lossy", epsilon=0.25, **PREDICTOR)
        running.sign(predictor, total_epsilon=10)
        model = client.run(predictor["id"])["id"]
        assert len(client.answer(model, CAR.X[:3])["labels"]) == 3
        assert lossy.sent["POST", f"/v1/models/{model}/answers"] == 2
    ledger = running.get("auditor", "/v1/datasets/lossy/ledger")
    assert (ledger["spent"], len(ledger["entries"])) == ("epsilon=0.75", 2)


def test_refusals_are_typed(place: tuple[Running, str], quick: None, tmp_path: Path) -> None:
    running, address = place
    running.add_cars("small", epsilon=0.1)
    with Client(address, running.tokens["analyst"]) as client:
        predictor = client.plan("small", epsilon=1, **PREDICTOR)
        running.sign(predictor, total_epsilon=10)
        model = client.run(predictor["id"])["id"]
        with pytest.raises(vw.BudgetExceededError) as refused:
            client.answer(model, CAR.X[:1])
        assert str(refused.value.remaining) == "epsilon=0.1"
        assert client.quote(model, CAR.X[:1])["remaining"] == "epsilon=0.1"
        with pytest.raises(ServiceError) as missing:
            client.model("0" * 24)
        assert missing.value.status == 404
        with rejects(ParameterError, name="table"):
            client.upload("small", tmp_path / "table.xlsx")
    with Client(address, "vw_wrong") as stranger, pytest.raises(ServiceError) as denied:
        stranger.datasets()
    assert denied.value.status == 401
    with Client("http://127.0.0.1:1", "x") as nobody, pytest.raises(ServiceError, match="does not respond"):
        nobody.datasets()


def test_missing_cells_of_a_frame_are_sent_as_null() -> None:
    frame = pd.DataFrame({"age": [31.0, None], "ward": ["A", None]})
    assert module._to_row_dicts(frame) == [{"age": 31.0, "ward": "A"}, {"age": None, "ward": None}]
