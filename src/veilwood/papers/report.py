# SPDX-License-Identifier: Apache-2.0
"""One page with every table and figure of a run: self-contained HTML, pictures and numbers inside."""

from __future__ import annotations

import base64
import datetime
import html
import json
from collections.abc import Sequence

from veilwood.papers.catalog import PAPERS
from veilwood.papers.exhibit import Exhibit
from veilwood.papers.runner import Run, describe_machine
from veilwood.papers.show import NOT_MEASURED, Block, Shown, blocks, of_published, of_run, picture, said

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 3rem; border-bottom: 2px solid #0072B2; } h3 { margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 13px; margin: .6rem 0; } td,
th { padding: .15rem .6rem; text-align: left; }
th { border-bottom: 1px solid #888; } tr:nth-child(even) td { background: #f4f6f8; }
td.n { font-variant-numeric: tabular-nums; }
img { max-width: 100%; height: auto; } .settings { color: #555; } .true { color: #00664a; } .false { color: #a8400f; }
small { color: #666; } .worse, .differs { color: #a8400f; } .better { color: #00664a; }
summary { cursor: pointer; color: #0058a0; }
nav a { margin-right: .8rem; } .mark { font-weight: 600; color: #a8400f; } li { margin: .2rem 0; }
"""


def page(exhibits: Sequence[Exhibit], run: Run) -> str:
    """Return the report of a run as one HTML page."""
    shown = [of_run(exhibit, run) for exhibit in exhibits]
    note = run.folder / "run.json"
    facts = json.loads(note.read_text(encoding="utf-8")) if note.exists() else describe_machine()
    done = [entry for entry in shown if entry.measured]
    sections = []
    for paper, citation in PAPERS.items():
        of_paper = [entry for entry in shown if entry.exhibit.paper == paper]
        if of_paper:
            sections.append(f'<h2 id="{paper}">{_e(citation)}</h2>' + "".join(_section(entry) for entry in of_paper))
    made = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "quick")
    written = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Four papers, published and measured</title><style>{STYLE}</style></head><body>
<h1>Four papers, published and measured</h1>
<p>Every table and figure of the four papers whose forests this library contains, measured by
<code>veilwood papers run{" --quick" if run.quick else ""}</code>: {len(done)} of {len(shown)} exhibits, {_total(done)}.
Values are means ± standard errors over public seeds 0, 1, 2, ... of splits and trees; noise of private forests comes
from the operating system and is not seeded. Published values stand below in small print; green is better than
published, red worse, by more than two standard errors of both. Curves marked
<span class="mark">NOT PRIVATE</span> have no guarantee.</p>
<p class="settings">{_e(made)}; page written {written}.</p>
<nav>{"".join(f'<a href="#{paper}">{paper}</a>' for paper in PAPERS)}</nav>
{_overview(shown)}
{"".join(sections)}
</body></html>
"""


def _overview(shown: Sequence[Shown]) -> str:
    rows = []
    for entry in shown:
        words, said = list(entry.verdicts().values()), [word for _, word in entry.sentences()]
        link = f'<a href="#{entry.exhibit.slug}">{_e(entry.exhibit.name)}</a>'
        cells = [str(words.count(word)) if words else "" for word in ("same", "better", "worse", "differs")]
        checked = [str(said.count(word)) if said else "" for word in ("true", "false", NOT_MEASURED)]
        rows.append(f"<tr><td>{link}</td>" + "".join(f'<td class="n">{c}</td>' for c in [*cells, *checked]) + "</tr>")
    head = "".join(
        f"<th>{name}</th>" for name in ("exhibit", "same", "better", "worse", "differs", "true", "false", NOT_MEASURED)
    )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _section(shown: Shown) -> str:
    exhibit = shown.exhibit
    parts = [f'<h3 id="{exhibit.slug}">{_e(exhibit.name)}: {_e(exhibit.title)}</h3>']
    parts.append(f'<p class="settings">{_e(shown.settings)}</p>')
    if not shown.measured:
        return "".join([*parts, "<p>Not measured in this run.</p>"])
    image = base64.b64encode(picture(shown)).decode()
    parts.append(f'<img alt="{_e(exhibit.name)}" src="data:image/svg+xml;base64,{image}">')
    if exhibit.claims:
        theirs = shown.sentences_of_published()
        said = "".join(
            f'<li><b class="{_class(word)}">{word}</b>: {_e(s)}<small>{_e(of_published(theirs, s))}</small></li>'
            for s, word in shown.sentences()
        )
        parts.append(f"<p>What the text says of it, checked on what was measured:</p><ul>{said}</ul>")
    reasons: dict[str, list[str]] = {}
    for cell, reason in shown.misses():
        reasons.setdefault(reason, []).append(f"{cell.panel}, {cell.curve}" + (f" at {cell.x}" if cell.x else ""))
    if reasons:
        told = "".join(f"<li>{_e('; '.join(cells))}: {_e(reason)}</li>" for reason, cells in reasons.items())
        parts.append(f"<p>Published and not reached:</p><ul>{told}</ul>")
    tables = "".join(_numbers(shown, block) for block in blocks(shown))
    n = len(shown.measured)
    parts.append(f"<details{'' if n > 80 else ' open'}><summary>{n} cells</summary>{tables}</details>")
    return "".join(parts)


def _numbers(shown: Shown, block: Block) -> str:
    """One table: measured, and published below it in grey."""
    words, lines = shown.verdicts(), []
    for curve, cells in block.lines.items():
        entries = []
        for cell in cells:
            own, theirs = shown.measured.get(cell), shown.published.get(cell)
            told = "" if own is None else _e(said(own))
            told += "" if theirs is None else f"<br><small>{_e(said(theirs))}</small>"
            entries.append(f'<td class="n {_class(words.get(cell, ""))}">{told}</td>')
        lines.append(f"<tr><td>{_e(curve)}</td>{''.join(entries)}</tr>")
    head = "".join(f"<th>{_e(x)}</th>" for x in block.xs)
    return f"<table><tr><th>{_e(block.title)}</th>{head}</tr>{''.join(lines)}</table>"


def _total(shown: Sequence[Shown]) -> str:
    words = [word for entry in shown for word in entry.verdicts().values()]
    return f"{len(words)} published cells: " + ", ".join(
        f"{words.count(word)} {word}" for word in ("same", "better", "worse", "differs") if word in words
    )


def _class(word: str) -> str:
    return word if word in ("true", "false", "worse", "better", "differs") else ""


def _e(text: str) -> str:
    return html.escape(text)
