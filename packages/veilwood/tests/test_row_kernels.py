# SPDX-License-Identifier: Apache-2.0
"""Compiled loops over rows, and their twins in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from veilwood.forests.adaptive import row_backend as asked
from veilwood.forests.adaptive.contingency import ContingencyTable, PackedTables
from veilwood.forests.adaptive.row_backend import GRADIENT_UNITS, LEVEL_UNITS
from veilwood.trees.counting import HAVE_NUMBA
from veilwood_testing.clinic import COLUMNS
from veilwood_testing.rows_cases import N_CLASSES, random_rows

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.skipif(not HAVE_NUMBA, reason="there is one twin only")
@pytest.mark.parametrize("n_classes", N_CLASSES.values())
def test_compiled_loops_and_their_twins_agree(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from veilwood import kernels

    assert (kernels.GRADIENT_UNITS, kernels.LEVEL_UNITS) == (GRADIENT_UNITS, LEVEL_UNITS)
    monkeypatch.setattr(kernels, "MAX_BLOCK_ROWS", 3000)
    rng = np.random.default_rng(n_classes)
    rows = random_rows(n_classes, 9000, rng)
    axes = [[column.equal_mass_groups(column.prior, n) for column in COLUMNS] for n in (3, 6)]
    sets = [columns for size in (1, 2, 3) for columns in itertools.combinations(range(len(COLUMNS)), size)]
    tables = [ContingencyTable(tuple(fineness[j] for j in columns)) for fineness in axes for columns in sets]
    assert PackedTables.pack(tables).merge_tables(9000, rows.scores.shape[1]) is not None
    for limit in (1, 777, GRADIENT_UNITS):
        fast, slow = (asked.GradientSums(tables, n_classes, limit, fast)(rows) for fast in (True, False))
        assert (fast == slow).all()
    steps = rng.integers(-(1 << 24), 1 << 24, (tables[-1].n_cells, rows.scores.shape[1])).astype(np.int32)
    twin = rows.select(np.ones(9000, bool))
    rows.add_scores(tables[-1], steps)
    twin.add_scores(tables[-1], steps, fast=False)
    assert (rows.scores == twin.scores).all()
    for table in tables:
        assert (asked.RowsByCell(table)(rows) == asked.RowsByCell(table, fast=False)(rows)).all()
    if n_classes:
        fast, slow = (asked.ClassesByCell(tables, n_classes, fast)(rows) for fast in (True, False))
        assert (fast == slow).all()
