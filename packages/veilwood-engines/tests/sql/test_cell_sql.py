# SPDX-License-Identifier: Apache-2.0
"""Cells as expressions: a database computes what the tests of codes say."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import veilwood as vw
from veilwood.data.counts import CellQuery, Split, split_by_code
from veilwood.data.encoding import Encoding
from veilwood.errors import DomainTooLargeError
from veilwood_engines.sql import cell_sql as writing
from veilwood_engines.sql.cell_sql import NOT_COUNTED, BinSqlWriter, CellSqlWriter, join_selects
from veilwood_engines.sql.dialects import SqlDialect
from veilwood_testing.errors import rejects
from veilwood_testing.forest_structures import follow_rule

ENCODING = Encoding(vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2))


def test_a_database_finds_the_cell_that_the_tests_lead_to() -> None:
    rng = np.random.default_rng(0)
    inner = split_by_code(1, np.array([3, 3, -1, 4, 5]))
    way = split_by_code(0, np.array([0, 1, 1, 2, 0, 2]), lambda group: inner if group == 1 else group)
    table = CellQuery((way, Split(1, (0, 2), (10, 20))), 30)
    text = BinSqlWriter(SqlDialect("sqlite"), ENCODING, (6, 5)).cell_expression(table)
    with sqlite3.connect(":memory:") as database:
        for row in np.column_stack([rng.integers(0, 6, 60), rng.integers(0, 5, 60)]).tolist():
            (found,) = database.execute(f"SELECT {text} FROM (SELECT {row[0]} AS c0, {row[1]} AS c1)").fetchone()
            parts = [follow_rule(part, row) for part in table.rules]
            assert found == sum(NOT_COUNTED if part is None else part for part in parts)
            assert (found < 0) == (None in parts)


def test_queries_are_joined_into_statements_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_BATCH_LENGTH", 25)
    monkeypatch.setattr(writing, "MAX_SELECTS", 3)
    monkeypatch.setattr(writing, "MAX_QUERY_LENGTH", 50)
    selects = ["SELECT 1"] * 5 + ["S" * 30]
    statements = list(join_selects(selects, "WITH x "))
    assert [statement.count("UNION ALL") for statement in statements] == [2, 1, 0]
    assert all(statement.startswith("WITH x ") for statement in statements)
    with rejects(DomainTooLargeError, raised_in="join_selects"):
        list(join_selects(["S" * 51]))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 5), st.integers(-3, 3))
@example([0, 1, 2, 2, 2], 1, 0)  # once written as the code itself: the last group has codes beyond the third
def test_a_code_is_in_its_group_however_groups_lie(groups: list[int], stride: int, start: int) -> None:
    way = split_by_code(0, np.array(groups), lambda group: group * stride + start)
    schema = vw.Schema.from_dict({
        "name": "one", "task": "classification", "target": "y", "columns": [
            {"name": "x", "kind": "categorical", "values": [f"v{i}" for i in range(len(groups))]},
            {"name": "y", "kind": "categorical", "values": ["no", "yes"]}]})  # fmt: skip
    encoding, words = Encoding(schema), SqlDialect("sqlite")
    with sqlite3.connect(":memory:") as database:
        for writer, name in (
            (CellSqlWriter(words, encoding), "f0"),
            (BinSqlWriter(words, encoding, [len(groups)]), "c0"),
        ):
            text = writer.rule_sql(way)
            found = [database.execute(f"SELECT {text} FROM (SELECT {c} AS {name})").fetchone()[0]
                     for c in range(len(groups))]  # fmt: skip
            assert found == [group * stride + start for group in groups]
