# SPDX-License-Identifier: Apache-2.0
"""The twelve errors of the M-RF reference implementation, re-derived with explicit matrices, beside those found here.

In every one of them the reference measures the table of all cells. Its errors are totals over all queries at epsilon 1
for one class column, with the variance 2 of continuous noise.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from veilwood.forests.matrix.search import optimize
from veilwood.forests.matrix.strategies import Marginals, Strategy, expected_error
from veilwood.forests.matrix.workloads import LeafVoteWorkload, PathWorkload, VoteWorkload, Workload
from veilwood_testing.small_workloads import grow

CAR, BALANCE, IRIS = (4, 4, 4, 3, 3, 3), (5, 5, 5, 5), (4, 3, 6, 5)
EPSILON = Fraction(1, 1000)  # so small that discrete noise has the variance of continuous noise


class Claim(NamedTuple):
    """A workload, the reference's error on it, and the largest that is found here over draws of the trees."""

    sizes: tuple[int, ...]
    depth: int
    trees: int
    queries: int
    kind: str
    reference: float
    ours: float


CLAIMS = {
    "Car T, depth 4": Claim(CAR, 4, 128, 0, "T", 442_368, 442_368),
    "Car T, depth 3": Claim(CAR, 3, 32, 0, "T", 110_592, 110_592),
    "Car T, depth 2": Claim(CAR, 2, 32, 0, "T", 110_592, 60_000),
    "Car T, depth 1": Claim(CAR, 1, 32, 0, "T", 110_592, 5_700),
    "Car T, four features": Claim((4, 4, 3, 3), 4, 64, 0, "T", 18_432, 18_432),
    "Balance T, depth 2": Claim(BALANCE, 2, 128, 0, "T", 160_000, 139_000),
    "Balance T, depth 1": Claim(BALANCE, 1, 64, 0, "T", 80_000, 9_500),
    "Iris T, depth 2": Claim(IRIS, 2, 64, 0, "T", 46_080, 46_080),
    "Car QT', depth 3": Claim(CAR, 3, 16, 346, "QT'", 11_072, 9_600),
    "Car QT'T, depth 4": Claim(CAR, 4, 128, 346, "QT'T", 35_800_000, 36_500_000),
    "Balance QT'T, depth 2": Claim(BALANCE, 2, 128, 125, "QT'T", 31_800_000, 32_500_000),
    "Iris QT'T, depth 2": Claim(IRIS, 2, 64, 30, "QT'T", 1_663_000, 1_750_000),
}
QUICK = ("Car T, depth 1", "Car T, four features", "Balance T, depth 1", "Iris T, depth 2")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CLAIMS]


def build(claim: Claim) -> tuple[Workload, Workload]:
    """The workload, and the same with every value told apart, as the reference has it."""
    rng = np.random.default_rng(0)
    features, values = grow(claim.sizes, claim.depth, claim.trees, rng)
    merged, plain = (PathWorkload.from_leaves(claim.sizes, features, values, merge=merge) for merge in (True, False))
    if claim.kind == "T":
        return merged, plain
    cells = rng.permutation(math.prod(claim.sizes))[: claim.queries]
    codes = np.stack(np.unravel_index(cells, claim.sizes), axis=1)
    reached = np.array([np.flatnonzero((point[features] == values).all(axis=1)) for point in codes])
    if claim.kind == "QT'":
        return LeafVoteWorkload(len(features), reached), LeafVoteWorkload(len(features), reached, merge=False)
    return VoteWorkload(merged, reached), VoteWorkload(plain, reached)


def gram(workload: Workload) -> NDArray[np.float64]:
    """The explicit matrix W' W over all cells."""
    n = math.prod(workload.sizes)
    total = np.zeros((n, n))
    for rows in workload.iter_rows(merged=False):
        total += rows.T @ rows
    return total


def dense_error(workload: Workload, strategy: Strategy) -> float:
    """The error at epsilon 1 by the pseudo-inverse of the explicit strategy: nothing of the code under test."""
    cells = np.eye(math.prod(workload.sizes), dtype=np.int64).reshape(*workload.sizes, -1)
    tables = [table.reshape(-1, cells.shape[-1]).astype(float) for table in strategy.measure_cells(cells)]
    scales = [float(scale * EPSILON) for scale in strategy.laplace_scales(EPSILON)]
    precision = sum(table.T @ table / (2 * scale**2) for table, scale in zip(tables, scales, strict=True))
    return float((np.linalg.pinv(np.asarray(precision), rcond=1e-12, hermitian=True) * gram(workload)).sum())


@pytest.mark.parametrize("name", NAMES)
def test_the_error_of_the_reference_and_ours_by_explicit_matrices(name: str) -> None:
    claim = CLAIMS[name]
    merged, plain = build(claim)
    unit = float(EPSILON) ** 2
    reference = expected_error(plain, Marginals.identity(plain), budget=EPSILON) * unit
    assert reference == pytest.approx(2 * np.trace(gram(plain)), rel=1e-5)  # A = I: twice the squares of all entries
    assert reference == pytest.approx(claim.reference, rel=1e-5 if claim.kind != "QT'T" else 0.05)  # queries are drawn
    best = optimize(merged, budget=EPSILON)
    ours = expected_error(merged, best, budget=EPSILON) * unit
    assert ours == pytest.approx(dense_error(merged, best), rel=1e-4)
    assert ours <= min(claim.ours, reference) * (1 + 1e-5)
