# SPDX-License-Identifier: Apache-2.0
"""Where groups of a column's values begin and end: by what is taken for granted, or by histograms that pay.

Constants are for the epsilon e of one row (``privacy.purse``), and measured where nothing else is said (``loop``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.cells import questions as asked
from veilwood.forests.cells.cell_tables import Axis, CellTable
from veilwood.forests.cells.columns import TINY, CellColumn, divided
from veilwood.forests.cells.rows import AskedRows
from veilwood.privacy.purse import Purse
from veilwood.privacy.tables_noise import TablesName, TablesNoise, count_tables

# Histogram of one column: rows times e for a median to a tenth of the rows; at most so many times that; a share of a
# round's budget, measured (exclusive-or 0.85 -> 0.94 at e = 4); taken anew where that is so many times better.
CUT_NEEDS, CUT_MOST, CUT_SHARE, CUT_ANEW = 70.0, 16.0, 0.25, 4.0
# Histograms of all numbers of tables: a share of their budget, with noise together in so many groups and octaves, by
# rho of all cells, where the noise on half of a column is at most 1 / HISTOGRAM_NEEDS of the rows; measured.
HISTOGRAM_SHARE, HISTOGRAM_GROUPS, HISTOGRAM_NEEDS = 0.1, 4, 2.0
HISTOGRAMS: Final = TablesName("histogram", "rows by group")

Floats = NDArray[np.float64]


class Borders:
    """What is known of how the values of columns are spread; public."""

    def __init__(self, rows: AskedRows, n_columns: int) -> None:
        self._rows = rows
        self._mass: dict[int, Floats] = {}
        self._precision: dict[int, float] = {}  # the price of a histogram by itself
        self._shift = np.zeros(n_columns)  # in groups

    def known(self, column: CellColumn | Axis) -> bool:
        """Whether a histogram of the column was released."""
        return column.feature in self._mass

    def move(self, shift: Floats) -> None:
        """Move the borders of each column that is known by such a part of a group."""
        self._shift = shift

    def axis(self, column: CellColumn, n_groups: int, *, scales: bool = True) -> Axis:
        """Groups by what is known of a column."""
        if self.known(column):
            return column.of_mass(self._mass[column.feature], n_groups, self._shift[column.feature])
        return column.of_scales(n_groups) if scales else column.of_mass(column.prior, n_groups)

    def shares(self, axis: Axis) -> Floats:
        """The share of rows that each group is taken to have."""
        mass = self._mass.get(axis.feature)
        share = np.ones(axis.size) if mass is None else np.bincount(axis.groups[: len(mass)], mass, axis.size)
        return np.asarray(share / max(share.sum(), TINY))

    def see(self, column: CellColumn, name: str, purse: Purse, n_rows: float, budget: float) -> None:
        """Take a histogram of the column, where a share of the budget buys a good one."""
        share = min(CUT_SHARE * budget, purse.share(CUT_MOST * CUT_NEEDS / n_rows))
        price, before = purse.price(share), self._precision.get(column.feature, 0.0)
        if not column.ordered or price < max(CUT_NEEDS / n_rows, CUT_ANEW * before):
            return
        step = purse.counting(f"{name}: histogram of column {column.feature}", (column.n_inside,), share)
        seen = purse.measure(step, self._rows.ask(asked.Histogram(column.feature, column.n_inside)))
        self._spread(column, column.values(), seen, step.variance, n_rows)

    def see_all(
        self, columns: Sequence[CellColumn], n_classes: int, purse: Purse, n_rows: float, budget: float
    ) -> None:
        """Take histograms of these columns, where a share of the budget buys good ones."""
        noise = TablesNoise.of(purse)
        numeric = [(column, seen_groups(column, noise.jointly)) for column in columns if column.ordered]
        if purse.among_servers or len(numeric) < 2:  # servers would draw the noise of each by itself: too much
            return
        numeric.sort(key=lambda one: one[1].size)
        tables, share = [CellTable((axis,)) for _, axis in numeric], HISTOGRAM_SHARE * budget
        sizes = [table.n_cells for table in tables]
        half = float((noise.variances(sizes) * sizes).max() / 2) ** 0.5
        if n_rows * purse.price(share) < HISTOGRAM_NEEDS * half:
            return
        # Classes are added up before noise: all who hold rows answer that question, for all tables at once.
        exact = self._rows.ask(asked.ClassesByCell(tables, n_classes)).sum(axis=1, keepdims=True)
        seen = count_tables(purse, sizes, exact, share, HISTOGRAMS)
        for (column, axis), counts, variance in zip(numeric, seen.counts, seen.variances, strict=True):
            self._spread(column, axis, counts.ravel(), variance, n_rows)

    def _spread(self, column: CellColumn, axis: Axis, counts: Floats, variance: float, n_rows: float) -> None:
        """Spread rows over the cells of a column: over its groups by their counts, inside of each as before."""
        groups = axis.groups[: column.n_inside]
        before: Floats = np.bincount(groups, column.prior).astype(np.float64)
        held = divided(counts[: len(before)], before, variance, n_rows)
        self._mass[column.feature] = column.prior * (held / before)[groups]
        self._precision[column.feature] = (2 / max(variance, TINY)) ** 0.5


def seen_groups(column: CellColumn, jointly: bool) -> Axis:
    """The groups of a numeric column in histograms before tables: few with noise together, to which others' cells add.

    Else all cells.
    """
    return column.of_scales(HISTOGRAM_GROUPS) if jointly else column.values()
