# SPDX-License-Identifier: Apache-2.0
"""Searching for settings by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import veilwood as vw
from veilwood.cli import main as cli

CAR = vw.datasets.car().schema


def test_plan_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CAR.save(tmp_path / "car.json")
    words = ["plan", "--schema", str(tmp_path / "car.json"), "--search", "--rows", "1700", "--epsilon", "0.5"]
    words += ["--estimator", "random-trees"]
    words += ["--param", "n_estimators=[2,4]", "--param", "max_depth=3", "--param", "voting=threshold"]
    assert cli.main(words) == 0
    assert "Best of 2 settings" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"][0]["parameters"]["max_depth"] == 3
    assert (found["n"], found["epsilon"]) == (1700, 0.5)


def test_plan_search_needs_a_public_number_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CAR.save(tmp_path / "car.json")
    assert cli.main(["plan", "--schema", str(tmp_path / "car.json"), "--search"]) == 2
    assert "--rows" in capsys.readouterr().err
    assert cli.main(["plan", "--schema", str(tmp_path / "car.json"), "--rows", "100"]) == 0
    assert "100 rows  " in capsys.readouterr().out  # what to expect for them


def test_tune_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CAR.save(tmp_path / "car.json")
    words = ["tune", "--schema", str(tmp_path / "car.json"), "--rows", "1700", "--param", "max_depth=[2,3]"]
    words += ["--param", "n_estimators=4"]
    assert cli.main([*words, "--estimator", "random-trees", "--estimator", "MedianForestClassifier"]) == 0
    output = capsys.readouterr().out
    assert "Best of 4 settings" in output
    assert "Ranks are rough" in output  # how far to trust it
    assert cli.main([*words, "--estimator", "private-forest"]) == 2
    assert "cannot be tuned" in capsys.readouterr().err
