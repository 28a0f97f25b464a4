# SPDX-License-Identifier: Apache-2.0
"""Units set aside: every unit is in one part, whole; fit and evaluation together cost what the ledger holds."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.evaluation import evaluate as aside
from veilwood.evaluation.evaluate import HoldoutSplit
from veilwood.privacy.neighbours import Rows, RowsOf, Unit
from veilwood_audit.noninterference import find_interference
from veilwood_testing.aside_cases import SMALL
from veilwood_testing.neighbour_pairs import SCHEMAS, Row, as_csv, as_frame, as_list, row_of

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
    mine, held = HoldoutSplit.draw(0.25).open_parts(partial(open_rows, X, y, encoding), Rows(1))
    everything = rows_of([Batch(*_encoded(encoding, rows, tmp_path), 0, 0)])
    assert sorted(rows_of(mine.batches()) + rows_of(held.batches())) == everything
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
    mine, held = HoldoutSplit.draw(0.5).open_parts(partial(open_rows, X, y, encoding, unit=unit), unit)
    people = [{int(code[1]) for batch in part.batches() for code in batch.codes} for part in (mine, held)]
    assert not people[0] & people[1]
    assert len(people[0] | people[1]) == 40
    assert sum(len(batch.codes) for part in (mine, held) for batch in part.batches()) == 120


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
    forest = vw.RandomTreesClassifier(car.schema, epsilon=1.0, ledger=ledger, **SMALL, **promise)
    with pytest.raises(vw.VeilwoodError, match="evaluate_epsilon"):
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
    forest = vw.RandomTreesClassifier(car.schema, ledger=ledger, **SMALL)
    wrong: list[dict[str, Any]] = [
        *({"holdout_fraction": fraction} for fraction in (0, True, "x", 0.95)),
        {"evaluate_epsilon": 1.0},
        {"holdout_fraction": 0.2, "evaluate_epsilon": 1.0},
    ]
    for bad in wrong:
        with pytest.raises(vw.VeilwoodError):
            forest.fit(car.X, car.y, **bad)
    with pytest.raises(vw.VeilwoodError, match="several times"):
        forest.fit(iter([(car.X, car.y)]), holdout_fraction=0.2)
    assert ledger.entries() == []


# -- what two neighbours leave ------------------------------------------------------------------------------------


def fitting(name: str, unit: Any, form: Any, epsilon: float = 0.5) -> Any:
    task = "classification" if name.endswith("Classifier") else "regression"

    def run(rows: list[Row], folder: Path) -> list[Any]:
        own = SMALL if name.startswith("Random") else {"random_state": 0}
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
        mine = [row_of(rng, task, 0.3, 0.0) | {"person": f"me{draw}"} for _ in range(1 if unit == "row" else 4)]
        found = find_interference(fitting(name, unit, form), [*rows, *mine], rows, draw=draw, allowed=Fraction(1, 2))
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
    mine = [row_of(rng, "classification", 0.0) | {"person": "me"} for _ in range(6)]
    run = fitting("RandomTreesClassifier", {"id": "person", "at_most": 2}, as_frame)
    found = find_interference(run, [*rows, *mine], rows, allowed=Fraction(1, 2))
    assert any(line.startswith("cost of all: 1") for line in found)
