# SPDX-License-Identifier: Apache-2.0
"""CSV without its over-long rows, for a reader that must not fail at any row.

Arrow reads CSV in blocks and gives up at a row that is longer than two of them. Where rows that do not fit are dropped,
one row could so refuse all others. Here rows longer than a public limit are left out of the stream before Arrow sees
it. Where a row ends is decided as Arrow does: at a line feed or a carriage return that is not in a quoted cell. A
quotation mark counts at the beginning of a cell, and inside a quoted cell two of them stand for one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.csv

__all__ = ["GROWTH", "MOST_ROW_BYTES", "CsvRows", "without_long_rows"]

MOST_ROW_BYTES: Final = 4 << 20  # of a row of CSV that can be kept
GROWTH: Final = 3  # of a row of a one-byte encoding, at most, when Arrow turns it into UTF-8
_QUOTE: Final = ord('"')
_LINE_ENDS: Final = (b"\n", b"\r")  # each ends a row; the empty one between the two of "\r\n" is skipped by Arrow


class CsvRows:
    """A CSV file, wherever it is opened; stands where an Arrow dataset could.

    With ``short``, only rows up to ``MOST_ROW_BYTES`` are read.
    """

    def __init__(self, opened: Callable[[], Any], options: dict[str, Any], *, short: bool) -> None:
        self._opened, self._options, self._short = opened, options, short
        with self._reader(None) as reader:
            self.schema = reader.schema

    def to_batches(self, columns: list[str], batch_size: int, **scanning: Any) -> Iterator[pa.RecordBatch]:
        """Read some columns, so many rows at a time."""
        with self._reader(columns) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, batch_size):
                    yield batch.slice(start, batch_size)

    def to_table(self, columns: list[str]) -> pa.Table:
        """Read some columns whole."""
        with self._reader(columns) as reader:
            return reader.read_all()

    def _reader(self, columns: list[str] | None) -> Any:
        options = dict(self._options)
        convert = options.pop("convert_options")
        if columns is not None:
            convert = pa.csv.ConvertOptions(
                column_types=convert.column_types, null_values=convert.null_values, strings_can_be_null=True,
                include_columns=columns,
            )  # fmt: skip
        file = self._opened()
        if self._short:
            file = pa.PythonFile(_Stream(without_long_rows(file, options["parse_options"].delimiter)), mode="r")
        return pa.csv.open_csv(file, convert_options=convert, **options)


class _Stream(io.RawIOBase):
    """A readable file of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        size = len(self._rest) if size is None or size < 0 else size
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


def without_long_rows(
    file: BinaryIO, separator: str = ",", most: int = MOST_ROW_BYTES, chunk: int = 1 << 20
) -> Iterator[bytes]:
    """Give the contents of a CSV file without rows of more than so many bytes, line end included.

    Examples
    --------
    >>> b"".join(without_long_rows(io.BytesIO(b'a,b\\n"1\\n2",3\\nlong,text\\n5,6'), most=9))
    b'a,b\\n"1\\n2",3\\n5,6'
    """
    edge = separator.encode() + b"".join(_LINE_ENDS)
    held, dropping = b"", False  # the row that has begun, as far as it is kept
    inside, before, closed = False, ord("\n"), False  # where in a row the scan has come to
    while piece := file.read(min(chunk, most)):  # so that a row inside a piece is short
        first, last, inside, before, closed = _row_ends(piece, edge, inside, before, closed)
        if last < 0:
            held, dropping = (b"", True) if dropping or len(held) + len(piece) > most else (held + piece, False)
            continue
        if not dropping and len(held) + first + 1 <= most:
            yield held
            yield piece[: last + 1]
        else:
            yield piece[first + 1 : last + 1]
        held = piece[last + 1 :]
        dropping = len(held) > most
        held = b"" if dropping else held
    if not dropping:
        yield held


def _row_ends(piece: bytes, edge: bytes, inside: bool, before: int, closed: bool) -> tuple[int, int, bool, int, bool]:
    """Return the places of the first and last line break that end a row (-1: none), and the state at the end.

    The state is whether a quoted cell is open, the last byte, and whether that byte has closed a cell.
    """
    first = last = -1
    place = 0
    while place < len(piece):
        quote = piece.find(b'"', place)
        if inside:
            if quote < 0:
                return first, last, True, piece[-1], False
            inside, closed, before, place = False, True, _QUOTE, quote + 1
            continue
        end = len(piece) if quote < 0 else quote
        if end > place:
            last = max(last, *(piece.rfind(ending, place, end) for ending in _LINE_ENDS))
            if first < 0:
                first = min((at for ending in _LINE_ENDS if (at := piece.find(ending, place, end)) >= 0), default=-1)
            before, closed = piece[end - 1], False
        if quote < 0:
            break
        inside = closed or before in edge  # a second one right after the first goes on with the cell
        before, closed, place = _QUOTE, False, quote + 1
    return first, last, inside, before, closed
