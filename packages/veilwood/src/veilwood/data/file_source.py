# SPDX-License-Identifier: Apache-2.0
"""Rows that can be read once, kept in a temporary file where the user allows it, for forests that read them again."""

from __future__ import annotations

import mmap
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import IO, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from veilwood.data.batches import Batch, Source, encode_rows, select_rows, view_table
from veilwood.data.canonical import ColumnValues
from veilwood.data.contributions import IdFilter, bound_contributions, missing_id_column_error
from veilwood.data.encoding import Encoding
from veilwood.data.files import find_matching_files
from veilwood.data.frames import is_frame
from veilwood.data.problems import Invalid, Problem, may_show_values, value_at
from veilwood.data.relations import as_batch_stream, is_relation, open_relation
from veilwood.data.schema import Schema
from veilwood.errors import FileError, OutOfSchemaError, ParameterError, UseError, short_repr
from veilwood.privacy.neighbours import RowsOf
from veilwood.safe_io import is_int_in

__all__ = ["CheckResult", "Spool", "Violation", "check_files", "open_spool", "spool"]


_BATCH_ROWS: Final = 65536
_MAX_EXAMPLES: Final = 5


@dataclass(repr=False)  # it is as private as the rows
class Violation:
    """One kind of problem of one column: how many rows have it, and some of them where values may be shown."""

    column: str
    kind: Problem
    rows: int = 0
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        some = f" ({', '.join(self.examples)}{', ...' * (self.rows > len(self.examples))})" if self.examples else ""
        return f"{self.column!r}: {self.kind.label} in {self.rows} row{'s' * (self.rows != 1)}{some}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"column": self.column, "problem": self.kind.label, "rows": self.rows, "examples": self.examples}


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What was found: problems, and how many rows count as the ``other`` of a column. As private as the rows."""

    n_rows: int
    violations: list[Violation]
    other_counts: dict[str, int]

    @property
    def other_counts_text(self) -> str:
        """Say how many rows fall into ``other``, a column a line."""
        return "".join(
            f"\n{name!r}: {rows} of {self.n_rows} rows count as its 'other'" for name, rows in self.other_counts.items()
        )


def check_files(path: str | PathLike[str], schema: Schema) -> CheckResult:
    """Read a file, folder or glob whole, and return every column and kind of problem; none where all rows fit."""
    encoding, found, n_rows = Encoding(schema), dict[tuple[str, Problem], Violation](), 0
    places = [(i, each.name, each.values.index(each.other)) for i, each in enumerate(schema.features) if each.other]
    others = {name: 0 for _, name, _ in places}
    wanted = list(schema.sources)
    files = find_matching_files(path, schema, as_bytes=True, skip_rows=False)
    for file in files:
        first_row = 0
        for table in file.read_batches(wanted, _BATCH_ROWS):
            codes, _, problems = encoding.read_rows(table, parse=file.is_text)
            for feature, name, other in places:
                others[name] += int((codes[:, feature] == other).sum())
            for column, kind, rows in problems.iter_problems():
                misfit = found.setdefault((column.name, kind), Violation(column.name, kind))
                misfit.rows += len(rows)
                for row in rows[: _MAX_EXAMPLES - len(misfit.examples)].tolist() if may_show_values() else ():
                    where = f"{file.display_name}, " if len(files) > 1 else ""
                    cell = value_at(encoding.column_values(table, column.name), row)
                    text = cell.decode("utf-8", "backslashreplace") if isinstance(cell, bytes) else cell
                    misfit.examples.append(f"{where}row {first_row + row + 1}: {short_repr(text)}")
            first_row += table.n_rows
        n_rows += first_row
    if not n_rows:
        raise OutOfSchemaError(f"{files[0].display_name} holds no rows. Hint: check the path.")
    return CheckResult(n_rows, list(found.values()), others)


_MAX_BYTES: Final = 1 << 50

_EncodedPiece: TypeAlias = (
    "tuple[Batch, npt.NDArray[np.bool_], ColumnValues | None]"  # and which rows fit, and their ids
)


@dataclass(frozen=True, repr=False, eq=False)
class Spool:
    """Rows that may be written to a temporary file: what ``spool`` returns."""

    rows: Any
    at_most: int
    folder: str | PathLike[str] | None

    def iter_pieces(self) -> Iterator[Any]:
        """Start to read the rows."""
        if is_relation(self.rows):
            relation = open_relation(self.rows)
            return relation.to_batches(list(relation.names), _BATCH_ROWS)
        stream = None if is_frame(self.rows) else as_batch_stream(self.rows)
        if stream is None:
            raise UseError(
                f"{type(self.rows).__name__} is no stream, and can be read again as it is. Hint: pass it without spool."
            )
        return stream


def spool(rows: Any, *, at_most: int = 1 << 34, folder: str | PathLike[str] | None = None) -> Spool:
    """Allow rows that can be read once to be kept in a temporary file while a forest is fitted.

    Most forests read the rows several times. What streams by (an iterator of tables, an Arrow stream), or may come in
    another order when it is asked for again (a query), can be given to them this way.

    The file holds rows as the schema encodes them, two bytes a cell, and no id. Its owner alone can read it. It has no
    name from the beginning where the system allows that, else its name is removed at once, and it is gone when the fit
    ends or the process dies. What is deleted may still lie on a disk: choose a folder in memory or on an encrypted disk
    if that matters.

    Parameters
    ----------
    rows : iterator, Arrow stream, relation or query
        The rows.
    at_most : int, default 16 GiB
        The most bytes of the file. Rows that need more are refused, with ``invalid="drop"`` too: that tells something
        about how many there are, so choose it by the disk, and not close to what is needed.
    folder : path, optional
        Where the file lies; by default where the system keeps temporary files.

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
        raise ParameterError("at_most", at_most, "is not a number of bytes", "1 << 34 is 16 GiB")
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
    """Encode all rows into the temporary file, and make a source of it."""
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
        raise FileError(f"the temporary file cannot be written ({type(error).__name__}). Hint: folder=...") from None
    stored = pa.ipc.open_file(pa.py_buffer(held))

    def read() -> Iterator[Callable[[], Batch]]:
        first_row = 0
        for number in range(stored.num_record_batches):
            batch = stored.get_batch(number)
            chosen = None if kept is None else kept[first_row : first_row + batch.num_rows]
            yield partial(_read_stored_batch, batch, len(encoding.columns), chosen, first_row)
            first_row += batch.num_rows
        if not first_row and invalid == "refuse":
            raise OutOfSchemaError("the stream held no rows. Hint: has it been read before?")
        if not first_row:
            yield partial(Batch, np.empty((0, len(encoding.columns)), np.uint16), np.empty(0, np.int32), 0, 0)

    return Source(read)


def _encode_pieces(
    pieces: Iterator[Any], encoding: Encoding, cap: RowsOf | None, invalid: Invalid
) -> Iterator[_EncodedPiece]:
    """Encode piece by piece, with the ids that a cap is by."""
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
    """Write all rows, and hand their ids on."""
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
                    "Hint: allow more, or write Parquet files and pass their folder."
                )
            yield ids


def _read_stored_batch(stored: Any, width: int, chosen: npt.NDArray[np.bool_] | None, first_row: int) -> Batch:
    codes = stored.column(0).flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    batch = Batch(codes, stored.column(1).to_numpy(), 0, first_row)
    return select_rows(batch, chosen, stored.column(2).to_numpy(zero_copy_only=False))
