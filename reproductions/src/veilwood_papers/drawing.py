# SPDX-License-Identifier: Apache-2.0
"""Colour-blind safe charts of exhibits: measured lines are solid, published lines dashed with hollow markers.

Nothing is computed here and no window is opened.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from veilwood_papers.exhibit import NOT_COMPARED, NOT_PRIVATE, Value, Values

# Palette of Okabe and Ito, distinguishable with all common kinds of colour blindness; markers work without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d", "H", "8")
WIDTH, HEIGHT = 3.7, 3.0  # size of a panel, in inches


def curve_style(number: int) -> dict[str, Any]:
    """Return the colour and the marker of a curve. Up to fifteen curves of a figure have different markers."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def line_chart(
    xlabel: str, ylabel: str, *, log_x: bool = False, log_y: bool = False, measure: str | None = None,
    columns: int = 3, flat: Sequence[str] = (),
) -> Callable[[Values, Values, str], Figure]:  # fmt: skip
    """Return a function that draws one panel per data set and one line per curve.

    Published values are dashed. Curves named in ``flat`` do not depend on x and become horizontal lines. The words
    after "against" in the name of a panel become its x label. The y axis shows the measure if the panels have several
    measures.
    """

    def draw_panels(measured: Values, published: Values, title: str) -> Figure:
        chosen = {c: v for c, v in measured.items() if measure in (None, c.measure)}
        panels = list(dict.fromkeys(cell.panel for cell in chosen))
        curves = list(dict.fromkeys(cell.curve for cell in chosen))
        figure, axes = make_grid(len(panels), columns, len(curves))
        for panel, axis in zip(panels, axes, strict=False):
            for number, curve in enumerate(curves):
                style = curve_style(number)
                own = _curve_values(chosen, panel, curve)
                reference = _curve_values(
                    {c: v for c, v in published.items() if measure in (None, c.measure)}, panel, curve
                )
                if curve in flat:
                    for value in own.values():
                        axis.axhline(value.mean, color=curve_style(number)["color"], linestyle=":", linewidth=1.3)
                    continue
                _draw_curve(axis, own, style)
                _draw_curve(axis, reference, {**style, "markerfacecolor": "white", "linestyle": "--", "alpha": 0.75})
            against = re.search(r"against (\w+)", panel)
            measures = {c.measure for c in chosen if c.panel == panel}
            several = len({c.measure for c in chosen}) > 1
            axis.set(
                title=panel,
                xlabel=against[1] if against else xlabel,
                ylabel=measures.pop() if several and len(measures) == 1 else ylabel,
            )
            if log_x:
                _log_ticks(axis, chosen, panel)
            if log_y:
                axis.set_yscale("log")
        add_legend(figure, curves, flat, bool(published))
        set_title(figure, title)
        return figure

    return draw_panels


def bar_chart(ylabel: str, *, log_y: bool = False, columns: int = 3) -> Callable[[Values, Values, str], Figure]:
    """Return a function that draws bars, grouped by x, with published next to measured values."""

    def draw_panels(measured: Values, published: Values, title: str) -> Figure:
        panels = list(dict.fromkeys(cell.panel for cell in measured))
        curves = list(dict.fromkeys(cell.curve for cell in measured))
        figure, axes = make_grid(len(panels), columns, len(curves))
        for panel, axis in zip(panels, axes, strict=False):
            xs = list(dict.fromkeys(cell.x for cell in measured if cell.panel == panel))
            wide = 0.8 / max(1, 2 * len(curves))
            for number, curve in enumerate(curves):
                for side, source in enumerate((measured, published)):
                    bars = _curve_values(source, panel, curve)
                    spots = [xs.index(x) + (2 * number + side) * wide for x in bars if x in xs]
                    axis.bar(
                        spots, [v.mean for x, v in bars.items() if x in xs], wide, color=curve_style(number)["color"],
                        alpha=0.35 if side else 1.0, hatch="//" if side else None, edgecolor="white",
                    )  # fmt: skip
            axis.set_xticks(np.arange(len(xs)) + 0.4, xs, fontsize=7, rotation=20, ha="right")
            axis.set(title=panel, ylabel=ylabel)
            if log_y:
                axis.set_yscale("log")
        handles: list[Any] = [Patch(color=curve_style(n)["color"], label=curve) for n, curve in enumerate(curves)]
        if published:
            handles.append(Patch(facecolor="#bbbbbb", hatch="//", edgecolor="white", label="published, in pale colour"))
        _draw_legend(figure, handles)
        set_title(figure, title)
        return figure

    return draw_panels


