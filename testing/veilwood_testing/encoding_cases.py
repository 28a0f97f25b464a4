# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_encoding.py and other tests."""

from __future__ import annotations

from typing import Any

from veilwood.data.columns import Column
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema

ILL = Column("ill", "categorical", values=("no", "yes"))


AGE = Column("age", "numeric", lower=0, upper=100)


WARD = Column("ward", "categorical", values=("A", "B", "rest"), other="rest")


SCHEMA = Schema(
    "clinic",
    "classification",
    ILL,
    (
        AGE,
        WARD,
        Column("dose", "numeric", lower=-1, upper=1, nullable=True),
        Column("n", "categorical", values=(1, 2), nullable=True),  # type: ignore[arg-type]
    ),
)


def encoding_of(column: Column, numeric: Any = "grid") -> Encoding:
    return Encoding(Schema("one", "classification", ILL, (column,)), numeric)
