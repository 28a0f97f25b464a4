# SPDX-License-Identifier: Apache-2.0
"""Rows in partitions that are read anew in each pass, in bounded memory: encoded, capped by id, watched for changes.

Which partitions a user means is found in ``files``.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from veilwood.data.batches import Batch, Source
from veilwood.data.encode_rows import encode_rows, kept_of
from veilwood.data.encoding import Encoding
from veilwood.data.files import File, find_files
from veilwood.data.frames import Cells, Table
from veilwood.data.problems import Invalid, Problem, Told, refuse
from veilwood.data.row_cap import Keeps, choose_rows, id_codes, no_id
from veilwood.data.schema import Schema
from veilwood.errors import FileError, OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf

__all__ = ["open_files"]


@dataclass(repr=False)
class Watch:
    """What the batches of earlier passes looked like, for partitions of which nothing else tells that they changed.

    Rows are known by their place: which of a person's are kept, and which tree a row belongs to, holds for every pass.
    """

    seen: dict[tuple[str, int, int], int] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def same(self, kind: str, file: File, partition: int, first_row: int, checksum: int) -> None:
        """Remember a checksum, or refuse one that differs from the one before."""
        with self.lock:
            before = self.seen.setdefault((kind, partition, first_row), checksum)
        if before != checksum:
            raise FileError(
                f"the rows of {file.where} changed between two passes, or came in another order. Hint: give them a "
                "fixed order, or write them to a temporary file by vw.spool(...)."
            )


def open_files(
    X: Any, encoding: Encoding, *, cap: RowsOf | None, invalid: Invalid, batch_rows: int, keeps: Keeps | None = None
) -> Source:
    """Make a source of whatever ``files.find_files`` finds."""
    schema, extra = encoding.schema, () if cap is None else (cap.id,)
    try:
        files = find_files(X, schema, extra, as_bytes=invalid == "drop")
    except OutOfSchemaError as error:  # Arrow looks into the first rows of CSV
        if error.problems:
            _refuse_all(X, encoding, extra, batch_rows)
        raise
    for file in files:
        file.check(schema, extra)
        if cap is not None and cap.id not in file.names:
            raise no_id(cap)
    kept: list[npt.NDArray[np.bool_]] | None = None
    watch = Watch()
    if cap is not None:
        ids = (_ids(file, partition, cap, invalid, batch_rows, watch) for partition, file in enumerate(files))
        kept = choose_rows(ids, cap, invalid, keeps)

    def read() -> Iterator[Callable[[], Batch]]:
        empty = True
        for partition, file in enumerate(files):
            row = 0
            for table in _tables(file, encoding, batch_rows, files, extra):
                chosen = None if kept is None else kept[partition][row : row + table.n_rows]
                if chosen is not None and len(chosen) < table.n_rows:
                    raise FileError(f"{file.where} changed while it was read. Hint: work on a copy.")
                watched = None if file.settled else partial(watch.same, "rows", file, partition, row)
                if cap is not None and not file.settled:
                    watch.same("ids", file, partition, row, _checksum_of_ids(table.named(cap.id), cap, invalid))
                yield partial(_encode, encoding, table, partition, row, chosen, invalid, files, extra, watched)
                row += table.n_rows
                empty = False
            if not file.settled:
                watch.same("end", file, partition, 0, row)
        if empty and invalid == "refuse":
            raise OutOfSchemaError(f"{files[0].where} holds no rows. Hint: check the path.")
        if empty:
            yield partial(Batch, np.empty((0, len(encoding.columns)), np.uint16), np.empty(0, np.int32), 0, 0)

    return Source(read, n_partitions=len(files))


def _ids(file: File, partition: int, cap: RowsOf, invalid: Invalid, batch_rows: int, watch: Watch) -> Iterator[Cells]:
    """Read the column of ids."""
    row = 0
    for table in file.batches([cap.id], batch_rows):
        ids = table.named(cap.id)
        assert ids is not None
        if not file.settled:
            watch.same("ids", file, partition, row, _checksum_of_ids(ids, cap, invalid))
        row += table.n_rows
        yield ids


def _checksum_of_ids(ids: Cells | None, cap: RowsOf, invalid: Invalid) -> int:
    assert ids is not None
    codes, texts = id_codes(ids, cap, invalid)
    each = [zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in texts]
    return zlib.crc32(np.array([*each, 0], np.int64)[codes].tobytes())


def _encode(
    encoding: Encoding,
    table: Table,
    partition: int,
    first_row: int,
    chosen: npt.NDArray[np.bool_] | None,
    invalid: Invalid,
    files: list[File],
    extra: Collection[str],
    watched: Callable[[int], None] | None,
) -> Batch:
    try:
        batch, fits = encode_rows(
            encoding, table, None, invalid=invalid, allowed_extra=extra, partition=partition, first_row=first_row
        )
    except OutOfSchemaError as error:
        if error.problems:
            _refuse_all(files, encoding, extra, max(table.n_rows, 1))
        raise
    if watched is not None:
        watched(zlib.crc32(batch.target.tobytes(), zlib.crc32(batch.codes.tobytes())))
    return kept_of(batch, chosen, fits)


def _tables(
    file: File, encoding: Encoding, batch_rows: int, files: list[File], extra: Collection[str]
) -> Iterator[Table]:
    """Read features and target of a file; the ids too, where they must be compared with those of an earlier pass."""
    wanted = list(dict.fromkeys([*encoding.schema.sources, *(() if file.settled else extra)]))
    try:
        yield from file.batches(wanted, batch_rows)
    except OutOfSchemaError as error:
        if error.problems:
            _refuse_all(files, encoding, extra, batch_rows)
        raise


def _as_text(X: Any, schema: Schema) -> Iterator[File]:
    """Open files once more so that every cell is there as it stands in the file; others are as they were."""
    for each in X if isinstance(X, list | tuple) else [X]:
        if isinstance(each, File) and each.place is None:
            yield each
        else:
            yield from find_files(
                each.place if isinstance(each, File) else each, schema, as_bytes=True, skip_rows=False
            )


def _refuse_all(X: Any, encoding: Encoding, extra: Collection[str], batch_rows: int) -> None:
    """Read all rows once more and tell every column and kind of problem, wherever it is; the order is the schema's."""
    wanted, target = list(encoding.schema.sources), encoding.schema.target.name
    told: dict[tuple[str, Problem], Told] = {}
    for file in _as_text(X, encoding.schema):
        file.check(encoding.schema, extra)
        row = 0
        for table in file.batches(wanted, batch_rows):
            _, problems = encoding.read(table, parse=file.is_text)
            problems.add(target, encoding.read_target(encoding.cells(table, target), parse=file.is_text)[1])
            for each in problems.told(partial(encoding.cells, table), row):
                told.setdefault((each.column, each.kind), each)
            row += table.n_rows
    order = [column.name for column in (*encoding.schema.features, encoding.schema.target)]
    refuse(sorted(told.values(), key=lambda each: (order.index(each.column), each.kind)))
