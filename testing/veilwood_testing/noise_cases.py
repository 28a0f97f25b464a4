# SPDX-License-Identifier: Apache-2.0
"""Shared by privacy/test_noise.py and other tests."""

from __future__ import annotations

import numpy as np
from scipy import stats

ALARM = 1e-9  # a fit below this p-value is a failure; the suite has far fewer than 1000 fits


def fit_choices(draws: np.ndarray, law: np.ndarray) -> float:
    """Return the chi-square p-value of chosen indices under a law."""
    observed = np.bincount(draws, minlength=law.size)
    assert not observed[law == 0].any()
    e, o = draws.size * law[law > 0], observed[law > 0]
    return float(stats.chi2.sf(((o - e) ** 2 / e).sum(), e.size - 1))
