# SPDX-License-Identifier: Apache-2.0
"""Evaluations are released through the door, charged once, keep their epsilon and tell nothing else."""

from __future__ import annotations

import json
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
import veilwood_audit as audit
from veilwood.data.batches import Batch
from veilwood.evaluation.evaluate import evaluation_plan
from veilwood.evaluation.scoring import Scoring
from veilwood.privacy import accountant as spending
from veilwood.privacy import entropy
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteLaplace
from veilwood_audit.noninterference import find_interference
from veilwood_testing.neighbour_pairs import Row, as_csv, as_frame, as_list, row_of

KINDS = ["RandomTreesClassifier", "PrivateForestRegressor"]


def task_of(name: str) -> str:
    return "classification" if name.endswith("Classifier") else "regression"


def test_an_evaluation_is_charged_once_and_says_so(car_forest: Any, tmp_path: Path) -> None:
    car, ledger = vw.datasets.car(), vw.SQLiteLedger(tmp_path / "spends.db", 1.0)
    found = vw.evaluate(car_forest, car.X[1::2], car.y[1::2], epsilon=0.75, ledger=ledger)
    assert (found.privacy.epsilon, found.privacy.is_private) == (0.75, True)
    (entry,) = ledger.entries()
    assert (entry.state, entry.plan) == ("committed", found.plan.fingerprint())
    assert "evaluate" in entry.what
    with pytest.raises(vw.BudgetExceededError):
        vw.evaluate(car_forest, car.X, car.y, epsilon=0.75, ledger=ledger)
    assert len(ledger.entries()) == 1
    with pytest.raises(AttributeError, match="no 'r2'"):
        _ = found.r2
    data = json.loads(found.to_json())
    assert data["quality"]["scores"]["accuracy"]["value"] == found.accuracy.value
    assert "accuracy" in str(found)


def test_what_is_refused(car_forest: Any) -> None:
    car = vw.datasets.car()
    with pytest.raises(vw.VeilwoodError, match="not a fitted estimator"):
        vw.evaluate(object(), car.X, car.y, epsilon=1.0)
    with pytest.raises(ValueError, match="not fitted"):
        vw.evaluate(vw.RandomTreesClassifier(car.schema), car.X, car.y, epsilon=1.0)
    wrong: list[dict[str, Any]] = [
        {"epsilon": 0}, {"confidence": 1.0}, {"invalid": "keep"}, {"n_jobs": "x"}, {"adjacency": "near"}
    ]  # fmt: skip
    for bad in wrong:
        with pytest.raises(vw.VeilwoodError):
            vw.evaluate(car_forest, car.X, car.y, **{"epsilon": 1.0, **bad})
    predictor = vw.MatrixForestPredictor(car.schema, n_estimators=2, max_depth=2).fit(car.X, car.y)
    with pytest.raises(vw.VeilwoodError, match="cannot be evaluated"):
        vw.evaluate(predictor, car.X, car.y, epsilon=1.0)


def test_what_is_not_private_makes_evaluations_not_private() -> None:
    car = vw.datasets.car()
    with pytest.warns(vw.PrivacyWarning):
        bare = vw.RandomTreesClassifier(car.schema, epsilon=float("inf"), random_state=0).fit(car.X, car.y)
    found = vw.evaluate(bare, car.X, car.y, epsilon=1.0)
    assert not found.privacy.is_private
    assert "the model that was evaluated is NOT PRIVATE" in str(found.privacy.reason)
    with pytest.raises(vw.NotPrivateError):
        vw.evaluate(bare, car.X, car.y, epsilon=1.0, ledger=vw.MemoryLedger(5))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("unit", ["row", 3, {"id": "person", "at_most": 2}], ids=str)
