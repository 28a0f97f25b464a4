# SPDX-License-Identifier: Apache-2.0
"""A privacy budget that is spent step by step, each step planned from what has been released before.

Prices are in the epsilon of one row, e: what Laplace noise on a count would cost it. A unit of k rows at epsilon is one
row at epsilon / k, a replaced row one at epsilon / 2; with a delta, a part rho of the budget is worth the Gaussian
noise of Laplace's variance, e = 2 sqrt(rho). All that a method decides follows from such prices, never from epsilon
itself. The door checks in exact fractions that all steps together cost no more than was reserved (proofs/door.md).

Whether epsilon or rho buys more depends on the number of rows. Where that is not known before, the first step is taken
out of epsilon, and what follows so or ``by_rho``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import MAX_JOINT_CELLS, MAX_TABLE_CELLS, unit_scale_moments
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import MAX_SPARSE_CELLS, SparseLaplace
from veilwood.privacy.steps import Step, StepKind, StepName, counting_step, joint_step, selection_step, sparse_step

UNBOUNDED_ROW_EPSILON: Final = 1e6  # the e of an infinite epsilon
_BUDGET_UNITS: Final = 1 << 40  # parts of the budget: shares are whole numbers of them

Ints = NDArray[np.int64]
Number = TypeVar("Number", float, NDArray[np.float64])


class AdaptiveBudget:
    """What is left of a budget."""

    def __init__(self, loss: Loss, neighbours: Neighbours, door: Door | None = None) -> None:
        self._requested_loss, self._neighbours, self._door = loss, neighbours, door
        self._remaining, self._earmarked, self._rho_spent = Fraction(1), Fraction(0), Fraction(0)
        if loss.accounting_open and loss.epsilon is not None:
            loss = Loss.pure(loss.epsilon)
        self._loss = loss
        self.uses_gaussian = loss.delta > 0 and loss.epsilon is not None
        if loss.epsilon is None:
            self.row_epsilon = UNBOUNDED_ROW_EPSILON
        elif self.uses_gaussian and loss.rho is not None:
            self.row_epsilon = 2 * float(loss.rho / neighbours.squared_l2_sensitivity(1)) ** 0.5
        else:
            self.row_epsilon = float(loss.epsilon / neighbours.l1_sensitivity(1))

    @property
    def remaining(self) -> float:
        """The share of the budget that is left, and not set aside."""
        return float(self._remaining - self._earmarked)

    def under_zcdp(self) -> AdaptiveBudget | None:
        """Return what the steps so far have left by rho; None where nothing is, or it was decided before."""
        promised = self._requested_loss
        if self.uses_gaussian or not promised.accounting_open:
            return None
        other = AdaptiveBudget(requested_loss(promised.epsilon, promised.delta), self._neighbours, self._door)
        assert other._loss.rho is not None
        other._remaining = Fraction(int((1 - self._rho_spent / other._loss.rho) * _BUDGET_UNITS), _BUDGET_UNITS)
        return other if other._remaining > 0 else None

    def earmark(self, fraction: float) -> None:
        """Keep a share for later; 0 gives back what was kept before."""
        self._earmarked = Fraction(int(fraction * _BUDGET_UNITS), _BUDGET_UNITS)

    def row_epsilon_of(self, fraction: Number) -> Number:
        """What a share of the budget, or each of several, is worth."""
        return self.row_epsilon * (fraction**0.5 if self.uses_gaussian else fraction)

    def fraction_for(self, row_epsilon: float) -> float:
        """The share of the budget that a price is; more than 1 if it is beyond the budget."""
        return (row_epsilon / self.row_epsilon) ** 2 if self.uses_gaussian else row_epsilon / self.row_epsilon

    def plan_counts(
        self,
        name: str,
        shape: tuple[int, ...],
        fraction: float,
        *,
        l1: int = 1,
        squared_l2: int = 1,
        signed: bool = False,
    ) -> Step:
        """Take a share of what is left for sums with noise; ``signed`` where what a row adds can be negative."""
        loss = self._take_loss(fraction)
        return self._add_step(
            counting_step(name, shape, loss, self._neighbours, l1=l1, squared_l2=squared_l2, signed=signed)
        )

    @property
    def servers_draw_noise(self) -> bool:
        """Whether servers of several owners draw the noise: table by table, and for what they can compute on shares.

        Plans, which have no door, take it that they do not (proofs/secure-joint.md).
        """
        return self._door is not None and not self._door.supports_joint_noise

    @property
    def allows_joint_noise(self) -> bool:
        """Whether tables can get their noise together, where that is less: with pure epsilon."""
        return not self.uses_gaussian and self._loss.epsilon is not None and not self.servers_draw_noise

    def plan_tables(self, name: str, sizes: Sequence[int], n_classes: int, fraction: float) -> Step:
        """Take a share of what is left for class counts of one table, or of several together."""
        if len(sizes) == 1:
            return self.plan_counts(name, (*sizes, n_classes), fraction)
        return self._add_step(joint_step(name, sizes, n_classes, self._take_loss(fraction), self._neighbours))

    def plan_selection(self, name: str, n_candidates: int, fraction: float, *, score_range: int) -> Step:
        """Take a share of what is left for a choice."""
        loss = self._take_loss(fraction)
        by = "exponential" if self.uses_gaussian else "flip"
        return self._add_step(
            selection_step(name, (1, n_candidates), loss, self._neighbours, score_range=score_range, by=by)  # type: ignore[arg-type]
        )

    def plan_sparse(self, name: str, false_positives: float, min_cells: int, fraction: float, *, l1: int = 1) -> Step:
        """Take a share of what is left for counts of cells, as many as turn up so many empty ones by chance."""
        step = sparse_step(name, MAX_SPARSE_CELLS, self._take_loss(fraction), self._neighbours, l1=l1)
        if isinstance(step.mechanism, SparseLaplace):
            affordable = int(false_positives * step.mechanism.gap)
            step = replace(step, shape=(min(max(affordable, min_cells), MAX_SPARSE_CELLS),))
        return self._add_step(step)

    def release_sparse(self, step: Step, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
        """Release, through the door, the cells that turn up."""
        assert self._door is not None
        return self._door.release_sparse(step, cells, counts, n_cells)

    def release_counts(self, step: Step, exact: Ints) -> NDArray[np.float64]:
        """Release sums through the door, with noise."""
        assert self._door is not None
        return self._door.release_counts(step, exact.reshape(step.shape)).astype(np.float64)

    def select(self, step: Step, scores: Ints, allowed: NDArray[np.bool_] | None = None) -> int:
        """Release a choice through the door."""
        assert self._door is not None
        (chosen,) = self._door.select(step, scores[None], None if allowed is None else allowed[None])
        return int(chosen)

    def _take_loss(self, fraction: float) -> Loss:
        part = Fraction(max(1, int(fraction * _BUDGET_UNITS)), _BUDGET_UNITS)
        free = self._remaining - self._earmarked
        if part + Fraction(16, _BUDGET_UNITS) > free:
            part = free
        self._remaining -= part
        loss = self._loss.scaled(part)
        self._rho_spent += loss.rho or 0
        return loss

    def _add_step(self, step: Step) -> Step:
        if self._door is not None and step not in self._door.plan.steps:
            self._door.extend(step)
        return step


# Tables get their noise together up to so many times the cells of the smallest. Squared noise of all cells beside the
# best cuts, 400 random lists of sizes: 1.01 times on average, 1.19 at most; with 2 1.01 and 1.38, with 8 1.04 and 1.46.
MAX_SIZE_RATIO: Final = 3

Floats = NDArray[np.float64]


class TableNoise(NamedTuple):
    """How tables get noise: by rho or by epsilon, and with epsilon together where that is less."""

    uses_gaussian: bool
    allows_joint_noise: bool

    @classmethod
    def from_budget(cls, budget: AdaptiveBudget) -> TableNoise:
        """Return how a purse pays for tables."""
        return cls(budget.uses_gaussian, budget.allows_joint_noise)

    def group_tables(self, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """Divide a budget among tables of ascending sizes: how many get their noise together, and their share.

        Together tables need less noise, but that of a small one grows with the cells of all: so tables of about one
        size do. Shares are those of the least squared noise of all cells: the least sum of squares / share^2, or of
        squares / share by rho.

        >>> [(n_tables, round(share, 2)) for n_tables, share in TableNoise(False, True).group_tables([3, 3, 4, 256])]
        [(3, 0.32), (1, 0.68)]
        """
        groups: list[list[int]] = []
        for size in sizes:
            if groups and self.allows_joint_noise and _share_noise([*groups[-1], size]):
                groups[-1].append(size)
            else:
                groups.append([size])
        # As all rows are in every table, the last cell of each is known from the others.
        squares = [
            sum((size - 1) * one for size, one in zip(group, _group_variances(group), strict=True)) for group in groups
        ]
        roots = np.maximum(squares, 1.0) ** (1 / 2 if self.uses_gaussian else 1 / 3)
        return list(zip(map(len, groups), (roots / roots.sum()).tolist(), strict=True))

    def cell_variances(self, sizes: Sequence[int]) -> Floats:
        """Return the variance of the noise on a cell of each table, at a price of 1 for all; sizes ascend."""
        found: list[float] = []
        for n_tables, share in self.group_tables(sizes):
            mine = _group_variances(sizes[len(found) : len(found) + n_tables])
            found += [one / share ** (1 if self.uses_gaussian else 2) for one in mine]
        return np.array(found)


def _share_noise(sizes: Sequence[int]) -> bool:
    """Whether tables of ascending sizes are alike, and can get their noise together."""
    return sizes[-1] <= min(MAX_SIZE_RATIO * sizes[0], MAX_TABLE_CELLS) and sum(sizes) <= MAX_JOINT_CELLS


def _group_variances(sizes: Sequence[int]) -> list[float]:
    """The variance of the noise on one cell of each table of a group, at a price of 1."""
    if len(sizes) == 1:
        return [2.0]
    by_size = dict(unit_scale_moments(tuple(sorted(Counter(sizes).items())))[0])
    return [by_size[size] for size in sizes]


class TableStepName(NamedTuple):
    """Kinds of the steps that release tables: of one table by itself, and of several with joint noise."""

    alone: StepKind
    jointly: StepKind

    def format_range(self, n_before: int, n_tables: int) -> StepName:
        """Name the step of ``n_tables`` tables that follow ``n_before`` others.

        >>> class Example(StepKind):
        ...     TABLE, TABLES = "table {}: classes by cell", "tables {} to {}: classes by cell"
        >>> names = TableStepName(Example.TABLE, Example.TABLES)
        >>> names.format_range(0, 4), names.format_range(4, 1)
        ('tables 1 to 4: classes by cell', 'table 5: classes by cell')
        """
        last = n_before + n_tables
        return self.alone.at(last) if n_tables == 1 else self.jointly.at(n_before + 1, last)


class NoisyTables(NamedTuple):
    """What was released: counts of each table, with the variance of a cell; totals of each group, with theirs.

    A group are tables that share their noise; totals are those of classes.
    """

    counts: list[Floats]
    variances: list[float]
    totals: list[Floats]
    total_variances: list[float]


def release_tables(
    budget: AdaptiveBudget, sizes: Sequence[int], exact: NDArray[np.int64], fraction: float, name: TableStepName
) -> NoisyTables:
    """Take a share of what is left in a purse for tables of ascending sizes, and release them.

    ``exact`` has a row for each cell, table after table.
    """
    found = NoisyTables([], [], [], [])
    for n_tables, part in TableNoise.from_budget(budget).group_tables(sizes):
        first = len(found.counts)
        mine, start = sizes[first : first + n_tables], sum(sizes[:first])
        step = budget.plan_tables(name.format_range(first, n_tables), mine, exact.shape[1], fraction * part)
        seen = budget.release_counts(step, exact[start : start + sum(mine)])
        found.counts.extend(np.split(seen, np.cumsum(mine[:-1])))
        found.variances.extend(step.table_variances)
        found.totals.append(found.counts[-1].sum(axis=0))  # those of a group are the same
        found.total_variances.append(step.total_variance)
    return found
