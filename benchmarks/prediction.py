# SPDX-License-Identifier: Apache-2.0
"""CPU time of predictions with each estimator: one row as an array and as a frame, and 5,000 rows.

The schema has 20 numeric columns, with linear or log1p scale. ``fit`` prepares everything that a prediction needs; a
row should take less than a millisecond.

    python benchmarks/prediction.py
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import veilwood as vw
from veilwood import estimators

N_COLUMNS, N_ROWS = 20, 5000


def milliseconds(predict: Callable[[Any], Any], rows: Any, runs: int) -> float:
    """CPU time of one prediction, the median of seven series."""
    predict(rows)
    series = []
    for _ in range(7):
        start = time.process_time()
        for _ in range(runs):
            predict(rows)
        series.append((time.process_time() - start) / runs * 1000)
    return float(np.median(series))


def schema(task: str, transform: str | None) -> vw.Schema:
    """Twenty numbers, and a target."""
    scale = {} if transform is None else {"transform": transform}
    columns: list[dict[str, Any]] = [
        {"name": f"x{i}", "kind": "numeric", "lower": 0, "upper": 1000, **scale} for i in range(N_COLUMNS)
    ]
    classes = {"name": "y", "kind": "categorical", "values": ["a", "b", "c"]}
    target = classes if task == "classification" else {"name": "y", "kind": "numeric", "lower": 0, "upper": 1}
    return vw.Schema.from_dict({"name": "twenty", "task": task, "target": "y", "columns": [*columns, target]})


def main() -> None:
    """Print a table."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.random((N_ROWS, N_COLUMNS)) * 1000
    print(f"{'CPU milliseconds':28}{'columns':>9}{'one row':>10}{'as frame':>10}{f'{N_ROWS:,} rows':>12}")
    for name in estimators.__all__:
        kind = getattr(estimators, name)
        if not hasattr(kind, "predict"):
            continue
        for transform in (None, "log1p"):
            y: Any = (
                X[:, 0] / 1000
                if kind._task == "regression"
                else np.array(["a", "b", "c"])[(X[:, 0] // 334).astype(int)]
            )
            forest = kind(schema(kind._task, transform), random_state=0, n_jobs=1)
            if "max_features" in forest.get_params():
                forest.set_params(n_estimators=32, max_depth=2, max_features=5)
            forest.fit(X, y)
            frame = pd.DataFrame(X[:1], columns=[f"x{i}" for i in range(N_COLUMNS)])
            rows = ((X[:1], 200), (frame, 50), (X, 3))
            times = [milliseconds(forest.predict, table, runs) for table, runs in rows]
            print(f"{name:28}{transform or 'plain':>9}{times[0]:10.2f}{times[1]:10.2f}{times[2]:12.1f}", flush=True)


if __name__ == "__main__":
    main()
