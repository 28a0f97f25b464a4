# SPDX-License-Identifier: Apache-2.0
"""A table of patients with missing values, for two classes, three classes and a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import veilwood as vw
from veilwood.data.counts import ContingencyTable
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive.contingency import bin_columns

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
