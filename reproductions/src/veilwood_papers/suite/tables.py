# SPDX-License-Identifier: Apache-2.0
"""The tables of the accuracy suite: real ones from a folder, those that scikit-learn brings, and made ones.

Each table belongs to the development suite or to the validation suite, never to both; families of tables are spread
over the two. Constants are settled on development alone. How scores become skills is in ``suite``.
Real tables have the bounds of their JSON schema.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, r2_score

from veilwood.data.schema import Schema
from veilwood_papers.suite.synthetic_tables import MADE, Suite, SuiteTable

__all__ = [
    "LONG",
    "MADE",
    "MOST_ROWS",
    "MOST_TESTED",
    "REAL",
    "FitJob",
    "Suite",
    "SuiteTable",
    "load",
    "names",
    "refused",
    "scored",
    "split",
]


MOST_ROWS: Final = 20_000
"""Of a table; of longer ones a fixed random part is used, except of those named in ``LONG``."""

LONG: Final = frozenset({"adult", "metro-traffic", "covertype", "adult-a1at", "gas-turbine"})

REAL: Final[dict[Suite, tuple[str, ...]]] = {
    "development": (
        "adult", "balance-scale", "banknote", "flight-delay-nyc2013", "heart", "higgs", "mammographic",
        "metro-traffic", "mushroom", "parkinsons", "wall-following-robot",
    ),
    "validation": (
        "adult-a1at", "appliances-energy", "blood-transfusion", "car", "congressional-voting", "covertype",
        "credit-default", "flight-delay-2008", "gas-turbine", "puc-rio", "titanic",
    ),
}  # fmt: skip


def names(suite: Suite, folder: Path | None) -> list[str]:
    """Return the tables of a suite; without a folder those that need none."""
    real = [name for name in REAL[suite] if folder is not None and (folder / f"{name}.csv.gz").exists()]
    return [*real, *MADE[suite]]


def load(suite: Suite, name: str, folder: Path | None) -> SuiteTable:
    """Make or read a table."""
    if name in MADE[suite]:
        return MADE[suite][name](np.random.default_rng(zlib.crc32(name.encode())))
    if name not in REAL[suite]:
        raise ValueError(f"there is no table {name!r}: {', '.join((*REAL[suite], *MADE[suite]))}")
    if folder is None:
        raise ValueError(f"table {name!r} is read from a folder: give it with --data")
    schema = Schema.load(folder / f"{name}.json")
    frame = pd.read_csv(folder / f"{name}.csv.gz", keep_default_na=False, dtype=str)
    if len(frame) > MOST_ROWS and name not in LONG:
        frame = frame.sample(MOST_ROWS, random_state=0).reset_index(drop=True)
    # The tables are public, and so are bounds that were read off them.
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


MOST_TESTED: Final = 5_000
_LONGEST_NOTE: Final = 80


class FitJob(NamedTuple):
    """One fit; ``epsilon`` is infinite without privacy."""

    suite: Suite
    table: str
    estimator: str
    epsilon: float
    delta: float
    seed: int


def split(n: int, seed: int) -> tuple[Any, Any]:
    """Return training rows and at most ``MOST_TESTED`` test rows."""
    order = np.random.default_rng([seed, 7]).permutation(n)
    n_test = max(1, n // 4)
    return order[n_test:], order[: min(n_test, MOST_TESTED)]


def refused(job: FitJob, why: str) -> dict[str, Any]:
    """Return the line of a fit that did not happen."""
    note = f"refused: {' '.join(why.split())}"[:_LONGEST_NOTE]
    return {**job._asdict(), "score": "", "log_loss": "", "cpu_s": "", "note": note}


def scored(
    job: FitJob, table: SuiteTable, test: Any, predicted: Any, shares: Any, took: float, note: str
) -> dict[str, Any]:
    """Return the line of a fit: predicted labels or numbers, and shares of classes where there are any."""
    truth, classes, told = table.y.iloc[test], table.schema.classes, float("nan")
    score = float(np.mean(np.asarray(predicted) == truth.to_numpy())) if classes else _r2(truth, predicted)
    if shares is not None:
        told = _log_loss(truth, shares, classes)
    line = {"score": round(score, 5), "log_loss": round(told, 5), "cpu_s": round(took, 3), "note": note}
    return {**job._asdict(), **line}


def _r2(truth: Any, predicted: Any) -> float:
    if np.ptp(truth) == 0:  # a constant target: how near its scale the prediction is
        return 1.0 - float(np.mean((np.asarray(predicted) - np.asarray(truth)) ** 2))
    return float(r2_score(truth, predicted))


def _log_loss(truth: Any, shares: Any, classes: tuple[str, ...]) -> float:
    shares = np.clip(np.asarray(shares, float), 1e-6, 1.0)
    place = np.array([classes.index(value) for value in truth])
    return float(log_loss(place, shares / shares.sum(axis=1, keepdims=True), labels=list(range(len(classes)))))
