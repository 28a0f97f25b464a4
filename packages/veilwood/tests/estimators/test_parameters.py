# SPDX-License-Identifier: Apache-2.0
"""Estimators by name, and from plans."""

from __future__ import annotations

from dataclasses import replace

import veilwood as vw
from veilwood.errors import ParameterError, PlanError
from veilwood.estimators.parameters import estimator_by_name, estimator_from_plan
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_testing.errors import rejects

CAR = vw.datasets.car()


def test_names_of_families_and_of_classes() -> None:
    assert estimator_by_name("random-trees", "classification") is vw.RandomTreesClassifier
    assert estimator_by_name("random-trees", "regression") is vw.RandomTreesRegressor
    assert estimator_by_name("matrix-forest", "classification") is vw.MatrixForestClassifier
    assert estimator_by_name("MatrixForestPredictor", "classification") is vw.MatrixForestPredictor
    for wrong in ("RandomTreesRegressor", "os", "__all__", ""):
        with rejects(ParameterError, name="estimator"):
            estimator_by_name(wrong, "classification")


def test_a_plan_is_carried_out_by_the_estimator_that_it_names() -> None:
    plan = vw.RandomTreesClassifier(CAR.schema, epsilon=0.5, n_estimators=2, random_state=7).plan()
    made = estimator_from_plan(CAR.schema, plan, MemoryLedger())
    assert made.plan().fingerprint() == plan.fingerprint()
    assert made.fit(CAR.X, CAR.y, plan=plan).privacy_.plan_hash == plan.fingerprint()
    with rejects(PlanError, raised_in="estimator_from_plan"):
        estimator_from_plan(CAR.schema, replace(plan, estimator="Unknown"))
    with rejects(PlanError, raised_in="estimator_from_plan"):
        estimator_from_plan(CAR.schema, replace(plan, parameters={**plan.parameters, "unknown": 1}))
