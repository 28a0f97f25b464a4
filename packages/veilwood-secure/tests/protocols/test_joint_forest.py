# SPDX-License-Identifier: Apache-2.0
"""Ordinary estimators taught by owners and servers: equal to a fit of one table, private as planned."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.arrays import Ints
from veilwood.errors import BudgetExceededError, ParameterError, PlanError, UseError, VeilwoodError
from veilwood.models.file import load, save
from veilwood.privacy import entropy
from veilwood.privacy.certificate import Assumption
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood_audit.noninterference import find_leaks
from veilwood_audit.statistics import epsilon_lower_bound
from veilwood_papers.not_private.as_published import RandomTreesAsPrintedNotPrivate
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.joint_forest import (
    ADAPTIVE_DELTA,
    RING,
    ServerDoor,
    SharedSums,
    joint_design,
    joint_plan,
    run_server,
)
from veilwood_secure.protocols.secret_array import SecretArray
from veilwood_testing.errors import rejects
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.parties import CAR, OWNERS, Threads

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

PUBLIC: dict[str, Any] = {"schema": CAR.schema, "n_estimators": 5, "max_depth": 2, "random_state": 0}

FORESTS = [
    vw.RandomTreesClassifier(**PUBLIC),
    vw.MatrixForestClassifier(**PUBLIC),
    vw.MatrixForestClassifier(**PUBLIC, mechanism="laplace"),
]


@pytest.mark.parametrize("forest", FORESTS, ids=["random", "matrix", "matrix-laplace"])
def test_owners_together_teach_what_one_table_teaches(forest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, shape: np.zeros(shape, np.int64))
    monkeypatch.setattr(noise, "dealt_laplace", lambda engine, scale, shape: engine.constant(np.zeros(shape, np.int64)))
    alone, answers = forest.fit(CAR.X, CAR.y).leaf_counts_, forest.predict(CAR.X[:50])
    together = forest.fit(Threads(OWNERS))
    assert (together.leaf_counts_ == alone).all()
    assert (together.predict(CAR.X[:50]) == answers).all()


@pytest.mark.parametrize("law_", ["dealt", "sampled"])
def test_the_model_is_an_ordinary_one_with_a_certificate_that_names_the_servers(law_: Any, tmp_path: Path) -> None:
    forest = vw.RandomTreesClassifier(CAR.schema, epsilon=1.0, n_estimators=4, max_depth=3, random_state=0)
    ledger = MemoryLedger()
    forest.set_params(ledger=ledger).fit(Threads(OWNERS, law_))
    result = forest.privacy_
    assert result.is_private
    assert result.epsilon == 1.0
    assert result.delta is not None
    assert (result.delta == 0) == (law_ == "dealt")
    assert result.delta < 1e-15
    assert Assumption.NO_COLLUSION.value in result.assumptions
    assert [entry.loss.epsilon for entry in ledger.entries()] == [1]
    assert forest.classes_.tolist() == list(CAR.schema.classes)
    exact = vw.RandomTreesClassifier(CAR.schema, epsilon=float("inf"), n_estimators=4, max_depth=3, random_state=0)
    assert find_leaks(forest, {"counts": exact.fit(CAR.X, CAR.y).leaf_counts_}) == []
    save(forest.set_params(ledger=None), tmp_path / "forest")
    assert (load(tmp_path / "forest").leaf_counts_ == forest.leaf_counts_).all()


def test_the_ledger_is_charged_before_the_servers_are_asked() -> None:
    class Down(Threads):
        def release(self, estimator: Any, plan: Plan) -> Ints:
            assert [entry.loss.epsilon for entry in ledger.entries()] == [1]
            raise VeilwoodError("server 2 is down")

    ledger = MemoryLedger(1.5)
    forest = vw.RandomTreesClassifier(CAR.schema, n_estimators=2, max_depth=2, random_state=0, ledger=ledger)
    with pytest.raises(VeilwoodError, match="server 2 is down"):
        forest.fit(Down(OWNERS))
    assert not hasattr(forest, "leaf_counts_")
    parties = Threads(OWNERS)
    with pytest.raises(BudgetExceededError):
        forest.fit(parties)  # what was reserved stays spent
    assert parties.n_requests == 0


@pytest.mark.parametrize("other", [{"epsilon": 2.0}, {"privacy_unit": 2}, {"adjacency": "replace-one"}], ids=str)
def test_what_was_charged_for_others_or_at_another_price_is_not_carried_out(other: dict[str, Any]) -> None:
    forest = vw.RandomTreesClassifier(**PUBLIC)
    charged = joint_plan(forest, "sampled")
    assert joint_design(forest, charged).plan.neighbours == charged.neighbours
    engine = PlainEngine(RING)
    source = SharedSums.from_collector(engine, lambda shape: pytest.fail("sums were asked for"))
    with rejects(PlanError, raised_in="joint_design"):
        run_server(engine, clone(forest).set_params(**other), charged, "sampled", source)


def counted(epsilon: Fraction, law_: Any) -> tuple[Ints, Ints]:
    """Noisy counts of many cells that hold one row, and of as many that hold none."""
    design = joint_design(
        vw.RandomTreesClassifier(CAR.schema, epsilon=1.0, n_estimators=1, max_depth=2, random_state=0)
    )
    (step,) = design.plan.steps
    step = replace(step, loss=Loss.pure(epsilon), mechanism=DiscreteLaplace(1 / epsilon), shape=(40_000,))
    plan = replace(design.plan, loss=Loss(epsilon, ADAPTIVE_DELTA), steps=(step,))
    cells = np.repeat([1, 0], 20_000)
    with ServerDoor(plan, engine := PlainEngine(RING), law_) as door:
        noisy = door.release_counts(step, SecretArray(engine, engine.constant(cells)))
    return noisy[:20_000], noisy[20_000:]


@pytest.mark.parametrize("law_", ["dealt", "sampled"])
def test_joint_noise_keeps_its_epsilon_and_halved_noise_is_caught(law_: Any) -> None:
    with entropy.seeded_for_tests(41):
        one, none = counted(Fraction(1), law_)
        lower = epsilon_lower_bound(int((one >= 1).sum()), len(one), int((none >= 1).sum()), len(none))
        assert 0.4 < lower <= 1
        expected = 2 * exp(-1) / (1 - exp(-1)) ** 2 * (1.5 if law_ == "dealt" else 1)
        assert abs(none.var() / expected - 1) < 0.08
        one, none = counted(Fraction(2), law_)
        assert epsilon_lower_bound(int((one >= 1).sum()), len(one), int((none >= 1).sum()), len(none)) > 1.05


def test_joint_fits_refuse_what_servers_cannot_do() -> None:
    parties = Threads(OWNERS)
    good: dict[str, Any] = {"schema": CAR.schema, "n_estimators": 2, "max_depth": 2, "random_state": 0}
    refused: list[tuple[Any, str]] = [
        (
            vw.GreedyForestClassifier(
                CAR.schema, n_estimators=10, max_depth=3, random_state=0, selection="exponential"
            ),
            "noisy maxima",
        ),
        (vw.RandomTreesClassifier(**{**good, "random_state": None}), "same trees"),
        (vw.RandomTreesClassifier(**{**good, "schema": "infer"}), "declare a schema"),
        (vw.RandomTreesClassifier(**{**good, "n_estimators": 60}, delta=1e-6), "discrete Laplace"),
        (vw.PrivateForestClassifier(good["schema"], delta=1e-6, random_state=0), "discrete Laplace"),
        (vw.RandomTreesClassifier(**good, epsilon=float("inf")), "no noise"),
        (vw.RandomTreesClassifier(**good, privacy_unit={"id": "p", "at_most": 2}), "which rows of one person"),
        (RandomTreesAsPrintedNotPrivate(CAR.schema, n_estimators=2, max_depth=2, random_state=0), "not private"),
    ]
    for forest, why in refused:
        with pytest.raises(VeilwoodError, match=why):
            forest.fit(parties)
    weights: dict[str, Any]
    for weights in ({"sample_weight": [1.0]}, {"holdout_fraction": 0.5, "evaluate_epsilon": 0.1}):
        with pytest.raises(UseError):
            vw.RandomTreesClassifier(**good, max_weight=2).fit(parties, **weights)
    assert parties.n_requests == 0
    with rejects(ParameterError, name="noise_protocol"):
        Threads(OWNERS, "loud")


def test_sums_of_the_wrong_shape_are_refused() -> None:
    forest = vw.RandomTreesClassifier(CAR.schema, n_estimators=2, max_depth=2, random_state=0)
    engine, plan = PlainEngine(RING), joint_plan(forest, "dealt")
    with rejects(PlanError, raised_in="Door._admit_step"):
        run_server(
            engine, forest, plan, "dealt", SharedSums.from_collector(engine, lambda shape: engine.constant([0, 0, 0]))
        )


def test_plans_say_what_joint_noise_costs() -> None:
    forest = vw.RandomTreesClassifier(CAR.schema, n_estimators=2, max_depth=2, random_state=0)
    plan = joint_design(forest).plan
    dealt, sampled = joint_plan(forest, "dealt"), joint_plan(forest, "sampled")
    assert dealt.loss == plan.loss
    assert dealt.expected_leaf_mse == 1.5 * plan.expected_leaf_mse
    assert 0 < sampled.loss.delta < Fraction(1, 10**15)
    assert sampled.loss.epsilon == plan.loss.epsilon
