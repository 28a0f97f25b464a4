# SPDX-License-Identifier: Apache-2.0
"""Numbers among texts: limits, missing values, two decimal signs, alike in every kind of table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

import veilwood as vw
from veilwood.data.columns import Column
from veilwood.data.dialect import Dialect
from veilwood.data.encoding import Encoding
from veilwood.data.file_source import check_files
from veilwood.data.numbers import read_mixed_numbers
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError, SchemaError

CELLS = ["37,2", "37.2", "<0,6", "> 200", "n.a.", "", "hoch", "5", "1.234", "nan", "-1", "<", "<x"]
NUMBERS = {
    "limit": [37.2, 37.2, 0.6, 200, None, None, None, 5, 1.234, None, -1, None, None],
    "missing": [37.2, 37.2, None, None, None, None, None, 5, 1.234, None, -1, None, None],
}


def schema_of(rule: str | None, decimal: str = "either", **more: Any) -> Schema:
    dialect = {"sep": ";", "decimals": {"crp": decimal}} | more
    crp = {"name": "crp", "kind": "numeric", "lower": 0, "upper": 100}
    crp |= {} if rule is None else {"texts": rule, "nullable": True}
    columns = [crp, {"name": "sex", "kind": "categorical", "values": ["F", "M"], "aliases": {"f": "F", "M ": "M"}},
               {"name": "ill", "kind": "categorical", "values": ["no", "yes"], "aliases": {"No": "no"}}]  # fmt: skip
    return Schema.from_dict(
        {"name": "lab", "task": "classification", "target": "ill", "dialect": dialect, "columns": columns}
    )


def table_of() -> pd.DataFrame:
    n = len(CELLS)
    sex, ill = ["F", "f", "M", "M "] * n, ["no", "yes", "No"] * n
    return pd.DataFrame({"crp": CELLS, "sex": sex[:n], "ill": ill[:n]}, dtype=object)


def codes_of(numbers: list[Any]) -> list[int]:
    encoding = Encoding(schema_of("missing"))
    frame = table_of().assign(crp=[np.nan if number is None else number for number in numbers])
    return encoding.encode(frame.drop(columns="ill"))[:, 0].tolist()


@pytest.mark.parametrize("rule", ["limit", "missing"])
@pytest.mark.parametrize(
    "kind", ["csv", "drop", "money", "pandas", "string", "polars", "arrow", "parquet", "categorical", "excel"]
)
def test_texts_count_by_the_rule_in_every_kind_of_table(tmp_path: Path, rule: str, kind: str) -> None:
    schema, table = schema_of(rule, money=kind == "money"), table_of()
    rows: Any = tmp_path / f"t.{ {'parquet': 'parquet', 'excel': 'xlsx'}.get(kind, 'csv') }"
    match kind:
        case "pandas":
            rows = table
        case "string":
            rows = table.astype({"crp": "string"})
        case "polars":
            rows = polars.from_pandas(table)
        case "arrow":
            rows = pa.Table.from_pandas(table)
        case "categorical":
            rows = table.astype({"crp": "category"})
        case "parquet":
            table.to_parquet(rows)
        case "excel":
            pytest.importorskip("openpyxl")
            table.to_excel(rows, index=False)
        case _:
            table.to_csv(rows, index=False, sep=";")
    source = open_rows(rows, None, Encoding(schema), invalid="drop" if kind == "drop" else "refuse")
    (batch,) = source.batches()
    assert batch.codes[:, 0].tolist() == codes_of(NUMBERS[rule])
    assert batch.codes[:, 1].tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0]
    assert batch.target.tolist() == [0, 1, 0] * 4 + [0]


def test_without_a_rule_texts_are_refused(tmp_path: Path) -> None:
    table_of().to_csv(tmp_path / "t.csv", index=False, sep=";")
    with pytest.raises(OutOfSchemaError) as caught:
        open_rows(tmp_path / "t.csv", None, Encoding(schema_of(None))).batches().__next__()
    assert ("crp", "not a number") in caught.value.problems


def test_read_table_reads_by_the_rule_and_an_estimator_reads_that_again(tmp_path: Path) -> None:
    table_of().to_csv(tmp_path / "t.csv", index=False, sep=";")
    X, y = vw.read_table(tmp_path / "t.csv", schema_of("limit"))
    expected = [np.nan if number is None else number for number in NUMBERS["limit"]]
    np.testing.assert_array_equal(X["crp"], expected)
    assert y.tolist() == ["no", "yes", "no"] * 4 + ["no"]
    assert Encoding(schema_of("limit")).encode(X)[:, 0].tolist() == codes_of(NUMBERS["limit"])


def test_a_column_of_texts_can_be_read_beside_its_numbers(tmp_path: Path) -> None:
    data = schema_of("limit").to_dict()
    words = {"name": "crp_text", "of": "crp", "kind": "categorical", "nullable": True}
    data["columns"].insert(1, words | {"values": ["n.a.", "hoch", "other"], "other": "other"})
    table_of().to_csv(tmp_path / "t.csv", index=False, sep=";")
    (batch,) = open_rows(tmp_path / "t.csv", None, Encoding(Schema.from_dict(data))).batches()
    assert batch.codes[:, 0].tolist() == codes_of(NUMBERS["limit"])
    assert batch.codes[:, 1].tolist() == [2, 2, 2, 2, 0, 3, 1, 2, 2, 2, 2, 2, 2]
    X, _ = vw.read_table(tmp_path / "t.csv", Schema.from_dict(data))
    np.testing.assert_array_equal(Encoding(Schema.from_dict(data)).encode(X), batch.codes)


def test_a_check_counts_missing_and_clamped_values(tmp_path: Path) -> None:
    table_of().to_csv(tmp_path / "t.csv", index=False, sep=";")
    checked = check_files(tmp_path / "t.csv", schema_of("limit"))
    assert checked.violations == []
    assert checked.counts["crp"] == {"missing": 6, "below": 1, "above": 1}


def test_the_sign_of_a_column_decides(tmp_path: Path) -> None:
    cells = pd.Series(["1,5", "2.5", "3"], dtype=object)
    for decimal, expected in {",": [1.5, np.nan, 3], ".": [np.nan, 2.5, 3], "either": [1.5, 2.5, 3]}.items():
        found, kinds = read_mixed_numbers(cells, Dialect(decimals={"x": decimal}).of("x"), limits=True)
        np.testing.assert_array_equal(found, expected)
        assert kinds is None
    assert Dialect(thousands=".", decimal=",", decimals={"x": "either"}).of("x").number("1.234") == "1.234"
    with pytest.raises(SchemaError):
        Dialect(decimal="either", thousands=".")
    for sign in ("or", 1, [","]):
        with pytest.raises(SchemaError):
            Dialect(decimals={"x": sign})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "wrong",
    [
        {"texts": "missing"}, {"texts": "zero", "nullable": True}, {"texts": ["limit"], "nullable": True},
        {"texts": "limit", "nullable": True, "part": "year"}, {"aliases": {"a": "b"}}, {"known_from": ""},
    ],
)  # fmt: skip
def test_rules_that_do_not_fit_a_column_of_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        Column("x", "numeric", lower=0, upper=1, **wrong)


def test_a_missing_value_is_no_alias() -> None:
    schema = schema_of("limit").to_dict()
    schema["columns"][1]["nullable"] = True
    frame = pd.DataFrame({"crp": [1.0, 2.0, 3.0], "sex": ["M ", None, "f"]})
    assert Encoding(Schema.from_dict(schema)).encode(frame)[:, 1].tolist() == [1, 2, 0]


@pytest.mark.parametrize("wrong", [{"m": "X"}, {"F": "M"}, {"": "M"}, {"m": 1}, ["m"], "m"])
def test_aliases_that_fit_no_category_are_refused(wrong: Any) -> None:
    with pytest.raises(SchemaError):
        Column("sex", "categorical", values=("F", "M"), aliases=wrong)
