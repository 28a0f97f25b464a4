# SPDX-License-Identifier: Apache-2.0
"""How much each column does in a fitted model, computed from released values alone: free."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.trees.forest import LEAF, Forest

__all__ = ["importances"]


def importances(model: Any, names: list[str]) -> NDArray[np.float64]:
    """Return the importance of each column; they add up to 1, or are all 0 where nothing was learned.

    Where a model explains itself, the mean square of a column's main effect; otherwise how much the splits on a column
    set the noisy counts of its branches apart (Gini). Noise alone gives every column some importance.
    """
    if hasattr(model, "explain"):
        strength = {main.column: main.strength**2 for main in model.explain().main}
        found = np.array([strength.get(name, 0.0) for name in names])
    else:
        found = _by_splits(model.forest, np.maximum(model.leaf_counts, 0).astype(float), len(names))
    total = found.sum()
    return found / total if total > 0 else found


def _by_splits(forest: Forest, counts: NDArray[np.float64], n_columns: int) -> NDArray[np.float64]:
    """Add up, for each column, by how much its splits lower the impurity of their branches, weighted by rows."""
    sums = forest.add_up(counts)
    rows = np.maximum(sums.sum(axis=1), 1e-300)
    impurity = rows - (sums**2).sum(axis=1) / rows  # rows times Gini
    below = np.zeros(forest.n_nodes)
    inner = np.flatnonzero(forest.level > 0)
    np.add.at(below, forest.parent[inner], impurity[inner])
    splits = np.flatnonzero(forest.feature != LEAF)
    gained = np.maximum(impurity - below, 0.0)[splits]
    return np.asarray(np.bincount(forest.feature[splits], gained, minlength=n_columns), np.float64)
