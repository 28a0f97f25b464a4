# SPDX-License-Identifier: Apache-2.0
"""Contingency tables: bins of columns, groups of bins by prior or histogram, and packing of tables for kernels.

A numeric column has 64 bins of equal width. Near its lower bound, and near an inner 0, there are finer bins at half
octaves, down to 2^-14 of the range, so bounds that are a hundred times too wide do no harm. Each category is a bin;
missing values have a bin of their own. ``loop`` decides which columns are measured, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np

from veilwood.arrays import Codes, Floats, Int32s, Ints, NDArray
from veilwood.data.columns import TRANSFORMS, Column
from veilwood.data.counts import Axis, ContingencyTable, TableSet
from veilwood.data.encoding import GRID_BINS, Encoding
from veilwood.trees.forest import LEAF, Forest, build_forest


def tables_to_forest(tables: Sequence[ContingencyTable]) -> tuple[Forest, Int32s]:
    """Convert each table to a tree. Return the forest and the cell of each leaf.

    A numeric column becomes a search tree over its thresholds; a categorical column becomes a node with one branch per
    group.
    """
    sizes: list[int] = []
    cells: list[int] = []
    feature: list[int] = []
    cut: list[int] = []
    branches: list[int] = []
    lookup: list[Codes] = []
    lookup_starts: dict[bytes, int] = {}
    lookup_length = 0
    for table in tables:
        axes = [axis for axis in table.axes if axis.size > 1]
        first_node = len(feature)
        # The state of a node: axis, its remaining groups low <= g < high, and the cell index so far.
        level = [(0, 0, axes[0].size if axes else 1, 0)]
        while level:
            below = []
            for state in level:
                position, low, high, cell = _resolve_axis(axes, state)
                if position == len(axes):
                    feature.append(LEAF)
                    cut.append(0)
                    branches.append(0)
                    cells.append(cell)
                    continue
                axis = axes[position]
                feature.append(axis.feature)
                if axis.ordered:
                    middle = (low + high) // 2
                    cut.append(axis.thresholds[middle - 1])
                    children = [(position, low, middle, cell), (position, middle, high, cell)]
                else:
                    key = axis.groups.tobytes()
                    if key not in lookup_starts:
                        lookup_starts[key] = lookup_length
                        lookup.append(axis.groups)
                        lookup_length += len(axis.groups)
                    cut.append(-1 - lookup_starts[key])
                    children = [(position, group, group + 1, cell) for group in range(axis.size)]
                branches.append(len(children))
                below += children
            level = below
        sizes.append(len(feature) - first_node)
    return build_forest(sizes, feature, cut, branches, lookup), np.array(cells, np.int32)


def _resolve_axis(axes: Sequence[Axis], state: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return the state at the next axis that has more than one group left."""
    position, low, high, cell = state
    while position < len(axes) and high - low == 1:
        cell = cell * axes[position].size + low
        position += 1
        if position < len(axes):
            low, high = 0, axes[position].size
    return position, low, high, cell


EVEN_BINS: Final = 64  # bins of equal width per numeric column
HALF_OCTAVES: Final = 16  # finer bins; the width halves every two bins, and the finest edge is at 2^-14 of the range
SCALE_OCTAVES: Final = (0, 4, 8, 12)  # half octaves that separate groups while the scale of a column is unknown
# Prior of a histogram: a mixture of uniform by width, a decreasing or bell-shaped density, and uniform by bin. Declared
# bounds are often wide: most rows are in the middle, or near the lower bound if it is 0.
EVEN_WEIGHT, SHAPED_WEIGHT, BIN_WEIGHT = 0.45, 0.5, 0.05
DECAY, BELL = 0.25, 0.2  # fractions of the range: scale of the exponential, standard deviation of the normal density
PEAK_DEVIATIONS, EMPTY_DEVIATIONS = 5.0, 1.5  # in standard deviations of the noise, see ``posterior_counts``
TINY: Final = 1e-12  # avoids divisions by zero


