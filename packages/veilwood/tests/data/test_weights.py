# SPDX-License-Identifier: Apache-2.0
"""Weights: of rows, which are paid for, and of classes, which cost nothing; and how scikit-learn passes them on."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.data.contributions import Weights
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.privacy.neighbours import RowsOf
from veilwood_testing.weights_cases import SCHEMA, SMALL

EVERY = [getattr(vw, name) for name in vw.estimators.__all__ if not name.endswith("Predictor")]

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning")


class TestRows:
    @pytest.mark.parametrize("weight", [0.0, 0.3, 1.0, 2.5, 3.0, 7.0, math.inf])
    def test_a_row_counts_its_weight_on_average_and_never_more_than_declared(self, weight: float) -> None:
        """The sensitivity by enumeration: whatever one weight is, one row adds at most the declared maximum."""
        copies = Weights(np.full(4000, weight), 3).draw_copies(4000, "refuse")
        assert copies.max() <= 3
        assert copies.mean() == pytest.approx(min(weight, 3), abs=0.06)  # 7 standard errors

    @pytest.mark.parametrize(
        "odd", ["x", "", 10**400, pd.NA, None, Decimal("sNaN"), [1], -1.0, math.nan], ids=lambda odd: repr(odd)[:9]
    )
    def test_no_weight_can_refuse_where_rows_are_dropped(self, odd: Any) -> None:
        """One row's weight decided whether the fit was refused, or failed."""
        for given in ([1.0, 2.0, odd], pd.Series([1.0, 2.0, odd], dtype=object)):
            assert Weights(given, 3).draw_copies(3, "drop").tolist() == [1, 2, 0]
            with pytest.raises(vw.OutOfSchemaError, match="below 0, missing or not numbers"):
                Weights(given, 3).draw_copies(3, "refuse")

    def test_one_row_moves_counts_by_no_more_than_the_plan_says(self) -> None:
        forest = vw.RandomTreesClassifier(SCHEMA, max_weight=3, **SMALL)
        (step,) = forest.plan().steps
        assert step.sensitivity == 4 * 3
        design, method = forest._design_for(SCHEMA), forest._make_method()
        X, y = np.array([[0.2], [0.8], [0.5]]), ["no", "yes", "no"]
        for weight in (0.0, 1.0, 2.5, 3.0, 1e9):
            with_it, without = (
                open_rows(X[:n], y[:n], design.encoding, weights=Weights([1.0, 3.0, weight][:n], 3)).aggregate(
                    method.make_count(design)
                )
                for n in (3, 2)
            )
            assert np.abs(with_it - without).sum() <= step.sensitivity
        # The twin that forgets the maximum in its plan is caught by the same weights.
        assert np.abs(with_it - without).sum() > vw.RandomTreesClassifier(SCHEMA, **SMALL).plan().steps[0].sensitivity

    def test_what_comes_out_tells_no_more_than_epsilon(self) -> None:
        """An attack: one row of the largest weight, in or out, judged by its leaf; half the noise is caught."""
        rng, n = np.random.default_rng(0), 4000
        most, epsilon = 3, 1.0

        def shown(scale: float) -> float:
            noise = rng.geometric(1 - np.exp(-1 / scale), (2, 2, n))
            inside, outside = (noise[:, 0] - noise[:, 1]) + np.array([[most], [0]])
            guessed = [float((values >= most).mean()) for values in (inside, outside)]
            return math.log(guessed[0] / guessed[1])

        forest = vw.RandomTreesClassifier(SCHEMA, epsilon=epsilon, max_weight=most, n_estimators=1, max_depth=1)
        scale = float(forest.plan().steps[0].mechanism.scale)  # type: ignore[union-attr]
        assert shown(scale) < epsilon + 0.25
        assert shown(scale / 2) > epsilon + 0.25

    @pytest.mark.parametrize("family", ["RandomTrees", "MedianForest", "GreedyForest", "MatrixForest"])
    def test_a_whole_weight_is_so_many_rows(self, family: str) -> None:
        data = vw.datasets.iris()
        weights = np.random.default_rng(0).integers(0, 4, len(data.y))
        sized: dict[str, Any] = {"n_estimators": 3, "max_depth": 2, "trees": "shared", "random_state": 0}
        forest = getattr(vw, f"{family}Classifier")(data.schema, epsilon=math.inf, max_weight=4, **sized)
        weighed = clone(forest).fit(data.X, data.y, sample_weight=weights)
        repeated = clone(forest).fit(data.X.loc[data.X.index.repeat(weights)], np.repeat(np.asarray(data.y), weights))
        np.testing.assert_allclose(weighed.predict_proba(data.X), repeated.predict_proba(data.X))

    def test_heavier_rows_are_learned_from(self) -> None:
        X = np.tile([[0.2], [0.8]], (500, 1))
        y = np.array(["no", "yes"] * 500)
        noisy = np.where(np.arange(1000) % 4 < 2, y, "no")  # a half of the rows say nothing but no
        weights = np.where(np.arange(1000) % 4 < 2, 4.0, 0.2)
        for Forest in (vw.RandomTreesClassifier, vw.PrivateForestClassifier, vw.MedianForestClassifier):
            forest = Forest(SCHEMA, epsilon=40.0, max_weight=4, random_state=0).fit(X, noisy, sample_weight=weights)
            assert forest.predict_proba([[0.8]])[0, 1] > 0.7, Forest.__name__
            assert forest.privacy_.unit == "any 4 rows"

    def test_rows_of_a_person_are_capped_before_they_are_weighed(self) -> None:
        forest = vw.RandomTreesClassifier(SCHEMA, privacy_unit={"id": "who", "at_most": 2}, max_weight=3, **SMALL)
        assert forest.plan().steps[0].sensitivity == 4 * 2 * 3
        table = pd.DataFrame({"x0": [0.5] * 10, "who": ["a"] * 10})
        encoding = Encoding(SCHEMA, "grid")
        table = table.rename(columns={"x0": SCHEMA.feature_names[0]})
        weights = Weights(np.full(10, 3.0), 3)
        rows = open_rows(table, ["no"] * 10, encoding, unit=RowsOf("who", 2), weights=weights)
        assert sum(len(batch.target) for batch in rows.batches()) == 6

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ([1.0, -1.0, 1.0], "below 0"),
            ([1.0, math.nan, 1.0], "missing"),
            (["a"] * 3, "not numbers"),
            ([1.0], "one number"),
        ],
    )
    def test_weights_that_are_none_are_refused_without_their_values(self, weights: Any, message: str) -> None:
        forest = vw.RandomTreesClassifier(SCHEMA, max_weight=2, **SMALL)
        with pytest.raises(vw.OutOfSchemaError, match=message) as caught:
            forest.fit([[0.1], [0.2], [0.3]], ["no"] * 3, sample_weight=weights)
        assert "-1" not in str(caught.value)

    def test_dropping_leaves_such_rows_out(self) -> None:
        forest = vw.RandomTreesClassifier(SCHEMA, max_weight=2, invalid="drop", epsilon=math.inf, **SMALL)
        forest.fit([[0.1], [0.2], [0.3]], ["no"] * 3, sample_weight=[1.0, math.nan, -3.0])
        assert forest.leaf_counts_.sum() == 4  # one row, in each of four trees

    def test_a_bound_must_be_declared(self) -> None:
        with pytest.raises(vw.VeilwoodError, match="max_weight"):
            vw.RandomTreesClassifier(SCHEMA, **SMALL).fit([[0.1]], ["no"], sample_weight=[1.0])
        bad: Any
        for bad in (0, -1, 2.5, "many", True):
            with pytest.raises(vw.VeilwoodError, match="max_weight"):
                vw.RandomTreesClassifier(SCHEMA, max_weight=bad, **SMALL).plan()
        with pytest.raises(vw.VeilwoodError, match="in memory"):
            vw.RandomTreesClassifier(SCHEMA, max_weight=2, **SMALL).fit("rows.csv", sample_weight=[1.0])

    @pytest.mark.parametrize("Forest", EVERY)
    def test_weights_of_one_change_nothing_but_the_price(self, Forest: Any) -> None:
        schema = SCHEMA if Forest._task == "classification" else vw.Schema.numeric(
            (0, 1), target_bounds=(0, 1), n_features=1)  # fmt: skip
        light, heavy = (Forest(schema, random_state=0, max_weight=w).plan() for w in (None, 5))
        assert heavy.steps[0].sensitivity == 5 * light.steps[0].sensitivity
