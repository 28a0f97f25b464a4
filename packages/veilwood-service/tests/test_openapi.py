# SPDX-License-Identifier: Apache-2.0
"""Everything that the OpenAPI document describes, asked in odd ways: no answer says that the service is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from veilwood_service.accounts import ROLES, SCOPES
from veilwood_testing.running_service import PASSWORD, Running, serving

ROOT = Path(__file__).parents[3]
ODD = settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
def test_no_request_breaks_the_service(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        accounts = running.service.accounts
        accounts.accept_invitation(accounts.invite("test", "all", ROLES) or "", PASSWORD)
        caller = accounts.authenticate(accounts.open_session("all")[0], "session")
        token = accounts.issue_token(caller, "test", SCOPES, 1)[0]
        running.add_cars()
        known = {"name": "cars", "number": running.trained(), "entry": 2}
        document = schemathesis.openapi.from_dict(running.get("analyst", "/v1/openapi.json"))
        operations: list[Any] = [cast(Any, result).ok() for result in document.get_all_operations()]
        assert len(operations) > 35
        asked = 0
        for operation in operations:
            for mode in schemathesis.GenerationMode:
                if operation.label != "DELETE /v1/session":
                    asked += ask_oddly(running, operation, mode, token, known)
        print(f"{asked} requests to {len(operations)} routes")
        assert asked > 1000


def ask_oddly(running: Running, operation: Any, mode: Any, token: str, known: dict[str, object]) -> int:
    """Ask one route for what exists and for what does not, with bodies that fit its description, or do not.

    Return the number of requests.
    """
    seen: set[tuple[int, int]] = set()

    @ODD
    @given(operation.as_strategy(mode))
    def ask(case: Any) -> None:
        if len(seen) % 2:  # half of them about what exists
            case.path_parameters = {name: known.get(name) or value for name, value in case.path_parameters.items()}
        sent = case.as_transport_kwargs("http://127.0.0.1:8400", headers={"Authorization": f"Bearer {token}"})
        sent = {name: value for name, value in sent.items() if value is not None and name != "cookies"}
        if "data" in sent:
            sent["content"] = sent.pop("data")
        answer = running.test_client.request(sent.pop("method"), sent.pop("url"), **sent)
        seen.add((len(seen), answer.status_code))
        is_unready = operation.label == "GET /readyz" and answer.status_code == 503  # no thread of jobs runs here
        assert answer.status_code < 500 or is_unready, (operation.label, answer.status_code, sent)

    try:
        ask()
    except Unsatisfiable:
        assert mode == schemathesis.GenerationMode.NEGATIVE, operation.label  # nothing in it can be wrong
    return len(seen)


def test_bandit_finds_nothing() -> None:
    """What it is told to leave alone, and why, stands in pyproject.toml."""
    pytest.importorskip("bandit")
    command = [
        sys.executable,
        "-m",
        "bandit",
        "-q",
        "-c",
        "pyproject.toml",
        "-r",
        "packages/veilwood-service/src/veilwood_service",
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
