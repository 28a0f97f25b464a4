# SPDX-License-Identifier: Apache-2.0
"""Sparse histograms for large budgets: cells so fine that most contain one row, and forests fitted to these cells.

With epsilon e, a table of n * exp(e) cells releases about as many empty cells by chance as it has rows
(``sparse_noise``). At e = 20 that leaves 28 bits beyond log2(n) to distinguish rows: enough for a forest nearly as good
as one fitted to the rows. The gain of a column's groups is their Gini diversity, 1 - (sum of squared fractions), times
the strength of the column. Their cost is the logarithm of their number.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, prod
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from veilwood.arrays import HAVE_NUMBA, AnyArray, Codes, Floats, Ints, NDArray, run_on_threads
from veilwood.data.counts import Axis, ClassesByCell, ContingencyTable, RowBackend
from veilwood.forests.adaptive.contingency import BinnedColumn, posterior_counts
from veilwood.forests.adaptive.row_backend import GRADIENT_UNITS, SCORE_UNITS, ScoredRows, scores_to_probabilities
from veilwood.forests.adaptive.steps import AdaptiveStep, RowFacts, plan_cells, plan_sums
from veilwood.forests.leaves import smooth_probabilities
from veilwood.privacy.adaptive_budget import AdaptiveBudget
from veilwood.progress import track_progress
from veilwood.trees.counting import sum_over_trees
from veilwood.trees.forest import LEAF, Forest, build_forest

# From a row epsilon of MIN_ROW_EPSILON on, a cell with one row exceeds the noise. The sparse histogram is tried if the
# affordable cells have the fraction MIN_BITS_FRACTION of the bits of all columns in TARGET_GROUPS groups each; from
# LARGE_ROW_EPSILON on, MIN_BITS_IF_LARGE of them. With a MIN_ROW_EPSILON of 4, three development tables that try it at
# e = 4 lose 4.7, 0.7 and 0.6 points (s.e. 0.3 to 1.2).
MIN_ROW_EPSILON, LARGE_ROW_EPSILON = 6.0, 12.0
MIN_BITS_FRACTION, MIN_BITS_IF_LARGE = 0.7, 0.25
# With fewer rows the holdout is too small to show whether the sparse histogram helps.
MIN_TABLE_ROWS: Final = 400.0
TARGET_GROUPS: Final = 16  # groups per column to which MIN_BITS_FRACTION refers
CELL_FRACTION: Final = 0.6  # fraction of the budget; 0.3 and 0.4 were worse at e = 20 (pen strokes by 5 points)
COLUMN_FRACTION: Final = 0.1  # of CELL_FRACTION, for the class counts by column
FALSE_POSITIVES_PER_ROW: Final = 0.5  # empty cells released by chance, which are mostly far from all rows
MAX_FALSE_POSITIVES: Final = 1 << 22  # upper limit, regardless of the noisy number of rows
MAX_SAMPLED_ROWS: Final = 1 << 22  # rows in the secret sample whose cells are released
MAX_BINS, MAX_CATEGORIES = 64, 256  # largest numbers of groups of a numeric and of a categorical column
STRENGTH_GROUPS: Final = 16  # number of groups of a numeric column when its strength is computed
MAX_REPEATED_ROWS: Final = 1 << 18  # released cells, and synthetic rows made from them, that the forest is fitted to
# Minimum strength credited to a column for interactions, as a fraction of the mean strength of the STRONGEST columns.
MIN_RELATIVE_STRENGTH: Final = 0.05
STRONGEST: Final = 5  # columns
MIN_DIVERSITY: Final = 0.05  # Gini diversity below which a column is not credited with that strength


@dataclass(frozen=True)
class SparseHistogram:
    """Public, released cells of a sparse histogram.

    Attributes
    ----------
    axes : tuple of Axis
        Columns and their groups.
    groups : ndarray of uint8, shape (n_cells, n_axes)
        Groups of each cell, one per axis.
    label : ndarray of int
        Class of each cell.
    weight : ndarray of int
        Noisy count of each cell, at least 1.
    """

    axes: tuple[Axis, ...]
    groups: NDArray[np.uint8]
    label: Ints
    weight: Ints


def is_worth_trying(columns: Sequence[BinnedColumn], n_classes: int, n_rows: float, row_epsilon: float) -> bool:
    """Return True if a sparse histogram may be better than tables and rounds at this epsilon per row."""
    if not n_classes or row_epsilon < MIN_ROW_EPSILON or n_rows < MIN_TABLE_ROWS:
        return False
    wanted = sum(log2(TARGET_GROUPS if column.ordered else min(column.n_bins, TARGET_GROUPS)) for column in columns)
    bits = (
        log2(max(false_positives(n_rows), 1.0))
        + row_epsilon * CELL_FRACTION * (1 - COLUMN_FRACTION) * log2(np.e)
        - log2(n_classes)
    )
    return bits >= (MIN_BITS_IF_LARGE if row_epsilon >= LARGE_ROW_EPSILON else MIN_BITS_FRACTION) * max(wanted, 1.0)


def false_positives(n_rows: float) -> float:
    """Return the expected number of empty cells that are released by chance."""
    return min(FALSE_POSITIVES_PER_ROW * n_rows, MAX_FALSE_POSITIVES)


def release_sparse_histogram(
    columns: Sequence[BinnedColumn],
    n_classes: int,
    n_rows: float,
    backend: RowBackend,
    budget: AdaptiveBudget,
    rng: np.random.Generator,
) -> SparseHistogram:
    """Release class counts by column, select axes from them, and release a sparse histogram over these axes.

    If more than ``MAX_REPEATED_ROWS`` cells are released, a public random sample of them is returned.
    """
    facts = RowFacts(len(columns), n_classes, GRADIENT_UNITS)
    shape = (sum(column.n_bins for column in columns), n_classes)
    step = plan_sums(budget, AdaptiveStep.COLUMN_CLASSES, shape, COLUMN_FRACTION * CELL_FRACTION, facts)
    alone = [ContingencyTable((column.ungrouped_axis(),)) for column in columns]
    noisy = budget.release_counts(step, backend.run(ClassesByCell(alone, n_classes)))
    tables = np.split(noisy, np.cumsum([column.n_bins for column in columns])[:-1])
    cells = plan_cells(budget, false_positives(n_rows), n_classes, (1 - COLUMN_FRACTION) * CELL_FRACTION)
    axes = choose_axes(columns, tables, step.variance, cells.shape[0] // n_classes)
    n_cells = prod(axis.size for axis in axes) * n_classes
    held = backend.nonempty_cells(axes, n_classes, min(1.0, MAX_SAMPLED_ROWS / n_rows))
    released, weight = budget.release_sparse(cells, *held, n_cells)
    sampled = np.sort(rng.permutation(len(released))[:MAX_REPEATED_ROWS])
    where, label = np.divmod(released[sampled], n_classes)
    groups = np.empty((len(where), len(axes)), np.uint8)  # at most MAX_CATEGORIES of them
    for number in reversed(range(len(axes))):
        where, groups[:, number] = np.divmod(where, axes[number].size)
    return SparseHistogram(axes, groups, label, weight[sampled])


# -- selection of axes -----------------------------------------------------------------------------------------


def choose_axes(
    columns: Sequence[BinnedColumn], tables: Sequence[Floats], variance: float, max_cells: int
) -> tuple[Axis, ...]:
    """Select columns and groups from noisy class counts by column; the product has at most ``max_cells`` cells."""
    masses = [_bin_mass(column, table.sum(axis=1), variance * table.shape[1])
              for column, table in zip(columns, tables, strict=True)]  # fmt: skip
    options = [_candidate_groupings(column, table, mass)
               for column, table, mass in zip(columns, tables, masses, strict=True)]  # fmt: skip
    spread = [[_mass_diversity(axis, mass) for axis in axes] for axes, mass in zip(options, masses, strict=True)]
    strengths = np.array([
        _column_strength(column, table, mass, variance) / max(diversity[-1], MIN_DIVERSITY) if diversity else 0.0
        for column, table, mass, diversity in zip(columns, tables, masses, spread, strict=True)
    ])  # fmt: skip
    strongest = np.sort(strengths)[-STRONGEST:].mean()
    strengths += MIN_RELATIVE_STRENGTH * strongest if strongest > 0 else 1.0
    return _refine_axes(options, spread, strengths, max_cells)


def _refine_axes(
    options: Sequence[Sequence[Axis]], spread: Sequence[Sequence[float]], strengths: Floats, max_cells: int
) -> tuple[Axis, ...]:
    """Refine columns greedily, by gain per added bit, while the product of their groups fits ``max_cells``."""
    at = [-1] * len(options)  # the grouping of each column so far
    cells = 1  # an exact integer: the planned number must not be exceeded
    while True:
        best, best_gain = None, 0.0
        for j, axes in enumerate(options):
            size, diversity = (axes[at[j]].size, spread[j][at[j]]) if at[j] >= 0 else (1, 0.0)
            for i in range(at[j] + 1, min(at[j] + 3, len(axes))):
                finer = cells // size * axes[i].size
                gain = strengths[j] * (spread[j][i] - diversity) / log2(axes[i].size / size)
                if finer <= max_cells and gain > best_gain:
                    best, best_gain = (j, i, finer), gain
        if best is None:
            return tuple(axes[i] for axes, i in zip(options, at, strict=True) if i >= 0)
        j, i, cells = best
        at[j] = i


def _bin_mass(column: BinnedColumn, counts: Floats, variance: float) -> Floats:
    """Return the estimated number of rows per bin, shrunken if the column is numeric."""
    if not column.ordered:
        return np.maximum(counts, 0).astype(float)
    inside = counts[: column.n_value_bins]
    rows = max(float(inside.sum()), 1.0)
    return np.append(
        posterior_counts(inside, column.prior, variance, rows), np.maximum(counts[column.n_value_bins :], 0)
    )


def _candidate_groupings(column: BinnedColumn, table: Floats, mass: Floats) -> list[Axis]:
    """Return groupings of a column's bins: about 2, 4, 8, ... groups."""
    groupings: list[Axis] = []
    most = MAX_BINS if column.ordered else min(column.n_bins, MAX_CATEGORIES)
    n_groups = 2
    while n_groups < 2 * most:
        wanted = min(n_groups, most)
        if column.ordered:
            axis = column.equal_mass_groups(mass[: column.n_value_bins], wanted)
        else:
            axis = _group_categories(column, table, mass, wanted)
        if axis.size > (groupings[-1].size if groupings else 1):
            groupings.append(axis)
        n_groups *= 2
    return groupings


