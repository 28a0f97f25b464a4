# SPDX-License-Identifier: Apache-2.0
"""The search for strategies against bounds and known figures."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import approx_fprime

from veilwood.forests.matrix import search as strategy_search
from veilwood.forests.matrix.search import lower_bound, optimize
from veilwood.forests.matrix.strategies import Marginals, NoiseName, expected_error
from veilwood.forests.matrix.workloads import PathWorkload
from veilwood_testing.marginal_search_cases import value_of
from veilwood_testing.small_workloads import KINDS, grow, grow_binary, small_workloads
from veilwood_testing.strategies_cases import CAR, NOISES, SMALL, figure


@pytest.mark.parametrize("budget", [Fraction(1, 10), Fraction(1), Fraction(10), Fraction(1000)])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", KINDS)
def test_never_worse_than_identity_nor_better_than_the_bound(kind: str, noise: NoiseName, budget: Fraction) -> None:
    for seed in range(2):
        workload = small_workloads(seed)[kind]
        best = optimize(workload, noise, budget, starts=6)
        error = expected_error(workload, best, noise, budget)
        assert error <= expected_error(workload, Marginals.identity(workload), noise, budget)
        assert error >= lower_bound(workload, noise, budget) * (1 - 1e-9)


def test_the_search_is_a_function_of_its_seed() -> None:
    workload = PathWorkload.from_leaves(CAR, *grow(CAR, 2, 8, np.random.default_rng(0)))
    one, other = (optimize(workload, seed=3, starts=6) for _ in range(2))
    assert isinstance(one, Marginals)
    assert isinstance(other, Marginals)
    assert one.weights == other.weights


@pytest.mark.parametrize(
    ("sizes", "depth", "trees", "identity", "known"),
    [(CAR, 2, 32, 110592, 59500), (CAR, 1, 32, 110592, 5700), ((5,) * 4, 2, 128, 160000, 138800)],
)
def test_shallow_forests_beat_the_identity_as_known(
    sizes: tuple[int, ...], depth: int, trees: int, identity: float, known: float
) -> None:
    workload = PathWorkload.from_leaves(sizes, *grow(sizes, depth, trees, np.random.default_rng(0)))
    assert figure(workload, Marginals.identity(workload)) == pytest.approx(identity, rel=1e-6)
    assert figure(workload, optimize(workload, budget=SMALL)) < known


def test_gaussian_noise_on_car_reaches_the_known_figure() -> None:
    workload = PathWorkload.from_leaves(CAR, *grow(CAR, 4, 128, np.random.default_rng(0)))
    error = expected_error(workload, optimize(workload, "gaussian", SMALL), "gaussian", SMALL)
    assert error / workload.n_queries * 2 * float(SMALL) < 6.6


def test_ordered_features_of_binary_trees_gain_from_products() -> None:
    sizes = (48, 48)
    workload = PathWorkload.from_masks(sizes, grow_binary(sizes, 4, 30, np.random.default_rng(0)))
    best = optimize(workload, starts=8)
    assert best.name == "kronecker p-identity"
    assert expected_error(workload, best) < 0.6 * expected_error(workload, Marginals.identity(workload))


@pytest.mark.parametrize("noise", NOISES)
def test_p_identity_descends_to_what_its_inverse_says(noise: NoiseName, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    W = rng.random((5, 6))
    seen: dict[str, Any] = {}

    def spy(objective: Any, start: NDArray[np.float64], **_: Any) -> Any:
        seen["objective"] = objective
        return type("Result", (), {"x": start})

    monkeypatch.setattr(strategy_search, "minimize", spy)
    start = rng.random((2, 6))
    strategy_search._p_identity((W.T @ W).__matmul__, (W**2).sum(axis=0), start, noise, 1)
    value, gradient = seen["objective"](start.ravel())
    direct = (strategy_search._p_identity_inverse(start, noise) * (W.T @ W)).sum() / (W**2).sum()
    assert value == pytest.approx(direct)
    numeric = approx_fprime(start.ravel(), value_of(seen["objective"]), 1e-7)
    np.testing.assert_allclose(gradient, numeric, atol=1e-5)


def test_rounded_p_identity_columns_add_up_exactly() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        b = rng.random((7, 5)) * 10.0 ** rng.integers(-2, 6)
        rounded = strategy_search._rounded_p_identity(b, "laplace", 1 << 10)
        np.testing.assert_array_equal(rounded.sum(axis=0), 1 << 10)
        assert rounded.min() >= 0
        assert np.diag(rounded[:5]).min() >= 1


def test_twenty_features_without_the_domain() -> None:
    sizes = (4,) * 20  # 10^12 cells
    rng = np.random.default_rng(0)
    workload = PathWorkload.from_leaves(sizes, *grow(sizes, 2, 4, rng))
    best = optimize(workload, starts=2)
    codes, classes = rng.integers(4, size=(500, 20)), rng.integers(2, size=500)
    answers = best.reconstruct(best.measure_exact(codes, classes, 2), workload)
    features, values = grow(sizes, 2, 4, np.random.default_rng(0))
    for leaf in range(0, workload.n_queries, 7):
        inside = (codes[:, features[leaf]] == values[leaf]).all(axis=1)
        np.testing.assert_allclose(answers[leaf], np.bincount(classes[inside], minlength=2), atol=1e-8)
