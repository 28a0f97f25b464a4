# SPDX-License-Identifier: Apache-2.0
"""Shared by trees/test_counting.py and other tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch
from veilwood.data.encoding import EncodedColumn
from veilwood.trees.forest import LEAF, Forest
from veilwood.trees.random import grow_binary, grow_multiway

COLUMNS = [
    EncodedColumn("number", ordered=True, n_codes=40, missing_code=None),
    EncodedColumn("nullable", ordered=True, n_codes=12, missing_code=11),
    EncodedColumn("category", ordered=False, n_codes=7, missing_code=None),
    EncodedColumn("coin", ordered=False, n_codes=2, missing_code=None),
]


LEVELS = 100


def forest_of(shape: str, seed: int) -> Forest:
    return grow_binary(COLUMNS, 7, 5, seed) if shape == "binary" else grow_multiway(COLUMNS, 4, 3, seed)


def rows_of(n: int, seed: int, targets: int = 3) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(column.n_codes, size=n) for column in COLUMNS], axis=1).astype(np.uint16)
    return codes, rng.integers(targets, size=n).astype(np.int32)


def batches_of(codes: NDArray[Any], target: NDArray[Any], size: int) -> Iterator[Batch]:
    for start in range(0, len(codes), size):
        yield Batch(codes[start : start + size], target[start : start + size], 0, start)


def leaf_by_loop(forest: Forest, row: NDArray[Any], tree: int) -> int:
    node = int(forest.roots[tree])
    while forest.feature[node] != LEAF:
        code, cut = int(row[forest.feature[node]]), int(forest.cut[node])
        node = int(forest.child[node]) + (int(forest.lookup[-1 - cut + code]) if cut < 0 else int(code >= cut))
    return int(forest.child[node])


def totals_by_loop(
    forest: Forest, codes: NDArray[Any], target: NDArray[Any], n_classes: int | None, own: NDArray[Any] | None
) -> NDArray[np.int64]:
    totals = np.zeros((forest.n_leaves, n_classes or 2), np.int64)
    for number, (row, value) in enumerate(zip(codes, target, strict=True)):
        for tree in range(forest.n_trees) if own is None else [int(own[number])]:
            leaf = leaf_by_loop(forest, row, tree)
            if n_classes:
                totals[leaf, value] += 1
            else:
                totals[leaf] += [value, LEVELS - value]
    return totals
