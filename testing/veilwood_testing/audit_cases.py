# SPDX-License-Identifier: Apache-2.0
"""Shared by audit/test_audit.py and other tests."""

from __future__ import annotations

from veilwood.privacy.neighbours import Neighbours, Rows

CELLS = [(code, target) for code in range(3) for target in range(2)]


UNITS = [
    Neighbours("add-remove"),
    Neighbours("replace-one"),
    Neighbours("add-remove", Rows(2)),
    Neighbours("replace-one", Rows(2)),
]
