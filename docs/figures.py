# SPDX-License-Identifier: Apache-2.0
"""Fill the blocks of pages that hold measured figures, and draw their pictures, from results files alone.

Run: python docs/figures.py

A block is between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. A test fails if a block differs from what
this script writes, or if the text around it has a figure that no results file holds.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias
from weakref import WeakKeyDictionary

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from veilwood import plots

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (
    "README.md", "docs/index.md", "docs/guarantee.md", "docs/how-accurate.md", "docs/classic-forests.md",
    "reproductions/README.md",
)  # fmt: skip
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", flags=re.S)
PROMISES = (0.1, 1, 5)
SITE_FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial"
Curves: TypeAlias = dict[str, Mapping[float, float | tuple[float, float]]]
_captions: WeakKeyDictionary[Axes, str] = WeakKeyDictionary()
SHOWN = "adult"  # the table of the first picture


def caption(axes: Axes) -> str:
    """Return a picture in words."""
    return _captions[axes] if axes in _captions else plots.caption(axes)


def set_caption(axes: Axes, text: str) -> Axes:
    """Describe a picture in words."""
    _captions[axes] = text
    return axes


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
    """Return the summary of the comparison of PrivateForest with its peers."""
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
    """Return the lines of the first pictures, described in words for readers who cannot see them."""
    accuracy, members = map(caption, draw())
    return f"![{accuracy}](PLACEaccuracy.svg) ![{members}](PLACEmembers.svg)\n"


def differences_picture() -> str:
    """Return the lines of the picture of all comparisons with the best peer."""
    return f"![{caption(draw_differences())}](PLACEdifferences.svg)\n"


def peers() -> str:
    """Return the row of the README's table that compares quality on tables that nobody tuned for."""
    ours, others = [], []
    for library in ("diffprivlib", "DP-EBM"):
        pattern = rf"^Tables that {library}, delta 1e-06 takes.*?(?=^Tables|^## )"
        found = re.search(pattern, _validation(), flags=re.M | re.S)
        assert found is not None
        rows = {row[""]: float(row["1"]) for row in table(found.group())}
        ours.append(rows["PrivateForest"])
        others.append(f"{rows[f'{library}, delta 1e-06']:.2f}")
    cells = [f"{min(ours):.2f} to {max(ours):.2f}, same tables", *others, "not run"]
    return f"| mean [skill](PLACEhow-accurate.md), unseen tables, epsilon 1 | {' | '.join(cells)} |\n"


def _validation() -> str:
    return (RESULTS / "suite_validation.md").read_text(encoding="utf-8")


def unseen_table() -> str:
    """Return the mean skill of every method on the validation suite, by epsilon."""
    text = _validation().split("\nTables that ")[0]
    return "\n".join(line for line in text.splitlines() if line.startswith("|")) + "\n"


def membership() -> list[dict[str, str]]:
    """Return how many members of the training data an attacker finds, by model."""
    return table((RESULTS / "membership_inference.md").read_text(encoding="utf-8"))


def membership_table() -> str:
    """Return the results of the membership inference attack."""
    text = (RESULTS / "membership_inference.md").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if line.startswith("|")) + "\n"


def odds() -> str:
    """Return the lines that show what each epsilon promises; these are computed, not measured."""
    lines = (f"![{caption(plots.plot_odds(epsilon))}](PLACEodds-{epsilon:g}.svg)" for epsilon in PROMISES)
    return "\n\n".join(lines) + "\n"


