# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_streams.py and other tests."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet


class Stream:
    """Whatever speaks Arrow's protocol."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)
