# SPDX-License-Identifier: Apache-2.0
"""One readable, colour-blind safe style for all figures: measured lines are full, published ones dashed and hollow.

Nothing is computed here and no window is opened.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from veilwood_papers.exhibit import NOT_COMPARED, NOT_PRIVATE, Value, Values

# Okabe and Ito's colours, told apart by all common kinds of colour blindness; markers tell them apart without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH, HEIGHT = 3.7, 3.0  # of a panel, in inches


def line_chart(
    xlabel: str, ylabel: str, *, log_x: bool = False, log_y: bool = False, measure: str | None = None,
    columns: int = 3, flat: Sequence[str] = (),
) -> Callable[[Values, Values, str], Figure]:  # fmt: skip
    """Return a drawing: one panel a data set, one line a curve, published values dashed beside; ``flat`` have no x."""

    def draw_panels(measured: Values, published: Values, title: str) -> Figure:
        chosen = {c: v for c, v in measured.items() if measure in (None, c.measure)}
        panels = list(dict.fromkeys(cell.panel for cell in chosen))
        curves = list(dict.fromkeys(cell.curve for cell in chosen))
        figure, axes = make_grid(len(panels), columns, len(curves))
        for panel, place in zip(panels, axes, strict=False):
            for number, curve in enumerate(curves):
                style = {"color": COLOURS[number % 8], "marker": MARKERS[number % 8]}
                own = _curve_values(chosen, panel, curve)
                theirs = _curve_values(
                    {c: v for c, v in published.items() if measure in (None, c.measure)}, panel, curve
                )
                if curve in flat:
                    for value in own.values():
                        place.axhline(value.mean, color=COLOURS[number % 8], linestyle=":", linewidth=1.3)
                    continue
                _draw_curve(place, own, style)
                _draw_curve(place, theirs, {**style, "markerfacecolor": "white", "linestyle": "--", "alpha": 0.75})
            place.set(title=panel, xlabel=xlabel, ylabel=ylabel)
            if log_x:
                _log_ticks(place, chosen, panel)
            if log_y:
                place.set_yscale("log")
        add_legend(figure, curves, flat, bool(published))
        set_title(figure, title)
        return figure

    return draw_panels


def bar_chart(ylabel: str, *, log_y: bool = False, columns: int = 3) -> Callable[[Values, Values, str], Figure]:
    """Return a drawing of bars: groups by x, published beside measured."""

    def draw_panels(measured: Values, published: Values, title: str) -> Figure:
        panels = list(dict.fromkeys(cell.panel for cell in measured))
        curves = list(dict.fromkeys(cell.curve for cell in measured))
        figure, axes = make_grid(len(panels), columns, len(curves))
        for panel, place in zip(panels, axes, strict=False):
            xs = list(dict.fromkeys(cell.x for cell in measured if cell.panel == panel))
            wide = 0.8 / max(1, 2 * len(curves))
            for number, curve in enumerate(curves):
                for side, source in enumerate((measured, published)):
                    found = _curve_values(source, panel, curve)
                    spots = [xs.index(x) + (2 * number + side) * wide for x in found if x in xs]
                    place.bar(
                        spots, [v.mean for x, v in found.items() if x in xs], wide, color=COLOURS[number % 8],
                        alpha=0.35 if side else 1.0, hatch="//" if side else None, edgecolor="white",
                    )  # fmt: skip
            place.set_xticks(np.arange(len(xs)) + 0.4, xs, fontsize=7, rotation=20, ha="right")
            place.set(title=panel, ylabel=ylabel)
            if log_y:
                place.set_yscale("log")
        add_legend(figure, curves, (), bool(published))
        set_title(figure, title)
        return figure

    return draw_panels


def make_grid(n_panels: int, columns: int, n_curves: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels, and room for a legend below."""
    across = max(1, min(columns, n_panels))
    down = max(1, math.ceil(n_panels / across))
    figure = Figure(figsize=(max(WIDTH * across, 6.0), HEIGHT * down + 0.5 + 0.14 * n_curves), layout="constrained")
    axes = [axis for row in figure.subplots(down, across, squeeze=False) for axis in row]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.tick_params(labelsize=8)
        axis.title.set_fontsize(9)
        axis.xaxis.label.set_fontsize(8)
        axis.yaxis.label.set_fontsize(8)
    for axis in axes[n_panels:]:
        axis.set_visible(False)
    return figure, axes


