# SPDX-License-Identifier: Apache-2.0
"""Figure 3a of M-RF: accuracy against the number of trees on Car."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood.papers.drawing import lines
from veilwood.papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, Values, falls, keeps, text_of
from veilwood.papers.mrf.methods import (
    DISJOINT,
    LAPLACE,
    PREDICT,
    PUBLISHED_AS,
    TRAIN,
    accuracy,
    load,
    repeats,
    split,
)  # fmt: skip
from veilwood.papers.published import mrf_values
from veilwood.papers.tables import Tables

COUNTS, EPSILON, DEPTH = (1, 4, 8, 16, 32, 64, 128), 2.0, 4
METHODS = (TRAIN, LAPLACE, DISJOINT, PREDICT)


def jobs(quick: bool) -> list[Job]:
    """Twenty splits and forests; quick: five, and fewer counts."""
    return repeats("Car", "car", 5 if quick else 20, 1.5, counts=COUNTS[::2] if quick else COUNTS)


def measure(job: Job, tables: Tables) -> Iterator[Row]:
    """All methods at all counts, on one split."""
    seed = job.settings["seed"]
    data = split(load(tables, "car"), seed)
    for count in job.settings["counts"]:
        for method in METHODS:
            value = accuracy(data, method, {"n_estimators": count, "max_depth": DEPTH}, EPSILON, seed)
            yield Row(Cell("Car", method, text_of(count)), seed, value)


def published() -> Values:
    """The authors' result files."""
    return mrf_values("mrf_accuracy_vs_trees_car", "tau", PUBLISHED_AS, lambda row: row["dataset"])


def why(cell: Cell) -> str:
    """Say why a cell is below the published one."""
    return "published on one split and one forest, where only the noise was drawn again; here splits and forests too."


EXPERIMENT = Experiment("mrf-trees", jobs, measure)
EXHIBITS = (
    Exhibit(
        "mrf", "figure 3a", "Accuracy against the number of trees",
        "Car, depth 4, epsilon 2, 80:20 splits, 20 repeats.", EXPERIMENT,
        lines("number of trees", "accuracy", log_x=True), quick="5 repeats, every other count.", published=published,
        why=why,
        claims=(
            Claim("DP batch training preserves good accuracy as the number of trees increases.", keeps(TRAIN)),
            Claim("Batch training with the Laplace mechanism suffers from more trees.", falls(LAPLACE)),
            Claim("Disjoint training suffers from more trees.", falls(DISJOINT)),
        ),
    ),
)  # fmt: skip
