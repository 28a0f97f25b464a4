# SPDX-License-Identifier: Apache-2.0
"""Record for the public registry of differential privacy deployments (registry.opendp.org), and its fields.

The record is filled as far as facts carry: all of tier 2, and of tier 3 what certificate, plan, schema, ledger and the
custodian's card say. ``FIELDS`` lists the registry's fields by hand, after the schema that it publishes (repository
opendp/deployments-registry-data, ``schemas/deployments-schema.yaml``, commit 3e9c812 of July 2026). No file of the
registry is part of this library; tests compare ``FIELDS`` and records with a copy of that schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

from veilwood.errors import ParameterError
from veilwood.privacy.certificate import Assumption, describe_steps
from veilwood.privacy.neighbours import RowsOf
from veilwood.release_pack.card import ReleaseFacts, to_yaml

_TEXT: Final = "text"
_TEXTS: Final = "list of texts"
_NUMBER: Final = "number"
_DATE: Final = "date"

FIELDS: Final[dict[str, Any]] = {
    "url_slug": _TEXT,
    "status": (
        "Converted", "Draft", "Pending", "Changes Required", "Approved", "Approved (Update Requested)",
        "Approved (Pending)",
    ),
    "tier": (1, 2, 3),
    "deployment": {
        "basic": {
            "name": _TEXT,
            "data_curators": _TEXTS,
            "intended_use": _TEXT,
            "data_product_type": (
                "Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API",
                "SQL queries",
            ),
            "data_product_region": _TEXT,
            "description": _TEXT,
            "publication_date": _DATE,
            "data_product_sector": ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance"),
        },
        "dp_variant": {
            "variant_name": ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
            "data_domain": _TEXT,
            "unprotected_quantities": _TEXT,
        },
        "privacy_loss": {
            "privacy_unit": _TEXT,
            "privacy_unit_details": _TEXT,
            "privacy_parameters": {"epsilon": _NUMBER, "delta": _NUMBER, "rho": _NUMBER},
            "privacy_parameters_details": _TEXT,
        },
        "deployment_model": {
            "model_name": ("Local", "Central", "Shuffle", "Federated", "Varies"),
            "model_name_details": _TEXT,
            "actors": _TEXT,
            "release_type": ("One release", "Many releases"),
            "release_type_details": _TEXT,
            "data_source_type": ("Static", "Dynamic"),
            "data_source_type_details": _TEXT,
            "access_type": ("Interactive", "Non-interactive"),
            "access_type_details": _TEXT,
        },
        "accounting": {"post_processing": _TEXT, "composition": _TEXT},
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": _TEXT,
            "mechanisms": _TEXT,
            "justification": _TEXT,
        },
        "administrative": {"sources": _TEXT, "notes": _TEXT, "registry_authors": _TEXTS},
    },
}  # fmt: skip
"""Every field of a record, with its type, its allowed values, or its nested fields."""

REQUIRED: Final = {
    "": ("url_slug", "status", "tier", "deployment"),
    "deployment": ("basic",),
    "basic": (
        "name", "data_curators", "description", "intended_use", "data_product_type", "data_product_region",
        "publication_date",
    ),
    "administrative": ("registry_authors",),
}  # fmt: skip
"""Required fields, by the field that contains them."""

_MAX_STEPS: Final = 12  # lines of steps in a record; the certificate has all


def check_record(record: object) -> list[str]:
    """Return the problems of a record, one string per field; an empty list if the record is valid.

    >>> check_record({"url_slug": "visits", "status": "Draft", "tier": 4, "deployment": {}})
    ['tier: 4 is not one of 1, 2, 3', 'deployment.basic: missing']
    """
    return _problems(record, FIELDS, "", "")


def _problems(value: object, allowed: Any, path: str, name: str) -> list[str]:
    if isinstance(allowed, Mapping):
        if not isinstance(value, Mapping):
            return [f"{path or 'the record'}: not an object"]
        inside = f"{path}." if path else ""
        missing = [f"{inside}{key}: missing" for key in REQUIRED.get(name, ()) if key not in value]
        unknown = [f"{inside}{key}: unknown field" for key in value if key not in allowed]
        known = [key for key in allowed if key in value]
        nested = [text for key in known for text in _problems(value[key], allowed[key], f"{inside}{key}", key)]
        return [*unknown, *nested, *missing]
    if isinstance(allowed, tuple):
        options = ", ".join(map(str, allowed))
        fits = value in allowed and not isinstance(value, bool)
        return [] if fits else [f"{path}: {value!r} is not one of {options}"]
    fits = {
        _TEXT: isinstance(value, str) and value != "",
        _TEXTS: isinstance(value, list) and value != [] and all(isinstance(each, str) and each for each in value),
        _NUMBER: isinstance(value, int | float) and not isinstance(value, bool),
        _DATE: isinstance(value, str) and _is_iso_date(value),
    }[allowed]
    return [] if fits else [f"{path}: not a {allowed}"]


def _is_iso_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def registry_record(facts: ReleaseFacts) -> dict[str, Any]:
    """Return the registry record of a release. Raise ParameterError if it is not valid."""
    card, sentences = facts.card.facts, facts.card.sentences
    record = {
        "url_slug": _registry_slug(facts),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": card["title"],
                "data_curators": card["curators"],
                "intended_use": sentences["purpose"],
                "data_product_type": "Machine learning model",
                "data_product_region": card["region"],
                "description": _describe(facts),
                "publication_date": facts.publication_day,
                **({"data_product_sector": card["sector"]} if card["sector"] else {}),
            },
            "dp_variant": _variant(facts),
            "privacy_loss": _privacy_loss(facts),
            "deployment_model": _deployment_model(facts),
            "accounting": _accounting(facts),
            "implementation": _implementation(facts),
            "administrative": {
                "sources": "; ".join(filter(None, [card["sources"], card["documentation"], card["contact"]])),
                "notes": _notes(facts),
                "registry_authors": card["authors"],
            },
        },
    }
    if problems := check_record(record):
        raise ParameterError("registry record", problems, "is not what the registry takes", "correct the card")
    return record


def record_text(facts: ReleaseFacts) -> str:
    """Return the record as YAML. The first line has no quotes, because the registry compares it as text."""
    record = registry_record(facts)
    name = record.pop("url_slug")
    return f"url_slug: {name}\n{to_yaml(record)}\n"


def _registry_slug(facts: ReleaseFacts) -> str:
    """Return the address of the record, by the registry's rule: title, curators and year."""
    parts = (facts.card.facts["title"], "-".join(facts.card.facts["curators"]), facts.publication_day[:4])
    return "-".join(re.sub(r"[\W_]", "-", re.sub(r"\W+", "_", part.lower())) for part in parts)


