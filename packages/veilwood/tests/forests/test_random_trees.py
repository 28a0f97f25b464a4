# SPDX-License-Identifier: Apache-2.0
"""Random trees: declared rows, automatic size, one pass."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.errors import ParameterError, UseError
from veilwood_testing.errors import rejects
from veilwood_testing.small_forests import CAR

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning"),
    pytest.mark.usefixtures("cached_strategies"),
]


def test_rows_that_are_read_once_need_a_declared_number() -> None:
    forest = vw.RandomTreesClassifier(CAR.schema, random_state=0)
    with rejects(UseError, raised_in="AutoSized.make_count"):
        forest.partial_fit(CAR.X, CAR.y)
    declared = clone(forest).set_params(n_rows=2000).partial_fit(CAR.X[:900], CAR.y[:900])
    declared.partial_fit(CAR.X[900:], CAR.y[900:]).release()
    assert declared.privacy_.epsilon == 1


def test_a_delta_is_used_where_the_number_of_rows_is_declared() -> None:
    forest = vw.RandomTreesClassifier(CAR.schema, epsilon=1.0, delta=1e-3, random_state=0)
    assert forest.plan().loss.delta == 0
    assert "delta" in forest.plan().notes
    pure, both = (vw.RandomTreesClassifier(CAR.schema, n_rows=10**5, delta=d, n_estimators=64, random_state=0).plan()
                  for d in (0.0, 1e-3))  # fmt: skip
    assert both.expected_leaf_mse < pure.expected_leaf_mse


@pytest.mark.parametrize("n_rows", [0, -1, 2.5, "many", True, 10**16])
def test_a_number_of_rows_that_is_none_is_refused(n_rows: Any) -> None:
    with rejects(ParameterError, name="n_rows"):
        vw.RandomTreesClassifier(CAR.schema, n_rows=n_rows).plan()


def test_without_noise_random_trees_grow_where_rows_are(tmp_path: Path) -> None:
    forest = vw.RandomTreesClassifier(CAR.schema, epsilon=math.inf, random_state=0)
    plan = forest.plan()
    fitted = forest.fit(CAR.X, CAR.y, plan=plan)
    assert fitted.score(CAR.X, CAR.y) > 0.99
    assert fitted.forest_.depth < plan.choices["max_depth"]  # all rows are told apart
    assert fitted.leaf_counts_.sum() == len(CAR.X) * fitted.forest_.n_trees
    vw.save(fitted, tmp_path / "model")
    loaded = vw.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(CAR.X), fitted.predict_proba(CAR.X))


def test_without_noise_labels_by_chance_do_not_count() -> None:
    """Half of all labels are coins: a leaf of one row must not repeat its coin."""
    rng = np.random.default_rng(0)
    points = rng.random((800, 2))
    labels = np.where(rng.random(800) < 0.5, points[:, 0] > 0.5, rng.random(800) < 0.5).astype(int)
    schema = vw.Schema.numeric((0, 1), classes=[0, 1], n_features=2)
    forest = vw.RandomTreesClassifier(schema, epsilon=math.inf, random_state=0).fit(points[:400], labels[:400])
    truth = (points[400:, 0] > 0.5).astype(int)
    assert forest.score(points[400:], truth) > 0.93  # .91 where what is above always counts as one row


def test_without_noise_few_rows_in_a_corner_of_their_bounds_are_told_apart() -> None:
    """Complete trees would need a leaf for each of the cells that all these rows share."""
    schema = vw.Schema.numeric((0, 1000), target_bounds=(0, 1), n_features=2)
    corner = np.random.default_rng(0).random((300, 2))
    forest = vw.RandomTreesRegressor(schema, epsilon=math.inf, random_state=0).fit(corner[:200], corner[:200, 0])
    assert forest.score(corner[200:], corner[200:, 0]) > 0.7
    complete = vw.RandomTreesRegressor(schema, epsilon=math.inf, n_rows=200, random_state=0)
    assert complete.fit(corner[:200], corner[:200, 0]).score(corner[200:], corner[200:, 0]) < 0.5
