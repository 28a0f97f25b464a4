# SPDX-License-Identifier: Apache-2.0
"""States of partitions: made once, updated and queried where they are, and sums that add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.privacy.neighbours import RowsOf
from veilwood_engines.cluster import source, worker
from veilwood_engines.cluster.engines import BucketedPartitions
from veilwood_engines.cluster.worker import PartialSums

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)


class Here:
    """Partitions in this process."""

    def __init__(self, held: list[Any]) -> None:
        self.held, self.closed = held, False

    def update(self, function: Callable[[Any], Any]) -> Here:
        return Here([function(each) for each in self.held])

    def aggregate(self, query: Callable[[Any], PartialSums]) -> PartialSums:
        return PartialSums.total([query(each) for each in self.held])

    def close(self) -> None:
        self.closed = True


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
    monkeypatch.setattr(worker, "update_state", lambda change, held: change(held))
    monkeypatch.setattr(worker, "query_state", lambda question, held: PartialSums(question(held)))
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


def test_every_bucket_is_moved_and_asked_once() -> None:
    kept = Here([[1, 2], [], [3]])
    double: Any = lambda number: 2 * number  # noqa: E731
    result: Any = lambda number: PartialSums(np.array([number, 1]), {number: (1, 1)})  # noqa: E731
    total = BucketedPartitions(kept).update(double).aggregate(result)
    np.testing.assert_array_equal(np.asarray(total.sums), [12, 3])
    assert set(total.checksums) == {2, 4, 6}
    assert kept.held == [[1, 2], [], [3]]
    BucketedPartitions(kept).close()
    assert kept.closed


def test_parts_add_up_and_stay_as_they_are() -> None:
    first = PartialSums(np.array([1, 2]), {0: (2, 7)})
    second = PartialSums(np.array([10, 20]), {1: (3, 8)})
    total = PartialSums.total([first, second, PartialSums()])
    np.testing.assert_array_equal(total.sums, [11, 22])
    assert total.checksums == {0: (2, 7), 1: (3, 8)}
    np.testing.assert_array_equal(first.sums, [1, 2])
