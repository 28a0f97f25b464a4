# SPDX-License-Identifier: Apache-2.0
"""Relations, queries and Arrow streams of other libraries give the same rows as memory, in every pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import OutOfSchemaError, UnreadableError, UseError
from veilwood_testing.errors import rejects
from veilwood_testing.processes import running_postgres
from veilwood_testing.tables import (
    ROW_FORMS,
    TWO_PER_PERSON,
    VISITS_ENCODING,
    VISITS_SCHEMA,
    ArrowStream,
    read_contents,
    visits_table,
    visits_without_ids,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


@contextmanager
def as_adbc(rows: pa.Table) -> Iterator[Any]:
    """A query over ADBC, of a PostgreSQL server."""
    dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
    with running_postgres() as address, dbapi.connect(address) as connection:
        with connection.cursor() as cursor:
            cursor.adbc_ingest("visits", rows.append_column("place", pa.array(range(len(rows)))))
        connection.commit()
        names = ", ".join(rows.column_names)
        yield vw.Query(f"SELECT {names} FROM visits ORDER BY place", connection)


EVERY = [pytest.param(form, marks=[pytest.mark.slow] * (form == "iceberg")) for form in ROW_FORMS]


@pytest.mark.parametrize("form", EVERY)
def test_rows_are_those_of_memory_in_every_pass(form: str, tmp_path: Path) -> None:
    source = open_rows(ROW_FORMS[form](visits_without_ids(), tmp_path), None, VISITS_ENCODING, batch_rows=300)
    wanted = read_contents(open_rows(visits_without_ids(), None, VISITS_ENCODING))
    assert not source.single_pass
    assert read_contents(source) == read_contents(source) == wanted


@pytest.mark.parametrize("form", EVERY)
def test_a_cap_by_id_holds(form: str, tmp_path: Path) -> None:
    source = open_rows(
        ROW_FORMS[form](visits_table(), tmp_path), None, VISITS_ENCODING, unit=TWO_PER_PERSON, batch_rows=300
    )
    codes, target = read_contents(source)
    assert len(codes) == 600  # 300 people have two rows each
    assert (codes, target) == read_contents(source)


@pytest.mark.parametrize("form", EVERY)
def test_rows_that_do_not_fit_are_dropped_and_no_value_is_shown(form: str, tmp_path: Path) -> None:
    rows = visits_without_ids().to_pandas()
    rows.loc[rows.index % 5 == 0, "ward"] = "SECRET"
    given = ROW_FORMS[form](pa.Table.from_pandas(rows, preserve_index=False), tmp_path)
    kept = open_rows(given, None, VISITS_ENCODING, invalid="drop", batch_rows=300)
    assert read_contents(kept) == read_contents(open_rows(rows[rows["ward"] != "SECRET"], None, VISITS_ENCODING))
    with rejects(OutOfSchemaError, column="ward", problems=(("ward", "unknown category"),)) as refusal:
        read_contents(open_rows(given, None, VISITS_ENCODING, batch_rows=300))
    assert "SECRET" not in str(refusal.value)


@pytest.mark.parametrize("form", EVERY)
def test_other_columns_are_refused_before_rows_are_read(form: str, tmp_path: Path) -> None:
    with rejects(OutOfSchemaError, column="person", raised_in="File.check_columns"):
        open_rows(ROW_FORMS[form](visits_table(), tmp_path), None, VISITS_ENCODING)


@pytest.mark.slow
def test_a_query_over_adbc_gives_rows_in_every_pass() -> None:
    wanted = read_contents(open_rows(visits_without_ids(), None, VISITS_ENCODING))
    with as_adbc(visits_table()) as query:
        plain = vw.Query(query.query.replace(", person", ""), query.connection)
        source = open_rows(plain, None, VISITS_ENCODING, batch_rows=300)
        assert read_contents(source) == read_contents(source) == wanted
        assert len(read_contents(open_rows(query, None, VISITS_ENCODING, unit=TWO_PER_PERSON))[0]) == 600
        with pytest.raises(UnreadableError, match="could not be read"):
            open_rows(vw.Query("SELECT 'x'::float8", query.connection), None, VISITS_ENCODING)


def test_words_of_other_libraries_are_not_shown(tmp_path: Path) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE visits AS SELECT 'SECRET' AS age, 'a' AS ward, 0 AS ill")
    with rejects(UnreadableError, raised_in="redact_errors_of") as refusal:
        read_contents(
            open_rows(connection.sql("SELECT age::DOUBLE AS age, ward, ill FROM visits"), None, VISITS_ENCODING)
        )
    assert "SECRET" not in str(refusal.value)
    with rejects(UnreadableError, raised_in="redact_errors_of") as refusal:
        open_rows(vw.Query("SELECT 'SECRET' FROM nowhere", sqlite3.connect(":memory:")), None, VISITS_ENCODING)
    assert "SECRET" not in str(refusal.value)


# -- types from the schema ----------------------------------------------------------------------------------


def test_cells_of_a_query_are_read_each_by_itself(tmp_path: Path) -> None:
    """SQLite has no types of columns: one odd cell must not change how others are read."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE visits (age, ward, ill)")
    rows = [(30, 7, 0), (31.5, "7.0", "1"), (2**62, "a", 1.0), ("many", "b", 0), (None, b"a", 0)]
    database.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)
    source = open_rows(vw.Query("SELECT * FROM visits", database), None, VISITS_ENCODING, invalid="drop")
    frame = pd.DataFrame(rows, columns=["age", "ward", "ill"], dtype=object)
    assert read_contents(source) == read_contents(open_rows(frame, None, VISITS_ENCODING, invalid="drop"))
    assert 3 <= len(read_contents(source)[0]) < 5


