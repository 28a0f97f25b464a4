# SPDX-License-Identifier: Apache-2.0
"""Exhibits shown: text, pictures, files, results pages and one HTML report."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Cell, Claim, Row, Value, check_above
from veilwood_papers.runner import Run, all_exhibits, measure_exhibits
from veilwood_papers.show import (
    ExhibitResults,
    check_sentences,
    html_report,
    render_svg,
    results_from_csv,
    results_of,
    results_page,
    to_csv,
    write_files,
)
from veilwood_papers.tables import PublicTables
from veilwood_testing import ROOT
from veilwood_testing.exhibits import cheapest, results_of_exhibit
from veilwood_testing.exhibits import toy_exhibit as toy


def test_files_of_an_exhibit_are_the_same_for_the_same_cells(tmp_path: Path) -> None:
    visible = results_of(toy(), measure_exhibits([toy()], PublicTables(), tmp_path))
    first = {name: path.read_bytes() for name, path in write_files(visible, tmp_path).items()}
    assert first == {name: path.read_bytes() for name, path in write_files(visible, tmp_path).items()}
    assert set(first) == {"table", "picture"}


def test_what_is_not_private_is_marked(found: dict[str, list[Row]]) -> None:
    for exhibit in all_exhibits():
        visible = results_of_exhibit(exhibit, found)
        private = {line["curve"]: line["private"] for line in csv.DictReader(to_csv(visible).splitlines())}
        for curve, word in private.items():
            if any(name in curve for name in ("no noise", "published (", "as printed", "RF (", "ERT (")):
                assert word == "no", (exhibit.name, curve)


KEPT = ROOT / "benchmarks" / "results" / "papers"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    for exhibit in all_exhibits():
        published = exhibit.published()
        measured = {cell: Value(value.mean * 0.9, 0.01, 5) for cell, value in list(published.items())[:40]}
        visible = ExhibitResults(exhibit, measured, published, True)
        table = tmp_path / f"{exhibit.slug}.csv"
        table.write_bytes(to_csv(visible).encode())
        again = results_from_csv(exhibit, table, True)
        assert again.verdicts() == visible.verdicts()
        assert again.sentences() == visible.sentences()
        assert set(again.published) == set(published)
        for cell, value in again.measured.items():
            assert math.isclose(value.mean, measured[cell].mean, rel_tol=1e-5)


def claim_rows(*gaps: float) -> list[Row]:
    """Two curves whose difference is given, seed by seed."""
    return [Row(Cell("p", name, "0"), i, 0.5 + (gap if name == "a" else 0.0))
            for i, gap in enumerate(gaps) for name in ("a", "b")]  # fmt: skip


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [((0.1, 0.2, 0.1), "true"), ((-0.1, -0.2, -0.1), "false"), ((0.3, -0.2, 0.1), "undecided"), ((), "not measured")],
)
def test_a_verdict_needs_nearly_all_resamples_of_the_seeds(gaps: tuple[float, ...], verdict: str) -> None:
    gain = lambda values: values[Cell("p", "a", "0")].mean - values[Cell("p", "b", "0")].mean  # noqa: E731
    exhibit = dataclasses.replace(toy(), claims=(Claim("a is above b.", check_above("a", "b"), gain),))
    (checked,) = check_sentences(exhibit, claim_rows(*gaps), exhibit.values(claim_rows(*gaps)))
    assert checked.verdict == verdict
    if gaps:
        assert checked.figure.startswith(f"{np.mean(gaps):+.1%}, 95 % interval")


def test_seeds_are_resampled_together() -> None:
    """Curves that share splits differ by the same amount in each resample, however much the splits vary."""
    rows = [row._replace(value=row.value + 10.0 * row.repeat) for row in claim_rows(0.1, 0.1, 0.1, 0.1)]
    for values in toy().resamples(rows, 20):
        assert values[Cell("p", "a", "0")].mean - values[Cell("p", "b", "0")].mean == pytest.approx(0.1)


def test_numbers_in_texts_of_a_picture_are_whole(tmp_path: Path) -> None:
    cells = {Cell("Adult", "tree", x): Value(0.5, 0.01, 3) for x in ("0.005", "0.01", "0.1")}
    exhibit = dataclasses.replace(toy(), draw=line_chart("epsilon", "accuracy", log_x=True))
    picture = render_svg(ExhibitResults(exhibit, cells, {}, True)).decode()
    assert ">0.005<" in picture
    assert not re.search(r"<[^>]*\d\.\d{3,}[^>]*>", picture)


def test_a_panel_without_its_data_is_named(tmp_path: Path) -> None:
    exhibit = next(exhibit for exhibit in all_exhibits() if exhibit.name == "mrf figure 2")
    published = exhibit.published()
    one = {cell: Value(0.0, 0.01, 3) for cell in published if cell.panel == "Adult, training file"}
    both = {cell: Value(0.0, 0.01, 3) for cell in published if cell.panel.startswith("Adult")}
    alone, beside = (ExhibitResults(exhibit, cells, published, True) for cells in (one, both))
    assert "Not measured in this run: Car; Iris; Balance; " in alone.settings
    assert "Seeds: 3." in alone.settings
    assert not any("panel beside" in reason for _, reason in alone.misses())
    assert any("panel beside" in reason for _, reason in beside.misses())


def test_the_page_names_every_miss_with_both_values(tmp_path: Path) -> None:
    exhibit = next(exhibit for exhibit in all_exhibits() if exhibit.name == "mrf figure 3a")
    cell, value = next(iter(exhibit.published().items()))
    write_files(ExhibitResults(exhibit, {cell: Value(value.mean - 0.2, 0.01, 5)}, {cell: value}, False), tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"veilwood": "1.2.3", "quick": False}))
    page = results_page(all_exhibits(), tmp_path)
    assert "| mrf figure 3a | 0 | 0 | 1 | 0 |" in page
    assert f"{value.mean - 0.2:.3f} ± 0.010, published {value.mean:.3f}" in page
    assert "of 1 exhibits have no published numbers" in page
    assert "rdt figure 9 (" in page
    assert "veilwood 1.2.3" in page
    assert "](exhibits/mrf-figure-3a.svg)" in page


@pytest.mark.parametrize("folder", sorted(path.parent for path in KEPT.glob("**/report.md")) or [None])
def test_a_kept_page_is_that_of_its_tables(folder: Path | None) -> None:
    if folder is None:
        pytest.skip("no results are kept")
    assert (folder / "report.md").read_text(encoding="utf-8") == results_page(all_exhibits(), folder)
    pictures = {path.stem for path in (folder / "exhibits").glob("*.svg")}
    assert pictures <= {path.stem for path in (folder / "exhibits").glob("*.csv")}


def test_the_report_is_one_page_with_every_exhibit(found: dict[str, list[Row]], tmp_path: Path) -> None:
    run = Run(tmp_path / "quick", quick=True)
    for exhibit in all_exhibits():
        store, rows = run.open_store(exhibit.experiment), found.get(exhibit.experiment.name)
        if rows:
            store.add(cheapest(list(exhibit.experiment.jobs(True))).name, rows)
            store.save()
    text = html_report(all_exhibits(), run)
    assert not re.search(r'(?:src|href)="(?!data:|#)', text), "the page is self-contained"
    assert all(f'id="{exhibit.slug}"' in text for exhibit in all_exhibits())
    assert (
        text.count("data:image/svg+xml")
        == sum(bool(results_of_exhibit(e, found).measured) for e in all_exhibits())
        > 12
    )
    assert "NOT PRIVATE" in text
