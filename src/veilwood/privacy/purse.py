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

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.sparse_noise import MOST_SPARSE_CELLS, SparseLaplace
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
