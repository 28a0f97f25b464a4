# SPDX-License-Identifier: Apache-2.0
"""An exhibit in words and files: published beside measured, sentences with true or false, a CSV and a picture."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from veilwood.atomic_file import write_file
from veilwood.papers.drawing import as_number
from veilwood.papers.exhibit import NOT_COMPARED, Cell, Exhibit, Value, Values, verdict
from veilwood.papers.runner import Run

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
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Shown:
    """An exhibit with what a run has found for it."""

    exhibit: Exhibit
    measured: Values
    published: Values
    quick: bool

    @property
    def title(self) -> str:
        """What stands above the picture."""
        return f"{self.exhibit.name}: {self.exhibit.title}" + (" (quick)" if self.quick else "")

    @property
    def settings(self) -> str:
        """What was run, with what a quick look leaves out."""
        reduced = f" Quick: {self.exhibit.quick}" if self.quick and self.exhibit.quick else ""
        return f"{self.exhibit.settings}{reduced}"

    def verdicts(self) -> dict[Cell, str]:
        """Compare every cell that was published and measured."""
        return {
            cell: verdict(cell, value, self.published[cell], published_once=self.exhibit.published_once)
            for cell, value in self.measured.items()
            if cell in self.published and cell.measure.split(" ")[0] not in NOT_COMPARED
        }

    def sentences(self) -> list[tuple[str, str]]:
        """Return what the text says, with true, false or that it was not measured."""
        words = {True: "true", False: "false", None: NOT_MEASURED}
        return [(claim.sentence, words[claim.holds(self.measured)]) for claim in self.exhibit.claims]

    def sentences_of_published(self) -> dict[str, str]:
        """Return how the same sentences come out on the published values, where these are enough to tell."""
        found = {claim.sentence: claim.holds(self.published) for claim in self.exhibit.claims} if self.published else {}
        return {sentence: "true" if holds else "false" for sentence, holds in found.items() if holds is not None}

    def misses(self) -> list[tuple[Cell, str]]:
        """Return the published cells that are not reached, with why."""
        return [
            (cell, self.exhibit.why(cell)) for cell, word in self.verdicts().items() if word in ("worse", "differs")
        ]


def of_run(exhibit: Exhibit, run: Run) -> Shown:
    """Return what a run has for an exhibit."""
    return Shown(exhibit, exhibit.values(run.rows(exhibit)), exhibit.published(), run.quick)


class Block(NamedTuple):
    """The numbers of one panel and measure: a line a curve, a column an x."""

    title: str
    xs: list[str]
    lines: dict[str, list[Cell]]


def blocks(shown: Shown) -> list[Block]:
    """Arrange the cells for people."""
    found = []
    for panel, measure in dict.fromkeys((cell.panel, cell.measure) for cell in shown.measured):
        cells = [cell for cell in shown.measured if (cell.panel, cell.measure) == (panel, measure)]
        xs = list(dict.fromkeys(cell.x for cell in cells))
        if all(not math.isnan(as_number(x)) for x in xs):
            xs.sort(key=as_number)
        lines = {c: [Cell(panel, c, x, measure) for x in xs] for c in dict.fromkeys(cell.curve for cell in cells)}
        found.append(Block(panel if measure in panel else f"{panel}, {measure}", xs, lines))
    return found


def said(value: Value) -> str:
    """Write a mean with its standard error.

    >>> said(Value(0.7541, 0.0072, 10)), said(Value(3.0))
    ('0.754 ± 0.007', '3')
    """
    digits = 3 if abs(value.mean) < 1 else 2 if abs(value.mean) < 100 else 0
    if math.isnan(value.error):
        return f"{value.mean:g}" if value.mean == round(value.mean, 6) else f"{value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ± {value.error:.{max(digits, 2)}f}"


def of_published(words: Mapping[str, str], sentence: str) -> str:
    """Say how a sentence comes out on the published values, if that is known.

    >>> of_published({"a": "false"}, "a"), of_published({}, "b")
    (' [published values: false]', '')
    """
    return f" [published values: {words[sentence]}]" if sentence in words else ""


def as_csv(shown: Shown) -> str:
    """Return all cells as CSV, published beside measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    words = shown.verdicts()
    for cell in dict.fromkeys([*shown.measured, *shown.published]):
        own, theirs = shown.measured.get(cell, Value(math.nan)), shown.published.get(cell, Value(math.nan))
        private = "no" if shown.exhibit.not_private(cell.curve) else "yes"
        numbers = (theirs.mean, theirs.error, own.mean, own.error)
        texts = ["" if math.isnan(number) else f"{number:.6g}" for number in numbers]
        writer.writerow([*cell, *texts, own.runs or "", words.get(cell, ""), private])
    return text.getvalue()


def in_words(shown: Shown) -> str:
    """Return what a terminal shows: title, settings, numbers, sentences, and the count of verdicts."""
    parts = [shown.title, shown.settings]
    for block in blocks(shown):
        lines = [[block.title, *(block.xs if len(block.xs) > 1 else [""])]]
        lines += [[f"  {curve}", *(_entry(shown, cell) for cell in cells)] for curve, cells in block.lines.items()]
        parts.append(_aligned(lines))
    counts = _counted(shown.verdicts().values())
    if counts:
        parts.append(f"Measured ± standard error (published). Within two standard errors: {counts}.")
    theirs = shown.sentences_of_published()
    parts += [
        f"  {word.upper() if word == 'false' else word}: {sentence}{of_published(theirs, sentence)}"
        for sentence, word in shown.sentences()
    ]
    return "\n".join(parts)


def _entry(shown: Shown, cell: Cell) -> str:
    own, theirs = shown.measured.get(cell), shown.published.get(cell)
    told = "" if own is None else said(own).replace(" ", "")
    return told if theirs is None else f"{told} ({theirs.mean:g})".strip()


def write(shown: Shown, folder: Path) -> dict[str, Path]:
    """Write the CSV of an exhibit and its picture, and return where."""
    paths = {"table": folder / "exhibits" / f"{shown.exhibit.slug}.csv"}
    paths["table"].parent.mkdir(parents=True, exist_ok=True)
    write_file(paths["table"], as_csv(shown).encode())
    if shown.measured:
        paths["picture"] = folder / "exhibits" / f"{shown.exhibit.slug}.svg"
        write_file(paths["picture"], picture(shown))
    return paths


def picture(shown: Shown) -> bytes:
    """Return the picture as SVG: the same values give the same bytes."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "veilwood", "font.family": "sans-serif"}):
        figure = shown.exhibit.draw(shown.measured, shown.published, shown.title)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "veilwood"})
    # A hundredth of a point is enough, and halves the file.
    return re.sub(rb"(\d\.\d\d)\d+", rb"\1", buffer.getvalue())


def _counted(words: Iterable[str]) -> str:
    found = list(words)
    return ", ".join(f"{found.count(word)} {word}" for word in ("same", "better", "worse", "differs") if word in found)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    pad: Callable[[Sequence[str]], str] = lambda line: "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True))  # noqa: E731
    return "\n".join(pad(line).rstrip() for line in lines)
