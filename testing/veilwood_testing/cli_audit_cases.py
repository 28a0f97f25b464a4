# SPDX-License-Identifier: Apache-2.0
"""Shared by cli/test_audit.py and other tests."""

from __future__ import annotations

from typing import Any

import veilwood as vw

CAR = vw.datasets.car()


def fitted(**params: Any) -> Any:
    params = {"n_estimators": 8, "max_depth": 3, "random_state": 0, "n_jobs": 1, **params}
    return vw.RandomTreesClassifier(CAR.schema, **params).fit(CAR.X, CAR.y)
