# SPDX-License-Identifier: Apache-2.0
"""One release covers another of the same loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.open_rows import open_rows
from veilwood.evaluation.evaluate import evaluation_plan, measure_quality
from veilwood.privacy.door import Door, ParallelDoor, TrialDoor
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood.privacy.release import Release
from veilwood.privacy.selection import TrialBudget
from veilwood_testing.aside_cases import SMALL


def test_a_release_covers_one_other_of_the_same_loss() -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, **SMALL).fit(car.X, car.y)
    plan = forest.plan_
    encoding = forest.model_.encoding
    (step,) = plan.steps
    with Door(plan, vw.MemoryLedger()) as door:
        door.release_counts(step, np.zeros(step.shape, np.int64))
        with pytest.raises(vw.VeilwoodError, match="charged and finished"), ParallelDoor(plan, door):
            pass
    source = open_rows(car.X, car.y, encoding)
    dearer = evaluation_plan(forest, vw.RandomTreesClassifier(epsilon=2.0)._requested_privacy()[0], plan.neighbours)
    with pytest.raises(vw.VeilwoodError, match="not covered"):
        measure_quality(forest, source, Release(ParallelDoor(dearer, door)))
    same = evaluation_plan(forest, plan.loss, plan.neighbours)
    assert measure_quality(forest, source, Release(ParallelDoor(same, door))).privacy.epsilon == 1.0
    with pytest.raises(vw.VeilwoodError, match="and only one"):
        measure_quality(forest, source, Release(ParallelDoor(same, door)))


@pytest.mark.parametrize("promise", [{"adjacency": "replace-one"}, {"privacy_unit": 2}], ids=str)
def test_where_a_unit_can_be_in_both_parts_nothing_is_covered(promise: dict[str, Any]) -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, **SMALL, **promise).fit(car.X, car.y)
    plan = forest.plan_
    (step,) = plan.steps
    with Door(plan, vw.MemoryLedger()) as door:
        door.release_counts(step, np.zeros(step.shape, np.int64))
    with (
        pytest.raises(vw.VeilwoodError, match="may be in both parts"),
        ParallelDoor(evaluation_plan(forest, plan.loss, plan.neighbours), door),
    ):
        pass


def test_other_neighbours_and_releases_that_were_not_charged_cover_nothing() -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, **SMALL).fit(car.X, car.y)
    plan = forest.plan_
    (step,) = plan.steps
    of_two = evaluation_plan(forest, plan.loss, Neighbours("add-remove", Rows(2)))
    same = evaluation_plan(forest, plan.loss, plan.neighbours)
    with Door(plan, vw.MemoryLedger()) as door:
        door.release_counts(step, np.zeros(step.shape, np.int64))
    with pytest.raises(vw.VeilwoodError, match="not covered"), ParallelDoor(of_two, door):
        pass
    with ParallelDoor(same, door) as second:
        second.release_counts(same.steps[0], np.zeros(same.steps[0].shape, np.int64))
    with TrialDoor(plan, TrialBudget(plan.loss, plan.neighbours)) as trial:
        trial.release_counts(step, np.zeros(step.shape, np.int64))
    for uncharged in (second, trial):  # a third release would be covered by the first
        with pytest.raises(vw.VeilwoodError, match="charged and finished"), ParallelDoor(same, uncharged):
            pass


def test_a_fit_whose_steps_may_add_up_either_way_covers_an_evaluation() -> None:
    car, book = vw.datasets.car(), vw.MemoryLedger()
    forest = vw.PrivateForestClassifier(car.schema, delta=1e-6, ledger=book)
    assert forest.plan().loss.accounting_open
    forest.fit(car.X, car.y, holdout_fraction=0.3)
    assert (forest.evaluation_.privacy.epsilon, forest.evaluation_.privacy.delta) == (1.0, 0.0)
    assert len(book.entries()) == 1
