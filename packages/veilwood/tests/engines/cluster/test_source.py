# SPDX-License-Identifier: Apache-2.0
"""Rows of a frame that stay where they are: made once, changed and asked there."""

from __future__ import annotations

from typing import Any

import numpy as np

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.engines.cluster import source
from veilwood.engines.cluster.worker import PartialSums
from veilwood.privacy.neighbours import RowsOf
from veilwood_testing.kept_cases import Here

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)


class Frame:
    """Two partitions, and how often something was made of their rows."""

    made = 0

    def persist_states(self, make: Any) -> Here:
        self.made += 1
        return Here([make(["a", "b"]), make(["c"])])

    def run_checked(self, work: Any) -> PartialSums:
        part: PartialSums = work()
        return part


def test_only_the_columns_that_count_are_asked_for() -> None:
    encoding = Encoding(SCHEMA)
    names = [*(column.name for column in SCHEMA.features), SCHEMA.target.name]
    assert sorted(source._required_columns(encoding, None)) == sorted(names)
    assert sorted(source._required_columns(encoding, RowsOf("patient", 2))) == sorted([*names, "patient"])
    assert source._required_columns(encoding, RowsOf(names[0], 2)).count(names[0]) == 1


def test_rows_are_kept_once_changed_and_let_go(monkeypatch: Any) -> None:
    monkeypatch.setattr(source, "update_state", lambda change, held: change(held))
    monkeypatch.setattr(source, "query_state", lambda question, held: PartialSums(question(held)))
    frame = Frame()
    rows = source.PersistedRows(frame, list)  # type: ignore[arg-type]
    count = lambda held: np.array([len(held)])  # noqa: E731
    assert rows.aggregate(count).tolist() == [3]
    rows.update(lambda held: held + held)
    assert rows.aggregate(count).tolist() == [6]
    assert frame.made == 1
    rows.close()
    assert rows.aggregate(count).tolist() == [3]
    assert frame.made == 2


def test_a_part_of_the_rows_is_counted_batch_by_batch() -> None:
    count: Any = lambda batches, n_jobs: np.array([sum(batches)])  # noqa: E731
    less: Any = lambda batch: batch - 1  # noqa: E731
    batches: Any = [3, 4]
    assert source._count_filtered(count, less, batches).tolist() == [5]
