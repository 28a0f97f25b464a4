# SPDX-License-Identifier: Apache-2.0
"""Tuning without data: the score against a simulation of what it claims, the search, its result and bad input."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.cli import main as cli
from veilwood.errors import DomainTooLargeError, ParameterError, VeilwoodError
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood_testing.errors import rejects

CAR = vw.datasets.car().schema
QUICK: dict[str, Any] = {"n_ensembles": [1], "max_features": [6], "n_estimators": [16]}


# -- the score -------------------------------------------------------------------------------------------------


# -- the search ------------------------------------------------------------------------------------------------


def best_depth(n: int, epsilon: float) -> int:
    found = vw.tune(CAR, vw.MatrixForestClassifier, n_rows=n, epsilon=epsilon, grid={**QUICK, "max_depth": [1, 3, 5]})
    return int(found.best.max_depth)


def test_depth_grows_with_rows_and_epsilon() -> None:
    # Expected error alone could not tell: with the identity strategy its sum does not depend on the depth.
    assert best_depth(300, 0.1) == 1
    assert best_depth(300, 100.0) > 1
    assert best_depth(10**7, 0.1) > 1


def test_result_is_what_the_plan_says() -> None:
    found = vw.tune(CAR, vw.MatrixForestClassifier, n_rows=1000, epsilon=0.5, grid={**QUICK, "max_depth": [2, 7, 3]})
    assert len(found.settings) == 2  # 7 is deeper than there are features
    assert list(found.table["score"]) == sorted(found.table["score"], reverse=True)
    plan, first = found.best.plan(), found.settings[0]
    assert plan.loss.epsilon == 0.5
    assert plan.n_leaves == first.n_leaves == found.table["leaves"][0]
    assert first.noise_std == pytest.approx(plan.expected_leaf_mse**0.5)
    assert first.rows_per_leaf == pytest.approx(1000 * 16 / plan.n_leaves)
    assert found.best.get_params()["max_depth"] == first.parameters["max_depth"]
    assert found.best is not found.best
    assert not hasattr(found.best, "plan_")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.n = 5  # type: ignore[misc]
    assert "best of 2 settings" in repr(found)
    assert "Nothing was spent" in str(found)


def test_the_result_names_whom_its_plans_protect() -> None:
    """The unit that the schema declares, or else that of the instance: in the object, the text and the JSON."""
    declared = vw.Schema.from_dict({**CAR.to_dict(), "privacy_unit": 5})
    grid = {"max_depth": [2], "n_estimators": [4]}
    for schema, estimator, neighbours in (
        (CAR, vw.RandomTreesClassifier, Neighbours()),
        (declared, vw.RandomTreesClassifier, Neighbours(unit=Rows(5))),
        (CAR, vw.RandomTreesClassifier(adjacency="replace-one"), Neighbours("replace-one")),
    ):
        found = vw.tune(schema, estimator, n_rows=1000, epsilon=1.0, grid=grid)
        assert found.neighbours == neighbours == found.best.plan().neighbours
        assert str(neighbours) in str(found)
        told = found.to_dict()
        assert (told["privacy_unit"], told["adjacency"]) == (str(neighbours.unit), neighbours.adjacency)


def test_an_instance_brings_its_parameters_along_and_spends_nothing() -> None:
    ledger = vw.MemoryLedger(1.0)
    own = vw.RandomTreesClassifier(adjacency="replace-one", leaves="empirical-bayes", random_state=5, ledger=ledger)
    grid = {"n_estimators": [4], "max_depth": [3]}
    found = vw.tune(CAR, [own], n_rows=1000, epsilon=1.0, grid=grid)
    plain = vw.tune(CAR, vw.RandomTreesClassifier, n_rows=1000, epsilon=1.0, grid=grid)
    assert (found.best.leaves, found.best.random_state, found.best.ledger) == ("empirical-bayes", 5, ledger)
    assert found.settings[0].noise_std == pytest.approx(2 * plain.settings[0].noise_std, rel=0.01)
    assert found.settings[0].skill < plain.settings[0].skill
    assert own.schema is None
    assert ledger.entries() == []


def test_disjoint_trees_hold_fewer_rows_with_less_noise() -> None:
    grid = {"n_estimators": [8], "max_depth": [2]}
    shared, disjoint = (
        vw.tune(CAR, vw.RandomTreesClassifier(trees=trees), n_rows=1000, epsilon=1.0, grid=grid).settings[0]
        for trees in ("shared", "disjoint")
    )
    assert disjoint.rows_per_leaf == pytest.approx(shared.rows_per_leaf / 8)
    assert disjoint.noise_std == pytest.approx(shared.noise_std / 8, rel=0.05)


def test_gaussian_noise_is_planned_too() -> None:
    grid = {"n_estimators": [100], "max_depth": [1]}
    pure, gauss = (
        vw.tune(CAR, vw.RandomTreesClassifier, n_rows=1000, epsilon=1.0, delta=delta, grid=grid)
        for delta in (0.0, 1e-6)
    )
    assert gauss.best.delta == gauss.delta == 1e-6
    assert pure.settings[0].noise_std > 2 * gauss.settings[0].noise_std


def test_default_search_covers_the_families_of_the_task() -> None:
    flat = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=3)
    found = vw.tune(flat, n_rows=10_000, epsilon=1.0)
    assert {s.estimator for s in found.settings} == {
        "RandomTreesRegressor",
        "MedianForestRegressor",
        "GreedyForestRegressor",
    }
    x = np.random.default_rng(0).random((200, 3))
    assert found.best.fit(x, x[:, 0] * 10).predict(x).shape == (200,)
    two = vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=2)
    grid = {"n_estimators": [8], "max_depth": [1, 2]}
    both = vw.tune(two, n_rows=1000, epsilon=1.0, grid=grid)
    assert {s.estimator for s in both.settings} == {
        f"{name}Classifier" for name in ("MatrixForest", "RandomTrees", "MedianForest", "GreedyForest")
    }
    assert not both.table["leaves"].isna().any()
    assert "NA" not in str(both)


def test_too_large_tables_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = vw.RandomTreesClassifier.plan

    def refuse(self: Any) -> Any:
        if self.max_depth > limit:
            raise DomainTooLargeError("too large")
        return plan(self)

    monkeypatch.setattr(vw.RandomTreesClassifier, "plan", refuse)
    grid = {"n_estimators": [2], "max_depth": [2, 3]}
    limit = 2
    found = vw.tune(CAR, vw.RandomTreesClassifier, n_rows=100, epsilon=1.0, grid=grid)
    assert (len(found.settings), found.skipped) == (1, 1)
    assert "1 skipped" in str(found)
    limit = 1
    with rejects(DomainTooLargeError, raised_in="tune"):
        vw.tune(CAR, vw.RandomTreesClassifier, n_rows=100, epsilon=1.0, grid=grid)


def test_plot_shows_every_setting(tmp_path: Path) -> None:
    grid = {"n_ensembles": [1], "max_features": [2], "n_estimators": [2, 4], "max_depth": [1, 2]}
    found = vw.tune(CAR, n_rows=1000, epsilon=1.0, grid=grid)
    figure = found.plot()
    values = sum(np.asarray(points.get_offsets()).shape[0] for points in figure.axes[0].collections)
    assert values == len(found.settings) == 16
    figure.savefig(tmp_path / "skill.png")
    silent = vw.tune(CAR, vw.RandomTreesClassifier, n_rows=1000, epsilon=np.inf, grid={"n_estimators": [2]})
    assert silent.plot().axes[0].get_xscale() == "linear"  # without noise there is nothing to take a logarithm of


# -- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, -5, 2.5, True, None, "many"])
def test_n_must_be_a_count(n: Any) -> None:
    with rejects(ParameterError, name="n_rows"):
        vw.tune(CAR, n_rows=n, epsilon=1.0)


@pytest.mark.parametrize(
    ("estimators", "grid", "message"),
    [
        ([], None, "must not be empty"),
        (vw.PrivateForestClassifier, None, "PrivateForestClassifier cannot be tuned without data"),
        ("random-trees", None, "'random-trees' cannot be tuned"),
        (vw.MatrixForestPredictor, None, "its noise depends on the queries of each batch"),
        (vw.RandomTreesRegressor, None, "regression"),
        (vw.RandomTreesClassifier, {"max_depth": []}, "no possible setting"),
        (vw.MatrixForestClassifier, {"max_features": [7]}, "no possible setting for 6 features"),
        (vw.MatrixForestClassifier, {"max_depht": [2]}, "max_depth"),
        (vw.RandomTreesClassifier, {"max_depth": [0]}, "must be a list of integers >= 1"),
        (vw.RandomTreesClassifier, {"max_depth": 3}, "must be a list"),
        (vw.RandomTreesClassifier, {"max_depth": "3"}, "must be a list"),
    ],
)
def test_bad_searches_are_refused(estimators: Any, grid: Any, message: str) -> None:
    with pytest.raises(VeilwoodError, match=message):
        vw.tune(CAR, estimators, n_rows=100, epsilon=1.0, grid=grid)


@pytest.mark.parametrize("epsilon", [0, -1, "a lot"])
def test_epsilon_must_be_positive(epsilon: Any) -> None:
    with pytest.raises(VeilwoodError, match="epsilon"):
        vw.tune(CAR, vw.RandomTreesClassifier, n_rows=100, epsilon=epsilon)


def test_a_schema_is_needed() -> None:
    with pytest.raises(vw.UndeclaredSchemaError):
        vw.tune(None, n_rows=100, epsilon=1.0)


# -- the command line ------------------------------------------------------------------------------------------


def test_help_is_short_too_and_shells_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "-h"]) == 0
    assert "Example" in capsys.readouterr().out
    request = {"_VEILWOOD_COMPLETE": "complete_bash", "COMP_WORDS": "veilwood eva", "COMP_CWORD": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "veilwood"], env=os.environ | request, capture_output=True, text=True, check=False
    )
    assert run.stdout.split() == ["evaluate"]


# -- what the score has learned ----------------------------------------------------------------------------------


def test_beyond_what_was_measured_it_says_so_and_nothing_runs_away() -> None:
    grid = {"n_estimators": [4], "max_depth": [2, 4]}
    few, many, more = (
        vw.tune(CAR, vw.RandomTreesClassifier, n_rows=n, epsilon=1.0, grid=grid) for n in (2000, 10**6, 10**9)
    )
    assert "their correlation with the true ranks was" in str(few)
    assert "no public table in the benchmark" in str(many)
    gaps = [setting.score for setting in many.settings], [setting.score for setting in more.settings]
    np.testing.assert_allclose(*gaps, atol=0.05)
