# SPDX-License-Identifier: Apache-2.0
"""Compiled sums over tables are those of numpy, however rows are cut."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from veilwood.kernels import _LOOKUP_BLOCK_ROWS as _BLOCK
from veilwood.kernels import add_lookup_values


@pytest.mark.parametrize("n_values", [1, 3])
def test_sums_are_those_of_numpy(n_values: int) -> None:
    rng = np.random.default_rng(0)
    n_rows, features = 2 * _BLOCK + 7, np.array([2, 0])
    columns = rng.integers(0, 5, (3, n_rows)).astype(np.uint16)
    groups = rng.integers(0, 4, (2, 5)).astype(np.uint8)
    axes, ends, starts = np.array([0, 1, 1]), np.array([2, 3]), np.array([0, 16], np.uint32)  # 4 x 4 cells, then 4
    offsets = np.array([[0, 4, 8, 12], [0, 1, 2, 3], [0, 1, 2, 3]], np.uint32)
    values = rng.random((20, n_values))
    sums = np.zeros((n_rows, n_values))
    for first, last in ((0, 500), (500, n_rows)):
        add_lookup_values(features, groups, axes, offsets, ends, starts, values, columns, sums, first, last)
    one, other = groups[0][columns[2]].astype(int), groups[1][columns[0]].astype(int)
    np.testing.assert_array_equal(sums, values[4 * one + other] + values[16 + other])
