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
from veilwood.privacy.joint_noise import MOST_CELLS_TOGETHER, MOST_TABLE_CELLS, of_scale_1
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import MOST_SPARSE_CELLS, SparseLaplace
from veilwood.privacy.steps import Step, counting_step, joint_step, selecting_step, sparse_step

NO_NOISE: Final = 1e6  # the e of an infinite epsilon
_GRAIN: Final = 1 << 40  # parts of the budget: shares are whole numbers of them

Ints = NDArray[np.int64]
Number = TypeVar("Number", float, NDArray[np.float64])


class Purse:
    """What is left of a budget."""

    def __init__(self, loss: Loss, neighbours: Neighbours, door: Door | None = None) -> None:
        self._promised, self._neighbours, self._door = loss, neighbours, door
        self._left, self._aside, self._rho_taken = Fraction(1), Fraction(0), Fraction(0)
        if loss.undecided and loss.epsilon is not None:
            loss = Loss.pure(loss.epsilon)
        self._loss = loss
        self.gaussian = loss.delta > 0 and loss.epsilon is not None
        if loss.epsilon is None:
            self.whole = NO_NOISE
        elif self.gaussian and loss.rho is not None:
            self.whole = 2 * float(loss.rho / neighbours.squared_l2(1)) ** 0.5
        else:
            self.whole = float(loss.epsilon / neighbours.l1(1))

    @property
    def left(self) -> float:
        """The share of the budget that is left, and not set aside."""
        return float(self._left - self._aside)

    def by_rho(self) -> Purse | None:
        """Return what the steps so far have left by rho; None where nothing is, or it was decided before."""
        promised = self._promised
        if self.gaussian or not promised.undecided:
            return None
        other = Purse(requested_loss(promised.epsilon, promised.delta), self._neighbours, self._door)
        assert other._loss.rho is not None
        other._left = Fraction(int((1 - self._rho_taken / other._loss.rho) * _GRAIN), _GRAIN)
        return other if other._left > 0 else None

    def set_aside(self, share: float) -> None:
        """Keep a share for later; 0 gives back what was kept before."""
        self._aside = Fraction(int(share * _GRAIN), _GRAIN)

    def price(self, share: Number) -> Number:
        """What a share of the budget, or each of several, is worth."""
        return self.whole * (share**0.5 if self.gaussian else share)

    def share(self, price: float) -> float:
        """The share of the budget that a price is; more than 1 if it is beyond the budget."""
        return (price / self.whole) ** 2 if self.gaussian else price / self.whole

    def counting(
        self, name: str, shape: tuple[int, ...], share: float, *, l1: int = 1, squared_l2: int = 1, signed: bool = False
    ) -> Step:
        """Take a share of what is left for sums with noise; ``signed`` where what a row adds can be negative."""
        # Signs: two rows can differ by twice the norm of one, where vectors without signs differ by its root.
        squared_l2 *= 2 if signed and self._neighbours.adjacency == "replace-one" else 1
        return self._planned(
            counting_step(name, shape, self._taken(share), self._neighbours, l1=l1, squared_l2=squared_l2)
        )

    @property
    def among_servers(self) -> bool:
        """Whether servers of several owners draw the noise: table by table, and for what they can compute on shares.

        Plans, which have no door, take it that they do not (proofs/secure-joint.md).
        """
        return self._door is not None and not self._door.joins_noise

    @property
    def jointly(self) -> bool:
        """Whether tables can get their noise together, where that is less: with pure epsilon."""
        return not self.gaussian and self._loss.epsilon is not None and not self.among_servers

    def counting_tables(self, name: str, sizes: Sequence[int], n_classes: int, share: float) -> Step:
        """Take a share of what is left for class counts of one table, or of several together."""
        if len(sizes) == 1:
            return self.counting(name, (*sizes, n_classes), share)
        return self._planned(joint_step(name, sizes, n_classes, self._taken(share), self._neighbours))

    def choosing(self, name: str, n_candidates: int, share: float, *, score_range: int) -> Step:
        """Take a share of what is left for a choice."""
        loss = self._taken(share)
        by = "exponential" if self.gaussian else "flip"
        return self._planned(
            selecting_step(name, (1, n_candidates), loss, self._neighbours, score_range=score_range, by=by)  # type: ignore[arg-type]
        )

    def sparse(self, name: str, finds: float, least: int, share: float) -> Step:
        """Take a share of what is left for counts of cells, as many as turn up so many empty ones by chance."""
        step = sparse_step(name, MOST_SPARSE_CELLS, self._taken(share), self._neighbours, l1=1)
        if isinstance(step.mechanism, SparseLaplace):
            affordable = int(finds * step.mechanism.gap)
            step = replace(step, shape=(min(max(affordable, least), MOST_SPARSE_CELLS),))
        return self._planned(step)

    def measure_sparse(self, step: Step, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
        """Release, through the door, the cells that turn up."""
        assert self._door is not None
        return self._door.sparse(step, cells, counts, n_cells)

    def measure(self, step: Step, exact: Ints) -> NDArray[np.float64]:
        """Release sums through the door, with noise."""
        assert self._door is not None
        return self._door.noisy(step, exact.reshape(step.shape)).astype(np.float64)

    def choose(self, step: Step, scores: Ints, allowed: NDArray[np.bool_] | None = None) -> int:
        """Release a choice through the door."""
        assert self._door is not None
        (chosen,) = self._door.select(step, scores[None], None if allowed is None else allowed[None])
        return int(chosen)

    def _taken(self, share: float) -> Loss:
        part = Fraction(max(1, int(share * _GRAIN)), _GRAIN)
        free = self._left - self._aside
        if part + Fraction(16, _GRAIN) > free:
            part = free
        self._left -= part
        loss = self._loss.part(part)
        self._rho_taken += loss.rho or 0
        return loss

    def _planned(self, step: Step) -> Step:
        if self._door is not None and step not in self._door.plan.steps:
            self._door.extend(step)
        return step


# Tables get their noise together up to so many times the cells of the smallest. Squared noise of all cells beside the
# best cuts, 400 random lists of sizes: 1.01 times on average, 1.19 at most; with 2 1.01 and 1.38, with 8 1.04 and 1.46.
ALIKE_IN_SIZE: Final = 3

Floats = NDArray[np.float64]


class TablesNoise(NamedTuple):
    """How tables get noise: by rho or by epsilon, and with epsilon together where that is less."""

    gaussian: bool
    jointly: bool

    @classmethod
    def of(cls, purse: Purse) -> TablesNoise:
        """Return how a purse pays for tables."""
        return cls(purse.gaussian, purse.jointly)

    def groups(self, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """Divide a budget among tables of ascending sizes: how many get their noise together, and their share.

        Together tables need less noise, but that of a small one grows with the cells of all: so tables of about one
        size do. Shares are those of the least squared noise of all cells: the least sum of squares / share^2, or of
        squares / share by rho.

        >>> [(n_tables, round(share, 2)) for n_tables, share in TablesNoise(False, True).groups([3, 3, 4, 256])]
        [(3, 0.32), (1, 0.68)]
        """
        groups: list[list[int]] = []
        for size in sizes:
            if groups and self.jointly and _fit([*groups[-1], size]):
                groups[-1].append(size)
            else:
                groups.append([size])
        # As all rows are in every table, the last cell of each is known from the others.
        squares = [sum((size - 1) * one for size, one in zip(group, _of_cells(group), strict=True)) for group in groups]
        roots = np.maximum(squares, 1.0) ** (1 / 2 if self.gaussian else 1 / 3)
        return list(zip(map(len, groups), (roots / roots.sum()).tolist(), strict=True))

    def variances(self, sizes: Sequence[int]) -> Floats:
        """Return the variance of the noise on a cell of each table, at a price of 1 for all; sizes ascend."""
        found: list[float] = []
        for n_tables, share in self.groups(sizes):
            mine = _of_cells(sizes[len(found) : len(found) + n_tables])
            found += [one / share ** (1 if self.gaussian else 2) for one in mine]
        return np.array(found)


def _fit(sizes: Sequence[int]) -> bool:
    """Whether tables of ascending sizes are alike, and can get their noise together."""
    return sizes[-1] <= min(ALIKE_IN_SIZE * sizes[0], MOST_TABLE_CELLS) and sum(sizes) <= MOST_CELLS_TOGETHER


def _of_cells(sizes: Sequence[int]) -> list[float]:
    """The variance of the noise on one cell of each table of a group, at a price of 1."""
    if len(sizes) == 1:
        return [2.0]
    by_size = dict(of_scale_1(tuple(sorted(Counter(sizes).items())))[0])
    return [by_size[size] for size in sizes]


class TablesName(NamedTuple):
    """How steps of tables are named: what a table is, and what is counted in it."""

    table: str
    counted: str

    def of(self, n_before: int, n_tables: int) -> str:
        """Name so many tables after so many others.

        >>> TablesName("table", "classes by cell").of(0, 4), TablesName("histogram", "rows by group").of(4, 1)
        ('tables 1 to 4: classes by cell', 'histogram 5: rows by group')
        """
        last = n_before + n_tables
        which = f"{self.table} {last}" if n_tables == 1 else f"{self.table}s {n_before + 1} to {last}"
        return f"{which}: {self.counted}"


class CountedTables(NamedTuple):
    """What was released: counts of each table, with the variance of a cell; totals of each group, with theirs.

    A group are tables that share their noise; totals are those of classes.
    """

    counts: list[Floats]
    variances: list[float]
    totals: list[Floats]
    total_variances: list[float]


def count_tables(
    purse: Purse, sizes: Sequence[int], exact: NDArray[np.int64], share: float, name: TablesName
) -> CountedTables:
    """Take a share of what is left in a purse for tables of ascending sizes, and release them.

    ``exact`` has a row for each cell, table after table.
    """
    found = CountedTables([], [], [], [])
    for n_tables, part in TablesNoise.of(purse).groups(sizes):
        first = len(found.counts)
        mine, start = sizes[first : first + n_tables], sum(sizes[:first])
        step = purse.counting_tables(name.of(first, n_tables), mine, exact.shape[1], share * part)
        seen = purse.measure(step, exact[start : start + sum(mine)])
        found.counts.extend(np.split(seen, np.cumsum(mine[:-1])))
        found.variances.extend(step.table_variances)
        found.totals.append(found.counts[-1].sum(axis=0))  # those of a group are the same
        found.total_variances.append(step.total_variance)
    return found
