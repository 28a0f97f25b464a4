# SPDX-License-Identifier: Apache-2.0
"""Figures 1 and 5 of DiPriMe: errors on Appliances against depth, trees and epsilon, rows partitioned or not."""

from __future__ import annotations

from collections.abc import Callable

from veilwood_papers.diprime.appliances import ERROR, EXPERIMENT, PARTS, panel_name
from veilwood_papers.diprime.methods import DIPRIME, DP_ERT, ERT, EXP, FLIP, RF
from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Claim, Exhibit, Values, all_of, check_above, check_rises, curve_means

BY_DEPTH = "a) against depth"
SETTINGS = (
    "Appliances, 90:10 splits, 10 trees of depth 6 at epsilon 10 where they do not vary (the text does not say which "
    "are "
    "held), half of epsilon on splits, 10 splits. "
)


def best_depth(values: Values, trees: str, curve: str) -> float | None:
    """Return the depth at which a method has its smallest error."""
    errors = curve_means(values, curve, panel=panel_name(BY_DEPTH, trees))
    return min((value, float(x)) for (_, x), value in errors.items())[1] if errors else None


def _is_deeper(values: Values) -> bool | None:
    pairs = [(best_depth(values, "shared", c), best_depth(values, "disjoint", c)) for c in (DIPRIME, EXP, FLIP)]
    known = [(shared, own) for shared, own in pairs if shared is not None and own is not None]
    return all(shared >= own for shared, own in known) if known else None


def _negate_check(check: Callable[[Values], bool | None]) -> Callable[[Values], bool | None]:
    def holds(values: Values) -> bool | None:
        answer = check(values)
        return None if answer is None else not answer

    return holds


PARTITIONED = Exhibit(
    "diprime",
    "figure 1",
    "Errors on Appliances against depth, trees and epsilon",
    f"{SETTINGS}Each row in one tree.",
    EXPERIMENT,
    line_chart("depth, trees or epsilon", ERROR),
    quick="3 splits.",
    shows=lambda cell: cell.panel.endswith(", " + PARTS["disjoint"]),
    wants=lambda job: job.settings["trees"] == "disjoint",
    claims=(
        Claim(
            "For most parameter settings, all the variants of DiPriMe outperform DP-ERT.",
            check_above(DP_ERT, (DIPRIME, EXP, FLIP), fraction=0.5),
        ),
        Claim(
            "a) Deeper trees give a decreasing MSE of the non-private methods ...",
            all_of(*(_negate_check(check_rises(curve, panel=panel_name(BY_DEPTH, "disjoint"))) for curve in (RF, ERT))),
        ),
        Claim(
            "... but deteriorate the utility of DiPriMe: at the largest depth it errs more than at its best.",
            lambda values: _worse_at_the_end(values, "disjoint"),
        ),
        Claim(
            "c) DiPriMeFlip is worse than DiPriMeExp and DiPriMe at low epsilon (at 0.5).",
            check_above(
                FLIP, (EXP, DIPRIME), panel=panel_name("c) against epsilon", "disjoint"), only=lambda p, x: x == "0.5"
            ),
        ),
    ),
)
NOT_PARTITIONED = Exhibit(
    "diprime", "figure 5", "Errors on Appliances without partition, and against depth with it",
    f"{SETTINGS}Each row in every tree, which then has an equal part of epsilon; beside panel a) of Figure 1.",
    EXPERIMENT, line_chart("depth, trees or epsilon", ERROR, columns=2), quick="3 splits.",
    shows=lambda cell: cell.panel.endswith(", " + PARTS["shared"]) or cell.panel == panel_name(BY_DEPTH, "disjoint"),
    claims=(
        Claim("The optimal maximum depth for trees fit on all the data is higher than on disjoint subsets (or the "
              "same).",
              _is_deeper),
    ),
)  # fmt: skip


def _worse_at_the_end(values: Values, trees: str) -> bool | None:
    answers = []
    for curve in (DIPRIME, EXP, FLIP):
        errors = {
            float(x): value for (_, x), value in curve_means(values, curve, panel=panel_name(BY_DEPTH, trees)).items()
        }
        if len(errors) > 1:
            answers.append(errors[max(errors)] > min(errors.values()))
    return all(answers) if answers else None


EXHIBITS = (PARTITIONED, NOT_PARTITIONED)
