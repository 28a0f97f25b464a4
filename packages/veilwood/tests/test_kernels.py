# SPDX-License-Identifier: Apache-2.0
"""Compiled loops agree with plain Python or with their NumPy twins."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import numpy as np
import pytest

from veilwood.arrays import HAVE_NUMBA
from veilwood.data.batches import Batch
from veilwood.data.counts import ClassesByCell, ContingencyTable, GradientSums, RowsByCell
from veilwood.data.encoding import EncodedColumn
from veilwood.forests.adaptive.contingency import PackedTables
from veilwood.forests.adaptive.row_backend import GRADIENT_UNITS, LEVEL_UNITS, answer_query
from veilwood.forests.matrix.marginals import _SetFamily
from veilwood.trees import level_growth
from veilwood.trees.counting import leaf_totals
from veilwood.trees.random import grow_binary, grow_multiway
from veilwood_testing.clinic import COLUMNS, N_CLASSES, random_rows
from veilwood_testing.forest_structures import (
    random_batch,
    random_codes,
    random_forest,
    random_growth,
    score_candidates,
    split_batches,
    totals_by_loop,
)

needs_numba = pytest.mark.skipif(not HAVE_NUMBA, reason="tests compiled loops")


@needs_numba
def test_constants_are_those_of_the_numpy_twins() -> None:
    from veilwood import kernels

    assert kernels.SHIFT == level_growth.SHIFT
    assert kernels.GRADIENT_UNITS == GRADIENT_UNITS
    assert kernels.LEVEL_UNITS == LEVEL_UNITS


# -- codes of numbers ------------------------------------------------------------------------------------------------


@needs_numba
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_codes_are_those_of_a_plain_loop(dtype: type) -> None:
    from veilwood.kernels import grid_codes

    values: np.ndarray = np.linspace(-50, 150, 1001).astype(dtype)
    codes = np.empty(len(values), np.uint16)
    assert grid_codes(values, 0.0, 2.5, 249.0, codes) == 0
    assert codes.tolist() == [int(min(max(float(value) * 2.5, 0.0), 249.0)) for value in values]


@needs_numba
def test_missing_numbers_are_counted_and_infinite_ones_clamped() -> None:
    from veilwood.kernels import grid_codes

    codes = np.empty(4, np.uint16)
    assert grid_codes(np.array([math.nan, math.inf, -math.inf, 1.0]), 0.0, 1.0, 9.0, codes) == 1
    assert codes.tolist() == [0, 9, 0, 1]


# -- leaves and histograms of trees ----------------------------------------------------------------------------------


def test_a_twin_that_forgets_the_missing_branch_is_caught() -> None:
    """Mutant: missing values clamped into the last number bin instead of taking their own branch."""
    forest = random_forest("binary", 0)
    codes, target = random_codes(400, 0)
    clamped = codes.copy()
    clamped[:, 1] = np.minimum(clamped[:, 1], 10)
    right = totals_by_loop(forest, codes, target, 3, None)
    wrong = leaf_totals(forest, split_batches(clamped, target, 100), n_classes=3)
    assert (right != wrong).any()


@needs_numba
@pytest.mark.parametrize("n_classes", [3, None])
@pytest.mark.parametrize("depth", [2, 7])  # within the swept levels, and beyond
def test_sweeps_agree_with_the_numpy_walk(depth: int, n_classes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds up to the last code, lookups of few codes (as bits) and of many, several branches, part blocks."""
    from veilwood import kernels

    columns = [
        EncodedColumn("grid", ordered=True, n_codes=65536, missing_code=65535),
        EncodedColumn("few", ordered=False, n_codes=32, missing_code=None),
        EncodedColumn("many", ordered=False, n_codes=33, missing_code=None),
    ]
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.integers(0, column.n_codes, 1500) for column in columns]).astype(np.uint16)
    codes[::7, 0] = 65535
    target = rng.integers(0, n_classes or 65536, len(codes)).astype(np.int32)
    forests = [grow_binary(columns, 4, depth, 0), grow_multiway(columns[1:], 2, 2, 0)]
    for forest, batch_codes in zip(forests, [codes, codes[:, 1:]], strict=True):
        options: Any = {"n_classes": n_classes, "target_levels": 65535}
        expected = leaf_totals(forest, [Batch(batch_codes, target, 0, 0)], fast=False, **options)
        by_column = Batch(np.asfortranarray(batch_codes), target, 0, 0)
        swept = leaf_totals(forest, [by_column], fast=True, n_jobs=2, **options)
        np.testing.assert_array_equal(swept, expected)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "MAX_SWEPT_NODES", 1)  # trees too large for sweeps are walked row by row
            walked = leaf_totals(forest, [Batch(batch_codes, target, 0, 0)], fast=True, **options)
        np.testing.assert_array_equal(walked, expected)


