# SPDX-License-Identifier: Apache-2.0
"""The only writer of forest arrays: nodes in level order in, numbered children, leaves and trees out.

Who grows trees says what each node asks and how many branches it has; how that is numbered is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veilwood.trees.forest import LEAF, Forest


def build_forest(
    sizes: ArrayLike, feature: ArrayLike, cut: ArrayLike, branches: ArrayLike, lookup: Sequence[NDArray[np.uint16]]
) -> Forest:
    """Put trees side by side, each in level order.

    Parameters
    ----------
    sizes : array of int
        How many nodes each tree has.
    feature, cut : array of int
        What each node asks (``Forest``); ``LEAF`` at leaves.
    branches : array of int
        How many children each node has; 0 at leaves.
    lookup : sequence of arrays
        The tables that cuts below 0 point into, one after the other.

    Examples
    --------
    >>> build_forest([3], [0, LEAF, LEAF], [5, 0, 0], [2, 0, 0], []).child.tolist()
    [1, 0, 1]
    """
    sizes, feature, branches = np.asarray(sizes), np.asarray(feature, np.int32), np.asarray(branches)
    leaf = feature == LEAF
    roots = np.cumsum(sizes) - sizes
    # All nodes but the roots are children, in order: before a node's own come those of the nodes before it, and roots.
    first_child = np.cumsum(branches) - branches + np.repeat(np.arange(len(sizes)), sizes) + 1
    return Forest(
        roots=roots.astype(np.int32),
        feature=feature,
        cut=np.where(leaf, 0, cut).astype(np.int32),
        child=np.where(leaf, np.cumsum(leaf) - 1, first_child).astype(np.int32),
        lookup=_joined(lookup),
        tree_leaves=np.append(0, np.cumsum(np.add.reduceat(leaf, roots, dtype=np.int64))).astype(np.int32),
    )


def build_growing(
    n_trees: int,
    feature: ArrayLike,
    cut: ArrayLike,
    branches: ArrayLike,
    n_open: int,
    lookup: Sequence[NDArray[np.uint16]],
) -> Forest:
    """Write trees that still grow, level by level of all trees together; the last ``n_open`` nodes are open.

    The leaf number of an open node is its place among them, that of a closed leaf is -1.
    """
    feature, cut, branches = (np.asarray(array, np.int32) for array in (feature, cut, branches))
    place = np.arange(n_open, dtype=np.int32)
    first_child = n_trees + np.cumsum(branches) - branches
    closed = np.where(feature == LEAF, LEAF, first_child).astype(np.int32)
    leaf = np.full(n_open, LEAF, np.int32)
    return Forest(
        roots=np.arange(n_trees, dtype=np.int32),
        feature=np.concatenate([feature, leaf]),
        cut=np.concatenate([cut, leaf]),
        child=np.concatenate([closed, place]),
        lookup=_joined(lookup),
        tree_leaves=np.array([0, n_open], np.int32),
    )


def join_forests(forests: Sequence[Forest], features: Sequence[Sequence[int]]) -> Forest:
    """Put forests over subsets of the columns side by side; ``features`` gives each one's columns in the whole."""
    starts = np.cumsum([0, *(len(forest.lookup) for forest in forests)])
    parts = []
    for forest, columns, start in zip(forests, features, starts, strict=False):
        feature = np.where(forest.feature == LEAF, LEAF, np.asarray(columns, np.int32)[forest.feature])
        branches = np.bincount(forest.parent[forest.parent >= 0], minlength=forest.n_nodes)
        sizes = np.diff(np.append(forest.roots, forest.n_nodes))
        parts.append((sizes, feature, np.where(forest.cut < 0, forest.cut - start, forest.cut), branches))
    sizes, feature, cut, branches = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return build_forest(sizes, feature, cut, branches, [forest.lookup for forest in forests])


def _joined(lookup: Sequence[NDArray[np.uint16]]) -> NDArray[np.uint16]:
    """One table; a kernel reads from it speculatively, so it is never empty."""
    return np.concatenate([*lookup, np.zeros(1, np.uint16)]).astype(np.uint16)
