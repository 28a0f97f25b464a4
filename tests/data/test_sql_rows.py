# SPDX-License-Identifier: Apache-2.0
"""What a database does with single rows: every type as in memory; nothing fails, is shown or is written."""

from __future__ import annotations

import datetime
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import psycopg
import pytest
import sqlglot

import veilwood as vw
from fixtures.databases import counts_there, passages_of, put, rows_of, same, schema_of, schema_with
from veilwood.data.cells import Cells, codes_of
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.sql.session import Session
from veilwood.data.sql.source import SqlSource, open_sql
from veilwood.data.sql.words import ENGINES, Words
from veilwood.errors import OutOfSchemaError, UnreadableError, UseError
from veilwood.estimators.in_sql import statements_of
from veilwood.privacy.neighbours import RowsOf

NAN, INF = float("nan"), float("inf")
NUMBER = {"kind": "numeric", "lower": -10, "upper": 10, "nullable": True, "bins": 7}
LOG = {"kind": "numeric", "lower": 0, "upper": 1e6, "transform": "log1p", "bins": 9}
SEVENS = {"kind": "categorical", "values": ["7", "0", "2.5", "0.1", "True", "x y", "-3"], "nullable": True}
DATES = {"kind": "categorical", "values": ["2026-01-31", "1999-12-31"], "other": "1999-12-31"}
WEEKDAY = {"kind": "categorical", "values": [1, 2, 3, 4, 5, 6, 7], "part": "weekday"}
HOUR = {"kind": "numeric", "lower": 0, "upper": 24, "bins": 24, "part": "hour"}
YEAR = {"kind": "numeric", "lower": 1900, "upper": 2100, "bins": 20, "part": "year"}
PREFIX = {"kind": "categorical", "values": ["01", "99", "1"], "prefix": 2, "other": "1"}
WHOLES = [7, 0, -3, None, 2**53, -5, 8]
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
    (ALL, "BIGINT", WHOLES, NUMBER), (ALL, "BIGINT", WHOLES, SEVENS), (ALL, "BIGINT", WHOLES, PREFIX),
    (ALL, "DOUBLE PRECISION", FLOATS, NUMBER), (ALL, "DOUBLE PRECISION", FLOATS, SEVENS),
    (ALL, "DOUBLE PRECISION", FLOATS, LOG), (ALL, "TEXT", TEXTS, SEVENS), (ALL, "TEXT", TEXTS, PREFIX),
    (ALL, "BOOLEAN", [True, False, None], NUMBER), (WITHOUT_SQLITE, "BOOLEAN", [True, False, None], SEVENS),
    (WITHOUT_SQLITE, "REAL", [np.float32(x) for x in (0.1, 7, 2.5, -0.0)], SEVENS),
    (WITHOUT_SQLITE, "DECIMAL(18,2)", DECIMALS, SEVENS), (WITHOUT_SQLITE, "DECIMAL(18,2)", DECIMALS, NUMBER),
    (WITHOUT_SQLITE, "DATE", DAYS, DATES), (WITHOUT_SQLITE, "DATE", DAYS, WEEKDAY),
    (WITHOUT_SQLITE, "DATE", DAYS, YEAR), (WITHOUT_SQLITE, "DATE", DAYS, HOUR),
    (WITHOUT_SQLITE, "TIMESTAMP", TIMES, HOUR), (WITHOUT_SQLITE, "TIMESTAMP", TIMES, WEEKDAY),
    (("postgres",), "NUMERIC", [*DECIMALS, Decimal("1e400"), Decimal("1e-400"), Decimal("NaN")], NUMBER),
    (("postgres",), "NUMERIC", [*DECIMALS, Decimal("1e400"), Decimal("NaN")], SEVENS),
    (("duckdb",), "HUGEINT", [2**100, 7, -3, 0], NUMBER), (("duckdb",), "HUGEINT", [2**100, 7, -3, 0], SEVENS),
    (("sqlite",), "", [7, 7.0, "7", "7.0", None, "", 2.5, "abc", -0.0, INF], SEVENS),
    (("sqlite",), "", [7, 7.0, "x", None, "", 2.5, -0.0, INF], NUMBER),
]  # fmt: skip


