# SPDX-License-Identifier: Apache-2.0
"""Weights of marginal tables: gradients, and sets that do not pay."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from veilwood.forests.matrix import marginals as marginal_search
from veilwood.forests.matrix.strategies import Marginals, NoiseName, expected_error
from veilwood.forests.matrix.workloads import PathWorkload, features_of
from veilwood_testing.marginal_search_cases import value_of
from veilwood_testing.small_workloads import grow
from veilwood_testing.strategies_cases import NOISES, SMALL


@pytest.mark.parametrize("budget", [None, 4])
@pytest.mark.parametrize("noise", NOISES)
def test_gradients(noise: NoiseName, budget: int | None) -> None:
    rng = np.random.default_rng(0)
    workload = PathWorkload.from_leaves((3, 4, 2), *grow((3, 4, 2), 2, 5, rng))
    family = marginal_search._SetFamily(np.arange(8))
    g = np.array([workload.residual_traces.get(mask, 0.0) for mask in range(8)])
    objective = marginal_search._marginals_objective(family, g, rng.random(8), noise, budget)
    z = rng.normal(size=8)
    np.testing.assert_allclose(objective(z)[1], approx_fprime(z, value_of(objective)), atol=1e-5)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", [(5,) * 6, (2,) * 8, (2, 3, 4, 5, 6), (7, 2, 2, 2, 6)], ids=str)
@pytest.mark.parametrize("depth", [1, 2])
def test_sets_that_are_left_out_do_not_pay(shape: tuple[int, ...], depth: int, noise: NoiseName) -> None:
    """Whoever measures one errs no more, at no higher price, with the sets inside it that leaves ask for."""
    rng = np.random.default_rng(1)
    workload = PathWorkload.from_leaves(shape, *grow(shape, depth, 200, rng))  # so many that all sets are asked for
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
        assert expected_error(workload, after, noise, SMALL) <= 1.001 * expected_error(workload, before, noise, SMALL)
