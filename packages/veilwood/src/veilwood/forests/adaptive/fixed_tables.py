# SPDX-License-Identifier: Apache-2.0
"""Contingency tables of PrivateForest in a series of releases: selected once, then counted like the leaves of a forest.

Gradients depend on scores that change with every release, so sums of gradients do not add up over time. Class counts
do. The size of the tables follows from public facts. Their columns are selected in the first release from one noisy
step, the choice: class counts by bin of every column. Each table has one column. On Adult, flights and traffic tables
of two or three columns were no better, because their numeric columns have fewer groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from veilwood.arrays import Floats, Int32s, Ints
from veilwood.data.counts import Axis, ContingencyTable
from veilwood.estimators.method import Decisions
from veilwood.forests.adaptive import shrinkage
from veilwood.forests.adaptive.contingency import BinnedColumn, posterior_counts
from veilwood.forests.adaptive.effects import StepMeasurement, TableScores
from veilwood.forests.adaptive.row_backend import SCORE_UNITS
from veilwood.forests.adaptive.table_design import COLUMN_FRACTIONS, GROUP_COUNTS, PAIR_DEVIATIONS, PAIR_ROWS
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import counting_variance
from veilwood.safe_io import all_ints_in
from veilwood.trees.forest import Forest

CHOICE_FRACTION: Final = Fraction(1, 10)  # fraction of the loss for the choice
TABLE_GROUPS: Final = (32, 24, *GROUP_COUNTS[::-1])  # candidate numbers of groups of a numeric column

PlainTable: TypeAlias = list[int]
"""Table as written in plans: its column, and for a numeric column the first bin of each group except the first
group."""


@dataclass(frozen=True, kw_only=True)
class TableDecisions(Decisions):
    """Decisions of a series: the tables, once they are selected."""

    method: str | None = "tables"
    chosen: list[PlainTable] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the tables are not lists of lists of integers, or the method is a different one."""
        super().__post_init__()
        tables = [] if self.chosen is None else self.chosen
        shaped = isinstance(tables, list) and all(isinstance(table, list) and table for table in tables)
        if not shaped or not all_ints_in([each for table in tables for each in table], 0, 1 << 16):
            raise ValueError("tables are lists of a column and its groups")
        if self.method != "tables" or self.chosen == [] or len({table[0] for table in tables}) != len(tables):
            raise ValueError("tables hold each column once")


# -- sizes, from public facts ------------------------------------------------------------------------------------------


class TableSizes(NamedTuple):
    """Number of tables, each of one column, and number of groups of a numeric column."""

    n_columns: int
    n_groups: int

    @classmethod
    def from_facts(
        cls, columns: Sequence[BinnedColumn], n_classes: int, n_rows: int, loss: Loss, neighbours: Neighbours
    ) -> TableSizes:
        """Return the most columns, then groups, with which class counts of a typical cell exceed noise and chance."""
        for n_columns in (max(1, round(len(columns) * part)) for part in COLUMN_FRACTIONS):
            noise = counting_variance(loss, neighbours, l1=n_columns, squared_l2=n_columns)
            affordable = n_rows / n_classes / max(PAIR_DEVIATIONS * noise**0.5, PAIR_ROWS)
            for n_groups in TABLE_GROUPS:
                if np.median([n_groups if column.ordered else column.n_bins for column in columns]) <= affordable:
                    return cls(n_columns, n_groups)
        return cls(1, TABLE_GROUPS[-1])


# -- the choice --------------------------------------------------------------------------------------------------------


