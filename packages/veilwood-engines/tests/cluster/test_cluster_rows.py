# SPDX-License-Identifier: Apache-2.0
"""Tests of PrivateForest on clusters: every part of it, bit by bit what one process gives, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import tracemalloc
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.data.batches import Batch
from veilwood.data.counts import ALL_ROWS, ContingencyTable, RowsByCell
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive import loop
from veilwood.forests.adaptive import loop as planning
from veilwood.forests.adaptive import sparse_histogram as fine_cells
from veilwood.forests.adaptive.contingency import bin_columns
from veilwood.forests.adaptive.row_backend import MemoryBackend, answer_query
from veilwood.privacy import entropy
from veilwood_audit.noninterference import sample_by_content
from veilwood_engines.cluster import source as cluster_rows
from veilwood_engines.cluster.source import CellCounts, DrawKey, PartitionBackend, PersistedRows
from veilwood_testing.clusters import (
    CLINIC,
    FOREST_KINDS,
    N,
    as_dask,
    as_files,
    as_ray,
    assert_same_model,
    client,
    clinic_rows,
    clinic_rows_with_ids,
    fit_kind,
    here,
    ray,
    spark,
)

dd = pytest.importorskip("dask.dataframe")
pytest.importorskip("distributed")

__all__ = ["client", "here", "ray", "spark"]  # fixtures

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


@pytest.fixture
def coupled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coins by the contents of rows, wherever they are, and few judges."""
    for held in (MemoryBackend, PartitionBackend):
        monkeypatch.setattr(held, "_draw_mask", sample_by_content)
    monkeypatch.setattr(cluster_rows, "secret_key", lambda: b"key")
    monkeypatch.setattr(loop, "SCORE_SAMPLE_ROWS", 500)
    monkeypatch.setattr(fine_cells, "MAX_SAMPLED_ROWS", 1200)


@pytest.mark.parametrize("kind", FOREST_KINDS)
def test_every_part_is_what_one_process_gives(here: None, coupled: None, kind: str, tmp_path: Path) -> None:
    rows = clinic_rows(FOREST_KINDS[kind][1])
    there = fit_kind(kind, as_dask(rows))
    assert "round" in there.plan_.choices["learned"]
    assert ("sparse histogram" in there.plan_.choices["learned"]) == (kind == "fine cells")
    assert_same_model(there, fit_kind(kind, as_files(rows, tmp_path)))


def test_rows_of_people_and_rows_set_aside(here: None) -> None:
    capped = fit_kind("fine cells", as_dask(clinic_rows_with_ids()), privacy_unit={"id": "who", "at_most": 2})
    assert "sparse histogram" in capped.plan_.choices["learned"]
    with entropy.seeded_for_tests(5):
        forest = vw.PrivateForestClassifier(CLINIC, epsilon=8.0, random_state=0)
        forest.fit(as_dask(clinic_rows()), holdout_fraction=0.25)
    assert 0.5 < forest.evaluation_.accuracy.value <= 1


def test_no_row_at_all_is_no_matter_where_rows_are_dropped(here: None) -> None:
    nothing = as_dask(clinic_rows().assign(ward="elsewhere"))
    assert len(fit_kind("rounds", nothing, invalid="drop").predict(clinic_rows())) == N


COUNT = RowsByCell(ALL_ROWS)


# -- secret coins -----------------------------------------------------------------------------------------------------


def partition(n_rows: int, number: int = 3) -> PartitionBackend:
    encoding = Encoding(CLINIC, "grid")
    codes = np.zeros((n_rows, 2), np.uint16)
    batches = [
        Batch(codes[first : first + 700], np.zeros(len(codes[first : first + 700]), np.int32), number, first)
        for first in range(0, n_rows, 700)
    ]
    return PartitionBackend(bin_columns(encoding), 1, batches)


def row_draws(key: bytes, number: int, what_for: bytes = b"x") -> NDArray[np.bool_]:
    rows = partition(5000, number)
    rows._key = key + what_for
    return rows._draw_mask(rows._parts[0], 0.3)


def test_coins_are_tossed_alike_by_whoever_has_the_key() -> None:
    """And are fair, and others for another key, partition or purpose."""
    first = row_draws(b"k", 3)
    assert (first == row_draws(b"k", 3)).all()
    assert abs(first.mean() - 0.3) < 5 * (0.3 * 0.7 / 5000) ** 0.5
    for other in (row_draws(b"l", 3), row_draws(b"k", 4), row_draws(b"k", 3, b"y")):
        assert abs((first & other).mean() - 0.09) < 5 * (0.09 * 0.91 / 5000) ** 0.5


