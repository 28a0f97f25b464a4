# SPDX-License-Identifier: Apache-2.0
"""Evaluating a model by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.evaluation.evaluate import model_hash


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, car_forest: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    car = vw.datasets.car()
    pd.DataFrame(car.X).assign(**{car.schema.target.name: car.y}).to_csv("rows.csv", index=False)
    vw.save(car_forest, "model.veilwood")
    return tmp_path


def test_the_command_charges_the_ledger_and_prints_intervals(clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "create", "spends.db", "--epsilon", "1"]) == 0
    words = ["evaluate", "model.veilwood", "rows.csv", "--epsilon", "0.6", "--ledger", "spends.db"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "accuracy:" in said
    assert "epsilon=0.4 left of epsilon=1" in said
    assert main([*words, "--json"]) == 3
    assert json.loads(capsys.readouterr().err)["error"] == "BudgetExceededError"


def test_the_command_writes_what_it_found(clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "model.veilwood", "rows.csv", "--epsilon", "1", "-o", "quality.json"]) == 0
    assert json.loads((clinic / "quality.json").read_text())["certificate"]["epsilon"] == 1
    assert main(["evaluate", "model.veilwood", "rows.csv", "--epsilon", "1", "-o", "quality.json"]) == 2
    assert "--force" in capsys.readouterr().err


def test_a_share_set_aside_by_the_command_line(clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vw.datasets.car().schema.save("car.json")
    words = ["fit", "rows.csv", "--schema", "car.json", "--holdout", "0.3", "-o", "new.veilwood"]
    assert main(words) == 0
    assert "On held-out units:" in capsys.readouterr().out
    model = vw.load("new.veilwood")
    found = vw.Evaluation.load("new.quality.json")
    assert found.to_dict()["model"] == model_hash(model)
    assert main(["report", "new.veilwood"]) == 0
    assert main([*words[:4], "-o", "new.veilwood", "--force"]) == 0  # by the same plan, another model
    assert main(["report", "new.veilwood", "--force"]) == 2
    assert "'new.quality.json' is of another model" in capsys.readouterr().err
    (clinic / "new.quality.json").write_text((clinic / "new.quality.json").read_text().replace("with noise", "exactly"))
    with pytest.raises(vw.VeilwoodError, match="not an evaluation"):
        vw.Evaluation.load("new.quality.json")
