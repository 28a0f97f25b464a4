# SPDX-License-Identifier: Apache-2.0
"""Rounds in a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.data.batches import Batch
from veilwood.data.counts import (
    Axis,
    ClassesByCell,
    ContingencyTable,
    EvidenceGain,
    GradientSums,
    ResidualHistogram,
    RowsByCell,
)
from veilwood.errors import MechanismError
from veilwood.forests.adaptive.row_backend import ScoredRows, answer_query, n_outputs
from veilwood_engines.sql.backend import SqlBackend
from veilwood_engines.sql.source import open_sql
from veilwood_testing.databases import database_rows, schema_of, write_databases
from veilwood_testing.errors import rejects


@pytest.mark.slow
def test_many_steps_are_not_too_deep_for_a_parser(tmp_path: Path) -> None:
    """SQLite gave up in the middle of a fit, after its loss was spent."""
    where = write_databases(database_rows("two", 60), tmp_path)
    forest = vw.PrivateForestClassifier(schema_of("two"), random_state=0)
    design: Any = forest._design_for(schema_of("two"))
    table = ContingencyTable((design.columns[0].ungrouped_axis(), design.columns[1].default_groups(4)))
    rng, answers = np.random.default_rng(0), []
    steps = [rng.integers(-900, 900, (table.n_cells, 1)).astype(np.int32) for _ in range(7)]
    for engine in ("sqlite", "duckdb"):
        source = open_sql(where[engine], design.encoding, cap=None, invalid="refuse")
        rows = SqlBackend(design.columns, source, 2)
        for values in steps:
            rows.add_scores(table, values)
        answers.append(rows.run(GradientSums([table], 2, 4096)).tolist())
    assert answers[0] == answers[1]


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_first_cells_alone_and_a_last_group_of_many_are_counted_as_in_memory(tmp_path: Path, engine: str) -> None:
    """Such groups were once taken for cells: sums of one table took the place of another's."""
    where, schema = write_databases(database_rows("two", 200), tmp_path), schema_of("two")
    design: Any = vw.PrivateForestClassifier(schema, random_state=0)._design_for(schema)
    tables = []
    for column in design.columns:
        groups = np.minimum(np.arange(column.n_bins), 2).astype(np.uint16)
        tables.append(
            ContingencyTable((Axis(column.feature, groups, column.ordered, int(groups.max()) + 1, column.starts),))
        )
    rows = SqlBackend(design.columns, open_sql(where[engine], design.encoding, cap=None, invalid="refuse"), 2)
    whole = [ContingencyTable((column.ungrouped_axis(),)) for column in design.columns]
    for table, fine in zip(tables, whole, strict=True):
        cells = rows.run(RowsByCell(fine))
        assert rows.run(RowsByCell(table)).tolist() == np.bincount(table.axes[0].groups, cells).tolist()
    fine_sums = np.split(rows.run(GradientSums(whole, 2, 4096)), np.cumsum([t.n_cells for t in whole])[:-1])
    wanted = [np.bincount(t.axes[0].groups, sums[:, 0]) for t, sums in zip(tables, fine_sums, strict=True)]
    assert rows.run(GradientSums(tables, 2, 4096))[:, 0].tolist() == np.concatenate(wanted).tolist()
    assert rows.run(ClassesByCell(tables, 2)).sum() == 200 * len(tables)


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
@pytest.mark.parametrize("task", ["two", "three"])
def test_gains_are_those_of_rows_in_memory(tmp_path: Path, task: str, engine: str) -> None:
    frame = database_rows(task, 150)
    where, schema = write_databases(frame, tmp_path), schema_of(task)
    design: Any = vw.PrivateForestClassifier(schema, random_state=0)._design_for(schema)
    k = len(schema.classes)
    width = n_outputs(k)
    target = np.array([schema.classes.index(str(label)) for label in frame[schema.target.name]], np.int32)
    codes = design.encoding.encode(frame.drop(columns=schema.target.name))
    here = ScoredRows.from_batches(design.columns, [Batch(codes, target, 0, 0)], width)
    there = SqlBackend(design.columns, open_sql(where[engine], design.encoding, cap=None, invalid="refuse"), k)
    rng, start = np.random.default_rng(0), np.arange(width, dtype=np.int32) * 70 - 90
    for column in design.columns:
        table = ContingencyTable((column.ungrouped_axis(),))
        values = rng.integers(-4000, 4000, (table.n_cells, width)).astype(np.int32)
        here.add_scores(table, values)
        there.add_scores(table, values)
        for most in (200, 10**6):
            question = EvidenceGain(start, k, 3000, most)
            assert there.run(question).tolist() == answer_query(question, here).tolist()


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
@pytest.mark.parametrize("task", ["two", "three"])
def test_sums_of_sets_of_many_columns_are_those_of_rows_in_memory(tmp_path: Path, task: str, engine: str) -> None:
    """Rounds of PrivateForest add scores to sets of up to six columns, and ask for their sums."""
    frame = database_rows(task, 150)
    where, schema = write_databases(frame, tmp_path), schema_of(task)
    design: Any = vw.PrivateForestClassifier(schema, random_state=0)._design_for(schema)
    k = len(schema.classes)
    target = np.array([schema.classes.index(str(label)) for label in frame[schema.target.name]], np.int32)
    codes = design.encoding.encode(frame.drop(columns=schema.target.name))
    here = ScoredRows.from_batches(design.columns, [Batch(codes, target, 0, 0)], n_outputs(k))
    there = SqlBackend(design.columns, open_sql(where[engine], design.encoding, cap=None, invalid="refuse"), k)
    axes, rng = [column.equal_mass_groups(column.prior, 2) for column in design.columns], np.random.default_rng(0)
    sets = [ContingencyTable(tuple(axes[:4])), ContingencyTable(tuple(axes)), ContingencyTable(tuple(axes[1:]))]
    assert max(len(table.axes) for table in sets) > 3
    for table in sets:
        values = rng.integers(-900, 900, (table.n_cells, n_outputs(k))).astype(np.int32)
        here.add_scores(table, values)
        there.add_scores(table, values)
    for question in (GradientSums(sets, k, 4096), ClassesByCell(sets, k), RowsByCell(sets[1])):
        assert (there.run(question) == answer_query(question, here)).all()


