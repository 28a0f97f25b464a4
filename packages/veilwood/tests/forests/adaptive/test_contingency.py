# SPDX-License-Identifier: Apache-2.0
"""Binned columns, contingency tables and their packed form."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.data.counts import ContingencyTable
from veilwood.data.encoding import GRID_BINS
from veilwood.forests.adaptive.contingency import PackedTables, posterior_counts, tables_to_forest
from veilwood.trees.counting import route_rows
from veilwood_testing.clinic import COLUMNS, small_table

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


def test_cells_partition_the_codes_and_groups_the_cells() -> None:
    for column in COLUMNS:
        codes = np.arange(GRID_BINS + (column.n_bins > column.n_value_bins) if column.ordered else column.n_bins)
        cells = column.bin_codes(codes.astype(np.uint16)).astype(int)
        assert (np.diff(cells) >= 0).all()
        assert set(cells) == set(range(column.n_bins))
        assert (column.bin_codes(column.starts.astype(np.uint16)) == np.arange(column.n_bins)).all()
        assert column.prior.sum() == pytest.approx(1)
        for axis in (column.default_groups(5), column.equal_mass_groups(column.prior, 5), column.ungrouped_axis()):
            assert set(axis.groups) == set(range(axis.size))
            assert not axis.ordered or (np.diff(axis.groups.astype(int)) >= 0).all()
    even, moved = (COLUMNS[0].equal_mass_groups(COLUMNS[0].prior, 5, shift) for shift in (0.0, -0.3))
    assert even.size == moved.size
    assert all(low < high for low, high in zip(even.thresholds[:-1], moved.thresholds[:-1], strict=True))
    missing = COLUMNS[0].equal_mass_groups(COLUMNS[0].prior, 5)
    assert (missing.groups == missing.size - 1).sum() == 1  # a missing number is in a group of its own


def test_a_table_as_a_tree_sends_rows_to_their_cells() -> None:
    rng = np.random.default_rng(0)
    table = ContingencyTable(
        (COLUMNS[0].equal_mass_groups(COLUMNS[0].prior, 5), COLUMNS[1].ungrouped_axis(), COLUMNS[2].default_groups(4))
    )
    forest, cells = tables_to_forest([table])
    sizes = [GRID_BINS + 1, 4, GRID_BINS, GRID_BINS]
    codes = np.column_stack([rng.integers(0, size, 2000) for size in sizes]).astype(np.uint16)
    own = np.stack([column.bin_codes(codes[:, column.feature]) for column in COLUMNS])
    assert (cells[route_rows(forest, codes)[:, 0]] == table.cell_indices(own)).all()


def test_a_poor_histogram_falls_back_to_the_prior_and_a_good_one_is_believed() -> None:
    rng = np.random.default_rng(0)
    prior = COLUMNS[0].prior
    truth = rng.multinomial(10_000, rng.dirichlet(np.ones(len(prior)) * 0.5)).astype(float)
    assert np.abs(posterior_counts(truth, prior, 1e-6, 10_000) - truth).max() < 1
    poor = posterior_counts(rng.laplace(0, 1e7, len(prior)), prior, 2e14, 100)
    assert np.abs(poor / 100 - prior).max() < 0.02


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
