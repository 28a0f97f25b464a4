# SPDX-License-Identifier: Apache-2.0
"""Greedy forests: their plans, and what they hold."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
import veilwood_audit as audit
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood_testing.greedy_cases import SCHEMA
from veilwood_testing.laws import prefer_zcdp

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize("leaf_update", ["laplace", "exponential"])
@pytest.mark.parametrize("branching", ["multiway", "binary"])
@pytest.mark.parametrize("trees", ["disjoint", "shared"])
def test_a_plan_spends_exactly_epsilon(
    leaf_update: str, branching: str, trees: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer_zcdp(monkeypatch)
    forest = vw.GreedyForestClassifier(
        SCHEMA, epsilon=0.7, n_estimators=4, max_depth=3, leaf_update=leaf_update, branching=branching, trees=trees
    )
    plan = forest.plan()
    losses = [Fraction(step.loss.epsilon or 0) for step in plan.steps]
    assert sum(losses) == Fraction(7, 10)
    assert losses.pop() == Fraction(7, 10) * Fraction(7, 10)
    assert [b / a for a, b in pairwise(losses)] == [Fraction(3, 2)] * 2
    first = plan.steps[0].mechanism
    assert isinstance(first, PermuteAndFlip | ExponentialMechanism)
    assert first.epsilon * (4 if trees == "shared" else 1) == losses[0]
    assert clone(forest).set_params(delta=1e-6).plan().loss.delta == Fraction(1, 10**6)


def test_multiway_sizes_are_planned_and_limited() -> None:
    car = vw.datasets.car()
    plan = vw.GreedyForestClassifier(car.schema, n_estimators=2, max_depth=3).plan()
    assert plan.n_leaves == 2 * 4 * 4 * 4
    with pytest.raises(vw.VeilwoodError, match="max_depth=7"):
        vw.GreedyForestClassifier(car.schema, n_estimators=10, max_depth=7).plan()
    wide = vw.Schema.from_dict({
        "name": "wide", "task": "classification", "target": "y",
        "columns": [
            *({"name": f"c{i}", "kind": "categorical", "values": [str(v) for v in range(300)]} for i in range(4)),
            {"name": "y", "kind": "categorical", "values": ["a", "b"]},
        ],
    })  # fmt: skip
    with pytest.raises(vw.DomainTooLargeError, match="max_depth=4"):
        vw.GreedyForestClassifier(wide, n_estimators=10, max_depth=4).plan()


def test_a_fitted_forest_holds_nothing_private_and_charges_once() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((1613, 3))
    y = np.where(X[:, 0] > 0.5, "yes", "no")
    for leaf_update in ("laplace", "exponential"):
        ledger = MemoryLedger()  # without a budget, which would refuse seeded noise
        forest = vw.GreedyForestClassifier(SCHEMA, max_depth=2, leaf_update=leaf_update, ledger=ledger, random_state=0)
        with seeded_for_tests(0):  # by chance, a cut or a noisy count could be n
            forest.fit(X, y)
        assert audit.find_leaks(vars(forest), {"n": 1613, "rows": X[:20].ravel(), "column": X[:20, 0]}) == []
        assert [entry.loss.epsilon for entry in ledger.entries()] == [1]
    assert (forest.leaf_counts_.sum(axis=1) == 1).all()  # labels only


def test_candidates_are_drawn_at_random() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((500, 3))
    forest = vw.GreedyForestClassifier(
        SCHEMA, epsilon=math.inf, n_estimators=60, max_depth=1, candidates=1, random_state=0
    ).fit(X, np.where(X[:, 0] > 0.5, "yes", "no"))
    assert set(forest.forest_.feature[forest.forest_.roots]) == {0, 1, 2}
