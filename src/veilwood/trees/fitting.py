# SPDX-License-Identifier: Apache-2.0
"""Ordinary trees, fitted to public rows of small whole numbers: scikit-learn's, in compiled loops where numba is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

Floats = NDArray[np.float64]
Groups = NDArray[np.unsignedinteger[Any]]


class TreeKind(NamedTuple):
    """How a tree is grown."""

    by_chance: bool
    """Whether thresholds are drawn by chance, or the best ones."""
    max_features: float
    """The part of the columns that is tried at a node."""
    min_samples_leaf: int
    """The fewest rows in a leaf."""


class FittedTree(NamedTuple):
    """A tree as scikit-learn writes one: in a node, values up to the threshold go left; leaves have no children."""

    feature: NDArray[Any]
    threshold: Floats
    left: NDArray[Any]
    right: NDArray[Any]
    shares: Floats

    @classmethod
    def of(
        cls, kind: TreeKind, X: Groups, y: NDArray[Any], n_classes: int, seed: int, most_rows: int, *, fast: bool
    ) -> FittedTree:
        """Grow one from rows drawn with replacement; from all, if they are few, where thresholds are chance."""
        times = np.ones(len(y), np.int64)
        if not kind.by_chance or len(y) > most_rows:
            drawn = np.random.default_rng(seed).integers(0, len(y), min(len(y), most_rows))
            row, times = np.unique(drawn, return_counts=True)
            X, y = X[row], y[row]
        if fast:
            from veilwood.trees import fitting_kernels

            first = np.random.RandomState(seed).randint(0, 2**31 - 1)  # as scikit-learn starts its own generator
            return cls(
                *fitting_kernels.grow_tree(
                    np.ascontiguousarray(X.T), y, times, int(X.max()) + 1, n_classes,
                    max(1, int(kind.max_features * X.shape[1])), kind.min_samples_leaf, kind.by_chance, first,
                )
            )  # fmt: skip
        model = (ExtraTreeClassifier if kind.by_chance else DecisionTreeClassifier)(
            max_features=kind.max_features, min_samples_leaf=kind.min_samples_leaf, random_state=seed
        )
        tree = model.fit(X, y, sample_weight=times).tree_
        shares = np.zeros((tree.node_count, n_classes))
        shares[:, model.classes_] = tree.value[:, 0, :]
        return cls(tree.feature, tree.threshold, tree.children_left, tree.children_right, shares)

    def ask(self, X: Groups, *, fast: bool) -> Floats:
        """Return the shares of classes in the leaf of each row."""
        if fast:
            from veilwood.trees import fitting_kernels

            told: Floats = fitting_kernels.ask_tree(*self, np.ascontiguousarray(X.T))
            return told
        node = np.zeros(len(X), np.int64)
        while (inner := self.left[node] >= 0).any():
            at = node[inner]
            on_left = X[inner, self.feature[at]] <= self.threshold[at]
            node[inner] = np.where(on_left, self.left[at], self.right[at])
        return self.shares[node]

    @property
    def by_level(self) -> NDArray[np.int64]:
        """All nodes, level by level, siblings side by side."""
        levels = [np.zeros(1, np.int64)]
        while len(levels[-1]):
            inner = levels[-1][self.left[levels[-1]] >= 0]
            levels.append(np.stack([self.left[inner], self.right[inner]], axis=1).ravel())
        return np.concatenate(levels)
