# SPDX-License-Identifier: Apache-2.0
"""Counting in a database: the counts of every forest are those of the same rows in memory, bit for bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.evaluation import evaluate
from veilwood.forests.adaptive import loop
from veilwood_audit.noninterference import force_outcomes
from veilwood_testing.databases import (
    N_ROWS,
    database_rows,
    record_fit_events,
    same_events,
    schema_of,
    write_databases,
)

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
    monkeypatch.setattr(loop, "DECLARED_FACTOR", 1e9)  # what is declared is believed, so that rounds are reached

    def made() -> Any:
        return getattr(vw, name)(schema_of(task), random_state=1, n_jobs=1, **params)

    in_memory = record_fit_events(made(), database_rows(task, N_ROWS))
    there = record_fit_events(made(), places[task][engine])
    assert same_events(in_memory, there)
    if name.startswith("Private"):
        kinds = {passage.step.name.split(": ")[-1].rstrip(" 0123456789") for passage in there if passage.step}
        assert kinds >= ({"choice", "rows and residuals"} if task == "number" else {"choice", "rows", "gradients"})


def held_out_counts(address: str, **settings: Any) -> tuple[Any, Any]:
    """The exact counts of a fit, of both parts of a split: per leaf, and per cell of the evaluation."""
    forest = vw.RandomTreesClassifier(schema_of("two"), n_estimators=1, max_depth=2, random_state=0, **settings)
    with force_outcomes() as passages:
        forest.fit(address, holdout_fraction=0.3)
    trained, judged = (np.asarray(passage.exact) for passage in passages)
    return trained, judged


@pytest.mark.parametrize("engine", ["duckdb", "postgres", "sqlite"])
def test_a_fraction_of_the_rows_is_held_out(engine: str, places: dict[str, dict[str, str]]) -> None:
    trained, judged = (counts.sum() for counts in held_out_counts(places["two"][engine]))
    assert trained + judged == N_ROWS
    assert 60 < judged < 180  # beyond it by chance: below one in a million


@pytest.mark.parametrize("engine", ["duckdb", "sqlite"])
def test_equal_rows_are_held_out_one_by_one(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is added is in one part, moves no other row, and is drawn for itself: a thousand equal rows differ."""
    monkeypatch.setattr(evaluate, "secret_key", lambda: b"k" * 32)
    rows = database_rows("two", 1).loc[[0] * 1000]
    seen = []
    for n in (999, 1000):
        seen.append(held_out_counts(write_databases(rows[:n], tmp_path / str(n))[engine]))
    moved = [int(np.abs(now - before).sum()) for before, now in zip(*seen, strict=True)]
    assert sorted(moved) == [0, 1]
    assert 210 < seen[0][1].sum() < 390  # 6.2 standard deviations


def test_the_command_line_shows_and_records_statements(
    places: dict[str, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema, model, address = tmp_path / "schema.json", tmp_path / "model.veilwood", places["two"]["duckdb"]
    schema_of("two").save(schema)
    settings = ["--schema", str(schema), "--estimator", "random-trees", "--param", "n_estimators=2"]
    settings += ["--param", "max_depth=3"]
    assert main(["plan", *settings, "--sql", address]) == 0
    planned = [line.removesuffix(";") for line in capsys.readouterr().out.splitlines() if line.endswith(";")]
    assert main(["fit", address, *settings, "-o", str(model)]) == 0
    record = (tmp_path / "model.statements.txt").read_text().splitlines()
    hashes = [hashlib.sha256(statement.encode()).hexdigest() for statement in planned]
    begin = hashlib.sha256(b"BEGIN TRANSACTION").hexdigest()
    assert [one for one in record if one != begin] == hashes
    capsys.readouterr()
    assert main(["plan", *settings, "--sql", "bigquery", "--json"]) == 0
    assert any("`grade`" in one for one in json.loads(capsys.readouterr().out)["statements"])
    assert main(["plan", *settings, "--sql", "oracle"]) == 2


def test_a_ledger_shows_no_password(server: str, tmp_path: Path, places: dict[str, dict[str, str]]) -> None:
    ledger = vw.SQLiteLedger(tmp_path / "spends.db", 5.0)
    address = places["two"]["postgres"].replace("veilwood@", "veilwood:hidden@")
    forest = vw.RandomTreesClassifier(schema_of("two"), n_estimators=2, max_depth=2, ledger=ledger).fit(address)
    assert b"hidden" not in (tmp_path / "spends.db").read_bytes()
    assert "hidden" not in str(vw.process_spend()) + forest.privacy_.to_json()


def test_the_frame_is_one_that_engines_could_read_differently() -> None:
    rows = database_rows("number", N_ROWS)
    assert rows["in come"].isin([float("inf")]).any()
    assert rows["age"].isna().any()
    assert (pd.Series(rows["ill"]) > 2.5).any()
