# SPDX-License-Identifier: Apache-2.0
"""Audit commands and their reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.markdown_page import html_page
from veilwood_audit import attacks
from veilwood_audit import model_files as reports
from veilwood_audit.attacks import Attack, CanaryResult
from veilwood_audit.commands import EXIT_REFUTED
from veilwood_testing.commands import NestedTags
from veilwood_testing.small_forests import fit_car_trees

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


# -- audit estimator ----------------------------------------------------------------------------------------


def test_audit_estimator_writes_a_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", "estimator", "RandomTreesClassifier", "--epsilon", "1", "--param", "max_depth=12", "-o", "out"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "claimed epsilon 1" in out
    assert "control caught" in out
    assert (here / "out/audit.png").read_bytes().startswith(b"\x89PNG")
    assert "| RandomTreesClassifier | n_estimators=1, max_depth=12" in (here / "out/audit.md").read_text()
    assert {"table", "img", "h1"} <= set(NestedTags((here / "out/audit.html").read_text()).seen)


def test_audit_estimator_for_machines(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "audit",
        "estimator",
        "median-forest",
        "--epsilon",
        "2",
        "-p",
        "max_depth=10",
        "--canaries",
        "900",
        "--json",
    ]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)["attacks"]
    assert [one["estimator"] for one in found] == ["MedianForestClassifier", "MedianForestRegressor"]
    assert all(one["epsilon"] == 2 and one["audited"]["canaries"] == 900 and not one["refuted"] for one in found)


def test_a_refuted_claim_is_said_and_has_its_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Attack("RandomTreesClassifier", "", 1.0, 0.0, 0.99, CanaryResult(9, 9, 9, 1.2), CanaryResult(9, 9, 9, 3.0))
    monkeypatch.setattr(attacks, "attack_estimator", lambda *args, **kwargs: broken)
    assert main(["audit", "estimator", "RandomTreesClassifier"]) == EXIT_REFUTED
    assert "REFUTED" in capsys.readouterr().out
    weak = Attack("RandomTreesClassifier", "", 1.0, 0.0, 0.99, CanaryResult(9, 9, 9, 0.1), CanaryResult(9, 9, 9, 0.3))
    assert "too weak" in reports.attack_report([weak])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["estimator", "forest"], "there is no estimator 'forest'"),
        (["estimator", "random-trees", "--param", "depth"], "KEY=VALUE"),
        (["estimator", "random-trees", "--param", "depth=3"], "does not take 'depth'"),
        (["estimator", "random-trees", "--epsilon", "inf"], "nothing to attack"),
        (["estimator", "random-trees", "--epsilon", "-1"], "epsilon"),
        (["estimator", "random-trees", "-o", "file"], "is a file"),
        (["model", "file"], "not a Veilwood model"),
        (["model", "none"], "no such file"),
        (["peer", "sklearn"], "there is no attack on 'sklearn'"),
    ],
    ids=" ".join,
)
def test_mistakes_are_one_line(words: Any, says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").write_text("x")
    assert main(["audit", *words]) == (4 if words[0] == "model" else 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


# -- audit model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"delta": 1e-6}, {"random_state": None}, {"trees": "disjoint"}], ids=str)
def test_a_sound_model_passes(params: dict[str, Any], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vw.save(fit_car_trees(**params), "car.veilwood")
    assert main(["audit", "model", "car.veilwood", "-o", "out"]) == 0
    out = capsys.readouterr().out
    assert "NO " not in out
    assert "Cannot be checked from a file" in out
    assert "ledger" in (here / "out/model-audit.md").read_text()
    assert "ul" in NestedTags((here / "out/model-audit.html").read_text()).seen


def test_a_model_that_does_not_hold_has_its_exit_code(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vw.save(fit_car_trees(epsilon=float("inf")), "car.veilwood")
    assert main(["audit", "model", "car.veilwood", "--json"]) == EXIT_REFUTED
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [check["question"] for check in checks if not check["holds"]] == ["Is it private?"]


# -- certificate --------------------------------------------------------------------------------------------


def test_the_certificate_is_verified_and_fits_on_a_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vw.save(fit_car_trees(), "car.veilwood")
    assert main(["certificate", "car.veilwood"]) == 0
    assert "\n\nVerified against car.veilwood" in capsys.readouterr().out
    assert main(["certificate", "car.veilwood", "--html", "page.html"]) == 0
    page = (here / "page.html").read_text()
    assert "Verified" in capsys.readouterr().out
    assert {"h1", "h2", "table", "ul", "strong"} <= set(NestedTags(page).seen)
    assert fit_car_trees().privacy_.schema_hash in page
    assert main(["certificate", "car.veilwood", "--html", "page.html"]) == 2
    assert "exists already" in capsys.readouterr().err
    content = bytearray((here / "car.veilwood").read_bytes())
    content[-1] ^= 1
    (here / "car.veilwood").write_bytes(content)
    assert main(["certificate", "car.veilwood"]) == 4
    assert "Verified" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["estimator", "model", "peer"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"veilwood audit {command} " in out.split("Example:")[1]
    assert "--json" in out


def test_html_is_escaped() -> None:
    page = html_page("# A\n\n| <script> | b |\n|---|---|\n| `x<y` | **z** |\n\n- one\n- two <b>")
    assert "<script>" not in page
    assert "<b>" not in page
    assert "<code>x&lt;y</code>" in page
    assert NestedTags(page).seen.count("li") == 2
