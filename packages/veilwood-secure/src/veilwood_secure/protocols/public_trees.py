# SPDX-License-Identifier: Apache-2.0
"""Public trees from shared rows: MPC-ID3, CDP+PMPC-ID3 (Algorithms 7 to 10) and extra trees (appendix D).

Splits and leaf labels are opened, so the tree is public. Hidden trees, which stay in shares, are in ``hidden_trees``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from veilwood.arrays import Bools, Ints
from veilwood.errors import UseError
from veilwood_secure.mpc.engine import Engine, Shared
from veilwood_secure.mpc.round_batching import run_in_lockstep
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.circuits import argmax, maximum
from veilwood_secure.protocols.hidden_forest import assign_rows_to_trees, select_tree_rows
from veilwood_secure.protocols.records import Domain, SharedRows


@dataclass(frozen=True)
class PlainTree:
    """Plaintext multiway tree: the feature of each node, level by level, and the class of each leaf.

    A node that splits on feature f has ``sizes[f]`` branches. The nodes of the next level are the branches of the
    current level, in order.
    """

    splits: tuple[Ints, ...]
    leaves: Ints
    sizes: tuple[int, ...]

    def leaf_indices(self, codes: Ints) -> Ints:
        """Return the index of the leaf of each row."""
        node = np.zeros(len(codes), np.int64)
        for feature in self.splits:
            branches = np.array(self.sizes)[feature]
            first = np.cumsum(branches) - branches
            node = first[node] + codes[np.arange(len(codes)), feature[node]]
        return node

    def predict(self, codes: Ints) -> Ints:
        """Return the class of each row."""
        return self.leaves[self.leaf_indices(codes)]


@dataclass(frozen=True)
class PendingLevel:
    """A level of a public tree whose splits are to be selected."""

    depth: int
    unused_features: Bools  # (m, nodes): features not yet used on the path to a node
    scores: Callable[[Engine], Shared]  # (m, nodes): the max operator plus 1, or 0 if the feature was used


SelectFeatures = Callable[[Engine, PendingLevel], Ints]
"""Selects the feature of each node of a level and opens it."""

SelectLabels = Callable[[Engine, Shared], Ints]
"""Selects the class of each leaf from shared class counts, shape (u, leaves), and opens it."""


def grow_public_tree(
    engine: Engine,
    records: SharedRows,
    domain: Domain,
    depth: int,
    select_features: SelectFeatures,
    select_labels: SelectLabels,
) -> PlainTree:
    """Train a public tree level by level, with all nodes of a level in the same communication rounds.

    Nothing is opened except by ``select_features`` and ``select_labels``. A node has one branch per value of its
    feature: since features are public, no dummy branches are needed.
    """
    if not 1 <= depth <= domain.n_features:
        raise UseError(f"depth={depth} must be between 1 and the number of features, {domain.n_features}.")
    m, w, u, n = domain.n_features, domain.width, domain.n_classes, records.n_rows
    sizes = np.array(domain.sizes)
    cells = engine.mul(records.features.reshape(1, m, w, n), records.classes.reshape(u, 1, 1, n))
    counts = cells.sum(axis=3).reshape(u, m, w, 1)
    rows_in: Shared | None = None  # (nodes, n); None for the root, which has all rows
    free = np.ones((m, 1), bool)
    splits: list[Ints] = []
    parent, feature, value = np.zeros((3, 0), np.int64)  # class counts of the nodes of a level below the root
    for level in range(depth):
        if level:
            branch = records.features[feature, value]
            rows_in = branch if rows_in is None else engine.mul(rows_in[parent], branch)
            counts = engine.matmul(cells.reshape(u * m * w, n), rows_in.transpose()).reshape(u, m, w, -1)
        waiting = PendingLevel(level, free, _score_function(counts, free))
        chosen = select_features(engine, waiting)
        splits.append(chosen)
        parent = np.repeat(np.arange(len(chosen)), sizes[chosen])
        feature = chosen[parent]
        value = np.arange(len(parent)) - np.repeat(np.cumsum(sizes[chosen]) - sizes[chosen], sizes[chosen])
        free = free[:, parent] & (np.arange(m)[:, None] != feature)
    totals = counts[:, feature, value, parent]  # class counts of the leaves, taken from the last table
    return PlainTree(tuple(splits), select_labels(engine, totals), domain.sizes)


def _score_function(counts: Shared, free: Bools) -> Callable[[Engine], Shared]:
    def compute_scores(engine: Engine) -> Shared:
        return (maximum(engine, counts).sum(axis=1) + 1) * free.astype(np.int64)

    return compute_scores


# Selection of features


def select_best_features(engine: Engine, level: PendingLevel) -> Ints:
    """Open the feature with the largest score (MPC-ID3). Not private."""
    return _open_index(engine, argmax(engine, level.scores(engine)))


def noisy_max_selector(scale: Fraction) -> SelectFeatures:
    """Return a noisy-max selector with geometric noise. A level's loss is score range / scale (proofs/secure.md)."""

    def select_features(engine: Engine, level: PendingLevel) -> Ints:
        drawn = noise.geometric(engine, scale, level.unused_features.shape)
        return _open_index(
            engine, argmax(engine, level.scores(engine) + drawn * level.unused_features.astype(np.int64))
        )

    return select_features


