# SPDX-License-Identifier: Apache-2.0
"""Services for tests: one account per role, a table of cars, logs that are searched for secrets."""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
import uvicorn
from fastapi.testclient import TestClient

import veilwood as vw
from veilwood.privacy.loss import Loss
from veilwood_service import store
from veilwood_service.access import JsonLogFormatter, Service
from veilwood_service.accounts import ROLES
from veilwood_service.app import HeaderTimeoutProtocol, create_app
from veilwood_service.jobs import execute_job
from veilwood_service.settings import Limits, Settings
from veilwood_testing.processes import free_ports, running_postgres

CANARY = "Ottokar7781"


"""Value in a row of every table that tests register. It matches no schema, so the row is dropped."""


_WORDS = re.compile(r"vw_[\w-]{20,}")  # tokens, sessions and invitations, also of other processes


class _Written(logging.FileHandler):
    """Handler of one logbook. Only one is active: lines that a test plants in its own do not reach that of the run."""


class Logbook:
    """Logs in a folder, with the secrets that none of them may contain."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.secrets = folder, {CANARY}

    @contextmanager
    def written(self) -> Iterator[None]:
        """Record the logs of services in this process and its forks, and every token that they create."""
        handler, token_urlsafe = _Written(self.folder / "here.log"), secrets.token_urlsafe
        handler.setFormatter(JsonLogFormatter())

        def recorded_token(size: int | None = None) -> str:
            token = token_urlsafe(size)
            self.secrets.add(token)
            return token

        root, service = logging.getLogger(), logging.getLogger("veilwood.service")
        level, others = service.level, [one for one in root.handlers if isinstance(one, _Written)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(secrets, "token_urlsafe", recorded_token)
            root.handlers[:] = [one for one in root.handlers if one not in others] + [handler]
            service.setLevel(logging.INFO)
            try:
                yield
            finally:
                root.removeHandler(handler)
                root.handlers += others
                service.setLevel(level)
                handler.close()

    def leaks(self) -> list[str]:
        """Return the lines that contain a secret or a private value, or that are not JSON."""
        return [
            f"{path.name}: {line}"
            for path in sorted(self.folder.iterdir())
            for line in path.read_text().splitlines()
            if not line.startswith("{") or _WORDS.search(line) or any(word in line for word in self.secrets)
        ]

    def requests(self) -> int:
        """Return the number of logged requests, to check that the search was not empty."""
        lines = [line for path in self.folder.iterdir() for line in path.read_text().splitlines()]
        return sum("route" in json.loads(line) for line in lines if line.startswith("{"))


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
    """A service whose jobs run in this process, when a test calls ``run`` or ``carry_out``."""

    service: Service
    test_client: TestClient
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(self, role: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[role]}", **more.pop("headers", {})}
        response: httpx.Response = self.test_client.request(method, path, headers=headers, **more)
        return response

    def get(self, role: str, path: str) -> Any:
        response = self.ask(role, "GET", path)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, role: str, path: str, body: Any = None, **more: Any) -> Any:
        response = self.ask(role, "POST", path, json=body, **more)
        assert response.status_code < 300, response.text
        return response.json()

    def add_cars(self, name: str = "cars", epsilon: float = 3, table: bytes = CSV) -> None:
        self.add(name, "makers of cars", epsilon, table, CAR.schema)

    def add_visits(self, epsilon: float = 3) -> None:
        """Add a table with numeric columns, which the table of cars lacks."""
        self.add("visits", "patients", epsilon, VISITS.to_csv(index=False).encode(), VISITS_SCHEMA)

    def add(self, name: str, people: str, epsilon: float, table: bytes, schema: vw.Schema) -> None:
        self.post("custodian", "/v1/datasets", {"name": name, "people": people, "epsilon": epsilon})
        kind, path = {"Content-Type": "text/csv"}, f"/v1/datasets/{name}"
        table += b",".join([CANARY.encode()] * (1 + table.splitlines()[0].count(b","))) + b"\n"
        assert self.ask("custodian", "PUT", f"{path}/table", content=table, headers=kind).is_success
        assert self.ask("custodian", "PUT", f"{path}/schema", json=schema.to_dict()).is_success

    def signed(self, name: str = "cars", grant: dict[str, Any] | None = None, **request: Any) -> Any:
        """Return a signed plan, by default for one run, or for many batches of a predictor."""
        plan = self.post("analyst", f"/v1/datasets/{name}/plans", request)
        many = {"total_epsilon": 1000} if plan["kind"] == "answer" else {}
        return self.sign(plan, **many if grant is None else grant)

    def sign(self, plan: Any, **grant: Any) -> Any:
        body = {"fingerprint": plan["fingerprint"], **grant}
        return self.post("custodian", f"/v1/plans/{plan['id']}/signature", body)

    def ledger(self, name: str = "cars") -> Any:
        """Return a ledger with all of its entries."""
        path = f"/v1/datasets/{name}/ledger?limit=500"
        ledger = self.get("auditor", path)
        while ledger["next"] is not None:
            later = self.get("auditor", f"{path}&after={ledger['next']}")
            ledger["entries"] += later["entries"]
            ledger["next"] = later["next"]
        return ledger

    def run(self, plan: Any) -> Any:
        """Run a signed plan in this process and return its release."""
        job = self.post("analyst", f"/v1/plans/{plan['id']}/jobs")
        self.carry_out(job["id"])
        return self.get("analyst", f"/v1/models/{job['id']}")

    def carry_out(self, number: str) -> None:
        """Run a queued or interrupted job in this process."""
        leased = {"state": "running", "lease": store.new_id(), "started": store.current_timestamp()}
        self.service.database.update(store.jobs, {"id": number, "state": ("queued", "running")}, **leased)
        execute_job(self.service.database, self.service.ledgers, self.service.jobs.get(number))

    def log_in(self, name: str, address: str = "127.0.0.1") -> TestClient:
        """Return a client with a session that sends its CSRF token."""
        client = TestClient(self.test_client.app, base_url="http://127.0.0.1:8400", client=(address, 4000))
        opened = client.post("/v1/session", json={"name": name, "password": PASSWORD})
        client.headers["X-CSRF-Token"] = opened.json()["csrf"]
        return client

    def trained(self, **request: Any) -> str:
        """Train a small model of the cars and return its id."""
        request = {"estimator": "random-trees", "parameters": {"n_estimators": 2, "max_depth": 2}, **request}
        return str(self.run(self.signed(**request))["id"])


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Running]:
    """Open a service in a folder, without the thread of its jobs."""
    settings.setdefault("limits", Limits(answer_milliseconds=20))  # most tests of answers do not time them
    app = create_app(Settings(folder, **settings))
    service: Service = app.state.service
    client = TestClient(
        app, base_url="http://127.0.0.1:8400", raise_server_exceptions=False
    )  # the lifespan does not start
    running = Running(service, client)
    for role, scopes in ROLES.items():
        if service.database.find(store.accounts, name=role) is None:
            invitation = service.accounts.invite("test", role, [role])
            service.accounts.accept_invitation(invitation or "", PASSWORD)
        session_token, _ = service.accounts.open_session(role)
        caller = service.accounts.authenticate(session_token, "session")
        running.tokens[role] = service.accounts.issue_token(caller, "test", scopes, 1)[0]
    try:
        yield running
    finally:
        service.database.close()


@contextmanager
def listening(running: Running) -> Iterator[str]:
    """Run a service on a free loopback port, with its jobs; yield its address."""
    port = free_ports(1)[0]
    options = uvicorn.Config(
        running.test_client.app,
        port=port,
        http=HeaderTimeoutProtocol,
        log_level="critical",
        timeout_graceful_shutdown=1,
    )
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
    """Wait until a service in another process is ready."""
    for _ in range(600):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=1).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.02)
    raise AssertionError("the service is not ready")


@contextmanager
def settings_for_store(kind: str, folder: Path) -> Iterator[Settings]:
    """Yield settings of a service with SQLite, or with a PostgreSQL server that is started for it."""
    if kind == "SQLite":
        yield Settings(folder)
        return
    with running_postgres() as address:
        yield Settings(folder, database=address)


def start_process(settings: Settings) -> tuple[Any, int]:
    """Start a service in a separate process; return the process and the port once it is ready."""
    port = free_ports(1)[0]
    child = get_context("fork").Process(target=_serve, args=(settings, port))
    child.start()
    wait_until_ready(port)
    return child, port


def _serve(settings: Settings, port: int) -> None:
    uvicorn.run(create_app(settings), host="127.0.0.1", port=port, log_level="critical")


def upload_table(running: Running, content: bytes, kind: str, **headers: str) -> Any:
    facts = {"Content-Type": kind, **headers}
    return running.ask("custodian", "PUT", "/v1/datasets/cars/table", content=content, headers=facts)


SMALL_JOB: dict[str, Any] = {
    "estimator": "random-trees",
    "epsilon": 0.5,
    "parameters": {"n_estimators": 2, "max_depth": 2},
}


EPSILON_TENTH = Loss.pure(Fraction(1, 10))


ENTRY_FACTS: dict[str, Any] = {"what": "leaves", "neighbours": "one row", "plan": "1f3a"}
