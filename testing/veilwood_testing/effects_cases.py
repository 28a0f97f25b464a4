# SPDX-License-Identifier: Apache-2.0
"""Shared by forests/explained/test_effects.py and other tests."""

from __future__ import annotations

import numpy as np

import veilwood as vw
from veilwood.data.counts import Axis
from veilwood.data.encoding import Encoding

SCHEMA = vw.Schema.from_dict(
    {
        "name": "visits",
        "task": "classification",
        "target": "ill",
        "columns": [
            {"name": "age", "kind": "numeric", "lower": 0, "upper": 100},
            {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]},
            {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
        ],
    }
)


ENCODING = Encoding(SCHEMA, "grid")


def axis(feature: int, starts: list[int], groups: list[int] | None = None) -> Axis:
    told = np.array(groups if groups is not None else np.arange(len(starts)), np.uint16)
    return Axis(feature, told, ENCODING.columns[feature].ordered, int(told.max()) + 1, np.array(starts))


AGE, WARD = axis(0, [0, 20_000, 40_000]), axis(1, [0, 1, 2])
