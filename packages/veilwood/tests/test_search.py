# SPDX-License-Identifier: Apache-2.0
"""PrivateSearch: charged once, finds what is good, refuses what it cannot promise, leaves no trace of its trials."""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood import search as searching
from veilwood.errors import ParameterError, PlanError, UseError
from veilwood.estimators.parameters import (
    Role,
    SharedParameters,
    parameter_infos,
    searchable_parameters,
    tuned_parameters,
)
from veilwood.evaluation.evaluate import HoldoutSplit
from veilwood.forests.noisy_leaves import LeafMethod
from veilwood.forests.random_trees import RandomTrees
from veilwood.privacy import accountant as spending
from veilwood.privacy.door import TrialDoor
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import RowsOf
from veilwood.privacy.selection import RandomStopping, TrialBudget
from veilwood.tuning import default_grid, tunable_estimators
from veilwood_audit.noninterference import find_interference
from veilwood_papers.not_private.as_published import RandomTreesAsPrintedNotPrivate
from veilwood_testing.errors import rejects
from veilwood_testing.neighbour_pairs import SCHEMAS, Row, as_csv, as_frame, row_of

CAR = vw.datasets.car()
GRID = {"max_depth": [2, 4], "n_estimators": [2, 8]}


def searched(**more: Any) -> vw.PrivateSearch:
    forest = vw.RandomTreesClassifier(CAR.schema, voting="threshold", random_state=0, **more.pop("own", {}))
    return vw.PrivateSearch(forest, more.pop("settings", GRID), **{"mean_trials": 2, "epsilon": 1.0, **more})


def test_a_search_is_charged_once_and_the_fit_once() -> None:
    ledger = vw.MemoryLedger(1)
    search = searched(ledger=ledger, epsilon=1.0, search_budget=0.4).fit(CAR.X, CAR.y)
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
    plan = searched(epsilon=2.0, search_budget=0.5).plan()
    (step,) = plan.steps
    assert isinstance(step.mechanism, RandomStopping)
    assert (plan.loss.epsilon, step.mechanism.trial_epsilon) == (Fraction(1), Fraction(1, 2))
    assert vw.Plan.from_dict(plan.to_dict()) == plan
    replaced = searched(epsilon=2.0, own={"adjacency": "replace-one"})
    assert replaced.plan().loss.epsilon == 1
    trials = replaced._design_search()[1]
    assert trials[0].design.plan.loss.epsilon + trials[0].evaluation_loss.epsilon == Fraction(1, 2)  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": float("inf")}, {"epsilon": 0}, {"search_budget": 1.0}, {"holdout_fraction": 0}, {"scoring": "r2"},
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
        monkeypatch.setattr(RandomStopping, "draw_trial_count", lambda self: trials)
        monkeypatch.setattr(spending, "_accountant", spending._ProcessAccountant())
        monkeypatch.setattr(LeafMethod, "utility_warning", lambda *public: None)  # of the last fit, by what it released
        # Every trial finds the same, so that nothing but their number can differ.
        monkeypatch.setattr(
            vw.PrivateSearch,
            "_run_trial",
            self._same(vw.PrivateSearch._run_trial, leak) if trials > 0 else vw.PrivateSearch._run_trial,
        )
        result, logged = io.StringIO(), io.StringIO()
        handler = logging.StreamHandler(logged)
        logging.getLogger().addHandler(handler)
        ledger = vw.MemoryLedger(9)
        with redirect_stdout(result), redirect_stderr(result), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            search = searched(ledger=ledger, epsilon=0.01).fit(CAR.X, CAR.y)
        logging.getLogger().removeHandler(handler)
        known = ("best_estimator_",)
        self.seen = [
            result.getvalue(), logged.getvalue(), sorted({str(w.message)[:60] for w in warned}),
            [(e.what, str(e.loss), e.state) for e in ledger.entries()], str(vw.process_spend()),
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
    for own, yours in zip(few, many, strict=True):
        assert own == yours


def test_a_trace_of_the_trials_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as one, monkeypatch.context() as other:
        assert Traces(1, one, leak=True).seen != Traces(7, other, leak=True).seen


def test_a_trial_has_no_certificate() -> None:
    plan = vw.RandomTreesClassifier(CAR.schema, random_state=0).plan()
    (step,) = plan.steps
    with TrialDoor(plan, TrialBudget(plan.loss, plan.neighbours)) as door:
        door.release_counts(step, np.zeros(step.shape, np.int64))
    with rejects(UseError, raised_in="TrialDoor.certificate"):
        door.certificate()


# -- settings leave the promise alone -----------------------------------------------------------------------------

CLASSES = SCHEMAS["classification"]
LINE = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=2)
OTHERS: dict[str, Any] = {
    "schema": CLASSES, "epsilon": 9.0, "delta": 1e-6, "privacy_unit": 2, "adjacency": "replace-one",
    "max_weight": 1, "ledger": "other.db", "n_jobs": 2, "invalid": "drop",
}  # fmt: skip
OF_A_PERSON: dict[str, Any] = {"privacy_unit": {"id": "person", "at_most": 1}, "max_weight": 8, "invalid": "drop"}
SEARCHABLE = [kind for kind in (getattr(estimators, name) for name in estimators.__all__) if hasattr(kind, "predict")]


