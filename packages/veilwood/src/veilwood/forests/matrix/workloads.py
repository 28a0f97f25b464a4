# SPDX-License-Identifier: Apache-2.0
"""Workloads: the linear queries of a forest over a table, as products over features instead of explicit matrices.

``strategies`` measures a table to answer these queries, and ``search`` finds the measurements with the least error.

Letters, as in the paper on matrix random forests (Tajima, Wu, Houmansadr, AAAI 2025):

======  ==================  =======================================================================
letter  name                meaning
======  ==================  =======================================================================
n_i     size of a feature   how many values feature i can take
n       domain size         product of the n_i: the cells of the table
D       data                n x k table of counts, one column per class
T       decision paths      one 0/1 row per leaf of the forest: which cells reach it; leaves are T D
Q       queries             one 0/1 row per point to predict: which cell it is
W       workload            the queries: T, Q T' (votes from leaves) or Q T' T (votes from cells)
F       path                the features a leaf fixes
R       residual space      tables over the features R whose sum along any of them is zero
g_R     residual trace      trace of W' W on the residual space R
m_i     kept values         how many of the n_i values of feature i a leaf keeps
======  ==================  =======================================================================

Values of a feature that no path separates are merged first: the queries do not depend on the difference, so measuring
them separately would only add noise. A set of features is a bit mask (bit i: feature i).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy import sparse

from veilwood.arrays import ArrayLike, Bools, Floats, Int32s, Ints, NDArray
from veilwood.errors import DomainTooLargeError, MechanismError, OutOfSchemaError
from veilwood.trees.forest import Forest, leaf_masks

Marginal = Callable[[tuple[int, ...]], Floats]

_MAX_ENTRIES = 1 << 26  # of an explicit matrix: half a gigabyte of float64
_MAX_FEATURES = 62  # a set of features is a bit mask in an int64
CHUNK_ENTRIES = 1 << 22  # entries of a temporary array


def features_of(mask: int) -> tuple[int, ...]:
    """Return the features of a bit mask, in order.

    Examples
    --------
    >>> features_of(0b1011)
    (0, 1, 3)
    """
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


class Workload(ABC):
    """A set of linear queries over a product domain, one row each.

    Attributes
    ----------
    sizes : tuple of int
        Number of values of each feature, as the caller encodes them.
    maps : tuple of int64 arrays
        For each feature, the merged value of each value; -1 if no query depends on it.
    shape : tuple of int
        Number of merged values of each feature: the domain of strategies.
    n_queries : int
        Number of rows.
    """

    sizes: tuple[int, ...]
    maps: tuple[Ints, ...]
    shape: tuple[int, ...]
    n_queries: int

    @property
    def n_cells(self) -> int:
        """Cells of the merged domain."""
        return math.prod(self.shape)

    @cached_property
    def residual_traces(self) -> dict[int, float]:
        """The trace g_R of W' W on each residual space R that some query depends on, by bit mask."""
        return self._compute_traces()

    @cached_property
    def found_strategies(self) -> dict[Any, list[Any]]:
        """Cache of the candidate strategies of this workload, by the settings of the search."""
        return {}

    @abstractmethod
    def _compute_traces(self) -> dict[int, float]:
        """Compute the residual traces."""

    @abstractmethod
    def answer_marginals(self, marginal: Marginal) -> Floats:
        """Return answers [n_queries, k] from merged marginal tables: ``marginal(features)`` is [sizes..., k]."""

    @abstractmethod
    def iter_rows(self, *, merged: bool) -> Iterator[Floats]:
        """Iterate over the rows of the matrix in chunks."""

    def answer_cells(self, cells: Floats) -> Floats:
        """Return answers [n_queries, k] from a table [*shape, k] of all merged cells: the product W D."""
        d = len(self.shape)
        return self.answer_marginals(lambda kept: cells.sum(axis=tuple(i for i in range(d) if i not in kept)))

    def to_dense(self, *, merged: bool = False) -> Floats:
        """Return the explicit matrix W, with one column per cell or per merged cell. Small domains only."""
        columns = math.prod(self.shape if merged else self.sizes)
        if self.n_queries * columns > _MAX_ENTRIES:
            raise DomainTooLargeError(
                f"an explicit matrix of {self.n_queries} queries x {columns} cells is too large "
                f"(limit {_MAX_ENTRIES} entries). Hint: use a strategy of weighted marginals, which needs none."
            )
        return np.concatenate(list(self.iter_rows(merged=merged)))

    def gram_matrix(self) -> Floats:
        """Return the matrix W' W on the merged domain. Small domains only."""
        if self.n_cells**2 > _MAX_ENTRIES:
            raise DomainTooLargeError(
                f"an explicit matrix of {self.n_cells} x {self.n_cells} cells is too large "
                f"(limit {_MAX_ENTRIES} entries). Hint: use a strategy of weighted marginals, which needs none."
            )
        total = np.zeros((self.n_cells, self.n_cells))
        for chunk in self.iter_rows(merged=True):
            total += chunk.T @ chunk
        return total


