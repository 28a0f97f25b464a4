# SPDX-License-Identifier: Apache-2.0
"""An ordinary forest, or an additive model, learned by scikit-learn from released cells and written as ours.

Everything here is computed from what was released: which kind it is, how large its leaves, how it is judged. The
exception is ``RightAnswers``, a question to the rows that were held back. Where numba is installed ``fitting_kernels``
grows the same trees faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier
from threadpoolctl import threadpool_limits

from veilwood.forests.adaptive.fine_cells import MOST_KEPT, FineCells
from veilwood.forests.cells.cell_tables import Axis, CellTable, grow_tables
from veilwood.forests.cells.columns import CellColumn
from veilwood.forests.cells.rows import SCORE_UNITS, Ints, ScoredRows, probabilities
from veilwood.progress import track
from veilwood.trees.counting import HAVE_NUMBA, on_threads, sum_over_trees
from veilwood.trees.forest import LEAF, Forest, build_forest

TREES, FEWEST_TREES = 60, 10
JUDGED_TREES: Final = 8  # of each candidate: what more of them would still average out is known from how they differ
MOST_ROWS, FEWEST_ROWS = 1 << 16, 1 << 13  # that a tree sees, drawn with replacement from a larger table
MANY_CLASSES: Final = 8  # beyond which trees are fewer and see less: each leaf holds a number for every class
STUMPS: Final = 200  # boosted trees of one split, divided among the classes: too few if there are many
STEP: Final = 0.3  # of boosting
FOLDS: Final = 5
ONE_FOLD_FROM: Final = 10_000  # rows, from which one fold judges well enough,
MOST_JUDGED: Final = 1 << 15  # and so many rows at most

Floats = NDArray[np.float64]
Groups = NDArray[np.unsignedinteger[Any]]


class ModelKind(NamedTuple):
    """A kind of model, the part of the columns that is tried at a node, and the fewest rows in a leaf.

    Thresholds of a forest are drawn by chance ("extra") or the best ones ("random"); trees of an additive model have
    one split each.
    """

    kind: Literal["extra", "random", "additive"]
    max_features: float
    min_samples_leaf: int


CANDIDATES: Final = (
    ModelKind("extra", 1.0, 1),
    ModelKind("extra", 1.0, 4),
    ModelKind("random", 0.4, 2),
    ModelKind("random", 0.4, 20),
    ModelKind("random", 0.4, 80),
    ModelKind("additive", 1.0, 20),  # where columns act one by one, deep trees need far more rows
)


class GrownModel(NamedTuple):
    """A model: trees, what each leaf adds to the scores, and the scores that they are added to.

    Scores are shares of classes, which start from zero, or logarithms of them up to a constant: those start from the
    logarithms of shares that add up to 1, which are never all zero.
    """

    forest: Forest
    values: Floats
    start: Floats

    @property
    def additive(self) -> bool:
        """Whether scores are logarithms."""
        return bool(self.start.any())


def shares_of(grown: GrownModel, codes: NDArray[np.uint16], n_jobs: int | None = None) -> Floats:
    """Return class probabilities."""
    scores = grown.start + sum_over_trees(grown.forest, codes, grown.values, n_jobs=n_jobs)
    return probabilities(scores) if grown.additive else np.asarray(scores / scores.sum(axis=1, keepdims=True))


def n_trees(n_classes: int) -> int:
    """How many trees a forest has."""
    return max(TREES * MANY_CLASSES // max(n_classes, MANY_CLASSES), FEWEST_TREES)


def _rows_per_tree(n_classes: int) -> int:
    return max(MOST_ROWS * MANY_CLASSES // max(n_classes, MANY_CLASSES), FEWEST_ROWS)


def most_leaves(n_classes: int) -> int:
    """How many leaves a forest can have."""
    return n_trees(n_classes) * _rows_per_tree(n_classes)


def grow(
    cells: FineCells, n_classes: int, rng: np.random.Generator, n_jobs: int | None, *, fast: bool = HAVE_NUMBA
) -> GrownModel:
    """Grow the kind of model that predicts rows best that it was not grown from."""
    if not len(cells.weight):  # nothing was released: nothing is known
        return GrownModel(*_joined([_single_leaf(np.full(n_classes, 1 / n_classes))], cells.axes), np.zeros(n_classes))
    row = _as_rows(cells.weight, rng)
    seeds = rng.integers(0, 2**31 - 1, 2)
    judged = np.random.default_rng(seeds[0]).permutation(len(row))[:MOST_JUDGED]
    X, y = _table(cells, row[judged])
    # Stumps are so quick that threads of theirs would mostly wait for each other.
    with threadpool_limits(limits=1, user_api="openmp"), warnings.catch_warnings():
        # Filters are of the whole process: only this one message, so that no other thread loses a warning of ours.
        warnings.filterwarnings("ignore", message="The number of unique classes is greater than")
        # A class that was never released has no log-odds.
        additive_too = len(cells.axes) > 0 and n_classes <= MANY_CLASSES and len(np.unique(y)) == n_classes
        candidates = [one for one in CANDIDATES if one.kind != "additive" or additive_too]
        losses = [
            _loss(candidate, X, y, n_classes, int(seeds[0]), n_jobs, fast)
            for candidate in track(candidates, "choosing a forest")
        ]
        best = candidates[int(np.argmin(losses))]
        X, y = _table(cells, row)
        if best.kind == "additive":
            return _by_column(_fitted_stumps(best, X, y, n_classes, int(seeds[1])), cells.axes)
        trees = [_single_leaf(np.zeros(n_classes))] * n_trees(n_classes)  # places to be filled

        def work(first: int, last: int) -> None:
            for number in range(first, last):
                trees[number] = _tree(_fitted_tree(best, X, y, n_classes, int(seeds[1]) + number, fast), n_classes)

        on_threads(work, len(trees), n_jobs)
    forest, values = _joined(trees, cells.axes)
    values /= len(trees)
    return GrownModel(forest, values, np.zeros(n_classes))


def _as_rows(weight: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Repeat cells as often as they were counted, so that folds and leaves are of rows; of very many draw some."""
    ends = np.cumsum(weight)
    if ends[-1] <= MOST_KEPT:
        return np.repeat(np.arange(len(weight)), weight)
    drawn = rng.choice(ends[-1], MOST_KEPT, replace=False)  # no row twice: it would be in a fold and left out of it
    return np.searchsorted(ends, np.sort(drawn), side="right")


