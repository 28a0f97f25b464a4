# SPDX-License-Identifier: Apache-2.0
"""A release that an entry of the ledger covers already, because it is about units that the first release never saw."""

from __future__ import annotations

from typing import Self

from veilwood.errors import UseError
from veilwood.privacy.certificate import PrivacyStatement, Spend, certify
from veilwood.privacy.door import Door, UnchargedDoor, kept_by
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan


def covered_by(loss: Loss) -> Loss:
    """Return what a second release may cost: where it was left open how the first one's steps add up, its epsilon.

    That is within both bounds of the first, epsilon with delta and rho.
    """
    return Loss.pure(loss.epsilon) if loss.undecided and loss.epsilon is not None else loss


class CoveredDoor(UnchargedDoor):
    """The second of two releases on disjoint parts of the units, drawn by a secret key.

    The first has reserved its loss itself and is finished. Under add-remove a unit is in one of the parts, so that both
    cost the larger loss; this one costs the same as the first. One release covers one other, no more. Other neighbours,
    another loss and units that may be in both parts are refused before anything is counted.

    Notes
    -----
    Guarantee

    Both releases together cost the loss that the ledger holds for the first (proofs/evaluation.md, attacked by
    tests/forests/test_aside.py).
    """

    def __init__(self, plan: Plan, first: Door) -> None:
        super().__init__(plan, first._ledger, table=first._table)
        self._reasons = list(dict.fromkeys([*first._reasons, *self._reasons]))
        self._first = first

    def __enter__(self) -> Self:
        first = self._first
        if first._reservation is None or not first._closed or first.covers or isinstance(first, UnchargedDoor):
            raise UseError("a release that was charged covers one other, after it is finished.")
        if not first.plan.neighbours.in_one_part:
            raise UseError(f"two releases add up where {first.plan.neighbours} are protected: none covers another.")
        if first.plan.neighbours != self.plan.neighbours or covered_by(first.plan.loss) != self.plan.loss:
            raise UseError(f"{self.plan.loss} is not covered by {first.plan.loss} for {first.plan.neighbours}.")
        self._check_entropy()
        first.covers = True
        self._reservation = first._reservation
        return self

    def statement(self) -> PrivacyStatement:
        """Return the certificate of this release; its entry is that of the first."""
        if self._reservation is None or not self._closed:
            raise UseError("a release has a statement once it is finished.")
        ledger = self._ledger
        spend = Spend(ledger.name, self._reservation.id, self.plan.loss, kept_by(ledger), self._reason)
        return certify(self.plan, spend)
