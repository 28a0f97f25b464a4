# SPDX-License-Identifier: Apache-2.0
"""PrivateSearch: charged once, finds what is good, refuses what it cannot promise, leaves no trace of its trials."""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from fixtures.neighbour_pairs import SCHEMAS, Row, as_csv, as_frame, row_of
from veilwood.audit.noninterference import interference
from veilwood.forests.noisy_leaves import LeafMethod
from veilwood.privacy import spending
from veilwood.privacy.door import TrialDoor
from veilwood.privacy.stopping import RandomStopping

CAR = vw.datasets.car()
GRID = {"max_depth": [2, 4], "n_estimators": [2, 8]}


def searched(**more: Any) -> vw.PrivateSearch:
    forest = vw.RandomTreesClassifier(CAR.schema, voting="threshold", random_state=0, **more.pop("own", {}))
    return vw.PrivateSearch(forest, more.pop("settings", GRID), **{"mean_trials": 2, "epsilon": 1.0, **more})


def test_a_search_is_charged_once_and_the_fit_once() -> None:
    ledger = vw.MemoryLedger(1)
    search = searched(ledger=ledger, epsilon=1.0, search_share=0.4).fit(CAR.X, CAR.y)
    assert [entry.loss.epsilon for entry in ledger.entries()] == [Fraction(2, 5), Fraction(3, 5)]
    assert {entry.state for entry in ledger.entries()} == {"committed"}
    assert (search.privacy_.epsilon, search.best_estimator_.privacy_.epsilon) == (0.4, 0.6)
    assert search.total_epsilon_ == 1.0
    assert search.best_params_ in [{"max_depth": d, "n_estimators": n} for d in (2, 4) for n in (2, 8)]
    assert search.predict_proba(CAR.X[:4]).shape == (4, 4)
    assert list(search.classes_) == list(search.best_estimator_.classes_)
    with pytest.raises(vw.BudgetExceededError):
        searched(ledger=ledger).fit(CAR.X, CAR.y)
    with pytest.raises(vw.BudgetExceededError):  # the search alone would fit, and be worth nothing
        searched(ledger=vw.MemoryLedger(0.6)).fit(CAR.X, CAR.y)


def test_the_plan_says_what_it_costs_before_any_data() -> None:
    plan = searched(epsilon=2.0, search_share=0.5).plan()
    (step,) = plan.steps
    assert isinstance(step.mechanism, RandomStopping)
    assert (plan.loss.epsilon, step.mechanism.trial_epsilon) == (Fraction(1), Fraction(1, 2))
    assert vw.Plan.from_dict(plan.to_dict()) == plan
    replaced = searched(epsilon=2.0, own={"adjacency": "replace-one"})
    assert replaced.plan().loss.epsilon == 1
    trials = replaced._designed()[1]
    assert trials[0].design.plan.loss.epsilon + trials[0].judged_at.epsilon == Fraction(1, 2)  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": float("inf")}, {"epsilon": 0}, {"search_share": 1.0}, {"evaluate_share": 0}, {"scoring": "r2"},
        {"mean_trials": 0}, {"settings": {}}, {"settings": {"max_depth": [2]}}, {"settings": {"epsilon": [1, 2]}},
        {"settings": {"depth": [1, 2]}}, {"settings": 3}, {"own": {"delta": 1e-6}}, {"own": {"max_depth": 0}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused_costs_nothing(wrong: dict[str, Any]) -> None:
    ledger = vw.MemoryLedger(9)
    settings = {"n_estimators": [2, 4]} if "own" in wrong else GRID
    with pytest.raises(vw.VeilwoodError):
        searched(**{"settings": settings, "ledger": ledger, **wrong}).fit(CAR.X, CAR.y)
    with pytest.raises(vw.VeilwoodError):
        vw.PrivateSearch(object(), GRID, ledger=ledger).fit(CAR.X, CAR.y)
    assert ledger.entries() == []


def test_it_finds_the_setting_that_works() -> None:
    """One of two settings is hopeless; at a large epsilon ten trials on average all but never miss the other."""
    forest = vw.MatrixForestClassifier(CAR.schema, voting="weight", random_state=0, n_estimators=16)
    found = [
        vw.PrivateSearch(forest, {"max_depth": [1, 3]}, epsilon=200.0, mean_trials=15).fit(CAR.X, CAR.y)
        for _ in range(4)
    ]
    assert [search.best_params_["max_depth"] for search in found].count(3) >= 1
    assert all((search.best_score_ or 0) > 0.6 for search in found)


def test_numbers_can_be_searched_too() -> None:
    x = np.linspace(0, 1, 3000)[:, None]
    schema = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=1)
    forest = vw.RandomTreesRegressor(schema, random_state=0)
    search = vw.PrivateSearch(forest, {"max_depth": [1, 3]}, epsilon=5.0, scoring="rmse", mean_trials=2)
    search.fit(x, 10 * x[:, 0])
    assert search.best_score_ is None or 0 < search.best_score_ < 10
    assert search.predict(x[:2]).shape == (2,)


