# SPDX-License-Identifier: Apache-2.0
"""A table in a database: which rows count, and that it stands still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

import veilwood as vw
from veilwood.data.counts import CellQuery, split_by_code
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import UnreadableError
from veilwood.privacy.neighbours import RowsOf
from veilwood_engines.sql.source import SqlSource, open_sql
from veilwood_testing.databases import (
    INTEGER_VALUES,
    NUMBER_COLUMN,
    database_rows,
    record_fit_events,
    same_events,
    schema_of,
    schema_with_column,
    write_column,
    write_databases,
)


def test_which_rows_of_an_id_are_kept_is_secret_and_holds_in_every_pass(tmp_path: Path) -> None:
    frame = database_rows("two", 200).assign(person=1)
    address = write_databases(frame, tmp_path)["duckdb"]
    seen = set()
    for _ in range(12):
        source = open_sql(
            address, Encoding(schema_of("two"), "bins"), cap=RowsOf("person", at_most=3), invalid="refuse"
        )
        table = CellQuery((split_by_code(0, np.arange(4)),), 4)
        first, again = (source.run_cell_queries([table], "classes")[0] for _ in range(2))
        assert first.sum() == 3
        assert first.tolist() == again.tolist()
        seen.add(str(first.tolist()))
    assert len(seen) > 1  # all equal by chance: far below one in a million


@pytest.mark.parametrize("engine", ["duckdb", "sqlite", "postgres"])
def test_the_snapshot_stands_still_and_cannot_be_written(engine: str, tmp_path: Path, server: str) -> None:
    address = write_column(engine, "BIGINT", INTEGER_VALUES, tmp_path, server, "still")
    source = open_sql(address, Encoding(schema_with_column(NUMBER_COLUMN), "bins"), cap=None, invalid="refuse")
    table = CellQuery((0,), 1)
    before = source.run_cell_queries([table], "classes")[0].sum()
    if engine == "postgres":
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("INSERT INTO still VALUES (1, 1)")
    assert source.run_cell_queries([table], "classes")[0].sum() == before == len(INTEGER_VALUES)
    with pytest.raises(UnreadableError):
        source.session.execute("INSERT INTO still VALUES (1, 1)")


def test_tables_of_ibis_are_counted_where_they_are(tmp_path: Path) -> None:
    ibis = pytest.importorskip("ibis")
    frame = database_rows("two", 120)
    write_databases(frame, tmp_path)
    table = ibis.duckdb.connect(str(tmp_path / "rows.duckdb"), read_only=True).table("visits")
    older = table.filter(table["age"] > 40)

    def made() -> Any:
        return vw.RandomTreesClassifier(schema_of("two"), n_estimators=2, max_depth=3, random_state=0)

    assert same_events(record_fit_events(made(), frame[frame["age"] > 40]), record_fit_events(made(), older))
    assert isinstance(open_rows(table, None, Encoding(schema_of("two"), "bins")), SqlSource)
