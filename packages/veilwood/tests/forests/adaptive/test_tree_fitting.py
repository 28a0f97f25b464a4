# SPDX-License-Identifier: Apache-2.0
"""Trees fitted to rows of small integers: the compiled loop returns those of scikit-learn, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood.arrays import HAVE_NUMBA
from veilwood.forests.adaptive.sparse_histogram import KINDS, FittedTree, TreeKind

BOTH = [False, pytest.param(True, marks=pytest.mark.skipif(not HAVE_NUMBA, reason="needs numba"))]
DEEP = TreeKind(random_thresholds=True, max_features=1.0, min_samples_leaf=1)


@pytest.mark.parametrize("fast", BOTH)
def test_a_constant_column_gives_a_single_leaf(fast: bool) -> None:
    X, y = np.zeros((9, 1), np.uint8), np.arange(9) % 2
    tree = FittedTree.fit_sample(DEEP, X, y, 3, 5, 100, fast=fast)
    assert tree.probabilities.tolist() == [[5 / 9, 4 / 9, 0.0]]
    assert tree.nodes_by_level.tolist() == [0]


@pytest.mark.parametrize("fast", BOTH)
def test_a_deep_tree_predicts_its_own_rows_and_levels_keep_siblings_together(fast: bool) -> None:
    X = np.random.default_rng(0).permutation(256).astype(np.uint8)[:, None]
    y = (X[:, 0] // 16 % 3).astype(np.int64)
    tree = FittedTree.fit_sample(DEEP, X, y, 3, 1, 1000, fast=fast)
    assert (tree.predict_proba(X).argmax(axis=1) == y).all()
    order = tree.nodes_by_level
    assert sorted(order.tolist()) == list(range(len(tree.left)))
    place = np.argsort(order)
    inner = tree.left >= 0
    assert np.array_equal(place[tree.right[inner]], place[tree.left[inner]] + 1)
    assert (place[tree.left[inner]] > place[inner]).all()


def test_a_tree_is_fitted_to_a_sample_if_there_are_too_many_rows() -> None:
    X, y = np.arange(200, dtype=np.uint8)[:, None], np.arange(200) % 2
    assert len(FittedTree.fit_sample(DEEP, X, y, 2, 0, 20, fast=False).left) < 2 * 20


def mixed_table(n_classes: int, n_rows: int) -> tuple[Any, Any]:
    """Columns with few and many groups, one of them constant, one a copy of another; some classes may be missing."""
    rng = np.random.default_rng(n_classes)
    X = rng.integers(0, [1, 2, 3, 25, 64, 256, 7], (n_rows, 7)).astype(np.uint8)
    X[:, 6] = X[:, 3]
    X[:, 4] &= 0xF0  # leaves empty groups between others
    y = (X[:, 1] + X[:, 3] // 9 + (rng.random(n_rows) < 0.2)) % n_classes
    return X, y.astype(np.int64)


@pytest.mark.skipif(not HAVE_NUMBA, reason="compares with the compiled loop")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("n_classes", "n_rows"), [(2, 3000), (3, 300), (12, 900), (2, 1)])
def test_compiled_trees_equal_those_of_scikit_learn(kind: TreeKind, n_classes: int, n_rows: int) -> None:
    X, y = mixed_table(n_classes, n_rows)
    for seed in (0, 1, 2):
        slow, fast = (FittedTree.fit_sample(kind, X, y, n_classes, seed, 1 << 16, fast=fast) for fast in (False, True))
        inner = slow.left >= 0
        assert np.array_equal(slow.left, fast.left)
        assert np.array_equal(slow.right, fast.right)
        assert np.array_equal(slow.feature[inner], fast.feature[inner])
        assert np.array_equal(slow.threshold[inner], fast.threshold[inner])
        assert np.array_equal(slow.probabilities, fast.probabilities)
        assert inner.any() == (n_rows > 1)
