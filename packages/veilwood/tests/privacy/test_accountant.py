# SPDX-License-Identifier: Apache-2.0
"""Losses of a process, by handle, and its warnings, which are issued once and never depend on the content of rows."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score

import veilwood as vw
from veilwood.errors import PrivacyWarning, UseError
from veilwood.privacy import accountant as spending
from veilwood.privacy.accountant import DataHandle, SpendRecord, handle_of
from veilwood.privacy.loss import Loss
from veilwood_testing.errors import rejects

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
X = np.linspace(0, 1, 160).reshape(80, 2)
Y = np.where(X[:, 0] > 0.5, "yes", "no")


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember nothing of other tests."""
    monkeypatch.setattr(spending, "_accountant", spending._ProcessAccountant())


def forest(**parameters: Any) -> vw.RandomTreesClassifier:
    usual: dict[str, Any] = {"schema": SCHEMA, "n_estimators": 2, "max_depth": 2}
    return vw.RandomTreesClassifier(**usual | parameters)


def privacy_warnings(use: Any) -> list[str]:
    """Return the warnings about fits whose losses add up."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    words = [str(w.message) for w in caught if issubclass(w.category, PrivacyWarning)]
    return [text for text in words if not text.startswith("score() is exact")]  # told once a process, elsewhere


# -- what was spent ---------------------------------------------------------------------------------------------------


def test_nothing_was_spent_at_first() -> None:
    here = vw.process_spend()
    assert (here.by_handle, here.epsilon, here.delta) == ({}, 0.0, 0.0)
    assert "lower bound" in str(here)


def test_fits_add_up_by_path_and_by_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(X, columns=SCHEMA.feature_names).assign(**{SCHEMA.target.name: Y})
    frame.to_csv("rows.csv", index=False)
    with warnings.catch_warnings(action="ignore"):
        forest(epsilon=0.5).fit("rows.csv")
        forest(epsilon=0.25).fit(tmp_path / "rows.csv")  # the same path, written in another way
        forest(epsilon=1).fit(frame)
        forest(epsilon=2, delta=1e-6, n_estimators=40).fit(frame.copy())
        forest(epsilon=4, ledger=vw.MemoryLedger(9)).fit(frame)  # what stands in a ledger was spent here too
    here = vw.process_spend()
    assert {name: float(loss.epsilon or 0) for name, loss in here.by_handle.items()} == {
        str(tmp_path / "rows.csv"): 0.75,
        "pandas DataFrame in memory 1": 5,
        "pandas DataFrame in memory 2": 2,
    }
    assert list(here.releases.values()) == [2, 2, 1]
    assert (here.epsilon, here.delta) == (7.75, 1e-6)
    assert "epsilon=0.75 in 2 releases" in str(here)
    assert "lower bound" in str(here)


def test_a_release_without_a_guarantee_makes_the_sum_unbounded() -> None:
    with warnings.catch_warnings(action="ignore"):
        forest(epsilon=1).fit(X, Y)
        forest(epsilon=float("inf")).fit(X, Y)
    assert vw.process_spend().epsilon is None
    assert "unbounded (NOT PRIVATE)" in str(vw.process_spend())


def test_a_refused_fit_spent_nothing_and_a_failed_one_did(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(",".join([*SCHEMA.feature_names, SCHEMA.target.name]) + "\n0.1,0.2,perhaps\n")
    with pytest.raises(vw.OutOfSchemaError):
        forest().fit(str(table))
    assert vw.process_spend().by_handle == {}

    def broken() -> Iterator[Any]:
        yield X[:10], Y[:10]
        raise RuntimeError("the disk failed")

    with pytest.raises(RuntimeError, match="disk"):
        forest().fit(broken())
    assert vw.process_spend().epsilon == 1


def test_batches_and_answers_count() -> None:
    model = forest()
    for start in (0, 40):
        model.partial_fit(X[start : start + 40], Y[start : start + 40])
    assert vw.process_spend().by_handle == {}
    model.release()
    assert vw.process_spend().epsilon == 1
    predictor = vw.MatrixForestPredictor(SCHEMA, epsilon=0.5, n_estimators=2, max_depth=2, random_state=0).fit(X, Y)
    predictor.answer(X[:5])
    predictor.answer(X[5:9])
    assert vw.process_spend().epsilon == 2


def test_threads_count_together() -> None:
    def work() -> None:
        for _ in range(500):
            spending.record_spend(SpendRecord(DataHandle("rows"), Loss.pure(Fraction(1, 1000)), False))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert vw.process_spend().epsilon == 4


def test_a_child_process_goes_on_even_if_a_thread_held_the_lock() -> None:
    with spending._accountant.lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if vw.process_spend().epsilon == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0


# -- handles ----------------------------------------------------------------------------------------------------------


class Unreadable:
    """Rows that refuse to be looked at."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__module__", "__name__", "__weakref__"):
            return object.__getattribute__(self, name)
        raise AssertionError(f"{name} was looked at")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("rows were compared")

    def __hash__(self) -> int:
        raise AssertionError("rows were hashed")