def test_sqlite_is_asked_about_more_classes_than_it_joins_tables(tmp_path: Path) -> None:
    """At 64 classes it gave up, in the middle of a fit whose loss was spent."""
    k, rng = 70, np.random.default_rng(0)
    schema = vw.Schema.from_dict({
        "name": "many", "task": "classification", "target": "y",
        "columns": [{"name": "x", "kind": "numeric", "lower": 0, "upper": 1},
                    {"name": "y", "kind": "categorical", "values": [f"c{i}" for i in range(k)]}],
    })  # fmt: skip
    frame = pd.DataFrame({"x": rng.random(300), "y": [f"c{i}" for i in rng.integers(0, k, 300)]})
    where = write_databases(frame, tmp_path)
    design: Any = vw.PrivateForestClassifier(schema, random_state=0)._design_for(schema)
    target = design.encoding.encode_target(frame["y"])
    here = ScoredRows.from_batches(design.columns, [Batch(design.encoding.encode(frame[["x"]]), target, 0, 0)], k)
    there = SqlBackend(design.columns, open_sql(where["sqlite"], design.encoding, cap=None, invalid="refuse"), k)
    table = ContingencyTable((design.columns[0].default_groups(4),))
    values = rng.integers(-3000, 3000, (table.n_cells, k)).astype(np.int32)
    here.add_scores(table, values)
    there.add_scores(table, values)
    for question in (GradientSums([table], k, 4096), EvidenceGain(np.zeros(k, np.int32), k, 4096, 900)):
        assert (there.run(question) == answer_query(question, here)).all()


def test_a_cell_outside_its_table_is_refused(tmp_path: Path) -> None:
    where, schema = write_databases(database_rows("two", 60), tmp_path), schema_of("two")
    design: Any = vw.PrivateForestClassifier(schema, random_state=0)._design_for(schema)
    rows = SqlBackend(design.columns, open_sql(where["sqlite"], design.encoding, cap=None, invalid="refuse"), 2)
    with rejects(MechanismError, raised_in="SqlBackend._sum_tables"):
        rows._sum_tables(["c0", "0"], ["COUNT(*)"], [1, 500], "veilwood_cells", "")
    for cell in ("-1", "7"):
        with rejects(MechanismError, raised_in="SqlBackend._sum_tables"):
            rows._count_cells(cell, 7, "veilwood_cells")


def test_residuals_with_one_mark_are_all_in_it(tmp_path: Path) -> None:
    where, schema = write_databases(database_rows("number", 60), tmp_path), schema_of("number")
    design: Any = vw.PrivateForestRegressor(schema, random_state=0)._design_for(schema)
    for engine in ("sqlite", "duckdb"):
        rows = SqlBackend(design.columns, open_sql(where[engine], design.encoding, cap=None, invalid="refuse"), 0)
        assert rows.run(ResidualHistogram(np.array([5]))).tolist() == [60]
