# SPDX-License-Identifier: Apache-2.0
"""A folder with what the commands need, and a fresh copy of it for each test."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import veilwood as vw
from veilwood.models import file as model_file


@pytest.fixture(scope="session")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, a schema, a model and a ledger, never written to."""
    folder = tmp_path_factory.mktemp("clinic")
    frame = pd.DataFrame({"age": [i % 90 for i in range(400)], "ward": ["A", "B"] * 200})
    frame["ill"] = ["yes" if age > 40 else "no" for age in frame["age"]]
    frame.to_csv(folder / "visits.csv", index=False)
    ward = {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]}
    age = {"name": "age", "kind": "numeric", "lower": 0, "upper": 120}
    ill = {"name": "ill", "kind": "categorical", "values": ["no", "yes"]}
    schema = {"name": "visits", "task": "classification", "target": "ill", "columns": [age, ward, ill]}
    (folder / "visits.json").write_text(json.dumps(schema))
    forest = vw.RandomTreesClassifier(schema, epsilon=5.0, n_estimators=4, max_depth=3)
    model_file.save(forest.fit(folder / "visits.csv"), folder / "old.veilwood")
    vw.SQLiteLedger(folder / "small.db", epsilon=0.5)
    return folder


@pytest.fixture
def in_clinic(clinic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh copy of the clinic, as the working directory."""
    for path in clinic.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table that nobody has described yet, as the working directory."""
    monkeypatch.chdir(tmp_path)
    n = 120
    pd.DataFrame({
        "patient_id": [f"{row // 2:04d}" for row in range(n)], "age": [20 + row % 60 for row in range(n)],
        "ward": ["A1", "B1"] * (n // 2), "note": [f"came on foot, number {row}" for row in range(n)],
        "ill": ["no", "yes"] * (n // 2),
    }).to_csv("visits.csv", index=False, sep=";")  # fmt: skip
    return tmp_path
