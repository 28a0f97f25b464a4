# SPDX-License-Identifier: Apache-2.0
"""Records for the registry of deployments: valid, true to the certificate, and refused when they are not."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

import veilwood as vw
from veilwood.release_pack.registry import FIELDS, REQUIRED, check_record, record_text, registry_record
from veilwood_testing import ROOT
from veilwood_testing.release_packs import ANSWERS, card_text, facts_of

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning", "ignore::veilwood.PrivacyWarning")

SMALL: dict[str, Any] = {"n_estimators": 2, "max_depth": 2}
PUBLISHED: dict[str, Any] = yaml.safe_load((ROOT / "testing/veilwood_testing/deployments-schema.yaml").read_text())


def published_problems(record: Any) -> list[str]:
    """What is wrong with a record by the schema that the registry publishes, checked as its scripts/check.py does."""
    validator = Draft7Validator(PUBLISHED, format_checker=Draft7Validator.FORMAT_CHECKER)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(record)]


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (vw.PrivateForestClassifier, {"epsilon": 1.0}), (vw.PrivateForestRegressor, {"epsilon": 0.1}),
        (vw.RandomTreesClassifier, {**SMALL, "delta": 1e-6, "n_estimators": 40}),
        (vw.RandomTreesRegressor, {**SMALL, "adjacency": "replace-one"}),
        (vw.PrivateForestClassifier, {"delta": 1e-6, "privacy_unit": {"id": "person", "at_most": 3}}),
    ],
)  # fmt: skip
def test_records_are_valid_by_the_schema_that_the_registry_publishes(kind: Any, parameters: dict[str, Any]) -> None:
    text = record_text(facts_of(kind, card_text(sector="Healthcare", publication_date="2031-06-01"), **parameters))
    record = yaml.safe_load(text)
    assert published_problems(record) == []
    basic = record["deployment"]["basic"]
    parts = (basic["name"], "-".join(basic["data_curators"]), basic["publication_date"].split("-")[0])
    slug = "_".join(re.sub(r"\W+", "_", part.lower()) for part in parts).replace("_", "-")  # its update_slug.py
    assert text.startswith(f"url_slug: {slug}\n")


def test_the_fields_are_those_of_the_published_schema() -> None:
    def compare(mine: Any, theirs: dict[str, Any], name: str) -> None:
        if isinstance(mine, dict):
            assert list(mine) == list(theirs["properties"]), name
            assert (theirs["type"], theirs["additionalProperties"]) == ("object", False)
            assert list(REQUIRED.get(name, ())) == theirs.get("required", []), name
            for field, allowed in mine.items():
                compare(allowed, theirs["properties"][field], field)
        elif isinstance(mine, tuple):
            assert list(mine) == theirs["enum"], name
        else:
            kinds = {"text": "string", "date": "string", "number": "number", "list of texts": "array"}
            assert kinds[mine] in (theirs.get("type", "string"), *theirs.get("type", ())), name
            assert (theirs.get("format") == "date") == (mine == "date"), name

    compare(FIELDS, PUBLISHED, "")


def test_a_record_is_valid_and_says_what_the_certificate_says() -> None:
    facts = facts_of(vw.RandomTreesClassifier, card_text(sector="Healthcare"), epsilon=0.5, **SMALL)
    record = yaml.safe_load(record_text(facts))
    assert check_record(record) == []
    deployment = record["deployment"]
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 0.5}
    assert deployment["dp_variant"]["variant_name"] == "Pure DP"
    assert deployment["basic"]["data_product_type"] == "Machine learning model"
    assert deployment["basic"]["data_product_sector"] == "Healthcare"
    assert deployment["implementation"]["justification"] == ANSWERS["decision"]
    assert record["url_slug"] == "no-shows-of-clinic-x-clinic-x-2031"


def test_every_field_of_tier_2_is_filled() -> None:
    deployment = registry_record(facts_of(vw.RandomTreesClassifier, **SMALL))["deployment"]
    filled = {field for section in deployment.values() for field in section}
    assert filled >= {
        "variant_name", "privacy_unit", "privacy_parameters", "model_name", "release_type", "data_source_type",
        "access_type", "data_domain", "unprotected_quantities", "privacy_unit_details", "actors", "post_processing",
        "composition", "preprocessing_and_hyperparameter_tuning", "mechanisms", "justification",
    }  # fmt: skip


def test_a_delta_and_a_person_are_named() -> None:
    unit = {"id": "person", "at_most": 3}
    facts = facts_of(vw.PrivateForestClassifier, epsilon=1.0, delta=1e-6, privacy_unit=unit)
    loss = registry_record(facts)["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"]["delta"] == 1e-6
    assert "person" in loss["privacy_unit"]
    assert "at most 3" in loss["privacy_unit_details"]


def change(record: dict[str, Any], path: str, value: Any) -> None:
    *inside, last = path.split(".")
    for name in inside:
        record = record[name]
    if value is None:
        del record[last]
    else:
        record[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tier", 4), ("tier", True), ("status", "Done"), ("deployment.basic.name", None), ("deployment.basic", None),
        ("deployment.basic.data_curators", []), ("deployment.basic.publication_date", "2031-13-01"),
        ("deployment.basic.surprise", "x"), ("deployment.privacy_loss.privacy_parameters.epsilon", "1"),
        ("deployment.dp_variant.variant_name", "Very private"), ("deployment.administrative.registry_authors", None),
        ("deployment.accounting", "sequential"), ("url_slug", ""),
    ],
)  # fmt: skip
def test_a_record_that_the_registry_would_refuse_is_found(path: str, value: Any) -> None:
    record = registry_record(facts_of(vw.RandomTreesClassifier, **SMALL))
    assert check_record(record) == []
    change(record, path, value)
    problems = check_record(record)
    assert len(problems) == 1
    assert problems[0].startswith(path)
    assert published_problems(record) != [] or path == "url_slug"  # the registry takes an empty address


def test_fields_inside_each_other_have_kinds() -> None:
    def kinds(fields: dict[str, Any]) -> list[Any]:
        return [k for each in fields.values() for k in (kinds(each) if isinstance(each, dict) else [each])]

    assert all(isinstance(kind, str | tuple) for kind in kinds(FIELDS))