def _describe(facts: ReleaseFacts) -> str:
    schema, certificate = facts.model.schema_, facts.certificate
    return (
        f"A {type(facts.model).__name__} (a tree ensemble for {facts.model._task}) that predicts "
        f"{schema.target.name!r} from {len(schema.features)} columns. Released: {certificate.released}."
    )


def _variant(facts: ReleaseFacts) -> dict[str, Any]:
    certificate, loss, schema = facts.certificate, facts.model.plan_.loss, facts.model.schema_
    approximate = "Approximate DP" if loss.rho is None else "Zero-concentrated DP"
    public = [
        f"the schema: names, bounds and categories of {len(schema.features) + 1} columns, stated in schema.md",
        "the plan: estimator, parameters, public seed, steps and losses, stated in plan.json",
    ]
    if certificate.adjacency == "replace-one":
        public.append("the number of rows")
    return {
        "variant_name": "Pure DP" if not loss.delta else approximate,
        "data_domain": f"Tables that fit the schema {schema.name!r}. {facts.card.sentences['people']}",
        "unprotected_quantities": f"Nothing from the rows is released without noise. Public are {'; '.join(public)}.",
    }


def _privacy_loss(facts: ReleaseFacts) -> dict[str, Any]:
    certificate, plan = facts.certificate, facts.model.plan_
    unit = plan.neighbours.unit
    kind = f"person, as column {unit.id!r} tells" if isinstance(unit, RowsOf) else certificate.unit
    is_removed = certificate.adjacency == "add-remove"
    differ = "one has the rows of a unit and the other lacks them" if is_removed else "the rows of one unit differ"
    exact = ", ".join(f"{name} = {value}" for name, value in plan.loss.to_dict().items() if value is not None)
    return {
        "privacy_unit": kind,
        "privacy_unit_details": (
            f"Two tables are adjacent ({certificate.adjacency}) if {differ}. A unit is {certificate.unit}. What the "
            "same person has beyond that is not covered."
        ),
        "privacy_parameters": _numbers(facts),
        "privacy_parameters_details": f"Exact: {exact}. Odds change at most {certificate.strength.factor} times.",
    }


