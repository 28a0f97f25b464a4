# SPDX-License-Identifier: Apache-2.0
"""SVG charts for reports and notebooks, as self-contained text. Computes no results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Pages may be light or dark, so text and lines take the colour of the surrounding text, paler for secondary elements.
INK, SOFT, RULE = "currentColor", "currentColor;0.72", "currentColor;0.18"
# Fills with a contrast of at least 3 to 1 with white and with black.
BLUE, WARM = "#2f7fb5", "#c8553d"
# Colours of outputs, in this order; they repeat if there are more outputs than colours.
COLOURS = (BLUE, WARM, "#3f8f4c", "#9163aa", "#b07a10", "#3f8895", "#8a7866", "#bf5287")
FONT_SIZE = 11.5  # pixels: the smallest text in a chart as wide as the screen of a telephone
EFFECT_WIDTH = 336  # pixels


def html_card(
    title: str,
    text: str,
    rows: Sequence[Sequence[str]] = (),
    figures: Sequence[tuple[str, str]] = (),
    *,
    key: Mapping[str, str] | None = None,
    badge: tuple[str, str] | None = None,
) -> str:
    """Return an HTML card for notebooks, light or dark: title, badge, lines, table with a header row, and charts.

    ``key`` maps names to colours; ``badge`` is a pair of text and colour.

    >>> html_card("Plan", "one <line>").count("&lt;line&gt;")
    1
    """
    lines = "".join(f"<div>{escape(line)}</div>" for line in text.splitlines())
    body = ""
    for place, row in enumerate(rows):
        tag = "th" if place == 0 else "td"
        cells = "".join(f"<{tag} style='{_CELL}'>{escape(cell)}</{tag}>" for cell in row)
        body += f"<tr>{cells}</tr>"
    table = f"<table style='border-collapse:collapse;background:none;margin:6px 0'>{body}</table>" if rows else ""
    dots = "".join(
        f"<span style='color:{colour}'>&#9632;</span> {escape(name)} &nbsp;" for name, colour in (key or {}).items()
    )
    drawn = "".join(f"<div style='width:336px'><b>{escape(name)}</b>{picture}</div>" for name, picture in figures)
    side = f"<div style='display:flex;flex-wrap:wrap;gap:14px 26px;margin-top:6px'>{drawn}</div>" if figures else ""
    mark = ""
    if badge is not None:
        style = f"background:{badge[1]};color:#fff;border-radius:9px;padding:1px 9px;margin-left:8px"
        mark = f"<span style='{style}'>{escape(badge[0])}</span>"
    style = f"border-left:4px solid {BLUE};padding:4px 14px;margin:6px 0;font-family:sans-serif;color:inherit"
    head = f"<div><b>{escape(title)}</b>{mark}</div>"
    return f"<div style='{style}'>{head}{lines}{f'<div>{dots}</div>' if dots else ''}{table}{side}</div>"


_CELL: Final = "padding:2px 16px 2px 0;text-align:left;color:inherit;background:none"


class Svg:
    """Builder of an SVG image."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.size, self.label, self.parts = (width, height), label, list[str]()

    def draw_line(self, x1: float, y1: float, x2: float, y2: float, colour: str = RULE, width: float = 1.0) -> None:
        """Draw a straight line."""
        place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(f'<line {place} {_paint("stroke", colour)} stroke-width="{width:g}"/>')

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
        kind = f'polygon fill="{colour}" fill-opacity="0.28"' if filled else f'polyline fill="none" stroke="{colour}"'
        self.parts.append(f'<{kind} stroke-width="{0 if filled else 1.8}" points="{along}"/>')

    def draw_text(
        self, x: float, y: float, text: str, *, anchor: str = "start", size: float = FONT_SIZE, colour: str = INK,
        rotated: bool = False,
    ) -> None:  # fmt: skip
        """Draw text."""
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if rotated else ""
        style = f'text-anchor="{anchor}" font-size="{size:g}" {_paint("fill", colour)}'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}{turn}>{escape(text)}</text>')

    def __str__(self) -> str:
        width, height = self.size
        head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(self.label)}"'
        style = f"max-width:{width:g}px;width:100%"
        return f'{head} style="{style}" xmlns="http://www.w3.org/2000/svg">{"".join(self.parts)}</svg>'


