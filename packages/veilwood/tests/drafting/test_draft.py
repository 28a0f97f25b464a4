# SPDX-License-Identifier: Apache-2.0
"""Drafts of schemas: what is left out, never written, inferred, and marked as unreviewed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema, is_unreviewed
from veilwood.data.tables import read_table
from veilwood.drafting.draft import MIN_UNITS, draft_from_table
from veilwood.drafting.review import format_schema
from veilwood.errors import OutOfSchemaError, SchemaError
from veilwood_testing.errors import rejects
from veilwood_testing.tables import FIRST_NAMES


def column(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in found["columns"] if each["name"] == name)


def test_a_messy_table_is_drafted(messy_draft: dict[str, Any]) -> None:
    reasons = messy_draft["left_out"]
    assert set(reasons) == {"fallnummer", "patient_id", "name", "uhrzeit", "notiz"} == set(messy_draft["ignore"])
    assert reasons["notiz"] == "free text"
    assert messy_draft["privacy_unit"] == {"id": "patient_id", "at_most": 3}
    assert messy_draft["dialect"] == {
        "sep": ";", "decimal": ",", "thousands": ".", "encoding": "cp1252", "nulls": ["k.A."], "money": True,
    }  # fmt: skip
    assert column(messy_draft, "kosten")["kind"] == "numeric"
    assert column(messy_draft, "diabetes")["values"] == [0, 1]
    assert column(messy_draft, "raucher")["values"] == ["nein", "ja"]
    assert (column(messy_draft, "alter")["lower"], column(messy_draft, "alter")["upper"]) == (0, 120)
    assert column(messy_draft, "plz")["prefix"] == 2
    assert {"aufnahme_month", "aufnahme_weekday"} <= {each["name"] for each in messy_draft["columns"]}
    assert Schema.from_dict(messy_draft).inferred


def test_dates_are_left_out_unless_wanted(messy_csv: Path) -> None:
    found = draft_from_table(messy_csv, "wiederaufnahme")
    assert {"geburtsdatum", "aufnahme", "entlassung"} <= set(found["left_out"])
    assert "date" in found["left_out"]["aufnahme"]


def test_twenty_rows_of_one_person_are_one_person() -> None:
    people = [f"p{row}" for row in range(200)] + ["p0"] * 30
    table = pd.DataFrame({"patient_id": people, "ward": ["A", "B"] * 100 + ["only hers"] * 30, "y": ["n", "j"] * 115})
    assert column(draft_from_table(table), "ward")["values"] == ["A", "B", "other"]
    without_id = draft_from_table(table.drop(columns="patient_id"))
    assert "only hers" in column(without_id, "ward")["values"]  # rows, where nobody knows whose they are


@pytest.mark.parametrize(("name", "is_unit"), [("patient", True), ("Customer", True), ("patients", False)])
def test_a_column_named_after_a_person_holds_ids(name: str, is_unit: bool) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {name: rng.integers(0, 300, 900), "age": rng.integers(0, 90, 900), "y": rng.integers(0, 2, 900)}
    )
    found = draft_from_table(table, target="y")
    assert (found.get("privacy_unit", {}).get("id") == name) is is_unit


def test_bounds_are_no_ones_own_number() -> None:
    pay = np.concatenate([np.linspace(20_003, 60_007, 500), [987_654_321.0]])
    table = pd.DataFrame({"pay": pay, "y": ["n", "j"] * 250 + ["n"]})
    text = json.dumps(draft_from_table(table))
    assert "987654321" not in text
    assert "1000000000" not in text
    assert not set(map(str, pay)) & set(text.replace(",", " ").replace("}", " ").split())


def test_draft_is_marked_and_loads(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "shop.csv.gz", "wt") as file:
        file.write("day,flag,size,code,class\n")
        file.writelines(
            f"2020-01-{n % 28 + 1:02d},{'true' if n % 3 else 'false'},{n / 7},{'NA' if n % 2 else '?'},{n % 2}\n"
            for n in range(120)
        )
    found = draft_from_table(tmp_path / "shop.csv.gz")
    assert found["name"] == "shop"
    assert found["notes"].startswith("DRAFT")
    assert all(each["bounds"].startswith("from data: review") for each in found["columns"])
    schema = Schema.from_dict(found)
    assert [each.kind for each in schema.features] == ["categorical", "numeric", "categorical"]
    assert schema.features[2].values == ("?", "NA")  # a column of nothing but such words: they are its categories
    assert (schema.classes, schema.target.labels) == (("0", "1"), (0, 1))
    X, y = read_table(tmp_path / "shop.csv.gz", schema)
    assert y.dtype == np.int64
    Encoding(schema).encode(X)
    assert draft_from_table(tmp_path / "shop.csv.gz", "size")["task"] == "regression"


def test_what_cannot_be_drafted_is_refused(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": range(100), "class": ["a", "b"] * 50})
    with rejects(OutOfSchemaError, column="clas", raised_in="draft_from_table"):
        draft_from_table(table, "clas")
    with rejects(OutOfSchemaError, raised_in="draft_from_table"):
        draft_from_table(np.zeros((2, 2)))
    with rejects(SchemaError, raised_in="draft_from_table"):
        draft_from_table(table, dates=["season"])
    with rejects(SchemaError, raised_in="draft_from_table"):
        draft_from_table(table.head(6))
    with rejects(SchemaError, raised_in="draft_from_table"):
        draft_from_table(pd.DataFrame({"id": range(100), "class": ["a", "b"] * 50}))


def test_columns_without_a_name_or_with_the_same_one(tmp_path: Path) -> None:
    """As programs write an index, and spreadsheets a second date."""
    rows = "".join(f"{n % 30},{n % 7},{'jn'[n % 2]}\n" for n in range(120))
    (tmp_path / "t.csv").write_text(",a,y\n" + rows)
    assert draft_from_table(tmp_path / "t.csv")["left_out"][""] == "has no name"
    (tmp_path / "t.csv").write_text("a,a,y\n" + rows)
    with rejects(OutOfSchemaError, raised_in="_open_file"):
        draft_from_table(tmp_path / "t.csv")


@pytest.mark.parametrize("mark", ["from data: review", "From  data", "from the data, rounded", "from data (units)"])
def test_any_mark_of_a_bound_read_off_the_data_counts(mark: str) -> None:
    data = {"name": "s", "task": "classification", "target": "y", "columns": [
        {"name": "x", "kind": "numeric", "lower": 0, "upper": 1, "bounds": mark},
        {"name": "y", "kind": "categorical", "values": ["a", "b"]}]}  # fmt: skip
    assert Schema.from_dict(data).inferred
    data["columns"][0]["bounds"] = "public: the manual"  # type: ignore[index]
    assert not Schema.from_dict(data).inferred
    assert not is_unreviewed({"bounds": "documented (hhmm)"})


def test_the_example_table_has_33_columns() -> None:
    assert len(FIRST_NAMES) == 33


def test_no_category_of_few_people_is_in_a_draft(messy_csv: Path, messy_draft: dict[str, Any]) -> None:
    """Counted by hand: every category that is not from the catalogue has twenty patients or more."""
    table = pd.read_csv(messy_csv, sep=";", encoding="cp1252", dtype=str, na_values=["k.A."], keep_default_na=False)
    checked = 0
    for each in messy_draft["columns"]:
        if each["kind"] == "categorical" and "usual" not in each["bounds"]:
            patients = table.groupby(each["name"])["patient_id"].nunique()
            kept = [str(value) for value in each["values"] if value != each.get("other")]
            assert all(patients[value] >= MIN_UNITS for value in kept)
            checked += 1
    assert checked >= 2
    rare = table.groupby("station")["patient_id"].nunique()
    assert rare.min() < MIN_UNITS  # else the test would say nothing
    assert str(rare.idxmin()) not in format_schema(messy_draft)


def test_numbers_that_only_count_rows_are_left_out_and_measurements_are_not() -> None:
    rng = np.random.default_rng(0)
    found = draft_from_table(pd.DataFrame({
        "line": range(1000, 1200), "card": rng.permutation(200) + 4_000_000_000,
        "income": rng.integers(9_000, 90_000, 200), "level": rng.normal(size=200), "y": ["n", "j"] * 100,
    }))  # fmt: skip
    assert set(found["left_out"]) == {"line", "card"}


def test_codes_with_leading_zeros_stay_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("code,y\n" + "".join(f"0{n % 3}1,{'jn'[n % 2]}\n" for n in range(120)))
    assert column(draft_from_table(path), "code")["values"] == ["001", "011", "021"]


# -- columns that mix numbers and texts, and spellings -----------------------------------------------------------------


def mixed_table(path: Path, **columns: list[str]) -> Path:
    n = len(next(iter(columns.values())))
    pd.DataFrame(columns | {"y": ["nein", "ja"] * (n // 2)}).to_csv(path, index=False, sep=";", encoding="cp1252")
    return path


def repeated(*cells: str, n: int = 400) -> list[str]:
    return [cells[row % len(cells)] for row in range(n)]


def test_columns_of_numbers_and_texts_are_kept_by_a_stated_rule(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    numbers = [f"{value:.1f}".replace(".", ",") for value in rng.normal(37, 1, 400)]
    path = mixed_table(
        tmp_path / "t.csv",
        temp=[text.replace(",", ".") if row % 5 == 0 else text for row, text in enumerate(numbers)],
        crp=["<0,6" if row % 9 == 0 else "folgt" if row % 10 == 0 else text for row, text in enumerate(numbers)],
        hb=["hämolytisch" if row == 3 else text for row, text in enumerate(numbers)],
        dose=repeated("1,5", "2", "halbe", "ganze"),
        sex=repeated("F", "M", "M ", "f"),
        ward=["Ambulanz" if row < 3 else f"W{row % 3}" for row in range(400)],
    )
    found = draft_from_table(path)
    rules = {each["name"]: (each["kind"], each.get("texts"), each.get("nullable", False)) for each in found["columns"]}
    assert rules == {
        "temp": ("numeric", None, False), "crp": ("numeric", "limit", True), "hb": ("numeric", "missing", True),
        "dose": ("categorical", None, False), "sex": ("categorical", None, False),
        "ward": ("categorical", None, False), "y": ("categorical", None, False),
    }  # fmt: skip
    assert found["dialect"]["decimals"] == {"temp": "either"}
    assert column(found, "crp")["odd"] == ["<0,6", "folgt"]
    assert column(found, "hb")["odd"] == []  # of one person
    assert "hämolytisch" not in json.dumps(found, ensure_ascii=False)
    assert column(found, "sex")["aliases"] == {"M ": "M", "f": "F"}
    assert (column(found, "sex")["values"], column(found, "ward")["other"]) == (["F", "M", "X"], "other")
    Encoding(Schema.from_dict(found)).encode(read_table(path, Schema.from_dict(found))[0])  # not one row is refused


def test_numbers_that_may_have_thousands_are_not_read_with_either_sign(tmp_path: Path) -> None:
    found = draft_from_table(mixed_table(tmp_path / "t.csv", pay=repeated("1,500", "2.5", "3.25", "900")), "y")
    assert "either" not in found.get("dialect", {}).get("decimals", {}).values()


def test_rows_without_a_usable_target_are_foreseen(tmp_path: Path) -> None:
    path = mixed_table(tmp_path / "t.csv", age=repeated("31", "58", "77"))
    assert "drop" not in draft_from_table(path)
    for odd in ("", "vielleicht"):
        table = pd.read_csv(path, sep=";", dtype=str)
        table.loc[5, "y"] = odd
        table.to_csv(tmp_path / "odd.csv", index=False, sep=";")
        found = draft_from_table(tmp_path / "odd.csv")
        assert found["drop"]
        assert odd not in json.dumps(found) or not odd
        assert "nullable" not in column(found, "y")