def test_a_driver_that_guesses_types_from_rows_is_refused() -> None:
    adbc = pytest.importorskip("adbc_driver_sqlite.dbapi")
    with adbc.connect() as connection, rejects(OutOfSchemaError, raised_in="_open_adbc"):
        open_rows(vw.Query("SELECT 1 AS age", connection), None, VISITS_ENCODING)


@pytest.mark.parametrize(
    "form",
    [
        "duckdb",
        "duckdb query",
        "duckdb json",
        "duckdb objects",
        "lazy",
        "lazy json",
        "arrow",
        "spool",
        "pandas",
        "pandas json",
    ],
)
def test_what_guesses_types_from_rows_while_it_is_read_is_refused(form: str, tmp_path: Path) -> None:
    """One row more made texts of all numbers: 01067 was 1067 before, and then was not."""
    duckdb = pytest.importorskip("duckdb").connect()
    csv, json = tmp_path / "rows.csv", tmp_path / "rows.ndjson"
    csv.write_text("a,y\n1,0\n")
    json.write_text('{"a": 1, "y": 0}\n')
    made: dict[str, Callable[[], Any]] = {
        "duckdb": lambda: duckdb.read_csv(str(csv)).filter("y >= 0"),
        "duckdb query": lambda: vw.Query(f"SELECT * FROM '{csv}'", duckdb),
        "duckdb json": lambda: duckdb.read_json(str(json)),
        "duckdb objects": lambda: duckdb.from_df(pd.DataFrame({"a": pd.Series([1, 2], dtype=object), "y": [0, 0]})),
        "lazy": lambda: pl.scan_csv(csv).filter(pl.col("y") >= 0),
        "lazy json": lambda: pl.scan_ndjson(json).join(pl.LazyFrame({"y": [0]}), on="y"),
        "arrow": lambda: pyarrow.csv.open_csv(csv),
        "spool": lambda: vw.spool(pyarrow.csv.open_csv(csv)),
        "pandas": lambda: pd.read_csv(csv, chunksize=10),
        "pandas json": lambda: pd.read_json(json, lines=True, chunksize=10),
    }
    with pytest.raises(OutOfSchemaError, match=r"types .*from (the|some of its) rows"):
        open_rows(made[form](), None, Encoding(VISITS_SCHEMA, "bins"))


def test_scanners_of_text_or_of_batches_are_refused(tmp_path: Path) -> None:
    pa.csv.write_csv(visits_without_ids(), tmp_path / "rows.csv")
    with rejects(OutOfSchemaError, raised_in="_check_fragment"):
        open_rows(pa.dataset.dataset(tmp_path / "rows.csv", format="csv").scanner(), None, VISITS_ENCODING)
    rows = visits_without_ids()
    once = pa.dataset.Scanner.from_batches(rows.to_batches(), schema=rows.schema)
    with rejects(UseError, raised_in="_open_scanner"):
        open_rows(once, None, VISITS_ENCODING)


# -- streams, and what keeps them ---------------------------------------------------------------------------


def test_a_list_of_texts_beside_a_target_is_a_list_of_rows() -> None:
    """Whether rows look like paths must not decide what is read."""
    batch = next(open_rows(["a", "b"], [0, 1], VISITS_ENCODING, invalid="drop").batches())
    assert len(batch.codes) == 0


def test_arrow_streams_are_read_once_unless_spooled() -> None:
    wanted = read_contents(open_rows(visits_without_ids(), None, VISITS_ENCODING))
    for stream in (ArrowStream(visits_without_ids()), visits_without_ids().to_reader(max_chunksize=77)):
        source = open_rows(stream, None, VISITS_ENCODING)
        assert source.single_pass
        assert read_contents(source) == wanted
    with rejects(UseError, raised_in="Source.check_passes"):
        vw.MedianForestClassifier(VISITS_SCHEMA).fit(ArrowStream(visits_without_ids()))
    spooled = open_rows(vw.spool(ArrowStream(visits_without_ids())), None, VISITS_ENCODING, batch_rows=300)
    assert not spooled.single_pass
    assert read_contents(spooled) == read_contents(spooled) == wanted
    assert vw.MedianForestClassifier(VISITS_SCHEMA, n_estimators=2, max_depth=2).fit(
        vw.spool(visits_without_ids().to_reader())
    )
