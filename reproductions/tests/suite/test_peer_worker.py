# SPDX-License-Identifier: Apache-2.0
"""What is done in the environment of another library."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from veilwood_papers.suite import peer_worker

COLUMNS: list[dict[str, Any]] = [{"bounds": [0.0, 4.0]}, {"bounds": None, "n_values": 3}]


class Forest:
    """In place of the other library's."""

    given: ClassVar[dict[str, Any]] = {}

    def __init__(self, **given: Any) -> None:
        Forest.given = given

    def fit(self, X: Any, y: Any) -> Forest:
        if X[:, 0].max() > 4:
            raise RuntimeError("out of bounds")
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[0])

    def predict_proba(self, X: Any) -> Any:
        return np.tile([1.0, *[0.0] * (len(self.classes_) - 1)], (len(X), 1))


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ModuleType("diffprivlib.models")
    models.RandomForestClassifier = Forest  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "diffprivlib", ModuleType("diffprivlib"))
    monkeypatch.setitem(sys.modules, "diffprivlib.models", models)


def write(folder: Path, X: Any, n_classes: int) -> None:
    y = np.array([0, 2] * (len(X) // 2))
    job = {"seed": 0, "epsilon": 1.0, "delta": 0.0}
    facts = {"peer": "diffprivlib", "columns": COLUMNS, "n_classes": n_classes, "jobs": [job]}
    (folder / "table.json").write_text(json.dumps(facts))
    np.savez(folder / "table.npz", X=X, y=y, train0=np.arange(4), test0=np.arange(4, 6))


def test_bounds_and_codes_become_what_the_library_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, np.tile([1.0, 2.0], (6, 1)), n_classes=3)
    peer_worker.main(tmp_path)
    assert "cpu_s" in json.loads(capsys.readouterr().out)
    assert Forest.given["bounds"] == ([0.0, 0], [4.0, 2])
    with np.load(tmp_path / "0.npz") as found:
        np.testing.assert_array_equal(found["shares"], [[1, 0, 0]] * 2)  # a class that it never saw has no share


def test_what_a_library_cannot_do_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, np.tile([9.0, 2.0], (6, 1)), n_classes=3)
    peer_worker.main(tmp_path)
    assert json.loads(capsys.readouterr().out)["refused"] == "RuntimeError: out of bounds"
    write(tmp_path, np.tile([1.0, 2.0], (6, 1)), n_classes=0)
    peer_worker.main(tmp_path)
    assert json.loads(capsys.readouterr().out)["refused"] == "has no regression"


def test_categories_are_named_for_models_that_take_texts() -> None:
    class Seen:
        classes_ = np.array([0, 1])

        def predict(self, frame: Any) -> Any:
            return frame

    np.testing.assert_array_equal(
        peer_worker.CodedModel(Seen(), COLUMNS).predict(np.array([[1.5, 2.0]])), np.array([[1.5, "v2"]], dtype=object)
    )
