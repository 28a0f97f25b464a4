# SPDX-License-Identifier: Apache-2.0
"""The only writer of forest arrays."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from veilwood.data.encoding import EncodedColumn
from veilwood.trees.counting import route_rows
from veilwood.trees.forest import LEAF, Forest, build_forest, join_forests
from veilwood.trees.random import grow_binary, grow_multiway
from veilwood_testing import SOURCES

COLUMNS = [
    EncodedColumn("number", ordered=True, n_codes=50, missing_code=49),
    EncodedColumn("kind", ordered=False, n_codes=4, missing_code=None),
    EncodedColumn("other", ordered=False, n_codes=3, missing_code=None),
]
N_CODES = [column.n_codes for column in COLUMNS]
CODES = np.stack([np.random.default_rng(0).integers(n, size=300) for n in N_CODES], axis=1).astype(np.uint16)


def test_nobody_else_writes_forests() -> None:
    writers = set()
    for path in SOURCES["veilwood"].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Forest":
                writers.add(path.stem)
    assert writers == {"forest"}


def test_two_trees_by_hand() -> None:
    forest = build_forest([3, 4], [0, LEAF, LEAF, 1, LEAF, LEAF, LEAF], [7, 9, 9, -1, 0, 0, 0], [2, 0, 0, 3, 0, 0, 0],
                          [np.array([0, 1, 2], np.uint16)])  # fmt: skip
    assert forest.roots.tolist() == [0, 3]
    assert forest.child.tolist() == [1, 0, 1, 4, 2, 3, 4]
    assert forest.cut.tolist() == [7, 0, 0, -1, 0, 0, 0]
    assert forest.tree_leaves.tolist() == [0, 2, 5]
    assert forest.lookup.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("grow", [grow_binary, grow_multiway])
def test_joined_forests_route_like_their_parts(grow: object) -> None:
    parts = [[0, 1], [2, 1, 0]]
    forests = [grow([COLUMNS[i] for i in part], 3, 2, seed) for seed, part in enumerate(parts)]  # type: ignore[operator]
    whole = join_forests(forests, parts)
    Forest.from_arrays(whole.to_arrays(), N_CODES)
    expected = [route_rows(forest, CODES[:, part]) for forest, part in zip(forests, parts, strict=True)]
    expected[1] = expected[1] + forests[0].n_leaves
    np.testing.assert_array_equal(route_rows(whole, CODES), np.hstack(expected))