def make_grid(n_panels: int, columns: int, n_curves: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``n_panels`` panels and room for a legend below."""
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
    """Write the title above all panels, wrapped to the width of the figure."""
    figure.suptitle(textwrap.fill(title, int(13 * figure.get_figwidth())), fontsize=10)


def add_legend(figure: Figure, curves: Sequence[str], flat: Sequence[str], with_published: bool) -> None:
    """Add one legend of all curves below the panels. Names of non-private curves say so."""
    handles = [
        Line2D([], [], **{**curve_style(n), **({"marker": ""} if curve in flat else {})}, label=curve,
               linestyle=":" if curve in flat else "-", markersize=5)
        for n, curve in enumerate(curves)
    ]  # fmt: skip
    if with_published:
        handles.append(Line2D([], [], color="#555555", linestyle="--", label="published, with hollow marks"))
    _draw_legend(figure, handles)


def _draw_legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Draw a legend below the panels, in one column if two are wider than the figure."""
    widest = max((len(handle.get_label()) for handle in handles), default=0)
    columns = 2 if 2 * (0.06 * widest + 0.5) <= figure.get_figwidth() else 1  # 0.06 inches per letter
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=7.5, frameon=False)


def _curve_values(values: Values, panel: str, curve: str) -> dict[str, Value]:
    return {cell.x: value for cell, value in values.items() if cell.panel == panel and cell.curve == curve}


def _draw_curve(axis: Axes, points: dict[str, Value], style: dict[str, Any]) -> None:
    if not points:
        return
    xs = sorted(points, key=as_number)
    spots: list[Any] = [as_number(x) for x in xs]
    if any(math.isnan(spot) for spot in spots):
        spots = list(range(len(xs)))
        axis.set_xticks(spots, xs, fontsize=7)
    errors = [0.0 if math.isnan(points[x].error) else points[x].error for x in xs]
    axis.errorbar(
        spots, [points[x].mean for x in xs], yerr=errors, linewidth=1.4, markersize=4.5, **style
    )  # fmt: skip


def _log_ticks(axis: Axes, values: Values, panel: str) -> None:
    xs = sorted({as_number(cell.x) for cell in values if cell.panel == panel} - {math.inf})
    xs = [x for x in xs if not math.isnan(x) and x > 0]
    if len(xs) > 1:
        axis.set_xscale("log")
        axis.set_xticks(xs, [f"{x:g}" for x in xs])
        axis.set_xticks([], minor=True)


def as_number(x: str) -> float:
    """Return a coordinate as a number, or nan if it is not numeric."""
    try:
        return float(x)
    except ValueError:
        return math.nan


def mark_not_private(curve: str) -> str:
    """Append NOT PRIVATE to the name of a curve without a guarantee.

    >>> mark_not_private("dpRFMV as printed")
    'dpRFMV as printed (NOT PRIVATE)'
    """
    return f"{curve} ({NOT_PRIVATE})"


def draw_agreement(measured: Values, published: Values, title: str) -> Figure:
    """Draw the values of a table as points, published against measured, with the line of agreement."""
    shared = [cell for cell in measured if cell in published and cell.measure not in NOT_COMPARED]
    panels = list(dict.fromkeys(cell.panel for cell in shared))
    curves = list(dict.fromkeys(cell.curve for cell in shared))
    figure, axes = make_grid(max(1, len(panels)), 3, len(curves))
    for panel, axis in zip(panels, axes, strict=False):
        for number, curve in enumerate(curves):
            for cell in (c for c in shared if (c.panel, c.curve) == (panel, curve)):
                axis.errorbar(
                    published[cell].mean, measured[cell].mean, **curve_style(number),
                    yerr=0.0 if math.isnan(measured[cell].error) else measured[cell].error, markersize=5,
                )  # fmt: skip
        low, high = axis.get_xlim()
        axis.plot([low, high], [low, high], color="#999999", linewidth=0.8, linestyle=":")
        axis.set(title=panel, xlabel="published", ylabel="measured")
    add_legend(figure, curves, (), False)
    set_title(figure, title)
    return figure
