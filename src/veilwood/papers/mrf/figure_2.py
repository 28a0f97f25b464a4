# SPDX-License-Identifier: Apache-2.0
"""Figure 2 of M-RF: accuracy of batch training and prediction against epsilon, on six data sets."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood.papers.drawing import lines
from veilwood.papers.exhibit import (
    SOMEWHERE,
    Cell,
    Claim,
    Exhibit,
    Experiment,
    Job,
    Row,
    Value,
    Values,
    above,
    all_of,
    between,
)  # fmt: skip
from veilwood.papers.mrf.methods import (
    DISJOINT,
    EXTRA,
    LAPLACE,
    PREDICT,
    PUBLISHED_AS,
    SMALL,
    TINY,
    TRAIN,
    USUAL,
    Setting,
    against_epsilon,
    load,
    repeats,
    split,
)  # fmt: skip
from veilwood.papers.published import mrf_values, read
from veilwood.papers.tables import Tables

ADULT = "Adult, 8 columns"
SETTINGS = {
    setting.panel: setting
    for setting in (
        Setting("Car", "car", 1, 6, 128, 4, USUAL, 2.5),
        Setting("Iris", "iris", 1, 4, 64, 2, USUAL, 4.3),
        Setting("Balance", "balance-scale", 1, 4, 128, 2, USUAL, 1.6),
        Setting("Heart", "heart", 3, None, 102, 2, USUAL, 3.5),
        Setting("Mushroom", "mushroom", 5, None, 125, 3, SMALL, 14.0),
        Setting(ADULT, "adult", 1, 8, 16, 6, TINY, 40.0),
    )
}
METHODS = (TRAIN, LAPLACE, DISJOINT, PREDICT, EXTRA)
SMALL_TABLES, LARGE_TABLES = ("Car", "Iris", "Balance"), ("Heart", "Mushroom", ADULT)


def jobs(quick: bool) -> list[Job]:
    """Twenty splits and forests, three of Adult; quick: five, and one of Adult at two epsilons."""
    found = []
    for panel, setting in SETTINGS.items():
        n = (1 if quick else 3) if panel == ADULT else (5 if quick else 20)
        found += repeats(panel, setting.table, n, setting.seconds, panel=panel, quick=quick)
    return found


def measure(job: Job, tables: Tables) -> Iterator[Row]:
    """All methods on one split."""
    setting, seed = SETTINGS[job.settings["panel"]], job.settings["seed"]
    methods: tuple[str, ...] = METHODS
    if setting.panel == ADULT:  # two million leaves: the strategy for 6,513 queries at a time is not searched
        methods = (TRAIN, LAPLACE, DISJOINT, EXTRA)
        if job.settings["quick"]:
            setting = setting._replace(epsilons=(0.1, 1.0))
    yield from against_epsilon(setting, split(load(tables, setting.table), seed), methods, seed)


def published() -> Values:
    """The authors' result files."""
    names = {"Adult-categorical": ADULT}
    found = mrf_values(
        "mrf_accuracy_vs_epsilon_main", "eps", PUBLISHED_AS, lambda row: names.get(row["dataset"], row["dataset"])
    )
    for row in read("mrf_nonprivate"):
        if not row["note"] and row["model"].startswith("scikit-learn") and row["evaluation"] == "80/20 test":
            cell = Cell(names.get(row["dataset"], row["dataset"]), EXTRA, "inf")
            found.setdefault(cell, Value(float(row["accuracy"])))
    return found


def why(cell: Cell) -> str:
    """Say why a cell is below the published one."""
    if cell.panel in ("Heart", "Mushroom"):
        return "published for one cut of the features, one split and one forest; here another cut in every repeat."
    if cell.panel == ADULT:
        return "published for 45,222 rows, of both files of Adult without gaps; here the 32,561 of the training file."
    if cell.curve in (LAPLACE, DISJOINT):
        return "a baseline: published on one split and one forest, so its standard error leaves out both."
    return "published on one split and one forest, where only the noise was drawn again; here splits and forests too."


EXPERIMENT = Experiment("mrf-epsilon", jobs, measure)
EXHIBITS = (
    Exhibit(
        "mrf", "figure 2", "Accuracy of DP batch training and prediction against epsilon",
        "80:20 splits, one forest each. Car, Balance: 128 trees of depth 4, 2; Iris: 64 of depth 2; Heart: 102 of "
        "depth 2, "
        "features cut into three parts; Mushroom: 125 of depth 3, into five (as the authors' result files were "
        "made); Adult: "
        "16 of depth 6 over eight columns. Baselines: one ensemble over all features. 20 repeats, 3 of Adult, without "
        "prediction there.",
        EXPERIMENT, lines("epsilon", "accuracy", log_x=True, flat=(EXTRA,)),
        quick="5 repeats, 1 of Adult at two epsilons.", published=published, why=why,
        claims=(
            Claim("Our optimised approaches consistently outperform the baselines.",
                  above((TRAIN, PREDICT), (LAPLACE, DISJOINT))),
            Claim("... a significant accuracy improvement of 20-40 % for small to medium-sized datasets (at epsilon 1, "
                  "at least 20 points over Laplace on Car, Iris and Balance).",
                  above(TRAIN, LAPLACE, by=0.2, only=lambda panel, x: panel in SMALL_TABLES and x == "1")),
            Claim("Larger datasets such as Heart, Mushroom, and Adult show a notable improvement of 10-20 %, "
                  "particularly "
                  "with smaller epsilon values (somewhere at least 10 points on each).",
                  all_of(*(above(TRAIN, LAPLACE, by=0.1, share=SOMEWHERE, panel=panel) for panel in LARGE_TABLES))),
            Claim("On Car, batch training and batch prediction achieve 85 % at epsilon 2 (within 3 points) ...",
                  all_of(*(between(curve, "Car", "2", 0.82, 0.88) for curve in (TRAIN, PREDICT)))),
            Claim("... exceeding the accuracy of existing solutions by 30 % (at least 30 points over both baselines).",
                  above((TRAIN, PREDICT), (LAPLACE, DISJOINT), by=0.3, panel="Car", only=lambda panel, x: x == "2")),
        ),
    ),
)  # fmt: skip
