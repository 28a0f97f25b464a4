# SPDX-License-Identifier: Apache-2.0
"""Noninterference in a database: with outcomes forced, neighbours get the same statements and leave the same traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import veilwood as vw
from veilwood_audit.noninterference import find_interference, record_trace, visible_values
from veilwood_engines.sql.source import SqlSource
from veilwood_testing.neighbour_pairs import SCHEMAS, SERVERS, SETTINGS, Pair, Row, as_sqlite, pair_of
from veilwood_testing.processes import running_postgres

MANY = 8  # pairs of each setting, in the slow run


def check(pair: Pair) -> None:
    assert find_interference(pair.run, pair.one, pair.other, draw=pair.draw) == [], pair


@pytest.mark.parametrize("setting", [0, 9, 15, 21], ids=lambda setting: f"{setting} {SETTINGS[setting][0]}")
def test_neighbours_in_a_database_get_the_same_statements(setting: int) -> None:
    """Hashes of all statements are an attribute of the forest, so that they are among the traces."""
    check(pair_of(setting, form="duckdb"))
    check(pair_of(setting + 2 * len(SETTINGS), drop=True, form="duckdb"))


@pytest.mark.parametrize("setting", [3, 21], ids=lambda setting: f"{setting} {SETTINGS[setting][0]}")
def test_neighbours_in_sqlite_leave_the_same_traces(setting: int) -> None:
    check(pair_of(setting, form="sqlite"))
    check(pair_of(setting + 2 * len(SETTINGS), drop=True, form="sqlite"))


def test_how_many_rows_are_set_aside_is_not_seen_where_one_is_replaced() -> None:
    """In a database contents draw the parts: their exact sizes, which a plan may hold elsewhere, are private there."""
    common: Row = {"income": 5.0, "city": "Lima", "grade": "1", "ill": "1"}
    rows: list[Row] = [common | {"age": float(age)} for age in range(12)]

    def fit(table: list[Row], folder: Path) -> Any:
        forest = vw.PrivateForestClassifier(SCHEMAS["classification"], adjacency="replace-one", random_state=0)
        X, _ = as_sqlite(table, "classification", folder)
        return visible_values(forest.fit(X, holdout_fraction=0.5, evaluate_epsilon=0.5))

    for age in (20, 21, 22, 23):  # of which some change sides, by a key that is the same in every audit
        assert find_interference(fit, rows, [*rows[:-1], common | {"age": float(age)}]) == []


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with running_postgres() as address:
        SERVERS.append(address)
        yield
        SERVERS.pop()


@pytest.mark.slow
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("form", ["sqlite", "postgres"])
@pytest.mark.parametrize("setting", range(len(SETTINGS)), ids=lambda setting: f"{setting} {SETTINGS[setting][0]}")
def test_neighbours_in_other_databases_leave_the_same_traces(setting: int, form: str, drop: bool, server: None) -> None:
    for number in (setting, setting + len(SETTINGS)):
        check(pair_of(number, drop=drop, form=form))


@pytest.mark.slow
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("setting", range(len(SETTINGS)), ids=lambda setting: f"{setting} {SETTINGS[setting][0]}")
def test_many_neighbours_in_a_database(setting: int, drop: bool) -> None:
    for number in range(setting, setting + MANY * len(SETTINGS), len(SETTINGS)):
        check(pair_of(number, drop=drop, form="duckdb"))


def test_a_statement_that_depends_on_rows_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted leak: the number of rows as a constant."""
    pairs = (pair_of(number, form="duckdb") for number in range(0, 50 * len(SETTINGS), len(SETTINGS)))
    pair = next(pair for pair in pairs if len(pair.one) != len(pair.other))
    one = record_trace(pair.run, pair.one, tmp_path / "run", pair.draw)
    assert isinstance(one.visible["returned"], dict), one.visible["returned"][-1]
    assert find_interference(pair.run, pair.one, pair.other, draw=pair.draw) == []
    honest = SqlSource.rows_relation

    def leaking(self: SqlSource, n_tables: int = 1) -> str:
        ((n,),) = self.session.execute(f"SELECT COUNT(*) AS n FROM {self.session.relation} AS veilwood_table")
        self.session.execute(f"SELECT {n} AS n")
        return honest(self, n_tables)

    monkeypatch.setattr(SqlSource, "rows_relation", leaking)
    assert find_interference(pair.run, pair.one, pair.other, draw=pair.draw) != []