def set_title(figure: Figure, title: str) -> None:
    """Write the title above all panels, in lines that fit."""
    figure.suptitle(textwrap.fill(title, int(13 * figure.get_figwidth())), fontsize=10)


def add_legend(figure: Figure, curves: Sequence[str], flat: Sequence[str], with_published: bool) -> None:
    """Name all curves once, below the panels; what is not private says so in its name."""
    handles = [
        Line2D([], [], color=COLOURS[n % 8], marker="" if curve in flat else MARKERS[n % 8], label=curve,
               linestyle=":" if curve in flat else "-", markersize=5)
        for n, curve in enumerate(curves)
    ]  # fmt: skip
    if with_published:
        handles.append(
            Line2D([], [], color="#555555", linestyle="--", marker="o", markerfacecolor="white", label="published")
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=7.5, frameon=False)


def _curve_values(values: Values, panel: str, curve: str) -> dict[str, Value]:
    return {cell.x: value for cell, value in values.items() if cell.panel == panel and cell.curve == curve}


def _draw_curve(place: Axes, found: dict[str, Value], style: dict[str, Any]) -> None:
    if not found:
        return
    xs = sorted(found, key=as_number)
    spots: list[Any] = [as_number(x) for x in xs]
    if any(math.isnan(spot) for spot in spots):
        spots = list(range(len(xs)))
        place.set_xticks(spots, xs, fontsize=7)
    errors = [0.0 if math.isnan(found[x].error) else found[x].error for x in xs]
    place.errorbar(
        spots, [found[x].mean for x in xs], yerr=errors, linewidth=1.4, markersize=4.5, **style
    )  # fmt: skip


def _log_ticks(place: Axes, values: Values, panel: str) -> None:
    xs = sorted({as_number(cell.x) for cell in values if cell.panel == panel} - {math.inf})
    xs = [x for x in xs if not math.isnan(x) and x > 0]
    if len(xs) > 1:
        place.set_xscale("log")
        place.set_xticks(xs, [f"{x:g}" for x in xs])
        place.set_xticks([], minor=True)


def as_number(x: str) -> float:
    """Read a coordinate; nan where it is a word."""
    try:
        return float(x)
    except ValueError:
        return math.nan


def mark_not_private(curve: str) -> str:
    """Add the mark of what has no guarantee to a curve's name.

    >>> mark_not_private("dpRFMV as printed")
    'dpRFMV as printed (NOT PRIVATE)'
    """
    return f"{curve} ({NOT_PRIVATE})"


def draw_agreement(measured: Values, published: Values, title: str) -> Figure:
    """Draw a table as dots, published against measured: on the line where they agree."""
    shared = [cell for cell in measured if cell in published and cell.measure not in NOT_COMPARED]
    panels = list(dict.fromkeys(cell.panel for cell in shared))
    curves = list(dict.fromkeys(cell.curve for cell in shared))
    figure, axes = make_grid(max(1, len(panels)), 3, len(curves))
    for panel, place in zip(panels, axes, strict=False):
        for number, curve in enumerate(curves):
            for cell in (c for c in shared if (c.panel, c.curve) == (panel, curve)):
                place.errorbar(
                    published[cell].mean, measured[cell].mean, color=COLOURS[number % 8], marker=MARKERS[number % 8],
                    yerr=0.0 if math.isnan(measured[cell].error) else measured[cell].error, markersize=5,
                )  # fmt: skip
        low, high = place.get_xlim()
        place.plot([low, high], [low, high], color="#999999", linewidth=0.8, linestyle=":")
        place.set(title=panel, xlabel="published", ylabel="measured")
    add_legend(figure, curves, (), False)
    set_title(figure, title)
    return figure
