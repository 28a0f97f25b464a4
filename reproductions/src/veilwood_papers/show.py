# SPDX-License-Identifier: Apache-2.0
"""Output of exhibits as text, CSV, SVG, Markdown and HTML: measured and published values, and checked claims."""

from __future__ import annotations

import base64
import csv
import datetime
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from veilwood.safe_io import write_file
from veilwood_papers.drawing import as_number
from veilwood_papers.exhibit import (
    NOT_COMPARED,
    Cell,
    Exhibit,
    Row,
    Value,
    Values,
    compare_with_published,
    parse_number,
)
from veilwood_papers.runner import PAPERS, Run, describe_machine

HEAD = (
    "panel",
    "curve",
    "x",
    "measure",
    "published",
    "published_error",
    "measured",
    "error",
    "runs",
    "verdict",
    "private",
)
NOT_MEASURED, UNDECIDED = "not measured", "undecided"
OUTCOMES = ("true", "false", UNDECIDED, NOT_MEASURED)
N_RESAMPLES = 200
DECIDED = 0.95
"""Fraction of resamples that must agree with the verdict on the means, for a claim to be called true or false."""


class CheckedSentence(NamedTuple):
    """Claim with its verdict, the fraction of resamples in which it holds (None if unknown), and a measured number."""

    sentence: str
    verdict: str
    holds_in: float | None = None
    figure: str = ""

    @property
    def support(self) -> str:
        """The fraction of resamples and the measured number as text, or an empty string."""
        if self.holds_in is None:
            return ""
        figure = f"; measured {self.figure}" if self.figure else ""
        return f" (holds in {100 * self.holds_in:.0f} % of resamples{figure})"


@dataclass(frozen=True)
class ExhibitResults:
    """Measured and published values of an exhibit, with the claims as checked on resampled seeds."""

    exhibit: Exhibit
    measured: Values
    published: Values
    quick: bool
    checked: tuple[CheckedSentence, ...] = ()

    @property
    def title(self) -> str:
        """Title of the exhibit's figure."""
        return f"{self.exhibit.name}: {self.exhibit.title}" + (" (quick)" if self.quick else "")

    @property
    def settings(self) -> str:
        """Settings of the run, with the reductions of a quick run."""
        reduced = f" Quick: {self.exhibit.quick}" if self.quick and self.exhibit.quick else ""
        return f"{self.exhibit.settings}{reduced}{self.coverage}"

    @property
    def coverage(self) -> str:
        """Number of seeds, and the published panels that this run did not measure."""
        if not self.measured:
            return ""
        runs = sorted({value.runs for value in self.measured.values() if value.runs})
        seeds = "" if not runs else f" Seeds: {runs[0]}{f' to {runs[-1]}' if len(runs) > 1 else ''}."
        panels = {cell.panel for cell in self.measured}
        missing = dict.fromkeys(cell.panel for cell in self.published if cell.panel not in panels)
        return seeds + (f" Not measured in this run: {'; '.join(missing)}." if missing else "")

    def verdicts(self) -> dict[Cell, str]:
        """Return the verdict on each cell that was both published and measured."""
        return {
            cell: compare_with_published(cell, value, self.published[cell], published_once=self.exhibit.published_once)
            for cell, value in self.measured.items()
            if cell in self.published and cell.measure.split(" ")[0] not in NOT_COMPARED
        }

    def sentences(self) -> list[CheckedSentence]:
        """Return the claims of the text, each with its verdict."""
        if self.checked:
            return list(self.checked)
        words = {True: "true", False: "false", None: NOT_MEASURED}
        return [CheckedSentence(claim.sentence, words[claim.holds(self.measured)]) for claim in self.exhibit.claims]

    def sentences_of_published(self) -> dict[str, str]:
        """Return whether each claim holds on the published values, for claims that can be checked on them."""
        of_paper = [claim for claim in self.exhibit.claims if not claim.sentence.startswith("Ours")]
        checks = {c.sentence: c.holds(self.published) for c in of_paper} if self.published else {}
        return {sentence: "true" if holds else "false" for sentence, holds in checks.items() if holds is not None}

    def misses(self) -> list[tuple[Cell, str]]:
        """Return the cells that are worse than published or differ, each with the reason."""
        return [
            (cell, self.exhibit.why(cell, self.measured))
            for cell, word in self.verdicts().items()
            if word in ("worse", "differs")
        ]


