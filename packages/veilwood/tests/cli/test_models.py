# SPDX-License-Identifier: Apache-2.0
"""The commands export and explain."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import veilwood as vw
from veilwood.cli.main import main

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private forest that met a pair, and another family's model."""
    folder = tmp_path_factory.mktemp("models")
    X = np.random.default_rng(0).random((6_000, 3))
    y = np.where((X[:, 0] > 0.5) ^ (X[:, 1] > 0.5), "yes", "no")
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3)
    vw.save(vw.PrivateForestClassifier(schema, epsilon=8.0, random_state=0).fit(X, y), folder / "private")
    vw.save(vw.RandomTreesClassifier(schema, epsilon=8.0, max_depth=2, random_state=0).fit(X, y), folder / "random")
    return folder


@pytest.mark.parametrize("name", ["private", "random"])
def test_export_writes_what_onnxruntime_reads(name: str, models: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "model.onnx"
    assert main(["export", str(models / name), "-o", str(out)]) == 0
    X = np.random.default_rng(1).random((50, 3))
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    label, _ = session.run(None, {f"x{i}": X[:, [i]] for i in range(3)})
    assert label.tolist() == vw.load(models / name).predict(X).tolist()
    assert main(["export", str(models / name), "-o", str(out)]) == 2  # it exists
    assert main(["export", str(models / name), "-o", str(out), "--force", "--float32"]) == 0


def test_explain_says_draws_and_saves(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    effects = vw.load(models / "private").explain()
    assert main(["explain", str(models / "private")]) == 0
    assert capsys.readouterr().out == f"{effects}\n"
    for ending, begin in ((".png", b"\x89PNG"), (".html", b"<!doctype html>"), (".json", b"{")):
        out = tmp_path / f"effects{ending}"
        assert main(["explain", str(models / "private"), "-o", str(out)]) == 0
        assert out.read_bytes().startswith(begin)
    assert json.loads((tmp_path / "effects.json").read_text()) == effects.to_dict()
    page = (tmp_path / "effects.html").read_text()
    assert page.count("data:image/png") == 1 + len(effects.interactions) > 1
    assert "http" not in page  # it needs nothing from elsewhere


def test_what_cannot_be_explained_or_written_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(models / "random")]) == 2
    assert "RandomTreesClassifier has no effects to explain" in capsys.readouterr().err
    assert main(["explain", str(models / "private"), "-o", str(tmp_path / "effects.pdf")]) == 2
    assert ".html, .png, .json" in capsys.readouterr().err
