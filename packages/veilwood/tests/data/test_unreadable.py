# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be read: one line, the next step, and no record."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from veilwood.data.dialect import DIALECT
from veilwood.data.files import diagnose_header, unreadable_error


def opens(content: bytes) -> Callable[[], io.BytesIO]:
    return lambda: io.BytesIO(content)


def test_a_header_tells_another_separator_or_encoding() -> None:
    said = diagnose_header("t.csv", opens(b"age;ward\n31;A\n"), DIALECT, ["age", "ward"])
    assert said is not None
    assert "separated by ';' and not by ','" in said
    assert '--sep ";"' in said
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
        (ValueError("Anna Secret"), "damaged or has another format"),
    ],
)
def test_each_kind_has_its_line_and_no_record_is_shown(error: Exception, says: str) -> None:
    said = str(unreadable_error("t.csv", opens(b"age,ward\n31,A\n"), error, DIALECT))
    assert says in said
    assert "Anna" not in said
    assert said.count("\n") == 0
