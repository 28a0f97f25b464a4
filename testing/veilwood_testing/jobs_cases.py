# SPDX-License-Identifier: Apache-2.0
"""Shared by service/test_jobs.py and other tests."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {"estimator": "random-trees", "epsilon": 0.5, "parameters": {"n_estimators": 2, "max_depth": 2}}
