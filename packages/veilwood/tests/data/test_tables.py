# SPDX-License-Identifier: Apache-2.0
"""Whole tables for people: plain values, and features in batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.data.tables import read_feature_batches, read_table
from veilwood.errors import OutOfSchemaError
from veilwood_testing.tables import SHOP_SCHEMA, shop_frame, write_frame


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.csv.gz", "x.txt", "missing.csv", "x.csv"])
def test_not_a_table(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name != "missing.csv":
        path.write_bytes(b"\xff\xfe hello")
    with pytest.raises(OutOfSchemaError, match=name):
        read_table(path, SHOP_SCHEMA)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.feather"])
def test_read_table_gives_plain_values(tmp_path: Path, name: str) -> None:
    frame = shop_frame()
    X, y = read_table(write_frame(frame, tmp_path / name), SHOP_SCHEMA)
    assert X.columns.tolist() == ["code", "size"]
    assert X.dtypes.tolist() == [object, np.float64]
    assert y.dtype == object
    assert y.name == "class"
    assert {type(v) for v in X["code"]} == {type(v) for v in y} == {str}
    assert X["code"].tolist() == frame["code"].tolist()
    assert y.tolist() == frame["class"].astype(str).tolist()
    pd.testing.assert_series_equal(X["size"], frame["size"])
    write_frame(frame.drop(columns="class"), tmp_path / f"bare_{name}")
    pd.testing.assert_frame_equal(read_table(tmp_path / f"bare_{name}", SHOP_SCHEMA, target=False), X)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_features_in_batches_are_those_of_the_whole_table(tmp_path: Path, name: str) -> None:
    path, encoding = write_frame(shop_frame(), tmp_path / name), Encoding(SHOP_SCHEMA)
    batches = list(read_feature_batches(path, SHOP_SCHEMA, ["size"], batch_rows=7))
    assert max(rows.n_rows for rows, _ in batches) <= 7
    codes = np.concatenate([encoding.encode(rows) for rows, _ in batches])
    np.testing.assert_array_equal(codes, encoding.encode(read_table(path, SHOP_SCHEMA, target=False)))
    kept = pd.concat([kept for _, kept in batches], ignore_index=True)
    pd.testing.assert_frame_equal(kept, shop_frame()[["size"]])


def test_read_table_of_a_regression(tmp_path: Path) -> None:
    schema = Schema.numeric((0, 1), target_bounds=(0, 9), names=["x"])
    (tmp_path / "r.csv").write_text("x,target\n0.5,3\n1,4\n")
    X, y = read_table(tmp_path / "r.csv", schema.to_dict())
    assert (X["x"].tolist(), y.tolist()) == ([0.5, 1.0], [3.0, 4.0])
    assert y.dtype == np.float64
