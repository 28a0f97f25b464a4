# SPDX-License-Identifier: Apache-2.0
"""Pictures as SVG text, for reports and notebooks: sharp on paper, and nothing to load. Nothing is computed here."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "budget", "calibration", "card", "category_bars", "confusion", "heat", "odds", "steps", "strengths", "whiskers",
]  # fmt: skip

INK, SOFT, RULE, BLUE, WARM, BAND = "#1d2733", "#5c6b7a", "#d9dfe5", "#1f5f8b", "#b3412e", "#cfe0ec"
COLOURS = ("#1f5f8b", "#b3412e", "#3a7d44", "#8a5a9e", "#c08a1e", "#4c8f9c", "#7a6a58", "#c25b8f")


def card(title: str, text: str, rows: Sequence[Sequence[str]] = (), figures: Sequence[tuple[str, str]] = ()) -> str:
    """Return HTML for a notebook: a title, lines of text, a table whose first row is its head, and pictures by name.

    >>> card("Plan", "one <line>").count("&lt;line&gt;")
    1
    """
    lines = "".join(f"<div>{escape(line)}</div>" for line in text.splitlines())
    cells = [f"<{tag}>{escape(cell)}</{tag}>" for row, tag in zip(rows, _tags(rows), strict=True) for cell in row]
    width = len(rows[0]) if rows else 1
    body = "".join(f"<tr>{''.join(cells[i : i + width])}</tr>" for i in range(0, len(cells), width))
    table = f"<table style='text-align:left'>{body}</table>" if rows else ""
    drawn = "".join(f"<div style='width:440px'><b>{escape(name)}</b>{picture}</div>" for name, picture in figures)
    side = f"<div style='display:flex;flex-wrap:wrap;gap:12px'>{drawn}</div>" if figures else ""
    style = "border-left:4px solid #1f5f8b;padding:4px 14px;margin:6px 0;font-family:sans-serif"
    return f"<div style='{style}'><div><b>{escape(title)}</b></div>{lines}{table}{side}</div>"


def _tags(rows: Sequence[Sequence[str]]) -> list[str]:
    return ["th" if place == 0 else "td" for place in range(len(rows))]


class Svg:
    """A picture in the making."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.size, self.label, self.parts = (width, height), label, list[str]()

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = RULE, width: float = 1.0) -> None:
        """A straight line."""
        place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(f'<line {place} stroke="{colour}" stroke-width="{width:g}"/>')

    def box(self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> None:
        """A filled rectangle."""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
        self.parts.append(f'<rect {place} fill="{colour}" fill-opacity="{opacity:.3g}"/>')

    def dot(self, x: float, y: float, colour: str = BLUE, radius: float = 3.5) -> None:
        """A point."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}"/>')

    def path(self, points: Sequence[tuple[float, float]], colour: str, *, filled: bool = False) -> None:
        """A line through points, or the area inside it."""
        along = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        kind = f'polygon fill="{colour}" fill-opacity="0.35"' if filled else f'polyline fill="none" stroke="{colour}"'
        self.parts.append(f'<{kind} stroke-width="{0 if filled else 1.8}" points="{along}"/>')

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", size: float = 12, colour: str = INK,
        turned: bool = False,
    ) -> None:  # fmt: skip
        """Words."""
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        style = f'text-anchor="{anchor}" font-size="{size:g}" fill="{colour}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}{turn}>{escape(words)}</text>')

    def __str__(self) -> str:
        width, height = self.size
        head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(self.label)}"'
        return f'{head} style="max-width:{width:g}px" xmlns="http://www.w3.org/2000/svg">{"".join(self.parts)}</svg>'


def short(words: str, most: int = 26) -> str:
    """Cut a label that would not fit."""
    return words if len(words) <= most else words[: most - 1] + "…"


def number(value: float) -> str:
    """A number as one reads it."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"


def odds(rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Draw what someone thinks of one person before, and the most that this can become: (who, low, before, high)."""
    picture = Svg(720, 40 + 44 * len(rows), "what can be concluded about one person")
    left, width = 200, 480
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x = left + width * tick
        picture.line(x, 14, x, 18 + 44 * len(rows))
        picture.text(x, 34 + 44 * len(rows), f"{tick:.0%}", anchor="middle", size=11, colour=SOFT)
    for place, (who, low, before, high) in enumerate(rows):
        y = 36 + 44 * place
        picture.text(left - 14, y + 4, who, anchor="end")
        picture.box(left + width * low, y - 9, width * (high - low), 18, BAND)
        picture.line(left + width * before, y - 13, left + width * before, y + 13, INK, 2)
        picture.text(left + width * high + 6, y + 4, f"at most {high:.1%}", size=11, colour=BLUE)
    return str(picture)


def _scale(low: float, high: float) -> tuple[float, float]:
    reach = max(high - low, 1e-9)
    return low - 0.04 * reach, high + 0.04 * reach


def category_bars(
    groups: Sequence[str], effect: NDArray[np.float64], error: NDArray[np.float64], outputs: Sequence[str]
) -> str:
    """Draw what each category adds, all labels shown, with a whisker that reaches as far as the error."""
    across, each = len(outputs), 16 if len(outputs) == 1 else 9
    band = max(22.0, each * across + 8.0)
    picture = Svg(440, 26 + band * len(groups), "effect of each category")
    low, high = _scale(min(0.0, float((effect - error).min())), max(0.0, float((effect + error).max())))
    left, width = 165, 262

    def at(value: float) -> float:
        return left + width * (value - low) / (high - low)

    for place, group in enumerate(groups):
        y = 6 + band * place
        picture.text(left - 8, y + band / 2 + 4, short(group, 24), anchor="end", size=11)
        for output in range(across):
            value, reach = float(effect[place, output]), float(error[place, output])
            top = y + (band - each * across) / 2 + each * output
            sure = abs(value) > reach
            colour = COLOURS[output % len(COLOURS)]
            picture.box(min(at(0), at(value)), top + 1, abs(at(value) - at(0)), each - 2, colour, 0.9 if sure else 0.35)
            picture.line(at(value - reach), top + each / 2, at(value + reach), top + each / 2, INK, 1)
    picture.line(at(0), 2, at(0), 6 + band * len(groups), SOFT)
    for value in (low, high):
        picture.text(at(value), 20 + band * len(groups), f"{value:+.2g}", anchor="middle", size=10, colour=SOFT)
    picture.text(at(0), 20 + band * len(groups), "0", anchor="middle", size=10, colour=SOFT)
    return str(picture)


def steps(
    groups: Sequence[str], effect: NDArray[np.float64], error: NDArray[np.float64], outputs: Sequence[str]
) -> str:
    """Draw what each interval of a number adds, as steps with a band that reaches as far as the error."""
    picture = Svg(440, 210, "effect of each interval")
    low, high = _scale(min(0.0, float((effect - error).min())), max(0.0, float((effect + error).max())))
    left, top, width, height, n = 48, 10, 376, 150, len(groups)

    def y_of(value: float) -> float:
        return top + height * (1 - (value - low) / (high - low))

    picture.line(left, y_of(0), left + width, y_of(0), SOFT)
    for value in (low, high):
        picture.text(left - 6, y_of(value) + 4, f"{value:+.2g}", anchor="end", size=10, colour=SOFT)
    picture.text(left - 6, y_of(0) + 4, "0", anchor="end", size=10, colour=SOFT)
    edges = [left + width * i / n for i in range(n + 1)]

    def stair(values: NDArray[np.float64]) -> list[tuple[float, float]]:
        return [(x, y_of(float(v))) for i, v in enumerate(values) for x in (edges[i], edges[i + 1])]

    for output in range(len(outputs)):
        mine, reach = effect[:, output], error[:, output]
        colour = COLOURS[output % len(COLOURS)]
        picture.path(stair(mine + reach) + stair(mine - reach)[::-1], colour, filled=True)
        picture.path(stair(mine), colour)
    last = -math.inf
    for x, words in _ticks(groups, edges):
        picture.line(x, top + height, x, top + height + 4, SOFT)
        if x - last > 7 * len(words) + 6:  # where there is room
            picture.text(x, top + height + 18, words, anchor="middle", size=10, colour=SOFT)
            last = x
    return str(picture)


def _ticks(groups: Sequence[str], edges: Sequence[float]) -> list[tuple[float, str]]:
    """Where intervals such as "[3, 7)" begin and end; other groups are named in their middle."""
    marks: dict[float, str] = {}
    intervals = [re.fullmatch(r"\[(.+), (.+)[\])]", group) for group in groups]
    places = _places([end for found in intervals if found for end in found.groups()])
    for i, (group, ends) in enumerate(zip(groups, intervals, strict=True)):
        if ends is None:
            marks[(edges[i] + edges[i + 1]) / 2] = short(group, 12)
            continue
        marks.setdefault(edges[i], _rounded(ends[1], places))
        marks[edges[i + 1]] = _rounded(ends[2], places)
    return list(marks.items())


def _places(ends: Sequence[str]) -> int | None:
    """Return how many decimals tell a hundredth of the axis apart; None where something is no plain number."""
    try:
        numbers = [float(end) for end in ends]
    except ValueError:
        return None
    span = max(numbers, default=0.0) - min(numbers, default=0.0)
    return max(0, 2 - math.floor(math.log10(span))) if 0 < span < math.inf else None


def _rounded(end: str, places: int | None) -> str:
    """Write the end of an interval no finer than the axis can show.

    >>> _rounded("46.86", 0), _rounded("0.5", 2), _rounded("2020-01", None)
    ('47', '0.5', '2020-01')
    """
    if places is None:
        return end
    plain = f"{float(end):.{places}f}"
    written = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return min(end, written, key=len)


def heat(rows: Sequence[str], columns: Sequence[str], values: NDArray[np.float64]) -> str:
    """Draw a table of signed numbers: blue adds, red takes away."""
    side = min(34.0, 300 / max(len(columns), 1))
    tall = min(26.0, 320 / max(len(rows), 1))
    left, top = 150, 8
    picture = Svg(left + side * len(columns) + 16, top + tall * len(rows) + 84, "effect of pairs")
    largest = max(float(np.abs(values).max(initial=0.0)), 1e-9)
    for i, row in enumerate(rows):
        if tall >= 9 or i % 3 == 0:
            picture.text(left - 6, top + tall * (i + 0.5) + 4, short(row, 22), anchor="end", size=10)
        for j in range(len(columns)):
            value = float(values[i, j])
            colour = BLUE if value >= 0 else WARM
            picture.box(left + side * j, top + tall * i, side - 1, tall - 1, colour, 0.04 + 0.9 * abs(value) / largest)
    for j, column in enumerate(columns):
        if side >= 11 or j % 3 == 0:
            x, y = left + side * (j + 0.5) + 4, top + tall * len(rows) + 6
            picture.text(x, y, short(column, 13), anchor="end", size=10, turned=True)
    return str(picture)


def strengths(rows: Sequence[tuple[str, float, float]]) -> str:
    """Draw how strong each of several things is, beside what noise alone could show: (name, strength, noise)."""
    picture = Svg(620, 24 * len(rows) + 12, "strength of each")
    most, left, width = max(max(s, n) for _, s, n in rows) or 1.0, 230, 330
    for place, (name, strength, noise) in enumerate(rows):
        y = 6 + 24 * place
        picture.text(left - 10, y + 14, short(name, 32), anchor="end", size=11)
        picture.box(left, y + 3, width * strength / most, 14, BLUE, 0.9 if strength > noise else 0.35)
        picture.line(left + width * noise / most, y, left + width * noise / most, y + 20, WARM, 2)
        picture.text(left + width * max(strength, noise) / most + 8, y + 14, number(strength), size=10, colour=SOFT)
    return str(picture)


def whiskers(rows: Sequence[tuple[str, float | None, float, float, float, float]]) -> str:
    """Draw estimates with their intervals: (name, value, low, high, least possible, most possible)."""
    picture = Svg(720, 34 * len(rows) + 8, "estimates with intervals")
    left, width = 170, 330
    for place, (name, value, low, high, least, most) in enumerate(rows):
        y = 22 + 34 * place

        def at(what: float, least: float = least, most: float = most) -> float:
            return left + width * min(max((what - least) / ((most - least) or 1.0), 0.0), 1.0)

        picture.text(left - 14, y + 4, name, anchor="end")
        picture.box(left, y - 2, width, 4, RULE)
        picture.box(at(low), y - 5, max(at(high) - at(low), 2), 10, BAND)
        if value is None:
            picture.text(left + width + 14, y + 4, "unknown: too much noise", size=12, colour=SOFT)
            continue
        picture.dot(at(value), y, BLUE, 5)
        told = f"{number(value)}  ({number(low)} to {number(high)})"
        picture.text(left + width + 14, y + 4, told, size=12)
    return str(picture)


def calibration(points: Sequence[tuple[float, float, float, float, float]]) -> str:
    """Draw predicted against observed shares: (predicted, happened, low, high, rows)."""
    picture = Svg(340, 330, "calibration")
    left, top, side = 46, 12, 270

    def place(x: float, y: float) -> tuple[float, float]:
        return left + side * x, top + side * (1 - y)

    for tick in (0, 0.25, 0.5, 0.75, 1):
        picture.line(*place(tick, 0), *place(tick, 1))
        picture.line(*place(0, tick), *place(1, tick))
        picture.text(place(tick, 0)[0], top + side + 16, f"{tick:.0%}", anchor="middle", size=10, colour=SOFT)
        picture.text(left - 6, place(0, tick)[1] + 4, f"{tick:.0%}", anchor="end", size=10, colour=SOFT)
    picture.line(*place(0, 0), *place(1, 1), SOFT, 1.2)
    most = max((rows for *_, rows in points), default=1.0)
    for predicted, happened, low, high, rows in points:
        picture.line(*place(predicted, low), *place(predicted, high), BLUE, 1.5)
        picture.dot(*place(predicted, happened), BLUE, 2.5 + 4 * math.sqrt(max(rows, 0) / most))
    picture.text(left + side / 2, top + side + 36, "predicted", anchor="middle", size=11, colour=SOFT)
    picture.text(12, top + side / 2, "happened", anchor="middle", size=11, colour=SOFT, turned=True)
    return str(picture)


def confusion(classes: Sequence[str], counts: NDArray[np.float64]) -> str:
    """Draw how often each true class (a row) was predicted as each class (a column), as shares of its row."""
    n = len(classes)
    side = min(52.0, 380 / n)
    left, top = 120, 12
    picture = Svg(left + side * n + 20, top + side * n + 100, "confusion matrix")
    kept = np.maximum(counts, 0)
    shares = kept / np.maximum(kept.sum(axis=1, keepdims=True), 1)
    for i, name in enumerate(classes):
        picture.text(left - 8, top + side * (i + 0.5) + 4, short(name, 16), anchor="end", size=11)
        for j in range(n):
            picture.box(left + side * j, top + side * i, side - 1, side - 1, BLUE, 0.04 + 0.86 * float(shares[i, j]))
            if side >= 26:
                dark = shares[i, j] > 0.55
                x, y = left + side * (j + 0.5), top + side * (i + 0.5) + 4
                colour = "#ffffff" if dark else INK
                picture.text(x, y, f"{shares[i, j]:.0%}", anchor="middle", size=11, colour=colour)
        x = left + side * (i + 0.5) + 4
        picture.text(x, top + side * n + 8, short(name, 14), anchor="end", size=11, turned=True)
    return str(picture)


def budget(spends: Sequence[tuple[str, float, bool]], total: float | None) -> str:
    """Draw spends one after the other, in parts of the budget: (label, epsilon, is this model's)."""
    picture = Svg(720, 64, "privacy budget")
    spent = sum(epsilon for _, epsilon, _ in spends)
    most = max(total or 0.0, spent) or 1.0
    left, width, x = 10, 700, 10.0
    picture.box(left, 14, width, 22, "#eef2f5")
    for place, (_, epsilon, own) in enumerate(spends):
        part = width * epsilon / most
        picture.box(x, 14, max(part - 1, 1), 22, BLUE if own else "#9db8ca", 1.0 if own or place % 2 else 0.75)
        x += part
    picture.text(left, 56, f"spent: epsilon {number(spent)}", size=11, colour=SOFT)
    if total is not None:
        picture.text(left + width, 56, f"budget: epsilon {number(total)}", anchor="end", size=11, colour=SOFT)
    return str(picture)
