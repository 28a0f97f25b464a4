# SPDX-License-Identifier: Apache-2.0
"""The methods that M-RF compares, on its data sets and at its settings; which of them a figure shows is in its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.model_selection import train_test_split

from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.estimators import MatrixForestClassifier, MatrixForestPredictor
from veilwood.papers.drawing import marked
from veilwood.papers.exhibit import Cell, Job, Row, text_of
from veilwood.papers.tables import Table, Tables
from veilwood.privacy.ledger import MemoryLedger

USUAL, SMALL, TINY = (0.4, 0.6, 0.8, 1.0, 2.0), (0.01, 0.03, 0.05, 0.1, 0.2), (0.01, 0.05, 0.1, 0.5, 1.0)


class Setting(NamedTuple):
    """A published experiment: q ensembles of dbar features each, or of a part each, tau trees in all, depth h."""

    panel: str
    table: str
    q: int
    dbar: int | None
    tau: int
    h: int
    epsilons: tuple[float, ...]
    seconds: float = 1.0  # of one repeat, roughly

    @property
    def trees(self) -> dict[str, Any]:
        """Parameters of the forest; without dbar, features are cut into q parts."""
        cut = {"feature_subsets": "disjoint"} if self.dbar is None else {"max_features": self.dbar}
        return {"n_ensembles": self.q, "n_estimators": self.tau, "max_depth": self.h, **cut}


# The eight columns of Adult that the public experiments keep; the paper's own table has 123 binary columns.
KEPT = {"adult": ("age", "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex")}

TRAIN, LAPLACE, DISJOINT = "DP batch training", "DP batch training, Laplace", "DP disjoint training, Laplace"
PREDICT = "DP batch prediction"
WEIGHT, WEIGHT_EACH = "subsample, weight votes, optimised", "subsample, weight votes, existing"
HARD, HARD_EACH = "subsample, hard votes, optimised", "subsample, hard votes, existing"
EXTRA, NO_NOISE = marked("Extra-Trees, no noise"), marked("random decision trees, no noise")

PUBLISHED_AS = {
    "DP batch training (OPT)": TRAIN,
    "DP batch training (Laplace)": LAPLACE,
    "DP disjoint training (Laplace)": DISJOINT,
    "DP batch prediction (optimised)": PREDICT,
    "subsample-and-aggregate optimised (weight voting)": WEIGHT,
    "subsample-and-aggregate existing (weight voting)": WEIGHT_EACH,
    "subsample-and-aggregate optimised (hard voting)": HARD,
    "subsample-and-aggregate existing (hard voting)": HARD_EACH,
}
METHODS: dict[str, tuple[type, dict[str, Any]]] = {
    TRAIN: (MatrixForestClassifier, {}),
    LAPLACE: (MatrixForestClassifier, {"mechanism": "laplace"}),
    DISJOINT: (MatrixForestClassifier, {"mechanism": "laplace", "trees": "disjoint"}),
    NO_NOISE: (MatrixForestClassifier, {"mechanism": "laplace", "epsilon": float("inf")}),
    PREDICT: (MatrixForestPredictor, {}),
    WEIGHT: (MatrixForestPredictor, {"mode": "subsample"}),
    WEIGHT_EACH: (MatrixForestPredictor, {"mode": "subsample", "mechanism": "laplace"}),
    HARD: (MatrixForestPredictor, {"mode": "subsample", "voting": "hard"}),
    HARD_EACH: (MatrixForestPredictor, {"mode": "subsample", "voting": "hard", "mechanism": "laplace"}),
}


class Split(NamedTuple):
    """Rows to train on and rows to ask about."""

    schema: Schema
    X: pd.DataFrame
    y: pd.Series[Any]
    asked: pd.DataFrame
    truth: NDArray[Any]


def load(tables: Tables, name: str) -> Table:
    """Read a data set; numbers are cut at the points that the public experiments use."""
    table = tables.load(name)
    facts, kept = table.facts, KEPT.get(name, tuple(table.X.columns))
    facts["columns"] = [c for c in facts["columns"] if c["name"] in kept or c["name"] == facts["target"]]
    for column in facts["columns"]:
        if "mrf_cutoffs" in column:
            column["cutoffs"] = column["mrf_cutoffs"]
    X = table.X[[c["name"] for c in facts["columns"] if c["name"] != facts["target"]]]
    texts = {column: "category" for column in X.columns if X[column].dtype == object}  # faster to encode
    return Table(facts, X.astype(texts), table.y)


def split(table: Table, seed: int) -> Split:
    """Cut off a fifth for testing."""
    X, asked, y, truth = train_test_split(table.X, table.y, test_size=0.2, random_state=seed)
    return Split(table.schema, X, y, asked, truth.to_numpy())


def accuracy(data: Split, method: str, trees: dict[str, Any], epsilon: float, seed: int) -> float:
    """Train, ask and compare."""
    if method == EXTRA:
        encoding = Encoding(data.schema, "bins")
        ordinary = ExtraTreesClassifier(trees["n_estimators"], random_state=seed).fit(encoding.encode(data.X), data.y)
        return float(np.mean(ordinary.predict(encoding.encode(data.asked)) == data.truth))
    kind, parameters = METHODS[method]
    if method in (LAPLACE, DISJOINT):  # the baselines have one ensemble over all features
        trees = {**trees, "n_ensembles": 1, "max_features": None, "feature_subsets": "independent"}
    given = {"epsilon": epsilon, "random_state": seed, "n_jobs": 1, "ledger": MemoryLedger(), **trees, **parameters}
    forest = kind(data.schema, **given).fit(data.X, data.y)
    labels = forest.answer(data.asked) if kind is MatrixForestPredictor else forest.predict(data.asked)
    return float(np.mean(labels == data.truth))


def against_epsilon(setting: Setting, data: Split, methods: Sequence[str], seed: int) -> Iterator[Row]:
    """Measure every method at every epsilon of a setting; what has no epsilon once."""
    for method in methods:
        epsilons = setting.epsilons if method not in (EXTRA, NO_NOISE) else (float("inf"),)
        for epsilon in epsilons:
            value = accuracy(data, method, setting.trees, epsilon, seed)
            yield Row(Cell(setting.panel, method, text_of(epsilon)), seed, value)


def repeats(name: str, table: str, n: int, weight: float, **settings: Any) -> list[Job]:
    """Return one job for each of so many public seeds."""
    return [Job(f"{name}, seed {seed}", table, {"seed": seed, **settings}, weight) for seed in range(n)]
