# SPDX-License-Identifier: Apache-2.0
"""GreedyForest as an estimator: its parameters, classes and numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood_testing.greedy_cases import SCHEMA
from veilwood_testing.laws import prefer_zcdp

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("quality", "best"), ("selection", "loud"), ("leaf_update", "none"), ("branching", "none"), ("split_budget", 2),
     ("candidates", 0), ("max_depth", 0), ("voting", "loud")],
)  # fmt: skip
def test_bad_parameters_name_themselves(parameter: str, value: Any) -> None:
    with pytest.raises(vw.VeilwoodError, match=parameter):
        vw.GreedyForestClassifier(SCHEMA).set_params(**{parameter: value}).plan()


def test_labels_cannot_be_shrunk() -> None:
    with pytest.raises(vw.VeilwoodError, match="leaf_update"):
        vw.GreedyForestClassifier(SCHEMA, leaf_update="exponential", leaves="empirical-bayes").plan()


def test_id3_uses_a_feature_once_on_a_path() -> None:
    car = vw.datasets.car()
    forest = vw.GreedyForestClassifier(car.schema, epsilon=math.inf, n_estimators=1, max_depth=6).fit(car.X, car.y)
    assert forest.forest_.n_leaves == 1728
    assert forest.score(car.X, car.y) == 1.0


def test_regression_and_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_zcdp(monkeypatch)
    schema = vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=3)
    rng = np.random.default_rng(0)
    X = rng.random((5000, 3))
    y = X[:, 2] ** 2
    for branching in ("multiway", "binary"):
        forest = vw.GreedyForestRegressor(
            schema, epsilon=5.0, delta=1e-6, n_estimators=3, max_depth=2, branching=branching, random_state=0
        ).fit(X, y)
        assert forest.privacy_.delta == 1e-6
        assert forest.score(X, y) > 0.6
