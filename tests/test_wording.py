# SPDX-License-Identifier: Apache-2.0
"""No decision by English: with other texts everywhere, fits, plans, files, exit codes and HTTP codes are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from veilwood_testing.reworded import reword

TESTING = Path(__file__).parents[1] / "testing"


def results_of(mode: str, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    command = [sys.executable, "-m", "veilwood_testing.reworded", mode, str(folder)]
    done = subprocess.run(command, cwd=TESTING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of("plain", tmp_path_factory.mktemp("wording") / "plain")


@pytest.fixture(scope="module")
def reworded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of("reworded", tmp_path_factory.mktemp("wording") / "reworded")


def test_the_texts_are_others(plain: dict[str, Any], reworded: dict[str, Any]) -> None:
    assert reworded["message"] != plain["message"]
    assert reword("epsilon must be {n} or 3.") == "rcfvyba zhfg or {n} be 3."


@pytest.mark.parametrize("what", ["fits", "commands", "requests"])
def test_nothing_is_decided_by_english(what: str, plain: dict[str, Any], reworded: dict[str, Any]) -> None:
    assert reworded[what] == plain[what]


def test_the_work_succeeds_and_fails_in_many_ways(plain: dict[str, Any]) -> None:
    assert {0, 2, 3, 4} <= {code for _, code in plain["commands"]}
    assert {200, 401, 403, 404, 409, 422} <= {code for _, code in plain["requests"]}


def test_a_decision_by_english_is_noticed(tmp_path: Path, plain: dict[str, Any]) -> None:
    assert results_of("decided by English", tmp_path / "planted")["commands"] != plain["commands"]
