# SPDX-License-Identifier: Apache-2.0
"""Sums of partitions."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.engines.cluster import worker as partitions

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_parts_add_up_and_stay_as_they_are() -> None:
    first = partitions.PartialSums(np.array([1, 2]), {0: (2, 7)})
    second = partitions.PartialSums(np.array([10, 20]), {1: (3, 8)})
    total = partitions.PartialSums.total([first, second, partitions.PartialSums()])
    np.testing.assert_array_equal(total.sums, [11, 22])  # type: ignore[arg-type]
    assert total.checksums == {0: (2, 7), 1: (3, 8)}
    np.testing.assert_array_equal(first.sums, [1, 2])  # type: ignore[arg-type]
