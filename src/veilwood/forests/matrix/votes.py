# SPDX-License-Identifier: Apache-2.0
"""The votes that a batch of public queries asks of a forest, out of cells or out of leaves.

Letters are those of ``workloads``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from veilwood.errors import MechanismError, OutOfSchemaError
from veilwood.forests.matrix.workloads import (
    CHUNK,
    Floats,
    Ints,
    Marginal,
    PathWorkload,
    Workload,
    features_of,
    first_seen,
    subsets,
)

__all__ = ["LeafVoteWorkload", "VoteWorkload"]


class VoteWorkload(Workload):
    """Weighted votes out of cells, Q T' T: for each queried point the sum of the leaves it reaches.

    Parameters
    ----------
    paths : PathWorkload
        The forest.
    reached : array_like of int, [queries, trees]
        The leaf each queried point reaches in each tree. Public: never derive it from private data.
    """

    def __init__(self, paths: PathWorkload, reached: ArrayLike) -> None:
        self.paths = paths
        self.reached = _check_reached(reached, paths.n_queries)
        self.sizes, self.maps, self.shape = paths.sizes, paths.maps, paths.shape
        self.n_queries = len(self.reached)

    def _traces(self) -> dict[int, float]:
        """Trace g_R of W' W on each residual space R."""
        return self._traces_of_paths() if self.paths.single_valued else self._traces_of_rows()

    def _traces_of_paths(self) -> dict[int, float]:
        """One value per fixed feature: paths of a query over the same features are the same query."""
        n_groups = len(self.paths.groups)
        group_of_leaf = np.empty(self.paths.n_queries, np.int64)
        for place, group in enumerate(self.paths.groups):
            group_of_leaf[group.leaves] = place
        flat = np.arange(self.n_queries)[:, None] * n_groups + group_of_leaf[self.reached]
        paths = np.bincount(flat.ravel(), minlength=self.n_queries * n_groups).reshape(self.n_queries, -1)
        at: dict[int, int] = {}
        entries: list[tuple[int, int, float]] = []
        for place, group in enumerate(self.paths.groups):
            for mask in subsets(group.features):
                inner = 1 / math.prod(self.shape[i] for i in group.features if not mask >> i & 1)
                entries.append((place, at.setdefault(mask, len(at)), inner))
        where = np.array([entry[:2] for entry in entries]).T
        inside = sparse.csr_array(([entry[2] for entry in entries], (where[0], where[1])), (n_groups, len(at)))
        weight = np.zeros(len(at))
        step = max(1, CHUNK // len(at))
        for start in range(0, self.n_queries, step):
            weight += ((paths[start : start + step] @ inside) ** 2).sum(axis=0)
        scale = {mask: math.prod((1 - 1 / n) / n for n in (self.shape[i] for i in features_of(mask))) for mask in at}
        return {mask: float(weight[place]) * self.n_cells * scale[mask] for mask, place in at.items()}

    def _traces_of_rows(self) -> dict[int, float]:
        """Sets of values: split the explicit rows feature by feature into mean and rest."""
        parts = {0: self.dense(merged=True).reshape(self.n_queries, *self.shape)}
        for i, size in enumerate(self.shape):
            split = {}
            for mask, part in parts.items():
                mean = part.mean(axis=1 + i, keepdims=True)
                split[mask] = mean * math.sqrt(size)  # keeps the norm: the mean stands for `size` equal entries
                split[mask | 1 << i] = part - mean
            parts = split
        return {mask: float((part**2).sum()) for mask, part in parts.items()}

    def answer(self, marginal: Marginal) -> Floats:
        """Votes [queries, k] out of marginal tables."""
        leaves = self.paths.answer(marginal)
        answers = np.zeros((self.n_queries, leaves.shape[1]))
        for tree in range(self.reached.shape[1]):
            answers += leaves[self.reached[:, tree]]
        return answers

    def rows(self, *, merged: bool) -> Iterator[Floats]:
        """The rows of Q T' T, all at once."""
        query = np.repeat(np.arange(self.n_queries), self.reached.shape[1])
        shape = (self.n_queries, self.paths.n_queries)
        reaches: Any = sparse.csc_array((np.ones(len(query)), (query, self.reached.ravel())), shape)
        total, start = np.zeros((self.n_queries, math.prod(self.shape if merged else self.sizes))), 0
        for chunk in self.paths.rows(merged=merged):
            total += reaches[:, start : start + len(chunk)] @ chunk
            start += len(chunk)
        yield total


class LeafVoteWorkload(Workload):
    """Votes out of leaves, Q T': for each queried point the sum over its leaves, each leaf its own count.

    For trees grown on disjoint records (subsample-and-aggregate) the table is indexed by leaf, one feature with
    as many values as the forest has leaves. Leaves reached by the same points are merged; leaves reached by none
    are not measured at all.

    Parameters
    ----------
    n_leaves : int
        Leaves in the forest.
    reached : array_like of int, [queries, trees]
        The leaf each queried point reaches in each tree. Public: never derive it from private data.
    merge : bool
        Whether to merge and drop leaves (always better; False is for baselines).
    """

    def __init__(self, n_leaves: int, reached: ArrayLike, *, merge: bool = True) -> None:
        self.reached = _check_reached(reached, n_leaves)
        self.n_queries = len(self.reached)
        self.sizes = (int(n_leaves),)
        to = np.arange(n_leaves)
        if merge:
            used, place = np.unique(self.reached, return_inverse=True)
            queries = np.zeros((len(used), self.n_queries), bool)
            queries[place.reshape(self.reached.shape), np.arange(self.n_queries)[:, None]] = True
            to = np.full(n_leaves, -1)
            to[used] = first_seen(queries)
        self.maps = (to,)
        self.shape = (int(to.max()) + 1,)

    def _matrix(self, columns: int, of: Ints) -> Any:
        """The sparse matrix with one column per value of ``of``; merged leaves are answered by one column."""
        row = np.repeat(np.arange(self.n_queries), self.reached.shape[1])
        column = of[self.reached.ravel()]
        matrix = sparse.csr_array((np.ones(len(row)), (row, column)), (self.n_queries, columns))
        matrix.data = np.minimum(matrix.data, 1.0)
        return matrix

    @property
    def matrix(self) -> Any:
        """The sparse matrix on the merged leaves."""
        return self._matrix(self.shape[0], self.maps[0])

    def _traces(self) -> dict[int, float]:
        """Trace on the total and on what is left of it."""
        matrix = self.matrix
        total = float((np.asarray(matrix.sum(axis=1)) ** 2).sum() / self.shape[0])
        return {0: total, 1: float((matrix.data**2).sum()) - total}

    def answer(self, marginal: Marginal) -> Floats:
        """Votes [queries, k] out of the table of (merged) leaves."""
        answers: Floats = self.matrix @ marginal((0,))
        return answers

    def rows(self, *, merged: bool) -> Iterator[Floats]:
        """The rows of Q T', all at once."""
        yield (self.matrix if merged else self._matrix(self.sizes[0], np.arange(self.sizes[0]))).toarray()


def _check_reached(reached: ArrayLike, n_leaves: int) -> Ints:
    table = np.asarray(reached, np.int64)
    if table.ndim != 2 or not table.size:
        raise MechanismError(f"reached has shape {table.shape}. Hint: [queries, trees], at least one of each.")
    if table.min() < 0 or table.max() >= n_leaves:
        raise OutOfSchemaError(f"reached names a leaf outside 0 to {n_leaves - 1}.", value=int(table.max()))
    if (np.diff(np.sort(table, axis=1), axis=1) == 0).any():
        raise MechanismError(
            "reached names a leaf twice for one query. Hint: leaves of all trees are numbered in one row."
        )
    return table
