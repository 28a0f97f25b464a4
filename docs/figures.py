# SPDX-License-Identifier: Apache-2.0
"""Fill the blocks of pages that hold measured figures, and draw the picture of the README, from results files alone.

Run: python docs/figures.py

A block stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. A test refuses a block that is not
what this writes, and a figure in the text round it that no results file holds.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from veilwood import plots

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs/which-estimator.md", "docs/index.md", "docs/guarantee.md", "docs/papers.md")
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", flags=re.S)
PROMISES = (0.1, 1, 5)
SHOWN = ("adult", "wall-following-robot")  # of the picture: both kinds of columns, two and four classes


def section(file: str, title: str) -> str:
    """Return the text under a heading of a results file."""
    text = (RESULTS / file).read_text(encoding="utf-8")
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S)
    if match is None:
        raise LookupError(f"{file} has no section {title!r}")
    return match.group(1)


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of the first Markdown table of a text."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in rows[1:]]


def classification() -> list[dict[str, str]]:
    """Return accuracies of PrivateForest beside the best peer; bounds as a schema would have them."""
    return table(section("private_forest.md", "Classification, schema bounds"))


def accuracy_in_a_line() -> str:
    """Say how PrivateForest did beside its peers."""
    text = section("private_forest.md", "Classification, schema bounds")
    found = re.search(r"^At or above the best peer.*$", text, re.M)
    assert found is not None
    return found.group() + "\n"


def classification_table() -> str:
    """Return one line a data set: PrivateForest and the best of the peers at each epsilon."""
    rows = classification()
    epsilons = list(dict.fromkeys(row["epsilon"] for row in rows))
    lines = ["| data | " + " | ".join(f"epsilon {e}" for e in epsilons) + " |", "|---" * (len(epsilons) + 1) + "|"]
    for name in dict.fromkeys(row["data"] for row in rows):
        cells = []
        for row in (row for row in rows if row["data"] == name):
            ours, peer = row["ours"].split()[0], row["best peer"].split()[0]
            cells.append(f"**{ours}** ({peer})" if float(ours) >= float(peer) else f"{ours} (**{peer}**)")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def regression_table() -> str:
    """Return mean squared errors: PrivateForest, median forests and the best of the peers."""
    rows = table(section("private_forest.md", "Regression: mean squared error, target in [0, 1]"))
    lines = ["| data | epsilon | the mean alone | best peer | MedianForest | PrivateForest |", "|---" * 6 + "|"]
    lines += [
        f"| {row['data']} | {row['epsilon']} | {row['variance']} | {row['best peer']} | {row['select-then-median']} | "
        f"{row['ours'].split()[0]} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def picture() -> str:
    """Return the lines that show the picture, with its caption for those who cannot see it."""
    words = " ".join(plots.caption(axes) for axes in draw())
    return f"![{words}](PLACEaccuracy.svg)\n"


def odds() -> str:
    """Return the lines that show what each epsilon promises; these are computed, not measured."""
    lines = (f"![{plots.caption(plots.plot_odds(epsilon))}](PLACEodds-{epsilon:g}.svg)" for epsilon in PROMISES)
    return "\n\n".join(lines) + "\n"


def draw(path: Path | None = None) -> list[Axes]:
    """Draw accuracy against epsilon beside the best peer, for two data sets."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    drawn = []
    for axes, name in zip(figure.subplots(1, 2), SHOWN, strict=True):
        rows = [row for row in classification() if row["data"] == name]
        ours = {float(row["epsilon"]): _with_error(row["ours"]) for row in rows}
        peer = {float(row["epsilon"]): float(row["best peer"].split()[0]) for row in rows}
        curves = {"PrivateForest": ours, "best of diffprivlib and DP-EBM": peer}
        drawn.append(plots.plot_accuracy_by_epsilon(curves, title=name, ax=axes))
    if path is not None:
        _write(drawn, path)
    return drawn


def _write(drawn: list[Axes], path: Path) -> None:
    """Write a figure with its captions inside; the same bytes each time."""
    figure = drawn[0].figure
    assert isinstance(figure, Figure)
    with rc_context({"svg.hashsalt": "veilwood"}):
        figure.savefig(path, metadata={"Date": None, "Description": " ".join(map(plots.caption, drawn))})


def _with_error(cell: str) -> tuple[float, float]:
    value, _, error = cell.partition(" +- ")
    return float(value), float(error)


def papers() -> str:
    """Return one line a paper: how its published cells and its sentences came out in the full run."""
    with (RESULTS / "papers" / "full" / "report.md").open(encoding="utf-8") as file:
        rows = table(file.read().split("\n## ")[0])
    names = ("same", "better", "worse", "differs", "true", "false")
    lines = ["| paper | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for paper, title in {
        "mrf": "M-RF",
        "rdt": "Bojarski et al.",
        "diprime": "DiPriMe",
        "secure": "secure trees",
    }.items():
        own = [row for row in rows if row["exhibit"].startswith(paper)]
        lines.append(f"| {title} | " + " | ".join(str(sum(int(row[n] or 0) for row in own)) for n in names) + " |")
    return "\n".join(lines) + "\n"


def explanations() -> str:
    """Return what was changed to find out why a cell is below the published one, and what came out."""
    lines = ["| cell | changed | published | measured |", "|---|---|---|---|"]
    with (RESULTS / "papers" / "explanations.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            error = f" ± {row['error']}" if row["error"] else ""
            lines.append(f"| {row['cell']} | {row['variant']} | {row['published']} | {row['measured']}{error} |")
    return "\n".join(lines) + "\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "accuracy-in-a-line": accuracy_in_a_line,
    "classification": classification_table,
    "regression": regression_table,
    "picture": picture,
    "odds": odds,
    "papers": papers,
    "explanations": explanations,
}


def filled(page: str) -> str:
    """Return a page's text with its blocks filled from the results files."""
    text = (ROOT / page).read_text(encoding="utf-8")
    place = "" if page.startswith("docs/") else "docs/"
    return BLOCK.sub(lambda found: found[1] + BLOCKS[found[2]]().replace("PLACE", place) + found[3], text)


def main() -> None:
    """Write all of them."""
    draw(ROOT / "docs" / "accuracy.svg")
    for epsilon in PROMISES:
        _write([plots.plot_odds(epsilon)], ROOT / "docs" / f"odds-{epsilon:g}.svg")
    for page in PAGES:
        (ROOT / page).write_text(filled(page), encoding="utf-8")


if __name__ == "__main__":
    main()
