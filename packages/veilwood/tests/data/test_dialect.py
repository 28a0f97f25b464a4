# SPDX-License-Identifier: Apache-2.0
"""Tests of how CSV is written: one table in many dialects gives the same codes, and nothing is guessed in a fit."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import veilwood as vw
from veilwood.data.dialect import DIALECT, ENCODINGS, Dialect, read_header
from veilwood.data.encoding import Encoding
from veilwood.data.file_source import check_files
from veilwood.data.places import local_file
from veilwood.data.schema import Schema
from veilwood.data.tables import read_table
from veilwood.drafting.draft import draft_from_table, guess_dialect
from veilwood.errors import OutOfSchemaError, SchemaError, UseError
from veilwood_testing.errors import rejects
from veilwood_testing.tables import GERMAN_CSV, GERMAN_SCHEMA, read_codes

IN_GERMAN = Dialect(sep=";", decimal=",", thousands=".", encoding="cp1252", nulls=("k.A.",), money=True)


@pytest.mark.parametrize("invalid", ["refuse", "drop"])
def test_two_dialects_give_the_same_codes(two_dialects: tuple[Path, Path], invalid: str) -> None:
    plain, german = two_dialects
    declared = replace(GERMAN_SCHEMA, dialect=IN_GERMAN)
    assert read_codes(german, declared, invalid) == read_codes(plain, GERMAN_SCHEMA, invalid)
    assert check_files(german, declared).violations == []
    (X, y), (other_X, other_y) = read_table(german, declared), read_table(plain, GERMAN_SCHEMA)
    assert X.equals(other_X)
    assert y.equals(other_y)


def test_a_dialect_is_part_of_the_schema(tmp_path: Path) -> None:
    declared = replace(GERMAN_SCHEMA, dialect=IN_GERMAN)
    declared.save(tmp_path / "s.json")
    assert Schema.load(tmp_path / "s.json") == declared
    assert declared.fingerprint() != GERMAN_SCHEMA.fingerprint()
    assert Dialect.from_dict(IN_GERMAN.to_dict()) == IN_GERMAN
    assert "dialect" not in GERMAN_SCHEMA.to_dict()


# -- nothing is guessed in a fit, and the hint is right ----------------------------------------------------------------


def test_a_fit_never_guesses(two_dialects: tuple[Path, Path]) -> None:
    _, german = two_dialects
    forest = vw.RandomTreesClassifier(GERMAN_SCHEMA, n_estimators=1, max_depth=1)
    with rejects(OutOfSchemaError, raised_in="_open_file"):
        forest.fit(german)
    forest.set_params(schema=replace(GERMAN_SCHEMA, dialect=Dialect(sep=";", decimal=",")))
    with rejects(OutOfSchemaError, raised_in="_open_file"):
        forest.fit(german)
    german.write_text(GERMAN_CSV, encoding="utf-8")
    forest.set_params(schema=replace(GERMAN_SCHEMA, dialect=Dialect(sep=";", nulls=("k.A.",))))
    with rejects(
        OutOfSchemaError, column="größe", problems=(("größe", "not a number"), ("kosten", "not a number"))
    ) as caught:
        forest.fit(german)
    assert dict(caught.value.problems) == {"größe": "not a number", "kosten": "not a number"}


def test_latin_1_cells_under_a_plain_header_get_the_right_hint(tmp_path: Path) -> None:
    schema = Schema.from_dict({"name": "s", "task": "classification", "target": "y", "columns": [
        {"name": "ort", "kind": "categorical", "values": ["Köln"]},
        {"name": "y", "kind": "categorical", "values": ["a", "b"]}]})  # fmt: skip
    (tmp_path / "t.csv").write_text("ort,y\nKöln,a\n", encoding="latin-1")
    with rejects(OutOfSchemaError, raised_in="_open_file"):
        read_codes(tmp_path / "t.csv", schema)
    assert read_codes(tmp_path / "t.csv", replace(schema, dialect=Dialect(encoding="latin-1"))) == [[[0]], [0]]


def test_one_odd_row_does_not_change_how_others_are_read(tmp_path: Path) -> None:
    """A guess would: a single 1.234,5 makes every 1.234 a thousand, and one bad byte another encoding."""
    declared = replace(GERMAN_SCHEMA, dialect=replace(IN_GERMAN, thousands=""))
    for odd in ("1.234,5 €", "1,234.5", "\x81\x9d", "€€", "1e5"):
        path = tmp_path / "t.csv"
        path.write_bytes((GERMAN_CSV + f"1,5;{odd};Köln;ja\n").encode("cp1252", "ignore"))
        kept = read_codes(path, declared, "drop")
        alone = tmp_path / "alone.csv"
        alone.write_bytes(GERMAN_CSV.encode("cp1252"))
        assert [part[:2] for part in kept] == [part[:2] for part in read_codes(alone, declared, "drop")], odd


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_byte_can_be_read(encoding: str, tmp_path: Path) -> None:
    """With invalid="drop" a file must not be refused because of one row."""
    dialect = Dialect(encoding=encoding)
    (tmp_path / "t.csv").write_bytes(b"ort,y\n" + bytes(set(range(33, 256)) - {34, 44}) + b",a\nKoeln,b\n")
    schema = Schema.from_dict({"name": "s", "task": "classification", "target": "y", "columns": [
        {"name": "ort", "kind": "categorical", "values": ["Koeln"]},
        {"name": "y", "kind": "categorical", "values": ["a", "b"]}]})  # fmt: skip
    assert read_codes(tmp_path / "t.csv", replace(schema, dialect=dialect), "drop") == [[[0]], [1]]
    if encoding != "utf-8":
        assert len(bytes(range(256)).decode(dialect.codec)) == 256


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.234,50", "1234.50"), ("1.234.567", "1234567"), ("-3,5", "-3.5"), ("+3", "+3"), (",5", ".5"), ("12 €", "12"),
        ("€ 12", "12"), ("12,-", None), ("1.5", None), ("12.34", None), ("1,2,3", None), ("€", None), ("EUR 5", "5"),
        ("1,5e3", "1.5e3"), ("5 EURO", None), ("", None), ("\u00a01.000\u00a0€", "1000"), ("\u0661", None),
    ],
)  # fmt: skip
def test_numbers_of_a_dialect(text: str, number: str | None) -> None:
    assert IN_GERMAN.number(text) == number
    for kind in (pa.string(), pa.binary()):
        cells = pa.chunked_array([pa.array(["12,5", text, None], kind), pa.array([text], kind)])
        first, one, nothing, other = IN_GERMAN.numbers(cells).to_pylist()
        assert (first, nothing, one) == ("12.5", None, other)
        assert one == number if number is not None or not text else "not as the dialect" in one


@pytest.mark.parametrize(
    "wrong",
    [{"sep": ";;"}, {"sep": '"'}, {"decimal": ";"}, {"thousands": "x"}, {"decimal": ",", "thousands": ","},
     {"encoding": "utf-16"}, {"encoding": 7}, {"nulls": "NA"}, {"nulls": [1]}, {"money": 1}, {"quote": "'"}, "german"],
)  # fmt: skip
def test_wrong_dialects_are_refused(wrong: Any) -> None:
    with pytest.raises(SchemaError, match="dialect"):
        Schema.from_dict(GERMAN_SCHEMA.to_dict() | {"dialect": wrong})


# -- guessing, for drafts ----------------------------------------------------------------------------------------------


def test_a_dialect_is_detected(two_dialects: tuple[Path, Path], tmp_path: Path) -> None:
    plain, german = two_dialects
    assert guess_dialect(local_file(plain).open) == DIALECT
    assert guess_dialect(local_file(german).open) == IN_GERMAN
    assert read_header(local_file(german).open, "german", IN_GERMAN) == ["größe", "kosten", "ort", "krank"]
    assert guess_dialect(local_file(german).open, decimal=".", sep="|").sep == "|"
    (tmp_path / "tab.tsv.csv").write_text("a\tb\n1\t2.5\n3\t4.5\n")
    assert guess_dialect(local_file(tmp_path / "tab.tsv.csv").open) == Dialect(sep="\t")
    (tmp_path / "us.csv").write_text('a,b\n"1,234.5",$3\n"1,000,000",$4\n')
    assert guess_dialect(local_file(tmp_path / "us.csv").open) == Dialect(thousands=",", money=True)
    (tmp_path / "bom.csv").write_text("a,b\n1,2\n", encoding="utf-8-sig")
    assert guess_dialect(local_file(tmp_path / "bom.csv").open) == DIALECT
    (tmp_path / "empty.csv").write_text("")
    assert guess_dialect(local_file(tmp_path / "empty.csv").open) == DIALECT


# -- columns that are not used, and parts of columns -------------------------------------------------------------------


def test_columns_to_ignore_and_ids_may_be_there(tmp_path: Path) -> None:
    data = GERMAN_SCHEMA.to_dict() | {"ignore": ["note_*", "fall"], "privacy_unit": {"id": "patient", "at_most": 2}}
    schema = Schema.from_dict(data)
    frame = pd.DataFrame({"größe": [1.0] * 40, "kosten": 2.0, "ort": "Bonn", "krank": ["ja", "nein"] * 20})
    more = frame.assign(note_1="secret", fall=range(40), patient=range(40))
    for invalid in ("refuse", "drop"):
        forest = vw.RandomTreesClassifier(
            schema, privacy_unit=vw.RowsOf("patient", 2), n_estimators=1, max_depth=1, invalid=invalid
        )
        assert (forest.fit(more).predict(more) == forest.predict(frame.drop(columns="krank"))).all()
    more.to_csv(tmp_path / "t.csv", index=False)
    forest.fit(tmp_path / "t.csv")
    assert list(read_table(tmp_path / "t.csv", schema, target=False)) == ["größe", "kosten", "ort", "patient"]
    assert Schema.from_dict(schema.to_dict()) == schema
    with rejects(OutOfSchemaError, column="notes", raised_in="check_names"):
        forest.fit(more.assign(notes=1, other=2))
    with rejects(OutOfSchemaError, column="größe", raised_in="check_names"):
        forest.fit(more.drop(columns=["größe", "kosten"]))
    with rejects(SchemaError, raised_in="Schema.__post_init__"):
        Schema.from_dict(data | {"ignore": "note_*"})


DATES = Schema.from_dict({"name": "s", "task": "classification", "target": "y", "columns": [
    {"name": "year", "of": "came", "part": "year", "kind": "numeric", "lower": 2020, "upper": 2030, "nullable": True},
    {"name": "came", "part": "month", "kind": "categorical", "values": list(range(1, 13)), "nullable": True},
    {"name": "day", "of": "came", "part": "weekday", "kind": "categorical", "values": [1, 2, 3, 4, 5, 6, 7],
     "nullable": True},
    {"name": "plz", "kind": "categorical", "values": ["01", "50", "99"], "prefix": 2},
    {"name": "y", "kind": "categorical", "values": ["a", "b"]}]})  # fmt: skip


def test_parts_of_dates_and_prefixes(tmp_path: Path) -> None:
    frame = pd.DataFrame({
        "came": ["2026-01-31", "31.1.2026", None], "plz": ["01067", "50667", "99998"], "y": ["a", "b", "a"],
    })  # fmt: skip
    codes = Encoding(DATES).encode(frame)
    assert codes[0].tolist() == [39321, 0, 5, 0]
    assert codes[1].tolist() == [39321, 0, 5, 1]
    assert codes[2].tolist() == [65535, 12, 7, 2]
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.assign(came=pd.to_datetime(pd.Series(["2026-01-31", "2026-01-31", None]))).to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        for invalid in ("refuse", "drop"):
            assert read_codes(tmp_path / name, DATES, invalid)[0] == codes.tolist()
        X, _ = read_table(tmp_path / name, DATES)
        assert list(X) == ["came", "plz"]
        assert np.array_equal(Encoding(DATES).encode(X), codes)
        vw.RandomTreesClassifier(DATES, n_estimators=1, max_depth=1).fit(tmp_path / name).predict(X)
    forest = vw.RandomTreesClassifier(DATES, n_estimators=1, max_depth=1).fit(frame)
    with rejects(UseError, raised_in="add_column_inputs"):
        vw.export_onnx(forest, tmp_path / "m.onnx")
    odd = frame.assign(came=["2026-02-31", "soon", "2026-01-31"])
    with rejects(OutOfSchemaError, column="year", raised_in="raise_problems") as caught:
        Encoding(DATES).encode(odd)
    assert "soon" not in str(caught.value)


@pytest.mark.parametrize(
    "keys",
    [{"prefix": 0}, {"prefix": True}, {"prefix": 2, "part": "year"}, {"part": "season"}, {"of": ""}, {"of": 3}],
)
def test_wrong_parts_are_refused(keys: dict[str, Any]) -> None:
    column = {"name": "x", "kind": "categorical", "values": ["1"]} | keys
    with pytest.raises(SchemaError):
        Schema.from_dict(DATES.to_dict() | {"columns": [column, DATES.target.to_dict()]})
    with rejects(SchemaError, raised_in="Schema._check_target"):
        Schema.from_dict(DATES.to_dict() | {"columns": [
            {"name": "x", "kind": "numeric", "lower": 0, "upper": 1},
            DATES.target.to_dict() | {"part": "year"}]})  # fmt: skip


# -- all problems at once ----------------------------------------------------------------------------------------------


def test_a_column_has_its_own_decimal_sign(tmp_path: Path) -> None:
    """One export, two programs: the draft says it, and files, checks and fits read it so, cell by cell."""
    rows = 90
    cells = {
        "dose": [f"{row % 7},25" for row in range(rows)], "height": [f"{150 + row % 40}.5" for row in range(rows)],
        "price": [f"{row % 9}.50 EUR" for row in range(rows)], "ill": ["no", "yes", "no"] * 30,
    }  # fmt: skip
    path = tmp_path / "mixed.csv"
    pd.DataFrame(cells).to_csv(path, index=False, sep=";")
    found = draft_from_table(path)
    assert found["dialect"] == {"sep": ";", "money": True, "decimals": {"dose": ","}}
    assert [column["kind"] for column in found["columns"]] == ["numeric"] * 3 + ["categorical"]
    schema = replace(Schema.from_dict(found), inferred=False)
    assert Schema.from_dict(schema.to_dict()) == schema
    assert hash(schema.dialect) == hash(Dialect.from_dict(schema.dialect.to_dict()))
    assert check_files(path, schema).violations == []
    X, _ = vw.read_table(path, schema)
    assert X["dose"].tolist()[:3] == [0.25, 1.25, 2.25]
    assert X["height"].tolist()[:2] == [150.5, 151.5]
    path.write_text(path.read_text().replace("1,25", "1.25", 1))
    (misfit,) = check_files(path, schema).violations
    assert (misfit.column, misfit.rows) == ("dose", 1)
    for wrong in ({"dose": ";"}, {3: ","}, ["dose"], {"dose": [","]}):
        with rejects(SchemaError, raised_in="Dialect.__post_init__"):
            Dialect.from_dict({"decimals": wrong})
    signs: Any = schema.dialect.decimals
    assert copy.deepcopy(signs) == pickle.loads(pickle.dumps(signs)) == {"dose": ","}
    for change in (lambda: signs.update(height=","), lambda: signs.__setitem__("height", ","), signs.clear):
        with pytest.raises(TypeError, match="is immutable"):
            change()