def _table(cells: FineCells, row: NDArray[np.int64]) -> tuple[Groups, NDArray[np.int64]]:
    """The groups of each row, at least one, and its class."""
    X = cells.groups[row, : len(cells.axes)]
    return (X if X.shape[1] else np.zeros((len(row), 1), X.dtype)), cells.label[row]


class _Fitted(NamedTuple):
    """A tree as scikit-learn writes one: in a node, values up to the threshold go left; leaves have no children."""

    feature: NDArray[Any]
    threshold: Floats
    left: NDArray[Any]
    right: NDArray[Any]
    shares: Floats

    def ask(self, X: Groups, fast: bool) -> Floats:
        """Return the shares of classes in the leaf of each row."""
        if fast:
            from veilwood.trees import fitting_kernels

            told: Floats = fitting_kernels.ask_tree(*self, np.ascontiguousarray(X.T))
            return told
        node = np.zeros(len(X), np.int64)
        while (inner := self.left[node] >= 0).any():
            at = node[inner]
            on_left = X[inner, self.feature[at]] <= self.threshold[at]
            node[inner] = np.where(on_left, self.left[at], self.right[at])
        return self.shares[node]


def _fitted_tree(candidate: ModelKind, X: Groups, y: NDArray[Any], n_classes: int, seed: int, fast: bool) -> _Fitted:
    """One of scikit-learn's trees, from rows drawn with replacement; from all, if few, where thresholds are chance."""
    extra, most = candidate.kind == "extra", _rows_per_tree(n_classes)
    times = np.ones(len(y), np.int64)
    if not extra or len(y) > most:
        drawn = np.random.default_rng(seed).integers(0, len(y), min(len(y), most))
        row, times = np.unique(drawn, return_counts=True)
        X, y = X[row], y[row]
    if fast:
        from veilwood.trees import fitting_kernels

        first = np.random.RandomState(seed).randint(0, 2**31 - 1)  # as scikit-learn starts its own generator
        tried = max(1, int(candidate.max_features * X.shape[1]))
        return _Fitted(
            *fitting_kernels.grow_tree(
                np.ascontiguousarray(X.T), y, times, int(X.max()) + 1, n_classes, tried, candidate.min_samples_leaf,
                extra, first,
            )
        )  # fmt: skip
    kind = ExtraTreeClassifier if extra else DecisionTreeClassifier
    model = kind(max_features=candidate.max_features, min_samples_leaf=candidate.min_samples_leaf, random_state=seed)
    tree = model.fit(X, y, sample_weight=times).tree_
    shares = np.zeros((tree.node_count, n_classes))
    shares[:, model.classes_] = tree.value[:, 0, :]
    return _Fitted(tree.feature, tree.threshold, tree.children_left, tree.children_right, shares)


