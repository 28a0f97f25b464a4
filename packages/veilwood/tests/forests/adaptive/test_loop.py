# SPDX-License-Identifier: Apache-2.0
"""The adaptive loop: public decisions before the data, and a total loss as charged."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import veilwood as vw
from veilwood.arrays import Floats, Ints
from veilwood.data.counts import RowQuery
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema
from veilwood.estimators.method import FitRequest
from veilwood.forests.adaptive import loop, shrinkage
from veilwood.forests.adaptive.contingency import bin_columns
from veilwood.forests.adaptive.loop import planned_loss
from veilwood.forests.adaptive.row_backend import MemoryBackend
from veilwood.forests.adaptive.table_design import GroupBounds
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss, requested_loss, zcdp_rho
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Plan
from veilwood_audit.model_files import check_model
from veilwood_testing.clinic import COLUMNS, forest_of, schema_of, table_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


def test_a_plan_says_in_words_what_would_be_done() -> None:
    car = vw.datasets.car()
    unknown = str(vw.PrivateForestClassifier(car.schema, epsilon=1.0).plan())
    assert all(f"At {n_rows} rows: class counts of" in unknown for n_rows in ("1,000", "30,000", "1,000,000"))
    assert "rounds; each selects" in unknown
    known = vw.PrivateForestClassifier(car.schema, epsilon=1.0, n_rows=1728).plan()
    assert list(known.notes) == ["at 1,728 rows"]
    assert "1,728 rows declared" in str(known)
    numbers = vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=9)
    for n_rows, fewer in ((300, False), (1000, True)):
        plan = str(vw.PrivateForestClassifier(numbers, epsilon=1.0, n_rows=n_rows).plan())
        assert ("or of fewer if one column is strong" in plan) is fewer
    hopeless = forest_of("regression", epsilon=0.01, n_rows=50).plan()
    assert [step.name for step in hopeless.steps] == ["sums of the target"]
    assert "the model would predict the mean of the target" in str(hopeless)


def test_a_delta_is_given_up_where_so_few_steps_come_that_epsilon_alone_is_more() -> None:
    schema = schema_of("two")
    for n_rows, delta in ((500, 0.0), (1_000_000, 1e-6)):
        asked_for = FitRequest("e", {}, schema, requested_loss(1, 1e-6), Neighbours(), 0)
        assert planned_loss(COLUMNS, 2, n_rows, asked_for).delta == pytest.approx(Fraction(delta))
    rich = FitRequest("e", {}, schema, requested_loss(30, 1e-6), Neighbours(), 0)
    assert planned_loss(COLUMNS, 2, 1_000_000, rich).delta == 0  # fine cells take pure epsilon


def test_the_number_of_rows_is_free_where_neighbours_have_as_many() -> None:
    X, y = table_of("regression", 3000)
    free = forest_of("regression", adjacency="replace-one").fit(X, y)
    assert "number of rows" not in [step.name for step in free.plan_.steps]
    assert free.plan_.layout.rows_planned == 3000
    capped = forest_of("regression", adjacency="replace-one", privacy_unit={"id": "who", "at_most": 1})
    capped.fit(X.assign(who=np.arange(3000)), y)  # of ids the number is public, of rows it is not
    assert "number of rows" in [step.name for step in capped.plan_.steps]


@pytest.mark.parametrize("task", ["two", "three", "regression"])
@pytest.mark.parametrize("n_rows", [None, 600])
@pytest.mark.parametrize(
    "params", [{}, {"delta": 1e-6}, {"adjacency": "replace-one"}, {"privacy_unit": 2}, {"epsilon": 30.0}], ids=str
)
def test_all_steps_together_cost_what_the_ledger_was_charged(
    task: str, n_rows: int | None, params: dict[str, Any]
) -> None:
    X, y = table_of(task, 600)
    ledger = MemoryLedger(epsilon=40, delta=1e-6)
    forest = forest_of(task, **{"epsilon": 2.0, "n_rows": n_rows, "ledger": ledger, **params})
    planned = forest.plan()
    plan = forest.fit(X, y).plan_
    assert len(planned.steps) == 1
    assert plan.opened_as == planned.fingerprint()
    (entry,) = ledger.entries()
    assert (entry.state, entry.loss) == ("committed", plan.loss)
    assert forest.privacy_.is_private
    assert all(check.holds for check in check_model(forest))
    # Never more than was charged. Mostly all of it; a loop that finds nothing worth measuring may stop before.
    assert 0 < cost_of(plan) <= 1


def cost_of(plan: Plan) -> float:
    """What the steps of a plan cost, as a part of its promise: by epsilon, or by rho if any step is a part of it."""
    total, promised = Loss.total(step.loss for step in plan.steps), plan.loss
    assert total.rho is not None
    assert promised.rho is not None
    assert promised.epsilon is not None
    assert total.rho <= promised.rho
    if all(step.loss.delta == 0 for step in plan.steps):
        assert total.epsilon is not None
        return float(total.epsilon / promised.epsilon)
    return float(total.rho / zcdp_rho(promised.epsilon, promised.delta))


@given(
    seed=st.integers(0, 2**30), epsilon=st.sampled_from([0.01, 0.3, 2.0, 9.0]), delta=st.sampled_from([0.0, 1e-6]),
    n=st.integers(1, 400), task=st.sampled_from(["two", "three", "regression"]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_whatever_comes_out_the_budget_is_kept(seed: int, epsilon: float, delta: float, n: int, task: str) -> None:
    X, y = table_of(task, n, seed)
    with seeded_for_tests(seed):
        forest = forest_of(task, epsilon=epsilon, delta=delta, random_state=seed % 5).fit(X, y)
    assert cost_of(forest.plan_) <= 1
    assert np.isfinite(forest.predict(X) if task == "regression" else forest.predict_proba(X)).all()


@pytest.mark.parametrize("task", ["two", "regression"])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_delta_without_a_number_of_rows_is_spent_where_it_pays(task: str, adjacency: str) -> None:
    """It is not known before the data whether it would: few rows fit as with pure epsilon, many by rho."""
    with_delta, pure = (forest_of(task, epsilon=4, delta=delta, adjacency=adjacency) for delta in (1e-6, 0.0))
    assert with_delta.plan().steps == pure.plan().steps
    assert with_delta.plan().loss.accounting_open
    assert "delta" in with_delta.plan().notes
    for n_rows, by_rho in ((300, False), (30_000, True)):
        X, y = table_of(task, n_rows)
        with seeded_for_tests(1):
            steps = with_delta.fit(X, y).plan_.steps
        with seeded_for_tests(1):
            without = pure.fit(X, y).plan_.steps
        assert any(step.loss.delta > 0 for step in steps) is by_rho
        assert (steps == without) is not by_rho
        assert 0.99 < cost_of(with_delta.plan_) <= 1
        assert {check.question for check in check_model(with_delta) if not check.holds} == {"Is it private?"}  # seeded


def test_borders_are_moved_only_where_a_histogram_is_known() -> None:
    # In bounds far too wide a border that leaves 0 puts all rows on one side, and no interaction of signs is seen.
    wide = {"name": "x", "kind": "numeric", "lower": -500, "upper": 500}
    target = {"name": "y", "kind": "numeric", "lower": 0, "upper": 1}
    facts = {"name": "wide", "task": "regression", "target": "y", "columns": [wide, target]}
    (column,) = bin_columns(Encoding(Schema.from_dict(facts), "grid"))

    def groups(shift: float, mass: dict[int, Floats]) -> list[int]:
        return list(GroupBounds(mass, {}, np.array([shift])).make_axis(column, 4, add_scales=False).groups)

    assert groups(0.5, {}) == groups(0.0, {})
    assert groups(0.5, {0: column.prior}) != groups(0.0, {0: column.prior})


def test_rows_that_score_candidates_grow_as_their_epsilon_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    """k equal rows of a person at epsilon are scored like one row at epsilon / k, not fewer people."""
    monkeypatch.setattr(loop, "SCORE_SAMPLE_ROWS", 100)
    monkeypatch.setattr(loop, "SCORE_SAMPLE_NEED", 200.0)
    sampled: dict[int, float] = {}
    real = MemoryBackend.run_on_sample

    def run(self: MemoryBackend, query: RowQuery, fraction: float) -> tuple[Ints, float]:
        sampled[k] = fraction
        return real(self, query, fraction)

    monkeypatch.setattr(MemoryBackend, "run_on_sample", run)
    X, y = table_of("two", 3000)
    for k in (1, 5):
        target = pd.concat([pd.Series(y)] * k, ignore_index=True)
        forest_of("two", epsilon=1.0, privacy_unit=k).fit(pd.concat([X] * k, ignore_index=True), target)
    assert sampled[1] == pytest.approx(200 / 3000, rel=0.1)
    assert sampled[5] == pytest.approx(sampled[1], rel=0.1)


def test_a_limit_that_does_not_grow_again_has_a_variance_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variance of residuals is in units of the limit that is used, not of a larger one that would be better."""
    found: list[shrinkage.ResidualSpread] = []
    real = loop._measure_residuals

    def measure(*args: Any) -> shrinkage.ResidualSpread:
        monkeypatch.setattr(shrinkage, "LIMITS", np.array([1.0 if found else 0.05]))
        found.append(real(*args))
        return found[-1]

    monkeypatch.setattr(loop, "_measure_residuals", measure)
    with seeded_for_tests(1):
        forest_of("regression", epsilon=8.0).fit(*table_of("regression", 20_000))
    assert [spread.limit for spread in found] == pytest.approx([0.05] * 3, abs=1e-3)
    assert min(spread.gradient_variance for spread in found) > 0.1  # in units of the range at most 0.05^2


def test_rows_of_rare_classes_tell_less() -> None:
    start, shares = np.zeros(1, np.int32), np.array([0.98, 0.02])
    state = loop.State(10_000.0, None, start, np.zeros(2), frequencies=shares)
    assert state.even_rows == pytest.approx(784)
    assert loop.State(10_000.0, None, start, np.zeros(2), frequencies=np.full(2, 0.5)).even_rows == 10_000
    assert loop.State(10_000.0, None, start, np.zeros(0)).even_rows == 10_000  # a numeric target
