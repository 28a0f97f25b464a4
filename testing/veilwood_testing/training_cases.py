# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/matrix/test_training.py and other tests."""

from __future__ import annotations

from typing import Any

import veilwood as vw


def forest_on(car: Any, **parameters: Any) -> vw.MatrixForestClassifier:
    usual = {"n_estimators": 8, "max_depth": 2, "random_state": 0}
    return vw.MatrixForestClassifier(car.schema, **{**usual, **parameters})
