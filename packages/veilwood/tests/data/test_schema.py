# SPDX-License-Identifier: Apache-2.0
"""Tests of the public facts: what a schema accepts, refuses, forgets and infers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from veilwood.data.columns import Column
from veilwood.data.schema import Schema
from veilwood.errors import SchemaError, UndeclaredSchemaError
from veilwood_testing.errors import rejects

CLINIC: dict[str, Any] = {
    "name": "clinic",
    "task": "classification",
    "target": "ill",
    "rows": 4711,
    "class_counts": {"no": 4000, "yes": 711},
    "missing": {"age": 3},
    "notes": "private remark",
    "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 120, "bounds": "domain", "nullable": True},
        {"name": "pay", "kind": "numeric", "lower": 0, "upper": 1e6, "transform": "log1p", "bins": 4},
        {"name": "bmi", "kind": "numeric", "lower": 10, "upper": 60, "cutoffs": [18.5, 25, 30], "mrf_cutoffs": [20]},
        {"name": "ward", "kind": "categorical", "values": ["A", "B", "rest"], "other": "rest", "meaning": "floor"},
        {"name": "smoker", "kind": "categorical", "values": [True, False]},
        {"name": "grade", "kind": "categorical", "values": [1, 2.0, "3", 0.5]},
        {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    ],
}


def changed(column: str | None, **changes: Any) -> dict[str, Any]:
    """Return the clinic schema with keys of one column (or of the top) set, or removed where None."""
    data = copy.deepcopy(CLINIC)
    entry = data if column is None else next(c for c in data["columns"] if c["name"] == column)
    for key, value in changes.items():
        entry.pop(key, None)
        if value is not None:
            entry[key] = value
    return data


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    schema = Schema.from_dict(CLINIC)
    schema.save(tmp_path / "clinic.json")
    again = Schema.load(tmp_path / "clinic.json")
    assert again == schema
    assert again.fingerprint() == schema.fingerprint()
    assert Schema.resolve(str(tmp_path / "clinic.json")) == Schema.resolve(CLINIC) == Schema.resolve(schema) == schema


def test_private_facts_and_remarks_are_forgotten() -> None:
    text = json.dumps(Schema.from_dict(CLINIC).to_dict())
    for leak in ("4711", "711", "rows", "class_counts", "remark", "missing", "mrf_cutoffs", "domain", "floor"):
        assert leak not in text


def test_fingerprint_depends_on_facts_only() -> None:
    base = Schema.from_dict(CLINIC).fingerprint()
    assert Schema.from_dict(changed(None, rows=5, notes=None)).fingerprint() == base
    assert Schema.from_dict(changed("age", upper=121)).fingerprint() != base
    assert Schema.from_dict(changed("ill", values=["yes", "no"])).fingerprint() != base


def test_values_are_canonical_texts() -> None:
    by_name = {column.name: column for column in Schema.from_dict(CLINIC).features}
    assert by_name["smoker"].values == ("True", "False")
    assert by_name["grade"].values == ("1", "2", "3", "0.5")
    assert by_name["smoker"].labels == (True, False)
    assert by_name["grade"].labels == ("1", "2", "3", "0.5")  # texts and numbers together are texts
    assert Column("n", "categorical", values=("1.0", "2"), other="1").to_dict()["other"] == "1.0"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (changed(None, columns=[]), "target 'ill' is not among"),
        (changed(None, columns=CLINIC["columns"][-1:]), "no feature columns"),
        (changed(None, columns="age"), "not a list"),
        (changed(None, columns=["age"]), "JSON object"),
        (changed(None, columns=None, colums=CLINIC["columns"]), "no 'columns'. It has 'colums'"),
        (changed(None, task="clustering"), "unknown task"),
        (changed(None, target="il"), "Did you mean 'ill'"),
        (changed(None, target="age"), "needs a categorical"),
        (changed(None, task="regression"), "needs a numeric"),
        (changed(None, columns=CLINIC["columns"] + CLINIC["columns"][:1]), "'age' appears twice"),
        (changed("ill", values=["yes"]), "one class"),
        (changed("ill", nullable=True), "'nullable' is for features"),
        (changed("ward", values=[], other=None), "no values"),
        (changed("ward", values="ABC"), "not a list"),
        (changed("ward", values=["A", "A", "rest"]), "appears twice"),
        (changed("grade", values=[1, "1"]), "1 and '1' are one category"),
        (
            changed("grade", values=["250.1", "x", "250.10"]),
            "'250.1' and '250.10' are one category.*letter before codes",
        ),
        (changed("grade", values=[True, "true"]), "one category"),
        (changed("grade", values=[1, float("nan")]), "not finite"),
        (changed("grade", values=[1, float("inf")]), "not finite"),
        (changed("ward", values=["A", None]), "neither text nor number"),
        (changed("ward", values=["", "rest"]), "empty text"),
        (changed("ward", other="else"), "not one of its values"),
        (changed("ward", lower=0), "belongs to numeric"),
        (changed("ward", values=None, value=["A"]), "no 'values'. It has 'value'"),
        (changed("ward", kind="text"), "unknown kind 'text'"),
        (changed("age", kind=None, knd="numeric"), "no 'kind'"),
        (changed("age", lower=None), "no 'lower'"),
        (changed("age", lower=120), "not below"),
        (changed("age", lower=130), "not below"),
        (changed("age", lower=float("nan")), "finite"),
        (changed("age", upper=float("inf")), "finite"),
        (changed("age", lower=-1e308, upper=1e308), "cannot be divided"),
        (changed("age", lower="0"), "not a number"),
        (changed("age", values=["x"]), "belongs to categorical"),
        (changed("age", nulable=True, nullable=None), "Did you mean 'nullable'"),
        (changed("age", nullable="yes"), "true or false"),
        (changed("pay", transform="log"), "unknown transform"),
        (changed("pay", lower=-2), "not defined"),
        (changed("pay", bins=0), "bins=0"),
        (changed("pay", bins=2.5), "bins=2.5"),
        (changed("pay", cutoffs=[10]), "keep one"),
        (changed("bmi", cutoffs=[25, 25]), "increase strictly"),
        (changed("bmi", cutoffs=[30, 20]), "increase strictly"),
        (changed("bmi", cutoffs=[10]), "increase strictly"),
        (changed("bmi", cutoffs=[60]), "increase strictly"),
        (changed("bmi", cutoffs=3), "list of numbers"),
        (["not", "an", "object"], "JSON object"),
    ],
)
def test_mistakes_are_named(data: Any, says: str) -> None:
    with pytest.raises(SchemaError, match="(?s)" + says.replace("(", r"\(")):
        Schema.from_dict(data)


def test_files_that_are_no_schema(tmp_path: Path) -> None:
    with rejects(SchemaError, raised_in="Schema.load"):
        Schema.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{,}")
    with rejects(SchemaError, raised_in="Schema.load"):
        Schema.load(tmp_path / "bad.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with rejects(SchemaError, raised_in="Schema.load"):
        Schema.load(tmp_path / "binary.json")
    with rejects(SchemaError, raised_in="Schema.load"):
        Schema.load(tmp_path)


def test_no_schema_says_what_to_do() -> None:
    with rejects(UndeclaredSchemaError, raised_in="Schema.resolve"):
        Schema.resolve(None)
    with rejects(SchemaError, raised_in="Schema.resolve"):
        Schema.resolve(3)  # type: ignore[arg-type]


def test_numeric_shortcut() -> None:
    schema = Schema.numeric((0, 1), classes=[0, 1], n_features=3)
    assert schema.feature_names == ("x0", "x1", "x2")
    assert schema.classes == ("0", "1")
    named = Schema.numeric(([0, 1], 5), target_bounds=(-1, 1), names=["a", "b"])
    assert [column.bounds for column in named.features] == [(0, 5), (1, 5)]
    assert named.task == "regression"
    for bad in [{"bounds": (0, 1)}, {"bounds": (0, 1), "classes": [0, 1], "target_bounds": (0, 1)}]:
        with rejects(SchemaError, raised_in="Schema.numeric"):
            Schema.numeric(**bad)  # type: ignore[arg-type]
    with rejects(SchemaError, raised_in="Schema.numeric"):
        Schema.numeric(([0, 1], [1, 2, 3]), classes=[0, 1])


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_infer_reads_and_says_so(make: Any) -> None:
    frame = make({"a": [1.0, None, 3.5], "b": ["u", "v", None], "c": [2, 2, 2], "d": [True, False, True]})
    schema = Schema.infer(frame, ["p", "q", "p"], "classification")
    a, b, c, d = schema.features
    assert a == Column("a", "numeric", lower=1.0, upper=3.5, nullable=True)
    assert b == Column("b", "categorical", values=("u", "v"), nullable=True)
    assert c.bounds == (2.0, 4.0)
    assert d.values == ("False", "True")
    assert schema.classes == ("p", "q")
    assert schema.inferred
    assert Schema.from_dict(schema.to_dict()).inferred, "the mark must survive saving"
    assert "NOT PRIVATE" in repr(schema)
    assert "NOT PRIVATE" in str(schema)


def test_infer_from_arrays() -> None:
    X = np.array([[1.0, np.inf, np.nan], [2.0, 5.0, np.nan]])
    schema = Schema.infer(X, np.array([0.5, 2.5]), "regression")
    assert schema.feature_names == ("x0", "x1", "x2")
    assert schema.features[1].bounds == (5.0, 10.0)
    assert schema.features[2].nullable
    assert schema.target.bounds == (0.5, 2.5)
    with rejects(SchemaError, raised_in="_infer_columns"):
        Schema.infer(X, [1, 1], "classification")
    with rejects(SchemaError, raised_in="_infer_columns"):
        Schema.infer(X, [0.5, 2.5], "classification")
    assert Schema.infer(X, [10, 9], "classification").classes == ("9", "10")
    assert Schema.infer(pd.DataFrame({"target": [1.0, 2.0]}), [0, 1], "classification").target.name == "target_"
