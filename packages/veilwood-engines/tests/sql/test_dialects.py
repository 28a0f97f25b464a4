# SPDX-License-Identifier: Apache-2.0
"""Names, constants and categories as each engine writes them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import psycopg
import pytest
import sqlglot

import veilwood as vw
from veilwood_engines.sql.dialects import ENGINES, SqlDialect
from veilwood_engines.sql.preview import preview_statements
from veilwood_testing.databases import record_fit_events, same_events, schema_of, write_databases


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

    where = write_databases(frame, tmp_path, server, table)
    here = record_fit_events(made(), frame)
    for engine, address in where.items():
        assert same_events(here, record_fit_events(made(), address)), engine
    for engine in ENGINES:
        for text in [*nasty, *names]:
            literal = sqlglot.parse_one(f"SELECT {SqlDialect(engine).quote_text(text)}", dialect=engine).expressions[0]
            assert (literal.is_string, literal.this) == (True, text)
            if engine == "bigquery" and "." in text:
                continue  # which reads a path, and has no such columns
            column = sqlglot.parse_one(f"SELECT {SqlDialect(engine).quote_name(text)}", dialect=engine).expressions[0]
            assert column.name == text


def test_constants_are_read_back_exactly(tmp_path: Path, server: str) -> None:
    rng = np.random.default_rng(0)
    numbers = [*rng.standard_normal(200), *(rng.random(200) * 10.0 ** rng.integers(-300, 300, 200)), 0.1, 5e-324, 1e22]
    engines: dict[str, Any] = {"duckdb": duckdb.connect(), "sqlite": sqlite3.connect(":memory:")}
    with psycopg.connect(server) as engines["postgres"]:
        for engine, connection in engines.items():
            words = SqlDialect(engine)  # type: ignore[arg-type]
            for number in map(float, numbers):
                ((found,),) = connection.execute(
                    f"SELECT CAST({words.float_literal(number)} AS {words.type_names.double})"
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
        statements = preview_statements(forest, engine)
        for statement in statements:
            if not statement.endswith(" ..."):
                parsed = sqlglot.parse_one(statement, dialect=engine)
                assert parsed.sql(dialect=engine)
        assert sum("GROUP BY" in statement for statement in statements) >= 1
