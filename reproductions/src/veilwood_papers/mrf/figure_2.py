# SPDX-License-Identifier: Apache-2.0
"""Figure 2 of M-RF: accuracy of batch training and prediction against epsilon, on six data sets."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood_papers import exhibit
from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import ANY_CELL, Cell, Claim, Exhibit, Experiment, Job, Row, Values, all_of, check_above
from veilwood_papers.mrf import methods
from veilwood_papers.mrf.methods import BATCH, EXISTING, EXTRA, LAPLACE, PREDICT, TINY, TRAIN, USUAL, PublishedSetting
from veilwood_papers.tables import PublicTables

ADULT, ADULT_TRAINING = "Adult, 8 columns", "Adult, training file"
SETTINGS = {
    setting.panel: setting
    for setting in (
        PublishedSetting("Car", "car", 1, 6, 128, 4, USUAL, 8.0),
        PublishedSetting("Iris", "iris", 1, 4, 64, 2, USUAL, 8.0),
        PublishedSetting("Balance", "balance-scale", 1, 4, 128, 2, USUAL, 6.0),
        PublishedSetting("Heart", "heart", 3, None, 102, 2, USUAL, 18.0),
        PublishedSetting("Mushroom", "mushroom", 5, None, 125, 3, methods.SMALL, 45.0),
        PublishedSetting(ADULT, "adult-both", 1, 8, 16, 6, TINY, 40.0),
        PublishedSetting(ADULT_TRAINING, "adult", 1, 8, 16, 6, TINY, 30.0),
    )
}
SMALL_TABLES, LARGE_TABLES = ("Car", "Iris", "Balance"), ("Heart", "Mushroom", ADULT)
LARGE = (ADULT, ADULT_TRAINING)


def list_jobs(quick: bool) -> list[Job]:
    """Return one job per forest: ten, or six of Adult. Quick: three with two draws, or two of the larger tables."""
    jobs = []
    for panel, setting in SETTINGS.items():
        n = (2 if quick else 6) if panel in LARGE else (2 if panel in LARGE_TABLES else 3) if quick else 10
        jobs += methods.list_repeats(
            panel, setting.table, n, setting.seconds, panel=panel, draws=2 if quick else methods.DRAWS
        )
    return jobs


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure all methods with one forest each."""
    setting, seed = SETTINGS[job.settings["panel"]], job.settings["seed"]
    data = methods.split_table(methods.load_table(tables, setting.table), seed)
    yield from methods.against_epsilon(setting, data, BATCH, seed, draws=job.settings["draws"])


def published_values() -> Values:
    """Return the authors' published results. The results of Adult are also in the panel of the training file alone."""
    names = {"Adult-categorical": ADULT}
    values = exhibit.mrf_values(
        "mrf_accuracy_vs_epsilon_main",
        "eps",
        methods.PUBLISHED_AS,
        lambda row: names.get(row["dataset"], row["dataset"]),
    )
    for row in exhibit.read_published("mrf_nonprivate"):
        if not row["note"] and row["model"].startswith("scikit-learn") and row["evaluation"] == "80/20 test":
            cell = Cell(names.get(row["dataset"], row["dataset"]), EXTRA, "inf")
            values.setdefault(cell, exhibit.Value(float(row["accuracy"])))
    return values | {cell._replace(panel=ADULT_TRAINING): v for cell, v in values.items() if cell.panel == ADULT}


def _other_rows(cell: Cell, measured: Values) -> str:
    """Return the reason for a cell of the training file, with the verdict of the panel of both files if measured."""
    reason = (
        "known: published for the 45,222 complete rows of both files of Adult; here the 30,162 of the training file."
    )
    both = cell._replace(panel=ADULT)
    if both not in measured:
        return reason
    word = exhibit.compare_with_published(both, measured[both], published_values()[both], published_once=True)
    return f"{reason} With both files, in the panel beside, this cell is {'the same' if word == 'same' else word}."


deviation_reason = exhibit.reason_lookup(
    {
        ADULT_TRAINING: _other_rows,
        "Mushroom": "tested: other cuts of the features into five parts, on the same split, spread widely, and equal "
        "shares of epsilon, as the authors have them, change little; the published cut is better than twenty cuts "
        "here at epsilon 0.01 and 0.05, which is not explained.",
        "Heart": "not tested: the order of the authors' rows is not known, so here every repeat has a split of its "
        "own.",
    },
    methods.deviation_reason,
)
EXPERIMENT = Experiment("mrf-epsilon", list_jobs, measure_job)
EXHIBITS = (
    Exhibit(
        "mrf",
        "figure 2",
        "Accuracy of DP batch training and prediction against epsilon",
        "Car, Balance: 128 trees of depth 4, 2; Iris: 64 of depth 2; Heart: 102 of depth 2, features cut into three "
        "parts; Mushroom: 125 of depth 3, into five (as the authors' result files were made); Adult: 16 of depth 6, "
        "eight columns with grouped categories, complete rows of both files, and of the training file alone. "
        f"Baselines: one ensemble over all features. {methods.ONE_FOREST} Heart and the training file: a split for "
        "each repeat, as the order of the authors' rows is not known. 10 repeats, 6 of Adult.",
        EXPERIMENT,
        line_chart("epsilon", "accuracy", log_x=True, flat=(EXTRA,)),
        quick="3 repeats of two draws, 2 of Heart, Mushroom and Adult.",
        published=published_values,
        published_once=True,
        why=deviation_reason,
        claims=(
            Claim(
                "Our optimised approaches consistently outperform the baselines.",
                check_above((TRAIN, PREDICT), EXISTING),
            ),
            Claim(
                "... a significant accuracy improvement of 20-40 % for small to medium-sized datasets (at epsilon 1, "
                "at least 20 points over Laplace on Car, Iris and Balance).",
                check_above(TRAIN, LAPLACE, by=0.2, only=lambda panel, x: panel in SMALL_TABLES and x == "1"),
            ),
            Claim(
                "Larger datasets such as Heart, Mushroom, and Adult show a notable improvement of 10-20 %, "
                "particularly "
                "with smaller epsilon values (somewhere at least 10 points on each).",
                all_of(
                    *(check_above(TRAIN, LAPLACE, by=0.1, fraction=ANY_CELL, panel=panel) for panel in LARGE_TABLES)
                ),
            ),
            Claim(
                "On Car, batch training and batch prediction achieve 85 % at epsilon 2 (within 3 points) ...",
                all_of(*(exhibit.check_between(curve, "Car", "2", 0.82, 0.88) for curve in (TRAIN, PREDICT))),
            ),
            Claim(
                "... exceeding the accuracy of existing solutions by 30 % (at least 30 points over both baselines).",
                check_above((TRAIN, PREDICT), EXISTING, by=0.3, panel="Car", only=lambda panel, x: x == "2"),
            ),
        ),
    ),
)
