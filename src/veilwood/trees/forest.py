# SPDX-License-Identifier: Apache-2.0
"""Trees as flat level-order arrays, and the public randomness that they grow from.

They are written in ``builder``; what a forest counts is in ``counting``, what it learned in ``forests.leaves``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilwood.bounded import is_whole
from veilwood.errors import DomainTooLargeError, ModelFileError, ParameterError
from veilwood.privacy.plan import LARGEST_SEED
from veilwood.wording import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Ints: TypeAlias = NDArray[np.int32]

LEAF = -1  # the "feature" of a leaf
MAX_NODES = 1 << 28  # about 3 GB of structure: beyond it something was mistyped
MAX_TREES = 100_000  # each is grown by itself
MAX_DEPTH = 1024  # of a tree read from a file: what walks level by level stays fast


@dataclass(frozen=True)
class Forest:
    """A forest of any branching, as five flat arrays; node numbers run over all trees.

    A node sends a row with code c of its ``feature`` to ``child + branch``, where ``branch`` is ``c >= cut``
    (threshold, cut at least 0) or ``lookup[-1 - cut + c]`` (category subset, or one branch per value).
    At a leaf ``feature`` is ``LEAF`` and ``child`` holds the leaf's number; leaves too are numbered over all trees.
    """

    roots: Ints
    feature: Ints
    cut: Ints
    child: Ints
    lookup: NDArray[np.uint16]
    tree_leaves: Ints  # leaves of tree t are tree_leaves[t] up to tree_leaves[t + 1]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was derived on the way: whether it was needed would tell whether there were rows."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @cached_property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.roots)

    @cached_property
    def n_nodes(self) -> int:
        """Number of nodes, leaves included."""
        return len(self.feature)

    @cached_property
    def n_leaves(self) -> int:
        """Number of leaves of all trees together."""
        return int(self.tree_leaves[-1])

    @cached_property
    def parent(self) -> Ints:
        """The parent of each node; -1 at a root."""
        # In level order the children of successive inner nodes follow one another.
        inner = np.flatnonzero(self.feature != LEAF).astype(np.int32)
        if not len(inner):
            return np.full(self.n_nodes, -1, np.int32)
        parent = inner[np.searchsorted(self.child[inner], np.arange(self.n_nodes), side="right") - 1]
        parent[self.roots] = -1
        return parent

    @cached_property
    def level(self) -> Ints:
        """The depth of each node; 0 at a root."""
        level = np.zeros(self.n_nodes, np.int32)
        ancestor = self.parent
        while (ancestor >= 0).any():
            level += ancestor >= 0
            ancestor = np.where(ancestor >= 0, self.parent[ancestor], -1)
        return level

    @cached_property
    def depth(self) -> int:
        """The depth of the deepest leaf."""
        return int(self.level.max())

    @cached_property
    def packed(self) -> Ints:
        """Feature, cut, child and leaf number of each node side by side, for kernels; a leaf is its own child."""
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
        """The first 32 entries of each node's lookup as bits, for kernels; 0 where there is none, or not of bits."""
        starts = np.where((self.feature != LEAF) & (self.cut < 0), -1 - self.cut, len(self.lookup))
        padded = np.append(self.lookup, np.zeros(32, np.uint16))
        entries = np.lib.stride_tricks.sliding_window_view(padded, 32)[starts]
        bits = (entries.astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
        return np.where((entries <= 1).all(axis=1), bits, 0).astype(np.uint32)

    @cached_property
    def leaf_node(self) -> Ints:
        """The node of each leaf."""
        nodes = np.flatnonzero(self.feature == LEAF).astype(np.int32)
        ordered = np.empty(self.n_leaves, np.int32)
        ordered[self.child[nodes]] = nodes
        return ordered

    def add_up(self, leaf_values: NDArray[Any]) -> NDArray[np.float64]:
        """Sum values of leaves (one for each, or one row of them) up to every node: what is below it."""
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

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, for files."""
        return {field.name: np.ascontiguousarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], n_codes: Sequence[int]) -> Forest:
        """Read what ``to_arrays`` wrote, refusing arrays that are not a forest over columns with so many codes."""
        _audit(arrays, np.asarray(n_codes))
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})


def _audit(arrays: Mapping[str, NDArray[Any]], n_codes: NDArray[np.int64]) -> None:
    """Refuse arrays that would send a row out of range, round in circles, or to a leaf of another tree."""

    def require(holds: bool | np.bool_, problem: str) -> None:
        if not holds:
            raise ModelFileError(f"the trees are damaged: {problem}.")

    for field in fields(Forest):
        array, dtype = arrays.get(field.name), np.uint16 if field.name == "lookup" else np.int32
        require(array is not None and array.dtype == dtype and array.ndim == 1, f"{field.name!r} is missing or odd")
    roots, feature, lookup = arrays["roots"], arrays["feature"], arrays["lookup"]
    cut, child, tree_leaves = (arrays[name].astype(np.int64) for name in ("cut", "child", "tree_leaves"))
    n_nodes = len(feature)
    require(len(cut) == n_nodes == len(child) and len(tree_leaves) == len(roots) + 1, "arrays differ in length")
    require(len(roots) > 0 and roots[0] == 0 and (np.diff(roots) > 0).all() and roots[-1] < n_nodes, "roots")
    require(((feature >= LEAF) & (feature < len(n_codes))).all(), "a feature is out of range")

    leaves, inner = np.flatnonzero(feature == LEAF), np.flatnonzero(feature != LEAF)
    tree = np.searchsorted(roots, np.arange(n_nodes), side="right") - 1
    require(np.array_equal(np.sort(child[leaves]), np.arange(len(leaves))), "leaves are not numbered 0, 1, 2, ...")
    require(tree_leaves[0] == 0 and tree_leaves[-1] == len(leaves), "the number of leaves")
    require((np.diff(tree_leaves) > 0).all(), "a tree has no leaf")
    owner = np.searchsorted(tree_leaves, child[leaves], side="right") - 1
    require((owner == tree[leaves]).all(), "a leaf belongs to another tree")

    branches = np.full(n_nodes, 2)
    for column, width in enumerate(n_codes.tolist()):
        here = (feature == column) & (cut >= 0)
        require((cut[here] < width).all(), "a cut is out of range")
        table = np.flatnonzero((feature == column) & (cut < 0))
        start = -1 - cut[table]
        require((start + width <= len(lookup)).all(), "a lookup is out of range")
        if len(table):
            branches[table] = _window_maxima(lookup, width)[start].astype(np.int64) + 1
    # In level order the children of successive inner nodes follow one another and are all nodes but the roots.
    below = np.setdiff1d(np.arange(n_nodes), roots)
    last = np.cumsum(branches[inner]) - 1
    require(len(below) == branches[inner].sum(), "the number of children")
    first_child, last_child = below[last - branches[inner] + 1], below[last]
    require(np.array_equal(first_child, child[inner]), "children are not in level order")
    require((first_child + branches[inner] - 1 == last_child).all(), "siblings are apart")
    require(((child[inner] > inner) & (tree[last_child] == tree[inner])).all(), "a child is outside its tree")

    parent = np.arange(n_nodes)
    parent[below] = np.repeat(inner, branches[inner])
    for _ in range(MAX_DEPTH.bit_length() - 1):  # twice as far up each time
        parent = parent[parent]
    require((parent == roots[tree]).all(), "a tree is too deep")


def _window_maxima(values: NDArray[np.uint16], width: int) -> NDArray[np.uint16]:
    """Return the largest of the ``width`` values from each place on, in time that does not grow with the width."""
    reach = 1
    while 2 * reach <= width:
        values = np.maximum(values[:-reach], values[reach:])
        reach *= 2
    rest = width - reach
    return np.maximum(values[: len(values) - rest], values[rest:])


def public_seed(random_state: object) -> int:
    """Return a public seed: the given whole number, or one that is drawn from a generator, or from fresh entropy.

    >>> public_seed(7)
    7
    """
    if is_whole(random_state, 0, LARGEST_SEED):
        return int(random_state)  # type: ignore[call-overload,no-any-return]
    (rng,) = public_generators(random_state, 1)
    return int(rng.integers(2**63))


def public_generators(random_state: object, n: int) -> list[np.random.Generator]:
    """Return ``n`` generators of public randomness; tree i does not change when more trees are asked for."""
    check_random_state(random_state)
    if random_state is None:
        root = np.random.SeedSequence()
    elif isinstance(random_state, np.random.RandomState):
        root = np.random.SeedSequence([int(w) for w in random_state.randint(0, 2**31 - 1, 4)])
    elif isinstance(random_state, np.random.Generator):
        root = np.random.SeedSequence([int(w) for w in random_state.integers(0, 2**31 - 1, 4)])
    else:
        root = np.random.SeedSequence(int(random_state))  # type: ignore[call-overload]
    return [np.random.default_rng(child) for child in root.spawn(n)]


def check_random_state(random_state: object) -> None:
    """Refuse what no public randomness can be drawn from."""
    known = random_state is None or isinstance(random_state, np.random.RandomState | np.random.Generator)
    if not known and not is_whole(random_state, 0, LARGEST_SEED):
        raise ParameterError(
            "random_state", random_state, "is not a non-negative integer below 2^128, a generator or None"
        )


def leaf_masks(forest: Forest, n_codes: Sequence[int]) -> NDArray[np.bool_]:
    """Return which codes of each column reach each leaf, all columns side by side: [n_leaves, sum of n_codes]."""
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


def check_counts(**values: object) -> None:
    """Refuse what is not a number of trees or levels, or is beyond every limit."""
    for name, value in values.items():
        if not is_whole(value, 1, MAX_TREES):
            wanted = f"must be a whole number of at least 1 and at most {MAX_TREES:,}"
            if is_whole(value, MAX_TREES):
                raise DomainTooLargeError(f"{name}={shown(value)} {wanted}. Hint: lower max_depth or n_estimators.")
            raise ParameterError(name, value, wanted)


def check_size(n_trees: int, max_depth: int, branching: int) -> None:
    """Refuse numbers of trees and depths that make no sense or no forest of a reasonable size."""
    check_counts(n_estimators=n_trees, max_depth=max_depth)
    # Python integers do not overflow, and a depth beyond 64 is not even raised to a power.
    if max_depth > 64 or int(n_trees) * branching ** int(max_depth) > MAX_NODES:
        raise DomainTooLargeError(
            f"{n_trees} trees of depth {max_depth} could have more than {MAX_NODES:,} leaves. "
            "Hint: lower max_depth or n_estimators."
        )
