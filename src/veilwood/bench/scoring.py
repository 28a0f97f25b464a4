# SPDX-License-Identifier: Apache-2.0
"""One fit of the suite: which rows it learns from, and how what it predicts is scored."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.metrics import log_loss, r2_score

from veilwood.bench.tables import Suite, SuiteTable

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