def _group_categories(column: BinnedColumn, table: Floats, mass: Floats, n_groups: int) -> Axis:
    """Group categories with similar class frequencies into groups of about equal mass."""
    order = np.argsort(_class_scores(table), kind="stable")
    if n_groups >= len(order):
        group = np.arange(len(order))
    else:
        middle = (np.cumsum(mass[order]) - mass[order] / 2) / max(mass.sum(), 1e-9)
        group = np.unique(np.minimum((middle * n_groups).astype(int), n_groups - 1), return_inverse=True)[1]
    groups = np.empty(len(order), np.uint16)
    groups[order] = group
    return Axis(column.feature, groups, False, int(group.max()) + 1, column.starts)


def _class_scores(table: Floats) -> Floats:
    """Return one number per category: its position along the first principal component of class frequencies."""
    counts = np.maximum(table, 0) + 1.0
    shares = counts / counts.sum(axis=1, keepdims=True)
    apart = shares - counts.sum(axis=0) / counts.sum()
    direction = np.linalg.svd(apart * np.sqrt(counts.sum(axis=1, keepdims=True)), full_matrices=False)[2][0]
    return np.asarray(apart @ direction)


def _mass_diversity(axis: Axis, mass: Floats) -> float:
    shares = np.bincount(axis.groups[: len(mass)], mass) / max(mass.sum(), 1e-9)
    return float(1 - (shares**2).sum())


