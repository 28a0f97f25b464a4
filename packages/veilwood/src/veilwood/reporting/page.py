# SPDX-License-Identifier: Apache-2.0
"""One-page HTML report on a fitted model, which needs no other file."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from veilwood._version import __version__
from veilwood.charts import posterior_range
from veilwood.errors import SignatureError, UseError
from veilwood.evaluation.evaluate import Evaluation
from veilwood.models import file as model_file
from veilwood.models.checks import not_recomputed
from veilwood.models.file import verify
from veilwood.privacy.certificate import describe_steps, merge_steps
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.signature import PublicKey, signature_path
from veilwood.privacy.steps import Step
from veilwood.reporting import html
from veilwood.reporting.custodian import read_card
from veilwood.reporting.effects import effects_section
from veilwood.reporting.facts import ReportFacts, describe_guarantee
from veilwood.reporting.markdown import render_markdown
from veilwood.reporting.quality import quality_section, verdict
from veilwood.reporting.steps import noise_of, purpose_of
from veilwood.safe_io import write_file


def report(
    model: Any,
    path: str | PathLike[str],
    *,
    evaluation: Evaluation | str | PathLike[str] | None = None,
    ledger: Ledger | None = None,
    signed_by: PublicKey | None = None,
    card: str | PathLike[str] | None = None,
    subgroups: Mapping[str, Evaluation | str | PathLike[str]] | None = None,
) -> Path:
    """Write a report on a model as one HTML page: guarantee, quality, effects, assumptions, ledger. Spends no budget.

    Parameters
    ----------
    model : fitted estimator, or path of a model file
        The model. Its claims are recomputed (``models.checks``), and the page lists those that cannot be. A model that
        was changed after its fit raises UseError. The page mentions a signature next to the file.
    path : path
        Output file. The page needs no other file and can be printed. If the name ends in .md: a model card in Markdown,
        with the block that model hubs read.
    evaluation : Evaluation or path, optional
        Result of ``evaluate``. Default: the evaluation of a fit with ``holdout_fraction``.
    ledger : Ledger, optional
        Ledger whose entries are shown next to that of the model.
    signed_by : path or PEM text, optional
        Public key of the signer. The signature is checked, and the page names the key. Requires a model file.
    card : path, optional
        TOML file with the custodian's statements on use, limits, contact and people. ``veilwood pack --new-card``
        writes the questions.
    subgroups : dict, optional
        Evaluations of the same model on subgroups, by the name of the group.

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
    answers = None if card is None else read_card(card)
    if Path(path).suffix == ".md":
        page = render_markdown(ReportFacts.collect(model, evaluation, ledger, file, answers, subgroups))
    else:
        page = render_report(
            model, evaluation=evaluation, ledger=ledger, file=file, signed_by=signed_by, card=answers,
            subgroups=subgroups,
        )  # fmt: skip
    write_file(path, page.encode())
    return Path(path)


def render_report(
    model: Any,
    *,
    evaluation: Evaluation | str | PathLike[str] | None = None,
    ledger: Ledger | None = None,
    file: Path | None = None,
    signed_by: PublicKey | None = None,
    card: Mapping[str, str] | None = None,
    subgroups: Mapping[str, Evaluation | str | PathLike[str]] | None = None,
) -> str:
    """Return the report as HTML text; see ``report``."""
    facts = ReportFacts.collect(model, evaluation, ledger, file, card, subgroups)
    sections = [
        _card_section(facts),
        _guarantee_section(model),
        quality_section(model, facts.evaluation, facts.subgroups),
        effects_section(model),
        _public_section(model),
        _measurements_section(model),
        _ledger_section(facts),
        _certificate_section(model),
        _signature_section(file, signed_by),
    ]
    named = [section for section in sections if section]
    titles = [section.partition("<h2>")[2].partition("</h2>")[0] for section in named]
    body = "\n".join(f'<section id="s{i}">{section}</section>' for i, section in enumerate(named))
    links = "".join(f'<a href="#s{i}">{title}</a>' for i, title in enumerate(titles))
    title = escape(facts.title)
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{viewport}<title>{title}</title>'
    footer = f"Made by Veilwood {__version__} from public values only. This page has no privacy loss."
    style = files("veilwood.reporting").joinpath("report.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{style}</style></head><body>'
        f'<nav aria-label="Contents">{links}</nav><main>\n<header>{_heading(facts)}</header>\n{body}\n'
        f'<p class="soft small">{footer}</p></main></body></html>\n'
    )


