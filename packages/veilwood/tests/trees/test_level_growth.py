# SPDX-License-Identifier: Apache-2.0
"""Trees that grow level by level."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from veilwood.data.encoding import EncodedColumn
from veilwood.trees.counting import route_rows
from veilwood.trees.forest import Forest
from veilwood.trees.level_growth import GrowingForest
from veilwood_testing.forest_structures import HISTOGRAM_COLUMNS, MAX_BINS, random_growth


def test_cuts_agree_with_bins() -> None:
    _, slots = random_growth(5)
    for slot in np.flatnonzero(slots.table < 0):
        codes = np.arange(slots.low[slot], HISTOGRAM_COLUMNS[slots.feature[slot]].n_codes)
        bins = ((codes - slots.low[slot]) * slots.step[slot]) >> 32
        for edge in range(slots.n_bins[slot] - 1):
            cut = slots.cut_codes(np.array([slot]), np.array([edge]))[0]
            assert ((bins > edge) == (codes >= cut)).all()


def test_missing_numbers_have_a_bin_of_their_own() -> None:
    growing = GrowingForest(HISTOGRAM_COLUMNS, 1)
    slots = growing.bin_candidates(np.array([[2]]), MAX_BINS, np.random.default_rng(0))
    assert slots.n_bins[0] == MAX_BINS
    assert slots.cut_codes(np.array([0]), np.array([MAX_BINS - 2]))[0] == 1000
    assert (1000 * slots.step[0]) >> 32 == MAX_BINS - 1


def test_children_ranges_shrink_and_exhausted_columns_drop_out() -> None:
    rng = np.random.default_rng(0)
    growing = GrowingForest([HISTOGRAM_COLUMNS[1], HISTOGRAM_COLUMNS[3]], 1)
    for _ in range(8):
        slots = growing.bin_candidates(growing.draw_candidates(1, rng), MAX_BINS, rng)
        winner = np.where(np.diff(slots.first) > 0, slots.first[:-1], -1)
        growing.split_nodes(slots, winner, np.zeros(growing.n_open_nodes, np.int64))
    assert not growing.usable_columns().any()
    forest = growing.finish_forest()
    assert forest.n_leaves == 5 * 4  # every cell of the two columns became a leaf
    cells = np.array(list(product(range(5), range(4))), np.uint16)
    assert len(set(route_rows(forest, cells)[:, 0])) == 20


@pytest.mark.parametrize("multiway", [False, True])
def test_a_finished_forest_is_well_formed_and_routes_as_the_open_one(multiway: bool) -> None:
    columns = [
        HISTOGRAM_COLUMNS[1],
        HISTOGRAM_COLUMNS[3],
        EncodedColumn("bins", ordered=True, n_codes=3, missing_code=None),
    ]
    rng = np.random.default_rng(3)
    growing = GrowingForest(columns, 3)
    for _ in range(3):
        slots = growing.bin_candidates(growing.draw_candidates(1, rng), 5, rng)
        winner = np.where(np.diff(slots.first) > 0, slots.first[:-1], -1)
        if multiway:
            growing.split_by_value(np.where(winner >= 0, slots.feature[winner], -1))
        else:
            growing.split_nodes(slots, winner, np.zeros(growing.n_open_nodes, np.int64))
    forest = growing.finish_forest()
    Forest.from_arrays(forest.to_arrays(), [c.n_codes for c in columns])  # its audit refuses what is damaged
    cells = np.array(list(product(range(5), range(4), range(3))), np.uint16)
    before, after = route_rows(growing.partial_forest(), cells), route_rows(forest, cells)
    for tree in range(3):
        assert (after[:, tree] >= forest.tree_leaves[tree]).all()
        assert (after[:, tree] < forest.tree_leaves[tree + 1]).all()
        open_ = before[:, tree] >= 0
        pairs = set(zip(before[open_, tree], after[open_, tree], strict=True))
        assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    if multiway:
        assert forest.n_leaves == 3 * 5 * 4 * 3
