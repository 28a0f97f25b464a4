# SPDX-License-Identifier: Apache-2.0
"""Tables at addresses and in lakes: the rows of local files, no secret of an address shown."""

from __future__ import annotations

import gzip
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import veilwood as vw
from veilwood.data.open_rows import open_rows
from veilwood.data.places import find_locations
from veilwood.drafting.draft import draft_from_table
from veilwood.errors import FileError, OutOfSchemaError, VeilwoodError
from veilwood.privacy.accountant import handle_of
from veilwood.privacy.neighbours import RowsOf
from veilwood_testing.errors import rejects
from veilwood_testing.tables import (
    N_ROWS,
    ROW_FORMS,
    VISITS_ENCODING,
    VISITS_SCHEMA,
    as_delta,
    as_iceberg,
    read_contents,
    visits_table,
    visits_without_ids,
)

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


@pytest.fixture
def web(server: str, tmp_path: Path) -> str:
    """The address of this test's folder."""
    return f"{server}/{tmp_path.name}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on this computer, for the folders of all tests."""
    pytest.importorskip("aiohttp")

    class Quiet(SimpleHTTPRequestHandler):
        """Answers requests for a part of a file too, as servers do."""

        def do_GET(self) -> None:
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            path = Path(self.translate_path(self.path))
            if wanted is None or not path.is_file():
                return super().do_GET()
            raw = path.read_bytes()[int(wanted[1]) : int(wanted[2]) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {wanted[1]}-{wanted[2]}/{path.stat().st_size}")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
            return None

        def end_headers(self) -> None:
            self.send_header("Accept-Ranges", "bytes")
            super().end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path_factory.getbasetemp()))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def written(rows: pa.Table, name: str) -> bytes:
    frame = rows.to_pandas()
    if ".csv" in name or ".tsv" in name:
        text = frame.to_csv(index=False, sep="\t" if ".tsv" in name else ",").encode()
        return gzip.compress(text) if name.endswith(".gz") else text
    sink = pa.BufferOutputStream()
    if name.endswith(".parquet"):
        pa.parquet.write_table(rows, sink, row_group_size=300)
    else:
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    return sink.getvalue().to_pybytes()


NAMES = ["rows.parquet", "rows.arrow", "rows.csv", "rows.csv.gz", "rows.tsv", "rows.tsv.gz"]


@pytest.mark.parametrize("invalid", ["refuse", "drop"])
@pytest.mark.parametrize("name", NAMES)
def test_addresses_give_what_files_give(memory: Any, web: str, tmp_path: Path, name: str, invalid: Any) -> None:
    raw = written(visits_without_ids(), name)
    (tmp_path / name).write_bytes(raw)
    memory.pipe(f"/clinic/{name}", raw)
    wanted = read_contents(open_rows(tmp_path / name, None, VISITS_ENCODING, invalid=invalid))
    assert len(wanted[0]) == 1000
    addresses = [f"memory://clinic/{name}", f"{web}/{name}", f"{web}/{name}?token=SECRET", (tmp_path / name).as_uri()]
    for address in addresses:
        source = open_rows(address, None, VISITS_ENCODING, invalid=invalid, batch_rows=300)
        assert read_contents(source) == read_contents(source) == wanted


def test_folders_globs_and_lists_of_addresses(memory: Any) -> None:
    rows = visits_without_ids()
    for number in range(3):
        memory.pipe(f"/clinic/year/{number}.parquet", written(rows.slice(number * 300, 300), "rows.parquet"))
    memory.pipe("/clinic/year/notes.txt", b"not a table")
    wanted = read_contents(open_rows(rows.slice(0, 900), None, VISITS_ENCODING))
    one_by_one = [f"memory://clinic/year/{number}.parquet" for number in range(3)]
    for address in ("memory://clinic", "memory://clinic/year/*.parquet", one_by_one):
        source = open_rows(address, None, VISITS_ENCODING)
        assert source.n_partitions == 3
        assert read_contents(source) == wanted
    X, y = vw.read_table("memory://clinic", VISITS_SCHEMA)
    assert len(X) == len(y) == 900
    assert draft_from_table("memory://clinic", "ill")["name"] == "0"


