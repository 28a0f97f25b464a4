# SPDX-License-Identifier: Apache-2.0
"""Tuning without data: the score against a simulation of what it claims, the search, its result and bad input."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.cli import main as cli
from veilwood.errors import DomainTooLargeError, VeilwoodError
from veilwood.forests.skill import DECAY, Setting, expected_skill, facts, learned

CAR = vw.datasets.car().schema
QUICK: dict[str, Any] = {"n_ensembles": [1], "max_features": [6], "n_estimators": [16]}
FOREST: dict[str, Any] = {"n_features": 6, "max_features": 6, "n_ensembles": 1, "n_estimators": 64, "branches": 3.5}


# -- the score -------------------------------------------------------------------------------------------------


def component(table: NDArray[np.float64], kept: tuple[int, ...]) -> NDArray[np.float64]:
    """The part of a table that is an interaction of exactly the features ``kept``."""
    for axis in range(table.ndim):
        mean = table.mean(axis=axis, keepdims=True)
        table = table - mean if axis in kept else np.broadcast_to(mean, table.shape)
    return table


def draw_truth(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """Class shares as the prior has them: variance 1, each order of interactions at half the one before."""
    d = len(shape)
    weights = DECAY ** np.arange(1, d + 1) / (DECAY ** np.arange(1, d + 1)).sum()
    truth = np.zeros(shape)
    for j in range(1, d + 1):
        sets = list(itertools.combinations(range(d), j))
        for kept in sets:
            part = component(rng.normal(size=shape), kept)
            truth += part * np.sqrt(weights[j - 1] / len(sets) / np.mean(part**2))
    return truth


def simulated_skill(
    *, width: int, ensembles: int, trees: int, depth: int, leaf_noise: float, noise: str, draws: int = 300
) -> float:
    """Squared correlation of truth and forest on a table of 4 features of 3 values, with white noise on its cells."""
    shape, rng = (3, 3, 3, 3), np.random.default_rng(7)
    cell_std = np.sqrt(leaf_noise * 3 ** (len(shape) - depth))
    agreement, energy = 0.0, 0.0
    for _ in range(draws):
        truth = draw_truth(shape, rng)
        common, said = rng.normal(scale=cell_std, size=shape), np.zeros(shape)
        for _ in range(ensembles):
            features = rng.choice(len(shape), width, replace=False)
            own = rng.normal(scale=cell_std, size=shape)
            for _ in range(trees // ensembles):
                path = rng.choice(features, depth, replace=False)
                free = tuple(axis for axis in range(len(shape)) if axis not in path)
                alone = rng.normal(scale=cell_std, size=shape) if noise == "tree" else own
                seen = truth + (common if noise == "rows" else alone)
                said += seen.mean(axis=free, keepdims=True) / trees
        said -= said.mean()
        agreement += float(np.mean(said * truth)) / draws
        energy += float(np.mean(said**2)) / draws
    return float(agreement**2 / energy)


@pytest.mark.parametrize("noise", ["ensemble", "tree", "rows"])
@pytest.mark.parametrize(
    ("width", "ensembles", "trees", "depth"), [(4, 1, 2, 2), (4, 1, 12, 2), (3, 3, 12, 2), (3, 2, 8, 1), (2, 3, 12, 2)]
)
def test_score_is_the_correlation_it_claims_to_be(
    width: int, ensembles: int, trees: int, depth: int, noise: str
) -> None:
    leaf_noise = 0.7
    claimed = expected_skill(
        n_features=4,
        max_features=width,
        n_ensembles=ensembles,
        n_estimators=trees,
        max_depth=depth,
        branches=3.0,
        rows_per_leaf=1 / leaf_noise if noise == "rows" else np.inf,
        noise_to_signal=0.0 if noise == "rows" else leaf_noise,
        shared_noise=noise == "ensemble",
    )
    measured = simulated_skill(
        width=width, ensembles=ensembles, trees=trees, depth=depth, leaf_noise=leaf_noise, noise=noise
    )
    assert claimed == pytest.approx(measured, rel=0.06)


def test_score_is_a_squared_correlation() -> None:
    for depth, ensembles, keeps in itertools.product((1, 3, 6), (1, 4), (None, 0.5)):
        settings = {**FOREST, "max_depth": depth, "n_ensembles": ensembles, "split_keeps": keeps}
        scores = [
            expected_skill(**settings, rows_per_leaf=rows, noise_to_signal=noise)
            for rows, noise in [(np.inf, 0.0), (1e3, 0.0), (1e3, 1.0), (1e3, 1e6)]
        ]
        assert 0 < scores[3] < scores[2] < scores[1] < scores[0] <= 1


def test_a_full_tree_without_noise_knows_everything() -> None:
    whole = {**FOREST, "max_depth": 6, "n_estimators": 1}
    assert expected_skill(**whole, rows_per_leaf=np.inf, noise_to_signal=0.0) == pytest.approx(1.0)


def test_more_trees_of_shared_noise_never_hurt() -> None:
    few, many = (
        expected_skill(
            **{**FOREST, "n_estimators": trees}, max_depth=2, rows_per_leaf=50, noise_to_signal=0.5, shared_noise=True
        )
        for trees in (2, 200)
    )
    assert many > few


# -- the search ------------------------------------------------------------------------------------------------


def best_depth(n: int, epsilon: float) -> int:
    found = vw.tune(CAR, vw.MatrixForestClassifier, n=n, epsilon=epsilon, grid={**QUICK, "max_depth": [1, 3, 5]})
    return int(found.best.max_depth)


def test_depth_grows_with_rows_and_epsilon() -> None:
    # Expected error alone could not tell: with the identity strategy its sum does not depend on the depth.
    assert best_depth(300, 0.1) == 1
    assert best_depth(300, 100.0) > 1
    assert best_depth(10**7, 0.1) > 1


def test_result_is_what_the_plan_says() -> None:
    found = vw.tune(CAR, vw.MatrixForestClassifier, n=1000, epsilon=0.5, grid={**QUICK, "max_depth": [2, 7, 3]})
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
    assert "Best of 2 settings" in repr(found)
    assert "Nothing was spent" in str(found)


def test_an_instance_brings_its_parameters_along_and_spends_nothing() -> None:
    ledger = vw.MemoryLedger(1.0)
    mine = vw.RandomTreesClassifier(adjacency="replace-one", leaves="empirical-bayes", random_state=5, ledger=ledger)
    grid = {"n_estimators": [4], "max_depth": [3]}
    found = vw.tune(CAR, [mine], n=1000, epsilon=1.0, grid=grid)
    plain = vw.tune(CAR, vw.RandomTreesClassifier, n=1000, epsilon=1.0, grid=grid)
    assert (found.best.leaves, found.best.random_state, found.best.ledger) == ("empirical-bayes", 5, ledger)
    assert found.settings[0].noise_std == pytest.approx(2 * plain.settings[0].noise_std, rel=0.01)
    assert found.settings[0].skill < plain.settings[0].skill
    assert mine.schema is None
    assert ledger.entries() == []


def test_disjoint_trees_hold_fewer_rows_with_less_noise() -> None:
    grid = {"n_estimators": [8], "max_depth": [2]}
    shared, disjoint = (
        vw.tune(CAR, vw.RandomTreesClassifier(trees=trees), n=1000, epsilon=1.0, grid=grid).settings[0]
        for trees in ("shared", "disjoint")
    )
    assert disjoint.rows_per_leaf == pytest.approx(shared.rows_per_leaf / 8)
    assert disjoint.noise_std == pytest.approx(shared.noise_std / 8, rel=0.05)


def test_gaussian_noise_is_planned_too() -> None:
    grid = {"n_estimators": [100], "max_depth": [1]}
    pure, gauss = (
        vw.tune(CAR, vw.RandomTreesClassifier, n=1000, epsilon=1.0, delta=delta, grid=grid) for delta in (0.0, 1e-6)
    )
    assert gauss.best.delta == gauss.delta == 1e-6
    assert pure.settings[0].noise_std > 2 * gauss.settings[0].noise_std


def test_default_search_covers_the_families_of_the_task() -> None:
    flat = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=3)
    found = vw.tune(flat, n=10_000, epsilon=1.0)
    assert {s.estimator for s in found.settings} == {
        "RandomTreesRegressor",
        "MedianForestRegressor",
        "GreedyForestRegressor",
    }
    x = np.random.default_rng(0).random((200, 3))
    assert found.best.fit(x, x[:, 0] * 10).predict(x).shape == (200,)
    two = vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=2)
    grid = {"n_estimators": [8], "max_depth": [1, 2]}
    both = vw.tune(two, n=1000, epsilon=1.0, grid=grid)
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
    found = vw.tune(CAR, vw.RandomTreesClassifier, n=100, epsilon=1.0, grid=grid)
    assert (len(found.settings), found.skipped) == (1, 1)
    assert "1 skipped" in str(found)
    limit = 1
    with pytest.raises(DomainTooLargeError, match="each of the 2 settings"):
        vw.tune(CAR, vw.RandomTreesClassifier, n=100, epsilon=1.0, grid=grid)


def test_plot_shows_every_setting(tmp_path: Path) -> None:
    grid = {"n_ensembles": [1], "max_features": [2], "n_estimators": [2, 4], "max_depth": [1, 2]}
    found = vw.tune(CAR, n=1000, epsilon=1.0, grid=grid)
    figure = found.plot()
    shown = sum(np.asarray(points.get_offsets()).shape[0] for points in figure.axes[0].collections)
    assert shown == len(found.settings) == 16
    figure.savefig(tmp_path / "skill.png")
    silent = vw.tune(CAR, vw.RandomTreesClassifier, n=1000, epsilon=np.inf, grid={"n_estimators": [2]})
    assert silent.plot().axes[0].get_xscale() == "linear"  # without noise there is nothing to take a logarithm of


# -- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, -5, 2.5, True, None, "many"])
def test_n_must_be_a_count(n: Any) -> None:
    with pytest.raises(VeilwoodError, match="whole number of at least 1"):
        vw.tune(CAR, n=n, epsilon=1.0)


@pytest.mark.parametrize(
    ("estimators", "grid", "message"),
    [
        ([], None, "no estimator"),
        (vw.PrivateForestClassifier, None, "PrivateForestClassifier cannot be tuned without data"),
        ("random-trees", None, "'random-trees' cannot be tuned"),
        (vw.MatrixForestPredictor, None, "its noise follows the queries of each batch"),
        (vw.RandomTreesRegressor, None, "does regression"),
        (vw.RandomTreesClassifier, {"max_depth": []}, "no possible setting"),
        (vw.MatrixForestClassifier, {"max_features": [7]}, "no possible setting for 6 features"),
        (vw.MatrixForestClassifier, {"max_depht": [2]}, "max_depth"),
        (vw.RandomTreesClassifier, {"max_depth": [0]}, "whole numbers of at least 1"),
        (vw.RandomTreesClassifier, {"max_depth": 3}, "must be a list"),
        (vw.RandomTreesClassifier, {"max_depth": "3"}, "must be a list"),
    ],
)
def test_bad_searches_are_refused(estimators: Any, grid: Any, message: str) -> None:
    with pytest.raises(VeilwoodError, match=message):
        vw.tune(CAR, estimators, n=100, epsilon=1.0, grid=grid)


@pytest.mark.parametrize("epsilon", [0, -1, "a lot"])
def test_epsilon_must_be_positive(epsilon: Any) -> None:
    with pytest.raises(VeilwoodError, match="epsilon"):
        vw.tune(CAR, vw.RandomTreesClassifier, n=100, epsilon=epsilon)


def test_a_schema_is_needed() -> None:
    with pytest.raises(vw.UndeclaredSchemaError):
        vw.tune(None, n=100, epsilon=1.0)


# -- the command line ------------------------------------------------------------------------------------------


def test_help_is_short_too_and_shells_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "-h"]) == 0
    assert "Example" in capsys.readouterr().out
    asked = {"_VEILWOOD_COMPLETE": "complete_bash", "COMP_WORDS": "veilwood eva", "COMP_CWORD": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "veilwood"], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert run.stdout.split() == ["evaluate"]


# -- what the score has learned ----------------------------------------------------------------------------------


def test_the_weights_are_those_of_the_facts_and_say_how_good_they_are() -> None:
    told = learned()
    assert set(told["weights"]) == set(facts(Setting("RandomTrees", 1, 1, 100, 50.0, 1.0, 0.5)))
    assert told["rank_correlation"] > told["by_the_prior_alone"]["rank_correlation"] > 0
    assert told["best_above_median"] > told["by_the_prior_alone"]["best_above_median"] > 0
    assert len(told["tables"]) > 10
    assert 0 < told["error"] < 1


def test_beyond_what_was_measured_it_says_so_and_nothing_runs_away() -> None:
    grid = {"n_estimators": [4], "max_depth": [2, 4]}
    few, many, more = (
        vw.tune(CAR, vw.RandomTreesClassifier, n=n, epsilon=1.0, grid=grid) for n in (2000, 10**6, 10**9)
    )
    assert "correlation was" in str(few)
    assert "no public table that was tried" in str(many)
    gaps = [setting.score for setting in many.settings], [setting.score for setting in more.settings]
    np.testing.assert_allclose(*gaps, atol=0.05)
