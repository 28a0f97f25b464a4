# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/test_aside.py and other tests."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {"n_estimators": 3, "max_depth": 2, "random_state": 0}
