# SPDX-License-Identifier: Apache-2.0
"""What all estimators share: parameters, plans, failed fits, class weights, importances, predictions."""

from __future__ import annotations

import math
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.errors import ParameterError, VeilwoodError
from veilwood.estimators.parameters import to_plain_value
from veilwood.forests.adaptive.private_forest import PrivateForestModel
from veilwood.privacy import accountant as spending
from veilwood_testing.errors import rejects
from veilwood_testing.small_forests import SMALL_TREES

pytestmark = [pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning")]

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (np.float64(0.5), 0.5), (np.int64(3), 3), (math.inf, "inf"), (Fraction(1, 3), "1/3"), (Decimal("0.1"), "0.1"),
        (vw.RowsOf("id", 3), {"id": "id", "at_most": 3}), ((1, [Fraction(1, 2)]), [1, ["1/2"]]),
        ({1: None}, {"1": None}),
    ],
)  # fmt: skip
def test_parameters_are_saved_as_exact_numbers_and_text(given: Any, plain: Any) -> None:
    found = to_plain_value("x", given)
    assert found == plain
    assert type(found) is type(plain)


def test_what_json_cannot_hold_is_refused_by_name() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for given in (object(), 10**1000, "x" * 1_000_000, deep):
        with rejects(ParameterError, name="max_depth"):
            to_plain_value("max_depth", given)


def test_a_plan_needs_no_data_and_is_what_a_fit_carries_out() -> None:
    forest = vw.RandomTreesClassifier(SCHEMA, epsilon=1.0, n_estimators=3, max_depth=2, random_state=0)
    planned = forest.plan().fingerprint()
    X = np.random.default_rng(0).random((50, 2))
    assert forest.fit(X, np.where(X[:, 0] > 0.5, "yes", "no")).plan_.fingerprint() == planned


def test_a_refused_fit_keeps_the_model_that_was_paid_for() -> None:
    forest = vw.RandomTreesClassifier(SCHEMA, epsilon=1.0, n_estimators=3, max_depth=2, random_state=0)
    X = np.random.default_rng(0).random((50, 2))
    forest.fit(X, ["no", "yes"] * 25)
    paid = {name: value for name, value in vars(forest).items() if name.endswith("_")}
    with pytest.raises(VeilwoodError):
        forest.fit(X, ["no", "maybe"] * 25)
    assert paid
    assert all(getattr(forest, name) is value for name, value in paid.items())


def test_the_repr_shows_epsilon_even_where_it_is_the_default() -> None:
    assert "epsilon=1.0" in repr(vw.RandomTreesClassifier(SCHEMA))


CAR = vw.datasets.car()


CLASSIFIERS = [getattr(vw, name) for name in vw.estimators.__all__ if name.endswith("Classifier")]


class TestClasses:
    @pytest.mark.parametrize("Forest", CLASSIFIERS)
    def test_rare_classes_are_found_more_often_for_nothing(self, Forest: Any, tmp_path: Path) -> None:
        ledger = vw.MemoryLedger()
        forest = Forest(CAR.schema, epsilon=10.0, random_state=0, ledger=ledger).fit(CAR.X, CAR.y)
        before = forest.predict_proba(CAR.X)
        rare = forest.classes_ == "vgood"
        forest.set_params(class_weight={"vgood": 30.0})
        after = forest.predict_proba(CAR.X)
        expected = before * np.where(rare, 30.0, 1.0)
        np.testing.assert_allclose(after, expected / expected.sum(axis=1, keepdims=True))
        assert (forest.predict(CAR.X) == "vgood").sum() >= (forest.classes_[before.argmax(axis=1)] == "vgood").sum()
        assert ledger.spent.epsilon == 10
        forest.set_params(class_weight="balanced")
        assert forest.predict_proba(CAR.X)[:, rare].mean() > before[:, rare].mean()
        forest.set_params(ledger=None)
        vw.save(forest, tmp_path / "model")
        np.testing.assert_array_equal(vw.load(tmp_path / "model").predict(CAR.X), forest.predict(CAR.X))

    @pytest.mark.parametrize("given", ["heavy", {"superb": 2.0}, {"acc": 0.0}, {"acc": -1}, {"acc": "x"}, 3.0])
    def test_other_weights_are_refused(self, given: Any) -> None:
        forest = vw.RandomTreesClassifier(CAR.schema, **SMALL_TREES).fit(CAR.X, CAR.y)
        with pytest.raises(vw.VeilwoodError, match="class_weight"):
            forest.set_params(class_weight=given).predict(CAR.X)
        ledger = vw.MemoryLedger()
        with pytest.raises(vw.VeilwoodError, match="class_weight"):  # before anything is spent
            clone(forest).set_params(ledger=ledger).fit(CAR.X, CAR.y)
        assert ledger.entries() == []