def _heading(facts: ReportFacts) -> str:
    """Return title, badge, verdict, three numbers and the facts of the fit."""
    certificate = facts.model.privacy_
    mark = {"weak": "weak", "private": ""}.get(certificate.strength.grade, "no")
    bound = certificate.strength.label
    if certificate.is_private:
        bound += f": epsilon = {certificate.epsilon:g}" + f", delta = {certificate.delta:g}" * bool(certificate.delta)
    numbers = "".join(
        f"<div><span>{escape(label)}</span><strong>{escape(number)}</strong><span>{escape(text)}</span></div>"
        for label, number, text in facts.key_numbers()
    )
    boxes = "".join(f"<div><span>{escape(k)}</span>{escape(v)}</div>" for k, v in facts.head_facts())
    line = verdict(facts.evaluation, facts.model.schema_.classes)
    return (
        f'<h1>{escape(facts.title)}</h1><div class="badge {mark}">{escape(bound)}</div>'
        f'<p class="verdict">{escape(line)}</p><div class="numbers">{numbers}</div><div class="facts">{boxes}</div>'
    )


def _card_section(facts: ReportFacts) -> str:
    """Return the section with the custodian's statements on use, limits and people."""
    if not facts.card:
        line = (
            "Not stated: use, limits, contact, and whose rows these are. Only the custodian can say it: veilwood pack "
            "--new-card card.toml writes the questions, veilwood report MODEL --card card.toml shows the answers."
        )
        return f"<h2>Use and contact</h2>{html.paragraphs([line], 'soft')}"
    rows = [(label, text) for label, text in facts.card.items() if label != "Title"]
    return f"<h2>Use and contact</h2>{html.table(('question', 'answer'), rows, 'cards wide')}"


def _guarantee_section(model: Any) -> str:
    certificate = model.privacy_
    text = f"<h2>Guarantee</h2>{html.paragraphs(describe_guarantee(certificate))}"
    if not certificate.is_private or certificate.epsilon is None:
        return text
    beliefs = [("an even guess", 0.5), ("one in ten", 0.1), ("one in a hundred", 0.01)]
    bars = ""
    for label, before in beliefs:
        low, high = posterior_range(before, certificate.epsilon, certificate.delta or 0.0)
        marks = [html.Mark("range", low, high), html.Mark("tick", before)]
        bars += html.bar(f"before: {label}", marks, f"then {low:.1%} to {high:.1%}")
    explanation = (
        "Suppose an observer believes some fact about one person with the probability of the tick. Because that "
        "person is in the data, seeing the model can move the belief within the band and no further."
    )
    return text + html.figure("How far a belief about one person can move", bars) + html.paragraphs([explanation])


def _public_section(model: Any) -> str:
    """Return the section on the public facts assumed about each column, their sources, and omitted columns."""
    schema = model.schema_
    rows = []
    for column in (*schema.features, schema.target):
        role = f"{column.kind}, the target" if column is schema.target else str(column.kind)
        rows.append((column.name, role, column.describe(), column.known_from or "not stated"))
    text = "<h2>What was assumed public</h2>" + html.paragraphs([
        "Bounds and categories are not protected: they are taken as known before the data. A reviewer checks the "
        "sources. Numbers outside the bounds count as the nearest bound."
    ])  # fmt: skip
    text += html.table(("column", "kind", "bounds or categories", "source"), rows, "cards")
    if schema.left_out:
        left_out = "; ".join(f"{name}: {reason}" for name, reason in schema.left_out.items())
        text += html.paragraphs([f"Left out: {left_out}."], "small")
    return text


def _measurements_section(model: Any) -> str:
    """Return the section on measurements: purpose, noise, and bars of losses that add up to the loss of the fit."""
    certificate = model.privacy_
    steps = {step.name: step for step in model.plan_.steps}
    groups = merge_steps(certificate.composition)
    losses = [sum(_loss_of(steps[step["name"]]) for step in group if step["name"] in steps) for group in groups]
    total = sum(losses) or 1.0
    rows, bars = [], ""
    for group, loss in zip(groups, losses, strict=True):
        (name, mechanism, *_), step = describe_steps(group)[0], steps.get(group[0]["name"])
        noise = mechanism if step is None else noise_of(step)
        rows.append((name, purpose_of(str(group[0]["kind"])), noise))
        part = f"epsilon {loss:.3g}" if _by_epsilon(model) else f"{loss / total:.0%}"
        bars += html.bar(name, [html.Mark("range own", 0.0, loss / total)], part)
    learned = model.plan_.learned
    summary = (
        f"Only the following left the private side, each with noise; the model is computed from it: "
        f"{certificate.released}."
    )
    whole = f", together {total:.4g} of epsilon {certificate.epsilon:g}" if _by_epsilon(model) else ""
    text = "<h2>Measurements</h2>" + html.paragraphs([summary])
    text += html.table(("measurement", "purpose", "noise, on average"), rows, "cards")
    text += html.figure(f"Privacy loss of each{whole}", bars)
    return text + html.paragraphs([f"Adaptive decisions: {learned}."] * bool(learned), "small")


