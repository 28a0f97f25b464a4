# SPDX-License-Identifier: Apache-2.0
"""Tests of the codes: one row at a time, monotone, exactly invertible, the same from every kind of table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from veilwood.data.canonical import to_canonical_text
from veilwood.data.columns import Column
from veilwood.data.encoding import TARGET_LEVELS, Encoding, class_labels
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError
from veilwood_testing.encoding_cases import ILL, SCHEMA, encoding_of

FRAME = pd.DataFrame({"age": [0, 50, 150], "ward": ["A", "Z", "B"], "dose": [None, -0.25, 1.0], "n": [1.0, None, 2.0]})
CODES = [[0, 0, 65535, 0], [32767, 2, 24575, 2], [65534, 1, 65534, 1]]


def test_what_the_codes_mean() -> None:
    assert [(c.name, c.ordered, c.n_codes, c.missing_code) for c in Encoding(SCHEMA).columns] == [
        ("age", True, 65535, None),
        ("ward", False, 3, None),
        ("dose", True, 65536, 65535),
        ("n", False, 3, 2),
    ]


@pytest.mark.parametrize(
    "table",
    [
        FRAME,
        FRAME[["n", "dose", "ward", "age"]],
        FRAME.assign(ill="no"),
        FRAME.convert_dtypes(),
        FRAME.astype({"ward": "category", "n": "category"}),
        FRAME.astype(object),
        FRAME.set_axis([10, 20, 30], axis=0),
        pl.from_pandas(FRAME),
        pl.from_pandas(FRAME).with_columns(pl.col("ward").cast(pl.Categorical)),
        pl.from_pandas(FRAME).with_columns(pl.col("ward").cast(pl.Enum(["B", "Z", "A"]))),
        pa.Table.from_pandas(FRAME),
        pa.Table.from_pandas(FRAME).to_batches()[0],
        FRAME.to_numpy(),
        FRAME.to_numpy().tolist(),
        FRAME.set_axis([0, 1, 2, 3], axis=1),
    ],
)
def test_same_codes_from_every_table(table: Any) -> None:
    codes = Encoding(SCHEMA).encode(table)
    assert codes.dtype == np.uint16
    assert codes.flags.f_contiguous  # each column for itself
    assert codes.tolist() == CODES


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([True, 1, 1.0, "1", "True", False, 0, np.int64(1), np.True_]), min_size=1, max_size=8))
def test_a_row_is_encoded_by_itself(values: list[Any]) -> None:
    # True == 1 == 1.0 in a hash table: a shared table would let earlier rows decide the code of later ones.
    encoding = encoding_of(Column("x", "categorical", values=("True", "1", "False", "0")))
    column = np.empty((len(values), 1), dtype=object)
    column[:, 0] = values
    together = encoding.encode(column)
    alone = np.concatenate([encoding.encode(column[i : i + 1]) for i in range(len(values))])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(encoding.encode([[value] for value in values]), alone)


def test_array_blocks_agree_with_single_rows() -> None:
    X = np.random.default_rng(0).normal(size=(20_000, 2))
    encoding = Encoding(Schema.numeric((-2, 2), classes=[0, 1], n_features=2))
    codes = encoding.encode(X)
    pick = [0, 8191, 8192, 19_999]
    np.testing.assert_array_equal(codes[pick], np.concatenate([encoding.encode(X[[i]]) for i in pick]))
    np.testing.assert_array_equal(encoding.encode(np.asfortranarray(X)), codes)


def test_few_rows_of_a_frame_agree_with_many() -> None:
    """Small frames of floats are read at once, larger ones column by column."""
    columns = (
        Column("a", "numeric", lower=-2, upper=2, nullable=True),
        Column("b", "numeric", lower=0, upper=9),
        Column("c", "categorical", values=("0", "1", "2")),
    )
    encoding = Encoding(Schema("floats", "classification", ILL, columns))
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"b": rng.normal(4, 9, 5000), "ill": 0.0, "c": rng.integers(0, 3, 5000) * 1.0,
                          "a": rng.normal(0, 9, 5000)})  # fmt: skip
    frame.loc[::7, "a"] = np.nan
    frame.loc[::11, "b"] = -np.inf
    codes = encoding.encode(frame)
    np.testing.assert_array_equal(encoding.encode(frame[:300]), codes[:300])
    np.testing.assert_array_equal(encoding.encode(frame[77:78]), codes[77:78])
    for rows in (frame, frame[:300]):
        with pytest.raises(OutOfSchemaError, match="'b' has a missing value"):
            encoding.encode(rows.assign(b=np.nan))


@pytest.mark.parametrize(
    ("table", "says", "column"),
    [
        (FRAME.assign(age=pd.Series([1, None, 2])), "'age' has a missing value .*nullable", "age"),
        (FRAME.assign(ward=pd.Series(["A", None, "B"], dtype=object)), "'ward' has a missing value", "ward"),
        (FRAME.assign(n=["1", "2", "12"]), "'n' contains a value outside its 2 declared categories", "n"),
        (FRAME.assign(age=["1", "2", "x"]), "'age' must hold numbers but contains a value that is not one", "age"),
        (FRAME.assign(age=[1, 2, "x"]), "'age' must hold numbers but contains a value that is not one", "age"),
        (FRAME.assign(age=pd.Timestamp("2020-01-01")), "'age' must hold numbers", "age"),
        (FRAME.assign(salary=1), "'salary' that the schema does not", "salary"),
        (FRAME.rename(columns={"age": "agee"}), "no column 'age'. Did you mean 'agee'", "age"),
        (FRAME.iloc[:0], "0 sample", None),
        (FRAME.iloc[:, :0], r"0 feature\(s\) \(shape=\(, 0\)\) while a minimum of 1 is required.", None),
        (FRAME.rename(columns={"age": 5}), "some column names are texts", None),
        (pd.concat([FRAME, FRAME], axis=1), "two columns share a name.* 'age' 2 times", None),
        (np.zeros((2, 3)), "X has 3 features, but Tree is expecting 4 features as input", None),
        (np.zeros(3), "Expected 2D array, got 1D array instead", None),
        (np.zeros((2, 4), complex), "Complex data not supported", None),
        (sparse.eye_array(4).tocsr(), "sparse", None),
        ([[1, 2], [3]], "not all of the same length", None),
        (pl.LazyFrame({"age": [1]}), "lazy", None),
    ],
)
def test_tables_that_do_not_fit(table: Any, says: str, column: str | None) -> None:
    with pytest.raises(OutOfSchemaError, match=says) as caught:
        Encoding(SCHEMA).encode(table, estimator="Tree")
    assert caught.value.column == column


def test_question_mark_is_a_category_not_a_missing_value() -> None:
    encoding = encoding_of(Column("x", "categorical", values=("a", "?")))
    assert encoding.encode([["?"], ["a"]])[:, 0].tolist() == [1, 0]
    with pytest.raises(OutOfSchemaError, match="missing"):
        encoding.encode([[None], ["a"]])


def test_extra_columns_by_permission() -> None:
    table = FRAME.assign(patient=7)
    assert Encoding(SCHEMA).encode(table, allowed_extra={"patient"}).tolist() == CODES


def test_targets_of_classification() -> None:
    encoding = Encoding(SCHEMA)
    for y in (["no", "yes"], np.array(["no", "yes"]), pd.Series(["no", "yes"], index=[5, 6]), pl.Series(["no", "yes"])):
        assert encoding.encode_target(y).tolist() == [0, 1]
    assert encoding.encode_target(["yes"]).dtype == np.int32
    with pytest.warns(DataConversionWarning):
        encoding.encode_target(np.array([["no"], ["yes"]]))
    with pytest.raises(OutOfSchemaError, match="label outside the schema's: no, yes"):
        encoding.encode_target(["no", "yess"])
    with pytest.raises(OutOfSchemaError, match="missing"):
        encoding.encode_target(["no", None])


def test_targets_of_regression() -> None:
    encoding = Encoding(Schema.numeric((0, 1), target_bounds=(-10, 10), n_features=1))
    levels = encoding.encode_target([-99, -10, 0.0001, 10, 99])
    assert levels.tolist() == [0, 0, 32768, TARGET_LEVELS, TARGET_LEVELS]
    y = np.linspace(-10, 10, 999)
    error = np.abs(encoding.decode_target(encoding.encode_target(y)) - y)
    assert error.max() <= 10 / TARGET_LEVELS * (1 + 1e-9)
    for bad in (np.nan, np.inf):
        with pytest.raises(OutOfSchemaError):
            encoding.encode_target([0.0, bad])


@pytest.mark.parametrize(
    ("classes", "dtype"),
    [
        ((0, 1), np.int64),
        (np.array([0, 1], np.uint8), np.int64),
        ((-1, 1), np.int64),
        ((0.0, 1.0), np.float64),
        ((0, 1.5), np.float64),
        (np.array([0.1, 1], np.float32), np.float64),
        ((False, True), bool),
        (("0", "01"), object),
        (("0.0", "1.0"), object),
        (("no", "yes"), object),
        ((1, "a"), object),
        ((0, 2**63), object),
        ((0.5, 2**53 + 1), object),
        ((True, 1), object),
    ],
)
def test_labels_have_the_type_the_schema_declares(classes: Any, dtype: Any) -> None:
    schema = Schema.numeric((0, 1), classes=classes, n_features=1)
    found = class_labels(schema)
    assert found.dtype == dtype
    assert [to_canonical_text(label) for label in found] == list(schema.classes)
    again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert again == schema
    assert again.fingerprint() == schema.fingerprint()
    np.testing.assert_array_equal(class_labels(again), found)
    assert class_labels(again).dtype == dtype
    assert Encoding(schema).encode_target(found).tolist() == [0, 1]


def test_declared_texts_stay_as_they_are() -> None:
    schema = Schema.numeric((0, 1), classes=["1.0", "2.50"], n_features=1)
    assert class_labels(schema).tolist() == ["1.0", "2.50"]
    assert schema.classes == ("1", "2.5")
    assert schema.to_dict()["columns"][-1]["values"] == ["1.0", "2.50"]  # so that fingerprints of before hold
    whole, fractions = (Schema.numeric((0, 1), classes=kind, n_features=1) for kind in ([0, 1], [0.0, 1.0]))
    assert whole != fractions
    assert whole.fingerprint() != fractions.fingerprint()
