# SPDX-License-Identifier: Apache-2.0
"""What operators see of a server: metrics that do not depend on rows, and whether it is alive and ready."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.roles.monitoring import HEARTBEAT_LIMIT_S, Endpoint
from veilwood_testing.overheard import settled
from veilwood_testing.places import Place, X, Y, place

SOUTH = slice(500, 600)


def get(endpoint: Endpoint, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}{path}", timeout=60) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def quiet(here: Place) -> None:
    """Wait until every conversation has ended at every server."""
    until = time.monotonic() + 60
    while any(listener.n_connections for server in here.servers for listener in server._listeners):
        assert time.monotonic() < until
        time.sleep(0.01)


def watched(folder: Path, rows: int) -> list[str]:
    """All metrics of all servers, at every stage of a training on this many rows of one owner."""
    seen: list[str] = []

    def look(here: Place) -> None:
        quiet(here)
        seen.extend(re.sub(r"(expires_seconds) .*", r"\1", server.metrics_text()) for server in here.servers)

    with place(folder) as here:
        look(here)
        here.owner("north").contribute(X[:rows], Y[:rows])
        look(here)
        here.owner("south").contribute(X[SOUTH], Y[SOUTH])
        here.owner("south").wait(60)
        settled(here)
        look(here)
        with here.user() as analyst:
            analyst.predict(X[:4])
        look(here)
        here.owner("north").retire()
        look(here)
    return seen


def test_metrics_do_not_depend_on_rows(tmp_path: Path) -> None:
    one, neighbour = (watched(tmp_path / str(rows), rows) for rows in (250, 251))
    assert one == neighbour
    for end in ("waiting", "trained"):
        assert any(f'veilwood_secure_tasks{{phase="{end}"}} 1' in text for text in one)
    assert 'veilwood_secure_requests_total{do="contribute",end="done",role="owner"} 2' in one[-1]
    assert 'veilwood_secure_trainings_total{end="trained"} 1' in one[-1]
    assert "veilwood_secure_epsilon_spent 2" in one[-1]


def test_the_endpoint_answers_on_this_machine(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = here.servers[0]
    endpoint = server.start_endpoint(0)
    status, text = get(endpoint, "/metrics")
    assert status == 200
    for line in text.splitlines():
        assert re.fullmatch(r'#.*|[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [\d.e+]+', line), line
    assert get(endpoint, "/health") == (200, "alive\n")
    assert get(endpoint, "/ready")[0] == 200
    assert get(endpoint, "/rows")[0] == 404
    with monkeypatch.context() as frozen:
        frozen.setattr("veilwood_secure.roles.monitoring.HEARTBEAT_LIMIT_S", -1.0)
        assert get(endpoint, "/health")[0] == 503
    assert HEARTBEAT_LIMIT_S > 10
    monkeypatch.setattr(server, "_ledger", SQLiteLedger(here.folder / "gone.db"))
    (here.folder / "gone.db").unlink()
    status, text = get(endpoint, "/ready")
    assert status == 503
    assert "gone.db" in json.loads(text)["why"][0]
    server.close()
    assert "it does not listen" in get(endpoint, "/ready")[1]
    endpoint.close()
