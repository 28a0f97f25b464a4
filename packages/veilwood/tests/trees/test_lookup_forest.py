# SPDX-License-Identifier: Apache-2.0
"""Trees as tables: the same sums as a walk, bit for bit, or no tables at all."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.counts import Axis, ContingencyTable
from veilwood.data.encoding import EncodedColumn
from veilwood.forests.adaptive.contingency import tables_to_forest
from veilwood.trees.counting import sum_over_trees
from veilwood.trees.lookup_forest import LookupForest
from veilwood.trees.random import grow_multiway

N_CODES = (65536, 65536, 9, 300, 2)


def random_axis(feature: int, rng: np.random.Generator) -> Axis:
    n = N_CODES[feature]
    if n == 65536:
        starts = np.append(0, np.sort(rng.choice(np.arange(1, n), 7, replace=False)))
        return Axis(feature, np.arange(8, dtype=np.uint16), True, 8, starts)
    size = min(n, 5)
    groups = rng.permutation(np.append(np.arange(size), rng.integers(0, size, n - size)))
    return Axis(feature, groups.astype(np.uint16), False, size, np.arange(n))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("fast", [True, False])
def test_sums_are_those_of_the_walk(width: int, fast: bool) -> None:
    rng = np.random.default_rng(3)
    chosen = [rng.permutation(5)[: rng.integers(0, 4)] for _ in range(25)]
    forest, _ = tables_to_forest(
        [ContingencyTable(tuple(random_axis(int(j), rng) for j in columns)) for columns in chosen]
    )
    values = rng.standard_normal((forest.n_leaves, width))
    codes = np.stack([rng.integers(0, n, 3001) for n in N_CODES], axis=1).astype(np.uint16)
    tables = LookupForest.from_forest(forest, values, N_CODES)
    assert tables is not None
    assert np.array_equal(tables.sum_leaf_values(codes, fast=fast), sum_over_trees(forest, codes, values))
    assert np.array_equal(tables.sum_leaf_values(codes[:0], fast=fast), np.zeros((0, width)))


def test_other_trees_are_walked() -> None:
    columns = [EncodedColumn(str(i), False, 3, None) for i in range(8)]
    forest = grow_multiway(columns, 3, 4, random_state=0)
    assert LookupForest.from_forest(forest, np.zeros((forest.n_leaves, 1)), [3] * 8) is None


def test_a_model_predicts_alike_after_a_copy_and_forgets_its_tables() -> None:
    schema, X, y = vw.datasets.balance_scale()
    model = vw.PrivateForestClassifier(schema, epsilon=20, random_state=0).fit(X, y)
    before = pickle.dumps(model)
    values = model.predict_proba(X)
    assert model.model_.lookup_forest is not None
    assert pickle.dumps(model) == before  # whether anything was predicted is not told
    assert np.array_equal(pickle.loads(before).predict_proba(X), values)
