# SPDX-License-Identifier: Apache-2.0
"""Figure 4 of the appendix of M-RF: subsample-and-aggregate against the number of inference queries on Car."""

from __future__ import annotations

from veilwood.papers.exhibit import Claim, all_of, between
from veilwood.papers.mrf.figure_3b import PANEL, by_queries
from veilwood.papers.mrf.methods import HARD, HARD_EACH, WEIGHT, WEIGHT_EACH

EXHIBITS = (
    by_queries(
        "appendix figure 4", "Subsample-and-aggregate against the number of inference queries",
        (WEIGHT, WEIGHT_EACH, HARD, HARD_EACH),
        Claim("Predicting 50 samples results in 30-35 % accuracy for the baselines (between 20 and 45 %).",
              all_of(*(between(curve, PANEL, "50", 0.2, 0.45) for curve in (WEIGHT_EACH, HARD_EACH)))),
        Claim("The optimised allocation maintains 70 % for hard voting at 1000 samples (at least 67 %).",
              between(HARD, PANEL, "1000", 0.67, 1.0)),
        Claim("... and 80 % for weight voting (at least 77 %).", between(WEIGHT, PANEL, "1000", 0.77, 1.0)),
    ),
)  # fmt: skip
