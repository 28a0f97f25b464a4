# SPDX-License-Identifier: Apache-2.0
"""RandomTrees as an estimator: rows declared, bought and read once."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood_testing.sized_forests import CAR

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning"),
    pytest.mark.usefixtures("kept_strategies"),
]


def test_rows_that_are_read_once_need_a_declared_number() -> None:
    forest = vw.RandomTreesClassifier(CAR.schema, random_state=0)
    with pytest.raises(vw.VeilwoodError, match="n_rows"):
        forest.partial_fit(CAR.X, CAR.y)
    declared = clone(forest).set_params(n_rows=2000).partial_fit(CAR.X[:900], CAR.y[:900])
    declared.partial_fit(CAR.X[900:], CAR.y[900:]).release()
    assert declared.privacy_.epsilon == 1


def test_a_delta_is_used_where_the_number_of_rows_is_declared() -> None:
    forest = vw.RandomTreesClassifier(CAR.schema, epsilon=1.0, delta=1e-3, random_state=0)
    assert forest.plan().loss.delta == 0
    assert "delta" in forest.plan().notes
    pure, both = (vw.RandomTreesClassifier(CAR.schema, n_rows=10**5, delta=d, n_estimators=64, random_state=0).plan()
                  for d in (0.0, 1e-3))  # fmt: skip
    assert both.expected_leaf_mse < pure.expected_leaf_mse


@pytest.mark.parametrize("n_rows", [0, -1, 2.5, "many", True, 10**16])
def test_a_number_of_rows_that_is_none_is_refused(n_rows: Any) -> None:
    with pytest.raises(vw.VeilwoodError, match="n_rows"):
        vw.RandomTreesClassifier(CAR.schema, n_rows=n_rows).plan()
