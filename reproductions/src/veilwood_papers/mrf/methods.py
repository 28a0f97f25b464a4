# SPDX-License-Identifier: Apache-2.0
"""Methods that the M-RF paper compares, with its data sets and settings. Each figure lists the methods it shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.model_selection import train_test_split

from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.estimators import MatrixForestClassifier, MatrixForestPredictor
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.trees.counting import route_rows
from veilwood_papers.drawing import mark_not_private
from veilwood_papers.exhibit import Cell, Job, Row, Values, as_text, reason_lookup
from veilwood_papers.mrf.adult import adult_in_groups
from veilwood_papers.tables import PublicTable, PublicTables

USUAL, SMALL, TINY = (0.4, 0.6, 0.8, 1.0, 2.0), (0.01, 0.03, 0.05, 0.1, 0.2), (0.01, 0.05, 0.1, 0.5, 1.0)


class PublishedSetting(NamedTuple):
    """Published experiment: q ensembles of dbar features (or a q-th of them) each, tau trees in total, depth h."""

    panel: str
    table: str
    q: int
    dbar: int | None
    tau: int
    h: int
    epsilons: tuple[float, ...]
    seconds: float = 1.0  # approximate run time of one repeat

    @property
    def trees(self) -> dict[str, Any]:
        """Parameters of the forest. Without dbar, the features are partitioned into q parts."""
        cut = {"feature_subsets": "disjoint"} if self.dbar is None else {"max_features": self.dbar}
        return {"n_ensembles": self.q, "n_estimators": self.tau, "max_depth": self.h, **cut}


AUTHORS_SPLIT, DRAWS = 100, 5
"""Public seed of the authors' single train-test split, and the number of noise draws per forest."""
SAME_ORDER = ("car", "iris", "balance-scale", "mushroom", "adult-both")
"""Tables in the row order of the authors' files, for which this seed gives their split."""

TRAIN, LAPLACE, DISJOINT = "DP batch training", "DP batch training, Laplace", "DP disjoint training, Laplace"
FLOATING = mark_not_private("DP disjoint training, noise in floating point")
PREDICT = "DP batch prediction"
WEIGHT, WEIGHT_EACH = "subsample, weight votes, optimised", "subsample, weight votes, existing"
HARD, HARD_EACH = "subsample, hard votes, optimised", "subsample, hard votes, existing"
EXTRA, NO_NOISE = mark_not_private("Extra-Trees, no noise"), mark_not_private("random decision trees, no noise")
BATCH = (TRAIN, LAPLACE, DISJOINT, FLOATING, PREDICT, EXTRA)
EXISTING = (LAPLACE, FLOATING)
SUBSAMPLE = (WEIGHT, WEIGHT_EACH, HARD, HARD_EACH)

PUBLISHED_AS = {
    "DP batch training (OPT)": TRAIN,
    "DP batch training (Laplace)": LAPLACE,
    "DP disjoint training (Laplace)": FLOATING,
    "DP batch prediction (optimised)": PREDICT,
    "subsample-and-aggregate optimised (weight voting)": WEIGHT,
    "subsample-and-aggregate existing (weight voting)": WEIGHT_EACH,
    "subsample-and-aggregate optimised (hard voting)": HARD,
    "subsample-and-aggregate existing (hard voting)": HARD_EACH,
}
HARD_VOTES = {"voting": "hard"}
"""The voting of the paper's batch training, which is not the default of the estimator."""
METHODS: dict[str, tuple[type, dict[str, Any]]] = {
    TRAIN: (MatrixForestClassifier, HARD_VOTES),
    LAPLACE: (MatrixForestClassifier, {**HARD_VOTES, "mechanism": "laplace"}),
    DISJOINT: (MatrixForestClassifier, {**HARD_VOTES, "mechanism": "laplace", "trees": "disjoint"}),
    NO_NOISE: (MatrixForestClassifier, {**HARD_VOTES, "mechanism": "laplace", "epsilon": float("inf")}),
    PREDICT: (MatrixForestPredictor, {}),
    WEIGHT: (MatrixForestPredictor, {"mode": "subsample"}),
    WEIGHT_EACH: (MatrixForestPredictor, {"mode": "subsample", "mechanism": "laplace"}),
    HARD: (MatrixForestPredictor, {"mode": "subsample", "voting": "hard"}),
    HARD_EACH: (MatrixForestPredictor, {"mode": "subsample", "voting": "hard", "mechanism": "laplace"}),
}


class SplitData(NamedTuple):
    """Training rows, and test rows with their labels."""

    schema: Schema
    X: pd.DataFrame
    y: pd.Series[Any]
    X_test: pd.DataFrame
    truth: NDArray[Any]


def load_table(tables: PublicTables, name: str) -> PublicTable:
    """Return a data set with numeric columns binned at the cut points of the public experiments."""
    table = tables.load_table(name)
    if name in ("adult", "adult-both"):
        table = adult_in_groups(table)
    facts = table.facts
    for column in facts["columns"]:
        if "mrf_cutoffs" in column:  # a value equal to a cut point goes left there and right here
            column["cutoffs"] = [math.nextafter(cut, math.inf) for cut in column["mrf_cutoffs"]]
    texts = {column: "category" for column in table.X.columns if table.X[column].dtype == object}  # faster to encode
    return PublicTable(facts, table.X.astype(texts), table.y)