def _paint(key: str, colour: str) -> str:
    """Return the SVG attributes of a colour with an optional opacity, such as "currentColor;0.7"."""
    name, _, opacity = colour.partition(";")
    return f'{key}="{name}"' + (f' {key}-opacity="{opacity}"' if opacity else "")


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
    """Return the smallest and largest probability to which a release can move a belief, for any background knowledge.

    >>> tuple(round(probability, 3) for probability in posterior_range(0.5, 1.0))
    (0.269, 0.731)
    """
    # The odds change by at most a factor of exp(epsilon), except with probability delta.
    inverse = math.exp(-epsilon)
    low = prior * inverse / (prior * inverse + 1 - prior)
    return low, min(1.0, prior / (prior + (1 - prior) * inverse) + delta)


_IN_SCALE: Final = (0.025, 0.95)  # numbers between these quantiles of the released histogram are drawn to scale
_TAIL: Final = 0.09  # width of a tail that is not drawn to scale, as a fraction of the axis
_GAP: Final = 0.025  # gap between a tail and the rest, as a fraction of the axis


class NumberAxis(NamedTuple):
    """Horizontal axis of a numeric column, in fractions of its width. Shared by reports, notebooks and matplotlib.

    Attributes
    ----------
    spans : tuple of (float, float)
        Left and right ends of each interval.
    ticks : tuple of (float, str)
        Positions and labels; no two labels are equal.
    """

    spans: tuple[tuple[float, float], ...]
    ticks: tuple[tuple[float, str], ...]


def number_axis(edges: Sequence[float], rows: Sequence[float] | None = None) -> NumberAxis:
    """Return an axis that is to scale for nearly all rows. Long tails with few rows are set apart by a gap.

    >>> number_axis([0, 10, 20, 365], [60, 38, 2]).ticks
    ((0.0, '0'), (0.221, '5'), (0.443, '10'), (0.664, '15'), (0.885, '20'), (1.0, '365'))
    """
    n = len(edges) - 1
    counts = np.maximum(np.zeros(n) if rows is None else np.asarray(rows, float)[:n], 0.0)
    below = np.cumsum(counts) / max(float(counts.sum()), 1e-9)
    first, last = 0, n
    if counts.sum() > 0:
        first = min(int(np.searchsorted(below, _IN_SCALE[0], side="right")), n - 1)
        last = max(int(np.searchsorted(below, _IN_SCALE[1])) + 1, first + 1)
    whole = edges[-1] - edges[0]
    first = first if edges[first] - edges[0] > 0.15 * whole else 0
    last = last if edges[-1] - edges[last] > 0.15 * whole else n
    left = _TAIL + _GAP if first else 0.0
    right = 1.0 - (_TAIL + _GAP if last < n else 0.0)
    low, high = float(edges[first]), float(edges[last])

    def place(number: float) -> float:
        return round(left + (right - left) * (number - low) / (high - low), 3)

    spans = [(_TAIL * i / first, _TAIL * (i + 1) / first) for i in range(first)]
    spans += [(place(edges[i]), place(edges[i + 1])) for i in range(first, last)]
    spans += [(1 - _TAIL * (n - i) / (n - last), 1 - _TAIL * (n - i - 1) / (n - last)) for i in range(last, n)]
    ticks = [(place(number), format_tick(number)) for number in _round_numbers(low, high)]
    ends = [(0.0, format_tick(edges[0]))] * bool(first) + [(1.0, format_tick(edges[-1]))] * (last < n)
    kept = [tick for tick in ticks if all(abs(tick[0] - end) > _TAIL for end, _ in ends) and tick[1] not in dict(
        (label, None) for _, label in ends)]  # fmt: skip
    return NumberAxis(tuple(spans), tuple(sorted([*kept, *ends])))


def format_tick(number: float) -> str:
    """Return the label of a number on an axis. A bound halfway between two integers is shown as the lower integer.

    >>> format_tick(365.5), format_tick(0.25), format_tick(-0.5), format_tick(20000)
    ('365', '0.25', '0', '20,000')
    """
    if number % 1 == 0.5 and abs(number) >= 1:
        number = math.floor(number)
    text = f"{number:,.6g}" if abs(number) < 1e6 else f"{number:.3g}"
    return "0" if number == -0.5 else text


def _round_numbers(low: float, high: float) -> Iterator[float]:
    """Iterate over about five round numbers between ``low`` and ``high``."""
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    for count in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield float(f"{count * step:.6g}")


