# SPDX-License-Identifier: Apache-2.0
"""Adaptive spending of a privacy budget, and its division among contingency tables.

Each step may depend on the values released before it. Methods decide by the *row epsilon*: the epsilon that Laplace
noise of the same variance on a count would cost one row. Epsilon for a unit of k rows is a row epsilon of epsilon / k;
for a replaced row, it is epsilon / 2. Under zCDP, rho per row gives Gaussian noise with the variance of Laplace noise
at row epsilon 2 sqrt(rho). The release door checks in exact fractions that all steps together cost no more than was
reserved (proofs/door.md).

Whether pure epsilon or zCDP gives less noise depends on the number of rows. If this number is unknown at the start, the
first step takes its loss from epsilon, and later steps either continue with epsilon or switch to ``under_zcdp``.

``release_tables`` releases several contingency tables of the same rows, in groups that share their noise
(``joint_noise``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, Literal, NamedTuple, TypeVar

import numpy as np

from veilwood.arrays import Bools, Floats, Ints
from veilwood.errors import ParameterError
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import MAX_JOINT_CELLS, MAX_TABLE_CELLS, unit_scale_moments
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import MAX_SPARSE_CELLS, SparseLaplace
from veilwood.privacy.steps import Step, StepKind, StepName, counting_step, joint_step, selection_step, sparse_step

UNBOUNDED_ROW_EPSILON: Final = 1e6  # stands in for an infinite epsilon
# With less, the noise of a small step could exceed the largest scale that is drawn exactly (``noise.MAX_SCALE``). The
# noise of a step has been up to 10^5 times that of a count at the whole budget; 10^-8 allows a factor of 10^7.
MIN_ROW_EPSILON: Final = 1e-8
_BUDGET_UNITS: Final = 1 << 40  # fractions of the budget are multiples of 1 / _BUDGET_UNITS
# A remainder of at most this many units counts as nothing: rounding down loses about one unit per step.
_ROUNDING_UNITS: Final = 16

Number = TypeVar("Number", float, Floats)


class AdaptiveBudget:
    """Remaining budget of a release whose steps are planned one by one.

    Parameters
    ----------
    loss : Loss
        Budget of the release.
    neighbours : Neighbours
        The protected unit and the adjacency.
    door : Door, optional
        The open release door, to which steps are added and which releases them. Without a door, steps are only planned.

    Attributes
    ----------
    row_epsilon : float
        Row epsilon of the whole budget.
    uses_gaussian : bool
        Whether steps compose under zCDP, with Gaussian noise.
    """

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

    def check_row_epsilon(self) -> None:
        """Raise ParameterError if the budget is so small that its noise could not be drawn. Call before spending."""
        if self.row_epsilon < MIN_ROW_EPSILON:
            raise ParameterError(
                "epsilon", float(self._loss.epsilon or 0),
                f"is {self.row_epsilon:.3g} for each row of {self._neighbours.unit}, but must be at least "
                f"{MIN_ROW_EPSILON:g} for this forest",
                "increase epsilon, or protect fewer rows of a unit",
            )  # fmt: skip

    @property
    def remaining(self) -> float:
        """Fraction of the budget that is neither spent nor earmarked."""
        return float(self._remaining - self._earmarked)

    def under_zcdp(self) -> AdaptiveBudget | None:
        """Return the remaining budget under zCDP accounting, or None if nothing remains or the accounting is fixed."""
        promised = self._requested_loss
        if self.uses_gaussian or not promised.accounting_open:
            return None
        other = AdaptiveBudget(requested_loss(promised.epsilon, promised.delta), self._neighbours, self._door)
        assert other._loss.rho is not None
        other._remaining = Fraction(int((1 - self._rho_spent / other._loss.rho) * _BUDGET_UNITS), _BUDGET_UNITS)
        return other if other._remaining > 0 else None

    def earmark(self, fraction: float) -> None:
        """Earmark a fraction of the budget for a later step; 0 releases the earmark."""
        self._earmarked = Fraction(int(fraction * _BUDGET_UNITS), _BUDGET_UNITS)

    def row_epsilon_of(self, fraction: Number) -> Number:
        """Return the row epsilon of a fraction of the budget, or of each of several fractions."""
        return self.row_epsilon * (fraction**0.5 if self.uses_gaussian else fraction)

    def fraction_for(self, row_epsilon: float) -> float:
        """Return the fraction of the budget that has this row epsilon; it is above 1 if it exceeds the budget."""
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
        """Plan the release of noisy sums with a fraction of the budget; ``signed`` if a row can add negative numbers.

        ``l1`` and ``squared_l2`` are the norms of the largest vector that one row can add.
        """
        loss = self._take_loss(fraction)
        return self._add_step(
            counting_step(name, shape, loss, self._neighbours, l1=l1, squared_l2=squared_l2, signed=signed)
        )

    @property
    def allows_joint_noise(self) -> bool:
        """Whether several tables may share their noise, which needs pure epsilon."""
        return not self.uses_gaussian and self._loss.epsilon is not None

    @property
    def joint_noise_variance(self) -> float:
        """Variance of joint noise, as a multiple of the variance of ``JointLaplace``; 1 without a door."""
        return 1.0 if self._door is None else self._door.joint_noise_variance

    def plan_tables(self, name: str, sizes: Sequence[int], n_classes: int, fraction: float) -> Step:
        """Plan the release of class counts of one table, or of several with joint noise."""
        if len(sizes) == 1:
            return self.plan_counts(name, (*sizes, n_classes), fraction)
        return self._add_step(joint_step(name, sizes, n_classes, self._take_loss(fraction), self._neighbours))

    def plan_selection(self, name: str, n_candidates: int, fraction: float, *, score_range: int) -> Step:
        """Plan one selection with a fraction of the budget."""
        loss = self._take_loss(fraction)
        by: Literal["flip", "exponential"] = "exponential" if self.uses_gaussian else "flip"
        return self._add_step(
            selection_step(name, (1, n_candidates), loss, self._neighbours, score_range=score_range, by=by)
        )

    def plan_sparse(self, name: str, false_positives: float, min_cells: int, fraction: float, *, l1: int = 1) -> Step:
        """Plan a sparse histogram with at least ``min_cells`` cells, so many that ``false_positives`` are expected."""
        step = sparse_step(name, MAX_SPARSE_CELLS, self._take_loss(fraction), self._neighbours, l1=l1)
        if isinstance(step.mechanism, SparseLaplace):
            affordable = int(false_positives * step.mechanism.gap)
            step = replace(step, shape=(min(max(affordable, min_cells), MAX_SPARSE_CELLS),))
        return self._add_step(step)

    def release_sparse(self, step: Step, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
        """Release the cells with positive noisy counts through the door."""
        assert self._door is not None
        return self._door.release_sparse(step, cells, counts, n_cells)

    def release_counts(self, step: Step, exact: Ints) -> Floats:
        """Release noisy sums through the door."""
        assert self._door is not None
        return self._door.release_counts(step, exact.reshape(step.shape)).astype(np.float64)

    def select(self, step: Step, scores: Ints, allowed: Bools | None = None) -> int:
        """Release a selection through the door."""
        assert self._door is not None
        (selected,) = self._door.select(step, scores[None], None if allowed is None else allowed[None])
        return int(selected)

    def _take_loss(self, fraction: float) -> Loss:
        """Spend a fraction of the budget, rounded to units, or all that remains if that is less."""
        part = Fraction(max(1, int(fraction * _BUDGET_UNITS)), _BUDGET_UNITS)
        available = self._remaining - self._earmarked
        if part + Fraction(_ROUNDING_UNITS, _BUDGET_UNITS) > available:
            part = available
        self._remaining -= part
        loss = self._loss.scaled(part)
        self._rho_spent += loss.rho or 0
        return loss

    def _add_step(self, step: Step) -> Step:
        if self._door is not None and not self._door.plan.has_step(step):
            self._door.extend(step)
        return step


# Tables share noise if the largest has at most this many times the cells of the smallest. On 400 random lists of sizes,
# the squared noise of all cells is 1.01 times that of the best division on average, and 1.19 times at most. With a
# ratio of 2 it is 1.01 and 1.38 times, with 8 it is 1.04 and 1.46 times.
MAX_SIZE_RATIO: Final = 3


class TableNoise(NamedTuple):
    """Noise of several tables: Gaussian or Laplace, and whether tables of similar sizes may share Laplace noise.

    ``joint_variance`` is ``AdaptiveBudget.joint_noise_variance``.
    """

    uses_gaussian: bool
    allows_joint_noise: bool
    joint_variance: float = 1.0

    @classmethod
    def from_budget(cls, budget: AdaptiveBudget) -> TableNoise:
        """Return the noise that a budget implies."""
        return cls(budget.uses_gaussian, budget.allows_joint_noise, budget.joint_noise_variance)

    def group_tables(self, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """Divide a budget among tables of ascending sizes.

        Joint noise of several tables is usually less than separate noise, but the noise of a small table grows with the
        number of cells of all tables. Only tables of similar sizes share noise, and only if joint noise is less. The
        fractions minimise the
        squared noise of all cells: the sum over groups of squares / fraction^2, or of squares / fraction under zCDP.

        Returns
        -------
        list of (int, float)
            For each group, the number of its tables and its fraction of the budget.

        Examples
        --------
        >>> [(n_tables, round(part, 2)) for n_tables, part in TableNoise(False, True).group_tables([3, 3, 4, 256])]
        [(3, 0.32), (1, 0.68)]
        """
        groups: list[list[int]] = []
        for size in sizes:
            if groups and self.allows_joint_noise and _may_share_noise([*groups[-1], size]):
                groups[-1].append(size)
            else:
                groups.append([size])
        groups = [part for group in groups for part in self._split_if_noisier(group)]
        squares = [self._squared_noise(group) for group in groups]
        roots = np.maximum(squares, 1.0) ** (1 / 2 if self.uses_gaussian else 1 / 3)
        return list(zip(map(len, groups), (roots / roots.sum()).tolist(), strict=True))

    def cell_variances(self, sizes: Sequence[int]) -> Floats:
        """Return the variance of the noise on a cell of each table, at row epsilon 1 for all; sizes ascend."""
        variances: list[float] = []
        for n_tables, part in self.group_tables(sizes):
            of_group = self._group_variances(sizes[len(variances) : len(variances) + n_tables])
            variances += [each / part ** (1 if self.uses_gaussian else 2) for each in of_group]
        return np.array(variances)

    def _split_if_noisier(self, group: list[int]) -> list[list[int]]:
        """Return the group unchanged, or each table as a group of its own if separate Laplace noise is less."""
        alone = [[size] for size in group]
        separate = sum(self._squared_noise(one) ** (1 / 3) for one in alone) ** 3  # the budget is divided by cube roots
        return alone if len(group) > 1 and self._squared_noise(group) > separate else [group]

    def _squared_noise(self, group: Sequence[int]) -> float:
        """Return the squared noise of all cells of a group, at row epsilon 1.

        All rows are in every table, so the last cell of each table follows from the others.
        """
        return sum((size - 1) * each for size, each in zip(group, self._group_variances(group), strict=True))

    def _group_variances(self, sizes: Sequence[int]) -> list[float]:
        """Return the variance of the noise on one cell of each table of a group, at row epsilon 1."""
        if len(sizes) == 1:
            return [2.0]
        by_size = dict(unit_scale_moments(tuple(sorted(Counter(sizes).items())))[0])
        return [self.joint_variance * by_size[size] for size in sizes]


def _may_share_noise(sizes: Sequence[int]) -> bool:
    """Return True if tables of ascending sizes are similar enough in size, and small enough, for joint noise."""
    return sizes[-1] <= min(MAX_SIZE_RATIO * sizes[0], MAX_TABLE_CELLS) and sum(sizes) <= MAX_JOINT_CELLS


class TableStepName(NamedTuple):
    """Names of the steps that release a single table, and several tables with joint noise."""

    alone: StepKind
    jointly: StepKind

    def format_range(self, n_before: int, n_tables: int) -> StepName:
        """Return the name of the step that releases ``n_tables`` tables, after ``n_before`` earlier tables.

        >>> class Example(StepKind):
        ...     TABLE, TABLES = "table {}: classes by cell", "tables {} to {}: classes by cell"
        >>> names = TableStepName(Example.TABLE, Example.TABLES)
        >>> names.format_range(0, 4), names.format_range(4, 1)
        ('tables 1 to 4: classes by cell', 'table 5: classes by cell')
        """
        last = n_before + n_tables
        return self.alone.at(last) if n_tables == 1 else self.jointly.at(n_before + 1, last)


class NoisyTables(NamedTuple):
    """Released contingency tables, with the variances of their noise.

    Attributes
    ----------
    counts : list of ndarray
        Noisy class counts by cell, for each table.
    variances : list of float
        Variance of the noise on a cell, for each table.
    totals : list of ndarray
        Noisy class counts of all rows, for each group of tables that share their noise.
    total_variances : list of float
        Variance of the noise on the totals, for each group.
    """

    counts: list[Floats]
    variances: list[float]
    totals: list[Floats]
    total_variances: list[float]


def release_tables(
    budget: AdaptiveBudget, sizes: Sequence[int], exact: Ints, fraction: float, name: TableStepName
) -> NoisyTables:
    """Plan and release class counts of tables of ascending sizes, with a fraction of the budget.

    ``exact`` has one row per cell, table after table.
    """
    released, noise = NoisyTables([], [], [], []), TableNoise.from_budget(budget)
    for n_tables, part in noise.group_tables(sizes):
        first = len(released.counts)
        group, start = sizes[first : first + n_tables], sum(sizes[:first])
        step = budget.plan_tables(name.format_range(first, n_tables), group, exact.shape[1], fraction * part)
        noisy = budget.release_counts(step, exact[start : start + sum(group)])
        released.counts.extend(np.split(noisy, np.cumsum(group[:-1])))
        factor = noise.joint_variance if n_tables > 1 else 1.0
        released.variances.extend(factor * variance for variance in step.table_variances)
        released.totals.append(released.counts[-1].sum(axis=0))  # equal for all tables of a group
        released.total_variances.append(factor * step.total_variance)
    return released