def draw(folder: Path | None = None) -> list[Axes]:
    """Draw accuracy by epsilon between its two baselines, and the members that an attacker finds."""
    left = Figure(figsize=(4.9, 3.4), layout="constrained").subplots()
    right = Figure(figsize=(3.6, 3.4), layout="constrained").subplots()
    rows = [row for row in classification() if row["data"] == SHOWN]
    ours = {float(row["epsilon"]): _with_error(row["ours"]) for row in rows}
    peer = {float(row["epsilon"]): float(row["best peer"].split()[0]) for row in rows}
    found = re.search(r"floor ([\d.]*\d), .*HistGradientBoosting ([\d.]*\d)", section("suite_development.md", SHOWN))
    assert found is not None
    levels = {"boosting without privacy": float(found[2]), "most frequent class": float(found[1])}
    curves: Curves = {"PrivateForest": ours, "best of diffprivlib and DP-EBM": peer}
    title = "Accuracy on Adult"
    plots.plot_accuracy_by_epsilon(curves, levels=levels, title=title, ax=left)
    drawn = [left, _draw_members(right)]
    left.set_ylim(0.74, 0.885)
    left.legend().remove()
    labels = (
        ("PrivateForest", (0.1, ours[0.1][0]), (0, 9)),
        ("best of diffprivlib\nand DP-EBM", (2, peer[2.0]), (6, -50)),
    )
    for (name, point, offset), colour in zip(labels, plots.COLOURS, strict=False):
        side = "left" if point[0] < 1 else "right"
        left.annotate(name, point, offset, textcoords="offset points", ha=side, color=colour, fontweight="bold")
    for name, level in levels.items():
        left.annotate(name, (0.1, level), (0, 3), textcoords="offset points", color="#5c5c5c", fontsize=9)
    for axes, name in zip(drawn, ("accuracy", "members"), strict=True):
        _quiet(axes)
        if folder is not None:
            _write(axes, folder / f"{name}.svg")
    return drawn


def _draw_members(axes: Axes) -> Axes:
    """Draw the fraction of members that an attacker finds, one bar per model."""
    rows = membership()
    names = [row["model"] for row in rows]
    found = [float(row["members found"].rstrip(" %")) for row in rows]
    colours = [plots.COLOURS[1] if name == "ordinary forest" else plots.COLOURS[0] for name in names]
    bars = axes.barh(names[::-1], found[::-1], color=colours[::-1], height=0.62)
    axes.bar_label(bars, [f"{value:g} %" for value in found[::-1]], padding=4, fontsize=10)
    axes.set(xlim=(0, max(found) * 1.2), xticks=[], title="Members an attacker finds")
    axes.set_xlabel("with 1 % false accusations")
    axes.spines["bottom"].set_visible(False)
    texts = (f"{name} {value:g} %" for name, value in zip(names, found, strict=True))
    text = f"Members of the training data found at 1 % false accusations: {', '.join(texts)}."
    return set_caption(axes, text)


def draw_differences(path: Path | None = None) -> Axes:
    """Draw the difference to the best peer, one dot per table and epsilon."""
    rows = classification()
    names = sorted({row["data"] for row in rows}, key=lambda name: _mean_difference(rows, name))
    axes = Figure(figsize=(8.4, 4.4), layout="constrained").subplots()
    epsilons = list(dict.fromkeys(row["epsilon"] for row in rows))
    for i, epsilon in enumerate(epsilons):
        chosen = [row for row in rows if row["epsilon"] == epsilon]
        values = [100 * float(row["difference"]) for row in chosen]
        places = [names.index(row["data"]) + 0.15 * (i - 1.5) for row in chosen]
        axes.plot(values, places, plots.MARKERS[i], color=plots.COLOURS[i], label=f"epsilon {float(epsilon):g}")
    axes.axvline(0, color=plots.GREY)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="points of accuracy above the best peer")
    axes.legend(fontsize="small")
    _quiet(axes)
    set_caption(axes, f"Difference to the best of the other libraries, by table. {accuracy_in_a_line().strip()}")
    if path is not None:
        _write(axes, path)
    return axes


def _mean_difference(rows: list[dict[str, str]], name: str) -> float:
    values = [float(row["difference"]) for row in rows if row["data"] == name]
    return sum(values) / len(values)


