# SPDX-License-Identifier: Apache-2.0
"""MatrixForestPredictor as an estimator: an example from end to end, and what it refuses."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.models import file as model_file
from veilwood_testing.answering_cases import predictor_on
from veilwood_testing.matrix_forests import (
    DAYS,
    PLAYED,
    TENNIS,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mode": "batch", "voting": "hard"}, "mode='subsample'"),
        ({"mode": "telepathy"}, "mode='telepathy'"),
        ({"voting": "loud"}, "voting='loud'"),
        ({"mechanism": "magic"}, "mechanism='magic'"),
        ({"max_depth": 7}, "max_depth=7 exceeds"),
        ({"n_ensembles": 9, "n_estimators": 3}, "n_estimators=3"),
        ({"epsilon": -1}, "epsilon=-1"),
        ({"adjacency": "near"}, "adjacency='near'"),
    ],
)
def test_bad_parameters_name_themselves(car: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(vw.VeilwoodError, match=message):
        predictor_on(car, **parameters)


def test_a_plan_needs_queries(car: Any) -> None:
    with pytest.raises(vw.VeilwoodError, match="plan_answer"):
        vw.MatrixForestPredictor(car.schema).plan()


def test_tennis_example_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 1 of the paper without noise: votes Q T' T D for three days, the first of them sunny and windy."""
    T = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]])
    D = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [1, 0]])
    expected = np.eye(6)[[1, 2, 5]] @ T.T @ T @ D
    both = (
        vw.MatrixForestPredictor(TENNIS, epsilon=math.inf, n_estimators=2, max_depth=1, random_state=state)
        for state in range(20)
    )
    predictor = next(
        p for p in both if set(p.fit(DAYS, PLAYED).forest_.feature[p.forest_.roots]) == {0, 1}
    )  # fmt: skip
    votes = predictor._release_votes(predictor._encode_rows(DAYS.iloc[[1, 2, 5]]), predictor._batch_loss(None))
    np.testing.assert_allclose(votes, expected, atol=1e-9)
    assert predictor.answer(DAYS.iloc[[1, 2, 5]]).tolist() == ["no", "yes", "no"]
    assert not predictor.privacy_.is_private


@pytest.mark.parametrize("mode", ["batch", "subsample"])
def test_the_predictor_does_not_leave_the_process(car: Any, mode: str, tmp_path: Any) -> None:
    predictor = predictor_on(car, mode=mode)
    predictor.answer(car.X[:10])
    for leave in (pickle.dumps, copy.copy, copy.deepcopy, lambda thing: model_file.save(thing, tmp_path / "model")):
        with pytest.raises(vw.VeilwoodError, match="cannot be"):
            leave(predictor)
    assert list(tmp_path.iterdir()) == []
    assert "_exact" not in vars(clone(predictor))
    with pytest.raises(Exception, match="not fitted"):
        clone(predictor).answer(car.X[:10])
