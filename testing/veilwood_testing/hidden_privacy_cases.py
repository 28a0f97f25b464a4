# SPDX-License-Identifier: Apache-2.0
"""Shared by secure/protocols/test_hidden_privacy.py and other tests."""

from __future__ import annotations

from veilwood.arrays import Ints
from veilwood_audit.statistics import epsilon_lower_bound


def bound(likely: Ints, unlikely: Ints) -> float:
    return epsilon_lower_bound(int(likely.sum()), len(likely), int(unlikely.sum()), len(unlikely))
