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

from fixtures.logbook import CANARY, Logbook
from fixtures.serving import CAR, serving
from veilwood.service import app, logs, routes_state
from veilwood.service.app import problem
from veilwood.service.settings import Limits


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
    logs.log_to_standard_error()
    yield text
    root.handlers[:], root.level = handlers, level


def test_an_error_is_told_by_kind_and_place_and_never_by_its_text(
    written: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> object:
        raise ValueError("Otto has diagnosis 7")

    monkeypatch.setattr(routes_state, "service_of", broken)
    with serving(tmp_path) as running:
        assert running.test_client.get("/readyz?Otto").status_code == 500
        assert running.test_client.get("/healthz").status_code == 200
        text = running.service.metrics.text().decode()
    try:
        broken(None)
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


def test_errors_are_problems_as_the_standard_has_them() -> None:
    found = problem(409, "budget", "too little is left.", remaining="epsilon=1")
    assert (found.status_code, found.media_type) == (409, "application/problem+json")
    told = {"title": "budget", "status": 409, "detail": "too little is left.", "remaining": "epsilon=1"}
    assert json.loads(bytes(found.body)) == {"type": "about:blank", **told}


def test_limits_are_given_as_words() -> None:
    assert Limits.named(["jobs_at_once=2", "body_bytes=1000"]) == Limits(jobs_at_once=2, body_bytes=1000)
    for word in ("jobs=2", "jobs_at_once", "jobs_at_once=-1", "jobs_at_once=1e9", "jobs_at_once=" + "9" * 20):
        with pytest.raises(ValueError, match="is not a limit"):
            Limits.named([word])


def test_the_search_through_all_logs_finds_what_was_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search at the end of the run (conftest) would notice rows, tokens, and lines that are not the service's."""
    (tmp_path / "logs").mkdir()
    book = Logbook(tmp_path / "logs")
    with book.written(), serving(tmp_path / "service") as running:
        running.add_cars()
        model = running.trained()
        rows = {"rows": CAR.X[:2].to_dict("records")}
        running.post("analyst", f"/v1/models/{model}/predict", rows)
        assert running.get("analyst", "/v1/models")
        assert {token.removeprefix("vw_") for token in running.tokens.values()} < book.secrets
        assert book.requests() > 5
        assert book.leaks() == []
        planted = [CANARY, running.tokens["analyst"], "vw_" + "x" * 43]
        for words in planted:
            app._LOG.info("asked by %s", words)
        (tmp_path / "logs" / "other.log").write_text("Traceback (most recent call last):\n")
        found = book.leaks()
        assert [any(words in line for line in found) for words in planted] == [True, True, True]
        assert len(found) == 4
