# SPDX-License-Identifier: Apache-2.0
"""Commands on models: predict, evaluate, explain, export, report, sign and verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.errors import FileError
from veilwood.estimators.method import ForestModel
from veilwood.evaluation.evaluate import model_hash
from veilwood.models import file as model_file
from veilwood.models import file as signed
from veilwood.privacy import signature
from veilwood_testing.commands import PageTags, run_json
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


def test_probabilities_come_from_the_same_walk_as_predictions(
    in_clinic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = []
    walk = ForestModel.sum_leaves
    monkeypatch.setattr(ForestModel, "sum_leaves", lambda *given: (walks.append(1), walk(*given))[1])
    rows = run_json(capsys, "predict", "old.veilwood", "visits.csv", "--proba")
    assert len(walks) == 1
    shares = model_file.load("old.veilwood").predict_proba(pd.read_csv("visits.csv"))
    assert [row["probability_yes"] for row in rows] == pytest.approx(shares[:, 1].tolist())


def test_predictions_are_those_of_the_library(in_clinic: Path) -> None:
    assert main(["predict", "old.veilwood", "visits.csv", "-o", "out.csv"]) == 0
    written = pd.read_csv("out.csv")
    model = model_file.load("old.veilwood")
    assert written["prediction"].tolist() == model.predict(pd.read_csv("visits.csv")).tolist()


@pytest.fixture
def car_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, car_forest: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    car = vw.datasets.car()
    pd.DataFrame(car.X).assign(**{car.schema.target.name: car.y}).to_csv("rows.csv", index=False)
    vw.save(car_forest, "model.veilwood")
    return tmp_path


def test_the_command_charges_the_ledger_and_prints_intervals(
    car_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "create", "spends.db", "--epsilon", "1"]) == 0
    words = ["evaluate", "model.veilwood", "rows.csv", "--epsilon", "0.6", "--ledger", "spends.db"]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "accuracy:" in output
    assert "epsilon=0.4 left of epsilon=1" in output
    assert main([*words, "--json"]) == 3
    assert json.loads(capsys.readouterr().err)["error"] == "BudgetExceededError"


def test_the_command_writes_what_it_found(car_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "model.veilwood", "rows.csv", "--epsilon", "1", "-o", "quality.json"]) == 0
    assert json.loads((car_folder / "quality.json").read_text())["certificate"]["epsilon"] == 1
    assert main(["evaluate", "model.veilwood", "rows.csv", "--epsilon", "1", "-o", "quality.json"]) == 2
    assert "--force" in capsys.readouterr().err


def test_a_share_set_aside_by_the_command_line(car_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vw.datasets.car().schema.save("car.json")
    words = ["fit", "rows.csv", "--schema", "car.json", "--holdout", "0.3", "-o", "new.veilwood"]
    assert main(words) == 0
    assert "held out" in capsys.readouterr().out
    model = vw.load("new.veilwood")
    found = vw.Evaluation.load("new.quality.json")
    assert found.to_dict()["model"] == model_hash(model)
    assert main(["report", "new.veilwood"]) == 0
    assert main([*words[:4], "-o", "new.veilwood", "--force"]) == 0  # by the same plan, another model
    assert main(["report", "new.veilwood", "--force"]) == 2
    assert "'new.quality.json' belongs to another model" in capsys.readouterr().err
    (car_folder / "new.quality.json").write_text(
        (car_folder / "new.quality.json").read_text().replace("with noise", "exactly")
    )
    with rejects(FileError, raised_in="Evaluation.load"):
        vw.Evaluation.load("new.quality.json")


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


def test_a_signed_model_by_the_command_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, epsilon=2.0, random_state=0)
    forest.fit(car.X, car.y, holdout_fraction=0.3)
    vw.save(forest, "car.veilwood")
    forest.evaluation_.save("car.quality.json")
    signature.generate_key_pair("clinic.key")
    signed.sign("car.veilwood", "clinic.key")
    assert main(["report", "car.veilwood", "--signed-by", "clinic.key.pub", "-o", "car.html"]) == 0
    assert "car.html" in capsys.readouterr().out
    text = " ".join(PageTags(Path("car.html").read_text(encoding="utf-8")).text)
    assert "is what the holder of clinic.key.pub has signed" in text
    assert "AUC" in text  # the evaluation beside the model was found
    assert main(["report", "car.veilwood", "-o", "car.html"]) == 2
    signature.generate_key_pair("other.key")
    assert main(["report", "car.veilwood", "--signed-by", "other.key.pub", "-o", "new.html"]) == 4
    assert not Path("new.html").exists()


def test_plan_signed_run_model_signed(
    signed_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(signed_folder)
    assert main(["sign", "--new-key", "new.key"]) == 0
    assert "new.key.pub" in capsys.readouterr().out
    assert main(["sign", "plan.json", "--key", "new.key"]) != 0
    assert "exists already" in capsys.readouterr().err
    assert main(["sign", "plan.json", "--key", "new.key", "--force"]) == 0
    assert main(["sign", "model.veilwood", "--key", "new.key", "--force"]) == 0
    capsys.readouterr()
    for name in ("plan.json", "model.veilwood"):
        assert main(["verify", name, "--signed-by", "new.key.pub", "--plan", "plan.json"]) == 0
        assert "not that the run was honest" in capsys.readouterr().out
        assert main(["verify", name, "--signed-by", "clinic.key.pub"]) != 0
        assert "another key" in capsys.readouterr().err
    assert main(["verify", "model.veilwood", "--signed-by", "new.key.pub", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signed"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sign"], "veilwood sign FILE --key KEY"),
        (["sign", "model.veilwood"], "veilwood sign FILE --key KEY"),
        (["sign", "model.veilwood", "--new-key", "k"], "only creates a key pair"),
        (["sign", "--new-key", "clinic.key"], "exists already"),
        (["sign", "nosuch.veilwood", "--key", "clinic.key"], "nosuch.veilwood"),
        (["verify", "model.veilwood"], "--signed-by"),
        (["verify", "nosuch.veilwood", "--signed-by", "clinic.key.pub"], "nosuch.veilwood"),
        (["verify", "other.veilwood", "--signed-by", "clinic.key.pub", "--plan", "plan.json"], "carries out the plan"),
    ],
)
def test_commands_that_cannot_be_done_say_why(
    words: list[str],
    message: str,
    signed_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(signed_folder)
    assert main(words) not in (0, 1)
    assert message in capsys.readouterr().err
    assert not (signed_folder / "k").exists()
