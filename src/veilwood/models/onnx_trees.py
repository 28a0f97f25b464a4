# SPDX-License-Identifier: Apache-2.0
"""Trees of any branching as the binary decisions of ONNX's TreeEnsemble operator.

A node with many branches becomes a search tree over them: each decision asks whether the branch is at least a given
one. That is a threshold of numbers, or of codes of categories, or else a set of codes. The graph around the trees is in
``onnx``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import Encoding
from veilwood.errors import UseError
from veilwood.trees.forest import LEAF, Forest

__all__ = ["tree_attributes"]

_AT_LEAST, _MEMBER = 2, 6  # node modes of TreeEnsemble

Longs = NDArray[np.int64]


class _Test(NamedTuple):
    """What a decision asks of a column: a code of at least ``first``, or one of ``members``."""

    feature: int
    first: int
    members: NDArray[np.float64] | None = None


class _Decisions(NamedTuple):
    """Decisions by their number: column, kind of test, and the nodes that they lead to.

    Nodes are those of the forest; numbers from ``n_nodes`` on are decisions that a node of many branches was split
    into.
    """

    feature: Longs
    test: Longs
    right: Longs
    left: Longs


def tree_attributes(forest: Forest, encoding: Encoding) -> dict[str, Any]:
    """Return trees as TreeEnsemble wants them: decisions and leaves listed apart, numbered from 0.

    Each tree has a target of its own, and each leaf weighs its number: the operator tells which leaves a row is in.
    """
    is_leaf = forest.feature == LEAF
    decides = ~is_leaf
    decides[forest.roots] = True  # a tree of one leaf is a decision whose branches both lead to that leaf
    nodes = np.flatnonzero(decides)
    tests: list[_Test] = []
    decisions = _decisions(forest, encoding, nodes, tests)
    place = np.cumsum(decides) - 1
    n_own = len(nodes)

    def branch(name: str, node: Longs) -> dict[str, list[int]]:
        own = node < forest.n_nodes
        at = np.where(own, node, 0)
        leaf = own & is_leaf[at]
        number = np.where(leaf, forest.child[at], np.where(own, place[at], node - forest.n_nodes + n_own))
        return {f"nodes_{name}nodeids": number.tolist(), f"nodes_{name}leafs": leaf.astype(int).tolist()}

    splits = _splits(tests, encoding)[decisions.test]
    by_members = np.array([test.members is not None for test in tests])[decisions.test]
    members = [tests[test].members for test in decisions.test[by_members].tolist()]
    return {
        "n_targets": forest.n_trees,
        "tree_roots": place[forest.roots].tolist(),
        "nodes_featureids": decisions.feature.tolist(),
        "nodes_modes": np.where(by_members, _MEMBER, _AT_LEAST).astype(np.uint8),
        "nodes_splits": splits,
        **branch("true", decisions.right),
        **branch("false", decisions.left),
        "leaf_targetids": np.repeat(np.arange(forest.n_trees), np.diff(forest.tree_leaves)).tolist(),
        "leaf_weights": np.arange(forest.n_leaves, dtype=np.float64),
        **({"membership_values": np.concatenate([np.append(one, np.nan) for one in members])} if members else {}),
    }


def _decisions(forest: Forest, encoding: Encoding, nodes: Longs, tests: list[_Test]) -> _Decisions:
    """List the decisions of nodes, then those that nodes of many branches need beyond one; tests are added to."""
    alone = forest.feature[nodes] == LEAF
    feature = np.maximum(forest.feature[nodes], 0).astype(np.int64)
    cut = np.where(alone, 0, forest.cut[nodes]).astype(np.int64)
    child = np.where(alone, nodes, forest.child[nodes])
    parent = forest.parent
    n_branches = np.bincount(parent[parent >= 0], minlength=forest.n_nodes)[nodes]
    middle = np.maximum(n_branches, 2) // 2
    asked, test = np.unique(np.stack([feature, cut, middle]), axis=1, return_inverse=True)
    tests += [_test(forest, encoding, *(int(part) for part in one)) for one in asked.T]
    right, left = child + np.where(alone, 0, middle), child.copy()
    more: list[tuple[int, int, int, int]] = []
    known: dict[tuple[int, int, int], int] = {}

    def below(node: int, first: int, last: int) -> int:
        """Return what leads to the branches ``first <= b < last`` of a node: a child, or a further decision."""
        if last - first == 1:
            return int(child[node]) + first
        key = (int(feature[node]), int(cut[node]), (first + last) // 2)
        if key not in known:
            known[key] = len(tests)
            tests.append(_test(forest, encoding, *key))
        number = len(more)
        more.append((key[0], known[key], 0, 0))
        more[number] = (key[0], known[key], below(node, key[2], last), below(node, first, key[2]))
        return forest.n_nodes + number

    for node in np.flatnonzero(n_branches > 2).tolist():
        right[node] = below(node, int(middle[node]), int(n_branches[node]))
        left[node] = below(node, 0, int(middle[node]))
    further = np.array(more, np.int64).reshape(-1, 4).T
    return _Decisions(*(
        np.concatenate([own, added]) for own, added in zip((feature, test.ravel(), right, left), further, strict=True)
    ))  # fmt: skip


def _test(forest: Forest, encoding: Encoding, feature: int, cut: int, least: int) -> _Test:
    """Ask whether a code of a column goes to the branch ``least`` or a later one."""
    if cut >= 0:
        return _Test(feature, cut)
    n_codes, ordered = encoding.columns[feature].n_codes, encoding.columns[feature].ordered
    goes = forest.lookup[-1 - cut : -1 - cut + n_codes] >= least
    first = int(n_codes - goes.sum())
    if goes[first:].all():
        return _Test(feature, first)
    if ordered:
        raise UseError("trees that send intervals of a number here and there have no ONNX export.")
    return _Test(feature, 0, np.flatnonzero(goes).astype(np.float64))


def _splits(tests: list[_Test], encoding: Encoding) -> NDArray[np.float64]:
    """Say codes of categories as they are, and codes of numbers as the smallest number that has them."""
    feature, first = np.array([test.feature for test in tests]), np.array([test.first for test in tests])
    splits = first.astype(np.float64)
    for column, meaning in enumerate(encoding.columns):
        if meaning.ordered:
            here = feature == column
            missing = here & (first == meaning.missing_code)  # sets missing values apart from all numbers
            nothing = here & (first >= meaning.n_codes)  # no number is at least NaN
            splits[missing], splits[nothing] = np.inf, np.nan
            numbers = here & ~missing & ~nothing
            splits[numbers] = encoding.threshold(column, first[numbers])
    return splits
