# SPDX-License-Identifier: Apache-2.0
"""An ordinary forest, learned from released cells and written as ours.

Everything here is computed from what was released: how its trees are grown, how they are judged. The exception is
``RightAnswers``, a question to the rows that were held back.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.adaptive.fine_cells import MOST_KEPT, FineCells
from veilwood.forests.cells.cell_tables import Axis
from veilwood.forests.cells.columns import CellColumn
from veilwood.forests.cells.rows import SCORE_UNITS, Ints, ScoredRows, probabilities
from veilwood.forests.leaves import with_doubt
from veilwood.progress import track
from veilwood.trees.counting import HAVE_NUMBA, on_threads, sum_over_trees
from veilwood.trees.fitting import FittedTree, Groups, TreeKind
from veilwood.trees.forest import LEAF, Forest, build_forest

TREES, FEWEST_TREES = 60, 10
JUDGED_TREES: Final = 8  # of each kind: what more of them would still average out is known from how they differ
TREE_ROWS, FEWEST_TREE_ROWS = 1 << 16, 1 << 13  # that a tree sees, drawn with replacement from a larger table
MANY_CLASSES: Final = 8  # beyond which trees are fewer and see less: each leaf holds a number for every class
FOLDS: Final = 5
ONE_FOLD_FROM: Final = 10_000  # rows, from which one fold judges well enough,
MOST_JUDGED: Final = 1 << 15  # and so many rows at most
# Boosted trees of one split beside them: 31 development tables +0.3 and +0.2 points at e = 8 and 20 (s.e. 0.5).
KINDS: Final = (
    TreeKind(by_chance=True, max_features=1.0, min_samples_leaf=1),
    TreeKind(by_chance=True, max_features=1.0, min_samples_leaf=4),
    *(TreeKind(by_chance=False, max_features=0.4, min_samples_leaf=least) for least in (2, 20, 80)),
)

Floats = NDArray[np.float64]


class GrownForest(NamedTuple):
    """Trees, and the part of a class's share that each leaf adds."""

    forest: Forest
    values: Floats


