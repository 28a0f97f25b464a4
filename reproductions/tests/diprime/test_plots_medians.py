# SPDX-License-Identifier: Apache-2.0
"""Pictures of how balanced trees are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood_papers.diprime.figure_3 import (
    leaf_fractions,
    left_child_fractions,
    plot_leaf_occupancy,
    plot_split_balance,
)


def test_balance_pictures_show_medians_more_balanced() -> None:
    rng = np.random.default_rng(0)
    schema = vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=3)
    X = rng.random((2000, 3)) ** 2
    y = np.where(X[:, 0] > 0.3, "a", "b")
    common: dict[str, Any] = {"epsilon": 5.0, "n_estimators": 5, "max_depth": 4, "random_state": 0}
    median = vw.MedianForestClassifier(schema, **common).fit(X, y)
    random = vw.RandomTreesClassifier(schema, **common).fit(X, y)
    lefts = {"median": left_child_fractions(median, X), "random": left_child_fractions(random, X)}
    off = {name: np.abs(shares - 0.5).mean() for name, shares in lefts.items()}
    assert off["median"] < off["random"]
    occupied = {"median": leaf_fractions(median, X), "random": leaf_fractions(random, X)}
    for shares in occupied.values():
        assert shares.sum() == pytest.approx(5)
    assert np.std(occupied["median"]) < np.std(occupied["random"])
    assert len(plot_split_balance(lefts).axes) == len(plot_leaf_occupancy(occupied).axes) == 1
