# SPDX-License-Identifier: Apache-2.0
"""Routing and counting: leaf totals for training, sums of leaf values for prediction.

If numba is installed, ``kernels`` does the work, on threads that each own some trees or rows. The NumPy versions here,
and a GPU in use, give identical results. Leaf totals are exact and private: only the release door may receive them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from veilwood.arrays import HAVE_NUMBA, Codes, Floats, Int32s, Ints, run_on_threads
from veilwood.data import counts
from veilwood.data.batches import Batch, Source
from veilwood.trees.forest import LEAF, Forest


def tree_rule(
    forest: Forest,
    tree: int,
    n_codes: Sequence[int],
    columns: Sequence[int] | None = None,
    rule_of_leaf: Callable[[int], counts.CellRule] = int,
) -> counts.CellRule:
    """Return the rule that maps a row to its leaf in a tree, or to the rule ``rule_of_leaf`` of its leaf.

    ``columns`` gives the column of each feature, if the forest is over a subset of the columns.
    """

    def rule_below(node: int) -> counts.CellRule:
        feature, child, cut = int(forest.feature[node]), int(forest.child[node]), int(forest.cut[node])
        if feature == LEAF:
            return rule_of_leaf(child)
        column = feature if columns is None else columns[feature]
        if cut == 0:
            return rule_below(child + 1)
        if cut > 0:
            return counts.Split(column, (0, cut), (rule_below(child), rule_below(child + 1)))
        branches = forest.lookup[-1 - cut : -1 - cut + n_codes[column]]
        return counts.split_by_code(column, branches, lambda branch: rule_below(child + branch))

    return rule_below(int(forest.roots[tree]))


def leaf_queries(
    forest: Forest,
    n_codes: Sequence[int],
    columns: Sequence[int] | None = None,
    extra_rules: Sequence[counts.CellRule] = (),
) -> list[counts.CellQuery]:
    """Return one query per tree, whose cells are its leaves. ``extra_rules`` may exclude rows."""
    return [
        counts.CellQuery((tree_rule(forest, tree, n_codes, columns), -start, *extra_rules), end - start)
        for tree, (start, end) in enumerate(pairwise(forest.tree_leaves.tolist()))
    ]


class Accelerator(Protocol):
    """Device that does the work of this module and returns the same integers and sums (``veilwood_engines.gpu``)."""

    def leaf_totals(self, forest: Forest, rows: Iterable[Any], *, n_classes: int | None, target_levels: int) -> Ints:
        """Return the result of ``counting.leaf_totals`` for triples (codes, target, tree of each row or None)."""

    def sum_over_trees(self, forest: Forest, codes: Codes, leaf_values: Floats) -> Floats:
        """Return the result of ``counting.sum_over_trees``."""

    def make_backend(self, columns: Sequence[Any], source: Source, n_outputs: int) -> counts.RowBackend:
        """Return a backend with rows and scores in the memory of the device."""


ACCELERATOR: ContextVar[Accelerator | None] = ContextVar("accelerator", default=None)
"""Device in use, if any. Set by ``veilwood_engines.gpu.use``, so that the core imports no engine."""


_KEYSTREAM_ROWS = 4096  # rows that one call of the keyed function assigns to trees


class Assignment(NamedTuple):
    """Assignment of each row to one tree, by a keyed function of its position (Bojarski et al., disjoint trees).

    Notes
    -----
    Guarantee

    The trees of different rows are independent and do not depend on any row's value or on the number of rows, so a
    forest on disjoint rows is as private as one tree (proofs/disjoint-trees.md, attacked by
    packages/veilwood-audit/tests/test_audit.py::test_shuffle_and_cut_is_caught).
    """

    key: bytes
    n_trees: int

    def __repr__(self) -> str:
        """Return a text without the key, because workers of a cluster log the arguments of failed calls."""
        return f"Assignment(to {self.n_trees} trees)"

    def trees_of_rows(self, partition: int, first_row: int, n_rows: int) -> Int32s:
        """Return the tree of rows ``first_row`` up to ``first_row + n_rows`` of a partition."""
        first_block = first_row // _KEYSTREAM_ROWS
        last_block = (first_row + max(n_rows, 1) - 1) // _KEYSTREAM_ROWS
        stream = b"".join(
            hashlib.shake_256(self.key + partition.to_bytes(8, "big") + block.to_bytes(8, "big")).digest(
                4 * _KEYSTREAM_ROWS
            )
            for block in range(first_block, last_block + 1)
        )
        random_integers = np.frombuffer(stream, "<u4").astype(np.uint64)
        start = first_row - first_block * _KEYSTREAM_ROWS
        # Multiply-shift is uniform up to n_trees / 2^32. Any fixed distribution that ignores the data would be private.
        return ((random_integers[start : start + n_rows] * np.uint64(self.n_trees)) >> np.uint64(32)).astype(np.int32)


class ColumnAssignment(NamedTuple):
    """Assignment of each row to one tree by a column of the table: the same tree in every release of a series.

    The custodian fills the column with a key that this library never receives (proofs/release-series.md). The tree of a
    row depends on no other row, and privacy requires nothing more.
    """

    column: int
    n_trees: int


def leaf_totals(
    forest: Forest,
    batches: Iterable[Batch],
    *,
    n_classes: int | None,
    target_levels: int = 1,
    assignment: Assignment | ColumnAssignment | None = None,
    n_jobs: int | None = 1,
    fast: bool = HAVE_NUMBA,
) -> Ints:
    """Return the number of rows of each class per leaf, or the rotated pair of sums for regression.

    Parameters
    ----------
    forest : Forest
        Public structure.
    batches : iterable of Batch
        Encoded rows with their targets.
    n_classes : int or None
        Number of classes, or None for regression. A target y in 0..target_levels then adds y to the first column and
        target_levels - y to the second (the rotated pair, proofs/rotated-pair.md).
    assignment : Assignment, optional
        Counts each row in one tree only.
    fast : bool
        Use the compiled kernel. NumPy gives the same integers.

    Returns
    -------
    ndarray of int64, shape (n_leaves, n_classes or 2)
        Exact, hence private.
    """
    rows = ((batch.codes, batch.target, _assigned_trees(batch, assignment)) for batch in batches)
    if (accelerator := ACCELERATOR.get()) is not None:
        return accelerator.leaf_totals(forest, rows, n_classes=n_classes, target_levels=target_levels)
    totals = np.zeros((forest.n_leaves, n_classes or 2), np.int64)
    if fast:
        forest.precompute()
    for codes, classes, own in rows:
        target = np.ascontiguousarray(classes, np.int32)
        if fast:
            add = _fast_adder(forest, codes, target, own, 0 if n_classes else target_levels, totals)
            run_on_threads(add, forest.n_trees, n_jobs, rows=len(target))
        else:
            _numpy_add(forest, codes, target, own, n_classes, target_levels, totals)
    return totals


@dataclass(frozen=True, eq=False, repr=False)
class LeafCount:
    """Count of the rows in the leaves of a forest. Databases can also run it, as cell queries."""

    forest: Forest
    n_classes: int | None
    target_levels: int = 1
    assignment: Assignment | ColumnAssignment | None = None

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Ints:
        """Return the totals of these batches."""
        return leaf_totals(
            self.forest, batches, n_classes=self.n_classes, target_levels=self.target_levels,
            assignment=self.assignment, n_jobs=n_jobs,
        )  # fmt: skip

    def via_cell_queries(self, run_queries: counts.RunCellQueries, n_codes: Sequence[int]) -> Ints:
        """Return the totals from cell queries: one per tree, or a single one if each row is in one tree."""
        forest = self.forest
        sums: Any = "classes" if self.n_classes else "pair"
        if self.assignment is not None:
            trees = tuple(tree_rule(forest, tree, n_codes) for tree in range(forest.n_trees))
            if isinstance(self.assignment, ColumnAssignment):
                column, keyed = self.assignment.column, None
            else:
                column, keyed = counts.ROW_HASH, counts.KeyedRowHash(self.assignment.key, forest.n_trees)
            own = counts.Split(column, tuple(range(forest.n_trees)), trees)
            (totals,) = run_queries([counts.CellQuery((own,), forest.n_leaves)], sums, keyed)
            return totals
        return np.concatenate(run_queries(leaf_queries(forest, n_codes), sums))


def _fast_adder(
    forest: Forest, codes: Codes, target: Int32s, owner_of_rows: Int32s | None, levels: int, totals: Ints
) -> Callable[[int, int], None]:
    """Return the kernel call: by column if each row is in all trees and these are small, otherwise by row."""
    from veilwood import kernels

    ends = np.append(forest.roots[1:], forest.n_nodes)
    if owner_of_rows is not None or (ends - forest.roots).max() > kernels.MAX_SWEPT_NODES:
        owner = kernels.NO_OWNER if owner_of_rows is None else owner_of_rows
        return partial(
            kernels.add_rows_to_leaves,
            *_kernel_arrays(forest),
            np.ascontiguousarray(codes),
            target,
            owner,
            levels,
            totals,
        )
    columns = np.ascontiguousarray(codes.T)
    few = columns.max(axis=1, initial=0) < 32  # columns whose codes index the bits of one 32-bit integer
    bits = np.where(few[forest.feature], forest.lookup_bits, 0).astype(np.uint32)
    top = forest.roots + np.add.reduceat(forest.level < kernels.SWEPT_LEVELS, forest.roots).astype(np.int32)
    swept = min(kernels.SWEPT_LEVELS, forest.depth)
    return partial(
        kernels.add_columns_to_leaves, *_kernel_arrays(forest), top, swept, bits, columns, target, levels, totals
    )


def _assigned_trees(batch: Batch, assignment: Assignment | ColumnAssignment | None) -> Int32s | None:
    """Return the tree of each row, or None if every tree counts it."""
    if isinstance(assignment, ColumnAssignment):
        return batch.codes[:, assignment.column].astype(np.int32)
    return None if assignment is None else assignment.trees_of_rows(batch.partition, batch.first_row, len(batch.target))


def route_rows(forest: Forest, codes: Codes) -> Int32s:
    """Return the leaf of each row in each tree, shape (n_rows, n_trees): the NumPy walk, level by level.

    >>> from veilwood.data.encoding import EncodedColumn
    >>> from veilwood.trees.random import grow_multiway
    >>> row_bucket = EncodedColumn("row_bucket", ordered=False, n_codes=2, missing_code=None)
    >>> route_rows(grow_multiway([row_bucket], 1, 1, 0), np.array([[0], [1]], np.uint16)).ravel().tolist()
    [0, 1]
    """
    rows = np.arange(len(codes))[:, None]
    node = np.broadcast_to(forest.roots, (len(codes), forest.n_trees)).copy()
    while True:
        feature = forest.feature[node]
        inner = feature != LEAF
        if not inner.any():
            return forest.child[node]
        code = codes[rows, np.where(inner, feature, 0)].astype(np.int64)
        cut = forest.cut[node]
        branch = np.where(cut < 0, forest.lookup[np.where(cut < 0, -1 - cut + code, 0)], code >= cut)
        node = np.where(inner, forest.child[node] + branch, node)


def sum_over_trees(
    forest: Forest,
    codes: Codes,
    leaf_values: Floats,
    *,
    n_jobs: int | None = None,
    fast: bool = HAVE_NUMBA,
) -> Floats:
    """Return, for each row, the sum over trees of the values at its leaves, shape (n_rows, n_values)."""
    if (accelerator := ACCELERATOR.get()) is not None:
        return accelerator.sum_over_trees(forest, codes, leaf_values)
    sums = np.zeros((len(codes), leaf_values.shape[1]))
    codes = np.ascontiguousarray(codes)
    values = np.ascontiguousarray(leaf_values, np.float64)
    if fast:
        from veilwood import kernels

        run_on_threads(
            partial(kernels.sum_leaf_values, *_kernel_arrays(forest), codes, values, sums),
            len(codes),
            n_jobs,
            rows=len(codes),
        )
        return sums
    for first in range(0, len(codes), 4096):
        leaves = route_rows(forest, codes[first : first + 4096])
        for tree in range(forest.n_trees):  # tree by tree, like the kernel, for equal rounding
            sums[first : first + 4096] += values[leaves[:, tree]]
    return sums


def _numpy_add(
    forest: Forest,
    codes: Codes,
    target: Int32s,
    owner_of_rows: Int32s | None,
    n_classes: int | None,
    levels: int,
    totals: Ints,
) -> None:
    leaves = route_rows(forest, codes)
    tree = slice(None) if owner_of_rows is None else owner_of_rows[:, None] == np.arange(forest.n_trees)
    leaf = leaves[tree].ravel()
    repeated = np.broadcast_to(target[:, None], leaves.shape)[tree].ravel()
    if n_classes:
        np.add.at(totals, (leaf, repeated), 1)
    else:
        np.add.at(totals[:, 0], leaf, repeated)
        np.add.at(totals[:, 1], leaf, levels - repeated)


def _kernel_arrays(forest: Forest) -> tuple[Any, ...]:
    return forest.packed_nodes, forest.roots, forest.depth, forest.lookup
