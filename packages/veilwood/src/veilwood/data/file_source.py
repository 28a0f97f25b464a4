# SPDX-License-Identifier: Apache-2.0
"""Sources that read files: partitions read again in each pass, checks of whole files, and the spool for streams."""

from __future__ import annotations

import hashlib
import mmap
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import IO, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from veilwood.data.batches import Batch, Source, encode_rows, select_rows, view_table
from veilwood.data.canonical import ColumnValues
from veilwood.data.contributions import IdFilter, bound_contributions, encode_ids, missing_id_column_error
from veilwood.data.encoding import Encoding
from veilwood.data.files import File, find_files, find_matching_files
from veilwood.data.frames import Table, is_frame
from veilwood.data.problems import Invalid, Problem, ProblemMessage, Problems, may_show_values, raise_problems, value_at
from veilwood.data.relations import as_batch_stream, is_relation, open_relation
from veilwood.data.schema import Schema
from veilwood.errors import FileError, OutOfSchemaError, ParameterError, UseError, short_repr
from veilwood.privacy.neighbours import RowsOf
from veilwood.safe_io import is_int_in

__all__ = ["ChangeDetector", "CheckResult", "Spool", "Violation", "check_files", "open_files", "open_spool", "spool"]


_BATCH_ROWS: Final = 65536
_MAX_EXAMPLES: Final = 5
_HASH_BYTES: Final = 16


# -- partitions that are read again in each pass, in bounded memory ---------------------------------------------------


@dataclass(repr=False)
class ChangeDetector:
    """Detects rows that changed between passes, by checksums, for partitions whose stamps do not show it.

    Rows are identified by position: the contribution bound and the assignment to trees hold for every pass.
    """

    checksums: dict[tuple[str, int, int], int] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def check_unchanged(self, kind: str, file: File, partition: int, first_row: int, checksum: int) -> None:
        """Remember a checksum. Raise FileError if it differs from the earlier one."""
        with self.lock:
            before = self.checksums.setdefault((kind, partition, first_row), checksum)
        if before != checksum:
            raise FileError(
                f"the rows of {file.display_name} changed between two passes, or came in another order. "
                "Hint: sort them, or "
                "pass vw.spool(...) to keep them in a temporary file."
            )


def open_files(
    X: Any,
    encoding: Encoding,
    *,
    cap: RowsOf | None,
    invalid: Invalid,
    batch_rows: int,
    id_filter: IdFilter | None = None,
) -> Source:
    """Make a source of the files that ``files.find_files`` finds."""
    schema, extra = encoding.schema, () if cap is None else (cap.id,)
    try:
        files = find_matching_files(X, schema, extra, as_bytes=invalid == "drop")
    except OutOfSchemaError as error:  # Arrow looks into the first rows of CSV
        if error.problems:
            _raise_all_problems(X, encoding, extra, batch_rows)
        raise
    if cap is not None and any(cap.id not in file.names for file in files):
        raise missing_id_column_error(cap)
    if cap is not None and any(file.is_text for file in files):
        _reject_numeric_id(cap, schema)
    kept: list[npt.NDArray[np.bool_]] | None = None
    watch = ChangeDetector()
    if cap is not None:
        ids = (_read_ids(file, partition, cap, invalid, batch_rows, watch) for partition, file in enumerate(files))
        kept = bound_contributions(ids, cap, invalid, id_filter)

    def read() -> Iterator[Callable[[], Batch]]:
        empty = True
        for partition, file in enumerate(files):
            row = 0
            for table in _read_tables(file, encoding, batch_rows, files, extra):
                chosen = None if kept is None else kept[partition][row : row + table.n_rows]
                if chosen is not None and len(chosen) < table.n_rows:
                    raise FileError(f"{file.display_name} changed while it was read. Hint: work on a copy.")
                watched = None if file.detects_changes else partial(watch.check_unchanged, "rows", file, partition, row)
                if cap is not None and not file.detects_changes:
                    watch.check_unchanged(
                        "ids", file, partition, row, _checksum_of_ids(table.column_by_name(cap.id), cap, invalid)
                    )
                yield partial(
                    _encode_file_batch, encoding, table, partition, row, chosen, invalid, files, extra, watched
                )
                row += table.n_rows
                empty = False
            if not file.detects_changes:
                watch.check_unchanged("end", file, partition, 0, row)
        if empty and invalid == "refuse":
            raise OutOfSchemaError(f"{files[0].display_name} holds no rows. Hint: check the path.")
        if empty:
            yield partial(Batch, np.empty((0, len(encoding.columns)), np.uint16), np.empty(0, np.int32), 0, 0)

    return Source(read, n_partitions=len(files))


