# SPDX-License-Identifier: Apache-2.0
"""Facts for a report, checked against the model: date, number of rows, and the three main numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from veilwood.errors import UseError, VeilwoodError
from veilwood.estimators.base import BaseForest
from veilwood.evaluation.evaluate import Evaluation, model_hash
from veilwood.models.checks import require_unchanged
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.ledger import Entry, Ledger
from veilwood.reporting.quality import base_rate


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


@dataclass(frozen=True)
class ReportFacts:
    """Inputs of a report, checked against the model."""

    model: Any
    evaluation: Evaluation | None
    ledger: Ledger | None
    card: Mapping[str, str]
    subgroups: Mapping[str, Evaluation]

    @classmethod
    def collect(
        cls, model: Any, evaluation: Any, ledger: Ledger | None, file: Path | None, card: Any, subgroups: Any
    ) -> ReportFacts:
        """Return the facts of a report. Raise UseError if the model changed or an evaluation is of another model."""
        if not isinstance(model, BaseForest):
            raise UseError(
                f"{type(model).__name__} is not an estimator of this library. Hint: pass a fitted estimator, or the "
                "path of a model file."
            )
        check_is_fitted(model, "privacy_")
        if file is None:  # a model from a file was checked when it was loaded
            try:
                require_unchanged(model)
            except VeilwoodError as error:
                raise UseError(f"this {type(model).__name__} does not match its certificate: {error}") from None
        if evaluation is None:
            evaluation = getattr(model, "evaluation_", None)
        hash_of = None
        checked = {}
        for name, each in {"": evaluation, **(subgroups or {})}.items():
            if each is None:
                continue
            subject = "the evaluation" if isinstance(each, Evaluation) else repr(str(each))
            known = each if isinstance(each, Evaluation) else Evaluation.load(each)
            hash_of = hash_of or model_hash(model)
            if known.plan.parameters["model"] != hash_of:
                raise UseError(
                    f"{subject} belongs to another model. Hint: evaluate this model, or omit the evaluation."
                )
            checked[name] = known
        return cls(model, checked.pop("", None), ledger, card or {}, checked)

    @property
    def entry(self) -> Entry | None:
        """The entry of the model's charge, if the ledger has it."""
        certificate = self.model.privacy_
        entries = [] if self.ledger is None else self.ledger.entries()
        known = (e for e in entries if e.id == certificate.ledger_entry and e.plan == certificate.plan_hash)
        return next(known, None)

    @property
    def title(self) -> str:
        """The title: what is predicted from which table."""
        schema = self.model.schema_
        return self.card.get("Title") or f"Prediction of {schema.target.name} from {schema.name}"

    def head_facts(self) -> list[tuple[str, str]]:
        """Return date, rows, base rate and the like, as (label, text)."""
        model, schema = self.model, self.model.schema_
        day = self.entry.time[:10] if self.entry is not None else ""
        found = [("Fitted", day)] if day else []
        layout = model.plan_.layout
        if layout.rows_planned is not None:
            found.append(("Rows", f"{layout.rows_planned:,} {layout.rows_known}, for training"))
        rate = base_rate(model, self.evaluation)
        if rate is not None:
            found.append(("Base rate", f"{rate[1]:.0%} {rate[0]}"))
        found += [("Model", type(model).__name__), ("From", f"{len(schema.features)} columns")]
        return found

    def key_numbers(self) -> list[tuple[str, str, str]]:
        """Return the three numbers to read first: (label, number, explanation)."""
        certificate, found = self.model.privacy_, []
        if self.evaluation is not None:
            scores = self.evaluation.quality.scores
            name = "auc" if "auc" in scores else "r2"
            each = scores[name]
            number = "unknown" if each.value is None else f"{each.value:.3f}"
            found.append(({"auc": "AUC", "r2": "R²"}[name], number, f"{each.low:.3f} to {each.high:.3f}"))
        bound = "none" if certificate.epsilon is None else f"{certificate.epsilon:g}"
        plus = f"delta {certificate.delta:g}; " if certificate.delta else ""
        found.append(("epsilon", bound, plus + certificate.strength.label))
        found.append(("protects", _unit_words(certificate.unit), certificate.adjacency))
        return found


def _unit_words(unit: str) -> str:
    return unit.partition(" (")[0]
