# SPDX-License-Identifier: Apache-2.0
"""Tests of the walk through a draft: only public knowledge takes a mark away, and a review can go on later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from veilwood.data.schema import Schema
from veilwood.drafting.draft import draft_from_table
from veilwood.drafting.review import Review
from veilwood.errors import SchemaError, UseError


@pytest.fixture
def clinic_draft() -> dict[str, Any]:
    n = 120
    return draft_from_table(pd.DataFrame({
        "patient_id": [row // 2 for row in range(n)], "age": [20 + row % 50 for row in range(n)],
        "crp": [row * 0.5 for row in range(n)], "ward": ["A1", "B1", "C1"] * (n // 3),
        "smoker": [0, 1] * (n // 2), "ill": ["no", "yes"] * (n // 2),
    }))  # fmt: skip


def test_a_review_ends_in_a_schema(clinic_draft: dict[str, Any], tmp_path: Path) -> None:
    review = Review(clinic_draft)
    assert review.open_columns == ("age", "crp", "ward", "smoker", "ill")
    assert review.privacy_unit == {"id": "patient_id", "at_most": 3}
    review.set_rows_per_unit(2)
    review.accept_known()
    asked = review.next_question()
    assert asked is not None
    assert (asked.name, asked.proposal, asked.number, asked.of) == ("crp", None, 2, 5)
    review.declare("manual of the laboratory", lower=0, upper=500)
    review.declare("list of wards")
    review.accept_known()
    assert review.schema().inferred
    review.accept_known()
    schema = review.schema()
    assert review.next_question() is None
    assert not schema.inferred
    assert schema.features[0].bounds == (0, 120)
    assert schema.features[1].bounds == (0, 500)
    assert schema.features[3].labels == (0, 1)  # in the type they were drafted
    assert str(schema.privacy_unit) == "all rows of one patient_id (at most 2 used)"
    review.save(tmp_path / "s.json")
    assert Schema.load(tmp_path / "s.json") == schema
    data = json.loads((tmp_path / "s.json").read_text())
    assert [column["bounds"] for column in data["columns"]][1:3] == [
        "public: manual of the laboratory", "public: list of wards",
    ]  # fmt: skip


def test_a_column_can_be_of_another_kind_than_drafted(clinic_draft: dict[str, Any]) -> None:
    review = Review(clinic_draft)
    review.declare("bands of the registry", values=["young", "old"])
    for _ in range(3):
        review.exclude()
    review.declare("a score of the clinic", lower=0, upper=1)
    schema = review.schema()
    assert (schema.features[0].values, schema.task, schema.target.bounds) == (("young", "old"), "regression", (0, 1))


def test_what_was_read_off_the_data_is_not_accepted_by_a_key(clinic_draft: dict[str, Any]) -> None:
    review = Review(clinic_draft)
    review.accept_known()
    before = review.to_dict()
    with pytest.raises(UseError, match="no usual bounds"):
        review.accept_known()
    for source in ("", "  ", "x"):
        with pytest.raises(UseError, match="keeps its mark"):
            review.declare(source)
        with pytest.raises(UseError, match="keeps its mark"):
            review.declare(source, lower=0, upper=1)
    with pytest.raises(SchemaError, match="not below"):
        review.declare("a manual", lower=3, upper=1)
    with pytest.raises(UseError, match="not a bound"):
        review.declare("a manual", bins=3)
    assert review.to_dict() == before
    assert review.schema().inferred


def test_a_review_can_stop_and_go_on(clinic_draft: dict[str, Any], tmp_path: Path) -> None:
    review = Review(clinic_draft)
    review.accept_known()
    assert review.defer()
    asked = review.next_question()
    assert asked is not None
    assert asked.name == "ward"
    review.save(tmp_path / "half.json")
    assert Schema.load(tmp_path / "half.json").inferred
    later = Review.load(tmp_path / "half.json")
    assert later.open_columns == ("crp", "ward", "smoker", "ill")
    for _ in range(3):
        assert later.defer()
    assert not later.defer()  # all were


def test_columns_can_be_left_out_but_not_the_target(clinic_draft: dict[str, Any]) -> None:
    review = Review(clinic_draft)
    for _ in range(3):
        review.exclude()
    with pytest.raises(UseError, match="last feature"):
        review.exclude()
    review.accept_known()
    with pytest.raises(UseError, match="target"):
        review.exclude()
    review.accept_known()
    assert review.schema().ignore == ("patient_id", "age", "crp", "ward")
    with pytest.raises(UseError, match="all columns are reviewed"):
        review.accept_known()


def test_parts_of_dates_are_public() -> None:
    dates = pd.date_range("2024-01-01", periods=120).astype(str)
    found = draft_from_table(pd.DataFrame({"came": dates, "ill": ["no", "yes"] * 60}), dates=["year", "weekday"])
    review = Review(found)
    review.exclude()
    assert "came" not in review.to_dict().get("ignore", ())  # it is still read
    review.accept_known()
    review.accept_known()
    assert review.schema().feature_names == ("came_weekday",)
    assert not review.schema().inferred
