# SPDX-License-Identifier: Apache-2.0
"""Forests as flat level-order arrays, and the only functions that write them.

Callers pass the split and the number of branches of each node; this module numbers the nodes. ``counting`` counts rows
in a forest, and the models in ``forests`` contain the released values.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from veilwood.arrays import AnyArray, ArrayLike, Bools, Codes, Floats, Int32s, Ints, NDArray
from veilwood.errors import ModelFileError
from veilwood.privacy.plan import Layout, RowAssignment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


LEAF = -1  # the "feature" of a leaf
MAX_DEPTH = 1024  # levels of a tree read from a file; bounds level-by-level walks


@dataclass(frozen=True)
class Forest:
    """Forest of trees with any number of branches, stored in five flat arrays. Nodes are numbered over all trees.

    A node sends a row with code c of its ``feature`` to ``child + branch``. Here ``branch`` is ``c >= cut`` (threshold,
    cut at least 0) or ``lookup[-1 - cut + c]`` (category subset, or one branch per value). At a leaf, ``feature`` is
    ``LEAF`` and ``child`` is the number of the leaf. Leaves are also numbered over all trees.
    """

    roots: Int32s
    feature: Int32s
    cut: Int32s
    child: Int32s
    lookup: Codes
    tree_leaves: Int32s  # leaves of tree t are tree_leaves[t] up to tree_leaves[t + 1]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cached properties: their presence would reveal whether there were rows."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @cached_property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.roots)

    @cached_property
    def n_nodes(self) -> int:
        """Number of nodes, including leaves."""
        return len(self.feature)

    @cached_property
    def n_leaves(self) -> int:
        """Total number of leaves of all trees."""
        return int(self.tree_leaves[-1])

    @cached_property
    def parent(self) -> Int32s:
        """Parent of each node; -1 for a root."""
        # In level order the children of successive inner nodes follow one another.
        inner = np.flatnonzero(self.feature != LEAF).astype(np.int32)
        if not len(inner):
            return np.full(self.n_nodes, -1, np.int32)
        parent = inner[np.searchsorted(self.child[inner], np.arange(self.n_nodes), side="right") - 1]
        parent[self.roots] = -1
        return parent

    @cached_property
    def level(self) -> Int32s:
        """Depth of each node; 0 for a root."""
        level = np.zeros(self.n_nodes, np.int32)
        ancestor = self.parent
        while (ancestor >= 0).any():
            level += ancestor >= 0
            ancestor = np.where(ancestor >= 0, self.parent[ancestor], -1)
        return level

    @cached_property
    def depth(self) -> int:
        """Depth of the deepest leaf."""
        return int(self.level.max())

    @cached_property
    def packed_nodes(self) -> Int32s:
        """Feature, cut, child and leaf number of each node in one array, for kernels. A leaf is its own child."""
        leaf = self.feature == LEAF
        never = np.int32(np.iinfo(np.int32).max)
        columns = (
            np.where(leaf, 0, self.feature),
            np.where(leaf, never, self.cut),
            np.where(leaf, np.arange(self.n_nodes), self.child),
            np.where(leaf, self.child, LEAF),
        )
        return np.ascontiguousarray(np.stack(columns, axis=1), np.int32)

    @cached_property
    def lookup_bits(self) -> NDArray[np.uint32]:
        """First 32 lookup entries of each node as bits, for kernels; 0 without a lookup or if an entry exceeds 1."""
        starts = np.where((self.feature != LEAF) & (self.cut < 0), -1 - self.cut, len(self.lookup))
        padded = np.append(self.lookup, np.zeros(32, np.uint16))
        entries = np.lib.stride_tricks.sliding_window_view(padded, 32)[starts]
        bits = (entries.astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
        return np.where((entries <= 1).all(axis=1), bits, 0).astype(np.uint32)

    def precompute(self) -> None:
        """Compute the cached properties that kernels read. Their presence must not reveal whether there were rows."""
        _ = self.packed_nodes, self.level, self.lookup_bits

    def layout(self, row_sharing: RowAssignment, **more: Any) -> Layout:
        """Return the layout of a forest that is grown without data, for its plan."""
        return Layout(self.n_trees, self.n_leaves, self.depth, row_sharing, **more)

    def plan_fields(self, row_sharing: RowAssignment) -> tuple[Layout, dict[str, str]]:
        """Return the layout and a hash of the structure of a forest that is grown without data, for its plan."""
        return self.layout(row_sharing), {"structure": self.fingerprint()}

    @cached_property
    def leaf_node(self) -> Int32s:
        """Node of each leaf."""
        nodes = np.flatnonzero(self.feature == LEAF).astype(np.int32)
        ordered = np.empty(self.n_leaves, np.int32)
        ordered[self.child[nodes]] = nodes
        return ordered

    def sum_to_nodes(self, leaf_values: AnyArray) -> Floats:
        """Return, for every node, the sum of the values (or rows of values) of the leaves below it."""
        sums = np.zeros((self.n_nodes, *leaf_values.shape[1:]))
        sums[self.leaf_node] = leaf_values
        for depth in range(self.depth, 0, -1):
            nodes = np.flatnonzero(self.level == depth)
            np.add.at(sums, self.parent[nodes], sums[nodes])
        return sums

    def fingerprint(self) -> str:
        """Return a hash of the whole structure."""
        digest = hashlib.sha256()
        for name, array in sorted(self.to_arrays().items()):
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
        return digest.hexdigest()

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the arrays by name, for files."""
        return {field.name: np.ascontiguousarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray], n_codes: Sequence[int]) -> Forest:
        """Rebuild a forest from ``to_arrays``. Raise ``ModelFileError`` if damaged or inconsistent with ``n_codes``."""
        _validate_arrays(arrays, np.asarray(n_codes))
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})


