# SPDX-License-Identifier: Apache-2.0
"""Every engine answers every kind of query with the integers of NumPy in memory."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import veilwood as vw
from veilwood.arrays import HAVE_NUMBA
from veilwood.data.batches import Batch, Source
from veilwood.data.counts import GradientSums, RowBackend, RowQuery, RowsByCell
from veilwood.forests.adaptive.row_backend import MemoryBackend, ScoredRows, answer_query, n_outputs
from veilwood_engines import gpu
from veilwood_engines.cluster.source import PartitionBackend
from veilwood_engines.sql.source import open_sql
from veilwood_testing.clinic import every_query, query_tables
from veilwood_testing.databases import database_rows, schema_of, write_databases
from veilwood_testing.devices import stand_in

TASKS = {"two": 2, "three": 3, "number": 0}


class Table:
    """A table, encoded for memory and stored in databases."""

    def __init__(self, task: str, folder: Path) -> None:
        frame, schema = database_rows(task, 300), schema_of(task)
        kind = vw.PrivateForestRegressor if task == "number" else vw.PrivateForestClassifier
        design: Any = kind(schema, random_state=0)._design_for(schema)
        self.encoding, self.columns, self.folder = design.encoding, design.columns, folder
        self.n_classes, self.width = TASKS[task], n_outputs(TASKS[task])
        if task == "number":
            frame["ill"] = np.clip(frame["ill"], 0.0, 2.5)
        self.places = write_databases(frame, folder)
        codes = self.encoding.encode(frame.drop(columns=[schema.target.name, "person"]))
        self.batches = [Batch(codes, self.encoding.encode_target(frame[schema.target.name]), 0, 0)]
        self.source = Source(lambda: (partial(Batch, *batch) for batch in self.batches))


def in_database(engine: str, table: Table, monkeypatch: pytest.MonkeyPatch) -> RowBackend:
    source = open_sql(table.places[engine], table.encoding, cap=None, invalid="refuse")
    backend = source.make_backend(table.columns, table.width)
    assert backend is not None
    return backend


def on_device(table: Table, monkeypatch: pytest.MonkeyPatch) -> RowBackend:
    gpu._compile_kernel.cache_clear()
    monkeypatch.setitem(sys.modules, "cupy", stand_in(table.folder))
    monkeypatch.setattr(gpu, "_SCORING_THREADS", 1)
    return gpu.GpuBackend(table.columns, table.source, table.width)


ENGINES: dict[str, Callable[[Table, pytest.MonkeyPatch], RowBackend]] = {
    "memory": lambda table, _: MemoryBackend(table.columns, table.source, table.width),
    "cluster": lambda table, _: PartitionBackend(table.columns, table.width, table.batches),
    "duckdb": partial(in_database, "duckdb"),
    "sqlite": partial(in_database, "sqlite"),
    "gpu": on_device,
}


def test_the_list_has_every_kind_of_query(tmp_path: Path) -> None:
    tables = [Table(task, tmp_path / task) for task in TASKS]
    assert {type(query) for t in tables for query in every_query(t.columns, t.n_classes)} == set(get_args(RowQuery))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_answers_with_the_same_integers(
    engine: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "gpu" and not shutil.which("g++"):
        pytest.skip("needs g++")
    table, rng = Table(task, tmp_path), np.random.default_rng(0)
    rows = ScoredRows.from_batches(table.columns, table.batches, table.width)
    backend = ENGINES[engine](table, monkeypatch)
    for scored in query_tables(table.columns)[:2]:
        values = rng.integers(-2000, 2000, (scored.n_cells, table.width)).astype(np.int32)
        rows.add_scores(scored, values, fast=False)
        backend.add_scores(scored, values)
        for query in every_query(table.columns, table.n_classes):
            expected = answer_query(query, rows, fast=False)
            answer = backend.run(query)
            assert answer.dtype == np.int64
            np.testing.assert_array_equal(answer, expected, err_msg=str(query))
            if HAVE_NUMBA:
                np.testing.assert_array_equal(answer_query(query, rows, fast=True), expected, err_msg=str(query))
        for asked in query_tables(table.columns):
            together: tuple[RowQuery, ...] = (RowsByCell(asked), GradientSums([asked], table.n_classes, 3000))
            for answer, query in zip(backend.run_together(together), together, strict=True):
                np.testing.assert_array_equal(answer, answer_query(query, rows, fast=False), err_msg=str(query))