def _numbers(facts: ReleaseFacts) -> dict[str, float]:
    certificate, rho = facts.certificate, facts.model.plan_.loss.rho
    numbers = {"epsilon": certificate.epsilon, "delta": certificate.delta or None}
    numbers["rho"] = float(rho) if rho is not None and certificate.delta else None
    return {name: value for name, value in numbers.items() if value is not None}


def _deployment_model(facts: ReleaseFacts) -> dict[str, Any]:
    card, sentences = facts.card.facts, facts.card.sentences
    servers = Assumption.NO_COLLUSION.value in facts.certificate.assumptions
    trusted = (
        "Owners share their rows in secret among three servers, which add the noise."
        if servers
        else "A trusted custodian holds the rows and adds the noise before anything is published."
    )
    others = len([entry for entry in facts.ledger["entries"] if entry["state"] != "cancelled"]) - 1
    return {
        "model_name": "Federated" if servers else "Central",
        "model_name_details": trusted,
        "actors": f"{trusted} Readers of the model are trusted with nothing. {sentences['access']}",
        "release_type": card["release_type"],
        "release_type_details": (
            f"One ledger adds up all releases about these people. It holds {others} other charges; {_budget(facts)}."
        ),
        "data_source_type": card["data_source_type"],
        "access_type": "Non-interactive",
        "access_type_details": "The model is published once. Predictions read the model alone and cost nothing.",
    }


def _budget(facts: ReleaseFacts) -> str:
    budget, spent = facts.ledger["budget"], facts.ledger["spent"]
    if budget is None:
        return f"{spent} is spent, and no limit is set"
    return f"{spent} is spent of a budget of {budget}"


def _accounting(facts: ReleaseFacts) -> dict[str, str]:
    certificate = facts.certificate
    lines = [f"{name}: {mechanism} ({loss})" for name, mechanism, _, loss in describe_steps(certificate.composition)]
    more = f"; and {len(lines) - _MAX_STEPS} more in certificate.json" if len(lines) > _MAX_STEPS else ""
    by_rho = bool(facts.model.plan_.loss.delta) and facts.model.plan_.loss.rho is not None
    rule = "zero-concentrated DP, converted at delta" if by_rho else "sequential composition, exact fractions added up"
    return {
        "post_processing": (
            "Trees, leaf values, effects, the report and all predictions are computed from the noisy values alone."
        ),
        "composition": f"{len(certificate.composition)} steps, by {rule}: {'; '.join(lines[:_MAX_STEPS])}{more}.",
    }


def _implementation(facts: ReleaseFacts) -> dict[str, str]:
    certificate, sentences = facts.certificate, facts.card.sentences
    return {
        "preprocessing_and_hyperparameter_tuning": (
            "Bounds and categories are declared in a schema, not read from the rows. Settings are those of a plan that "
            f"was fixed before the rows were read. {sentences['other_uses']}"
        ),
        "mechanisms": (
            f"{certificate.mechanism}. Implemented by veilwood {certificate.version}. Counts are integers; noise is "
            "drawn exactly, on integers, from the random bits of the operating system, so that no floating-point value "
            "reveals anything. Not protected: the running time of the fit."
        ),
        "justification": sentences["decision"],
    }


def _notes(facts: ReleaseFacts) -> str:
    certificate = facts.certificate
    return (
        f"SHA-256 of the plan: {certificate.plan_hash}; of the schema: {certificate.schema_hash}. The pack is signed: "
        "veilwood verify checks it with the public key of the curator."
    )
