# SPDX-License-Identifier: Apache-2.0
"""Rows of CSV that are too long for any block are left out, alone, and where a row ends is where Arrow ends it."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.data.files import MAX_ROW_BYTES, drop_long_rows
from veilwood.data.open_rows import open_rows
from veilwood.errors import OutOfSchemaError

SCHEMA = vw.Schema.from_dict({
    "name": "notes", "task": "classification", "target": "ill",
    "columns": [
        {"name": "note", "kind": "categorical", "values": ["short", "rest"], "other": "rest"},
        {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    ],
})  # fmt: skip


def rows_of(raw: bytes) -> list[bytes]:
    """Cut CSV into rows, byte by byte."""
    rows, inside, closed, before = [b""], False, False, ord("\n")
    for byte in raw:
        rows[-1] += bytes([byte])
        if byte == ord('"'):
            inside, closed = (False, True) if inside else (closed or before in b",\r\n", False)
        else:
            closed = closed and inside
            if byte in b"\r\n" and not inside:
                rows.append(b"")
        before = byte
    return rows


PIECES = st.sampled_from([b"a", b'"', b",", b"\n", b"\r", b"\r\n", b'""', b'"a"'])


@given(st.lists(PIECES, max_size=40), st.integers(1, 12))
def test_exactly_the_long_rows_are_left_out(parts: list[bytes], chunk: int) -> None:
    raw = b"".join(parts)
    kept = b"".join(row for row in rows_of(raw) if len(row) <= 12)
    assert b"".join(drop_long_rows(io.BytesIO(raw), max_bytes=12, chunk=chunk)) == kept


@given(st.lists(st.tuples(st.text('a",\n', max_size=6), st.sampled_from(["no", "yes"])), min_size=1, max_size=8))
def test_rows_end_where_arrow_ends_them(cells: list[tuple[str, str]]) -> None:
    file = io.BytesIO()
    columns = [pa.array([cell[place] for cell in cells], pa.string()) for place in (0, 1)]
    pa.csv.write_csv(pa.table(columns, names=["note", "ill"]), file)
    assert len([row for row in rows_of(file.getvalue()) if row]) == 1 + len(cells)


def long_table(path: Path, long: str) -> None:
    text = "\n".join(["note,ill", *['"short",yes'] * 5, f"{long},no", *["rest,no"] * 7, ""])
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.mark.parametrize("name", ["rows.csv", pytest.param("rows.csv.gz", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "long", ["x" * (9 << 20), '"' + "line,\n" * (2 << 20) + '"', '"' + '""' * (5 << 20) + '"', "," * (9 << 20)],
    ids=["a word", "lines", "quotes", "cells"],
)  # fmt: skip
def test_a_row_of_many_megabytes_is_dropped_alone(long: str, name: str, tmp_path: Path) -> None:
    assert len(long) > 2 * MAX_ROW_BYTES
    long_table(tmp_path / name, long)
    encoding = Encoding(SCHEMA)
    source = open_rows(str(tmp_path / name), None, encoding, invalid="drop")
    labels = [label for batch in source.batches() for label in batch.target.tolist()]
    assert sorted(labels) == [0] * 7 + [1] * 5


@pytest.mark.parametrize("invalid", ["refuse", "drop"])
@pytest.mark.parametrize("header", ["x" * 200_000 + ",ill", '"note,ill', '"note\nsecret",ill'])
def test_a_header_without_an_end_is_refused_without_a_row(header: str, invalid: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"{header}\nsecret,yes\nsecret,no\n" * 3)
    with pytest.raises(OutOfSchemaError) as refusal:
        vw.RandomTreesClassifier(SCHEMA, n_estimators=1, invalid=invalid).fit(str(tmp_path / "rows.csv"))
    assert "secret" not in str(refusal.value)
    assert len(str(refusal.value)) < 1000
