# SPDX-License-Identifier: Apache-2.0
"""Tests of rows that are read anew in each pass: what changes between two passes is refused."""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.data.batches import Batch, Source
from veilwood.data.file_source import ChangeDetector, _checksum_of_ids
from veilwood.data.files import File
from veilwood.data.open_rows import open_rows
from veilwood.errors import FileError, OutOfSchemaError
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_testing.relations_cases import CAP, ENCODING, SCHEMA, N, as_sqlite, contents, without_people
from veilwood_testing.spool_cases import restless

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_a_watch_knows_batches_by_their_place() -> None:
    watch, file = ChangeDetector(), File("the query", None, ())
    for place in ((0, 0), (0, 300), (1, 0)):
        watch.check_unchanged("rows", file, *place, sum(place))
        watch.check_unchanged("rows", file, *place, sum(place))
    with pytest.raises(FileError, match="the query changed between two passes"):
        watch.check_unchanged("rows", file, 1, 0, 7)


def test_rows_in_another_order_are_refused_before_anything_more_is_released() -> None:
    ledger = MemoryLedger()
    forest = vw.MedianForestClassifier(SCHEMA, n_estimators=3, max_depth=2, ledger=ledger)
    with pytest.raises(FileError, match="another order"):
        forest.fit(restless().project("age, ward, ill"))
    assert [entry.state for entry in ledger.entries()] == ["reserved"]
    vw.RandomTreesClassifier(SCHEMA, n_estimators=3, max_depth=2).fit(restless().project("age, ward, ill"))


def test_ids_in_another_order_are_refused() -> None:
    source = open_rows(restless(), None, ENCODING, unit=CAP)
    with pytest.raises(FileError, match="another order"):
        contents(source)


def test_ids_that_share_a_checksum_are_told_apart() -> None:
    """By CRC-32 these two could change places unseen."""
    one, other = (_checksum_of_ids(pd.Series(ids), CAP, "refuse") for ids in (["plumless"], ["buckeroo"]))
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    assert one != other


def test_rows_that_come_and_go_between_passes_are_refused(tmp_path: Path) -> None:
    query = as_sqlite(without_people(), tmp_path)
    source = open_rows(query, None, ENCODING, batch_rows=N)
    contents(source)
    query.connection.execute("INSERT INTO visits VALUES (1.0, 'a', 0)")
    with pytest.raises(FileError, match="changed between two passes"):
        contents(source)
    query.connection.execute("DELETE FROM visits WHERE rowid > 400")
    with pytest.raises(FileError, match="changed between two passes"):
        contents(source)


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_batches_are_made_something_of_in_order(n_jobs: int) -> None:
    def numbered(number: int) -> Batch:
        if number == 50:
            raise OutOfSchemaError("the fiftieth")
        return Batch(np.zeros((1, 1), np.uint16), np.zeros(1, np.int32), 0, number)

    def source(n_batches: int) -> Source:
        return Source(lambda: (partial(numbered, number) for number in range(n_batches)))

    assert list(source(40).map_batches(lambda batch: batch.first_row, n_jobs=n_jobs)) == list(range(40))
    assert list(source(0).map_batches(lambda batch: batch.first_row, n_jobs=n_jobs)) == []
    with pytest.raises(OutOfSchemaError, match="the fiftieth"):
        list(source(60).map_batches(lambda batch: batch.first_row, n_jobs=n_jobs))
