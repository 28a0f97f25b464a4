# SPDX-License-Identifier: Apache-2.0
"""Figure 4 of the paper on secure trees: Laplace against exponential leaves."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood_papers.drawing import lines
from veilwood_papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, above, all_of, as_text
from veilwood_papers.mpc.data import BASELINE, DEPTH, EPSILONS, PUBLISHED, load, scores, splits
from veilwood_papers.tables import PublicTables

LEAVES = ("laplace", "exponential")


def curve(variant: str, leaf: str) -> str:
    """Name a variant with its leaves."""
    return f"{variant}, {leaf} leaves"


def measure(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Both variants with both leaves at all epsilons, on one split."""
    panel, seed = job.settings["panel"], job.settings["seed"]
    data = load(tables, panel)
    for variant in (PUBLISHED, BASELINE):
        for leaf in LEAVES:
            for epsilon in EPSILONS[panel]:
                accuracy = scores(data, variant, epsilon, DEPTH[panel], seed, leaf)[0]
                yield Row(
                    Cell(f"{panel}, depth {DEPTH[panel]}", curve(variant, leaf), as_text(epsilon)), seed, accuracy
                )


def _small(panel: str, x: str) -> bool:
    return float(x) <= (0.01 if panel.startswith("Adult") else 0.5)


EXHIBITS = (
    Exhibit(
        "secure", "figure 4", "Laplace against exponential leaves", "80:20 splits, depths 4, 3 and 5, 100 splits.",
        Experiment("secure-leaves", splits, measure), lines("epsilon", "accuracy", log_x=True), quick="20 splits.",
        claims=(
            Claim("With large values of epsilon there is no huge difference between the two mechanisms (within 3 "
                  "points) ...",
                  all_of(*(above(curve(v, one), curve(v, other), by=-0.03, only=lambda p, x: float(x) >= 1)
                           for v in (PUBLISHED, BASELINE) for one, other in (LEAVES, LEAVES[::-1])))),
            Claim("... with small values of epsilon, the Laplace mechanism consistently outperforms the exponential "
                  "one.",
                  all_of(*(above(curve(v, "laplace"), curve(v, "exponential"), only=_small) for v in (PUBLISHED,
                  BASELINE)))),
        ),
    ),
)  # fmt: skip
