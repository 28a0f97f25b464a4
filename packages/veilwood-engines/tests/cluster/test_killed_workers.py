# SPDX-License-Identifier: Apache-2.0
"""PrivateForest on Spark and Ray while workers are killed in the middle of a task: the fit is what it would have been.

Dask is in ``test_cluster_rows``. Spark runs its executors as processes of their own here, as on a cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from veilwood.forests.adaptive import loop as planning
from veilwood_engines.cluster.source import PersistedRows
from veilwood_testing.clusters import FOREST_KINDS, as_dask, as_ray, assert_same_model, clinic_rows, fit_kind, here, ray

__all__ = ["here", "ray"]  # fixtures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


@pytest.fixture(scope="module")
def executors() -> Iterator[Any]:
    """Two executors, each a Java process with Python workers below it."""
    sql = pytest.importorskip("pyspark.sql")
    pytest.importorskip("psutil")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        sql.SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.default.parallelism", "4")
        .config("spark.network.timeout", "600s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def asked_while(monkeypatch: pytest.MonkeyPatch, deaths: Mapping[int, Callable[[Any], Any]]) -> list[int]:
    """Ask some of the questions, by their number, of rows whose worker dies over it."""
    asks: list[int] = []
    ask = PersistedRows.aggregate

    def counted(self: PersistedRows, question: Any) -> Any:
        asks.append(1)
        return ask(self, deaths.get(len(asks), lambda same: same)(question))

    monkeypatch.setattr(PersistedRows, "aggregate", counted)
    return asks


def dying(mark: Path, parent: str | None, question: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Answer a question, but kill the process (or the one above it with such a name) the first time."""
    path = str(mark)

    def answer(rows: Any) -> Any:
        import os
        import signal

        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return question(rows)
        victim = os.getpid()
        if parent is not None:
            import psutil

            victim = next(p.pid for p in psutil.Process().parents() if parent in " ".join(p.cmdline()))
        os.kill(victim, signal.SIGKILL)
        raise AssertionError("whoever was killed is alive")

    return answer


@pytest.mark.parametrize("kind", ["rounds", "numbers", "fine cells"])
@pytest.mark.parametrize("engine", ["spark", "ray"])
def test_a_worker_killed_in_the_middle_changes_nothing(
    request: pytest.FixtureRequest,
    here: None,
    engine: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """All partitions are those of a frame of Dask in this process, which says what comes out if nobody dies."""
    frame = clinic_rows(FOREST_KINDS[kind][1])
    if engine == "spark":
        rows = request.getfixturevalue("executors").createDataFrame(frame)
        parent = "CoarseGrainedExecutorBackend"
    else:
        rows, parent = as_ray(request.getfixturevalue("ray"), frame), None
    monkeypatch.setattr(planning, "MAX_ROUNDS", 6)  # a question takes Spark seconds
    asks = asked_while(monkeypatch, {})
    whole = fit_kind(kind, as_dask(frame))
    marks = [tmp_path / "first", tmp_path / "second"]
    places = [len(asks) // 3, 2 * len(asks) // 3]
    assert places[0] > 3
    deaths = {place: partial(dying, mark, parent) for place, mark in zip(places, marks, strict=True)}
    again = asked_while(monkeypatch, deaths)
    assert_same_model(fit_kind(kind, rows), whole)
    assert len(again) == len(asks) - len(again)  # each was counted twice the second time
    assert all(mark.exists() for mark in marks)
