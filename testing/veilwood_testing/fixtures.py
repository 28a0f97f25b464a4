# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the tests of all packages share, and settings of their property-based tests.

Modules are imported inside fixtures where not every test needs them: each worker imports this file first.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings

import veilwood as vw

os.environ["VEILWOOD_CACHE"] = "off"  # tests neither find nor leave strategies in the cache of the user who runs them

# A busy machine is no counterexample, and an example found by chance in one run of many should be written down as a
# test of its own rather than fail a change that has nothing to do with it.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def _strategies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("strategies")


@pytest.fixture
def cached_strategies(_strategies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep strategies, as users do: a test that fits matrix forests often, and not to test the search, asks for it."""
    monkeypatch.setenv("VEILWOOD_CACHE", str(_strategies))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def car_forest() -> Any:
    """A forest that was fitted to every second row of the cars, never changed."""
    car = vw.datasets.car()
    return vw.PrivateForestClassifier(car.schema, epsilon=2.0, random_state=0).fit(car.X[::2], car.y[::2])


@pytest.fixture(scope="session")
def _signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cryptography")
    from veilwood_testing.small_forests import write_signed_files

    folder = tmp_path_factory.mktemp("signed")
    write_signed_files(folder)
    return folder


@pytest.fixture
def signed_folder(_signed: Path, tmp_path: Path) -> Path:
    """A copy of a folder with two key pairs, a signed model, another signed model, and a signed plan."""
    shutil.copytree(_signed, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="session")
def two_models() -> dict[str, Any]:
    """A classifier and a regressor, fitted to other rows than those that they are evaluated on."""
    from veilwood_testing.neighbour_pairs import SCHEMAS, as_frame, row_of

    rng = np.random.default_rng(0)
    found = {}
    for name, more in (("RandomTreesClassifier", {"n_estimators": 3, "max_depth": 2}), ("PrivateForestRegressor", {})):
        task = "classification" if name.endswith("Classifier") else "regression"
        X, y = as_frame([row_of(rng, task, odd=0.0) for _ in range(300)], task, Path())
        found[name] = getattr(vw, name)(SCHEMAS[task], random_state=0, **more).fit(X, y)
    return found


@pytest.fixture(scope="session")
def car() -> Any:
    """The cars that come with the library."""
    return vw.datasets.car()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """One PostgreSQL server for all tests that need one."""
    from veilwood_testing.processes import running_postgres

    with running_postgres(fsync="off") as address:
        yield address


@pytest.fixture(scope="session")
def places(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The addresses of one table of each task, in each database."""
    from veilwood_testing.databases import N_ROWS, database_rows, write_databases

    folder = tmp_path_factory.mktemp("databases")
    return {
        task: write_databases(database_rows(task, N_ROWS), folder / task, server, task)
        for task in ("two", "three", "number")
    }


@pytest.fixture(scope="session")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, a schema, a model and a ledger, never written to."""
    folder = tmp_path_factory.mktemp("clinic")
    frame = pd.DataFrame({"age": [i % 90 for i in range(400)], "ward": ["A", "B"] * 200})
    frame["ill"] = ["yes" if age > 40 else "no" for age in frame["age"]]
    frame.to_csv(folder / "visits.csv", index=False)
    ward = {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]}
    age = {"name": "age", "kind": "numeric", "lower": 0, "upper": 120}
    ill = {"name": "ill", "kind": "categorical", "values": ["no", "yes"]}
    schema = {"name": "visits", "task": "classification", "target": "ill", "columns": [age, ward, ill]}
    (folder / "visits.json").write_text(json.dumps(schema))
    forest = vw.RandomTreesClassifier(schema, epsilon=5.0, n_estimators=4, max_depth=3)
    vw.save(forest.fit(folder / "visits.csv"), folder / "old.veilwood")
    vw.SQLiteLedger(folder / "small.db", epsilon=0.5)
    return folder


@pytest.fixture
def in_clinic(clinic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh copy of the clinic, as the working directory."""
    for path in clinic.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table that nobody has described yet, as the working directory."""
    monkeypatch.chdir(tmp_path)
    n = 120
    pd.DataFrame({
        "patient_id": [f"{row // 2:04d}" for row in range(n)], "age": [20 + row % 60 for row in range(n)],
        "ward": ["A1", "B1"] * (n // 2), "note": [f"came on foot, number {row}" for row in range(n)],
        "ill": ["no", "yes"] * (n // 2),
    }).to_csv("visits.csv", index=False, sep=";")  # fmt: skip
    return tmp_path


@pytest.fixture(scope="session")
def messy_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The messy table of the examples, never written to."""
    from veilwood_testing.tables import write_messy_table

    path = tmp_path_factory.mktemp("messy") / "visits.csv"
    write_messy_table(path, 1000)
    return path


@pytest.fixture(scope="session")
def messy_draft(messy_csv: Path) -> dict[str, Any]:
    """A draft of the messy table, never changed."""
    from veilwood.drafting.draft import draft_from_table

    return draft_from_table(messy_csv, "wiederaufnahme", dates=["month", "weekday"])


@pytest.fixture
def two_dialects(tmp_path: Path) -> tuple[Path, Path]:
    """One table as plain CSV and as a German office writes it."""
    from veilwood_testing.tables import GERMAN_CSV, PLAIN_CSV

    plain, german = tmp_path / "plain.csv", tmp_path / "german.csv"
    plain.write_text(PLAIN_CSV, encoding="utf-8")
    german.write_text(GERMAN_CSV, encoding="cp1252")
    return plain, german
