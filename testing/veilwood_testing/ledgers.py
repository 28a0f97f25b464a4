# SPDX-License-Identifier: Apache-2.0
"""What a spend looks like in tests of ledgers."""

from __future__ import annotations

from veilwood.privacy.ledger import Ledger, Reservation
from veilwood.privacy.loss import Loss, exact_fraction

ROW = "one row, added or removed"


def pure(epsilon: object) -> Loss:
    return Loss.pure(exact_fraction(epsilon))


def spend(ledger: Ledger, loss: Loss, neighbours: str = ROW) -> Reservation:
    return ledger.reserve(loss, what="leaf counts", neighbours=neighbours, plan="1f3a")
