# SPDX-License-Identifier: Apache-2.0
"""What all tests share: searches for counterexamples repeat from run to run, and no test is timed.

Fixtures of one room stand in its own conftest, and those of one file in that file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

os.environ["VEILWOOD_CACHE"] = "off"  # tests neither find nor leave strategies in the cache of whoever runs them

# A busy machine is no counterexample, and an example found by chance in one run of many should be written down as a
# test of its own rather than fail a change that has nothing to do with it.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def _strategies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("strategies")


@pytest.fixture
def kept_strategies(_strategies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    import veilwood as vw

    car = vw.datasets.car()
    return vw.PrivateForestClassifier(car.schema, epsilon=2.0, random_state=0).fit(car.X[::2], car.y[::2])


@pytest.fixture(scope="session")
def _signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cryptography")
    from veilwood_testing.signed_models import fill

    folder = tmp_path_factory.mktemp("signed")
    fill(folder)
    return folder


@pytest.fixture
def signed_folder(_signed: Path, tmp_path: Path) -> Path:
    """A copy of a folder with two key pairs, a signed model, another signed model, and a signed plan."""
    shutil.copytree(_signed, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="session")
def two_models() -> dict[str, Any]:
    """A classifier and a regressor, fitted to other rows than those that they are evaluated on."""
    import veilwood as vw
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
    import veilwood as vw

    return vw.datasets.car()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """One PostgreSQL server for all tests that need one."""
    from veilwood_testing.postgres import running

    with running(fsync="off") as address:
        yield address


@pytest.fixture(scope="session")
def places(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The addresses of one table of each task, in each database."""
    from veilwood_testing.databases import N_ROWS, put, rows_of

    folder = tmp_path_factory.mktemp("databases")
    return {task: put(rows_of(task, N_ROWS), folder / task, server, task) for task in ("two", "three", "number")}
