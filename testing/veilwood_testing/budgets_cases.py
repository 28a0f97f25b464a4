# SPDX-License-Identifier: Apache-2.0
"""Shared by secure/roles/test_budgets.py and other tests."""

from __future__ import annotations

from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_testing.places import Place


def ledger_of(here: Place, role: str) -> SQLiteLedger:
    return SQLiteLedger(here.folder / role / "ledger.db")
