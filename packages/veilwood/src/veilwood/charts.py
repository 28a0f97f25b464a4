# SPDX-License-Identifier: Apache-2.0
"""SVG charts for reports and notebooks, as self-contained text. Computes no results."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

# Colours of the report: text, secondary text, lines, and fills.
INK, SOFT, RULE, BLUE, WARM, BAND = "#1d2733", "#5c6b7a", "#d9dfe5", "#1f5f8b", "#b3412e", "#cfe0ec"
# Colours of outputs, in this order; repeated if there are more.
COLOURS = ("#1f5f8b", "#b3412e", "#3a7d44", "#8a5a9e", "#c08a1e", "#4c8f9c", "#7a6a58", "#c25b8f")


def html_card(
    title: str, text: str, rows: Sequence[Sequence[str]] = (), figures: Sequence[tuple[str, str]] = ()
) -> str:
    """Return an HTML card for notebooks: title, lines of text, table with a header row, and named charts.

    >>> html_card("Plan", "one <line>").count("&lt;line&gt;")
    1
    """
    lines = "".join(f"<div>{escape(line)}</div>" for line in text.splitlines())
    cells = [f"<{tag}>{escape(cell)}</{tag}>" for row, tag in zip(rows, _cell_tags(rows), strict=True) for cell in row]
    width = len(rows[0]) if rows else 1
    body = "".join(f"<tr>{''.join(cells[i : i + width])}</tr>" for i in range(0, len(cells), width))
    table = f"<table style='text-align:left'>{body}</table>" if rows else ""
    drawn = "".join(f"<div style='width:440px'><b>{escape(name)}</b>{picture}</div>" for name, picture in figures)
    side = f"<div style='display:flex;flex-wrap:wrap;gap:12px'>{drawn}</div>" if figures else ""
    style = "border-left:4px solid #1f5f8b;padding:4px 14px;margin:6px 0;font-family:sans-serif"
    return f"<div style='{style}'><div><b>{escape(title)}</b></div>{lines}{table}{side}</div>"


def _cell_tags(rows: Sequence[Sequence[str]]) -> list[str]:
    return ["th" if place == 0 else "td" for place in range(len(rows))]


class Svg:
    """Builder of an SVG image."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.size, self.label, self.parts = (width, height), label, list[str]()

    def draw_line(self, x1: float, y1: float, x2: float, y2: float, colour: str = RULE, width: float = 1.0) -> None:
        """Draw a straight line."""
        place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(f'<line {place} stroke="{colour}" stroke-width="{width:g}"/>')

    def draw_box(self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> None:
        """Draw a filled rectangle."""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
        self.parts.append(f'<rect {place} fill="{colour}" fill-opacity="{opacity:.3g}"/>')

    def draw_dot(self, x: float, y: float, colour: str = BLUE, radius: float = 3.5) -> None:
        """Draw a dot."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}"/>')

    def draw_path(self, points: Sequence[tuple[float, float]], colour: str, *, filled: bool = False) -> None:
        """Draw a line through points, or fill the polygon that they enclose."""
        along = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        kind = f'polygon fill="{colour}" fill-opacity="0.35"' if filled else f'polyline fill="none" stroke="{colour}"'
        self.parts.append(f'<{kind} stroke-width="{0 if filled else 1.8}" points="{along}"/>')

    def draw_text(
        self, x: float, y: float, text: str, *, anchor: str = "start", size: float = 12, colour: str = INK,
        rotated: bool = False,
    ) -> None:  # fmt: skip
        """Draw text."""
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if rotated else ""
        style = f'text-anchor="{anchor}" font-size="{size:g}" fill="{colour}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}{turn}>{escape(text)}</text>')

    def __str__(self) -> str:
        width, height = self.size
        head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(self.label)}"'
        return f'{head} style="max-width:{width:g}px" xmlns="http://www.w3.org/2000/svg">{"".join(self.parts)}</svg>'


def shorten_label(label: str, max_length: int = 26) -> str:
    """Return a label, truncated to at most ``max_length`` characters."""
    return label if len(label) <= max_length else label[: max_length - 1] + "…"


def format_value(value: float) -> str:
    """Return a number as text with about three significant digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"


def posterior_range(prior: float, epsilon: float, delta: float = 0.0) -> tuple[float, float]:
    """Return the smallest and largest probability that a belief can reach, whatever else is known.

    >>> tuple(round(probability, 3) for probability in posterior_range(0.5, 1.0))
    (0.269, 0.731)
    """
    # The odds change by at most a factor of exp(epsilon), except with probability delta.
    inverse = math.exp(-epsilon)
    low = prior * inverse / (prior * inverse + 1 - prior)
    return low, min(1.0, prior / (prior + (1 - prior) * inverse) + delta)


def draw_odds(rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Draw beliefs about one person and the range that each can reach: (label, low, before, high)."""
    picture = Svg(720, 40 + 44 * len(rows), "range of beliefs about one person")
    left, width = 200, 480
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x = left + width * tick
        picture.draw_line(x, 14, x, 18 + 44 * len(rows))
        picture.draw_text(x, 34 + 44 * len(rows), f"{tick:.0%}", anchor="middle", size=11, colour=SOFT)
    for place, (who, low, before, high) in enumerate(rows):
        y = 36 + 44 * place
        picture.draw_text(left - 14, y + 4, who, anchor="end")
        picture.draw_box(left + width * low, y - 9, width * (high - low), 18, BAND)
        picture.draw_line(left + width * before, y - 13, left + width * before, y + 13, INK, 2)
        picture.draw_text(left + width * high + 6, y + 4, f"at most {high:.1%}", size=11, colour=BLUE)
    return str(picture)


def _padded_range(low: float, high: float) -> tuple[float, float]:
    reach = max(high - low, 1e-9)
    return low - 0.04 * reach, high + 0.04 * reach


def draw_category_bars(
    groups: Sequence[str], effect: NDArray[np.float64], error: NDArray[np.float64], outputs: Sequence[str]
) -> str:
    """Draw the effect of each category as a bar, with its error as a whisker. All labels are shown."""
    across, each = len(outputs), 16 if len(outputs) == 1 else 9
    band = max(22.0, each * across + 8.0)
    picture = Svg(440, 26 + band * len(groups), "effect of each category")
    low, high = _padded_range(min(0.0, float((effect - error).min())), max(0.0, float((effect + error).max())))
    left, width = 165, 262

    def x_of(value: float) -> float:
        return left + width * (value - low) / (high - low)

    for place, group in enumerate(groups):
        y = 6 + band * place
        picture.draw_text(left - 8, y + band / 2 + 4, shorten_label(group, 24), anchor="end", size=11)
        for output in range(across):
            value, reach = float(effect[place, output]), float(error[place, output])
            top = y + (band - each * across) / 2 + each * output
            sure = abs(value) > reach  # effects within their error are drawn faint
            colour = COLOURS[output % len(COLOURS)]
            picture.draw_box(
                min(x_of(0), x_of(value)), top + 1, abs(x_of(value) - x_of(0)), each - 2, colour, 0.9 if sure else 0.35
            )
            picture.draw_line(x_of(value - reach), top + each / 2, x_of(value + reach), top + each / 2, INK, 1)
    picture.draw_line(x_of(0), 2, x_of(0), 6 + band * len(groups), SOFT)
    for value in (low, high):
        picture.draw_text(x_of(value), 20 + band * len(groups), f"{value:+.2g}", anchor="middle", size=10, colour=SOFT)
    picture.draw_text(x_of(0), 20 + band * len(groups), "0", anchor="middle", size=10, colour=SOFT)
    return str(picture)


def draw_steps(
    groups: Sequence[str], effect: NDArray[np.float64], error: NDArray[np.float64], outputs: Sequence[str]
) -> str:
    """Draw the effect of each interval of a numeric column as steps, with the error as a band."""
    picture = Svg(440, 210, "effect of each interval")
    low, high = _padded_range(min(0.0, float((effect - error).min())), max(0.0, float((effect + error).max())))
    left, top, width, height, n = 48, 10, 376, 150, len(groups)

    def y_of(value: float) -> float:
        return top + height * (1 - (value - low) / (high - low))

    picture.draw_line(left, y_of(0), left + width, y_of(0), SOFT)
    for value in (low, high):
        picture.draw_text(left - 6, y_of(value) + 4, f"{value:+.2g}", anchor="end", size=10, colour=SOFT)
    picture.draw_text(left - 6, y_of(0) + 4, "0", anchor="end", size=10, colour=SOFT)
    edges = [left + width * i / n for i in range(n + 1)]

    def stair_points(values: NDArray[np.float64]) -> list[tuple[float, float]]:
        return [(x, y_of(float(v))) for i, v in enumerate(values) for x in (edges[i], edges[i + 1])]

    for output in range(len(outputs)):
        values, errors = effect[:, output], error[:, output]
        colour = COLOURS[output % len(COLOURS)]
        picture.draw_path(stair_points(values + errors) + stair_points(values - errors)[::-1], colour, filled=True)
        picture.draw_path(stair_points(values), colour)
    last = -math.inf
    for x, label in _axis_ticks(groups, edges):
        picture.draw_line(x, top + height, x, top + height + 4, SOFT)
        if x - last > 7 * len(label) + 6:  # pixels: skip labels that would overlap
            picture.draw_text(x, top + height + 18, label, anchor="middle", size=10, colour=SOFT)
            last = x
    return str(picture)


def _axis_ticks(groups: Sequence[str], edges: Sequence[float]) -> list[tuple[float, str]]:
    """Return ticks at the ends of intervals such as "[3, 7)", and at the middle of other groups."""
    marks: dict[float, str] = {}
    intervals = [re.fullmatch(r"\[(.+), (.+)[\])]", group) for group in groups]
    # All ends share one resolution, so that labels are comparable.
    decimals = _decimal_places([end for interval in intervals if interval for end in interval.groups()])
    for i, (group, ends) in enumerate(zip(groups, intervals, strict=True)):
        if ends is None:
            marks[(edges[i] + edges[i + 1]) / 2] = shorten_label(group, 12)
            continue
        marks.setdefault(edges[i], _round_label(ends[1], decimals))
        marks[edges[i + 1]] = _round_label(ends[2], decimals)
    return list(marks.items())


def _decimal_places(ends: Sequence[str]) -> int | None:
    """Return the number of decimals that distinguish a hundredth of the axis, or None if an end is not a number."""
    try:
        numbers = [float(end) for end in ends]
    except ValueError:
        return None
    span = max(numbers, default=0.0) - min(numbers, default=0.0)
    return max(0, 2 - math.floor(math.log10(span))) if 0 < span < math.inf else None


def _round_label(end: str, decimals: int | None) -> str:
    """Return the end of an interval, rounded to the resolution of the axis.

    >>> _round_label("46.86", 0), _round_label("0.5", 2), _round_label("2020-01", None)
    ('47', '0.5', '2020-01')
    """
    if decimals is None:
        return end
    rounded = f"{float(end):.{decimals}f}"
    short = rounded.rstrip("0").rstrip(".") if "." in rounded else rounded
    return min(end, short, key=len)


def draw_heatmap(rows: Sequence[str], columns: Sequence[str], values: NDArray[np.float64]) -> str:
    """Draw a table of signed numbers as colours: blue for positive, red for negative."""
    side = min(34.0, 300 / max(len(columns), 1))
    tall = min(26.0, 320 / max(len(rows), 1))
    left, top = 150, 8
    picture = Svg(left + side * len(columns) + 16, top + tall * len(rows) + 84, "effect of pairs")
    largest = max(float(np.abs(values).max(initial=0.0)), 1e-9)
    for i, row in enumerate(rows):
        if tall >= 9 or i % 3 == 0:
            picture.draw_text(left - 6, top + tall * (i + 0.5) + 4, shorten_label(row, 22), anchor="end", size=10)
        for j in range(len(columns)):
            value = float(values[i, j])
            colour = BLUE if value >= 0 else WARM
            picture.draw_box(
                left + side * j, top + tall * i, side - 1, tall - 1, colour, 0.04 + 0.9 * abs(value) / largest
            )
    for j, column in enumerate(columns):
        if side >= 11 or j % 3 == 0:
            x, y = left + side * (j + 0.5) + 4, top + tall * len(rows) + 6
            picture.draw_text(x, y, shorten_label(column, 13), anchor="end", size=10, rotated=True)
    return str(picture)


def draw_strengths(rows: Sequence[tuple[str, float, float]]) -> str:
    """Draw strengths as bars, each with the level that noise alone could reach: (name, strength, noise)."""
    picture = Svg(620, 24 * len(rows) + 12, "strength of each")
    most, left, width = max(max(s, n) for _, s, n in rows) or 1.0, 230, 330
    for place, (name, strength, noise) in enumerate(rows):
        y = 6 + 24 * place
        picture.draw_text(left - 10, y + 14, shorten_label(name, 32), anchor="end", size=11)
        picture.draw_box(left, y + 3, width * strength / most, 14, BLUE, 0.9 if strength > noise else 0.35)
        picture.draw_line(left + width * noise / most, y, left + width * noise / most, y + 20, WARM, 2)
        picture.draw_text(
            left + width * max(strength, noise) / most + 8, y + 14, format_value(strength), size=10, colour=SOFT
        )
    return str(picture)


def draw_intervals(rows: Sequence[tuple[str, float | None, float, float, float, float]]) -> str:
    """Draw estimates with their intervals: (name, value, low, high, minimum, maximum)."""
    picture = Svg(720, 34 * len(rows) + 8, "estimates with intervals")
    left, width = 170, 330
    for place, (name, value, low, high, least, most) in enumerate(rows):
        y = 22 + 34 * place

        def x_of(what: float, least: float = least, most: float = most) -> float:
            return left + width * min(max((what - least) / ((most - least) or 1.0), 0.0), 1.0)

        picture.draw_text(left - 14, y + 4, name, anchor="end")
        picture.draw_box(left, y - 2, width, 4, RULE)
        picture.draw_box(x_of(low), y - 5, max(x_of(high) - x_of(low), 2), 10, BAND)
        if value is None:
            picture.draw_text(left + width + 14, y + 4, "unknown: too much noise", size=12, colour=SOFT)
            continue
        picture.draw_dot(x_of(value), y, BLUE, 5)
        label = f"{format_value(value)}  ({format_value(low)} to {format_value(high)})"
        picture.draw_text(left + width + 14, y + 4, label, size=12)
    return str(picture)


def draw_calibration(points: Sequence[tuple[float, float, float, float, float]]) -> str:
    """Draw observed frequencies against predicted probabilities: (predicted, observed, low, high, rows)."""
    picture = Svg(340, 330, "calibration")
    left, top, side = 46, 12, 270

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return left + side * x, top + side * (1 - y)

    for tick in (0, 0.25, 0.5, 0.75, 1):
        picture.draw_line(*to_pixels(tick, 0), *to_pixels(tick, 1))
        picture.draw_line(*to_pixels(0, tick), *to_pixels(1, tick))
        picture.draw_text(to_pixels(tick, 0)[0], top + side + 16, f"{tick:.0%}", anchor="middle", size=10, colour=SOFT)
        picture.draw_text(left - 6, to_pixels(0, tick)[1] + 4, f"{tick:.0%}", anchor="end", size=10, colour=SOFT)
    picture.draw_line(*to_pixels(0, 0), *to_pixels(1, 1), SOFT, 1.2)
    most = max((rows for *_, rows in points), default=1.0)
    for predicted, observed, low, high, rows in points:
        picture.draw_line(*to_pixels(predicted, low), *to_pixels(predicted, high), BLUE, 1.5)
        # Area, not radius, shows the number of rows; noisy counts can be negative.
        picture.draw_dot(*to_pixels(predicted, observed), BLUE, 2.5 + 4 * math.sqrt(max(rows, 0) / most))
    picture.draw_text(left + side / 2, top + side + 36, "predicted", anchor="middle", size=11, colour=SOFT)
    picture.draw_text(12, top + side / 2, "observed", anchor="middle", size=11, colour=SOFT, rotated=True)
    return str(picture)


def draw_confusion_matrix(classes: Sequence[str], counts: NDArray[np.float64]) -> str:
    """Draw a confusion matrix: true classes in rows, predicted classes in columns, as fractions of each row."""
    n = len(classes)
    side = min(52.0, 380 / n)
    left, top = 120, 12
    picture = Svg(left + side * n + 20, top + side * n + 100, "confusion matrix")
    counts = np.maximum(counts, 0)  # noisy counts can be negative
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for i, name in enumerate(classes):
        picture.draw_text(left - 8, top + side * (i + 0.5) + 4, shorten_label(name, 16), anchor="end", size=11)
        for j in range(n):
            picture.draw_box(
                left + side * j, top + side * i, side - 1, side - 1, BLUE, 0.04 + 0.86 * float(fractions[i, j])
            )
            if side >= 26:  # pixels: smaller cells have no room for a number
                dark = fractions[i, j] > 0.55
                x, y = left + side * (j + 0.5), top + side * (i + 0.5) + 4
                colour = "#ffffff" if dark else INK
                picture.draw_text(x, y, f"{fractions[i, j]:.0%}", anchor="middle", size=11, colour=colour)
        x = left + side * (i + 0.5) + 4
        picture.draw_text(x, top + side * n + 8, shorten_label(name, 14), anchor="end", size=11, rotated=True)
    return str(picture)


def draw_budget(spends: Sequence[tuple[str, float, bool]], total: float | None) -> str:
    """Draw charges one after the other, as fractions of the budget: (label, epsilon, is of this model)."""
    picture = Svg(720, 64, "privacy budget")
    spent = sum(epsilon for _, epsilon, _ in spends)
    most = max(total or 0.0, spent) or 1.0
    left, width, x = 10, 700, 10.0
    picture.draw_box(left, 14, width, 22, "#eef2f5")
    for place, (_, epsilon, own) in enumerate(spends):
        part = width * epsilon / most
        picture.draw_box(x, 14, max(part - 1, 1), 22, BLUE if own else "#9db8ca", 1.0 if own or place % 2 else 0.75)
        x += part
    picture.draw_text(left, 56, f"spent: epsilon {format_value(spent)}", size=11, colour=SOFT)
    if total is not None:
        picture.draw_text(
            left + width, 56, f"budget: epsilon {format_value(total)}", anchor="end", size=11, colour=SOFT
        )
    return str(picture)
