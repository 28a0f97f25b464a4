# SPDX-License-Identifier: Apache-2.0
"""Methods that the DiPriMe paper compares, sound and as published. Each exhibit lists the methods that it shows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import train_test_split

from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.estimators import (  # fmt: skip
    GreedyForestClassifier,
    GreedyForestRegressor,
    MedianForestClassifier,
    MedianForestRegressor,
    RandomTreesClassifier,
    RandomTreesRegressor,
)
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_papers.drawing import mark_not_private
from veilwood_papers.not_private.as_published import (
    DiPriMeClassifierAsPublishedNotPrivate,
    DiPriMeRegressorAsPublishedNotPrivate,
)
from veilwood_papers.tables import PublicTable, PublicTables

RF, ERT, MEDIAN = mark_not_private("RF"), mark_not_private("ERT"), mark_not_private("median forest, no noise")
GREEDY, GREEDY_LABELS, DP_ERT = "greedy forest, sound", "greedy forest of labels, sound", "DP-ERT, sound random trees"
DIPRIME, EXP, FLIP = (
    mark_not_private("DiPriMe as published"),
    mark_not_private("DiPriMeExp as published"),
    mark_not_private("DiPriMeFlip as published"),
)
RANDOM, K_MEDIANS, SELECT = "random attribute, sound", "k-medians, sound", "select then median, sound"
PUBLISHED_AS = {
    "RF": RF, "ERT": ERT, "Median": MEDIAN, "DP-ERT": DP_ERT, "DiPriMe": DIPRIME, "DiPriMeExp": EXP,
    "DiPriMeFlip": FLIP,
}  # fmt: skip
VARIANT = {DIPRIME: "DiPriMe", EXP: "DiPriMeExp", FLIP: "DiPriMeFlip"}
SOUND_VARIANT = {RANDOM: "random-attribute", K_MEDIANS: "k-medians", SELECT: "select-then-median"}
LIKE = {RANDOM: DIPRIME, K_MEDIANS: FLIP, SELECT: FLIP}  # the published method whose depth a sound forest uses
BINS = 5  # bins per numeric column for the greedy baselines, as in the paper


def load_table(tables: PublicTables, name: str) -> PublicTable:
    """Return a data set. The classes of Robot are merged into "moving forward" and the rest, as in the paper."""
    table = tables.load_table(name)
    if name != "wall-following-robot":
        return table
    (target,) = (column for column in table.facts["columns"] if column["name"] == table.facts["target"])
    target["values"] = ["Move-Forward", "other"]
    return table._replace(y=table.y.where(table.y == "Move-Forward", "other"))


def error_unit(table: PublicTable) -> float:
    """Return the squared range by which the paper scales a target, or 1 for classification."""
    if table.facts["task"] == "classification":
        return 1.0
    low = 0.0 if table.facts["name"] == "parkinsons" else float(table.y.min())
    return (float(table.y.max()) - low) ** 2


class _CodedForest:
    """Forest of scikit-learn on the codes of a schema, so that it accepts categories."""

    def __init__(self, schema: Schema, forest: Any) -> None:
        self.encoding, self.forest = Encoding(schema), forest

    def fit(self, X: Any, y: Any) -> _CodedForest:
        self.forest.fit(self.encoding.encode(X), y)
        return self

    def predict(self, X: Any) -> Any:
        return self.forest.predict(self.encoding.encode(X))


def make_forest(
    method: str, table: PublicTable, *, epsilon: float, n_estimators: int, max_depth: int, seed: int,
    trees: str = "disjoint", **more: Any,
) -> Any:  # fmt: skip
    """Return the unfitted forest of a method, for classification or regression."""
    classes = table.facts["task"] == "classification"

    def select_class(classifier: Any, regressor: Any) -> Any:
        return classifier if classes else regressor

    size: dict[str, Any] = {"n_estimators": n_estimators, "max_depth": max_depth, "random_state": seed, "n_jobs": 1}
    if method in (RF, ERT):
        forest = (
            select_class(RandomForestClassifier, RandomForestRegressor) if method == RF
            else select_class(ExtraTreesClassifier, ExtraTreesRegressor)
        )  # fmt: skip
        return _CodedForest(table.schema, forest(max_features=min(5, table.X.shape[1]), **size))
    size["ledger"] = MemoryLedger()
    if method in VARIANT:
        published = select_class(DiPriMeClassifierAsPublishedNotPrivate, DiPriMeRegressorAsPublishedNotPrivate)
        return published(
            table.schema, variant=VARIANT[method], epsilon_in_paper=epsilon, trees=trees, **{**size, **more}
        )
    if method in (GREEDY, GREEDY_LABELS):
        greedy = select_class(GreedyForestClassifier, GreedyForestRegressor)
        own: dict[str, Any] = {"candidates": 5, **({"quality": "gini"} if classes else {})}
        if method == GREEDY_LABELS and classes:
            own["leaf_update"] = "exponential"
        return greedy(_binned_schema(table), epsilon=epsilon, trees=trees, **{**size, **own, **more})
    if method == DP_ERT:
        random = select_class(RandomTreesClassifier, RandomTreesRegressor)
        return random(table.schema, epsilon=epsilon, trees=trees, **{**size, **more})
    median = select_class(MedianForestClassifier, MedianForestRegressor)
    if method == MEDIAN:
        return median(table.schema, epsilon=math.inf, trees="shared", **size)
    return median(table.schema, epsilon=epsilon, trees=trees, variant=SOUND_VARIANT[method], **{**size, **more})


def _binned_schema(table: PublicTable) -> Schema:
    """Return the schema with numeric columns binned into five intervals."""
    columns = []
    for column in table.facts["columns"]:
        cut = column["kind"] == "numeric" and column["name"] != table.facts["target"]
        columns.append({**column, "bins": BINS} if cut else column)
    return Schema.from_dict({**table.facts, "columns": columns})


def holdout_score(forest: Any, table: PublicTable, seed: int, unit: float) -> float:
    """Train on nine tenths of the rows, and return accuracy or mean squared error on the rest."""
    X, X_test, y, truth = train_test_split(table.X, table.y, test_size=0.1, random_state=seed)
    predicted = forest.fit(X, y).predict(X_test)
    right = np.asarray(truth)
    if table.facts["task"] == "classification":
        return float(np.mean(predicted == right))
    return float(np.mean((predicted - right) ** 2) / unit)
