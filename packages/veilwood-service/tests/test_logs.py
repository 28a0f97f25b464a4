# SPDX-License-Identifier: Apache-2.0
"""Logs: JSON that a machine reads, and nothing of what was sent or read in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from veilwood_service import access as logs
from veilwood_service import app as routes_state
from veilwood_testing.running_service import serving


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What goes to standard error; the loggers are put back afterwards."""
    text, root = io.StringIO(), logging.getLogger()
    monkeypatch.setattr("sys.stderr", text)
    handlers, level = list(root.handlers), root.level
    monkeypatch.setattr(logging.getLogger("veilwood"), "level", logging.NOTSET)
    for name in ("uvicorn", "uvicorn.error"):  # whatever a server that ran here before has told them
        for trait, value in (("level", logging.NOTSET), ("propagate", True), ("disabled", False), ("handlers", [])):
            monkeypatch.setattr(logging.getLogger(name), trait, value)
    logs.configure_logging()
    yield text
    root.handlers[:], root.level = handlers, level


def test_an_error_is_told_by_kind_and_place_and_never_by_its_text(
    written: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> object:
        raise ValueError("Otto has diagnosis 7")

    monkeypatch.setattr(routes_state, "Readiness", broken)
    with serving(tmp_path) as running:
        assert running.test_client.get("/readyz?Otto").status_code == 500
        assert running.test_client.get("/healthz").status_code == 200
        text = running.service.metrics.to_prometheus_text().decode()
    try:
        broken()
    except ValueError:  # as uvicorn does with what an application lets through
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    found = [json.loads(line) for line in written.getvalue().splitlines()]
    requests = [(one["method"], one["route"], one["status"]) for one in found if "route" in one]
    assert requests == [("GET", "/readyz", 500), ("GET", "/healthz", 200)]
    assert 'route="/readyz",status="500"' in text
    assert [(one["error"], one["place"].split(":")[0]) for one in found if "error" in one] == [
        ("ValueError", "test_logs.py")
    ]
    assert "Otto" not in written.getvalue()