def results_of(exhibit: Exhibit, run: Run) -> ExhibitResults:
    """Return the results of a run for one exhibit."""
    rows = run.read_rows(exhibit)
    measured = exhibit.values(rows)
    checked = check_sentences(exhibit, rows, measured)
    return ExhibitResults(exhibit, measured, exhibit.published(), run.quick, checked)


def check_sentences(exhibit: Exhibit, rows: Sequence[Row], measured: Values) -> tuple[CheckedSentence, ...]:
    """Return the claims with verdicts from the means, "undecided" if too many resamples of the seeds disagree."""
    answers = [claim.holds(measured) for claim in exhibit.claims]
    resamples = exhibit.resamples(rows, N_RESAMPLES) if any(answer is not None for answer in answers) else []
    checked = []
    for claim, answer in zip(exhibit.claims, answers, strict=True):
        if answer is None:
            checked.append(CheckedSentence(claim.sentence, NOT_MEASURED))
            continue
        holds_in = sum(claim.holds(values) is True for values in resamples) / N_RESAMPLES
        agreement = holds_in if answer else 1 - holds_in
        verdict = UNDECIDED if agreement < DECIDED else "true" if answer else "false"
        figure = ""
        if claim.gain is not None:
            low, high = np.percentile([claim.gain(values) for values in resamples], (2.5, 97.5))
            figure = f"{claim.gain(measured):+.1%}, 95 % interval {low:+.1%} to {high:+.1%}"
        checked.append(CheckedSentence(claim.sentence, verdict, holds_in, figure))
    return tuple(checked)


class Block(NamedTuple):
    """Table of one panel and measure: one line per curve, one column per x."""

    title: str
    xs: list[str]
    lines: dict[str, list[Cell]]


def arrange_blocks(results: ExhibitResults) -> list[Block]:
    """Return the cells as tables, one per panel and measure, with numeric x sorted."""
    blocks = []
    for panel, measure in dict.fromkeys((cell.panel, cell.measure) for cell in results.measured):
        cells = [cell for cell in results.measured if (cell.panel, cell.measure) == (panel, measure)]
        xs = list(dict.fromkeys(cell.x for cell in cells))
        if all(not math.isnan(as_number(x)) for x in xs):
            xs.sort(key=as_number)
        lines = {c: [Cell(panel, c, x, measure) for x in xs] for c in dict.fromkeys(cell.curve for cell in cells)}
        blocks.append(Block(panel if measure in panel else f"{panel}, {measure}", xs, lines))
    return blocks


def format_value(value: Value) -> str:
    """Format a mean with its standard error.

    >>> format_value(Value(0.7541, 0.0072, 10)), format_value(Value(3.0))
    ('0.754 ± 0.007', '3')
    """
    digits = 3 if abs(value.mean) < 1 else 2 if abs(value.mean) < 100 else 0
    if math.isnan(value.error):
        return f"{value.mean:g}" if value.mean == round(value.mean, 6) else f"{value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ± {value.error:.{max(digits, 2)}f}"


def describe_published(verdicts: Mapping[str, str], sentence: str) -> str:
    """Return a note on whether a claim holds on the published values, or an empty string if unknown.

    >>> describe_published({"a": "false"}, "a"), describe_published({}, "b")
    (' [published values: false]', '')
    """
    return f" [published values: {verdicts[sentence]}]" if sentence in verdicts else ""


