# SPDX-License-Identifier: Apache-2.0
"""Counts of several tables of the same rows: how they share a budget, and which of them get their noise together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilwood.privacy.joint_moments import MOST_CELLS_TOGETHER, MOST_TABLE_CELLS, of_scale_1
from veilwood.privacy.purse import Purse

# Tables get their noise together up to so many times the cells of the smallest. Squared noise of all cells beside the
# best cuts, 400 random lists of sizes: 1.01 times on average, 1.19 at most; with 2 1.01 and 1.38, with 8 1.04 and 1.46.
ALIKE_IN_SIZE: Final = 3

Floats = NDArray[np.float64]


class TablesNoise(NamedTuple):
    """How tables get noise: by rho or by epsilon, and with epsilon together where that is less."""

    gaussian: bool
    jointly: bool

    @classmethod
    def of(cls, purse: Purse) -> TablesNoise:
        """Return how a purse pays for tables."""
        return cls(purse.gaussian, purse.jointly)

    def groups(self, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """Divide a budget among tables of ascending sizes: how many get their noise together, and their share.

        Together tables need less noise, but that of a small one grows with the cells of all: so tables of about one
        size do. Shares are those of the least squared noise of all cells: the least sum of squares / share^2, or of
        squares / share by rho.

        >>> [(n_tables, round(share, 2)) for n_tables, share in TablesNoise(False, True).groups([3, 3, 4, 256])]
        [(3, 0.32), (1, 0.68)]
        """
        groups: list[list[int]] = []
        for size in sizes:
            if groups and self.jointly and _fit([*groups[-1], size]):
                groups[-1].append(size)
            else:
                groups.append([size])
        # As all rows are in every table, the last cell of each is known from the others.
        squares = [sum((size - 1) * one for size, one in zip(group, _of_cells(group), strict=True)) for group in groups]
        roots = np.maximum(squares, 1.0) ** (1 / 2 if self.gaussian else 1 / 3)
        return list(zip(map(len, groups), (roots / roots.sum()).tolist(), strict=True))

    def variances(self, sizes: Sequence[int]) -> Floats:
        """Return the variance of the noise on a cell of each table, at a price of 1 for all; sizes ascend."""
        found: list[float] = []
        for n_tables, share in self.groups(sizes):
            mine = _of_cells(sizes[len(found) : len(found) + n_tables])
            found += [one / share ** (1 if self.gaussian else 2) for one in mine]
        return np.array(found)


def _fit(sizes: Sequence[int]) -> bool:
    """Whether tables of ascending sizes are alike, and can get their noise together."""
    return sizes[-1] <= min(ALIKE_IN_SIZE * sizes[0], MOST_TABLE_CELLS) and sum(sizes) <= MOST_CELLS_TOGETHER


def _of_cells(sizes: Sequence[int]) -> list[float]:
    """The variance of the noise on one cell of each table of a group, at a price of 1."""
    if len(sizes) == 1:
        return [2.0]
    by_size = dict(of_scale_1(tuple(sorted(Counter(sizes).items())))[0])
    return [by_size[size] for size in sizes]


class TablesName(NamedTuple):
    """How steps of tables are named: what a table is, and what is counted in it."""

    table: str
    counted: str

    def of(self, n_before: int, n_tables: int) -> str:
        """Name so many tables after so many others.

        >>> TablesName("table", "classes by cell").of(0, 4), TablesName("histogram", "rows by group").of(4, 1)
        ('tables 1 to 4: classes by cell', 'histogram 5: rows by group')
        """
        last = n_before + n_tables
        which = f"{self.table} {last}" if n_tables == 1 else f"{self.table}s {n_before + 1} to {last}"
        return f"{which}: {self.counted}"


class CountedTables(NamedTuple):
    """What was released: counts of each table, with the variance of a cell; totals of each group, with theirs.

    A group are tables that share their noise; totals are those of classes.
    """

    counts: list[Floats]
    variances: list[float]
    totals: list[Floats]
    total_variances: list[float]


def count_tables(
    purse: Purse, sizes: Sequence[int], exact: NDArray[np.int64], share: float, name: TablesName
) -> CountedTables:
    """Take a share of what is left in a purse for tables of ascending sizes, and release them.

    ``exact`` has a row for each cell, table after table.
    """
    found = CountedTables([], [], [], [])
    for n_tables, part in TablesNoise.of(purse).groups(sizes):
        first = len(found.counts)
        mine, start = sizes[first : first + n_tables], sum(sizes[:first])
        step = purse.counting_tables(name.of(first, n_tables), mine, exact.shape[1], share * part)
        seen = purse.measure(step, exact[start : start + sum(mine)])
        found.counts.extend(np.split(seen, np.cumsum(mine[:-1])))
        found.variances.extend(step.table_variances)
        found.totals.append(found.counts[-1].sum(axis=0))  # those of a group are the same
        found.total_variances.append(step.total_variance)
    return found
