# SPDX-License-Identifier: Apache-2.0
"""Columns as cells, and how far a noisy histogram is believed."""

from __future__ import annotations

import numpy as np
import pytest

from veilwood.forests.adaptive.contingency import posterior_counts
from veilwood_testing.clinic import COLUMNS

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


def test_a_poor_histogram_falls_back_to_the_prior_and_a_good_one_is_believed() -> None:
    rng = np.random.default_rng(0)
    prior = COLUMNS[0].prior
    truth = rng.multinomial(10_000, rng.dirichlet(np.ones(len(prior)) * 0.5)).astype(float)
    assert np.abs(posterior_counts(truth, prior, 1e-6, 10_000) - truth).max() < 1
    poor = posterior_counts(rng.laplace(0, 1e7, len(prior)), prior, 2e14, 100)
    assert np.abs(poor / 100 - prior).max() < 0.02
