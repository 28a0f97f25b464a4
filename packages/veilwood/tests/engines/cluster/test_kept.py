# SPDX-License-Identifier: Apache-2.0
"""What partitions hold is moved and asked where it is; buckets of one partition are added up there."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood.engines.cluster.engines import Buckets
from veilwood.engines.cluster.worker import PartSums
from veilwood_testing.kept_cases import Here


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
