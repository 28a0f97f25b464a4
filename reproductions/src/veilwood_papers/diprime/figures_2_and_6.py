# SPDX-License-Identifier: Apache-2.0
"""Figures 2 and 6 of DiPriMe: accuracy on Banknote against epsilon, rows partitioned or not."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood_papers import exhibit
from veilwood_papers.diprime import methods
from veilwood_papers.diprime.methods import DIPRIME, DP_ERT, ERT, EXP, FLIP, GREEDY, GREEDY_LABELS, MEDIAN, RF, SELECT
from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, Values, as_text, check_above
from veilwood_papers.tables import PublicTables

EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
METHODS = (RF, ERT, MEDIAN, GREEDY_LABELS, GREEDY, DP_ERT, DIPRIME, EXP, FLIP, SELECT)
NO_NOISE = (RF, ERT, MEDIAN)
PANELS = {"disjoint": "Banknote, rows partitioned", "shared": "Banknote, rows not partitioned"}
DEPTH, GREEDY_DEPTH = 5, 2  # multiway trees of five bins, as in Table 2


def list_jobs(quick: bool) -> list[Job]:
    """Return one job per split: twenty, or five in a quick run."""
    return [
        Job(f"{panel}, seed {seed}", "banknote", {"trees": trees, "seed": seed}, 0.7)
        for trees, panel in PANELS.items()
        for seed in range(5 if quick else 20)
    ]


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure all methods at all epsilons, on one split."""
    trees, seed = job.settings["trees"], job.settings["seed"]
    table = methods.load_table(tables, "banknote")
    for method in METHODS:
        for epsilon in EPSILONS if method not in NO_NOISE else (float("inf"),):
            depth = GREEDY_DEPTH if method in (GREEDY_LABELS, GREEDY) else DEPTH
            forest = methods.make_forest(
                method, table, epsilon=epsilon, n_estimators=10, max_depth=depth, seed=seed, trees=trees
            )
            yield Row(
                Cell(PANELS[trees], method, as_text(epsilon)), seed, methods.holdout_score(forest, table, seed, 1.0)
            )


def near_no_noise(values: Values) -> bool | None:
    """Check that DiPriMe is within 7 points of the median forest without noise at the largest epsilon."""
    free = {cell.panel: value.mean for cell, value in values.items() if cell.curve == MEDIAN}
    last = as_text(EPSILONS[-1])
    gaps = [free[c.panel] - v.mean for c, v in values.items() if c.curve in (DIPRIME, EXP, FLIP) and c.x == last]
    return max(gaps) <= 0.07 if gaps else None


CLAIMS = (
    Claim(
        "DiPriMe has a notable loss of accuracy for small epsilon, and gains as epsilon grows (at least 5 points).",
        lambda values: (
            all(bool(exhibit.check_rises(curve, 0.05)(values)) for curve in (DIPRIME, EXP, FLIP)) if values else None
        ),
    ),
    Claim(
        "... comparable performance as epsilon increases (within 7 points of the median forest without noise).",
        near_no_noise,
    ),
    Claim(
        "DP-ERT and DP-DF continue to underperform even as epsilon increases (DP-ERT alone; below every variant of "
        "DiPriMe from 5 on).",
        check_above((DIPRIME, EXP, FLIP), DP_ERT, only=lambda panel, x: float(x) >= 5),
    ),
)
EXPERIMENT = Experiment("diprime-banknote", list_jobs, measure_job)


def make_exhibit(number: int, trees: str) -> Exhibit:
    """Return one of the figures."""
    return Exhibit(
        "diprime", f"figure {number}", f"Accuracy on Banknote against epsilon, {PANELS[trees].split(', ')[1]}",
        "Banknote, 90:10 splits, 10 trees of depth 5 (greedy ones: 2, five branches each), half of epsilon on "
        "splits, 20 splits. DP-DF is not measured: sound greedy forests are in its place.",
        EXPERIMENT, line_chart("epsilon", "accuracy", log_x=True, flat=NO_NOISE), quick="5 splits.",
        shows=lambda cell: cell.panel == PANELS[trees], wants=lambda job: job.settings["trees"] == trees, claims=CLAIMS,
    )  # fmt: skip


EXHIBITS = (make_exhibit(2, "disjoint"), make_exhibit(6, "shared"))
