# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_spool.py and other tests."""

from __future__ import annotations

from typing import Any

import pytest

from veilwood_testing.relations_cases import table

duckdb = pytest.importorskip("duckdb")


def restless() -> Any:
    """A relation that comes in another order each time."""
    connection = duckdb.connect()
    connection.register("visits", table())
    return connection.sql("SELECT * FROM visits ORDER BY random()")
