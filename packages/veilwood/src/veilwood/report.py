# SPDX-License-Identifier: Apache-2.0
"""The page of a report: one HTML file that needs no other, to be read on a screen or printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veilwood import charts as pictures
from veilwood._version import __version__
from veilwood.errors import SignatureError, UseError, VeilwoodError
from veilwood.estimators.base import BaseForest
from veilwood.evaluation.evaluate import Evaluation, model_hash
from veilwood.models import file as model_file
from veilwood.models.checks import not_recomputed, require_unchanged
from veilwood.models.file import verify
from veilwood.privacy.certificate import PrivacyCertificate, describe_steps
from veilwood.privacy.ledger_stores import Ledger
from veilwood.privacy.signature import PublicKey, signature_path
from veilwood.safe_io import write_file

__all__ = ["STEP_PURPOSES", "describe_guarantee", "posterior_range", "purpose_of", "render_report", "report"]


_MAX_EPSILON = 30.0

STEP_PURPOSES = (
    ("strengths of columns", "How much the best column tells, and the mean one: whether one is enough, or all help."),
    ("histogram of column", "How the values of a column are spread: where groups of them begin and end."),
    ("rows by group", "How the values of columns are spread: where groups of them begin and end."),
    ("histogram", "How the target, or what is left of it, is spread: where it lies, and what is far from it."),
    ("weight of tables", "How much all tables should count together: less where columns say the same."),
    ("weight of fine cells", "How much small cells of several columns should count beside the rest."),
    ("round", "What to correct next, and by how much. Each round improves what the rounds before it predict."),
    ("rows", "How many rows there are, about. It decides how fine the rest can be."),
    ("column", "Which columns tell most about the target, so that the rest of the budget goes to them."),
    ("classes by cell", "How many rows of each class have each value, or group of values, of a column."),
    ("cells", "How many rows of each class lie in small cells of several columns together."),
    ("class counts", "How many rows of each class lie in each part of the data. Predictions are their shares."),
    ("target sums", "Sum and number of the targets in each part of the data. Predictions are their means."),
    ("split", "Where to cut a column so that the classes come apart."),
    ("median", "The middle value of a column, to cut there."),
    ("attribute", "Which column to cut next."),
    ("ensemble", "Tables of counts, chosen so that all leaves can be read off them with little noise."),
    ("calibrat", "Whether predicted probabilities happen as often as they say, to correct them."),
)
"""What a step is for, by a word of its name; the first that fits."""


def purpose_of(step_name: str) -> str:
    """Say what a step of a plan is measured for.

    >>> purpose_of("class counts of leaves").split(".")[0]
    'How many rows of each class lie in each part of the data'
    """
    return next((why for word, why in STEP_PURPOSES if word in step_name), "A part of what the model is computed from.")


def posterior_range(prior: float, epsilon: float, delta: float = 0.0) -> tuple[float, float]:
    """Return the least and the most that a belief can become, whatever else somebody knows, up to delta.

    >>> tuple(round(share, 3) for share in posterior_range(0.5, 1.0))
    (0.269, 0.731)
    """
    factor = math.exp(min(epsilon, _MAX_EPSILON))
    return prior / (prior + (1 - prior) * factor), min(1.0, prior * factor / (1 - prior + prior * factor) + delta)


def describe_guarantee(certificate: PrivacyCertificate) -> list[str]:
    """Say what the certificate promises to one unit."""
    if not certificate.is_private or certificate.epsilon is None:
        return [f"There is no guarantee: {certificate.reason}. Do not publish this model as private."]
    unit = certificate.unit
    other = "had been left out" if certificate.adjacency == "add-remove" else "had been replaced by any other"
    factor = math.exp(min(certificate.epsilon, _MAX_EPSILON))
    told = [
        f"Whatever anybody concludes from this model about {unit} of the data, they would have concluded nearly as "
        f"surely if it {other}: no conclusion becomes more than {factor:,.3g} times as likely.",
        "That holds for any method of attack, whatever else is known, and for ever: it follows from noise that was "
        "added while training, and nothing done with the model later can undo it.",
        "What the model says about people in general is not hidden. If it shows that smoking goes with illness, it "
        "says so of a smoker too, whether or not that smoker was in the data.",
    ]
    if certificate.delta:
        told.insert(1, f"With a probability of at most {certificate.delta:g} the bound may fail.")
    if certificate.epsilon > 8:
        told.append(f"An epsilon of {certificate.epsilon:g} is a weak promise; below 2 is usual.")
    return told


def model_facts(model: Any) -> list[tuple[str, str]]:
    """Name the model, in a few lines."""
    schema, statement = model.schema_, model.privacy_
    return [
        ("Model", type(model).__name__),
        ("Predicts", f"{schema.target.name} ({model._task})"),
        ("From", f"{len(schema.features)} columns of schema {schema.name!r}"),
        ("Protects", f"{statement.unit}, {statement.adjacency}"),
    ]


MAX_EFFECTS = 12
MAX_PAIRS = 6
_METRIC_NAMES = {
    "auc": "AUC", "r2": "R²", "rmse": "RMSE", "mae": "MAE", "log_loss": "log-loss",
    "calibration_error": "calibration error",
}  # fmt: skip
_EXPECTED_PREFIX = "What to expect: "  # where a plan tells it, in its notes
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
        What the page is about. What it claims is recomputed (``models.checks``) and the page says what is not; a model
        that was changed after its fit is refused. For a file with a signature beside it, the page says so.
    path : path
        Where to write. The page needs no other file and can be printed.
    evaluation : Evaluation or path, optional
        What ``evaluate`` measured; a fit with ``holdout_fraction`` brings its own.
    ledger : Ledger, optional
        Shows what the spend stands beside.
    signed_by : path or PEM text, optional
        The signer's public key: the signature is checked, and the page says whose it is. Needs a model file.

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
    place, where = Path(path), None
    if isinstance(model, str | PathLike):
        where = Path(model)
        model = model_file.load(where) if signed_by is None else model_file.load(where, signed_by=signed_by)
    elif signed_by is not None:
        raise UseError("a signature is that of a file. Hint: pass the path of the model file.")
    write_file(
        place, render_report(model, evaluation=evaluation, ledger=ledger, file=where, signed_by=signed_by).encode()
    )
    return place


def render_report(
    model: Any,
    *,
    evaluation: Evaluation | str | PathLike[str] | None = None,
    ledger: Ledger | None = None,
    file: Path | None = None,
    signed_by: PublicKey | None = None,
) -> str:
    """Return the page as text; see ``report``."""
    if not isinstance(model, BaseForest):
        raise UseError(
            f"{type(model).__name__} is not an estimator of this library. Hint: pass a fitted estimator, or the path of a "
            "model file."
        )
    check_is_fitted(model, "privacy_")
    if file is None:  # one from a file was checked when it was loaded
        try:
            require_unchanged(model)
        except VeilwoodError as error:
            raise UseError(f"this {type(model).__name__} is not what its certificate is of: {error}") from None
    told = "the evaluation" if evaluation is None or isinstance(evaluation, Evaluation) else f"{str(evaluation)!r}"
    if evaluation is None:
        evaluation = getattr(model, "evaluation_", None)
    elif not isinstance(evaluation, Evaluation):
        evaluation = Evaluation.load(evaluation)
    if evaluation is not None and evaluation.plan.parameters["model"] != model_hash(model):
        raise UseError(f"{told} is of another model. Hint: evaluate this one, or remove what is said of the other.")
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
    end = f'<p class="soft small">Made by Veilwood {__version__} from public values only. This page spent nothing.</p>'
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
    statement = model.privacy_
    mark = "no" if not statement.is_private else ""
    bound = "NOT PRIVATE"
    if statement.is_private:
        bound = f"private: epsilon = {statement.epsilon:g}" + (f", delta = {statement.delta:g}" * bool(statement.delta))
    boxes = "".join(f"<div><span>{escape(k)}</span>{escape(v)}</div>" for k, v in model_facts(model))
    return (
        f"<h1>{escape(model.schema_.target.name)} <span class='soft'>from</span> {escape(model.schema_.name)}</h1>"
        f'<div class="badge {mark}">{escape(bound)}</div><div class="facts">{boxes}</div>'
    )


def _guarantee_section(model: Any) -> str:
    statement = model.privacy_
    text = f"<h2>What is promised</h2>{_html_paragraphs(describe_guarantee(statement))}"
    if not statement.is_private or statement.epsilon is None:
        return text
    beliefs = [("an even guess", 0.5), ("one in ten", 0.1), ("one in a hundred", 0.01)]
    rows = []
    for who, before in beliefs:
        low, high = posterior_range(before, statement.epsilon, statement.delta or 0.0)
        rows.append((f"before: {who}", low, before, high))
    told = (
        "Somebody believes something about one person with the certainty of the black line. After seeing the model, "
        "and only because that person is in the data, the belief can move within the blue band and no further."
    )
    return (
        text
        + _html_figure("How far a belief about one person can move", pictures.draw_odds(rows))
        + _html_paragraphs([told])
    )


def _quality_section(model: Any, evaluation: Evaluation | None) -> str:
    expected = [
        f"{key}: {value.split(_EXPECTED_PREFIX)[1]}"
        for key, value in sorted(model.plan_.notes.items(), key=lambda note: (len(note[0]), note[0]))  # few rows first
        if isinstance(value, str) and _EXPECTED_PREFIX in value
    ]
    text = "<h2>How good it is</h2>"
    if expected:
        text += "<h3>Expected, before any data was seen</h3>" + _html_paragraphs(expected, "small")
    if evaluation is None:
        hint = "It was not measured on private rows. To do so: veilwood evaluate MODEL TABLE --epsilon 0.1"
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
    statement = evaluation.privacy
    price = f"epsilon = {statement.epsilon:g}" if statement.is_private else "NOT PRIVATE"
    about = "" if found.rows.value is None else f", on about {found.rows.value:,.0f} rows"
    caption = f"Measured with noise ({price}{about}); bands hold the truth with {found.confidence:.0%} confidence"
    text += _html_figure(caption, pictures.draw_intervals(rows))
    if (usual := found.most_frequent) is not None:
        text += _html_paragraphs(
            [f"Always saying {usual[0]} would be right for about {usual[1]:.0%} of these rows."], "small"
        )
    side = []
    known = [
        (p.predicted, p.happened.value, p.happened.low, p.happened.high, p.rows)
        for p in found.calibration if p.happened.value is not None
    ]  # fmt: skip
    if known:
        of = found.classes[1] if len(found.classes) == 2 else "each class"
        side.append(_html_figure(f"Calibration: predicted and actual share of {of}", pictures.draw_calibration(known)))
    if found.confusion:
        counts = np.array(found.confusion)
        side.append(
            _html_figure("True class (rows) and predicted class", pictures.draw_confusion_matrix(found.classes, counts))
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
        f'<i style="background:{pictures.COLOURS[i % len(pictures.COLOURS)]}"></i>{escape(name)}'
        for i, name in enumerate(effects.outputs)
    )
    figures = []
    for main in effects.main[:MAX_EFFECTS]:
        draw = pictures.draw_steps if kinds.get(main.column) == "numeric" else pictures.draw_category_bars
        figures.append(_html_figure(main.column, draw(main.groups, main.effect, main.error, effects.outputs)))
    text = "<h2>What the model has learned</h2>" + _html_paragraphs([
        f"What each column adds to a prediction, in {effects.unit}, strongest first. Whiskers and bands show "
        "how far noise and chance may have moved it; pale bars lie within them."
    ])  # fmt: skip
    text += f'<p class="key small">{key}</p>' if several else ""
    text += f'<div class="columns">{"".join(figures)}</div>'
    if len(effects.main) > MAX_EFFECTS:
        rest = ", ".join(main.column for main in effects.main[MAX_EFFECTS:])
        text += _html_paragraphs([f"Weaker, and not drawn: {rest}."], "soft small")
    return text + _pairs_section(effects)


def _pairs_section(effects: Any) -> str:
    """Pairs of columns: how strong, and what they do where the model shows it."""
    if not effects.interactions:
        return ""
    rows = [(" × ".join(pair.columns), pair.strength, pair.noise) for pair in effects.interactions]
    text = _html_figure(
        "Pairs of columns, beyond what each does alone (red: what noise could show)", pictures.draw_strengths(rows)
    )
    clear = [pair for pair in effects.interactions if pair.strength > pair.noise][:MAX_PAIRS]
    if not clear:
        return text + _html_paragraphs(["None of them stands out of the noise."], "soft small")
    drawn = [
        _html_figure(
            f"{' × '.join(pair.columns)}: {effects.outputs[0]}",
            pictures.draw_heatmap(pair.groups[0], pair.groups[1], pair.effect[:, :, 0]),
        )
        for pair in clear
    ]
    return f'{text}<div class="grid">{"".join(drawn)}</div>'


def _measurements_section(model: Any) -> str:
    rows = [
        (name, purpose_of(name), f"{mechanism}; {loss}")
        for name, mechanism, _, loss in describe_steps(model.privacy_.composition)
    ]
    learned = model.plan_.choices.get("learned")
    chosen = f"Chosen on the way, from what had been released: {learned}." if learned else ""
    released = model.privacy_.released
    told = f"Only the following left the private side, each with noise; the model is computed from it: {released}."
    text = "<h2>What was measured, and why</h2>" + _html_paragraphs([told])
    return (
        text
        + _html_table(("measured", "why", "noise and price"), rows)
        + _html_paragraphs([chosen] * bool(chosen), "small")
    )


def _ledger_section(model: Any, ledger: Ledger | None) -> str:
    statement = model.privacy_
    text = "<h2>Where the spend is recorded</h2>"
    if ledger is None:
        told = f"{statement.ledger}, entry {statement.ledger_entry}. No ledger was given to look this up in."
        return text + _html_paragraphs([told])
    found = any(e.id == statement.ledger_entry and e.plan == statement.plan_hash for e in ledger.entries())
    if not found:
        text += _html_paragraphs(
            [f"NOT THERE: no entry {statement.ledger_entry} of {ledger.name} is of this model's plan."]
        )
    spends = [
        (entry.what, float(entry.loss.epsilon), entry.plan == statement.plan_hash)
        for entry in ledger.entries() if entry.is_counted and entry.loss.epsilon is not None
    ]  # fmt: skip
    total = ledger.budget
    most = None if total is None or total.epsilon is None else float(total.epsilon)
    whom = f" of {ledger.population}" if ledger.population else ""
    text += _html_figure(f"{ledger.name}{whom}; dark: this model", pictures.draw_budget(spends, most))
    rows = [(str(e.id), e.time[:16].replace("T", " "), e.state, str(e.loss), e.what) for e in ledger.entries()]
    return text + _html_table(("entry", "time", "state", "loss", "what"), rows)


def _certificate_section(model: Any) -> str:
    statement = model.privacy_
    rows = [
        ("plan (sha256)", statement.plan_hash),
        ("schema (sha256)", statement.schema_hash),
        ("version", statement.version),
    ]
    text = "<h2>Certificate</h2>" + _html_paragraphs([str(statement).split(";")[0]])
    text += "".join(f"<p class='small'>{escape(k)}: <code>{escape(v)}</code></p>" for k, v in rows)
    text += "<h3>It rests on this</h3><ul class='small'>"
    text += "".join(f"<li>{escape(each)}</li>" for each in statement.assumptions) + "</ul>"
    told = (
        "For this page the release was planned once more from schema, parameters and plan: steps, sensitivities, noise "
        "and loss are those of the certificate. No file can show that its numbers are noisy by that law."
    )
    taken = not_recomputed(model)
    text += "<h3>What was recomputed</h3>" + _html_paragraphs([told, "Taken as it stands:"], "small")
    return text + "<ul class='small'>" + "".join(f"<li>{escape(each)}</li>" for each in taken) + "</ul>"


def _signature_section(file: Path | None, signed_by: PublicKey | None) -> str:
    text = "<h2>Signature</h2>"
    if file is None or not signature_path(file).exists():
        return text + _html_paragraphs(["Not signed. To sign: veilwood sign MODEL --key KEY"], "soft")
    if signed_by is None:
        told = f"{signature_path(file).name} stands beside the model and was not checked. To check it: veilwood verify"
        return text + _html_paragraphs([told], "soft")
    try:
        statement = verify(file, signed_by)
    except SignatureError as error:
        return text + _html_paragraphs([f"NOT VALID: {error}"])
    key = Path(signed_by).name if isinstance(signed_by, PathLike) else "the given key"
    told = (
        f"{file.name} is what the holder of {key} has signed, and nothing in it was changed since. A signature says "
        "who vouches for it, not that the run was honest."
    )
    return (
        text + _html_paragraphs([told]) + f"<p class='small'>model (sha256): <code>{statement['model_hash']}</code></p>"
    )
