# SPDX-License-Identifier: Apache-2.0
"""Predictions, probabilities and log-odds of one model agree."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import veilwood as vw
from veilwood.privacy import accountant as spending


@pytest.mark.parametrize("classes", [["no", "yes"], ["a", "b", "c"]])
def test_classes_probabilities_and_log_odds_agree(classes: list[str]) -> None:
    schema = vw.Schema.numeric((0, 1), classes=classes, n_features=2)
    X = np.random.default_rng(0).random((300, 2))
    y = np.array(classes, dtype=object)[np.minimum((X[:, 0] * len(classes)).astype(int), len(classes) - 1)]
    forest = vw.RandomTreesClassifier(schema, epsilon=50.0, n_estimators=8, max_depth=3, random_state=0).fit(X, y)
    shares, labels = forest.predict_proba(X), forest.predict(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(forest.predict_log_proba(X)), shares)
    chosen, walked = forest._predict_both(X)
    np.testing.assert_array_equal(chosen, labels)
    np.testing.assert_array_equal(walked, shares)
    odds = forest.decision_function(X)
    assert odds.shape == ((300,) if len(classes) == 2 else (300, 3))
    best = np.where(odds > 0, 1, 0) if len(classes) == 2 else odds.argmax(axis=1)
    clear = np.sort(shares, axis=1)[:, -1] - np.sort(shares, axis=1)[:, -2] > 1e-9
    np.testing.assert_array_equal(forest.classes_[best][clear], labels[clear])


def test_exact_scores_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending._accountant, "warned", set())
    schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    X = np.random.default_rng(0).random((200, 1))
    forest = vw.RandomTreesRegressor(schema, epsilon=100.0, n_estimators=4, max_depth=2, random_state=0)
    forest.fit(X, 10 * X[:, 0])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert forest.score(X, 10 * X[:, 0]) == forest.score(X, 10 * X[:, 0]) > 0.3
    assert ["score() is exact" in str(warning.message) for warning in told] == [True]
