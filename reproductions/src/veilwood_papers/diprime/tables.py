# SPDX-License-Identifier: Apache-2.0
"""Tables 1 and 2 of DiPriMe: mean squared errors of regression, accuracies of classification."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood_papers import exhibit
from veilwood_papers.diprime import methods
from veilwood_papers.diprime.methods import DIPRIME, DP_ERT, ERT, EXP, FLIP, GREEDY, MEDIAN, PUBLISHED_AS, RF
from veilwood_papers.drawing import draw_agreement
from veilwood_papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, Value, Values, check_above
from veilwood_papers.tables import PublicTables

METHODS = (RF, ERT, MEDIAN, GREEDY, DP_ERT, DIPRIME, EXP, FLIP, methods.RANDOM, methods.K_MEDIANS, methods.SELECT)
REGRESSION = {
    "Parkinsons": "parkinsons", "Appliances": "appliances-energy", "Traffic": "metro-traffic", "Turbine": "gas-turbine",
    "Flight": "flight-delay-nyc2013",
}  # fmt: skip
CLASSES = {
    "Banknote": "banknote", "CreditCard": "credit-default", "Robot": "wall-following-robot", "Higgs": "higgs",
    "PUC-Rio": "puc-rio-posture",
}  # fmt: skip
SECONDS = {
    "Parkinsons": 0.9, "Appliances": 1.2, "Traffic": 2.0, "Turbine": 2.1, "Flight": 30.0, "Banknote": 0.2,
    "CreditCard": 2.4, "Robot": 0.4, "Higgs": 5.0, "PUC-Rio": 8.0,
}  # fmt: skip


def published_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a published table."""
    return exhibit.read_published(
        {"table 1": "diprime_table1_regression", "table 2": "diprime_table2_classification"}[name]
    )


def published_depths(panel: str) -> dict[str, int]:
    """Return the published depth of each method on a data set."""
    lines = (*published_rows("table 1"), *published_rows("table 2"))
    curves = {
        **PUBLISHED_AS,
        "DP-RF": GREEDY,
        "DP-DF": methods.GREEDY_LABELS,
    }  # at the depths of the methods that they replace
    return {curves[row["method"]]: int(row["d_max"]) for row in lines if row["dataset"] == panel}


def error_scale(panel: str) -> float:
    """Return the unit in which the paper prints the errors of a data set."""
    return next((float(row["unit"]) for row in published_rows("table 1") if row["dataset"] == panel), 1.0)


def measure_name(panel: str) -> str:
    """Return the name of the measure in a data set's cells."""
    return f"MSE x {1 / error_scale(panel):g}" if panel in REGRESSION else "accuracy"


def list_jobs(panels: dict[str, str], quick: bool) -> list[Job]:
    """Return one job per data set and seed."""
    return [
        Job(f"{panel}, seed {seed}", table, {"panel": panel, "seed": seed, "quick": quick}, SECONDS[panel])
        for panel, table in panels.items()
        for seed in range((5 if SECONDS[panel] < 4 else 2) if quick else 10)
    ]


def regression_jobs(quick: bool) -> list[Job]:
    """Return the jobs of Table 1."""
    return list_jobs(REGRESSION, quick)


def class_jobs(quick: bool) -> list[Job]:
    """Return the jobs of Table 2."""
    return list_jobs(CLASSES, quick)


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure all methods on one split, each at its published depth."""
    panel, seed = job.settings["panel"], job.settings["seed"]
    table = methods.load_table(tables, job.table)
    by_method, scale = published_depths(panel), methods.error_unit(table) * error_scale(panel)
    for method in (*METHODS, *((methods.GREEDY_LABELS,) if panel in CLASSES else ())):
        depth = by_method[methods.LIKE.get(method, method)]
        forest = methods.make_forest(
            method, table, epsilon=10.0 if panel in REGRESSION else 2.0, n_estimators=10, max_depth=depth, seed=seed
        )
        yield Row(Cell(panel, method, "", measure_name(panel)), seed, methods.holdout_score(forest, table, seed, scale))


def published_values(name: str) -> Values:
    """Return the printed table without DP-RF and DP-DF. Deviations over splits are used as standard errors."""
    values = {}
    for row in published_rows(name):
        if row["method"] not in PUBLISHED_AS:
            continue
        value = Value(float(row["mse" if name == "table 1" else "accuracy"]), float(row["std"]))
        values[Cell(row["dataset"], PUBLISHED_AS[row["method"]], "", measure_name(row["dataset"]))] = value
    return values


LEFT_OUT = (
    "DP-RF and DP-DF are left out of all verdicts: their own papers are not at hand, and the paper that quotes them "
    "gives neither their division of the budget nor the noise and the pruning of their leaves. In their place, and "
    "judged by nothing, are the library's sound greedy forests at their depths"
)
"""Why two of the paper's baselines are not measured."""


