# SPDX-License-Identifier: Apache-2.0
"""Hidden trees with two branches: a node asks whether a number is below a threshold, or a category is one value.

Columns keep their own widths, one below the other, and nothing is filled up; a level has twice the nodes of the one
above, however many values the columns have. Trees with a branch for each value are in ``hidden_tree``.

| letter | meaning |
|---|---|
| n, u | rows, classes, as in ``records`` |
| S | values of all columns together |
| q | cuts: candidates of a node |
| W | nodes of a level: 2 to the power of its depth |
| g | numbers kept for each cell: the u class counts, or for two classes their difference alone |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilwood.data.schema import Schema
from veilwood.secure.mpc.engine import Engine, Shared, concatenate, stack
from veilwood.secure.protocols.choose import absolute, argmax, maximum
from veilwood.secure.protocols.hidden_tree import HiddenTree, Recipe, TreeNoise, labels_of
from veilwood.secure.protocols.records import Domain


@dataclass(frozen=True)
class Cuts:
    """The questions that a node can ask: public, from the schema.

    >>> Cuts((3, 2, 4), (True, False, False)).count
    7
    """

    sizes: tuple[int, ...]
    ordered: tuple[bool, ...]

    @classmethod
    def of(cls, schema: Schema) -> Cuts:
        """Numbers in bins have thresholds, categories have values."""
        return cls(Domain.of(schema).sizes, tuple(column.kind == "numeric" for column in schema.features))

    @property
    def count(self) -> int:
        """How many there are: a column of two values, and each threshold, has one side only."""
        return sum(
            size - 1 if number or size == 2 else size for size, number in zip(self.sizes, self.ordered, strict=True)
        )

    def left(self, features: Shared) -> Shared:
        """Return, from one-hot features (S, n), which rows each cut sends to the left, shape (q, n); no message."""
        parts, start = [], 0
        for size, number in zip(self.sizes, self.ordered, strict=True):
            own = features[start : start + size]
            start += size
            parts.append(own.cumsum(axis=0)[:-1] if number else own[:-1] if size == 2 else own)
        return concatenate(parts)


def grow_binary(
    engine: Engine, features: Shared, classes: Shared, cuts: Cuts, recipe: Recipe, added: TreeNoise
) -> HiddenTree:
    """Train a hidden binary tree level by level, all nodes of a level in the same rounds.

    Notes
    -----
    Guarantee

    A row is in one node of a level and on one side of each cut, so that the score of a cut, the rows of the most
    frequent class of both sides, grows by 0 or 1: what ``hidden_tree.grow`` costs (proofs/secure.md, attacked by
    tests/secure/protocols/test_binary_tree.py).
    """
    n, two = features.shape[-1], recipe.domain.n_classes == 2
    kept = (classes[0] - classes[1]).reshape(1, n) if two else classes
    g = kept.shape[0]
    left = cuts.left(features)
    q = left.shape[0]
    cells = engine.mul(left.reshape(q, 1, n), kept.reshape(1, g, n)).reshape(q * g, n)
    splits: list[Shared] = []
    rows_in: Shared | None = None
    for level in range(recipe.depth):
        nodes, extra = recipe.nodes(level), added.splits[level]
        if rows_in is None:
            counts, totals = cells.sum(axis=1).reshape(q, g, 1), kept.sum(axis=1).reshape(g, 1)
        else:
            both = engine.matmul(concatenate([cells, kept]), rows_in.transpose())
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
            rows_in = _descend(engine, left, chosen, rows_in)
    # What the leaves count stands in the last table already: the sides of the chosen cut.
    first = engine.dot(counts, chosen.reshape(q, 1, -1), axis=0)  # (g, W)
    leaves = stack([first, totals - first], axis=2).reshape(g, -1)
    return HiddenTree(tuple(splits), labels_of(engine, leaves, added.leaves))


def _descend(engine: Engine, left: Shared, chosen: Shared, rows_in: Shared | None) -> Shared:
    """Return which rows are in which node of the next level, left before right, shape (2 W, n)."""
    goes_left = engine.matmul(chosen.transpose(), left)  # (W, n)
    nodes, n = goes_left.shape
    if rows_in is None:
        return stack([goes_left, 1 - goes_left], axis=1).reshape(2 * nodes, n)
    there = engine.mul(rows_in, goes_left)
    return stack([there, rows_in - there], axis=1).reshape(2 * nodes, n)


def binary_votes(engine: Engine, tree: HiddenTree, cuts: Cuts, queries: Shared) -> Shared:
    """Return the class of each query as one-hot, shape (u, queries), from one-hot features (S, queries)."""
    left, rows_in = cuts.left(queries), None
    for chosen in tree.splits:
        rows_in = _descend(engine, left, chosen, rows_in)
    assert rows_in is not None
    return engine.matmul(tree.leaves, rows_in)


def narrow(one_hot: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return one-hot features without the values that fill them up: (m, w, n) to (S, n).

    >>> narrow(np.arange(6).reshape(2, 3, 1), (3, 1)).ravel().tolist()
    [0, 1, 2, 3]
    """
    return np.concatenate([own[:size] for own, size in zip(one_hot, sizes, strict=True)])
