# SPDX-License-Identifier: Apache-2.0
"""What is measured in place of a workload: a strategy that answers it with less noise, and the steps it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import PlanError
from veilwood.forests.matrix.marginals import Mixture
from veilwood.forests.matrix.search import SMALL_BUDGET, candidate_strategies, drawable_error, optimize
from veilwood.forests.matrix.strategies import Factors, Marginals, NoiseName, Strategy, expected_error, noise_variance
from veilwood.forests.matrix.workloads import PathWorkload, Workload
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, StepKind, StepName, counting_step

__all__ = [
    "FRACTION_UNITS",
    "MECHANISMS",
    "Measurement",
    "alternative_errors",
    "ensemble_errors",
    "max_table_cells",
    "noise_and_budget",
    "plan_measurement",
    "row_sensitivity",
    "split_budget",
    "strategy_from_json",
    "strategy_to_json",
]


def strategy_to_json(strategy: Strategy) -> dict[str, Any]:
    """Return a strategy as a plan holds it."""
    if isinstance(strategy, Marginals):
        choice: dict[str, Any] = {
            "marginals": [[list(features), weight] for features, weight in strategy.weights.items()]
        }
        if isinstance(strategy, Mixture):
            choice["trees"] = [[weight, list(trees)] for weight, trees in strategy.trees.items()]
        return choice
    assert isinstance(strategy, Factors)
    return {"factors": [factor.tolist() for factor in strategy.factors]}


def strategy_from_json(workload: Workload, payload: Any) -> Strategy:
    """Read what ``strategy_to_json`` wrote; sensitivities are computed anew, and what cannot answer is refused."""
    try:
        strategy: Strategy
        if "factors" in payload:
            strategy = Factors(workload, payload["factors"])
        else:
            weights = {tuple(features): weight for features, weight in payload["marginals"]}
            if "trees" in payload and isinstance(workload, PathWorkload):
                trees = {weight: tuple(group) for weight, group in payload["trees"]}
                strategy = Mixture(workload, trees, weights)
            else:
                strategy = Marginals(workload, weights)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise PlanError(f"the strategy of the plan does not fit its forest: {error}") from None
    if not strategy.can_answer(workload):
        raise PlanError("the strategy of the plan cannot answer the leaves of its forest.")
    return strategy


MECHANISMS = ("optimized", "laplace")
FRACTION_UNITS = 1 << 10  # shares of ensembles are rounded to such parts of the largest


@dataclass(frozen=True)
class Measurement:
    """A workload, the strategy that answers it, and the planned steps that measure the strategy."""

    workload: Workload
    strategy: Strategy
    noise: NoiseName
    budget: Fraction  # epsilon or rho of a single added row, which the strategy's noise is scaled to
    steps: tuple[Step, ...]

    @property
    def expected_error(self) -> float:
        """Expected squared error of all answers, one class column; 0 without noise."""
        if self.steps[0].mechanism is None:
            return 0.0
        return expected_error(self.workload, self.strategy, self.noise, self.budget)

    def reconstruct(self, noisy: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
        """Answer the workload from noisy measurements: post-processing."""
        return self.strategy.reconstruct(noisy, self.workload, self.noise, self.budget)


class MatrixStep(StepKind):
    """Kinds of steps of matrix forests. Tables are named after what they answer, by ``plan_measurement``."""

    MATRIX_TABLE = "table {}"
    VOTES = "votes, query by query"


def plan_measurement(
    name: str,
    workload: Workload,
    loss: Loss,
    neighbours: Neighbours,
    n_columns: int,
    *,
    features: Sequence[str] = (),
    votes: bool = False,
    payload: Any = None,
) -> Measurement:
    """Choose a strategy for a workload and plan its measurement at the price of ``loss``.

    Parameters
    ----------
    n_columns : int
        Columns of the measured tables: one for each class, or a single one.
    features : sequence of str
        Names of the workload's features, for the plan to be read by people.
    votes : bool
        Whether the table holds labels of leaves, of which one row can turn one around, rather than counts of rows.
    payload : dict, optional
        The strategy that an earlier plan found, which is then not searched again.

    Notes
    -----
    Guarantee

    Weighted marginals, and leaves of trees, are plain counts released one after the other, each at its share of the
    budget; an explicit strategy A is one release of the integers A D. One row adds one column of A in one class; or it
    takes a leaf's vote from one class to another, two columns of A (one where a single class is measured, the other
    being its complement) (proofs/matrix-forest.md, attacked by packages/veilwood/tests/forests/matrix/test_training.py).
    """
    noise, budget = noise_and_budget(loss, neighbours, n_columns, votes=votes)
    strategy = (
        optimize(workload, noise, budget, max_cells=max_table_cells(n_columns))
        if payload is None
        else strategy_from_json(workload, payload)
    )
    l1, squared_l2 = row_sensitivity(n_columns, votes, neighbours)
    parts = strategy.table_sensitivities(noise)
    steps = tuple(
        counting_step(
            StepName(f"{name}: {table}", MatrixStep.MATRIX_TABLE.key, (place,)),
            (*shape, n_columns),
            loss.scaled(share),
            neighbours,
            l1=l1 * column_l1,
            squared_l2=squared_l2 * column_squared_l2,
        )
        for place, ((share, column_l1, column_squared_l2), table, shape) in enumerate(
            zip(parts, _table_names(strategy, features), strategy.tables, strict=True), start=1
        )
    )
    return Measurement(workload, strategy, noise, budget, steps)


def _table_names(strategy: Strategy, features: Sequence[str]) -> list[str]:
    """Name what is measured, for people."""
    if not isinstance(strategy, Marginals) or not features:
        return [f"{strategy.name}, table {place}" for place in range(1, len(strategy.tables) + 1)]
    names = [" x ".join(features[i] for i in kept) or "total" for kept in strategy.weights]
    if isinstance(strategy, Mixture):
        names += [f"leaves of {_tree_names(trees, strategy.n_trees)}" for trees in strategy.trees.values()]
    return names


def _tree_names(trees: Sequence[int], n_trees: int) -> str:
    """Name trees by their numbers, from 1 on."""
    if len(trees) == n_trees:
        return "every tree"
    shown = ", ".join(str(tree + 1) for tree in trees)
    return f"tree {shown}" if len(trees) == 1 else f"trees {shown}"


def noise_and_budget(
    loss: Loss, neighbours: Neighbours, n_columns: int, *, votes: bool = False
) -> tuple[NoiseName, Fraction]:
    """Return the kind of noise, and the epsilon or rho that is left for a single added row."""
    l1, squared_l2 = row_sensitivity(n_columns, votes, neighbours)
    if loss.epsilon is None:
        return "laplace", Fraction(1)
    if loss.delta == 0:
        return "laplace", loss.epsilon / neighbours.l1_sensitivity(l1)
    assert loss.rho is not None
    return "gaussian", loss.rho / neighbours.squared_l2_sensitivity(squared_l2)


def max_table_cells(n_columns: int) -> int:
    """Return the largest table to measure, for each of so many columns: memory is for all of them together."""
    return max(1 << 22, (1 << 25) // n_columns)


def split_budget(
    workloads: Sequence[PathWorkload], noise: NoiseName, budget: Fraction, n_columns: int, starts: int | None = None
) -> list[Fraction]:
    """Return the share of the budget that each ensemble gets: as much as its error asks for.

    Under Laplace noise an error falls with the square of the share, so shares like the third roots of errors are best;
    under Gaussian noise with the share itself, and shares go like square roots. Equal shares, and shares like the
    numbers of trees, are compared as well: with the latter no ensemble is worse off than in the baseline. What is
    compared does not depend on the budget, so that with more of it the error never grows. ``starts`` are those of the
    searches (``search.optimize``).
    """
    n, root = len(workloads), 3 if noise == "laplace" else 2
    if n == 1:
        return [Fraction(1)]

    equal = [Fraction(1, n)] * n
    found = ensemble_errors(workloads, equal, noise, SMALL_BUDGET, n_columns, starts)
    options = [
        equal,
        _round_fractions([float(workload.tree_of_leaf[-1] + 1) for workload in workloads]),
        _round_fractions([error ** (1 / root) for error in found]),
    ]
    return min(options, key=lambda shares: sum(ensemble_errors(workloads, shares, noise, budget, n_columns, starts)))


def ensemble_errors(
    workloads: Sequence[PathWorkload],
    fractions: Sequence[Fraction],
    noise: NoiseName,
    budget: Fraction,
    n_columns: int,
    starts: int | None = None,
) -> list[float]:
    """Return the expected squared error that the best strategy for each ensemble leaves on its leaves together."""
    errors = []
    for workload, share in zip(workloads, fractions, strict=True):
        strategy = optimize(workload, noise, budget * share, starts=starts, max_cells=max_table_cells(n_columns))
        errors.append(expected_error(workload, strategy, noise, budget * share))
    return errors


def _round_fractions(weights: Sequence[float]) -> list[Fraction]:
    whole = [max(1, round(part / max(weights) * FRACTION_UNITS)) for part in weights]
    return [Fraction(part, sum(whole)) for part in whole]


def alternative_errors(
    workloads: Sequence[PathWorkload], fractions: Sequence[Fraction], noise: NoiseName, budget: Fraction, n_columns: int
) -> dict[str, float]:
    """Return, by name, the expected squared error of a leaf that each kind of strategy would have left."""
    n_leaves = sum(workload.n_queries for workload in workloads)
    trees = sum(int(workload.tree_of_leaf[-1]) + 1 for workload in workloads)
    totals: dict[str, list[float]] = {}
    for workload, share in zip(workloads, fractions, strict=True):
        best: dict[str, float] = {}
        for strategy in candidate_strategies(workload, noise, budget * share, max_cells=max_table_cells(n_columns)):
            error = drawable_error(workload, strategy, noise, budget * share)
            best[strategy.name] = min(error, best.get(strategy.name, error))
        for name, error in best.items():
            totals.setdefault(name, []).append(error)
    told = {
        name: sum(errors) / n_leaves
        for name, errors in totals.items()
        if len(errors) == len(workloads) and math.isfinite(sum(errors))
    }
    told["equal shares"] = noise_variance(noise, trees / budget if noise == "laplace" else trees / (2 * budget))
    return {name: float(f"{error:.4g}") for name, error in sorted(told.items(), key=lambda item: item[1])}


def row_sensitivity(n_columns: int, votes: bool, neighbours: Neighbours) -> tuple[int, int]:
    """Return by how much one row moves a table of counts, or of leaves' votes, in L1 and in squared L2."""
    l1 = squared_l2 = 2 if votes and n_columns > 1 else 1
    if votes and neighbours.adjacency == "replace-one":
        squared_l2 *= (
            2  # two votes can turn the same way: not the non-negative case of Neighbours.squared_l2_sensitivity
        )
    return l1, squared_l2
