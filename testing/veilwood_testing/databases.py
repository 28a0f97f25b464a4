# SPDX-License-Identifier: Apache-2.0
"""The same rows in DuckDB, SQLite and PostgreSQL, and the events at the door when a forest is fitted."""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import psycopg

import veilwood as vw
from veilwood.data.counts import CellQuery, split_by_code
from veilwood.data.encoding import Encoding
from veilwood.privacy.neighbours import RowsOf
from veilwood_audit.noninterference import DoorEvent, force_outcomes
from veilwood_engines.sql.source import open_sql

INF = float("inf")


COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True, "bins": 3},
    {"name": "in come", "kind": "numeric", "lower": -10, "upper": 1000, "transform": "asinh"},
    {"name": 'ci"ty', "kind": "categorical", "values": ["K\u00f6ln", "Lima", "it's; DROP TABLE visits --", "rest"],
     "other": "rest", "nullable": True},
    {"name": "grade", "kind": "categorical", "values": [1, 2, 3]},
    {"name": "dose", "kind": "numeric", "lower": 0, "upper": 1, "cutoffs": [0.1, 0.3]},
]  # fmt: skip


TARGETS: dict[str, dict[str, Any]] = {
    "two": {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    "three": {"name": "ill", "kind": "categorical", "values": [0, 1, 2]},
    "number": {"name": "ill", "kind": "numeric", "lower": 0, "upper": 2.5},
}


def schema_of(task: str) -> vw.Schema:
    kind = "regression" if task == "number" else "classification"
    columns = [*COLUMNS, TARGETS[task]]
    return vw.Schema.from_dict({
        "name": "clinic", "task": kind, "target": "ill", "columns": columns, "ignore": ["person"],
    })  # fmt: skip


N_ROWS = 400


def database_rows(task: str, n: int, seed: int = 0) -> pd.DataFrame:
    """Rows with what engines could read differently: infinities, negative zero, numbers beside an edge, odd texts."""
    rng = np.random.default_rng(seed)
    cities = np.array(["K\u00f6ln", "Lima", "it's; DROP TABLE visits --", "rest", "Paris", "k\u00f6ln"], object)
    frame = pd.DataFrame({
        "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(50, 40, n)),
        "in come": np.where(rng.random(n) < 0.05, rng.choice([INF, -INF, -0.0, 1e308, 5e-324], n),
                            rng.exponential(300, n) - 50),
        'ci"ty': pd.Series(rng.choice(cities, n), dtype=object).where(pd.Series(rng.random(n) > 0.1), None),
        "grade": rng.integers(1, 4, n),
        "dose": rng.choice([0.1, 0.3, 0.2, np.nextafter(0.3, 0), np.nextafter(0.1, 1), -0.0, 1.0, 0.05], n),
        "person": rng.integers(0, max(n // 4, 1), n),
    })  # fmt: skip
    score = np.clip(np.nan_to_num(frame["age"], nan=20.0) / 60, 0, 1) + frame["dose"] + rng.random(n)
    if task == "number":
        frame["ill"] = np.where(rng.random(n) < 0.1, rng.choice([0.0, 2.5, 9.0, -3.0], n), score)
    elif task == "two":
        frame["ill"] = np.where(score > 1.4, "yes", "no")
    else:
        frame["ill"] = np.digitize(score, [1.0, 1.6])
    return frame


def write_databases(
    frame: pd.DataFrame, folder: Path, server: str | None = None, table: str = "visits"
) -> dict[str, str]:
    """Put rows into every engine; return the addresses."""
    folder.mkdir(exist_ok=True, parents=True)
    quoted = table.replace('"', '""')
    with duckdb.connect(str(folder / "rows.duckdb")) as duck:
        duck.register("given", frame)
        duck.execute(f'CREATE OR REPLACE TABLE "{quoted}" AS SELECT * FROM given')
    lite = sqlite3.connect(folder / "rows.sqlite")
    frame.to_sql(table, lite, index=False, if_exists="replace")
    lite.close()
    where = {kind: f'{kind}:///{folder}/rows.{kind}#"{quoted}"' for kind in ("duckdb", "sqlite")}
    if server is not None:
        put_postgres(frame, server, quoted)
        where["postgres"] = f'{server}#"{quoted}"'
    return where


def put_postgres(frame: pd.DataFrame, server: str, table: str) -> None:
    kinds = {"f": "double precision", "i": "bigint", "b": "boolean"}
    columns = ", ".join(
        f'"{str(name).replace(chr(34), chr(34) * 2)}" {kinds.get(dtype.kind, "text")}'
        for name, dtype in frame.dtypes.items()
    )
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP TABLE IF EXISTS "{table}"')  # type: ignore[call-overload]
        connection.execute(f'CREATE TABLE "{table}" ({columns})')  # type: ignore[call-overload]
        with connection.cursor().copy(f'COPY "{table}" FROM STDIN') as copy:  # type: ignore[call-overload]
            for row in frame.itertuples(index=False, name=None):
                copy.write_row([None if cell is None or cell != cell else cell for cell in row])


def record_fit_events(forest: Any, X: Any, draw: int = 0, answers: Any = None) -> list[DoorEvent]:
    """Fit with all outcomes forced, and return what met the door."""
    with warnings.catch_warnings(), force_outcomes(draw, answers) as passages:
        warnings.simplefilter("ignore")
        forest.fit(X)
    return list(passages)


def same_events(one: list[DoorEvent], other: list[DoorEvent]) -> bool:
    """Whether the same exact numbers met the door, in the same steps."""
    return len(one) == len(other) and all(
        own.step == yours.step and np.array_equal(own.exact, yours.exact)  # type: ignore[arg-type]
        for own, yours in zip(one, other, strict=True)
    )


def schema_with_column(column: dict[str, Any]) -> vw.Schema:
    """One column x, and a target y of two classes."""
    target = {"name": "y", "kind": "categorical", "values": [0, 1]}
    columns = [{"name": "x", **column}, target]
    return vw.Schema.from_dict({"name": "one", "task": "classification", "target": "y", "columns": columns})


def count_in_database(address: str, schema: vw.Schema, cap: RowsOf | None = None) -> np.ndarray:
    """How many rows of each class every code of the one column has, counted in a database; odd rows are dropped."""
    source = open_sql(address, Encoding(schema, "bins"), cap=cap, invalid="drop")
    n_codes = source.rows.encoding.n_codes[0]
    (found,) = source.run_cell_queries([CellQuery((split_by_code(0, np.arange(n_codes)),), n_codes)], "classes")
    return found


NUMBER_COLUMN = {"kind": "numeric", "lower": -10, "upper": 10, "nullable": True, "bins": 7}


INTEGER_VALUES = [7, 0, -3, None, 2**53, -5, 8]


def write_column(engine: str, kind: str, cells: list[Any], folder: Path, server: str, table: str = "t") -> str:
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