def _median_reason(cell: Cell, measured: Values) -> str:
    if cell.panel == "Banknote":
        return (
            "tested: where attributes are drawn at random, not chosen, this forest is within two standard errors of "
            "the published value."
        )
    return "not tested: the paper does not say how the attribute of a median split is chosen without noise."


deviation_reason = exhibit.reason_lookup(
    {
        "Flight": "known: the paper's 800,000 flights of 2008 are not available; these are 105,475 that left New York "
        "City in 2013, and forests without noise miss it too.",
        "Parkinsons": "tested: for DP-ERT, the schema bounds the target by 0 to 176. With the data's own 55, as in the "
        "paper, the error is smaller and within two standard errors of the published one.",
        "Higgs": "tested: for RF, 46,239 rows were had of the paper's 100,000, and half of them give still less.",
        "PUC-Rio": "tested: for RF, without noise and with trees of any depth it does not reach the published value on "
        "these rows either; what differs from the paper's data is not known.",
        MEDIAN: _median_reason,
    },
    "not tested: the paper does not say how many splits its deviations are over, nor how ties are treated.",
)
SETTINGS = (
    "90:10 splits, 10 trees, 5 candidates, half of epsilon on splits, depths as published; 10 splits. As published: "
    "the "
    "paper's accounting and leaves, NOT PRIVATE. DP-ERT is ours, sound. The published deviations over splits are taken "
    "as standard errors. "
)
REGRESSION_TABLE = Exhibit(
    "diprime",
    "table 1",
    "Mean squared errors of regression, epsilon 10",
    f"{SETTINGS}Errors are divided by the square of the data's range, as in the paper. {LEFT_OUT}.",
    Experiment("diprime-regression", regression_jobs, measure_job),
    draw_agreement,
    quick="5 splits, 2 of Flight.",
    published=lambda: published_values("table 1"),
    why=deviation_reason,
    claims=(
        Claim(
            "Median forests typically underperform RFs in a non-private context (in most data sets).",
            check_above(MEDIAN, RF, fraction=0.5),
        ),
        Claim(
            "DiPriMeExp and DiPriMeFlip clearly outperform DP-ERT and DP-RF (DP-ERT alone; a smaller error "
            "everywhere).",
            check_above(DP_ERT, (EXP, FLIP)),
        ),
        Claim(
            "DiPriMe performs poorly on the Traffic dataset: worse than DiPriMeExp and DiPriMeFlip.",
            check_above(DIPRIME, (EXP, FLIP), panel="Traffic"),
        ),
        Claim(
            "Ours: a sound choice of the attribute before its median errs no more than DiPriMeFlip as published "
            "(by more than 5 % of its error).",
            lambda values: _no_more(values),
        ),
    ),
)
CLASS_TABLE = Exhibit(
    "diprime",
    "table 2",
    "Accuracies of classification, epsilon 2",
    f"{SETTINGS}{LEFT_OUT}.",
    Experiment("diprime-classes", class_jobs, measure_job),
    draw_agreement,
    quick="5 splits, 2 of Higgs and PUC-Rio.",
    published=lambda: published_values("table 2"),
    why=deviation_reason,
    claims=(
        Claim(
            "In the non-private setting, median forests are consistently worse than RFs (within 1 point) ...",
            check_above(RF, MEDIAN, by=-0.01),
        ),
        Claim(
            "... with ERTs a little worse off (in most data sets no better than median forests).",
            check_above(MEDIAN, ERT, by=-0.005, fraction=0.5),
        ),
        Claim(
            "The performance of DiPriMe and its variants far exceeds that of DP-ERT, DP-RF and DP-DF (DP-ERT alone; at "
            "least 5 points everywhere).",
            check_above((DIPRIME, EXP, FLIP), DP_ERT, by=0.05),
        ),
        Claim(
            "There is little to choose between the variants of DiPriMe (within 3 points).",
            check_above((DIPRIME, EXP, FLIP), (DIPRIME, EXP, FLIP), by=-0.03),
        ),
    ),
)


def _no_more(values: Values) -> bool | None:
    pairs = [
        (value.mean, values[cell._replace(curve=FLIP)].mean)
        for cell, value in values.items()
        if cell.curve == methods.SELECT
    ]
    return all(select <= 1.05 * flip for select, flip in pairs) if pairs else None


EXHIBITS = (REGRESSION_TABLE, CLASS_TABLE)
