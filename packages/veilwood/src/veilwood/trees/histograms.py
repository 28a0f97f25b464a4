# SPDX-License-Identifier: Apache-2.0
"""Target histograms of all candidate splits of a level, filled in one pass over the rows, and their scores.

This module selects nothing. Histograms and scores are exact and private: only the release door may receive them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilwood.arrays import HAVE_NUMBA, Int32s, Ints, run_on_threads
from veilwood.data.batches import AggregatePass, Batch
from veilwood.data.counts import ROW_HASH, CellQuery, CellRule, KeyedRowHash, RunCellQueries, Split, split_by_code
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import DomainTooLargeError
from veilwood.trees.counting import Assignment, route_rows, tree_rule
from veilwood.trees.forest import Forest
from veilwood.trees.level_growth import SHIFT, CandidateSplits, GrowingForest

MAX_CELLS = 1 << 24  # 128 MB of histograms; a level that needs more takes several passes
MAX_ROWS = 1 << 28  # up to this number, no score overflows
CLASS_IMPURITY_PARTS = 32  # units of class impurity per row: scores are integers


def level_scores(
    growing: GrowingForest,
    candidates: CandidateSplits,
    aggregate: AggregatePass,
    score: Callable[[Ints], tuple[Ints, ...]],
    *,
    n_classes: int | None,
    max_bins: int,
    assignment: Assignment | None = None,
    n_jobs: int | None = None,
    fast: bool = HAVE_NUMBA,
) -> tuple[Ints, ...]:
    """Return the scores of the histograms of all slots of a level.

    Parameters
    ----------
    growing, candidates
        The growing trees and the candidate splits of their open nodes.
    aggregate : callable
        Function that passes over the rows: ``Source.aggregate``. Called once unless histograms exceed ``MAX_CELLS``.
    score : callable
        Function from histograms to arrays with one row per slot. A histogram has the shape (max_bins, n_classes) and
        holds counts. For regression it is (max_bins, 3) and holds number, sum and sum of squares of the targets.
    n_classes : int or None
        Number of classes, or None for regression.
    assignment : Assignment, optional
        Counts each row in one tree only.
    fast : bool
        Use the compiled kernel. NumPy gives the same integers.
    """
    width = n_classes or 3
    max_slots = int(np.diff(candidates.first).max(initial=1))
    nodes_per_pass = max(1, MAX_CELLS // (max_slots * max_bins * width))
    parts = []
    for start in range(0, candidates.n_nodes, nodes_per_pass):
        here = candidates.restrict_to_nodes(start, min(start + nodes_per_pass, candidates.n_nodes))
        fill = HistogramCount(growing.partial_forest(), growing.depth, here, n_classes, max_bins, assignment, fast)
        histograms = aggregate(fill, n_jobs=n_jobs)
        if isinstance(histograms, np.ndarray):  # secret-shared histograms cannot be checked
            _check_row_count(histograms[..., 0] if n_classes is None else histograms.sum(axis=2))
        parts.append(score(histograms))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _check_row_count(counted: Ints) -> None:
    if counted.sum(axis=1).max(initial=0) > MAX_ROWS:
        raise DomainTooLargeError(
            f"the table has more than {MAX_ROWS:,} rows. Hint: train on a random sample of the rows."
        )


@dataclass(frozen=True, eq=False, repr=False)
class HistogramCount:
    """Count that fills the histograms of open nodes. Databases can also run it, as cell queries."""

    forest: Forest
    depth: int
    candidates: CandidateSplits
    n_classes: int | None
    max_bins: int
    assignment: Assignment | None = None
    fast: bool = HAVE_NUMBA

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Ints:
        """Return the histograms of these batches."""
        return fill_histograms(
            self.forest, self.depth, self.candidates, batches, n_classes=self.n_classes, max_bins=self.max_bins,
            assignment=self.assignment, n_jobs=n_jobs, fast=self.fast,
        )  # fmt: skip

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> Ints:
        """Return the histograms from cell queries: one per tree and index among the candidates of its nodes."""
        slots, forest, own = self.candidates, self.forest, self.assignment
        queries, owners = [], []
        for place in range(int(np.diff(slots.first).max(initial=0))):
            for tree in range(forest.n_trees):
                counted: list[int] = []
                rule = tree_rule(forest, tree, n_codes, rule_of_leaf=partial(self._bin_rule, place, n_codes, counted))
                if not counted:
                    continue
                if own is not None:
                    other_tree = np.arange(forest.n_trees) != tree
                    rule = split_by_code(ROW_HASH, -other_tree.astype(np.int64), {0: rule}.__getitem__)
                queries.append(CellQuery((rule,), len(counted) * self.max_bins))
                owners.append(counted)
        histograms = np.zeros((slots.n_candidates, self.max_bins, self.n_classes or 3), np.int64)
        row_hash = None if own is None else KeyedRowHash(own.key, forest.n_trees)
        answers = run_queries(queries, "classes" if self.n_classes else "moments", row_hash)
        for counted, sums in zip(owners, answers, strict=True):
            histograms[counted] = sums.reshape(len(counted), self.max_bins, -1)
        return histograms

    def _bin_rule(self, index: int, n_codes: Sequence[int], counted: list[int], node: int) -> CellRule:
        """Return the rule for a row's bin in a slot of a node, and append the slot to ``counted``; None for a leaf."""
        slots = self.candidates
        slot = int(slots.first[node]) + index if node >= 0 else -1
        if node < 0 or slot >= slots.first[node + 1]:
            return None
        start, column, table = len(counted) * self.max_bins, int(slots.feature[slot]), int(slots.table[slot])
        counted.append(slot)
        if table >= 0:
            groups = slots.tables[table : table + n_codes[column]]
            return split_by_code(column, groups, lambda group: start + group)
        bins = int(slots.n_bins[slot])
        edges = np.arange(bins - 1)
        cuts = slots.cut_codes(np.full(len(edges), slot), edges)
        return Split(column, (0, *cuts.tolist()), tuple(range(start, start + bins)))