@needs_numba
@pytest.mark.parametrize("n_classes", [3, None])
def test_histograms_agree_with_the_numpy_twin(n_classes: int | None) -> None:
    growing, slots = random_growth(4)
    batch = random_batch(2000, n_classes or 65536)
    both = [score_candidates(growing, slots, batch, fast, n_classes=n_classes) for fast in (False, True)]
    assert (both[0] == both[1]).all()


@needs_numba
@pytest.mark.parametrize("n_values", [1, 3])
def test_looked_up_sums_are_those_of_numpy(n_values: int) -> None:
    from veilwood.kernels import _LOOKUP_BLOCK_ROWS, add_lookup_values

    rng = np.random.default_rng(0)
    n_rows, features = 2 * _LOOKUP_BLOCK_ROWS + 7, np.array([2, 0])
    columns = rng.integers(0, 5, (3, n_rows)).astype(np.uint16)
    groups = rng.integers(0, 4, (2, 5)).astype(np.uint8)
    axes, ends, starts = np.array([0, 1, 1]), np.array([2, 3]), np.array([0, 16], np.uint32)  # 4 x 4 cells, then 4
    offsets = np.array([[0, 4, 8, 12], [0, 1, 2, 3], [0, 1, 2, 3]], np.uint32)
    values = rng.random((20, n_values))
    sums = np.zeros((n_rows, n_values))
    for first, last in ((0, 500), (500, n_rows)):
        add_lookup_values(features, groups, axes, offsets, ends, starts, values, columns, sums, first, last)
    one, other = groups[0][columns[2]].astype(int), groups[1][columns[0]].astype(int)
    np.testing.assert_array_equal(sums, values[4 * one + other] + values[16 + other])


# -- rows of adaptive forests ----------------------------------------------------------------------------------------


@needs_numba
@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")
@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")
@pytest.mark.parametrize("n_classes", N_CLASSES.values())
def test_row_queries_agree_with_the_numpy_twins(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from veilwood import kernels

    monkeypatch.setattr(kernels, "MAX_BLOCK_ROWS", 3000)
    rng = np.random.default_rng(n_classes)
    memory = random_rows(n_classes, 9000, rng)
    axes = [[column.equal_mass_groups(column.prior, n) for column in COLUMNS] for n in (3, 6)]
    sets = [columns for size in (1, 2, 3) for columns in itertools.combinations(range(len(COLUMNS)), size)]
    tables = [ContingencyTable(tuple(fineness[j] for j in columns)) for fineness in axes for columns in sets]
    assert PackedTables.pack(tables).merge_tables(9000, memory.scores.shape[1]) is not None
    for limit in (1, 777, GRADIENT_UNITS):
        fast, slow = (answer_query(GradientSums(tables, n_classes, limit), memory, fast=fast) for fast in (True, False))
        assert (fast == slow).all()
    steps = rng.integers(-(1 << 24), 1 << 24, (tables[-1].n_cells, memory.scores.shape[1])).astype(np.int32)
    control = memory.select(np.ones(9000, bool))
    memory.add_scores(tables[-1], steps)
    control.add_scores(tables[-1], steps, fast=False)
    assert (memory.scores == control.scores).all()
    for table in tables:
        fast, slow = (answer_query(RowsByCell(table), memory, fast=fast) for fast in (True, False))
        assert (fast == slow).all()
    if n_classes:
        fast, slow = (answer_query(ClassesByCell(tables, n_classes), memory, fast=fast) for fast in (True, False))
        assert (fast == slow).all()


# -- sums over sets of columns ---------------------------------------------------------------------------------------


@needs_numba
@pytest.mark.parametrize("masks", [np.arange(32), np.flatnonzero(np.bitwise_count(np.arange(512)) <= 3)], ids=len)
def test_sums_over_sets_agree_to_the_last_bit(masks: Any) -> None:
    family, values = _SetFamily(masks), np.random.default_rng(0).random(len(masks))
    above = [values[(masks & mask) == mask].sum() for mask in masks]
    below = [values[(masks | mask) == mask].sum() for mask in masks]
    sides: list[tuple[Literal[0, 1], Any]] = [(0, above), (1, below)]
    for into, expected in sides:
        assert np.array_equal(family.sum_feature(values, into, fast=True), family.sum_feature(values, into, fast=False))
        np.testing.assert_allclose(family.sum_feature(values, into), expected, rtol=1e-12)
