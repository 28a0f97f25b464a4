# SPDX-License-Identifier: Apache-2.0
"""The quality that a plan lets one expect: read off measured results, by the epsilon of one row."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.forests import expected_skill as quality
from veilwood.forests.expected_skill import estimate_skill

MEASURED: dict[str, Any] = json.loads(files("veilwood.forests").joinpath("expected_private_forest.json").read_text())


def test_results_are_of_the_development_suite_at_all_budgets() -> None:
    tables = MEASURED["tables"]
    assert MEASURED["suite"] == "development"
    assert len(tables) >= 25
    assert {table["task"] for table in tables.values()} == {"classification", "regression"}
    assert all(len(table["skill"]) == 7 for table in tables.values())
    assert all(-1 <= skill <= 1.05 for table in tables.values() for skill in table["skill"].values())


def test_a_range_is_that_of_tables_alike() -> None:
    told = estimate_skill("classification", 10_000, 10, 1.0)
    near = {
        name: [
            skill for epsilon, skill in table["skill"].items()
            if 1_000 / 3 <= table["rows"] * float(epsilon) / table["columns"] <= 3_000
        ]
        for name, table in MEASURED["tables"].items() if table["task"] == "classification"
    }  # fmt: skip
    means = [np.mean(skills) for skills in near.values() if skills]
    assert told.n_tables == len(means) >= quality.MIN_TABLES
    assert (told.low, told.high) == pytest.approx(np.percentile(means, quality.PERCENTILES))
    assert told.side == 0


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_beyond_all_tables_the_nearest_are_told_and_that_they_are_beyond(task: Any) -> None:
    few, many = estimate_skill(task, 1, 100, 1e-3), estimate_skill(task, 10**12, 2, 10.0)
    assert (few.side, many.side) == (-1, 1)
    assert few.n_tables >= quality.MIN_TABLES
    assert few.high < many.low + 0.5
    assert "fewer rows times epsilon per column than any" in str(few)
    assert "more rows times epsilon per column than any" in str(many)
    assert "-0.0" not in str(few)


def plan_of(**params: Any) -> vw.Plan:
    car = vw.datasets.car()
    return vw.PrivateForestClassifier(car.schema, random_state=0, **params).plan()


@pytest.mark.parametrize(("k", "adjacency", "factor"), [(10, "add-remove", 10), (10, "replace-one", 20)])
def test_what_to_expect_is_that_of_one_row(k: int, adjacency: str, factor: int) -> None:
    many = plan_of(epsilon=2.0, n_rows=1728, privacy_unit=k, adjacency=adjacency)
    alone = plan_of(epsilon=2.0 / factor, n_rows=1728)
    assert (many.notes, many.expected) == (alone.notes, alone.expected)
    assert many.expected != plan_of(epsilon=2.0, n_rows=1728).expected


def test_plans_say_what_to_expect() -> None:
    known, unknown = plan_of(epsilon=1.0, n_rows=1728).expected, plan_of(epsilon=1.0).expected
    assert list(known) == ["at 1,728 rows"]
    assert len(unknown) == 3
    for text in (*known.values(), *unknown.values()):
        assert "half had a skill of" in text
    assert plan_of(epsilon=float("inf"), n_rows=1728).expected == {}
    plan = vw.PrivateForestClassifier(vw.datasets.car().schema, epsilon=1.0, n_rows=1728).plan()
    assert "What to expect: " in plan.explain()
    assert "half had a skill of" in plan.explain()
