# SPDX-License-Identifier: Apache-2.0
"""Columns and texts are read as their cells are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from hypothesis import given
from hypothesis import strategies as st

from veilwood.data.numbers import read_number, read_numbers
from veilwood.data.problems import Problem
from veilwood_testing.drop_cases import NAN, ODD


@given(st.lists(st.one_of(st.sampled_from(ODD), st.floats(), st.integers(), st.text(max_size=5)), max_size=8))
def test_a_column_is_read_as_its_cells_are(cells: list[Any]) -> None:
    """All at once or one by one: the same numbers and the same problems."""
    for parse in (False, True):
        column = pd.Series(np.empty(len(cells)), dtype=object)
        for place, cell in enumerate(cells):
            column.iat[place] = cell
        found, kinds = read_numbers(column, parse)
        kinds = np.zeros(len(cells), np.uint8) if kinds is None else kinds
        for cell, number, kind in zip(cells, found, kinds, strict=True):
            alone = read_number(cell, parse)
            assert kind == (alone if isinstance(alone, Problem) else 0)
            assert np.array_equal(number, NAN if isinstance(alone, Problem) else alone, equal_nan=True)


@given(st.lists(st.one_of(st.text(max_size=8), st.floats().map(repr), st.integers().map(str), st.none()), max_size=8))
def test_texts_are_parsed_as_their_cells_are(texts: list[str | None]) -> None:
    cells = [None if text is None else text.encode(errors="replace") for text in texts]
    found, kinds = read_numbers(pa.chunked_array([pa.array(cells, pa.binary())]), parse=True)
    kinds = np.zeros(len(cells), np.uint8) if kinds is None else kinds
    for cell, number, kind in zip(cells, found, kinds, strict=True):
        alone = read_number(cell, parse=True)
        assert kind == (alone if isinstance(alone, Problem) else 0)
        assert np.array_equal(number, NAN if isinstance(alone, Problem) else alone, equal_nan=True)
