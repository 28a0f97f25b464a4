# SPDX-License-Identifier: Apache-2.0
"""Worker that times one fit and its predictions. It is run by its path, in an environment with the library.

``python speed_worker.py JSON`` creates a table, fits it with one thread, and prints CPU seconds and memory as JSON. It
imports Veilwood only to measure it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

WARM_ROWS = 2000
ONE_ROW_TIMES = 200
PRIVATE = ("PrivateForest", "RandomTrees", "MedianForest", "GreedyForest", "MatrixForest")


def make_table(n_rows: int, n_columns: int, n_classes: int) -> tuple[Any, Any]:
    """Return normal columns and a target from sums and products of some of them: classes, or numbers for 0 classes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, n_columns))
    score = X[:, : min(5, n_columns)].sum(axis=1) + 0.2 * X.sum(axis=1) + X[:, 0] * X[:, -1]
    score += rng.logistic(size=n_rows)
    if not n_classes:
        return X, np.clip(score, -20, 20)
    return X, np.searchsorted(np.quantile(score, np.arange(1, n_classes) / n_classes), score)


def make_model(case: dict[str, Any]) -> Any:
    """Return an estimator with default parameters."""
    kind, n_classes, columns = case["estimator"], case["classes"], case["columns"]
    task = "Classifier" if n_classes else "Regressor"
    if kind in PRIVATE:
        from veilwood import estimators
        from veilwood.data.schema import Schema

        target: dict[str, Any] = {"classes": list(range(n_classes))} if n_classes else {"target_bounds": (-20, 20)}
        schema = Schema.numeric((-5, 5), n_features=columns, **target)
        more = {"n_estimators": case["trees"]} if case.get("trees") else {}
        return getattr(estimators, kind + task)(schema, epsilon=case["epsilon"], random_state=0, n_jobs=1, **more)
    if kind == "DP-EBM":
        from interpret import privacy

        bounds = {"privacy_bounds": {i: (-5.0, 5.0) for i in range(columns)}, "feature_types": ["continuous"] * columns}
        more = {} if n_classes else {"privacy_target_min": -20.0, "privacy_target_max": 20.0}
        maker = getattr(privacy, f"DPExplainableBoosting{task}")
        return maker(**bounds, **more, epsilon=case["epsilon"], delta=1e-6, random_state=0, n_jobs=1)
    from sklearn import ensemble

    if kind == "ExtraTrees":
        return getattr(ensemble, kind + task)(case.get("trees") or 100, random_state=0, n_jobs=1)
    return getattr(ensemble, kind + task)(random_state=0)


def resident_bytes() -> int:
    """Return the resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def time_one_row(model: Any, row: Any) -> float:
    """Return the CPU milliseconds of predicting one row."""
    model.predict(row)
    began = time.process_time()
    for _ in range(ONE_ROW_TIMES):
        model.predict(row)
    return (time.process_time() - began) / ONE_ROW_TIMES * 1e3


def measure_case(case: dict[str, Any]) -> dict[str, float]:
    """Measure a fit and its predictions, after a small warm-up fit that loads and compiles the code."""
    X, y = make_table(case["rows"], case["columns"], case["classes"])
    small = make_model(case)
    if case["estimator"] in PRIVATE:
        small.random_state = 1  # the warm-up searches strategies for other trees, so the fit cannot reuse them
    small.fit(X[:WARM_ROWS], y[:WARM_ROWS]).predict(X[:WARM_ROWS])
    figures: dict[str, float] = {"input_bytes": X.nbytes}
    peak = Path("/proc/self/clear_refs")
    if peak.exists():
        peak.write_text("5")  # reset the peak of resident memory
    before = resident_bytes() if Path("/proc/self/statm").exists() else 0
    model, began = make_model(case), time.process_time()
    model.fit(X, y)
    figures["fit"] = time.process_time() - began
    if before:
        peak_kilobytes = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
        figures["memory_bytes"] = int(peak_kilobytes) * 1024 - before
    began = time.process_time()
    predicted = model.predict(X)
    figures["predict"] = time.process_time() - began
    figures["score"] = float((predicted == y).mean() if case["classes"] else np.corrcoef(predicted, y)[0, 1] ** 2)
    if case.get("one_row"):
        figures["row_ms"] = time_one_row(model, X[:1])
        if hasattr(model, "feature_names_in_"):
            import pandas as pd

            figures["frame_ms"] = time_one_row(model, pd.DataFrame(X[:1], columns=list(model.feature_names_in_)))
    return figures


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(measure_case(json.loads(sys.argv[1]))))
