# SPDX-License-Identifier: Apache-2.0
"""Pages of kept results come out of their CSV files, to the last digit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from veilwood_papers.exhibit import Value
from veilwood_papers.runner import all_exhibits
from veilwood_papers.show import ExhibitResults, results_from_csv, results_page, to_csv, write_files
from veilwood_testing import ROOT

KEPT = ROOT / "benchmarks" / "results" / "papers"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    for exhibit in all_exhibits():
        published = exhibit.published()
        measured = {cell: Value(value.mean * 0.9, 0.01, 5) for cell, value in list(published.items())[:40]}
        shown = ExhibitResults(exhibit, measured, published, True)
        table = tmp_path / f"{exhibit.slug}.csv"
        table.write_bytes(to_csv(shown).encode())
        again = results_from_csv(exhibit, table, True)
        assert again.verdicts() == shown.verdicts()
        assert again.sentences() == shown.sentences()
        assert set(again.published) == set(published)
        for cell, value in again.measured.items():
            assert math.isclose(value.mean, measured[cell].mean, rel_tol=1e-5)


def test_the_page_names_every_miss_with_both_values(tmp_path: Path) -> None:
    exhibit = next(exhibit for exhibit in all_exhibits() if exhibit.name == "mrf figure 3a")
    cell, value = next(iter(exhibit.published().items()))
    write_files(ExhibitResults(exhibit, {cell: Value(value.mean - 0.2, 0.01, 5)}, {cell: value}, False), tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"veilwood": "1.2.3", "quick": False}))
    page = results_page(all_exhibits(), tmp_path)
    assert "| mrf figure 3a | 0 | 0 | 1 | 0 |" in page
    assert f"{value.mean - 0.2:.3f} ± 0.010, published {value.mean:.3f}" in page
    assert "veilwood 1.2.3" in page
    assert "](exhibits/mrf-figure-3a.svg)" in page


@pytest.mark.parametrize("folder", sorted(path.parent for path in KEPT.glob("**/report.md")) or [None])
def test_a_kept_page_is_that_of_its_tables(folder: Path | None) -> None:
    if folder is None:
        pytest.skip("no results are kept")
    assert (folder / "report.md").read_text(encoding="utf-8") == results_page(all_exhibits(), folder)
    pictures = {path.stem for path in (folder / "exhibits").glob("*.svg")}
    assert pictures <= {path.stem for path in (folder / "exhibits").glob("*.csv")}
