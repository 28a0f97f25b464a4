# SPDX-License-Identifier: Apache-2.0
"""Histograms of several columns with noise together: taken where they pay, and groups then follow the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive import loop, table_design
from veilwood.forests.adaptive.contingency import bin_columns
from veilwood.forests.adaptive.steps import AdaptiveStep
from veilwood.forests.adaptive.table_design import GroupBounds
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.steps import Step, StepName, counting_step, joint_step
from veilwood_audit.model_files import check_model

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


def wide_table(n_rows: int, n_columns: int) -> tuple[vw.Schema, pd.DataFrame, pd.Series]:
    """Lognormal columns in bounds far too wide, the first with nulls; the class is whether all together are large."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.lognormal(size=(n_rows, n_columns)), columns=[f"x{i}" for i in range(n_columns)])
    y = pd.Series(np.where(np.log(X).sum(axis=1) > 0, "large", "small"), name="y")
    X.loc[::11, "x0"] = np.nan
    numbers = [{"name": name, "kind": "numeric", "lower": 0, "upper": 1000, "nullable": True} for name in X.columns]
    target = {"name": "y", "kind": "categorical", "values": ["large", "small"]}
    facts = {"name": "wide", "task": "classification", "target": "y", "columns": [*numbers, target]}
    return vw.Schema.from_dict(facts), X, y


def fitted(n_rows: int, n_columns: int, **params: Any) -> vw.PrivateForestClassifier:
    schema, X, y = wide_table(n_rows, n_columns)
    with seeded_for_tests(3):
        return vw.PrivateForestClassifier(schema, n_rows=n_rows, random_state=0, **params).fit(X, y)


def together(forest: Any) -> list[str]:
    return [step.name for step in forest.plan_.steps if step.name.endswith("rows by group")]


def test_they_are_taken_where_they_pay_and_the_plan_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = fitted(2000, 6, epsilon=0.5)
    assert together(forest) == ["histograms 1 to 6: rows by group"]
    holds = {check.question: check.holds for check in check_model(forest)}
    assert [question for question, held in holds.items() if not held] == ["Is it private?"]  # seeded for this test
    assert not together(fitted(2000, 6, epsilon=0.05))  # too poor
    by_rho = fitted(20_000, 6, epsilon=0.5, delta=1e-6)  # where each has its own noise, and all cells
    assert together(by_rho) == [f"histogram {number}: rows by group" for number in range(1, 7)]
    assert all(check.holds for check in check_model(by_rho) if check.question != "Is it private?")
    monkeypatch.setattr(loop, "release_strengths", lambda fit, state: None)  # so that tables come first
    assert together(fitted(2000, 2, epsilon=0.5))
    assert not together(fitted(2000, 1, epsilon=0.5))  # nothing to be together with


def test_groups_follow_the_rows_and_bounds_far_too_wide_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    _, X, y = wide_table(3000, 10)
    right = [(fitted(3000, 10, epsilon=0.5).predict(X) == y).mean()]
    monkeypatch.setattr(table_design, "HISTOGRAM_NEED", np.inf)
    right.append((fitted(3000, 10, epsilon=0.5).predict(X) == y).mean())
    assert right[0] > 0.75 > right[1] + 0.1


def test_rows_are_spread_by_counts_of_groups_and_inside_of_them_as_before() -> None:
    schema, _, _ = wide_table(10, 1)
    (column,) = bin_columns(Encoding(schema, "grid"))
    axis = column.default_groups(4)
    inside = axis.groups[: column.n_value_bins]
    counts = np.zeros(axis.size)
    counts[0], counts[1] = 900.0, 100.0
    assert not GroupBounds().has_histogram(column)
    bounds = GroupBounds().with_histogram(column, axis, counts, 1e-9, 1000.0)
    mass = bounds.bin_mass[0]
    held = np.bincount(inside, mass)
    assert held[:2].round() == pytest.approx([900, 100])
    assert held[2:].sum() < 1
    first = inside == 0
    assert mass[first] / held[0] == pytest.approx(column.prior[first] / column.prior[first].sum())
    assert bounds.has_histogram(column)