def table_of(engine: str, kind: str, cells: list[Any], folder: Path, server: str, table: str = "t") -> str:
    """Put one column into a database, each cell as it is, beside a target that alternates."""
    plain = [float(cell) if isinstance(cell, np.floating) else cell for cell in cells]
    rows = [(cell, number % 2) for number, cell in enumerate(plain)]
    if engine == "postgres":
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (x {kind}, y BIGINT)")  # type: ignore[call-overload]
            connection.cursor().executemany(f"INSERT INTO {table} VALUES (%s, %s)", rows)  # type: ignore[call-overload]
        return f"{server}#{table}"
    path = folder / f"rows.{engine}"
    path.unlink(missing_ok=True)
    opened: Any = duckdb.connect(str(path)) if engine == "duckdb" else sqlite3.connect(path)
    opened.execute(f"CREATE TABLE {table} (x {kind}, y BIGINT)")
    opened.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
    opened.commit()
    opened.close()
    return f"{engine}:///{path}#{table}"


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
    schema = schema_with(column)
    address = table_of(engine, kind, cells, tmp_path, server)
    if engine == "sqlite":  # which has neither booleans nor not-a-number: 1 and 0, and null
        cells = [int(cell) if isinstance(cell, bool) else cell for cell in cells]
    assert counts_there(address, schema).tolist() == counts_here(cells, schema).tolist()


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
        connection.execute(f"DROP TABLE IF EXISTS odd; CREATE TABLE odd (x {kind}, y {kind})")  # type: ignore[call-overload]
        connection.cursor().executemany("INSERT INTO odd VALUES (%s, %s)", [(cell, cell) for cell in cells])
    columns = [{"name": "x", **NUMBER}, {"name": "y", "kind": "numeric", **target}]
    schema = vw.Schema.from_dict({"name": "odd", "task": "regression", "target": "y", "columns": columns})
    here = pd.DataFrame({name: pd.Series([Decimal(cell) if kind == "NUMERIC" else float(cell) for cell in cells],
                                         dtype=object) for name in "xy"})  # fmt: skip

    def made() -> Any:
        return vw.RandomTreesRegressor(schema, n_estimators=2, max_depth=2, invalid="drop", random_state=0)

    assert same(passages_of(made(), here), passages_of(made(), f"{server}#odd"))


# -- people ----------------------------------------------------------------------------------------------------------


def kept_of(people: list[Any], folder: Path, at_most: int) -> np.ndarray:
    schema = schema_with(NUMBER | {"name": "x"})
    frame = pd.DataFrame({"x": np.arange(len(people)) % 7 * 1.0, "y": 0, "person": pd.Series(people, dtype=object)})
    lite = sqlite3.connect(folder / "people.sqlite")
    lite.execute("DROP TABLE IF EXISTS t")
    lite.execute("CREATE TABLE t (x REAL, y INTEGER, person)")
    lite.executemany("INSERT INTO t VALUES (?, ?, ?)", frame.itertuples(index=False, name=None))
    lite.commit()
    lite.close()
    return counts_there(f"sqlite:///{folder}/people.sqlite#t", schema, RowsOf("person", at_most=at_most))


