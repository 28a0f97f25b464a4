# SPDX-License-Identifier: Apache-2.0
"""How much tables count together: found from one number, and left as it is where that is noise."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.arrays import Floats
from veilwood.forests.adaptive import loop
from veilwood.forests.adaptive import table_design as weighing
from veilwood.forests.adaptive.row_backend import SCORE_UNITS, scores_to_probabilities
from veilwood.forests.adaptive.steps import MAX_GAIN
from veilwood.forests.adaptive.table_design import MAX_WEIGHT, ShrunkenTable, estimate_weight, weight_fraction
from veilwood.forests.adaptive.table_design import WEIGHT_FRACTIONS as SHARES
from veilwood.privacy.adaptive_budget import AdaptiveBudget
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Adjacency, Neighbours, Rows

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")


def tables_of(n_classes: int, n_tables: int, weight: float) -> tuple[Floats, list[ShrunkenTable]]:
    """Start and tables that are right if they count fully: independent columns, here counted with a weight."""
    rng = np.random.default_rng(n_classes)
    shares = np.linspace(1, 2, n_classes) / np.linspace(1, 2, n_classes).sum()
    logs = np.log(shares)
    tables = []
    for _ in range(n_tables):
        counts = shares * rng.dirichlet(np.full(4, 3.0), n_classes).T
        said = weight * np.log(counts / counts.sum(axis=1, keepdims=True) / shares)
        tables.append(ShrunkenTable(counts, said[:, 1:] - said[:, :1] if n_classes == 2 else said))
    return (logs[1:] - logs[:1] if n_classes == 2 else logs), tables


def gain_of(start: Floats, tables: list[ShrunkenTable], n_rows: int) -> float:
    """The gain of rows whose columns are independent inside a class, each cut as it is asked for."""
    rng = np.random.default_rng(1)
    shares = scores_to_probabilities(start[None])[0]
    target = rng.choice(len(shares), n_rows, p=shares)
    scores = np.zeros((n_rows, len(start)))
    for table in tables:
        by_class = table.counts / table.counts.sum(axis=0)
        cell = np.array([rng.choice(len(by_class), p=by_class[:, one]) for one in target])
        scores += table.scores[cell]
    told = np.column_stack([np.zeros(n_rows), scores]) if len(start) == 1 else scores
    predicted = scores_to_probabilities(start + scores)
    gains = told[np.arange(n_rows), target] - (predicted * told).sum(axis=1)
    return float(np.clip(gains, -MAX_GAIN / SCORE_UNITS, MAX_GAIN / SCORE_UNITS).sum())


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("weight", [0.6, 1.0, 1.6])
def test_tables_that_count_too_little_or_too_much_are_noticed(n_classes: int, weight: float) -> None:
    start, tables = tables_of(n_classes, 5, weight)
    gain = gain_of(start, tables, 4000)
    found = estimate_weight(gain, 0.0, 4000.0, start, tables, np.random.default_rng(0))
    assert abs(np.log(found * weight)) < 0.6 * abs(np.log(weight)) + 0.1  # one step gets most of the way
    noisy = estimate_weight(gain, 1e12, 4000.0, start, tables, np.random.default_rng(0))
    assert abs(noisy - 1) < 1e-3


def test_a_weight_stays_within_its_limits_whatever_comes_out() -> None:
    start, tables = tables_of(3, 3, 1.0)
    for gain in (-1e300, -1e6, 1e6, 1e300):
        found = estimate_weight(gain, 1.0, 100.0, start, tables, np.random.default_rng(0))
        assert 1 / MAX_WEIGHT <= found <= MAX_WEIGHT
    nothing = [ShrunkenTable(np.ones((2, 3)), np.zeros((2, 3)))]
    assert estimate_weight(5.0, 0.0, 100.0, start, nothing, np.random.default_rng(0)) == 1.0


def test_few_rows_are_not_asked_and_a_unit_of_k_rows_is_asked_like_one_row_at_a_kth() -> None:
    low, high = SHARES
    shares = [weight_fraction(AdaptiveBudget(Loss.pure(Fraction(1)), Neighbours()), n) for n in (10, 100, 900, 10**6)]
    assert shares[:2] == [0.0, 0.0]
    assert low < shares[2] < high
    assert shares[3] == low
    three = weight_fraction(AdaptiveBudget(Loss.pure(Fraction(3)), Neighbours("add-remove", Rows(3))), 900)
    assert three == pytest.approx(shares[2])


def rows_of(independent: bool, n_rows: int) -> tuple[vw.Schema, pd.DataFrame, pd.Series]:
    """Twelve columns: each tells a little, or all of them tell the same."""
    rng = np.random.default_rng(3)
    target = rng.random(n_rows) < 0.3
    told = target[:, None] ^ (rng.random((n_rows, 12 if independent else 1)) < 0.35)
    cells = np.broadcast_to(told, (n_rows, 12))
    columns = [{"name": f"c{j}", "kind": "categorical", "values": ["no", "yes"]} for j in range(12)]
    schema = vw.Schema.from_dict({
        "name": "told", "task": "classification", "target": "y",
        "columns": [*columns, {"name": "y", "kind": "categorical", "values": ["no", "yes"]}],
    })  # fmt: skip
    X = pd.DataFrame({f"c{j}": np.where(cells[:, j], "yes", "no") for j in range(12)})
    return schema, X, pd.Series(np.where(target, "yes", "no"), name="y")


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
@pytest.mark.parametrize("independent", [True, False])
def test_a_fit_weighs_its_tables(independent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that say the same count less, others more; what that brings is seen in the likelihood."""
    schema, X, y = rows_of(independent, 4000)
    right = (y == "yes").to_numpy()
    losses, weights = [], []
    for shares in (SHARES, (0.0, -1.0)):  # weighed, and never
        monkeypatch.setattr(weighing, "WEIGHT_FRACTIONS", shares)
        for seed in range(12):
            with seeded_for_tests(seed):
                forest = vw.PrivateForestClassifier(schema, epsilon=0.065, n_rows=4000, random_state=seed).fit(X, y)
            found = forest.predict_proba(X)[:, list(forest.classes_).index("yes")]
            losses.append(-np.log(np.where(right, found, 1 - found)).mean())
            _, _, weight = forest.plan_.learned.partition("weight ")
            weights.append(float(weight) if weight else 1.0)
    assert weights[12:] == [1.0] * 12
    assert np.mean(weights[:12]) > 1.2 if independent else np.mean(weights[:12]) < 0.85
    assert np.mean(losses[:12]) < np.mean(losses[12:])


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_by_rho_two_rows_that_pull_apart_are_hidden(adjacency: Adjacency, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rows that replace each other, one can have the largest gain and the other the smallest."""
    monkeypatch.setattr(loop, "planned_loss", lambda columns, n_classes, n_rows, asked: asked.loss)
    monkeypatch.setattr(loop, "has_few_rounds", lambda *args: True)
    schema, X, y = rows_of(True, 4000)
    with seeded_for_tests(0):
        forest = vw.PrivateForestClassifier(
            schema, epsilon=0.3, delta=1e-6, adjacency=adjacency, n_rows=4000, random_state=0
        ).fit(X, y)
    (step,) = (step for step in forest.plan_.steps if step.name == "weight of tables")
    assert step.sensitivity >= (MAX_GAIN if adjacency == "add-remove" else 2 * MAX_GAIN) ** 2
