# SPDX-License-Identifier: Apache-2.0
"""Forests as lookup tables, for prediction without walking trees.

A tree that splits the same few columns on every path has about as many leaves as its columns have combinations of
groups. Each code is mapped to a group of its column once. A tree then needs one addition per column and one lookup. The
sums equal those of ``counting.sum_over_trees`` to the last bit, because trees are added in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from veilwood.arrays import HAVE_NUMBA, Codes, Floats, Int32s, Ints, NDArray, run_on_threads
from veilwood.trees.forest import LEAF, Forest

MAX_CELLS = 1 << 12  # cells of the table of a tree
MAX_CELLS_PER_LEAF = 2  # trees with more cells per leaf are walked node by node


@dataclass(frozen=True, eq=False)
class LookupForest:
    """Forest stored as lookup tables.

    Attributes
    ----------
    features : ndarray of int64
        Columns that any tree splits.
    groups : ndarray, shape (n_features, most codes)
        The group of each code of these columns.
    axes : ndarray of int32, shape (n_axes, 2)
        Each column of each tree: its index in ``features``, and the tree.
    offsets : ndarray of uint16, shape (n_axes, most groups)
        Amount that each group adds to the index of a row in the table of the tree.
    ends : ndarray of int32
        End of the axes of each tree.
    starts : ndarray of int32
        Start of the table of each tree.
    values : ndarray, shape (n_cells, n_values)
        Value of each cell, tree after tree.
    """

    features: Ints
    groups: NDArray[np.uint8] | Codes
    axes: Int32s
    offsets: Codes
    ends: Int32s
    starts: Int32s
    values: Floats

    @classmethod
    def from_forest(cls, forest: Forest, leaf_values: Floats, n_codes: Sequence[int]) -> LookupForest | None:
        """Return a forest as lookup tables, or None if a tree would need too many cells."""
        bounds = list(pairwise([*forest.roots.tolist(), forest.n_nodes]))
        tree_features = [sorted(set(forest.feature[first:last].tolist()) - {LEAF}) for first, last in bounds]
        features = sorted(set().union(*tree_features))
        code_groups = {feature: _code_groups(forest, feature, n_codes[feature]) for feature in features}
        max_groups = max((int(group.max()) + 1 for group in code_groups.values()), default=1)
        offsets: list[Codes] = []
        axes, ends, starts, leaves, n_cells = [], [], [], [], 0
        for (first, last), own in zip(bounds, tree_features, strict=True):
            tree_groups = [_groups_within_tree(forest, first, last, feature, code_groups[feature]) for feature in own]
            sizes = [int(group.max()) + 1 for group, _ in tree_groups]
            cells = int(np.prod(sizes, dtype=np.float64))
            n_leaves = int((forest.feature[first:last] == LEAF).sum())
            if cells > min(MAX_CELLS_PER_LEAF * n_leaves, MAX_CELLS):
                return None
            codes = np.zeros((cells, len(n_codes)), np.int64)
            stride = cells
            for feature, size, (group, example) in zip(own, sizes, tree_groups, strict=True):
                stride //= size
                codes[:, feature] = example[np.arange(cells) // stride % size]
                padded = np.zeros(max_groups, np.uint16)
                padded[: len(group)] = group * stride
                offsets.append(padded)
                axes.append(features.index(feature))
            leaves.append(_walk_tree(forest, first, codes))
            starts.append(n_cells)
            ends.append(len(axes))
            n_cells += cells
        groups = np.zeros((len(features), max((n_codes[feature] for feature in features), default=1)),
                          np.uint8 if max_groups <= 256 else np.uint16)  # fmt: skip
        for place, feature in enumerate(features):
            groups[place, : n_codes[feature]] = code_groups[feature]
        return cls(
            np.array(features, np.int64), groups, np.array(axes, np.int32),
            np.array(offsets, np.uint16).reshape(-1, max_groups), np.array(ends, np.int32), np.array(starts, np.int32),
            np.ascontiguousarray(leaf_values[np.concatenate(leaves)], np.float64),
        )  # fmt: skip

    def sum_leaf_values(self, codes: Codes, n_jobs: int | None = None, *, fast: bool = HAVE_NUMBA) -> Floats:
        """Return the sum over trees of the leaf values of each row, as ``counting.sum_over_trees`` does."""
        sums = np.zeros((len(codes), self.values.shape[1]))
        columns = np.ascontiguousarray(codes.T)  # as they are encoded
        if fast:
            from veilwood import kernels

            add = partial(kernels.add_lookup_values, *self._kernel_arrays(), columns, sums)
            run_on_threads(add, len(codes), n_jobs, rows=len(codes))
            return sums
        row_groups = [group[columns[feature]] for feature, group in zip(self.features, self.groups, strict=True)]
        for start, (first, last) in zip(self.starts, pairwise([0, *self.ends.tolist()]), strict=True):
            place = np.full(len(codes), start, np.int64)
            for axis in range(first, last):
                place += self.offsets[axis][row_groups[self.axes[axis]]]
            sums += self.values[place]
        return sums

    def _kernel_arrays(self) -> tuple[Any, ...]:
        return self.features, self.groups, self.axes, self.offsets, self.ends, self.starts, self.values


def _code_groups(forest: Forest, feature: int, n_codes: int) -> Ints:
    """Return the group of each code. Codes that no tree separates may share a group."""
    cuts = forest.cut[forest.feature == feature]
    if (cuts < 0).any():  # categories can be split in any way
        return np.arange(n_codes)
    return np.searchsorted(np.unique(cuts), np.arange(n_codes), side="right")


def _groups_within_tree(forest: Forest, first: int, last: int, feature: int, groups: Ints) -> tuple[Ints, Ints]:
    """Return, for each group of the forest, its group within one tree, and one code of each group."""
    example = np.unique(groups, return_index=True)[1]
    cuts = np.unique(forest.cut[first:last][forest.feature[first:last] == feature])
    branches = np.stack([forest.lookup[-1 - cut + example] if cut < 0 else example >= cut for cut in cuts])
    _, code, group = np.unique(branches, axis=1, return_index=True, return_inverse=True)
    return group.ravel(), example[code]


def _walk_tree(forest: Forest, root: int, codes: Ints) -> Int32s:
    """Return the leaf of each row in one tree."""
    node, rows = np.full(len(codes), root), np.arange(len(codes))
    while (inner := forest.feature[node] != LEAF).any():
        code, cut = codes[rows, np.where(inner, forest.feature[node], 0)], forest.cut[node]
        table_code = forest.lookup[np.where(inner & (cut < 0), code - 1 - cut, 0)] if len(forest.lookup) else code
        branch = np.where(cut < 0, table_code, code >= cut)
        node = np.where(inner, forest.child[node] + branch, node)
    return np.asarray(forest.child[node])