def split_table(table: PublicTable, seed: int) -> SplitData:
    """Hold out a fifth for testing: the authors' own fifth if their row order is known, otherwise by the seed."""
    used = AUTHORS_SPLIT if table.facts["name"] in SAME_ORDER else seed
    X, X_test, y, truth = train_test_split(table.X, table.y, test_size=0.2, random_state=used)
    return SplitData(table.schema, X, y, X_test, truth.to_numpy())


def mean_accuracy(
    data: SplitData, method: str, trees: dict[str, Any], epsilon: float, seed: int, *, draws: int = DRAWS
) -> float:
    """Return the mean accuracy of one forest over several noise draws, as the authors do."""
    if method == EXTRA:
        encoding = Encoding(data.schema, "bins")
        ordinary = ExtraTreesClassifier(trees["n_estimators"], random_state=seed).fit(encoding.encode(data.X), data.y)
        return float(np.mean(ordinary.predict(encoding.encode(data.X_test)) == data.truth))
    if method == FLOATING:
        return _floating_accuracy(data, trees, epsilon, seed, draws)
    kind, parameters = METHODS[method]
    if method in (LAPLACE, DISJOINT):  # the baselines have one ensemble over all features
        trees = {**trees, "n_ensembles": 1, "max_features": None, "feature_subsets": "independent"}
    given = {"epsilon": epsilon, "random_state": seed, "n_jobs": 1, "ledger": MemoryLedger(), **trees, **parameters}
    forest = kind(data.schema, **given)
    labels = (
        _draw_answers(forest, data, draws) if kind is MatrixForestPredictor else _draw_predictions(forest, data, draws)
    )
    return float(np.mean([predicted == data.truth for predicted in labels]))


def _floating_accuracy(data: SplitData, trees: dict[str, Any], epsilon: float, seed: int, draws: int) -> float:
    """Return the accuracy under the authors' floating-point noise, which breaks all ties, unlike integer noise."""
    size = {"n_estimators": trees["n_estimators"], "max_depth": trees["max_depth"], "random_state": seed, "n_jobs": 1}
    parameters: dict[str, Any] = {"mechanism": "laplace", "trees": "disjoint", "epsilon": math.inf, **size}
    forest = MatrixForestClassifier(data.schema, ledger=MemoryLedger(), **parameters).fit(data.X, data.y)
    leaves, rng = route_rows(forest.forest_, forest._encode_rows(data.X_test)), np.random.default_rng(seed)
    right = []
    for _ in range(draws):
        noisy = forest.leaf_counts_ + rng.laplace(0, 1 / epsilon, forest.leaf_counts_.shape)
        votes = np.eye(noisy.shape[1], dtype=np.int64)[noisy.argmax(axis=1)][leaves].sum(axis=1)
        right.append(forest.classes_[votes.argmax(axis=1)] == data.truth)
    return float(np.mean(right))


def _draw_answers(predictor: MatrixForestPredictor, data: SplitData, draws: int) -> Iterator[NDArray[Any]]:
    predictor.fit(data.X, data.y)
    for _ in range(draws):
        yield predictor.answer(data.X_test)
        predictor.forget_answers()


def _draw_predictions(forest: MatrixForestClassifier, data: SplitData, draws: int) -> Iterator[NDArray[Any]]:
    plan = forest.plan()  # one search for the strategy serves all draws
    for _ in range(draws):
        yield forest.fit(data.X, data.y, plan=plan).predict(data.X_test)


def against_epsilon(
    setting: PublishedSetting, data: SplitData, methods: Sequence[str], seed: int, *, draws: int = DRAWS
) -> Iterator[Row]:
    """Measure each method at each epsilon of a setting, and methods without an epsilon once."""
    for method in methods:
        epsilons = setting.epsilons if method not in (EXTRA, NO_NOISE) else (float("inf"),)
        for epsilon in epsilons:
            value = mean_accuracy(data, method, setting.trees, epsilon, seed, draws=draws)
            yield Row(Cell(setting.panel, method, as_text(epsilon)), seed, value)


ONE_FOREST = (
    "A repeat is what was published once: one forest on the authors' own 80:20 split (public seed 100), mean of five "
    "draws of noise; published is the same as ours where it lies within two standard deviations of repeats."
)


def other_forests(cell: Cell, measured: Values) -> str:
    """Return how far the published result is from the measured forests, and how often that happens by chance."""
    runs = measured[cell].runs if cell in measured else 0
    chance = "" if runs < 2 else f", as about {200 * stats.t.sf(2, runs - 1):.0f} of 100 do by chance"
    return (
        f"tested: other forests at the same settings, with other noise. The published one lies beyond two standard "
        f"deviations of the {runs} measured here{chance}."
    )


deviation_reason = reason_lookup({}, other_forests)


def list_repeats(name: str, table: str, n: int, weight: float, **settings: Any) -> list[Job]:
    """Return one job per public seed."""
    return [Job(f"{name}, seed {seed}", table, {"seed": seed, **settings}, weight) for seed in range(n)]