def padded_range(low: float, high: float) -> tuple[float, float]:
    """Return a range that includes 0 and extends slightly beyond ``low`` and ``high``."""
    low, high = min(low, 0.0), max(high, 0.0)
    reach = max(high - low, 1e-9)
    return low - 0.04 * reach, high + 0.04 * reach


def draw_category_effect(
    groups: Sequence[str], effect: NDArray[np.float64], error: NDArray[np.float64], outputs: Sequence[str], *,
    rows: Sequence[float] | None = None, scale: tuple[float, float] | None = None, label: str = "column",
) -> str:  # fmt: skip
    """Draw the effect of each category as a bar with its error as a whisker, and its number of rows in grey."""
    across, each = len(outputs), 16 if len(outputs) == 1 else 10
    band = max(24.0, each * across + 8.0)
    picture = Svg(EFFECT_WIDTH, 26 + band * len(groups), f"Effect of each category of {label}")
    low, high = padded_range(*(scale or (float((effect - error).min()), float((effect + error).max()))))
    counted = rows is not None and max(rows, default=0.0) > 0
    left, width = 116, 150 if counted else 206

    def x_of(value: float) -> float:
        return left + width * (value - low) / (high - low)

    for place, group in enumerate(groups):
        y = 6 + band * place
        picture.draw_text(left - 8, y + band / 2 + 4, shorten_label(group, 16), anchor="end")
        if rows is not None and counted:
            part = max(rows[place], 0.0) / max(rows)
            picture.draw_box(left + width + 30, y + band / 2 - 5, 38 * part, 10, "#8a949e", 0.55)
        for output in range(across):
            value, reach = float(effect[place, output]), float(error[place, output])
            top = y + (band - each * across) / 2 + each * output
            sure = abs(value) > reach  # effects within their error are drawn faint
            colour = COLOURS[output % len(COLOURS)]
            picture.draw_box(
                min(x_of(0), x_of(value)), top + 1, abs(x_of(value) - x_of(0)), each - 2, colour, 0.9 if sure else 0.35
            )
            picture.draw_line(x_of(value - reach), top + each / 2, x_of(value + reach), top + each / 2, INK, 1)
    bottom = 6 + band * len(groups)
    picture.draw_line(x_of(0), 2, x_of(0), bottom, SOFT)
    for value in _separated(low, high, x_of, 34):
        picture.draw_text(x_of(value), bottom + 15, _signed(value), anchor="middle", colour=SOFT)
    if counted:
        picture.draw_text(left + width + 30, bottom + 15, "rows", colour=SOFT)
    return str(picture)


