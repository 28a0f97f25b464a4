# SPDX-License-Identifier: Apache-2.0
"""Custodian's statements on a release (``card.toml``), facts of the release, and the model card made from both.

The library knows losses, steps and bounds. It cannot know whose rows they are or who decided: that is asked for by
name, and a card that lacks an answer is refused. Nothing is invented.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from os import PathLike
from typing import Any, Final

from veilwood.errors import (
    FileError,
    LedgerError,
    ParameterError,
    UnreadableError,
    VeilwoodError,
    short_repr,
    shorten_text,
)
from veilwood.estimators.base import BaseForest
from veilwood.evaluation.evaluate import Evaluation
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.loss import format_number
from veilwood.privacy.plan import Plan
from veilwood.reporting import describe_guarantee
from veilwood.reporting.custodian import FACTS, OPTIONAL_FACTS, SENTENCES
from veilwood.safe_io import read_text

_LISTS: Final = ("curators", "authors")
_CHOICES: Final = {
    "release_type": ("One release", "Many releases"),
    "data_source_type": ("Static", "Dynamic"),
    "sector": ("", "Technology", "Healthcare", "Education", "Government", "Energy", "Finance"),
}
_MAX_CARD_BYTES: Final = 1 << 16
_MAX_LENGTH: Final = 2000  # characters of one answer
_MIN_SENTENCE: Final = 20  # characters: shorter answers, such as "none", do not say about what


@dataclass(frozen=True)
class CustodianCard:
    """Custodian's answers, read from ``card.toml``.

    Attributes
    ----------
    facts : dict
        Title, curators, region and the like.
    sentences : dict
        The five sentences, by the names in ``SENTENCES``.
    text : str
        The file as it was read.
    """

    facts: Mapping[str, Any]
    sentences: Mapping[str, str]
    text: str = field(repr=False)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> CustodianCard:
        """Read a card from a file. Raise ParameterError, which names all missing or invalid answers."""
        try:
            text = read_text(path, _MAX_CARD_BYTES)
        except (OSError, VeilwoodError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FileError(
                f"cannot read the card {short_repr(str(path))}: {reason}. "
                "Hint: write one with veilwood pack --new-card."
            ) from None
        return cls.from_toml(text)

    @classmethod
    def from_toml(cls, text: str) -> CustodianCard:
        """Read a card from TOML text."""
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            reason = shorten_text(str(error))
            raise UnreadableError(f"the card is not TOML: {reason}. Hint: put every answer in quotes.") from None
        facts, sentences = data.pop("facts", {}), data.pop("sentences", {})
        if not isinstance(facts, dict) or not isinstance(sentences, dict):
            raise UnreadableError("the card has no tables [facts] and [sentences]. Hint: see veilwood pack --new-card.")
        unknown = sorted({*data, *(facts.keys() - {*FACTS, *OPTIONAL_FACTS}), *(sentences.keys() - {*SENTENCES})})
        if unknown:
            raise ParameterError("card", unknown, "has names that a card does not have", "remove or correct them")
        wrong = [name for name in (*FACTS, *OPTIONAL_FACTS) if not _is_answer(name, facts.get(name, ""))]
        wrong += [name for name in SENTENCES if not _is_sentence(sentences.get(name, ""))]
        if wrong:
            raise ParameterError(
                "card", wrong, "has no usable answer to these", "answer each of them in words; nothing is filled in"
            )
        facts = {name: facts.get(name, "") for name in (*FACTS, *OPTIONAL_FACTS)}
        return cls(facts, {name: " ".join(sentences[name].split()) for name in SENTENCES}, text)


def card_template() -> str:
    """Return an empty card: TOML text with the questions.

    >>> CustodianCard.from_toml(card_template())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    veilwood.errors.ParameterError: card=['title', 'curators', ... has no usable answer to these. ...
    """
    lines = [
        "# What only the custodian can say about a release. Answer everything; nothing is filled in.",
        "",
        "[facts]",
    ]
    for name, question in FACTS.items():
        empty = "[]" if name in _LISTS else '""'
        lines += [f"# {question}", f"{name} = {empty}"]
    lines += ["", "# The following may stay empty."]
    for name, question in OPTIONAL_FACTS.items():
        lines += [f"# {question}", f'{name} = ""']
    lines += ["", "[sentences]"]
    for name, question in SENTENCES.items():
        lines += [f"# {question}", f'{name} = ""']
    return "\n".join(lines) + "\n"


def _is_answer(name: str, value: object) -> bool:
    if name in _LISTS:
        return isinstance(value, list) and bool(value) and all(_is_line(each) for each in value)
    if name in OPTIONAL_FACTS and value == "":
        return True
    if name == "publication_date":
        return isinstance(value, str) and _is_date(value)
    return _is_line(value) and value in _CHOICES.get(name, (value,))


def _is_line(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable() and len(value) <= _MAX_LENGTH


def _is_sentence(value: object) -> bool:
    if not isinstance(value, str):
        return False
    text = " ".join(value.split())  # it may be written over several lines
    return _is_line(text) and len(text) >= _MIN_SENTENCE


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


# -- the facts of a release ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReleaseFacts:
    """Inputs of the documents of a pack. Equal facts give equal documents.

    Attributes
    ----------
    model : estimator
        The fitted model, loaded from its file.
    opening_plan : Plan
        The plan under which the release door was opened: that of the certificate's hash.
    card : CustodianCard
        The custodian's answers.
    ledger : dict
        Extract of the ledger: budget, total and entries.
    day : str
        Date of the pack, as YYYY-MM-DD.
    evaluation : Evaluation or None
        Noisy evaluation of the model, if there is one.
    """

    model: BaseForest
    opening_plan: Plan
    card: CustodianCard
    ledger: Mapping[str, Any]
    day: str
    evaluation: Evaluation | None = None

    @property
    def certificate(self) -> PrivacyCertificate:
        """The certificate of the model."""
        certificate: PrivacyCertificate = self.model.privacy_
        return certificate

    @property
    def entry(self) -> Mapping[str, Any]:
        """The entry of the ledger that records the charge."""
        number = self.certificate.ledger_entry
        entry: Mapping[str, Any] | None = next((e for e in self.ledger["entries"] if e["id"] == number), None)
        if entry is None:
            raise LedgerError(f"the extract of the ledger has no entry {number}.")
        return entry

    @property
    def publication_day(self) -> str:
        """The date of publication: the date on the custodian's card, or the date of the pack."""
        return str(self.card.facts["publication_date"] or self.day)

    @property
    def columns_without_source(self) -> list[str]:
        """Names of the columns whose bounds or values have no stated source."""
        schema = self.model.schema_
        return [column.name for column in (*schema.features, schema.target) if not column.known_from]


# -- documents for readers -----------------------------------------------------------------------------------------


def model_card(facts: ReleaseFacts) -> str:
    """Return the model card: Markdown behind the YAML block that model hubs read."""
    model, certificate, card = facts.model, facts.certificate, facts.card
    schema, sentences = model.schema_, card.sentences
    task = f"tabular-{model._task}"
    block: dict[str, Any] = {
        "license": card.facts["license"],
        "library_name": "veilwood",
        "pipeline_tag": task,
        "tags": ["differential-privacy", task, "veilwood"],
        "privacy": {
            "epsilon": certificate.epsilon, "delta": certificate.delta, "adjacency": certificate.adjacency,
            "unit_of_protection": certificate.unit, "plan_sha256": certificate.plan_hash,
        },
    }  # fmt: skip
    if facts.evaluation is not None:
        block["model-index"] = [{"name": card.facts["title"], "results": [_hub_result(facts, facts.evaluation, task)]}]
    loss = f"epsilon = {certificate.epsilon:g}" + (f", delta = {certificate.delta:g}" if certificate.delta else "")
    lines = [
        "---", to_yaml(block), "---", "",
        f"# {_plain(card.facts['title'])}", "",
        f"A {type(model).__name__} that predicts `{schema.target.name}` from {len(schema.features)} columns, trained "
        f"with differential privacy: **{loss}** ({certificate.strength.label}), unit of protection: "
        f"**{certificate.unit}** ({certificate.adjacency}).", "",
        "| | |", "|---|---|",
        f"| published by | {_plain(', '.join(card.facts['curators']))} |",
        f"| published on | {facts.publication_day} |",
        f"| region | {_plain(card.facts['region'])} |",
        f"| contact | {_plain(card.facts['contact'])} |",
        f"| licence | {_plain(card.facts['license'])} |",
        f"| made with | veilwood {certificate.version} |", "",
        "## Purpose", "", _plain(sentences["purpose"]), "",
        "## People", "", _plain(sentences["people"]), "",
        "## Guarantee", "", *_paragraphs(describe_guarantee(certificate)),
        "The full statement is in [certificate.md](certificate.md): measurements, noise, composition, assumptions. "
        "Question by question, with what is proved, what is assumed and what is not covered: "
        "[checklist.md](checklist.md).", "",
        "## Decision", "", _plain(sentences["decision"]), "",
        "## Quality", "", *_quality_lines(facts), "",
        "## Limits", "",
        "- Facts about groups of people are not hidden: the guarantee is about one unit of protection.",
        "- Noise weighs most on small groups. Their predictions are less accurate than the average says.",
        "- Bounds and categories are those of [schema.md](schema.md). Values outside are clamped or counted as stated "
        "there.", "",
        "## Use", "",
        "```python", "import veilwood as vw", "",
        'model = vw.load("model.veilwood", signed_by="the signer\'s .pub file")',
        'model.predict("new-rows.csv")', "```", "",
        "Check all of it with `veilwood verify . --signed-by` and the signer's public key, which you must have from a "
        "source that you trust.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _hub_result(facts: ReleaseFacts, evaluation: Evaluation, task: str) -> dict[str, Any]:
    scores = {name: each.value for name, each in evaluation.quality.scores.items() if each.value is not None}
    return {
        "task": {"type": task},
        "dataset": {"name": facts.model.schema_.name, "type": "private"},
        "metrics": [
            {"type": name, "name": f"{name}, measured with noise", "value": round(value, 4)}
            for name, value in scores.items()
            if math.isfinite(value)
        ],
    }


def _quality_lines(facts: ReleaseFacts) -> list[str]:
    if facts.evaluation is None:
        return ["Not measured on private rows. [report.html](report.html) says what was expected before the data."]
    quality = facts.evaluation.quality
    lines = [
        f"Measured with noise, epsilon = {facts.evaluation.privacy.epsilon:g}; {quality.confidence:.0%} intervals.", "",
        "| measure | estimate | interval |", "|---|---|---|",
    ]  # fmt: skip
    return lines + [
        f"| {name} | {each.value:.4f} | {each.low:.4f} to {each.high:.4f} |"
        for name, each in quality.scores.items()
        if each.value is not None and math.isfinite(each.value)
    ]


def schema_page(facts: ReleaseFacts) -> str:
    """Return the schema as a table of columns, with their bounds or values and the sources of these."""
    schema = facts.model.schema_
    missing = facts.columns_without_source
    lines = [
        f"# Schema {_plain(schema.name)}", "",
        "Everything here was public before the rows were read. A bound or a list of values that was read from the rows "
        "would be a release without noise, so each should have a source.", "",
        f"Columns without a stated source: {len(missing)} of {len(schema.features) + 1}.", "",
        "| column | kind | bounds or values | known from |", "|---|---|---|---|",
    ]  # fmt: skip
    for column in (*schema.features, schema.target):
        if column.lower is not None and column.upper is not None:
            domain = f"{format_number(column.lower)} to {format_number(column.upper)}"
        else:
            domain = shorten_text(", ".join(map(str, column.values)), 300)
        source = _plain(column.known_from) if column.known_from else "**not stated**"
        name = f"{_plain(column.name)}{' (target)' if column is schema.target else ''}"
        lines.append(f"| {name} | {column.kind} | {_plain(domain)} | {source} |")
    for name, reason in schema.left_out.items():
        lines.append(f"| {_plain(name)} | left out | | {_plain(reason)} |")
    return "\n".join(lines) + "\n"


def _paragraphs(texts: list[str]) -> list[str]:
    return [line for text in texts for line in (text, "")]


def _plain(text: str) -> str:
    """Return a text in which the special characters of Markdown and HTML are escaped."""
    for mark, instead in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("`", "'"), ("*", "\\*"), ("[", "\\[")):
        text = text.replace(mark, instead)
    return " ".join(text.split())


def to_yaml(value: Any, depth: int = 0) -> str:
    """Return plain values as YAML in block style, with all strings in double quotes.

    >>> print(to_yaml({"name": "a: b", "numbers": [1, 1e-06], "in": {"yes": True}}))
    name: "a: b"
    numbers:
      - 1
      - 1.0e-06
    in:
      yes: true
    """
    margin = "  " * depth
    if isinstance(value, Mapping):
        return "\n".join(
            f"{margin}{name}:" + (f"\n{to_yaml(each, depth + 1)}" if _is_block(each) else f" {_yaml_scalar(each)}")
            for name, each in value.items()
        )
    lines = []
    for each in value:
        text = to_yaml(each, depth + 1).lstrip() if _is_block(each) else _yaml_scalar(each)
        lines.append(f"{margin}- {text}")
    return "\n".join(lines)


def _is_block(value: object) -> bool:
    return isinstance(value, Mapping | list | tuple) and len(value) > 0


def _yaml_scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "e" in text and "." not in text:
        text = text.replace("e", ".0e")  # without a point, readers of YAML 1.1 take it for a text
    return text
