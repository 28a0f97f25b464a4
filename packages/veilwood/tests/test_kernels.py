# SPDX-License-Identifier: Apache-2.0
"""Compiled walks and sweeps, and their twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood.data.batches import Batch
from veilwood.data.encoding import EncodedColumn
from veilwood.trees.counting import HAVE_NUMBA, leaf_totals
from veilwood.trees.random import grow_binary, grow_multiway
from veilwood_testing.counting_cases import batches_of, forest_of, rows_of, totals_by_loop


def test_a_twin_that_forgets_the_missing_branch_is_caught() -> None:
    """Mutant: missing values clamped into the last number bin instead of taking their own branch."""
    forest = forest_of("binary", 0)
    codes, target = rows_of(400, 0)
    clamped = codes.copy()
    clamped[:, 1] = np.minimum(clamped[:, 1], 10)
    right = totals_by_loop(forest, codes, target, 3, None)
    wrong = leaf_totals(forest, batches_of(clamped, target, 100), n_classes=3)
    assert (right != wrong).any()


@pytest.mark.skipif(not HAVE_NUMBA, reason="needs numba")
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
    for forest, rows in zip(forests, [codes, codes[:, 1:]], strict=True):
        options: Any = {"n_classes": n_classes, "target_levels": 65535}
        expected = leaf_totals(forest, [Batch(rows, target, 0, 0)], fast=False, **options)
        swept = leaf_totals(forest, [Batch(np.asfortranarray(rows), target, 0, 0)], fast=True, n_jobs=2, **options)
        np.testing.assert_array_equal(swept, expected)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "MAX_SWEPT_NODES", 1)  # trees too large for sweeps are walked row by row
            walked = leaf_totals(forest, [Batch(rows, target, 0, 0)], fast=True, **options)
        np.testing.assert_array_equal(walked, expected)
