# SPDX-License-Identifier: Apache-2.0
"""Tests of the sources: the same batches from memory and from files, pass after pass, and a fair cap by id."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest

from veilwood.data.batches import Source
from veilwood.data.columns import Column
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema
from veilwood.data.tables import feature_batches, read_features, read_table
from veilwood.errors import OutOfSchemaError, VeilwoodError
from veilwood.privacy.neighbours import Rows, RowsOf

SCHEMA = Schema(
    "shop",
    "classification",
    Column("class", "categorical", values=("0", "1")),
    (
        Column("code", "categorical", values=("NA", "?", "null", "7")),
        Column("size", "numeric", lower=0, upper=10, nullable=True),
    ),
)
ENCODING = Encoding(SCHEMA)
N = 1000


def make_frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    size = rng.uniform(0, 10, N).round(3)
    size[::50] = np.nan
    code = rng.choice(["NA", "?", "null", "7"], N).astype(object)
    return pd.DataFrame({"size": size, "class": rng.integers(0, 2, N), "code": code})


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.name.endswith((".csv", ".csv.gz")):
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=300)
    else:
        pa.feather.write_feather(frame, str(path))
    return path


def contents(source: Source) -> tuple[list[Any], list[Any]]:
    batches = list(source.batches())
    return np.concatenate([b.codes for b in batches]).tolist(), np.concatenate([b.target for b in batches]).tolist()


EXPECTED = contents(open_rows(make_frame(), None, ENCODING))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.arrow", "a.feather", "A.CSV"])
def test_files_give_what_memory_gives(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write(make_frame(), path) if name != "A.CSV" else make_frame().to_csv(path, index=False)
    source = open_rows(path, None, ENCODING, batch_rows=128)
    assert contents(source) == EXPECTED
    assert max(len(batch.codes) for batch in source.batches()) <= 128


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_passes_agree_in_rows_and_numbering(tmp_path: Path, kind: str) -> None:
    X: Any = write(make_frame(), tmp_path / "a.parquet") if kind == "file" else make_frame()
    source = open_rows(X, None, ENCODING, batch_rows=130)
    first, second = list(source.batches()), list(source.batches())
    assert len(first) > 1
    for one, two in zip(first, second, strict=True):
        assert one[2:] == two[2:]
        np.testing.assert_array_equal(one.codes, two.codes)
        np.testing.assert_array_equal(one.target, two.target)
    rows = [batch.first_row + i for batch in first for i in range(len(batch.codes))]
    assert rows == list(range(N))


def test_folders_globs_and_datasets(tmp_path: Path) -> None:
    frame = make_frame()
    (tmp_path / "sub").mkdir()
    write(frame[:400], tmp_path / "a.csv.gz")
    write(frame[400:700], tmp_path / "b.parquet")
    write(frame[700:], tmp_path / "sub" / "c.arrow")
    (tmp_path / "README.txt").write_text("not a table")
    folder = open_rows(tmp_path, None, ENCODING)
    assert contents(folder) == EXPECTED
    assert {(b.partition, b.first_row) for b in folder.batches()} >= {(0, 0), (1, 0), (2, 0)}
    assert contents(open_rows(str(tmp_path / "[ab].*"), None, ENCODING))[1] == EXPECTED[1][:700]
    write(frame, tmp_path / "all.parquet")
    dataset = pa.dataset.dataset(tmp_path / "all.parquet")
    assert contents(open_rows(dataset, None, ENCODING)) == EXPECTED
    some = dataset.filter(pa.dataset.field("class") == 1)
    assert contents(open_rows(some, None, ENCODING))[1] == [1] * sum(EXPECTED[1])


def test_the_target_may_come_apart_and_as_numbers_or_texts() -> None:
    frame = make_frame()
    y = frame.pop("class")
    assert contents(open_rows(pl.from_pandas(frame), y.astype(str), ENCODING)) == EXPECTED
    assert contents(open_rows(frame, y.astype(float).tolist(), ENCODING)) == EXPECTED
    assert contents(open_rows(frame[["code", "size"]].to_numpy(), y, ENCODING, unit=Rows(3))) == EXPECTED


@pytest.mark.parametrize(
    ("text", "says", "column"),
    [
        ("code,size,class\n7,x,1\n", "column 'size' (should hold numbers|has a cell that is not a number)", "size"),
        ("code,size,class\n7,1\n", "more or fewer cells than the header", None),
        ("", "[Ee]mpty", None),
        ("code,class\n7,1\n", "no column 'size'", "size"),
        ("code,size\n7,1\n", "no column 'class'", "class"),
        ("code,size,class,more\n7,1,1,1\n", "'more' that the schema does not", "more"),
        ("code,size,class\n", "holds no rows|0 sample", None),
        ("code,size,class\n,1,1\n", "'code' has a missing value", "code"),
        ("code,size,class\n8,1,1\n", "'code' has a value that is not one of its 4 declared values", "code"),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, text: str, says: str, column: str | None) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(OutOfSchemaError, match=says) as caught:
        list(open_rows(path, None, ENCODING).batches())
    assert caught.value.column == column
    assert "\n" not in str(caught.value)
    if "value" not in says:
        with pytest.raises(OutOfSchemaError, match=says):
            read_table(path, SCHEMA)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.csv.gz", "x.txt", "missing.csv", "x.csv"])
def test_not_a_table(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name != "missing.csv":
        path.write_bytes(b"\xff\xfe hello")
    with pytest.raises(OutOfSchemaError, match=name):
        read_table(path, SCHEMA)


def test_target_must_come_from_one_place(tmp_path: Path) -> None:
    frame = make_frame()
    path = write(frame, tmp_path / "a.csv")
    with pytest.raises(OutOfSchemaError, match="beside a file"):
        open_rows(path, frame["class"], ENCODING)
    with pytest.raises(OutOfSchemaError, match="requires y to be passed, but the target y is None"):
        open_rows(frame.drop(columns="class"), None, ENCODING)
    with pytest.raises(OutOfSchemaError, match="inconsistent numbers of samples"):
        open_rows(frame, frame["class"][1:], ENCODING)


# -- at most k rows of an id ----------------------------------------------------------------------------

ID_SCHEMA = Schema.numeric((0, 65534), classes=[0, 1], names=["row"])
ID_ENCODING = Encoding(
    Schema("r", "classification", ID_SCHEMA.target, (Column("row", "numeric", lower=0, upper=65535),))
)


def visits(ids: Any) -> pd.DataFrame:
    return pd.DataFrame({"row": np.arange(len(ids)) + 0.5, "who": ids, "target": 0})


def kept_rows(source: Source) -> list[int]:
    return [int(code) for batch in source.batches() for code in batch.codes[:, 0]]


@pytest.mark.parametrize("kind", ["memory", "csv", "folder"])
@pytest.mark.parametrize("at_most", [1, 3])
def test_cap_keeps_at_most_k_rows_of_an_id(tmp_path: Path, kind: str, at_most: int) -> None:
    ids = np.random.default_rng(0).integers(0, 60, 500)
    frame = visits(ids)
    X: Any = frame
    if kind == "csv":
        X = write(frame, tmp_path / "v.csv")
    elif kind == "folder":  # the same ids as text, int and float: one person is one person
        write(frame[:200], tmp_path / "a.csv")
        write(frame[200:300], tmp_path / "b.parquet")
        write(frame[300:].astype({"who": float}), tmp_path / "c.arrow")
        X = tmp_path
    source = open_rows(X, None, ID_ENCODING, unit=RowsOf("who", at_most=at_most), batch_rows=64)
    kept = kept_rows(source)
    assert kept == sorted(set(kept))
    counts = Counter(ids[kept].tolist())
    assert counts == {who: min(at_most, n) for who, n in Counter(ids.tolist()).items()}
    assert kept_rows(source) == kept, "every pass must keep the same rows"
    numbered = [(b.partition, b.first_row + i) for b in source.batches() for i in range(len(b.codes))]
    assert len(set(numbered)) == len(kept)


def test_cap_chooses_at_random() -> None:
    unit = RowsOf("who", at_most=1)
    frame = visits(np.repeat(np.arange(2000), 4))
    chosen = np.array(kept_rows(open_rows(frame, None, ID_ENCODING, unit=unit))) % 4
    counts = np.bincount(chosen, minlength=4)
    assert counts.min() > 380  # 500 expected each, standard deviation 19
    again = np.array(kept_rows(open_rows(frame, None, ID_ENCODING, unit=unit))) % 4
    assert (chosen != again).any()


def test_cap_needs_ids(tmp_path: Path) -> None:
    unit = RowsOf("who", at_most=1)
    frame = visits(["a", None, "b"])
    with pytest.raises(OutOfSchemaError, match="'who' has a missing value"):
        open_rows(frame, None, ID_ENCODING, unit=unit)
    with pytest.raises(OutOfSchemaError, match="'who' has a missing value"):
        open_rows(write(frame, tmp_path / "v.csv"), None, ID_ENCODING, unit=unit)
    bare = frame.drop(columns="who")
    for X in (bare, write(bare, tmp_path / "w.csv")):
        with pytest.raises(OutOfSchemaError, match="no column 'who'"):
            open_rows(X, None, ID_ENCODING, unit=unit)
    with pytest.raises(OutOfSchemaError, match="no column 'who'"):
        open_rows([[1.0]], [0], ID_ENCODING, unit=unit)
    with pytest.raises(OutOfSchemaError, match="'who' that the schema does not"):
        open_rows(frame, None, ID_ENCODING)


# -- whole tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.feather"])
def test_read_table_gives_plain_values(tmp_path: Path, name: str) -> None:
    frame = make_frame()
    X, y = read_table(write(frame, tmp_path / name), SCHEMA)
    assert X.columns.tolist() == ["code", "size"]
    assert X.dtypes.tolist() == [object, np.float64]
    assert y.dtype == object
    assert y.name == "class"
    assert {type(v) for v in X["code"]} == {type(v) for v in y} == {str}
    assert X["code"].tolist() == frame["code"].tolist()
    assert y.tolist() == frame["class"].astype(str).tolist()
    pd.testing.assert_series_equal(X["size"], frame["size"])
    write(frame.drop(columns="class"), tmp_path / f"bare_{name}")
    pd.testing.assert_frame_equal(read_features(tmp_path / f"bare_{name}", SCHEMA), X)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_features_in_batches_are_those_of_the_whole_table(tmp_path: Path, name: str) -> None:
    path, encoding = write(make_frame(), tmp_path / name), Encoding(SCHEMA)
    batches = list(feature_batches(path, SCHEMA, ["size"], batch_rows=7))
    assert max(rows.n_rows for rows, _ in batches) <= 7
    codes = np.concatenate([encoding.encode(rows) for rows, _ in batches])
    np.testing.assert_array_equal(codes, encoding.encode(read_features(path, SCHEMA)))
    kept = pd.concat([kept for _, kept in batches], ignore_index=True)
    pd.testing.assert_frame_equal(kept, make_frame()[["size"]])


def test_read_table_of_a_regression(tmp_path: Path) -> None:
    schema = Schema.numeric((0, 1), target_bounds=(0, 9), names=["x"])
    (tmp_path / "r.csv").write_text("x,target\n0.5,3\n1,4\n")
    X, y = read_table(tmp_path / "r.csv", schema.to_dict())
    assert (X["x"].tolist(), y.tolist()) == ([0.5, 1.0], [3.0, 4.0])
    assert y.dtype == np.float64


@pytest.mark.parametrize("union", [False, True])
def test_files_behind_a_dataset_that_change_between_two_reads_are_refused(union: bool, tmp_path: Path) -> None:
    """A second read of other rows would count a person whose rows are capped in the first more often than planned."""
    path = tmp_path / "rows.feather"
    frame = pd.DataFrame({"x": [0.1, 0.2, 0.3], "y": ["a", "b", "a"]})
    pa.feather.write_feather(pa.Table.from_pandas(frame), path)
    dataset = pa.dataset.dataset(path, format="feather")
    if union:
        dataset = pa.dataset.UnionDataset(dataset.schema, [dataset])
    schema = Schema.from_dict({"name": "s", "task": "classification", "target": "y", "columns": [
        {"name": "x", "kind": "numeric", "lower": 0, "upper": 1},
        {"name": "y", "kind": "categorical", "values": ["a", "b"]}]})  # fmt: skip
    source = open_rows(dataset, None, Encoding(schema, "grid"))
    assert sum(len(batch.target) for batch in source.batches()) == 3
    pa.feather.write_feather(pa.Table.from_pandas(pd.concat([frame, frame])), path)
    with pytest.raises(VeilwoodError, match="changed while it was read"):
        list(source.batches())
