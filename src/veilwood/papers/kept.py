# SPDX-License-Identifier: Apache-2.0
"""Results that are kept without their cells: a Markdown page made from nothing but the CSV files of exhibits."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from veilwood.papers.catalog import PAPERS
from veilwood.papers.exhibit import Cell, Exhibit, Value, Values
from veilwood.papers.published import number
from veilwood.papers.show import NOT_MEASURED, Shown, of_published, said

VERDICTS = ("same", "better", "worse", "differs")


def shown_from_csv(exhibit: Exhibit, path: Path, quick: bool) -> Shown:
    """Read back what ``show.write`` has written of an exhibit."""
    measured: Values = {}
    published: Values = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            cell = Cell(line["panel"], line["curve"], line["x"], line["measure"])
            if line["measured"]:
                measured[cell] = Value(float(line["measured"]), number(line["error"]), int(line["runs"] or 0))
            if line["published"]:
                published[cell] = Value(float(line["published"]), number(line["published_error"]))
    return Shown(exhibit, measured, published, quick)


def markdown(exhibits: Sequence[Exhibit], folder: Path) -> str:
    """Return the page of a folder of results: an overview, then pictures, sentences and what was not reached."""
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    paths = {exhibit.slug: folder / "exhibits" / f"{exhibit.slug}.csv" for exhibit in exhibits}
    shown = [shown_from_csv(e, paths[e.slug], bool(facts["quick"])) for e in exhibits if paths[e.slug].exists()]
    head = ["exhibit", *VERDICTS, "true", "false", NOT_MEASURED]
    lines = ["# Four papers, published and measured", "", _made(facts), "", _row(head), _row(["---"] * len(head))]
    for entry in shown:
        words, told = list(entry.verdicts().values()), [word for _, word in entry.sentences()]
        counts = [str(words.count(word)) if words else "" for word in VERDICTS]
        lines.append(_row([entry.exhibit.name, *counts, *(str(told.count(word)) for word in head[5:])]))
    for paper, citation in PAPERS.items():
        lines += ["", f"## {citation}"]
        for entry in (entry for entry in shown if entry.exhibit.paper == paper):
            lines += _section(entry)
    return "\n".join(lines) + "\n"


def _made(facts: dict[str, str]) -> str:
    told = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "quick")
    reduced = " Quick settings: fewer repeats and smaller grids." if facts["quick"] else ""
    return (
        "Means ± standard errors over public seeds; same is within two standard errors of both. Every number is in "
        f"`exhibits/`. {told}.{reduced}"
    )


def _section(shown: Shown) -> list[str]:
    slug = shown.exhibit.slug
    lines = ["", f"### {shown.exhibit.name}: {shown.exhibit.title}", "", shown.settings]
    if shown.measured:
        lines += ["", f"![{shown.exhibit.name}](exhibits/{slug}.svg)"]
    if shown.sentences():
        theirs = shown.sentences_of_published()
        lines += ["", *(f"- **{word}**: {text}{of_published(theirs, text)}" for text, word in shown.sentences())]
    misses = shown.misses()
    if misses:
        lines += ["", "Published and not reached:", ""]
    for cell, reason in misses:
        where = ", ".join(part for part in (cell.panel, cell.curve, cell.x) if part)
        lines.append(f"- {where}: {said(shown.measured[cell])}, published {said(shown.published[cell])}; {reason}")
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
