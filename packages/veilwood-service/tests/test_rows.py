# SPDX-License-Identifier: Apache-2.0
"""Rows of JSON to codes: the quick way and the long way say the same, for everything that JSON can write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("fastapi")

import veilwood as vw
from veilwood.errors import OutOfSchemaError, ParameterError, VeilwoodError
from veilwood_service.predictions import RowEncoder, parse_csv_rows, rows_to_frame
from veilwood_testing.errors import rejects

SCHEMA = vw.Schema.from_dict(
    {
        "name": "visits",
        "columns": [
            {"name": "ward", "kind": "categorical", "values": ["A", "B", "1"]},
            {"name": "beds", "kind": "categorical", "values": ["2", "4", "more"], "nullable": True},
            {"name": "age", "kind": "numeric", "lower": 0, "upper": 120},
            {"name": "weight", "kind": "numeric", "lower": -5.5, "upper": 300, "nullable": True},
            {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
        ],
        "target": "ill",
        "task": "classification",
    }
)
PLAIN = {"ward": "A", "beds": "2", "age": 31, "weight": 70.5}
CELLS: list[Any] = [
    "A", "B", "1", 1, 1.0, True, None, "2", 2, 2.0, "more", " A", "", "nan", [], {}, -1, 0, 120, 1e308, -1e308,
    2**53, 2**53 + 1, 10**400, "31", "0.5", "31 years", 0.1, "é", "x" * 10_000,
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    rows = [{**PLAIN, "ill": "no"}] * 20
    return vw.RandomTreesClassifier(SCHEMA, epsilon=1, n_estimators=2, max_depth=2).fit(pd.DataFrame(rows))


def coded(encode: Any, rows: list[dict[str, Any]]) -> Any:
    try:
        return encode(rows).tolist()
    except VeilwoodError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", PLAIN)
def test_both_ways_say_the_same(model: Any, name: str) -> None:
    codes = RowEncoder(model)
    for cell in CELLS:
        for rows in ([{**PLAIN, name: cell}], [PLAIN, {**PLAIN, name: cell}], [{**PLAIN, name: cell}, PLAIN]):
            assert coded(codes.encode, rows) == coded(
                lambda rows: model._encode_rows(rows_to_frame(rows, SCHEMA)), rows
            ), (
                name,
                cell,
            )


def test_plain_rows_go_the_quick_way_and_others_do_not(model: Any) -> None:
    codes = RowEncoder(model)
    assert codes._code_tables is not None
    assert codes._encode_plain_rows([PLAIN, {**PLAIN, "beds": None, "ward": 1}], codes._code_tables) is not None
    for odd in ({**PLAIN, "more": 1}, {"ward": "A"}, {**PLAIN, "age": None}, {**PLAIN, "ward": "C"}, {}):
        assert codes._encode_plain_rows([PLAIN, odd], codes._code_tables) is None
    assert codes._encode_plain_rows([], codes._code_tables) is None
    rows = [PLAIN] * 3
    np.testing.assert_array_equal(codes.encode(rows), model._encode_rows(rows_to_frame(rows, SCHEMA)))


def test_texts_of_numbers_are_read_as_in_files(model: Any) -> None:
    """A CSV file holds texts alone: its numbers had been refused."""
    body = "\ufeffage,ward,weight,beds,ill,\n31,A,70.5,2,no,\n 8 ,B,,,yes,\n".encode()
    meant = [
        {"age": 31, "ward": "A", "weight": 70.5, "beds": "2"},
        {"age": 8, "ward": "B", "weight": None, "beds": None},
    ]
    rows = parse_csv_rows(body, SCHEMA)
    for row in rows:
        assert row.pop("") is None
    np.testing.assert_array_equal(RowEncoder(model).encode(rows), RowEncoder(model).encode(meant))
    with rejects(OutOfSchemaError, column="age", problems=(("age", "not a number"),)):
        RowEncoder(model).encode([{**PLAIN, "age": "thirty"}])


def test_files_are_read_by_the_dialect_of_the_schema(model: Any) -> None:
    dialect = {"sep": ";", "decimal": ",", "thousands": ".", "encoding": "latin-1", "nulls": ["fehlt"]}
    german = vw.Schema.from_dict({**SCHEMA.to_dict(), "dialect": dialect})
    rows = parse_csv_rows("ward;beds;age;weight;größe\nA;fehlt;31;70,5;1\nB;2;7;fehlt;2\n".encode("latin-1"), german)
    assert [row["größe"] for row in rows] == ["1", "2"]
    found = rows_to_frame(rows, german)
    assert found["age"].tolist() == [31, 7]
    assert found["weight"].tolist() == [70.5, None]
    assert found["beds"].tolist() == [None, "2"]
    with rejects(ParameterError, name="table"):
        parse_csv_rows(b'ward;beds\n"A;2\n', german)
