# SPDX-License-Identifier: Apache-2.0
"""Columns, random forests and rows for counting, with counts by plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch
from veilwood.data.counts import CellRule, Split
from veilwood.data.encoding import EncodedColumn
from veilwood.trees.forest import LEAF, Forest
from veilwood.trees.histograms import level_scores
from veilwood.trees.level_growth import GrowingForest
from veilwood.trees.random import grow_binary, grow_multiway

MIXED_COLUMNS = [
    EncodedColumn("number", ordered=True, n_codes=40, missing_code=None),
    EncodedColumn("nullable", ordered=True, n_codes=12, missing_code=11),
    EncodedColumn("category", ordered=False, n_codes=7, missing_code=None),
    EncodedColumn("coin", ordered=False, n_codes=2, missing_code=None),
]


LEVELS = 100


def random_forest(shape: str, seed: int) -> Forest:
    return grow_binary(MIXED_COLUMNS, 7, 5, seed) if shape == "binary" else grow_multiway(MIXED_COLUMNS, 4, 3, seed)


def random_codes(n: int, seed: int, targets: int = 3) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(column.n_codes, size=n) for column in MIXED_COLUMNS], axis=1).astype(np.uint16)
    return codes, rng.integers(targets, size=n).astype(np.int32)


def split_batches(codes: NDArray[Any], target: NDArray[Any], size: int) -> Iterator[Batch]:
    for start in range(0, len(codes), size):
        yield Batch(codes[start : start + size], target[start : start + size], 0, start)


def leaf_by_loop(forest: Forest, row: NDArray[Any], tree: int) -> int:
    node = int(forest.roots[tree])
    while forest.feature[node] != LEAF:
        code, cut = int(row[forest.feature[node]]), int(forest.cut[node])
        node = int(forest.child[node]) + (int(forest.lookup[-1 - cut + code]) if cut < 0 else int(code >= cut))
    return int(forest.child[node])


def totals_by_loop(
    forest: Forest, codes: NDArray[Any], target: NDArray[Any], n_classes: int | None, own: NDArray[Any] | None
) -> NDArray[np.int64]:
    totals = np.zeros((forest.n_leaves, n_classes or 2), np.int64)
    for number, (row, value) in enumerate(zip(codes, target, strict=True)):
        for tree in range(forest.n_trees) if own is None else [int(own[number])]:
            leaf = leaf_by_loop(forest, row, tree)
            if n_classes:
                totals[leaf, value] += 1
            else:
                totals[leaf] += [value, LEVELS - value]
    return totals


HISTOGRAM_COLUMNS = [
    EncodedColumn("fine", ordered=True, n_codes=65535, missing_code=None),
    EncodedColumn("coarse", ordered=True, n_codes=5, missing_code=None),
    EncodedColumn("holes", ordered=True, n_codes=1001, missing_code=1000),
    EncodedColumn("colour", ordered=False, n_codes=4, missing_code=None),
    EncodedColumn("town", ordered=False, n_codes=100, missing_code=None),
]


MAX_BINS = 16


def one_batch_source(batch: Batch) -> Any:
    """A source of one batch."""
    return lambda count, n_jobs: count([batch], n_jobs=n_jobs)


def random_batch(n: int, top: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, column.n_codes, n) for column in HISTOGRAM_COLUMNS], axis=1).astype(np.uint16)
    codes[: n // 4, 2] = 1000
    return Batch(codes, rng.integers(0, top, n).astype(np.int32), 0, 0)


def random_growth(levels: int, n_trees: int = 3, seed: int = 1) -> tuple[GrowingForest, Any]:
    """Trees with random splits, and slots of all columns at their open nodes."""
    rng = np.random.default_rng(seed)
    growing = GrowingForest(HISTOGRAM_COLUMNS, n_trees)
    for _ in range(levels):
        slots = growing.bin_candidates(growing.draw_candidates(1, rng), MAX_BINS, rng)
        winner = np.where(np.diff(slots.first) > 0, slots.first[:-1], -1)
        edge = rng.integers(0, np.maximum(slots.n_bins[np.maximum(winner, 0)] - 1, 1))
        growing.split_nodes(slots, winner, edge)
    return growing, growing.bin_candidates(growing.draw_candidates(5, rng), MAX_BINS, rng)


def score_candidates(growing: GrowingForest, slots: Any, batch: Batch, fast: bool, **options: Any) -> Any:
    (out,) = level_scores(
        growing, slots, one_batch_source(batch), lambda h: (h.copy(),), max_bins=MAX_BINS, fast=fast,
        **{"n_classes": 3, **options},
    )  # fmt: skip
    return out


SMALL_COLUMNS = [
    EncodedColumn("number", ordered=True, n_codes=6, missing_code=None),
    EncodedColumn("nullable", ordered=True, n_codes=4, missing_code=3),
    EncodedColumn("category", ordered=False, n_codes=5, missing_code=None),
    EncodedColumn("nullable category", ordered=False, n_codes=3, missing_code=2),
    EncodedColumn("coin", ordered=False, n_codes=2, missing_code=None),
]


def follow_rule(way: CellRule, row: list[int]) -> int | float | None:
    """Where a row is led."""
    while isinstance(way, Split):
        way = way.targets[int(np.searchsorted(way.starts, row[way.column], side="right")) - 1]
    return way
