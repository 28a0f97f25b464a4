# SPDX-License-Identifier: Apache-2.0
"""Sparse histograms: their columns and bins, and forests that are fitted to released cells."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.arrays import HAVE_NUMBA, Floats
from veilwood.data.counts import Axis
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive.contingency import BinnedColumn, bin_columns
from veilwood.forests.adaptive.sparse_histogram import (
    KINDS,
    MAX_BINS,
    FittedTree,
    SparseHistogram,
    TreeKind,
    _constant_tree,
    _to_fitted_forest,
    choose_axes,
    count_trees,
    fit_best_forest,
    predict_probabilities,
)
from veilwood_testing.clinic import COLUMNS


def columns(*kinds: int) -> tuple[BinnedColumn, ...]:
    """Columns of a schema: 0 stands for a number, other numbers for so many categories."""
    described: list[dict[str, Any]] = [
        {"name": f"c{place}", "kind": "categorical", "values": [f"v{value}" for value in range(kind)]}
        if kind else {"name": f"c{place}", "kind": "numeric", "lower": 0, "upper": 1, "nullable": place == 0}
        for place, kind in enumerate(kinds)
    ]  # fmt: skip
    target = {"name": "t", "kind": "categorical", "values": ["no", "yes"]}
    schema = {"name": "s", "task": "classification", "target": "t", "columns": [*described, target]}
    return tuple(bin_columns(Encoding(vw.Schema.from_dict(schema), "grid")))


def counted(column: BinnedColumn, share: Any, rows: float = 10_000.0) -> Floats:
    """Counts of two classes in each cell of a column, given the share of the second among them."""
    mass = np.full(column.n_bins, rows / column.n_bins)
    shares = np.broadcast_to(np.asarray(share, float), column.n_bins)
    return np.stack([mass * (1 - shares), mass * shares], axis=1)


def strong(column: BinnedColumn) -> Floats:
    """Classes change along the column."""
    return counted(column, np.linspace(0.02, 0.98, column.n_bins))


def n_cells(axes: tuple[Axis, ...]) -> int:
    return prod(axis.size for axis in axes)


@pytest.mark.parametrize("seed", range(12))
def test_groups_fit_and_no_column_comes_twice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queried = columns(*rng.permutation([0, 0, *rng.integers(2, 40, 5).tolist()]).tolist())
    variance = float(rng.choice([0.0, 2.0, 800.0]))
    tables = [rng.normal(rng.integers(0, 300, (column.n_bins, 3)), variance**0.5) for column in queried]
    most = int(rng.integers(1, 10**6))
    axes = choose_axes(queried, tables, variance, most)
    assert n_cells(axes) <= most
    assert len({axis.feature for axis in axes}) == len(axes)
    for axis in axes:
        assert axis.size > 1
        assert set(axis.groups.tolist()) == set(range(axis.size))  # no number is left out: cells are counted by them


def test_nothing_is_chosen_where_one_cell_is_all_there_can_be() -> None:
    queried = columns(0, 4)
    assert choose_axes(queried, [strong(column) for column in queried], 1.0, 1) == ()


def test_strong_columns_get_the_finer_groups() -> None:
    queried = columns(0, 0, 0, 16, 16)
    tables = [
        strong(queried[0]),
        counted(queried[1], 0.5),
        counted(queried[2], 0.5),
        strong(queried[3]),
        counted(queried[4], 0.5),
    ]
    sizes = {axis.feature: axis.size for axis in choose_axes(queried, tables, 1.0, 4096)}
    assert sizes[0] > max(sizes.get(1, 1), sizes.get(2, 1))
    assert sizes[3] > sizes.get(4, 1)


def test_more_cells_give_finer_groups_up_to_a_limit() -> None:
    (number,) = queried = columns(2, 0)[1:]
    sizes = [n_cells(choose_axes(queried, [strong(number)], 1.0, most)) for most in (2, 16, 10**9)]
    assert sizes[0] == 2
    assert sizes[0] < sizes[1] < sizes[2] <= MAX_BINS


def test_similar_categories_share_a_group() -> None:
    (ward,) = queried = columns(6)
    (axis,) = choose_axes(queried, [counted(ward, [0.9, 0.1, 0.9, 0.1, 0.9, 0.1])], 1.0, 2)
    assert len(set(axis.groups[[0, 2, 4]].tolist())) == len(set(axis.groups[[1, 3, 5]].tolist())) == 1
    assert axis.size == 2


def test_noise_alone_does_not_make_a_column_strong() -> None:
    """Mutant in mind: a strength from which the variance of the noise is not taken away."""
    queried = columns(0, 200)
    rng = np.random.default_rng(0)
    noisy = [strong(queried[0]), counted(queried[1], 0.5) + rng.normal(0, 30.0, (200, 2))]
    sizes = {axis.feature: axis.size for axis in choose_axes(queried, noisy, 900.0, 64)}
    assert sizes[0] > sizes.get(1, 1)


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
    values = np.mean([tree.predict_proba(cells.groups) for tree in trees], axis=0)
    np.testing.assert_allclose(predict_probabilities(_to_fitted_forest(trees, AXES), codes), (5 * values + 1 / 3) / 6)


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
