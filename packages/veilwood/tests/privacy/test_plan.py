# SPDX-License-Identifier: Apache-2.0
"""Mechanisms describe themselves: what they cost, which method of the door applies them, and how plans hold them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from veilwood.errors import PlanError, UseError, VeilwoodError
from veilwood.privacy import door as release_door
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, Mechanism, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.plan import Plan
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip, RandomStopping
from veilwood.privacy.steps import Step
from veilwood.privacy.time_factors import SeriesNoise, TimeFactor
from veilwood_testing.errors import rejects
from veilwood_testing.plans import EPSILON_ONE, small_plan, three_counts

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)
DELTA = Fraction(1, 10**6)
THRESHOLDED = ThresholdedGaussian.for_loss(
    Loss(Fraction(1), DELTA), squared_l2=2, max_contribution=1, max_changed_keys=2
)
MONTHS = TimeFactor(((8,), (4, 8), (3, 4, 8)))  # a row of the first month adds 15 in L1 norm, and 89 in squared L2 norm

# One mechanism of each kind, a sensitivity, the loss that it just satisfies there, and the same with half the noise.
CASES: list[tuple[Mechanism, int, Loss, Mechanism]] = [
    (DiscreteLaplace(6), 2, Loss.pure(THIRD), DiscreteLaplace(3)),
    (DiscreteGaussian(6), 2, Loss.zcdp(Fraction(1, 6), DELTA), DiscreteGaussian(Fraction(3, 2))),
    (JointLaplace(6, (2, 3)), 2, Loss.pure(THIRD), JointLaplace(3, (2, 3))),
    (SparseLaplace(2), 1, Loss.pure(HALF), SparseLaplace(1)),
    (THRESHOLDED, 2, Loss(Fraction(1), DELTA), replace(THRESHOLDED, sigma_squared=THRESHOLDED.sigma_squared / 4)),
    (NoisyMax(THIRD, 2), 2, Loss.pure(THIRD), NoisyMax(2 * THIRD, 2)),
    (PermuteAndFlip(THIRD, 2), 2, Loss.pure(THIRD), PermuteAndFlip(2 * THIRD, 2)),
    (ExponentialMechanism(THIRD, 2), 2, Loss(Fraction(1), DELTA, Fraction(1, 72)), ExponentialMechanism(2 * THIRD, 2)),
    (NoisyMax(THIRD, 2), 2, Loss.zcdp(Fraction(1, 18), DELTA), NoisyMax(2 * THIRD, 2)),  # rho is epsilon^2 / 2, not / 8
    (PermuteAndFlip(THIRD, 2), 2, Loss.zcdp(Fraction(1, 18), DELTA), PermuteAndFlip(2 * THIRD, 2)),
    (RandomStopping(HALF, 10), 1, EPSILON_ONE, RandomStopping(Fraction(1), 10)),
    (SeriesNoise(DiscreteLaplace(90), MONTHS, 2), 2, Loss.pure(THIRD), SeriesNoise(DiscreteLaplace(45), MONTHS, 2)),
    (SeriesNoise(DiscreteGaussian(267), MONTHS, 2), 1, Loss.zcdp(Fraction(1, 6), DELTA),
     SeriesNoise(DiscreteGaussian(Fraction(267, 4)), MONTHS, 2)),
]  # fmt: skip
KINDS = [type(mechanism).__name__ for mechanism, *_ in CASES]


def test_the_table_has_every_kind_of_mechanism() -> None:
    assert set(KINDS) == set(Mechanism._by_kind)
    assert {kind.verb for kind in Mechanism._by_kind.values()} == set(release_door._METHODS)
    assert all(callable(getattr(Door, method)) for method in release_door._METHODS.values())


@pytest.mark.parametrize(("mechanism", "sensitivity", "loss", "halved"), CASES, ids=KINDS)
def test_half_the_noise_does_not_satisfy_the_loss(
    mechanism: Mechanism, sensitivity: int, loss: Loss, halved: Mechanism
) -> None:
    assert Step("sums", loss, mechanism, sensitivity, (5, 2)).has_enough_noise
    with rejects(PlanError, raised_in="Step.__post_init__"):
        Step("sums", loss, halved, sensitivity, (5, 2))
    with rejects(PlanError, raised_in="Step.__post_init__"):
        Step("sums", loss, mechanism, 2 * sensitivity, (5, 2))


@pytest.mark.parametrize(("mechanism", "sensitivity", "loss", "halved"), CASES, ids=KINDS)
def test_a_step_is_read_as_it_was_written(
    mechanism: Mechanism, sensitivity: int, loss: Loss, halved: Mechanism
) -> None:
    step = Step("sums", loss, mechanism, sensitivity, (5, 2))
    assert Step.from_dict(step.to_dict()) == step
    assert step.to_dict()["exact"]["mechanism"]["kind"] == type(mechanism).__name__


@pytest.mark.parametrize(
    ("key", "value"), [("backend", "opendp"), ("kind", "NoNoise"), ("kind", ["a"]), ("scale", "1e-9"), ("seed", "7")]
)
def test_a_plan_with_an_unknown_mechanism_is_refused(key: str, value: Any) -> None:
    data = small_plan(three_counts()).to_dict()
    assert Plan.from_dict(data).to_dict() == data
    data["steps"][0]["exact"]["mechanism"][key] = value
    if key in (
        "backend",
        "kind",
        "seed",
    ):  # by itself, not only as a plan that was changed
        with pytest.raises((VeilwoodError, KeyError, TypeError)):
            Mechanism.from_dict(data["steps"][0]["exact"]["mechanism"])
    with pytest.raises(VeilwoodError):
        Plan.from_dict(data)


@pytest.mark.parametrize("value", [True, 1.5, [], "DiscreteLaplace", {}, {"kind": "JointLaplace", "sizes": 3}])
def test_a_plan_whose_mechanism_is_no_dictionary_is_refused(value: Any) -> None:
    data = small_plan(three_counts()).to_dict()
    data["steps"][0]["exact"]["mechanism"] = value
    with pytest.raises(VeilwoodError):
        Plan.from_dict(data)


@pytest.mark.parametrize(("mechanism", "sensitivity", "loss", "halved"), CASES, ids=KINDS)
def test_the_door_applies_a_mechanism_by_its_own_method_only(
    mechanism: Mechanism, sensitivity: int, loss: Loss, halved: Mechanism
) -> None:
    """Every other method refuses the step, which has then passed: it is not released a second time either."""
    ones, shape = np.ones(5, np.int64), (5, 5)
    calls: dict[str, Any] = {
        "noisy": lambda door, step: door.release_counts(step, np.ones(shape, np.int64)),
        "sparse": lambda door, step: door.release_sparse(step, np.arange(5), ones, 5),
        "above_threshold": lambda door, step: door.release_above_threshold(step, ones),
        "select": lambda door, step: door.select(step, np.ones(shape, np.int64)),
        "best": lambda door, step: door.release_best_trial(step, lambda budget: 1, lambda one, other: False),
    }
    assert set(calls) == set(release_door._METHODS)
    right = release_door._METHODS[mechanism.verb]
    for verb, call in calls.items():
        step = Step("sums", loss, mechanism, sensitivity, shape)
        with Door(small_plan(step, loss=loss), MemoryLedger()) as door:
            if verb != mechanism.verb:
                with pytest.raises(UseError, match=f"call {right}"):
                    call(door, step)
            elif not isinstance(mechanism, JointLaplace):  # five rows in each of two tables: not these
                call(door, step)
            else:
                with pytest.raises(VeilwoodError):
                    call(door, step)
            with rejects(PlanError, raised_in="Door._admit_step"):
                call(door, step)