def _validate_arrays(arrays: Mapping[str, AnyArray], n_codes: Ints) -> None:
    """Raise ModelFileError if arrays could lead a row out of range, into a cycle or to a leaf of another tree."""

    def require_that(holds: bool | np.bool_, problem: str) -> None:
        if not holds:
            raise ModelFileError(f"the trees are damaged: {problem}.")

    for field in fields(Forest):
        array, dtype = arrays.get(field.name), np.uint16 if field.name == "lookup" else np.int32
        require_that(
            array is not None and array.dtype == dtype and array.ndim == 1, f"{field.name!r} is missing or odd"
        )
    roots, feature, lookup = arrays["roots"], arrays["feature"], arrays["lookup"]
    cut, child, tree_leaves = (arrays[name].astype(np.int64) for name in ("cut", "child", "tree_leaves"))
    n_nodes = len(feature)
    require_that(len(cut) == n_nodes == len(child) and len(tree_leaves) == len(roots) + 1, "arrays differ in length")
    require_that(len(roots) > 0 and roots[0] == 0 and (np.diff(roots) > 0).all() and roots[-1] < n_nodes, "roots")
    require_that(((feature >= LEAF) & (feature < len(n_codes))).all(), "a feature is out of range")

    leaves, inner = np.flatnonzero(feature == LEAF), np.flatnonzero(feature != LEAF)
    tree = np.searchsorted(roots, np.arange(n_nodes), side="right") - 1
    require_that(np.array_equal(np.sort(child[leaves]), np.arange(len(leaves))), "leaves are not numbered 0, 1, 2, ...")
    require_that(tree_leaves[0] == 0 and tree_leaves[-1] == len(leaves), "the number of leaves")
    require_that((np.diff(tree_leaves) > 0).all(), "a tree has no leaf")
    owner = np.searchsorted(tree_leaves, child[leaves], side="right") - 1
    require_that((owner == tree[leaves]).all(), "a leaf belongs to another tree")

    branches = np.full(n_nodes, 2)
    for column, width in enumerate(n_codes.tolist()):
        here = (feature == column) & (cut >= 0)
        require_that((cut[here] < width).all(), "a cut is out of range")
        table = np.flatnonzero((feature == column) & (cut < 0))
        start = -1 - cut[table]
        require_that((start + width <= len(lookup)).all(), "a lookup is out of range")
        if len(table):
            branches[table] = _window_maxima(lookup, width)[start].astype(np.int64) + 1
    # In level order the children of successive inner nodes follow one another and are all nodes but the roots.
    below = np.setdiff1d(np.arange(n_nodes), roots)
    last = np.cumsum(branches[inner]) - 1
    require_that(len(below) == branches[inner].sum(), "the number of children")
    first_child, last_child = below[last - branches[inner] + 1], below[last]
    require_that(np.array_equal(first_child, child[inner]), "children are not in level order")
    require_that((first_child + branches[inner] - 1 == last_child).all(), "siblings are apart")
    require_that(((child[inner] > inner) & (tree[last_child] == tree[inner])).all(), "a child is outside its tree")

    parent = np.arange(n_nodes)
    parent[below] = np.repeat(inner, branches[inner])
    for _ in range(MAX_DEPTH.bit_length() - 1):  # pointer doubling
        parent = parent[parent]
    require_that((parent == roots[tree]).all(), "a tree is too deep")


