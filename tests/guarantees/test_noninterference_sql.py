# SPDX-License-Identifier: Apache-2.0
"""Noninterference in a database: with outcomes forced, neighbours get the same statements and leave the same traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.neighbour_pairs import SETTINGS, Pair, pair_of
from veilwood.audit.noninterference import interference, trace
from veilwood.data.sql.source import SqlSource

MANY = 8  # pairs of each setting, in the slow run


def check(pair: Pair) -> None:
    assert interference(pair.run, pair.one, pair.other, draw=pair.draw) == [], pair


@pytest.mark.parametrize("setting", [0, 9, 15, 21], ids=lambda setting: f"{setting} {SETTINGS[setting][0]}")
def test_neighbours_in_a_database_get_the_same_statements(setting: int) -> None:
    """Hashes of all statements are an attribute of the forest, so that they are among the traces."""
    check(pair_of(setting, form="duckdb"))
    check(pair_of(setting + 2 * len(SETTINGS), drop=True, form="duckdb"))


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
    one = trace(pair.run, pair.one, tmp_path / "run", pair.draw)
    assert isinstance(one.visible["returned"], dict), one.visible["returned"][-1]
    assert interference(pair.run, pair.one, pair.other, draw=pair.draw) == []
    honest = SqlSource.relation

    def leaking(self: SqlSource, n_tables: int = 1) -> str:
        ((n,),) = self.session.ask(f"SELECT COUNT(*) AS n FROM {self.session.relation} AS veilwood_table")
        self.session.ask(f"SELECT {n} AS n")
        return honest(self, n_tables)

    monkeypatch.setattr(SqlSource, "relation", leaking)
    assert interference(pair.run, pair.one, pair.other, draw=pair.draw) != []
