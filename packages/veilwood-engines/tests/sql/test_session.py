# SPDX-License-Identifier: Apache-2.0
"""Statements are what was shown, and hold no value of a row."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

import veilwood as vw
from veilwood.errors import UnreadableError
from veilwood_engines.sql.preview import preview_statements
from veilwood_engines.sql.session import Session
from veilwood_testing.databases import (
    NUMBER_COLUMN,
    database_rows,
    record_fit_events,
    schema_of,
    schema_with_column,
    write_databases,
)
from veilwood_testing.errors import rejects


def test_statements_hold_no_value_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have values that occur nowhere else; what comes back are sums, never more of them than cells were asked."""
    frame = database_rows("two", 60)
    frame["age"] = 31.4159 + np.arange(60)
    frame['ci"ty'] = "Atlantis"
    frame["person"] = 777000 + np.arange(60)
    address = write_databases(frame, tmp_path)["duckdb"]
    sent: list[str] = []
    back: list[tuple[Any, ...]] = []
    send = Session._send_statement

    def listening(self: Session, statement: str, run: Any) -> Any:
        sent.append(statement)
        found = send(self, statement, run)
        rows = found[1] if isinstance(found, tuple) else found.tolist()
        back.extend(() if statement.startswith("EXPLAIN") else rows)
        return found

    monkeypatch.setattr(Session, "_send_statement", listening)
    unit = {"id": "person", "at_most": 1}
    schema = schema_of("two")
    forest = vw.PrivateForestClassifier(schema, epsilon=3.0, n_rows=3000, privacy_unit=unit, random_state=0)
    record_fit_events(forest, address, draw=1)
    assert len(sent) > 40  # rounds were reached
    every = " ".join(sent)
    assert not any(f"{31.4159 + i:.4f}"[:-1] in every for i in range(60))
    assert "Atlantis" not in every
    assert "77700" not in every
    selects = [one for one in sent if one.startswith(("SELECT", "WITH"))]
    assert all("COUNT(" in one or "SUM(" in one or "MAX(" in one or one.endswith("WHERE 1 = 0") for one in selects)
    assert all(isinstance(value, int | Decimal) for row in back for value in row)
    assert len(forest.statements_) == len(sent)


def test_templates_are_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For trees that are grown without data the statements of a plan are those of the fit, the snapshot apart."""
    address = write_databases(database_rows("two", 50), tmp_path)["duckdb"]

    def made() -> Any:
        return vw.RandomTreesClassifier(schema_of("two"), n_estimators=3, max_depth=3, random_state=0)

    sent: list[str] = []
    send = Session._send_statement

    def record(self: Session, statement: str, run: Any) -> Any:
        sent.append(statement)
        return send(self, statement, run)

    monkeypatch.setattr(Session, "_send_statement", record)
    planned = preview_statements(made(), address)
    sent.clear()
    made().fit(address)
    assert [one for one in sent if not one.startswith("BEGIN")] == planned


def test_errors_of_an_engine_are_not_shown(tmp_path: Path, server: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS failing CASCADE; CREATE TABLE failing (x TEXT, y BIGINT)")
        connection.execute("INSERT INTO failing VALUES ('classified', 1)")
        connection.execute("CREATE VIEW broken AS SELECT CAST(x AS BIGINT) AS x, y FROM failing")
    forest = vw.RandomTreesClassifier(schema_with_column(NUMBER_COLUMN), n_estimators=1, max_depth=1)
    with pytest.raises(UnreadableError) as caught:
        forest.fit(f"{server}#broken")
    assert "classified" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with rejects(UnreadableError, raised_in="redact_errors_of"):
        forest.fit(f"{server}#nothing_of_that_name")
    with rejects(UnreadableError, raised_in="redact_errors_of") as caught:
        forest.fit("postgresql://someone:hidden@127.0.0.1:1/none#t")
    assert "hidden" not in str(caught.value)
