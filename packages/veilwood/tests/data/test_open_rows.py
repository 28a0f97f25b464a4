# SPDX-License-Identifier: Apache-2.0
"""Opening rows: the same batches from memory and from files, pass after pass."""

from __future__ import annotations

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

from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema
from veilwood.data.tables import read_table
from veilwood.errors import FileError, OutOfSchemaError
from veilwood.privacy.neighbours import Rows
from veilwood_testing.errors import rejects
from veilwood_testing.tables import (
    N_ROWS,
    SHOP_CONTENTS,
    SHOP_ENCODING,
    SHOP_SCHEMA,
    read_contents,
    shop_frame,
    write_frame,
)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.arrow", "a.feather", "A.CSV"])
def test_files_give_what_memory_gives(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_frame(shop_frame(), path) if name != "A.CSV" else shop_frame().to_csv(path, index=False)
    source = open_rows(path, None, SHOP_ENCODING, batch_rows=128)
    assert read_contents(source) == SHOP_CONTENTS
    assert max(len(batch.codes) for batch in source.batches()) <= 128


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_passes_agree_in_rows_and_numbering(tmp_path: Path, kind: str) -> None:
    X: Any = write_frame(shop_frame(), tmp_path / "a.parquet") if kind == "file" else shop_frame()
    source = open_rows(X, None, SHOP_ENCODING, batch_rows=130)
    first, second = list(source.batches()), list(source.batches())
    assert len(first) > 1
    for one, two in zip(first, second, strict=True):
        assert one[2:] == two[2:]
        np.testing.assert_array_equal(one.codes, two.codes)
        np.testing.assert_array_equal(one.target, two.target)
    rows = [batch.first_row + i for batch in first for i in range(len(batch.codes))]
    assert rows == list(range(N_ROWS))


def test_folders_globs_and_datasets(tmp_path: Path) -> None:
    frame = shop_frame()
    (tmp_path / "sub").mkdir()
    write_frame(frame[:400], tmp_path / "a.csv.gz")
    write_frame(frame[400:700], tmp_path / "b.parquet")
    write_frame(frame[700:], tmp_path / "sub" / "c.arrow")
    (tmp_path / "README.txt").write_text("not a table")
    folder = open_rows(tmp_path, None, SHOP_ENCODING)
    assert read_contents(folder) == SHOP_CONTENTS
    assert {(b.partition, b.first_row) for b in folder.batches()} >= {(0, 0), (1, 0), (2, 0)}
    assert read_contents(open_rows(str(tmp_path / "[ab].*"), None, SHOP_ENCODING))[1] == SHOP_CONTENTS[1][:700]
    write_frame(frame, tmp_path / "all.parquet")
    dataset = pa.dataset.dataset(tmp_path / "all.parquet")
    assert read_contents(open_rows(dataset, None, SHOP_ENCODING)) == SHOP_CONTENTS
    some = dataset.filter(pa.dataset.field("class") == 1)
    assert read_contents(open_rows(some, None, SHOP_ENCODING))[1] == [1] * sum(SHOP_CONTENTS[1])


@pytest.mark.parametrize(
    ("text", "says", "column"),
    [
        (
            "code,size,class\n7,x,1\n",
            "column 'size' (must contain numbers only|contains a value that is not a number)",
            "size",
        ),
        ("code,size,class\n7,1\n", "more or fewer values than the header", None),
        ("", "[Ee]mpty", None),
        ("code,class\n7,1\n", "no column 'size'", "size"),
        ("code,size\n7,1\n", "no column 'class'", "class"),
        ("code,size,class,more\n7,1,1,1\n", "'more' that the schema does not", "more"),
        ("code,size,class\n", "contains no rows|0 sample", None),
        ("code,size,class\n,1,1\n", "'code' has a missing value", "code"),
        ("code,size,class\n8,1,1\n", "'code' contains a value outside its 4 declared categories", "code"),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, text: str, says: str, column: str | None) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(OutOfSchemaError, match=says) as caught:
        list(open_rows(path, None, SHOP_ENCODING).batches())
    assert caught.value.column == column
    assert "\n" not in str(caught.value)
    if "value" not in says:
        with pytest.raises(OutOfSchemaError, match=says):
            read_table(path, SHOP_SCHEMA)


def test_target_must_come_from_one_place(tmp_path: Path) -> None:
    frame = shop_frame()
    path = write_frame(frame, tmp_path / "a.csv")
    with rejects(OutOfSchemaError, raised_in="Opener.check"):
        open_rows(path, frame["class"], SHOP_ENCODING)
    with rejects(OutOfSchemaError, column="class", raised_in="Encoding.read_rows"):
        open_rows(frame.drop(columns="class"), None, SHOP_ENCODING)
    with rejects(OutOfSchemaError, raised_in="encode_rows"):
        open_rows(frame, frame["class"][1:], SHOP_ENCODING)


# -- at most k rows of an id ----------------------------------------------------------------------------


# -- whole tables ---------------------------------------------------------------------------------------


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
    with rejects(FileError, raised_in="File._read_pieces"):
        list(source.batches())


def test_the_target_may_come_apart_and_as_numbers_or_texts() -> None:
    frame = shop_frame()
    y = frame.pop("class")
    assert read_contents(open_rows(pl.from_pandas(frame), y.astype(str), SHOP_ENCODING)) == SHOP_CONTENTS
    assert read_contents(open_rows(frame, y.astype(float).tolist(), SHOP_ENCODING)) == SHOP_CONTENTS
    assert read_contents(open_rows(frame[["code", "size"]].to_numpy(), y, SHOP_ENCODING, unit=Rows(3))) == SHOP_CONTENTS