def _window_maxima(values: Codes, width: int) -> Codes:
    """Return the maximum of each window of ``width`` values, in time logarithmic in the width."""
    reach = 1
    while 2 * reach <= width:
        values = np.maximum(values[:-reach], values[reach:])
        reach *= 2
    rest = width - reach
    return np.maximum(values[: len(values) - rest], values[rest:])


def leaf_masks(forest: Forest, n_codes: Sequence[int]) -> Bools:
    """Return a mask of the codes that can reach each leaf: shape (n_leaves, sum of n_codes), column after column."""
    column = np.repeat(np.arange(len(n_codes)), n_codes)
    code = np.concatenate([np.arange(n) for n in n_codes])
    masks = np.ones((forest.n_nodes, len(code)), bool)
    for depth in range(1, forest.depth + 1):
        nodes = np.flatnonzero(forest.level == depth)
        parent = forest.parent[nodes]
        cut = forest.cut[parent][:, None]
        split = column == forest.feature[parent][:, None]
        branch = np.where(cut < 0, forest.lookup[np.where(split & (cut < 0), code - 1 - cut, 0)], code >= cut)
        masks[nodes] = masks[parent] & (~split | (branch == (nodes - forest.child[parent])[:, None]))
    return masks[forest.leaf_node]


# -- writing: from nodes in level order to numbered children, leaves and trees --------------------------------------


def build_forest(
    sizes: ArrayLike, feature: ArrayLike, cut: ArrayLike, branches: ArrayLike, lookup: Sequence[Codes]
) -> Forest:
    """Build a forest from trees in level order, one after the other.

    Parameters
    ----------
    sizes : array of int
        Number of nodes of each tree.
    feature, cut : array of int
        Split of each node (see ``Forest``); ``LEAF`` at leaves.
    branches : array of int
        Number of children of each node; 0 at leaves.
    lookup : sequence of arrays
        Tables that negative cuts point into, one after the other.

    Examples
    --------
    >>> build_forest([3], [0, LEAF, LEAF], [5, 0, 0], [2, 0, 0], []).child.tolist()
    [1, 0, 1]
    """
    sizes, feature, branches = np.asarray(sizes), np.asarray(feature, np.int32), np.asarray(branches)
    leaf = feature == LEAF
    roots = np.cumsum(sizes) - sizes
    # All nodes but the roots are children, in order: roots and the children of earlier nodes come before a node's own.
    first_child = np.cumsum(branches) - branches + np.repeat(np.arange(len(sizes)), sizes) + 1
    return Forest(
        roots=roots.astype(np.int32),
        feature=feature,
        cut=np.where(leaf, 0, cut).astype(np.int32),
        child=np.where(leaf, np.cumsum(leaf) - 1, first_child).astype(np.int32),
        lookup=_join_lookups(lookup),
        tree_leaves=np.append(0, np.cumsum(np.add.reduceat(leaf, roots, dtype=np.int64))).astype(np.int32),
    )


def build_partial_forest(
    n_trees: int,
    feature: ArrayLike,
    cut: ArrayLike,
    branches: ArrayLike,
    n_open: int,
    lookup: Sequence[Codes],
) -> Forest:
    """Build a forest of growing trees, whose nodes are ordered by level over all trees. The last ``n_open`` are open.

    The leaf number of an open node is its index among the open nodes. That of a closed leaf is -1.
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
        lookup=_join_lookups(lookup),
        tree_leaves=np.array([0, n_open], np.int32),
    )


def join_forests(forests: Sequence[Forest], features: Sequence[Sequence[int]]) -> Forest:
    """Join forests over subsets of the columns. ``features`` gives the columns of each."""
    starts = np.cumsum([0, *(len(forest.lookup) for forest in forests)])
    parts = []
    for forest, columns, start in zip(forests, features, starts, strict=False):
        feature = np.where(forest.feature == LEAF, LEAF, np.asarray(columns, np.int32)[forest.feature])
        branches = np.bincount(forest.parent[forest.parent >= 0], minlength=forest.n_nodes)
        sizes = np.diff(np.append(forest.roots, forest.n_nodes))
        parts.append((sizes, feature, np.where(forest.cut < 0, forest.cut - start, forest.cut), branches))
    sizes, feature, cut, branches = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return build_forest(sizes, feature, cut, branches, [forest.lookup for forest in forests])


def _join_lookups(lookup: Sequence[Codes]) -> Codes:
    """Return one lookup table. It is never empty, since kernels read from it speculatively."""
    return np.concatenate([*lookup, np.zeros(1, np.uint16)]).astype(np.uint16)
