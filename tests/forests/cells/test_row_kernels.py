# SPDX-License-Identifier: Apache-2.0
"""Compiled loops over rows, and their twins in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fixtures.clinic import COLUMNS
from forests.cells.test_rows import N_CLASSES, random_rows
from veilwood.forests.cells import questions as asked
from veilwood.forests.cells.cell_tables import CellTable
from veilwood.forests.cells.layouts import Laid
from veilwood.forests.cells.rows import GRADIENT_UNITS, LEVEL_UNITS
from veilwood.trees.counting import HAVE_NUMBA

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.skipif(not HAVE_NUMBA, reason="there is one twin only")
@pytest.mark.parametrize("n_classes", N_CLASSES.values())
def test_compiled_loops_and_their_twins_agree(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from veilwood.forests.cells import row_kernels

    assert (row_kernels.GRADIENT_UNITS, row_kernels.LEVEL_UNITS) == (GRADIENT_UNITS, LEVEL_UNITS)
    monkeypatch.setattr(row_kernels, "MOST_ROWS", 3000)
    rng = np.random.default_rng(n_classes)
    rows = random_rows(n_classes, 9000, rng)
    axes = [[column.of_mass(column.prior, n) for column in COLUMNS] for n in (3, 6)]
    sets = [columns for size in (1, 2, 3) for columns in itertools.combinations(range(len(COLUMNS)), size)]
    tables = [CellTable(tuple(fineness[j] for j in columns)) for fineness in axes for columns in sets]
    assert Laid.of(tables).joined(9000, rows.scores.shape[1]) is not None
    for limit in (1, 777, GRADIENT_UNITS):
        fast, slow = (asked.GradientSums(tables, n_classes, limit, fast)(rows) for fast in (True, False))
        assert (fast == slow).all()
    steps = rng.integers(-(1 << 24), 1 << 24, (tables[-1].n_cells, rows.scores.shape[1])).astype(np.int32)
    twin = rows.some(np.ones(9000, bool))
    rows.add(tables[-1], steps)
    twin.add(tables[-1], steps, fast=False)
    assert (rows.scores == twin.scores).all()
    for table in tables:
        assert (asked.RowsByCell(table)(rows) == asked.RowsByCell(table, fast=False)(rows)).all()
    if n_classes:
        fast, slow = (asked.ClassesByCell(tables, n_classes, fast)(rows) for fast in (True, False))
        assert (fast == slow).all()
