# SPDX-License-Identifier: Apache-2.0
"""Figures 2 to 4 of the paper on secure trees: accuracy against epsilon, AUC against depth, and two kinds of leaves."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood_papers import exhibit
from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, Values, all_of, as_text, check_above
from veilwood_papers.mpc.data import (
    BASELINE,
    DEPTH,
    EPSILONS,
    NO_NOISE,
    OURS,
    PUBLISHED,
    SINGLE,
    forest_scores,
    list_splits,
    load_table,
)
from veilwood_papers.tables import PublicTables

# -- Figure 2 -------------------------------------------------------------------------------------------------------

ACCURACY, AUC = "accuracy", "AUC"


def epsilon_panel(panel: str, measure: str) -> str:
    """Return the name of a panel: data set and measure."""
    return f"{panel}, {measure}, depth {DEPTH[panel]}"


def measure_epsilons(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure all variants at all epsilons, on one split."""
    panel, seed = job.settings["panel"], job.settings["seed"]
    data = load_table(tables, panel)
    for variant in SINGLE:
        for epsilon in EPSILONS[panel]:
            for name, value in zip(
                (ACCURACY, AUC), forest_scores(data, variant, epsilon, DEPTH[panel], seed), strict=True
            ):
                yield Row(Cell(epsilon_panel(panel, name), variant, as_text(epsilon), name), seed, value)


def published_values() -> Values:
    """Return the four values that the text states."""
    methods = {"ODP+FMPC-ID3": PUBLISHED, "CDP+PMPC-ID3": BASELINE}
    values: Values = {}
    for row in exhibit.read_published("secure_claims"):
        for name, column in ((ACCURACY, "accuracy"), (AUC, "roc_auc")):
            where = epsilon_panel(row["dataset"], name)
            values[Cell(where, methods[row["method"]], as_text(float(row["epsilon"])), name)] = exhibit.Value(
                float(row[column])
            )
    return values


def relative_gain(sentence: str, panel: str, x: str, published: float) -> Claim:
    """Return the claim that the accuracy exceeds the baseline's by a relative gain, within 5 percentage points."""

    def gain(values: Values) -> float:
        own, baseline = (
            values[Cell(epsilon_panel(panel, ACCURACY), curve, x, ACCURACY)].mean for curve in (PUBLISHED, BASELINE)
        )
        return own / baseline - 1

    def holds(values: Values) -> bool | None:
        cells = [Cell(epsilon_panel(panel, ACCURACY), curve, x, ACCURACY) for curve in (PUBLISHED, BASELINE)]
        return abs(gain(values) - published) <= 0.05 if all(cell in values for cell in cells) else None

    return Claim(f"{sentence} (of the baseline's accuracy, within 5 points).", holds, gain)


deviation_reason = exhibit.reason_lookup(
    {},
    "not tested: the text gives five splits without a spread, and neither the cut points of numbers nor the groups "
    "of categories; AUC is of predicted labels, since a hidden tree gives no more.",
)
EPSILON_EXPERIMENT = Experiment("secure-epsilon", list_splits, measure_epsilons)


def _lead_grows(values: Values) -> bool | None:
    answers = []
    for panel, epsilons in EPSILONS.items():
        leads = []
        for x in (as_text(epsilons[0]), as_text(epsilons[-1])):
            pair = [
                values.get(Cell(epsilon_panel(panel, ACCURACY), curve, x, ACCURACY)) for curve in (PUBLISHED, BASELINE)
            ]
            leads += [pair[0].mean - pair[1].mean] if pair[0] and pair[1] else []
        if len(leads) == 2:
            answers.append(leads[0] > leads[1])
    return all(answers) if answers else None


EPSILON_FIGURE = Exhibit(
    "secure",
    "figure 2",
    "Accuracy and AUC of secure trees against epsilon",
    "80:20 splits, one tree of depth 4, 3 and 5 on Titanic, Heart and Adult, 100 splits. The published tree has "
    "exact splits, "
    "NOT PRIVATE at any epsilon; ours pays for them.",
    EPSILON_EXPERIMENT,
    line_chart("epsilon", "accuracy, or AUC of labels", log_x=True, columns=2),
    quick="20 splits.",
    published=published_values,
    why=deviation_reason,
    claims=(
        Claim(
            "The accuracy of our solution (ODP+FMPC-ID3 as published) consistently performs better than "
            "CDP+PMPC-ID3 "
            "(in nine of ten cells).",
            check_above(PUBLISHED, BASELINE, fraction=0.9),
        ),
        relative_gain(
            "Our approach can indeed improve model accuracy by up to 29 % for the Adult dataset even "
            "with a small privacy budget of 0.005",
            "Adult",
            "0.005",
            0.29,
        ),
        relative_gain("For Heart at epsilon 0.2 this amounts to an improvement of 23.5 %", "Heart", "0.2", 0.235),
        Claim(
            "For Adult, when epsilon is between 0.1 and 1, our approach even outperforms the non-private one.",
            check_above(
                PUBLISHED,
                NO_NOISE,
                measure=ACCURACY,
                only=lambda panel, x: panel.startswith("Adult") and 0.1 <= float(x) <= 1,
            ),
        ),
        Claim(
            "In general, our solution performs better as epsilon gets smaller, beside the baseline: its lead "
            "at the "
            "smallest epsilon is larger than at the largest.",
            lambda values: _lead_grows(values),
        ),
        Claim(
            "Ours: a tree that pays for its splits is above the paper's baseline too (in nine of ten cells).",
            check_above(OURS, BASELINE, fraction=0.9),
        ),
    ),
)

