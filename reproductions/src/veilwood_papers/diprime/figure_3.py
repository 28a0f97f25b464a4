# SPDX-License-Identifier: Apache-2.0
"""Figure 3 of DiPriMe: fraction of the rows in each leaf, on Robot. The fractions are exact: NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veilwood.plots import Figure
from veilwood.trees.counting import route_rows
from veilwood.trees.forest import LEAF
from veilwood_papers.diprime.methods import DP_ERT, EXP, FLIP, GREEDY, GREEDY_LABELS, SELECT, load_table, make_forest
from veilwood_papers.drawing import line_chart
from veilwood_papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, Values, as_text, check_above
from veilwood_papers.tables import PublicTables

if TYPE_CHECKING:
    from veilwood.estimators.base import BaseForest

PANEL, SIZES = "Robot", "Robot, nodes of a tree"
FRACTIONS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
LEAF_FRACTION = "share of leaves (%)"
DEPTHS = {EXP: 4, FLIP: 4, SELECT: 4, DP_ERT: 4, GREEDY: 3, GREEDY_LABELS: 3}


def list_jobs(quick: bool) -> list[Job]:
    """Return one job per forest: ten, or three in a quick run."""
    return [Job(f"Robot, seed {s}", "wall-following-robot", {"seed": s}, 0.2) for s in range(3 if quick else 10)]


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure the cumulative distribution of leaf occupancy and the number of nodes, for each method."""
    seed, table = job.settings["seed"], load_table(tables, "wall-following-robot")
    for method, depth in DEPTHS.items():
        forest = make_forest(method, table, epsilon=2.0, n_estimators=10, max_depth=depth, seed=seed).fit(
            table.X, table.y
        )
        leaves = route_rows(forest.forest_, forest._encode_rows(table.X))
        held = np.bincount(leaves.ravel(), minlength=forest.forest_.n_leaves) / len(table.X)
        for fraction in FRACTIONS:
            yield Row(
                Cell(PANEL, method, as_text(fraction), LEAF_FRACTION), seed, 100 * float(np.mean(held <= fraction))
            )
        yield Row(Cell(SIZES, method, "", "nodes"), seed, forest.forest_.n_nodes / forest.forest_.n_trees)


def _has_larger_trees(values: Values) -> bool | None:
    sizes = {cell.curve: value.mean for cell, value in values.items() if cell.panel == SIZES}
    return min(sizes[GREEDY_LABELS], sizes[GREEDY]) > max(sizes[EXP], sizes[FLIP], sizes[DP_ERT]) if sizes else None


EXHIBITS = (
    Exhibit(
        "diprime",
        "figure 3",
        "Fraction of the rows in each leaf",
        "Robot, 10 trees of depth 4 (greedy forests: 3, five branches each), epsilon 2, 10 forests. Exact fractions "
        "of all rows that reach each leaf, which nobody may publish: NOT PRIVATE. DP-RF and DP-DF are not measured: "
        "sound greedy forests, which split into as many branches, are in their place.",
        Experiment("diprime-leaves", list_jobs, measure_job),
        line_chart("at most this fraction of the rows", LEAF_FRACTION, measure=LEAF_FRACTION, log_x=True),
        quick="3 forests.",
        not_private=lambda curve: True,
        claims=(
            Claim(
                "DP-ERT, DP-RF and DP-DF have very heavy-tailed distributions, with the majority of nodes having very "
                "low occupancy (DP-ERT alone: more than half of its leaves hold at most 1 % of the rows).",
                lambda values: _majority_low(values),
            ),
            Claim(
                "The DiPriMe trees have a much larger proportion of higher-occupancy nodes (fewer of their leaves than "
                "of DP-ERT's hold at most 1 % of the rows).",
                check_above(DP_ERT, (EXP, FLIP), measure=LEAF_FRACTION, only=lambda panel, x: x == "0.01"),
            ),
            Claim(
                "Splits with a child per category give more nodes: sound greedy forests, in place of DP-DF and DP-RF, "
                "have more than DiPriMe and DP-ERT (the paper: 407 and 104 on average, and 31).",
                _has_larger_trees,
            ),
        ),
    ),
)


def _majority_low(values: Values) -> bool | None:
    fractions = [v.mean for c, v in values.items() if c.curve == DP_ERT and c.x == "0.01"]
    return min(fractions) > 50 if fractions else None


BranchFractions = NDArray[np.float64]


def leaf_fractions(forest: BaseForest, X: Any) -> BranchFractions:
    """Return the fraction of the rows ``X`` in each leaf, for all trees of a fitted forest.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> tree = vw.MedianForestClassifier(car.schema, epsilon=float("inf"), n_estimators=1, max_depth=1, random_state=0)
    >>> bool(leaf_fractions(tree.fit(car.X, car.y), car.X).min() >= 0.25)  # each side gets at least one of four values
    True
    """
    leaves = route_rows(forest.forest_, forest._encode_rows(X))
    return np.bincount(leaves.ravel(), minlength=forest.forest_.n_leaves) / len(leaves)


def left_child_fractions(forest: BaseForest, X: Any) -> BranchFractions:
    """Return the fraction of rows that go left at each inner node of binary trees, for nodes that any row reaches."""
    trees = forest.forest_
    in_node = trees.sum_to_nodes(leaf_fractions(forest, X))
    inner = np.flatnonzero((trees.feature != LEAF) & (in_node > 0))
    return np.asarray(in_node[trees.child[inner]] / in_node[inner])


def plot_split_balance(fractions: Mapping[str, BranchFractions]) -> Figure:
    """Draw the distribution of left fractions by method (Figure 4). One half is perfect balance.

    Examples
    --------
    >>> plot_split_balance({"median": np.array([0.5, 0.45]), "random": np.array([0.1, 0.9])}).axes[0].get_xlabel()
    'share of a node’s rows in its left child'
    """
    return _plot_histograms(
        fractions, np.linspace(0, 1, 21), "share of a node’s rows in its left child", "share of nodes"
    )


def plot_leaf_occupancy(fractions: Mapping[str, BranchFractions]) -> Figure:
    """Draw the distribution of leaf fractions by method (Figure 3). The first bin contains the empty leaves.

    Examples
    --------
    >>> plot_leaf_occupancy({"median": np.array([0.25, 0.25]), "random": np.array([0.0, 0.5])}).axes[0].get_ylabel()
    'share of leaves'
    """
    top = max(float(values.max()) for values in fractions.values())
    return _plot_histograms(fractions, np.linspace(0, top, 21), "share of the rows in a leaf", "share of leaves")


def _plot_histograms(
    fractions: Mapping[str, BranchFractions], bins: BranchFractions, xlabel: str, ylabel: str
) -> Figure:
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, values in fractions.items():
        heights, _ = np.histogram(values, bins)
        axes.stairs(heights / len(values), bins, label=name)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.legend()
    return figure