def _quiet(axes: Axes) -> None:
    """Remove what carries no data, and use the site's style of titles."""
    axes.spines[["top", "right"]].set_visible(False)
    title = axes.get_title()
    axes.set_title("")
    axes.set_title(title, loc="left", fontsize=11.5, fontweight="bold")


def _write(axes: Axes, path: Path) -> None:
    """Write a figure with its caption inside; the same bytes each time."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    with rc_context({"svg.hashsalt": "veilwood", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None, "Description": caption(axes)})
    path.write_text(path.read_text(encoding="utf-8").replace("'DejaVu Sans'", SITE_FONT), encoding="utf-8")


def _with_error(cell: str) -> tuple[float, float]:
    value, _, error = cell.partition(" +- ")
    return float(value), float(error)


def stored_run() -> Path:
    """Return the folder of the stored run of the papers: the full one, or else the quick one."""
    full, quick = RESULTS / "papers" / "full", RESULTS / "papers" / "quick"
    return full if full.exists() else quick


def papers() -> str:
    """Return one line per paper: how its published cells and its sentences came out in the stored run."""
    with (stored_run() / "report.md").open(encoding="utf-8") as file:
        rows = table(file.read().split("\n## ")[0])
    names = ("same", "better", "worse", "differs", "true", "false", "undecided")
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


def noise_scales() -> str:
    """Return Table 1 of Bojarski et al. at the published k and h, with both scales of the noise."""
    with (stored_run() / "exhibits" / "rdt-table-1.csv").open(newline="", encoding="utf-8") as file:
        cells = {(row["panel"], row["curve"]): row for row in csv.DictReader(file) if row["measure"] == "error (%)"}
    heads = {"as printed (NOT PRIVATE)": " as printed, published k and h (NOT PRIVATE)",
             "sound": ", sound, published k and h",
             "scale of the proof, leaves as printed (NOT PRIVATE)":
                 ", scale of the proof, leaves as printed, published k and h (NOT PRIVATE)"}  # fmt: skip
    lines = ["| data set | voting | published | " + " | ".join(heads) + " |", "|---" * (3 + len(heads)) + "|"]
    totals = dict.fromkeys(heads, 0.0)
    for rule, words in (("dpRFMV", "majority"), ("dpRFTA", "threshold")):
        for panel in dict.fromkeys(panel for panel, curve in cells if curve == f"{rule}{heads['sound']}"):
            own = {name: cells[panel, rule + ending] for name, ending in heads.items()}
            if not own["sound"]["measured"]:
                continue
            published = float(own["sound"]["published"])
            for name, cell in own.items():
                totals[name] += abs(float(cell["measured"]) - published)
            texts = [f"{float(cell['measured']):.2f} ± {float(cell['error']):.2f}" for cell in own.values()]
            lines.append(f"| {panel} | {words} | {published:.2f} | {' | '.join(texts)} |")
    lines.append("| sum of deviations | | | " + " | ".join(f"{total:.1f}" for total in totals.values()) + " |")
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
    "differences": differences_picture,
    "peers": peers,
    "unseen": unseen_table,
    "membership": membership_table,
    "odds": odds,
    "papers": papers,
    "noise-scales": noise_scales,
    "explanations": explanations,
}


def filled(page: str) -> str:
    """Return a page's text with its blocks filled from the results files."""
    text = (ROOT / page).read_text(encoding="utf-8")
    place = "" if page.startswith("docs/") else "docs/" if page == "README.md" else "../docs/"
    return BLOCK.sub(lambda found: found[1] + BLOCKS[found[2]]().replace("PLACE", place) + found[3], text)


def main() -> None:
    """Write all of them."""
    draw(ROOT / "docs")
    draw_differences(ROOT / "docs" / "differences.svg")
    for epsilon in PROMISES:
        _write(plots.plot_odds(epsilon), ROOT / "docs" / f"odds-{epsilon:g}.svg")
    for page in PAGES:
        (ROOT / page).write_text(filled(page), encoding="utf-8")


if __name__ == "__main__":
    main()
