# SPDX-License-Identifier: Apache-2.0
"""Trees that compiled loops grow are scikit-learn's, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.forests.adaptive.cell_forests import CANDIDATES, _fitted_tree
from veilwood.trees.counting import HAVE_NUMBA

FORESTS = [candidate for candidate in CANDIDATES if candidate.kind != "additive"]


@pytest.mark.skipif(not HAVE_NUMBA, reason="compares with compiled loops")
def test_rows_without_columns_are_one_leaf() -> None:
    X, y = np.zeros((9, 1), np.uint8), np.arange(9) % 2
    for way in (False, True):
        assert _fitted_tree(FORESTS[0], X, y, 3, 5, way).shares.tolist() == [[5 / 9, 4 / 9, 0.0]]
