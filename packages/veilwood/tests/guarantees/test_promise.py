# SPDX-License-Identifier: Apache-2.0
"""Nothing that wraps an estimator may change what is promised: every wrapper against every parameter of the promise.

A wrapper refuses before anything is spent, or what it returns is certified and charged for the changed promise.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score

import veilwood as vw
from veilwood import estimators
from veilwood import search as searching
from veilwood.errors import (
    LedgerError,
    MechanismError,
    ParameterError,
    PlanError,
    PrivacyWarning,
    UseError,
    WeakGuaranteeWarning,
)
from veilwood.estimators.base import BaseForest
from veilwood.estimators.parameters import Role, SharedParameters, parameter_infos
from veilwood.privacy import entropy
from veilwood.privacy.loss import Loss
from veilwood_audit.attacks import record_releases
from veilwood_audit.statistics import epsilon_lower_bound
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

SCHEMA = vw.Schema.from_dict({
    "name": "visits", "task": "classification", "target": "ill",
    "columns": [
        {"name": "coin", "kind": "categorical", "values": ["heads", "tails"]},
        {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    ],
})  # fmt: skip
PROMISE = sorted(name for name, info in parameter_infos(SharedParameters).items() if info.role is Role.PROMISE)
PERSON = {"id": "person", "at_most": 1}
OTHER: dict[str, Any] = {
    "epsilon": 2.0, "delta": 1e-6, "privacy_unit": 2, "adjacency": "replace-one", "max_weight": 8,
    "ledger": vw.MemoryLedger(),
}  # fmt: skip


def make_forest(**params: Any) -> vw.RandomTreesClassifier:
    return vw.RandomTreesClassifier(
        SCHEMA, random_state=0, n_jobs=1, **{"n_estimators": 1, "max_depth": 1, "trees": "shared", **params}
    )


def make_rows(n: int, coin: str = "heads", **more: Any) -> tuple[pd.DataFrame, list[str]]:
    return pd.DataFrame({"coin": [coin] * n, **{name: [value] * n for name, value in more.items()}}), ["yes"] * n


X, Y = make_rows(12)


def test_the_table_of_promises_is_complete() -> None:
    assert sorted(OTHER) == PROMISE


# -- what refuses ------------------------------------------------------------------------------------------------------


def search_by_grid(name: str, ledger: Any) -> None:
    vw.PrivateSearch(make_forest(), {name: [getattr(make_forest(), name), OTHER[name]]}, ledger=ledger).fit(X, Y)


def search_by_list(name: str, ledger: Any) -> None:
    vw.PrivateSearch(make_forest(), [{"max_depth": 1}, {"max_depth": 1, name: OTHER[name]}], ledger=ledger).fit(X, Y)


def search_of_equal_promises(name: str, ledger: Any) -> None:
    """The same promise twice is refused too: what is fixed outside is no setting."""
    own = getattr(make_forest(), name)
    vw.PrivateSearch(make_forest(), {name: [own, own], "max_depth": [1, 2]}, ledger=ledger).fit(X, Y)


def tune_by_grid(name: str, ledger: Any) -> None:
    grid: Any = {name: [getattr(make_forest(), name), OTHER[name]]}
    vw.tune(SCHEMA, make_forest(ledger=ledger), n_rows=100, epsilon=1.0, grid=grid)


def fit_another_plan(name: str, ledger: Any) -> None:
    make_forest(**{"ledger": ledger, name: OTHER[name]}).fit(X, Y, plan=make_forest().plan())


def count_under_another_promise(name: str, ledger: Any) -> None:
    forest = make_forest(ledger=ledger).partial_fit(X, Y)
    forest.set_params(**{name: OTHER[name]})
    try:
        forest.partial_fit(X, Y)
    except UseError:
        forest.release()


REFUSING: list[Callable[[str, Any], None]] = [
    search_by_grid, search_by_list, search_of_equal_promises, tune_by_grid, fit_another_plan,
    count_under_another_promise,
]  # fmt: skip


@pytest.mark.parametrize(
    ("wrapper", "name"),
    # A plan does not say in which ledger a fit is recorded.
    [(wrapper, name) for wrapper in REFUSING for name in PROMISE if (wrapper, name) != (fit_another_plan, "ledger")],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_a_wrapper_refuses_to_change_the_promise(wrapper: Callable[[str, Any], None], name: str) -> None:
    ledger = vw.MemoryLedger(9)
    with pytest.raises(vw.VeilwoodError):
        wrapper(name, ledger)
    assert ledger.entries() == []
    assert OTHER["ledger"].entries() == []


def test_forests_that_protect_others_are_not_ranked_together() -> None:
    forests = [make_forest(), make_forest(max_weight=8)]
    with rejects(PlanError, raised_in="tune"):
        vw.tune(SCHEMA, forests, n_rows=100, epsilon=1.0, grid={"max_depth": [1, 2]})


# -- what keeps its promise, whatever is changed beside it -------------------------------------------------------------


@pytest.mark.parametrize("name", PROMISE)
def test_a_series_keeps_the_promise_that_it_was_planned_with(name: str) -> None:
    """Also if the caller changes the estimator, or the unit that it was given, afterwards."""
    unit, ledger = dict(PERSON), vw.MemoryLedger(9)
    forest = make_forest(privacy_unit=unit)
    series = vw.ReleaseSeries(forest, releases=2, period="month", ledger=ledger)
    planned = series.plan()
    forest.set_params(**{name: OTHER[name]})
    unit["at_most"] = 5
    with record_releases() as passed:
        rows, target = make_rows(6, person="p", month=1)
        released = series.release(rows, target)
    ((_, _, (exact,)),) = passed
    assert exact.sum() == 1  # one row of the person, as planned
    assert series.plan().fingerprint() == planned.fingerprint() == released.privacy_.plan_hash
    assert {entry.neighbours for entry in ledger.entries()} == {str(planned.neighbours)}
    assert ledger.spent == planned.loss
    assert OTHER["ledger"].entries() == []


@pytest.mark.parametrize("name", PROMISE)
def test_answers_protect_whom_the_fit_counted(name: str) -> None:
    """A predictor's loss per batch may change, and is charged; the unit and the ledger of its fit may not."""
    unit, ledger = dict(PERSON), vw.MemoryLedger(9)
    predictor = vw.MatrixForestPredictor(
        SCHEMA, privacy_unit=unit, ledger=ledger, n_estimators=1, max_depth=1, random_state=0
    )
    predictor.fit(make_rows(6, person="p")[0].assign(ill="yes"))
    unit["at_most"] = 5
    predictor.set_params(**{name: OTHER[name]})
    predictor.answer(X[:1])
    (entry,) = ledger.entries()
    assert (
        entry.neighbours
        == str(predictor.plan_.neighbours)
        == "all rows of one person (counted as at most 1), added or removed"
    )
    assert entry.loss == predictor.plan_.loss
    assert OTHER["ledger"].entries() == []


