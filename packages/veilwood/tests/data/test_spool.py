# SPDX-License-Identifier: Apache-2.0
"""Rows spooled to disk: capped, bounded, and in one order."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

import veilwood as vw
from veilwood.data.open_rows import open_rows
from veilwood.errors import FileError, OutOfSchemaError, UseError, VeilwoodError
from veilwood_testing.relations_cases import CAP, ENCODING, N, contents, table, without_people
from veilwood_testing.spool_cases import restless
from veilwood_testing.streams_cases import Stream

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_spooled_rows_are_capped_and_dropped_as_in_files(tmp_path: Path) -> None:
    source = open_rows(vw.spool(table().to_reader(max_chunksize=64)), None, ENCODING, unit=CAP)
    assert len(contents(source)[0]) == 600
    assert contents(source) == contents(source)
    rows = without_people().to_pandas()
    rows.loc[rows.index % 5 == 0, "ward"] = "SECRET"
    pieces = (rows[start : start + 90] for start in range(0, N, 90))
    kept = open_rows(vw.spool(pieces), None, ENCODING, invalid="drop")
    assert contents(kept) == contents(open_rows(rows[rows["ward"] != "SECRET"], None, ENCODING))
    assert contents(open_rows(vw.spool(iter([])), None, ENCODING, invalid="drop")) == ([], [])
    with pytest.raises(OutOfSchemaError, match="no rows"):
        contents(open_rows(vw.spool(iter([])), None, ENCODING))


def test_a_spool_is_bounded_and_leaves_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    def watched(**where: Any) -> Any:
        file = TemporaryFile(**where)  # noqa: SIM115
        modes.append(os.fstat(file.fileno()).st_mode & 0o777)
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", watched)
    source = open_rows(vw.spool(without_people().to_reader(), folder=tmp_path), None, ENCODING)
    assert list(tmp_path.iterdir()) == []
    assert modes == [0o600]
    assert len(contents(source)[0]) == N
    with pytest.raises(UseError, match="at_most=1000"):
        open_rows(vw.spool(without_people().to_reader(), at_most=1000, folder=tmp_path), None, ENCODING)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(VeilwoodError, match="at_most"):
        vw.spool([], at_most=0)
    with pytest.raises(UseError, match="needs no spool"):
        open_rows(vw.spool(without_people()), None, ENCODING)
    with pytest.raises(FileError, match="temporary file"):
        open_rows(vw.spool(without_people().to_reader(), folder=tmp_path / "nowhere"), None, ENCODING)


def test_a_spool_gives_unordered_rows_one_order() -> None:
    source = open_rows(vw.spool(restless()), None, ENCODING, unit=CAP)
    assert contents(source) == contents(source)


def test_what_is_given_beside_streams_is_refused() -> None:
    given: list[Any] = [Stream(table()), vw.spool(table().to_reader()), iter([])]
    for X in given:
        with pytest.raises(OutOfSchemaError, match="y was given"):
            open_rows(X, [0], ENCODING)
    with pytest.raises(UseError, match="set aside"):
        open_rows(Stream(table()), None, ENCODING, unit=CAP, id_filter=bool)
