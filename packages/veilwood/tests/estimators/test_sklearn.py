# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's own checks on every estimator, and the tools users combine estimators with."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV, TunedThresholdClassifierCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import veilwood as vw
from veilwood import estimators
from veilwood.datasets import Dataset
from veilwood.privacy.entropy import seeded_for_tests
from veilwood_testing.small_forests import ONE_COLUMN_SCHEMA, SMALL_TREES

APART = ("MatrixForestPredictor", "PrivateForestClassifier", "PrivateForestRegressor")  # have tests of their own
CLASSES = [getattr(vw, name) for name in estimators.__all__ if name not in APART]


def small(Forest: Any, epsilon: float) -> Any:
    # Shared trees: a secret key that gives rows to trees would make two fits differ, with or without noise.
    parameters: dict[str, Any] = {"n_estimators": 5, "max_depth": 3, "trees": "shared", "random_state": 0}
    parameters["max_weight"] = 5  # declared, since checks weigh rows
    if "branching" in Forest().get_params():
        parameters["branching"] = "binary"  # a multiway tree needs as many columns as it is deep
    if Forest is vw.MatrixForestClassifier:
        parameters |= {"n_estimators": 2, "max_depth": 2}  # it searches a strategy in every fit
    return Forest(schema="infer", epsilon=epsilon, **parameters)


NOISY_CLASSES = [vw.RandomTreesClassifier, vw.MedianForestRegressor, vw.MatrixForestClassifier]  # one per base class
NOISY = [small(Forest, 10.0) for Forest in NOISY_CLASSES]
OTHER_NOISY = [small(Forest, 10.0) for Forest in CLASSES if Forest not in NOISY_CLASSES]
NOISELESS = [small(Forest, math.inf) for Forest in CLASSES]

FRESH_NOISE = "fits twice and compares predictions, but every fit draws fresh noise; holds below without noise"


WEIGHTS = {
    "check_all_zero_sample_weights_error": "whether all weights are 0 is private: the fit goes on, and noise comes out",
    "check_sample_weight_equivalence_on_dense_data": (
        "the schema is inferred from all rows here, those of weight 0 too; with a declared schema a weight is a number "
        "of rows (test_contributions.py)"
    ),
}


def cannot_hold(estimator: Any) -> dict[str, str]:
    if math.isinf(estimator.epsilon):
        return WEIGHTS
    return WEIGHTS | dict.fromkeys(
        [
            "check_fit_idempotent",
            "check_supervised_y_2d",
            "check_classifier_data_not_an_array",
            "check_regressor_data_not_an_array",
            "check_regressors_int",
        ],
        FRESH_NOISE,
    )


def by_default(Forest: Any) -> Any:
    """No parameter but what checks cannot do without: they have no schema, and weigh rows.

    Matrix forests without noise: with it each of hundreds of fits searches four sizes, up to a minute on wide tables.
    """
    noise = {"epsilon": math.inf} if Forest is vw.MatrixForestClassifier else {}
    return Forest(schema="infer", max_weight=5, **noise)


TWO_PASSES = (
    "partial_fit cannot count the rows before it chooses a size: it needs n_rows or a size, and says so; "
    "with both the same checks pass above"
)


def cannot_hold_by_default(estimator: Any) -> dict[str, str]:
    once = hasattr(estimator, "partial_fit") and math.isfinite(estimator.epsilon)
    names = ["check_fit_score_takes_y", "check_n_features_in_after_fitting", "check_estimators_partial_fit_n_features"]
    return cannot_hold(estimator) | (dict.fromkeys(names, TWO_PASSES) if once else {})