def _read_ids(
    file: File, partition: int, cap: RowsOf, invalid: Invalid, batch_rows: int, watch: ChangeDetector
) -> Iterator[ColumnValues]:
    """Read the column of ids."""
    row = 0
    for table in file.read_batches([cap.id], batch_rows):
        ids = table.column_by_name(cap.id)
        assert ids is not None
        if not file.detects_changes:
            watch.check_unchanged("ids", file, partition, row, _checksum_of_ids(ids, cap, invalid))
        row += table.n_rows
        yield ids


def _reject_numeric_id(cap: RowsOf, schema: Schema) -> None:
    if any(column.source == cap.id and column.kind == "numeric" for column in (*schema.features, schema.target)):
        raise OutOfSchemaError(
            f"column {cap.id!r}, which the privacy unit names, is also a number of the schema: in a text file, 7 and "
            "07 are one number but may be two people. Hint: remove it from the schema, or write Parquet.",
            column=cap.id,
        )


def _checksum_of_ids(ids: ColumnValues | None, cap: RowsOf, invalid: Invalid) -> int:
    """Return a checksum of the ids by row, by a hash in which nobody can find two ids that collide."""
    assert ids is not None
    codes, texts = encode_ids(ids, cap, invalid)
    each = b"".join(_hash_text(text.encode("utf-8", "surrogatepass")) for text in (*texts, ""))
    return int.from_bytes(_hash_text(np.frombuffer(each, f"V{_HASH_BYTES}")[codes].tobytes()))


def _hash_text(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_HASH_BYTES).digest()


