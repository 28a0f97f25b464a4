# SPDX-License-Identifier: Apache-2.0
"""Strategies and their search against explicit pseudo-inverses; workloads are tested in test_workloads."""

from __future__ import annotations

import doctest
import math
from collections.abc import Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.errors import DomainTooLargeError, MechanismError, OutOfSchemaError
from veilwood.forests.matrix import search as strategy_search
from veilwood.forests.matrix import strategies
from veilwood.forests.matrix.search import optimize
from veilwood.forests.matrix.strategies import Factors, Marginals, NoiseName, Strategy, expected_error
from veilwood.forests.matrix.training import MatrixForestParameters, grow_ensembles
from veilwood.forests.matrix.workloads import LeafVoteWorkload, PathWorkload, VoteWorkload, Workload
from veilwood_testing.errors import rejects
from veilwood_testing.matrix_forests import (
    CAR_SIZES,
    NOISES,
    SMALL_EPSILON,
    WORKLOAD_KINDS,
    published_error,
    random_paths,
    reached_by,
    small_workloads,
)


def random_marginals(workload: Workload, rng: np.random.Generator) -> Marginals:
    d = len(workload.shape)
    masks = {(1 << d) - 1} | {int(mask) for mask in rng.integers(1 << d, size=4)}
    sets = [tuple(i for i in range(d) if mask >> i & 1) for mask in sorted(masks)]
    return Marginals(workload, {features: int(rng.integers(1, 20)) for features in sets})


