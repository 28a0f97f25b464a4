# SPDX-License-Identifier: Apache-2.0
"""M-RF is measured on what was published: the authors' split, their groups of Adult, and one forest a repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood.data.encoding import Encoding
from veilwood.estimators import MatrixForestPredictor
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_papers.exhibit import read_published
from veilwood_papers.mrf import methods
from veilwood_papers.tables import PublicTables

PANELS = {"Car": "car", "Iris": "iris", "Balance": "balance-scale"}


@pytest.mark.parametrize("panel", PANELS)
def test_the_split_is_that_of_the_authors(panel: str) -> None:
    """The class that is most frequent among training rows has the share among test rows that theirs has."""
    data = methods.split_table(methods.load_table(PublicTables(), PANELS[panel]), 7)
    (other,) = (r for r in read_published("mrf_nonprivate") if r["model"] == "majority class" and r["dataset"] == panel)
    assert round(float(np.mean(data.truth == data.y.value_counts().idxmax())), 4) == float(other["accuracy"])


def test_a_value_on_a_cut_falls_to_its_left() -> None:
    table = methods.load_table(PublicTables(), "iris")
    row = table.X.iloc[[0]].assign(petal_length=5.0, sepal_length=5.0, sepal_width=3.0, petal_width=1.5)
    codes = Encoding(table.schema, "bins").encode(row)
    assert codes.tolist() == [[0, 0, 3, 2]]


def test_a_batch_that_was_planned_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from veilwood.forests.matrix.answering import QueryAnswering

    searched: list[Any] = []
    plan = QueryAnswering.plan_answer
    monkeypatch.setattr(QueryAnswering, "plan_answer", lambda self, *given: searched.append(1) or plan(self, *given))
    data = methods.split_table(methods.load_table(PublicTables(), "car"), 0)
    size: dict[str, Any] = {"n_estimators": 2, "max_depth": 1, "n_jobs": 1, "random_state": 0}
    predictor = MatrixForestPredictor(data.schema, ledger=MemoryLedger(), **size).fit(data.X, data.y)
    assert predictor.plan_answer(data.X_test[:3]).fingerprint() == predictor.plan_answer(data.X_test[:3]).fingerprint()
    predictor.answer(data.X_test[:3])
    assert len(searched) == 1
    predictor.answer(data.X_test[:4])
    predictor.answer(data.X_test[:3], epsilon=0.5)  # answered before, for free: nothing to plan
    predictor.forget_answers()
    predictor.answer(data.X_test[:3], epsilon=0.5)
    predictor.set_params(mechanism="laplace").plan_answer(data.X_test[:3], epsilon=0.5)
    assert len(searched) == 4
