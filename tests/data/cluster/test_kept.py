# SPDX-License-Identifier: Apache-2.0
"""What partitions hold is moved and asked where it is; buckets of one partition are added up there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from veilwood.data.cluster.kept import Buckets
from veilwood.data.cluster.worker import PartSums


class Here:
    """Partitions in this process."""

    def __init__(self, held: list[Any]) -> None:
        self.held, self.closed = held, False

    def moved(self, move: Callable[[Any], Any]) -> Here:
        return Here([move(each) for each in self.held])

    def ask(self, answer: Callable[[Any], PartSums]) -> PartSums:
        return PartSums.total([answer(each) for each in self.held])

    def close(self) -> None:
        self.closed = True


def test_every_bucket_is_moved_and_asked_once() -> None:
    kept = Here([[1, 2], [], [3]])
    double: Any = lambda number: 2 * number  # noqa: E731
    told: Any = lambda number: PartSums(np.array([number, 1]), {number: (1, 1)})  # noqa: E731
    total = Buckets(kept).moved(double).ask(told)
    np.testing.assert_array_equal(np.asarray(total.sums), [12, 3])
    assert set(total.seen) == {2, 4, 6}
    assert kept.held == [[1, 2], [], [3]]
    Buckets(kept).close()
    assert kept.closed
