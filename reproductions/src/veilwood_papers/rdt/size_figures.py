# SPDX-License-Identifier: Apache-2.0
"""Figures 1, 3, 5, 7 and 9 of Bojarski et al.: test error against height and against the number of trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from veilwood_papers.drawing import line_chart, mark_not_private
from veilwood_papers.exhibit import Cell, Claim, Exhibit, Value, Values, as_text, check_above
from veilwood_papers.rdt.sizes import ERROR, EXPERIMENT, PANELS, PRINTED, PROVEN

OF_SIZES: dict[str, Callable[[list[float]], Any]] = {"smallest": np.min, "mean": np.mean, "largest": np.max}
SPREAD = {name: mark_not_private(f"dpRFMV as printed, {name} of all sizes") for name in OF_SIZES}
TWO_COUNTS, TWO_HEIGHTS = (3, 21), (5, 11)
SHOWN = (*PRINTED.values(), PROVEN["RFMV"], PROVEN["RFTA"])


def parse_size(cell: Cell) -> tuple[int, int]:
    """Return k and h from the coordinate of a size."""
    k, h = (int(part.split("=")[1]) for part in cell.x.split())
    return k, h


def arrange_panels(values: Values) -> Values:
    """Arrange the errors of all sizes as the paper's panels a to d."""
    panels: Values = {}
    for panel in dict.fromkeys(cell.panel for cell in values):
        own = {cell: value for cell, value in values.items() if cell.panel == panel}
        for cell, value in own.items():
            k, h = parse_size(cell)
            if k in TWO_COUNTS:
                panels[Cell(f"{panel} a) against h, k = {k}", cell.curve, as_text(h), ERROR)] = value
            if h in TWO_HEIGHTS:
                panels[Cell(f"{panel} c) against k, h = {h}", cell.curve, as_text(k), ERROR)] = value
        for letter, name, place in (("b", "h", 1), ("d", "k", 0)):
            along: dict[int, list[float]] = {}
            for cell, value in own.items():
                if cell.curve == PRINTED["RFMV"]:
                    along.setdefault(parse_size(cell)[place], []).append(value.mean)
            for x, errors in along.items():
                for which, take in OF_SIZES.items():
                    where = Cell(f"{panel} {letter}) against {name}, all sizes", SPREAD[which], as_text(x), ERROR)
                    panels[where] = Value(float(take(errors)), runs=1)
    return dict(sorted(panels.items(), key=lambda entry: entry[0].panel))


def _error_range(values: Values, curve: str) -> dict[str, float]:
    """Return the range of one rule's errors in each panel."""
    by_panel: dict[str, list[float]] = {}
    for cell, value in values.items():
        if cell.curve == curve:
            by_panel.setdefault(cell.panel, []).append(value.mean)
    return {panel: max(errors) - min(errors) for panel, errors in by_panel.items()}


def less_sensitive(values: Values) -> bool | None:
    """Check that the error of majority voting varies less with the size than that of averaging, in most panels."""
    majority, average = _error_range(values, PRINTED["RFMV"]), _error_range(values, PRINTED["RFTA"])
    return float(np.mean([majority[p] <= average[p] for p in majority])) > 0.5 if majority else None


def is_comparable(values: Values) -> bool | None:
    """Check that the best error of majority voting is within two points of that of threshold averaging."""
    best: dict[tuple[str, str], float] = {}
    for cell, value in values.items():
        key = cell.panel, cell.curve
        best[key] = min(best.get(key, np.inf), value.mean)
    pairs = [
        (error, best[panel, PRINTED["RFTA"]]) for (panel, curve), error in best.items() if curve == PRINTED["RFMV"]
    ]
    return all(abs(one - other) <= 2 for one, other in pairs) if pairs else None


def rules_agree(values: Values) -> bool | None:
    """Check that voting and averaging agree for a single tree."""
    pairs = [
        (value.mean, values[cell._replace(curve=PRINTED["RFTA"])].mean)
        for cell, value in values.items()
        if cell.curve == PRINTED["RFMV"] and " c) " in cell.panel and cell.x == "1"
    ]
    return all(abs(one - other) < 1e-9 for one, other in pairs) if pairs else None


def make_exhibit(number: int, panels: Sequence[str]) -> Exhibit:
    """Return one of the figures."""
    return Exhibit(
        "rdt",
        f"figure {number}",
        f"Errors of dpRFMV, dpRFTA and dpRFPA at all sizes: {', '.join(panels)}",
        "90:10 splits, eta = 1000 / n_train, 10 runs. a) and c): two numbers of trees, two heights; b) and d): the "
        "smallest, "
        "mean and largest error of dpRFMV over all numbers of trees, or over all heights. As printed: noise of scale "
        "eta/k; "
        "scale of the proof: k/eta, simulated on the forest that the library grows.",
        EXPERIMENT,
        line_chart("h", ERROR, columns=3),
        quick="2 runs of Adult and Covertype, fewer sizes.",
        shows=lambda cell: cell.panel in panels and cell.x.startswith("k=") and cell.curve in SHOWN,
        derive=arrange_panels,
        claims=(
            Claim(
                "RFPA is worse than RFMV and RFTA (in nine of ten cells).",
                check_above(PRINTED["RFPA"], (PRINTED["RFMV"], PRINTED["RFTA"]), fraction=0.9),
            ),
            Claim("With one tree, majority voting and threshold averaging are equivalent.", rules_agree),
            Claim("dpRFMV has comparable performance to dpRFTA (the best within two points) ...", is_comparable),
            Claim(
                "... but is much less sensitive to the setting of the forest parameters (in most panels).",
                less_sensitive,
            ),
        ),
        wants=lambda job: job.settings["panel"] in panels,
    )


EXHIBITS = tuple(make_exhibit(2 * n - 1, panels) for n, panels in enumerate(PANELS, 1))
