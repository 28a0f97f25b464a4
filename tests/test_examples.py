# SPDX-License-Identifier: Apache-2.0
"""README and first pages are true in every line, and the examples run."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.cli.fit import FAMILIES
from veilwood.cli.main import main
from veilwood.privacy.loss import Loss
from veilwood_testing.release_packs import card_text

ROOT = Path(__file__).parents[1]
README, START, CHOICE = (
    (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/start.md", "docs/choose.md")
)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """The language, the title and the text of every block of code."""
    return re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", page, flags=re.M | re.S)


def run_line(line: str) -> None:
    """Carry out a line of shell, in this process: a command of ours, or a line of Python."""
    words = shlex.split(line, comments=True)
    if words[0] == "veilwood":
        assert main(words[1:]) == 0, line
    else:
        assert words[:2] == ["python", "-c"], line
        exec(words[2], {})


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")  # next year has a new ward
def test_readme_runs_as_written(visits: pd.DataFrame) -> None:
    """Python with its output, then five commands on a table of visits, then the same by patient in Python."""
    first, second = (body for language, _, body in blocks(README) if language == "python")
    (output,) = (body for language, _, body in blocks(README) if language == "text")
    names: dict[str, Any] = {}
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(first, "README.md", "exec"), names)
    assert with_any_numbers(out.getvalue()) == with_any_numbers(output)
    assert len(first.strip().splitlines()) <= 8
    (commands,) = (body for language, _, body in blocks(README) if language == "console" and "schema draft" in body)
    Path("visits.json").unlink()
    for line in commands.splitlines():
        if "schema review" in line:  # asks questions at a terminal; this is the reviewed schema
            assert json.loads(Path("visits.json").read_text())["privacy_unit"]["id"] == "patient"
            unit = {"privacy_unit": {"id": "patient", "at_most": 3}, "ignore": []}
            Path("visits.json").write_text(json.dumps(VISITS | unit))
        else:
            run_line(line)
    assert Path("visits.html").exists()
    visits.drop(columns="readmitted").assign(ward="C").to_csv("next_year.csv", index=False)
    exec(compile(second, "README.md", "exec"), names)
    assert names["forest"].privacy_.unit == "all rows of one patient (counted as at most 3)"
    assert len(names["forest"].predict("next_year.csv")) == len(visits)
    assert vw.open_ledger("visits.db").spent.epsilon == 2


def test_the_first_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed = ""
    for language, title, body in blocks(START):
        with redirect_stdout(io.StringIO()) as out:
            if language == "python":
                exec(compile(body, "start.md", "exec"), names)
            elif language == "sh":
                for line in body.splitlines():
                    run_line(line)
            elif language == "json":
                assert json.loads(Path(title.strip()).read_text())["inferred"]  # the draft this block replaces
                Path(title.strip()).write_text(body, encoding="utf-8")
            elif language == "text":
                assert body == printed
        printed = out.getvalue()
        assert "NOT PRIVATE" not in printed
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 151
    assert vw.open_ledger("flowers.db").remaining == Loss(Fraction(3))


def with_any_numbers(text: str) -> str:
    """Replace decimal fractions, which differ between private fits, and keep the words."""
    return re.sub(r"\d\.\d{3}", "N", text)


def test_readme_makes_what_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make (\S+)`", README)
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


def test_every_estimator_has_a_line_where_one_chooses() -> None:
    named = set(re.findall(r"`(\w+(?:Classifier|Regressor|Predictor))`", CHOICE))
    assert named == set(estimators.__all__)
    assert set(re.findall(r"`--estimator ([\w-]+)`", CHOICE)) == set(FAMILIES)


def test_one_liner_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (schema,) = (body for language, _, body in blocks(START) if language == "json")
    Path("flowers.json").write_text(schema)
    data = vw.datasets.iris()
    data.X.assign(species=data.y).to_csv("flowers.csv", index=False)
    (line,) = re.findall(r"`(vw\.PrivateForest[^`]*\.fit\(\"flowers\.csv\"[^`]*\))`", START)
    vw.SQLiteLedger("flowers.db", epsilon=5)
    forest = eval(line, {"vw": vw})
    assert forest.privacy_.is_private
    assert vw.open_ledger("flowers.db").spent.epsilon == 2


@pytest.mark.parametrize(
    ("script", "written"),
    [
        ("first_minute.py", "car.html"),
        pytest.param("theory_bounds.py", "theory-bounds.png", marks=pytest.mark.slow),
        pytest.param("membership_inference.py", "membership-inference.png", marks=pytest.mark.slow),
        ("private_forest.py", "private-forest-effects.png"),
        ("matrix_forest.py", None),
        ("median_forest.py", None),
        pytest.param("scale.py", None, marks=pytest.mark.slow),
        pytest.param("killed_worker.py", None, marks=pytest.mark.slow),
        pytest.param("secure_forest.py", None, marks=pytest.mark.slow),
    ],
)
def test_examples_run(script: str, written: str | None, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / script, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, ROOT.glob("packages/*/src")))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout
    if written is not None:
        assert (tmp_path / written).stat().st_size > 1000
        assert written in run.stdout


# A table of visits and its schema, for pages that speak of one.
VISITS = {
    "name": "visits",
    "task": "classification",
    "target": "readmitted",
    "ignore": ["patient"],
    "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 120},
        {"name": "ward", "kind": "categorical", "values": ["A", "B"]},
        {"name": "readmitted", "kind": "categorical", "values": ["no", "yes"]},
    ],
}


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"patient": rng.integers(0, 900, 2000), "age": rng.integers(0, 100, 2000), "ward": rng.choice(["A", "B"], 2000)}
    )
    table["readmitted"] = np.where(rng.random(2000) < 0.1 + 0.6 * (table["age"] > 60), "yes", "no")
    table.to_csv("visits.csv", index=False)
    table.to_parquet("visits.parquet", index=False)
    Path("visits.json").write_text(json.dumps(VISITS))
    return table


def test_the_page_on_budgets_runs_as_written(visits: pd.DataFrame) -> None:
    Path("june.csv").write_bytes(Path("visits.csv").read_bytes())
    for language, _, body in blocks((ROOT / "docs" / "budget.md").read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(body, "budget.md", "exec"), {})
        elif language != "console":  # commands on another table
            for line in body.replace("\\\n", "").splitlines():
                run_line(line)
                if "--new-card" in line:
                    Path("card.toml").write_text(card_text(), encoding="utf-8")
    model = vw.load("visits.veilwood", signed_by="clinic.key.pub")
    assert model.privacy_.plan_hash == vw.Plan.load("plan.json").fingerprint()
    assert vw.open_ledger("visits.db").spent.epsilon == 1  # two months
    assert Path("visits.html").exists()


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning", "ignore::veilwood.PrivacyWarning")
def test_our_side_of_every_comparison_runs(visits: pd.DataFrame) -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    ours = [body for _, _, body in blocks(page) if "import veilwood" in body]
    assert len(ours) == 4
    for body in ours:
        named = "visits.json" in body
        X: Any = visits[["age", "ward"]] if named else np.random.default_rng(0).random((300, 4))
        y: Any = visits["readmitted"] if named else np.arange(300) % 2
        exec(compile(body, "coming-from.md", "exec"), {"X": X, "X_new": X, "y": y})
