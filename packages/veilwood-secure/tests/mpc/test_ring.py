# SPDX-License-Identifier: Apache-2.0
"""Matrix products of whole words, exact through doubles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")
from veilwood_secure.mpc import shares as arithmetic
from veilwood_testing.mpc_engines import RINGS


@pytest.mark.parametrize("ring", RINGS)
def test_matrix_products_are_exact_at_the_largest_words(ring: Any) -> None:
    largest = np.full((2, 3001), np.iinfo(ring).max, dtype=ring)  # -1: limbs all ones, the worst for doubles
    half = np.full((3001, 2), 2 ** (8 * np.dtype(ring).itemsize - 1) + 1, dtype=ring)
    for x, y in [(largest, largest.T), (largest, half), (half.T, half)]:
        exact = [[sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) for column in y.T] for row in x]
        np.testing.assert_array_equal(
            arithmetic.sum_matrix_products([(x, y)]), np.array(exact, dtype=object) % (int(np.iinfo(ring).max) + 1)
        )


def test_limbs_too_many_for_a_double_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "LIMB_BITS", {8: 26})
    x = np.full((1, 3001), 2**64 - 1, dtype=np.uint64)
    assert arithmetic.sum_matrix_products([(x, x.T)])[0, 0] != 3001  # (-1) * (-1), 3001 times


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_products_of_words_that_lie_in_memory_in_any_way(dtype: Any) -> None:
    random, size = np.random.default_rng(0), 1 << (8 * np.dtype(dtype).itemsize)

    def laid_out(rows: int, columns: int) -> list[Any]:
        words = random.integers(0, size - 1, (2 * rows, 2 * columns), dtype=dtype, endpoint=True)
        turned = np.ascontiguousarray(words[:rows, :columns].T).T
        repeated = np.broadcast_to(words[:1, :columns], (rows, columns))
        return [
            words[:rows, :columns],
            words[::2, ::2],
            turned,
            repeated,
            np.broadcast_to(words[:rows, :1], turned.shape),
        ]

    for x in laid_out(3, 40):
        for y in laid_out(40, 2):
            expected = np.array(x, dtype=object) @ np.array(y, dtype=object) % size
            assert np.array_equal(arithmetic.sum_matrix_products([(x, y)]).astype(object), expected)