# -- Figure 3 -------------------------------------------------------------------------------------------------------

EPSILON_OF = {"Titanic": 0.2, "Heart": 0.2, "Adult": 0.1}
DEPTHS = (2, 3, 4, 5)


def depth_panel(panel: str) -> str:
    """Return the name of a panel: data set and epsilon."""
    return f"{panel}, epsilon {EPSILON_OF[panel]:g}"


def measure_depths(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure all variants at all depths, on one split."""
    panel, seed = job.settings["panel"], job.settings["seed"]
    data = load_table(tables, panel)
    for variant in SINGLE:
        for depth in DEPTHS:
            auc = forest_scores(data, variant, EPSILON_OF[panel], depth, seed)[1]
            yield Row(Cell(depth_panel(panel), variant, as_text(depth), "AUC"), seed, auc)


DEPTH_FIGURE = Exhibit(
    "secure",
    "figure 3",
    "AUC of secure trees against depth",
    "80:20 splits, AUC of predicted labels, 100 splits.",
    Experiment("secure-depth", list_splits, measure_depths),
    line_chart("depth", "AUC of labels"),
    quick="20 splits.",
    claims=(
        Claim(
            "Since Titanic and Heart are smaller datasets, increasing the tree depth greatly lowers the "
            "accuracy (of the "
            "published tree, by 3 points from its best).",
            all_of(*(exhibit.check_falls(PUBLISHED, 0.03, panel=depth_panel(panel)) for panel in ("Titanic", "Heart"))),
        ),
        Claim(
            "For Adult, increasing the depth from 2 to 5 does not degrade the accuracy.",
            exhibit.check_keeps(PUBLISHED, 0.02, panel=depth_panel("Adult")),
        ),
        Claim(
            "Our solution consistently provides a better accuracy for each of the maximum depths.",
            check_above(PUBLISHED, BASELINE),
        ),
    ),
)

# -- Figure 4 -------------------------------------------------------------------------------------------------------

LEAVES = ("laplace", "exponential")


def leaf_curve(variant: str, leaf: str) -> str:
    """Return the name of a curve: variant and leaf mechanism."""
    return f"{variant}, {leaf} leaves"


def measure_leaves(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure both variants with both leaf mechanisms at all epsilons, on one split."""
    panel, seed = job.settings["panel"], job.settings["seed"]
    data = load_table(tables, panel)
    for variant in (PUBLISHED, BASELINE):
        for leaf in LEAVES:
            for epsilon in EPSILONS[panel]:
                accuracy = forest_scores(data, variant, epsilon, DEPTH[panel], seed, leaf)[0]
                yield Row(
                    Cell(f"{panel}, depth {DEPTH[panel]}", leaf_curve(variant, leaf), as_text(epsilon)), seed, accuracy
                )


def _is_small_epsilon(panel: str, x: str) -> bool:
    return float(x) <= (0.01 if panel.startswith("Adult") else 0.5)


LEAF_FIGURE = Exhibit(
    "secure",
    "figure 4",
    "Laplace against exponential leaves",
    "80:20 splits, depths 4, 3 and 5, 100 splits.",
    Experiment("secure-leaves", list_splits, measure_leaves),
    line_chart("epsilon", "accuracy", log_x=True),
    quick="20 splits.",
    claims=(
        Claim(
            "With large values of epsilon there is no huge difference between the two mechanisms (within 3 points) ...",
            all_of(
                *(
                    check_above(leaf_curve(v, one), leaf_curve(v, other), by=-0.03, only=lambda p, x: float(x) >= 1)
                    for v in (PUBLISHED, BASELINE)
                    for one, other in (LEAVES, LEAVES[::-1])
                )
            ),
        ),
        Claim(
            "... with small values of epsilon, the Laplace mechanism consistently outperforms the exponential one.",
            all_of(
                *(
                    check_above(leaf_curve(v, "laplace"), leaf_curve(v, "exponential"), only=_is_small_epsilon)
                    for v in (PUBLISHED, BASELINE)
                )
            ),
        ),
    ),
)

EXHIBITS = (EPSILON_FIGURE, DEPTH_FIGURE, LEAF_FIGURE)
