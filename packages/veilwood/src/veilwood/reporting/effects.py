# SPDX-License-Identifier: Apache-2.0
"""Sections of a report on what a PrivateForest learned: effects on one scale, pairs, and one prediction by hand."""

from __future__ import annotations

from html import escape
from typing import Any, Final

import numpy as np

from veilwood import charts
from veilwood.arrays import Codes
from veilwood.reporting import html
from veilwood.trees.counting import route_rows

MAX_EFFECTS: Final = 12
MAX_PAIRS: Final = 6


def common_scale(effects: Any) -> tuple[float, float]:
    """Return a range that holds all effects, and nearly all of their error bars."""
    mains = effects.main[:MAX_EFFECTS]
    low = min(float(main.effect.min()) for main in mains)
    high = max(float(main.effect.max()) for main in mains)
    reach = max(float(np.median(main.error)) for main in mains)
    return low - reach, high + reach


def effects_section(model: Any) -> str:
    """Return the effects of columns that exceed the noise, and the names of the others."""
    if not hasattr(model, "explain"):
        return ""
    effects = model.explain()
    if not effects.main:
        return ""
    clear = [main for main in effects.main if main.is_clear] or list(effects.main[:1])
    drawn, within = clear[:MAX_EFFECTS], [main.column for main in effects.main if not main.is_clear]
    scale = common_scale(effects)
    text = "<h2>What each column adds</h2>" + html.paragraphs([
        f"Effect on the {effects.unit}, strongest first, all on one scale. Bands and whiskers hold the true value "
        "about 19 times in 20; pale bars are within their error. Grey: released number of rows."
    ])  # fmt: skip
    text += output_key(effects.outputs)
    figures = [html.figure(main.column, main.draw(effects.outputs, scale)) for main in drawn]
    text += f'<div class="grid">{"".join(figures)}</div>'
    weaker = [main.column for main in clear[MAX_EFFECTS:]]
    text += html.paragraphs([f"Weaker, not drawn: {', '.join(weaker)}."] * bool(weaker), "soft small")
    names = ", ".join(within)
    line = (
        f"Within the noise: {names}." if len(within) < len(effects.main) else f"All columns are within noise: {names}."
    )
    text += html.paragraphs([line] * bool(within), "small")
    return text + _pairs(effects) + _worked_prediction(model, effects)


def output_key(outputs: tuple[str, ...]) -> str:
    """Return the key of colours; empty for one output."""
    if len(outputs) < 2:
        return ""
    colours = (charts.COLOURS[i % len(charts.COLOURS)] for i in range(len(outputs)))
    items = (f'<i style="background:{c}"></i>{escape(name)} ' for c, name in zip(colours, outputs, strict=True))
    return f'<p class="key small">{"".join(items)}</p>'


def _pairs(effects: Any) -> str:
    """Return maps of the interactions that exceed the noise, and how many were measured."""
    if not effects.interactions:
        return ""
    clear = [pair for pair in effects.interactions if pair.is_clear]
    n_pairs = len(effects.interactions)
    title = "<h3>Pairs of columns, beyond their separate effects</h3>"
    if not clear:
        return title + html.paragraphs([f"None of the {n_pairs} measured pairs exceeds the noise."], "small")
    drawn = [
        html.figure(
            f"{' × '.join(pair.columns)}: strength {pair.strength:.2g}, noise alone {pair.noise:.2g}",
            charts.draw_heatmap(pair.groups[0], pair.groups[1], pair.effect[:, :, 0], pair.columns),
        )
        for pair in clear[:MAX_PAIRS]
    ]
    rest = n_pairs - len(clear)
    text = f'{title}<div class="grid">{"".join(drawn)}</div>'
    return text + html.paragraphs([f"{rest} other measured pairs are within the noise."] * bool(rest), "small")


def _worked_prediction(model: Any, effects: Any) -> str:
    """Return one prediction, computed step by step, for a made-up row with the most frequent value of each column."""
    if len(effects.outputs) > 1:
        return ""
    row = {column.name: _typical_value(column, effects) for column in model.schema_.features}
    parts = contributions(model, row)
    start, unit = float(model.model_.start[0]), 1.0
    is_class = bool(model.schema_.classes)
    if not is_class:
        lower, upper = model.schema_.target.bounds
        unit = upper - lower
        start = lower + unit * start
    lines = [("every row", "", f"{start:+.2f}")]
    total = start
    for names, contribution in sorted(parts.items(), key=lambda one: -abs(one[1])):
        total += unit * contribution
        values = ", ".join(str(row[name]) for name in names)
        lines.append((" and ".join(names), values, f"{unit * contribution:+.2f}"))
    lines.append(("sum", "", f"{total:+.2f}"))
    name = effects.outputs[0]
    outcome = f"The model predicts {total:.4g} for {name}."
    if is_class:
        outcome = f"A log-odds of {total:+.2f} is a probability of {1 / (1 + np.exp(-total)):.1%} of {name}."
        if model.model_.cell_forest is not None:
            mixed = _predict_probability(model, row)
            outcome += f" Mixed with a histogram of small cells, the model predicts {mixed:.1%}."
    text = (
        "A made-up row with the most frequent value of each column. The model adds these numbers; they are shrunk, "
        "unlike the effects above."
    )
    summed = html.table(("column", "value", "adds"), lines)
    return (
        f"<h3>One prediction, step by step</h3>{html.paragraphs([text], 'small')}{summed}{html.paragraphs([outcome])}"
    )


def contributions(model: Any, row: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """Return the contribution of each column, or set of columns, to the score of a row."""
    fitted = model.model_
    forest = fitted.forest
    leaves = route_rows(forest, _encode_row(model, row))[0]
    names = fitted.encoding.schema.feature_names
    added: dict[tuple[str, ...], float] = {}
    ends = np.append(forest.roots[1:], forest.n_nodes)
    for root, end, leaf in zip(forest.roots.tolist(), ends.tolist(), leaves.tolist(), strict=True):
        features = np.unique(forest.feature[root:end])
        key = tuple(names[feature] for feature in features.tolist() if feature >= 0)
        added[key] = added.get(key, 0.0) + float(fitted.leaf_values[leaf, 0])
    return {key: value for key, value in added.items() if key}


def _encode_row(model: Any, row: dict[str, Any]) -> Codes:
    """Return the codes of a row given as a dict with the column names of the schema."""
    encoding = model.model_.encoding
    codes = np.zeros((1, len(encoding.columns)), np.uint16)
    for feature, column in enumerate(encoding.schema.features):
        value = row[column.name]
        if column.kind == "numeric":
            codes[0, feature] = encoding.encode_numbers(feature, np.array([float(value)]))[0]
        else:
            codes[0, feature] = column.labels.index(value)
    return codes


def _predict_probability(model: Any, row: dict[str, Any]) -> float:
    return float(model.model_.predict_outputs(_encode_row(model, row))[0, 1])


def _typical_value(column: Any, effects: Any) -> Any:
    """Return a value of the group with the most released rows."""
    main = next((each for each in effects.main if each.column == column.name), None)
    rows = None if main is None else main.rows
    if column.kind == "categorical":
        return column.labels[0 if rows is None else int(np.argmax(rows[: len(column.labels)]))]
    if main is None or rows is None or main.edges is None:
        middle = sum(column.bounds) / 2
    else:
        n = len(main.edges) - 1
        place = int(np.argmax(rows[:n]))
        middle = float(main.edges[place] + main.edges[place + 1]) / 2
    lower, upper = column.bounds
    middle = min(max(middle, lower), upper)
    return round(middle) if column.whole else float(f"{middle:.3g}")
