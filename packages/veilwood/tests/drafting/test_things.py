# SPDX-License-Identifier: Apache-2.0
"""Tests of what columns hold when no schema says it: texts by the canonical rule, sizes of numbers, rows of an id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from veilwood.data.dialect import Dialect
from veilwood.drafting.discover import N_MAGNITUDES, magnitude_bounds, magnitude_of, open_schemaless
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf


def test_rows_of_an_id_are_capped_over_all_columns_and_the_same_number_is_one_thing() -> None:
    frame = pd.DataFrame({"id": ["x"] * 50 + [None], "a": [7, "7", 7.0, "7.00", "7"] * 10 + [7], "b": ["u"] * 51})
    texts, sizes = open_schemaless(frame.astype(object)).count_values(["a", "b"], RowsOf("id", 3))
    assert texts == [{"7": 3}, {"u": 3}]
    assert sizes[0, magnitude_of(np.array([7.0]))[0]] == sizes.sum() == 3


def test_sizes_are_those_of_the_numbers_and_in_their_order() -> None:
    numbers = np.array([-1e300, -3.0, -1e-300, 0.0, 1e-300, 0.4, 1.0, 2.0, 1e300])
    sizes = magnitude_of(numbers)
    assert np.all(np.diff(sizes) >= 0)
    assert sizes.min() >= 0
    assert sizes.max() == N_MAGNITUDES - 1
    for number in np.random.default_rng(0).normal(0, 1000, 200):
        low, high = magnitude_bounds(int(magnitude_of(np.array([number]))[0]))
        assert low <= number <= high


def test_codes_and_nonsense_are_no_numbers() -> None:
    cells = ["007", "7", 7, None, [7], "1e999", float("inf"), "x", True, "0", "0.5"]
    texts, sizes = open_schemaless(pd.DataFrame({"a": pd.Series(cells, dtype=object)})).count_values(["a"], None)
    assert sizes.sum() == 5  # "7", 7, True, "0" and "0.5"
    assert texts[0].total() == len(cells) - 2  # a list and nothing have no text


def test_files_are_counted_together_and_read_by_their_dialect(tmp_path: Path) -> None:
    for part, rows in (("a", "1,5;x\n2;y\n"), ("b", "1,5;x\nk.A.;x;too;many\n")):
        (tmp_path / f"{part}.csv").write_text("n;t\n" + rows)
    things = open_schemaless(tmp_path, Dialect(sep=";", decimal=",", nulls=("k.A.",)))
    assert (things.name, things.names) == ("a", ("n", "t"))
    texts, sizes = things.count_values(["n", "t"], None)
    assert texts == [{"1,5": 2, "2": 1}, {"x": 2, "y": 1}]
    assert sizes[0].sum() == 3
    (tmp_path / "c.csv").write_text("n;u\n")
    with pytest.raises(OutOfSchemaError, match=r"columns of .* differ"):
        open_schemaless(tmp_path, Dialect(sep=";"))