@dataclass(frozen=True, eq=False)
class BinnedColumn:
    """A column and its bins."""

    feature: int
    """Index of the column."""
    ordered: bool
    """Whether it is numeric."""
    starts: Ints
    """First code of each bin. Missing values are in the last bin."""
    n_value_bins: int
    """Number of bins, without the bin of missing numbers."""
    prior: Floats
    """Prior fraction of rows per bin; shape (n_value_bins,)."""
    scale_groups: Ints
    """Group of each bin by octave of scale, robust to bounds that are far too wide; shape (n_value_bins,)."""

    @cached_property
    def n_bins(self) -> int:
        """Number of bins, including the bin of missing values."""
        return int(self.starts.size)

    def bin_codes(self, codes: Codes) -> Codes:
        """Return the bin of each code."""
        return self._bin_of_code[codes] if self.ordered else codes

    @cached_property
    def _bin_of_code(self) -> Codes:
        cells = np.arange(self.n_bins, dtype=np.uint16)
        return np.repeat(cells, np.diff(self.starts, append=GRID_BINS + 1))

    def ungrouped_axis(self) -> Axis:
        """Return the column as a table axis with one group per bin."""
        return self._ungrouped_axis

    @cached_property
    def _ungrouped_axis(self) -> Axis:
        groups = np.arange(self.n_bins, dtype=np.uint16)
        return Axis(self.feature, groups, self.ordered, self.n_bins, self.starts)

    def equal_mass_groups(self, mass: Floats, n_groups: int, shift: float = 0.0) -> Axis:
        """Return an axis with about ``n_groups`` groups of equal mass; categories and missing values keep their bins.

        ``shift`` moves the bounds of groups, as a fraction of a group.
        """
        if not self.ordered:
            return self._ungrouped_axis
        return self._make_axis(_split_evenly(cumulative_mass(mass), n_groups, shift))

    def groups_by_cumulative_mass(self, cumulative: Floats, n_groups: int, shift: float = 0.0) -> Axis:
        """Return the axis of ``equal_mass_groups``, given the ``cumulative_mass`` of the bins."""
        return self._make_axis(_split_evenly(cumulative, n_groups, shift)) if self.ordered else self._ungrouped_axis

    @cached_property
    def cumulative_prior(self) -> Floats:
        """The ``cumulative_mass`` of the prior."""
        return cumulative_mass(self.prior)

    def default_groups(self, n_groups: int) -> Axis:
        """Return an axis with about ``n_groups`` groups of equal prior mass, split further at the octaves of scale."""
        if not self.ordered:
            return self._ungrouped_axis
        return self._make_axis(_split_evenly(self.cumulative_prior, n_groups) + self.scale_groups)

    def _make_axis(self, group: Ints) -> Axis:
        """Return the axis of ascending groups of values, numbered without gaps, with a group for missing values."""
        numbered = np.zeros(self.n_bins, np.uint16)
        np.cumsum(group[1:] != group[:-1], out=numbered[1 : len(group)])
        if self.n_bins > len(group):
            numbered[-1] = numbered[-2] + 1
        return Axis(self.feature, numbered, self.ordered, int(numbered[-1]) + 1, self.starts)


def cumulative_mass(mass: Floats) -> Floats:
    """Return the fraction of the mass below the middle of each bin."""
    share = mass / max(mass.sum(), TINY)
    return np.asarray(share.cumsum() - share / 2)


def _split_evenly(cumulative: Floats, n_groups: int, shift: float = 0.0) -> Ints:
    """Return the group of each bin, in ascending order, such that groups have about equal mass."""
    group: Ints = np.maximum(cumulative * n_groups + shift, 0.0).astype(np.int64)
    return np.minimum(group, n_groups - 1)


def bin_columns(encoding: Encoding) -> tuple[BinnedColumn, ...]:
    """Return the binned columns of a schema."""
    binned = []
    for feature, (column, meaning) in enumerate(zip(encoding.schema.features, encoding.columns, strict=True)):
        if meaning.ordered:
            binned.append(_bin_numeric(feature, column, meaning.missing_code is not None))
            continue
        n = meaning.n_codes
        binned.append(BinnedColumn(feature, False, np.arange(n), n, np.full(n, 1 / n), np.zeros(n, np.int64)))
    return tuple(binned)