def _by_epsilon(model: Any) -> bool:
    """Return True if the losses of steps add up by epsilon, not by rho."""
    return model.privacy_.epsilon is not None and all(
        step.loss.delta == 0 or step.loss.rho is None for step in model.plan_.steps
    )


def _loss_of(step: Step) -> float:
    return float((step.loss.rho if step.loss.delta > 0 and step.loss.rho is not None else step.loss.epsilon) or 0)


def _ledger_section(facts: ReportFacts) -> str:
    certificate, ledger = facts.model.privacy_, facts.ledger
    text = "<h2>Ledger</h2>"
    if ledger is None:
        line = (
            f"{certificate.ledger}, entry {certificate.ledger_entry}. Not checked: no ledger was given to the report."
        )
        return text + html.paragraphs([line])
    if facts.entry is None:
        text += html.paragraphs(
            [f"NOT FOUND: {ledger.name} has no entry {certificate.ledger_entry} for the plan of this model."]
        )
    spends = [
        (entry.id, float(entry.loss.epsilon), entry.plan == certificate.plan_hash)
        for entry in ledger.entries() if entry.is_counted and entry.loss.epsilon is not None
    ]  # fmt: skip
    spent, total = sum(epsilon for _, epsilon, _ in spends), ledger.budget
    most = max(float(total.epsilon) if total is not None and total.epsilon is not None else 0.0, spent) or 1.0
    marks, at = [], 0.0
    for number, epsilon, own in spends:
        marks.append(html.Mark("range own" if own else "range", at / most, (at + epsilon) / most, f"entry {number}"))
        at += epsilon
    whom = f" of {ledger.population}" if ledger.population else ""
    limit = "no limit" if total is None or total.epsilon is None else f"budget epsilon {float(total.epsilon):g}"
    text += html.figure(f"{ledger.name}{whom}; dark: this model", html.bar(f"spent {spent:.4g}", marks, limit))
    rows = [(str(e.id), e.time[:16].replace("T", " "), e.state, str(e.loss), e.what) for e in ledger.entries()]
    return text + html.table(("entry", "time", "state", "loss", "what"), rows, "cards")


def _certificate_section(model: Any) -> str:
    certificate = model.privacy_
    rows = [
        ("plan (sha256)", certificate.plan_hash),
        ("schema (sha256)", certificate.schema_hash),
        ("version", certificate.version),
    ]
    text = "<h2>Certificate</h2>" + html.paragraphs([str(certificate).split(";")[0]])
    text += "".join(f"<p class='small'>{escape(k)}: <code>{escape(v)}</code></p>" for k, v in rows)
    text += "<h3>Assumptions</h3><ul class='small'>"
    text += "".join(f"<li>{escape(each)}</li>" for each in certificate.assumptions) + "</ul>"
    summary = (
        "For this page the release was planned again from schema, parameters and plan: steps, sensitivities, noise and "
        "loss are those of the certificate. No file can prove that its numbers were drawn with that noise."
    )
    unchecked = not_recomputed(model)
    text += "<h3>Recomputed</h3>" + html.paragraphs([summary, "Not recomputed:"], "small")
    return text + "<ul class='small'>" + "".join(f"<li>{escape(each)}</li>" for each in unchecked) + "</ul>"


def _signature_section(file: Path | None, signed_by: PublicKey | None) -> str:
    text = "<h2>Signature</h2>"
    if file is None or not signature_path(file).exists():
        return text + html.paragraphs(["Not signed. To sign: veilwood sign MODEL --key KEY"], "soft")
    if signed_by is None:
        line = f"{signature_path(file).name} is next to the model and was not checked. To check it: veilwood verify"
        return text + html.paragraphs([line], "soft")
    try:
        payload = verify(file, signed_by)
    except SignatureError as error:
        return text + html.paragraphs([f"NOT VALID: {error}"])
    key = Path(signed_by).name if isinstance(signed_by, PathLike) else "the given key"
    line = (
        f"{file.name} is what the holder of {key} has signed, and nothing in it was changed since. A signature states "
        "who vouches for the file, not that the run was honest."
    )
    return text + html.paragraphs([line]) + f"<p class='small'>model (sha256): <code>{payload['model_hash']}</code></p>"
