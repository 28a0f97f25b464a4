# SPDX-License-Identifier: Apache-2.0
"""Trees fitted to rows of small whole numbers."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.arrays import HAVE_NUMBA
from veilwood.forests.adaptive.sparse_histogram import FittedTree, TreeKind

WAYS = [False, pytest.param(True, marks=pytest.mark.skipif(not HAVE_NUMBA, reason="compiled loops"))]
DEEP = TreeKind(True, 1.0, 1)


@pytest.mark.parametrize("fast", WAYS)
def test_rows_without_columns_are_one_leaf(fast: bool) -> None:
    X, y = np.zeros((9, 1), np.uint8), np.arange(9) % 2
    tree = FittedTree.fit_sample(DEEP, X, y, 3, 5, 100, fast=fast)
    assert tree.probabilities.tolist() == [[5 / 9, 4 / 9, 0.0]]
    assert tree.nodes_by_level.tolist() == [0]


@pytest.mark.parametrize("fast", WAYS)
def test_a_tree_knows_the_rows_it_was_grown_from_and_siblings_stand_together(fast: bool) -> None:
    X = np.random.default_rng(0).permutation(256).astype(np.uint8)[:, None]
    y = (X[:, 0] // 16 % 3).astype(np.int64)
    tree = FittedTree.fit_sample(DEEP, X, y, 3, 1, 1000, fast=fast)
    assert (tree.predict_proba(X, fast=fast).argmax(axis=1) == y).all()
    order = tree.nodes_by_level
    assert sorted(order.tolist()) == list(range(len(tree.left)))
    place = np.argsort(order)
    inner = tree.left >= 0
    assert np.array_equal(place[tree.right[inner]], place[tree.left[inner]] + 1)
    assert (place[tree.left[inner]] > place[inner]).all()


def test_of_more_rows_than_it_may_see_a_tree_sees_some() -> None:
    X, y = np.arange(200, dtype=np.uint8)[:, None], np.arange(200) % 2
    assert len(FittedTree.fit_sample(DEEP, X, y, 2, 0, 20, fast=False).left) < 2 * 20
