# SPDX-License-Identifier: Apache-2.0
"""Small tables with their schemas, and the same rows in every container, file and dialect."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest

import veilwood as vw
from veilwood.data.batches import Source
from veilwood.data.columns import Column
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema
from veilwood.privacy.neighbours import RowsOf

VISITS_SCHEMA = vw.Schema.from_dict({
    "name": "visits", "task": "classification", "target": "ill", "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
        {"name": "ward", "kind": "categorical", "values": ["a", "b", "7"]},
        {"name": "ill", "kind": "categorical", "values": [0, 1]},
    ],
})  # fmt: skip


VISITS_ENCODING = Encoding(VISITS_SCHEMA)


N_ROWS = 1000


TWO_PER_PERSON = RowsOf("person", at_most=2)


def visits_table() -> pa.Table:
    rng = np.random.default_rng(0)
    age = [None if row % 31 == 0 else round(float(value), 2) for row, value in enumerate(rng.uniform(0, 100, N_ROWS))]
    ward, ill = rng.choice(["a", "b", "7"], N_ROWS).tolist(), rng.integers(0, 2, N_ROWS).tolist()
    return pa.table({"age": age, "ward": ward, "ill": ill, "person": [f"p{row % 300}" for row in range(N_ROWS)]})


def visits_without_ids() -> pa.Table:
    return visits_table().drop_columns("person")


def read_contents(source: Source) -> tuple[list[Any], list[Any]]:
    """Return the codes and targets of all rows, in order."""
    batches = list(source.batches())
    return [row for batch in batches for row in batch.codes.tolist()], [y for b in batches for y in b.target.tolist()]


def as_duckdb(rows: pa.Table, folder: Path) -> Any:
    return duckdb.connect().from_arrow(rows)


def as_lazy(rows: pa.Table, folder: Path) -> Any:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame.lazy()


def as_scanner(rows: pa.Table, folder: Path) -> Any:
    pa.parquet.write_table(rows, folder / "rows.parquet", row_group_size=300)
    return pa.dataset.dataset(folder / "rows.parquet").scanner(batch_size=77)


def as_sqlite(rows: pa.Table, folder: Path) -> Any:
    database = sqlite3.connect(folder / "rows.db")
    rows.to_pandas().to_sql("visits", database, index=False)
    return vw.Query("SELECT * FROM visits ORDER BY rowid", database)


def as_sqlalchemy(rows: pa.Table, folder: Path) -> Any:
    from sqlalchemy import create_engine

    as_sqlite(rows, folder)
    return vw.Query("SELECT * FROM visits ORDER BY rowid", create_engine(f"sqlite:///{folder / 'rows.db'}"))


def as_duckdb_query(rows: pa.Table, folder: Path) -> Any:
    connection = duckdb.connect()
    connection.register("visits", rows)
    return vw.Query("SELECT * FROM visits", connection)


def as_delta(rows: pa.Table, folder: Path) -> Any:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(folder / "delta", pa.concat_tables([rows, deleted_rows(rows)]))
    deltalake.DeltaTable(folder / "delta").delete("age = 99.5")
    return folder / "delta"


def as_iceberg(rows: pa.Table, folder: Path) -> Any:
    catalogues = pytest.importorskip("pyiceberg.catalog.sql")
    catalogue = catalogues.SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
    catalogue.create_namespace("clinic")
    lake = catalogue.create_table("clinic.visits", schema=rows.schema)
    lake.append(pa.concat_tables([rows, deleted_rows(rows)]))
    lake.delete("age = 99.5")
    return folder / "clinic" / "visits"


def deleted_rows(rows: pa.Table) -> pa.Table:
    """Rows that were deleted again: they lie in the files, and are in no table."""
    dead = rows.slice(0, 200).to_pandas().assign(age=99.5)
    return pa.Table.from_pandas(dead, schema=rows.schema, preserve_index=False)


def as_paths(rows: pa.Table, folder: Path) -> Any:
    pa.parquet.write_table(rows.slice(0, 400), folder / "one.parquet")
    pa.csv.write_csv(rows.slice(400), folder / "two.csv")
    return [folder / "one.parquet", str(folder / "two.csv")]


def as_tsv(rows: pa.Table, folder: Path) -> Any:
    pa.csv.write_csv(rows, folder / "rows.tsv", pa.csv.WriteOptions(delimiter="\t"))
    return folder / "rows.tsv"


ROW_FORMS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "duckdb": as_duckdb, "lazy": as_lazy, "scanner": as_scanner, "sqlite": as_sqlite, "sqlalchemy": as_sqlalchemy,
    "duckdb query": as_duckdb_query, "delta": as_delta, "iceberg": as_iceberg, "paths": as_paths, "tsv": as_tsv,
}  # fmt: skip


SHOP_SCHEMA = Schema(
    "shop",
    "classification",
    Column("class", "categorical", values=("0", "1")),
    (
        Column("code", "categorical", values=("NA", "?", "null", "7")),
        Column("size", "numeric", lower=0, upper=10, nullable=True),
    ),
)


SHOP_ENCODING = Encoding(SHOP_SCHEMA)


def shop_frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    size = rng.uniform(0, 10, N_ROWS).round(3)
    size[::50] = np.nan
    code = rng.choice(["NA", "?", "null", "7"], N_ROWS).astype(object)
    return pd.DataFrame({"size": size, "class": rng.integers(0, 2, N_ROWS), "code": code})


def write_frame(frame: pd.DataFrame, path: Path) -> Path:
    if path.name.endswith((".csv", ".csv.gz")):
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=300)
    else:
        pa.feather.write_feather(frame, str(path))
    return path


SHOP_CONTENTS = read_contents(open_rows(shop_frame(), None, SHOP_ENCODING))


ID_SCHEMA = Schema.numeric((0, 65534), classes=[0, 1], names=["row"])


ID_ENCODING = Encoding(
    Schema("r", "classification", ID_SCHEMA.target, (Column("row", "numeric", lower=0, upper=65535),))
)


def read_first_codes(source: Source) -> list[int]:
    return [int(code) for batch in source.batches() for code in batch.codes[:, 0]]


class ArrowStream:
    """Whatever speaks Arrow's protocol."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


