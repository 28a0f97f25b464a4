# SPDX-License-Identifier: Apache-2.0
"""An ordinary forest, grown by scikit-learn from cells that came out, and written as one of ours.

Everything here is computed from what was released: which kind of forest, how large its leaves, how it is judged.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from joblib import cpu_count, effective_n_jobs
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from veilwood.fine_cells import MOST_KEPT, FineCells
from veilwood.progress import track
from veilwood.structure import LEAF, Forest
from veilwood.table_trees import Axis

TREES, FEWEST_TREES = 60, 10
JUDGED_TREES: Final = 20  # of each candidate
MOST_ROWS, FEWEST_ROWS = 1 << 16, 1 << 13  # that a tree sees, drawn with replacement from a larger table
MANY_CLASSES: Final = 8  # beyond which trees are fewer and see less: each leaf holds a number for every class
FOLDS: Final = 5
ONE_FOLD_FROM: Final = 10_000  # rows, from which one fold judges well enough,
MOST_JUDGED: Final = 1 << 17  # and so many rows at most

Floats = NDArray[np.float64]


class Candidate(NamedTuple):
    """A kind of forest: thresholds by chance or the best ones, columns tried at a node, rows in a leaf."""

    extra: bool
    max_features: float | None
    min_samples_leaf: int


CANDIDATES: Final = (
    Candidate(True, None, 1),
    Candidate(True, None, 4),
    Candidate(False, 0.4, 2),
    Candidate(False, 0.4, 20),
    Candidate(False, 0.4, 80),
)


class Grown(NamedTuple):
    """A forest, and what each of its leaves adds to the shares of classes."""

    forest: Forest
    values: Floats


def n_trees(n_classes: int) -> int:
    """How many trees a forest has."""
    return max(TREES * MANY_CLASSES // max(n_classes, MANY_CLASSES), FEWEST_TREES)


def _rows_per_tree(n_classes: int) -> int:
    return max(MOST_ROWS * MANY_CLASSES // max(n_classes, MANY_CLASSES), FEWEST_ROWS)


def most_leaves(n_classes: int) -> int:
    """How many leaves a forest can have."""
    return n_trees(n_classes) * _rows_per_tree(n_classes)


def grow(cells: FineCells, n_classes: int, rng: np.random.Generator, n_jobs: int | None) -> Grown:
    """Grow the kind of forest that predicts rows best that it was not grown from."""
    if not len(cells.weight):  # nothing came out: nothing is known
        return Grown(*_joined([_single_leaf(np.full(n_classes, 1 / n_classes))], cells.axes))
    row = _as_rows(cells.weight, rng)
    X = cells.groups[row].astype(np.float32) if cells.axes else np.zeros((len(row), 1), np.float32)
    y = cells.label[row]
    seeds = rng.integers(0, 2**31 - 1, 2)
    with warnings.catch_warnings():  # scikit-learn wonders at many classes in few rows
        warnings.simplefilter("ignore", UserWarning)
        losses = [
            _loss(candidate, X, y, n_classes, int(seeds[0]), n_jobs)
            for candidate in track(CANDIDATES, "choosing a forest")
        ]
        best = CANDIDATES[int(np.argmin(losses))]
        fitted = _forest(best, n_trees(n_classes), len(y), n_classes, int(seeds[1]), n_jobs).fit(X, y)
    trees = [_tree(one.tree_, fitted.classes_, n_classes) for one in fitted.estimators_]
    forest, values = _joined(trees, cells.axes)
    return Grown(forest, values / len(trees))


def _as_rows(weight: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Repeat cells as often as they were counted, so that folds and leaves are of rows; of very many draw some."""
    ends = np.cumsum(weight)
    if ends[-1] <= MOST_KEPT:
        return np.repeat(np.arange(len(weight)), weight)
    return np.sort(np.searchsorted(ends, rng.integers(0, ends[-1], MOST_KEPT), side="right"))


