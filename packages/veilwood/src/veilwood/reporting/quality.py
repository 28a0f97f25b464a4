# SPDX-License-Identifier: Apache-2.0
"""Sections of a report on model quality: measures, thresholds, subgroups, and the stability of predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from veilwood import charts
from veilwood.evaluation.evaluate import Evaluation
from veilwood.evaluation.quality import Estimate, Quality
from veilwood.reporting import html
from veilwood.reporting.html import Mark

_METRIC_NAMES: Final = {
    "auc": "AUC", "r2": "R²", "rmse": "RMSE", "mae": "MAE", "log_loss": "log-loss",
    "calibration_error": "calibration error",
}  # fmt: skip
_FIRST: Final = ("auc", "r2")  # the measure to read first: accuracy means little if one class is rare
_SHOWN_THRESHOLDS: Final = 7


def base_rate(model: Any, evaluation: Evaluation | None) -> tuple[str, float] | None:
    """Return the second of two classes, or the most frequent class, with its released frequency."""
    classes = model.schema_.classes
    if not classes:
        return None
    if evaluation is not None:
        rows = np.maximum(np.array(evaluation.quality.confusion).sum(axis=1), 0.0)
        frequencies = rows / max(float(rows.sum()), 1e-9)
    elif hasattr(model, "explain"):  # the released start of a PrivateForest
        start = model.model_.start
        scores = np.array([0.0, start[0]]) if len(classes) == 2 else start
        frequencies = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    else:
        return None
    place = 1 if len(classes) == 2 else int(frequencies.argmax())
    return classes[place], float(frequencies[place])


def verdict(evaluation: Evaluation | None, classes: tuple[str, ...]) -> str:
    """Return the quality of a model in one sentence."""
    if evaluation is None:
        return "Its quality was not measured."
    quality = evaluation.quality
    if not classes:
        r2 = quality.scores["r2"]
        return (
            "Its noise hides how well it predicts." if r2.value is None
            else f"It explains {max(r2.value, 0):.0%} of the variance ({max(r2.low, 0):.0%} to {r2.high:.0%})."
        )  # fmt: skip
    auc, accuracy = quality.scores["auc"], quality.scores["accuracy"]
    lines = []
    if auc.value is not None:
        of = f"a row of {classes[1]!r} above one of {classes[0]!r}" if len(classes) == 2 else "the true class first"
        lines.append(f"It ranks {of} in {auc.value:.0%} of pairs, where guessing reaches 50%")
    if accuracy.value is not None and (usual := quality.most_frequent) is not None:
        gain = accuracy.low > usual[1]
        rest = f"its accuracy of {accuracy.value:.1%} is {'above' if gain else 'no better than'} that of always "
        lines.append(f"{rest}answering {usual[0]!r} ({usual[1]:.1%})")
    text = "; ".join(lines) or "noise hides how well it predicts"
    return text[0].upper() + text[1:] + "."


def quality_section(model: Any, evaluation: Evaluation | None, subgroups: Mapping[str, Evaluation]) -> str:
    """Return the section on quality."""
    text = "<h2>Quality</h2>"
    expected = html.paragraphs(
        (f"{rows}: {line}." for rows, line in sorted(model.plan_.expected.items(), key=lambda one: len(one[0]))),
        "small",
    )
    if evaluation is None:
        hint = "Not measured on private rows. To measure: veilwood evaluate MODEL TABLE --epsilon 0.1"
        title = "<h3>Expected before the data was read</h3>" if expected else ""
        return text + html.paragraphs([hint], "soft") + title + expected + _second_fit(model, None)
    quality = evaluation.quality
    text += html.figure(_measured_on(evaluation), "".join(_measure_bars(quality)))
    text += _confusion_words(quality) + _second_fit(model, base_rate(model, evaluation))
    side = []
    known = [
        (p.predicted, p.happened.value, p.happened.low, p.happened.high, p.rows)
        for p in quality.calibration if p.happened.value is not None
    ]  # fmt: skip
    if known:
        of = quality.classes[1] if len(quality.classes) == 2 else "each class"
        side.append(html.figure(f"Calibration of {of}", charts.draw_calibration(known)))
    curve = [
        (1 - each.specificity.value, each.sensitivity.value, each.sensitivity.low, each.sensitivity.high)
        for each in quality.thresholds
        if each.sensitivity.value is not None and each.specificity.value is not None
    ]
    if curve:
        side.append(html.figure("ROC curve, with 95% bands", charts.draw_roc(curve)))
    if quality.confusion:
        matrix = charts.draw_confusion_matrix(quality.classes, np.array(quality.confusion))
        side.append(html.figure("Predicted class by true class", matrix))
    text += f'<div class="grid">{"".join(side)}</div>' if side else ""
    text += _threshold_table(quality) + _subgroup_table(evaluation, subgroups)
    return text + (html.folded("What was expected before the data was read", expected) if expected else "")


def _measured_on(evaluation: Evaluation) -> str:
    quality, certificate = evaluation.quality, evaluation.privacy
    loss = f"epsilon = {certificate.epsilon:g}" if certificate.is_private else "NOT PRIVATE"
    about = "" if quality.rows.value is None else f", on about {quality.rows.value:,.0f} rows"
    return f"Measured with noise ({loss}{about}); bands: {quality.confidence:.0%} confidence; tick: no knowledge"


def _measure_bars(quality: Quality) -> list[str]:
    names = [*(name for name in _FIRST if name in quality.scores), *(n for n in quality.scores if n not in _FIRST)]
    return [_measure_bar(name, quality.scores[name], quality) for name in names]


def _measure_bar(name: str, found: Estimate, quality: Quality) -> str:
    """Return a measure as a bar between two ends, with a tick for a baseline that ignores the features."""
    usual = quality.most_frequent
    tick: float | None = None
    low, high = 0.0, 1.0
    if name == "accuracy" and usual is not None:
        tick = usual[1]
    elif name == "auc":
        low, tick = 0.0, 0.5
    elif name == "r2":
        low, tick = -0.25, 0.0
    elif name == "log_loss":
        rows = np.maximum(np.array(quality.confusion).sum(axis=1), 1e-9)
        shares = rows / rows.sum()
        tick = float(-(shares * np.log(shares)).sum())
        high = 1.25 * max(tick, found.value or 0.0, 1e-9)
    elif name in ("rmse", "mae", "bias"):
        high = 1.4 * max(abs(found.low), abs(found.high), 1e-9)
        low, tick = (-high, 0.0) if name == "bias" else (0.0, None)
    scale = high - low

    def place(value: float) -> float:
        return (value - low) / scale

    marks = [Mark("range", place(max(found.low, low)), place(found.high))]
    marks += [Mark("tick", place(tick), title=f"no knowledge: {tick:.3g}")] if tick is not None else []
    if found.value is None:
        return html.bar(_METRIC_NAMES.get(name, name), marks, "unknown: too much noise")
    marks.append(Mark("dot", place(found.value)))
    value, lower, upper = (charts.format_value(each) for each in (found.value, found.low, found.high))
    text = f"{value} ({lower} to {upper})"
    text += f", scale {low:g} to {high:.3g}" if (low, high) != (0.0, 1.0) else ""
    return html.bar(_METRIC_NAMES.get(name, name), marks, text)


def _confusion_words(quality: Quality) -> str:
    """Return a sentence about the class with the worst predictions."""
    counts = np.maximum(np.array(quality.confusion), 0.0)
    if len(counts) < 2:
        return ""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    worst = int(np.argmin(np.diag(shares) + (counts.sum(axis=1) <= 0)))
    called = int(np.argmax(np.where(np.arange(len(counts)) == worst, -1.0, shares[worst])))
    truth, instead = quality.classes[worst], quality.classes[called]
    line = (
        f"Worst for {truth!r}: {shares[worst, worst]:.0%} of its rows are recognised, {shares[worst, called]:.0%} are"
    )
    return html.paragraphs([f"{line} predicted as {instead!r}."])


def _second_fit(model: Any, rate: tuple[str, float] | None) -> str:
    """Return how far a second fit, on other rows of the same kind, would move a prediction; from released errors."""
    spread = score_spread(model)
    if spread is None:
        return ""
    if model.schema_.classes:
        frequency = 0.5 if rate is None else rate[1]
        moved = math.sqrt(2) * spread * frequency * (1 - frequency)
        how = f"a predicted probability near {frequency:.0%} by about {100 * moved:.1f} percentage points"
    else:
        how = f"a prediction by about {charts.format_value(math.sqrt(2) * spread)}"
    line = f"A second fit, on as many other rows and with new noise, would typically move {how}."
    return html.paragraphs([line], "small")


def score_spread(model: Any) -> float | None:
    """Return the standard deviation of a prediction, in the units of effects, between fits on other rows.

    Effects of columns are taken as independent, and weighted by their released rows.
    """
    if not hasattr(model, "explain"):
        return None
    total, effects = 0.0, model.explain()
    for main in effects.main:
        rows = np.ones(len(main.effect)) if main.rows is None else np.maximum(main.rows, 0.0)
        weights = rows / max(float(rows.sum()), 1e-9)
        # Predictions shrink what noise dominates: an effect counts with the fraction of it that exceeds its error.
        signal, noise = (main.effect**2).mean(axis=1), ((main.error / 2) ** 2).mean(axis=1)
        kept = signal / np.maximum(signal + noise, 1e-12)
        total += float((weights * noise * kept**2).sum())
    return math.sqrt(total) if effects.main else None


def _threshold_table(quality: Quality) -> str:
    """Return the consequences of decision thresholds, with the threshold that balances both errors marked."""
    known = [each for each in quality.thresholds if each.is_known]
    best = quality.best_threshold
    if best is None:
        return ""
    usual = min(known, key=lambda each: abs(each.probability - 0.5))
    telling = [each for each in known if each.flagged.value is not None and 0.01 <= each.flagged.value <= 0.99]
    step = max(1, -(-len(telling) // _SHOWN_THRESHOLDS))
    chosen = {each.probability: each for each in (*telling[::step], best, usual)}
    shown = sorted(chosen.values(), key=lambda each: each.probability)
    rows = []
    for each in shown:
        mark = " (best balance)" if each is best else " (usual)" if each is usual else ""
        estimates = (each.flagged, each.sensitivity, each.specificity, each.positive_value, each.negative_value)
        rows.append([f"{each.probability:.1%}{mark}", *map(_percentage, estimates)])
    first, second = quality.classes
    head = ("threshold", "flagged", "sensitivity", "specificity", "positive predictive value",
            "negative predictive value")  # fmt: skip
    text = (
        f"A row is flagged as {second!r} if its predicted probability reaches the threshold. Sensitivity is the "
        f"fraction of {second!r} that is flagged, specificity the fraction of {first!r} that is not. The best balance "
        "has the largest sum of both on these rows; choose by what each error costs."
    )
    return f"<h3>Thresholds</h3>{html.paragraphs([text], 'small')}{html.table(head, rows, 'cards')}"


def _percentage(estimate: Estimate) -> str:
    if estimate.value is None:
        return "unknown"
    return f"{estimate.value:.0%} ({estimate.low:.0%} to {estimate.high:.0%})"


def _subgroup_table(evaluation: Evaluation, subgroups: Mapping[str, Evaluation]) -> str:
    """Return the measures of separately evaluated subgroups."""
    if not subgroups:
        line = (
            "No subgroup was evaluated. Noise hides small groups, so the model may serve them worse: evaluate each on "
            "a table of its rows, then veilwood report --subgroup NAME=QUALITY.json"
        )
        return f"<h3>Subgroups</h3>{html.paragraphs([line], 'soft small')}"
    names = [
        name for name in ("auc", "accuracy", "r2", "mae", "calibration_error") if name in evaluation.quality.scores
    ]
    rows = []
    for group, found in (("all rows", evaluation), *subgroups.items()):
        size = found.quality.rows.value
        scores = [str(found.quality.scores[name]) for name in names]
        rows.append([group, "unknown" if size is None else f"about {size:,.0f}", *scores])
    head = ("group", "rows", *(_METRIC_NAMES.get(name, name) for name in names))
    return f"<h3>Subgroups</h3>{html.table(head, rows, 'cards')}"