@pytest.mark.parametrize("at_most", [1, 2, 3])
def test_an_id_keeps_at_most_k_rows_and_moves_nobody_else(
    at_most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilwood.data.sql.source.secret_key", lambda: b"k" * 32)
    one_person = [7, 7.0, "7", "7.0", "7.00"]  # by the rule of ids
    others = ["a", "b", "a", "b", "a", "c"]
    assert kept_of(one_person, tmp_path, at_most).sum() == at_most
    alone, together = kept_of(others, tmp_path, at_most), kept_of([*others, *one_person], tmp_path, at_most)
    moved = together - alone
    assert moved.min() >= 0
    assert moved.sum() == at_most
    unusable = ["9007199254740993.0", "1e+16", 2.0**60, 0.5, b"7", None, "", "2026-01-31 00:00"]
    assert kept_of([*others, *unusable], tmp_path, at_most).tolist() == alone.tolist()


def test_which_rows_of_an_id_are_kept_is_secret_and_holds_in_every_pass(tmp_path: Path) -> None:
    frame = rows_of("two", 200).assign(person=1)
    address = put(frame, tmp_path)["duckdb"]
    seen = set()
    for _ in range(12):
        source = open_sql(
            address, Encoding(schema_of("two"), "bins"), cap=RowsOf("person", at_most=3), invalid="refuse"
        )
        table = Cells((codes_of(0, np.arange(4)),), 4)
        first, again = (source.answer([table], "classes")[0] for _ in range(2))
        assert first.sum() == 3
        assert first.tolist() == again.tolist()
        seen.add(str(first.tolist()))
    assert len(seen) > 1  # all equal by chance: far below one in a million


def test_disjoint_trees_and_judges_give_each_row_to_one(tmp_path: Path) -> None:
    frame = rows_of("three", 300)
    address = put(frame, tmp_path)["duckdb"]
    forest = vw.GreedyForestClassifier(
        schema_of("three"), n_estimators=4, max_depth=1, trees="disjoint", random_state=0
    )
    *_, leaves = passages_of(forest, address)
    assert np.asarray(leaves.exact).sum() == 300
    whole = vw.RandomTreesClassifier(schema_of("three"), n_estimators=5, max_depth=2, trees="disjoint", random_state=0)
    (counted,) = passages_of(whole, address)
    by_tree = np.add.reduceat(np.asarray(counted.exact).sum(axis=1), whole.model_.forest.tree_leaves[:-1])
    assert by_tree.sum() == 300
    assert by_tree.min() > 20


# -- what others see -------------------------------------------------------------------------------------------------


def test_statements_hold_no_value_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have values that occur nowhere else; what comes back are sums, never more of them than cells were asked."""
    frame = rows_of("two", 60)
    frame["age"] = 31.4159 + np.arange(60)
    frame['ci"ty'] = "Atlantis"
    frame["person"] = 777000 + np.arange(60)
    address = put(frame, tmp_path)["duckdb"]
    sent: list[str] = []
    back: list[tuple[Any, ...]] = []
    run = Session._sent

    def listening(self: Session, statement: str) -> Any:
        sent.append(statement)
        found = run(self, statement)
        back.extend(() if statement.startswith("EXPLAIN") else found[1])
        return found

    monkeypatch.setattr(Session, "_sent", listening)
    unit = {"id": "person", "at_most": 1}
    schema = schema_of("two")
    forest = vw.PrivateForestClassifier(schema, epsilon=3.0, n_rows=3000, privacy_unit=unit, random_state=0)
    passages_of(forest, address, draw=1)
    assert len(sent) > 40  # rounds were reached
    every = " ".join(sent)
    assert not any(f"{31.4159 + i:.4f}"[:-1] in every for i in range(60))
    assert "Atlantis" not in every
    assert "77700" not in every
    selects = [one for one in sent if one.startswith(("SELECT", "WITH"))]
    assert all("COUNT(" in one or "SUM(" in one or "MAX(" in one or one.endswith("WHERE 1 = 0") for one in selects)
    assert all(isinstance(value, int | Decimal) for row in back for value in row)
    assert len(forest.statements_) == len(sent)


def test_names_and_categories_cannot_end_their_quotes(tmp_path: Path, server: str) -> None:
    nasty = ["a'b", 'a"b', "a\\", "'; DROP TABLE t; --", "{x}", "%s", "a\nb", "`x`"]
    names = ['x"; DROP TABLE y; --', "x'y", "x`y", "x{0}", "x%s", "x.y"]
    table = 'visits"; DROP TABLE z; --'
    columns = [{"name": name, "kind": "categorical", "values": nasty} for name in names]
    target = {"name": "y", "kind": "categorical", "values": nasty}
    schema = vw.Schema.from_dict({"name": "n", "task": "classification", "target": "y", "columns": [*columns, target]})
    frame = pd.DataFrame({name: [nasty[(i + j) % 8] for i in range(40)] for j, name in enumerate([*names, "y"])})

    def made() -> Any:
        return vw.RandomTreesClassifier(schema, n_estimators=2, max_depth=2, random_state=0)

    where = put(frame, tmp_path, server, table)
    here = passages_of(made(), frame)
    for engine, address in where.items():
        assert same(here, passages_of(made(), address)), engine
    for engine in ENGINES:
        for text in [*nasty, *names]:
            literal = sqlglot.parse_one(f"SELECT {Words(engine).text(text)}", dialect=engine).expressions[0]
            assert (literal.is_string, literal.this) == (True, text)
            if engine == "bigquery" and "." in text:
                continue  # which reads a path, and has no such columns
            column = sqlglot.parse_one(f"SELECT {Words(engine).name(text)}", dialect=engine).expressions[0]
            assert column.name == text


def test_constants_are_read_back_exactly(tmp_path: Path, server: str) -> None:
    rng = np.random.default_rng(0)
    numbers = [*rng.standard_normal(200), *(rng.random(200) * 10.0 ** rng.integers(-300, 300, 200)), 0.1, 5e-324, 1e22]
    engines: dict[str, Any] = {"duckdb": duckdb.connect(), "sqlite": sqlite3.connect(":memory:")}
    with psycopg.connect(server) as engines["postgres"]:
        for engine, connection in engines.items():
            words = Words(engine)  # type: ignore[arg-type]
            for number in map(float, numbers):
                ((found,),) = connection.execute(
                    f"SELECT CAST({words.number(number)} AS {words.types.double})"
                ).fetchall()
                assert found == number


@pytest.mark.parametrize(
    "engine", [*ENGINES[3:], *(pytest.param(engine, marks=pytest.mark.slow) for engine in ENGINES)]
)
def test_every_dialect_reads_what_is_written(engine: str, request: pytest.FixtureRequest) -> None:
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("RandomTreesRegressor", "number", {"privacy_unit": {"id": "person", "at_most": 2}, "invalid": "drop"}),
        ("GreedyForestClassifier", "three", {"max_depth": 2, "n_estimators": 2}),
        ("MatrixForestClassifier", "two", {"n_estimators": 4, "max_depth": 2}),
        ("PrivateForestClassifier", "three", {}),
        ("PrivateForestClassifier", "two", {}),
        ("PrivateForestRegressor", "number", {}),
    ]
    is_slow = request.node.get_closest_marker("slow") is not None
    for name, task, params in cases if is_slow else cases[-1:]:
        forest = getattr(vw, name)(schema_of(task), random_state=0, **params)
        statements = statements_of(forest, engine)
        for statement in statements:
            if not statement.endswith(" ..."):
                parsed = sqlglot.parse_one(statement, dialect=engine)
                assert parsed.sql(dialect=engine)
        assert sum("GROUP BY" in statement for statement in statements) >= 1


def test_templates_are_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For trees that are grown without data the statements of a plan are those of the fit, the snapshot apart."""
    address = put(rows_of("two", 50), tmp_path)["duckdb"]

    def made() -> Any:
        return vw.RandomTreesClassifier(schema_of("two"), n_estimators=3, max_depth=3, random_state=0)

    sent: list[str] = []
    run = Session._sent
    monkeypatch.setattr(Session, "_sent", lambda self, statement: (sent.append(statement), run(self, statement))[1])
    planned = statements_of(made(), address)
    sent.clear()
    made().fit(address)
    assert [one for one in sent if not one.startswith("BEGIN")] == planned


# -- sessions --------------------------------------------------------------------------------------------------------


def test_errors_of_an_engine_are_not_shown(tmp_path: Path, server: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS failing CASCADE; CREATE TABLE failing (x TEXT, y BIGINT)")
        connection.execute("INSERT INTO failing VALUES ('classified', 1)")
        connection.execute("CREATE VIEW broken AS SELECT CAST(x AS BIGINT) AS x, y FROM failing")
    forest = vw.RandomTreesClassifier(schema_with(NUMBER), n_estimators=1, max_depth=1)
    with pytest.raises(UnreadableError) as caught:
        forest.fit(f"{server}#broken")
    assert "classified" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(UnreadableError, match="could not carry out"):
        forest.fit(f"{server}#nothing_of_that_name")
    with pytest.raises(UnreadableError, match="cannot be reached") as caught:
        forest.fit("postgresql://someone:hidden@127.0.0.1:1/none#t")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("engine", ["duckdb", "sqlite", "postgres"])
def test_the_snapshot_stands_still_and_cannot_be_written(engine: str, tmp_path: Path, server: str) -> None:
    address = table_of(engine, "BIGINT", WHOLES, tmp_path, server, "still")
    source = open_sql(address, Encoding(schema_with(NUMBER), "bins"), cap=None, invalid="refuse")
    table = Cells((0,), 1)
    before = source.answer([table], "classes")[0].sum()
    if engine == "postgres":
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("INSERT INTO still VALUES (1, 1)")
    assert source.answer([table], "classes")[0].sum() == before == len(WHOLES)
    with pytest.raises(UnreadableError):
        source.session.ask("INSERT INTO still VALUES (1, 1)")


def test_without_temporary_tables_forests_read_the_table_in_each_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = put(rows_of("three", 150), tmp_path)["duckdb"]

    def made() -> Any:
        return vw.MedianForestClassifier(
            schema_of("three"), n_estimators=2, max_depth=2, trees="shared", random_state=0
        )

    usual = passages_of(made(), address)
    monkeypatch.setattr(Session, "prepare", lambda self, statements: setattr(self, "scratch", False))
    assert same(usual, passages_of(made(), address))
    with pytest.raises(UseError, match="temporary table"):
        vw.PrivateForestClassifier(schema_of("three")).fit(address)


def test_rows_that_do_not_fit_are_refused_in_the_words_of_every_source(tmp_path: Path) -> None:
    frame = rows_of("two", 40)
    frame.loc[3, "grade"] = 9
    frame.loc[5, "in come"] = np.nan
    frame.loc[6, "ill"] = "perhaps"
    forest = vw.RandomTreesClassifier(schema_of("two"), n_estimators=1, max_depth=1)
    with pytest.raises(OutOfSchemaError) as here:
        forest.fit(frame)
    for address in put(frame, tmp_path).values():
        with pytest.raises(OutOfSchemaError) as there:
            forest.fit(address)
        assert str(there.value) == str(here.value)
        assert there.value.problems == here.value.problems
    dropped = vw.RandomTreesClassifier(schema_of("two"), n_estimators=1, max_depth=1, invalid="drop", random_state=0)
    (passage,) = passages_of(dropped, put(frame, tmp_path)["duckdb"])
    assert np.asarray(passage.exact).sum() == 37


def test_a_table_without_rows_is_refused_or_fine(tmp_path: Path) -> None:
    where = put(rows_of("two", 5).iloc[:0].astype({"age": float}), tmp_path)
    forest = vw.RandomTreesClassifier(schema_of("two"), n_estimators=1, max_depth=1)
    with pytest.raises(OutOfSchemaError, match="holds no rows"):
        forest.fit(where["sqlite"])
    forest.set_params(invalid="drop").fit(where["sqlite"])


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("VARCHAR", NUMBER),
        ("BLOB", SEVENS),
        ("INTEGER[]", SEVENS),
        ("VARCHAR", DATES),
        ("VARCHAR", WEEKDAY),
        ("TIME", NUMBER),
    ],
)
def test_columns_that_cannot_be_read_are_refused_by_type(kind: str, column: dict[str, Any], tmp_path: Path) -> None:
    address = table_of("duckdb", kind, [None], tmp_path, "")
    with pytest.raises(OutOfSchemaError, match="type"):
        vw.RandomTreesClassifier(schema_with(column), invalid="drop").fit(address)


