# SPDX-License-Identifier: Apache-2.0
"""Trees that compiled loops grow are scikit-learn's, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood.arrays import HAVE_NUMBA
from veilwood.forests.adaptive.sparse_histogram import KINDS, FittedTree, TreeKind


def table(n_classes: int, n_rows: int) -> tuple[Any, Any]:
    """Columns of few and many groups, one of them constant, one a copy of another; some classes may be missing."""
    rng = np.random.default_rng(n_classes)
    X = rng.integers(0, [1, 2, 3, 25, 64, 256, 7], (n_rows, 7)).astype(np.uint8)
    X[:, 6] = X[:, 3]
    X[:, 4] &= 0xF0  # groups between which nothing lies
    y = (X[:, 1] + X[:, 3] // 9 + (rng.random(n_rows) < 0.2)) % n_classes
    return X, y.astype(np.int64)


@pytest.mark.skipif(not HAVE_NUMBA, reason="compares with compiled loops")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("n_classes", "n_rows"), [(2, 3000), (3, 300), (12, 900), (2, 1)])
def test_compiled_trees_are_those_of_scikit_learn(kind: TreeKind, n_classes: int, n_rows: int) -> None:
    X, y = table(n_classes, n_rows)
    for seed in (0, 1, 2):
        slow, fast = (FittedTree.fit_sample(kind, X, y, n_classes, seed, 1 << 16, fast=way) for way in (False, True))
        inner = slow.left >= 0
        assert np.array_equal(slow.left, fast.left)
        assert np.array_equal(slow.right, fast.right)
        assert np.array_equal(slow.feature[inner], fast.feature[inner])
        assert np.array_equal(slow.threshold[inner], fast.threshold[inner])
        assert np.array_equal(slow.probabilities, fast.probabilities)
        assert inner.any() == (n_rows > 1)
        others, _ = table(n_classes + 1, 200)
        assert np.array_equal(slow.predict_proba(others, fast=False), fast.predict_proba(others, fast=True))
        assert np.array_equal(slow.predict_proba(X, fast=False).shape, (n_rows, n_classes))