@pytest.mark.parametrize("name", [name for name in PROMISE if name != "ledger"])
def test_what_evaluates_is_certified_for_whom_it_charges(name: str) -> None:
    ledger = vw.MemoryLedger(99)
    forest = make_forest(**{"ledger": ledger, name: OTHER[name]})
    extra = None if forest.plan().neighbours.in_one_part else Loss.pure(Fraction(1, 2))
    forest.fit(X, Y, holdout_fraction=0.5, evaluate_epsilon=None if extra is None else 0.5)
    assert forest.evaluation_.privacy.unit == forest.privacy_.unit
    assert forest.evaluation_.privacy.adjacency == forest.privacy_.adjacency
    assert ledger.spent == (forest.plan_.loss if extra is None else forest.plan_.loss + extra)
    later = vw.evaluate(forest.set_params(**{name: getattr(make_forest(), name)}), X, Y, epsilon=0.5, ledger=ledger)
    assert later.plan.neighbours == forest.plan_.neighbours  # those of the fit, not those set since
    assert {entry.neighbours for entry in ledger.entries()} == {str(forest.plan_.neighbours)}


# -- what scikit-learn fits by itself: each fit is a release of its own ------------------------------------------------


def fits_of(ledger: Any, patch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list that every certificate is added to."""
    seen: list[Any] = []
    sound = BaseForest._set_certificate

    def note(self: Any, release: Any) -> None:
        sound(self, release)
        seen.append(self.privacy_)

    patch.setattr(BaseForest, "_set_certificate", note)
    return seen


@pytest.mark.parametrize("name", [name for name in PROMISE if name != "ledger"])
def test_a_grid_of_promises_is_charged_promise_by_promise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a budget; a ledger with one refuses the first fit for others."""
    ledger, grid = vw.MemoryLedger(), {name: [getattr(make_forest(), name), OTHER[name]]}
    rows, target = make_rows(12)
    target[::2] = ["no"] * 6
    seen = fits_of(ledger, monkeypatch)
    search = GridSearchCV(make_forest(ledger=ledger), grid, cv=2, error_score="raise").fit(rows, target)
    entries = ledger.entries()
    assert len(seen) == len(entries) == 5
    for entry, certificate in zip(entries, seen, strict=True):
        verb = {"add-remove": "added or removed", "replace-one": "replaced"}[certificate.adjacency]
        assert entry.neighbours == f"{certificate.unit}, {verb}"
        assert float(entry.loss.epsilon or 0) == certificate.epsilon
        assert certificate.ledger_entry == entry.id
    assert search.best_estimator_.privacy_ == seen[-1]
    if name in ("privacy_unit", "adjacency", "max_weight"):
        limited = vw.MemoryLedger(99)
        with pytest.raises(LedgerError):
            GridSearchCV(make_forest(ledger=limited), grid, cv=2, error_score="raise").fit(rows, target)
        assert len({entry.neighbours for entry in limited.entries()}) == 1


def test_calibration_and_folds_are_charged_for_every_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, rows = vw.MemoryLedger(99), make_rows(12)[0]
    target = np.array(["no", "yes"] * 6)
    seen = fits_of(ledger, monkeypatch)
    CalibratedClassifierCV(make_forest(ledger=ledger), cv=3).fit(rows, target)
    cross_val_score(make_forest(ledger=ledger), rows, target, cv=2)
    clone(make_forest(ledger=ledger)).fit(rows, target)
    assert len(seen) == len(ledger.entries()) == 6
    assert ledger.spent.epsilon == 6


def test_clones_without_a_ledger_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilwood.privacy.accountant._accountant.warned", set())
    with pytest.warns(PrivacyWarning):
        clone(make_forest()).fit(X, Y)


# -- the break ---------------------------------------------------------------------------------------------------------


def run_broken_search(weights: Any, rows: pd.DataFrame, target: list[str]) -> Any:
    """A search that promises epsilon 1 for any 8 rows, and fits for one of them wherever a setting says so."""
    forest = make_forest(max_weight=8, voting="threshold")
    search = vw.PrivateSearch(forest, weights, epsilon=1.0, search_budget=0.1, mean_trials=2, ledger=None)
    return search.fit(rows, target)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_weight": [1, 8]}, [{"max_weight": 1}, {"max_weight": 8}], [{}, {"max_weight": 1}],
        {"max_weight": [1, 8], "max_depth": [1, 2]}, {"max_weight": [8, 8]},
    ],
    ids=str,
)  # fmt: skip
def test_the_search_that_broke_its_promise_ends_in_an_error(settings: Any) -> None:
    with rejects(ParameterError, name="settings"):
        run_broken_search(settings, X, Y)


