# SPDX-License-Identifier: Apache-2.0
"""Figure 2 of the appendix of M-RF: run times broken down by phase."""

from __future__ import annotations

from veilwood.papers.exhibit import Claim, at
from veilwood.papers.mrf.methods import TRAIN
from veilwood.papers.mrf.runtime import FIT, OPTIMISE, SECONDS
from veilwood.papers.mrf.table_1 import run_times

EXHIBITS = (
    run_times(
        "appendix figure 2", "Run times by phase",
        Claim("The large optimisation cost is seen with Car: more than with any other data set.",
              lambda values: _largest(at(values, TRAIN, measure=SECONDS))),
        Claim("Noise optimisation is the larger part of Car's run time, and fitting a small one (less than half "
              "of it).", lambda values: _small_fit(at(values, TRAIN, panel="Car", measure=SECONDS))),
    ),
)  # fmt: skip


def _largest(times: dict[tuple[str, str], float]) -> bool | None:
    found = {panel: seconds for (panel, phase), seconds in times.items() if phase == OPTIMISE}
    return max(found, key=lambda panel: found[panel]) == "Car" if "Car" in found and len(found) > 1 else None


def _small_fit(times: dict[tuple[str, str], float]) -> bool | None:
    return times["Car", FIT] < 0.5 * times["Car", OPTIMISE] if times else None
