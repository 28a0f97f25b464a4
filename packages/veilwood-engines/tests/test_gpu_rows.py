# SPDX-License-Identifier: Apache-2.0
"""Rows in a GPU's memory answer as those in the processor's: on a GPU where there is one, and on a stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from veilwood.data.batches import Batch, Source
from veilwood.data.counts import ALL_ROWS, GradientSums, RowsByCell
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive.row_backend import GRADIENT_UNITS, MemoryBackend, answer_query
from veilwood.privacy.entropy import seeded_for_tests
from veilwood_engines import gpu
from veilwood_engines import gpu as gpu_rows
from veilwood_testing.clinic import COLUMNS, every_query, forest_of, query_tables, schema_of, small_table, table_of
from veilwood_testing.devices import DEVICES, stand_in

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]
TASKS = {"two": 2, "three": 3, "regression": 0}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    gpu_rows._compile_kernel.cache_clear()
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "cupy", stand_in(folder))
        monkeypatch.setattr(gpu_rows, "_SCORING_THREADS", 1)
        monkeypatch.setattr(gpu_rows, "_MIN_SCORED_ROWS", 50)
    monkeypatch.setattr(gpu_rows, "PART_ROWS", 200)
    yield request.param
    gpu_rows._compile_kernel.cache_clear()


def source_of(task: str) -> Source:
    encoding = Encoding(schema_of(task))
    X, y = table_of(task, 500)
    codes, target = encoding.encode(X), encoding.encode_target(y)
    return Source(lambda: (partial(Batch, codes[i:j], target[i:j], 0, i) for i, j in pairwise([0, 130, 260, 390, 500])))


@pytest.mark.parametrize("room", [gpu_rows._SHARED_MEMORY, 200, 0])
@pytest.mark.parametrize("task", TASKS)
def test_answers_are_those_of_the_processor(task: str, room: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables in many copies, in one, or too large for the memory of a block."""
    monkeypatch.setattr(gpu_rows, "_SHARED_MEMORY", room)
    n_classes = TASKS[task]
    width = n_classes if n_classes > 2 else 1
    held, there = MemoryBackend(COLUMNS, source_of(task), width), gpu_rows.GpuBackend(COLUMNS, source_of(task), width)
    rng = np.random.default_rng(0)
    tables, questions = query_tables(COLUMNS), every_query(COLUMNS, n_classes)
    for table in tables:
        values = rng.integers(-2000, 2000, (table.n_cells, width)).astype(np.int32)
        held.add_scores(table, values)
        there.add_scores(table, values)
        for question in questions:
            assert (held.run(question) == there.run(question)).all(), question
    for own, other in zip(
        held.nonempty_cells(small_table().axes, 7), there.nonempty_cells(small_table().axes, 7), strict=True
    ):
        assert (own == other).all()
    there.hold_out(0.3)
    count = RowsByCell(ALL_ROWS)
    assert there.run(count) + there.run_on_holdout(partial(answer_query, count)) == 500
    few, share = there.run_on_sample(GradientSums([ALL_ROWS], n_classes, GRADIENT_UNITS), 0.5)
    assert few.shape == (1, width)
    assert share == 0.5


@pytest.mark.parametrize("task", ["two", "regression"])
def test_a_fit_is_the_same(task: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table_of(task, 700)
    with seeded_for_tests(5):
        here = forest_of(task, epsilon=2.0).fit(X, y)
    with seeded_for_tests(5), gpu.use():
        there = forest_of(task, epsilon=2.0).fit(X, y)
    assert np.array_equal(here.leaf_values_, there.leaf_values_)
    assert here.plan_.steps == there.plan_.steps


def test_no_rows_are_asked_too(device: str) -> None:
    rows = gpu_rows.GpuBackend(COLUMNS, Source(lambda: iter(())), 1)
    assert rows.run(RowsByCell(small_table())).tolist() == [0] * small_table().n_cells
