# SPDX-License-Identifier: Apache-2.0
"""How much each column does, from released values alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import veilwood as vw
from veilwood.estimators.base import compute_importances


def test_effects_count_by_their_squares() -> None:
    main = [SimpleNamespace(column="b", strength=3.0), SimpleNamespace(column="a", strength=1.0)]
    model = SimpleNamespace(explain=lambda: SimpleNamespace(main=main))
    assert compute_importances(model, ["a", "b", "c"]).tolist() == pytest.approx([0.1, 0.9, 0.0])
    nothing = SimpleNamespace(explain=lambda: SimpleNamespace(main=[]))
    assert compute_importances(nothing, ["a", "b"]).tolist() == [0.0, 0.0]


def test_the_column_that_sets_classes_apart_counts_most() -> None:
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
    X = np.random.default_rng(0).random((2000, 2))
    forest = vw.RandomTreesClassifier(schema, epsilon=1e6, n_estimators=20, max_depth=3, random_state=0)
    found = forest.fit(X, np.where(X[:, 1] > 0.5, "yes", "no")).feature_importances_
    assert found.sum() == pytest.approx(1.0)
    assert found[1] > 0.8
