# SPDX-License-Identifier: Apache-2.0
"""Planned measurements: the strategy for a workload, its steps, and the division of the budget among ensembles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from veilwood.arrays import Floats, Ints
from veilwood.errors import PlanError
from veilwood.forests.matrix.marginals import Mixture
from veilwood.forests.matrix.search import SMALL_BUDGET, candidate_strategies, drawable_error, optimize
from veilwood.forests.matrix.strategies import Factors, Marginals, NoiseName, Strategy, expected_error, noise_variance
from veilwood.forests.matrix.workloads import PathWorkload, Workload
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, StepKind, StepName, counting_step


def strategy_to_json(strategy: Strategy) -> dict[str, Any]:
    """Return a strategy as JSON for a plan."""
    if isinstance(strategy, Marginals):
        payload: dict[str, Any] = {
            "marginals": [[list(features), weight] for features, weight in strategy.weights.items()]
        }
        if isinstance(strategy, Mixture):
            payload["trees"] = [[weight, list(trees)] for weight, trees in strategy.trees.items()]
        return payload
    assert isinstance(strategy, Factors)
    return {"factors": [factor.tolist() for factor in strategy.factors]}


def strategy_from_json(workload: Workload, payload: Any) -> Strategy:
    """Read a strategy and recompute its sensitivities. Raise ``PlanError`` if it cannot answer the workload."""
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
        raise PlanError(f"the plan's strategy does not fit its forest: {error}") from None
    if not strategy.can_answer(workload):
        raise PlanError("the plan's strategy cannot answer the leaves of its forest.")
    return strategy


MECHANISMS = ("optimized", "laplace")
FRACTION_UNITS = 1 << 10  # fractions of ensembles are rounded to multiples of 1 / FRACTION_UNITS of the largest


@dataclass(frozen=True)
class Measurement:
    """Planned measurement: a workload, the strategy that answers it, and the steps that measure the strategy."""

    workload: Workload
    strategy: Strategy
    noise: NoiseName
    budget: Fraction  # epsilon or rho for one added row
    steps: tuple[Step, ...]

    @property
    def expected_error(self) -> float:
        """Expected total squared error of the answers in one class column; 0 without noise."""
        if self.steps[0].mechanism is None:
            return 0.0
        return expected_error(self.workload, self.strategy, self.noise, self.budget)

    def reconstruct(self, noisy: Sequence[Ints]) -> Floats:
        """Return the answers of the workload, computed from noisy measurements by post-processing."""
        return self.strategy.reconstruct(noisy, self.workload, self.noise, self.budget)


class MatrixStep(StepKind):
    """Kinds of steps of matrix forests. ``plan_measurement`` names tables after the queries that they answer."""

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
    """Choose a strategy for a workload, and plan its measurement with a privacy loss of ``loss``.

    Parameters
    ----------
    n_columns : int
        Number of columns of the measured tables: one per class, or a single one.
    features : sequence of str
        Names of the workload's features, as used in step names.
    votes : bool
        Whether the table holds labels of leaves instead of counts of rows; a row can change one label.
    payload : dict, optional
        Strategy of an earlier plan, used instead of a search.

    Notes
    -----
    Guarantee

    Weighted marginals, and leaves of trees, are plain counts released one after the other, each at its fraction of the
    budget. An explicit strategy A is one release of the integers A D. One row adds one column of A in one class. Or it
    moves a leaf's vote from one class to another: two columns of A, or one if a single class is measured, the other
    being its complement (proofs/matrix-forest.md, attacked by
    packages/veilwood/tests/forests/matrix/test_training.py).
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
    """Return the names of the measured tables, as used in step names."""
    if not isinstance(strategy, Marginals) or not features:
        return [f"{strategy.name}, table {place}" for place in range(1, len(strategy.tables) + 1)]
    names = [" x ".join(features[i] for i in features_of) or "total" for features_of in strategy.weights]
    if isinstance(strategy, Mixture):
        names += [f"leaves of {_tree_names(trees, strategy.n_trees)}" for trees in strategy.trees.values()]
    return names