def test_effects_count_by_their_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3)
    forest = vw.PrivateForestClassifier(schema, random_state=0).fit(np.full((40, 3), 0.5), ["no", "yes"] * 20)
    main = [SimpleNamespace(column="x1", strength=3.0), SimpleNamespace(column="x0", strength=1.0)]
    monkeypatch.setattr(PrivateForestModel, "explain", lambda self: SimpleNamespace(main=main))
    assert list(forest.feature_names_in_) == ["x0", "x1", "x2"]
    assert forest.feature_importances_.tolist() == pytest.approx([0.1, 0.9, 0.0])
    main.clear()
    assert forest.feature_importances_.tolist() == [0.0, 0.0, 0.0]


def test_the_column_that_sets_classes_apart_counts_most() -> None:
    schema = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
    X = np.random.default_rng(0).random((2000, 2))
    forest = vw.RandomTreesClassifier(schema, epsilon=1e6, n_estimators=20, max_depth=3, random_state=0)
    found = forest.fit(X, np.where(X[:, 1] > 0.5, "yes", "no")).feature_importances_
    assert found.sum() == pytest.approx(1.0)
    assert found[1] > 0.8


@pytest.mark.parametrize("classes", [["no", "yes"], ["a", "b", "c"]])
def test_classes_probabilities_and_log_odds_agree(classes: list[str]) -> None:
    schema = vw.Schema.numeric((0, 1), classes=classes, n_features=2)
    X = np.random.default_rng(0).random((300, 2))
    y = np.array(classes, dtype=object)[np.minimum((X[:, 0] * len(classes)).astype(int), len(classes) - 1)]
    forest = vw.RandomTreesClassifier(schema, epsilon=50.0, n_estimators=8, max_depth=3, random_state=0).fit(X, y)
    shares, labels = forest.predict_proba(X), forest.predict(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(forest.predict_log_proba(X)), shares)
    walked, chosen = forest._predict_encoded(forest._encode_rows(X))
    np.testing.assert_array_equal(chosen, labels)
    np.testing.assert_array_equal(walked, shares)
    odds = forest.decision_function(X)
    assert odds.shape == ((300,) if len(classes) == 2 else (300, 3))
    best = np.where(odds > 0, 1, 0) if len(classes) == 2 else odds.argmax(axis=1)
    clear = np.sort(shares, axis=1)[:, -1] - np.sort(shares, axis=1)[:, -2] > 1e-9
    np.testing.assert_array_equal(forest.classes_[best][clear], labels[clear])


def test_exact_scores_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending._accountant, "warned", set())
    schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    X = np.random.default_rng(0).random((200, 1))
    forest = vw.RandomTreesRegressor(schema, epsilon=100.0, n_estimators=4, max_depth=2, random_state=0)
    forest.fit(X, 10 * X[:, 0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert forest.score(X, 10 * X[:, 0]) == forest.score(X, 10 * X[:, 0]) > 0.3
    assert ["score() is exact" in str(warning.message) for warning in caught] == [True]