def _encode_file_batch(
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
            _raise_all_problems(files, encoding, extra, max(table.n_rows, 1))
        raise
    if watched is not None:
        watched(zlib.crc32(batch.target.tobytes(), zlib.crc32(batch.codes.tobytes())))
    return select_rows(batch, chosen, fits)


def _read_tables(
    file: File, encoding: Encoding, batch_rows: int, files: list[File], extra: Collection[str]
) -> Iterator[Table]:
    """Read features and target of a file, and the ids if they must be compared with those of an earlier pass."""
    wanted = list(dict.fromkeys([*encoding.schema.sources, *(() if file.detects_changes else extra)]))
    try:
        yield from file.read_batches(wanted, batch_rows)
    except OutOfSchemaError as error:
        if error.problems:
            _raise_all_problems(files, encoding, extra, batch_rows)
        raise


def _reopen_as_text(X: Any, schema: Schema) -> Iterator[File]:
    """Open files again with every value as it is in the file; other sources stay as they are."""
    for each in X if isinstance(X, list | tuple) else [X]:
        if isinstance(each, File) and each.location is None:
            yield each
        else:
            yield from find_files(
                each.location if isinstance(each, File) else each, schema, as_bytes=True, skip_rows=False
            )


def _raise_all_problems(X: Any, encoding: Encoding, extra: Collection[str], batch_rows: int) -> None:
    """Read all rows again and raise with every column and kind of problem, in the order of the schema."""
    messages: dict[tuple[str, Problem], ProblemMessage] = {}
    for file in _reopen_as_text(X, encoding.schema):
        file.check_columns(encoding.schema, extra)
        for table, first_row, _, problems in _encode_all(file, encoding, batch_rows):
            for each in problems.messages(partial(encoding.column_values, table), first_row):
                messages.setdefault((each.column, each.kind), each)
    order = [column.name for column in (*encoding.schema.features, encoding.schema.target)]
    raise_problems(sorted(messages.values(), key=lambda each: (order.index(each.column), each.kind)))


def _encode_all(
    file: File, encoding: Encoding, batch_rows: int
) -> Iterator[tuple[Table, int, npt.NDArray[np.uint16], Problems]]:
    """Yield each batch of a file, its first row, its codes and its problems, whether or not rows fit."""
    first_row = 0
    for table in file.read_batches(list(encoding.schema.sources), batch_rows):
        codes, _, problems = encoding.read_rows(table, parse=file.is_text)
        yield table, first_row, codes, problems
        first_row += table.n_rows


# -- a check of whole files --------------------------------------------------------------------------------------------


@dataclass(repr=False)  # it is as private as the rows
class Violation:
    """One kind of problem in one column: the number of rows that have it, and examples if values may be shown."""

    column: str
    kind: Problem
    rows: int = 0
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        some = f" ({', '.join(self.examples)}{', ...' * (self.rows > len(self.examples))})" if self.examples else ""
        return f"{self.column!r}: {self.kind.label} in {self.rows} row{'s' * (self.rows != 1)}{some}"

    def to_dict(self) -> dict[str, Any]:
        """Return the violation as plain values, for JSON."""
        return {"column": self.column, "problem": self.kind.label, "rows": self.rows, "examples": self.examples}


@dataclass(frozen=True, repr=False)
class CheckResult:
    """Result of ``check_files``: violations, and rows in the ``other`` of a column. As private as the rows."""

    n_rows: int
    violations: list[Violation]
    other_counts: dict[str, int]

    @property
    def other_counts_text(self) -> str:
        """Number of rows that fall into ``other``, one line per column."""
        return "".join(
            f"\n{name!r}: {rows} of {self.n_rows} rows count as its 'other'" for name, rows in self.other_counts.items()
        )


def check_files(path: str | PathLike[str], schema: Schema) -> CheckResult:
    """Read all files behind a path and return every column and kind of problem; none if all rows fit the schema."""
    encoding, violations, n_rows = Encoding(schema), dict[tuple[str, Problem], Violation](), 0
    other_codes = [
        (i, each.name, each.values.index(each.other)) for i, each in enumerate(schema.features) if each.other
    ]
    other_counts = {name: 0 for _, name, _ in other_codes}
    files = find_matching_files(path, schema, as_bytes=True, skip_rows=False)
    for file in files:
        for table, first_row, codes, problems in _encode_all(file, encoding, _BATCH_ROWS):
            for feature, name, code in other_codes:
                other_counts[name] += int((codes[:, feature] == code).sum())
            for column, kind, rows in problems.iter_problems():
                violation = violations.setdefault((column.name, kind), Violation(column.name, kind))
                violation.rows += len(rows)
                for row in rows[: _MAX_EXAMPLES - len(violation.examples)].tolist() if may_show_values() else ():
                    where = f"{file.display_name}, " if len(files) > 1 else ""
                    cell = value_at(encoding.column_values(table, column.name), row)
                    text = cell.decode("utf-8", "backslashreplace") if isinstance(cell, bytes) else cell
                    violation.examples.append(f"{where}row {first_row + row + 1}: {short_repr(text)}")
            n_rows += table.n_rows
    if not n_rows:
        raise OutOfSchemaError(f"{files[0].display_name} holds no rows. Hint: check the path.")
    return CheckResult(n_rows, list(violations.values()), other_counts)


# -- a temporary file --------------------------------------------------------------------------------------------------

_MAX_BYTES: Final = 1 << 50

_EncodedPiece: TypeAlias = (
    "tuple[Batch, npt.NDArray[np.bool_], ColumnValues | None]"  # and which rows fit, and their ids
)


@dataclass(frozen=True, repr=False, eq=False)
class Spool:
    """Rows that may be written to a temporary file: the result of ``spool``."""

    rows: Any
    at_most: int
    folder: str | PathLike[str] | None

    def iter_pieces(self) -> Iterator[Any]:
        """Start reading the rows."""
        if is_relation(self.rows):
            relation = open_relation(self.rows)
            return relation.to_batches(list(relation.names), _BATCH_ROWS)
        stream = None if is_frame(self.rows) else as_batch_stream(self.rows)
        if stream is None:
            raise UseError(
                f"{type(self.rows).__name__} can be read more than once and needs no spool. Hint: pass it directly."
            )
        return stream


def spool(rows: Any, *, at_most: int = 1 << 34, folder: str | PathLike[str] | None = None) -> Spool:
    """Allow rows that can be read only once to be stored in a temporary file during a fit.

    Most forests read the rows several times. A spool makes that possible for streams (iterators of tables, Arrow
    streams) and for queries that may return rows in another order each time.

    The file holds rows as the schema encodes them, two bytes per value, and no id. Only its owner can read it. It never
    has a name if the system allows that; otherwise its name is removed at once. It is deleted when the fit ends or the
    process dies. Deleted data may remain on a disk: if that matters, choose a folder in memory or on an encrypted disk.

    Parameters
    ----------
    rows : iterator, Arrow stream, relation or query
        The rows.
    at_most : int, default 16 GiB
        Maximum size of the file in bytes. More rows are rejected, even with ``invalid="drop"``. That reveals something
        about their number, so choose the limit by the disk, not close to what is needed.
    folder : path, optional
        Folder of the file. Default: the system's folder for temporary files.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> pieces = ((car.X[start : start + 200], car.y[start : start + 200]) for start in range(0, 1728, 200))
    >>> forest = vw.MedianForestClassifier(car.schema, n_estimators=3, max_depth=2, random_state=0)
    >>> forest.fit(vw.spool(pieces, at_most=10_000_000)).n_features_in_
    6
    """
    if not is_int_in(at_most, 1, _MAX_BYTES):
        raise ParameterError("at_most", at_most, "must be a number of bytes", "at_most=1 << 34 is 16 GiB")
    return Spool(rows, int(at_most), folder)


def open_spool(
    spooled: Spool,
    pieces: Iterator[Any],
    encoding: Encoding,
    *,
    cap: RowsOf | None,
    invalid: Invalid,
    batch_rows: int,
    id_filter: IdFilter | None,
) -> Source:
    """Encode all rows into the temporary file and make a source of it."""
    encoded = _encode_pieces(pieces, encoding, cap, invalid)
    try:
        with tempfile.TemporaryFile(prefix="veilwood-", dir=spooled.folder) as file:
            ids = _write_pieces(file, encoded, len(encoding.columns), spooled.at_most, batch_rows)
            if cap is None:
                deque(ids, maxlen=0)
                kept = None
            else:
                (kept,) = bound_contributions([ids], cap, invalid, id_filter)
            file.flush()
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # which keeps the file
    except OSError as error:
        raise FileError(
            f"the temporary file cannot be written ({type(error).__name__}). Hint: pass another folder=..."
        ) from None
    stored = pa.ipc.open_file(pa.py_buffer(held))

    def read() -> Iterator[Callable[[], Batch]]:
        first_row = 0
        for number in range(stored.num_record_batches):
            batch = stored.get_batch(number)
            chosen = None if kept is None else kept[first_row : first_row + batch.num_rows]
            yield partial(_read_stored_batch, batch, len(encoding.columns), chosen, first_row)
            first_row += batch.num_rows
        if not first_row and invalid == "refuse":
            raise OutOfSchemaError(
                "the stream held no rows. Hint: pass a new stream; this one may have been read before."
            )
        if not first_row:
            yield partial(Batch, np.empty((0, len(encoding.columns)), np.uint16), np.empty(0, np.int32), 0, 0)

    return Source(read)


def _encode_pieces(
    pieces: Iterator[Any], encoding: Encoding, cap: RowsOf | None, invalid: Invalid
) -> Iterator[_EncodedPiece]:
    """Encode piece by piece, with the ids that the contribution bound needs."""
    for piece in pieces:
        X, y = piece if isinstance(piece, tuple) and len(piece) == 2 else (piece, None)
        table = view_table(X, encoding, invalid)
        extra = () if cap is None else (cap.id,)
        batch, fits = encode_rows(encoding, table, y, invalid=invalid, allowed_extra=extra)
        ids = None if cap is None else table.column_by_name(cap.id)
        if cap is not None and ids is None:
            raise missing_id_column_error(cap)
        yield batch, np.ones(len(batch.target), bool) if fits is None else fits, ids


def _write_pieces(
    file: IO[bytes], encoded: Iterator[_EncodedPiece], width: int, at_most: int, batch_rows: int
) -> Iterator[Any]:
    """Write all rows and yield their ids."""
    codes = pa.list_(pa.uint16(), width)
    schema = pa.schema([("codes", codes), ("target", pa.int32()), ("fits", pa.bool_())])
    with pa.ipc.new_file(file, schema) as writer:
        for batch, fits, ids in encoded:
            flat = pa.array(np.ascontiguousarray(batch.codes).reshape(-1))
            columns = [pa.FixedSizeListArray.from_arrays(flat, width), pa.array(batch.target), pa.array(fits)]
            writer.write_table(pa.table(columns, schema=schema), max_chunksize=batch_rows)
            if file.tell() > at_most:
                raise UseError(
                    f"the rows need a temporary file of more than at_most={at_most} bytes. "
                    "Hint: raise at_most, or write Parquet files and pass their folder."
                )
            yield ids


def _read_stored_batch(stored: Any, width: int, chosen: npt.NDArray[np.bool_] | None, first_row: int) -> Batch:
    codes = stored.column(0).flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    batch = Batch(codes, stored.column(1).to_numpy(), 0, first_row)
    return select_rows(batch, chosen, stored.column(2).to_numpy(zero_copy_only=False))
