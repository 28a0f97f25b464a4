# SPDX-License-Identifier: Apache-2.0
"""Ledgers of every kind, for the tests of what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from veilwood.privacy.ledger import Ledger
from veilwood.privacy.ledger_stores import MemoryLedger, SQLiteLedger


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Ledger]:
    if request.param == "memory":
        return MemoryLedger
    return lambda epsilon=None, delta=0: SQLiteLedger(tmp_path / "x.db", epsilon, delta)