def _bin_numeric(feature: int, column: Column, nullable: bool) -> BinnedColumn:
    lower, upper = column.bounds
    fine = 2.0 ** -(np.arange(HALF_OCTAVES + 1) / 2) / EVEN_BINS
    edges, shown = [np.arange(1, EVEN_BINS) / EVEN_BINS, fine], [fine[list(SCALE_OCTAVES)]]
    if lower < 0 < upper:
        scale = (lambda values: values) if column.transform is None else TRANSFORMS[column.transform].forward
        low, zero, high = scale(np.array([lower, 0.0, upper]))
        at = (zero - low) / (high - low)
        edges += [at + fine, at - fine, np.array([at])]
        shown += [at + shown[0], at - shown[0], np.array([at])]
    starts = _grid_codes(np.concatenate([[0.0], *edges]))
    ends = np.append(starts[1:], GRID_BINS) / GRID_BINS
    width, middle = ends - starts / GRID_BINS, (ends + starts / GRID_BINS) / 2
    decays = lower == 0 and column.transform is None
    shape = width * (np.exp(-middle / DECAY) if decays else np.exp(-(((middle - 0.5) / BELL) ** 2) / 2))
    prior = EVEN_WEIGHT * width + SHAPED_WEIGHT * shape / shape.sum() + BIN_WEIGHT / len(width)
    octaves = np.searchsorted(_grid_codes(np.concatenate(shown)), starts, side="right")
    starts = np.append(starts, GRID_BINS) if nullable else starts
    return BinnedColumn(feature, True, starts, len(width), prior, octaves)


def _grid_codes(fractions: Floats) -> Ints:
    """Return the distinct codes inside the grid that correspond to these fractions of its range."""
    codes = np.rint(fractions * GRID_BINS).astype(np.int64)
    return np.unique(codes[(codes >= 0) & (codes < GRID_BINS)])


def posterior_counts(histogram: Floats | Ints, prior: Floats, variance: float, n_rows: float) -> Floats:
    """Return a shrunken histogram: about ``n_rows`` rows, distributed by noisy counts and a prior.

    The bins are split recursively into halves of equal prior mass. A uniform split of r rows has
    variance r^2 / 12. So the best linear estimate adds the fraction (r^2 / 12) / (r^2 / 12 + noise) of the deviation
    from the prior that the histogram shows: a noisy histogram falls back to the prior. If r exceeds
    ``PEAK_DEVIATIONS`` standard deviations of the noise, a half with less than ``EMPTY_DEVIATIONS`` gets no rows.

    >>> posterior_counts(np.array([0, 90, 110, 0]), np.full(4, 0.25), 1.0, 200).round().tolist()
    [0.0, 90.0, 110.0, 0.0]
    """
    seen, taken = np.append(0.0, np.cumsum(histogram)), np.append(0.0, np.cumsum(prior))
    mass, pending = np.empty(len(prior)), [(0, len(prior), float(n_rows))]
    while pending:
        first, last, held = pending.pop()
        if last - first == 1:
            mass[first] = held
            continue
        half = int(np.searchsorted(taken, (taken[first] + taken[last]) / 2))
        middle = min(max(half, first + 1), last - 1)
        part = (taken[middle] - taken[first]) / max(taken[last] - taken[first], TINY)
        left, right = seen[middle] - seen[first], seen[last] - seen[middle]
        noise = variance * ((middle - first) * (1 - part) ** 2 + (last - middle) * part**2)
        beyond = (left - part * (left + right)) * held**2 / max(held**2 + 12 * noise, TINY)
        below = min(max(part * held + beyond, 0.0), held)
        if held > PEAK_DEVIATIONS * noise**0.5:
            if below < EMPTY_DEVIATIONS * (variance * (middle - first)) ** 0.5:
                below = 0.0
            elif held - below < EMPTY_DEVIATIONS * (variance * (last - middle)) ** 0.5:
                below = held
        pending += [(first, middle, below), (middle, last, held - below)]
    return mass + TINY


MAX_JOINT_CELLS = 1 << 10  # values of a joint table; fit the cache with a block of rows
MIN_JOINT_TABLES = 4  # with fewer tables, merging saves too little time
ROWS_PER_CELL = 8  # with fewer rows per cell, a joint table takes more time than it saves


