# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_cells.py and other tests."""

from __future__ import annotations

import numpy as np

from veilwood.data.counts import CellRule, Split


def follow(way: CellRule, row: list[int]) -> int | float | None:
    """Where a row is led."""
    while isinstance(way, Split):
        way = way.targets[int(np.searchsorted(way.starts, row[way.column], side="right")) - 1]
    return way
