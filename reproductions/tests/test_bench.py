# SPDX-License-Identifier: Apache-2.0
"""The commands that measure accuracy."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilwood.cli.main import main
from veilwood_testing.exhibits import CHEAP_ESTIMATOR


@pytest.fixture(autouse=True)
def _cheap(here: Path) -> None:
    (here / "cheap.py").write_text(CHEAP_ESTIMATOR)


def test_the_command_measures_reports_and_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "accuracy", "--table", "iris", "--seeds", "1", "--epsilon", "4", "--estimator", "cheap.py:Cheap"]
    assert main([*words, "-o", "skill.md"]) == 0
    assert "| cheap.py:Cheap | 0.000 |" in capsys.readouterr().out
    assert "## iris" in (here / "skill.md").read_text()
    assert (here / "fits").read_text() == "x"
    assert main([*words, "-o", "skill.md", "--force"]) == 0
    assert (here / "fits").read_text() == "x"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--suite", "other"], "development or validation"),
        (["--table", "adult"], "no table 'adult' here"),
        (["--estimator", "Forest"], "no estimator 'Forest'"),
        (["--data", "nowhere"], "not a folder"),
    ],
)
def test_words_that_are_not_understood(
    words: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "accuracy", *words]) == 2
    assert says in capsys.readouterr().err
    assert not (here / "accuracy.csv").exists()