def fill_histograms(
    forest: Forest,
    depth: int,
    candidates: CandidateSplits,
    batches: Iterable[Batch],
    *,
    n_classes: int | None,
    max_bins: int,
    assignment: Assignment | None = None,
    n_jobs: int | None = 1,
    fast: bool = HAVE_NUMBA,
) -> Ints:
    """Return the histograms of all slots of the open nodes at ``depth``: exact, hence private."""
    histograms = np.zeros((candidates.n_candidates, max_bins, n_classes or 3), np.int64)
    add = _fast_adder if fast else _numpy_adder
    add_batch = add(forest, depth, candidates, n_classes is None, histograms, n_jobs)
    for batch in batches:
        own = (
            None
            if assignment is None
            else assignment.trees_of_rows(batch.partition, batch.first_row, len(batch.target))
        )
        add_batch(batch, own)
    return histograms


def _fast_adder(
    forest: Forest, depth: int, candidates: CandidateSplits, moments: bool, histograms: Ints, n_jobs: int | None
) -> Callable[[Batch, Int32s | None], None]:
    from veilwood import kernels

    packed = np.stack([candidates.feature, candidates.low, candidates.step, candidates.table], axis=1)

    def add_batch(batch: Batch, own: Int32s | None) -> None:
        work = partial(
            kernels.add_rows_to_histograms, forest.packed_nodes, forest.roots, depth, forest.lookup,
            candidates.first, packed, candidates.tables, np.ascontiguousarray(batch.codes),
            np.ascontiguousarray(batch.target, np.int32), kernels.NO_OWNER if own is None else own, moments, histograms,
        )  # fmt: skip
        run_on_threads(work, forest.n_trees, n_jobs, rows=len(batch.target))

    return add_batch


