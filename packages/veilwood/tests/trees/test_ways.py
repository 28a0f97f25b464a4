# SPDX-License-Identifier: Apache-2.0
"""The tests that lead through a tree end in the leaf to which rows are routed."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.trees.counting import leaf_queries, route_rows, tree_rule
from veilwood.trees.forest import Forest
from veilwood.trees.random import grow_binary, grow_multiway
from veilwood_testing.cells_cases import follow
from veilwood_testing.random_columns import COLUMNS

FORESTS = {"binary": grow_binary(COLUMNS, 5, 4, 0), "multiway": grow_multiway(COLUMNS, 5, 2, 0)}
N_CODES = [column.n_codes for column in COLUMNS]


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
        assert [follow(way, row) for row in codes.tolist()] == leaves[:, tree].tolist()


def test_tables_number_the_leaves_of_each_tree_from_zero() -> None:
    forest = FORESTS["binary"]
    codes = some_rows()
    leaves = route_rows(forest, codes)
    for tree, table in enumerate(leaf_queries(forest, N_CODES)):
        start, end = forest.tree_leaves[tree : tree + 2].tolist()
        assert table.n_cells == end - start
        way, less = table.rules
        assert less == -start
        assert follow(way, codes[0].tolist()) == leaves[0, tree]
