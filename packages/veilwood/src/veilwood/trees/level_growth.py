# SPDX-License-Identifier: Apache-2.0
"""Forests under construction, one level of all trees at a time: open nodes and their remaining column ranges.

Nothing here reads data. ``CandidateSplits`` describes how rows are binned in open nodes, ``histograms`` counts them,
and ``medians`` and ``greedy`` select the splits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from veilwood.arrays import Bools, Codes, Int32s, Ints
from veilwood.trees.forest import LEAF, Forest, build_forest, build_partial_forest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from veilwood.data.encoding import EncodedColumn


SHIFT = 32  # a code at distance d from the low end of its node's range falls into bin (d * step) >> SHIFT


@dataclass(frozen=True)
class CandidateSplits:
    """Candidate attributes of all open nodes ("slots"), and the few bins into which each divides the range of its node.

    The bins of a numeric attribute are intervals of codes of nearly equal length, and one bin for missing values. The
    bins of a categorical attribute are its remaining values in some order, or groups of them.
    """

    first: Ints  # the slots of open node i are first[i] up to first[i + 1]
    feature: Ints
    low: Ints
    step: Ints
    table: Ints  # start of the slot's table of bins by code in ``tables``; -1 if bins come from low and step
    n_bins: Ints
    tables: Codes

    @property
    def n_nodes(self) -> int:
        """Number of open nodes."""
        return len(self.first) - 1

    @property
    def n_candidates(self) -> int:
        """Total number of slots of all nodes."""
        return len(self.feature)

    def candidates_of_nodes(self, nodes: Ints, width: int) -> tuple[Ints, Bools]:
        """Return the slots of some open nodes, padded with 0 to ``width`` columns, and a mask without the padding."""
        slot = self.first[nodes][:, None] + np.arange(width)
        present = slot < self.first[nodes + 1][:, None]
        return np.where(present, slot, 0), present

    def restrict_to_nodes(self, start: int, stop: int) -> CandidateSplits:
        """Return a copy without the slots outside the open nodes ``start`` up to ``stop``."""
        here = slice(self.first[start], self.first[stop])
        columns = {name: getattr(self, name)[here] for name in ("feature", "low", "step", "table", "n_bins")}
        return replace(self, first=np.clip(self.first, here.start, here.stop) - here.start, **columns)

    def cut_codes(self, slot: Ints, edge: Ints) -> Ints:
        """Return the lowest code of each slot's bin ``edge + 1``, for slots of numeric columns."""
        return self.low[slot] - (-((edge + 1) << SHIFT) // self.step[slot])

    def goes_right(self, slot: Ints, edge: Ints, width: int) -> Bools:
        """Return a mask of the first ``width`` codes that are in bins after ``edge``, for slots with tables."""
        places = np.minimum(self.table[slot][:, None] + np.arange(width), len(self.tables) - 1)
        return np.asarray(self.tables[places] > edge[:, None])


class GrowingForest:
    """Trees that grow level by level. All their contents are public.

    ``split_nodes`` closes the current level: each open node becomes an inner node or a leaf, and the children of inner
    nodes are the next open nodes. An attribute whose range a path has narrowed to one code is no longer usable there
    (SPLITRANGE of Consul and Williamson, Algorithm 1).
    """

    def __init__(self, columns: Sequence[EncodedColumn], n_trees: int) -> None:
        self._n_codes = np.array([column.n_codes for column in columns])
        self._missing = np.array([-1 if column.missing_code is None else column.missing_code for column in columns])
        self.ordered = np.array([column.ordered for column in columns])
        widths = np.where(self.ordered, 0, self._n_codes)
        self._value_offsets = np.cumsum(widths) - widths  # start of each categorical column in ``_remaining``
        self._tree = np.arange(n_trees, dtype=np.int32)
        self._low = np.zeros((n_trees, len(columns)), np.int32)  # codes low <= c < high remain of a number
        self._high = np.tile(np.where(self.ordered, self._n_codes, 0).astype(np.int32), (n_trees, 1))
        self._remaining = np.ones((n_trees, int(widths.sum())), bool)  # which values remain of the categorical columns
        self._used = np.zeros((n_trees, len(columns)), bool)  # by a multiway split
        self._trees: list[Int32s] = []
        self._features: list[Int32s] = []
        self._cuts: list[Int32s] = []
        self._branches: list[Int32s] = []
        self._lookups: list[Codes] = []
        self._lookup_length = 0
        self.n_trees = n_trees
        self.depth = 0

    @property
    def max_codes(self) -> int:
        """The largest number of codes of a column."""
        return int(self._n_codes.max())

    @property
    def n_open_nodes(self) -> int:
        """Number of open nodes, of all trees."""
        return len(self._tree)

    def usable_columns(self) -> Bools:
        """Return a mask of the columns that each open node can still split."""
        left = self._high - self._low
        for column in np.flatnonzero(~self.ordered).tolist():
            left[:, column] = self._remaining_values(column).sum(axis=1)
        return (left > 1) & ~self._used

    def _remaining_values(self, column: int) -> Bools:
        start = self._value_offsets[column]
        return self._remaining[:, start : start + self._n_codes[column]]

    # -- candidates ------------------------------------------------------------------------------------------

    def draw_candidates(self, n_columns: int, rng: np.random.Generator) -> Ints:
        """Draw up to ``n_columns`` distinct usable columns for each open node, padded with -1."""
        usable = self.usable_columns()
        order = np.argsort(np.where(usable, rng.random(usable.shape), 2.0), axis=1)[:, :n_columns]
        return np.where(np.take_along_axis(usable, order, axis=1), order, LEAF)

    def bin_candidates(self, candidates: Ints, max_bins: int, rng: np.random.Generator) -> CandidateSplits:
        """Divide the candidates of every open node into at most ``max_bins`` bins.

        Categorical values get a public random order, drawn independently for each slot. So a split between two bins is
        a random subset, and a median split is a balanced subset.
        """
        node, place = np.nonzero(candidates != LEAF)
        feature = candidates[node, place]
        low = self._low[node, feature].astype(np.int64)
        high = self._high[node, feature].astype(np.int64)
        missing = self._missing[feature]
        has_missing = self.ordered[feature] & (missing >= 0) & (high > missing)
        width = np.maximum(high - has_missing - low, 1)
        n_bins = np.minimum(width, max_bins - has_missing)
        step = -(-(n_bins << SHIFT) // width)  # rounded up: the code after the last, missing, falls into bin n_bins
        table = np.full(len(node), -1)
        n_bins = n_bins + has_missing
        tables = [np.zeros(1, np.uint16)]
        length = 1
        for column in np.unique(feature[~self.ordered[feature]]).tolist():
            here = np.flatnonzero(feature == column)
            alive = self._remaining_values(column)[node[here]]
            keys = np.where(alive, rng.random(alive.shape), 2.0)
            rank = np.argsort(np.argsort(keys, axis=1), axis=1)
            n_alive = alive.sum(axis=1)
            n_bins[here] = np.minimum(n_alive, max_bins)
            # With more values than bins, neighbours in the random order share a bin. Removed values never occur.
            bins = np.minimum(rank, n_alive[:, None] - 1) * n_bins[here][:, None] // n_alive[:, None]
            table[here] = length + np.arange(len(here)) * alive.shape[1]
            tables.append(bins.ravel().astype(np.uint16))
            length += bins.size
        first = np.concatenate([[0], np.cumsum((candidates != LEAF).sum(axis=1))])
        return CandidateSplits(first, feature, low, step, table, n_bins, np.concatenate(tables))

    # -- structure ---------------------------------------------------------------------------------------------

    def split_nodes(self, candidates: CandidateSplits, slot: Ints, edge: Ints) -> None:
        """Split each open node in two after bin ``edge`` of one of its slots. It is a leaf if ``slot`` is -1."""
        inner = np.flatnonzero(slot >= 0)
        slot, edge = slot[inner], edge[inner]
        feature = candidates.feature[slot]
        by_number = self.ordered[feature]
        cut = np.zeros(len(inner), np.int64)
        cut[by_number] = candidates.cut_codes(slot[by_number], edge[by_number])
        low, high, alive = (np.repeat(a[inner], 2, axis=0) for a in (self._low, self._high, self._remaining))
        numeric = np.flatnonzero(by_number)
        high[2 * numeric, feature[numeric]] = cut[numeric]
        low[2 * numeric + 1, feature[numeric]] = cut[numeric]
        for column in np.unique(feature[~by_number]).tolist():
            here, width = np.flatnonzero(feature == column), int(self._n_codes[column])
            right = candidates.goes_right(slot[here], edge[here], width)
            cut[here] = -1 - (self._lookup_length + np.arange(len(here)) * width)
            self._lookups.append(right.ravel().astype(np.uint16))
            self._lookup_length += right.size
            bits = slice(self._value_offsets[column], self._value_offsets[column] + width)
            alive[2 * here, bits] &= ~right
            alive[2 * here + 1, bits] &= right
        self._close_level(inner, feature, cut, np.full(len(inner), 2))
        self._low, self._high, self._remaining = low, high, alive
        self._used = np.repeat(self._used[inner], 2, axis=0)

    def split_by_value(self, feature: Ints) -> None:
        """Give each open node one child per value of its column ``feature``. It is a leaf if ``feature`` is -1."""
        inner = np.flatnonzero(feature >= 0)
        feature = feature[inner]
        widest = int(self._n_codes.max())
        if not self._lookups:  # the table of an n-valued column is 0, 1, ..., n - 1: all can share the longest one
            self._lookups, self._lookup_length = [np.arange(widest, dtype=np.uint16)], widest
        branches = self._n_codes[feature]
        self._close_level(inner, feature, np.full(len(inner), -1), branches)
        self._used[inner, feature] = True
        self._low, self._high, self._remaining, self._used = (
            np.repeat(a[inner], branches, axis=0) for a in (self._low, self._high, self._remaining, self._used)
        )

    def _close_level(self, inner: Ints, feature: Ints, cut: Ints, branches: Ints) -> None:
        """Append the current level to the closed levels, and open the next level."""
        features, cuts = (np.full(self.n_open_nodes, LEAF, np.int32) for _ in range(2))
        features[inner], cuts[inner] = feature, cut
        counts = np.zeros(self.n_open_nodes, np.int32)
        counts[inner] = branches
        self._trees.append(self._tree)
        self._features.append(features)
        self._cuts.append(cuts)
        self._branches.append(counts)
        self._tree = np.repeat(self._tree[inner], branches)
        self.depth += 1

    def partial_forest(self) -> Forest:
        """Return the current trees. The leaf number of an open node is its index, and that of a closed leaf is -1."""
        arrays = self._closed_arrays()
        return build_partial_forest(self.n_trees, *arrays, self.n_open_nodes, self._lookups)

    def finish_forest(self) -> Forest:
        """Return the forest, with all open nodes as leaves."""
        tree = np.concatenate([*self._trees, self._tree])
        order = np.argsort(tree, kind="stable")  # level order stays within each tree
        leaf, none = np.full(self.n_open_nodes, LEAF, np.int32), np.zeros(self.n_open_nodes, np.int32)
        ends = zip(self._closed_arrays(), (leaf, leaf, none), strict=True)
        feature, cut, branches = (np.concatenate([closed, last])[order] for closed, last in ends)
        return build_forest(np.bincount(tree, minlength=self.n_trees), feature, cut, branches, self._lookups)

    def _closed_arrays(self) -> tuple[Int32s, Int32s, Int32s]:
        """Return features, cuts and branches of the closed nodes."""
        nothing = np.empty(0, np.int32)
        levels = (self._features, self._cuts, self._branches)
        feature, cut, branches = (np.concatenate([nothing, *parts]) for parts in levels)
        return feature, cut, branches
