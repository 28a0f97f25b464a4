# SPDX-License-Identifier: Apache-2.0
"""Forests that are learned from released cells: what is written is what was fitted."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.forests.adaptive.sparse_histogram import (
    KINDS,
    FineCells,
    FittedTree,
    TreeKind,
    _leaf,
    _written,
    grow,
    n_trees,
    shares_of,
)
from veilwood.trees.counting import HAVE_NUMBA
from veilwood_testing.clinic import COLUMNS

AXES = (COLUMNS[0].of_mass(COLUMNS[0].prior, 6), COLUMNS[1].values())


def cells_of(n_cells: int) -> FineCells:
    """Cells of two columns, of which both tell the class."""
    rng = np.random.default_rng(n_cells)
    groups = np.column_stack([rng.integers(0, axis.size, n_cells) for axis in AXES]).astype(np.uint8)
    return FineCells(AXES, groups, groups.sum(axis=1) % 3, rng.integers(1, 4, n_cells))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_written_trees_say_what_fitted_ones_do(kind: TreeKind) -> None:
    """Groups become thresholds of codes, and tables of categories; as if one more tree voted evenly."""
    cells = cells_of(400)
    trees = [FittedTree.of(kind, cells.groups, cells.label, 3, seed, 1000, fast=False) for seed in range(5)]
    codes = np.zeros((400, len(COLUMNS)), np.uint16)
    for number, axis in enumerate(AXES):
        codes[:, axis.feature] = axis.first_codes[cells.groups[:, number]]
    told = np.mean([tree.ask(cells.groups, fast=False) for tree in trees], axis=0)
    np.testing.assert_allclose(shares_of(_written(trees, AXES), codes), (5 * told + 1 / 3) / 6)


def test_cells_without_rows_say_nothing() -> None:
    nothing = cells_of(0)
    grown = grow(nothing, 3, np.random.default_rng(0), None)
    np.testing.assert_allclose(shares_of(grown, np.zeros((2, len(COLUMNS)), np.uint16)), 1 / 3)
    assert _leaf(3).shares.tolist() == [[1 / 3] * 3]


@pytest.mark.skipif(not HAVE_NUMBA, reason="compares with compiled loops")
def test_compiled_loops_grow_the_same_forest() -> None:
    slow, fast = (grow(cells_of(300), 3, np.random.default_rng(1), 1, fast=way) for way in (False, True))
    assert slow.forest.n_trees == fast.forest.n_trees == n_trees(3)
    assert np.array_equal(slow.values, fast.values)
    assert np.array_equal(slow.forest.cut, fast.forest.cut)
