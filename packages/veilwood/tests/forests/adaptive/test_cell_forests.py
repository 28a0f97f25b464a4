# SPDX-License-Identifier: Apache-2.0
"""Forests that are learned from released cells: what is written is what was fitted."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.arrays import HAVE_NUMBA
from veilwood.forests.adaptive.sparse_histogram import (
    KINDS,
    FittedTree,
    SparseHistogram,
    TreeKind,
    _constant_tree,
    _to_fitted_forest,
    count_trees,
    fit_best_forest,
    predict_probabilities,
)
from veilwood_testing.clinic import COLUMNS

AXES = (COLUMNS[0].equal_mass_groups(COLUMNS[0].prior, 6), COLUMNS[1].ungrouped_axis())


def cells_of(n_cells: int) -> SparseHistogram:
    """Cells of two columns, of which both tell the class."""
    rng = np.random.default_rng(n_cells)
    groups = np.column_stack([rng.integers(0, axis.size, n_cells) for axis in AXES]).astype(np.uint8)
    return SparseHistogram(AXES, groups, groups.sum(axis=1) % 3, rng.integers(1, 4, n_cells))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_written_trees_say_what_fitted_ones_do(kind: TreeKind) -> None:
    """Groups become thresholds of codes, and tables of categories; as if one more tree voted evenly."""
    cells = cells_of(400)
    trees = [FittedTree.fit_sample(kind, cells.groups, cells.label, 3, seed, 1000, fast=False) for seed in range(5)]
    codes = np.zeros((400, len(COLUMNS)), np.uint16)
    for number, axis in enumerate(AXES):
        codes[:, axis.feature] = axis.first_codes[cells.groups[:, number]]
    told = np.mean([tree.predict_proba(cells.groups) for tree in trees], axis=0)
    np.testing.assert_allclose(predict_probabilities(_to_fitted_forest(trees, AXES), codes), (5 * told + 1 / 3) / 6)


def test_cells_without_rows_say_nothing() -> None:
    nothing = cells_of(0)
    grown = fit_best_forest(nothing, 3, np.random.default_rng(0), None)
    np.testing.assert_allclose(predict_probabilities(grown, np.zeros((2, len(COLUMNS)), np.uint16)), 1 / 3)
    assert _constant_tree(3).probabilities.tolist() == [[1 / 3] * 3]


@pytest.mark.skipif(not HAVE_NUMBA, reason="compares with compiled loops")
def test_compiled_loops_grow_the_same_forest() -> None:
    slow, fast = (fit_best_forest(cells_of(300), 3, np.random.default_rng(1), 1, fast=way) for way in (False, True))
    assert slow.forest.n_trees == fast.forest.n_trees == count_trees(3)
    assert np.array_equal(slow.values, fast.values)
    assert np.array_equal(slow.forest.cut, fast.forest.cut)
