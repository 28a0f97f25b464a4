# SPDX-License-Identifier: Apache-2.0
"""The book of a table: one charge for one key."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
import veilwood as vw
from veilwood_service.budgets import CompositeLedger, GuardedLedger, open_guarded
from veilwood_service.settings import Settings
from veilwood_testing.running_service import ENTRY_FACTS, EPSILON_TENTH


def test_what_one_try_gave_back_another_cannot_show(book: GuardedLedger) -> None:
    first, second = CompositeLedger([book], "k"), CompositeLedger([book], "k")
    mine, taken_up = first.reserve(EPSILON_TENTH, **ENTRY_FACTS), second.reserve(EPSILON_TENTH, **ENTRY_FACTS)
    mine.cancel("refused")
    with pytest.raises(vw.LedgerError, match="cancelled"):
        taken_up.commit()


def test_what_an_earlier_try_reserved_is_not_given_back(book: GuardedLedger) -> None:
    first, second = CompositeLedger([book], "k"), CompositeLedger([book], "k")
    mine, taken_up = first.reserve(EPSILON_TENTH, **ENTRY_FACTS), second.reserve(EPSILON_TENTH, **ENTRY_FACTS)
    taken_up.cancel("refused")
    mine.commit()
    assert book.ledger.spent == EPSILON_TENTH


def test_tries_that_race_under_one_key_charge_once(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    settings.make_folders()
    open_guarded(settings, "data_cars", 10)
    together = threading.Barrier(4)

    def spend(key: str) -> int:
        """What one process does, while others do the same."""
        ledger = CompositeLedger([open_guarded(settings, "data_cars")], key)
        together.wait()
        charge = ledger.reserve(EPSILON_TENTH, **ENTRY_FACTS)
        charge.commit()
        return charge.id

    with ThreadPoolExecutor(4) as pool:
        for key in map(str, range(20)):
            assert len(set(pool.map(spend, [key] * 4))) == 1
    assert open_guarded(settings, "data_cars").ledger.spent.epsilon == 2