def draw_number_effect(
    edges: Sequence[float], effect: NDArray[np.float64], error: NDArray[np.float64], outputs: Sequence[str], *,
    rows: Sequence[float] | None = None, scale: tuple[float, float] | None = None, label: str = "column",
) -> str:  # fmt: skip
    """Draw the effect of each interval of numbers as steps with a band, above the released number of rows in grey.

    If there is one more group than intervals, it holds missing values: a dot with a whisker, beyond a gap.
    """
    n = len(edges) - 1
    axis, has_missing = number_axis(edges, rows), len(effect) > n
    counted = rows is not None and max(rows, default=0.0) > 0
    left, top, height, bars = 42, 8, 118, 26 if counted else 0
    width = EFFECT_WIDTH - left - (62 if has_missing else 12)
    picture = Svg(EFFECT_WIDTH, top + height + bars + 26, f"Effect of {label} by its value")
    low, high = padded_range(*(scale or (float((effect - error).min()), float((effect + error).max()))))
    floor, beyond = top + height + bars, left + width + 32

    def y_of(value: float) -> float:
        return top + height * (1 - (value - low) / (high - low))

    picture.draw_line(left, y_of(0), left + width, y_of(0), SOFT)
    for value in _separated(low, high, y_of, 16):
        picture.draw_text(left - 6, y_of(value) + 4, _signed(value), anchor="end", colour=SOFT)
    runs = unbroken_runs(axis.spans)
    for output in range(len(outputs)):
        colour = COLOURS[output % len(COLOURS)]
        values, errors = effect[:, output], error[:, output]
        for run in runs:
            stairs = [(left + width * x, i) for i in run for x in axis.spans[i]]
            upper = [(x, y_of(float(values[i] + errors[i]))) for x, i in stairs]
            lower = [(x, y_of(float(values[i] - errors[i]))) for x, i in stairs]
            picture.draw_path(upper + lower[::-1], colour, filled=True)
            picture.draw_path([(x, y_of(float(values[i]))) for x, i in stairs], colour)
        if has_missing:
            x = beyond + 7 * (output - (len(outputs) - 1) / 2)
            ends = [y_of(float(values[-1] + sign * errors[-1])) for sign in (1, -1)]
            picture.draw_line(x, ends[0], x, ends[1], colour, 1.4)
            picture.draw_dot(x, y_of(float(values[-1])), colour)
    if rows is not None and counted:
        most = max(rows)
        for i, (start, end) in enumerate(axis.spans):
            tall = (bars - 4) * max(rows[i], 0.0) / most
            picture.draw_box(left + width * start, floor - tall, width * (end - start) - 0.5, tall, "#8a949e", 0.55)
        if has_missing:
            tall = (bars - 4) * max(rows[n], 0.0) / most
            picture.draw_box(beyond - 6, floor - tall, 12, tall, "#8a949e", 0.55)
    for run in runs:
        picture.draw_line(left + width * axis.spans[run[0]][0], floor, left + width * axis.spans[run[-1]][1], floor)
    last = -math.inf
    for at, text in [tick for tick in axis.ticks if tick[0] < 1.0] + [tick for tick in axis.ticks if tick[0] == 1.0]:
        x = left + width * at
        room = 6.4 * len(text) / 2
        if x - room > last + 4:
            picture.draw_line(x, floor, x, floor + 4, SOFT)
            picture.draw_text(x, floor + 17, text, anchor="middle", colour=SOFT)
            last = x + room
    if has_missing:
        picture.draw_text(beyond, floor + 17, "missing", anchor="middle", colour=SOFT)
    return str(picture)


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+.2g}"


def _separated(low: float, high: float, place: Callable[[float], float], least: float) -> list[float]:
    """Return 0, and each end of the range that lies at least ``least`` pixels from 0."""
    return [0.0, *(value for value in (low, high) if abs(place(value) - place(0)) >= least)]