GERMAN_SCHEMA = Schema.from_dict({"name": "s", "task": "classification", "target": "krank", "columns": [
    {"name": "größe", "kind": "numeric", "lower": 0, "upper": 10, "nullable": True},
    {"name": "kosten", "kind": "numeric", "lower": 0, "upper": 5000},
    {"name": "ort", "kind": "categorical", "values": ["Köln", "Bonn"], "nullable": True},
    {"name": "krank", "kind": "categorical", "values": ["ja", "nein"]}]})  # fmt: skip


def read_codes(path: Path, schema: Schema, invalid: Any = "refuse") -> list[Any]:
    (batch,) = open_rows(str(path), None, Encoding(schema), invalid=invalid).batches()
    return [batch.codes.tolist(), batch.target.tolist()]


PLAIN_CSV = "größe,kosten,ort,krank\n1.5,1234.5,Köln,ja\n,20,Bonn,nein\n-2,0.5,,ja\n"


GERMAN_CSV = "größe;kosten;ort;krank\n1,5;1.234,50 €;Köln;ja\nk.A.;€ 20;Bonn;nein\n-2,0;,5;k.A.;ja\n"


CLINIC_SCHEMA = vw.Schema.from_dict({
    "name": "clinic", "task": "classification", "target": "ill",
    "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 100},
        {"name": "ward", "kind": "categorical", "values": ["A", "B"]},
        {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    ],
})  # fmt: skip


def clinic_forest(**params: Any) -> Any:
    return vw.RandomTreesClassifier(CLINIC_SCHEMA, n_estimators=2, max_depth=2, random_state=0, **params)


def rejection_of(X: Any, y: Any = None, **params: Any) -> vw.OutOfSchemaError:
    with pytest.raises(vw.OutOfSchemaError) as caught:
        clinic_forest(**params).fit(X, y)
    return caught.value


def visible_text(error: BaseException) -> str:
    """All that a reader of a log could see."""
    return " ".join([str(error), repr(vars(error)), *getattr(error, "__notes__", ())])


INVALID_CSV = "age,ward,ill\n31,A,no\nold,C,maybe\n,Anna,yes\n"


_MESSY_PATH = Path(__file__).parents[2] / "examples" / "messy_table.py"


_MESSY_SPEC = importlib.util.spec_from_file_location("messy_table", _MESSY_PATH)


assert _MESSY_SPEC is not None


assert _MESSY_SPEC.loader is not None


messy_example: Any = importlib.util.module_from_spec(_MESSY_SPEC)


_MESSY_SPEC.loader.exec_module(messy_example)


FIRST_NAMES: list[str] = messy_example.NAMES


SURNAMES: list[str] = messy_example.SURNAMES


NOTE_WORDS: list[str] = messy_example.WORDS


write_messy_table = messy_example.write_table


review_messy_table = messy_example.go_through
