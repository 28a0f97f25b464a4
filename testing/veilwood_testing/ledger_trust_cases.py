# SPDX-License-Identifier: Apache-2.0
"""Shared by privacy/test_ledger_trust.py and other tests."""

from __future__ import annotations

from typing import Any

from veilwood.privacy.ledger import Ledger, Reservation
from veilwood.privacy.loss import Loss, exact_fraction

ROW = "one row, added or removed"


def pure(epsilon: object) -> Loss:
    return Loss.pure(exact_fraction(epsilon))


def spend(ledger: Ledger, loss: Loss, **facts: Any) -> Reservation:
    return ledger.reserve(loss, what="leaf counts", neighbours=ROW, plan="1f3a", **facts)
