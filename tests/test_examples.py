# SPDX-License-Identifier: Apache-2.0
"""The README is true in every line, and the examples run."""

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

import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.cli.main import FAMILIES, main
from veilwood.privacy.loss import Loss

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", README, flags=re.M | re.S)


def run_line(line: str) -> None:
    """Carry out a line of shell, in this process: a command of ours, or a line of Python."""
    words = shlex.split(line)
    if words[0] == "veilwood":
        assert main(words[1:]) == 0, line
    else:
        assert words[:2] == ["python", "-c"], line
        exec(words[2], {})


def test_readme_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed = ""
    for language, title, body in BLOCKS:
        with redirect_stdout(io.StringIO()) as out:
            if language == "python":
                exec(compile(body, "README.md", "exec"), names)
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


def test_readme_promises_what_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    consoles = [body for language, _, body in BLOCKS if language == "console"]
    for target in re.findall(r"^make (\S+)", "".join(consoles), flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target
    for path in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / path).exists(), path
    named = set(re.findall(r"`(\w+(?:Classifier|Regressor|Predictor))`", README))
    assert named == set(estimators.__all__)
    assert set(re.findall(r"`--estimator ([\w-]+)`", README)) == set(FAMILIES)


def test_readme_one_liner_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (schema,) = (body for language, _, body in BLOCKS if language == "json")
    Path("flowers.json").write_text(schema)
    data = vw.datasets.iris()
    data.X.assign(species=data.y).to_csv("flowers.csv", index=False)
    (line,) = re.findall(r"`(vw\.RandomTrees[^`]*\.fit\(\"flowers\.csv\"\))`", README)
    vw.SQLiteLedger("flowers.db", epsilon=5)
    forest = eval(line, {"vw": vw})
    assert forest.privacy_.is_private
    assert vw.open_ledger("flowers.db").spent.epsilon == 2


@pytest.mark.parametrize(
    ("script", "written"),
    [
        ("first_minute.py", "iris.veilwood"),
        ("theory_bounds.py", "theory-bounds.png"),
        ("membership_inference.py", "membership-inference.png"),
        ("private_forest.py", "private-forest-effects.png"),
        ("matrix_forest.py", None),
        ("median_forest.py", None),
        ("scale.py", None),
        ("secure_forest.py", None),
    ],
)
def test_examples_run(script: str, written: str | None, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / script, tmp_path],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout
    if written is not None:
        assert (tmp_path / written).stat().st_size > 1000
        assert written in run.stdout