@pytest.mark.parametrize("form", [as_frame, as_csv, as_list])
def test_neighbours_leave_the_same_traces(
    two_models: dict[str, Any], name: str, adjacency: str, unit: Any, form: Any
) -> None:
    """Odd and invalid cells, dropped; what met the door moved no further than planned."""
    if isinstance(unit, dict) and form is as_list:
        return  # lists have no names, and so no ids
    rng = np.random.default_rng(1)
    k = 3 if unit == 3 else 1 if unit == "row" else 4
    delta = 1e-6 if form is as_csv else 0.0

    def run(rows: list[Row], folder: Path) -> list[Any]:
        X, y = form(rows, task_of(name), folder)
        found = vw.evaluate(
            two_models[name], X, y, epsilon=0.5, delta=delta, ledger="spends.db", invalid="drop",
            privacy_unit=unit, adjacency=adjacency,
        )  # fmt: skip
        Path("evaluation.json").write_text(found.to_json())
        return [str(found), repr(found), found.plan.to_json()]

    for draw in range(3):
        rows = [row_of(rng, task_of(name), 0.3, 0.2) | {"person": f"p{i % 5}"} for i in range(12)]
        mine = [row_of(rng, task_of(name), 0.5, 0.3) | {"person": "me"} for _ in range(k)]
        other = rows
        if adjacency == "replace-one":
            other = [*rows, *(row_of(rng, task_of(name), 0.5, 0.3) | {"person": "you"} for _ in range(k))]
        assert find_interference(run, [*rows, *mine], other, draw=draw) == []


def test_a_leak_beside_the_door_is_caught(two_models: dict[str, Any]) -> None:
    def run(rows: list[Row], folder: Path) -> Any:
        X, y = as_frame(rows, "classification", folder)
        found = vw.evaluate(two_models["RandomTreesClassifier"], X, y, epsilon=0.5)
        return [found.quality, len(X)]

    rng = np.random.default_rng(2)
    rows = [row_of(rng, "classification", 0.0) for _ in range(9)]
    assert any("returned" in line for line in find_interference(run, rows, rows[:-1]))


def bound_of(model: Any, row: Row, factor: Fraction, monkeypatch: pytest.MonkeyPatch, runs: int = 60_000) -> float:
    """Tell a table with a row from one without, by all counts that the row moves; return the epsilon that shows."""
    plan, scoring = evaluation_plan(model, Loss.pure(Fraction(1)), Neighbours()), Scoring(model.model_)
    X, _ = as_frame([row], task_of(type(model).__name__), Path())
    codes = model._encode_rows(X.drop(columns="ill"))
    target = model.model_.encoding.encode_target(X["ill"])
    (step,) = plan.steps
    present = scoring.make_count()([Batch(codes, target, 0, 0)])
    moved = present > 0
    noise = step.mechanism
    assert isinstance(noise, DiscreteLaplace)
    hits = []
    for exact in (present[moved], np.zeros(int(moved.sum()), np.int64)):
        noisy = DiscreteLaplace(noise.scale * factor).perturb(np.tile(exact, (runs, 1)))
        hits.append(int((noisy >= 1).all(axis=1).sum()))
    return audit.epsilon_lower_bound(hits[0], runs, hits[1], runs)


@pytest.mark.parametrize("name", KINDS)
def test_an_evaluation_keeps_its_epsilon_and_halved_noise_is_caught(
    two_models: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row_of(np.random.default_rng(3), task_of(name), 0.0)
    with entropy.seeded_for_tests(1):
        assert 0.8 < bound_of(two_models[name], row, Fraction(1), monkeypatch) <= 1
    with entropy.seeded_for_tests(2):
        assert bound_of(two_models[name], row, Fraction(1, 2), monkeypatch) > 1.5


# -- command line --------------------------------------------------------------------------------------------


def test_score_says_once_what_it_gives_away(car_forest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "_accountant", spending._ProcessAccountant())
    car = vw.datasets.car()
    with pytest.warns(vw.PrivacyWarning, match="score\\(\\) is exact"):
        car_forest.score(car.X, car.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        car_forest.score(car.X, car.y)
