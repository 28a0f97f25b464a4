# SPDX-License-Identifier: Apache-2.0
"""Steps keep their loss, and cost no more than the plan."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from veilwood.errors import PlanError
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.selection import PermuteAndFlip
from veilwood.privacy.steps import Step
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
