# SPDX-License-Identifier: Apache-2.0
"""Predictions by the command line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from veilwood.cli.main import main
from veilwood.estimators.method import ForestModel
from veilwood.models import file as model_file
from veilwood_testing.main_cases import answer


def test_probabilities_come_from_the_same_walk_as_predictions(
    in_clinic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = []
    walk = ForestModel.sum_leaves
    monkeypatch.setattr(ForestModel, "sum_leaves", lambda *given: (walks.append(1), walk(*given))[1])
    rows = answer(capsys, "predict", "old.veilwood", "visits.csv", "--proba")
    assert len(walks) == 1
    shares = model_file.load("old.veilwood").predict_proba(pd.read_csv("visits.csv"))
    assert [row["probability_yes"] for row in rows] == pytest.approx(shares[:, 1].tolist())


def test_predictions_are_those_of_the_library(in_clinic: Path) -> None:
    assert main(["predict", "old.veilwood", "visits.csv", "-o", "out.csv"]) == 0
    written = pd.read_csv("out.csv")
    model = model_file.load("old.veilwood")
    assert written["prediction"].tolist() == model.predict(pd.read_csv("visits.csv")).tolist()
