# SPDX-License-Identifier: Apache-2.0
"""Figure 3b of M-RF, and Figure 4 of its appendix: accuracy against the number of inference queries on Car."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from veilwood.papers.drawing import lines
from veilwood.papers.exhibit import (
    Cell,
    Claim,
    Exhibit,
    Experiment,
    Job,
    Row,
    Values,
    above,
    all_of,
    between,
    text_of,
)  # fmt: skip
from veilwood.papers.mrf.methods import (
    HARD,
    HARD_EACH,
    PREDICT,
    PUBLISHED_AS,
    WEIGHT,
    WEIGHT_EACH,
    Split,
    accuracy,
    load,
    repeats,
)  # fmt: skip
from veilwood.papers.published import mrf_values
from veilwood.papers.tables import Tables

QUERIES, EPSILON, TREES = (5, 10, 50, 100, 500, 1000), 2.0, {"n_estimators": 16, "max_depth": 4}
METHODS = (PREDICT, WEIGHT_EACH, HARD_EACH, WEIGHT, HARD)
SHOWN = (PREDICT, WEIGHT_EACH, HARD_EACH)


def jobs(quick: bool) -> list[Job]:
    """Twenty samples of queries; quick: five."""
    return repeats("Car", "car", 5 if quick else 20, 1.5, queries=QUERIES)


def measure(job: Job, tables: Tables) -> Iterator[Row]:
    """Train on all rows and ask about some of them, as in the paper."""
    seed, table = job.settings["seed"], load(tables, "car")
    order = np.random.default_rng(seed).permutation(len(table.X))
    for n in job.settings["queries"]:
        asked = order[:n]
        data = Split(table.schema, table.X, table.y, table.X.iloc[asked], table.y.iloc[asked].to_numpy())
        for method in METHODS:
            value = accuracy(data, method, TREES, EPSILON, seed)
            yield Row(Cell("Car, rows it was trained on", method, text_of(n)), seed, value)


def published() -> Values:
    """The authors' result files."""
    panel = "Car, rows it was trained on"
    return mrf_values("mrf_accuracy_vs_queries_car", "n_test", PUBLISHED_AS, lambda row: panel)


def why(cell: Cell) -> str:
    """Say why a cell is below the published one."""
    if cell.x in ("5", "10"):
        return "five or ten queries: one label more or less is 10 to 20 points, and published is one sample of queries."
    return "published for one forest and one sample of queries; here a forest and a sample for each repeat."


PANEL = "Car, rows it was trained on"
SETTINGS = "Car, all 1728 rows trained on and a sample of them asked about; 16 trees of depth 4, epsilon 2; 20 repeats."
EXPERIMENT = Experiment("mrf-queries", jobs, measure)
EXHIBITS = (
    Exhibit(
        "mrf", "figure 3b", "Accuracy against the number of inference queries", SETTINGS, EXPERIMENT,
        lines("inference queries", "accuracy", log_x=True), quick="5 repeats.",
        shows=lambda cell: cell.curve in SHOWN,
        published=lambda: {cell: value for cell, value in published().items() if cell.curve in SHOWN}, why=why,
        claims=(
            Claim("The existing approach reaches 30 % accuracy for 100 samples (between 20 and 40 %).",
                  all_of(*(between(curve, PANEL, "100", 0.2, 0.4) for curve in (WEIGHT_EACH, HARD_EACH)))),
            Claim("With DP batch prediction, accuracy remains at 90 % even when predicting 1000 samples (at least 85 "
                  "%).",
                  between(PREDICT, PANEL, "1000", 0.85, 1.0)),
            Claim("DP batch prediction lies above the existing approach at 50 queries and more.",
                  above(PREDICT, (WEIGHT_EACH, HARD_EACH), only=lambda panel, x: float(x) >= 50)),
        ),
    ),
)  # fmt: skip
