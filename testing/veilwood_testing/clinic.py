# SPDX-License-Identifier: Apache-2.0
"""A table of patients with missing values, for two classes, three classes and a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import veilwood as vw
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
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.forests.adaptive.contingency import BinnedColumn, bin_columns
from veilwood.forests.adaptive.row_backend import LEVEL_UNITS, ScoredRows, n_outputs

CLINIC: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
    {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"], "nullable": True},
    {"name": "debt", "kind": "numeric", "lower": -1e6, "upper": 1e6},
    {"name": "income", "kind": "numeric", "lower": 0, "upper": 1e6, "transform": "log1p"},
]


TARGETS: dict[str, dict[str, Any]] = {
    "two": {"name": "target", "kind": "categorical", "values": ["no", "yes"]},
    "three": {"name": "target", "kind": "categorical", "values": ["a", "b", "c"]},
    "regression": {"name": "target", "kind": "numeric", "lower": -5, "upper": 15},
}


def schema_of(task: str) -> vw.Schema:
    kind = "regression" if task == "regression" else "classification"
    columns = [*CLINIC, TARGETS[task]]
    return vw.Schema.from_dict({"name": "clinic", "task": kind, "target": "target", "columns": columns})


def table_of(task: str, n: int, seed: int = 0) -> tuple[pd.DataFrame, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    age, ward = rng.uniform(0, 100, n), rng.integers(0, 3, n)
    X = pd.DataFrame({
        "age": np.where(rng.random(n) < 0.1, np.nan, age),
        "ward": np.array(["A", "B", "C", None], dtype=object)[np.where(rng.random(n) < 0.1, 3, ward)],
        "debt": rng.normal(0, 1000, n),
        "income": rng.lognormal(8, 2, n),
    })  # fmt: skip
    level = age / 50 + ward + rng.normal(0, 0.2, n)  # from 0 to 4
    if task == "regression":
        return X, 4 * level - 3
    cuts = [2.0] if task == "two" else [1.3, 2.7]
    return X, np.array(TARGETS[task]["values"])[np.searchsorted(cuts, level)]


def forest_of(task: str, **params: Any) -> Any:
    kind = vw.PrivateForestRegressor if task == "regression" else vw.PrivateForestClassifier
    return kind(schema_of(task), **{"random_state": 0, "n_jobs": 1, **params})


COLUMNS = bin_columns(Encoding(schema_of("two")))


def small_table() -> ContingencyTable:
    return ContingencyTable((COLUMNS[0].equal_mass_groups(COLUMNS[0].prior, 3), COLUMNS[1].ungrouped_axis()))


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
