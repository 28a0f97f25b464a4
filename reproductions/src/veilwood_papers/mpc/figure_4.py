# SPDX-License-Identifier: Apache-2.0
"""Figure 4 of the paper on secure trees: Laplace against exponential leaves."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, all_of, as_text, check_above
from veilwood_papers.mpc.data import BASELINE, DEPTH, EPSILONS, PUBLISHED, forest_scores, list_splits, load_table
from veilwood_papers.tables import PublicTables

LEAVES = ("laplace", "exponential")


def curve_name(variant: str, leaf: str) -> str:
    """Return the name of a curve: variant and leaf mechanism."""
    return f"{variant}, {leaf} leaves"


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure both variants with both leaf mechanisms at all epsilons, on one split."""
    panel, seed = job.settings["panel"], job.settings["seed"]
    data = load_table(tables, panel)
    for variant in (PUBLISHED, BASELINE):
        for leaf in LEAVES:
            for epsilon in EPSILONS[panel]:
                accuracy = forest_scores(data, variant, epsilon, DEPTH[panel], seed, leaf)[0]
                yield Row(
                    Cell(f"{panel}, depth {DEPTH[panel]}", curve_name(variant, leaf), as_text(epsilon)), seed, accuracy
                )


def _is_small_epsilon(panel: str, x: str) -> bool:
    return float(x) <= (0.01 if panel.startswith("Adult") else 0.5)


EXHIBITS = (
    Exhibit(
        "secure",
        "figure 4",
        "Laplace against exponential leaves",
        "80:20 splits, depths 4, 3 and 5, 100 splits.",
        Experiment("secure-leaves", list_splits, measure_job),
        line_chart("epsilon", "accuracy", log_x=True),
        quick="20 splits.",
        claims=(
            Claim(
                "With large values of epsilon there is no huge difference between the two mechanisms (within 3 "
                "points) ...",
                all_of(
                    *(
                        check_above(curve_name(v, one), curve_name(v, other), by=-0.03, only=lambda p, x: float(x) >= 1)
                        for v in (PUBLISHED, BASELINE)
                        for one, other in (LEAVES, LEAVES[::-1])
                    )
                ),
            ),
            Claim(
                "... with small values of epsilon, the Laplace mechanism consistently outperforms the exponential one.",
                all_of(
                    *(
                        check_above(curve_name(v, "laplace"), curve_name(v, "exponential"), only=_is_small_epsilon)
                        for v in (PUBLISHED, BASELINE)
                    )
                ),
            ),
        ),
    ),
)