def shares_of(grown: GrownForest, codes: NDArray[np.uint16], n_jobs: int | None = None) -> Floats:
    """Return class probabilities."""
    scores = sum_over_trees(grown.forest, codes, grown.values, n_jobs=n_jobs)
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def n_trees(n_classes: int) -> int:
    """How many trees a forest has."""
    return max(TREES * MANY_CLASSES // max(n_classes, MANY_CLASSES), FEWEST_TREES)


def _rows_per_tree(n_classes: int) -> int:
    return max(TREE_ROWS * MANY_CLASSES // max(n_classes, MANY_CLASSES), FEWEST_TREE_ROWS)


def most_leaves(n_classes: int) -> int:
    """How many leaves a forest can have."""
    return n_trees(n_classes) * _rows_per_tree(n_classes)


def grow(
    cells: FineCells, n_classes: int, rng: np.random.Generator, n_jobs: int | None, *, fast: bool = HAVE_NUMBA
) -> GrownForest:
    """Grow the kind of forest that predicts rows best that it was not grown from."""
    if not len(cells.weight):  # nothing was released: nothing is known
        return _written([_leaf(n_classes)], cells.axes)
    row = _as_rows(cells.weight, rng)
    seeds = rng.integers(0, 2**31 - 1, 2)
    judged = np.random.default_rng(seeds[0]).permutation(len(row))[:MOST_JUDGED]
    X, y = _table(cells, row[judged])
    with warnings.catch_warnings():
        # Filters are of the whole process: only this message of scikit-learn's, so that no thread loses one of ours.
        warnings.filterwarnings("ignore", message="The number of unique classes is greater than")
        losses = [
            _loss(kind, X, y, n_classes, int(seeds[0]), n_jobs, fast) for kind in track(KINDS, "choosing a forest")
        ]
        best = KINDS[int(np.argmin(losses))]
        X, y = _table(cells, row)
        trees = [_leaf(n_classes)] * n_trees(n_classes)  # places to be filled

        def work(first: int, last: int) -> None:
            for number in range(first, last):
                seed = int(seeds[1]) + number
                trees[number] = FittedTree.of(best, X, y, n_classes, seed, _rows_per_tree(n_classes), fast=fast)

        on_threads(work, len(trees), n_jobs)
    return _written(trees, cells.axes)


def _as_rows(weight: Ints, rng: np.random.Generator) -> Ints:
    """Repeat cells as often as they were counted, so that folds and leaves are of rows; of very many draw some."""
    ends = np.cumsum(weight)
    if ends[-1] <= MOST_KEPT:
        return np.repeat(np.arange(len(weight)), weight)
    drawn = rng.choice(ends[-1], MOST_KEPT, replace=False)  # no row twice: it would be in a fold and left out of it
    return np.searchsorted(ends, np.sort(drawn), side="right")


def _table(cells: FineCells, row: Ints) -> tuple[Groups, Ints]:
    """The groups of each row, at least one, and its class."""
    X = cells.groups[row]
    return (X if X.shape[1] else np.zeros((len(row), 1), X.dtype)), cells.label[row]


def _loss(kind: TreeKind, X: Groups, y: Ints, n_classes: int, seed: int, n_jobs: int | None, fast: bool) -> float:
    """Squared error of class shares on folds that were left out; the rows are in random order."""
    fold = np.arange(len(y)) % FOLDS
    total = 0.0
    for number in range(1 if len(y) >= ONE_FOLD_FROM else min(FOLDS, len(y))):
        out, rest = fold == number, fold != number
        if len(np.unique(y[rest])) < 2:  # all kinds say the same
            continue
        shares, spread = _shares(kind, X[rest], y[rest], X[out], n_classes, seed, n_jobs, fast)
        shares[np.arange(len(shares)), y[out]] -= 1.0
        total += float((shares**2).sum()) - spread * (1 / JUDGED_TREES - 1 / n_trees(n_classes))
    return total


def _shares(
    kind: TreeKind, X: Groups, y: Ints, others: Groups, n_classes: int, seed: int, n_jobs: int | None, fast: bool
) -> tuple[Floats, float]:
    """Class shares of other rows, and how far trees differ in them: the variance of one tree, added up.

    Each tree is gone before its thread grows another, as deep ones take megabytes.
    """
    shares, squares, adding = np.zeros((len(others), n_classes)), 0.0, Lock()

    def judge(first: int, last: int) -> None:
        nonlocal squares
        for tree in range(first, last):
            fitted = FittedTree.of(kind, X, y, n_classes, seed + tree, _rows_per_tree(n_classes), fast=fast)
            told = fitted.ask(others, fast=fast)
            with adding:
                shares[:] += told / JUDGED_TREES
                squares += float((told**2).sum())

    on_threads(judge, JUDGED_TREES, n_jobs)
    return shares, (squares - JUDGED_TREES * float((shares**2).sum())) / (JUDGED_TREES - 1)


# -- as one of our forests --------------------------------------------------------------------------------------


def _leaf(n_classes: int) -> FittedTree:
    """A tree that says nothing."""
    none = np.full(1, -1)
    return FittedTree(none, np.zeros(1), none, none, np.full((1, n_classes), 1 / n_classes))


def _written(trees: Sequence[FittedTree], axes: Sequence[Axis]) -> GrownForest:
    """Put trees side by side; groups become thresholds of codes, or tables that send each category left or right."""
    starts, tables, lookup_length = [], [], 0
    for axis in axes:  # what a split before group 1, 2, ... of the axis is written as
        if axis.ordered:
            starts.append(axis.first_codes)
            continue
        starts.append(-1 - (lookup_length + (np.arange(axis.size) - 1) * len(axis.groups)))
        right = axis.groups[None, :] >= np.arange(1, axis.size)[:, None]
        tables.append(right.astype(np.uint16).ravel())
        lookup_length += right.size
    orders = [tree.by_level for tree in trees]
    parts = ([part[order] for part in tree] for tree, order in zip(trees, orders, strict=True))
    asked, threshold, left, _, shares = map(np.concatenate, zip(*parts, strict=True))
    leaf, group = left < 0, np.floor(threshold).astype(np.int32) + 1  # the first group on the right
    feature, cut = np.full(len(leaf), LEAF, np.int32), np.zeros(len(leaf), np.int32)
    for number, (axis, start) in enumerate(zip(axes, starts, strict=True)):
        here = ~leaf & (asked == number)
        feature[here], cut[here] = axis.feature, start[group[here]]
    forest = build_forest([len(order) for order in orders], feature, cut, np.where(leaf, 0, 2), tables)
    return GrownForest(forest, with_doubt(shares[leaf], len(trees)) / len(trees))


@dataclass(frozen=True, eq=False)
class RightAnswers:
    """Count the rows whose class is predicted where fine cells have each of ``weights``; a row adds 0 or 1 to each."""

    columns: Sequence[CellColumn]
    grown: GrownForest
    weights: tuple[float, ...]

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each weight."""
        codes = np.column_stack([column.starts[rows.cells[column.feature]] for column in self.columns])
        theirs = shares_of(self.grown, codes.astype(np.uint16))
        ours = probabilities(rows.scores / SCORE_UNITS)
        mixed = [(1 - weight) * ours + weight * theirs for weight in self.weights]
        return np.array([int((shares.argmax(axis=1) == rows.target).sum()) for shares in mixed], np.int64)
