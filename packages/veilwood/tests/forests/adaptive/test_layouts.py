# SPDX-License-Identifier: Apache-2.0
"""Tables in arrays: each cell where the table itself puts it."""

from __future__ import annotations

import numpy as np

from veilwood.data.counts import ContingencyTable
from veilwood.forests.adaptive.contingency import PackedTables
from veilwood_testing.clinic import COLUMNS, small_table


def cells_by_arrays(laid: PackedTables, table: int, columns: np.ndarray) -> np.ndarray:
    layout = laid.arrays
    place = np.full(columns.shape[1], layout.starts[table], np.int64)
    for axis, stride in zip(layout.axes[table], layout.strides[table], strict=True):
        if axis >= 0:
            place += int(stride) * layout.groups[axis][columns[layout.features[axis]]].astype(np.int64)
    return place


def test_cells_are_those_of_the_tables_one_below_the_other() -> None:
    rng = np.random.default_rng(0)
    columns = np.stack([rng.integers(0, len(column.prior), 200) for column in COLUMNS]).astype(np.uint16)
    tables = [small_table(), ContingencyTable((COLUMNS[1].ungrouped_axis(),)), ContingencyTable(())]
    laid = PackedTables.pack_uncached(tables)
    assert laid.n_cells == sum(table.n_cells for table in tables)
    start = 0
    for number, table in enumerate(tables):
        np.testing.assert_array_equal(cells_by_arrays(laid, number, columns), start + table.cell_indices(columns))
        start += table.n_cells


def test_the_same_tables_are_laid_once() -> None:
    tables = (small_table(), ContingencyTable((COLUMNS[1].ungrouped_axis(),)))
    assert PackedTables.pack(tables) is PackedTables.pack(list(tables))


def test_few_tables_are_not_joined() -> None:
    assert PackedTables.pack_uncached([small_table()]).merge_tables(10_000, 1) is None
