# SPDX-License-Identifier: Apache-2.0
"""Shared by data/sql/test_encode.py and other tests."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psycopg

NUMBER = {"kind": "numeric", "lower": -10, "upper": 10, "nullable": True, "bins": 7}


WHOLES = [7, 0, -3, None, 2**53, -5, 8]


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
