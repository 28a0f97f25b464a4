# SPDX-License-Identifier: Apache-2.0
"""A strategy as a plan holds it: whole numbers only, so that what was searched once is carried out and not searched."""

from __future__ import annotations

from typing import Any

from veilwood.errors import PlanError
from veilwood.forests.matrix.mixtures import Mixture
from veilwood.forests.matrix.strategies import Factors, Marginals, Strategy
from veilwood.forests.matrix.workloads import PathWorkload, Workload

__all__ = ["strategy_from_choice", "strategy_to_choice"]


def strategy_to_choice(strategy: Strategy) -> dict[str, Any]:
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


def strategy_from_choice(workload: Workload, choice: Any) -> Strategy:
    """Read what ``strategy_to_choice`` wrote; sensitivities are computed anew, and what cannot answer is refused."""
    try:
        strategy: Strategy
        if "factors" in choice:
            strategy = Factors(workload, choice["factors"])
        else:
            weights = {tuple(features): weight for features, weight in choice["marginals"]}
            if "trees" in choice and isinstance(workload, PathWorkload):
                trees = {weight: tuple(group) for weight, group in choice["trees"]}
                strategy = Mixture(workload, trees, weights)
            else:
                strategy = Marginals(workload, weights)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise PlanError(f"the strategy of the plan does not fit its forest: {error}") from None
    if not strategy.supports(workload):
        raise PlanError("the strategy of the plan cannot answer the leaves of its forest.")
    return strategy