@dataclass(frozen=True)
class _PathGroup:
    """Leaves that fix the same features, with the index of each leaf's set of values per feature."""

    features: tuple[int, ...]
    set_numbers: NDArray[np.integer[Any]]  # [leaves, features]: row of the feature's dictionary
    leaves: Ints


class PathWorkload(Workload):
    """Decision paths T of a forest: one query per leaf, the count of the rows that reach it.

    Built by :meth:`from_leaves` (one value per fixed feature) or :meth:`from_masks` (a set of values per feature).

    Examples
    --------
    Two features of 3 and 2 values; one tree that splits on the first feature only.

    >>> T = PathWorkload.from_leaves((3, 2), [[0], [0], [0]], [[0], [1], [2]])
    >>> T.to_dense().astype(int)
    array([[1, 1, 0, 0, 0, 0],
           [0, 0, 1, 1, 0, 0],
           [0, 0, 0, 0, 1, 1]])
    >>> T.shape    # no path depends on the second feature
    (3, 1)
    """

    def __init__(
        self,
        sizes: Sequence[int],
        kept_sets: Sequence[Bools],
        set_numbers: NDArray[np.integer[Any]],
        *,
        merge: bool = True,
        forest: Forest | None = None,
    ) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self.n_queries = len(set_numbers)
        self.forest = forest
        used = [sets[np.bincount(set_numbers[:, i], minlength=len(sets)) > 0] for i, sets in enumerate(kept_sets)]
        self.maps = tuple(first_seen(sets.T) if merge else np.arange(sets.shape[1]) for sets in used)
        self.shape = tuple(int(to.max()) + 1 for to in self.maps)
        self.kept_sets = tuple(kept_sets[i][:, np.unique(to, return_index=True)[1]] for i, to in enumerate(self.maps))
        self.groups = tuple(_group_paths(kept_sets, set_numbers))
        single = [sets.sum(axis=1) == 1 for sets in self.kept_sets]
        self.single_valued = all(
            single[i][group.set_numbers[:, j]].all() for group in self.groups for j, i in enumerate(group.features)
        )

    @classmethod
    def from_leaves(
        cls, sizes: Sequence[int], leaf_features: ArrayLike, leaf_values: ArrayLike, *, merge: bool = True
    ) -> Self:
        """Return the workload of the leaves of multiway trees.

        Parameters
        ----------
        sizes : sequence of int
            Number of values of each feature.
        leaf_features, leaf_values : array_like of int, [leaves, depth]
            Features that each leaf fixes (-1: unused) and the value of each.
        merge : bool
            Whether to merge values that no path separates (always better; False is for baselines).
        """
        features, values = np.asarray(leaf_features, np.int64), np.asarray(leaf_values, np.int64)
        _check_leaves(sizes, features, values)
        fixed = np.full((len(features), len(sizes)), -1, np.int32)
        leaf, place = np.nonzero(features >= 0)
        fixed[leaf, features[leaf, place]] = values[leaf, place]
        return cls._from_fixed(sizes, fixed, merge=merge)

    @classmethod
    def _from_fixed(cls, sizes: Sequence[int], fixed: Int32s, **more: Any) -> Self:
        """Return the workload of leaves, given the value of each fixed feature, or -1. Overwrites ``fixed``."""
        np.copyto(fixed, np.asarray(sizes, np.int32), where=fixed < 0)  # the last row of a dictionary keeps every value
        kept = [np.vstack([np.eye(size, dtype=bool), np.ones((1, size), bool)]) for size in sizes]
        return cls(sizes, kept, fixed, **more)

    @classmethod
    def from_forest(cls, sizes: Sequence[int], forest: Forest, *, multiway: bool) -> Self:
        """Return the workload of a forest's leaves. Strategies can then measure leaves of trees directly.

        Parameters
        ----------
        sizes : sequence of int
            Number of values of each feature.
        forest : Forest
            Its trees.
        multiway : bool
            Whether each branch of a split is one value of the feature, so that no sets of values are needed.
        """
        _check_sizes(sizes)
        if not multiway:
            return cls.from_masks(sizes, leaf_masks(forest, sizes), forest=forest)
        fixed = np.full((forest.n_nodes, len(sizes)), -1, np.int32)
        for depth in range(1, forest.depth + 1):
            nodes = np.flatnonzero(forest.level == depth)
            parent = forest.parent[nodes]
            fixed[nodes] = fixed[parent]
            fixed[nodes, forest.feature[parent]] = nodes - forest.child[parent]
        return cls._from_fixed(sizes, fixed[forest.leaf_node], forest=forest)

    @classmethod
    def from_masks(
        cls, sizes: Sequence[int], masks: ArrayLike, *, merge: bool = True, forest: Forest | None = None
    ) -> Self:
        """Return the workload of any leaves; boolean ``masks`` [leaves, sum of sizes] select each leaf's values."""
        table = np.asarray(masks, bool)
        _check_sizes(sizes)
        if table.ndim != 2 or table.shape[1] != sum(sizes) or not len(table):
            raise MechanismError(
                f"masks has shape {table.shape}, sizes {tuple(sizes)}. "
                f"Hint: pass one row per leaf and one column per value of each feature: [leaves, {sum(sizes)}]."
            )
        kept, choices = [], []
        for part in np.split(table, np.cumsum(sizes)[:-1], axis=1):
            first, which = distinct_rows(np.packbits(part, axis=1))
            kept.append(part[first])
            choices.append(which)
        return cls(sizes, kept, np.stack(choices, axis=1), merge=merge, forest=forest)

    def _compute_traces(self) -> dict[int, float]:
        """Return the trace g_R of T' T on each residual space R, exact for any forest."""
        return dict(
            zip(self.residual_spaces.tolist(), np.asarray(self.traces_of_trees.sum(axis=0)).tolist(), strict=True)
        )

    @cached_property
    def tree_of_leaf(self) -> Ints:
        """The tree of each leaf. Without a forest, all leaves count as one tree."""
        if self.forest is None:
            return np.zeros(self.n_queries, np.int64)
        return np.repeat(np.arange(self.forest.n_trees), np.diff(self.forest.tree_leaves))

    @cached_property
    def residual_spaces(self) -> Ints:
        """Bit masks of the residual spaces on which at least one leaf depends."""
        return np.unique(np.concatenate([np.array(subset_masks(group.features), np.int64) for group in self.groups]))

    @cached_property
    def traces_of_trees(self) -> Any:
        """Sparse array of the trace of T' T per tree (row) and residual space (column)."""
        trees, places, values = [], [], []
        counted = [sets.sum(axis=1) for sets in self.kept_sets]
        n_trees = int(self.tree_of_leaf[-1]) + 1
        for group in self.groups:
            n = [self.shape[i] for i in group.features]
            tree = self.tree_of_leaf[group.leaves]
            m = [counted[i][group.set_numbers[:, j]] for j, i in enumerate(group.features)]
            first, times = _count_distinct(
                [tree, *([] if self.single_valued else m)], [n_trees, *(size + 1 for size in n)]
            )
            terms = times[:, None] * (self.n_cells / math.prod(n))
            for j, size in enumerate(n):
                kept = m[j][first]
                outside, inside = kept**2 / size, kept * (1 - kept / size)
                terms = np.concatenate([terms * outside[:, None], terms * inside[:, None]], axis=1)
            place = np.searchsorted(self.residual_spaces, subset_masks(group.features))
            trees.append(np.repeat(tree[first], len(place)))
            places.append(np.tile(place, len(first)))
            values.append(terms.ravel())
        where = np.concatenate(trees), np.concatenate(places)
        return sparse.csr_array((np.concatenate(values), where), (n_trees, len(self.residual_spaces)))

    def answer_marginals(self, marginal: Marginal) -> Floats:
        """Return leaf counts [leaves, k] from marginal tables over the paths' features."""
        parts = [self._answer_group(group, marginal(group.features)) for group in self.groups]
        answers = np.empty((self.n_queries, parts[0].shape[-1]))
        for group, part in zip(self.groups, parts, strict=True):
            answers[group.leaves] = part
        return answers

    def _answer_group(self, group: _PathGroup, table: Floats) -> Floats:
        """Return the sum of ``table`` over the values of each leaf of the group."""
        if self.single_valued:
            value = [self.kept_sets[i].argmax(axis=1) for i in group.features]
            answers: Floats = table[tuple(value[j][group.set_numbers[:, j]] for j in range(len(value)))]
            return answers
        picked = [self.kept_sets[i][group.set_numbers[:, j]] for j, i in enumerate(group.features)]
        step = max(1, CHUNK_ENTRIES // max(table.size, 1))
        parts = []
        for start in range(0, len(group.leaves), step):
            chunk = np.broadcast_to(table, (len(group.leaves[start : start + step]), *table.shape))
            for keep in picked:
                chunk = np.einsum("lv,lv...->l...", keep[start : start + step].astype(float), chunk)
            parts.append(chunk)
        return np.concatenate(parts)

    def quadratic_forms(self, matrices: Sequence[Floats]) -> list[Floats]:
        """Return v_i' M_i v_i for each feature i and leaf v. Their product over i is the leaf's variance."""
        forms = []
        for i, matrix in enumerate(matrices):
            keep = self.kept_sets[i].astype(float)
            values = np.full(self.n_queries, matrix.sum())
            by_choice = np.einsum("uv,vw,uw->u", keep, matrix, keep, optimize=True)
            for group in self.groups:
                if i in group.features:
                    values[group.leaves] = by_choice[group.set_numbers[:, group.features.index(i)]]
            forms.append(values)
        return forms

    def leaf_masks(self, i: int) -> Bools:
        """Return a mask of the merged values of feature i for each leaf: [leaves, shape[i]]."""
        masks = np.ones((self.n_queries, self.shape[i]), bool)
        for group in self.groups:
            if i in group.features:
                masks[group.leaves] = self.kept_sets[i][group.set_numbers[:, group.features.index(i)]]
        return masks

    def iter_rows(self, *, merged: bool) -> Iterator[Floats]:
        """Iterate over the rows of T in chunks."""
        masks = [self.leaf_masks(i) if merged else self.leaf_masks(i)[:, to] for i, to in enumerate(self.maps)]
        step = max(1, CHUNK_ENTRIES // math.prod(mask.shape[1] for mask in masks))
        for start in range(0, self.n_queries, step):
            chunk = np.ones((len(masks[0][start : start + step]), 1))
            for mask in masks:
                chunk = (chunk[:, :, None] * mask[start : start + step, None, :]).reshape(len(chunk), -1)
            yield chunk


def distinct_rows(rows: NDArray[np.uint8]) -> tuple[Ints, Ints]:
    """Return the first index of each distinct row of bytes, and the distinct row that each row equals."""
    keys = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1])))[:, 0]
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def first_seen(rows: Bools) -> Ints:
    """Return a number per row, equal for equal rows, in order of first appearance."""
    first, which = distinct_rows(np.packbits(rows, axis=1))
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[which]


