# SPDX-License-Identifier: Apache-2.0
"""Sources of rows from files: passes, spools and checks against a schema."""

from __future__ import annotations

import os
import tempfile
import zlib
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.data.batches import Batch, Source
from veilwood.data.file_source import ChangeDetector, _checksum_of_ids, check_files
from veilwood.data.files import File
from veilwood.data.open_rows import open_rows
from veilwood.errors import FileError, OutOfSchemaError, ParameterError, UseError
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_testing.errors import rejects
from veilwood_testing.tables import (
    CLINIC_SCHEMA,
    GERMAN_SCHEMA,
    INVALID_CSV,
    N_ROWS,
    TWO_PER_PERSON,
    VISITS_ENCODING,
    VISITS_SCHEMA,
    ArrowStream,
    as_sqlite,
    read_contents,
    visits_table,
    visits_without_ids,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


duckdb = pytest.importorskip("duckdb")


def restless() -> Any:
    """A relation that comes in another order each time."""
    connection = duckdb.connect()
    connection.register("visits", visits_table())
    return connection.sql("SELECT * FROM visits ORDER BY random()")


def test_a_watch_knows_batches_by_their_place() -> None:
    watch, file = ChangeDetector(), File("the query", None, ())
    for place in ((0, 0), (0, 300), (1, 0)):
        watch.check_unchanged("rows", file, *place, sum(place))
        watch.check_unchanged("rows", file, *place, sum(place))
    with rejects(FileError, raised_in="ChangeDetector.check_unchanged"):
        watch.check_unchanged("rows", file, 1, 0, 7)


def test_rows_in_another_order_are_refused_before_anything_more_is_released() -> None:
    ledger = MemoryLedger()
    forest = vw.MedianForestClassifier(VISITS_SCHEMA, n_estimators=3, max_depth=2, ledger=ledger)
    with rejects(FileError, raised_in="ChangeDetector.check_unchanged"):
        forest.fit(restless().project("age, ward, ill"))
    assert [entry.state for entry in ledger.entries()] == ["reserved"]
    vw.RandomTreesClassifier(VISITS_SCHEMA, n_estimators=3, max_depth=2).fit(restless().project("age, ward, ill"))


def test_ids_in_another_order_are_refused() -> None:
    source = open_rows(restless(), None, VISITS_ENCODING, unit=TWO_PER_PERSON)
    with rejects(FileError, raised_in="ChangeDetector.check_unchanged"):
        read_contents(source)


def test_ids_that_share_a_checksum_are_told_apart() -> None:
    """By CRC-32 these two could change places unseen."""
    one, other = (_checksum_of_ids(pd.Series(ids), TWO_PER_PERSON, "refuse") for ids in (["plumless"], ["buckeroo"]))
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    assert one != other


def test_rows_that_come_and_go_between_passes_are_refused(tmp_path: Path) -> None:
    query = as_sqlite(visits_without_ids(), tmp_path)
    source = open_rows(query, None, VISITS_ENCODING, batch_rows=N_ROWS)
    read_contents(source)
    query.connection.execute("INSERT INTO visits VALUES (1.0, 'a', 0)")
    with rejects(FileError, raised_in="ChangeDetector.check_unchanged"):
        read_contents(source)
    query.connection.execute("DELETE FROM visits WHERE rowid > 400")
    with rejects(FileError, raised_in="ChangeDetector.check_unchanged"):
        read_contents(source)


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


def test_spooled_rows_are_capped_and_dropped_as_in_files(tmp_path: Path) -> None:
    source = open_rows(vw.spool(visits_table().to_reader(max_chunksize=64)), None, VISITS_ENCODING, unit=TWO_PER_PERSON)
    assert len(read_contents(source)[0]) == 600
    assert read_contents(source) == read_contents(source)
    rows = visits_without_ids().to_pandas()
    rows.loc[rows.index % 5 == 0, "ward"] = "SECRET"
    pieces = (rows[start : start + 90] for start in range(0, N_ROWS, 90))
    kept = open_rows(vw.spool(pieces), None, VISITS_ENCODING, invalid="drop")
    assert read_contents(kept) == read_contents(open_rows(rows[rows["ward"] != "SECRET"], None, VISITS_ENCODING))
    assert read_contents(open_rows(vw.spool(iter([])), None, VISITS_ENCODING, invalid="drop")) == ([], [])
    with rejects(OutOfSchemaError, raised_in="open_spool.<locals>.read_spooled"):
        read_contents(open_rows(vw.spool(iter([])), None, VISITS_ENCODING))


def test_a_spool_is_bounded_and_leaves_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    def watched(**where: Any) -> Any:
        file = TemporaryFile(**where)  # noqa: SIM115
        modes.append(os.fstat(file.fileno()).st_mode & 0o777)
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", watched)
    source = open_rows(vw.spool(visits_without_ids().to_reader(), folder=tmp_path), None, VISITS_ENCODING)
    assert list(tmp_path.iterdir()) == []
    assert modes == [0o600]
    assert len(read_contents(source)[0]) == N_ROWS
    with rejects(UseError, raised_in="_write_pieces"):
        open_rows(vw.spool(visits_without_ids().to_reader(), at_most=1000, folder=tmp_path), None, VISITS_ENCODING)
    assert list(tmp_path.iterdir()) == []
    with rejects(ParameterError, name="at_most"):
        vw.spool([], at_most=0)
    with rejects(UseError, raised_in="Spool.iter_pieces"):
        open_rows(vw.spool(visits_without_ids()), None, VISITS_ENCODING)
    with rejects(FileError, raised_in="open_spool"):
        open_rows(vw.spool(visits_without_ids().to_reader(), folder=tmp_path / "nowhere"), None, VISITS_ENCODING)


def test_a_spool_gives_unordered_rows_one_order() -> None:
    source = open_rows(vw.spool(restless()), None, VISITS_ENCODING, unit=TWO_PER_PERSON)
    assert read_contents(source) == read_contents(source)


def test_what_is_given_beside_streams_is_refused() -> None:
    given: list[Any] = [ArrowStream(visits_table()), vw.spool(visits_table().to_reader()), iter([])]
    for X in given:
        with rejects(OutOfSchemaError, raised_in="Opener.check"):
            open_rows(X, [0], VISITS_ENCODING)
    with rejects(UseError, raised_in="Opener.check"):
        open_rows(ArrowStream(visits_table()), None, VISITS_ENCODING, unit=TWO_PER_PERSON, id_filter=bool)


def test_a_check_counts_and_shows_values_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text(INVALID_CSV)
    CLINIC_SCHEMA.save(tmp_path / "schema.json")
    command = ["schema", "check", str(tmp_path / "rows.csv"), "--schema", str(tmp_path / "schema.json")]
    assert main(command) == 2
    output = capsys.readouterr().err
    assert "'ward': unknown category in 2 rows" in output
    assert "'age': missing value in 1 row; 'age': not a number in 1 row" in output
    assert "Anna" not in output
    assert main([*command, "--show-values"]) == 2
    assert "'ward': unknown category in 2 rows (row 2: 'C', row 3: 'Anna')" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_fit_names_every_column_and_kind_of_a_long_file(ending: str, tmp_path: Path) -> None:
    """The problems lie in different batches; their order is the schema's, whatever that of the rows."""
    n = 140_000
    frame = pd.DataFrame({"größe": np.ones(n), "kosten": 1.0, "ort": "Bonn", "krank": ["ja", "nein"] * (n // 2)})
    frame.loc[n - 1, "kosten"] = np.nan
    frame.loc[0, "ort"] = "Secretville"
    frame.loc[n // 2, "krank"] = "vielleicht"
    path = tmp_path / f"t.{ending}"
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    with pytest.raises(OutOfSchemaError) as caught:
        vw.RandomTreesClassifier(GERMAN_SCHEMA, n_estimators=1, max_depth=1).fit(path)
    assert caught.value.problems == (
        ("kosten", "missing value"), ("ort", "unknown category"), ("krank", "unknown category"),
    )  # fmt: skip
    assert not any(word in str(caught.value) for word in ("Secretville", "vielleicht", "row 1", str(n)))
    assert {(m.column, m.rows) for m in check_files(path, GERMAN_SCHEMA).violations} == {
        ("kosten", 1),
        ("ort", 1),
        ("krank", 1),
    }