def _column_strength(column: BinnedColumn, table: Floats, mass: Floats, variance: float) -> float:
    """Return the chi-squared statistic per row of a column and the classes, minus the part expected from noise."""
    if column.ordered:
        groups = column.equal_mass_groups(mass[: column.n_value_bins], STRENGTH_GROUPS).groups
    else:
        groups = np.arange(len(table), dtype=np.uint16)
    n_cells = np.bincount(groups)[:, None]
    counts = np.stack([np.bincount(groups, one) for one in table.T.astype(float)], axis=1)
    rows, total = counts.sum(axis=1, keepdims=True), max(float(counts.sum()), 1.0)
    apart = counts - rows * counts.sum(axis=0) / total
    noise = variance * n_cells
    return max(0.0, float(((apart**2 - noise) / np.maximum(rows, np.sqrt(noise * table.shape[1]) + 1)).sum()) / total)


Groups = NDArray[np.unsignedinteger[Any]]


class TreeKind(NamedTuple):
    """Hyperparameters of a tree."""

    random_thresholds: bool
    """Whether thresholds are drawn at random (extra-trees), or are the best ones."""
    max_features: float
    """Fraction of the columns that are candidates at a node."""
    min_samples_leaf: int
    """Minimum number of rows in a leaf."""


class FittedTree(NamedTuple):
    """Tree in the layout of scikit-learn: values up to the threshold go left; leaves have no children."""

    feature: AnyArray
    threshold: Floats
    left: AnyArray
    right: AnyArray
    probabilities: Floats

    @classmethod
    def fit_sample(
        cls, kind: TreeKind, X: Groups, y: AnyArray, n_classes: int, seed: int, max_rows: int, *, fast: bool
    ) -> FittedTree:
        """Fit a tree to a bootstrap sample; with random thresholds and few rows, to all of them."""
        times = np.ones(len(y), np.int64)
        if not kind.random_thresholds or len(y) > max_rows:
            drawn = np.random.default_rng(seed).integers(0, len(y), min(len(y), max_rows))
            row, times = np.unique(drawn, return_counts=True)
            X, y = X[row], y[row]
        if fast:
            from veilwood import kernels

            first = np.random.RandomState(seed).randint(0, 2**31 - 1)  # as scikit-learn starts its own generator
            return cls(*kernels.fit_tree(
                np.ascontiguousarray(X.T), y, times, int(X.max()) + 1, n_classes,
                max(1, int(kind.max_features * X.shape[1])), kind.min_samples_leaf, kind.random_thresholds, first,
            ))  # fmt: skip
        model = (ExtraTreeClassifier if kind.random_thresholds else DecisionTreeClassifier)(
            max_features=kind.max_features, min_samples_leaf=kind.min_samples_leaf, random_state=seed
        )
        tree = model.fit(X, y, sample_weight=times).tree_
        shares = np.zeros((tree.node_count, n_classes))
        shares[:, model.classes_] = tree.value[:, 0, :]
        return cls(tree.feature, tree.threshold, tree.children_left, tree.children_right, shares)

    def predict_proba(self, X: Groups) -> Floats:
        """Return the class frequencies in the leaf of each row."""
        node = np.zeros(len(X), np.int64)
        while (inner := self.left[node] >= 0).any():
            at = node[inner]
            on_left = X[inner, self.feature[at]] <= self.threshold[at]
            node[inner] = np.where(on_left, self.left[at], self.right[at])
        return self.probabilities[node]

    @property
    def nodes_by_level(self) -> Ints:
        """Indices of all nodes, level by level, siblings next to each other."""
        levels = [np.zeros(1, np.int64)]
        while len(levels[-1]):
            inner = levels[-1][self.left[levels[-1]] >= 0]
            levels.append(np.stack([self.left[inner], self.right[inner]], axis=1).ravel())
        return np.concatenate(levels)


