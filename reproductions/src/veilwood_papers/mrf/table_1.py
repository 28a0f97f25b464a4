# SPDX-License-Identifier: Apache-2.0
"""Table 1 of M-RF, and Figure 2 of its appendix: run times compared with non-private forests, and by phase."""

from __future__ import annotations

from veilwood_papers import exhibit
from veilwood_papers.drawing import bar_chart
from veilwood_papers.exhibit import Cell, Claim, Exhibit, Value, Values, check_above, curve_means, parse_number
from veilwood_papers.mrf.methods import NO_NOISE, PREDICT, TRAIN
from veilwood_papers.mrf.runtime import ASK, EXPERIMENT, FIT, OPTIMISE, SECONDS

METHODS = {"DP batch prediction": PREDICT, "DP batch training": TRAIN, "non-DP": NO_NOISE}
PANELS = ("Car", "Iris", "Balance", "Heart", "Mushroom")
COLUMNS = {OPTIMISE: "noise_optimisation_s", FIT: "fitting_s", ASK: "prediction_s"}
SETTINGS = (
    "CPU seconds on one thread, epsilon 1, the settings of Figure 2 (Heart: two ensembles). Ours: trees and strategy "
    "together, since both need no data. Published: wall seconds on a laptop, as bars of the appendix show them; the "
    "table itself is not in the text that we hold."
)


def published_values() -> Values:
    """Return the bars of appendix Figure 2, digitised from the image."""
    values: Values = {}
    for row in exhibit.read_published("mrf_runtime_all_datasets_figure2_digitised"):
        for phase, column in COLUMNS.items():
            seconds = parse_number(row[column])
            if row["dataset"] in PANELS and seconds == seconds:
                values[Cell(row["dataset"], METHODS[row["method"]], phase, SECONDS)] = Value(seconds)
    return values


def run_times(name: str, title: str, *claims: Claim) -> Exhibit:
    """Return an exhibit of the run times, with the paper's claims about them."""
    return Exhibit(
        "mrf", name, title, f"{SETTINGS} 10 repeats.", EXPERIMENT, bar_chart("seconds", log_y=True), quick="3 repeats.",
        shows=lambda cell: cell.panel in PANELS and cell.measure == SECONDS,
        wants=lambda job: job.settings["panel"] in PANELS, published=published_values, claims=claims,
    )  # fmt: skip


EXHIBITS = (
    run_times(
        "table 1", "Run time of training and prediction",
        Claim("The primary overhead comes from optimisation: it takes longer than fitting and prediction.",
              lambda values: _optimisation_dominates(values)),
        Claim("Our approach maintains minimal run-time overhead during training (at most 0.1 s more than without "
              "noise).", check_above(NO_NOISE, TRAIN, by=-0.1, only=lambda panel, x: x == FIT)),
    ),
    run_times(
        "appendix figure 2", "Run times by phase",
        Claim("The large optimisation cost is seen with Car: more than with any other data set.",
              lambda values: _is_car_slowest(curve_means(values, TRAIN, measure=SECONDS))),
        Claim("Noise optimisation is the larger part of Car's run time, and fitting a small one (less than half "
              "of it).", lambda values: _is_fit_faster(curve_means(values, TRAIN, panel="Car", measure=SECONDS))),
    ),
)  # fmt: skip


def _optimisation_dominates(values: Values) -> bool | None:
    answers = []
    for panel in PANELS:
        times = [values.get(Cell(panel, TRAIN, phase, SECONDS)) for phase in (OPTIMISE, FIT, ASK)]
        if all(time is not None for time in times):
            answers.append(times[0].mean > max(times[1].mean, times[2].mean))  # type: ignore[union-attr]
    return all(answers) if answers else None


def _is_car_slowest(times: dict[tuple[str, str], float]) -> bool | None:
    searches = {panel: seconds for (panel, phase), seconds in times.items() if phase == OPTIMISE}
    return (
        max(searches, key=lambda panel: searches[panel]) == "Car" if "Car" in searches and len(searches) > 1 else None
    )


def _is_fit_faster(times: dict[tuple[str, str], float]) -> bool | None:
    return times["Car", FIT] < 0.5 * times["Car", OPTIMISE] if times else None
