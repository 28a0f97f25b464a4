# SPDX-License-Identifier: Apache-2.0
"""Compiled histograms and their twin."""

from __future__ import annotations

import pytest

from veilwood.trees.counting import HAVE_NUMBA
from veilwood_testing.histograms_cases import filled, grown, rows


@pytest.mark.skipif(not HAVE_NUMBA, reason="needs numba")
@pytest.mark.parametrize("n_classes", [3, None])
def test_kernel_and_twin_agree(n_classes: int | None) -> None:
    growing, slots = grown(4)
    batch = rows(2000, n_classes or 65536)
    both = [filled(growing, slots, batch, fast, n_classes=n_classes) for fast in (False, True)]
    assert (both[0] == both[1]).all()