def to_csv(results: ExhibitResults) -> str:
    """Return all cells as CSV, with published and measured values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    words = results.verdicts()
    for cell in dict.fromkeys([*results.measured, *results.published]):
        own, reference = results.measured.get(cell, Value(math.nan)), results.published.get(cell, Value(math.nan))
        private = "no" if results.exhibit.not_private(cell.curve) else "yes"
        numbers = (reference.mean, reference.error, own.mean, own.error)
        texts = ["" if math.isnan(number) else f"{number:.6g}" for number in numbers]
        writer.writerow([*cell, *texts, own.runs or "", words.get(cell, ""), private])
    return text.getvalue()


def to_text(results: ExhibitResults) -> str:
    """Return an exhibit as plain text: title, settings, values, number of verdicts, and claims."""
    parts = [results.title, results.settings]
    for block in arrange_blocks(results):
        lines = [[block.title, *(block.xs if len(block.xs) > 1 else [""])]]
        lines += [
            [f"  {curve}", *(_format_entry(results, cell) for cell in cells)] for curve, cells in block.lines.items()
        ]
        parts.append(_align_columns(lines))
    counts = _format_counts(results.verdicts().values())
    if counts:
        parts.append(f"Measured ± standard error (published). Within two standard errors: {counts}.")
    published_verdicts = results.sentences_of_published()
    parts += [
        f"  {each.verdict.upper() if each.verdict == 'false' else each.verdict}{each.support}: {each.sentence}"
        f"{describe_published(published_verdicts, each.sentence)}"
        for each in results.sentences()
    ]
    return "\n".join(parts)


def _format_entry(results: ExhibitResults, cell: Cell) -> str:
    own, reference = results.measured.get(cell), results.published.get(cell)
    text = "" if own is None else format_value(own).replace(" ", "")
    return text if reference is None else f"{text} ({reference.mean:g})".strip()


def write_files(results: ExhibitResults, folder: Path) -> dict[str, Path]:
    """Write the CSV and the figure of an exhibit, and return their paths."""
    paths = {"table": folder / "exhibits" / f"{results.exhibit.slug}.csv"}
    paths["table"].parent.mkdir(parents=True, exist_ok=True)
    write_file(paths["table"], to_csv(results).encode())
    if results.exhibit.claims:
        paths["sentences"] = _sentences_path(paths["table"])
        write_file(paths["sentences"], _sentences_csv(results).encode())
    if results.measured:
        paths["picture"] = folder / "exhibits" / f"{results.exhibit.slug}.svg"
        write_file(paths["picture"], render_svg(results))
    return paths


def _sentences_path(table: Path) -> Path:
    return table.with_name(f"{table.stem}-sentences.csv")


def _sentences_csv(results: ExhibitResults) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CheckedSentence._fields)
    for each in results.sentences():
        holds_in = "" if each.holds_in is None else f"{each.holds_in:g}"
        writer.writerow([each.sentence, each.verdict, holds_in, each.figure])
    return text.getvalue()


def render_svg(results: ExhibitResults) -> bytes:
    """Return the figure as SVG, byte-identical for identical values."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "veilwood", "font.family": "sans-serif"}):
        figure = results.exhibit.draw(results.measured, results.published, results.title)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "veilwood"})
    # Coordinates to a hundredth of a point are precise enough and halve the file. Only numbers inside tags are rounded.
    return re.sub(rb"<[^>]*>", lambda tag: re.sub(rb"(\d\.\d\d)\d+", rb"\1", tag[0]), buffer.getvalue())


def _format_counts(verdicts: Iterable[str]) -> str:
    words = list(verdicts)
    return ", ".join(f"{words.count(word)} {word}" for word in VERDICTS if word in words)


def _align_columns(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    pad: Callable[[Sequence[str]], str] = lambda line: "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True))  # noqa: E731
    return "\n".join(pad(line).rstrip() for line in lines)


VERDICTS = ("same", "better", "worse", "differs")


def results_from_csv(exhibit: Exhibit, path: Path, quick: bool) -> ExhibitResults:
    """Return the results of an exhibit from the CSV that ``write_files`` wrote."""
    measured: Values = {}
    published: Values = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            cell = Cell(line["panel"], line["curve"], line["x"], line["measure"])
            if line["measured"]:
                measured[cell] = Value(float(line["measured"]), parse_number(line["error"]), int(line["runs"] or 0))
            if line["published"]:
                published[cell] = Value(float(line["published"]), parse_number(line["published_error"]))
    checked: list[CheckedSentence] = []
    if _sentences_path(path).exists():
        with _sentences_path(path).open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                holds_in = float(line["holds_in"]) if line["holds_in"] else None
                checked.append(CheckedSentence(line["sentence"], line["verdict"], holds_in, line["figure"]))
    return ExhibitResults(exhibit, measured, published, quick, tuple(checked))


def results_page(exhibits: Sequence[Exhibit], folder: Path) -> str:
    """Return the Markdown page of a folder of results: overview, figures, claims, and published values not reached."""
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    paths = {exhibit.slug: folder / "exhibits" / f"{exhibit.slug}.csv" for exhibit in exhibits}
    results = [results_from_csv(e, paths[e.slug], bool(facts["quick"])) for e in exhibits if paths[e.slug].exists()]
    head = ["exhibit", *VERDICTS, *OUTCOMES]
    lines = [
        "# Four papers, published and measured",
        "",
        _describe_run(facts),
        "",
        *(f"{paragraph}\n" for paragraph in describe_limits(results)),
        _markdown_row(head),
        _markdown_row(["---"] * len(head)),
    ]
    for entry in results:
        words, outcomes = list(entry.verdicts().values()), [each.verdict for each in entry.sentences()]
        counts = [str(words.count(word)) if words else "" for word in VERDICTS]
        lines.append(_markdown_row([entry.exhibit.name, *counts, *(str(outcomes.count(word)) for word in head[5:])]))
    for paper, citation in PAPERS.items():
        lines += ["", f"## {citation}"]
        for entry in (entry for entry in results if entry.exhibit.paper == paper):
            lines += _markdown_section(entry)
    return "\n".join(lines) + "\n"


def _describe_run(facts: dict[str, str]) -> str:
    versions = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "quick")
    reduced = " Quick settings: fewer repeats and smaller grids." if facts["quick"] else ""
    return f"Every number is in `exhibits/`. {versions}.{reduced}"


