# SPDX-License-Identifier: Apache-2.0
"""The release door: what passes, once, at which loss; parallel releases."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.open_rows import open_rows
from veilwood.errors import MechanismError, OutOfSchemaError, PlanError, UseError, VeilwoodError
from veilwood.evaluation.evaluate import evaluation_plan, measure_quality
from veilwood.privacy import entropy
from veilwood.privacy.certificate import Assumption
from veilwood.privacy.door import Door, ParallelDoor, TrialDoor
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.privacy.release import Release
from veilwood.privacy.selection import TrialBudget
from veilwood_testing.errors import rejects
from veilwood_testing.plans import EPSILON_ONE, small_plan, three_counts
from veilwood_testing.small_forests import TINY_TREES

pytestmark = [pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning")]


EXACT = np.array([3, 0, 7])


class RefundingDoor(Door):
    """Mutant: gives the loss back on every exception, as if nothing could have come out."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None and self._reservation is not None:
            self._reservation.cancel()
        else:
            super().__exit__(kind, error, trace)


class LateDoor(Door):
    """Mutant: charges only on a regular exit."""

    def __enter__(self) -> Any:
        self._reservation = object()  # type: ignore[assignment]
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            super().__enter__()
            super().__exit__(kind, error, trace)


def spent_by_a_release_that_fails_late(door_class: type[Door]) -> Loss:
    """Noisy numbers come out, and then something fails: what does the ledger say?"""
    ledger, step = MemoryLedger(), three_counts()
    seen = []

    def release_and_fail() -> None:
        with door_class(small_plan(step), ledger) as door:
            seen.append(door.release_counts(step, EXACT))
            raise RuntimeError("after the release")

    with pytest.raises(RuntimeError):
        release_and_fail()
    assert len(seen) == 1
    return ledger.spent


def test_a_ledger_not_charged_on_an_exception_path_is_caught() -> None:
    assert spent_by_a_release_that_fails_late(Door) == EPSILON_ONE
    assert spent_by_a_release_that_fails_late(RefundingDoor) == Loss.zero()
    assert spent_by_a_release_that_fails_late(LateDoor) == Loss.zero()


def test_input_refused_after_the_first_noise_is_spent() -> None:
    ledger, step = MemoryLedger(), three_counts()

    def second_pass_is_refused() -> None:
        with Door(small_plan(step), ledger) as door:
            door.release_counts(step, EXACT)
            raise OutOfSchemaError("a later pass found something")

    with pytest.raises(OutOfSchemaError):
        second_pass_is_refused()
    assert ledger.spent == EPSILON_ONE


def test_a_step_passes_once_inside_the_context_with_its_shape() -> None:
    step, other = three_counts("counts", Loss.pure(Fraction(1, 2))), three_counts("more", Loss.pure(Fraction(1, 2)))
    door = Door(small_plan(step), MemoryLedger())
    with rejects(UseError, raised_in="Door._admit_step"):
        door.release_counts(step, EXACT)
    with door:
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_counts(other, EXACT)
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_counts(replace(step, loss=EPSILON_ONE, mechanism=DiscreteLaplace(1)), EXACT)
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_counts(step, EXACT[:2])
        assert door.release_counts(step, EXACT).dtype == np.int64
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_counts(step, EXACT)
    with rejects(UseError, raised_in="Door._admit_step"):
        door.release_counts(step, EXACT)


def test_a_refined_plan_keeps_what_passed_and_what_was_promised() -> None:
    half = Loss.pure(Fraction(1, 2))
    first, later, other = three_counts("first", half), three_counts("later", half), three_counts("other", half)
    door = Door(small_plan(first), MemoryLedger())
    with rejects(PlanError, raised_in="Door._adopt_plan"):
        door.refine(small_plan(first, later))
    with door:
        door.release_counts(first, EXACT)
        for lost in (small_plan(later), small_plan(later, other)):
            with rejects(PlanError, raised_in="Door._adopt_plan"):
                door.refine(lost)
        cheaper = three_counts("first", Loss.pure(Fraction(1, 4)))  # of the same name: what passed cost more
        with rejects(PlanError, raised_in="Door._adopt_plan"):
            door.refine(small_plan(cheaper, later))
        for changed in (small_plan(first, later, loss=Loss.pure(Fraction(2))), small_plan(first, loss=half)):
            with rejects(PlanError, raised_in="Door._adopt_plan"):
                door.refine(changed)
        with rejects(PlanError, raised_in="Door._adopt_plan"):
            door.refine(replace(small_plan(first), neighbours=Neighbours("replace-one")))
        with pytest.raises(VeilwoodError):
            small_plan(first, later, other)  # a plan that costs more cannot be made
        assert door.plan == small_plan(first)
        door.refine(small_plan(first, later))
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_counts(first, EXACT)
        door.release_counts(later, EXACT)
    with rejects(PlanError, raised_in="Door._adopt_plan"):
        door.refine(small_plan(first, later))
    assert door.certificate().epsilon == 1
    assert len(door.certificate().composition) == 2


class ForgetfulDoor(Door):
    """Mutant: takes any plan of the same loss, as if nothing had passed."""

    def refine(self, plan: Plan) -> None:
        self.plan = plan


def test_a_door_that_forgets_passed_steps_overspends() -> None:
    def spent(kind: type[Door]) -> Fraction:
        first, second = three_counts("first"), three_counts("second")
        passed = []
        with kind(small_plan(first), MemoryLedger()) as door:
            for step in (first, second):
                try:
                    door.refine(small_plan(step))
                except VeilwoodError:
                    continue
                door.release_counts(step, EXACT)
                passed.append(step.loss)
        total = sum(passed, Loss.zero()).epsilon
        assert total is not None
        return total

    assert spent(Door) == 1
    assert spent(ForgetfulDoor) == 2


