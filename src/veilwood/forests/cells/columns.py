# SPDX-License-Identifier: Apache-2.0
"""Columns in cells, before anything is measured, and groups of cells: by what is taken for granted or was seen.

A numeric column has 64 cells of equal width. Near its lower bound, and near 0 where that lies inside, there are finer
ones at half octaves, down to 2^-14 of the range: bounds a hundred times too wide do no harm. Every category, and a
missing value, is a cell. Which columns are measured, and when, is in ``loop``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.columns import TRANSFORMS, Column
from veilwood.data.encoding import GRID_CELLS, Encoding
from veilwood.forests.cells.cell_tables import Axis

EVEN_CELLS: Final = 64
HALF_OCTAVES: Final = 16
OCTAVES_SHOWN: Final = (0, 4, 8, 12)  # half octaves that stay apart where the scale of a column is not known yet
# Bounds are declared wide: rows are mostly in the middle, or near the lower bound where that is 0. What is believed of
# equal widths, of such a shape, and of equal cells.
EVEN, SHAPED, EACH = 0.45, 0.5, 0.05
DECAY, BELL = 0.25, 0.2  # of the range: the scale of an exponential law, the deviation of a bell
STANDS_OUT, EMPTY_BELOW = 5.0, 1.5  # standard deviations of the noise
TINY: Final = 1e-12

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CellColumn:
    """One column in cells."""

    feature: int
    """Its place."""
    ordered: bool
    """Whether it is numeric."""
    starts: Ints
    """The code at which each cell begins; missing values have the last one."""
    n_inside: int
    """Cells that hold numbers, or categories."""
    prior: Floats
    """The share of rows that each is taken to have; shape (n_inside,)."""
    octaves: Ints
    """Groups that no wrong guess of the scale can spoil; shape (n_inside,)."""

    @cached_property
    def n_cells(self) -> int:
        """All cells, that of missing values included."""
        return int(self.starts.size)

    def cells(self, codes: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return the cells that codes lie in."""
        return self._cell_of_code[codes] if self.ordered else codes

    @cached_property
    def _cell_of_code(self) -> NDArray[np.uint16]:
        cells = np.arange(self.n_cells, dtype=np.uint16)
        return np.repeat(cells, np.diff(self.starts, append=GRID_CELLS + 1))

    def values(self) -> Axis:
        """Take every cell as a group."""
        return self._axis(np.arange(self.n_cells))

    def of_mass(self, mass: Floats, n_groups: int, shift: float = 0.0) -> Axis:
        """Put numbers into about so many groups of equal mass; categories, and missing values, stay apart.

        ``shift`` moves the borders by such a part of a group.
        """
        if not self.ordered:
            return self.values()
        return self._axis(self._by_mass(mass, n_groups, shift))

    def of_scales(self, n_groups: int) -> Axis:
        """Put numbers into about so many groups by what is taken for granted, and into octaves where rows may crowd."""
        if not self.ordered:
            return self.values()
        return self._axis(self._by_mass(self.prior, n_groups) + self.octaves)

    def _by_mass(self, mass: Floats, n_groups: int, shift: float = 0.0) -> Ints:
        share = mass / max(mass.sum(), TINY)
        middle = np.cumsum(share) - share / 2
        group: Ints = np.clip(np.floor(middle * n_groups + shift), 0, n_groups - 1).astype(np.int64)
        return group

    def _axis(self, group: Ints) -> Axis:
        group = np.unique(group, return_inverse=True)[1]
        if self.n_cells > len(group):  # a missing value
            group = np.append(group, group[-1] + 1)
        return Axis(self.feature, group.astype(np.uint16), self.ordered, int(group.max()) + 1, self.starts)


def columns_of(encoding: Encoding) -> tuple[CellColumn, ...]:
    """Return the columns of a schema in cells."""
    found = []
    for feature, (column, meaning) in enumerate(zip(encoding.schema.features, encoding.columns, strict=True)):
        if meaning.ordered:
            found.append(_numeric(feature, column, meaning.missing_code is not None))
            continue
        n = meaning.n_codes
        found.append(CellColumn(feature, False, np.arange(n), n, np.full(n, 1 / n), np.zeros(n, np.int64)))
    return tuple(found)


def _numeric(feature: int, column: Column, nullable: bool) -> CellColumn:
    lower, upper = column.bounds
    fine = 2.0 ** -(np.arange(HALF_OCTAVES + 1) / 2) / EVEN_CELLS
    edges, shown = [np.arange(1, EVEN_CELLS) / EVEN_CELLS, fine], [fine[list(OCTAVES_SHOWN)]]
    if lower < 0 < upper:
        scale = (lambda values: values) if column.transform is None else TRANSFORMS[column.transform].forward
        low, zero, high = scale(np.array([lower, 0.0, upper]))
        at = (zero - low) / (high - low)
        edges += [at + fine, at - fine, np.array([at])]
        shown += [at + shown[0], at - shown[0], np.array([at])]
    starts = _codes(np.concatenate([[0.0], *edges]))
    ends = np.append(starts[1:], GRID_CELLS) / GRID_CELLS
    width, middle = ends - starts / GRID_CELLS, (ends + starts / GRID_CELLS) / 2
    decays = lower == 0 and column.transform is None
    shape = width * (np.exp(-middle / DECAY) if decays else np.exp(-(((middle - 0.5) / BELL) ** 2) / 2))
    prior = EVEN * width + SHAPED * shape / shape.sum() + EACH / len(width)
    octaves = np.searchsorted(_codes(np.concatenate(shown)), starts, side="right")
    starts = np.append(starts, GRID_CELLS) if nullable else starts
    return CellColumn(feature, True, starts, len(width), prior, octaves)


def _codes(parts: Floats) -> Ints:
    """Parts of a range as codes inside the grid, each once."""
    codes = np.rint(parts * GRID_CELLS).astype(np.int64)
    return np.unique(codes[(codes >= 0) & (codes < GRID_CELLS)])


def divided(histogram: Floats | Ints, prior: Floats, variance: float, rows: float) -> Floats:
    """Divide about so many rows over the cells of a noisy histogram.

    The rows are divided between two parts of equal prior, those of each part between its own two, and so on. If every
    division were as likely as any other, its variance would be a twelfth of the squared rows: of what the histogram
    shows beyond the prior, the part twelfth / (twelfth + noise) is believed (the best linear guess), so that a poor
    histogram falls back to the prior. A part that would get less than ``EMPTY_BELOW`` standard deviations gets nothing
    if both together stand out.

    >>> divided(np.array([0, 90, 110, 0]), np.full(4, 0.25), 1.0, 200).round().tolist()
    [0.0, 90.0, 110.0, 0.0]
    """
    seen, taken = np.append(0.0, np.cumsum(histogram)), np.append(0.0, np.cumsum(prior))
    mass, pending = np.empty(len(prior)), [(0, len(prior), float(rows))]
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
        if held > STANDS_OUT * noise**0.5:
            if below < EMPTY_BELOW * (variance * (middle - first)) ** 0.5:
                below = 0.0
            elif held - below < EMPTY_BELOW * (variance * (last - middle)) ** 0.5:
                below = held
        pending += [(first, middle, below), (middle, last, held - below)]
    return mass + TINY