def _fitted_stumps(candidate: ModelKind, X: Groups, y: NDArray[Any], n_classes: int, seed: int) -> Any:
    """Trees of one split, boosted: each adds to the effect of one column."""
    model = HistGradientBoostingClassifier(
        learning_rate=STEP, max_iter=STUMPS // n_classes, max_leaf_nodes=2, random_state=seed,
        max_features=candidate.max_features, min_samples_leaf=candidate.min_samples_leaf, early_stopping=False,
    )  # fmt: skip
    return model.fit(X, y)


def _loss(
    candidate: ModelKind, X: Groups, y: NDArray[Any], n_classes: int, seed: int, n_jobs: int | None, fast: bool
) -> float:
    """Squared error of class shares on folds that were left out; the rows are in random order."""
    fold = np.arange(len(y)) % FOLDS
    total = 0.0
    for number in range(1 if len(y) >= ONE_FOLD_FROM else min(FOLDS, len(y))):
        out, rest = fold == number, fold != number
        if len(np.unique(y[rest])) < 2:  # all kinds say the same
            continue
        shares, spread = _shares(candidate, X[rest], y[rest], X[out], n_classes, seed, n_jobs, fast)
        shares[np.arange(len(shares)), y[out]] -= 1.0
        total += float((shares**2).sum()) - spread * (1 / JUDGED_TREES - 1 / n_trees(n_classes))
    return total


def _shares(
    candidate: ModelKind,
    X: Groups,
    y: NDArray[Any],
    others: Groups,
    n_classes: int,
    seed: int,
    n_jobs: int | None,
    fast: bool,
) -> tuple[Floats, float]:
    """Class shares of other rows, and how far trees differ in them: the variance of one tree, added up.

    Each tree is gone before its thread grows another, as deep ones take megabytes.
    """
    shares, squares, adding = np.zeros((len(others), n_classes)), 0.0, Lock()
    if candidate.kind == "additive":
        fitted = _fitted_stumps(candidate, X, y, n_classes, seed)
        shares[:, fitted.classes_] = fitted.predict_proba(others)
        return shares, 0.0

    def judge(first: int, last: int) -> None:
        nonlocal squares
        for tree in range(first, last):
            told = _fitted_tree(candidate, X, y, n_classes, seed + tree, fast).ask(others, fast)
            with adding:
                shares[:] += told / JUDGED_TREES
                squares += float((told**2).sum())

    on_threads(judge, JUDGED_TREES, n_jobs)
    return shares, (squares - JUDGED_TREES * float((shares**2).sum())) / (JUDGED_TREES - 1)


