# SPDX-License-Identifier: Apache-2.0
"""Sheets of Excel."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from veilwood.data.file_source import check_files
from veilwood.data.files import excel_dataset
from veilwood.data.open_rows import open_rows
from veilwood.data.places import local_file
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf
from veilwood_testing.dialect_cases import SCHEMA, codes_of
from veilwood_testing.row_cap_cases import ID_ENCODING, kept_rows


def test_excel_gives_the_same_codes(tmp_path: Path, files: tuple[Path, Path]) -> None:
    pytest.importorskip("python_calamine")
    openpyxl = pytest.importorskip("openpyxl")
    frame = pd.read_csv(files[0])
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    for invalid in ("refuse", "drop"):
        assert codes_of(tmp_path / "t.xlsx", SCHEMA, invalid) == codes_of(files[0], SCHEMA, invalid)
    assert check_files(tmp_path / "t.xlsx", SCHEMA).violations == []
    place = local_file(tmp_path / "t.xlsx")
    sheet = excel_dataset(place.display_name, place.open, nulls=["Bonn"]).to_table()
    assert sheet["ort"].to_pylist() == ["Köln", None, None]
    frame.assign(kosten="viel").to_excel(tmp_path / "odd.xlsx", index=False)
    with pytest.raises(OutOfSchemaError, match="'kosten' must hold numbers") as caught:
        codes_of(tmp_path / "odd.xlsx", SCHEMA)
    assert "viel" not in str(caught.value)
    assert codes_of(tmp_path / "odd.xlsx", SCHEMA, "drop") == [[], []]
    # A duration that Python cannot hold had the whole workbook refused.
    book = openpyxl.load_workbook(tmp_path / "t.xlsx")
    book.active.append([1e300] * frame.shape[1])
    for cell in book.active[len(frame) + 2]:
        cell.number_format = "[h]:mm:ss"
    book.save(tmp_path / "long.xlsx")
    assert codes_of(tmp_path / "long.xlsx", SCHEMA, "drop") == codes_of(files[0], SCHEMA, "drop")
    with pytest.raises(OutOfSchemaError):
        codes_of(tmp_path / "long.xlsx", SCHEMA)
    (tmp_path / "no.xlsx").write_bytes(b"PK nothing")
    with pytest.raises(OutOfSchemaError, match="damaged"):
        codes_of(tmp_path / "no.xlsx", SCHEMA)


def test_numbers_that_a_sheet_has_rounded_are_no_ids(tmp_path: Path) -> None:
    """2^53 and 2^53 + 1 are one number in a sheet, and were one person."""
    pytest.importorskip("python_calamine")
    pytest.importorskip("openpyxl")
    frame = pd.DataFrame({"row": [0.5, 1.5, 2.5], "who": [2.0**53, 2.0**60, 7.0], "target": 0})
    frame.to_excel(tmp_path / "v.xlsx", index=False)
    unit = RowsOf("who", at_most=1)
    with pytest.raises(OutOfSchemaError, match="rounded"):
        open_rows(tmp_path / "v.xlsx", None, ID_ENCODING, unit=unit)
    assert kept_rows(open_rows(tmp_path / "v.xlsx", None, ID_ENCODING, unit=unit, invalid="drop")) == [2]