def random_factor(n: int, p: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.vstack([np.diag(rng.integers(1, 9, size=n)), rng.integers(0, 5, size=(p, n))])


def random_strategies(workload: Workload, rng: np.random.Generator) -> list[Strategy]:
    per_feature = [random_factor(size, 2, rng) for size in workload.shape]
    return [
        Marginals.identity(workload),
        random_marginals(workload, rng),
        Factors(workload, [random_factor(workload.n_cells, 3, rng)]),
        Factors(workload, per_feature),
    ]


def explicit(strategy: Strategy, variances: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Matrix of the measured tables, and the variance of each row, out of the strategy's own measurements."""
    cells = np.eye(math.prod(strategy.sizes), dtype=np.int64).reshape(*strategy.sizes, -1)
    blocks = [table.reshape(-1, cells.shape[-1]) for table in strategy.measure_cells(cells)]
    rows = [np.full(len(block), var) for block, var in zip(blocks, variances, strict=True)]
    return np.vstack(blocks).astype(float), np.concatenate(rows)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", WORKLOAD_KINDS)
def test_expected_error_equals_the_pseudo_inverse(kind: str, seed: int, noise: NoiseName) -> None:
    workload = small_workloads(seed)[kind]
    rng = np.random.default_rng(seed)
    for strategy in random_strategies(workload, rng):
        budget = Fraction(int(rng.integers(1, 30)), 10)
        A, var = explicit(strategy, strategy.noise_variances(noise, budget))
        whitened = A / np.sqrt(var)[:, None]
        dense = float((workload.to_dense() @ np.linalg.pinv(whitened, rcond=1e-12)).__pow__(2).sum())
        assert expected_error(workload, strategy, noise, budget) == pytest.approx(dense, rel=1e-8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", WORKLOAD_KINDS)
def test_reconstruction_is_the_weighted_pseudo_inverse(kind: str, seed: int) -> None:
    workload = small_workloads(seed)[kind]
    rng = np.random.default_rng(seed)
    for strategy in random_strategies(workload, rng):
        A, var = explicit(strategy, strategy.noise_variances("laplace", Fraction(1)))
        noisy = [rng.normal(size=(*table, 2)) for table in strategy.tables]
        y = np.vstack([table.reshape(-1, 2) for table in noisy])
        weight = 1 / np.sqrt(var)[:, None]
        dense = workload.to_dense() @ np.linalg.pinv(A * weight, rcond=1e-12) @ (y * weight)
        np.testing.assert_allclose(strategy.reconstruct(noisy, workload), dense, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", WORKLOAD_KINDS)
def test_without_noise_the_answers_are_exact(kind: str, seed: int) -> None:
    workload = small_workloads(seed)[kind]
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(size, size=50) for size in workload.sizes], axis=1)
    classes = rng.integers(3, size=50)
    cells = np.zeros((*workload.sizes, 3), np.int64)
    np.add.at(cells, (*codes.T, classes), 1)
    for strategy in [*random_strategies(workload, rng), optimize(workload, starts=4, thorough=True)]:
        measured = strategy.measure_exact(codes, classes, 3)
        assert all(table.dtype == np.int64 for table in measured)
        assert [table.shape for table in measured] == [(*shape, 3) for shape in strategy.tables]
        for one, other in zip(measured, strategy.measure_cells(cells), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(
            strategy.reconstruct(measured, workload), workload.to_dense() @ cells.reshape(-1, 3), atol=1e-7
        )


def privacy_loss(strategy: Strategy, noise: NoiseName, budget: Fraction) -> Fraction:
    """Largest loss over all neighbours (one record more), by enumerating the cells of the domain."""
    cells = np.eye(math.prod(strategy.sizes), dtype=np.int64).reshape(*strategy.sizes, -1)
    moves = [table.reshape(-1, cells.shape[-1]) for table in strategy.measure_cells(cells)]
    each = []
    for column in range(cells.shape[-1]):
        loss = Fraction(0)
        if noise == "laplace":
            for move, scale in zip(moves, strategy.laplace_scales(budget), strict=True):
                loss += int(np.abs(move[:, column]).sum()) / scale
        else:
            for move, squared in zip(moves, strategy.sigma_squared(budget), strict=True):
                loss += int((move[:, column] ** 2).sum()) / (2 * squared)
        each.append(loss)
    return max(each)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", WORKLOAD_KINDS)
def test_sensitivity_by_enumerating_neighbours(kind: str, noise: NoiseName) -> None:
    workload = small_workloads(1)[kind]
    budget = Fraction(3, 7)
    chosen = [
        *random_strategies(workload, np.random.default_rng(5)),
        optimize(workload, noise, starts=4, thorough=True),
    ]
    for strategy in chosen:
        assert privacy_loss(strategy, noise, budget) == budget  # exact, and no larger than it must be


class ForgetsOneTable(Marginals):
    """A mutant: the scales forget that the last table is measured as well."""

    def laplace_scales(self, epsilon: Fraction) -> list[Fraction]:
        others = sum(list(self.weights.values())[:-1])
        return [Fraction(others, weight) / epsilon for weight in self.weights.values()]


def test_the_enumeration_catches_a_wrong_scale() -> None:
    workload = small_workloads(1)["paths"]
    d = len(workload.shape)
    mutant = ForgetsOneTable(workload, {(0,): 2, tuple(range(d)): 1})
    assert privacy_loss(mutant, "laplace", Fraction(1)) > 1


def test_a_strategy_that_leaves_a_query_out_is_refused() -> None:
    workload = PathWorkload.from_leaves((3, 2), [[0], [0], [0], [1], [1]], [[0], [1], [2], [0], [1]])
    short = Marginals(workload, {(0,): 1})
    assert not short.can_answer(workload)
    with rejects(MechanismError, raised_in="Strategy._check_answerable"):
        expected_error(workload, short)
    with rejects(MechanismError, raised_in="Strategy._check_answerable"):
        short.reconstruct([np.zeros((3, 1))], workload)
    other = PathWorkload.from_leaves((3, 2), [[0], [0], [0]], [[0], [1], [2]])
    assert not Marginals.identity(other).can_answer(workload)


def test_leaf_votes_beat_the_identity_over_all_leaves() -> None:
    rng = np.random.default_rng(0)
    paths = PathWorkload.from_leaves(CAR_SIZES, *random_paths(CAR_SIZES, 3, 16, rng))
    reached = reached_by(paths, rng.permutation(1728)[:346])
    plain = LeafVoteWorkload(paths.n_queries, reached, merge=False)
    assert published_error(plain, Marginals.identity(plain)) == pytest.approx(11072, rel=1e-6)
    merged = LeafVoteWorkload(paths.n_queries, reached)
    assert published_error(merged, optimize(merged, budget=SMALL_EPSILON)) < 9500


def test_batch_prediction_gains_from_explicit_rows() -> None:
    rng = np.random.default_rng(0)
    sizes = (3, 4, 5, 6)
    paths = PathWorkload.from_leaves(sizes, *random_paths(sizes, 2, 16, rng))
    votes = VoteWorkload(paths, reached_by(paths, rng.permutation(360)[:30]))
    best = optimize(votes, budget=SMALL_EPSILON, starts=8)
    assert best.name == "p-identity"
    assert published_error(votes, best) < 0.8 * published_error(votes, Marginals.identity(votes))


def test_batches_add_up() -> None:
    workload = small_workloads(1)["paths"]
    strategy = random_marginals(workload, np.random.default_rng(0))
    codes = np.stack(
        [np.random.default_rng(i).integers(size, size=20) for i, size in enumerate(workload.sizes)], axis=1
    )
    classes = np.zeros(20, int)
    whole = strategy.measure_exact(codes, classes, 1)
    halves = [strategy.measure_exact(codes[part], classes[part], 1) for part in (slice(9), slice(9, None))]
    for table, one, other in zip(whole, *halves, strict=True):
        np.testing.assert_array_equal(table, one + other)
    assert all(table.sum() == 0 for table in strategy.measure_exact(codes[:0], classes[:0], 1))


@pytest.mark.parametrize("scale", [Fraction(1, 10), Fraction(1), Fraction(37, 10), Fraction(5000)])
def test_noise_variances(scale: Fraction) -> None:
    q = math.exp(-1 / float(scale))
    assert strategies.noise_variance("laplace", scale) == pytest.approx(2 * q / (1 - q) ** 2, rel=1e-6)
    k = np.arange(-2000.0, 2001.0)
    pmf = np.exp(-(k**2) / (2 * min(float(scale), 100.0)))
    variance = strategies.noise_variance("gaussian", min(scale, Fraction(100)))
    assert variance == pytest.approx((k**2 * pmf).sum() / pmf.sum(), rel=1e-9)


def test_bad_input_is_named() -> None:
    workload = PathWorkload.from_leaves((3, 2), [[0, 1]] * 6, [[i, j] for i in range(3) for j in range(2)])
    identity = Marginals.identity(workload)
    with rejects(OutOfSchemaError, column="feature 0", raised_in="Strategy.measure_exact"):
        identity.measure_exact([[3, 0]], [0], 2)
    with rejects(OutOfSchemaError, column="classes", raised_in="Strategy.measure_exact"):
        identity.measure_exact([[2, 0]], [2], 2)
    with rejects(OutOfSchemaError, raised_in="Strategy.measure_exact"):
        identity.measure_exact([[2, 0, 1]], [0], 2)
    with rejects(OutOfSchemaError, raised_in="Strategy.measure_cells"):
        identity.measure_cells(np.zeros((3, 2, 1)))
    with rejects(MechanismError, raised_in="Marginals.__init__"):
        Marginals(workload, {(0,): 0})
    with rejects(MechanismError, raised_in="Factors.__init__"):
        Factors(workload, [np.ones((6, 6), int)])
    with rejects(MechanismError, raised_in="Factors.__init__"):
        Factors(workload, [np.vstack([np.eye(6, dtype=int), np.full((1, 6), 2**32)])])
    with rejects(MechanismError, raised_in="Factors.__init__"):
        Factors(
            PathWorkload.from_leaves((2,) * 3, [[0, 1, 2]] * 8, list(np.ndindex(2, 2, 2))),
            [np.eye(2, dtype=int) << 20] * 3,
        )
    with rejects(MechanismError, raised_in="Strategy.noise_variances"):
        expected_error(workload, identity, budget=Fraction(0))
    with rejects(DomainTooLargeError, raised_in="_build_family"):
        optimize(workload, max_cells=5)


@pytest.mark.parametrize("module", [strategies, strategy_search])
def test_examples(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_plans_of_one_design_share_what_was_searched() -> None:
    schema = Schema.numeric((0, 1), classes=[0, 1], n_features=4)
    encoding, wanted = Encoding(schema, "bins"), MatrixForestParameters(n_estimators=4, max_depth=2)
    first, again = (grow_ensembles(encoding, wanted, 7) for _ in range(2))
    assert first[0][0].paths is again[0][0].paths
    assert grow_ensembles(encoding, wanted, 8)[0][0].paths is not first[0][0].paths
    assert not any(np.shares_memory(a, b) for a, b in zip(arrays(first[1]), arrays(again[1]), strict=True))


def arrays(forest: Any) -> list[Any]:
    return [value for value in vars(forest).values() if isinstance(value, np.ndarray)]


def test_a_forest_that_is_written_to_changes_no_later_fit() -> None:
    """All roots the same would count a row in every tree of the next fit once more than its noise is planned for."""
    data = vw.datasets.car()
    made: dict[str, Any] = {"n_estimators": 4, "max_depth": 1, "random_state": 0, "mechanism": "laplace"}
    first, plan = (vw.MatrixForestClassifier(data.schema, **made) for _ in range(2))
    before = plan.plan()
    first.fit(data.X, data.y).forest_.roots[:] = 0
    again = vw.MatrixForestClassifier(data.schema, **made).fit(data.X, data.y)
    assert len(set(again.forest_.roots.tolist())) == 4
    assert again.plan_ == before
