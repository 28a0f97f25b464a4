# SPDX-License-Identifier: Apache-2.0
"""Sources that read files again in each pass, checks of whole files, and the spool for streams."""

from __future__ import annotations

import hashlib
import mmap
import tempfile
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import IO, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from veilwood.arrays import Bools, Codes, Ints
from veilwood.data import contributions
from veilwood.data.batches import Batch, Source, empty_batch, encode_rows, select_rows, split_target, view_table
from veilwood.data.canonical import ColumnValues
from veilwood.data.encoding import Encoding
from veilwood.data.files import File, find_files, find_matching_files, no_rows_error
from veilwood.data.frames import Table, is_frame
from veilwood.data.numbers import read_column
from veilwood.data.problems import Invalid, Problem, ProblemMessage, Problems, may_show_values, raise_problems, value_at
from veilwood.data.relations import as_batch_stream, is_relation, open_relation
from veilwood.data.schema import Schema
from veilwood.errors import FileError, OutOfSchemaError, ParameterError, UseError, short_repr
from veilwood.privacy.neighbours import RowsOf, id_names
from veilwood.safe_io import is_int_in

_BATCH_ROWS: Final = 65536
_MAX_EXAMPLES: Final = 5
_HASH_BYTES: Final = 16  # two ids share a checksum with a probability of at most pairs / 2^128


# -- files that are read again in each pass, in bounded memory ---------------------------------------------------------


@dataclass(repr=False)
class ChangeDetector:
    """Detector of rows that changed between passes: compares checksums if file stamps do not show every change.

    Rows are identified by position: the contribution bound and the assignment to trees hold for every pass.
    """

    checksums: dict[tuple[str, int, int], int] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def check_unchanged(self, kind: str, file: File, partition: int, first_row: int, checksum: int) -> None:
        """Store the checksum of a batch. Raise FileError if it differs from the checksum of an earlier pass."""
        with self.lock:
            before = self.checksums.setdefault((kind, partition, first_row), checksum)
        if before != checksum:
            raise FileError(
                f"the rows of {file.display_name} changed between two passes, or came in a different order. "
                "Hint: sort the rows, or pass vw.spool(...) to store them in a temporary file."
            )


@dataclass(frozen=True, repr=False)
class _FileReader:
    """Reader that returns the same rows of the same files in each pass."""

    files: list[File]
    encoding: Encoding
    cap: RowsOf | None
    invalid: Invalid
    batch_rows: int
    changes: ChangeDetector = field(default_factory=ChangeDetector)

    def read_ids(self, partition: int, cap: RowsOf, times: list[Any] | None) -> Iterator[ColumnValues]:
        """Read the ids of one file, batch by batch. Append the times of the rows to ``times``, unless it is None."""
        row, file = 0, self.files[partition]
        place, features = self.encoding.time_index, self.encoding.schema.features
        columns = [cap.id] if place is None else [*dict.fromkeys([cap.id, features[place].source])]
        for table in file.read_batches(columns, self.batch_rows):
            ids = contributions.id_column(table, cap)
            if times is not None:
                times.append(self.encoding.encode_times(table))
            self._check_ids(ids, cap, partition, row)
            row += table.n_rows
            yield ids

    def read_rows(self, copies: list[Ints] | None) -> Iterator[Callable[[], Batch]]:
        """Read all rows, each as often as it counts. Yields functions that encode and return one batch each."""
        empty = True
        for partition, file in enumerate(self.files):
            row = 0
            for table in self._read_tables(file):
                of_table = None if copies is None else copies[partition][row : row + table.n_rows]
                if of_table is not None and len(of_table) < table.n_rows:
                    raise FileError(
                        f"{file.display_name} changed while it was read. Hint: read a copy that does not change."
                    )
                if self.cap is not None and not file.detects_changes:
                    self._check_ids(contributions.id_column(table, self.cap), self.cap, partition, row)
                yield partial(self._encode_table, table, partition, row, of_table)
                row += table.n_rows
                empty = False
            if not file.detects_changes:
                self.changes.check_unchanged("end", file, partition, 0, row)
        if empty and self.invalid == "refuse":
            raise no_rows_error(self.files[0].display_name)
        if empty:
            yield partial(empty_batch, self.encoding)

    def _read_tables(self, file: File) -> Iterator[Table]:
        # Ids are read again only if they must be compared with those of an earlier pass.
        ids = () if file.detects_changes else id_names(self.cap)
        with _all_problems(self.files, self.encoding, id_names(self.cap)):
            yield from file.read_batches(list(dict.fromkeys([*self.encoding.schema.sources, *ids])), self.batch_rows)

    def _encode_table(self, table: Table, partition: int, row: int, copies: Ints | None) -> Batch:
        extra, file = id_names(self.cap), self.files[partition]
        with _all_problems(self.files, self.encoding, extra):
            batch, fits = encode_rows(
                self.encoding,
                table,
                None,
                invalid=self.invalid,
                allowed_extra=extra,
                partition=partition,
                first_row=row,
            )
        if not file.detects_changes:
            checksum = zlib.crc32(batch.target.tobytes(), zlib.crc32(batch.codes.tobytes()))
            self.changes.check_unchanged("rows", file, partition, row, checksum)
        return select_rows(_leave_room(batch, self.cap), copies, fits)

    def _check_ids(self, ids: ColumnValues, cap: RowsOf, partition: int, row: int) -> None:
        file = self.files[partition]
        if not file.detects_changes:
            self.changes.check_unchanged("ids", file, partition, row, _checksum_of_ids(ids, cap, self.invalid))


