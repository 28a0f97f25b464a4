# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_row_cap.py and other tests."""

from __future__ import annotations

from veilwood.data.batches import Source
from veilwood.data.columns import Column
from veilwood.data.encoding import Encoding
from veilwood.data.schema import Schema

ID_SCHEMA = Schema.numeric((0, 65534), classes=[0, 1], names=["row"])


ID_ENCODING = Encoding(
    Schema("r", "classification", ID_SCHEMA.target, (Column("row", "numeric", lower=0, upper=65535),))
)


def kept_rows(source: Source) -> list[int]:
    return [int(code) for batch in source.batches() for code in batch.codes[:, 0]]
