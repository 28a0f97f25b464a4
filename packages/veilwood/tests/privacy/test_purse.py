# SPDX-License-Identifier: Apache-2.0
"""The budget of a fit in parts: prices and shares."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from veilwood.privacy.adaptive_budget import AdaptiveBudget
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.neighbours import Rows as RowsUnit

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
    purse = AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours())
    steps = [purse.plan_counts(f"{i}", (1,), share) for i, share in enumerate((0.3, 1e-30, 0.25, 5.0))]
    assert sum(step.loss.epsilon or 0 for step in steps) == 1
    assert purse.remaining == 0
