# SPDX-License-Identifier: Apache-2.0
"""Leaves with noisy counts: sizes that are chosen, told and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.forests.noisy_leaves import POOLED
from veilwood.privacy.entropy import seeded_for_tests
from veilwood_audit.model_files import check_file
from veilwood_testing.small_forests import CAR, CLASSIFIERS

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning"),
    pytest.mark.usefixtures("cached_strategies"),
]


@pytest.mark.parametrize("Forest", CLASSIFIERS)
def test_a_size_is_chosen_told_and_kept(Forest: Any, tmp_path: Path) -> None:
    forest = Forest(CAR.schema, epsilon=2.0, random_state=0)
    planned = forest.plan()
    assert [step.name for step in planned.steps] == [POOLED]
    assert "rows" in planned.explain()
    fitted = forest.fit(CAR.X, CAR.y)
    plan = fitted.plan_
    assert plan.steps[0].name == POOLED
    assert plan.layout.trees == plan.choices["n_estimators"]
    assert "n_estimators=" in plan.explain()
    assert sum(step.loss.epsilon or 0 for step in plan.steps) == 2
    assert (fitted.privacy_.is_private, fitted.privacy_.epsilon) == (True, 2.0)
    assert fitted.predict_proba(CAR.X).min() > 0
    vw.save(fitted, tmp_path / "model")
    loaded = vw.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(CAR.X), fitted.predict_proba(CAR.X))
    assert all(check.holds for check in check_file(tmp_path / "model"))


@pytest.mark.parametrize("Forest", CLASSIFIERS)
def test_with_declared_rows_all_is_planned_before_the_data(Forest: Any, tmp_path: Path) -> None:
    forest = Forest(CAR.schema, epsilon=1.0, n_rows=1728, random_state=0)
    plan = forest.plan()
    assert plan.steps[0].name == POOLED
    assert len(plan.steps) > 1
    plan.save(tmp_path / "plan.json")
    carried_out = clone(forest).fit(CAR.X, CAR.y, plan=tmp_path / "plan.json")
    assert carried_out.plan_ == plan
    small, large = (clone(forest).set_params(epsilon=epsilon).plan() for epsilon in (0.1, 10.0))
    assert small.n_leaves < large.n_leaves


@pytest.mark.parametrize("Forest", CLASSIFIERS)
def test_under_much_noise_the_majority_is_predicted(Forest: Any) -> None:
    seeds = range(1 if Forest is vw.MatrixForestClassifier else 5)  # which searches for seconds
    with seeded_for_tests(2):
        scores = [
            Forest(CAR.schema, epsilon=0.1, random_state=seed).fit(CAR.X, CAR.y).score(CAR.X, CAR.y) for seed in seeds
        ]
    assert np.mean(scores) > 0.70 - 0.05
