# SPDX-License-Identifier: Apache-2.0
"""Numbers that mix the values of a row."""

from __future__ import annotations

import numpy as np

from veilwood.data.contributions import row_hash


def test_splitmix64_of_one_column() -> None:
    """The first outputs of splitmix64 from seed 0, as published with the generator; a column of zeros goes on."""
    rows = np.zeros((1, 1), np.int64)
    assert row_hash(rows, 0).tolist() == [0xE220A8397B1DCDAF]


def test_rows_get_their_own_number_wherever_they_are() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 5, (1000, 4))
    numbers = row_hash(rows, 3)
    order = rng.permutation(1000)
    np.testing.assert_array_equal(row_hash(rows[order], 3), numbers[order])
    assert len(np.unique(numbers)) == len(np.unique(rows, axis=0))
    assert (row_hash(rows, 4) != numbers).all()
    assert row_hash(rows[:, ::-1], 3).tolist() != numbers.tolist()
    assert abs(np.mean(numbers / 2.0**64) - 0.5) < 0.1
