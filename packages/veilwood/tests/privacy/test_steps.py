# SPDX-License-Identifier: Apache-2.0
"""Steps keep their loss, and cost no more than the plan."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from veilwood.errors import PlanError
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.selection import PermuteAndFlip
from veilwood.privacy.steps import Step, counting_step, selection_step, sparse_step
from veilwood_testing.errors import rejects
from veilwood_testing.plans import EPSILON_ONE, small_plan, three_counts

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning")


def test_steps_cannot_cost_more_than_the_plan() -> None:
    half = Loss.pure(Fraction(1, 2))
    assert len(small_plan(three_counts("a", half), three_counts("b", half)).steps) == 2
    with rejects(PlanError, raised_in="Plan._check_steps"):
        small_plan(three_counts("a"), three_counts("b", half))
    gaussian = Loss.zcdp(Fraction(1, 10), Fraction(1, 10**6))
    with rejects(PlanError, raised_in="Plan._check_steps"):
        small_plan(three_counts("a", gaussian), three_counts("b", gaussian), loss=gaussian)
    with rejects(PlanError, raised_in="Plan._check_steps"):
        small_plan(three_counts("a", gaussian))  # a pure plan with a Gaussian step


@pytest.mark.parametrize(
    ("loss", "mechanism"),
    [
        (EPSILON_ONE, None),
        (EPSILON_ONE, DiscreteLaplace(Fraction(99, 100))),
        (EPSILON_ONE, DiscreteGaussian(Fraction(99, 100))),
        (Loss.zcdp(Fraction(1, 8), Fraction(1, 10**6)), DiscreteGaussian(3)),
        (Loss(Fraction(1), Fraction(1, 10)), DiscreteGaussian(100)),  # no rho was promised
    ],
    ids=["no noise", "Laplace", "Gaussian under pure epsilon", "Gaussian", "Gaussian without rho"],
)
def test_a_step_whose_noise_does_not_keep_its_loss_cannot_be_made(loss: Loss, mechanism: Any) -> None:
    with rejects(PlanError, raised_in="Step.__post_init__"):
        Step("counts", loss, mechanism, 1, (3,))


@pytest.mark.parametrize(
    ("loss", "mechanism", "choices"),
    [
        (Loss(None, Fraction(0), Fraction(0)), None, 1),
        (Loss(Fraction(1000), Fraction(0), Fraction(0)), DiscreteLaplace(Fraction(1, 1000)), 1),
        (Loss(None, Fraction(0), Fraction(1, 100)), DiscreteLaplace(Fraction(1, 1000)), 1),
        (requested_loss(1, 1e-6), PermuteAndFlip(Fraction(10**6), 1), 0),
        (requested_loss(1, 1e-6), PermuteAndFlip(Fraction(10**6), 1), 1),
    ],
)
def test_a_step_keeps_both_of_its_statements(loss: Loss, mechanism: Any, choices: int) -> None:
    with pytest.raises(PlanError):
        Step("x", loss, mechanism, 1, (1, 3), choices)


def test_signs_count_where_a_row_is_replaced_only() -> None:
    """Two vectors without signs differ by at most twice the square of one; with signs, by four times."""
    loss = Loss.zcdp(Fraction(1, 50), Fraction(1, 10**6))
    found = {
        (adjacency, signed): counting_step(
            "sums", (3,), loss, Neighbours(adjacency), l1=3, squared_l2=9, signed=signed
        ).sensitivity
        for adjacency in ("add-remove", "replace-one")
        for signed in (False, True)
    }
    assert list(found.values()) == [9, 9, 18, 36]


def test_a_step_accepts_only_values_that_it_can_have_released() -> None:
    counts = counting_step("counts", (2, 3), Loss.pure(Fraction(1)), Neighbours(), l1=1, squared_l2=1)
    choice = selection_step("choice", (4, 3), Loss.pure(Fraction(1)), Neighbours(), score_range=1)
    cells = sparse_step("cells", 10, Loss.pure(Fraction(1)), Neighbours(), l1=1)

    def accepted(step: Step, *values: Any) -> bool:
        return step.may_release([np.array(each, np.int64) for each in values])

    assert accepted(counts, [[1, 2, 3], [4, 5, -6]])
    assert not accepted(counts, [[1, 2], [3, 4]])
    assert not accepted(counts, [0, 1])
    assert accepted(choice, [0, 2, 1])
    assert accepted(choice, [0, 0, 0, 2])
    for wrong in ([0, 3], [-1], [0] * 5, [[0], [1]], np.zeros((4, 3))):
        assert not accepted(choice, wrong)
    assert accepted(cells, [0, 9], [1, 5])
    pairs = (([0, 10], [1, 1]), ([-1, 2], [1, 1]), ([2, 2], [1, 1]), ([3, 1], [1, 1]), ([1], [0]), ([1, 2], [1]))
    assert not any(accepted(cells, *pair) for pair in pairs)
    assert not counts.may_release([np.zeros((2, 3))])  # no integers
    assert not counts.may_release([])


def test_selections_that_one_row_can_influence_share_the_loss() -> None:
    """With pure epsilon by equal parts; under zCDP each costs epsilon squared by 8, or by 2 if drawn by flips."""
    of_five: dict[str, Any] = {"score_range": 3, "selections_per_row": 5}
    pure = selection_step("s", (4, 2), Loss.pure(Fraction(1)), Neighbours("replace-one"), **of_five).mechanism
    assert isinstance(pure, PermuteAndFlip)
    assert (pure.epsilon, pure.score_range) == (Fraction(1, 5), 6)
    loss = Loss.zcdp(Fraction(1, 50), Fraction(1, 10**6))
    for by, divisor in (("exponential", 8), ("flip", 2)):
        mechanism: Any = selection_step("s", (4, 2), loss, Neighbours(), **of_five, by=by).mechanism  # type: ignore[arg-type]
        assert loss.rho is not None
        assert Fraction(999_999, 10**6) * loss.rho < 5 * mechanism.epsilon**2 / divisor <= loss.rho
