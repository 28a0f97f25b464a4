# SPDX-License-Identifier: Apache-2.0
"""Shared by service/test_spends.py and other tests."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from veilwood.privacy.loss import Loss

TENTH = Loss.pure(Fraction(1, 10))


FACTS: dict[str, Any] = {"what": "leaves", "neighbours": "one row", "plan": "1f3a"}
