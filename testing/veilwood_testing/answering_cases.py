# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/matrix/test_answering.py and other tests."""

from __future__ import annotations

from typing import Any

import veilwood as vw


def predictor_on(car: Any, **parameters: Any) -> vw.MatrixForestPredictor:
    usual = {"n_estimators": 4, "max_depth": 1, "random_state": 0}
    return vw.MatrixForestPredictor(car.schema, **{**usual, **parameters}).fit(car.X, car.y)
