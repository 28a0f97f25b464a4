# SPDX-License-Identifier: Apache-2.0
"""Tables of cells: every code in one, and as a tree."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.data.counts import ContingencyTable
from veilwood.data.encoding import GRID_BINS
from veilwood.forests.adaptive.contingency import tables_to_forest
from veilwood.trees.counting import route_rows
from veilwood_testing.clinic import COLUMNS

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
    mine = np.stack([column.bin_codes(codes[:, column.feature]) for column in COLUMNS])
    assert (cells[route_rows(forest, codes)[:, 0]] == table.cell_indices(mine)).all()