def rows_of_people() -> Any:
    rng = np.random.default_rng(3)
    rows = [row_of(rng, "classification", 0.0) | {"person": f"p{i % 9}"} for i in range(40)]
    return as_frame(rows, "classification", Path())


def of_a_person(settings: Any, **more: Any) -> vw.PrivateSearch:
    """A search that promises something to whoever has up to 8 rows: one of weight 8."""
    forest = vw.RandomTreesClassifier(
        CLASSES, voting="threshold", n_estimators=1, max_depth=1, random_state=0, **OF_A_PERSON
    )
    return vw.PrivateSearch(forest, settings, epsilon=1.0, mean_trials=2, **more)


FIXED = sorted(
    name
    for name, info in parameter_infos(SharedParameters).items()
    if info.role in (Role.SCHEMA, Role.PROMISE, Role.RUN)
)


@pytest.mark.parametrize("name", estimators.__all__)
def test_every_parameter_has_a_role(name: str) -> None:
    """Whoever adds one says whether it belongs to the promise."""
    kind = getattr(estimators, name)
    infos = parameter_infos(kind)
    assert set(infos) == set(kind._get_param_names())
    promises = {name for name, info in infos.items() if info.role is Role.PROMISE}
    assert promises == {"epsilon", "delta", "privacy_unit", "adjacency", "max_weight", "ledger"}
    assert set(OTHERS) == set(FIXED) == set(infos) - searchable_parameters(kind)
    assert not promises & {name for name, info in infos.items() if info.in_plan}
    assert not set(FIXED) & tuned_parameters(kind)
    if kind in tunable_estimators():
        assert set(default_grid(kind, 3)) == tuned_parameters(kind) - (
            set() if "n_ensembles" in infos else {"n_ensembles", "max_features"}
        )


def test_a_new_default_keeps_the_role() -> None:
    @dataclass(eq=False, repr=False)
    class Heavier(vw.RandomTreesClassifier):
        max_weight: int | None = 8

    assert parameter_infos(Heavier)["max_weight"].role is Role.PROMISE
    assert "max_weight" not in searchable_parameters(Heavier)


@pytest.mark.parametrize("name", sorted({"privacy_unit", "adjacency", "max_weight", "epsilon", "delta", "schema"}))
@pytest.mark.parametrize("kind", SEARCHABLE, ids=lambda kind: kind.__name__)
def test_a_plan_refuses_another_promise(kind: Any, name: str) -> None:
    """Of every parameter of the promise but the ledger, which is where a fit is recorded."""
    own = CAR.schema if kind._task == "classification" else LINE
    small = {key: 1 for key in ("n_estimators", "max_depth") if key in kind._get_param_names()}
    planned = kind(own, random_state=0, **small)
    plan, ledger = planned.plan(), vw.MemoryLedger(9)
    other = {"schema": SCHEMAS[kind._task]}.get(name, OTHERS[name])
    other = 3 if name == "max_weight" else other
    changed = planned.set_params(**{name: other}, ledger=ledger)
    with pytest.raises(PlanError, match=r"would not execute the plan|cannot answer the leaves"):
        changed.fit(None, plan=plan)
    assert ledger.entries() == []


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("kind", SEARCHABLE, ids=lambda kind: kind.__name__)
def test_what_is_promised_cannot_be_searched(kind: Any, name: str) -> None:
    ledger, own = vw.MemoryLedger(9), getattr(kind(), name)
    search = vw.PrivateSearch(kind(CAR.schema), {name: [own, OTHERS[name]]}, ledger=ledger)
    with pytest.raises(ParameterError, match=f"settings='?{name}'? cannot be searched over"):
        search.fit(CAR.X, CAR.y)
    assert ledger.entries() == []


def test_what_promises_nothing_cannot_be_searched() -> None:
    forest = RandomTreesAsPrintedNotPrivate(CAR.schema, random_state=0)
    with rejects(UseError, raised_in="PrivateSearch._design_search"):
        vw.PrivateSearch(forest, {"max_depth": [2, 3]}).plan()


def test_a_search_over_weights_is_refused() -> None:
    """It would have trained for one row of a person and promised something for eight."""
    ledger, X = vw.MemoryLedger(9), rows_of_people()[0]
    with rejects(ParameterError, name="settings"):
        of_a_person({"max_weight": [1, 8]}, ledger=ledger).fit(X)
    assert ledger.entries() == []


