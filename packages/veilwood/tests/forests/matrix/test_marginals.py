# SPDX-License-Identifier: Apache-2.0
"""Weights of marginals and mixtures: gradients, losses by enumeration, and baselines that are never better."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import approx_fprime

from veilwood.forests.matrix import marginals as marginal_search
from veilwood.forests.matrix.marginals import (
    Mixture,
    candidate_mixtures,
    direct_error,
    errors_by_tree,
    search_marginals,
)
from veilwood.forests.matrix.search import SMALL_BUDGET, candidate_strategies, optimize
from veilwood.forests.matrix.strategies import Marginals, NoiseName, expected_error, noise_variance
from veilwood.forests.matrix.workloads import PathWorkload, features_of
from veilwood.trees.forest import join_forests
from veilwood.trees.random import grow_multiway
from veilwood_testing.matrix_forests import (
    NOISES,
    SMALL_EPSILON,
    leaves_of,
    ordered_columns,
    random_paths,
    sample_mixtures,
    value_only,
)


@pytest.mark.parametrize("budget", [None, 4])
@pytest.mark.parametrize("noise", NOISES)
def test_gradients(noise: NoiseName, budget: int | None) -> None:
    rng = np.random.default_rng(0)
    workload = PathWorkload.from_leaves((3, 4, 2), *random_paths((3, 4, 2), 2, 5, rng))
    family = marginal_search._SetFamily(np.arange(8))
    g = np.array([workload.residual_traces.get(mask, 0.0) for mask in range(8)])
    objective = marginal_search._marginals_objective(family, g, rng.random(8), noise, budget)
    z = rng.normal(size=8)
    np.testing.assert_allclose(objective(z)[1], approx_fprime(z, value_only(objective)), atol=1e-5)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", [(5,) * 6, (2,) * 8, (2, 3, 4, 5, 6), (7, 2, 2, 2, 6)], ids=str)
@pytest.mark.parametrize("depth", [1, 2])
def test_sets_that_are_left_out_do_not_pay(shape: tuple[int, ...], depth: int, noise: NoiseName) -> None:
    """Whoever measures one errs no more, at no higher price, with the sets inside it that leaves ask for."""
    rng = np.random.default_rng(1)
    workload = PathWorkload.from_leaves(
        shape, *random_paths(shape, depth, 200, rng)
    )  # so many that all sets are asked for
    seen = np.array(list(workload.residual_traces), np.int64)
    whole, few = (
        {features_of(int(mask)) for mask in marginal_search._build_family(workload, seen, 1 << 22, power).masks}
        for power in (None, 0.5 if noise == "laplace" else 1.0)
    )
    assert {features_of(int(space)) for space in seen} <= few
    assert len(whole) == 2 ** len(shape)
    assert len(few) < len(whole) or (noise == "laplace" and depth == 2)
    weight, every = 10**6, Counter({tuple(range(len(shape))): 10**4})  # which answers all leaves
    for left_out in whole - few:
        cells = math.prod(shape[i] for i in left_out)
        parts = {
            part: math.floor(weight * math.sqrt(math.prod(shape[i] for i in part) / cells))
            for part in combinations(left_out, depth)
        }
        before = Marginals(workload, dict(every + Counter({left_out: weight})))
        after = Marginals(workload, dict(every + Counter(parts)))
        assert after.l1 <= before.l1 if noise == "laplace" else after.l2_squared <= before.l2_squared
        assert expected_error(workload, after, noise, SMALL_EPSILON) <= 1.001 * expected_error(
            workload, before, noise, SMALL_EPSILON
        )


def cells_of(workload: PathWorkload) -> NDArray[np.int64]:
    """One column for each cell: a record there, and nothing else."""
    return np.eye(math.prod(workload.sizes), dtype=np.int64).reshape(*workload.sizes, -1)


def worst_loss(strategy: Mixture, noise: NoiseName, budget: Fraction) -> Fraction:
    """The largest loss by one record more, over all cells it can be in, by the noise that the strategy asks for."""
    moves = [np.abs(table).reshape(-1, table.shape[-1]) for table in strategy.measure_cells(cells_of(strategy._paths))]
    laws = (
        strategy.laplace_scales(budget) if noise == "laplace" else [2 * each for each in strategy.sigma_squared(budget)]
    )
    power = 1 if noise == "laplace" else 2
    each = [(move**power).sum(axis=0) for move in moves]
    return max(
        sum((int(m[cell]) / law for m, law in zip(each, laws, strict=True)), Fraction(0))
        for cell in range(len(each[0]))
    )


class ForgetsTrees(Mixture):
    """A mutant: a table of several trees is charged as one."""

    def laplace_scales(self, epsilon: Fraction) -> list[Fraction]:
        norm = sum(self.weights.values()) + sum(self.trees)
        return [Fraction(norm, weight) / epsilon for weight in (*self.weights.values(), *self.trees)]


@pytest.mark.parametrize("multiway", [True, False])
@pytest.mark.parametrize("noise", NOISES)
def test_sensitivity_by_formula_and_by_enumeration(noise: NoiseName, multiway: bool) -> None:
    workload, budget = leaves_of((3, 2, 4), 4, 2, 5, multiway=multiway), Fraction(3, 7)
    for strategy in sample_mixtures(workload, np.random.default_rng(0)):
        assert worst_loss(strategy, noise, budget) == budget  # exact, and no larger than it must be
        parts = strategy.table_sensitivities(noise)
        assert sum(share for share, _, _ in parts) == 1
        for (share, l1, squared), scale, sigma in zip(
            parts, strategy.laplace_scales(budget), strategy.sigma_squared(budget), strict=True
        ):  # a step at its share has the noise of the strategy
            assert (l1 / (share * budget) if noise == "laplace" else squared / (2 * share * budget)) == (
                scale if noise == "laplace" else sigma
            )
    mutant = ForgetsTrees(workload, {1: (0, 1), 2: (2, 3)}, {})
    assert worst_loss(mutant, "laplace", budget) == 2 * budget


@pytest.mark.parametrize("multiway", [True, False])
@pytest.mark.parametrize("noise", NOISES)
def test_the_expected_error_is_that_of_the_reconstruction(noise: NoiseName, multiway: bool) -> None:
    workload, budget = leaves_of((3, 2, 4), 4, 2, 6, multiway=multiway), Fraction(2, 3)
    for strategy in sample_mixtures(workload, np.random.default_rng(1)):
        total = 0.0
        for place, variance in enumerate(strategy.noise_variances(noise, budget)):
            n = strategy.tables[place]
            unit = [np.zeros((*table, math.prod(n))) for table in strategy.tables]
            unit[place] = np.eye(math.prod(n)).reshape(*n, -1)
            total += variance * float((strategy.reconstruct(unit, workload, noise, budget) ** 2).sum())
        assert expected_error(workload, strategy, noise, budget) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("multiway", [True, False])
def test_without_noise_the_leaves_are_exact(multiway: bool) -> None:
    workload = leaves_of((3, 2, 4), 4, 2, 7, multiway=multiway)
    rng = np.random.default_rng(2)
    codes = np.stack([rng.integers(size, size=60) for size in workload.sizes], axis=1)
    classes = rng.integers(3, size=60)
    cells = np.zeros((*workload.sizes, 3), np.int64)
    np.add.at(cells, (*codes.T, classes), 1)
    for strategy in sample_mixtures(workload, rng):
        measured = strategy.measure_exact(codes, classes, 3)
        for one, other in zip(measured, strategy.measure_cells(cells), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(
            strategy.reconstruct(measured, workload), workload.to_dense() @ cells.reshape(-1, 3), atol=1e-9
        )


def test_a_part_of_the_trees_is_measured_where_that_pays() -> None:
    """Many trees over few cells, and one over many: a table for those, its leaves for this one."""
    few, many = (2,) * 4, (3,) * 6
    forests = [grow_multiway(ordered_columns(few), 100, 3, 0), grow_multiway(ordered_columns(many), 1, 4, 1)]
    sizes = few + many
    workload = PathWorkload.from_forest(sizes, join_forests(forests, [range(4), range(4, 10)]), multiway=True)
    for noise in NOISES:
        best = optimize(workload, noise, SMALL_BUDGET, starts=8)
        assert best.name == "leaves of trees and weighted marginals"
        assert isinstance(best, Mixture)
        assert best.rest_marginals.tolist() == list(range(100))
        others = [
            s
            for s in candidate_strategies(workload, noise, SMALL_BUDGET, starts=8)
            if not (isinstance(s, Mixture) and s.weights)
        ]
        least = min(expected_error(workload, strategy, noise, SMALL_BUDGET) for strategy in others)
        assert expected_error(workload, best, noise, SMALL_BUDGET) < 0.8 * least


@pytest.mark.parametrize("noise", NOISES)
def test_costs_of_trees_add_up_as_the_search_says(noise: NoiseName) -> None:
    workload = leaves_of((3, 2, 4, 5), 6, 2, 3)
    marginals = Marginals(workload, {(0, 1, 2, 3): 2, (2, 3): 3})
    unit = noise_variance(noise, 1 / SMALL_BUDGET if noise == "laplace" else 1 / (2 * SMALL_BUDGET))
    errors = errors_by_tree(workload, noise, marginals)
    assert errors.sum() * unit == pytest.approx(expected_error(workload, marginals, noise, SMALL_BUDGET), rel=1e-5)
    by_size = candidate_mixtures(workload, noise, None)[-1]
    assert expected_error(workload, by_size, noise, SMALL_BUDGET) == pytest.approx(
        direct_error(workload, noise) * unit, rel=1e-2
    )
    assert direct_error(workload, noise) <= len(errors) ** (2 if noise == "laplace" else 1) * workload.n_queries


def test_a_hopeless_search_ends_early_and_others_do_not() -> None:
    workload = leaves_of((4,) * 4, 30, 2, 0)
    counted: list[int] = []

    class Counting(np.random.Generator):
        def random(self, *args: Any, **kwargs: Any) -> Any:
            counted.append(1)
            return super().random(*args, **kwargs)

    def starts(enough: float) -> int:
        counted.clear()
        rng = Counting(np.random.PCG64(0))
        search_marginals(
            workload, workload.residual_traces, noise="laplace", rng=rng, max_cells=10**6, starts=8, enough=enough
        )
        return len(counted)

    assert starts(1e-9) < starts(math.inf) == starts(direct_error(workload, "laplace"))
