# SPDX-License-Identifier: Apache-2.0
"""Every table and figure can be measured, drawn and shown, on random rows of the true schemas."""

from __future__ import annotations

import csv
import importlib
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from veilwood_papers.exhibit import Cell, Exhibit, Row, Value
from veilwood_papers.runner import MODULES, N_EXHIBITS, PAPERS, all_exhibits, select_exhibits
from veilwood_papers.show import OUTCOMES, ExhibitResults, arrange_blocks, render_svg, to_csv, to_text
from veilwood_papers.tables import PublicTables, known_tables
from veilwood_testing.exhibits import CHEAP_EXPERIMENTS, first_job, results_of_exhibit


def test_the_list_is_that_of_the_papers() -> None:
    numbers: dict[str, list[str]] = {paper: [] for paper in PAPERS}
    for exhibit in all_exhibits():
        numbers[exhibit.paper].append(exhibit.number)
    appendix = [
        f"appendix {kind}"
        for kind in ("figure 1", "figure 2", "figure 3", "figure 4", "figure 5", "table 1", "table 2")
    ]
    assert numbers["mrf"] == ["figure 2", "figure 3a", "figure 3b", "figure 4", "table 1", *appendix]
    assert numbers["rdt"] == [*(f"figure {n}" for n in range(1, 11)), "table 1"]
    assert numbers["diprime"] == [*(f"figure {n}" for n in range(1, 9)), "table 1", "table 2"]
    assert numbers["secure"] == [*(f"figure {n}" for n in range(2, 7)), "table 1"]
    assert sum(map(len, numbers.values())) == len({exhibit.slug for exhibit in all_exhibits()}) == N_EXHIBITS


def test_every_module_of_a_table_or_figure_is_in_the_catalogue() -> None:
    root = Path(importlib.import_module("veilwood_papers").__file__ or "").parent
    written = {
        f"{path.parent.name}.{path.stem}"
        for path in root.glob("*/*.py")
        if "\nEXHIBITS = " in path.read_text(encoding="utf-8")
    }
    assert written == set(MODULES)
    found = [e for module in MODULES for e in importlib.import_module(f"veilwood_papers.{module}").EXHIBITS]
    assert sorted(e.name for e in found) == sorted(e.name for e in all_exhibits())


@pytest.mark.parametrize("quick", [True, False])
def test_jobs_have_names_of_their_own_and_known_tables(quick: bool) -> None:
    for experiment in {exhibit.experiment.name: exhibit.experiment for exhibit in all_exhibits()}.values():
        jobs = experiment.jobs(quick)
        assert jobs
        assert len({job.name for job in jobs}) == len(jobs), experiment.name
        assert {job.table for job in jobs} <= {"", *known_tables()}
        assert all(job.weight > 0 for job in jobs)


def test_a_figure_of_one_data_set_runs_nothing_else() -> None:
    by_name = {exhibit.name: exhibit for exhibit in all_exhibits()}
    assert {job.table for job in by_name["rdt figure 3"].jobs(True)} == {"adult-a9a"}
    assert {job.table for job in by_name["rdt figure 8"].jobs(True)} == {"covertype"}
    assert by_name["rdt figure 9"].jobs(True) == [], "Quantum cannot be had"
    assert {job.table for job in by_name["mrf figure 4"].jobs(True)} == {"car"}
    one, other = ({job.name for job in by_name[f"diprime figure {n}"].jobs(True)} for n in (2, 6))
    assert one
    assert not one & other


@pytest.mark.parametrize(
    "exhibit",
    [
        pytest.param(
            exhibit, id=exhibit.slug, marks=[] if exhibit.experiment.name in CHEAP_EXPERIMENTS else pytest.mark.slow
        )
        for exhibit in all_exhibits()
    ],
)
def test_an_exhibit_is_measured_drawn_and_compared(
    exhibit: Exhibit, tables: PublicTables, found: dict[str, list[Row]]
) -> None:
    if exhibit.experiment.name not in found:
        found[exhibit.experiment.name] = first_job(exhibit.experiment, tables)
    visible = results_of_exhibit(exhibit, found)
    assert all(math.isfinite(value.mean) for value in visible.measured.values())
    assert all(each.verdict in OUTCOMES for each in visible.sentences())
    lines = list(csv.DictReader(to_csv(visible).splitlines()))
    assert len(lines) == len({*visible.measured, *visible.published})
    if visible.measured:
        assert render_svg(visible).startswith(b"<?xml")
        assert exhibit.name in to_text(visible)
        assert sum(len(block.lines) for block in arrange_blocks(visible)) > 0
    panels = {cell.panel for cell in visible.measured}
    comparable = [cell for cell in visible.published if cell.panel in panels]
    curves = {(cell.panel, cell.curve) for cell in visible.measured}
    unmatched = {(cell.panel, cell.curve) for cell in comparable} - curves
    assert not unmatched, "published under a name that nothing measures"
    assert not comparable or any(cell in visible.measured for cell in comparable)


def test_every_miss_has_a_reason() -> None:
    """A published cell that a run does not reach is explained, whichever it is."""
    for exhibit in all_exhibits():
        for cell, other in exhibit.published().items():
            if cell.measure.split()[0] in ("accuracy", "error", "MSE", "AUC", "number"):
                reason = exhibit.why(cell, {})
                assert re.fullmatch(r"(?:tested|not tested|known): .{20,}\.", reason, re.S), (
                    exhibit.name,
                    cell,
                    other,
                )


def test_one_number_of_one_paper_can_be_asked_for() -> None:
    assert [exhibit.name for exhibit in select_exhibits("mrf", figure="a1")] == ["mrf appendix figure 1"]
    assert [exhibit.name for exhibit in select_exhibits("mrf", figure="3a")] == ["mrf figure 3a"]
    assert len(select_exhibits("all")) == N_EXHIBITS


def lines_at_random(cells: Sequence[Cell], rng: np.random.Generator) -> dict[Cell, Value]:
    """Values of every cell that follow a straight line along each curve, with a little noise."""
    start = {cell.curve: rng.uniform(0, 1) for cell in cells}
    slope = {cell.curve: rng.uniform(-0.5, 0.5) for cell in cells}
    xs = {x: place for place, x in enumerate(sorted({cell.x for cell in cells}))}
    return {
        c: Value(
            (start[c.curve] + slope[c.curve] * xs[c.x] / len(xs) + rng.normal(0, 0.01))
            * (100 if "%" in c.measure else 1)
        )
        for c in cells
    }


def test_every_sentence_can_be_false_and_nearly_all_can_be_true(found: dict[str, list[Row]]) -> None:
    answers: dict[tuple[str, str], set[str]] = {}
    for exhibit in all_exhibits():
        values, rng = results_of_exhibit(exhibit, found), np.random.default_rng(0)
        for _ in range(150 if values.measured else 0):
            drawn = lines_at_random(list(values.measured), rng)
            for each in ExhibitResults(exhibit, drawn, {}, True).sentences():
                answers.setdefault((exhibit.name, each.sentence), set()).add(each.verdict)
    facts = {key: words for key, words in answers.items() if words != {"not measured"}}
    assert len(facts) > 25
    assert [key for key, words in facts.items() if "false" not in words] == []
    assert sum("true" in words for words in facts.values()) > 0.8 * len(facts)
