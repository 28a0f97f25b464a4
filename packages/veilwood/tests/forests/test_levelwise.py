# SPDX-License-Identifier: Apache-2.0
"""Level-wise forests: how splits and leaves divide the budget."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import veilwood as vw
from veilwood.errors import VeilwoodError
from veilwood.forests.levelwise import LEVEL_FRACTION

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3)
FORESTS = [vw.GreedyForestClassifier, vw.MedianForestClassifier]


@pytest.mark.parametrize("Forest", FORESTS)
def test_levels_share_what_splits_may_cost_and_leaves_get_the_rest(Forest: type) -> None:
    forest = Forest(SCHEMA, epsilon=1.0, n_estimators=4, max_depth=3, split_budget=0.3, random_state=0)
    plan = forest.plan()
    *splits, last = plan.steps
    assert sum(step.loss.epsilon for step in splits) <= Fraction(3, 10)
    assert sum(step.loss.epsilon for step in plan.steps) <= 1
    assert last.loss.epsilon >= Fraction(7, 10)
    assert Fraction(1, 2) > LEVEL_FRACTION


def test_a_level_has_at_most_twice_the_nodes_of_the_one_above() -> None:
    forest = vw.MedianForestClassifier(SCHEMA, n_estimators=4, max_depth=3)
    method: Any = forest._make_method()
    encoding = forest._design_for(SCHEMA).encoding
    assert [method.max_nodes(encoding, depth) for depth in range(3)] == [4, 8, 16]
    assert sum(method.level_fractions()) == 1


@pytest.mark.parametrize("Forest", FORESTS)
def test_forests_of_too_many_leaves_are_refused_before_the_data(Forest: type) -> None:
    with pytest.raises(VeilwoodError, match="max_depth"):
        Forest(SCHEMA, n_estimators=64, max_depth=40).plan()
