# SPDX-License-Identifier: Apache-2.0
"""The forests that DiPriMe compares: which class stands for which name, and how errors are scaled."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from veilwood import GreedyForestClassifier, MedianForestRegressor, RandomTreesClassifier
from veilwood_papers.diprime import methods
from veilwood_papers.tables import PublicTable

COLUMNS = [
    {"name": "x", "kind": "numeric", "lower": 0, "upper": 1},
    {"name": "y", "kind": "categorical", "values": ["a", "b"]},
]
NUMBERS = [COLUMNS[0], {"name": "y", "kind": "numeric", "lower": 0, "upper": 10}]


def table(task: str, name: str = "toy") -> PublicTable:
    X = pd.DataFrame({"x": np.linspace(0, 1, 60)})
    y = pd.Series(np.where(X["x"] > 0.5, "b", "a") if task == "classification" else 2 + 6 * X["x"])
    columns = COLUMNS if task == "classification" else NUMBERS
    return PublicTable({"name": name, "task": task, "target": "y", "columns": columns}, X, y)


def make(method: str, task: str) -> object:
    return methods.make_forest(method, table(task), epsilon=2.0, n_estimators=2, max_depth=3, seed=0)


def test_each_name_is_the_forest_it_says() -> None:
    assert isinstance(make(methods.DP_ERT, "classification"), RandomTreesClassifier)
    greedy = make(methods.GREEDY_LABELS, "classification")
    assert isinstance(greedy, GreedyForestClassifier)
    assert (greedy.leaf_update, greedy.candidates) == ("exponential", 5)
    assert {column.bins for column in greedy.schema.features} == {methods.BINS}
    median = make(methods.SELECT, "regression")
    assert isinstance(median, MedianForestRegressor)
    assert median.variant == "select-then-median"
    assert make(methods.MEDIAN, "regression").epsilon == float("inf")  # type: ignore[attr-defined]
    assert "AsPublishedNotPrivate" in type(make(methods.FLIP, "regression")).__name__


def test_errors_are_divided_by_the_square_of_the_range() -> None:
    assert methods.error_unit(table("classification")) == 1.0
    assert methods.error_unit(table("regression")) == pytest.approx(36.0)
    assert methods.error_unit(table("regression", "parkinsons")) == pytest.approx(64.0)


def test_a_forest_is_scored_on_rows_that_it_did_not_see() -> None:
    class Remembers:
        def fit(self, X: pd.DataFrame, y: pd.Series) -> Remembers:
            self.seen = set(X["x"])
            return self

        def predict(self, X: pd.DataFrame) -> np.ndarray:
            assert len(X) == 6
            assert self.seen.isdisjoint(X["x"])
            return np.where(X["x"] > 0.5, "b", "a")

    assert methods.holdout_score(Remembers(), table("classification"), 0, 1.0) == 1.0
