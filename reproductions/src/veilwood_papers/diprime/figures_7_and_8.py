# SPDX-License-Identifier: Apache-2.0
"""Figures 7 and 8 of DiPriMe: errors of DiPriMeExp and DiPriMeFlip on Appliances against their hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable

from veilwood_papers.diprime import appliances
from veilwood_papers.diprime.appliances import BY_RHO, BY_TREES, EPSILONS, ERROR, PARTS, epsilon_curve
from veilwood_papers.diprime.methods import EXP, FLIP
from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Claim, Exhibit, Values, check_above, check_dips, curve_means


def _rho_matters(method: str) -> Callable[[Values], bool | None]:
    """Check that the largest rho has a larger error than rho = 1/2, and more so at the smaller epsilon."""

    def holds(values: Values) -> bool | None:
        answers = []
        for part in PARTS.values():
            where = f"{method}: {BY_RHO}, {part}"
            rises = []
            for epsilon in EPSILONS:
                errors = curve_means(values, epsilon_curve(epsilon), panel=where)
                if (where, "0.9") in errors and (where, "0.5") in errors:
                    rises.append(errors[where, "0.9"] - errors[where, "0.5"])
            if len(rises) == len(EPSILONS):
                answers.append(rises[-1] > 0 and rises[0] > rises[-1])
        return all(answers) if answers else None

    return holds


def make_exhibit(number: int, method: str) -> Exhibit:
    """Return one of the figures."""
    small, large = (epsilon_curve(epsilon) for epsilon in EPSILONS)
    return Exhibit(
        "diprime",
        f"figure {number}",
        f"Errors of {method.split(' ')[0]} on Appliances for various hyper-parameters",
        "Appliances, 90:10 splits, depth 8. Against rho: 10 trees, 10 candidates; against trees: epsilon 10, rho one "
        "half. The "
        "paper's accounting, NOT PRIVATE. 10 splits.",
        appliances.FRACTIONS_EXPERIMENT,
        line_chart("rho, or trees", ERROR, columns=2),
        quick="3 splits.",
        shows=lambda cell: cell.panel.startswith(method),
        wants=lambda job: job.settings["method"] == method,
        claims=(
            Claim("Improved performance with larger privacy budgets.", check_above(small, large)),
            Claim(
                "Large values of rho leave less privacy budget for the means, resulting in deterioration; this is "
                "more "
                "pronounced at smaller epsilon.",
                _rho_matters(method),
            ),
            Claim(
                "Increasing N_T improves performance only to a certain limit (rows not partitioned).",
                check_dips(appliances.candidates_curve(10), panel=f"{method}: {BY_TREES}, {PARTS['shared']}"),
            ),
        ),
    )


EXHIBITS = (make_exhibit(7, EXP), make_exhibit(8, FLIP))