def choose_tables(
    columns: Sequence[BinnedColumn], sizes: TableSizes, counts: Floats, variance: float
) -> list[ContingencyTable]:
    """Return the tables selected by noisy class counts by bin of every column, strongest column first.

    ``variance`` is the variance of the noise. Counts of 0 yield tables determined by priors only.
    """
    parts = np.split(counts, np.cumsum([column.n_bins for column in columns])[:-1])
    totals = np.maximum(np.mean([part.sum(axis=0) for part in parts], axis=0), 1.0)
    axes, strengths, noise = [], [], variance * len(totals)
    for column, part in zip(columns, parts, strict=True):
        rows = part.sum(axis=1)[: column.n_value_bins]
        mass = posterior_counts(rows, column.prior, noise, totals.sum()) if column.ordered else column.prior
        axes.append(column.equal_mass_groups(mass, sizes.n_groups))
        strengths.append(_strength(part, axes[-1], totals / totals.sum(), variance))
    order = np.argsort(-np.array(strengths), kind="stable")[: sizes.n_columns]
    return [ContingencyTable((axes[place],)) for place in order]


def _strength(part: Floats, axis: Axis, shares: Floats, variance: float) -> float:
    """Return the number of rows whose class a column distinguishes, beyond noise and sampling error."""
    grouped = np.zeros((axis.size, len(shares)))
    np.add.at(grouped, axis.groups, part)
    rows, noise = grouped.sum(axis=1, keepdims=True), variance * np.bincount(axis.groups)[:, None]
    chance = (2 / np.pi * (noise + np.maximum(rows, 0.0) * shares * (1 - shares))) ** 0.5
    return float((np.abs(grouped - rows * shares) - chance).sum())


def to_plain(tables: Sequence[ContingencyTable]) -> list[PlainTable]:
    """Return tables as they are written in plans."""
    axes = [axis for table in tables for axis in table.axes]
    firsts = [np.flatnonzero(np.diff(axis.groups)) + 1 if axis.ordered else np.empty(0, np.int64) for axis in axes]
    return [[axis.feature, *first.tolist()] for axis, first in zip(axes, firsts, strict=True)]


def from_plain(columns: Sequence[BinnedColumn], tables: Sequence[PlainTable]) -> list[ContingencyTable]:
    """Return the tables that a plan lists; raise ValueError if the columns have no such groups."""
    return [ContingencyTable((_read_axis(columns, *table),)) for table in tables]


def _read_axis(columns: Sequence[BinnedColumn], feature: int, *firsts: int) -> Axis:
    if not feature < len(columns):
        raise ValueError("a table has a column that the schema lacks")
    column = columns[feature]
    if not column.ordered:
        if firsts:
            raise ValueError("categories are not grouped")
        return column.ungrouped_axis()
    if not all(low < high for low, high in pairwise((0, *firsts, column.n_bins))):
        raise ValueError("groups of numbers ascend")
    groups = np.searchsorted(firsts, np.arange(column.n_bins), side="right").astype(np.uint16)
    return Axis(feature, groups, True, len(firsts) + 1, column.starts)


# -- scores ------------------------------------------------------------------------------------------------------------


class FixedScores(NamedTuple):
    """Initial score and scores of tables, computed from estimated counts; input of a ``PrivateForestModel``."""

    start: Int32s
    steps: tuple[TableScores, ...]
    cell_forest: None = None
    cell_weight: float = 0.0


def score_tables(
    tables: Sequence[ContingencyTable], cells: Int32s, forest: Forest, leaves: Ints, variance: float
) -> FixedScores:
    """Return scores by cell from estimated class counts of leaves; ``variance`` is the variance of one estimate."""
    counted = []
    for table, place, part in zip(
        tables, np.split(cells, forest.tree_leaves[1:-1]), np.split(leaves, forest.tree_leaves[1:-1]), strict=True
    ):
        counts = np.zeros((table.n_cells, leaves.shape[1]))
        counts[place] = part
        counted.append(counts)
    totals = shrinkage.pool_class_counts(
        [counts.sum(axis=0) for counts in counted], [variance * len(counts) for counts in counted], None
    )
    steps = []
    for table, counts in zip(tables, counted, strict=True):
        values = shrinkage.log_ratios(
            shrinkage.shrunken_counts(counts, totals, variance), totals, variance, len(tables)
        )
        scores = np.rint(values * SCORE_UNITS).astype(np.int32)
        steps.append(TableScores(table, scores, StepMeasurement(counts, variance)))
    return FixedScores(shrinkage.initial_scores(totals), tuple(steps))
