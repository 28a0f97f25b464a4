# SPDX-License-Identifier: Apache-2.0
"""What a fit decides before the data."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import veilwood as vw
from veilwood.estimators.method import FitRequest
from veilwood.forests.adaptive.loop import planned_loss
from veilwood.privacy.loss import requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood_testing.clinic import COLUMNS, forest_of, schema_of, table_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


def test_a_plan_says_in_words_what_would_be_done() -> None:
    car = vw.datasets.car()
    unknown = str(vw.PrivateForestClassifier(car.schema, epsilon=1.0).plan())
    assert all(f"At {n_rows} rows: class counts of" in unknown for n_rows in ("1,000", "30,000", "1,000,000"))
    assert "rounds; each selects" in unknown
    known = vw.PrivateForestClassifier(car.schema, epsilon=1.0, n_rows=1728).plan()
    assert list(known.notes) == ["at 1,728 rows"]
    assert "1,728 rows declared" in str(known)
    numbers = vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=9)
    for n_rows, fewer in ((300, False), (1000, True)):
        plan = str(vw.PrivateForestClassifier(numbers, epsilon=1.0, n_rows=n_rows).plan())
        assert ("or of fewer if one column is strong" in plan) is fewer
    hopeless = forest_of("regression", epsilon=0.01, n_rows=50).plan()
    assert [step.name for step in hopeless.steps] == ["sums of the target"]
    assert "the model would predict the mean of the target" in str(hopeless)


def test_a_delta_is_given_up_where_so_few_steps_come_that_epsilon_alone_is_more() -> None:
    schema = schema_of("two")
    for n_rows, delta in ((500, 0.0), (1_000_000, 1e-6)):
        asked_for = FitRequest("e", {}, schema, requested_loss(1, 1e-6), Neighbours(), 0)
        assert planned_loss(COLUMNS, 2, n_rows, asked_for).delta == pytest.approx(Fraction(delta))
    rich = FitRequest("e", {}, schema, requested_loss(30, 1e-6), Neighbours(), 0)
    assert planned_loss(COLUMNS, 2, 1_000_000, rich).delta == 0  # fine cells take pure epsilon


def test_the_number_of_rows_is_free_where_neighbours_have_as_many() -> None:
    X, y = table_of("regression", 3000)
    free = forest_of("regression", adjacency="replace-one").fit(X, y)
    assert "number of rows" not in [step.name for step in free.plan_.steps]
    assert free.plan_.layout.rows_planned == 3000
    capped = forest_of("regression", adjacency="replace-one", privacy_unit={"id": "who", "at_most": 1})
    capped.fit(X.assign(who=np.arange(3000)), y)  # of ids the number is public, of rows it is not
    assert "number of rows" in [step.name for step in capped.plan_.steps]
