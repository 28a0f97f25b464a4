# SPDX-License-Identifier: Apache-2.0
"""Rows in memory, whose target may come apart."""

from __future__ import annotations

import polars as pl

from veilwood.data.open_rows import open_rows
from veilwood.privacy.neighbours import Rows
from veilwood_testing.open_rows_cases import ENCODING, EXPECTED, contents, make_frame


def test_the_target_may_come_apart_and_as_numbers_or_texts() -> None:
    frame = make_frame()
    y = frame.pop("class")
    assert contents(open_rows(pl.from_pandas(frame), y.astype(str), ENCODING)) == EXPECTED
    assert contents(open_rows(frame, y.astype(float).tolist(), ENCODING)) == EXPECTED
    assert contents(open_rows(frame[["code", "size"]].to_numpy(), y, ENCODING, unit=Rows(3))) == EXPECTED
