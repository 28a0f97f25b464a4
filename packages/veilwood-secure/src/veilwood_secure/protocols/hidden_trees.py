# SPDX-License-Identifier: Apache-2.0
"""Hidden trees: training and prediction on shares, with noisy-max selection inside the protocol.

Multiway trees come first, binary trees below. Nothing is opened here. Forests and their plans are in
``hidden_forest``, public trees in ``public_trees``.

| letter | meaning |
|---|---|
| n, m, w, u | rows, features, values of a feature, classes, as in ``records`` |
| W | nodes of a level: w (binary trees: 2) to the power of its depth |
| S, q | one-hot values of all features; candidate cuts (binary trees) |
| g | numbers per cell: the u class counts, or for two classes only their difference |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final, Literal

import numpy as np

from veilwood.data.schema import Schema
from veilwood.errors import UseError
from veilwood_secure.mpc.engine import Engine, Shared, concatenate, stack
from veilwood_secure.mpc.round_batching import run_in_lockstep
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.circuits import absolute, argmax, maximum
from veilwood_secure.protocols.records import Domain, SharedRows

MAX_BINARY_LEVELS: Final = 12


@dataclass(frozen=True)
class Recipe:
    """Public parameters of a hidden tree: domain, depth and noise scales."""

    domain: Domain
    """The public shape of rows."""
    split_scales: tuple[Fraction | None, ...]
    """For each level, the scale of the geometric noise on the scores of features; None for no noise."""
    leaf_scale: Fraction | None
    """The scale of the noise on the class counts of leaves; None for no noise."""
    leaf_mechanism: Literal["noisy-max", "laplace", "exponential"] = "noisy-max"
    """Mechanism that selects the classes of leaves: geometric noise, or one of the paper's two mechanisms, which are
    discrete Laplace noise on counts and the exponential mechanism with an epsilon of 1/``leaf_scale``."""
    n_cuts: int | None = None
    """Number of candidate cuts of a node in binary trees; None for multiway trees, with one branch per value."""

    def __post_init__(self) -> None:
        if self.n_cuts is not None:
            if not 1 <= self.depth <= MAX_BINARY_LEVELS:
                raise UseError(
                    f"a binary tree of depth {self.depth} cannot be grown. "
                    f"Hint: choose a depth from 1 to {MAX_BINARY_LEVELS}."
                )
            return
        if not 1 <= self.depth <= self.domain.n_features:
            raise UseError(
                f"a tree of depth {self.depth} cannot use each of {self.domain.n_features} features once on a path. "
                f"Hint: choose a depth from 1 to {self.domain.n_features}."
            )

    @property
    def depth(self) -> int:
        """Number of levels with splits."""
        return len(self.split_scales)

    @property
    def n_candidates(self) -> int:
        """Number of candidate splits of a node."""
        return self.domain.n_features if self.n_cuts is None else self.n_cuts

    def n_nodes(self, level: int) -> int:
        """Return the number of nodes at a depth; those at depth ``depth`` are the leaves."""
        return int((self.domain.width if self.n_cuts is None else 2) ** level)


@dataclass(frozen=True)
class TreeNoise:
    """Secret noise of one tree: an array of shape (m, W) for each level and (u, W) for the leaves, or None.

    The noise does not depend on data and can be drawn before the data arrive. The exponential mechanism uses None.
    """

    splits: tuple[Shared | None, ...]
    leaves: Shared | None


def draw_tree_noise(engine: Engine, recipe: Recipe) -> TreeNoise:
    """Draw the secret noise of one tree, unknown to every server."""
    m, u = recipe.n_candidates, recipe.domain.n_classes
    splits = [
        None if scale is None else noise.geometric(engine, scale, (m, recipe.n_nodes(level)))
        for level, scale in enumerate(recipe.split_scales)
    ]
    if recipe.leaf_scale is None or recipe.leaf_mechanism == "exponential":
        return TreeNoise(tuple(splits), None)
    draw = noise.geometric if recipe.leaf_mechanism == "noisy-max" else noise.discrete_laplace
    return TreeNoise(tuple(splits), draw(engine, recipe.leaf_scale, (u, recipe.n_nodes(recipe.depth))))


@dataclass(frozen=True)
class HiddenTree:
    """Complete hidden tree in shares.

    ``splits[l]`` holds the feature of each node at depth l as one-hot, shape (m, W); ``leaves`` the class of each
    leaf as one-hot, shape (u, W). Branch v of node i is node i w + v of the next level.
    """

    splits: tuple[Shared, ...]
    leaves: Shared


def grow_hidden_tree(engine: Engine, records: SharedRows, recipe: Recipe, tree_noise: TreeNoise) -> HiddenTree:
    """Train a hidden tree level by level, all nodes of a level in the same rounds.

    Notes
    -----
    Guarantee

    A server sees uniformly random shares only, whatever the rows. With geometric noise at every level and at the
    leaves, the privacy loss of the tree, and hence of any number of its predictions, is the sum of 1/scale over the
    levels (proofs/secure.md, attacked by packages/veilwood-secure/tests/protocols/test_hidden_privacy.py).
    """
    domain, n = recipe.domain, records.n_rows
    m, w, two = domain.n_features, domain.width, domain.n_classes == 2
    # Of two classes only the difference matters: |n_0 - n_1| = 2 max(n_0, n_1) - (n_0 + n_1), and n_0 + n_1 summed
    # over the values is the same for all features, so sums of |n_0 - n_1| order them as the max operator (eq. 1) does.
    signed_classes = (records.classes[0] - records.classes[1]).reshape(1, n) if two else records.classes
    g = signed_classes.shape[0]
    cells = engine.mul(records.features.reshape(1, m, w, n), signed_classes.reshape(g, 1, 1, n))

    splits: list[Shared] = []
    rows_in: Shared | None = None  # (W, n): which rows are in which node; None for the root, which has all rows
    free = engine.constant(np.ones((m, 1), np.int64))  # (m, W): 1 for features not used on the path
    counts = cells.sum(axis=3).reshape(g, m, w, 1)  # (g, m, w, W)
    for level in range(recipe.depth):
        nodes, extra = recipe.n_nodes(level), tree_noise.splits[level]
        scores = (absolute(engine, counts[0]) if two else maximum(engine, counts)).sum(axis=1)  # (m, W)
        if extra is not None:
            scores = scores + (extra * 2 if two else extra)
        if level:
            scores = engine.mul(scores + 1, free)  # scores are not negative, so used features lose
        chosen = argmax(engine, scores)
        splits.append(chosen)
        if level + 1 == recipe.depth:
            break
        free = (free - chosen).reshape(m, nodes, 1).broadcast_to((m, nodes, w)).reshape(m, nodes * w)
        branch = _row_branches(engine, records.features, chosen, rows_in)  # (w, n)
        if level + 2 == recipe.depth and rows_in is not None and g * m < nodes:
            # The row masks of the last level would be used only once; the products of cells and branches are fewer.
            parts = engine.mul(cells.reshape(g * m * w, 1, n), branch.reshape(1, w, n)).reshape(g * m * w * w, n)
            table = engine.matmul(parts, rows_in.transpose()).reshape(g, m, w, w, nodes)
            counts = table.transpose(0, 1, 2, 4, 3).reshape(g, m, w, nodes * w)
        else:
            rows_in = _descend_multiway(engine, rows_in, branch)
            counts = engine.matmul(cells.reshape(g * m * w, n), rows_in.transpose()).reshape(g, m, w, nodes * w)

    # The counts of the leaves are in the last table: select the counts of the chosen feature.
    totals = engine.dot(counts, splits[-1].reshape(1, m, 1, -1), axis=1)  # (g, w, W)
    labels = label_leaves(engine, totals.transpose(0, 2, 1).reshape(g, -1), recipe, tree_noise.leaves)
    return HiddenTree(tuple(splits), labels)


def label_leaves(engine: Engine, totals: Shared, recipe: Recipe, extra: Shared | None) -> Shared:
    """Select the class of each leaf from its counts, or from the difference of two counts; one-hot, (u, W)."""
    if recipe.leaf_mechanism == "exponential" and recipe.leaf_scale is not None:
        # Weights depend on differences of counts only, so the count of the second of two classes can be set to 0.
        counts = totals if totals.shape[0] > 1 else concatenate([totals, totals * 0])
        return noise.select_exponential(engine, counts, 1 / recipe.leaf_scale)
    if totals.shape[0] > 1:
        return argmax(engine, totals if extra is None else totals + extra)
    difference = totals[0] if extra is None else totals[0] + extra[0] - extra[1]
    second = engine.is_negative(difference)  # ties go to the first class
    return stack([1 - second, second])


def _row_branches(engine: Engine, features: Shared, chosen: Shared, rows_in: Shared | None) -> Shared:
    """Return the value of each row in the split feature of its node, one-hot, shape (w, n)."""
    m, w, n = features.shape
    if rows_in is None:
        return engine.matmul(chosen.transpose(), features.reshape(m, w * n)).reshape(w, n)
    feature = engine.matmul(chosen, rows_in)  # (m, n): a row is in one node of a level
    return engine.dot(feature.reshape(m, 1, n), features, axis=0)


def _descend_multiway(engine: Engine, rows_in: Shared | None, branch: Shared) -> Shared:
    """Return the row masks of the nodes of the next level, shape (W w, n)."""
    if rows_in is None:
        return branch
    (nodes, n), w = rows_in.shape, branch.shape[0]
    return engine.mul(rows_in.reshape(nodes, 1, n), branch.reshape(1, w, n)).reshape(nodes * w, n)


def classify_queries(engine: Engine, tree: HiddenTree, queries: Shared) -> Shared:
    """Return the predicted class of each query, one-hot, shape (u, queries) (Algorithm 4).

    ``queries`` are one-hot rows of shape (m, w, queries). No comparison is needed.
    """
    rows_in: Shared | None = None
    for chosen in tree.splits[:-1]:
        rows_in = _descend_multiway(engine, rows_in, _row_branches(engine, queries, chosen, rows_in))
    branch = _row_branches(engine, queries, tree.splits[-1], rows_in)  # (w, queries)
    (w, n), u = branch.shape, tree.leaves.shape[0]
    if rows_in is None:
        return engine.matmul(tree.leaves, branch)
    leaves = tree.leaves.reshape(u, -1, w).transpose(0, 2, 1).reshape(u * w, -1)
    class_below = engine.matmul(leaves, rows_in).reshape(u, w, n)  # the classes below the last node of each query
    return engine.dot(class_below, branch.reshape(1, w, n), axis=1)


def sum_votes(engine: Engine, trees: Sequence[HiddenTree], queries: Shared) -> Shared:
    """Return the votes of all trees for each class, in the communication rounds of one tree; shape (u, queries)."""
    cast = run_in_lockstep(engine, [partial(classify_queries, tree=tree, queries=queries) for tree in trees])
    total = cast[0]
    for one in cast[1:]:
        total = total + one
    return total


def predict_queries(engine: Engine, trees: Sequence[HiddenTree], queries: Shared) -> Shared:
    """Return the index of the predicted class of each query: the class with the most votes. Ties go to the first class.

    The shares are fresh, so they can be sent to the user unchanged.
    """
    total = sum_votes(engine, trees, queries)
    winner = total if len(trees) == 1 else argmax(engine, total)
    return engine.refresh((winner * np.arange(winner.shape[0])[:, None]).sum(axis=0))


@dataclass(frozen=True)
class CutCandidates:
    """Public candidate cuts of a binary node, from the schema.

    >>> CutCandidates((3, 2, 4), (True, False, False)).n_cuts
    7
    """

    sizes: tuple[int, ...]
    ordered: tuple[bool, ...]

    @classmethod
    def from_schema(cls, schema: Schema) -> CutCandidates:
        """Return the cuts of a schema: thresholds between bins, and single categories."""
        return cls(Domain.from_schema(schema).sizes, tuple(column.kind == "numeric" for column in schema.features))

    @property
    def n_cuts(self) -> int:
        """Number of cuts. A column with two values has one cut."""
        return sum(
            size - 1 if number or size == 2 else size for size, number in zip(self.sizes, self.ordered, strict=True)
        )

    def left_indicators(self, features: Shared) -> Shared:
        """Return the rows that each cut sends to the left, shape (q, n), from one-hot features (S, n). No message."""
        parts, start = [], 0
        for size, number in zip(self.sizes, self.ordered, strict=True):
            own = features[start : start + size]
            start += size
            parts.append(own.cumsum(axis=0)[:-1] if number else own[:-1] if size == 2 else own)
        return concatenate(parts)


def grow_binary_tree(
    engine: Engine, features: Shared, classes: Shared, cuts: CutCandidates, recipe: Recipe, tree_noise: TreeNoise
) -> HiddenTree:
    """Train a hidden binary tree level by level, all nodes of a level in the same rounds.

    Notes
    -----
    Guarantee

    A row is in one node of a level and on one side of each cut. The score of a cut is the number of rows of the most
    frequent class, summed over both sides, so a row increases it by 0 or 1: the privacy loss is that of
    ``grow_hidden_tree`` (proofs/secure.md, attacked by packages/veilwood-secure/tests/protocols/test_binary_tree.py).
    """
    n, two = features.shape[-1], recipe.domain.n_classes == 2
    signed_classes = (classes[0] - classes[1]).reshape(1, n) if two else classes
    g = signed_classes.shape[0]
    left = cuts.left_indicators(features)
    q = left.shape[0]
    cells = engine.mul(left.reshape(q, 1, n), signed_classes.reshape(1, g, n)).reshape(q * g, n)
    splits: list[Shared] = []
    rows_in: Shared | None = None
    for level in range(recipe.depth):
        nodes, extra = recipe.n_nodes(level), tree_noise.splits[level]
        if rows_in is None:
            counts, totals = cells.sum(axis=1).reshape(q, g, 1), signed_classes.sum(axis=1).reshape(g, 1)
        else:
            both = engine.matmul(concatenate([cells, signed_classes]), rows_in.transpose())
            counts, totals = both[: q * g].reshape(q, g, nodes), both[q * g :]
        sides = stack([counts, totals.reshape(1, g, nodes) - counts])  # (2, q, g, W)
        if two:
            scores = absolute(engine, sides).sum(axis=(0, 2))
        else:
            scores = maximum(engine, sides.transpose(2, 0, 1, 3)).sum(axis=0)
        if extra is not None:
            scores = scores + (extra * 2 if two else extra)
        chosen = argmax(engine, scores)  # (q, W)
        splits.append(chosen)
        if level + 1 < recipe.depth:
            rows_in = _descend_binary(engine, left, chosen, rows_in)
    # The counts of the leaves are in the last table: select both sides of the chosen cut.
    first = engine.dot(counts, chosen.reshape(q, 1, -1), axis=0)  # (g, W)
    leaves = stack([first, totals - first], axis=2).reshape(g, -1)
    return HiddenTree(tuple(splits), label_leaves(engine, leaves, recipe, tree_noise.leaves))


def _descend_binary(engine: Engine, left: Shared, chosen: Shared, rows_in: Shared | None) -> Shared:
    """Return the row masks of the nodes of the next level, left before right, shape (2 W, n)."""
    goes_left = engine.matmul(chosen.transpose(), left)  # (W, n)
    nodes, n = goes_left.shape
    if rows_in is None:
        return stack([goes_left, 1 - goes_left], axis=1).reshape(2 * nodes, n)
    there = engine.mul(rows_in, goes_left)
    return stack([there, rows_in - there], axis=1).reshape(2 * nodes, n)


def classify_binary(engine: Engine, tree: HiddenTree, cuts: CutCandidates, queries: Shared) -> Shared:
    """Return the class of each query as one-hot, shape (u, queries), from one-hot features (S, queries)."""
    left, rows_in = cuts.left_indicators(queries), None
    for chosen in tree.splits:
        rows_in = _descend_binary(engine, left, chosen, rows_in)
    assert rows_in is not None
    return engine.matmul(tree.leaves, rows_in)


def drop_dummy_values(one_hot: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return one-hot features without dummy values: (m, w, n) to (S, n).

    >>> drop_dummy_values(np.arange(6).reshape(2, 3, 1), (3, 1)).ravel().tolist()
    [0, 1, 2, 3]
    """
    return np.concatenate([own[:size] for own, size in zip(one_hot, sizes, strict=True)])
