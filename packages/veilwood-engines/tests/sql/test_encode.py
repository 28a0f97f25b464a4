# SPDX-License-Identifier: Apache-2.0
"""What a database does with single rows: every type as in memory; nothing fails, is shown or is written."""

from __future__ import annotations

import datetime
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psycopg
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import OutOfSchemaError, UseError
from veilwood.privacy.neighbours import RowsOf
from veilwood_engines.sql.session import Session
from veilwood_testing.databases import (
    INTEGER_VALUES,
    NUMBER_COLUMN,
    count_in_database,
    database_rows,
    record_fit_events,
    same_events,
    schema_of,
    schema_with_column,
    write_column,
    write_databases,
)
from veilwood_testing.errors import rejects

NAN, INF = float("nan"), float("inf")
LOG = {"kind": "numeric", "lower": 0, "upper": 1e6, "transform": "log1p", "bins": 9}
SEVENS = {"kind": "categorical", "values": ["7", "0", "2.5", "0.1", "True", "x y", "-3"], "nullable": True}
ZEROS = {"kind": "categorical", "values": ["7", "007", "08", "01"], "other": "01"}
MONTH = {"kind": "categorical", "values": ["01", "2", "12"], "part": "month", "other": "12"}
SPELLINGS = {"kind": "categorical", "values": ["F", "M", "7"], "nullable": True, "other": "7"}
SPELLINGS |= {"aliases": {"f": "F", "M ": "M", "seven": "7"}}
DATES = {"kind": "categorical", "values": ["2026-01-31", "1999-12-31"], "other": "1999-12-31"}
WEEKDAY = {"kind": "categorical", "values": [1, 2, 3, 4, 5, 6, 7], "part": "weekday"}
HOUR = {"kind": "numeric", "lower": 0, "upper": 24, "bins": 24, "part": "hour"}
YEAR = {"kind": "numeric", "lower": 1900, "upper": 2100, "bins": 20, "part": "year"}
PREFIX = {"kind": "categorical", "values": ["01", "99", "1"], "prefix": 2, "other": "1"}
FLOATS = [7.0, -0.0, 2.5, 0.1, NAN, INF, -INF, 1e308, 5e-324, None, -3.0, 9.999999999999998]
TEXTS = [
    "7",
    "7.0",
    "7.00",
    "-0",
    "-0.0",
    "0.10",
    "2.50",
    "true",
    "True",
    "x y",
    "X Y",
    " 7",
    "007",
    "",
    None,
    ".1",
    "+7",
]
DECIMALS = [Decimal(x) for x in ("7.00", "0.00", "2.50", "0.10", "-3.00", "9.99", "1234567.89")]
DAYS = [
    datetime.date(2026, 1, 31),
    datetime.date(1999, 12, 31),
    datetime.date(1, 1, 1),
    datetime.date(9999, 12, 31),
    None,
]
TIMES = [
    datetime.datetime(2026, 1, 31, 9, 30),
    datetime.datetime(1999, 12, 31),
    datetime.datetime(2020, 2, 29, 23, 59, 59),
]
ALL, WITHOUT_SQLITE = ("duckdb", "postgres", "sqlite"), ("duckdb", "postgres")

CASES: list[tuple[tuple[str, ...], str, list[Any], dict[str, Any]]] = [
    (ALL, "BIGINT", INTEGER_VALUES, NUMBER_COLUMN), (ALL, "BIGINT", INTEGER_VALUES, SEVENS),
    (ALL, "BIGINT", INTEGER_VALUES, PREFIX),
    (ALL, "BIGINT", [7, 8, 1, 0], ZEROS), (ALL, "TEXT", ["7", "007", "8", "08", "1"], ZEROS),
    (ALL, "DOUBLE PRECISION", FLOATS, NUMBER_COLUMN), (ALL, "DOUBLE PRECISION", FLOATS, SEVENS),
    (ALL, "DOUBLE PRECISION", FLOATS, LOG), (ALL, "TEXT", TEXTS, SEVENS), (ALL, "TEXT", TEXTS, PREFIX),
    (ALL, "BOOLEAN", [True, False, None], NUMBER_COLUMN), (WITHOUT_SQLITE, "BOOLEAN", [True, False, None], SEVENS),
    (WITHOUT_SQLITE, "REAL", [np.float32(x) for x in (0.1, 7, 2.5, -0.0)], SEVENS),
    (WITHOUT_SQLITE, "DECIMAL(18,2)", DECIMALS, SEVENS), (WITHOUT_SQLITE, "DECIMAL(18,2)", DECIMALS, NUMBER_COLUMN),
    (WITHOUT_SQLITE, "DATE", DAYS, DATES), (WITHOUT_SQLITE, "DATE", DAYS, WEEKDAY),
    (WITHOUT_SQLITE, "DATE", DAYS, YEAR), (WITHOUT_SQLITE, "DATE", DAYS, HOUR),
    (WITHOUT_SQLITE, "TIMESTAMP", TIMES, HOUR), (WITHOUT_SQLITE, "TIMESTAMP", TIMES, WEEKDAY),
    (("postgres",), "NUMERIC", [*DECIMALS, Decimal("1e400"), Decimal("1e-400"), Decimal("NaN")], NUMBER_COLUMN),
    (("postgres",), "NUMERIC", [*DECIMALS, Decimal("1e400"), Decimal("NaN")], SEVENS),
    (("duckdb",), "HUGEINT", [2**100, 7, -3, 0], NUMBER_COLUMN), (("duckdb",), "HUGEINT", [2**100, 7, -3, 0], SEVENS),
    (("sqlite",), "", [7, 7.0, "7", "7.0", None, "", 2.5, "abc", -0.0, INF], SEVENS),
    (WITHOUT_SQLITE, "DATE", DAYS[:-1], MONTH), (("sqlite",), "", ["\0abc", "", None, 7], NUMBER_COLUMN),
    (("sqlite",), "TEXT COLLATE RTRIM", ["   ", "7 ", "-0  ", "7"], SEVENS),
    (("sqlite",), "", [7, 7.0, "x", None, "", 2.5, -0.0, INF], NUMBER_COLUMN),
    (ALL, "TEXT", ["F", "f", "M", "M ", "m", "seven", "7.0", "", None], SPELLINGS),
    (WITHOUT_SQLITE, "DOUBLE PRECISION", FLOATS, NUMBER_COLUMN | {"texts": "limit"}),
]  # fmt: skip


