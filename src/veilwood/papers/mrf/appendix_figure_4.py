# SPDX-License-Identifier: Apache-2.0
"""Figure 4 of the appendix of M-RF: subsample-and-aggregate against the number of inference queries on Car."""

from __future__ import annotations

from veilwood.papers.drawing import lines
from veilwood.papers.exhibit import Claim, Exhibit, all_of, between
from veilwood.papers.mrf.figure_3b import EXPERIMENT, PANEL, SETTINGS, published, why
from veilwood.papers.mrf.methods import HARD, HARD_EACH, WEIGHT, WEIGHT_EACH

SHOWN = (WEIGHT, WEIGHT_EACH, HARD, HARD_EACH)
EXHIBITS = (
    Exhibit(
        "mrf", "appendix figure 4", "Subsample-and-aggregate against the number of inference queries", SETTINGS,
        EXPERIMENT,
        lines("inference queries", "accuracy", log_x=True), quick="3 repeats of two draws.", published_once=True,
        shows=lambda cell: cell.curve in SHOWN,
        published=lambda: {cell: value for cell, value in published().items() if cell.curve in SHOWN}, why=why,
        claims=(
            Claim("Predicting 50 samples results in 30-35 % accuracy for the baselines (between 20 and 45 %).",
                  all_of(*(between(curve, PANEL, "50", 0.2, 0.45) for curve in (WEIGHT_EACH, HARD_EACH)))),
            Claim("The optimised allocation maintains 70 % for hard voting at 1000 samples (at least 67 %).",
                  between(HARD, PANEL, "1000", 0.67, 1.0)),
            Claim("... and 80 % for weight voting (at least 77 %).", between(WEIGHT, PANEL, "1000", 0.77, 1.0)),
        ),
    ),
)  # fmt: skip
