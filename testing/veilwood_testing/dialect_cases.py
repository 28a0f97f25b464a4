# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_dialect.py and other tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema

SCHEMA = Schema.from_dict({"name": "s", "task": "classification", "target": "krank", "columns": [
    {"name": "größe", "kind": "numeric", "lower": 0, "upper": 10, "nullable": True},
    {"name": "kosten", "kind": "numeric", "lower": 0, "upper": 5000},
    {"name": "ort", "kind": "categorical", "values": ["Köln", "Bonn"], "nullable": True},
    {"name": "krank", "kind": "categorical", "values": ["ja", "nein"]}]})  # fmt: skip


def codes_of(path: Path, schema: Schema, invalid: Any = "refuse") -> list[Any]:
    (batch,) = open_rows(str(path), None, Encoding(schema), invalid=invalid).batches()
    return [batch.codes.tolist(), batch.target.tolist()]
