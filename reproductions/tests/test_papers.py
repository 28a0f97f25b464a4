# SPDX-License-Identifier: Apache-2.0
"""The command ``papers``: what it prints, writes, skips and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilwood.cli.main import main
from veilwood_papers.tables import cache_folder


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILWOOD_DATA", str(tmp_path / "cache"))


def test_the_list_names_every_exhibit_and_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["papers", "list"]) == 0
    told = capsys.readouterr().out
    assert told.count("\n") == 39 + 4
    assert "mrf figure 2" in told
    assert "[adult, adult-both, balance-scale, car, heart, iris, mushroom]" in told


def test_sizes_of_tables_are_measured_shown_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--quick", "--out", str(tmp_path / "out")]
    assert main(["papers", "run", "mrf", "--table", "a1", "--workers", "1", *out]) == 0
    told = capsys.readouterr()
    assert "1728 (1728)" in told.out
    assert "9 same" in told.out
    assert "veilwood papers fetch heart" in told.err
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
    said = capsys.readouterr().err
    assert told in said
    assert "Hint" in said


def test_fetched_tables_go_where_the_user_says(tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
