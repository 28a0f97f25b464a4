# SPDX-License-Identifier: Apache-2.0
"""Numbers and categories as codes: thresholds, grids and bins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilwood.data.columns import Column
from veilwood.data.encoding import DEFAULT_BINS, GRID_BINS, Encoding
from veilwood_testing.encoding_cases import AGE, SCHEMA, WARD, encoding_of

bounds = (
    st.tuples(st.floats(-1e12, 1e12), st.floats(min_value=1e-6, max_value=1e12))
    .map(lambda pair: (pair[0], pair[0] + pair[1]))
    .filter(lambda pair: pair[0] < pair[1])
)


@settings(max_examples=200, deadline=None)
@given(bounds, st.integers(1, GRID_BINS - 1))
def test_threshold_is_the_smallest_number_with_the_code(ends: tuple[float, float], code: int) -> None:
    encoding = encoding_of(Column("x", "numeric", lower=ends[0], upper=ends[1]))
    x = encoding.threshold(0, code)
    below, at = encoding.encode([[np.nextafter(x, -np.inf)], [x]])[:, 0]
    assert below < code <= at


@pytest.mark.parametrize("transform", [None, "log1p", "sqrt", "asinh"])
@pytest.mark.parametrize("numeric", ["grid", "bins"])
def test_all_thresholds_are_exact(transform: str | None, numeric: Any) -> None:
    encoding = encoding_of(Column("x", "numeric", lower=0, upper=731.7, transform=transform), numeric)
    codes = np.arange(1, encoding.columns[0].n_codes)
    x = encoding.threshold(0, codes)
    assert (np.diff(x) > 0).all()
    np.testing.assert_array_equal(encoding.encode(x[:, None])[:, 0], codes)
    np.testing.assert_array_equal(encoding.encode(np.nextafter(x, -np.inf)[:, None])[:, 0], codes - 1)
    assert encoding.threshold(0, 0) == -np.inf


def test_threshold_at_zero_and_over_a_huge_range() -> None:
    even = encoding_of(Column("x", "numeric", lower=-3, upper=GRID_BINS - 3))
    zero = even.threshold(0, 3)
    assert zero == pytest.approx(0, abs=1e-15)
    assert even.encode([[np.nextafter(zero, -1)], [zero], [-0.0], [0.0]])[:, 0].tolist() == [2, 3, 3, 3]
    huge = encoding_of(Column("x", "numeric", lower=-8e307, upper=8e307))
    x = huge.threshold(0, 40000)
    assert huge.encode([[np.nextafter(x, -np.inf)], [x]])[:, 0].tolist() == [39999, 40000]
    with pytest.raises(ValueError, match="no such threshold"):
        even.threshold(0, GRID_BINS)
    with pytest.raises(ValueError, match="no such threshold"):
        encoding_of(WARD).threshold(0, 1)


@settings(max_examples=100, deadline=None)
@given(bounds, st.lists(st.floats(allow_nan=False), min_size=2, max_size=20), st.sampled_from([None, "asinh"]))
def test_codes_are_monotone_and_clamped(ends: tuple[float, float], xs: list[float], transform: str | None) -> None:
    encoding = encoding_of(Column("x", "numeric", lower=ends[0], upper=ends[1], transform=transform))
    ordered = np.sort(np.array(xs))
    codes = encoding.encode(ordered[:, None])[:, 0]
    assert (np.diff(codes.astype(int)) >= 0).all()
    np.testing.assert_array_equal(encoding.encode(np.clip(ordered, *ends)[:, None])[:, 0], codes)


def test_grid_uses_every_code_evenly() -> None:
    middles = (np.arange(GRID_BINS) + 0.5) / GRID_BINS
    codes = encoding_of(Column("x", "numeric", lower=0, upper=1)).encode(middles[:, None])[:, 0]
    np.testing.assert_array_equal(codes, np.arange(GRID_BINS))


def test_bins_and_cutoffs() -> None:
    cut = encoding_of(Column("x", "numeric", lower=10, upper=60, cutoffs=(18.5, 25), nullable=True), "bins")
    assert cut.columns[0].n_codes == 4
    assert cut.encode([[5], [18.5], [18.4], [25], [99], [np.nan]])[:, 0].tolist() == [0, 1, 0, 2, 2, 3]
    assert cut.threshold(0, 1) == 18.5
    even = encoding_of(Column("x", "numeric", lower=0, upper=10, bins=2), "bins")
    assert even.encode([[4.9], [5.0], [10]])[:, 0].tolist() == [0, 1, 1]
    assert encoding_of(AGE, "bins").columns[0].n_codes == DEFAULT_BINS
    skewed = encoding_of(Column("x", "numeric", lower=0, upper=100, bins=2, transform="sqrt"), "bins")
    assert skewed.threshold(0, 1) == pytest.approx(25)
    with pytest.raises(ValueError, match="'grid' or 'bins'"):
        Encoding(SCHEMA, "fine")  # type: ignore[arg-type]
