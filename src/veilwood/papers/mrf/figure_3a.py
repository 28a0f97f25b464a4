# SPDX-License-Identifier: Apache-2.0
"""Figure 3a of M-RF: accuracy against the number of trees on Car."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from veilwood.papers.drawing import lines
from veilwood.papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, Value, Values, falls, keeps, text_of
from veilwood.papers.mrf.methods import (
    DISJOINT,
    EXTRA,
    FLOATING,
    LAPLACE,
    ONE_FOREST,
    PREDICT,
    PUBLISHED_AS,
    TRAIN,
    accuracy,
    by_trees,
    load,
    split,
    why,
)  # fmt: skip
from veilwood.papers.published import mrf_values, read
from veilwood.papers.tables import Tables

EPSILON, DEPTH = 2.0, 4
METHODS = (TRAIN, LAPLACE, DISJOINT, FLOATING, PREDICT, EXTRA)


def measure(job: Job, tables: Tables) -> Iterator[Row]:
    """All methods at all counts, with one forest each."""
    seed = job.settings["seed"]
    data = split(load(tables, "car"), seed)
    for count in job.settings["counts"]:
        for method in METHODS:
            trees = {"n_estimators": count, "max_depth": DEPTH}
            value = accuracy(data, method, trees, EPSILON, seed, draws=job.settings["draws"])
            yield Row(Cell("Car", method, text_of(count)), seed, value)


def published() -> Values:
    """The authors' result files."""
    found = mrf_values("mrf_accuracy_vs_trees_car", "tau", PUBLISHED_AS, lambda row: row["dataset"])
    return found | {
        Cell("Car", EXTRA, row["n_trees"]): Value(float(row["accuracy"]))
        for row in read("mrf_nonprivate")
        if row["note"] == "accuracy-vs-trees figure"
    }


EXPERIMENT = Experiment("mrf-trees", partial(by_trees, weight=5.0), measure)
EXHIBITS = (
    Exhibit(
        "mrf", "figure 3a", "Accuracy against the number of trees",
        f"Car, depth 4, epsilon 2. {ONE_FOREST} 10 repeats.", EXPERIMENT,
        lines("number of trees", "accuracy", log_x=True), quick="3 repeats of two draws, every other count.",
        published=published, published_once=True, why=why,
        claims=(
            Claim("DP batch training preserves good accuracy as the number of trees increases.", keeps(TRAIN)),
            Claim("Batch training with the Laplace mechanism suffers from more trees.", falls(LAPLACE)),
            Claim("Disjoint training suffers from more trees.", falls(FLOATING)),
        ),
    ),
)  # fmt: skip
