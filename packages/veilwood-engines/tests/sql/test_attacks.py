# SPDX-License-Identifier: Apache-2.0
"""Attacks on counting in a database, each of which broke it once: settings of engines and columns, and odd cells."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pytest

import veilwood as vw
from veilwood.errors import OutOfSchemaError, UnreadableError, UseError
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.neighbours import RowsOf
from veilwood_testing.databases import count_in_database, schema_with_column
from veilwood_testing.errors import rejects

NUMBER = {"kind": "numeric", "lower": 0, "upper": 10, "bins": 10}
YEAR = {"kind": "numeric", "lower": 1900, "upper": 2100, "bins": 20, "part": "year", "nullable": True}
ONE_EACH = RowsOf("id", at_most=1)


@pytest.fixture(autouse=True)
def _one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilwood_engines.sql.source.secret_key", lambda: b"k" * 32)


def table_in(engine: str, folder: Path, columns: str, rows: Sequence[tuple[Any, ...]]) -> str:
    path = folder / f"t.{engine}"
    path.unlink(missing_ok=True)
    opened: Any = duckdb.connect(str(path)) if engine == "duckdb" else sqlite3.connect(path)
    opened.execute(f"CREATE TABLE t ({columns})")
    opened.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
    opened.commit()
    opened.close()
    return f"{engine}:///{path}#t"


@pytest.mark.parametrize(
    ("engine", "kind", "ids"),
    [
        ("duckdb", "VARCHAR COLLATE NOCASE", ["a", "A", "b"]),
        ("duckdb", "VARCHAR COLLATE NOACCENT", ["a", "\u00e4", "b"]),
        ("sqlite", "TEXT COLLATE NOCASE", ["a", "A", "b"]),
        ("sqlite", "TEXT COLLATE RTRIM", ["a", "a ", "b"]),
        ("sqlite", "TEXT COLLATE RTRIM", ["0", "-0 ", "b"]),  # which -0 is written as
        ("sqlite", "TEXT", ["7.0\x000", "7.0\x0000", "7.0\x00", "7.0"]),  # after which GLOB sees no more
    ],
)
def test_two_people_stay_two_whatever_a_column_takes_for_equal(
    engine: str, kind: str, ids: list[str], tmp_path: Path
) -> None:
    """Were they one, a row of the other would take the place of each that is removed: two rows move, not one."""
    rows = [(number + 0.5, 0, name) for number, name in enumerate(ids)]
    columns = f"x DOUBLE PRECISION, y BIGINT, id {kind}"
    every = count_in_database(table_in(engine, tmp_path, columns, rows), schema_with_column(NUMBER), ONE_EACH)
    assert every.sum() == len(ids)
    for gone in range(len(rows)):
        rest = rows[:gone] + rows[gone + 1 :]
        without = count_in_database(table_in(engine, tmp_path, columns, rest), schema_with_column(NUMBER), ONE_EACH)
        assert np.abs(every - without).sum() == 1


def joined_in(folder: Path, rows: Sequence[tuple[Any, ...]]) -> str:
    """A view of an old table with whole numbers as ids and a new one with texts, which SQLite compares as numbers."""
    path = folder / "joined.sqlite"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as opened:
        opened.execute("CREATE TABLE old (x REAL, y INTEGER, id INTEGER)")
        opened.execute("CREATE TABLE new (x REAL, y INTEGER, id TEXT)")
        opened.executemany("INSERT INTO new VALUES (?, ?, ?)", rows)
        opened.execute("CREATE VIEW t AS SELECT * FROM old UNION ALL SELECT * FROM new")
    opened.close()
    return f"sqlite:///{path}#t"


def test_two_people_stay_two_in_a_view_that_joins_numbers_and_texts(tmp_path: Path) -> None:
    rows = [(number + 0.5, 0, name) for number, name in enumerate(["0", "00", " 0", "7", "07", "7 "])]
    every = count_in_database(joined_in(tmp_path, rows), schema_with_column(NUMBER), ONE_EACH)
    assert every.sum() == len(rows)
    for gone in range(len(rows)):
        without = count_in_database(
            joined_in(tmp_path, rows[:gone] + rows[gone + 1 :]), schema_with_column(NUMBER), ONE_EACH
        )
        assert np.abs(every - without).sum() == 1


def test_categories_of_such_a_view_are_texts(tmp_path: Path) -> None:
    cells = ["007", "7", "07", "7.0", " 7", "0", "00", "-0", " 0"]
    columns = [{"name": "id", "kind": "categorical", "values": ["007", "0", "x"], "other": "x"},
               {"name": "y", "kind": "categorical", "values": [0, 1]}]  # fmt: skip
    facts = {"name": "o", "task": "classification", "target": "y", "ignore": ["x"], "columns": columns}
    address = joined_in(tmp_path, [(0.0, 0, cell) for cell in cells])
    assert count_in_database(address, vw.Schema.from_dict(facts)).sum(axis=1).tolist() == [1, 2, 6]


@pytest.mark.parametrize("name", ["veilwood_rows", "VEILWOOD_Cells"])
def test_a_table_with_the_name_of_a_temporary_one_is_refused(name: str, tmp_path: Path) -> None:
    """It was hidden by ours, and no row was counted."""
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as opened:
        opened.execute(f"CREATE TABLE {name} (x REAL, y INTEGER)")
    opened.close()
    with rejects(UseError, raised_in="_make_source"):
        count_in_database(f"sqlite:///{path}#{name}", schema_with_column(NUMBER))


def test_rows_that_an_engine_writes_alike_are_ranked_by_what_they_hold(server: str) -> None:
    """With 15 digits two floats have one hash; which of them was kept followed from other people's rows."""
    beside = [3.0, 2.9999999999999996]
    everyone = [(beside[i % 2], 0, person) for person in range(50) for i in range(20)]
    address = f"{server}&options=-c%20extra_float_digits%3D0#tied"
    found = []
    for newcomers in range(4):
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS tied; CREATE TABLE tied (x FLOAT8, y BIGINT, id BIGINT)")
            with connection.cursor().copy("COPY tied FROM STDIN") as copy:
                for row in [*everyone, *[(9.5, 0, -1)] * newcomers]:
                    copy.write_row(row)
        found.append(count_in_database(address, schema_with_column(NUMBER), ONE_EACH))
    assert [int(np.abs(other - found[0]).sum()) for other in found] == [0, 1, 1, 1]


