# SPDX-License-Identifier: Apache-2.0
"""Experiments of Figures 1, 5, 7 and 8 of DiPriMe: errors on Appliances against each parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from veilwood_papers.diprime import methods
from veilwood_papers.diprime.methods import DIPRIME, DP_ERT, ERT, EXP, FLIP, RF, SELECT
from veilwood_papers.exhibit import Cell, Experiment, Job, Row, as_text
from veilwood_papers.tables import PublicTables

ERROR = "MSE x 1000"
METHODS = (RF, ERT, DP_ERT, DIPRIME, EXP, FLIP, SELECT)
NO_NOISE = (RF, ERT)
PARTS = {"disjoint": "rows partitioned", "shared": "rows not partitioned"}
AXES = {
    "a) against depth": (2, 4, 6, 8, 10),
    "b) against trees": (1, 5, 10, 20, 50),
    "c) against epsilon": (0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
}
USUAL = {"epsilon": 10.0, "n_estimators": 10, "max_depth": 6}
NAME = dict(zip(AXES, ("max_depth", "n_estimators", "epsilon"), strict=True))


def panel_name(axis: str, trees: str) -> str:
    """Return the name of a panel: the varied parameter and the rows that each tree sees."""
    return f"{axis}, {PARTS[trees]}"


def list_jobs(quick: bool) -> list[Job]:
    """Return one job per split: ten, or three in a quick run."""
    return [
        Job(f"{panel_name(axis, trees)}, seed {seed}", "appliances-energy",
            {"axis": axis, "trees": trees, "seed": seed, "xs": xs}, 4.0)
        for axis, xs in AXES.items()
        for trees in PARTS
        for seed in range(3 if quick else 10)
    ]  # fmt: skip


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure all methods along one axis, on one split."""
    axis, trees, seed = job.settings["axis"], job.settings["trees"], job.settings["seed"]
    table = methods.load_table(tables, "appliances-energy")
    scale = methods.error_unit(table) / 1000
    known: dict[tuple[str, Any, Any], float] = {}
    for x in job.settings["xs"]:
        for method in METHODS:
            given: dict[str, Any] = {**USUAL, NAME[axis]: x}
            key = (method, given["n_estimators"], given["max_depth"])
            if method not in NO_NOISE or key not in known:  # epsilon has no effect without noise
                known[key] = methods.holdout_score(
                    methods.make_forest(method, table, seed=seed, trees=trees, **given), table, seed, scale
                )
            yield Row(Cell(panel_name(axis, trees), method, as_text(x), ERROR), seed, known[key])


# -- Figures 7 and 8: the budget fraction of splits and the number of candidates ---------------------------------------

RHOS, EPSILONS, COUNTS, CANDIDATES = (0.1, 0.3, 0.5, 0.7, 0.9), (1.0, 10.0), (1, 5, 10, 20), (5, 10)
BY_RHO, BY_TREES = "against rho", "against trees"


def epsilon_curve(epsilon: float) -> str:
    """Return the name of a curve in the panels against rho."""
    return f"epsilon = {epsilon:g} (NOT PRIVATE)"


def candidates_curve(candidates: int) -> str:
    """Return the name of a curve in the panels against the number of trees."""
    return f"K = {candidates} (NOT PRIVATE)"


def fraction_jobs(quick: bool) -> list[Job]:
    """Return one job per variant and split: ten splits, or three in a quick run."""
    return [
        Job(f"{method} {axis}, {PARTS[trees]}, seed {seed}", "appliances-energy",
            {"method": method, "axis": axis, "trees": trees, "seed": seed}, 2.5)
        for method in (EXP, FLIP)
        for axis in (BY_RHO, BY_TREES)
        for trees in PARTS
        for seed in range(3 if quick else 10)
    ]  # fmt: skip


def measure_fractions(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure one variant along one axis, on one split."""
    method, axis, trees, seed = (job.settings[name] for name in ("method", "axis", "trees", "seed"))
    table = methods.load_table(tables, "appliances-energy")
    scale = methods.error_unit(table) / 1000

    def mean_error(**given: Any) -> float:
        forest = methods.make_forest(method, table, seed=seed, trees=trees, max_depth=8, **given)
        return methods.holdout_score(forest, table, seed, scale)

    where = f"{method}: {axis}, {PARTS[trees]}"
    if axis == BY_RHO:
        for epsilon in EPSILONS:
            for rho in RHOS:
                value = mean_error(epsilon=epsilon, n_estimators=10, candidates=10, split_budget=rho)
                yield Row(Cell(where, epsilon_curve(epsilon), as_text(rho), ERROR), seed, value)
        return
    for candidates in CANDIDATES:
        for count in COUNTS:
            value = mean_error(epsilon=10.0, n_estimators=count, candidates=candidates, split_budget=0.5)
            yield Row(Cell(where, candidates_curve(candidates), as_text(count), ERROR), seed, value)


EXPERIMENT = Experiment("diprime-appliances", list_jobs, measure_job)
FRACTIONS_EXPERIMENT = Experiment("diprime-shares", fraction_jobs, measure_fractions)
