# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/grown/test_greedy.py and other tests."""

from __future__ import annotations

import veilwood as vw

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3)