NOT_AVAILABLE = {
    "rdt figure 9": "its only data set, Quantum of the KDD Cup 2004, is in no package archive that fetch knows",
    "rdt figure 10": "the same",
}
"""Exhibits that cannot be measured, with the reason."""


def describe_limits(results: Sequence[ExhibitResults]) -> list[str]:
    """Return the introduction of a report: the meaning of the verdicts, and the limits of any run."""
    without = sum(not entry.published for entry in results)
    return [
        "Values are means ± standard errors over public seeds. A published value is the *same* within two standard "
        "errors of the difference, otherwise *better* or *worse*. A sentence of a text is *true* or *false* if it is "
        f"so on the means and in at least {100 * DECIDED:.0f} % of {N_RESAMPLES} resamples of the seeds, otherwise "
        "*undecided*. With two or three seeds, resamples vary less than new seeds would. Words in brackets say what is "
        "checked where a text gives no number; *ours* marks sentences that no paper has. Sentences are checked on the "
        "panels that this run measured.",
        f"{without} of {len(results)} exhibits have no published numbers: their values are in pictures, and the texts "
        "of the papers that we hold have none. Their sentences alone are checked.",
        "Cannot be measured: " + "; ".join(f"{name} ({reason})" for name, reason in NOT_AVAILABLE.items()) + ".",
        "Reasons for values that were not reached: *known* is a difference that the data or the text shows; *tested* "
        "means that a separate experiment changed this factor alone (`benchmarks/explanations.py`, results in "
        "`benchmarks/results/papers/explanations.csv`) or that this run shows it; *not tested* is a guess.",
    ]


def _markdown_section(results: ExhibitResults) -> list[str]:
    slug = results.exhibit.slug
    lines = ["", f"### {results.exhibit.name}: {results.exhibit.title}", "", results.settings]
    if results.measured:
        lines += ["", f"![{results.exhibit.name}](exhibits/{slug}.svg)"]
    if results.sentences():
        published = results.sentences_of_published()
        lines += [
            "",
            *(
                f"- **{each.verdict}**{each.support}: {each.sentence}{describe_published(published, each.sentence)}"
                for each in results.sentences()
            ),
        ]
    misses = results.misses()
    if misses:
        lines += ["", "Published and not reached:", ""]
    by_reason: dict[str, list[str]] = {}
    for cell, reason in misses:
        where = ", ".join(part for part in (cell.panel, cell.curve, cell.x) if part)
        own, reference = format_value(results.measured[cell]), format_value(results.published[cell])
        by_reason.setdefault(reason, []).append(f"  - {where}: {own}, published {reference}")
    for reason, cells in by_reason.items():
        lines += [f"- {reason[0].upper()}{reason[1:]}", *cells]
    return lines


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


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


def html_report(exhibits: Sequence[Exhibit], run: Run) -> str:
    """Return the report of a run as one HTML page."""
    results = [results_of(exhibit, run) for exhibit in exhibits]
    note = run.folder / "run.json"
    facts = json.loads(note.read_text(encoding="utf-8")) if note.exists() else describe_machine()
    done = [entry for entry in results if entry.measured]
    sections = []
    for paper, citation in PAPERS.items():
        of_paper = [entry for entry in results if entry.exhibit.paper == paper]
        if of_paper:
            sections.append(
                f'<h2 id="{paper}">{_escape_html(citation)}</h2>' + "".join(_html_section(entry) for entry in of_paper)
            )
    versions = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "quick")
    written = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Four papers, published and measured</title><style>{STYLE}</style></head><body>
