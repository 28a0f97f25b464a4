# SPDX-License-Identifier: Apache-2.0
"""Measurements: noise is never above a baseline, and forged decisions are rejected."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from veilwood.errors import MechanismError, PlanError
from veilwood.forests.matrix.marginals import Mixture
from veilwood.forests.matrix.measurement import (
    alternative_errors,
    ensemble_errors,
    plan_measurement,
    split_budget,
    strategy_from_json,
    strategy_to_json,
)
from veilwood.forests.matrix.strategies import Marginals, expected_error, noise_variance
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteGaussian
from veilwood_testing.errors import rejects
from veilwood_testing.matrix_forests import NOISES, leaves_of, sample_mixtures


def never_worse(seed: int, trees: int) -> None:
    """Optimised noise against every baseline, on a random forest: in the plan of one ensemble, and of several."""
    rng = np.random.default_rng(seed)
    budget = Fraction(int(rng.integers(1, 40)), 10)
    sizes = [tuple(int(n) for n in rng.integers(2, 7, int(rng.integers(2, 6)))) for _ in range(2)]
    for noise in NOISES:
        paths = [
            leaves_of(
                s, n, int(rng.integers(1, min(len(s), 4))) if len(s) > 1 else 1, seed, multiway=bool(rng.integers(2))
            )
            for s, n in zip(sizes, (trees, max(1, trees // 3)), strict=True)
        ]
        for chosen in (paths[:1], paths):
            shares = split_budget(chosen, noise, budget, 2)
            assert sum(shares) == 1
            n_leaves = sum(path.n_queries for path in chosen)
            error = sum(ensemble_errors(chosen, shares, noise, budget, 2)) / n_leaves
            result = alternative_errors(chosen, shares, noise, budget, 2)
            assert all(error <= cost * 1.001 for cost in result.values())  # told to four digits
            count = sum(int(path.tree_of_leaf[-1]) + 1 for path in chosen)
            equal = noise_variance(noise, count / budget if noise == "laplace" else count / (2 * budget))
            assert error <= equal * (1 + 1e-9)
            cells = [expected_error(path, Marginals.identity(path), noise, budget / len(chosen)) for path in chosen]
            assert error <= sum(cells) / n_leaves * (1 + 1e-9)


@pytest.mark.parametrize(("seed", "trees"), [*enumerate([1, 2, 5, 16, 128])])
def test_optimised_noise_is_never_worse_than_a_baseline(seed: int, trees: int) -> None:
    never_worse(seed, trees)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_optimised_noise_is_never_worse_than_a_baseline_widely(seed: int) -> None:
    never_worse(seed, int(np.random.default_rng(seed).choice([1, 2, 3, 4, 8, 16, 32, 64, 128])))


def test_gaussian_noise_is_planned_by_rho() -> None:
    workload = PathWorkload.from_leaves((3, 2), [[0]] * 3 + [[1]] * 2, [[0], [1], [2], [0], [1]])
    loss = Loss(Fraction(1), Fraction(1, 10**6), Fraction(1, 50))
    measurement = plan_measurement("leaves", workload, loss, Neighbours(), 2)
    assert all(isinstance(step.mechanism, DiscreteGaussian) for step in measurement.steps)
    assert sum(step.loss.rho for step in measurement.steps) == Fraction(1, 50)  # type: ignore[misc]


def test_a_choice_is_read_back_and_a_forged_one_refused() -> None:
    workload = leaves_of((3, 2, 4), 4, 2, 5)
    for strategy in sample_mixtures(workload, np.random.default_rng(0)):
        again = strategy_from_json(workload, strategy_to_json(strategy))
        assert isinstance(again, Mixture)
        assert (again.trees, again.weights, again.l1) == (strategy.trees, strategy.weights, strategy.l1)
    forged: list[Any] = [
        [[1, [0, 1, 2]]], [[1, [0, 1, 2, 4]]], [[1, [0, 1, 2, -1]]], [[0, [0, 1, 2, 3]]], [[1, [0, 0, 1, 2]]],
        [[1, []], [2, [0, 1, 2, 3]]], [[1.5, [0, 1, 2, 3]]], [], "trees", [[1, "all"]],
    ]  # fmt: skip
    for trees in forged:
        with rejects(PlanError, raised_in="strategy_from_json"):
            strategy_from_json(workload, {"marginals": [], "trees": trees})
    with rejects(MechanismError, raised_in="Mixture.__init__"):
        Mixture(PathWorkload.from_leaves((3,), [[0]] * 3, [[0], [1], [2]]), {1: (0,)}, {})