def test_rows_are_known_by_identity_never_by_content() -> None:
    rows, same = Unreadable(), Unreadable()
    assert handle_of(rows) == handle_of(rows) != handle_of(same)
    assert handle_of(X) == handle_of(X) != handle_of(X.copy())
    assert handle_of([[1.0]]) != handle_of([[1.0]])
    assert {handle_of(rows).name, handle_of(X).name} == {
        f"{Unreadable.__module__.split('.')[0]} Unreadable in memory",
        "numpy ndarray in memory",
    }


def test_a_new_object_in_an_old_place_is_new() -> None:
    seen = set()
    for _ in range(5):
        seen.add(handle_of(np.zeros(3)))
        gc.collect()
    assert len(seen) == 5
    assert spending._accountant.objects == {}  # and no row is kept alive


# -- who is told ------------------------------------------------------------------------------------------------------


def test_the_second_fit_without_a_ledger_is_told_once() -> None:
    assert privacy_warnings(lambda: forest().fit(X, Y)) == []
    (message,) = privacy_warnings(lambda: forest().fit(X, Y))
    assert "numpy ndarray in memory without a ledger" in message
    assert "process_spend()" in message
    assert privacy_warnings(lambda: forest().fit(X, Y)) == []
    other = X.copy()
    assert privacy_warnings(lambda: forest().fit(other, Y)) == []
    assert len(privacy_warnings(lambda: forest().fit(other, Y))) == 1


def test_the_warning_points_at_the_callers_line() -> None:
    forest().fit(X, Y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forest().fit(X, Y)
    assert [Path(w.filename).name for w in caught] == ["test_accountant.py"]


def test_fits_with_a_ledger_are_not_told() -> None:
    ledger = vw.MemoryLedger(9)
    assert privacy_warnings(lambda: [forest(ledger=ledger).fit(X, Y) for _ in range(3)]) == []
    assert privacy_warnings(lambda: cross_val_score(forest(ledger=ledger), X, Y, cv=2)) == []


@pytest.mark.parametrize(
    "search",
    [
        lambda: cross_val_score(forest(), X, Y, cv=3),
        lambda: GridSearchCV(forest(), {"max_depth": [1, 2]}, cv=2).fit(X, Y),
        lambda: CalibratedClassifierCV(forest(), cv=2).fit(X, Y),
    ],
    ids=["cross_val_score", "GridSearchCV", "calibration"],
)
def test_searches_are_told_once_what_to_do_instead(search: Any) -> None:
    (message,) = privacy_warnings(search)
    assert "cloned" in message
    assert "process_spend()" in message
    assert "tune" in message
    assert privacy_warnings(search) == []


def test_bagging_draws_rows_as_weights_which_the_certificate_covers() -> None:
    """A row that bagging draws several times has that weight, and no weight counts more than ``max_weight``."""
    ledger, places = vw.MemoryLedger(9), Y == "yes"
    schema = vw.Schema.numeric((0, 1), classes=[0, 1], n_features=2)  # bagging numbers the classes
    with rejects(UseError, raised_in="Weights.validated"):
        BaggingClassifier(forest(schema=schema), n_estimators=1).fit(X, places)
    bagging = BaggingClassifier(forest(schema=schema, max_weight=5, ledger=ledger), n_estimators=3)
    assert privacy_warnings(lambda: bagging.fit(X, places)) == []
    assert {str(fitted.plan_.neighbours) for fitted in bagging.estimators_} == {"any 5 rows, added or removed"}
    assert ledger.spent.epsilon == 3
    (message,) = privacy_warnings(lambda: bagging.set_params(estimator__ledger=None).fit(X, places))
    assert "cloned" in message


def test_a_clone_is_known_as_one_in_every_process() -> None:
    """A pickled clone, as a parallel search sends it to a worker, is still a clone; an estimator is none."""
    estimator = forest()
    assert not estimator._is_clone
    assert not pickle.loads(pickle.dumps(estimator))._is_clone
    assert pickle.loads(pickle.dumps(clone(estimator)))._is_clone


def test_what_is_told_does_not_depend_on_the_rows() -> None:
    rng = np.random.default_rng(0)
    messages = []
    for rows, labels in ((X, Y), (rng.random((40, 2)), np.full(40, "no")), (np.zeros((1, 2)), np.array(["yes"]))):
        spending._accountant = spending._ProcessAccountant()
        messages.append(
            privacy_warnings(lambda rows=rows, labels=labels: [forest().fit(rows, labels) for _ in range(3)])
        )
    assert messages[0] == messages[1] == messages[2]


def test_certificates_say_when_a_fit_stands_alone() -> None:
    alone = " ".join(forest().fit(X, Y).privacy_.assumptions)
    assert "this fit alone" in alone
    assert "this fit alone" not in " ".join(forest(ledger=vw.MemoryLedger(9)).fit(X, Y).privacy_.assumptions)


def test_a_handle_can_be_pickled_with_its_predictor() -> None:
    assert pickle.loads(pickle.dumps(handle_of(X))) == handle_of(X)
