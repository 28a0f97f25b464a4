# SPDX-License-Identifier: Apache-2.0
"""Figure 2 of the paper on secure trees: accuracy and AUC against epsilon."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import (
    Cell,
    Claim,
    Exhibit,
    Experiment,
    Job,
    Row,
    Value,
    Values,
    as_text,
    check_above,
    read_published,
    reason_lookup,
)
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

ACCURACY, AUC = "accuracy", "AUC"


def panel_of(panel: str, measure: str) -> str:
    """Return the name of a panel: data set and measure."""
    return f"{panel}, {measure}, depth {DEPTH[panel]}"


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure all variants at all epsilons, on one split."""
    panel, seed = job.settings["panel"], job.settings["seed"]
    data = load_table(tables, panel)
    for variant in SINGLE:
        for epsilon in EPSILONS[panel]:
            for name, value in zip(
                (ACCURACY, AUC), forest_scores(data, variant, epsilon, DEPTH[panel], seed), strict=True
            ):
                yield Row(Cell(panel_of(panel, name), variant, as_text(epsilon), name), seed, value)


def published_values() -> Values:
    """Return the four values that the text states."""
    methods = {"ODP+FMPC-ID3": PUBLISHED, "CDP+PMPC-ID3": BASELINE}
    values: Values = {}
    for row in read_published("secure_claims"):
        for name, column in ((ACCURACY, "accuracy"), (AUC, "roc_auc")):
            where = panel_of(row["dataset"], name)
            values[Cell(where, methods[row["method"]], as_text(float(row["epsilon"])), name)] = Value(
                float(row[column])
            )
    return values


def relative_gain(sentence: str, panel: str, x: str, published: float) -> Claim:
    """Return the claim that the accuracy exceeds the baseline's by a fraction of it, within 5 points of that."""

    def gain(values: Values) -> float:
        own, baseline = (
            values[Cell(panel_of(panel, ACCURACY), curve, x, ACCURACY)].mean for curve in (PUBLISHED, BASELINE)
        )
        return own / baseline - 1

    def holds(values: Values) -> bool | None:
        cells = [Cell(panel_of(panel, ACCURACY), curve, x, ACCURACY) for curve in (PUBLISHED, BASELINE)]
        return abs(gain(values) - published) <= 0.05 if all(cell in values for cell in cells) else None

    return Claim(f"{sentence} (of the baseline's accuracy, within 5 points).", holds, gain)


deviation_reason = reason_lookup(
    {},
    "not tested: the text gives five splits without a spread, and neither the cut points of numbers nor the groups "
    "of categories; AUC is of predicted labels, since a hidden tree gives no more.",
)
EXPERIMENT = Experiment("secure-epsilon", list_splits, measure_job)
EXHIBITS = (
    Exhibit(
        "secure", "figure 2", "Accuracy and AUC of secure trees against epsilon",
        "80:20 splits, one tree of depth 4, 3 and 5 on Titanic, Heart and Adult, 100 splits. The published tree has "
        "exact splits, "
        "NOT PRIVATE at any epsilon; ours pays for them.", EXPERIMENT,
        line_chart("epsilon", "accuracy, or AUC of labels", log_x=True, columns=2), quick="20 splits.",
        published=published_values, why=deviation_reason,
        claims=(
            Claim("The accuracy of our solution (ODP+FMPC-ID3 as published) consistently performs better than "
                  "CDP+PMPC-ID3 "
                  "(in nine of ten cells).", check_above(PUBLISHED, BASELINE, fraction=0.9)),
            relative_gain("Our approach can indeed improve model accuracy by up to 29 % for the Adult dataset even "
                          "with a small privacy budget of 0.005", "Adult", "0.005", 0.29),
            relative_gain("For Heart at epsilon 0.2 this amounts to an improvement of 23.5 %", "Heart", "0.2", 0.235),
            Claim("For Adult, when epsilon is between 0.1 and 1, our approach even outperforms the non-private one.",
                  check_above(PUBLISHED, NO_NOISE, measure=ACCURACY,
                        only=lambda panel, x: panel.startswith("Adult") and 0.1 <= float(x) <= 1)),
            Claim("In general, our solution performs better as epsilon gets smaller, beside the baseline: its lead "
                  "at the "
                  "smallest epsilon is larger than at the largest.", lambda values: _lead_grows(values)),
            Claim("Ours: a tree that pays for its splits is above the paper's baseline too (in nine of ten cells).",
                  check_above(OURS, BASELINE, fraction=0.9)),
        ),
    ),
)  # fmt: skip


def _lead_grows(values: Values) -> bool | None:
    answers = []
    for panel, epsilons in EPSILONS.items():
        leads = []
        for x in (as_text(epsilons[0]), as_text(epsilons[-1])):
            pair = [values.get(Cell(panel_of(panel, ACCURACY), curve, x, ACCURACY)) for curve in (PUBLISHED, BASELINE)]
            leads += [pair[0].mean - pair[1].mean] if pair[0] and pair[1] else []
        if len(leads) == 2:
            answers.append(leads[0] > leads[1])
    return all(answers) if answers else None
