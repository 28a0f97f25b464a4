# SPDX-License-Identifier: Apache-2.0
"""Answers of the application, errors and logs among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from veilwood_service import app
from veilwood_service.app import problem_response
from veilwood_testing.running_service import CANARY, CAR, Logbook, serving


def test_errors_are_problems_as_the_standard_has_them() -> None:
    found = problem_response(409, "budget", "too little is left.", remaining="epsilon=1")
    assert (found.status_code, found.media_type) == (409, "application/problem+json")
    facts = {"title": "budget", "status": 409, "detail": "too little is left.", "remaining": "epsilon=1"}
    assert json.loads(bytes(found.body)) == {"type": "about:blank", **facts}


def test_the_search_through_all_logs_finds_what_was_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search at the end of the run (conftest) would notice rows, tokens, and lines that are not the service's."""
    (tmp_path / "logs").mkdir()
    book = Logbook(tmp_path / "logs")
    with book.written(), serving(tmp_path / "service") as running:
        running.add_cars()
        model = running.trained()
        rows = {"rows": CAR.X[:2].to_dict("records")}
        running.post("analyst", f"/v1/models/{model}/predict", rows)
        assert running.get("analyst", "/v1/models")["items"]
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
