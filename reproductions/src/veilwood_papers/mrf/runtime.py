# SPDX-License-Identifier: Apache-2.0
"""Experiment on the run times of M-RF: CPU seconds of each phase on one thread."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from veilwood.estimators import MatrixForestClassifier, MatrixForestPredictor
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.safe_io import CACHE_VARIABLE
from veilwood_papers.exhibit import Cell, Experiment, Job, Row
from veilwood_papers.mrf.methods import METHODS, NO_NOISE, PREDICT, TRAIN, WEIGHT, SplitData, load_table, split_table
from veilwood_papers.tables import PublicTables

OPTIMISE, FIT, ASK = "trees and strategy", "fit", "predict"
SECONDS, ACCURACY = "seconds of CPU", "accuracy"

# Panel, table, q, dbar, tau, h: the paper's settings for run times, at epsilon 1.
SIZES = {
    "Car": ("car", 1, 6, 128, 4),
    "Iris": ("iris", 1, 4, 64, 2),
    "Balance": ("balance-scale", 1, 4, 128, 2),
    "Heart": ("heart", 2, 4, 128, 2),
    "Mushroom": ("mushroom", 5, 4, 125, 3),
    "Car, q=2": ("car", 2, 4, 128, 4),
    "Car, 16 trees": ("car", 1, 6, 16, 3),
    "Car, 16 trees, q=2": ("car", 2, 4, 16, 3),
}


def list_jobs(quick: bool) -> list[Job]:
    """Return one job per forest: ten, or three in a quick run."""
    return [
        Job(f"{panel}, seed {seed}", size[0], {"panel": panel, "seed": seed}, 5.0 if panel == "Mushroom" else 1.2)
        for panel, size in SIZES.items()
        for seed in range(3 if quick else 10)
    ]


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure the phases of each method at one size, after a small warm-up fit that loads compiled code."""
    panel, seed = job.settings["panel"], job.settings["seed"]
    table, q, dbar, tau, h = SIZES[panel]
    trees = {"n_ensembles": q, "max_features": dbar, "n_estimators": tau, "max_depth": h}
    data = split_table(load_table(tables, table), seed)
    MatrixForestClassifier(data.schema, n_estimators=4, max_depth=1, n_jobs=1).fit(data.X, data.y).predict(data.X_test)
    kinds = (WEIGHT,) if "16 trees" in panel else (NO_NOISE, TRAIN, PREDICT)
    for method in kinds:
        with _empty_cache():  # a strategy that another figure has searched would take no time
            timed = list(_time_phases(method, data, trees, seed))
        yield from (Row(Cell(panel, method, x, measure_name), seed, value) for x, measure_name, value in timed)


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Give searches an empty cache, and restore the previous cache afterwards."""
    before = os.environ.get(CACHE_VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE_VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(CACHE_VARIABLE)
            if before is not None:
                os.environ[CACHE_VARIABLE] = before


def _time_phases(method: str, data: SplitData, trees: dict[str, Any], seed: int) -> Iterator[tuple[str, str, float]]:
    given: dict[str, Any] = {"random_state": seed, "n_jobs": 1, "ledger": MemoryLedger(), **trees}
    if method in (PREDICT, WEIGHT):
        predictor = MatrixForestPredictor(data.schema, mode="batch" if method == PREDICT else "subsample", **given)
        fitted, forest = _time_call(lambda: predictor.fit(data.X, data.y))
        planned, _ = _time_call(lambda: forest.plan_answer(data.X_test))
        answered, labels = _time_call(lambda: forest.answer(data.X_test))
        answered = max(answered - planned, 0.0)  # `answer` plans again
    else:
        forest = MatrixForestClassifier(data.schema, **given, **METHODS[method][1])
        planned, _ = _time_call(forest.plan)
        fitted, _ = _time_call(lambda: forest.fit(data.X, data.y))
        answered, labels = _time_call(lambda: forest.predict(data.X_test))
    yield OPTIMISE, SECONDS, planned
    yield FIT, SECONDS, fitted
    yield ASK, SECONDS, answered
    yield ASK, ACCURACY, float(np.mean(labels == data.truth))


def _time_call(work: Any) -> tuple[float, Any]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


EXPERIMENT = Experiment("mrf-runtime", list_jobs, measure_job)