class TableArrays(NamedTuple):
    """Arrays that describe tables to kernels.

    Attributes
    ----------
    features : ndarray of int64, shape (n_axes,)
        Column of each axis.
    groups : ndarray, shape (n_axes, largest number of bins)
        Group of each bin of an axis.
    axes : ndarray of int32, shape (n_tables, largest number of axes)
        Axes of each table, padded with -1.
    strides : ndarray of uint32, like ``axes``
        Distance between the cells of successive groups.
    starts : ndarray of uint32
        First cell of each table.
    """

    features: Ints
    groups: NDArray[np.uint8] | Codes
    axes: Int32s
    strides: NDArray[np.uint32]
    starts: NDArray[np.uint32]


class PackedTables(NamedTuple):
    """Packed tables: their arrays, the sizes of their axes, and their total number of cells."""

    arrays: TableArrays
    sizes: Ints
    n_cells: int

    @classmethod
    def pack(cls, tables: Sequence[ContingencyTable]) -> PackedTables:
        """Pack tables one after the other. The result is cached, because every chunk of rows gets the same query."""
        return _pack_cached(tables if isinstance(tables, TableSet) else tuple(tables))

    @classmethod
    def pack_uncached(cls, tables: Sequence[ContingencyTable]) -> PackedTables:
        """Pack tables one after the other, without a cache."""
        if isinstance(tables, TableSet):
            all_axes, axes = list(tables.axes), tables.members
        else:
            all_axes = list({id(axis): axis for table in tables for axis in table.axes}.values())
            number = {id(axis): place for place, axis in enumerate(all_axes)}
            max_axes = max((len(table.axes) for table in tables), default=0)
            axes = np.array([[number[id(axis)] for axis in table.axes] + [-1] * (max_axes - len(table.axes))
                             for table in tables], np.int32).reshape(len(tables), max_axes)  # fmt: skip
        sizes = np.array([axis.size for axis in all_axes], np.int64)
        wide = max((len(axis.groups) for axis in all_axes), default=1)
        groups = np.zeros((len(all_axes), wide), np.uint8 if sizes.max(initial=0) <= 256 else np.uint16)
        for place, axis in enumerate(all_axes):
            groups[place, : len(axis.groups)] = axis.groups
            groups[place, len(axis.groups) :] = axis.groups[-1]  # so that loops use interval bounds only
        features = np.array([axis.feature for axis in all_axes], np.int64)
        return cls._from_groups(features, groups, axes, sizes)

    @classmethod
    def _from_groups(
        cls, features: Ints, groups: NDArray[np.uint8] | Codes, axes: Int32s,
        sizes: Ints,
    ) -> PackedTables:  # fmt: skip
        each = np.where(axes >= 0, np.append(sizes, 1)[axes], 1)  # index -1: the appended 1
        cells = each.prod(axis=1)
        strides = (cells[:, None] // np.cumprod(each, axis=1)).astype(np.uint32)
        starts = (np.cumsum(cells) - cells).astype(np.uint32)
        return cls(TableArrays(features, groups, axes, strides, starts), sizes, int(cells.sum()))

    def merge_tables(self, n_rows: int, n_outputs: int) -> tuple[PackedTables, Int32s] | None:
        """Return joint tables and the joint table that covers each table, or None if merging saves no time."""
        from veilwood import kernels

        layout = self.arrays
        most = min(MAX_JOINT_CELLS // n_outputs, n_rows // ROWS_PER_CELL)
        n_tables, most_axes = layout.axes.shape
        if n_tables < MIN_JOINT_TABLES or not 0 < most_axes <= kernels.MAX_AXES:
            return None
        order = np.argsort((layout.axes < 0).sum(axis=1), kind="stable")
        joint = np.full((n_tables, kernels.MAX_AXES), -1, np.int32)
        of_ordered = np.full(n_tables, -1, np.int32)
        n_joint = kernels.cover_tables(layout.axes[order], self.sizes, most, joint, of_ordered)
        if 2 * n_joint > n_tables:
            return None
        of_table = np.empty(n_tables, np.int32)
        of_table[order] = of_ordered
        return self._from_groups(layout.features, layout.groups, joint[:n_joint], self.sizes), of_table


@lru_cache(maxsize=16)
def _pack_cached(tables: tuple[ContingencyTable, ...] | TableSet) -> PackedTables:
    return PackedTables.pack_uncached(tables)
