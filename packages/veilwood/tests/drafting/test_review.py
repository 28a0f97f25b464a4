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
from veilwood.drafting.review import Review, parse_bounds
from veilwood.errors import SchemaError, UseError
from veilwood_testing.errors import rejects


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
    question = review.next_question()
    assert question is not None
    assert (question.name, question.proposal, question.number, question.of) == ("crp", None, 2, 5)
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
    assert str(schema.privacy_unit) == "all rows of one patient_id (counted as at most 2)"
    review.save(tmp_path / "s.json")
    assert Schema.load(tmp_path / "s.json") == schema
    data = json.loads((tmp_path / "s.json").read_text())
    assert [column["known_from"] for column in data["columns"]][1:3] == ["manual of the laboratory", "list of wards"]
    assert not any("bounds" in column for column in data["columns"])
    assert schema.features[1].known_from == "manual of the laboratory"


def test_a_column_can_be_of_another_kind_than_drafted(clinic_draft: dict[str, Any]) -> None:
    review = Review(clinic_draft)
    review.declare("bands of the registry", values=["young", "old"])
    for _ in range(2):
        review.exclude()
    review.declare("a score of the clinic", lower=0, upper=1)
    before = review.to_dict()
    with pytest.raises(UseError):  # no and yes are no numbers
        review.declare("a score of the clinic", lower=0, upper=1)
    assert review.to_dict() == before
    review.accept_known()
    schema = review.schema()
    assert (schema.features[0].values, schema.features[1].bounds) == (("young", "old"), (0, 1))


def test_what_was_read_off_the_data_is_not_accepted_by_a_key(clinic_draft: dict[str, Any]) -> None:
    review = Review(clinic_draft)
    review.accept_known()
    before = review.to_dict()
    with rejects(UseError, raised_in="Review.accept_known"):
        review.accept_known()
    for source in ("", "  ", "x"):
        with rejects(UseError, raised_in="Review.declare"):
            review.declare(source)
        with rejects(UseError, raised_in="Review.declare"):
            review.declare(source, lower=0, upper=1)
    with rejects(SchemaError, raised_in="Column._check_numeric"):
        review.declare("a manual", lower=3, upper=1)
    with rejects(UseError, raised_in="Review.declare"):
        review.declare("a manual", bins=3)
    assert review.to_dict() == before
    assert review.schema().inferred


def test_a_review_can_stop_and_go_on(clinic_draft: dict[str, Any], tmp_path: Path) -> None:
    review = Review(clinic_draft)
    review.accept_known()
    assert review.defer()
    question = review.next_question()
    assert question is not None
    assert question.name == "ward"
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
    with rejects(UseError, raised_in="Review.exclude"):
        review.exclude()
    review.accept_known()
    with rejects(UseError, raised_in="Review.exclude"):
        review.exclude()
    review.accept_known()
    assert review.schema().ignore == ("patient_id", "age", "crp", "ward")
    with rejects(UseError, raised_in="Review._current_column"):
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


# -- undo, rules, and another look -------------------------------------------------------------------------------------


@pytest.fixture
def mixed() -> dict[str, Any]:
    n = 240
    return draft_from_table(pd.DataFrame({
        "crp": [{0: "<0,6", 1: "folgt", 2: f"{row}"}.get(row % 8, f"{row},5") for row in range(n)],
        "sex": ["F", "M", "M ", "f"] * (n // 4), "ill": ["no", "yes"] * (n // 2),
    }))  # fmt: skip


def test_every_answer_can_be_undone(mixed: dict[str, Any]) -> None:
    review = Review(mixed)
    states = []
    answers: list[Any] = [
        lambda: review.set_text_rule("missing"), review.add_text_column, lambda: review.allow_missing(True),
        lambda: review.declare("a manual", lower=0, upper=500), review.exclude, review.defer, review.accept_known,
    ]  # fmt: skip
    for answer in answers:
        states.append((review.to_dict(), review.next_question()))
        answer()
    for state in reversed(states):
        review.undo()
        assert (review.to_dict(), review.next_question()) == state
    with pytest.raises(UseError):
        review.undo()


def test_the_review_asks_about_texts_among_numbers(mixed: dict[str, Any]) -> None:
    review = Review(mixed)
    question = review.next_question()
    assert question is not None
    assert (question.name, question.texts, question.odd) == ("crp", "limit", ("<0,6", "folgt"))
    review.add_text_column()
    review.set_text_rule("missing")
    review.declare("manual of the laboratory", lower=0, upper=500)
    own = review.next_question()
    assert own is not None
    assert (own.name, own.number, own.of) == ("crp_text", 2, 4)
    review.declare("manual of the laboratory")
    while review.next_question() is not None:
        review.accept_known()
    schema = review.schema()
    assert (schema.features[0].texts, schema.features[1].source, schema.features[1].values) == (
        "missing", "crp", ("<0,6", "folgt", "other"),
    )  # fmt: skip
    assert schema.features[2].aliases == {"M ": "M", "f": "F"}
    assert {"odd", "bounds"}.isdisjoint(key for column in review.to_dict()["columns"] for key in column)
    review.reopen("crp")
    with pytest.raises(UseError):  # there is one
        review.add_text_column()


def test_categories_become_numbers_only_if_some_are(mixed: dict[str, Any]) -> None:
    review = Review(mixed)
    review.defer()
    with pytest.raises(UseError):
        review.declare("a code list", lower=0, upper=9)
    review.declare("a code list", values=["F", "M", "X"])
    assert review.schema().features[1].aliases == {"M ": "M", "f": "F"}


def test_a_column_is_reopened_with_a_new_draft(clinic_draft: dict[str, Any]) -> None:
    review = Review(clinic_draft)
    while review.next_question() is not None:
        review.declare("a manual")
    review.reopen("crp", {"name": "crp", "kind": "numeric", "lower": 0, "upper": 9, "bounds": "from data: review"}, ",")
    assert review.open_columns == ("crp",)
    assert review.schema().inferred
    assert review.schema().dialect.decimals == {"crp": ","}
    assert dict((name, source) for name, _, source in review.summary())["age"] == "a manual"
    review.declare("another manual")
    assert review.schema().features[1].bounds == (0, 9)
    with pytest.raises(UseError):
        review.reopen("nowhere")


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("0 to 100", (0, 100)), ("0-500", (0, 500)), ("0 - 500", (0, 500)), ("-5 - -1", (-5, -1)), ("0..9", (0, 9)),
        ("0,5 bis 2,5", (0.5, 2.5)), ("1 2", (1, 2)), ("1, 2", (1, 2)), ("1e3 to 1e4", (1000, 10000)),
        ("1,000 to 2,000", None), ("5", None), ("", None), ("a to b", None), ("1 to 2 to 3", None),
    ],
)  # fmt: skip
def test_bounds_are_read_as_people_type_them(text: str, bounds: tuple[float, float] | None) -> None:
    assert parse_bounds(text) == (None if bounds is None else {"lower": bounds[0], "upper": bounds[1]})
