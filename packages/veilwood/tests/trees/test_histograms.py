# SPDX-License-Identifier: Apache-2.0
"""Histograms of open nodes: kernel and twin agree with a plain count, and scores have the ranges that are claimed."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest

from veilwood.arrays import HAVE_NUMBA
from veilwood.data.batches import Batch
from veilwood.errors import DomainTooLargeError
from veilwood.trees import histograms
from veilwood.trees.counting import Assignment, route_rows
from veilwood.trees.histograms import CLASS_IMPURITY_PARTS, edge_scores, impurity_range, level_scores, total_impurity
from veilwood_testing.errors import rejects
from veilwood_testing.forest_structures import MAX_BINS, random_batch, random_growth, score_candidates

WAYS = [False, True] if HAVE_NUMBA else [False]


@pytest.mark.parametrize("fast", WAYS)
@pytest.mark.parametrize("owned", [False, True])
def test_histograms_are_plain_counts(fast: bool, owned: bool) -> None:
    growing, slots = random_growth(3)
    batch = random_batch(300, 3)
    assignment = Assignment(b"k" * 32, 3) if owned else None
    out = score_candidates(growing, slots, batch, fast, assignment=assignment)
    expected = np.zeros_like(out)
    node = route_rows(growing.partial_forest(), batch.codes)
    own = None if assignment is None else assignment.trees_of_rows(0, 0, 300)
    for row, tree in product(range(300), range(3)):
        if own is not None and own[row] != tree:
            continue
        for slot in range(slots.first[node[row, tree]], slots.first[node[row, tree] + 1]):
            code = int(batch.codes[row, slots.feature[slot]])
            table = slots.table[slot]
            place = slots.tables[table + code] if table >= 0 else ((code - slots.low[slot]) * slots.step[slot]) >> 32
            assert 0 <= place < slots.n_bins[slot] <= MAX_BINS
            expected[slot, place, batch.target[row]] += 1
    assert (out == expected).all()
    assert out.sum() > 300 * (1 if owned else 3) * 4  # nearly every node can still split all five columns


def test_moments_are_number_sum_and_squares() -> None:
    growing, slots = random_growth(0, n_trees=1)
    batch = random_batch(500, 65536)
    totals = score_candidates(growing, slots, batch, HAVE_NUMBA, n_classes=None).sum(axis=1)
    y = batch.target.astype(np.int64)
    assert (totals == [len(y), y.sum(), (y * y).sum()]).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_passes_threads_and_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    growing, slots = random_growth(3)
    whole = random_batch(600, 3)
    expected = score_candidates(growing, slots, whole, HAVE_NUMBA)
    monkeypatch.setattr(histograms, "MAX_CELLS", 5 * MAX_BINS * 3 * 4)  # four nodes a pass
    passes = []

    def add_up(count: Any, doing: str | None = None, *, n_jobs: int | None = 1) -> Any:
        passes.append(1)
        return count(
            [Batch(whole.codes[i : i + 100], whole.target[i : i + 100], 0, i) for i in range(0, 600, 100)],
            n_jobs=n_jobs,
        )

    (out,) = level_scores(growing, slots, add_up, lambda h: (h.copy(),), n_classes=3, max_bins=MAX_BINS, n_jobs=threads)
    assert (out == expected).all()
    assert len(passes) == -(-growing.n_open_nodes // 4)


def test_one_pass_is_enough_for_an_ordinary_level() -> None:
    growing, slots = random_growth(4)
    passes = []

    def add_up(count: Any, doing: str | None = None, *, n_jobs: int | None = 1) -> Any:
        passes.append(1)
        return count([random_batch(10, 3)])

    level_scores(
        growing,
        slots,
        add_up,
        lambda h: (h[:, 0, 0],),
        n_classes=3,
        max_bins=MAX_BINS,
    )
    assert len(passes) == 1


def test_too_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "MAX_ROWS", 299)
    growing, slots = random_growth(0)
    with rejects(DomainTooLargeError, raised_in="_check_row_count"):
        score_candidates(growing, slots, random_batch(300, 3), HAVE_NUMBA)


# -- bins and splits ---------------------------------------------------------------------------------------


# -- scores ------------------------------------------------------------------------------------------------


def squared_error(values: tuple[int, ...]) -> Fraction:
    mean = Fraction(sum(values), len(values)) if values else Fraction(0)
    return sum(((value - mean) ** 2 for value in values), Fraction(0))


def moments_of(values: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.array([len(values), sum(values), sum(v * v for v in values)])


def test_spread_is_the_floor_of_the_squared_error() -> None:
    for n in range(6):
        for values in combinations_with_replacement((0, 1, 3, 65535), n):
            assert total_impurity(moments_of(values), True) == squared_error(values) // 1
            counts = np.array([values.count(v) for v in (0, 1, 3, 65535)])
            one_hot = n - sum(Fraction(int(c) ** 2, max(n, 1)) for c in counts)
            assert total_impurity(counts, False) == CLASS_IMPURITY_PARTS * one_hot // 1


def test_spread_does_not_overflow_at_the_largest_table() -> None:
    half = histograms.MAX_ROWS // 2
    values = np.array([2 * half, half * 65535, half * 65535**2])  # half at each end of the range
    assert total_impurity(values, True) == half * 65535**2 // 2
    assert total_impurity(np.array([half, half]), False) == CLASS_IMPURITY_PARTS * half


def test_spread_range_by_enumeration() -> None:
    """Adding a row raises the spread by 0 to its range, and half the range would be wrong."""
    top = 65535
    worst = {True: 0, False: 0}
    for n in range(6):
        for values in combinations_with_replacement((0, 1, top // 2, top), n):
            for new in (0, 1, top // 2, top):
                change = total_impurity(moments_of((*values, new)), True) - total_impurity(moments_of(values), True)
                assert 0 <= change <= impurity_range(True)
                worst[True] = max(worst[True], int(change))
    for counts in product(range(7), repeat=3):
        for one_more in np.eye(3, dtype=np.int64):
            change = total_impurity(np.array(counts) + one_more, False) - total_impurity(np.array(counts), False)
            assert 0 <= change <= impurity_range(False)
            worst[False] = max(worst[False], int(change))
    assert worst[True] > impurity_range(True) // 2
    assert worst[False] > impurity_range(False) // 2


def test_edge_scores_by_hand() -> None:
    histogram = np.array([[[2, 0], [0, 1], [0, 3]]])  # three bins, two classes
    imbalance, spreads = edge_scores(histogram, moments=False)
    assert imbalance.tolist() == [[2, 0]]
    assert spreads.tolist() == [[0, total_impurity(np.array([2, 1]), False)]]