# -- what scikit-learn made as one of ours ----------------------------------------------------------------------


def _by_column(fitted: Any, axes: Sequence[Axis]) -> GrownModel:
    """Write each column as a tree: as no two meet in a tree of one split, a model can be asked for each by itself."""
    forest, group = grow_tables([CellTable((axis,)) for axis in axes])
    asked = np.zeros((1 + len(group), len(axes)), np.float32)
    asked[np.arange(1, len(asked)), np.repeat(np.arange(len(axes)), np.diff(forest.tree_leaves))] = group
    scores = fitted.decision_function(asked)
    if scores.ndim == 1:  # log-odds of the second of two classes
        scores = np.column_stack([np.zeros(len(scores)), scores])
    start, values = scores[0], scores[1:] - scores[0]
    for effect in np.split(values, forest.tree_leaves[1:-1]):
        start = start + effect.mean(axis=0)
        effect -= effect.mean(axis=0)  # in place: a view of values
    return GrownModel(forest, values, start - np.logaddexp.reduce(start))


class _CellTree(NamedTuple):
    """A tree in level order: axis (or LEAF) and first group on the right of each node, values of leaves."""

    axis: NDArray[np.int32]
    group: NDArray[np.int32]
    values: Floats


def _single_leaf(value: Floats) -> _CellTree:
    nothing = np.zeros(1, np.int32)
    return _CellTree(np.full(1, LEAF, np.int32), nothing, value[None])


def _tree(fitted: _Fitted, n_classes: int) -> _CellTree:
    """Number the nodes level by level, siblings side by side."""
    order = np.concatenate(list(_levels(fitted.left, fitted.right)))
    leaf = fitted.left[order] < 0
    values = fitted.shares[order[leaf]]
    even = 1 / (n_trees(n_classes) + 1)  # as if one more tree voted evenly: no class is impossible
    shares = (1 - even) * (values / values.sum(axis=1, keepdims=True)) + even / n_classes
    group = np.floor(fitted.threshold[order]).astype(np.int32) + 1
    return _CellTree(np.where(leaf, LEAF, fitted.feature[order]).astype(np.int32), group, shares)


def _levels(left: NDArray[np.int64], right: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    level = np.zeros(1, np.int64)
    while len(level):
        yield level
        inner = level[left[level] >= 0]
        level = np.stack([left[inner], right[inner]], axis=1).ravel()


def _joined(trees: Sequence[_CellTree], axes: Sequence[Axis]) -> tuple[Forest, Floats]:
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
    axis_of = np.concatenate([tree.axis for tree in trees])
    group = np.concatenate([tree.group for tree in trees])
    feature, cut = np.full(len(axis_of), LEAF, np.int32), np.zeros(len(axis_of), np.int32)
    for number, (axis, start) in enumerate(zip(axes, starts, strict=True)):
        here = axis_of == number
        feature[here], cut[here] = axis.feature, start[group[here]]
    sizes = [len(tree.axis) for tree in trees]
    forest = build_forest(sizes, feature, cut, np.where(feature == LEAF, 0, 2), tables)
    return forest, np.concatenate([tree.values for tree in trees])


@dataclass(frozen=True, eq=False)
class RightAnswers:
    """Count the rows whose class is predicted where fine cells have each of ``weights``; a row adds 0 or 1 to each."""

    columns: Sequence[CellColumn]
    grown: GrownModel
    weights: tuple[float, ...]

    def __call__(self, rows: ScoredRows) -> Ints:
        """Return a number for each weight."""
        codes = np.column_stack([column.starts[rows.cells[column.feature]] for column in self.columns])
        theirs = shares_of(self.grown, codes.astype(np.uint16))
        ours = probabilities(rows.scores / SCORE_UNITS)
        mixed = [(1 - weight) * ours + weight * theirs for weight in self.weights]
        return np.array([int((shares.argmax(axis=1) == rows.target).sum()) for shares in mixed], np.int64)
