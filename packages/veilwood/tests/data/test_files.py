# SPDX-License-Identifier: Apache-2.0
"""Files: Excel sheets, rows too long for a block, and files that cannot be read."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

import veilwood as vw
from veilwood.data.dialect import DIALECT
from veilwood.data.encoding import Encoding
from veilwood.data.file_source import check_files
from veilwood.data.files import MAX_ROW_BYTES, diagnose_header, drop_long_rows, excel_dataset, unreadable_error
from veilwood.data.open_rows import open_rows
from veilwood.data.places import local_file
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf
from veilwood_testing.errors import rejects
from veilwood_testing.tables import GERMAN_SCHEMA, ID_ENCODING, read_codes, read_first_codes


def test_excel_gives_the_same_codes(tmp_path: Path, two_dialects: tuple[Path, Path]) -> None:
    pytest.importorskip("python_calamine")
    openpyxl = pytest.importorskip("openpyxl")
    frame = pd.read_csv(two_dialects[0])
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    for invalid in ("refuse", "drop"):
        assert read_codes(tmp_path / "t.xlsx", GERMAN_SCHEMA, invalid) == read_codes(
            two_dialects[0], GERMAN_SCHEMA, invalid
        )
    assert check_files(tmp_path / "t.xlsx", GERMAN_SCHEMA).violations == []
    place = local_file(tmp_path / "t.xlsx")
    sheet = excel_dataset(place.display_name, place.open, nulls=["Bonn"]).to_table()
    assert sheet["ort"].to_pylist() == ["Köln", None, None]
    frame.assign(kosten="viel").to_excel(tmp_path / "odd.xlsx", index=False)
    with rejects(OutOfSchemaError, column="kosten", problems=(("kosten", "not a number"),)) as caught:
        read_codes(tmp_path / "odd.xlsx", GERMAN_SCHEMA)
    assert "viel" not in str(caught.value)
    assert read_codes(tmp_path / "odd.xlsx", GERMAN_SCHEMA, "drop") == [[], []]
    # A duration that Python cannot hold had the whole workbook refused.
    book = openpyxl.load_workbook(tmp_path / "t.xlsx")
    book.active.append([1e300] * frame.shape[1])
    for cell in book.active[len(frame) + 2]:
        cell.number_format = "[h]:mm:ss"
    book.save(tmp_path / "long.xlsx")
    assert read_codes(tmp_path / "long.xlsx", GERMAN_SCHEMA, "drop") == read_codes(
        two_dialects[0], GERMAN_SCHEMA, "drop"
    )
    with pytest.raises(OutOfSchemaError):
        read_codes(tmp_path / "long.xlsx", GERMAN_SCHEMA)
    (tmp_path / "no.xlsx").write_bytes(b"PK nothing")
    with rejects(OutOfSchemaError, raised_in="excel_dataset"):
        read_codes(tmp_path / "no.xlsx", GERMAN_SCHEMA)


def test_numbers_that_a_sheet_has_rounded_are_no_ids(tmp_path: Path) -> None:
    """2^53 and 2^53 + 1 are one number in a sheet, and were one person."""
    pytest.importorskip("python_calamine")
    pytest.importorskip("openpyxl")
    frame = pd.DataFrame({"row": [0.5, 1.5, 2.5], "who": [2.0**53, 2.0**60, 7.0], "target": 0})
    frame.to_excel(tmp_path / "v.xlsx", index=False)
    unit = RowsOf("who", at_most=1)
    with rejects(OutOfSchemaError, column="who", problems=(("who", "unusable cell"),)):
        open_rows(tmp_path / "v.xlsx", None, ID_ENCODING, unit=unit)
    assert read_first_codes(open_rows(tmp_path / "v.xlsx", None, ID_ENCODING, unit=unit, invalid="drop")) == [2]


LONG_ROWS_SCHEMA = vw.Schema.from_dict({
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
    encoding = Encoding(LONG_ROWS_SCHEMA)
    source = open_rows(str(tmp_path / name), None, encoding, invalid="drop")
    labels = [label for batch in source.batches() for label in batch.target.tolist()]
    assert sorted(labels) == [0] * 7 + [1] * 5


@pytest.mark.parametrize("invalid", ["refuse", "drop"])
@pytest.mark.parametrize("header", ["x" * 200_000 + ",ill", '"note,ill', '"note\nsecret",ill'])
def test_a_header_without_an_end_is_refused_without_a_row(header: str, invalid: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"{header}\nsecret,yes\nsecret,no\n" * 3)
    with pytest.raises(OutOfSchemaError) as refusal:
        vw.RandomTreesClassifier(LONG_ROWS_SCHEMA, n_estimators=1, invalid=invalid).fit(str(tmp_path / "rows.csv"))
    assert "secret" not in str(refusal.value)
    assert len(str(refusal.value)) < 1000


def opens(content: bytes) -> Callable[[], io.BytesIO]:
    return lambda: io.BytesIO(content)


def test_a_header_tells_another_separator_or_encoding() -> None:
    result = diagnose_header("t.csv", opens(b"age;ward\n31;A\n"), DIALECT, ["age", "ward"])
    assert result is not None
    assert "separated by ';' and not by ','" in result
    assert '--sep ";"' in result
    assert "--encoding latin-1" in str(diagnose_header("t.csv", opens("größe,ort\n".encode("latin-1")), DIALECT, []))
    assert diagnose_header("t.csv", opens(b"age,ward\n"), DIALECT, ["age", "ward"]) is None


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("In CSV column #1: conversion error: 'Anna Secret'"), "column 'ward' contains a value"),
        (ValueError("CSV parse error: Expected 2 columns, got 3: 31,A,Anna Secret"), "more or fewer values"),
        (ValueError("invalid UTF8 data: Anna Secret"), "not in UTF-8"),
        (ValueError("Empty CSV file"), "the file is empty"),
        (ValueError("Multiple matches for FieldRef Anna Secret"), "the same name"),
        (PermissionError(13, "Anna Secret"), "Permission denied"),
        (ValueError("Anna Secret"), "damaged or not in the format of its name"),
    ],
)
def test_each_kind_has_its_line_and_no_record_is_shown(error: Exception, says: str) -> None:
    text = str(unreadable_error("t.csv", opens(b"age,ward\n31,A\n"), error, DIALECT))
    assert says in text
    assert "Anna" not in text
    assert text.count("\n") == 0
