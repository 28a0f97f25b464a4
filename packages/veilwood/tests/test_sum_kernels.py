# SPDX-License-Identifier: Apache-2.0
"""Compiled sums over sets."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from veilwood.forests.matrix import marginals as marginal_search
from veilwood.trees.counting import HAVE_NUMBA


@pytest.mark.skipif(not HAVE_NUMBA, reason="compares with compiled loops")
@pytest.mark.parametrize("masks", [np.arange(32), np.flatnonzero(np.bitwise_count(np.arange(512)) <= 3)], ids=len)
def test_compiled_sums_over_sets_agree_to_the_last_bit(masks: Any) -> None:
    family, values = marginal_search._SetFamily(masks), np.random.default_rng(0).random(len(masks))
    above = [values[(masks & mask) == mask].sum() for mask in masks]
    below = [values[(masks | mask) == mask].sum() for mask in masks]
    sides: list[tuple[Literal[0, 1], Any]] = [(0, above), (1, below)]
    for into, expected in sides:
        assert np.array_equal(family.sum_feature(values, into, fast=True), family.sum_feature(values, into, fast=False))
        np.testing.assert_allclose(family.sum_feature(values, into), expected, rtol=1e-12)
