# SPDX-License-Identifier: Apache-2.0
"""Tables of the accuracy suite: real tables from a folder, tables of scikit-learn, and synthetic tables.

Each table belongs to either the development or the validation suite; families of tables are divided between the two.
Constants are tuned on the development suite only. Real tables have the bounds of their JSON schema. ``accuracy``
computes skills from scores.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, r2_score, roc_auc_score

from veilwood.data.schema import Schema
from veilwood_papers.suite.synthetic_tables import SYNTHETIC, Suite, SuiteTable

MAX_ROWS: Final = 20_000
"""Maximum number of rows. Larger tables are sampled with a fixed seed, except those in ``UNTRUNCATED``."""

UNTRUNCATED: Final = frozenset({"adult", "metro-traffic", "covertype", "adult-a1at", "gas-turbine"})

REAL_TABLES: Final[dict[Suite, tuple[str, ...]]] = {
    "development": (
        "adult", "balance-scale", "banknote", "flight-delay-nyc2013", "heart", "higgs", "mammographic",
        "metro-traffic", "mushroom", "parkinsons", "wall-following-robot",
    ),
    "validation": (
        "adult-a1at", "appliances-energy", "blood-transfusion", "car", "congressional-voting", "covertype",
        "credit-default", "flight-delay-2008", "gas-turbine", "puc-rio", "titanic",
    ),
}  # fmt: skip


def table_names(suite: Suite, folder: Path | None) -> list[str]:
    """Return the names of a suite's tables; without a folder, only those that need no file."""
    real = [name for name in REAL_TABLES[suite] if folder is not None and (folder / f"{name}.csv.gz").exists()]
    return [*real, *SYNTHETIC[suite]]


def load_table(suite: Suite, name: str, folder: Path | None) -> SuiteTable:
    """Return a table, generated or read. Raise ValueError if it is unknown or needs a folder."""
    if name in SYNTHETIC[suite]:
        return SYNTHETIC[suite][name](np.random.default_rng(zlib.crc32(name.encode())))
    if name not in REAL_TABLES[suite]:
        raise ValueError(f"there is no table {name!r}: {', '.join((*REAL_TABLES[suite], *SYNTHETIC[suite]))}")
    if folder is None:
        raise ValueError(f"table {name!r} is read from a folder: give it with --data")
    schema = Schema.load(folder / f"{name}.json")
    frame = pd.read_csv(folder / f"{name}.csv.gz", keep_default_na=False, dtype=str)
    if len(frame) > MAX_ROWS and name not in UNTRUNCATED:
        frame = frame.sample(MAX_ROWS, random_state=0).reset_index(drop=True)
    # The tables are public, so bounds taken from them are too.
    facts, columns = replace(schema, inferred=False).to_dict(), {}
    for entry in facts["columns"]:
        values = frame[entry["name"]]
        if entry["kind"] == "numeric":
            values = pd.to_numeric(values.where(values != ""), errors="raise")
            if values.isna().any():
                entry["nullable"] = True
        columns[entry["name"]] = values
    schema = Schema.from_dict(facts)
    y = columns.pop(schema.target.name)
    return SuiteTable(schema, pd.DataFrame(columns), y)


MAX_TEST_ROWS: Final = 5_000
_MAX_NOTE_LENGTH: Final = 80


class FitJob(NamedTuple):
    """Key of one fit. ``epsilon`` is infinite without privacy."""

    suite: Suite
    table: str
    estimator: str
    epsilon: float
    delta: float
    seed: int


def split_rows(n: int, seed: int) -> tuple[Any, Any]:
    """Return training rows and at most ``MAX_TEST_ROWS`` test rows."""
    order = np.random.default_rng([seed, 7]).permutation(n)
    n_test = max(1, n // 4)
    return order[n_test:], order[: min(n_test, MAX_TEST_ROWS)]


def skipped_row(job: FitJob, reason: str) -> dict[str, Any]:
    """Return the cache line of a fit that the estimator rejected."""
    note = f"refused: {' '.join(reason.split())}"[:_MAX_NOTE_LENGTH]
    return {**job._asdict(), "score": "", "log_loss": "", "auc": "", "cpu_s": "", "note": note}


def result_row(
    job: FitJob, table: SuiteTable, test: Any, predicted: Any, probabilities: Any, cpu_seconds: float, note: str
) -> dict[str, Any]:
    """Return the cache line of a fit, from its predictions and class probabilities (or None)."""
    truth, classes, loss, auc = table.y.iloc[test], table.schema.classes, float("nan"), float("nan")
    score = float(np.mean(np.asarray(predicted) == truth.to_numpy())) if classes else _r_squared(truth, predicted)
    if probabilities is not None:
        loss = _log_loss(truth, probabilities, classes)
        if len(classes) == 2 and truth.nunique() == 2:
            auc = float(roc_auc_score(truth.to_numpy() == classes[1], np.asarray(probabilities)[:, 1]))
    line = {"score": round(score, 5), "log_loss": round(loss, 5), "auc": round(auc, 5), "cpu_s": round(cpu_seconds, 3)}
    return {**job._asdict(), **line, "note": note}


def _r_squared(truth: Any, predicted: Any) -> float:
    if np.ptp(truth) == 0:  # R2 is undefined for a constant target: score how close the prediction is on its scale
        return 1.0 - float(np.mean((np.asarray(predicted) - np.asarray(truth)) ** 2))
    return float(r2_score(truth, predicted))


def _log_loss(truth: Any, probabilities: Any, classes: tuple[str, ...]) -> float:
    probabilities = np.clip(np.asarray(probabilities, float), 1e-6, 1.0)
    place = np.array([classes.index(value) for value in truth])
    return float(
        log_loss(place, probabilities / probabilities.sum(axis=1, keepdims=True), labels=list(range(len(classes))))
    )
