# SPDX-License-Identifier: Apache-2.0
"""Median forests: their plans, and what they hold."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from sklearn.base import clone

import veilwood as vw
import veilwood_audit as audit
from veilwood.forests.medians import VARIANTS
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_testing.laws import prefer_zcdp
from veilwood_testing.medians_cases import SCHEMAS, table

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


FORESTS: dict[str, Any] = {
    "classification": vw.MedianForestClassifier,
    "regression": vw.MedianForestRegressor,
}


@pytest.mark.parametrize("task", FORESTS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("trees", ["disjoint", "shared"])
def test_a_plan_spends_exactly_epsilon(task: str, variant: str, trees: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_zcdp(monkeypatch)
    forest = FORESTS[task](
        SCHEMAS[task], epsilon=0.7, n_estimators=4, max_depth=3, candidates=2, variant=variant, trees=trees,
        split_budget=0.4,
    )  # fmt: skip
    plan = forest.plan()
    assert sum(step.loss.epsilon for step in plan.steps) == Fraction(7, 10)
    assert plan.steps[-1].loss.epsilon == Fraction(7, 10) * Fraction(6, 10)
    per_row = 4 if trees == "shared" else 1
    for step in plan.steps[:-1]:
        choices = per_row * (2 if variant == "k-medians" and "median" in step.name else 1)
        assert step.mechanism.epsilon * choices == step.loss.epsilon
    assert plan.n_leaves == 4 * 8
    approximate = clone(forest).set_params(delta=1e-6).plan()
    assert sum(step.loss.rho for step in approximate.steps) <= approximate.loss.rho
    assert approximate.steps[-1].loss.rho == approximate.loss.rho * Fraction(6, 10)


def test_the_paper_splits_its_budget_as_we_do() -> None:
    """Section 4: epsilon_l = (1 - rho) epsilon, epsilon_s = epsilon_a = rho epsilon / (2 d)."""
    plan = vw.MedianForestRegressor(SCHEMAS["regression"], epsilon=10, n_estimators=10, max_depth=5).plan()
    assert plan.steps[-1].loss.epsilon == 5
    assert {step.loss.epsilon for step in plan.steps[:-1]} == {Fraction(1, 2)}
    assert len(plan.steps) == 11


@pytest.mark.parametrize("task", FORESTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_door_sees_every_planned_step_and_the_ledger_one_charge(
    task: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    passing = Door._admit

    def spy(door: Door, step: Any, shape: Any) -> None:
        seen.append(step.name)
        passing(door, step, shape)

    monkeypatch.setattr(Door, "_admit", spy)
    ledger = MemoryLedger(epsilon=1)
    forest = FORESTS[task](SCHEMAS[task], max_depth=3, n_estimators=3, candidates=2, variant=variant, ledger=ledger)
    forest.fit(*table(task))
    assert sorted(seen) == sorted(step.name for step in forest.plan_.steps)
    assert ledger.spent.epsilon == 1
    assert forest.privacy_.epsilon == 1.0
    assert forest.forest_.n_leaves <= forest.plan_.n_leaves
    assert forest.leaf_counts_.shape[0] == forest.forest_.n_leaves


@pytest.mark.parametrize("task", FORESTS)
def test_a_fitted_forest_holds_nothing_private(task: str) -> None:
    X, y = table(task, n=1613)
    secrets: dict[str, object] = {"n": 1613, "rows": X[:20].ravel(), "column": X[:20, 0]}
    forest = FORESTS[task](SCHEMAS[task], max_depth=3, n_estimators=3, trees="shared", random_state=0)
    with seeded_for_tests(0):  # by chance, a cut or a noisy count could be n
        forest.fit(X, y)
    assert audit.find_leaks(vars(forest), secrets) == []
    forest.kept_ = X
    assert audit.find_leaks(vars(forest), secrets)


@pytest.mark.parametrize("task", FORESTS)
def test_delta_and_no_noise_work(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_zcdp(monkeypatch)
    X, y = table(task, 2000)
    promise: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "selection": "exponential"}
    approximate = FORESTS[task](SCHEMAS[task], n_estimators=10, max_depth=2, **promise).fit(X, y)
    assert (approximate.privacy_.epsilon, approximate.privacy_.delta) == (2.0, 1e-6)
    exact = FORESTS[task](SCHEMAS[task], epsilon=math.inf, n_estimators=10, max_depth=5, trees="shared", random_state=0)
    assert exact.fit(X, y).score(X, y) > 0.9
    assert not exact.privacy_.is_private
    assert (clone(exact).fit(X, y).predict(X) == exact.predict(X)).all()
