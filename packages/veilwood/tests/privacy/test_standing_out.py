# SPDX-License-Identifier: Apache-2.0
"""Tests of what stands out: the exact loss of small tables, with halves of noise and threshold that are caught."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from veilwood.errors import MechanismError, ParameterError, PlanError, UseError
from veilwood.privacy.certificate import NO_SCHEMA
from veilwood.privacy.door import Door
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf
from veilwood.privacy.noise import DiscreteGaussian, ThresholdedGaussian
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step, threshold_step

LOSSES = [(1.0, 1e-6), (0.3, 1e-9), (3.0, 1e-3), (8.0, 1e-2)]


def law(noise: ThresholdedGaussian, count: int) -> np.ndarray[Any, Any]:
    """Probabilities that a thing with a count does not come out, and that it comes out as each number."""
    reach = noise.threshold + count + math.ceil(12 * float(noise.sigma_squared) ** 0.5) + 2
    numbers = np.arange(noise.threshold + 1, reach + 1)
    out = DiscreteGaussian(noise.sigma_squared).pmf(numbers - count)
    return np.append(1 - out.sum(), out)


def delta_at(noise: ThresholdedGaussian, epsilon: float, one: list[int], other: list[int]) -> float:
    """The exact delta between two tables of the same names at an epsilon, both ways; a count of 0 never comes out."""
    size = max(len(law(noise, count)) for count in (*one, *other) if count)

    def table(counts: list[int]) -> np.ndarray[Any, Any]:
        laws = [np.pad(law(noise, c), (0, size - len(law(noise, c)))) if c else np.eye(1, size)[0] for c in counts]
        joint = laws[0]
        for each in laws[1:]:
            joint = np.multiply.outer(joint, each)
        return joint

    p, q = table(one), table(other)
    factor = math.exp(epsilon)
    return max(float(np.maximum(p - factor * q, 0).sum()), float(np.maximum(q - factor * p, 0).sum()))


# A unit of two rows: it adds two to something that others have too, and has something of its own.
TABLES = [([0], [2]), ([40], [42]), ([40, 0], [42, 2]), ([1, 2], [3, 0])]


def worst(noise: ThresholdedGaussian, epsilon: float) -> float:
    return max(delta_at(noise, epsilon, one, other) for one, other in TABLES)


@pytest.mark.parametrize(("epsilon", "delta"), LOSSES)
def test_the_exact_loss_is_within_the_promise(epsilon: float, delta: float) -> None:
    loss = Loss(requested_loss(epsilon, delta).epsilon, Fraction(delta))
    noise = ThresholdedGaussian.for_loss(loss, squared_l2=8, max_contribution=2, max_changed_keys=2)
    assert noise.satisfies(loss, 8)
    assert worst(noise, epsilon) <= delta
    # Where the threshold lies matters: counts just around it tell most.
    around = [([noise.threshold], [noise.threshold + 2]), ([noise.threshold, 0], [noise.threshold + 2, 2])]
    assert max(delta_at(noise, epsilon, *pair) for pair in around) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), LOSSES)
def test_half_the_noise_and_half_the_threshold_are_caught(epsilon: float, delta: float) -> None:
    loss = Loss(requested_loss(epsilon, delta).epsilon, Fraction(delta))
    noise = ThresholdedGaussian.for_loss(loss, squared_l2=8, max_contribution=2, max_changed_keys=2)
    low = ThresholdedGaussian(noise.sigma_squared, max(noise.threshold // 2, 2), 2, 2)
    assert not low.satisfies(loss, 8)
    assert worst(low, epsilon) > delta
    weak = ThresholdedGaussian(noise.sigma_squared / 4, noise.threshold, 2, 2)
    assert not weak.satisfies(loss, 8)
    pair = [noise.threshold + 100, noise.threshold + 100], [noise.threshold + 102, noise.threshold + 102]
    assert delta_at(noise, epsilon, *pair) <= delta
    assert delta_at(weak, epsilon, *pair) > delta


def test_the_tail_is_bounded_from_above() -> None:
    for sigma_squared in (Fraction(1, 3), Fraction(2), Fraction(50), Fraction(1000)):
        for threshold in (1, 2, 5, 20, 100):
            noise = ThresholdedGaussian(sigma_squared, threshold, 1, 1)
            numbers = np.arange(threshold, threshold + 2000)  # a thing of one row comes out above the threshold
            exact = math.fsum(DiscreteGaussian(sigma_squared).pmf(numbers).tolist())
            assert exact <= float(noise.delta) * (1 + 1e-12)


def test_one_row_less_threshold_would_cost_more() -> None:
    loss = Loss(Fraction(1), Fraction(1, 10**6))
    noise = ThresholdedGaussian.for_loss(loss, squared_l2=2, max_contribution=1, max_changed_keys=2)
    assert noise.delta <= loss.delta / 2
    assert replace_threshold(noise, noise.threshold - 1).delta > loss.delta / 2


def replace_threshold(noise: ThresholdedGaussian, threshold: int) -> ThresholdedGaussian:
    return ThresholdedGaussian(noise.sigma_squared, threshold, noise.max_contribution, noise.max_changed_keys)


def test_what_is_drawn_follows_the_law() -> None:
    noise = ThresholdedGaussian(Fraction(9), 8, 1, 1)
    n = 40_000
    places, counts = noise.perturb(np.full(n, 7))
    expected = law(noise, 7)
    assert abs(len(places) / n - (1 - expected[0])) < 5.5 * math.sqrt(0.25 / n)
    assert counts.min() > 8
    found = np.bincount(counts - 9, minlength=len(expected))[:6] / n
    assert np.all(np.abs(found - expected[1:7]) < 5.5 * np.sqrt(expected[1:7] / n))
    assert noise.perturb(np.empty(0, np.int64))[0].tolist() == []


@pytest.mark.parametrize("counts", [np.zeros(2, np.int64), np.ones(2), np.ones((1, 2), np.int64)])
def test_other_counts_are_refused(counts: Any) -> None:
    with pytest.raises(MechanismError):
        ThresholdedGaussian(2, 5, 1, 1).perturb(counts)


@pytest.mark.parametrize("wrong", [(2, 0, 1, 1), (2, 5, 0, 1), (2, 5, 1, 0), (2, 3, 4, 1), (0, 5, 1, 1)])
def test_wrong_numbers_are_refused(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(MechanismError):
        ThresholdedGaussian(*wrong)
    with pytest.raises(MechanismError, match="delta > 0"):
        ThresholdedGaussian.for_loss(Loss.pure(Fraction(1)), squared_l2=1, max_contribution=1, max_changed_keys=1)


# -- as a step of a plan -----------------------------------------------------------------------------------------------


def plan_of(step: Step, loss: Loss | None = None, more: tuple[Step, ...] = ()) -> Plan:
    return Plan(
        estimator="discover", parameters={}, loss=loss or step.loss, neighbours=Neighbours(), steps=(step, *more),
        released="what stands out", schema_name="s", schema_hash=NO_SCHEMA, layout=Layout(), expected_leaf_mse=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("unit", [Rows(1), Rows(3), RowsOf("id", 4)])
def test_a_step_has_the_noise_its_neighbours_need(adjacency: Any, unit: Any) -> None:
    neighbours = Neighbours(adjacency, unit)
    step = threshold_step("things", (5,), requested_loss(1.0, 1e-6), neighbours, keys_per_row=10)
    assert isinstance(step.mechanism, ThresholdedGaussian)
    sides = 1 if adjacency == "add-remove" else 2
    assert step.sensitivity == 10 * unit.at_most**2 * sides
    assert (step.mechanism.max_contribution, step.mechanism.max_changed_keys) == (
        unit.at_most,
        10 * unit.at_most * sides,
    )
    assert step.loss.rho is None  # it is no zCDP, so nothing may add it up as such
    assert Step.from_dict(step.to_dict()) == step
    assert Plan.from_dict(plan_of(step).to_dict()) == plan_of(step)


def test_steps_and_plans_that_promise_too_much_are_refused() -> None:
    step = threshold_step("things", (5,), requested_loss(1.0, 1e-6), Neighbours(), keys_per_row=10)
    for loss in (
        Loss(Fraction(1, 2), Fraction(1, 10**6)),
        Loss(Fraction(1), Fraction(1, 10**7)),
        Loss(Fraction(1)),
        Loss(Fraction(1), Fraction(1, 10**6), Fraction(1, 2)),
    ):
        with pytest.raises(PlanError):
            replace(step, loss=loss)
    pure = counting_step("more", (2,), Loss.pure(Fraction(1)), Neighbours(), l1=1, squared_l2=1)
    twice = replace(step, name="again")
    enough = Loss(Fraction(2), Fraction(1, 10**6))
    assert plan_of(step, enough, (pure,)).loss == enough
    for loss, more in (
        (step.loss, (pure,)),  # too little epsilon
        (Loss(Fraction(2), Fraction(1, 10**6)), (twice,)),  # too little delta
        (requested_loss(3.0, 1e-5), (pure,)),  # promised as zCDP, which it is not
    ):
        with pytest.raises(PlanError):
            plan_of(step, loss, more)
    rho = counting_step("more", (2,), requested_loss(1.0, 1e-6), Neighbours(), l1=1, squared_l2=1)
    with pytest.raises(PlanError):  # a part of rho has no epsilon of its own
        plan_of(step, Loss(Fraction(2), Fraction(1, 10**5)), (rho,))


def test_the_door_charges_epsilon_and_delta() -> None:
    step = threshold_step("things", (5,), requested_loss(1.0, 1e-6), Neighbours(), keys_per_row=2)
    ledger = MemoryLedger(epsilon=1.5, delta=1e-6)
    with Door(plan_of(step), ledger) as door:
        places, _ = door.release_above_threshold(step, np.array([1, 10**6, 1]))
        assert places.tolist() == [1]
        with pytest.raises(PlanError, match="passed already"):
            door.release_above_threshold(step, np.array([1]))
        with pytest.raises((PlanError, UseError)):
            door.release_counts(step, np.array([1]))
    assert door.certificate().is_private
    assert ledger.remaining is not None
    assert ledger.remaining.epsilon == Fraction(1, 2)
    assert ledger.remaining.delta == 0
    with pytest.raises(ParameterError):
        requested_loss(1.0, -1)
