# SPDX-License-Identifier: Apache-2.0
"""Small forests and their workloads, for tests that compare with explicit matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veilwood.arrays import Ints
from veilwood.forests.matrix.workloads import LeafVoteWorkload, PathWorkload, VoteWorkload, Workload

KINDS = ["paths", "binary", "votes", "leaf votes"]


def grow(sizes: Sequence[int], depth: int, trees: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Leaves of random multiway trees: each node splits on a feature its path has not used."""
    features: Ints = np.zeros((trees, 0), np.int64)
    values = features
    tree = np.arange(trees)
    for level in range(depth):
        rank = rng.random((len(tree), len(sizes)))
        for j in range(level):
            rank[np.arange(len(tree)), features[:, j]] = -1
        chosen = rank.argmax(axis=1)
        width = np.asarray(sizes)[chosen]
        parent = np.repeat(np.arange(len(tree)), width)
        value = np.arange(width.sum()) - np.repeat(np.cumsum(width) - width, width)
        features = np.column_stack([features[parent], chosen[parent]])
        values = np.column_stack([values[parent], value])
        tree = tree[parent]
    return features, values


def grow_binary(sizes: Sequence[int], depth: int, trees: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Leaves of binary trees that cut ordered values, as masks [leaves, sum of sizes]."""
    edges = np.concatenate([[0], np.cumsum(sizes)])
    leaves = []
    for _ in range(trees):
        level = [np.ones(edges[-1], bool)]
        for _ in range(depth):
            deeper = []
            for mask in level:
                i = int(rng.integers(len(sizes)))
                left, right = mask.copy(), mask.copy()
                cut = edges[i] + 1 + int(rng.integers(sizes[i] - 1))
                left[cut : edges[i + 1]] = False
                right[edges[i] : cut] = False
                deeper += [left, right]
            level = deeper
        leaves += level
    return np.array(leaves)


def reached_by(paths: PathWorkload, queries: ArrayLike) -> Ints:
    """Leaf of every tree that each queried cell reaches, out of the explicit matrix."""
    hit = paths.to_dense()[:, np.asarray(queries)].T.astype(bool)
    return np.array([np.flatnonzero(row) for row in hit])


def small_workloads(seed: int) -> dict[str, Workload]:
    """One workload of each kind, on a domain small enough for explicit matrices."""
    rng = np.random.default_rng(seed)
    sizes = tuple(int(size) for size in rng.integers(2, 5, size=3))
    paths = PathWorkload.from_leaves(sizes, *grow(sizes, int(rng.integers(1, 4)), 4, rng), merge=bool(seed % 2))
    binary = PathWorkload.from_masks(sizes, grow_binary(sizes, 2, 4, rng), merge=bool(seed % 2))
    queries = rng.integers(math.prod(sizes), size=5)
    reached = reached_by(paths, queries)
    return {
        "paths": paths,
        "binary": binary,
        "votes": VoteWorkload(paths, reached),
        "leaf votes": LeafVoteWorkload(paths.n_queries, reached, merge=bool(seed % 2)),
    }