def attack_search(settings: Any, runs: int) -> float:
    """Return what a search shows of eight rows: the claim is 1. The event was fixed before: many rows were counted."""
    hits = []
    for n_rows in (8, 0):
        rows, target = make_rows(n_rows)
        rows, target = pd.concat([rows, X]), [*target, *Y]
        searches = (run_broken_search(settings, rows, target) for _ in range(runs))
        hits.append(sum(int(s.best_estimator_.measurements_[0].values[0].sum()) >= 12 + 5 for s in searches))
    return epsilon_lower_bound(hits[0], runs, hits[1], runs, alpha=1e-7)


@pytest.mark.slow
def test_a_search_for_eight_rows_keeps_its_epsilon_and_the_break_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with entropy.seeded_for_tests(51):
        assert attack_search({"max_depth": [1, 2]}, 600) <= 1
    # As it was: what was chosen could be a fit for one row, and the losses of both were added.
    sound = vw.PrivateSearch._estimator_with

    def fit_for_one_row(self: Any, setting: Any, loss: Any, ledger: Any) -> Any:
        forest = sound(self, setting, loss, ledger)
        return forest.set_params(max_weight=1) if hasattr(self, "best_params_") else forest

    monkeypatch.setattr(vw.PrivateSearch, "_estimator_with", fit_for_one_row)
    with rejects(PlanError, raised_in="_combined_loss"):
        attack_search({"max_depth": [1, 2]}, 1)
    monkeypatch.setattr(searching, "_combined_loss", lambda search, fit: search.loss + fit.loss)
    with entropy.seeded_for_tests(51):
        assert attack_search({"max_depth": [1, 2]}, 600) > 1


# -- nothing is spent on noise that cannot be drawn -------------------------------------------------------------------


@pytest.mark.parametrize("loss", [{}, {"delta": 1e-6}], ids=["pure", "delta"])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("name", estimators.__all__)
def test_a_large_unit_fails_before_the_first_step_or_not_at_all(
    name: str, epsilon: float, loss: dict[str, Any]
) -> None:
    """Forests that choose their size after the first step once failed in the middle: everything was spent."""
    kind, ledger, x = getattr(estimators, name), vw.MemoryLedger(), np.linspace(0, 1, 40)[:, None]
    is_classifier = kind._task == "classification"
    target: dict[str, Any] = {"classes": ["no", "yes"]} if is_classifier else {"target_bounds": (0, 1)}
    schema = vw.Schema.numeric((0, 1), n_features=1, **target)
    y: Any = np.where(x[:, 0] > 0.5, "yes", "no") if is_classifier else x[:, 0]
    forest = kind(schema, epsilon=epsilon, privacy_unit=100_000, ledger=ledger, random_state=0, n_jobs=1, **loss)
    try:
        fitted = forest.fit(x, y)
        if hasattr(fitted, "answer"):
            fitted.answer(x[:2])
    except (ParameterError, MechanismError):
        assert ledger.entries() == []
    else:
        assert [entry.state for entry in ledger.entries()] == ["committed"]


def test_a_weak_guarantee_is_warned_of_by_what_is_promised_in_all() -> None:
    """Search and fit cost less than 5 each; a release of a series has the loss of the series."""
    with pytest.warns(WeakGuaranteeWarning):
        vw.PrivateSearch(make_forest(), {"max_depth": [1, 2]}, epsilon=8.0, mean_trials=1).fit(X, Y)
    series = vw.ReleaseSeries(make_forest(epsilon=6.0), releases=2, period="month", ledger=vw.MemoryLedger())
    with pytest.warns(WeakGuaranteeWarning):
        series.release(X.assign(month=1), Y)
