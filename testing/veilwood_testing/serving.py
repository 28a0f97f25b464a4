# SPDX-License-Identifier: Apache-2.0
"""A service for tests: in a folder of its own, with one account for each role and a table of cars."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import uvicorn
from fastapi.testclient import TestClient

import veilwood as vw
from veilwood_service import store
from veilwood_service.access import Service
from veilwood_service.accounts import ROLES
from veilwood_service.app import create_app
from veilwood_service.jobs import execute_job
from veilwood_service.settings import Settings
from veilwood_testing import postgres
from veilwood_testing.logbook import CANARY
from veilwood_testing.ports import free_ports

PASSWORD = "a long enough password"
CAR = vw.datasets.car()
TABLE = CAR.X.assign(**{str(CAR.y.name): CAR.y})
CSV = TABLE.to_csv(index=False).encode()
VISITS = pd.DataFrame(
    [(18 + i % 70, f"{i % 9}.5", "AB"[i % 2], "yes" if i % 70 > 40 else "no") for i in range(280)],
    columns=["age", "days", "ward", "ill"],
).astype({"days": float})
VISITS_SCHEMA = vw.Schema.from_dict(
    {
        "name": "visits",
        "columns": [
            {"name": "age", "kind": "numeric", "lower": 0, "upper": 120},
            {"name": "days", "kind": "numeric", "lower": 0, "upper": 30, "nullable": True},
            {"name": "ward", "kind": "categorical", "values": ["A", "B"]},
            {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
        ],
        "target": "ill",
        "task": "classification",
    }
)


@dataclass
class Running:
    """A service whose jobs are carried out when a test says so, in this process."""

    service: Service
    test_client: TestClient
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(self, role: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[role]}", **more.pop("headers", {})}
        found: httpx.Response = self.test_client.request(method, path, headers=headers, **more)
        return found

    def get(self, role: str, path: str) -> Any:
        found = self.ask(role, "GET", path)
        assert found.status_code == 200, found.text
        return found.json()

    def post(self, role: str, path: str, asked: Any = None, **more: Any) -> Any:
        found = self.ask(role, "POST", path, json=asked, **more)
        assert found.status_code < 300, found.text
        return found.json()

    def add_cars(self, name: str = "cars", epsilon: float = 3, table: bytes = CSV) -> None:
        self.add(name, "makers of cars", epsilon, table, CAR.schema)

    def add_visits(self, epsilon: float = 3) -> None:
        """A table with numbers, beside the cars that have none."""
        self.add("visits", "patients", epsilon, VISITS.to_csv(index=False).encode(), VISITS_SCHEMA)

    def add(self, name: str, people: str, epsilon: float, table: bytes, schema: vw.Schema) -> None:
        self.post("custodian", "/v1/datasets", {"name": name, "people": people, "epsilon": epsilon})
        kind, path = {"Content-Type": "text/csv"}, f"/v1/datasets/{name}"
        table += b",".join([CANARY.encode()] * (1 + table.splitlines()[0].count(b","))) + b"\n"
        assert self.ask("custodian", "PUT", f"{path}/table", content=table, headers=kind).is_success
        assert self.ask("custodian", "PUT", f"{path}/schema", json=schema.to_dict()).is_success

    def signed(self, name: str = "cars", **asked: Any) -> Any:
        plan = self.post("analyst", f"/v1/datasets/{name}/plans", asked)
        return self.sign(plan)

    def sign(self, plan: Any) -> Any:
        return self.post("custodian", f"/v1/plans/{plan['id']}/signature", {"fingerprint": plan["fingerprint"]})

    def run(self, plan: Any) -> Any:
        """Run a signed plan now."""
        job = self.post("analyst", f"/v1/plans/{plan['id']}/jobs")
        self.carry_out(job["id"])
        return self.get("analyst", f"/v1/models/{job['id']}")

    def carry_out(self, number: str) -> None:
        records = self.service.database
        records.update(store.jobs, {"id": number, "state": "queued"}, state="running")
        job = records.find(store.jobs, id=number)
        assert job is not None
        execute_job(self.service.settings, records, job)

    def trained(self, **asked: Any) -> str:
        """A small model of the cars, trained."""
        asked = {"estimator": "random-trees", "parameters": {"n_estimators": 2, "max_depth": 2}, **asked}
        return str(self.run(self.signed(**asked))["id"])


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Running]:
    """Start a service in a folder, without a thread for its jobs."""
    app = create_app(Settings(folder, **settings))
    service: Service = app.state.service
    client = TestClient(app, base_url="http://127.0.0.1:8400", raise_server_exceptions=False)  # its life is not begun
    running = Running(service, client)
    for role, scopes in ROLES.items():
        if service.database.find(store.accounts, name=role) is None:
            service.accounts.create_account(role, PASSWORD, [role])
        word, _ = service.accounts.open_session(role)
        caller = service.accounts.authenticate(word, "session")
        running.tokens[role] = service.accounts.issue_token(caller, "test", scopes, 1)[0]
    try:
        yield running
    finally:
        service.database.close()


@contextmanager
def listening(running: Running) -> Iterator[str]:
    """Let a service answer on a port of loopback and work on its jobs; give its address."""
    port = free_ports(1)[0]
    options = uvicorn.Config(running.test_client.app, port=port, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def wait_until_ready(port: int) -> None:
    """Wait until a service in another process answers."""
    for _ in range(600):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=1).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.02)
    raise AssertionError("the service does not answer")


@contextmanager
def kept_in(kind: str, folder: Path) -> Iterator[Settings]:
    """Settings of a service whose records and ledgers are in SQLite, or in a PostgreSQL that is started for it."""
    if kind == "SQLite":
        yield Settings(folder)
        return
    with postgres.running() as address:
        yield Settings(folder, database=address)


def start_process(settings: Settings) -> tuple[Any, int]:
    """Start a service in a process of its own; return it and its port once it answers."""
    port = free_ports(1)[0]
    child = get_context("fork").Process(target=_serve, args=(settings, port))
    child.start()
    wait_until_ready(port)
    return child, port


def _serve(settings: Settings, port: int) -> None:
    uvicorn.run(create_app(settings), host="127.0.0.1", port=port, log_level="critical")
