# SPDX-License-Identifier: Apache-2.0
"""Rows of a clinic on Dask, Spark and Ray, and forests that are fitted to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import veilwood as vw
from veilwood.privacy import entropy

dask = pytest.importorskip("dask")


dd = pytest.importorskip("dask.dataframe")


distributed = pytest.importorskip("distributed")


N, PARTS = 2000, 4


SIZE = N // PARTS


COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 1, "nullable": True},
    {"name": "ward", "kind": "categorical", "values": ["u", "v", "w"]},
]


CLASSES = {"name": "ill", "kind": "categorical", "values": ["no", "yes"]}


CLINIC = vw.Schema.from_dict(
    {"name": "clinic", "task": "classification", "target": "ill", "columns": [*COLUMNS, CLASSES]}
)


STAY = vw.Schema.from_dict(
    {"name": "stay", "task": "regression", "target": "days",
     "columns": [*COLUMNS, {"name": "days", "kind": "numeric", "lower": 0, "upper": 9}]}
)  # fmt: skip


def clinic_rows(target: str = "ill") -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.random(N), "ward": rng.choice(["u", "v", "w"], N)})
    frame["ill"] = np.where(frame["age"] > 0.6, "yes", "no")
    frame["days"] = rng.uniform(0, 9, N)
    frame.loc[::97, "age"] = np.nan
    return frame[["age", "ward", target]]


def clinic_rows_with_ids() -> pd.DataFrame:
    """Persons of one to ten rows, spread over all partitions."""
    people = np.random.default_rng(1).permutation(np.arange(N) % 400)
    return clinic_rows().assign(who=people)


def as_files(frame: pd.DataFrame, folder: Path) -> str:
    """One file for each partition: what a single process reads."""
    for part in range(PARTS):
        frame[part * SIZE : (part + 1) * SIZE].to_parquet(folder / f"{part}.parquet", index=False)
    return str(folder)


def as_dask(frame: pd.DataFrame) -> Any:
    return dd.from_pandas(frame, npartitions=PARTS, sort=False)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        # On a busy machine a worker may be silent for a while, and is no less there.
        dask.config.set(
            {
                "distributed.logging.distributed": "critical",
                "distributed.scheduler.worker-ttl": None,
                "distributed.comm.timeouts.connect": "300s",
                "distributed.comm.timeouts.tcp": "300s",
            }
        ),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as workers,
        distributed.Client(workers) as connection,
    ):
        yield connection


@pytest.fixture
def here() -> Iterator[None]:
    """Dask in this process, where tests can put a mutant into a worker's code."""
    with dask.config.set({"scheduler": "synchronous", "dataframe.shuffle.method": "tasks"}):
        yield


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.files.openCostInBytes", str(1 << 30))  # one partition for each file
        .config("spark.sql.files.maxPartitionBytes", str(1 << 30))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    module = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    module.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    module.data.DataContext.get_current().enable_progress_bars = False
    yield module
    module.shutdown()


def as_ray(ray: Any, frame: pd.DataFrame) -> Any:
    pieces = [frame[part * SIZE : (part + 1) * SIZE] for part in range(PARTS)]
    return ray.data.from_arrow([pa.Table.from_pandas(piece, preserve_index=False) for piece in pieces])


FOREST_KINDS: dict[str, tuple[Callable[..., Any], str]] = {
    "rounds": (partial(vw.PrivateForestClassifier, CLINIC, epsilon=3.0), "ill"),
    "fine cells": (partial(vw.PrivateForestClassifier, CLINIC, epsilon=20.0), "ill"),
    "numbers": (partial(vw.PrivateForestRegressor, STAY, epsilon=5.0), "days"),
}


def fit_kind(kind: str, X: Any, **params: Any) -> Any:
    with entropy.seeded_for_tests(5):
        return FOREST_KINDS[kind][0](random_state=0, **params).fit(X)


def assert_same_model(one: Any, other: Any) -> None:
    own, yours = one.model_.to_arrays(), other.model_.to_arrays()
    assert own.keys() == yours.keys()
    for name in own:
        np.testing.assert_array_equal(own[name], yours[name], err_msg=name)
    assert one.plan_.choices == other.plan_.choices
