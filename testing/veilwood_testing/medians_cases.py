# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/grown/test_medians.py and other tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import veilwood as vw

SCHEMAS = {
    "classification": vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3),
    "regression": vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=3),
}


def table(task: str, n: int = 400, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.random((n, 3))
    return X, X[:, 0] if task == "regression" else np.where(X[:, 0] > 0.5, "yes", "no")
