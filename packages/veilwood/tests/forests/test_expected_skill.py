# SPDX-License-Identifier: Apache-2.0
"""Expected skill of a size, and expected quality of a plan from public benchmarks."""

from __future__ import annotations

import itertools
import json
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.forests import expected_skill as quality
from veilwood.forests.expected_skill import (
    DECAY,
    ForestSize,
    estimate_skill,
    expected_skill,
    holdout_cost,
    load_weights,
    size_features,
)

FOREST: dict[str, Any] = {"n_features": 6, "max_features": 6, "n_ensembles": 1, "n_estimators": 64, "branches": 3.5}


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
        common, values = rng.normal(scale=cell_std, size=shape), np.zeros(shape)
        for _ in range(ensembles):
            features = rng.choice(len(shape), width, replace=False)
            own = rng.normal(scale=cell_std, size=shape)
            for _ in range(trees // ensembles):
                path = rng.choice(features, depth, replace=False)
                free = tuple(axis for axis in range(len(shape)) if axis not in path)
                alone = rng.normal(scale=cell_std, size=shape) if noise == "tree" else own
                seen = truth + (common if noise == "rows" else alone)
                values += seen.mean(axis=free, keepdims=True) / trees
        values -= values.mean()
        agreement += float(np.mean(values * truth)) / draws
        energy += float(np.mean(values**2)) / draws
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


def test_the_weights_are_those_of_the_facts_and_say_how_good_they_are() -> None:
    result = load_weights()
    assert set(result["weights"]) == set(size_features(ForestSize("RandomTrees", 1, 1, 100, 50.0, 1.0, 0.5)))
    assert result["rank_correlation"] > result["by_the_prior_alone"]["rank_correlation"] > 0
    assert result["best_above_median"] > result["by_the_prior_alone"]["best_above_median"] > 0
    assert len(result["tables"]) > 10
    assert 0 < result["error"] < 1


MEASURED: dict[str, Any] = json.loads(files("veilwood.forests").joinpath("expected_private_forest.json").read_text())


def test_results_are_of_the_development_suite_at_all_budgets() -> None:
    tables = MEASURED["tables"]
    assert MEASURED["suite"] == "development"
    assert len(tables) >= 25
    assert {table["task"] for table in tables.values()} == {"classification", "regression"}
    assert all(len(table["skill"]) == 7 for table in tables.values())
    assert all(-1 <= skill <= 1.05 for table in tables.values() for skill in table["skill"].values())


def test_a_range_is_that_of_tables_alike() -> None:
    result = estimate_skill("classification", 10_000, 10, 1.0)
    near = {
        name: [
            skill for epsilon, skill in table["skill"].items()
            if 1_000 / 3 <= table["rows"] * float(epsilon) / table["columns"] <= 3_000
        ]
        for name, table in MEASURED["tables"].items() if table["task"] == "classification"
    }  # fmt: skip
    means = [np.mean(skills) for skills in near.values() if skills]
    assert result.n_tables == len(means) >= quality.MIN_TABLES
    assert (result.low, result.high) == pytest.approx(np.percentile(means, quality.PERCENTILES))
    assert result.side == 0


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_beyond_all_tables_the_nearest_are_told_and_that_they_are_beyond(task: Any) -> None:
    few, many = estimate_skill(task, 1, 100, 1e-3), estimate_skill(task, 10**12, 2, 10.0)
    assert (few.side, many.side) == (-1, 1)
    assert few.n_tables >= quality.MIN_TABLES
    assert few.high < many.low + 0.5
    assert "all had more rows times epsilon per column" in str(few)
    assert "all had fewer rows times epsilon per column" in str(many)
    assert "-0.0" not in str(few)


def plan_of(**params: Any) -> vw.Plan:
    car = vw.datasets.car()
    return vw.PrivateForestClassifier(car.schema, random_state=0, **params).plan()


@pytest.mark.parametrize(("k", "adjacency", "factor"), [(10, "add-remove", 10), (10, "replace-one", 20)])
def test_what_to_expect_is_that_of_one_row(k: int, adjacency: str, factor: int) -> None:
    many = plan_of(epsilon=2.0, n_rows=1728, privacy_unit=k, adjacency=adjacency)
    alone = plan_of(epsilon=2.0 / factor, n_rows=1728)
    assert (many.notes, many.expected) == (alone.notes, alone.expected)
    assert many.expected != plan_of(epsilon=2.0, n_rows=1728).expected


def test_plans_say_what_to_expect() -> None:
    known, unknown = plan_of(epsilon=1.0, n_rows=1728).expected, plan_of(epsilon=1.0).expected
    assert list(known) == ["at 1,728 rows"]
    assert len(unknown) == 3
    for text in (*known.values(), *unknown.values()):
        assert "similar public tables" in text or "nearest" in text
    assert plan_of(epsilon=float("inf"), n_rows=1728).expected == {}
    plan = vw.PrivateForestClassifier(vw.datasets.car().schema, epsilon=1.0, n_rows=1728).plan()
    assert f"Expect {plan.expected['at 1,728 rows']}" in plan.explain()


def test_a_holdout_costs_more_of_a_small_table() -> None:
    small, large = (holdout_cost("classification", n, 10, 1.0, 0.3) for n in (1_000, 1_000_000))
    assert 0 <= large <= small < 0.3
    assert holdout_cost("classification", 1_000, 10, 1.0, 0.5) >= small
