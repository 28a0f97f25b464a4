# SPDX-License-Identifier: Apache-2.0
"""Figure 4 of DiPriMe: fraction of a node's rows that goes left, on Banknote. The fractions are exact: NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from veilwood.trees.counting import route_rows
from veilwood.trees.forest import LEAF
from veilwood_papers.diprime.methods import DIPRIME, DP_ERT, EXP, FLIP, SELECT, load_table, make_forest
from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, as_text, check_above
from veilwood_papers.tables import PublicTables

EDGES, SHARE = np.linspace(0, 1, 11), "share of nodes (%)"
METHODS = (DIPRIME, EXP, FLIP, SELECT, DP_ERT)
IMBALANCE = "distance from one half"


def list_jobs(quick: bool) -> list[Job]:
    """Return one job per forest: ten, or three in a quick run."""
    return [Job(f"Banknote, seed {s}", "banknote", {"seed": s}, 0.2) for s in range(3 if quick else 10)]


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure the histogram of left fractions over all reached nodes, and their mean distance from one half."""
    seed, table = job.settings["seed"], load_table(tables, "banknote")
    for method in METHODS:
        fitted = make_forest(method, table, epsilon=2.0, n_estimators=10, max_depth=5, seed=seed).fit(table.X, table.y)
        forest = fitted.forest_
        held = np.bincount(route_rows(forest, fitted._encode_rows(table.X)).ravel(), minlength=forest.n_leaves)
        rows = forest.sum_to_nodes(held)
        inner = np.flatnonzero((forest.feature != LEAF) & (rows > 0))
        left = rows[forest.child[inner]] / rows[inner]
        counts, _ = np.histogram(left, EDGES)
        for middle, count in zip((EDGES[1:] + EDGES[:-1]) / 2, counts, strict=True):
            yield Row(Cell("Banknote", method, as_text(round(float(middle), 2)), SHARE), seed, 100 * count / len(left))
        yield Row(Cell("Banknote, mean", method, "", IMBALANCE), seed, float(np.mean(np.abs(left - 0.5))))


EXHIBITS = (
    Exhibit(
        "diprime",
        "figure 4",
        "Fraction of a node's rows that goes left",
        "Banknote, 10 trees of depth 5, epsilon 2, 10 forests. Exact fractions, which nobody may publish: NOT PRIVATE.",
        Experiment("diprime-balance", list_jobs, measure_job),
        line_chart("fraction that goes left", SHARE, measure=SHARE),
        quick="3 forests.",
        not_private=lambda curve: True,
        claims=(
            Claim(
                "Private median splits are more balanced than random splits: nearer to one half on average.",
                check_above(DP_ERT, (DIPRIME, EXP, FLIP), measure=IMBALANCE),
            ),
        ),
    ),
)