def test_what_needs_rows_says_so(tmp_path: Path) -> None:
    address = put(rows_of("two", 30), tmp_path)["duckdb"]
    with pytest.raises(UseError, match="database"):
        vw.RandomTreesClassifier(schema_of("two"), n_rows=30).partial_fit(address)
    with pytest.raises(UseError, match="stay in the database"):
        vw.MatrixForestPredictor(schema_of("two"), n_estimators=2, max_depth=1).fit(address)
    of_people = vw.RandomTreesClassifier(schema_of("two"), privacy_unit={"id": "person", "at_most": 1})
    with pytest.raises(UseError, match="set aside by id"):
        of_people.fit(address, evaluate_share=0.5)
    with pytest.raises(UseError, match="names no table"):
        vw.RandomTreesClassifier(schema_of("two")).fit(address.partition("#")[0])
    with pytest.raises(UseError, match="no file"):
        vw.RandomTreesClassifier(schema_of("two")).fit("duckdb:///nowhere.db#t")


def test_tables_of_ibis_are_counted_where_they_are(tmp_path: Path) -> None:
    ibis = pytest.importorskip("ibis")
    frame = rows_of("two", 120)
    put(frame, tmp_path)
    table = ibis.duckdb.connect(str(tmp_path / "rows.duckdb"), read_only=True).table("visits")
    older = table.filter(table["age"] > 40)

    def made() -> Any:
        return vw.RandomTreesClassifier(schema_of("two"), n_estimators=2, max_depth=3, random_state=0)

    assert same(passages_of(made(), frame[frame["age"] > 40]), passages_of(made(), older))
    assert isinstance(open_rows(table, None, Encoding(schema_of("two"), "bins")), SqlSource)