def test_a_door_opens_once() -> None:
    step = three_counts()
    door = Door(small_plan(step), MemoryLedger())
    with door:
        door.release_counts(step, EXACT)
    with door, rejects(UseError, raised_in="Door._admit_step"):
        door.release_counts(step, EXACT)


def test_floats_do_not_pass() -> None:
    step = three_counts()
    with Door(small_plan(step), MemoryLedger()) as door, rejects(MechanismError, raised_in="require_integers"):
        door.release_counts(step, EXACT.astype(float))


def test_the_statement_is_built_from_the_ledger() -> None:
    ledger, step = MemoryLedger(), three_counts()
    door = Door(small_plan(step), ledger)
    with door:
        with rejects(UseError, raised_in="Door._finished_reservation"):
            door.certificate()
        door.release_counts(step, EXACT)
    statement = door.certificate()
    (entry,) = ledger.entries()
    assert statement.is_private
    assert statement.epsilon == float(entry.loss.epsilon or 0) == 1
    assert statement.ledger_entry == entry.id
    assert statement.plan_hash == entry.plan == door.plan.fingerprint()
    assert statement.adjacency == "add-remove"
    assert Assumption.IN_MEMORY.value in statement.assumptions


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")
def test_seeding_cannot_be_slipped_in_after_the_charge() -> None:
    step = three_counts()
    slipped_in, refused = entropy.seeded_for_tests(0), rejects(UseError, raised_in="Door._admit_step")
    with Door(small_plan(step), MemoryLedger()) as door, slipped_in, refused:
        door.release_counts(step, EXACT)


def test_a_ledger_without_a_limit_that_was_given_is_written_to() -> None:
    """Only where none was given nothing is written down."""
    car, book = vw.datasets.car(), vw.MemoryLedger()
    vw.RandomTreesClassifier(car.schema, epsilon=0.5, ledger=book).fit(car.X, car.y)
    vw.RandomTreesClassifier(car.schema, epsilon=0.5).fit(car.X, car.y)
    assert [entry.state for entry in book.entries()] == ["committed"]
    assert book.spent.epsilon == Fraction(1, 2)


def test_a_release_covers_one_other_of_the_same_loss() -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, **TINY_TREES).fit(car.X, car.y)
    plan = forest.plan_
    encoding = forest.model_.encoding
    (step,) = plan.steps
    with Door(plan, vw.MemoryLedger()) as door:
        door.release_counts(step, np.zeros(step.shape, np.int64))
        with rejects(UseError, raised_in="ParallelDoor.__enter__"), ParallelDoor(plan, door):
            pass
    source = open_rows(car.X, car.y, encoding)
    larger = evaluation_plan(forest, vw.RandomTreesClassifier(epsilon=2.0)._requested_privacy()[0], plan.neighbours)
    with rejects(UseError, raised_in="ParallelDoor.__enter__"):
        measure_quality(forest, source, Release(ParallelDoor(larger, door)))
    same = evaluation_plan(forest, plan.loss, plan.neighbours)
    assert measure_quality(forest, source, Release(ParallelDoor(same, door))).privacy.epsilon == 1.0
    with rejects(UseError, raised_in="ParallelDoor.__enter__"):
        measure_quality(forest, source, Release(ParallelDoor(same, door)))


@pytest.mark.parametrize("promise", [{"adjacency": "replace-one"}, {"privacy_unit": 2}], ids=str)
def test_where_a_unit_can_be_in_both_parts_nothing_is_covered(promise: dict[str, Any]) -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, **TINY_TREES, **promise).fit(car.X, car.y)
    plan = forest.plan_
    (step,) = plan.steps
    with Door(plan, vw.MemoryLedger()) as door:
        door.release_counts(step, np.zeros(step.shape, np.int64))
    with (
        rejects(UseError, raised_in="ParallelDoor.__enter__"),
        ParallelDoor(evaluation_plan(forest, plan.loss, plan.neighbours), door),
    ):
        pass


def test_other_neighbours_and_releases_that_were_not_charged_cover_nothing() -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, **TINY_TREES).fit(car.X, car.y)
    plan = forest.plan_
    (step,) = plan.steps
    of_two = evaluation_plan(forest, plan.loss, Neighbours("add-remove", Rows(2)))
    same = evaluation_plan(forest, plan.loss, plan.neighbours)
    with Door(plan, vw.MemoryLedger()) as door:
        door.release_counts(step, np.zeros(step.shape, np.int64))
    with rejects(UseError, raised_in="ParallelDoor.__enter__"), ParallelDoor(of_two, door):
        pass
    with ParallelDoor(same, door) as second:
        second.release_counts(same.steps[0], np.zeros(same.steps[0].shape, np.int64))
    with TrialDoor(plan, TrialBudget(plan.loss, plan.neighbours)) as trial:
        trial.release_counts(step, np.zeros(step.shape, np.int64))
    for uncharged in (second, trial):  # a third release would be covered by the first
        with rejects(UseError, raised_in="ParallelDoor.__enter__"), ParallelDoor(same, uncharged):
            pass


def test_a_fit_whose_steps_may_add_up_either_way_covers_an_evaluation() -> None:
    car, book = vw.datasets.car(), vw.MemoryLedger()
    forest = vw.PrivateForestClassifier(car.schema, delta=1e-6, ledger=book)
    assert forest.plan().loss.accounting_open
    forest.fit(car.X, car.y, holdout_fraction=0.3)
    assert (forest.evaluation_.privacy.epsilon, forest.evaluation_.privacy.delta) == (1.0, 0.0)
    assert len(book.entries()) == 1