def counts_here(cells: list[Any], schema: vw.Schema) -> np.ndarray:
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object), "y": [i % 2 for i in range(len(cells))]})
    found = np.zeros((Encoding(schema, "bins").n_codes[0], 2), np.int64)
    for batch in open_rows(frame, None, Encoding(schema, "bins"), invalid="drop").batches():
        np.add.at(found, (batch.codes[:, 0], batch.target), 1)
    return found


@pytest.mark.parametrize(
    ("engine", "kind", "cells", "column"),
    [(engine, *case[1:]) for case in CASES for engine in case[0]],
    ids=lambda value: str(value)[:24],
)
def test_cells_of_every_type_are_read_as_in_memory(
    engine: str, kind: str, cells: list[Any], column: dict[str, Any], tmp_path: Path, server: str
) -> None:
    schema = schema_with_column(column)
    address = write_column(engine, kind, cells, tmp_path, server)
    if engine == "sqlite":  # which has neither booleans nor not-a-number: 1 and 0, and null
        cells = [int(cell) if isinstance(cell, bool) else cell for cell in cells]
    assert count_in_database(address, schema).tolist() == counts_here(cells, schema).tolist()


@pytest.mark.parametrize("engine", ALL)
def test_a_database_reads_no_numbers_among_texts(engine: str, tmp_path: Path, server: str) -> None:
    address = write_column(engine, "" if engine == "sqlite" else "TEXT", ["7", "<0.6"], tmp_path, server)
    with pytest.raises(OutOfSchemaError) as caught:
        count_in_database(address, schema_with_column(NUMBER_COLUMN | {"texts": "limit"}))
    assert caught.value.column == "x"


