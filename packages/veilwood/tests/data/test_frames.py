# SPDX-License-Identifier: Apache-2.0
"""Frames of other libraries: one null changes nobody's value."""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from veilwood.data.canonical import factorize_texts
from veilwood.data.frames import is_dataset, is_scanner, target_values

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


@pytest.mark.parametrize(
    "y",
    [
        pl.Series([2**53 + 1, None, 2**53]),
        pl.Series([2**53 + 1, None, 2**53], dtype=pl.Int128),
        pd.array([2**53 + 1, None, 2**53], dtype="Int64"),
        pa.array([2**53 + 1, None, 2**53]),
        [2**53 + 1, None, 2**53],
    ],
    ids=["polars", "polars of 128 bits", "pandas", "Arrow", "list"],
)
def test_a_null_does_not_round_the_labels_of_others(y: Any) -> None:
    codes, texts = factorize_texts(target_values(y))
    assert [texts[code] if code >= 0 else None for code in codes] == [str(2**53 + 1), None, str(2**53)]


@pytest.mark.parametrize("y", [pd.array([True, None, False], dtype="boolean"), pl.Series([True, None, False])])
def test_a_null_does_not_make_numbers_of_booleans(y: Any) -> None:
    codes, texts = factorize_texts(target_values(y))
    assert [texts[code] if code >= 0 else None for code in codes] == ["True", None, "False"]


def test_datasets_are_known_once_somebody_loaded_them(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = pyarrow.dataset.dataset([pa.table({"age": [1]})])
    sources = [dataset, dataset.scanner(), "visits.csv"]
    assert [(is_dataset(each), is_scanner(each)) for each in sources] == [(True, False), (False, True), (False, False)]
    monkeypatch.delitem(sys.modules, "pyarrow.dataset")
    assert not any(is_dataset(each) or is_scanner(each) for each in ("visits.csv", pa.table({"age": [1]})))
