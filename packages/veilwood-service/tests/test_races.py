# SPDX-License-Identifier: Apache-2.0
"""64 clients that race for a budget at two processes of the service: never a unit too much, one batch charged once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")

from veilwood_service.settings import Settings
from veilwood_testing.running_service import CAR, serving, settings_for_store, start_process

pytestmark = pytest.mark.slow
CLIENTS = 64
PRICE = 0.125
AFFORDABLE = 20


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    with settings_for_store(request.param, tmp_path) as found:
        yield found


def test_64_clients_never_overspend_and_pay_once_for_one_batch(settings: Settings) -> None:
    rows = CAR.X.to_dict("records")
    with serving(settings.folder, database=settings.database) as running:
        running.add_cars(epsilon=PRICE * (AFFORDABLE + 1))
        request: dict[str, Any] = {"estimator": "MatrixForestPredictor", "epsilon": PRICE}
        request["parameters"] = {"n_estimators": 2, "max_depth": 1, "mechanism": "laplace"}
        model, token = running.run(running.signed(**request))["id"], running.tokens["analyst"]
    headers = {"Authorization": f"Bearer {token}"}

    def ask(number: int, port: int) -> httpx.Response:
        found: dict[str, Any] = {"rows": rows[number : number + 1]}
        path = f"http://127.0.0.1:{port}/v1/models/{model}/answers"
        return httpx.post(path, json=found, headers=headers, timeout=300)

    started = [start_process(settings) for _ in range(2)]
    ports = [port for _, port in started]
    with ThreadPoolExecutor(CLIENTS) as pool:
        same = list(pool.map(lambda i: ask(0, ports[i % 2]), range(CLIENTS)))
        each = list(pool.map(lambda i: ask(i + 1, ports[i % 2]), range(CLIENTS)))
    for child, _ in started:
        child.terminate()
        child.join()
    assert {found.status_code for found in same} == {200}
    assert len({found.text for found in same}) == 1
    assert Counter(found.status_code for found in each) == {200: AFFORDABLE, 409: CLIENTS - AFFORDABLE}
    with serving(settings.folder, database=settings.database) as running:
        ledger = running.ledger()
        assert (ledger["spent"], ledger["remaining"]) == (f"epsilon={PRICE * (AFFORDABLE + 1):g}", "epsilon=0")
        counted = [entry["key"] for entry in ledger["entries"] if entry["state"] == "committed"]
        assert len(counted) == len(set(counted)) == AFFORDABLE + 1
        running.post("auditor", "/v1/datasets/cars/ledger/verify")
