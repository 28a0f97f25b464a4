# SPDX-License-Identifier: Apache-2.0
"""Counting in a database: the counts of every forest are those of the same rows in memory, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

import veilwood as vw
from fixtures.databases import passages_of, put, rows_of, same, schema_of
from veilwood.forests.adaptive import loop

FORESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("RandomTreesClassifier", "three", {"n_estimators": 4, "max_depth": 4}),
    ("RandomTreesRegressor", "number", {"n_estimators": 4, "max_depth": 4}),
    ("MatrixForestClassifier", "three", {"n_estimators": 8, "max_depth": 2}),
    ("MatrixForestClassifier", "two", {"n_estimators": 6, "max_depth": 2, "mechanism": "laplace"}),
    ("MedianForestClassifier", "three", {"n_estimators": 2, "max_depth": 3, "trees": "shared"}),
    ("MedianForestRegressor", "number", {"n_estimators": 2, "max_depth": 3, "trees": "shared"}),
    ("GreedyForestClassifier", "two", {"n_estimators": 2, "max_depth": 2, "trees": "shared"}),
    ("GreedyForestClassifier", "three", {"n_estimators": 2, "max_depth": 2, "trees": "shared", "branching": "binary"}),
    ("GreedyForestRegressor", "number", {"n_estimators": 2, "max_depth": 2, "trees": "shared"}),
    ("PrivateForestClassifier", "two", {"n_rows": 3000, "epsilon": 3.0}),
    ("PrivateForestClassifier", "three", {"n_rows": 3000, "epsilon": 3.0}),
    ("PrivateForestRegressor", "number", {"n_rows": 3000, "epsilon": 3.0}),
]
N_ROWS = 400


@pytest.fixture(scope="session")
def places(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp("databases")
    return {task: put(rows_of(task, N_ROWS), folder / task, server, task) for task in ("two", "three", "number")}


def cases() -> Iterator[Any]:
    """All forests in DuckDB, and some elsewhere; the others are slow."""
    for place, (name, task, params) in enumerate(FORESTS):
        for number, engine in enumerate(("duckdb", "postgres", "sqlite")):
            marks = [pytest.mark.slow] if number and place % 3 != number else []
            yield pytest.param(engine, name, task, params, marks=marks, id=f"{engine} {place} {name} {task}")


@pytest.mark.parametrize(("engine", "name", "task", "params"), list(cases()))
def test_counts_in_a_database_are_those_of_rows_in_memory(
    engine: str,
    name: str,
    task: str,
    params: dict[str, Any],
    places: dict[str, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "MISTAKEN", 1e9)  # what is declared is believed, so that rounds are reached

    def made() -> Any:
        return getattr(vw, name)(schema_of(task), random_state=1, n_jobs=1, **params)

    in_memory = passages_of(made(), rows_of(task, N_ROWS))
    there = passages_of(made(), places[task][engine])
    assert same(in_memory, there)
    if name.startswith("Private"):
        kinds = {passage.step.name.split(": ")[-1].rstrip(" 0123456789") for passage in there if passage.step}
        assert {"choice", "rows", "gradients"} <= kinds


def test_the_frame_is_one_that_engines_could_read_differently() -> None:
    rows = rows_of("number", N_ROWS)
    assert rows["in come"].isin([float("inf")]).any()
    assert rows["age"].isna().any()
    assert (pd.Series(rows["ill"]) > 2.5).any()
