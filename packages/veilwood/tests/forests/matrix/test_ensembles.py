# SPDX-License-Identifier: Apache-2.0
"""Ensembles have features, trees and depths of their own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from veilwood.data.encoding import Encoding
from veilwood.forests.matrix import training as ensembles
from veilwood_testing.training_cases import forest_on

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_ensembles_have_their_own_features_trees_and_depths(car: Any) -> None:
    forest = forest_on(car, n_ensembles=3, max_features=4, n_estimators=[2, 3, 4], max_depth=[1, 2, 3])
    forest.fit(car.X, car.y)
    assert forest.forest_.n_trees == 9
    assert forest.plan_.notes["ensembles"] == 3
    depth_of_tree = [forest.forest_.level[start:end].max() for start, end in tree_spans(forest)]
    assert depth_of_tree == [1] * 2 + [2] * 3 + [3] * 4
    for group in (slice(0, 2), slice(2, 5), slice(5, 9)):
        used = {f for start, end in tree_spans(forest)[group] for f in forest.forest_.feature[start:end] if f >= 0}
        assert len(used) <= 4


def tree_spans(forest: Any) -> list[tuple[int, int]]:
    starts = [*forest.forest_.roots.tolist(), forest.forest_.n_nodes]
    return list(pairwise(starts))


def test_features_are_cut_into_disjoint_parts(car: Any) -> None:
    encoding = Encoding(car.schema, "bins")
    wanted = ensembles.EnsembleParameters(n_ensembles=4, n_estimators=8, max_depth=1, feature_subsets="disjoint")
    seen = set()
    for seed in range(20):
        grown, whole = ensembles.grow_ensembles(encoding, wanted, seed)
        parts = [each.features for each in grown]
        assert sorted(f for part in parts for f in part) == list(range(6))  # each feature once
        assert sorted(map(len, parts)) == [1, 1, 2, 2]
        assert whole.n_trees == 8
        seen.add(tuple(parts))
    assert len(seen) > 15  # at random
    forest = forest_on(car, n_ensembles=3, n_estimators=6, max_depth=2, feature_subsets="disjoint").fit(car.X, car.y)
    assert forest.plan_.choices["division"] == 3
    assert len(forest.plan_.steps) == 3  # trees of depth 2 over two features: one table each


def test_a_total_of_trees_is_shared_out(car: Any) -> None:
    forest = forest_on(car, n_ensembles=3, max_features=4, n_estimators=8)
    wanted = ensembles.EnsembleParameters(n_ensembles=3, max_features=4, n_estimators=8, max_depth=2)
    _, whole = ensembles.grow_ensembles(Encoding(car.schema, "bins"), wanted, 0)
    assert whole.n_trees == forest.plan().layout.trees == 8
