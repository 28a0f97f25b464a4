# SPDX-License-Identifier: Apache-2.0
"""Rounds in a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from fixtures.databases import put, rows_of, schema_of
from veilwood.data.sql.source import open_sql
from veilwood.forests.cells.cell_tables import CellTable
from veilwood.forests.cells.questions import GradientSums
from veilwood.forests.cells.sql_rows import SqlRows


@pytest.mark.slow
def test_many_steps_are_not_too_deep_for_a_parser(tmp_path: Path) -> None:
    """SQLite gave up in the middle of a fit, after its loss was spent."""
    where = put(rows_of("two", 60), tmp_path)
    forest = vw.PrivateForestClassifier(schema_of("two"), random_state=0)
    design: Any = forest.prepare(schema_of("two"))
    table = CellTable((design.columns[0].values(), design.columns[1].of_scales(4)))
    rng, answers = np.random.default_rng(0), []
    steps = [rng.integers(-900, 900, (table.n_cells, 1)).astype(np.int32) for _ in range(7)]
    for engine in ("sqlite", "duckdb"):
        source = open_sql(where[engine], design.encoding, cap=None, invalid="refuse")
        rows = SqlRows(design.columns, source, 2)
        for values in steps:
            rows.add(table, values)
        answers.append(rows.ask(GradientSums([table], 2, 4096)).tolist())
    assert answers[0] == answers[1]
