# SPDX-License-Identifier: Apache-2.0
"""Evaluation on private rows: released through the door, charged once, on held-out units."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
import veilwood_audit as audit
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import ParameterError, UseError
from veilwood.evaluation import evaluate as aside
from veilwood.evaluation.evaluate import HoldoutSplit, evaluation_plan
from veilwood.evaluation.scoring import Scoring
from veilwood.privacy import accountant as spending
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf, Unit
from veilwood.privacy.noise import DiscreteLaplace
from veilwood_audit.noninterference import find_interference
from veilwood_testing.errors import rejects
from veilwood_testing.neighbour_pairs import SCHEMAS, Row, as_csv, as_frame, as_list, row_of
from veilwood_testing.small_forests import TINY_TREES

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


def warnings_of(action: Callable[[], Any]) -> list[type[Warning]]:
    """Return the classes of the warnings about accuracy that an action issues."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [each.category for each in caught if issubclass(each.category, vw.UtilityWarning)]


def test_rows_that_trained_the_model_are_noticed_by_object_path_and_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same object or path in this process; in another one, the path of a committed entry of the same plan."""
    car, ledger = vw.datasets.car(), vw.MemoryLedger()
    paths = [tmp_path / name for name in ("train.csv", "other.csv")]
    for path in paths:
        car.X.assign(**{car.schema.target.name: car.y}).to_csv(path, index=False)

    def fitted(*rows: Any) -> Any:
        return vw.RandomTreesClassifier(car.schema, ledger=ledger, **TINY_TREES).fit(*rows)

    def judge(forest: Any, *rows: Any, **more: Any) -> list[type[Warning]]:
        return warnings_of(lambda: vw.evaluate(forest, *rows, epsilon=1.0, **more))

    in_memory, from_file = fitted(car.X, car.y), fitted(paths[0])
    assert judge(in_memory, car.X, car.y) == judge(from_file, paths[0]) == [vw.UtilityWarning]
    assert judge(in_memory, car.X.copy(), car.y) == judge(from_file, paths[1]) == []
    monkeypatch.setattr(spending, "_accountant", spending._ProcessAccountant())  # as in another process
    assert judge(from_file, paths[0]) == judge(in_memory, car.X, car.y, ledger=ledger) == []
    assert judge(from_file, paths[0], ledger=ledger) == [vw.UtilityWarning]
    assert judge(from_file, paths[1], ledger=ledger) == []


def test_what_is_refused(car_forest: Any) -> None:
    car = vw.datasets.car()
    with rejects(UseError, raised_in="evaluation_plan"):
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
    with rejects(UseError, raised_in="evaluation_plan"):
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
        own = [row_of(rng, task_of(name), 0.5, 0.3) | {"person": "me"} for _ in range(k)]
        other = rows
        if adjacency == "replace-one":
            other = [*rows, *(row_of(rng, task_of(name), 0.5, 0.3) | {"person": "you"} for _ in range(k))]
        assert find_interference(run, [*rows, *own], other, draw=draw) == []


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


def test_the_noise_that_was_attacked_is_the_noise_that_is_drawn(
    two_models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    sound = Door.release_counts

    def heard(door: Door, step: Any, exact: Any) -> Any:
        drawn.append(step)
        return sound(door, step, exact)

    monkeypatch.setattr(Door, "release_counts", heard)
    rng = np.random.default_rng(4)
    X, _ = as_frame([row_of(rng, "classification", 0.0) for _ in range(5)], "classification", Path())
    found = vw.evaluate(two_models["RandomTreesClassifier"], X, epsilon=1.0)
    planned = evaluation_plan(two_models["RandomTreesClassifier"], Loss.pure(Fraction(1)), Neighbours())
    assert drawn == [*found.plan.steps] == [*planned.steps]


CLASSES = SCHEMAS["classification"]


def rows_of(batches: Any) -> list[bytes]:
    return sorted(
        code.tobytes() + target.tobytes()
        for batch in batches
        for code, target in zip(batch.codes, batch.target, strict=True)
    )


@pytest.mark.parametrize("form", [as_frame, as_csv, as_list])
def test_every_row_is_in_one_part_in_every_pass(form: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [row_of(rng, "classification", 0.0) for _ in range(2000)]
    encoding = Encoding(CLASSES, "bins")
    X, y = form(rows, "classification", tmp_path)
    own, held = HoldoutSplit.draw(0.25).open_parts(partial(open_rows, X, y, encoding), Rows(1))
    everything = rows_of([Batch(*_encoded(encoding, rows, tmp_path), 0, 0)])
    assert sorted(rows_of(own.batches()) + rows_of(held.batches())) == everything
    assert rows_of(held.batches()) == rows_of(held.batches())
    assert 350 < len(rows_of(held.batches())) < 650  # 500 expected, 7.7 standard deviations to either side
    others = HoldoutSplit.draw(0.25).open_parts(partial(open_rows, X, y, encoding), Rows(1))
    assert rows_of(others[1].batches()) != rows_of(held.batches())  # a key of its own each time


def _encoded(encoding: Encoding, rows: list[Row], folder: Path) -> tuple[Any, Any]:
    X, _ = as_frame(rows, "classification", folder)
    return encoding.encode(X.drop(columns="ill")), encoding.encode_target(X["ill"])


@pytest.mark.parametrize("form", [as_frame, as_csv])
def test_all_rows_of_an_id_are_in_one_part(form: Any, tmp_path: Path) -> None:
    """Each id has a grade of its own, so that its rows can be told."""
    rng = np.random.default_rng(1)
    rows = [row_of(rng, "classification", 0.0) | {"person": f"p{i % 40}", "income": i % 40 * 20.0} for i in range(200)]
    encoding = Encoding(CLASSES, "grid")
    unit = RowsOf("person", 3)
    X, y = form(rows, "classification", tmp_path)
    own, held = HoldoutSplit.draw(0.5).open_parts(partial(open_rows, X, y, encoding, unit=unit), unit)
    people = [{int(code[1]) for batch in part.batches() for code in batch.codes} for part in (own, held)]
    assert not people[0] & people[1]
    assert len(people[0] | people[1]) == 40
    assert sum(len(batch.codes) for part in (own, held) for batch in part.batches()) == 120


def test_fit_and_evaluation_cost_one_entry_together() -> None:
    car, ledger = vw.datasets.car(), vw.MemoryLedger(1)
    forest = vw.PrivateForestClassifier(car.schema, epsilon=1.0, ledger=ledger, random_state=0)
    forest.fit(car.X, car.y, holdout_fraction=0.3)
    (entry,) = ledger.entries()
    assert (entry.state, entry.loss.epsilon) == ("committed", Fraction(1))
    found = forest.evaluation_
    assert (found.privacy.epsilon, found.privacy.ledger_entry) == (1.0, entry.id)
    assert found.privacy.plan_hash == found.plan.fingerprint() != forest.privacy_.plan_hash
    rows = found.quality.rows
    assert rows.low - 300 < 0.3 * 1728 < rows.high + 300
    forest.ledger = None
    assert not hasattr(forest.fit(car.X, car.y), "evaluation_")  # an evaluation of an earlier model does not stay


@pytest.mark.parametrize("promise", [{"adjacency": "replace-one"}, {"privacy_unit": 2}], ids=str)
def test_where_a_unit_can_be_in_both_parts_losses_add_up(promise: dict[str, Any]) -> None:
    car, ledger = vw.datasets.car(), vw.MemoryLedger(2)
    forest = vw.RandomTreesClassifier(car.schema, epsilon=1.0, ledger=ledger, **TINY_TREES, **promise)
    with rejects(ParameterError, name="evaluate_epsilon"):
        forest.fit(car.X, car.y, holdout_fraction=0.3)
    assert ledger.entries() == []
    forest.fit(car.X, car.y, holdout_fraction=0.3, evaluate_epsilon=0.5)
    assert [entry.loss.epsilon for entry in ledger.entries()] == [1, Fraction(1, 2)]
    assert forest.evaluation_.privacy.epsilon == 0.5
    with pytest.raises(vw.BudgetExceededError):  # before anything is spent, both together
        forest.set_params(epsilon=0.3).fit(car.X, car.y, holdout_fraction=0.3, evaluate_epsilon=0.3)
    assert len(ledger.entries()) == 2


def test_wrong_shares_are_refused_before_anything_is_spent() -> None:
    car, ledger = vw.datasets.car(), vw.MemoryLedger(1)
    forest = vw.RandomTreesClassifier(car.schema, ledger=ledger, **TINY_TREES)
    wrong: list[dict[str, Any]] = [
        *({"holdout_fraction": fraction} for fraction in (0, True, "x", 0.95)),
        {"evaluate_epsilon": 1.0},
        {"holdout_fraction": 0.2, "evaluate_epsilon": 1.0},
    ]
    for bad in wrong:
        with pytest.raises(vw.VeilwoodError):
            forest.fit(car.X, car.y, **bad)
    with rejects(UseError, raised_in="Source.check_passes"):
        forest.fit(iter([(car.X, car.y)]), holdout_fraction=0.2)
    assert ledger.entries() == []


# -- what two neighbours leave ------------------------------------------------------------------------------------


def fitting(name: str, unit: Any, form: Any, epsilon: float = 0.5) -> Any:
    task = "classification" if name.endswith("Classifier") else "regression"

    def run(rows: list[Row], folder: Path) -> list[Any]:
        own = TINY_TREES if name.startswith("Random") else {"random_state": 0}
        forest = getattr(vw, name)(
            SCHEMAS[task], epsilon=epsilon, invalid="drop", privacy_unit=unit, ledger="spends.db", **own
        )
        X, y = form(rows, task, folder)
        forest.fit(X, y, holdout_fraction=0.5)
        return [str(forest.evaluation_), repr(forest.evaluation_), forest.plan_.to_json(), str(forest.privacy_)]

    return run


@pytest.mark.parametrize("name", ["RandomTreesClassifier", "PrivateForestRegressor"])
@pytest.mark.parametrize("unit", ["row", {"id": "person", "at_most": 2}], ids=str)
@pytest.mark.parametrize("form", [as_frame, as_csv])
def test_neighbours_leave_the_same_traces_and_pay_once(name: str, unit: Any, form: Any) -> None:
    """All passages of fit and evaluation together cost no more than one of them."""
    rng = np.random.default_rng(3)
    task = "classification" if name.endswith("Classifier") else "regression"
    for draw in range(4):
        rows = [row_of(rng, task, 0.2, 0.1) | {"person": f"p{i % 5}"} for i in range(12)]
        own = [row_of(rng, task, 0.3, 0.0) | {"person": f"me{draw}"} for _ in range(1 if unit == "row" else 4)]
        found = find_interference(fitting(name, unit, form), [*rows, *own], rows, draw=draw, allowed=Fraction(1, 2))
        assert found == []


def test_a_unit_in_both_parts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: rows that are evaluated on are trained on as well."""
    monkeypatch.setattr(aside, "_filter_batch", lambda coins, thousandths, held, batch: batch)
    rng = np.random.default_rng(4)
    rows = [row_of(rng, "classification", 0.0) for _ in range(12)]
    run = fitting("RandomTreesClassifier", "row", as_frame)
    found = find_interference(run, rows, rows[:-1], allowed=Fraction(1, 2))
    assert any(line.startswith("cost of all: 1") for line in found)


def test_rows_of_an_id_in_both_parts_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: every id is in both parts."""

    def both(self: HoldoutSplit, opener: Callable[[], Source], unit: Unit) -> list[Source]:
        return [opener(), opener()]

    monkeypatch.setattr(HoldoutSplit, "open_parts", both)
    rng = np.random.default_rng(5)
    rows = [row_of(rng, "classification", 0.0) | {"person": f"p{i}"} for i in range(12)]
    own = [row_of(rng, "classification", 0.0) | {"person": "me"} for _ in range(6)]
    run = fitting("RandomTreesClassifier", {"id": "person", "at_most": 2}, as_frame)
    found = find_interference(run, [*rows, *own], rows, allowed=Fraction(1, 2))
    assert any(line.startswith("cost of all: 1") for line in found)
