# SPDX-License-Identifier: Apache-2.0
"""Shared by secure/roles/test_refunds.py and other tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from veilwood.errors import VeilwoodError
from veilwood_testing.places import ROWS, TASK, Place, X, Y

PARAMETERS: dict[str, Any] = {"random_state": 0, "n_estimators": 2, "max_depth": 2}


PUBLIC = replace(
    TASK, protocol="public-forest", settings={"estimator": "RandomTreesClassifier", "parameters": PARAMETERS}
)


def train_until(here: Place, message: str) -> None:
    """Train, and wait until all three servers have given up."""
    for owner, rows in ROWS.items():
        here.owner(owner).contribute(X[rows], Y[rows])
    with pytest.raises(VeilwoodError, match=message):
        here.owner("north").wait(60)
    here.settle()


def assert_spent(here: Place) -> None:
    for server in here.servers:
        assert [entry.state for entry in server._ledger.entries() if entry.state != "cancelled"], server.party
        assert server._ledger.spent.epsilon == 2