def test_a_backslash_ends_no_quotes_in_a_database_that_reads_it_so(server: str) -> None:
    """An old setting of PostgreSQL, by which a category of the schema became a statement that wrote."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS slashed, victim; CREATE TABLE victim (a INT)")
        connection.execute("CREATE TABLE slashed (x TEXT, y BIGINT)")
        connection.execute("INSERT INTO slashed VALUES ('b', 0)")
    rest = "THEN 0 END AS f0, 0 AS t FROM slashed AS veilwood_table) a) b) SELECT 0, 0, 0, 0 FROM veilwood_in; "
    rest += "COMMIT; DROP TABLE victim; --"
    column = {"kind": "categorical", "values": ["b", f"\\' {rest}"]}
    address = f"{server}&options=-c%20standard_conforming_strings%3Doff#slashed"
    assert count_in_database(address, schema_with_column(column)).tolist() == [[1, 0], [0, 0]]
    with psycopg.connect(server, autocommit=True) as connection:
        assert connection.execute("SELECT COUNT(*) FROM victim").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("kind", "cells", "column"),
    [
        ("UHUGEINT", [1, 3], {"kind": "categorical", "values": ["1", "-1", "5"], "other": "5"}),
        ("TIMESTAMP_NS", [None, "2026-01-31 09:30:00"], YEAR),
    ],
)
def test_no_cell_of_a_rare_type_makes_a_statement_fail(
    kind: str, cells: list[Any], column: dict[str, Any], tmp_path: Path
) -> None:
    """Constants that the type cannot hold were converted only when a row came to them."""
    for n in (1, 2):
        address = table_in("duckdb", tmp_path, f"x {kind}, y BIGINT", [(cell, 0) for cell in cells[:n]])
        assert count_in_database(address, schema_with_column(column)).sum() == n


@pytest.mark.parametrize("unit", ["s", "ms", "us", "us UTC", "ns"])
def test_no_moment_is_out_of_range(unit: str, tmp_path: Path) -> None:
    """Arrow and Parquet can hold moments that DuckDB cannot turn into those of another unit, or into UTC."""
    moment = pa.timestamp(*unit.split())
    cells = pa.array([2**62, -(2**62), -(2**63), 2**63 - 2, 10**17, 0], pa.int64()).cast(moment)
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        database.register("given", pa.table({"x": cells, "y": [0] * len(cells)}))
        database.execute("CREATE TABLE t AS SELECT * FROM given")
    in_range = {"s": 1, "ms": 1, "ns": 6}.get(unit, 2)
    assert count_in_database(f"duckdb:///{tmp_path}/t.duckdb#t", schema_with_column(YEAR)).sum() == in_range


def test_no_decimal_becomes_zero_where_that_is_an_error(server: str) -> None:
    """Half of the smallest float has more digits than were compared; PostgreSQL refuses to round it to nothing."""
    half = "2.4703282292062327208828439643411068618252990130716238221279284125e-324"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS tiny; CREATE TABLE tiny (x NUMERIC, y BIGINT)")
        connection.cursor().executemany(
            "INSERT INTO tiny VALUES (%s, 0)", [(number,) for number in (half, f"-{half}", half[:-6] + "1e-324", "3")]
        )
    assert count_in_database(f"{server}#tiny", schema_with_column(NUMBER)).sum() == 4


def test_values_of_an_enum_are_in_no_message_and_decide_nothing(tmp_path: Path) -> None:
    """A type can be made of rows: its values were told, and one with a bracket had the table refused."""
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        database.execute("CREATE TYPE made AS ENUM (SELECT unnest(['1', '2', 'secret)']))")
        database.execute("CREATE TABLE t AS SELECT '1'::made AS x, 0::BIGINT AS y")
    address = f"duckdb:///{tmp_path}/t.duckdb#t"
    with rejects(OutOfSchemaError, column="x", raised_in="_numeric_expression") as refusal:
        count_in_database(address, schema_with_column(NUMBER))
    assert "secret" not in str(refusal.value)
    assert count_in_database(address, schema_with_column({"kind": "categorical", "values": ["1", "2"]})).sum() == 1


def test_a_collation_that_cannot_be_searched_refuses_nothing(server: str) -> None:
    """Nulls were fine; the first row with a text made the statement fail, and the fit with it."""
    column = {"kind": "categorical", "values": ["1", "rest"], "other": "rest", "nullable": True}
    with psycopg.connect(server, autocommit=True) as connection:
        try:
            connection.execute(
                "CREATE COLLATION alike (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this PostgreSQL has no ICU")
        connection.execute("CREATE TABLE alike_texts (x TEXT COLLATE alike, y BIGINT, id TEXT COLLATE alike)")
        for n, row in enumerate([(None, 0, "a"), ("1.0", 1, "A"), ("x", 1, "b")], 1):
            connection.execute("INSERT INTO alike_texts VALUES (%s, %s, %s)", row)
            assert count_in_database(f"{server}#alike_texts", schema_with_column(column), ONE_EACH).sum() == n
        connection.execute("CREATE TABLE alike_lists (x TEXT[], y BIGINT)")
        with rejects(OutOfSchemaError, column="x", raised_in="EncodedRows.for_table.<locals>.typed_column"):
            count_in_database(f"{server}#alike_lists", schema_with_column(column))


def test_a_table_that_cannot_be_read_is_noted_in_the_ledger(tmp_path: Path) -> None:
    """A cell that makes a view fail is told for nothing: whoever keeps the ledger must see that."""
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        database.execute("CREATE TABLE s AS SELECT 'x' AS x, 0 AS y; CREATE VIEW t AS SELECT x::DOUBLE AS x, y FROM s")
    ledger, address = MemoryLedger(), f"duckdb:///{tmp_path}/t.duckdb#t"
    forest = vw.RandomTreesClassifier(schema_with_column(NUMBER), n_estimators=1, max_depth=1, ledger=ledger)
    with pytest.raises(UnreadableError):
        forest.fit(address)
    assert [entry.state for entry in ledger.entries()] == ["cancelled"]
    good = vw.RandomTreesClassifier(schema_with_column(NUMBER), n_estimators=1, max_depth=1).fit([[1.0]], [0])
    with pytest.raises(UnreadableError):
        vw.evaluate(good, address, epsilon=1.0, ledger=ledger)
    assert [entry.state for entry in ledger.entries()] == ["cancelled", "cancelled"]
    assert ledger.spent.epsilon == 0


@pytest.mark.parametrize("read", ["read_csv('{0}')", "'{0}'", "read_json('{0}')"])
def test_views_of_text_files_are_refused(read: str, tmp_path: Path) -> None:
    """One row more made texts of all numbers: +7 was 7 before, and then was not."""
    ending = "json" if "json" in read else "csv"
    (tmp_path / f"rows.{ending}").write_text('{"x": 1, "y": 0}' if ending == "json" else "x,y\n1,0\n")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        database.execute(f"CREATE VIEW t AS SELECT * FROM {read.format(tmp_path / f'rows.{ending}')}")
    with rejects(OutOfSchemaError, raised_in="Session.column_types"):
        count_in_database(f"duckdb:///{tmp_path}/t.duckdb#t", schema_with_column(NUMBER))
