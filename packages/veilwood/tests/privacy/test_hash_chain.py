# SPDX-License-Identifier: Apache-2.0
"""Narrower limits: sums over parts of one ledger, kept from charge to charge."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from veilwood.errors import BudgetExceededError
from veilwood.privacy.ledger import Limit, Part
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood_testing.plans import pure_loss, spend


def test_limits_of_accounts_grants_and_periods_bind_together(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 2)
    year = f"{datetime.now(UTC):%Y}"
    eve = Limit("the allowance of eve", Part("eve"), pure_loss("0.5"))
    plan = Limit("the signature", Part(grant="plan"), max_releases=2)
    yearly = Limit("the yearly allowance", Part(period=year), pure_loss("1.5"))
    past = Limit("the allowance of another year", Part(period="1999"), pure_loss("0.1"))
    for _ in range(2):
        spend(ledger, pure_loss("0.5"), account="ana", grant="plan", limits=[plan, yearly]).commit()
    with pytest.raises(BudgetExceededError):
        spend(ledger, pure_loss("0.1"), account="ana", grant="plan", limits=[plan])
    with pytest.raises(BudgetExceededError) as refused:
        spend(ledger, pure_loss("0.6"), account="eve", limits=[eve])
    assert refused.value.remaining == Loss(Fraction(1, 2))
    with pytest.raises(BudgetExceededError):
        ledger.check_affordable(pure_loss("0.6"), [eve])
    spend(ledger, pure_loss("0.5"), account="eve", limits=[eve, yearly]).commit()
    with pytest.raises(BudgetExceededError):
        spend(ledger, pure_loss("0.1"), account="ana", limits=[yearly])
    with pytest.raises(BudgetExceededError):
        spend(ledger, pure_loss("0.2"), account="ana", limits=[past])
    spend(ledger, pure_loss("0.1"), account="ana", limits=[past]).commit()
    assert [(entry.account, entry.grant) for entry in SQLiteLedger(ledger.path).entries()][:1] == [("ana", "plan")]
    ledger.verify()


def test_sums_of_parts_are_those_of_their_entries(tmp_path: Path) -> None:
    """They are kept from charge to charge: charges, resumed keys and cancelled entries leave them right."""
    ledger, rng = SQLiteLedger(tmp_path / "x.db", 100), np.random.default_rng(0)
    parts = [Part(), Part("a"), Part("b"), Part(grant="g"), Part("a", "g"), Part(period="20"), Part(period="19")]
    for step in range(60):
        account, grant = str(rng.choice(["a", "b"])), str(rng.choice(["g", "h"]))
        charge = spend(ledger, pure_loss("0.1"), account=account, grant=grant, key=str(step // 2) if step % 5 else "")
        if charge.is_new:
            charge.cancel() if step % 3 else charge.commit()
        for part in parts:
            counted = [entry for entry in ledger.entries() if entry.is_counted and part.includes_entry(entry)]
            balance = ledger.part_balance(Limit("x", part, pure_loss(50)))
            assert balance.spent == Loss.total(entry.loss for entry in counted)
            assert SQLiteLedger(ledger.path).part_balance(Limit("x", part)).spent == balance.spent
        for key in ("3", "10"):
            known = next((entry for entry in ledger.entries() if entry.is_counted and entry.key == key), None)
            assert ledger.find(key) == known


def test_a_charge_costs_the_same_after_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, part = SQLiteLedger(tmp_path / "x.db", 100), Part("a")
    limits = [Limit("x", part, pure_loss(50))]
    for step in range(20):
        spend(ledger, pure_loss("0.1"), account="a", key=str(step), limits=limits).commit()
    looked: list[object] = []
    monkeypatch.setattr(Part, "includes_entry", lambda self, entry: looked.append(entry) or True)
    spend(ledger, pure_loss("0.1"), account="a", key="next", limits=limits).commit()
    assert len(looked) == 1  # the last event of before; no entry is summed again