@pytest.mark.parametrize(
    ("kind", "cells", "target"),
    [
        ("NUMERIC", ["1e400", "-1e400", "1e-400", "NaN", "Infinity", "7"], {"lower": -1e-300, "upper": 1e300}),
        (
            "DOUBLE PRECISION",
            ["NaN", "Infinity", "-Infinity", "5e-324", "1e308", "-1e308"],
            {"lower": 0, "upper": 1e308},
        ),
        ("DOUBLE PRECISION", ["5e-324", "1e-310", "0"], {"lower": 0, "upper": 1e308}),
    ],
)
def test_no_row_can_make_a_statement_fail(kind: str, cells: list[str], target: dict[str, Any], server: str) -> None:
    """PostgreSQL fails on what overflows, on what underflows and on casts; here nothing may reach it."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS odd; CREATE TABLE odd (x {kind}, y {kind})")
        connection.cursor().executemany("INSERT INTO odd VALUES (%s, %s)", [(cell, cell) for cell in cells])
    columns = [{"name": "x", **NUMBER_COLUMN}, {"name": "y", "kind": "numeric", **target}]
    schema = vw.Schema.from_dict({"name": "odd", "task": "regression", "target": "y", "columns": columns})
    here = pd.DataFrame({name: pd.Series([Decimal(cell) if kind == "NUMERIC" else float(cell) for cell in cells],
                                         dtype=object) for name in "xy"})  # fmt: skip

    def made() -> Any:
        return vw.RandomTreesRegressor(schema, n_estimators=2, max_depth=2, invalid="drop", random_state=0)

    assert same_events(record_fit_events(made(), here), record_fit_events(made(), f"{server}#odd"))


# -- people ----------------------------------------------------------------------------------------------------------


def kept_of(people: list[Any], folder: Path, at_most: int) -> np.ndarray:
    schema = schema_with_column(NUMBER_COLUMN | {"name": "x"})
    frame = pd.DataFrame({"x": np.arange(len(people)) % 7 * 1.0, "y": 0, "person": pd.Series(people, dtype=object)})
    lite = sqlite3.connect(folder / "people.sqlite")
    lite.execute("DROP TABLE IF EXISTS t")
    lite.execute("CREATE TABLE t (x REAL, y INTEGER, person)")
    lite.executemany("INSERT INTO t VALUES (?, ?, ?)", frame.itertuples(index=False, name=None))
    lite.commit()
    lite.close()
    return count_in_database(f"sqlite:///{folder}/people.sqlite#t", schema, RowsOf("person", at_most=at_most))


@pytest.mark.parametrize("at_most", [1, 2, 3, 5, 12])
def test_an_id_counts_as_k_rows_and_moves_nobody_else(
    at_most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilwood_engines.sql.source.secret_key", lambda: b"k" * 32)
    one_person = [7, 7.0, "7", "7.0", "7.00"]  # by the rule of ids
    others = ["a", "b", "a", "b", "a", "c"]
    assert kept_of(one_person, tmp_path, at_most).sum() == at_most
    alone, together = kept_of(others, tmp_path, at_most), kept_of([*others, *one_person], tmp_path, at_most)
    moved = together - alone
    assert moved.min() >= 0
    assert moved.sum() == at_most
    unusable = ["9007199254740993.0", "1e+16", 2.0**60, 0.5, b"7", None, "", "2026-01-31 00:00"]
    assert kept_of([*others, *unusable], tmp_path, at_most).tolist() == alone.tolist()


def test_disjoint_trees_and_judges_give_each_row_to_one(tmp_path: Path) -> None:
    frame = database_rows("three", 300)
    address = write_databases(frame, tmp_path)["duckdb"]
    forest = vw.GreedyForestClassifier(
        schema_of("three"), n_estimators=4, max_depth=1, trees="disjoint", random_state=0
    )
    *_, leaves = record_fit_events(forest, address)
    assert np.asarray(leaves.exact).sum() == 300
    whole = vw.RandomTreesClassifier(schema_of("three"), n_estimators=5, max_depth=2, trees="disjoint", random_state=0)
    (counted,) = record_fit_events(whole, address)
    by_tree = np.add.reduceat(np.asarray(counted.exact).sum(axis=1), whole.model_.forest.tree_leaves[:-1])
    assert by_tree.sum() == 300
    assert by_tree.min() > 20


# -- what others see -------------------------------------------------------------------------------------------------


# -- sessions --------------------------------------------------------------------------------------------------------


def test_without_temporary_tables_forests_read_the_table_in_each_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = write_databases(database_rows("three", 150), tmp_path)["duckdb"]

    def made() -> Any:
        return vw.MedianForestClassifier(
            schema_of("three"), n_estimators=2, max_depth=2, trees="shared", random_state=0
        )

    usual = record_fit_events(made(), address)
    monkeypatch.setattr(
        Session, "create_scratch_tables", lambda self, statements: setattr(self, "can_create_tables", False)
    )
    assert same_events(usual, record_fit_events(made(), address))
    with rejects(UseError, raised_in="SqlBackend.__init__"):
        vw.PrivateForestClassifier(schema_of("three")).fit(address)


def test_rows_that_do_not_fit_are_refused_in_the_words_of_every_source(tmp_path: Path) -> None:
    frame = database_rows("two", 40)
    frame.loc[3, "grade"] = 9
    frame.loc[5, "in come"] = np.nan
    frame.loc[6, "ill"] = "perhaps"
    forest = vw.RandomTreesClassifier(schema_of("two"), n_estimators=1, max_depth=1)
    with pytest.raises(OutOfSchemaError) as here:
        forest.fit(frame)
    for address in write_databases(frame, tmp_path).values():
        with pytest.raises(OutOfSchemaError) as there:
            forest.fit(address)
        assert str(there.value) == str(here.value)
        assert there.value.problems == here.value.problems
    dropped = vw.RandomTreesClassifier(schema_of("two"), n_estimators=1, max_depth=1, invalid="drop", random_state=0)
    (passage,) = record_fit_events(dropped, write_databases(frame, tmp_path)["duckdb"])
    assert np.asarray(passage.exact).sum() == 37


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("VARCHAR", NUMBER_COLUMN),
        ("BLOB", SEVENS),
        ("INTEGER[]", SEVENS),
        ("VARCHAR", DATES),
        ("VARCHAR", WEEKDAY),
        ("TIME", NUMBER_COLUMN),
    ],
)
def test_columns_that_cannot_be_read_are_refused_by_type(kind: str, column: dict[str, Any], tmp_path: Path) -> None:
    address = write_column("duckdb", kind, [None], tmp_path, "")
    with rejects(OutOfSchemaError, column="x"):
        vw.RandomTreesClassifier(schema_with_column(column), invalid="drop").fit(address)
