# SPDX-License-Identifier: Apache-2.0
"""The commands ``papers`` and ``bench``: what they print, write, skip and reject."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilwood.cli.main import main
from veilwood_papers.tables import cache_folder
from veilwood_testing.exhibits import CHEAP_ESTIMATOR


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILWOOD_DATA", str(tmp_path / "cache"))


def test_the_list_names_every_exhibit_and_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["papers", "list"]) == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 39 + 4
    assert "mrf figure 2" in output
    assert "[adult, adult-both, balance-scale, car, heart, iris, mushroom]" in output


def test_sizes_of_tables_are_measured_shown_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--quick", "--out", str(tmp_path / "out")]
    assert main(["papers", "run", "mrf", "--table", "a1", "--workers", "1", *out]) == 0
    output = capsys.readouterr()
    assert "1728 (1728)" in output.out
    assert "9 same" in output.out
    assert "veilwood papers fetch heart" in output.err
    written = tmp_path / "out" / "quick" / "exhibits" / "mrf-appendix-table-1"
    assert written.with_suffix(".csv").exists()
    assert written.with_suffix(".svg").exists()
    assert main(["papers", "report", *out]) == 0
    page = (tmp_path / "out" / "quick" / "report.html").read_text()
    assert "1 of 39 exhibits" in page


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "nobody"], "no paper 'nobody'"),
        (["run", "rdt", "--figure", "11"], "rdt has no figure 11"),
        (["run", "rdt", "--data", "/no/such/folder"], "is not a folder"),
        (["report", "--out", "/no/such/folder"], "has no results"),
        (["fetch", "higgs"], "higgs cannot be fetched"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_the_next_step(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["papers", *words]) == 2
    output = capsys.readouterr().err
    assert told in output
    assert "Hint" in output


def test_fetched_tables_go_where_the_user_says(tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"


@pytest.fixture
def cheap_folder(here: Path) -> Path:
    """An empty folder with an estimator in a file, as the working directory."""
    (here / "cheap.py").write_text(CHEAP_ESTIMATOR)
    return here


def test_the_command_measures_reports_and_goes_on(cheap_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "accuracy", "--table", "iris", "--seeds", "1", "--epsilon", "4", "--estimator", "cheap.py:Cheap"]
    assert main([*words, "-o", "skill.md"]) == 0
    assert "| cheap.py:Cheap | 0.000 |" in capsys.readouterr().out
    assert "## iris" in (cheap_folder / "skill.md").read_text()
    assert (cheap_folder / "fits").read_text() == "x"
    assert main([*words, "-o", "skill.md", "--force"]) == 0
    assert (cheap_folder / "fits").read_text() == "x"


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
    words: list[str], says: str, cheap_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "accuracy", *words]) == 2
    assert says in capsys.readouterr().err
    assert not (cheap_folder / "accuracy.csv").exists()
