# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/cells/test_rows.py and other tests."""

from __future__ import annotations

import numpy as np

from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.adaptive.row_backend import ScoredRows
from veilwood_testing.clinic import COLUMNS

N_CLASSES = {"two": 2, "three": 3, "regression": 0, "five": 5}


def random_rows(n_classes: int, n: int, rng: np.random.Generator) -> ScoredRows:
    """Rows with scores as extreme as rounds can make them, mild ones among them."""
    outputs = n_classes if n_classes > 2 else 1
    scale = rng.choice([10.0, 3000.0, 1e6], (n, 1))
    return ScoredRows(
        np.stack([rng.integers(0, column.n_bins, n) for column in COLUMNS]).astype(np.uint8),
        rng.integers(0, n_classes or TARGET_LEVELS + 1, n).astype(np.int32),
        np.rint(rng.normal(size=(n, outputs)) * scale).astype(np.int32),
    )
