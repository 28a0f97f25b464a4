# SPDX-License-Identifier: Apache-2.0
"""Options that many commands share."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood_testing.commands import FIT_VISITS, SMALL_TREES_OPTIONS, run_json


def test_parameters_are_read_as_json_or_text(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_csv("visits.csv").assign(patient=[f"p{i // 4}" for i in range(400)])
    frame.to_csv("by-patient.csv", index=False)
    words = ["--param", 'privacy_unit={"id": "patient", "at_most": 2}', "--param", "voting=threshold"]
    made = run_json(capsys, "fit", "by-patient.csv", "--schema", "visits.json", *SMALL_TREES_OPTIONS, *words)
    assert made["certificate"]["unit"] == "all rows of one patient (counted as at most 2)"
    assert made["certificate"]["composition"][0]["sensitivity"] == 8


def test_quiet_and_levels_may_stand_anywhere(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FIT_VISITS, "--epsilon", "0.01", "--force"]
    for more, warned in (["--quiet"], False), (["-q"], False), (["--log-level=error"], False), (
        ["--log-level", "warning"], True,
    ):  # fmt: skip
        for line in (words + more, more + words):
            assert main(line) == 0
            out, err = capsys.readouterr()
            assert out == "visits.veilwood\n"
            assert bool(err) == warned
    assert main([*FIT_VISITS, "--force", "--epsilon", "inf", "--quiet"]) == 0
    assert main(["plan", "--schema", "visits.json", "-o", "plan.json", "-q"]) == 0
    assert capsys.readouterr().out == "visits.veilwood\nplan.json\n"
    assert main(["plan", "--schema", "visits.json", "-q"]) == 0  # what was asked for is never left out
    assert "epsilon=1; protects" in capsys.readouterr().out
    assert main([*FIT_VISITS, "--log-level", "loud"]) == 2
    assert "one of debug, info, warning, error" in capsys.readouterr().err


def test_a_person_is_asked_before_a_budget_is_spent(
    in_clinic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text: requests.append(text))
    paid = [*FIT_VISITS, "--epsilon", "0.3", "--ledger", "small.db"]
    assert main(paid) == 2
    assert "Nothing was spent" in capsys.readouterr().err
    assert requests == ["Spend epsilon=0.3 of the epsilon=0.5 left in ledger small.db?"]
    assert vw.open_ledger("small.db").spent.epsilon == 0
    assert main([*paid, "--yes"]) == 0
    assert len(requests) == 1
    evaluation = ["evaluate", "visits.veilwood", "visits.csv", "--epsilon", "0.1", "--ledger", "small.db"]
    assert main(evaluation) == 2
    assert len(requests) == 2
    assert main([*FIT_VISITS, "--epsilon", "0.3", "--force"]) == 0  # no ledger, no budget: nobody is asked
    assert len(requests) == 2
