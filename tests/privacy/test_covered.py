# SPDX-License-Identifier: Apache-2.0
"""One release covers another of the same loss."""

from __future__ import annotations

import numpy as np
import pytest

import veilwood as vw
from forests.test_aside import SMALL
from veilwood.data.open_rows import open_rows
from veilwood.estimators.evaluation import evaluation_plan, measure_quality
from veilwood.privacy.covered import CoveredDoor
from veilwood.privacy.door import Door


def test_a_release_covers_one_other_of_the_same_loss() -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, **SMALL).fit(car.X, car.y)
    plan = forest.plan_
    encoding = forest.model_.encoding
    (step,) = plan.steps
    with Door(plan, vw.MemoryLedger()) as door:
        door.noisy(step, np.zeros(step.shape, np.int64))
        with pytest.raises(vw.VeilwoodError, match="after it is finished"), CoveredDoor(plan, door):
            pass
    source = open_rows(car.X, car.y, encoding)
    dearer = evaluation_plan(forest, vw.RandomTreesClassifier(epsilon=2.0).promise()[0], plan.neighbours)
    with pytest.raises(vw.VeilwoodError, match="not covered"):
        measure_quality(forest, source, CoveredDoor(dearer, door))
    same = evaluation_plan(forest, plan.loss, plan.neighbours)
    assert measure_quality(forest, source, CoveredDoor(same, door)).privacy.epsilon == 1.0
    with pytest.raises(vw.VeilwoodError, match="covers one other"):
        measure_quality(forest, source, CoveredDoor(same, door))


def test_a_fit_whose_steps_may_add_up_either_way_covers_an_evaluation() -> None:
    car, book = vw.datasets.car(), vw.MemoryLedger()
    forest = vw.PrivateForestClassifier(car.schema, delta=1e-6, ledger=book)
    assert forest.plan().loss.undecided
    forest.fit(car.X, car.y, evaluate_share=0.3)
    assert (forest.evaluation_.privacy.epsilon, forest.evaluation_.privacy.delta) == (1.0, 0.0)
    assert len(book.entries()) == 1
