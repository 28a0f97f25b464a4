# SPDX-License-Identifier: Apache-2.0
"""What is measured in place of a workload: a strategy that answers it with less noise, and the steps it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.matrix.search import optimize
from veilwood.forests.matrix.strategies import Marginals, Noise, Strategy, expected_error, strategy_from_choice
from veilwood.forests.matrix.workloads import Workload
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.steps import Step, counting_step

MECHANISMS = ("optimized", "laplace")


@dataclass(frozen=True)
class Measurement:
    """A workload, the strategy that answers it, and the planned steps that measure the strategy."""

    workload: Workload
    strategy: Strategy
    noise: Noise
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


def plan_measurement(
    name: str,
    workload: Workload,
    loss: Loss,
    neighbours: Neighbours,
    n_columns: int,
    *,
    features: Sequence[str] = (),
    votes: bool = False,
    choice: Any = None,
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
    choice : dict, optional
        The strategy that an earlier plan found, which is then not searched again.

    Notes
    -----
    Guarantee

    Weighted marginals are plain counts released one after the other, each at its share of the budget; an explicit
    strategy A is one release of the integers A D. One row adds one column of A in one class; or it takes a leaf's
    vote from one class to another, two columns of A (one where a single class is measured, the other being its
    complement) (proofs/matrix-forest.md, attacked by tests/forests/test_matrix_training.py).
    """
    noise: Noise = "gaussian" if loss.delta > 0 else "laplace"
    l1, squared_l2 = moves(n_columns, votes, neighbours)
    if loss.epsilon is None:
        budget = Fraction(1)
    elif noise == "laplace":
        budget = loss.epsilon / neighbours.l1(l1)
    else:
        assert loss.rho is not None
        budget = loss.rho / neighbours.squared_l2(squared_l2)
    strategy = optimize(workload, noise, budget) if choice is None else strategy_from_choice(workload, choice)
    if isinstance(strategy, Marginals):
        power = 1 if noise == "laplace" else 2
        parts = [Fraction(weight**power) for weight in strategy.weights.values()]
        shares, column_l1, column_squared_l2 = [part / sum(parts) for part in parts], 1, 1
        tables = [" x ".join(features[i] for i in kept) or "total" for kept in strategy.weights] if features else []
    else:
        shares, column_l1, column_squared_l2 = [Fraction(1)], strategy.l1, strategy.l2_squared
        tables = []
    tables = tables or [f"{strategy.name}, table {place}" for place in range(1, len(shares) + 1)]
    steps = tuple(
        counting_step(
            f"{name}: {table}",
            (*shape, n_columns),
            loss.part(share),
            neighbours,
            l1=l1 * column_l1,
            squared_l2=squared_l2 * column_squared_l2,
        )
        for share, table, shape in zip(shares, tables, strategy.tables, strict=True)
    )
    return Measurement(workload, strategy, noise, budget, steps)


def moves(n_columns: int, votes: bool, neighbours: Neighbours) -> tuple[int, int]:
    """Return by how much one row moves a table of counts, or of leaves' votes, in L1 and in squared L2."""
    l1 = squared_l2 = 2 if votes and n_columns > 1 else 1
    if votes and neighbours.adjacency == "replace-one":
        squared_l2 *= 2  # two votes can turn the same way: not the non-negative case of Neighbours.squared_l2
    return l1, squared_l2