@pytest.fixture
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vw.PrivacyWarning)
        warnings.simplefilter("ignore", vw.UtilityWarning)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_no_warnings")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [by_default(Forest) for Forest in [*CLASSES, vw.PrivateForestClassifier, vw.PrivateForestRegressor]],
    expected_failed_checks=cannot_hold_by_default,
)
def test_scikit_learn_checks_with_default_parameters_and_fresh_noise(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture
def _seeded(_no_warnings: None) -> Iterator[None]:
    with seeded_for_tests(0):
        yield


@pytest.mark.usefixtures("_seeded")
@parametrize_with_checks([*NOISY, *NOISELESS], expected_failed_checks=cannot_hold)  # type: ignore[untyped-decorator]
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.usefixtures("_seeded")
@parametrize_with_checks(OTHER_NOISY, expected_failed_checks=cannot_hold)  # type: ignore[untyped-decorator]
def test_scikit_learn_checks_of_the_other_noisy_estimators(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def car() -> Dataset:
    return vw.datasets.car()


def forest(car: Dataset, **parameters: Any) -> vw.RandomTreesClassifier:
    usual: dict[str, Any] = {"schema": car.schema, "n_estimators": 4, "max_depth": 3, "random_state": 0}
    return vw.RandomTreesClassifier(**usual | parameters)


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")
class TestLedgerIsChargedForEachFit:
    def test_clone_keeps_the_ledger(self, car: Dataset) -> None:
        ledger = vw.MemoryLedger(epsilon=2)
        clone(forest(car, ledger=ledger)).fit(car.X, car.y)
        assert ledger.spent.epsilon == 1

    def test_cross_val_score(self, car: Dataset) -> None:
        ledger = vw.MemoryLedger(epsilon=5)
        scores = cross_val_score(forest(car, ledger=ledger), car.X, car.y, cv=5)
        assert len(scores) == 5
        assert ledger.spent.epsilon == 5
        with pytest.raises(vw.BudgetExceededError, match="insufficient privacy budget"):
            forest(car, ledger=ledger).fit(car.X, car.y)

    def test_grid_search_in_processes(self, car: Dataset, tmp_path: Path) -> None:
        ledger = vw.SQLiteLedger(tmp_path / "car.ledger", epsilon=5)
        search = GridSearchCV(forest(car, ledger=ledger), {"max_depth": [2, 3]}, cv=2, n_jobs=2, error_score="raise")
        search.fit(car.X, car.y)
        assert ledger.spent.epsilon == 5  # two depths, two folds, one final fit
        assert len(ledger.entries()) == 5
        ledger.verify()

    def test_a_ledger_in_memory_does_not_follow_into_processes(self, car: Dataset) -> None:
        search = GridSearchCV(forest(car, ledger=vw.MemoryLedger()), {"max_depth": [2, 3]}, cv=2, n_jobs=2)
        with pytest.raises(Exception, match="pickle") as caught:
            search.fit(car.X, car.y)
        assert "pass a file" in str(caught.value.__cause__)

    def test_fitting_twice_spends_twice(self, car: Dataset) -> None:
        ledger = vw.MemoryLedger()
        forest(car, ledger=ledger).fit(car.X, car.y).fit(car.X, car.y)
        assert ledger.spent.epsilon == 2


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")
class TestInput:
    def test_pipeline(self, car: Dataset) -> None:
        pipeline = Pipeline([("same", FunctionTransformer()), ("forest", forest(car))])
        assert pipeline.fit(car.X, car.y).predict(car.X).shape == (1728,)

    def test_frames_of_all_kinds_agree(self, car: Dataset) -> None:
        import pyarrow as pa

        fitted = forest(car, epsilon=50.0).fit(pl.from_pandas(car.X), pl.Series(car.y.to_list()))
        expected = fitted.predict(car.X)
        assert (fitted.predict(pl.from_pandas(car.X)) == expected).all()
        assert (fitted.predict(pa.Table.from_pandas(car.X)) == expected).all()
        assert (fitted.predict(car.X.to_numpy()) == expected).all()
        assert (fitted.predict(car.X[car.X.columns[::-1]]) == expected).all()

    @pytest.mark.parametrize(
        ("labels", "given", "kind"),
        [
            ([0, 1], [0, 1], "i"),
            (["0", "1"], [0, 1], "O"),
            (["no", "yes"], ["no", "yes"], "O"),
            ([False, True], [False, True], "b"),
            ([1.0, 2.0], ["1", "2"], "f"),
        ],
    )
    def test_predictions_have_the_type_that_the_schema_declares(
        self, labels: list[Any], given: list[Any], kind: str
    ) -> None:
        schema = vw.Schema.numeric((0, 1), classes=labels, n_features=2)
        rng = np.random.default_rng(0)
        X = rng.random((400, 2))
        y = np.array(given)[(X[:, 0] > 0.5).astype(int)]
        fitted = vw.RandomTreesClassifier(schema, epsilon=50.0, random_state=0).fit(X, y)
        assert fitted.predict(X).dtype.kind == kind
        assert fitted.score(X, y) > 0.8

    def test_no_schema_is_refused(self, car: Dataset) -> None:
        with pytest.raises(vw.UndeclaredSchemaError, match="schema"):
            vw.RandomTreesClassifier().fit(car.X, car.y)

    def test_refused_input_spends_nothing(self, car: Dataset) -> None:
        ledger = vw.MemoryLedger(epsilon=1)
        bad = pd.concat([car.X, car.X[:1].assign(safety="superb")])
        with pytest.raises(vw.OutOfSchemaError, match="safety"):
            forest(car, ledger=ledger).fit(bad, [*car.y, "acc"])
        assert ledger.spent.epsilon == 0

    @pytest.mark.parametrize(
        ("parameter", "value"),
        [
            ("epsilon", 0), ("epsilon", -1), ("epsilon", math.nan), ("epsilon", "many"), ("epsilon", 1e300),
            ("delta", 1), ("delta", -1e-6), ("n_estimators", 0), ("n_estimators", 2.5), ("max_depth", 0),
            ("max_depth", 500), ("voting", "loud"), ("trees", "oak"), ("leaves", "gold"), ("adjacency", "near"),
            ("privacy_unit", 0), ("privacy_unit", "people"), ("random_state", -3), ("schema", 7),
            ("schema", "nowhere.json"),
        ],
    )  # fmt: skip
    def test_bad_parameters_name_themselves(self, car: Dataset, parameter: str, value: Any) -> None:
        ledger = vw.MemoryLedger(epsilon=1)
        with pytest.raises(vw.VeilwoodError, match=parameter if parameter != "schema" else "schema|nowhere"):
            forest(car, ledger=ledger, **{parameter: value}).fit(car.X, car.y)
        assert ledger.spent.epsilon == 0


@pytest.mark.parametrize("name", estimators.__all__)
@pytest.mark.filterwarnings("error")
def test_a_notebook_shows_an_estimator_without_a_warning(name: str) -> None:
    """scikit-learn reads the docstring for the tooltips of its diagram, and wonders at sections it does not know."""
    assert name in getattr(vw, name)(vw.datasets.iris().schema)._repr_html_()


FITTED_CLASSIFIERS = [Forest for Forest in [*CLASSES, vw.PrivateForestClassifier] if Forest._task == "classification"]


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning", "ignore::veilwood.PrivacyWarning")
class TestWhatClassifiersSay:
    @pytest.mark.parametrize("Forest", FITTED_CLASSIFIERS)
    def test_probabilities_are_never_zero_and_logs_and_odds_follow(self, Forest: Any, car: Dataset) -> None:
        fitted = Forest(car.schema, epsilon=20.0, random_state=0).fit(car.X, car.y)
        shares = fitted.predict_proba(car.X)
        assert shares.min() > 0
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        np.testing.assert_allclose(np.exp(fitted.predict_log_proba(car.X)), shares)
        best = fitted.decision_function(car.X).argmax(axis=1)  # of two that are equal but for the last bit, either
        np.testing.assert_allclose(np.take_along_axis(shares, best[:, None], axis=1)[:, 0], shares.max(axis=1))

    @pytest.mark.parametrize("Forest", [*CLASSES, vw.PrivateForestClassifier, vw.PrivateForestRegressor])
    def test_importances_find_the_column_that_matters(self, Forest: Any) -> None:
        rng = np.random.default_rng(0)
        X = rng.random((4000, 3))
        more = {"classes": ["no", "yes"]} if Forest._task == "classification" else {"target_bounds": (0, 1)}
        schema = vw.Schema.numeric((0, 1), n_features=3, **more)
        y = np.where(X[:, 1] > 0.5, "yes", "no") if Forest._task == "classification" else X[:, 1]
        small = {} if "Private" in Forest.__name__ else {"n_estimators": 8, "max_depth": 3}
        forest = Forest(schema, epsilon=20.0, random_state=0, **small)
        assert not hasattr(forest, "feature_importances_")
        found = forest.fit(X, y).feature_importances_
        assert found.shape == (3,)
        assert found.sum() == pytest.approx(1)
        assert found.argmax() == 1

    def test_a_decision_of_two_classes_is_above_zero(self) -> None:
        X = np.linspace(0, 1, 2000)[:, None]
        schema = vw.Schema.numeric((0, 1), n_features=1, classes=["no", "yes"])
        forest = vw.PrivateForestClassifier(schema, epsilon=5.0, random_state=0).fit(
            X, np.where(X[:, 0] > 0.5, "yes", "no")
        )
        assert ((forest.decision_function(X) > 0) == (forest.predict(X) == "yes")).all()

    def test_thresholds_are_tuned_with_text_labels(self) -> None:
        X = np.linspace(0, 1, 600)[:, None]
        y = np.where(X[:, 0] > 0.7, "yes", "no")
        schema = vw.Schema.numeric((0, 1), n_features=1, classes=["no", "yes"])
        forest = vw.PrivateForestClassifier(schema, epsilon=5.0, random_state=0)
        tuned = TunedThresholdClassifierCV(forest, cv=2, scoring="balanced_accuracy").fit(X, y)
        assert set(tuned.predict(X)) <= {"no", "yes"}
        fixed = FixedThresholdClassifier(forest, threshold=0.3, pos_label="yes").fit(X, y)
        assert (fixed.predict(X) == y).mean() > 0.8


CAR = vw.datasets.car()


MEMBERS = [
    ("private", vw.PrivateForestClassifier(CAR.schema, epsilon=5.0, random_state=0)),
    ("random", vw.RandomTreesClassifier(CAR.schema, epsilon=5.0, **SMALL_TREES)),
]


class TestTogether:
    @pytest.mark.parametrize("voting", ["hard", "soft"])
    def test_forests_vote_with_text_labels(self, voting: str) -> None:
        together = VotingClassifier(MEMBERS, voting=voting).fit(CAR.X, CAR.y)
        assert set(together.predict(CAR.X)) <= set(CAR.schema.classes)
        assert together.classes_.tolist() == sorted(CAR.schema.classes)

    def test_forests_are_stacked_with_text_labels(self) -> None:
        final = LogisticRegression(max_iter=300)
        together = StackingClassifier(MEMBERS, final_estimator=final, cv=2).fit(CAR.X, CAR.y)
        assert set(together.predict(CAR.X)) <= set(CAR.schema.classes)
        assert together.classes_.tolist() == sorted(CAR.schema.classes)

    def test_numbers_stand_for_texts_only_where_no_class_is_a_number(self) -> None:
        rows, schema = [[0.1], [0.9]], vw.Schema.numeric((0, 1), classes=["1", "2"], n_features=1)
        with pytest.raises(vw.OutOfSchemaError):
            vw.RandomTreesClassifier(schema, **SMALL_TREES).fit(rows, np.array([0, 1]))
        with pytest.raises(vw.OutOfSchemaError):
            vw.RandomTreesClassifier(ONE_COLUMN_SCHEMA, **SMALL_TREES).fit(rows, np.array([0, 2]))
        fitted = vw.RandomTreesClassifier(ONE_COLUMN_SCHEMA, **SMALL_TREES).fit(rows, np.array([0, 1]))
        assert fitted.classes_.tolist() == [0, 1]

    def test_weights_are_routed(self) -> None:
        with sklearn.config_context(enable_metadata_routing=True):
            forest = vw.RandomTreesClassifier(CAR.schema, max_weight=2, **SMALL_TREES).set_fit_request(
                sample_weight=True
            )
            line = Pipeline([("same", FunctionTransformer()), ("forest", forest)])
            line.fit(CAR.X, CAR.y, sample_weight=np.ones(len(CAR.y)))
            assert line.predict(CAR.X).shape == (1728,)

    def test_frames_pass_through_a_pipeline_with_their_names(self) -> None:
        iris = vw.datasets.iris()
        schema = vw.Schema.from_dict({**iris.schema.to_dict(), "columns": [
            {"name": c["name"], "kind": "numeric", "lower": -4, "upper": 4} if c["kind"] == "numeric" else c
            for c in iris.schema.to_dict()["columns"]]})  # fmt: skip
        line = Pipeline([("scale", StandardScaler()), ("forest", vw.PrivateForestClassifier(schema, epsilon=20.0))])
        line.set_output(transform="pandas").fit(iris.X, iris.y)
        assert line[-1].feature_names_in_.tolist() == list(iris.X.columns)
        assert line.score(iris.X, iris.y) > 0.6
