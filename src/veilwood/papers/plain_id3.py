# SPDX-License-Identifier: Apache-2.0
"""Plaintext twins of the secure protocols: the same trees from the same rows and noise, computed in the open.

They are written for clarity, share no code with the protocols but the form of a tree, and give the same integers:
tests compare them, and accuracy is measured on them. Nothing here is private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from veilwood.secure.protocols.public_tree import PlainTree

Ints = NDArray[np.int64]
Choice = Callable[[int, Ints], Ints]
"""Chooses at all nodes of a level: (level, scores of shape (nodes, candidates)) -> the place chosen at each node."""

USED = -1
"""Score of a feature that was used above; it loses against every other score."""


def first_largest(level: int, scores: Ints) -> Ints:
    """Choose the largest score, the first of equals: no noise."""
    return np.asarray(scores.argmax(axis=1))


def noisy_largest(noise: Sequence[Ints | None]) -> Choice:
    """Return the choice that adds given noise, one array of shape (candidates, nodes) a level, to the scores."""

    def choose(level: int, scores: Ints) -> Ints:
        extra = noise[level]
        noisy = scores if extra is None else scores + extra.T
        return np.asarray(np.where(scores == USED, np.iinfo(np.int64).min, noisy).argmax(axis=1))

    return choose


def grow(
    codes: Ints, target: Ints, *, sizes: Sequence[int], n_classes: int, depth: int, split: Choice, label: Choice
) -> PlainTree:
    """Train a tree: ``split`` chooses by the max operator of features, ``label`` by the class counts of leaves.

    ``sizes`` says how many branches a split on each feature has: the common width in a hidden tree. Rows of class -1
    are padding. ``label`` is called with level ``depth``.
    """
    kept = target >= 0
    codes, target = codes[kept], target[kept]
    branches = np.array(sizes)
    node, used = np.zeros(len(codes), np.int64), np.zeros((1, len(sizes)), bool)
    splits = []
    for level in range(depth):
        scores = np.full(used.shape, USED)
        for feature, size in enumerate(sizes):
            cell = (node * size + codes[:, feature]) * n_classes + target
            counts = np.bincount(cell, minlength=used.shape[0] * size * n_classes).reshape(-1, size, n_classes)
            # Rows that are of the most frequent class of their value (equation 1 of the paper).
            scores[:, feature] = counts.max(axis=2).sum(axis=1)
        chosen = split(level, np.where(used, USED, scores))
        splits.append(chosen)
        first = np.cumsum(branches[chosen]) - branches[chosen]
        node = first[node] + codes[np.arange(len(codes)), chosen[node]]
        used[np.arange(len(chosen)), chosen] = True
        used = np.repeat(used, branches[chosen], axis=0)
    leaves = np.bincount(node * n_classes + target, minlength=len(used) * n_classes).reshape(-1, n_classes)
    return PlainTree(tuple(splits), label(depth, leaves), tuple(sizes))


def vote(trees: Sequence[PlainTree], codes: Ints, n_classes: int) -> Ints:
    """Return the class with the most votes for each row, the first of equals."""
    votes = np.zeros((len(codes), n_classes), np.int64)
    for tree in trees:
        votes[np.arange(len(codes)), tree.predict(codes)] += 1
    return np.asarray(votes.argmax(axis=1))