def test_each_row_is_once_in_each_histogram_and_missing_values_have_a_group() -> None:
    """At the door, where noise is added: what the step promises."""
    schema, X, y = wide_table(500, 3)
    seen: list[tuple[Step, Any]] = []
    real = Door.release_counts

    def kept(door: Door, step: Step, exact: Any) -> Any:
        seen.append((step, exact.copy()))
        return real(door, step, exact)

    with pytest.MonkeyPatch.context() as patch, seeded_for_tests(1):
        patch.setattr(Door, "release_counts", kept)
        vw.PrivateForestClassifier(schema, epsilon=2, n_rows=500).fit(X, y)
    ((step, exact),) = ((step, exact) for step, exact in seen if step.name == "histograms 1 to 3: rows by group")
    parts = np.split(exact.ravel(), np.cumsum(step.table_cells[:-1]))
    assert [part.sum() for part in parts] == [500] * 3
    assert sorted(part[-1] for part in parts) == [0, 0, X.x0.isna().sum()]


@pytest.mark.parametrize(
    "forged",
    [
        lambda step, near: counting_step(name_of(step), (54, 1), step.loss, near, l1=1, squared_l2=1),
        lambda step, near: joint_step(name_of(step), (*step.table_cells, *step.table_cells), 1, step.loss, near),
        lambda step, near: joint_step(name_of(step), (10,) * 6, 1, step.loss, near),
        lambda step, near: joint_step(AdaptiveStep.JOINT_HISTOGRAMS.at(7, 12), step.table_cells, 1, step.loss, near),
        lambda step, near: joint_step(
            StepName("round 7: rows by group", "joint_histograms", (7,)), step.table_cells, 1, step.loss, near
        ),
        lambda step, near: counting_step(
            AdaptiveStep.ROUND_HISTOGRAM.at(1, 99), (98,), step.loss, near, l1=1, squared_l2=1
        ),
        lambda step, near: counting_step(
            AdaptiveStep.ROUND_HISTOGRAM.at(1, -1), (98,), step.loss, near, l1=1, squared_l2=1
        ),
        lambda step, near: counting_step(
            AdaptiveStep.ROUND_HISTOGRAM.at(1, 0), (9**9,), step.loss, near, l1=1, squared_l2=1
        ),
    ],
)
def test_histograms_that_these_columns_cannot_have_are_noticed(forged: Any) -> None:
    """Six tables taken for one, more columns than there are, other groups, other numbers, other names."""
    refused_as_forged(fitted(2000, 6, epsilon=0.5), forged)


@pytest.mark.parametrize(
    "forged",
    [
        lambda step, near: counting_step(
            name_of(step), (9, 1), step.loss, near, l1=1, squared_l2=1
        ),  # the coarse groups
        lambda step, near: counting_step(name_of(step), (2 * step.shape[0], 1), step.loss, near, l1=1, squared_l2=1),
        lambda step, near: replace(step, name=AdaptiveStep.HISTOGRAM.at(10 + step.at[0])),
        lambda step, near: replace(
            step, name=step.name.replace("histogram ", "histogram 1")
        ),  # another number in words
    ],
)
def test_histograms_by_rho_that_these_columns_cannot_have_are_noticed(forged: Any) -> None:
    refused_as_forged(fitted(20_000, 6, epsilon=0.5, delta=1e-6), forged)


def name_of(step: Step) -> StepName:
    return StepName(step.name, step.kind, step.at)


def refused_as_forged(forest: Any, forged: Any) -> None:
    plan = forest.plan_
    steps = [forged(step, plan.neighbours) if step.name.endswith(": rows by group") else step for step in plan.steps]
    assert steps != list(plan.steps)
    forest.plan_ = replace(plan, steps=tuple(steps))
    assert "Do the parameters lead to this plan?" in {one.question for one in check_model(forest) if not one.holds}


def test_without_noise_numbers_have_histograms_of_all_cells() -> None:
    steps = [step for step in fitted(500, 3, epsilon=float("inf")).plan_.steps if step.name.endswith("rows by group")]
    assert [step.shape for step in steps] == [(81, 1)] * 3


def test_an_epsilon_that_leaves_no_noise_is_fitted() -> None:
    assert together(fitted(40, 2, epsilon=1e6))