def _leave_room(batch: Batch, cap: RowsOf | None) -> Batch:
    """Return a batch with spaced row numbers, so that each row can count ``at_most`` times."""
    return batch if cap is None else batch._replace(first_row=batch.first_row * cap.at_most)


def open_files(
    X: Any,
    encoding: Encoding,
    *,
    cap: RowsOf | None,
    invalid: Invalid,
    batch_rows: int,
    id_filter: contributions.IdFilter | None = None,
) -> Source:
    """Return a source of the files that ``files.find_files`` finds."""
    with _all_problems(X, encoding, id_names(cap)):  # Arrow infers types from the first rows of a CSV file
        files = find_matching_files(X, encoding.schema, id_names(cap), as_bytes=invalid == "drop")
    reader, copies = _FileReader(files, encoding, cap, invalid, batch_rows), None
    if cap is not None:
        if any(cap.id not in file.names for file in files):
            raise contributions.missing_id_column_error(cap)
        if any(file.is_text for file in files):
            _reject_numeric_id(cap, encoding.schema)
        times: list[Any] | None = None if encoding.first_by is None else [np.empty(0, np.uint16)]
        ids = (reader.read_ids(partition, cap, times) for partition in range(len(files)))
        copies = contributions.bound_contributions(ids, cap, invalid, id_filter, times)
    return Source(partial(reader.read_rows, copies), n_partitions=len(files))


def _reject_numeric_id(cap: RowsOf, schema: Schema) -> None:
    if any(column.source == cap.id and column.kind == "numeric" for column in (*schema.features, schema.target)):
        raise OutOfSchemaError(
            f"column {cap.id!r}, which the privacy unit names, is also a numeric column of the schema: "
            "in a text file, 7 "
            "and 07 are one number but may be two people. Hint: remove the column from the schema, or write Parquet.",
            column=cap.id,
        )


def _checksum_of_ids(ids: ColumnValues, cap: RowsOf, invalid: Invalid) -> int:
    """Return a checksum of the ids by row. The hash is cryptographic, so no one can find two ids that collide."""
    codes, texts = contributions.encode_ids(ids, cap, invalid)
    each = b"".join(_hash_bytes(text.encode("utf-8", "surrogatepass")) for text in (*texts, ""))
    return int.from_bytes(_hash_bytes(np.frombuffer(each, f"V{_HASH_BYTES}")[codes].tobytes()))