def random_selector(rng: np.random.Generator) -> SelectFeatures:
    """Return a selector of uniformly random unused features, from public randomness (extra trees, appendix D)."""

    def select_features(engine: Engine, level: PendingLevel) -> Ints:
        return np.asarray(np.where(level.unused_features, rng.random(level.unused_features.shape), -1.0).argmax(axis=0))

    return select_features


# Labels of leaves


def select_best_labels(engine: Engine, totals: Shared) -> Ints:
    """Open the most frequent class. Not private."""
    return _open_index(engine, argmax(engine, totals))


def noisy_count_labeller(scale: Fraction) -> SelectLabels:
    """Return a labeller that opens counts with discrete Laplace noise and compares them in plaintext (Algorithm 9)."""

    def select_labels(engine: Engine, totals: Shared) -> Ints:
        return np.asarray(engine.open(totals + noise.discrete_laplace(engine, scale, totals.shape)).argmax(axis=0))

    return select_labels


def noisy_max_labeller(scale: Fraction) -> SelectLabels:
    """Return a noisy-max labeller that opens only the winners."""

    def select_labels(engine: Engine, totals: Shared) -> Ints:
        return _open_index(engine, argmax(engine, totals + noise.geometric(engine, scale, totals.shape)))

    return select_labels


def _open_index(engine: Engine, one_hot: Shared) -> Ints:
    """Open the index of the 1 along the first axis."""
    index = np.arange(one_hot.shape[0]).reshape(-1, *[1] * (len(one_hot.shape) - 1))
    return engine.open((one_hot * index).sum(axis=0))


# Forests


def grow_public_forest(
    engine: Engine,
    records: SharedRows,
    domain: Domain,
    depth: int,
    selection_rules: Sequence[tuple[SelectFeatures, SelectLabels]],
) -> list[PlainTree]:
    """Train one tree per selection rule in the same communication rounds; several trees use disjoint rows."""
    if len(selection_rules) == 1:
        return [grow_public_tree(engine, records, domain, depth, *selection_rules[0])]
    tree_of_row = assign_rows_to_trees(engine, records.n_rows, len(selection_rules))

    def grow_tree(tree: int, lane: Engine) -> PlainTree:
        return grow_public_tree(
            lane, select_tree_rows(records, tree_of_row, tree), domain, depth, *selection_rules[tree]
        )

    return run_in_lockstep(engine, [partial(grow_tree, tree) for tree in range(len(selection_rules))])


def grow_extra_trees(
    engine: Engine,
    records: SharedRows,
    domain: Domain,
    *,
    depth: int,
    n_trees: int,
    leaf_scale: Fraction,
    random_state: int | None = None,
) -> list[PlainTree]:
    """Train trees with random features on disjoint rows; leaf labels are selected by noisy max and opened.

    Notes
    -----
    Guarantee

    The structure comes from public randomness. A row changes one count of one leaf by one, so the privacy loss of all
    trees together is 1/leaf_scale under add-remove, and twice that under replace-one (proofs/secure.md, attacked by
    reproductions/tests/mpc/test_plain.py).
    """
    seeds = np.random.SeedSequence(random_state).spawn(n_trees)
    return grow_public_forest(
        engine, records, domain, depth,
        [(random_selector(np.random.default_rng(seed)), noisy_max_labeller(leaf_scale)) for seed in seeds],
    )  # fmt: skip


def open_exponential_selection(engine: Engine, scores: Shared, epsilon: Fraction, allowed: Ints) -> Ints:
    """Select as `noise.select_exponential` and open the index, by binary search: log2(candidates) comparisons."""
    running = noise.cumulative_weights(engine, scores, epsilon, allowed)
    mark = noise.draw_threshold(engine, running[-1])
    columns = np.arange(scores.shape[1])
    low, high = np.zeros(len(columns), np.int64), np.full(len(columns), scores.shape[0] - 1)
    while (low < high).any():
        middle = (low + high) // 2
        left = engine.open(engine.is_negative(mark - running[middle, columns] * (1 << noise.COIN_BITS))) == 1
        low, high = np.where(left | (low == high), low, middle + 1), np.where(left, middle, high)
    return low


def exponential_selector(epsilon: Fraction) -> SelectFeatures:
    """Return the paper's selector of splits (Algorithm 8)."""

    def select_features(engine: Engine, level: PendingLevel) -> Ints:
        return open_exponential_selection(engine, level.scores(engine), epsilon, level.unused_features.astype(np.int64))

    return select_features


def exponential_labeller(epsilon: Fraction) -> SelectLabels:
    """Return the paper's labeller of leaves (Algorithm 10)."""

    def select_labels(engine: Engine, totals: Shared) -> Ints:
        return open_exponential_selection(engine, totals, epsilon, np.ones(totals.shape, np.int64))

    return select_labels
