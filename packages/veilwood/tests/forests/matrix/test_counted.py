# SPDX-License-Identifier: Apache-2.0
"""Records counted once, asked for one table at a time."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.trees.counting import leaf_totals, route_rows
from veilwood_testing.matrix_forests import (
    schema,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_the_search_measures_no_table_twice_and_covers_the_leaves() -> None:
    """Whatever is chosen, noise-free reconstruction gives the exact leaves: W A^+ A = W."""
    car = vw.datasets.car()
    for parameters in ({"max_depth": 1}, {"max_depth": 3}, {"max_depth": 2, "branching": "binary"}):
        forest = vw.MatrixForestClassifier(
            car.schema, epsilon=math.inf, n_estimators=6, random_state=0, **parameters
        ).fit(car.X, car.y)
        source = open_rows(car.X, car.y, Encoding(car.schema, "bins"))
        exact = leaf_totals(forest.forest_, source.batches(), n_classes=4)
        np.testing.assert_allclose(forest.leaf_counts_, exact, atol=1e-6)
        assert not forest.privacy_.is_private


def test_a_large_domain_needs_no_table_of_all_cells() -> None:
    wide = schema([8] * 10, 2, "wide")  # 1.1e9 cells
    X = np.random.default_rng(0).integers(0, 8, (400, 10))
    y = np.where(X[:, 0] > 3, "c1", "c0")
    forest = vw.MatrixForestClassifier(wide, epsilon=math.inf, n_estimators=4, max_depth=2, random_state=0)
    tracemalloc.start()
    forest.fit(X, y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6
    leaves = route_rows(forest.forest_, X.astype(np.uint16))
    exact = np.zeros((forest.forest_.n_leaves, 2))
    for tree in leaves.T:
        np.add.at(exact, (tree, (y == "c1").astype(int)), 1)
    np.testing.assert_allclose(forest.leaf_counts_, exact, atol=1e-6)
