# SPDX-License-Identifier: Apache-2.0
"""Rows of JSON to codes: the quick way and the long way say the same, for everything that JSON can write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("fastapi")

import veilwood as vw
from veilwood.errors import VeilwoodError
from veilwood.service.rows import RowCodes, frame_of

SCHEMA = vw.Schema.from_dict(
    {
        "name": "visits",
        "columns": [
            {"name": "ward", "kind": "categorical", "values": ["A", "B", "1"]},
            {"name": "beds", "kind": "categorical", "values": ["2", "4", "more"], "nullable": True},
            {"name": "age", "kind": "numeric", "lower": 0, "upper": 120},
            {"name": "weight", "kind": "numeric", "lower": -5.5, "upper": 300, "nullable": True},
            {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
        ],
        "target": "ill",
        "task": "classification",
    }
)
PLAIN = {"ward": "A", "beds": "2", "age": 31, "weight": 70.5}
CELLS: list[Any] = [
    "A", "B", "1", 1, 1.0, True, None, "2", 2, 2.0, "more", " A", "", "nan", [], {}, -1, 0, 120, 1e308, -1e308,
    2**53, 2**53 + 1, 10**400, "31", 0.1, "é", "x" * 10_000,
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    rows = [{**PLAIN, "ill": "no"}] * 20
    return vw.RandomTreesClassifier(SCHEMA, epsilon=1, n_estimators=2, max_depth=2).fit(pd.DataFrame(rows))


def coded(encode: Any, rows: list[dict[str, Any]]) -> Any:
    try:
        return encode(rows).tolist()
    except VeilwoodError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", PLAIN)
def test_both_ways_say_the_same(model: Any, name: str) -> None:
    codes = RowCodes(model)
    for cell in CELLS:
        for rows in ([{**PLAIN, name: cell}], [PLAIN, {**PLAIN, name: cell}], [{**PLAIN, name: cell}, PLAIN]):
            assert coded(codes.of, rows) == coded(lambda rows: model.encode(frame_of(rows)), rows), (name, cell)


def test_plain_rows_go_the_quick_way_and_others_do_not(model: Any) -> None:
    codes = RowCodes(model)
    assert codes._places is not None
    assert codes._at_once([PLAIN, {**PLAIN, "beds": None, "ward": 1}], codes._places) is not None
    for odd in ({**PLAIN, "more": 1}, {"ward": "A"}, {**PLAIN, "age": None}, {**PLAIN, "ward": "C"}, {}):
        assert codes._at_once([PLAIN, odd], codes._places) is None
    assert codes._at_once([], codes._places) is None
    rows = [PLAIN] * 3
    np.testing.assert_array_equal(codes.of(rows), model.encode(frame_of(rows)))
