# SPDX-License-Identifier: Apache-2.0
"""Counting: the compiled kernel, its NumPy twin, a loop and rules of trees give the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood.arrays import HAVE_NUMBA
from veilwood.data.batches import Batch
from veilwood.trees.counting import Assignment, leaf_queries, leaf_totals, route_rows, sum_over_trees, tree_rule
from veilwood.trees.forest import Forest
from veilwood.trees.random import grow_binary, grow_multiway
from veilwood_testing.forest_structures import (
    LEVELS,
    SMALL_COLUMNS,
    follow_rule,
    leaf_by_loop,
    random_codes,
    random_forest,
    split_batches,
    totals_by_loop,
)

TWINS = [pytest.param(True, marks=pytest.mark.skipif(not HAVE_NUMBA, reason="needs numba"), id="kernel"), False]


@pytest.mark.parametrize("fast", TWINS)
@pytest.mark.parametrize("disjoint", [False, True], ids=["shared", "disjoint"])
@pytest.mark.parametrize("n_classes", [3, None], ids=["classes", "regression"])
@pytest.mark.parametrize("shape", ["binary", "multiway"])
@pytest.mark.parametrize("seed", [0, 1])
def test_totals_are_those_of_a_plain_loop(
    seed: int, shape: str, n_classes: int | None, disjoint: bool, fast: bool
) -> None:
    forest = random_forest(shape, seed)
    codes, target = random_codes(400, seed, targets=n_classes or LEVELS + 1)
    assignment = Assignment(bytes(32), forest.n_trees) if disjoint else None
    own = None if assignment is None else assignment.trees_of_rows(0, 0, len(codes))
    expected = totals_by_loop(forest, codes, target, n_classes, own)
    for size in (1, 7, 256, 1000):
        for n_jobs in (1, 2, 3):
            found = leaf_totals(
                forest, split_batches(codes, target, size), n_classes=n_classes, target_levels=LEVELS,
                assignment=assignment, n_jobs=n_jobs, fast=fast,
            )  # fmt: skip
            assert (found == expected).all()
            if size == 1:
                break  # threads are tried on larger batches


@pytest.mark.parametrize("fast", TWINS)
def test_every_row_is_counted_once_per_tree_that_sees_it(fast: bool) -> None:
    forest = random_forest("binary", 3)
    codes, target = random_codes(5000, 3)
    shared = leaf_totals(forest, split_batches(codes, target, 999), n_classes=3, fast=fast)
    for tree in range(forest.n_trees):
        of_tree = shared[forest.tree_leaves[tree] : forest.tree_leaves[tree + 1]]
        assert (of_tree.sum(axis=0) == np.bincount(target, minlength=3)).all()
    assignment = Assignment(b"1" * 32, forest.n_trees)
    disjoint = leaf_totals(forest, split_batches(codes, target, 999), n_classes=3, assignment=assignment, fast=fast)
    assert (disjoint.sum(axis=0) == np.bincount(target, minlength=3)).all()
    assert (disjoint <= shared).all()


@pytest.mark.parametrize("fast", TWINS)
def test_no_rows_count_nothing(fast: bool) -> None:
    forest = random_forest("binary", 0)
    empty = Batch(np.empty((0, 4), np.uint16), np.empty(0, np.int32), 0, 0)
    assert not leaf_totals(forest, [], n_classes=2, fast=fast).any()
    assert not leaf_totals(forest, [empty], n_classes=2, fast=fast).any()
    assignment = Assignment(bytes(32), forest.n_trees)
    assert not leaf_totals(forest, [empty], n_classes=2, assignment=assignment, fast=fast).any()


@pytest.mark.parametrize("fast", TWINS)
def test_rows_in_any_memory_layout_count_alike(fast: bool) -> None:
    forest = random_forest("multiway", 0)
    codes, target = random_codes(600, 0)
    expected = leaf_totals(forest, [Batch(codes, target, 0, 0)], n_classes=3, fast=fast)
    odd: list[tuple[Any, Any]] = [
        (np.asfortranarray(codes), target.astype(np.int64)),
        (np.repeat(codes, 2, axis=0)[::2], np.repeat(target, 2)[::2]),
    ]
    for odd_codes, odd_target in odd:
        found = leaf_totals(forest, [Batch(odd_codes, odd_target, 0, 0)], n_classes=3, fast=fast)
        assert (found == expected).all()


@pytest.mark.parametrize("shape", ["binary", "multiway"])
def test_routes_are_those_of_a_plain_loop(shape: str) -> None:
    forest = random_forest(shape, 5)
    codes, _ = random_codes(200, 5)
    leaves = route_rows(forest, codes)
    assert leaves.shape == (200, forest.n_trees)
    expected = [[leaf_by_loop(forest, row, tree) for tree in range(forest.n_trees)] for row in codes]
    assert leaves.tolist() == expected


@pytest.mark.parametrize("fast", TWINS)
@pytest.mark.parametrize("shape", ["binary", "multiway"])
def test_sums_over_trees(shape: str, fast: bool) -> None:
    forest = random_forest(shape, 6)
    codes, _ = random_codes(5000, 6)
    values = np.random.default_rng(0).normal(size=(forest.n_leaves, 3))
    leaves = route_rows(forest, codes)
    expected = np.zeros((5000, 3))
    for tree in range(forest.n_trees):
        expected += values[leaves[:, tree]]
    for n_jobs in (1, 2, 3):
        found = sum_over_trees(forest, codes, values, n_jobs=n_jobs, fast=fast)
        assert (found == expected).all()  # to the last bit, as trees are added in one order
    assert sum_over_trees(forest, codes[:0], values, fast=fast).shape == (0, 3)


@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 4097, 9000])
def test_an_assignment_does_not_depend_on_batches(size: int) -> None:
    assignment = Assignment(b"s" * 32, 5)
    whole = assignment.trees_of_rows(2, 0, 9000)
    starts = range(0, 9000, size) if size > 1 else [0, 1, 4095, 4096, 8999]
    for start in starts:
        part = assignment.trees_of_rows(2, start, min(size, 9000 - start))
        assert (part == whole[start : start + size]).all()
    assert assignment.trees_of_rows(0, 10, 0).shape == (0,)


def test_an_assignment_reaches_every_tree_and_no_other() -> None:
    for n_trees in (1, 2, 1000):
        trees = Assignment(b"s" * 32, n_trees).trees_of_rows(0, 0, 100_000)
        assert sorted(set(trees.tolist())) == list(range(n_trees))


FORESTS = {"binary": grow_binary(SMALL_COLUMNS, 5, 4, 0), "multiway": grow_multiway(SMALL_COLUMNS, 5, 2, 0)}


N_CODES = [column.n_codes for column in SMALL_COLUMNS]


def some_rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.column_stack([rng.integers(0, n, 300) for n in N_CODES]).astype(np.uint16)


@pytest.mark.parametrize("kind", FORESTS)
def test_every_row_comes_to_its_leaf(kind: str) -> None:
    forest: Forest = FORESTS[kind]
    codes = some_rows()
    leaves = route_rows(forest, codes)
    for tree in range(forest.n_trees):
        way = tree_rule(forest, tree, N_CODES)
        assert [follow_rule(way, row) for row in codes.tolist()] == leaves[:, tree].tolist()


def test_tables_number_the_leaves_of_each_tree_from_zero() -> None:
    forest = FORESTS["binary"]
    codes = some_rows()
    leaves = route_rows(forest, codes)
    for tree, table in enumerate(leaf_queries(forest, N_CODES)):
        start, end = forest.tree_leaves[tree : tree + 2].tolist()
        assert table.n_cells == end - start
        way, less = table.rules
        assert less == -start
        assert follow_rule(way, codes[0].tolist()) == leaves[0, tree]
