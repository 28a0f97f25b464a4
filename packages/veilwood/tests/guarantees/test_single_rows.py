# SPDX-License-Identifier: Apache-2.0
"""One row that reaches further than itself: into other rows of a file, the columns of a sheet, or what is shown."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood import progress
from veilwood.data.dialect import Dialect
from veilwood.data.encoding import Encoding
from veilwood.data.files import MAX_ROW_BYTES
from veilwood.data.open_rows import open_rows

FACTS: dict[str, Any] = {
    "name": "s",
    "task": "classification",
    "target": "t",
    "columns": [
        {"name": "t", "kind": "categorical", "values": ["x", "y"]},
        {"name": "c", "kind": "categorical", "values": ["a", "b"], "other": "b"},
    ],
}


def rows_in(path: Path, **dialect: str) -> int:
    schema = vw.Schema.from_dict({**FACTS, "dialect": dialect} if dialect else FACTS)
    source = open_rows(path, None, Encoding(schema, "grid"), invalid="drop")
    return sum(len(batch.target) for batch in source.batches())


@pytest.mark.parametrize("header", [b"t,c\n", b"t,c\r"])
def test_rows_that_end_with_a_carriage_return_are_rows(tmp_path: Path, header: bytes) -> None:
    path, row = tmp_path / "t.csv", b"x," + b"b" * 26 + b"\r"
    count = MAX_ROW_BYTES // len(row) + 2
    path.write_bytes(header + row * count)
    assert rows_in(path) == count


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_a_long_row_of_another_encoding_refuses_no_other(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"t,c\n" + b"x,a\n" * 800_000 + b"y," + b"\x80" * (MAX_ROW_BYTES - 10) + b"\n")
    assert rows_in(path, encoding=encoding) in (800_000, 800_001)


@pytest.mark.parametrize("more", [0, 1, 2])
def test_cells_beside_the_table_are_no_columns(tmp_path: Path, more: int) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    for row in [["t", "c"], ["x", "a"], ["y", "b", *["note"] * more]]:
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    assert rows_in(tmp_path / "t.xlsx") == 2


def test_one_cell_does_not_stall_a_read() -> None:
    began = time.process_time()
    assert Dialect(decimal=",", money=True).number(" " * 20_000 + "x") is None
    assert time.process_time() - began < 1


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning", "ignore::veilwood.UtilityWarning")
def test_progress_does_not_tell_how_many_trials_a_search_made(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).random((60, 2))
    schema = vw.Schema.numeric((0, 1), classes=[0, 1], n_features=2)
    passes: list[list[str]] = []
    for _ in range(8):
        seen: list[str] = []
        monkeypatch.setattr(progress, "_callbacks", [lambda doing, number, seen=seen: seen.append(doing)])
        forest = vw.RandomTreesClassifier(schema, n_estimators=2, random_state=0)
        vw.PrivateSearch(forest, {"max_depth": [1, 2]}, epsilon=1.0).fit(X, (X[:, 0] > 0.5).astype(int))
        passes.append(seen)
    assert len({len(seen) for seen in passes}) == 1