def test_a_folder_is_listed_anew_each_time(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems of buckets remember listings, and others may have written since."""
    listed: list[list[str]] = []
    find = type(memory).find

    def remembered(self: Any, path: str, *given: Any, **more: Any) -> Any:
        return listed[0] if listed and path == "/ward" else find(self, path, *given, **more)

    monkeypatch.setattr(type(memory), "find", remembered)
    monkeypatch.setattr(type(memory), "invalidate_cache", lambda self, path=None: listed.clear())
    for number in range(2):
        memory.pipe(f"/ward/{number}.csv", b"age")
        found = find_locations("memory://ward")
        assert isinstance(found, list)
        assert len(found) == number + 1
        listed.append(find(memory, "/ward"))  # what it would remember


def test_a_cap_by_id_holds_elsewhere(memory: Any) -> None:
    memory.pipe("/rows.csv", written(visits_table(), "rows.csv"))
    source = open_rows("memory://rows.csv", None, VISITS_ENCODING, unit=RowsOf("person", at_most=2))
    assert len(read_contents(source)[0]) == 600
    assert read_contents(source) == read_contents(source)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
def test_files_that_change_elsewhere_are_refused(memory: Any, name: str) -> None:
    memory.pipe(f"/{name}", written(visits_without_ids(), name))
    source = open_rows(f"memory://{name}", None, VISITS_ENCODING)
    read_contents(source)
    other = visits_without_ids().to_pandas().iloc[::-1]
    memory.pipe(f"/{name}", written(pa.Table.from_pandas(other, preserve_index=False), name))
    with pytest.raises((FileError, OutOfSchemaError), match=r"changed|cannot read"):
        read_contents(source)


def test_what_is_not_there_is_refused_without_secrets(web: str, memory: Any) -> None:
    hidden = web.replace("http://", "http://me:SECRET@")
    for address in (f"{hidden}/rows.csv?token=SECRET", "memory://nowhere/*.csv", "memory://nowhere", "odd://SECRET@x"):
        with pytest.raises(VeilwoodError, match=r"cannot read|no table|not a table") as refusal:
            open_rows(address, None, VISITS_ENCODING)
        assert "SECRET" not in str(refusal.value)
    assert "SECRET" not in str(handle_of(f"{hidden}/rows.csv?token=SECRET"))


def test_a_lake_elsewhere_is_not_read_file_by_file(memory: Any, tmp_path: Path) -> None:
    folder = as_delta(visits_without_ids(), tmp_path)
    memory.put(str(folder), "/lake", recursive=True)
    (part, *_) = memory.glob("/lake/*.parquet")
    for address in (f"memory://{part}", "memory://lake/*.parquet"):
        with rejects(OutOfSchemaError, raised_in="_find_remote"):
            open_rows(address, None, VISITS_ENCODING)
    with pytest.raises(VeilwoodError):  # deltalake cannot reach this memory
        open_rows("memory://lake", None, VISITS_ENCODING)
    assert len(read_contents(open_rows(folder.as_uri(), None, VISITS_ENCODING))[0]) == 1000


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_deleted_rows_are_never_trained_on(form: str, tmp_path: Path) -> None:
    folder = ROW_FORMS[form](visits_without_ids(), tmp_path)
    files = sorted(folder.rglob("*.parquet"))
    assert sum(pa.parquet.read_metadata(file).num_rows for file in files) > N_ROWS
    for inside in (files[0], str(files[0].parent / "*.parquet"), [files[0]], tmp_path):
        with rejects(OutOfSchemaError, raised_in="_find_local"):
            open_rows(inside, None, VISITS_ENCODING)
    forest = vw.RandomTreesClassifier(VISITS_SCHEMA, n_estimators=1, max_depth=1, epsilon=float("inf")).fit(folder)
    assert forest.leaf_counts_.sum() == N_ROWS
    assert len(forest.predict(vw.read_table(folder, VISITS_SCHEMA)[0])) == N_ROWS


@pytest.mark.parametrize(("form", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg.table")])
def test_without_the_package_a_lake_is_refused(
    form: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROW_FORMS[form](visits_without_ids(), tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(VeilwoodError, match=rf"veilwood\[{form}\]"):
        open_rows(folder, None, VISITS_ENCODING)


def test_rows_deleted_by_vectors_and_other_logs_are_refused(tmp_path: Path) -> None:
    folder = as_delta(visits_without_ids(), tmp_path)
    log = folder / "_delta_log" / "00000000000000000000.json"
    text = log.read_text()
    assert '"minReaderVersion":1' in text
    vectors = '"readerFeatures":["deletionVectors"],"writerFeatures":["deletionVectors"]'
    old, new = '"minReaderVersion":1,"minWriterVersion":2', '"minReaderVersion":3,"minWriterVersion":7'
    log.write_text(text.replace(old, f"{new},{vectors}"))
    with rejects(OutOfSchemaError, raised_in="open_delta"):
        open_rows(folder, None, VISITS_ENCODING)
    (tmp_path / "hudi" / ".hoodie").mkdir(parents=True)
    with rejects(OutOfSchemaError, raised_in="_open_lake"):
        open_rows(tmp_path / "hudi", None, VISITS_ENCODING)


def test_two_newest_metadata_are_the_catalogues_business(tmp_path: Path) -> None:
    folder = as_iceberg(visits_without_ids(), tmp_path)
    newest = max((folder / "metadata").glob("*.metadata.json"))
    (newest.parent / f"{newest.name[:5]}-other.metadata.json").write_bytes(newest.read_bytes())
    with rejects(OutOfSchemaError, raised_in="_newest_metadata"):
        open_rows(folder, None, VISITS_ENCODING)


def test_tables_of_lakes_may_be_given_themselves(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    lake = deltalake.DeltaTable(as_delta(visits_without_ids(), tmp_path))
    assert len(read_contents(open_rows(lake, None, VISITS_ENCODING))[0]) == N_ROWS
