# SPDX-License-Identifier: Apache-2.0
"""One-page HTML report on a fitted model, which needs no other file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veilwood import charts
from veilwood._version import __version__
from veilwood.charts import posterior_range
from veilwood.errors import SignatureError, UseError, VeilwoodError
from veilwood.estimators.base import BaseForest
from veilwood.evaluation.evaluate import Evaluation, model_hash
from veilwood.models import file as model_file
from veilwood.models.checks import not_recomputed, require_unchanged
from veilwood.models.file import verify
from veilwood.privacy.certificate import PrivacyCertificate, describe_steps, merge_steps
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.signature import PublicKey, signature_path
from veilwood.safe_io import write_file

_GROUP_BOUNDS = "Distribution of the values of columns, for the boundaries of their groups."
_TARGET_SPREAD = "Distribution of the target or its residuals: location and outliers."
_ROUND = "The next correction and its size. Each round improves the prediction of the rounds before it."
_N_ROWS = "Approximate number of rows, which determines the resolution of the other measurements."
_BEST_COLUMNS = "The columns that are most informative about the target, which get the rest of the budget."
_CELL_CLASSES = "Number of rows of each class with each value, or group of values, of a column."
_CLASS_COUNTS = "Number of rows of each class in each part of the data. Predictions are their fractions."
_TARGET_MEANS = "Sum and number of targets in each part of the data. Predictions are their means."

STEP_PURPOSES = {
    "column_strengths": "Strength of the best column and of the average column: whether one column is enough.",
    "round_histogram": "Distribution of the values of a column, for the boundaries of its groups.",
    **dict.fromkeys(("histogram", "joint_histograms"), _GROUP_BOUNDS),
    **dict.fromkeys(("residual_histogram",), _TARGET_SPREAD),
    "table_weight": "Common weight of all tables: smaller if columns are redundant.",
    "cell_weight": "Weight of the sparse histogram relative to the other tables.",
    **dict.fromkeys(("round_selection", "round_rows", "round_gradients", "round_pairs"), _ROUND),
    **dict.fromkeys(("row_count", "all_rows"), _N_ROWS),
    "column_selection": _BEST_COLUMNS,
    **dict.fromkeys(("table", "joint_tables", "column_classes"), _CELL_CLASSES),
    "sparse_cells": "Number of rows of each class in small cells of several columns.",
    **dict.fromkeys(("class_counts", "class_counts_again", "leaf_classes", "leaf_labels"), _CLASS_COUNTS),
    **dict.fromkeys(("target_sums", "leaf_targets"), _TARGET_MEANS),
    "splits": "Split points that separate the classes.",
    "medians": "Median of a column, used as a split point.",
    "attributes": "Column of the next split.",
    "matrix_table": "Tables of counts from which all leaves can be computed with little noise.",
}
"""Purpose of a step, by its kind."""


def purpose_of(kind: str) -> str:
    """Return the purpose of a step of a plan, as a sentence.

    >>> purpose_of("leaf_classes").split(".")[0]
    'Number of rows of each class in each part of the data'
    """
    return STEP_PURPOSES.get(kind, "Part of the input of the model.")


def describe_guarantee(certificate: PrivacyCertificate) -> list[str]:
    """Return the guarantee of a certificate for one unit, as sentences."""
    if not certificate.is_private or certificate.epsilon is None:
        return [f"There is no guarantee: {certificate.reason}. Do not publish this model as private."]
    unit = certificate.unit
    is_removed = certificate.adjacency == "add-remove"
    other = "had been left out of the data" if is_removed else "had been replaced by any other rows"
    strength = certificate.strength
    lines = [
        f"Suppose {unit} {other}. The probability of drawing any given conclusion from the model would change by a "
        f"factor of at most {strength.factor}.",
        "This holds for every method of attack, whatever else is known, and permanently: it follows from noise that "
        "was added during training, and no later use of the model can undo it.",
        "Facts about people in general are not hidden. If the model shows that smoking is linked to an illness, it "
        "applies to every smoker, in the data or not.",
    ]
    if certificate.delta:
        lines.insert(1, f"With a probability of at most {certificate.delta:g}, the bound may fail.")
    if strength.verdict:
        lines.append(strength.verdict[0].upper() + strength.verdict[1:])
    return lines


def model_facts(model: Any) -> list[tuple[str, str]]:
    """Return the facts that identify a model, as (label, text)."""
    schema, certificate = model.schema_, model.privacy_
    return [
        ("Model", type(model).__name__),
        ("Predicts", f"{schema.target.name} ({model._task})"),
        ("From", f"{len(schema.features)} columns of schema {schema.name!r}"),
        ("Protects", f"{certificate.unit}, {certificate.adjacency}"),
    ]


MAX_EFFECTS = 12
MAX_PAIRS = 6
_METRIC_NAMES = {
    "auc": "AUC", "r2": "R²", "rmse": "RMSE", "mae": "MAE", "log_loss": "log-loss",
    "calibration_error": "calibration error",
}  # fmt: skip
_UNIT_RANGE_METRICS = ("accuracy", "auc", "calibration_error")


def report(
    model: Any,
    path: str | PathLike[str],
    *,
    evaluation: Evaluation | str | PathLike[str] | None = None,
    ledger: Ledger | None = None,
    signed_by: PublicKey | None = None,
) -> Path:
    """Write a model as one HTML page: guarantee, effects, quality, ledger and certificate. Free: nothing is measured.

    Parameters
    ----------
    model : fitted estimator, or path of a model file
        The model. Its claims are recomputed (``models.checks``), and the page lists those that cannot be. A model that
        was changed after its fit raises UseError. The page mentions a signature next to the file.
    path : path
        Output file. The page needs no other file and can be printed.
    evaluation : Evaluation or path, optional
        Result of ``evaluate``. Default: the evaluation of a fit with ``holdout_fraction``.
    ledger : Ledger, optional
        Ledger whose entries are shown next to that of the model.
    signed_by : path or PEM text, optional
        Public key of the signer. The signature is checked, and the page names the key. Requires a model file.

    Returns
    -------
    Path

    Examples
    --------
    >>> import tempfile, veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=2.0, random_state=0).fit(car.X, car.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = vw.report(forest, f"{folder}/car.html").read_text(encoding="utf-8")
    >>> "epsilon = 2" in page
    True
    """
    file = None
    if isinstance(model, str | PathLike):
        file = Path(model)
        model = model_file.load(file) if signed_by is None else model_file.load(file, signed_by=signed_by)
    elif signed_by is not None:
        raise UseError("signed_by needs a model file, not an estimator. Hint: pass the path of the model file.")
    page = render_report(model, evaluation=evaluation, ledger=ledger, file=file, signed_by=signed_by)
    write_file(path, page.encode())
    return Path(path)


def render_report(
    model: Any,
    *,
    evaluation: Evaluation | str | PathLike[str] | None = None,
    ledger: Ledger | None = None,
    file: Path | None = None,
    signed_by: PublicKey | None = None,
) -> str:
    """Return the report as HTML text; see ``report``."""
    if not isinstance(model, BaseForest):
        raise UseError(
            f"{type(model).__name__} is not an estimator of this library. Hint: pass a fitted estimator, or the path "
            "of a model file."
        )
    check_is_fitted(model, "privacy_")
    if file is None:  # a model from a file was checked when it was loaded
        try:
            require_unchanged(model)
        except VeilwoodError as error:
            raise UseError(f"this {type(model).__name__} does not match its certificate: {error}") from None
    subject = "the evaluation" if evaluation is None or isinstance(evaluation, Evaluation) else f"{str(evaluation)!r}"
    if evaluation is None:
        evaluation = getattr(model, "evaluation_", None)
    elif not isinstance(evaluation, Evaluation):
        evaluation = Evaluation.load(evaluation)
    if evaluation is not None and evaluation.plan.parameters["model"] != model_hash(model):
        raise UseError(f"{subject} belongs to another model. Hint: evaluate this model, or omit the evaluation.")
    sections = [
        _heading_section(model),
        _guarantee_section(model),
        _quality_section(model, evaluation),
        _effects_section(model),
        _measurements_section(model),
        _ledger_section(model, ledger),
        _certificate_section(model),
        _signature_section(file, signed_by),
    ]
    title = escape(f"{model.schema_.name}: {type(model).__name__}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "\n".join(f"<section>{section}</section>" for section in sections if section)
    footer = f"Made by Veilwood {__version__} from public values only. This page has no privacy loss."
    end = f'<p class="soft small">{footer}</p>'
    style = files("veilwood").joinpath("report.css").read_text(encoding="utf-8")
    page = f'<html lang="en"><head>{head}<style>{style}</style></head><body><main>\n{body}\n{end}</main></body></html>'
    return f"<!doctype html>\n{page}\n"


def _html_paragraphs(texts: Iterable[str], kind: str = "") -> str:
    return "".join(f'<p class="{kind}">{escape(text)}</p>' for text in texts)


def _html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{cells}</table>"


def _html_figure(title: str, picture: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{picture}</figure>"


def _heading_section(model: Any) -> str:
    certificate = model.privacy_
    mark = {"weak": "weak", "private": ""}.get(certificate.strength.grade, "no")
    bound = certificate.strength.label
    if certificate.is_private:
        bound += f": epsilon = {certificate.epsilon:g}" + f", delta = {certificate.delta:g}" * bool(certificate.delta)
    boxes = "".join(f"<div><span>{escape(k)}</span>{escape(v)}</div>" for k, v in model_facts(model))
    return (
        f"<h1>{escape(model.schema_.target.name)} <span class='soft'>from</span> {escape(model.schema_.name)}</h1>"
        f'<div class="badge {mark}">{escape(bound)}</div><div class="facts">{boxes}</div>'
    )


def _guarantee_section(model: Any) -> str:
    certificate = model.privacy_
    text = f"<h2>Guarantee</h2>{_html_paragraphs(describe_guarantee(certificate))}"
    if not certificate.is_private or certificate.epsilon is None:
        return text
    beliefs = [("an even guess", 0.5), ("one in ten", 0.1), ("one in a hundred", 0.01)]
    rows = []
    for label, before in beliefs:
        low, high = posterior_range(before, certificate.epsilon, certificate.delta or 0.0)
        rows.append((f"before: {label}", low, before, high))
    explanation = (
        "Suppose an observer believes some fact about one person with the probability of the black line. Because that "
        "person is in the data, seeing the model can move the belief within the blue band and no further."
    )
    return (
        text
        + _html_figure("How far a belief about one person can move", charts.draw_odds(rows))
        + _html_paragraphs([explanation])
    )


def _quality_section(model: Any, evaluation: Evaluation | None) -> str:
    expected = [
        f"{rows}: {text}"
        for rows, text in sorted(model.plan_.expected.items(), key=lambda one: (len(one[0]), one[0]))  # few rows first
    ]
    text = "<h2>Quality</h2>"
    if expected:
        text += "<h3>Expected before the data was read</h3>" + _html_paragraphs(expected, "small")
    if evaluation is None:
        hint = "It was not measured on private rows. To measure it: veilwood evaluate MODEL TABLE --epsilon 0.1"
        return text + _html_paragraphs([hint], "soft")
    found = evaluation.quality
    rows = []
    for name, each in found.scores.items():
        if name in _UNIT_RANGE_METRICS:
            least, most = 0.0, 1.0
        elif name == "r2":
            least, most = -0.25, 1.0
        else:
            most = 1.4 * max(abs(each.low), abs(each.high), 1e-9)
            least = -most if name == "bias" else 0.0
        rows.append((_METRIC_NAMES.get(name, name), each.value, max(each.low, -9.99), each.high, least, most))
    certificate = evaluation.privacy
    loss = f"epsilon = {certificate.epsilon:g}" if certificate.is_private else "NOT PRIVATE"
    about = "" if found.rows.value is None else f", on about {found.rows.value:,.0f} rows"
    caption = f"Measured with noise ({loss}{about}); bands are {found.confidence:.0%} confidence intervals"
    text += _html_figure(caption, charts.draw_intervals(rows))
    if (usual := found.most_frequent) is not None:
        text += _html_paragraphs(
            [f"Predicting {usual[0]} for every row would be correct for about {usual[1]:.0%} of these rows."], "small"
        )
    side = []
    known = [
        (p.predicted, p.happened.value, p.happened.low, p.happened.high, p.rows)
        for p in found.calibration if p.happened.value is not None
    ]  # fmt: skip
    if known:
        of = found.classes[1] if len(found.classes) == 2 else "each class"
        title = f"Calibration: predicted probability and observed frequency of {of}"
        side.append(_html_figure(title, charts.draw_calibration(known)))
    if found.confusion:
        counts = np.array(found.confusion)
        side.append(
            _html_figure("True class (rows) and predicted class", charts.draw_confusion_matrix(found.classes, counts))
        )
    return text + (f'<div class="grid">{"".join(side)}</div>' if side else "")


def _effects_section(model: Any) -> str:
    if not hasattr(model, "explain"):
        return ""
    effects = model.explain()
    if not effects.main:
        return ""
    kinds = {column.name: column.kind for column in model.schema_.features}
    several = len(effects.outputs) > 1
    key = "".join(
        f'<i style="background:{charts.COLOURS[i % len(charts.COLOURS)]}"></i>{escape(name)}'
        for i, name in enumerate(effects.outputs)
    )
    figures = []
    for main in effects.main[:MAX_EFFECTS]:
        draw = charts.draw_steps if kinds.get(main.column) == "numeric" else charts.draw_category_bars
        figures.append(_html_figure(main.column, draw(main.groups, main.effect, main.error, effects.outputs)))
    text = "<h2>Effects of columns</h2>" + _html_paragraphs([
        f"Effect of each column on the prediction, in {effects.unit}, strongest first. Whiskers and bands show the "
        "error from noise and sampling; pale bars are within it."
    ])  # fmt: skip
    text += f'<p class="key small">{key}</p>' if several else ""
    text += f'<div class="columns">{"".join(figures)}</div>'
    if len(effects.main) > MAX_EFFECTS:
        rest = ", ".join(main.column for main in effects.main[MAX_EFFECTS:])
        text += _html_paragraphs([f"Weaker effects, not drawn: {rest}."], "soft small")
    return text + _pairs_section(effects)


def _pairs_section(effects: Any) -> str:
    """Return the strengths of pairs of columns, and heatmaps of those above the noise."""
    if not effects.interactions:
        return ""
    rows = [(" × ".join(pair.columns), pair.strength, pair.noise) for pair in effects.interactions]
    text = _html_figure(
        "Interactions of columns, beyond their separate effects (red: what the largest of all could show by chance)",
        charts.draw_strengths(rows),
    )
    clear = [pair for pair in effects.interactions if pair.is_clear][:MAX_PAIRS]
    if not clear:
        return text + _html_paragraphs(["None of them exceeds the noise."], "soft small")
    drawn = [
        _html_figure(
            f"{' × '.join(pair.columns)}: {effects.outputs[0]}",
            charts.draw_heatmap(pair.groups[0], pair.groups[1], pair.effect[:, :, 0]),
        )
        for pair in clear
    ]
    return f'{text}<div class="grid">{"".join(drawn)}</div>'


def _measurements_section(model: Any) -> str:
    rows = [
        (name, purpose_of(str(group[0]["kind"])), f"{mechanism}; {loss}")
        for group in merge_steps(model.privacy_.composition)
        for name, mechanism, _, loss in describe_steps(group)
    ]
    learned = model.plan_.learned
    chosen = f"Adaptive decisions: {learned}." if learned else ""
    released = model.privacy_.released
    summary = f"Only the following left the private side, each with noise; the model is computed from it: {released}."
    text = "<h2>Measurements</h2>" + _html_paragraphs([summary])
    return (
        text
        + _html_table(("measurement", "purpose", "noise and loss"), rows)
        + _html_paragraphs([chosen] * bool(chosen), "small")
    )


def _ledger_section(model: Any, ledger: Ledger | None) -> str:
    certificate = model.privacy_
    text = "<h2>Ledger</h2>"
    if ledger is None:
        line = (
            f"{certificate.ledger}, entry {certificate.ledger_entry}. Not checked: no ledger was given to the report."
        )
        return text + _html_paragraphs([line])
    found = any(e.id == certificate.ledger_entry and e.plan == certificate.plan_hash for e in ledger.entries())
    if not found:
        text += _html_paragraphs(
            [f"NOT FOUND: {ledger.name} has no entry {certificate.ledger_entry} for the plan of this model."]
        )
    spends = [
        (entry.what, float(entry.loss.epsilon), entry.plan == certificate.plan_hash)
        for entry in ledger.entries() if entry.is_counted and entry.loss.epsilon is not None
    ]  # fmt: skip
    total = ledger.budget
    most = None if total is None or total.epsilon is None else float(total.epsilon)
    whom = f" of {ledger.population}" if ledger.population else ""
    text += _html_figure(f"{ledger.name}{whom}; dark: this model", charts.draw_budget(spends, most))
    rows = [(str(e.id), e.time[:16].replace("T", " "), e.state, str(e.loss), e.what) for e in ledger.entries()]
    return text + _html_table(("entry", "time", "state", "loss", "what"), rows)


def _certificate_section(model: Any) -> str:
    certificate = model.privacy_
    rows = [
        ("plan (sha256)", certificate.plan_hash),
        ("schema (sha256)", certificate.schema_hash),
        ("version", certificate.version),
    ]
    text = "<h2>Certificate</h2>" + _html_paragraphs([str(certificate).split(";")[0]])
    text += "".join(f"<p class='small'>{escape(k)}: <code>{escape(v)}</code></p>" for k, v in rows)
    text += "<h3>Assumptions</h3><ul class='small'>"
    text += "".join(f"<li>{escape(each)}</li>" for each in certificate.assumptions) + "</ul>"
    summary = (
        "For this page the release was planned again from schema, parameters and plan: steps, sensitivities, noise and "
        "loss are those of the certificate. No file can prove that its numbers were drawn with that noise."
    )
    unchecked = not_recomputed(model)
    text += "<h3>Recomputed</h3>" + _html_paragraphs([summary, "Not recomputed:"], "small")
    return text + "<ul class='small'>" + "".join(f"<li>{escape(each)}</li>" for each in unchecked) + "</ul>"


def _signature_section(file: Path | None, signed_by: PublicKey | None) -> str:
    text = "<h2>Signature</h2>"
    if file is None or not signature_path(file).exists():
        return text + _html_paragraphs(["Not signed. To sign: veilwood sign MODEL --key KEY"], "soft")
    if signed_by is None:
        line = f"{signature_path(file).name} is next to the model and was not checked. To check it: veilwood verify"
        return text + _html_paragraphs([line], "soft")
    try:
        payload = verify(file, signed_by)
    except SignatureError as error:
        return text + _html_paragraphs([f"NOT VALID: {error}"])
    key = Path(signed_by).name if isinstance(signed_by, PathLike) else "the given key"
    line = (
        f"{file.name} is what the holder of {key} has signed, and nothing in it was changed since. A signature states "
        "who vouches for the file, not that the run was honest."
    )
    return (
        text + _html_paragraphs([line]) + f"<p class='small'>model (sha256): <code>{payload['model_hash']}</code></p>"
    )