def unbroken_runs(spans: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Return the indices of intervals, split into lists wherever two neighbouring intervals have a gap."""
    runs = [[0]]
    for i in range(1, len(spans)):
        if spans[i][0] - spans[i - 1][1] > _GAP / 2:
            runs.append([])
        runs[-1].append(i)
    return runs


def draw_heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    values: NDArray[np.float64],
    names: tuple[str, str] = ("rows", "columns"),
) -> str:
    """Draw a table of signed numbers as colours: blue for positive, red for negative. ``names`` label its axes."""
    left, top = 120, 22
    side = min(34.0, (EFFECT_WIDTH - left - 8) / max(len(columns), 1))
    tall = min(26.0, max(15.0, 300 / max(len(rows), 1)))
    bottom = top + tall * len(rows)
    below = bottom + 22 + 7 * min(11, max(map(len, columns)))  # room for rotated labels
    picture = Svg(EFFECT_WIDTH, below + 8, f"Effect of {names[0]} and {names[1]} together")
    largest = max(float(np.abs(values).max(initial=0.0)), 1e-9)
    picture.draw_text(left - 6, 12, shorten_label(names[0], 18), anchor="end", colour=SOFT)
    for i, row in enumerate(rows):
        picture.draw_text(left - 6, top + tall * (i + 0.5) + 4, shorten_label(row, 16), anchor="end")
        for j in range(len(columns)):
            value = float(values[i, j])
            colour = BLUE if value >= 0 else WARM
            picture.draw_box(
                left + side * j, top + tall * i, side - 1, tall - 1, colour, 0.04 + 0.9 * abs(value) / largest
            )
    step = max(1, math.ceil(14 / side))
    for j, column in list(enumerate(columns))[::step]:
        x, y = left + side * (j + 0.5) + 4, bottom + 6
        picture.draw_text(x, y, shorten_label(column, 11), anchor="end", rotated=True)
    picture.draw_text(left, below, shorten_label(names[1], 20), colour=SOFT)
    for place, (colour, text) in enumerate(((WARM, f"{-largest:.2g}"), (BLUE, f"{largest:+.2g}"))):
        x = left + 132 + 44 * place
        picture.draw_box(x - 14, below - 10, 11, 11, colour, 0.94)
        picture.draw_text(x, below, text, colour=SOFT)
    return str(picture)


def _draw_unit_square(picture: Svg, left: float, top: float, side: float, names: tuple[str, str]) -> None:
    """Draw a square with both axes from 0 to 100%, with grid lines."""
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x, y = left + side * tick, top + side * (1 - tick)
        picture.draw_line(x, top, x, top + side)
        picture.draw_line(left, y, left + side, y)
        picture.draw_text(x, top + side + 16, f"{tick:.0%}", anchor="middle", colour=SOFT)
        picture.draw_text(left - 6, y + 4, f"{tick:.0%}", anchor="end", colour=SOFT)
    picture.draw_line(left, top + side, left + side, top, SOFT, 1.2)
    picture.draw_text(left + side / 2, top + side + 34, names[0], anchor="middle", colour=SOFT)
    picture.draw_text(12, top + side / 2, names[1], anchor="middle", colour=SOFT, rotated=True)


def draw_calibration(points: Sequence[tuple[float, float, float, float, float]]) -> str:
    """Draw a calibration chart. Each point is (predicted probability, observed frequency, low, high, rows)."""
    left, top, side = 58, 10, 250
    picture = Svg(EFFECT_WIDTH, 306, "Calibration: observed frequency by predicted probability")
    _draw_unit_square(picture, left, top, side, ("predicted", "observed"))
    most = max((rows for *_, rows in points), default=1.0)
    for predicted, observed, low, high, rows in points:
        x = left + side * predicted
        picture.draw_line(x, top + side * (1 - low), x, top + side * (1 - high), BLUE, 1.5)
        # Area, not radius, shows the number of rows; noisy counts can be negative.
        picture.draw_dot(x, top + side * (1 - observed), BLUE, 2.5 + 4 * math.sqrt(max(rows, 0) / most))
    return str(picture)


def draw_roc(points: Sequence[tuple[float, float, float, float]]) -> str:
    """Draw an ROC curve with a band. Each point is (false positive rate, sensitivity, low end, high end)."""
    left, top, side = 58, 10, 250
    picture = Svg(EFFECT_WIDTH, 306, "ROC curve: sensitivity by false positive rate")
    _draw_unit_square(picture, left, top, side, ("1 - specificity", "sensitivity"))
    ordered = [(0.0, 0.0, 0.0, 0.0), *sorted(points), (1.0, 1.0, 1.0, 1.0)]

    def line(column: int) -> list[tuple[float, float]]:
        return [(left + side * point[0], top + side * (1 - point[column])) for point in ordered]

    picture.draw_path(line(3) + line(2)[::-1], BLUE, filled=True)
    picture.draw_path(line(1), BLUE)
    return str(picture)


def draw_confusion_matrix(classes: Sequence[str], counts: NDArray[np.float64]) -> str:
    """Draw a confusion matrix: true classes in rows, predicted classes in columns, as fractions of each row."""
    n = len(classes)
    left, top = 108, 24
    side = min(56.0, (EFFECT_WIDTH - left - 8) / n)
    below = 22 + 7 * min(12, max(map(len, classes)))  # room for rotated labels
    picture = Svg(EFFECT_WIDTH, top + side * n + below + 8, "Fractions of each true class by predicted class")
    counts = np.maximum(counts, 0)  # noisy counts can be negative
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    picture.draw_text(left - 8, 14, "true class", anchor="end", colour=SOFT)
    for i, name in enumerate(classes):
        picture.draw_text(left - 8, top + side * (i + 0.5) + 4, shorten_label(name, 15), anchor="end")
        for j in range(n):
            picture.draw_box(
                left + side * j, top + side * i, side - 1, side - 1, BLUE, 0.04 + 0.86 * float(fractions[i, j])
            )
            if side >= 30:  # pixels: a smaller cell is too small for a number
                x, y = left + side * (j + 0.5), top + side * (i + 0.5) + 4
                colour = "#ffffff" if fractions[i, j] > 0.55 else INK
                picture.draw_text(x, y, f"{fractions[i, j]:.0%}", anchor="middle", colour=colour)
        x = left + side * (i + 0.5) + 4
        picture.draw_text(x, top + side * n + 8, shorten_label(name, 12), anchor="end", rotated=True)
    picture.draw_text(left, top + side * n + below, "predicted class", colour=SOFT)
    return str(picture)
