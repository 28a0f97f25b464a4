# SPDX-License-Identifier: Apache-2.0
"""Evaluations in a database."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.evaluation.scoring import SCORE_BINS
from veilwood_audit.noninterference import force_outcomes
from veilwood_testing.databases import N_ROWS, database_rows, schema_of

EVALUATED: list[tuple[str, str, dict[str, Any]]] = [
    ("RandomTreesClassifier", "two", {"n_estimators": 3, "max_depth": 3}),
    ("RandomTreesRegressor", "number", {"n_estimators": 3, "max_depth": 3}),
    ("MatrixForestClassifier", "three", {"n_estimators": 6, "max_depth": 2}),
    ("MatrixForestClassifier", "three", {"n_estimators": 6, "max_depth": 2, "voting": "geometric"}),
    ("PrivateForestClassifier", "two", {"n_rows": 3000}),
    ("PrivateForestClassifier", "three", {"n_rows": 3000}),
    ("PrivateForestRegressor", "number", {"n_rows": 3000}),
]


@pytest.mark.parametrize(("name", "task", "params"), EVALUATED, ids=lambda value: str(value)[:40])
def test_evaluations_in_a_database_are_those_of_rows_in_memory(
    name: str, task: str, params: dict[str, Any], places: dict[str, dict[str, str]]
) -> None:
    model = getattr(vw, name)(schema_of(task), epsilon=2.0, random_state=0, n_jobs=1, **params)
    model.fit(database_rows(task, 1500, seed=1))

    def counted(X: Any) -> Any:
        with force_outcomes() as passages:
            vw.evaluate(model, X, epsilon=1.0)
        return np.asarray(passages[0].exact)

    here = counted(database_rows(task, N_ROWS))
    row_draws = (
        slice(0, 9 + SCORE_BINS) if task == "three" else slice(None)
    )  # the last table draws a class for each row
    for address in places[task].values():
        there = counted(address)
        assert there.sum() == here.sum()
        assert there[row_draws].tolist() == here[row_draws].tolist()
