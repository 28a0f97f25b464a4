# SPDX-License-Identifier: Apache-2.0
"""PrivateForest as an estimator: what it learns, and tables of any kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.privacy.entropy import seeded_for_tests
from veilwood_testing.clinic import TARGETS, forest_of, table_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize(
    ("task", "epsilon", "least"), [("two", 2.0, 0.85), ("three", 2.0, 0.75), ("regression", 1.0, 0.7)]
)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_it_learns(task: str, epsilon: float, least: float, delta: float) -> None:
    X, y = table_of(task, 5000)
    with seeded_for_tests(1):
        forest = forest_of(task, epsilon=epsilon, delta=delta).fit(X, y)
    assert forest.score(*table_of(task, 2000, seed=1)) > least


@pytest.mark.parametrize("task", ["two", "regression"])
@pytest.mark.parametrize("epsilon", [1.0, 30.0])  # with 30, of classes, fine cells too
def test_a_saved_forest_predicts_and_explains_the_same(task: str, epsilon: float, tmp_path: Path) -> None:
    X, y = table_of(task, 800)
    forest = forest_of(task, epsilon=epsilon).fit(X, y)
    vw.save(forest, tmp_path / "forest.veilwood")
    loaded = vw.load(tmp_path / "forest.veilwood")
    assert (loaded.predict(X) == forest.predict(X)).all()
    assert loaded.explain().to_dict() == forest.explain().to_dict()


def test_bounds_a_thousand_times_too_wide_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    x, noise = rng.lognormal(0, 1, 8000), rng.normal(0, 0.3, 8000)
    y = np.where(np.log(x) + noise > 0, "yes", "no")
    schema = vw.Schema.numeric((0, 1000.0), classes=["no", "yes"], n_features=1)
    with seeded_for_tests(1):
        forest = vw.PrivateForestClassifier(schema, epsilon=1.0, random_state=0).fit(x[:, None], y)
    assert forest.score(x[:, None], y) > 0.85


def test_many_categories_and_missing_ones() -> None:
    rng = np.random.default_rng(0)
    values = [f"v{i}" for i in range(1000)]
    place = rng.integers(0, 1000, 20_000)
    x = np.array(values, dtype=object)[place]
    x[rng.random(20_000) < 0.2] = None
    y = np.where(pd.isna(x), "yes", "no")
    schema = vw.Schema.from_dict({
        "name": "many", "task": "classification", "target": "y", "columns": [
            {"name": "x", "kind": "categorical", "values": values, "nullable": True}, TARGETS["two"] | {"name": "y"},
        ]})  # fmt: skip
    with seeded_for_tests(1):
        forest = vw.PrivateForestClassifier(schema, epsilon=1.0, random_state=0).fit(pd.DataFrame({"x": x}), y)
    missing, there = forest.predict_proba(pd.DataFrame({"x": [None, "v1"]}))
    assert missing[1] > 0.6
    assert there[1] < 0.4
