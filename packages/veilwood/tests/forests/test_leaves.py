# SPDX-License-Identifier: Apache-2.0
"""What leaves say: no more than the noise lets them, and always shares."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.forests import leaves
from veilwood.trees.random import grow_binary
from veilwood_testing.forest_structures import SMALL_COLUMNS

FOREST = grow_binary(SMALL_COLUMNS, 3, 3, 0)


def counts(scale: float) -> np.ndarray:
    return scale * np.random.default_rng(0).random((FOREST.n_leaves, 3))


@pytest.mark.parametrize("noise", [0.0, 1.0, 100.0, 1e12])
def test_shares_are_shares_whatever_the_noise(noise: float) -> None:
    found = leaves.shrunken_frequencies(FOREST, counts(50.0), noise)
    assert found.shape == (FOREST.n_leaves, 3)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


def test_more_noise_brings_leaves_nearer_to_each_other() -> None:
    spread = [
        float(leaves.shrunken_frequencies(FOREST, counts(50.0), noise).std(axis=0).sum()) for noise in (0, 300, 1e9)
    ]
    assert spread[0] > spread[1] > spread[2]


def test_coins_belong_to_rows_and_seeds() -> None:
    codes = np.random.default_rng(0).integers(0, 9, (500, 4)).astype(np.uint16)
    tossed = leaves.row_uniforms(codes, 1)
    np.testing.assert_array_equal(leaves.row_uniforms(codes[::-1], 1), tossed[::-1])
    assert (leaves.row_uniforms(codes, 2) != tossed).all()
    assert ((tossed >= 0) & (tossed < 1)).all()
    assert 0.4 < tossed.mean() < 0.6


def test_doubt_leaves_nothing_impossible() -> None:
    shares = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    doubted = leaves.smooth_probabilities(shares, 4)
    np.testing.assert_allclose(doubted.sum(axis=1), 1.0)
    assert doubted.min() == pytest.approx(1 / 15)
