# SPDX-License-Identifier: Apache-2.0
"""How much each column does, from released values alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import veilwood as vw
from veilwood.forests.adaptive.private_forest import PrivateForestModel


def test_effects_count_by_their_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3)
    forest = vw.PrivateForestClassifier(schema, random_state=0).fit(np.full((40, 3), 0.5), ["no", "yes"] * 20)
    main = [SimpleNamespace(column="x1", strength=3.0), SimpleNamespace(column="x0", strength=1.0)]
    monkeypatch.setattr(PrivateForestModel, "explain", lambda self: SimpleNamespace(main=main))
    assert list(forest.feature_names_in_) == ["x0", "x1", "x2"]
    assert forest.feature_importances_.tolist() == pytest.approx([0.1, 0.9, 0.0])
    main.clear()
    assert forest.feature_importances_.tolist() == [0.0, 0.0, 0.0]


def test_the_column_that_sets_classes_apart_counts_most() -> None:
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
    X = np.random.default_rng(0).random((2000, 2))
    forest = vw.RandomTreesClassifier(schema, epsilon=1e6, n_estimators=20, max_depth=3, random_state=0)
    found = forest.fit(X, np.where(X[:, 1] > 0.5, "yes", "no")).feature_importances_
    assert found.sum() == pytest.approx(1.0)
    assert found[1] > 0.8
