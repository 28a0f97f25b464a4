# SPDX-License-Identifier: Apache-2.0
"""Commands on series: plan and sign, release in a job that runs twice, show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning")

PLAN = [
    *("series", "plan", "--schema", "visits.json", "--releases", "3", "--period", "month", "-o", "visits.series"),
    *("--epsilon", "3", "--delta", "1e-6", "-p", "n_estimators=30", "-p", "max_depth=2", "-p", "trees=shared"),
]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def visits(here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((90, 2)), columns=["x0", "x1"]).assign(target=rng.choice(["no", "yes"], 90))
    frame.assign(month=np.arange(90) % 3 + 1).to_csv("visits.csv", index=False)
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2).to_dict()
    Path("visits.json").write_text(json.dumps(schema))
    assert main(["ledger", "create", "visits.db", "--epsilon", "3", "--delta", "1e-6"]) == 0
    capsys.readouterr()
    return here


def test_a_series_is_planned_signed_released_and_shown(visits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = answer(capsys, *PLAN, "--plan", "plan.json")
    assert (planned["epsilon"], planned["choices"]["series"]["release"]) == ("3", 0)
    assert answer(capsys, "series", "show", "visits.series")["charged"] is False
    assert main(["sign", "--new-key", "clinic.key"]) == main(["sign", "plan.json", "--key", "clinic.key"]) == 0
    capsys.readouterr()
    words = ("series", "release", "visits.series", "visits.csv", "--ledger", "visits.db")
    first = answer(capsys, *words, "--number", "1")
    assert first["privacy"]["plan_hash"] == vw.Plan.load("plan.json").fingerprint()
    again = answer(capsys, *words, "--number", "1", "--force")
    assert again == first
    assert answer(capsys, *words)["release"] == 2
    assert main(["verify", "plan.json", "--signed-by", "clinic.key.pub"]) == 0
    assert main(["audit", "model", "visits-2.veilwood"]) == 0
    capsys.readouterr()
    shown = answer(capsys, "series", "show", "visits.series", "--withdrawn")
    assert (shown["made"], shown["charged"]) == ([1, 2], True)
    assert "spends no budget" in shown["withdrawn"]
    assert len(vw.open_ledger("visits.db").entries()) == 3


def test_months_of_a_date(visits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_csv("visits.csv")
    frame["day"] = [f"2026-0{month}-11" for month in frame.pop("month")]
    frame.to_csv("visits.csv", index=False)
    words = [word if word != "month" else "day" for word in PLAN]
    answer(capsys, *words, "--periods", "2026-01,2026-02,2026-03", "--prefix", "7")
    assert answer(capsys, "series", "release", "visits.series", "visits.csv", "--ledger", "visits.db")["release"] == 1


def test_wrong_arguments_are_refused(visits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PLAN) == 0
    assert main(PLAN) == 2  # the file exists
    for words, code in (
        ([*PLAN, "--force", "--strategy", "best"], 2),
        ([*PLAN, "--force", "--periods", "1,2"], 2),
        ([*PLAN, "--force", "--estimator", "greedy-forest"], 2),
        (["series", "show", "visits.csv"], 4),
        (["series", "release", "visits.series", "visits.csv", "--ledger", "none.db"], 4),
        (["series", "release", "visits.series", "visits.csv", "--ledger", "visits.db", "--number", "3"], 2),
    ):
        assert main(words) == code, words
    assert main(["series", "release", "visits.series", "visits.csv", "--ledger", "visits.db"]) == 0
    assert main([*PLAN, "--force"]) == 0  # another series of the same people: the budget has no room for it
    assert main(["series", "release", "visits.series", "visits.csv", "--ledger", "visits.db", "-o", "b.veilwood"]) == 3