<h1>Four papers, published and measured</h1>
<p>Every table and figure of the four papers whose forests this library contains, measured by
<code>veilwood papers run{" --quick" if run.quick else ""}</code>: {len(done)} of {len(results)} exhibits,
{_count_verdicts(done)}.
The noise of private forests comes from the operating system and is not seeded. Published values are printed below in
small type. Green is better and red is worse than published. Curves marked
<span class="mark">NOT PRIVATE</span> have no guarantee.</p>
{"".join(f"<p>{_escape_html(paragraph.replace('*', ''))}</p>" for paragraph in describe_limits(results))}
<p class="settings">{_escape_html(versions)}; page written {written}.</p>
<nav>{"".join(f'<a href="#{paper}">{paper}</a>' for paper in PAPERS)}</nav>
{_overview_table(results)}
{"".join(sections)}
</body></html>
"""


def _overview_table(results: Sequence[ExhibitResults]) -> str:
    rows = []
    for entry in results:
        words, outcomes = list(entry.verdicts().values()), [each.verdict for each in entry.sentences()]
        link = f'<a href="#{entry.exhibit.slug}">{_escape_html(entry.exhibit.name)}</a>'
        cells = [str(words.count(word)) if words else "" for word in VERDICTS]
        checked = [str(outcomes.count(word)) if outcomes else "" for word in OUTCOMES]
        rows.append(f"<tr><td>{link}</td>" + "".join(f'<td class="n">{c}</td>' for c in [*cells, *checked]) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("exhibit", *VERDICTS, *OUTCOMES))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _html_section(results: ExhibitResults) -> str:
    exhibit = results.exhibit
    parts = [f'<h3 id="{exhibit.slug}">{_escape_html(exhibit.name)}: {_escape_html(exhibit.title)}</h3>']
    parts.append(f'<p class="settings">{_escape_html(results.settings)}</p>')
    if not results.measured:
        return "".join([*parts, "<p>Not measured in this run.</p>"])
    image = base64.b64encode(render_svg(results)).decode()
    parts.append(f'<img alt="{_escape_html(exhibit.name)}" src="data:image/svg+xml;base64,{image}">')
    if exhibit.claims:
        published = results.sentences_of_published()
        claims = "".join(
            f'<li><b class="{_css_class(each.verdict)}">{each.verdict}</b>{each.support}: {_escape_html(each.sentence)}'
            f"<small>{_escape_html(describe_published(published, each.sentence))}</small></li>"
            for each in results.sentences()
        )
        parts.append(f"<p>Claims of the text, checked on the measured values:</p><ul>{claims}</ul>")
    reasons: dict[str, list[str]] = {}
    for cell, reason in results.misses():
        reasons.setdefault(reason, []).append(f"{cell.panel}, {cell.curve}" + (f" at {cell.x}" if cell.x else ""))
    if reasons:
        items = "".join(
            f"<li>{_escape_html('; '.join(cells))}: {_escape_html(reason)}</li>" for reason, cells in reasons.items()
        )
        parts.append(f"<p>Published and not reached:</p><ul>{items}</ul>")
    tables = "".join(_html_numbers(results, block) for block in arrange_blocks(results))
    n = len(results.measured)
    parts.append(f"<details{'' if n > 80 else ' open'}><summary>{n} cells</summary>{tables}</details>")
    return "".join(parts)


def _html_numbers(results: ExhibitResults, block: Block) -> str:
    """Return one table: measured values, with published values below them in grey."""
    words, lines = results.verdicts(), []
    for curve, cells in block.lines.items():
        entries = []
        for cell in cells:
            own, reference = results.measured.get(cell), results.published.get(cell)
            text = "" if own is None else _escape_html(format_value(own))
            text += "" if reference is None else f"<br><small>{_escape_html(format_value(reference))}</small>"
            entries.append(f'<td class="n {_css_class(words.get(cell, ""))}">{text}</td>')
        lines.append(f"<tr><td>{_escape_html(curve)}</td>{''.join(entries)}</tr>")
    head = "".join(f"<th>{_escape_html(x)}</th>" for x in block.xs)
    return f"<table><tr><th>{_escape_html(block.title)}</th>{head}</tr>{''.join(lines)}</table>"


def _count_verdicts(results: Sequence[ExhibitResults]) -> str:
    words = [word for entry in results for word in entry.verdicts().values()]
    return f"{len(words)} published cells: " + ", ".join(
        f"{words.count(word)} {word}" for word in VERDICTS if word in words
    )


def _css_class(word: str) -> str:
    return word if word in ("true", "false", "worse", "better", "differs") else ""


def _escape_html(text: str) -> str:
    return html.escape(text)
