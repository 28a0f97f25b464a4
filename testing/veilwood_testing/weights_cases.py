# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_weights.py and other tests."""

from __future__ import annotations

from typing import Any

import veilwood as vw

SMALL: dict[str, Any] = {"n_estimators": 4, "max_depth": 3, "random_state": 0}


SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=1)