TREES, MIN_TREES = 60, 10  # number of trees of a forest for few classes, and minimum for many classes
VALIDATION_TREES: Final = 8  # trees per kind; the gain of more trees is estimated from the variance between them
TREE_ROWS, MIN_TREE_ROWS = 1 << 16, 1 << 13  # size of the bootstrap sample of a tree
MANY_CLASSES: Final = 8  # with more classes, trees are fewer and smaller: each leaf holds a number per class
FOLDS: Final = 5  # folds of the cross-validation that compares kinds
ONE_FOLD_FROM: Final = 10_000  # rows from which one fold is enough to compare kinds
MAX_VALIDATION_ROWS: Final = 1 << 15  # rows used to compare kinds
# Boosted stumps as a further kind: 31 development tables +0.3 and +0.2 points at e = 8 and 20 (s.e. 0.5).
KINDS: Final = (
    TreeKind(random_thresholds=True, max_features=1.0, min_samples_leaf=1),
    TreeKind(random_thresholds=True, max_features=1.0, min_samples_leaf=4),
    *(TreeKind(random_thresholds=False, max_features=0.4, min_samples_leaf=least) for least in (2, 20, 80)),
)


class FittedForest(NamedTuple):
    """Fitted forest with the class probabilities that each leaf contributes."""

    forest: Forest
    values: Floats


