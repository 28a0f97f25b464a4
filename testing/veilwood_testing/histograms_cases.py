# SPDX-License-Identifier: Apache-2.0
"""Shared by trees/test_histograms.py and other tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood.data.batches import Batch
from veilwood.data.encoding import EncodedColumn
from veilwood.trees.histograms import level_scores
from veilwood.trees.level_growth import GrowingForest

COLUMNS = [
    EncodedColumn("fine", ordered=True, n_codes=65535, missing_code=None),
    EncodedColumn("coarse", ordered=True, n_codes=5, missing_code=None),
    EncodedColumn("holes", ordered=True, n_codes=1001, missing_code=1000),
    EncodedColumn("colour", ordered=False, n_codes=4, missing_code=None),
    EncodedColumn("town", ordered=False, n_codes=100, missing_code=None),
]


BINS = 16


def of(batch: Batch) -> Any:
    """A source of one batch."""
    return lambda count, n_jobs: count([batch], n_jobs=n_jobs)


def rows(n: int, top: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, column.n_codes, n) for column in COLUMNS], axis=1).astype(np.uint16)
    codes[: n // 4, 2] = 1000
    return Batch(codes, rng.integers(0, top, n).astype(np.int32), 0, 0)


def grown(levels: int, n_trees: int = 3, seed: int = 1) -> tuple[GrowingForest, Any]:
    """Trees with random splits, and slots of all columns at their open nodes."""
    rng = np.random.default_rng(seed)
    growing = GrowingForest(COLUMNS, n_trees)
    for _ in range(levels):
        slots = growing.bin_candidates(growing.draw_candidates(1, rng), BINS, rng)
        winner = np.where(np.diff(slots.first) > 0, slots.first[:-1], -1)
        edge = rng.integers(0, np.maximum(slots.n_bins[np.maximum(winner, 0)] - 1, 1))
        growing.split_nodes(slots, winner, edge)
    return growing, growing.bin_candidates(growing.draw_candidates(5, rng), BINS, rng)


def filled(growing: GrowingForest, slots: Any, batch: Batch, fast: bool, **options: Any) -> Any:
    (out,) = level_scores(
        growing, slots, of(batch), lambda h: (h.copy(),), max_bins=BINS, fast=fast,
        **{"n_classes": 3, **options},
    )  # fmt: skip
    return out
