# SPDX-License-Identifier: Apache-2.0
"""Checks that as-published variants do what the papers print and never claim to be private."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.datasets import balance_scale, car
from veilwood.privacy.entropy import seeded_for_tests
from veilwood_papers.not_private import as_published
from veilwood_papers.not_private.as_published import RandomTreesAsPrintedNotPrivate, frequencies_as_printed
from veilwood_testing.exhibits import forest_as_printed


@pytest.fixture
def fitted() -> RandomTreesAsPrintedNotPrivate:
    with pytest.warns(vw.PrivacyWarning, match="eta/k"):
        return forest_as_printed().fit(car().X, car().y)


def test_every_class_here_says_so_by_name_and_parameter() -> None:
    for name in as_published.__all__:
        assert name.endswith("NotPrivate")
        parameters = inspect.signature(getattr(as_published, name)).parameters
        assert "epsilon_in_paper" in parameters
        assert "epsilon" not in parameters


def test_statement_repr_and_plan_say_not_private(fitted: RandomTreesAsPrintedNotPrivate) -> None:
    statement = fitted.privacy_
    assert not statement.is_private
    assert statement.epsilon is None
    assert statement.reason is not None
    assert "eta/k" in statement.reason
    assert "no noise was added" not in statement.reason
    assert "NOT PRIVATE" in str(statement)
    assert "NOT PRIVATE" in repr(fitted)
    assert "NOT PRIVATE" in str(forest_as_printed().plan())


def test_the_ledger_records_it_without_a_bound() -> None:
    ledger = vw.MemoryLedger()
    with pytest.warns(vw.PrivacyWarning):
        forest_as_printed(ledger=ledger).fit(car().X, car().y)
    (entry,) = ledger.entries()
    assert not entry.loss.is_bounded
    assert entry.not_private is not None


@pytest.mark.filterwarnings("error::veilwood.PrivacyWarning")
def test_a_ledger_with_a_budget_refuses_it() -> None:
    ledger = vw.MemoryLedger(epsilon=1000)
    with pytest.raises(vw.BudgetExceededError):  # nothing was released, so nothing is warned of
        forest_as_printed(ledger=ledger).fit(car().X, car().y)


def test_one_warning_for_one_release() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forest_as_printed().fit(car().X, car().y)
    (warning,) = (warning for warning in caught if warning.category is vw.PrivacyWarning)
    assert "eta/k" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
def test_shares_as_printed() -> None:
    kept = frequencies_as_printed(np.array([[3, 1], [0, 5]]))
    assert kept.tolist() == [[0.75, 0.25], [0.0, 1.0]]
    with seeded_for_tests(0):
        for counts in ([-1, 5], [7, -2], [0, 0]):
            drawn = frequencies_as_printed(np.tile(counts, (4000, 1)))
            assert np.allclose(drawn.sum(axis=1), 1)
            # Uniform on [0, 1]: mean 1/2, variance 1/12, a tenth below 1/10.
            assert drawn[:, 0].mean() == pytest.approx(0.5, abs=0.02)
            assert drawn[:, 0].var() == pytest.approx(1 / 12, abs=0.005)
            assert (drawn[:, 0] < 0.1).mean() == pytest.approx(0.1, abs=0.02)


def test_predicts_like_the_sound_estimator_when_noise_is_negligible() -> None:
    data = balance_scale()
    both: dict[str, Any] = {"n_estimators": 40, "max_depth": 2, "random_state": 3, "voting": "threshold"}
    plain = vw.RandomTreesClassifier(data.schema, epsilon=float("inf"), thresholds="range", **both).fit(data.X, data.y)
    with pytest.warns(vw.PrivacyWarning):
        printed = RandomTreesAsPrintedNotPrivate(data.schema, epsilon_in_paper=1e-3, **both).fit(data.X, data.y)
    assert (plain.predict(data.X) == printed.predict(data.X)).mean() > 0.95
    assert (printed.predict(data.X) == printed.predict(data.X)).all()


def test_trees_are_grown_as_printed() -> None:
    sound: dict[str, Any] = {"n_estimators": 4, "max_depth": 3, "random_state": 0}
    for thresholds in ("range", "path"):
        ours = vw.RandomTreesClassifier(car().schema, thresholds=thresholds, **sound).plan()
        same = ours.choices["structure"] == forest_as_printed().plan().choices["structure"]
        assert same == (thresholds == "range")
    with pytest.raises(vw.VeilwoodError, match=r"thresholds='bounds' is not known"):
        vw.RandomTreesClassifier(car().schema, thresholds="bounds").plan()


def test_clone_keeps_parameters() -> None:
    assert clone(forest_as_printed(epsilon_in_paper=0.25)).get_params()["epsilon_in_paper"] == 0.25


@pytest.mark.parametrize("value", [0, -1, float("inf"), "x"])
def test_bad_epsilon_is_refused(value: object) -> None:
    with pytest.raises(vw.VeilwoodError, match="epsilon_in_paper"):
        forest_as_printed(epsilon_in_paper=value).plan()
