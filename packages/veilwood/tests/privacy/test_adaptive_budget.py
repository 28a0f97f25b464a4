# SPDX-License-Identifier: Apache-2.0
"""Adaptive budgets: row epsilons, fractions, and noise shared by tables."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilwood.forests.adaptive.steps import TABLE_STEPS
from veilwood.privacy.adaptive_budget import AdaptiveBudget, TableNoise, release_tables
from veilwood.privacy.joint_noise import MAX_JOINT_CELLS, JointLaplace
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.neighbours import Rows as RowsUnit
from veilwood.privacy.steps import Step

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_prices_follow_the_law_of_units(adjacency: Any, k: int, delta: float) -> None:
    """k rows at epsilon are one row at epsilon / k, a replaced row one at half; with a delta k^2 and 2 of rho."""
    loss = requested_loss(2, delta)
    unit = AdaptiveBudget(loss, Neighbours(adjacency, RowsUnit(k)))
    sides = 2 if adjacency == "replace-one" else 1
    if delta == 0:
        alone = AdaptiveBudget(Loss.pure(Fraction(2, k * sides)), Neighbours())
    else:
        assert loss.rho is not None
        alone = AdaptiveBudget(Loss(loss.epsilon, loss.delta, loss.rho / (k**2 * sides)), Neighbours())
    assert unit.row_epsilon == pytest.approx(alone.row_epsilon, rel=1e-12)
    for share in (0.01, 0.3):
        assert unit.row_epsilon_of(share) == pytest.approx(alone.row_epsilon_of(share), rel=1e-12)
        assert unit.fraction_for(unit.row_epsilon_of(share)) == pytest.approx(share)
    step, other = unit.plan_counts("rows", (1,), 0.1), alone.plan_counts("rows", (1,), 0.1)
    assert step.variance == pytest.approx(other.variance, rel=1e-9)


def test_shares_add_up_to_the_budget_whatever_is_asked() -> None:
    budget = AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours())
    steps = [budget.plan_counts(f"{i}", (1,), share) for i, share in enumerate((0.3, 1e-30, 0.25, 5.0))]
    assert sum(step.loss.epsilon or 0 for step in steps) == 1
    assert budget.remaining == 0


TOGETHER, ALONE, GAUSSIAN = TableNoise(False, True), TableNoise(False, False), TableNoise(True, False)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60).map(sorted))
def test_every_table_gets_noise_once_and_together_hardly_more_than_alone(sizes: list[int]) -> None:
    for noise in (TOGETHER, ALONE, GAUSSIAN):
        groups = noise.group_tables(sizes)
        assert sum(n_tables for n_tables, _ in groups) == len(sizes) == len(noise.cell_variances(sizes))
        assert sum(share for _, share in groups) == pytest.approx(1.0)
    first = 0
    for n_tables, _ in TOGETHER.group_tables(sizes):
        own = sizes[first : first + n_tables]
        first += n_tables
        assert len(own) == 1 or JointLaplace(1, own).sizes == tuple(own)  # fits
    cells = np.maximum(np.array(sizes) - 1, 0)  # free ones
    # tables of three times the cells may lose a little together
    assert cells @ TOGETHER.cell_variances(sizes) <= 1.15 * (cells @ ALONE.cell_variances(sizes)) + 1e-9


def test_tables_of_about_one_size_share_their_noise_and_a_large_one_does_not() -> None:
    assert [n_tables for n_tables, _ in TOGETHER.group_tables([2, 2, 2, 3, 40, 2000])] == [4, 1, 1]
    many = TOGETHER.group_tables([8] * 100)
    assert sum(n_tables for n_tables, _ in many) == 100
    assert max(8 * n_tables for n_tables, _ in many) <= MAX_JOINT_CELLS
    assert TOGETHER.cell_variances([2] * 20)[0] < ALONE.cell_variances([2] * 20)[0] / 9


PURE, BY_RHO = Loss.pure(Fraction(1)), requested_loss(1, 1e-6)


@pytest.mark.parametrize(
    ("loss", "names"), [(PURE, ["tables 1 to 3", "table 4"]), (BY_RHO, [f"table {i}" for i in (1, 2, 3, 4)])]
)
def test_what_is_released_belongs_to_its_table_and_spends_the_share(
    loss: Loss, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        AdaptiveBudget, "release_counts", lambda self, step, exact: exact.reshape(step.shape).astype(float)
    )
    steps: list[Step] = []
    monkeypatch.setattr(AdaptiveBudget, "_add_step", lambda self, step: steps.append(step) or step)
    budget, sizes = AdaptiveBudget(loss, Neighbours()), [2, 3, 3, 20]
    exact = np.arange(sum(sizes) * 2).reshape(-1, 2)
    seen = release_tables(budget, sizes, exact, 0.5, TABLE_STEPS)
    assert [len(counts) for counts in seen.counts] == sizes
    assert np.array_equal(np.concatenate(seen.counts), exact)
    assert budget.remaining == pytest.approx(0.5)
    assert [step.name for step in steps] == [f"{name}: classes by cell" for name in names]
    assert np.array_equal(seen.totals[-1], exact[-20:].sum(axis=0))
    assert seen.variances == [variance for step in steps for variance in step.table_variances]
    assert seen.total_variances == [step.total_variance for step in steps]