def _hash_bytes(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()


@contextmanager
def _all_problems(X: Any, encoding: Encoding, extra: Collection[str]) -> Iterator[None]:
    """Make an error about values name all problems of all rows, so that it does not reveal which came first."""
    try:
        yield
    except OutOfSchemaError as error:
        if error.problems:
            _raise_all_problems(X, encoding, extra)
        raise


def _reopen_as_text(X: Any, schema: Schema) -> Iterator[File]:
    """Open files again with all values as unchanged strings. Other sources are opened as before."""
    for each in X if isinstance(X, list | tuple) else [X]:
        if isinstance(each, File) and each.location is None:
            yield each
        else:
            location = each.location if isinstance(each, File) else each
            yield from find_files(location, schema, as_bytes=True, skip_rows=False)


def _raise_all_problems(X: Any, encoding: Encoding, extra: Collection[str]) -> None:
    """Read all rows again and raise with every column and kind of problem, in the order of the schema."""
    messages: dict[tuple[str, Problem], ProblemMessage] = {}
    for file in _reopen_as_text(X, encoding.schema):
        file.check_columns(encoding.schema, extra)
        for table, first_row, _, problems in _encode_all(file, encoding):
            for each in problems.messages(partial(encoding.column_values, table), first_row):
                messages.setdefault((each.column, each.kind), each)
    order = [column.name for column in (*encoding.schema.features, encoding.schema.target)]
    raise_problems(sorted(messages.values(), key=lambda each: (order.index(each.column), each.kind)))


def _encode_all(file: File, encoding: Encoding) -> Iterator[tuple[Table, int, Codes, Problems]]:
    """Yield each batch of a file with its first row number, its codes and the problems of its values."""
    first_row = 0
    for table in file.read_batches(list(encoding.schema.sources), _BATCH_ROWS):
        codes, _, problems = encoding.read_rows(table, parse=file.is_text)
        yield table, first_row, codes, problems
        first_row += table.n_rows


# -- a check of whole files --------------------------------------------------------------------------------------------


@dataclass(repr=False)  # the object is as private as the rows
class Violation:
    """One kind of problem in one column: the number of affected rows, with examples if values may be shown."""

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
    """Result of ``check_files``: violations, and counts of values by column. As private as the rows.

    ``counts`` has, for each feature, the number of values that are missing, below or above the bounds (and clamped to
    them), and unknown (counted as ``other``).
    """

    n_rows: int
    violations: list[Violation]
    counts: dict[str, dict[str, int]]

    def format_counts(self) -> str:
        """Return the counts as a table with one line per column that has a missing, clamped or unknown value."""
        kinds = ("missing", "below", "above", "other")
        lines: list[tuple[str, ...]] = [("column", *kinds)]
        lines += [
            (name, *(f"{counts[kind]:,}" if counts.get(kind) else "" for kind in kinds))
            for name, counts in self.counts.items() if any(counts.values())
        ]  # fmt: skip
        if len(lines) == 1:
            return f"Of {self.n_rows:,} rows, none has a missing, clamped or unknown value."
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)
        return f"Of {self.n_rows:,} rows, missing, clamped to the bounds, or unknown and counted as 'other':\n{text}"


def check_files(path: str | PathLike[str], schema: Schema) -> CheckResult:
    """Read all files behind a path and return the violations of the schema, by column and kind of problem."""
    encoding, violations, n_rows = Encoding(schema), dict[tuple[str, Problem], Violation](), 0
    counts = {column.name: Counter[str]() for column in schema.features}
    files = find_matching_files(path, schema, as_bytes=True, skip_rows=False)
    for file in files:
        for table, first_row, codes, problems in _encode_all(file, encoding):
            for feature, column in enumerate(schema.features):
                counts[column.name].update(_count_values(encoding, feature, table, codes[:, feature], file.is_text))
            for column, kind, rows in problems.iter_problems():
                violation = violations.setdefault((column.name, kind), Violation(column.name, kind))
                violation.rows += len(rows)
                for row in rows[: _MAX_EXAMPLES - len(violation.examples)].tolist() if may_show_values() else ():
                    where = f"{file.display_name}, " if len(files) > 1 else ""
                    cell = value_at(encoding.column_values(table, column.name), row)
                    violation.examples.append(f"{where}row {first_row + row + 1}: {short_repr(cell)}")
            n_rows += table.n_rows
    if not n_rows:
        raise no_rows_error(files[0].display_name)
    return CheckResult(n_rows, list(violations.values()), {name: dict(count) for name, count in counts.items()})


def _count_values(encoding: Encoding, feature: int, table: Table, codes: Codes, is_text: bool) -> dict[str, int]:
    """Count the missing, clamped and unknown values of a feature in a batch."""
    column, missing = encoding.schema.features[feature], encoding.columns[feature].missing_code
    found = {} if missing is None else {"missing": int((codes == missing).sum())}
    if column.other is not None:
        found["other"] = int((codes == column.values.index(column.other)).sum())
    if column.kind == "numeric" and column.part is None:
        values = encoding.column_values(table, column.name)
        numbers, _ = read_column(values, column, encoding.schema.dialect, is_text)
        lower, upper = column.bounds
        found |= {"below": int((numbers < lower).sum()), "above": int((numbers > upper).sum())}
    return found


# -- a temporary file --------------------------------------------------------------------------------------------------

_MAX_BYTES: Final = 1 << 50

# Rows, a mask of the valid rows, and the ids of the rows.
_EncodedPiece: TypeAlias = "tuple[Batch, Bools, ColumnValues | None]"


