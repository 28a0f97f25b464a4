# SPDX-License-Identifier: Apache-2.0
"""What partitions hold is moved and asked where it is; buckets of one partition are added up there."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood.engines.cluster.engines import BucketedPartitions
from veilwood.engines.cluster.worker import PartialSums
from veilwood_testing.kept_cases import Here


def test_every_bucket_is_moved_and_asked_once() -> None:
    kept = Here([[1, 2], [], [3]])
    double: Any = lambda number: 2 * number  # noqa: E731
    told: Any = lambda number: PartialSums(np.array([number, 1]), {number: (1, 1)})  # noqa: E731
    total = BucketedPartitions(kept).update(double).aggregate(told)
    np.testing.assert_array_equal(np.asarray(total.sums), [12, 3])
    assert set(total.checksums) == {2, 4, 6}
    assert kept.held == [[1, 2], [], [3]]
    BucketedPartitions(kept).close()
    assert kept.closed
