# SPDX-License-Identifier: Apache-2.0
"""Pictures of how evenly trees divide rows: shares of left children and of leaves (DiPriMe, Figures 3 and 4).

The shares are exact counts over the rows you pass in, so the result is not private: use public or test rows. Other
pictures are in ``plots``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veilwood.plots_models import Figure
from veilwood.trees.counting import route
from veilwood.trees.forest import LEAF

if TYPE_CHECKING:
    from veilwood.estimators.base import BaseForest

__all__ = ["leaf_occupancy", "leaf_shares", "left_shares", "split_balance"]

BranchShares = NDArray[np.float64]


def leaf_shares(forest: BaseForest, X: Any) -> BranchShares:
    """Return the share of the rows ``X`` in each leaf of its tree, for all trees of a fitted forest.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> tree = vw.MedianForestClassifier(car.schema, epsilon=float("inf"), n_estimators=1, max_depth=1, random_state=0)
    >>> bool(leaf_shares(tree.fit(car.X, car.y), car.X).min() >= 0.25)  # one of four values at least on each side
    True
    """
    leaves = route(forest.forest_, forest.encode(X))
    return np.bincount(leaves.ravel(), minlength=forest.forest_.n_leaves) / len(leaves)


def left_shares(forest: BaseForest, X: Any) -> BranchShares:
    """Return, for each inner node of binary trees that any row reaches, the share of its rows that go left."""
    trees = forest.forest_
    in_node = trees.add_up(leaf_shares(forest, X))
    inner = np.flatnonzero((trees.feature != LEAF) & (in_node > 0))
    return np.asarray(in_node[trees.child[inner]] / in_node[inner])


def split_balance(shares: Mapping[str, BranchShares]) -> Figure:
    """Draw the distribution of left shares, by name of method (Figure 4); a half is perfect balance.

    Examples
    --------
    >>> split_balance({"median": np.array([0.5, 0.45]), "random": np.array([0.1, 0.9])}).axes[0].get_xlabel()
    'share of a node’s rows in its left child'
    """
    return _histograms(shares, np.linspace(0, 1, 21), "share of a node’s rows in its left child", "share of nodes")


def leaf_occupancy(shares: Mapping[str, BranchShares]) -> Figure:
    """Draw the distribution of leaf shares, by name of method (Figure 3); empty leaves are in the first bin.

    Examples
    --------
    >>> leaf_occupancy({"median": np.array([0.25, 0.25]), "random": np.array([0.0, 0.5])}).axes[0].get_ylabel()
    'share of leaves'
    """
    top = max(float(values.max()) for values in shares.values())
    return _histograms(shares, np.linspace(0, top, 21), "share of the rows in a leaf", "share of leaves")


def _histograms(shares: Mapping[str, BranchShares], bins: BranchShares, across: str, up: str) -> Figure:
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, values in shares.items():
        heights, _ = np.histogram(values, bins)
        axes.stairs(heights / len(values), bins, label=name)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.legend()
    return figure
