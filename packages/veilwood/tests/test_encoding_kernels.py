# SPDX-License-Identifier: Apache-2.0
"""Compiled codes of numbers are those of a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("numba")

from veilwood.kernels import grid_codes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_codes_are_those_of_a_plain_loop(dtype: type) -> None:
    values: np.ndarray = np.linspace(-50, 150, 1001).astype(dtype)
    codes = np.empty(len(values), np.uint16)
    assert grid_codes(values, 0.0, 2.5, 249.0, codes) == 0
    assert codes.tolist() == [int(min(max(float(value) * 2.5, 0.0), 249.0)) for value in values]


def test_missing_numbers_are_counted_and_infinite_ones_clamped() -> None:
    codes = np.empty(4, np.uint16)
    assert grid_codes(np.array([math.nan, math.inf, -math.inf, 1.0]), 0.0, 1.0, 9.0, codes) == 1
    assert codes.tolist() == [0, 9, 0, 1]