def predict_probabilities(fitted: FittedForest, codes: Codes, n_jobs: int | None = None) -> Floats:
    """Return class probabilities."""
    scores = sum_over_trees(fitted.forest, codes, fitted.values, n_jobs=n_jobs)
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def count_trees(n_classes: int) -> int:
    """Return the number of trees of a forest."""
    return max(TREES * MANY_CLASSES // max(n_classes, MANY_CLASSES), MIN_TREES)


def _rows_per_tree(n_classes: int) -> int:
    return max(TREE_ROWS * MANY_CLASSES // max(n_classes, MANY_CLASSES), MIN_TREE_ROWS)


def max_leaf_count(n_classes: int) -> int:
    """Return the largest possible number of leaves of a forest."""
    return count_trees(n_classes) * _rows_per_tree(n_classes)


def fit_best_forest(
    cells: SparseHistogram, n_classes: int, rng: np.random.Generator, n_jobs: int | None, *, fast: bool = HAVE_NUMBA
) -> FittedForest:
    """Fit the kind of forest with the least cross-validated loss."""
    if not len(cells.weight):  # no cell was released
        return _to_fitted_forest([_constant_tree(n_classes)], cells.axes)
    row = _expand_cells(cells.weight, rng)
    seeds = rng.integers(0, 2**31 - 1, 2)
    validation_rows = np.random.default_rng(seeds[0]).permutation(len(row))[:MAX_VALIDATION_ROWS]
    X, y = _training_data(cells, row[validation_rows])
    with warnings.catch_warnings():
        # Filters hold for the whole process: match this message of scikit-learn only, to lose no other warning.
        warnings.filterwarnings("ignore", message="The number of unique classes is greater than")
        losses = [
            _validation_loss(kind, X, y, n_classes, int(seeds[0]), n_jobs, fast)
            for kind in track_progress(KINDS, "choosing a forest")
        ]
        best = KINDS[int(np.argmin(losses))]
        X, y = _training_data(cells, row)
        trees = [_constant_tree(n_classes)] * count_trees(n_classes)  # entries to be filled

        def fit_trees(first: int, last: int) -> None:
            for number in range(first, last):
                seed = int(seeds[1]) + number
                trees[number] = FittedTree.fit_sample(best, X, y, n_classes, seed, _rows_per_tree(n_classes), fast=fast)

        run_on_threads(fit_trees, len(trees), n_jobs)
    return _to_fitted_forest(trees, cells.axes)


def _expand_cells(weight: Ints, rng: np.random.Generator) -> Ints:
    """Repeat cells by their counts, so that folds and leaves consist of rows; sample if there are too many."""
    ends = np.cumsum(weight)
    if ends[-1] <= MAX_REPEATED_ROWS:
        return np.repeat(np.arange(len(weight)), weight)
    # Without replacement, because a row must not be in two folds.
    drawn = rng.choice(ends[-1], MAX_REPEATED_ROWS, replace=False)
    return np.searchsorted(ends, np.sort(drawn), side="right")


def _training_data(cells: SparseHistogram, row: Ints) -> tuple[Groups, Ints]:
    """Return the groups of each row, at least one column, and its class."""
    X = cells.groups[row]
    return (X if X.shape[1] else np.zeros((len(row), 1), X.dtype)), cells.label[row]


def _validation_loss(
    kind: TreeKind, X: Groups, y: Ints, n_classes: int, seed: int, n_jobs: int | None, fast: bool
) -> float:
    """Return the squared error of class probabilities on left-out folds; rows must be in random order."""
    fold = np.arange(len(y)) % FOLDS
    total = 0.0
    for number in range(1 if len(y) >= ONE_FOLD_FROM else min(FOLDS, len(y))):
        out, rest = fold == number, fold != number
        if len(np.unique(y[rest])) < 2:  # all kinds predict the same
            continue
        shares, spread = _validation_probabilities(kind, X[rest], y[rest], X[out], n_classes, seed, n_jobs, fast)
        shares[np.arange(len(shares)), y[out]] -= 1.0
        total += float((shares**2).sum()) - spread * (1 / VALIDATION_TREES - 1 / count_trees(n_classes))
    return total


def _validation_probabilities(
    kind: TreeKind, X: Groups, y: Ints, held_out: Groups, n_classes: int, seed: int, n_jobs: int | None, fast: bool
) -> tuple[Floats, float]:
    """Return mean class probabilities of held-out rows, and the sum of the variances between trees.

    The memory of each tree is freed before its thread fits another, since deep trees take megabytes.
    """
    shares, squares, adding = np.zeros((len(held_out), n_classes)), 0.0, Lock()

    def add_predictions(first: int, last: int) -> None:
        nonlocal squares
        for tree in range(first, last):
            fitted = FittedTree.fit_sample(kind, X, y, n_classes, seed + tree, _rows_per_tree(n_classes), fast=fast)
            predicted = fitted.predict_proba(held_out)
            with adding:
                shares[:] += predicted / VALIDATION_TREES
                squares += float((predicted**2).sum())

    run_on_threads(add_predictions, VALIDATION_TREES, n_jobs)
    return shares, (squares - VALIDATION_TREES * float((shares**2).sum())) / (VALIDATION_TREES - 1)


# -- conversion to a forest -------------------------------------------------------------------------------------


def _constant_tree(n_classes: int) -> FittedTree:
    """Return a tree that predicts equal probabilities."""
    none = np.full(1, -1)
    return FittedTree(none, np.zeros(1), none, none, np.full((1, n_classes), 1 / n_classes))


def _to_fitted_forest(trees: Sequence[FittedTree], axes: Sequence[Axis]) -> FittedForest:
    """Convert trees to a forest: groups become thresholds of codes, or lookup tables of categories."""
    starts, tables, lookup_length = [], [], 0
    for axis in axes:  # the threshold that encodes a split before group 1, 2, ... of the axis
        if axis.ordered:
            starts.append(axis.first_codes)
            continue
        starts.append(-1 - (lookup_length + (np.arange(axis.size) - 1) * len(axis.groups)))
        right = axis.groups[None, :] >= np.arange(1, axis.size)[:, None]
        tables.append(right.astype(np.uint16).ravel())
        lookup_length += right.size
    orders = [tree.nodes_by_level for tree in trees]
    parts = ([part[order] for part in tree] for tree, order in zip(trees, orders, strict=True))
    column, threshold, left, _, shares = map(np.concatenate, zip(*parts, strict=True))
    leaf, group = left < 0, np.floor(threshold).astype(np.int32) + 1  # the first group on the right
    feature, cut = np.full(len(leaf), LEAF, np.int32), np.zeros(len(leaf), np.int32)
    for number, (axis, start) in enumerate(zip(axes, starts, strict=True)):
        here = ~leaf & (column == number)
        feature[here], cut[here] = axis.feature, start[group[here]]
    forest = build_forest([len(order) for order in orders], feature, cut, np.where(leaf, 0, 2), tables)
    return FittedForest(forest, smooth_probabilities(shares[leaf], len(trees)) / len(trees))


@dataclass(frozen=True, eq=False)
class CorrectPredictions:
    """Query for the number of correct predictions at each weight of the fitted forest; a row adds 0 or 1 to each."""

    columns: Sequence[BinnedColumn]
    fitted: FittedForest
    weights: tuple[float, ...]

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return one number per weight."""
        codes = np.column_stack([column.starts[rows.cells[column.feature]] for column in self.columns])
        fitted_probabilities = predict_probabilities(self.fitted, codes.astype(np.uint16))
        own_probabilities = scores_to_probabilities(rows.scores / SCORE_UNITS)
        mixed = [(1 - weight) * own_probabilities + weight * fitted_probabilities for weight in self.weights]
        return np.array([int((shares.argmax(axis=1) == rows.target).sum()) for shares in mixed], np.int64)