def test_rows_that_were_set_apart_are_asked_apart_and_stay_as_they_are() -> None:
    rows = partition(5000)
    apart = rows.apply_updates([methodcaller("hold_out_keyed", DrawKey(b"k"), 0.1)])
    judged = apart.apply_updates([methodcaller("draw_sample_keyed", DrawKey(b"k"), 0.2)])
    (held,), (left,) = judged.run_on_holdout(partial(answer_query, COUNT)), judged.run(COUNT)
    assert (rows.run(COUNT), held + left) == (np.array([5000]), 5000)
    assert 400 < held < 600
    (judges,) = judged.run_on_sample(COUNT, 0.2)[0]
    assert 750 < judges < 1050
    step = np.array([[7]], np.int32)
    later = judged.apply_updates([methodcaller("add_scores", ContingencyTable(()), step)])
    for name in ("_parts", "_holdout", "_sample"):
        assert {int(part.scores.min()) for part in getattr(later, name)} == {7}
        assert {int(np.abs(part.scores).max()) for part in getattr(judged, name)} == {0}


def test_cells_of_partitions_add_up() -> None:
    one, other = CellCounts(np.array([1, 5]), np.array([2, 1])), CellCounts(np.array([0, 5]), np.array([1, 4]))
    total = one.copy() + other
    assert (total.cells.tolist(), total.counts.tolist()) == ([0, 1, 5], [1, 2, 5])


# -- what dies on the way, and what grows -----------------------------------------------------------------------------


def asks_until(monkeypatch: pytest.MonkeyPatch, when: dict[int, Callable[[], None]]) -> list[int]:
    """Do something before some of the questions."""
    asks: list[int] = []
    ask = PersistedRows.aggregate

    def counted(self: PersistedRows, question: Any) -> Any:
        asks.append(1)
        when.get(len(asks), lambda: None)()
        return ask(self, question)

    monkeypatch.setattr(PersistedRows, "aggregate", counted)
    return asks


def kill_one(client: Any) -> None:
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", "fine cells"])
def test_a_worker_killed_in_the_middle_changes_nothing(client: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = as_dask(clinic_rows(FOREST_KINDS[kind][1]))
    asks = asks_until(monkeypatch, {})
    whole = fit_kind(kind, rows)
    first, second = len(asks) // 3, 2 * len(asks) // 3
    assert first > 3
    died = asks_until(monkeypatch, {first: partial(kill_one, client), second: partial(kill_one, client)})
    assert_same_model(fit_kind(kind, rows), whole)
    assert len(died) == len(asks) - len(died)


def made_there(seed: int, n_rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.random(n_rows)
    return pd.DataFrame({"age": age, "ward": rng.choice(["u", "v", "w"], n_rows), "days": 9 * age})


@pytest.mark.slow
def test_memory_here_does_not_grow_with_the_rows(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MAX_ROUNDS", 2)
    grown: list[int] = []
    ask = PersistedRows.aggregate

    def with_weights(self: PersistedRows, question: Any) -> Any:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        answer = ask(self, question)
        grown.append(tracemalloc.get_traced_memory()[1] - before)
        return answer

    monkeypatch.setattr(PersistedRows, "aggregate", with_weights)
    n_rows = 200_000
    tracemalloc.start()
    fit_kind("numbers", dd.from_map(made_there, range(8), n_rows=n_rows, meta=made_there(0, 1)))
    tracemalloc.stop()
    assert len(grown) > 6
    assert max(grown) < 2**21 < 8 * n_rows * 6  # what the rows need there, encoded as small as can be, is far more


@pytest.fixture
def engines(spark: Any, ray: Any) -> dict[str, Callable[[pd.DataFrame], Any]]:
    return {"spark": spark.createDataFrame, "ray": partial(as_ray, ray)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOREST_KINDS)
@pytest.mark.parametrize("engine", ["spark", "ray"])
def test_spark_and_ray_carry_out_every_part(engines: Any, engine: str, kind: str) -> None:
    rows = clinic_rows(FOREST_KINDS[kind][1])
    one, again = (fit_kind(kind, engines[engine](rows)) for _ in range(2))
    assert_same_model(one, again)
    assert ("sparse histogram" in one.plan_.choices["learned"]) == (kind == "fine cells")
    assert len(one.predict(rows)) == N


@pytest.mark.slow
def test_all_engines_keep_the_same_rows_of_people(engines: Any, here: None) -> None:
    """The buckets of people are the same everywhere, and so are their coins."""
    frame, unit = clinic_rows_with_ids(), {"id": "who", "at_most": 2}
    first = fit_kind("fine cells", as_dask(frame), privacy_unit=unit)
    for engine in engines.values():
        assert_same_model(fit_kind("fine cells", engine(frame), privacy_unit=unit), first)
