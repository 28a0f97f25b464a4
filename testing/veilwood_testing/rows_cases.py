# SPDX-License-Identifier: Apache-2.0
"""Random rows with scores, and a query of every kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from veilwood.data.counts import (
    ALL_ROWS,
    ClassesByCell,
    ContingencyTable,
    EvidenceGain,
    GradientSums,
    ResidualHistogram,
    RowQuery,
    RowsByCell,
    TargetHistogram,
    TargetSums,
)
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.adaptive.contingency import BinnedColumn
from veilwood.forests.adaptive.row_backend import LEVEL_UNITS, ScoredRows, n_outputs
from veilwood_testing.clinic import COLUMNS

N_CLASSES = {"two": 2, "three": 3, "regression": 0, "five": 5}


def random_rows(n_classes: int, n: int, rng: np.random.Generator) -> ScoredRows:
    """Rows with scores as extreme as rounds can make them, mild ones among them."""
    outputs = n_classes if n_classes > 2 else 1
    scale = rng.choice([10.0, 3000.0, 1e6], (n, 1))
    return ScoredRows(
        np.stack([rng.integers(0, column.n_bins, n) for column in COLUMNS]).astype(np.uint8),
        rng.integers(0, n_classes or TARGET_LEVELS + 1, n).astype(np.int32),
        np.rint(rng.normal(size=(n, outputs)) * scale).astype(np.int32),
    )


def query_tables(columns: Sequence[BinnedColumn]) -> list[ContingencyTable]:
    """Tables of no, one and several columns, so many that a compiled loop covers several by one."""
    axes = [column.equal_mass_groups(column.prior, 3) for column in columns]
    fine = [ContingencyTable((column.ungrouped_axis(),)) for column in columns]
    return [ALL_ROWS, *fine, *(ContingencyTable((axes[0], axis)) for axis in axes[1:]), ContingencyTable(tuple(axes))]


def every_query(columns: Sequence[BinnedColumn], n_classes: int) -> list[RowQuery]:
    """Queries of every kind for these classes, or for a number (0)."""
    tables = query_tables(columns)
    queries: list[RowQuery] = [*map(RowsByCell, tables), GradientSums(tables, n_classes, 700)]
    if n_classes:
        start = np.arange(n_outputs(n_classes), dtype=np.int32) * 70 - 90
        queries += [ClassesByCell([ALL_ROWS], n_classes), ClassesByCell(tables, n_classes)]
        return queries + [EvidenceGain(start, n_classes, 700, most) for most in (300, 10**6)]
    marks = np.rint(np.geomspace(1e-3, 1, 9) * TARGET_LEVELS * LEVEL_UNITS).astype(np.int64)
    return [*queries, TargetHistogram(64), TargetSums(), ResidualHistogram(marks), ResidualHistogram(marks[-1:])]