class Traces:
    """All that a search leaves, with a number of trials that is forced."""

    def __init__(self, trials: int, monkeypatch: pytest.MonkeyPatch, *, leak: bool = False) -> None:
        monkeypatch.setattr(RandomStopping, "draw", lambda self: trials)
        monkeypatch.setattr(spending, "_memory", spending._Memory())
        monkeypatch.setattr(LeafMethod, "warning", lambda *public: None)  # of the last fit, by what it released
        # Every trial finds the same, so that nothing but their number can differ.
        monkeypatch.setattr(
            vw.PrivateSearch, "_try", self._same(vw.PrivateSearch._try, leak) if trials > 0 else vw.PrivateSearch._try
        )
        said, logged = io.StringIO(), io.StringIO()
        handler = logging.StreamHandler(logged)
        logging.getLogger().addHandler(handler)
        ledger = vw.MemoryLedger(9)
        with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            search = searched(ledger=ledger, epsilon=0.01).fit(CAR.X, CAR.y)
        logging.getLogger().removeHandler(handler)
        known = ("best_estimator_",)
        self.seen = [
            said.getvalue(), logged.getvalue(), sorted({str(w.message)[:60] for w in warned}),
            [(e.what, str(e.loss), e.state) for e in ledger.entries()], str(vw.spent_here()),
            {name: str(value) for name, value in vars(search).items() if name.endswith("_") and name not in known},
        ]  # fmt: skip

    @staticmethod
    def _same(sound: Any, leak: bool) -> Any:
        def trial(self: Any, *rows: Any) -> Any:
            found = sound(self, *rows)
            if leak:
                warnings.warn(f"tried {id(found)}", stacklevel=1)
                self.trials_ = getattr(self, "trials_", 0) + 1
            return found._replace(score=0.5, setting=0)

        return trial


def test_the_number_of_trials_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as one, monkeypatch.context() as other:
        few = Traces(1, one).seen
        many = Traces(7, other).seen
    assert few[0] == many[0] == ""
    for mine, yours in zip(few, many, strict=True):
        assert mine == yours


def test_a_trace_of_the_trials_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as one, monkeypatch.context() as other:
        assert Traces(1, one, leak=True).seen != Traces(7, other, leak=True).seen


def test_a_trial_has_no_certificate() -> None:
    plan = vw.RandomTreesClassifier(CAR.schema, random_state=0).plan()
    (step,) = plan.steps
    with TrialDoor(plan) as door:
        door.noisy(step, np.zeros(step.shape, np.int64))
    with pytest.raises(vw.VeilwoodError, match="no certificate"):
        door.statement()


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("form", [as_frame, as_csv])
def test_neighbours_leave_the_same_traces(adjacency: str, form: Any) -> None:
    """With all outcomes forced, one row moves what meets the doors of trial, search and fit no further than planned."""
    rng = np.random.default_rng(5)

    def run(rows: list[Row], folder: Path) -> list[str]:
        forest = vw.RandomTreesClassifier(
            SCHEMAS["classification"], adjacency=adjacency, invalid="drop", voting="threshold", random_state=0
        )
        search = vw.PrivateSearch(
            forest, {"max_depth": [1, 2], "n_estimators": [1, 3]}, epsilon=1.0, ledger="spends.db"
        )
        X, y = form(rows, "classification", folder)
        search.fit(X, y)
        return [
            str(search.best_params_),
            repr(search.best_score_),
            search.privacy_.to_json(),
            str(search.total_epsilon_),
        ]

    for draw in range(3):
        rows = [row_of(rng, "classification", 0.3, 0.2) for _ in range(12)]
        mine = row_of(rng, "classification", 0.3, 0.0)
        other = rows if adjacency == "add-remove" else [*rows, row_of(rng, "classification", 0.3, 0.0)]
        assert interference(run, [*rows, mine], other, draw=draw) == []