def _forest(candidate: Candidate, trees: int, n_rows: int, n_classes: int, seed: int, n_jobs: int | None) -> Any:
    kind = ExtraTreesClassifier if candidate.extra else RandomForestClassifier
    most = _rows_per_tree(n_classes)
    return kind(
        trees, max_features=candidate.max_features, min_samples_leaf=candidate.min_samples_leaf, random_state=seed,
        bootstrap=n_rows > most or not candidate.extra, max_samples=most if n_rows > most else None,
        n_jobs=min(effective_n_jobs(n_jobs), cpu_count(), trees),
    )  # fmt: skip


def _loss(
    candidate: Candidate, X: NDArray[np.float32], y: NDArray[Any], n_classes: int, seed: int, n_jobs: int | None
) -> float:
    """Squared error of class shares on folds that were left out."""
    order = np.random.default_rng(seed).permutation(len(y))[:MOST_JUDGED]
    fold = np.arange(len(order)) % FOLDS
    total = 0.0
    for number in range(1 if len(order) >= ONE_FOLD_FROM else min(FOLDS, len(order))):
        out, rest = order[fold == number], order[fold != number]
        if not len(rest):
            continue
        fitted = _forest(candidate, JUDGED_TREES, len(rest), n_classes, seed, n_jobs).fit(X[rest], y[rest])
        shares = np.zeros((len(out), n_classes))
        shares[:, fitted.classes_] = fitted.predict_proba(X[out])
        shares[np.arange(len(shares)), y[out]] -= 1.0
        total += float((shares**2).sum())
    return total


# -- one of scikit-learn's trees as one of ours ----------------------------------------------------------------


class _Tree(NamedTuple):
    """A tree in level order: axis (or LEAF) and first group on the right, first child (or leaf), values of leaves."""

    axis: NDArray[np.int64]
    group: NDArray[np.int64]
    child: NDArray[np.int64]
    values: Floats


def _single_leaf(value: Floats) -> _Tree:
    nothing = np.zeros(1, np.int64)
    return _Tree(np.full(1, LEAF, np.int64), nothing, nothing, value[None])


def _tree(tree: Any, classes: NDArray[np.int64], n_classes: int) -> _Tree:
    """Number the nodes level by level, siblings side by side."""
    order = np.concatenate(list(_levels(tree.children_left, tree.children_right)))
    leaf = tree.children_left[order] < 0
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    child = np.where(leaf, np.cumsum(leaf) - 1, place[tree.children_left[order]])
    values = tree.value[order[leaf], 0, :]
    shares = np.zeros((len(values), n_classes))
    shares[:, classes] = values / values.sum(axis=1, keepdims=True)
    group = np.floor(tree.threshold[order]).astype(np.int64) + 1
    return _Tree(np.where(leaf, LEAF, tree.feature[order]).astype(np.int64), group, child, shares)


def _levels(left: NDArray[np.int64], right: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    level = np.zeros(1, np.int64)
    while len(level):
        yield level
        inner = level[left[level] >= 0]
        level = np.stack([left[inner], right[inner]], axis=1).ravel()


def _joined(trees: Sequence[_Tree], axes: Sequence[Axis]) -> tuple[Forest, Floats]:
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
    n_nodes = np.cumsum([0, *(len(tree.axis) for tree in trees)])
    n_leaves = np.cumsum([0, *(len(tree.values) for tree in trees)])
    axis_of = np.concatenate([tree.axis for tree in trees])
    group = np.concatenate([tree.group for tree in trees])
    child = [tree.child + np.where(tree.axis == LEAF, leaves, nodes)
             for tree, nodes, leaves in zip(trees, n_nodes, n_leaves, strict=False)]  # fmt: skip
    feature, cut = np.full(len(axis_of), LEAF), np.zeros(len(axis_of), np.int64)
    for number, (axis, start) in enumerate(zip(axes, starts, strict=True)):
        here = axis_of == number
        feature[here], cut[here] = axis.feature, start[group[here]]
    forest = Forest(
        roots=n_nodes[:-1].astype(np.int32),
        feature=feature.astype(np.int32),
        cut=cut.astype(np.int32),
        child=np.concatenate(child).astype(np.int32),
        lookup=np.concatenate([*tables, np.zeros(1, np.uint16)]),
        tree_leaves=n_leaves.astype(np.int32),
    )
    return forest, np.concatenate([tree.values for tree in trees])
