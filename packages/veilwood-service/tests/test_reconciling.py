# SPDX-License-Identifier: Apache-2.0
"""Ledgers that were put back are frozen until they are reconciled."""

from __future__ import annotations

from fractions import Fraction

import pytest

pytest.importorskip("fastapi")
import veilwood as vw
from veilwood.privacy.loss import Loss
from veilwood_service.budgets import CompositeLedger, GuardedLedger, IssuedRelease, loss_from_certificate, reconcile
from veilwood_testing.running_service import ENTRY_FACTS, EPSILON_TENTH


def test_a_frozen_ledger_thaws_only_when_it_is_reconciled(book: GuardedLedger) -> None:
    older = book.ledger.path.read_bytes()  # type: ignore[attr-defined]
    CompositeLedger([book], "k").reserve(EPSILON_TENTH, **ENTRY_FACTS)
    book.ledger.path.write_bytes(older)  # type: ignore[attr-defined]
    again = GuardedLedger(vw.SQLiteLedger(book.ledger.path), book.checkpoint)  # type: ignore[attr-defined]
    with pytest.raises(vw.LedgerError, match="frozen"):
        again.write_checkpoint()
    reconcile(again, [IssuedRelease("1f3a", EPSILON_TENTH, "one row")], "a test")
    assert (again.is_frozen(), again.ledger.spent) == (False, EPSILON_TENTH)


def test_a_release_is_not_set_off_against_a_run_that_is_pending(book: GuardedLedger) -> None:
    CompositeLedger([book], "pending").reserve(EPSILON_TENTH, **ENTRY_FACTS)
    assert len(reconcile(book, [IssuedRelease("1f3a", EPSILON_TENTH, "one row")], "a test")) == 1
    assert book.ledger.spent == EPSILON_TENTH + EPSILON_TENTH
    assert {entry.state for entry in book.ledger.entries()} == {"committed", "resolved"}


def test_a_release_known_by_its_certificate_alone_may_have_cost_the_rho_of_its_epsilon() -> None:
    assert loss_from_certificate(1.0, 1e-6).rho == Fraction(1, 2)
    assert loss_from_certificate(1.0, 0.0) == Loss.pure(Fraction(1))
