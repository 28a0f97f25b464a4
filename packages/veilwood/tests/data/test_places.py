# SPDX-License-Identifier: Apache-2.0
"""Tests of tables that keep a log: deleted rows are never read, and what cannot be read without them is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import veilwood as vw
from veilwood.data.open_rows import open_rows
from veilwood.errors import OutOfSchemaError, VeilwoodError
from veilwood_testing.relations_cases import ENCODING, FORMS, SCHEMA, N, as_delta, as_iceberg, contents, without_people

pytest.importorskip("duckdb")


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_deleted_rows_are_never_trained_on(form: str, tmp_path: Path) -> None:
    folder = FORMS[form](without_people(), tmp_path)
    files = sorted(folder.rglob("*.parquet"))
    assert sum(pa.parquet.read_metadata(file).num_rows for file in files) > N
    for inside in (files[0], str(files[0].parent / "*.parquet"), [files[0]], tmp_path):
        with pytest.raises(OutOfSchemaError, match="pass the folder of the table"):
            open_rows(inside, None, ENCODING)
    forest = vw.RandomTreesClassifier(SCHEMA, n_estimators=1, max_depth=1, epsilon=float("inf")).fit(folder)
    assert forest.leaf_counts_.sum() == N
    assert len(forest.predict(vw.read_table(folder, SCHEMA)[0])) == N


@pytest.mark.parametrize(("form", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg.table")])
def test_without_the_package_a_lake_is_refused(
    form: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FORMS[form](without_people(), tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(VeilwoodError, match=rf"veilwood\[{form}\]"):
        open_rows(folder, None, ENCODING)


def test_rows_deleted_by_vectors_and_other_logs_are_refused(tmp_path: Path) -> None:
    folder = as_delta(without_people(), tmp_path)
    log = folder / "_delta_log" / "00000000000000000000.json"
    text = log.read_text()
    assert '"minReaderVersion":1' in text
    vectors = '"readerFeatures":["deletionVectors"],"writerFeatures":["deletionVectors"]'
    old, new = '"minReaderVersion":1,"minWriterVersion":2', '"minReaderVersion":3,"minWriterVersion":7'
    log.write_text(text.replace(old, f"{new},{vectors}"))
    with pytest.raises(OutOfSchemaError, match="cannot read into Arrow"):
        open_rows(folder, None, ENCODING)
    (tmp_path / "hudi" / ".hoodie").mkdir(parents=True)
    with pytest.raises(OutOfSchemaError, match="Hudi"):
        open_rows(tmp_path / "hudi", None, ENCODING)


def test_two_newest_metadata_are_the_catalogues_business(tmp_path: Path) -> None:
    folder = as_iceberg(without_people(), tmp_path)
    newest = max((folder / "metadata").glob("*.metadata.json"))
    (newest.parent / f"{newest.name[:5]}-other.metadata.json").write_bytes(newest.read_bytes())
    with pytest.raises(OutOfSchemaError, match="catalogue"):
        open_rows(folder, None, ENCODING)


def test_tables_of_lakes_may_be_given_themselves(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    lake = deltalake.DeltaTable(as_delta(without_people(), tmp_path))
    assert len(contents(open_rows(lake, None, ENCODING))[0]) == N
