# SPDX-License-Identifier: Apache-2.0
"""At most k rows of an id, chosen at random."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset
import pytest

from veilwood.data.columns import Column
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf
from veilwood_testing.open_rows_cases import write
from veilwood_testing.row_cap_cases import ID_ENCODING, ID_SCHEMA, kept_rows


def visits(ids: Any) -> pd.DataFrame:
    return pd.DataFrame({"row": np.arange(len(ids)) + 0.5, "who": ids, "target": 0})


@pytest.mark.parametrize("kind", ["memory", "csv", "folder"])
@pytest.mark.parametrize("at_most", [1, 3])
def test_cap_keeps_at_most_k_rows_of_an_id(tmp_path: Path, kind: str, at_most: int) -> None:
    ids = np.random.default_rng(0).integers(0, 60, 500)
    frame = visits(ids)
    X: Any = frame
    if kind == "csv":
        X = write(frame, tmp_path / "v.csv")
    elif kind == "folder":  # the same ids as text, int and float: one person is one person
        write(frame[:200], tmp_path / "a.csv")
        write(frame[200:300], tmp_path / "b.parquet")
        write(frame[300:].astype({"who": float}), tmp_path / "c.arrow")
        X = tmp_path
    source = open_rows(X, None, ID_ENCODING, unit=RowsOf("who", at_most=at_most), batch_rows=64)
    kept = kept_rows(source)
    assert kept == sorted(set(kept))
    counts = Counter(ids[kept].tolist())
    assert counts == {who: min(at_most, n) for who, n in Counter(ids.tolist()).items()}
    assert kept_rows(source) == kept, "every pass must keep the same rows"
    numbered = [(b.partition, b.first_row + i) for b in source.batches() for i in range(len(b.codes))]
    assert len(set(numbered)) == len(kept)


def test_cap_chooses_at_random() -> None:
    unit = RowsOf("who", at_most=1)
    frame = visits(np.repeat(np.arange(2000), 4))
    chosen = np.array(kept_rows(open_rows(frame, None, ID_ENCODING, unit=unit))) % 4
    counts = np.bincount(chosen, minlength=4)
    assert counts.min() > 380  # 500 expected each, standard deviation 19
    again = np.array(kept_rows(open_rows(frame, None, ID_ENCODING, unit=unit))) % 4
    assert (chosen != again).any()


def test_cap_needs_ids(tmp_path: Path) -> None:
    unit = RowsOf("who", at_most=1)
    frame = visits(["a", None, "b"])
    with pytest.raises(OutOfSchemaError, match="'who' has a missing value"):
        open_rows(frame, None, ID_ENCODING, unit=unit)
    with pytest.raises(OutOfSchemaError, match="'who' has a missing value"):
        open_rows(write(frame, tmp_path / "v.csv"), None, ID_ENCODING, unit=unit)
    bare = frame.drop(columns="who")
    for X in (bare, write(bare, tmp_path / "w.csv")):
        with pytest.raises(OutOfSchemaError, match="no column 'who'"):
            open_rows(X, None, ID_ENCODING, unit=unit)
    with pytest.raises(OutOfSchemaError, match="no column 'who'"):
        open_rows([[1.0]], [0], ID_ENCODING, unit=unit)
    with pytest.raises(OutOfSchemaError, match="'who' that the schema does not"):
        open_rows(frame, None, ID_ENCODING)


PEOPLE = ["0" * n + "7" for n in range(9)]


@pytest.mark.parametrize("first", ["", "\n", "\r\n", "\ufeff\n", "\n\n"])
@pytest.mark.parametrize("invalid", ["refuse", "drop"])
def test_an_empty_line_before_the_names_lets_no_row_decide_how_ids_are_read(
    tmp_path: Path, first: str, invalid: Any
) -> None:
    """Types were taken from the rows: without the last person all others were one."""
    for people in (PEOPLE, [*PEOPLE, "A1"]):
        rows = "".join(f"{row}.5,{who},0\n" for row, who in enumerate(people))
        (tmp_path / "v.csv").write_bytes(f"{first}row,who,target\n{rows}".encode())
        source = open_rows(tmp_path / "v.csv", None, ID_ENCODING, unit=RowsOf("who", at_most=1), invalid=invalid)
        assert kept_rows(source) == list(range(len(people)))


@pytest.mark.parametrize("invalid", ["refuse", "drop"])
def test_an_id_that_is_a_number_of_the_schema_is_refused_in_files_of_text(tmp_path: Path, invalid: Any) -> None:
    number = Column("who", "numeric", lower=0, upper=100)
    encoding = Encoding(Schema("r", "classification", ID_SCHEMA.target, (*ID_ENCODING.schema.features, number)))
    frame = visits([7, 8, 7])
    unit = RowsOf("who", at_most=1)
    with pytest.raises(OutOfSchemaError, match="may be two people"):
        open_rows(write(frame, tmp_path / "v.csv"), None, encoding, unit=unit, invalid=invalid)
    for X in (frame, write(frame, tmp_path / "v.parquet")):
        assert len(kept_rows(open_rows(X, None, encoding, unit=unit, invalid=invalid))) == 2


def test_a_dataset_that_would_turn_ids_into_numbers_is_refused(tmp_path: Path) -> None:
    files = [str(write(visits([100]), tmp_path / "a.parquet")), str(write(visits(PEOPLE), tmp_path / "b.parquet"))]
    unit = RowsOf("who", at_most=1)
    with pytest.raises(OutOfSchemaError, match="pass the paths"):
        open_rows(pyarrow.dataset.dataset(files), None, ID_ENCODING, unit=unit)
    assert len(kept_rows(open_rows(files, None, ID_ENCODING, unit=unit))) == 10
    assert len(kept_rows(open_rows(pyarrow.dataset.dataset(files[1:]), None, ID_ENCODING, unit=unit))) == 9