def _tree_names(trees: Sequence[int], n_trees: int) -> str:
    """Return a name for some trees, numbered from 1."""
    if len(trees) == n_trees:
        return "every tree"
    numbers = ", ".join(str(tree + 1) for tree in trees)
    return f"tree {numbers}" if len(trees) == 1 else f"trees {numbers}"


def noise_and_budget(
    loss: Loss, neighbours: Neighbours, n_columns: int, *, votes: bool = False
) -> tuple[NoiseName, Fraction]:
    """Return the kind of noise, and the epsilon or rho for one added row."""
    l1, squared_l2 = row_sensitivity(n_columns, votes, neighbours)
    if loss.epsilon is None:
        return "laplace", Fraction(1)
    if loss.delta == 0:
        return "laplace", loss.epsilon / neighbours.l1_sensitivity(l1)
    assert loss.rho is not None
    return "gaussian", loss.rho / neighbours.squared_l2_sensitivity(squared_l2)


def max_table_cells(n_columns: int) -> int:
    """Return the maximum number of cells per column of a measured table; all columns share the memory."""
    return max(1 << 22, (1 << 25) // n_columns)


def split_budget(
    workloads: Sequence[PathWorkload], noise: NoiseName, budget: Fraction, n_columns: int, starts: int | None = None
) -> list[Fraction]:
    """Return the fraction of the budget for each ensemble, by its error.

    Under Laplace noise an error falls with the square of the fraction, so fractions proportional to third roots of
    errors are best. Under Gaussian noise it falls with the fraction, so square roots are best. Equal fractions, and
    fractions proportional to numbers of trees, are compared as well: with the latter, no ensemble has a larger error
    than in the baseline. The candidates do not depend on the budget, so the error never grows with the budget.
    ``starts`` is the number of starts of each search (``search.optimize``).
    """
    n, root = len(workloads), 3 if noise == "laplace" else 2
    if n == 1:
        return [Fraction(1)]

    equal = [Fraction(1, n)] * n
    errors = ensemble_errors(workloads, equal, noise, SMALL_BUDGET, n_columns, starts)
    options = [
        equal,
        _round_fractions([float(workload.tree_of_leaf[-1] + 1) for workload in workloads]),
        _round_fractions([error ** (1 / root) for error in errors]),
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
    """Return the expected squared error of all leaves of each ensemble under its best strategy."""
    errors = []
    for workload, share in zip(workloads, fractions, strict=True):
        strategy = optimize(workload, noise, budget * share, starts=starts, max_cells=max_table_cells(n_columns))
        errors.append(expected_error(workload, strategy, noise, budget * share))
    return errors


def _round_fractions(weights: Sequence[float]) -> list[Fraction]:
    units = [max(1, round(weight / max(weights) * FRACTION_UNITS)) for weight in weights]
    return [Fraction(part, sum(units)) for part in units]


def alternative_errors(
    workloads: Sequence[PathWorkload], fractions: Sequence[Fraction], noise: NoiseName, budget: Fraction, n_columns: int
) -> dict[str, float]:
    """Return the expected squared error of a leaf under each kind of strategy, by name."""
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
    leaf_errors = {
        name: sum(errors) / n_leaves
        for name, errors in totals.items()
        if len(errors) == len(workloads) and math.isfinite(sum(errors))
    }
    leaf_errors["equal shares"] = noise_variance(noise, trees / budget if noise == "laplace" else trees / (2 * budget))
    return {name: float(f"{error:.4g}") for name, error in sorted(leaf_errors.items(), key=lambda item: item[1])}


def row_sensitivity(n_columns: int, votes: bool, neighbours: Neighbours) -> tuple[int, int]:
    """Return the L1 and squared L2 norm of one row's change to a table of counts, or of votes of leaves."""
    l1 = squared_l2 = 2 if votes and n_columns > 1 else 1
    if votes and neighbours.adjacency == "replace-one":
        # Two votes can change the same way: not the non-negative case of Neighbours.squared_l2_sensitivity.
        squared_l2 *= 2
    return l1, squared_l2
