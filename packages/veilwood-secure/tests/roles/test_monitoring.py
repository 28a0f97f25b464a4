# SPDX-License-Identifier: Apache-2.0
"""Monitoring of a server: metrics independent of rows, liveness, readiness, and log lines that cannot be forged."""

from __future__ import annotations

import json
import logging
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer

import pytest

from veilwood.errors import PartyError
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_secure.roles.monitoring import HEARTBEAT_LIMIT_S, LogFormatter
from veilwood_testing.secure_roles import FIRST_SERVER, Place, X, Y, connect_channel, place, wait_until_settled

SOUTH = slice(500, 600)


def get(endpoint: WSGIServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.server_port}{path}", timeout=60) as answer:
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
        wait_until_settled(here)
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
        assert any(f'veilwood_secure_tasks{{phase="{end}"}} 1.0' in text for text in one)
    assert 'veilwood_secure_requests_total{do="contribute",end="done",role="owner"} 2.0' in one[-1]
    assert 'veilwood_secure_trainings_total{end="trained"} 1.0' in one[-1]
    assert "veilwood_secure_epsilon_spent 2.0" in one[-1]


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
    endpoint.shutdown()
    endpoint.server_close()


def test_lines_of_the_log_cannot_be_forged(here: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        channel = connect_channel(here)
        words = {"message": "oh\n2026-01-01 server 0: scale: trained", "party": "server 1\nx", "lost": False}
        channel._queue_frame(1, json.dumps(words).encode())
        channel._write_pending()
        with pytest.raises(PartyError):
            channel.receive_fields("x")
    until = time.monotonic() + 60
    while not any("oh?2026" in record.getMessage() for record in caplog.records):
        assert time.monotonic() < until
        time.sleep(0.01)
    (record,) = [record for record in caplog.records if "oh?2026" in record.getMessage()]
    assert record.getMessage().startswith("user analyst: user analyst gave up: ")  # who spoke, and no other to blame
    line = LogFormatter(FIRST_SERVER).format(
        logging.makeLogRecord({"msg": "a\nb\x1b[2J\u2028", "args": (), "levelname": "INFO"})
    )
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["who"] == "server 0"
