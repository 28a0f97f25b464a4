# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_relations.py and other tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest

import veilwood as vw
from veilwood.data.batches import Source
from veilwood.data.encoding import Encoding
from veilwood.privacy.neighbours import RowsOf

duckdb = pytest.importorskip("duckdb")


SCHEMA = vw.Schema.from_dict({
    "name": "visits", "task": "classification", "target": "ill", "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
        {"name": "ward", "kind": "categorical", "values": ["a", "b", "7"]},
        {"name": "ill", "kind": "categorical", "values": [0, 1]},
    ],
})  # fmt: skip


ENCODING = Encoding(SCHEMA)


N = 1000


CAP = RowsOf("person", at_most=2)


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    age = [None if row % 31 == 0 else round(float(value), 2) for row, value in enumerate(rng.uniform(0, 100, N))]
    ward, ill = rng.choice(["a", "b", "7"], N).tolist(), rng.integers(0, 2, N).tolist()
    return pa.table({"age": age, "ward": ward, "ill": ill, "person": [f"p{row % 300}" for row in range(N)]})


def without_people() -> pa.Table:
    return table().drop_columns("person")


def contents(source: Source) -> tuple[list[Any], list[Any]]:
    batches = list(source.batches())
    return [row for batch in batches for row in batch.codes.tolist()], [y for batch in batches for y in batch.target]


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
    deltalake.write_deltalake(folder / "delta", pa.concat_tables([rows, with_deleted(rows)]))
    deltalake.DeltaTable(folder / "delta").delete("age = 99.5")
    return folder / "delta"


def as_iceberg(rows: pa.Table, folder: Path) -> Any:
    catalogues = pytest.importorskip("pyiceberg.catalog.sql")
    catalogue = catalogues.SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
    catalogue.create_namespace("clinic")
    lake = catalogue.create_table("clinic.visits", schema=rows.schema)
    lake.append(pa.concat_tables([rows, with_deleted(rows)]))
    lake.delete("age = 99.5")
    return folder / "clinic" / "visits"


def with_deleted(rows: pa.Table) -> pa.Table:
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


FORMS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "duckdb": as_duckdb, "lazy": as_lazy, "scanner": as_scanner, "sqlite": as_sqlite, "sqlalchemy": as_sqlalchemy,
    "duckdb query": as_duckdb_query, "delta": as_delta, "iceberg": as_iceberg, "paths": as_paths, "tsv": as_tsv,
}  # fmt: skip