def _count_distinct(columns: Sequence[Ints], sizes: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the first index and the number of occurrences of each distinct row of small integers."""
    keys = [np.zeros(len(columns[0]), np.int64)]
    n_values = 1
    for column, size in zip(columns, sizes, strict=False):
        if n_values * size > 1 << 62:  # one int64 cannot hold all columns
            keys, n_values = [*keys, np.zeros(len(column), np.int64)], 1
        keys[-1] = keys[-1] * size + column
        n_values *= size
    joint = keys[0]
    for key in keys[1:]:
        joint = np.unique(joint, return_inverse=True)[1] * len(joint) + np.unique(key, return_inverse=True)[1]
    _, first, times = np.unique(joint, return_index=True, return_counts=True)
    return first, times


def _group_paths(kept_sets: Sequence[Bools], set_numbers: NDArray[np.integer[Any]]) -> Iterator[_PathGroup]:
    """Group the leaves by the set of features that they fix."""
    kind: Any = np.uint16 if len(kept_sets) <= 16 else np.int64  # short integers sort fastest
    masks = np.zeros(len(set_numbers), kind)
    for i, sets in enumerate(kept_sets):
        fixing = sets.sum(axis=1) < sets.shape[1]
        masks |= fixing[set_numbers[:, i]].astype(kind) << kind(i)
    order = np.argsort(masks, kind="stable")
    ends = np.flatnonzero(np.diff(masks[order])) + 1
    for leaves in np.split(order, ends):
        features = features_of(int(masks[leaves[0]]))
        yield _PathGroup(features, set_numbers[leaves][:, features], leaves)


def subset_masks(features: Sequence[int]) -> list[int]:
    """Return the bit masks of all subsets of ``features``."""
    masks = [0]
    for i in features:
        masks += [mask | 1 << i for mask in masks]
    return masks


def _check_sizes(sizes: Sequence[int]) -> None:
    if not len(sizes) or min(sizes) < 1:
        raise MechanismError(f"sizes is {tuple(sizes)}. Hint: give the number of values (1 or more) of each feature.")
    if len(sizes) > _MAX_FEATURES:
        raise DomainTooLargeError(
            f"{len(sizes)} features in one matrix forest; the limit is {_MAX_FEATURES}. "
            "Hint: use several ensembles over fewer features each (n_ensembles, max_features)."
        )


def _check_leaves(sizes: Sequence[int], features: Ints, values: Ints) -> None:
    _check_sizes(sizes)
    if features.ndim != 2 or features.shape != values.shape or not len(features):
        raise MechanismError(
            f"leaf_features has shape {features.shape}, leaf_values {values.shape}. "
            "Hint: pass two arrays of shape [leaves, depth], with at least one leaf."
        )
    if features.size and features.max() >= len(sizes):
        raise OutOfSchemaError(
            f"leaf_features names feature {features.max()}. Hint: number the features 0 to {len(sizes) - 1}.",
            value=int(features.max()),
        )
    ordered = np.sort(features, axis=1)
    if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
        raise MechanismError("a path fixes the same feature twice. Hint: use each feature at most once per path.")
    wrong = (features >= 0) & ((values < 0) | (values >= np.asarray(sizes)[features]))
    if wrong.any():
        leaf, place = (int(index[0]) for index in np.nonzero(wrong))
        raise OutOfSchemaError(
            f"leaf {leaf} fixes feature {features[leaf, place]} at {values[leaf, place]}. "
            f"Hint: number its values 0 to {sizes[features[leaf, place]] - 1}.",
            value=int(values[leaf, place]),
        )


class VoteWorkload(Workload):
    """Weighted votes from cells, Q T' T: for each queried point, the sum of the leaves that it reaches.

    Parameters
    ----------
    paths : PathWorkload
        The forest.
    reached_leaves : array_like of int, [queries, trees]
        The leaf that each queried point reaches in each tree. Public: never derive it from private data.
    """

    def __init__(self, paths: PathWorkload, reached: ArrayLike) -> None:
        self.paths = paths
        self.reached_leaves = _check_reached(reached, paths.n_queries)
        self.sizes, self.maps, self.shape = paths.sizes, paths.maps, paths.shape
        self.n_queries = len(self.reached_leaves)

    def _compute_traces(self) -> dict[int, float]:
        """Return the trace g_R of W' W on each residual space R."""
        return self._traces_of_paths() if self.paths.single_valued else self._traces_of_rows()

    def _traces_of_paths(self) -> dict[int, float]:
        """Return the traces if leaves fix single values: paths of a query over the same features are then equal."""
        n_groups = len(self.paths.groups)
        group_of_leaf = np.empty(self.paths.n_queries, np.int64)
        for place, group in enumerate(self.paths.groups):
            group_of_leaf[group.leaves] = place
        flat = np.arange(self.n_queries)[:, None] * n_groups + group_of_leaf[self.reached_leaves]
        paths = np.bincount(flat.ravel(), minlength=self.n_queries * n_groups).reshape(self.n_queries, -1)
        at: dict[int, int] = {}
        entries: list[tuple[int, int, float]] = []
        for place, group in enumerate(self.paths.groups):
            for mask in subset_masks(group.features):
                inner = 1 / math.prod(self.shape[i] for i in group.features if not mask >> i & 1)
                entries.append((place, at.setdefault(mask, len(at)), inner))
        where = np.array([entry[:2] for entry in entries]).T
        inside = sparse.csr_array(([entry[2] for entry in entries], (where[0], where[1])), (n_groups, len(at)))
        weight = np.zeros(len(at))
        step = max(1, CHUNK_ENTRIES // len(at))
        for start in range(0, self.n_queries, step):
            weight += ((paths[start : start + step] @ inside) ** 2).sum(axis=0)
        scale = {mask: math.prod((1 - 1 / n) / n for n in (self.shape[i] for i in features_of(mask))) for mask in at}
        return {mask: float(weight[place]) * self.n_cells * scale[mask] for mask, place in at.items()}

    def _traces_of_rows(self) -> dict[int, float]:
        """Return the traces for sets of values: split the explicit rows by feature into mean and rest."""
        parts = {0: self.to_dense(merged=True).reshape(self.n_queries, *self.shape)}
        for i, size in enumerate(self.shape):
            split = {}
            for mask, part in parts.items():
                mean = part.mean(axis=1 + i, keepdims=True)
                split[mask] = mean * math.sqrt(size)  # keeps the norm: the mean stands for `size` equal entries
                split[mask | 1 << i] = part - mean
            parts = split
        return {mask: float((part**2).sum()) for mask, part in parts.items()}

    def answer_marginals(self, marginal: Marginal) -> Floats:
        """Return votes [queries, k] from marginal tables."""
        leaves = self.paths.answer_marginals(marginal)
        answers = np.zeros((self.n_queries, leaves.shape[1]))
        for tree in range(self.reached_leaves.shape[1]):
            answers += leaves[self.reached_leaves[:, tree]]
        return answers

    def iter_rows(self, *, merged: bool) -> Iterator[Floats]:
        """Yield the rows of Q T' T in one chunk."""
        query = np.repeat(np.arange(self.n_queries), self.reached_leaves.shape[1])
        shape = (self.n_queries, self.paths.n_queries)
        reaches: Any = sparse.csc_array((np.ones(len(query)), (query, self.reached_leaves.ravel())), shape)
        total, start = np.zeros((self.n_queries, math.prod(self.shape if merged else self.sizes))), 0
        for chunk in self.paths.iter_rows(merged=merged):
            total += reaches[:, start : start + len(chunk)] @ chunk
            start += len(chunk)
        yield total


class LeafVoteWorkload(Workload):
    """Votes from leaves, Q T': for each queried point, the sum over the leaves that it reaches.

    For trees on disjoint rows (subsample-and-aggregate) the table is indexed by leaf: one feature with one value per
    leaf of the forest. Leaves reached by the same points are merged, and leaves reached by no point are not measured.

    Parameters
    ----------
    n_leaves : int
        Number of leaves of the forest.
    reached_leaves : array_like of int, [queries, trees]
        The leaf each queried point reaches in each tree. Public: never derive it from private data.
    merge : bool
        Whether to merge and drop leaves (always better; False is for baselines).
    """

    def __init__(self, n_leaves: int, reached: ArrayLike, *, merge: bool = True) -> None:
        self.reached_leaves = _check_reached(reached, n_leaves)
        self.n_queries = len(self.reached_leaves)
        self.sizes = (int(n_leaves),)
        to = np.arange(n_leaves)
        if merge:
            used, place = np.unique(self.reached_leaves, return_inverse=True)
            queries = np.zeros((len(used), self.n_queries), bool)
            queries[place.reshape(self.reached_leaves.shape), np.arange(self.n_queries)[:, None]] = True
            to = np.full(n_leaves, -1)
            to[used] = first_seen(queries)
        self.maps = (to,)
        self.shape = (int(to.max()) + 1,)

    def _sparse_matrix(self, columns: int, of: Ints) -> Any:
        """Return the sparse matrix with one column per value of ``of``. Merged leaves share a column."""
        row = np.repeat(np.arange(self.n_queries), self.reached_leaves.shape[1])
        column = of[self.reached_leaves.ravel()]
        matrix = sparse.csr_array((np.ones(len(row)), (row, column)), (self.n_queries, columns))
        matrix.data = np.minimum(matrix.data, 1.0)
        return matrix

    @property
    def merged_matrix(self) -> Any:
        """The sparse matrix on the merged leaves."""
        return self._sparse_matrix(self.shape[0], self.maps[0])

    def _compute_traces(self) -> dict[int, float]:
        """Return the traces on the total and on its complement."""
        matrix = self.merged_matrix
        total = float((np.asarray(matrix.sum(axis=1)) ** 2).sum() / self.shape[0])
        return {0: total, 1: float((matrix.data**2).sum()) - total}

    def answer_marginals(self, marginal: Marginal) -> Floats:
        """Return votes [queries, k] from the table of merged leaves."""
        answers: Floats = self.merged_matrix @ marginal((0,))
        return answers

    def iter_rows(self, *, merged: bool) -> Iterator[Floats]:
        """Yield the rows of Q T' in one chunk."""
        yield (self.merged_matrix if merged else self._sparse_matrix(self.sizes[0], np.arange(self.sizes[0]))).toarray()


def _check_reached(reached: ArrayLike, n_leaves: int) -> Ints:
    table = np.asarray(reached, np.int64)
    if table.ndim != 2 or not table.size:
        raise MechanismError(
            f"reached has shape {table.shape}. Hint: pass a table [queries, trees] with at least one of each."
        )
    if table.min() < 0 or table.max() >= n_leaves:
        raise OutOfSchemaError(f"reached names a leaf outside 0 to {n_leaves - 1}.", value=int(table.max()))
    if (np.diff(np.sort(table, axis=1), axis=1) == 0).any():
        raise MechanismError(
            "reached names a leaf twice for one query. Hint: number the leaves of all trees consecutively."
        )
    return table
