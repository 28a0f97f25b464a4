# SPDX-License-Identifier: Apache-2.0
"""Figure 5 of the appendix of M-RF: weight and hard votes of subsample-and-aggregate against depth and trees on Car."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from veilwood.papers.drawing import lines
from veilwood.papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, Values, falls, keeps, text_of
from veilwood.papers.mrf.methods import (
    HARD,
    HARD_EACH,
    ONE_FOREST,
    PUBLISHED_AS,
    WEIGHT,
    WEIGHT_EACH,
    accuracy,
    by_trees,
    load,
    split,
    why,
)  # fmt: skip
from veilwood.papers.published import mrf_values
from veilwood.papers.tables import Tables

BY_DEPTH, BY_TREES = "a) against depth, 16 trees", "b) against trees, depth 3"
DEPTHS, EPSILON = (2, 3, 4, 5), 2.0
METHODS = (WEIGHT, WEIGHT_EACH, HARD, HARD_EACH)


def measure(job: Job, tables: Tables) -> Iterator[Row]:
    """All methods along both axes, with one forest each."""
    seed = job.settings["seed"]
    data = split(load(tables, "car"), seed)
    sizes = [(BY_DEPTH, depth, 16, depth) for depth in DEPTHS]
    sizes += [(BY_TREES, count, count, 3) for count in job.settings["counts"]]
    for panel, x, trees, depth in sizes:
        for method in METHODS:
            size = {"n_estimators": trees, "max_depth": depth}
            value = accuracy(data, method, size, EPSILON, seed, draws=job.settings["draws"])
            yield Row(Cell(panel, method, text_of(x)), seed, value)


def published() -> Values:
    """The authors' result files."""
    by_depth = mrf_values("mrf_accuracy_vs_depth_car_subsample_aggregate", "h", PUBLISHED_AS, lambda row: BY_DEPTH)
    by_trees = mrf_values("mrf_accuracy_vs_trees_car_subsample_aggregate", "tau", PUBLISHED_AS, lambda row: BY_TREES)
    return by_depth | by_trees


EXPERIMENT = Experiment("mrf-subsample-sizes", partial(by_trees, weight=15.0), measure)
EXHIBITS = (
    Exhibit(
        "mrf", "appendix figure 5", "Votes of subsample-and-aggregate against depth and number of trees",
        f"Car, epsilon 2. {ONE_FOREST} 10 repeats.", EXPERIMENT, lines("depth, or trees", "accuracy", columns=2),
        quick="3 repeats of two draws, every other count.", published=published, published_once=True, why=why,
        claims=(
            Claim("Weight voting tends to exhibit poor accuracy with deeper trees ...", falls(WEIGHT, 0.03,
            panel=BY_DEPTH)),
            Claim("... and a larger number of trees,", falls(WEIGHT, 0.03, panel=BY_TREES)),
            Claim("... hard voting does not.", keeps(HARD, 0.05)),
        ),
    ),
)  # fmt: skip
