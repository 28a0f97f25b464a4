# SPDX-License-Identifier: Apache-2.0
"""The demonstration and the pictures: what `veilwood demo` measures, prints and leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from veilwood import plots
from veilwood.cli import demo
from veilwood.cli import main as cli
from veilwood.models.file import load
from veilwood.privacy.entropy import seeded_for_tests


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "N_RUNS", 2)
    monkeypatch.setattr(demo, "EPSILONS", (0.1, 10.0))


@pytest.mark.usefixtures("short")
def test_demo_leaves_picture_model_and_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    assert cli.main(["demo", "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    for name in ("accuracy.png", "balance_scale.veilwood", "certificate.md", "certificate.json"):
        assert str(folder / name) in out
        assert (folder / name).stat().st_size > 500
    model = load(folder / "balance_scale.veilwood")
    assert model.privacy_.is_private
    assert json.loads((folder / "certificate.json").read_text()) == model.privacy_.to_dict()
    assert model.privacy_.epsilon == demo.EXAMPLE_EPSILON
    picture = matplotlib.image.imread(folder / "accuracy.png")
    assert picture.std() > 0.05  # not blank
    for word in ("iris", "car", "majority", "ε=0.1", "ε=10", "ordinary"):
        assert word in out


@pytest.mark.usefixtures("short")
@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
def test_demo_measures_what_it_says(tmp_path: Path) -> None:
    with seeded_for_tests(0):  # two runs on as few as 30 rows vary a lot
        result = demo.run_demo(tmp_path).to_dict()
    for name, accuracy in result["accuracy"].items():
        assert accuracy["private"]["10.0"] > accuracy["private"]["0.1"] + 0.1, name
        assert accuracy["private"]["10.0"] > accuracy["majority"], name
        assert accuracy["non_private"] > accuracy["private"]["10.0"] - 0.15, name  # it is better at additive tables
    json.dumps(result)


def test_full_table_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs = np.full((demo.N_RUNS, len(demo.EPSILONS)), 0.5)
    compared = tuple(plots.Comparison(name, demo.EPSILONS, runs, 0.9, 0.4) for name in demo.DATASET_NAMES)
    demo.DemoResult(compared, {}).print_table()
    out = capsys.readouterr().out
    assert "balance_scale" in out
    assert "…" not in out
    assert out.rstrip().splitlines()[-1].endswith("veilwood serve --demo")