def _numpy_adder(
    forest: Forest, depth: int, candidates: CandidateSplits, moments: bool, histograms: Ints, n_jobs: int | None
) -> Callable[[Batch, Int32s | None], None]:
    def add_batch(batch: Batch, own: Int32s | None) -> None:
        node = route_rows(forest, batch.codes)
        present = node >= 0
        if own is not None:
            present &= own[:, None] == np.arange(forest.n_trees)
        row, tree = np.nonzero(present)
        node = node[row, tree].astype(np.int64)
        n_slots = candidates.first[node + 1] - candidates.first[node]
        row = np.repeat(row, n_slots)  # one entry per row and slot from here on
        slot = np.repeat(candidates.first[node] - (np.cumsum(n_slots) - n_slots), n_slots) + np.arange(len(row))
        code = batch.codes[row, candidates.feature[slot]].astype(np.int64)
        table = candidates.table[slot]
        by_step = ((code - candidates.low[slot]) * candidates.step[slot]) >> SHIFT
        place = np.where(table >= 0, candidates.tables[np.where(table >= 0, table + code, 0)], by_step)
        value = batch.target[row].astype(np.int64)
        if moments:
            np.add.at(histograms, (slot, place), np.stack([np.ones_like(value), value, value * value], axis=1))
        else:
            np.add.at(histograms, (slot, place, value), 1)

    return add_batch


def total_impurity(totals: Ints, moments: bool) -> Ints:
    """Return the total impurity of the targets of each node, rounded down to an integer.

    For regression, from (number, sum, sum of squares) on the last axis: the sum of squared errors. For classes, from
    their counts: rows times Gini impurity, which is the squared error of one-hot targets, in units of
    1 / ``CLASS_IMPURITY_PARTS`` row. Exact: no rounded number enters the floor.

    Notes
    -----
    Guarantee

    A row added to a node raises its impurity by an integer between 0 and ``impurity_range(moments)``
    (proofs/selection-levels.md, checked by
    packages/veilwood/tests/trees/test_histograms.py::test_spread_range_by_enumeration).

    >>> total_impurity(np.array([[2, 10, 58]]), moments=True).tolist()  # targets 3 and 7
    [8]
    >>> total_impurity(np.array([[4, 4], [8, 0]]), moments=False).tolist()  # Gini impurity 1/2 of 8 rows; none
    [128, 0]
    """
    if moments:
        n, total, squares = (totals[..., place] for place in range(3))
        mean = total // np.maximum(n, 1)
        rest = total - mean * n  # this form does not overflow up to MAX_ROWS
        impurity: Ints = squares - mean * (mean * n + 2 * rest) - _ceil_div(rest * rest, n)
        return impurity
    n = totals.sum(axis=-1)
    impurity = CLASS_IMPURITY_PARTS * n - _ceil_div(CLASS_IMPURITY_PARTS * (totals * totals).sum(axis=-1), n)
    return impurity


def _ceil_div(numerator: Ints, n: Ints) -> Ints:
    """Return the rounded-up quotient of non-negative integers, in operations that also exist on secret shares."""
    divisor = np.maximum(n, 1)
    quotient: Ints = (numerator + (divisor - 1)) // divisor
    return quotient


def impurity_range(moments: bool) -> int:
    """Return the largest impurity that one row can add to its node: the squared width of the range of the target."""
    return TARGET_LEVELS**2 if moments else 2 * CLASS_IMPURITY_PARTS


def edge_scores(histograms: Ints, moments: bool, *, with_impurity: bool = True) -> tuple[Ints, ...]:
    """Return the imbalance in rows and the total impurity of both sides, for each edge between two bins."""
    left = np.cumsum(histograms, axis=1)
    right = left[:, -1:] - left
    left, right = left[:, :-1], right[:, :-1]
    n_left, n_right = (side[..., 0] if moments else side.sum(axis=-1) for side in (left, right))
    imbalance = np.abs(n_left - n_right)
    return (
        (imbalance, total_impurity(left, moments) + total_impurity(right, moments)) if with_impurity else (imbalance,)
    )