@dataclass(frozen=True, repr=False, eq=False)
class Spool:
    """Result of ``spool``: rows that may be written to a temporary file."""

    rows: Any
    at_most: int
    folder: str | PathLike[str] | None

    def iter_pieces(self) -> Iterator[Any]:
        """Iterate over the unread pieces of the rows."""
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
    streams) and for queries that may return rows in a different order each time.

    The file contains rows as the schema encodes them, two bytes per value, and no id. Only its owner can read it. It
    never has a name if the system supports that; otherwise its name is removed at once. The file is deleted when the
    fit ends or the process dies. Deleted data may remain on a disk: if that matters, choose a folder in memory or on an
    encrypted disk.

    Parameters
    ----------
    rows : iterator, Arrow stream, relation or query
        The rows.
    at_most : int, default 16 GiB
        Maximum size of the file in bytes. More rows are rejected, even with ``invalid="drop"``. Rejection
        reveals something about the number of rows, so base the limit on the disk, not on the expected size.
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
        raise ParameterError("at_most", at_most, "must be a number of bytes", "pass 1 << 34 for 16 GiB")
    return Spool(rows, int(at_most), folder)


def open_spool(
    spooled: Spool,
    pieces: Iterator[Any],
    encoding: Encoding,
    *,
    cap: RowsOf | None,
    invalid: Invalid,
    batch_rows: int,
    id_filter: contributions.IdFilter | None,
) -> Source:
    """Encode all rows into the temporary file and return a source that reads this file."""
    times: list[Any] | None = None if encoding.first_by is None else [np.empty(0, np.uint16)]
    encoded = _encode_pieces(pieces, encoding, cap, invalid, times)
    try:
        with tempfile.TemporaryFile(prefix="veilwood-", dir=spooled.folder) as file:
            ids = _write_pieces(file, encoded, len(encoding.columns), spooled.at_most, batch_rows)
            if cap is None:
                deque(ids, maxlen=0)
                copies = None
            else:
                (copies,) = contributions.bound_contributions([ids], cap, invalid, id_filter, times)
            file.flush()
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # keeps the file alive
    except OSError as error:
        raise FileError(
            f"the temporary file cannot be written ({type(error).__name__}). Hint: pass a different folder=..."
        ) from None
    stored = pa.ipc.open_file(pa.py_buffer(held))

    def read_spooled() -> Iterator[Callable[[], Batch]]:
        first_row = 0
        for number in range(stored.num_record_batches):
            batch = stored.get_batch(number)
            of_batch = None if copies is None else copies[first_row : first_row + batch.num_rows]
            yield partial(_read_stored_batch, batch, len(encoding.columns), cap, of_batch, first_row)
            first_row += batch.num_rows
        if not first_row and invalid == "refuse":
            raise OutOfSchemaError(
                "the stream contained no rows. Hint: pass a new stream; this stream may have been read before."
            )
        if not first_row:
            yield partial(empty_batch, encoding)

    return Source(read_spooled)


def _encode_pieces(
    pieces: Iterator[Any], encoding: Encoding, cap: RowsOf | None, invalid: Invalid, times: list[Any] | None
) -> Iterator[_EncodedPiece]:
    """Encode piece by piece, with the ids for the contribution bound and, if given, the times of the rows."""
    for piece in pieces:
        X, y = split_target(piece)
        table = view_table(X, encoding, invalid)
        batch, fits = encode_rows(encoding, table, y, invalid=invalid, allowed_extra=id_names(cap))
        ids = None if cap is None else contributions.id_column(table, cap)
        if times is not None and encoding.time_index is not None:
            times.append(batch.codes[:, encoding.time_index].copy())
        yield batch, np.ones(len(batch.target), bool) if fits is None else fits, ids


def _write_pieces(
    file: IO[bytes], encoded: Iterator[_EncodedPiece], width: int, at_most: int, batch_rows: int
) -> Iterator[Any]:
    """Write all rows and yield their ids."""
    schema = pa.schema([("codes", pa.list_(pa.uint16(), width)), ("target", pa.int32()), ("fits", pa.bool_())])
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


def _read_stored_batch(stored: Any, width: int, cap: RowsOf | None, copies: Ints | None, first_row: int) -> Batch:
    codes = stored.column(0).flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    batch = Batch(codes, stored.column(1).to_numpy(), 0, first_row)
    return select_rows(_leave_room(batch, cap), copies, stored.column(2).to_numpy(zero_copy_only=False))