@pytest.mark.parametrize("name", ["privacy_unit", "adjacency", "max_weight"])
def test_trials_for_others_are_refused_by_comparison(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the list of names ever miss one: while nothing is spent, plans are compared."""
    monkeypatch.setattr(searching, "searchable_parameters", lambda kind: frozenset(parameter_infos(kind)))
    ledger, X = vw.MemoryLedger(9), rows_of_people()[0]
    search = of_a_person({name: [getattr(of_a_person({}).estimator, name), OTHERS[name]]}, ledger=ledger)
    with rejects(PlanError, raised_in="TrialBudget.take"):
        search.fit(X)
    monkeypatch.setattr(TrialBudget, "take", lambda *all_of_it, **more: None)  # and so is the fit
    with rejects(PlanError, raised_in="PrivateSearch._design_search"):
        search.fit(X)
    assert ledger.entries() == []


@pytest.mark.parametrize("name", ["schema", "epsilon", "delta", "ledger"])
def test_a_setting_does_not_reach_what_is_ours(name: str) -> None:
    """Whatever the list of names lets through."""
    setting, schema, half = {name: OTHERS[name] if name != "schema" else "infer"}, CLASSES, Loss.pure(Fraction(1, 2))
    search = of_a_person({})
    plan = search._design_trial(setting, schema, half, half).design.plan
    assert (plan.loss, plan.neighbours.unit, plan.schema_hash) == (half, RowsOf("person", 8), schema.fingerprint())
    ours = search._estimator_with(setting, half, None)
    assert (ours.epsilon, ours.delta, ours.ledger) == (Fraction(1, 2), 0.0, None)
    assert ours.schema.fingerprint() == schema.fingerprint()


@pytest.mark.parametrize("wrong", ["for others", "at twice the price"])
def test_the_door_of_a_trial_refuses_by_itself(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should both looks before the search miss it: no row is read, no noise drawn for such a trial."""
    search, X = of_a_person({"max_depth": [1, 2]}), rows_of_people()[0]
    plan, trials, settings, after = search._design_search()
    loss, of_a_row = trials[0].design.plan.loss, {"max_weight": 1} if wrong == "for others" else {}
    trial = search._design_trial(of_a_row, CLASSES, loss if of_a_row else loss + loss, loss)
    monkeypatch.setattr(vw.PrivateSearch, "_design_search", lambda self: (plan, [trial, trial], settings, after))
    monkeypatch.setattr(HoldoutSplit, "open_parts", lambda *all_of_it, **more: pytest.fail("rows were read"))
    monkeypatch.setattr(RandomTrees, "measure_rows", lambda *all_of_it: pytest.fail("noise was drawn"))
    with rejects(PlanError, raised_in="TrialBudget.take"):
        search.fit(X)
    assert not hasattr(search, "best_estimator_")


def test_losses_of_different_units_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = vw.PrivateSearch._estimator_with

    def lighter(self: Any, setting: Any, loss: Loss, ledger: Any) -> Any:
        forest = sound(self, setting, loss, ledger)
        return forest.set_params(max_weight=1) if hasattr(self, "best_params_") else forest  # the fit at the end

    monkeypatch.setattr(vw.PrivateSearch, "_estimator_with", lighter)
    search = of_a_person({"max_depth": [1, 2]})  # a ledger would refuse it as well
    with rejects(PlanError, raised_in="_combined_loss"):
        search.fit(rows_of_people()[0])
    assert not hasattr(search, "total_epsilon_")


def test_weights_of_classes_are_tried_as_they_predict() -> None:
    """Post-processing, so that it can be searched; a setting that fits no class is refused before anything is spent."""
    search = searched(settings={"class_weight": [{"vgood": 1e9}, {"unacc": 1.0}]}, epsilon=400.0)
    plan, trials, _, _ = search._design_search()
    budget = plan.steps[0].mechanism.trial_epsilon  # type: ignore[union-attr]
    scores = [
        search._run_trial([trial], CAR.X, CAR.y, TrialBudget(Loss.pure(budget), plan.neighbours)).score
        for trial in trials
    ]
    assert scores[0] < 0.3 < 0.6 < scores[1]
    ledger = vw.MemoryLedger(9)
    with rejects(ParameterError, name="class_weight"):
        searched(settings={"class_weight": [None, {"no such": 2.0}]}, ledger=ledger).fit(CAR.X, CAR.y)
    assert ledger.entries() == []


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
        own = row_of(rng, "classification", 0.3, 0.0)
        other = rows if adjacency == "add-remove" else [*rows, row_of(rng, "classification", 0.3, 0.0)]
        assert find_interference(run, [*rows, own], other, draw=draw) == []
