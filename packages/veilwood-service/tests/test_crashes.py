# SPDX-License-Identifier: Apache-2.0
"""A real server on a real port, killed again and again: nothing is lost, and nothing is charged twice."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
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
KILLS = 100  # for each kind of database
PRICE = 0.01


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    with settings_for_store(request.param, tmp_path) as found:
        yield found


def keep_asking(
    port: int, token: str, model: str, batches: list[Any], reported: dict[int, Any], first: threading.Event
) -> list[str]:
    """Ask batch after batch until the service is gone; remember what was answered, and return what went wrong."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
        while True:
            number = random.randrange(len(batches))
            try:
                found = client.post(f"/v1/models/{model}/answers", json={"rows": batches[number], "epsilon": PRICE})
            except httpx.HTTPError:
                return []
            if found.status_code != 200 or reported.setdefault(number, found.json()) != found.json():
                return [f"{number}: {found.status_code} {found.text}"]
            first.set()


def test_kills_lose_nothing_and_charge_nothing_twice(settings: Settings) -> None:
    rows = CAR.X.to_dict("records")
    batches = [rows[i : i + 2] for i in range(0, 1200, 2)]
    with serving(settings.folder, database=settings.database) as running:
        running.add_cars(epsilon=1000)
        request: dict[str, Any] = {"estimator": "MatrixForestPredictor", "epsilon": PRICE}
        request["parameters"] = {"n_estimators": 2, "max_depth": 1, "mechanism": "laplace"}
        model, token = running.run(running.signed(**request))["id"], running.tokens["analyst"]
    facts: dict[int, Any] = {}
    slowest = 0.0
    for kill in range(KILLS):
        first, began = threading.Event(), time.monotonic()
        child, port = start_process(settings)
        slowest = max(slowest, time.monotonic() - began)
        with ThreadPoolExecutor(2) as pool:
            asked_with = (port, token, model, batches, facts, first)
            askers = [pool.submit(keep_asking, *asked_with) for _ in range(2)]
            if kill % 2:  # in the midst of answers; else also while the first one is counted
                first.wait(20)
            time.sleep(random.uniform(0, 1.5))
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        assert [words for asker in askers for words in asker.result()] == []
    with serving(settings.folder, database=settings.database) as running:
        for number, answer in facts.items():  # what was told is what is stored, for free
            assert running.post("analyst", f"/v1/models/{model}/answers", {"rows": batches[number]}) == answer
        ledger = running.ledger()
        keys = [entry["key"] for entry in ledger["entries"] if entry["state"] != "cancelled"]
        assert len(keys) == len(set(keys)), "a batch was charged twice"
        assert len(facts) <= len(keys) <= len(facts) + 2 * KILLS
        assert len(facts) > KILLS / 4
        running.post("auditor", "/v1/datasets/cars/ledger/verify")
        assert not ledger["frozen"]
    assert slowest < 20
