# SPDX-License-Identifier: Apache-2.0
"""Data files: opening, format detection and reading in batches, with errors that show no row.

Each file is a partition, read in batches of bounded memory and again in each pass. Objects of other libraries are in
``relations``, locations in ``places``.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.csv

from veilwood.data import relations
from veilwood.data.canonical import to_canonical_text
from veilwood.data.dialect import DIALECT, SEPARATORS, Dialect, read_header
from veilwood.data.encoding import check_names
from veilwood.data.frames import Table, is_dataset
from veilwood.data.numbers import read_numbers
from veilwood.data.places import ENDINGS, FileLocation, find_locations, local_file
from veilwood.data.problems import Problem, may_show_values, redacted_error
from veilwood.data.relations import FramePiece, Relation, concat_pieces, rebatch_rows
from veilwood.data.schema import Schema
from veilwood.errors import FileError, OutOfSchemaError, SetupError, VeilwoodError, shorten_text

MAX_ROW_BYTES: Final = 4 << 20  # bytes; longest CSV row that is read, since a block of Arrow must contain a whole row
_UTF8_GROWTH: Final = 3  # largest factor by which a one-byte encoding grows in UTF-8
_QUOTE: Final = ord('"')
_LINE_ENDS: Final = (b"\n", b"\r")  # each ends a row; Arrow skips the empty row inside "\r\n"
_FIRST_ROUNDED: Final = 2.0**53  # from this size on, a spreadsheet may have rounded an integer
_UNREADABLE_ROW: Final = "a row that cannot be read"
_BATCH_ROWS: Final = 65536

OpenFile: TypeAlias = Callable[[], Any]
"""Function that opens a file from its beginning."""


# -- spreadsheets ------------------------------------------------------------------------------------------------------


def excel_dataset(display_name: str, open_file: OpenFile, nulls: Collection[str] = ()) -> Any:
    """Read the first sheet of a workbook; each value becomes its text, independently of other rows."""
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError:
        raise SetupError(
            "spreadsheets need an extra. Hint: run pip install 'veilwood[excel]', or save as CSV."
        ) from None
    try:
        with open_file() as file, CalamineWorkbook.from_filelike(io.BytesIO(file.read())) as book:
            rows = _read_sheet_rows(book.get_sheet_by_index(0))
    except CalamineError:  # its message may contain values
        raise _format_error(display_name) from None
    names = [str(name) for name in rows[0]] if rows else []
    while names and not names[-1]:  # values to the right of the table, in any row, are not part of it
        names.pop()
    if not any(names):
        raise OutOfSchemaError(
            f"cannot read {display_name!r}: the first row of its first sheet is empty. Hint: name the columns there."
        )
    if len(set(names)) < len(names):
        raise OutOfSchemaError(
            f"cannot read {display_name!r}: two columns have the same name, or a column has no name. "
            "Hint: give each column its own name."
        )
    columns = [[_value_text(row[place], nulls) for row in rows[1:]] for place in range(len(names))]
    table = pa.table([pa.array(cells, pa.string()) for cells in columns], names=names)
    import pyarrow.dataset as datasets  # slow to load

    return datasets.dataset(table)


def _read_sheet_rows(sheet: Any) -> list[list[Any]]:
    """Read a sheet row by row. If Python cannot represent a value, all values of its row are unusable."""
    left = [""] * (sheet.start or (0, 0))[1]
    rows: list[list[Any]] = []
    unread = sheet.iter_rows()
    while True:
        try:
            rows.append([*left, *next(unread)])
        except StopIteration:
            return rows
        except (OverflowError, ValueError):
            rows.append([_UNREADABLE_ROW] * (len(left) + sheet.width))


def _value_text(value: Any, nulls: Collection[str]) -> str | None:
    text = to_canonical_text(value)
    if not isinstance(text, str) or text in nulls:
        return None
    # Otherwise the digits of a number that the sheet rounded could pass for an id.
    return repr(float(value)) if isinstance(value, int | float) and abs(value) >= _FIRST_ROUNDED else text


# -- CSV ---------------------------------------------------------------------------------------------------------------


class _CsvDataset:
    """CSV file with the ``to_batches`` method of an Arrow dataset, for remote files and for dropping long rows."""

    def __init__(self, open_file: OpenFile, options: dict[str, Any], *, drop_long: bool) -> None:
        self._open_file, self._options, self._drop_long = open_file, options, drop_long
        with self._open_reader(None) as reader:
            self.schema = reader.schema

    def to_batches(self, columns: list[str], batch_size: int, **scanning: Any) -> Iterator[pa.RecordBatch]:
        """Read the given columns in batches of at most ``batch_size`` rows."""
        with self._open_reader(columns) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, batch_size):
                    yield batch.slice(start, batch_size)

    def _open_reader(self, columns: list[str] | None) -> Any:
        options = dict(self._options)
        convert = options.pop("convert_options")
        if columns is not None:
            convert = pa.csv.ConvertOptions(
                column_types=convert.column_types, null_values=convert.null_values, strings_can_be_null=True,
                include_columns=columns,
            )  # fmt: skip
        file = self._open_file()
        if self._drop_long:
            file = pa.PythonFile(_ByteStream(drop_long_rows(file, options["parse_options"].delimiter)), mode="r")
        return pa.csv.open_csv(file, convert_options=convert, **options)


class _ByteStream(io.RawIOBase):
    """Readable file made from an iterator of bytes."""

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


def drop_long_rows(
    file: BinaryIO, separator: str = ",", max_bytes: int = MAX_ROW_BYTES, chunk: int = 1 << 20
) -> Iterator[bytes]:
    """Yield the contents of a CSV file without rows longer than ``max_bytes``, line end included.

    >>> b"".join(drop_long_rows(io.BytesIO(b'a,b\\n"1\\n2",3\\nlong,text\\n5,6'), max_bytes=9))
    b'a,b\\n"1\\n2",3\\n5,6'
    """
    edge = separator.encode() + b"".join(_LINE_ENDS)
    held, dropping = b"", False  # start of the current row, and whether that row is too long
    inside, before, closed = False, ord("\n"), False  # state of the scan, see _row_ends
    while piece := file.read(
        min(chunk, max_bytes)
    ):  # at most max_bytes, so that a row inside one piece is never too long
        first, last, inside, before, closed = _row_ends(piece, edge, inside, before, closed)
        if last < 0:
            held, dropping = (b"", True) if dropping or len(held) + len(piece) > max_bytes else (held + piece, False)
            continue
        if not dropping and len(held) + first + 1 <= max_bytes:
            yield held
            yield piece[: last + 1]
        else:
            yield piece[first + 1 : last + 1]
        held = piece[last + 1 :]
        dropping = len(held) > max_bytes
        held = b"" if dropping else held
    if not dropping:
        yield held


def _row_ends(piece: bytes, edge: bytes, inside: bool, before: int, closed: bool) -> tuple[int, int, bool, int, bool]:
    """Return the positions of the first and last line breaks that end a row (-1: none), and the final state.

    The state: whether a quoted value is open, the last byte, and whether that byte closed a value.
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
        inside = closed or before in edge  # a doubled quotation mark continues the value
        before, closed, place = _QUOTE, False, quote + 1
    return first, last, inside, before, closed


# -- errors ------------------------------------------------------------------------------------------------------------

_ENCODING_HINT: Final = (
    'Hint: declare its encoding, as "dialect": {"encoding": "latin-1"} in the schema or as --encoding latin-1.'
)


def no_rows_error(display_name: str) -> OutOfSchemaError:
    """Return the error for a file without rows."""
    return OutOfSchemaError(f"{display_name} contains no rows. Hint: check the path.")


def _format_error(display_name: str, detail: str = "") -> OutOfSchemaError:
    return OutOfSchemaError(
        f"cannot read {display_name!r}: it is damaged or not in the format of its name{detail}. Hint: "
        "write the file again, with "
        f"a name that ends in its format ({ENDINGS})."
    )


def diagnose_header(display_name: str, open_file: OpenFile, dialect: Dialect, wanted: Collection[str]) -> str | None:
    """Return a message if the header of a CSV file has a different separator or encoding from the declared one."""
    if any("\ufffd" in name for name in read_header(open_file, display_name, dialect)):
        return f"the names of its columns are not in UTF-8. {_ENCODING_HINT}"
    return _diagnose_separator(display_name, open_file, dialect, wanted)


def _diagnose_separator(
    display_name: str, open_file: OpenFile, dialect: Dialect, wanted: Collection[str] = ()
) -> str | None:
    """Return a message if another separator splits the header into more names, or more of the wanted names."""
    names = read_header(open_file, display_name, dialect)
    for sep in SEPARATORS:
        others = read_header(open_file, display_name, replace(dialect, sep=sep))
        better = len(set(wanted).intersection(others)) > len(set(wanted).intersection(names)) or not wanted
        if better and len(others) > len(names):
            return (
                f"its header is separated by {sep!r} and not by {dialect.sep!r}. Hint: declare it, as "
                f'"dialect": {{"sep": {json.dumps(sep)}}} in the schema or as --sep {json.dumps(sep)}.'
            )
    return None


def unreadable_error(
    display_name: str, open_file: OpenFile | None, error: Exception, dialect: Dialect
) -> OutOfSchemaError:
    """Return a one-line error for an unreadable file. Arrow's own message may contain whole rows."""
    text = str(error)
    detail = f" ({shorten_text(text)})" if may_show_values() else ""
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in text:
        return OutOfSchemaError(f"cannot read {display_name!r}: it is not in UTF-8{detail}. {_ENCODING_HINT}")
    number = re.search(r"In CSV column #(\d+): ", text)
    if number:
        # A damaged header is shorter, and a dataset has no header.
        names = [] if open_file is None else read_header(open_file, display_name, dialect)
        name = dict(enumerate(names)).get(int(number[1]))
        return OutOfSchemaError(
            f"cannot read {display_name!r}: column {name!r} contains a value that is not a number or not text{detail}. "
            "Hint: write decimal points and leave missing values empty, or declare a dialect in the schema.",
            column=name,
            problems=() if name is None else ((name, Problem.NOT_A_NUMBER.label),),
        )
    if re.search(r"Expected \d+ columns, got \d+", text):
        if open_file is not None and (other := _diagnose_separator(display_name, open_file, dialect)):
            return OutOfSchemaError(f"cannot read {display_name!r}: {other}")
        problem = f"a row has more or fewer values than the header{detail}"
        hint = f"separate values by {dialect.sep!r}, and quote values that contain it"
    elif re.search("multiple (?:matches|columns)", text, re.I):
        problem, hint = "two of its columns have the same name", "rename one of them"
    elif "Empty CSV file" in text:
        problem, hint = "the file is empty", "name the columns in its first line"
    elif isinstance(error, OSError) and error.errno:
        problem, hint = os.strerror(error.errno) + detail, "check the path and its permissions"
    else:
        return _format_error(display_name, detail)
    return OutOfSchemaError(f"cannot read {display_name!r}: {problem}. Hint: {hint}.")


# -- contents of files -------------------------------------------------------------------------------------------------


class File(NamedTuple):
    """One partition of a data set: a file, a dataset, or an object of another library."""

    display_name: str
    dataset: Any
    names: tuple[str, ...]
    read_state: Callable[[], Any] = tuple  # size and modification time, or other facts that change with the file
    stamp: Any = ()  # the state when it was opened
    location: FileLocation | None = None
    dialect: Dialect = DIALECT
    numeric: frozenset[str] = frozenset()  # columns with numbers written in the dialect of the file
    keep_text: bool = False  # whether these numbers stay strings, for a reader that parses value by value
    is_text: bool = False  # values are strings, some of which are numbers
    detects_changes: bool = False  # the stamp shows every change, so rows need no checksums

    def check_columns(self, schema: Schema, extra: Collection[str] = (), *, target: bool = True) -> None:
        """Raise OutOfSchemaError if the columns of the file do not match the schema."""
        try:
            check_names(schema, self.names, allowed_extra=extra, target=target)
        except OutOfSchemaError as error:
            place, hint = self.location, None
            if place is not None and place.format == "csv":
                hint = diagnose_header(self.display_name, place.open, self.dialect, schema.sources)
            raise OutOfSchemaError(f"{self.display_name}: {hint or error}", column=error.column) from None

    def read_batches(self, columns: list[str], batch_rows: int = _BATCH_ROWS) -> Iterator[Table]:
        """Read the given columns, at most ``batch_rows`` rows at a time."""
        return map(Table.from_data, self._read_pieces(columns, batch_rows))

    def load(self, columns: list[str]) -> Table:
        """Read the given columns of the whole file."""
        pieces = list(self._read_pieces(columns, _BATCH_ROWS))
        if not pieces:
            raise no_rows_error(self.display_name)
        return Table.from_data(concat_pieces(pieces))

    def _read_pieces(self, columns: list[str], batch_rows: int) -> Iterator[FramePiece]:
        bounded: dict[str, Any] = {"batch_size": batch_rows, "batch_readahead": 2, "fragment_readahead": 1}
        import pyarrow.dataset as datasets  # slow to load

        if isinstance(getattr(self.dataset, "format", None), datasets.ParquetFileFormat):
            # By default memory grows with the file.
            bounded["fragment_scan_options"] = datasets.ParquetFragmentScanOptions(
                pre_buffer=False, use_buffered_stream=True
            )
        try:
            pieces = self.dataset.to_batches(columns=columns, **bounded)
            for piece in pieces if self.detects_changes else rebatch_rows(pieces, batch_rows):
                if len(piece):
                    table = pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece
                    yield self._parse_numbers(table)
            # Rows are identified by position: an earlier pass decided which rows each person contributes.
            if self.read_state() != self.stamp:
                raise FileError(
                    f"{self.display_name} changed while it was read. Hint: read a copy that does not change."
                )
        except VeilwoodError:
            raise
        except (pa.ArrowException, OSError) as error:
            opener = None if self.location is None else self.location.open
            raise unreadable_error(self.display_name, opener, error, self.dialect) from None
        except Exception as error:
            raise redacted_error(self.display_name, error) from None

    def _parse_numbers(self, table: Any) -> Any:
        """Convert numbers written in the dialect. Reject invalid numbers, or keep them with ``keep_text``."""
        for place, name in enumerate(table.column_names if self.numeric else ()):
            if name not in self.numeric:
                continue
            texts = self.dialect.of(name).numbers(table.column(place))
            if not self.keep_text:
                numbers, kinds = read_numbers(texts, parse=True)
                if kinds is not None and kinds.any():
                    raise OutOfSchemaError(
                        f"{self.display_name}: column {name!r} contains a value that is not a number. Hint: "
                        'declare the number format in the schema\'s "dialect".',
                        column=name,
                        problems=((name, Problem.NOT_A_NUMBER.label),),
                    )
                texts = pa.chunked_array([pa.array(numbers, from_pandas=True)])
            table = table.set_column(place, name, texts)
        return table


def find_files(
    X: Any,
    schema: Schema | None,
    text_columns: Collection[str] = (),
    *,
    as_bytes: bool = False,
    skip_rows: bool = True,
    dialect: Dialect | None = None,
) -> list[File]:
    """Open the files, datasets or relations that the user passed.

    The columns ``text_columns`` of a CSV file are read as strings; without a schema, all columns are. With
    ``as_bytes``, CSV values are read as unchanged bytes. Rows with more or fewer values than the header are then
    skipped, or rejected without ``skip_rows``. CSV is read in ``dialect``, by default that of the schema.
    """
    if is_dataset(X):
        return [_open_dataset(X, text_columns)]
    dialect = dialect or (DIALECT if schema is None else schema.dialect)
    files: list[File] = []
    for each in X if isinstance(X, list | tuple) else [X]:
        if not isinstance(each, str | PathLike | FileLocation) and relations.is_relation(each):
            found: list[FileLocation] | Relation = relations.open_relation(each)
        else:
            found = [each] if isinstance(each, FileLocation) else find_locations(each)
        if isinstance(found, Relation):
            files.append(File(found.display_name, found, found.names))
        else:
            files += [_open_file(place, schema, text_columns, dialect, as_bytes, skip_rows) for place in found]
    return files


def find_matching_files(X: Any, schema: Schema, extra: Collection[str] = (), **options: Any) -> list[File]:
    """Open files (``find_files``). Raise OutOfSchemaError if the columns of any file do not match the schema."""
    files = find_files(X, schema, extra, **options)
    for file in files:
        file.check_columns(schema, extra)
    return files


def are_files(X: Any) -> bool:
    """Return True if the rows can be read again in each pass: paths, datasets, relations.

    >>> are_files("visits.csv"), are_files(["a.parquet", "b.parquet"]), are_files([[1, 2]]), are_files([])
    (True, True, False, False)
    """
    if isinstance(X, list | tuple):
        return bool(X) and all(isinstance(each, str | PathLike) for each in X)
    return isinstance(X, str | PathLike) or is_dataset(X) or relations.is_relation(X)


def _open_dataset(dataset: Any, text_columns: Collection[str]) -> File:
    if relations.infers_types_from_rows(dataset):
        raise relations.inferred_types_error("a dataset")
    _reject_cast_ids(dataset, text_columns)
    read_state, names = partial(_dataset_stamp, dataset), tuple(dataset.schema.names)
    stamp = read_state()
    return File("the dataset", dataset, names, read_state, stamp, detects_changes=bool(stamp))


def _reject_cast_ids(dataset: Any, ids: Collection[str]) -> None:
    """Reject a dataset that casts ids of one file to the type of another's: '007' would become 7."""
    wanted = [dataset.schema.field(name) for name in ids if name in dataset.schema.names]
    for files in dataset.get_fragments() if wanted else ():
        held = getattr(files, "physical_schema", dataset.schema)
        for field in wanted:
            if field.name in held.names and held.field(field.name).type != field.type:
                raise OutOfSchemaError(
                    f"the files of the dataset differ in the type of column {field.name!r}, which the privacy unit "
                    "names: after a cast to one type, two people may share an id. Hint: pass the paths of the files.",
                    column=field.name,
                )


def _dataset_stamp(dataset: Any) -> tuple[tuple[Any, ...], ...]:
    """Return the size and modification time of each local file behind a dataset."""
    found = [state for child in getattr(dataset, "children", ()) for state in _dataset_stamp(child)]  # of a union
    for name in getattr(dataset, "files", ()):
        found += local_file(name).read_stamp()
    return tuple(found)


def _open_file(
    place: FileLocation,
    schema: Schema | None,
    texts: Collection[str],
    dialect: Dialect,
    as_bytes: bool,
    skip_rows: bool,
) -> File:
    import pyarrow.dataset as datasets  # slow to load

    if place.format is None:
        raise OutOfSchemaError(
            f"{place.display_name!r} is not a table. Hint: pass a file whose name ends in one of {ENDINGS}."
        )
    if place.is_tsv and dialect.sep == DIALECT.sep:
        dialect = replace(dialect, sep="\t")
    columns = () if schema is None else (*schema.features, schema.target)
    # Columns with a rule for text values stay strings: the encoder reads them in the dialect.
    plain = (column for column in columns if column.kind == "numeric" and column.part is None and not column.texts)
    numeric = frozenset(column.source for column in plain)
    drops_rows = as_bytes and skip_rows
    try:
        stamp = place.read_stamp()
        if place.format == "excel":
            dataset: Any = excel_dataset(place.display_name, place.open, dialect.nulls)
        elif place.format == "csv":
            named = [*texts, *(() if schema is None else schema.sources)]
            if schema is None or as_bytes:
                named += read_header(place.open, place.display_name, dialect)
            options = _csv_options(named, numeric, dialect, as_bytes, drops_rows)
            numeric = frozenset() if dialect.plain_numbers else numeric
            if drops_rows or place.filesystem is not None:
                dataset = _CsvDataset(place.open, options, drop_long=drops_rows)
            else:
                dataset = place.open_dataset(datasets.CsvFileFormat(**options))
        else:
            numeric, form = frozenset(), place.format
            if form == "parquet":  # keep dictionary encoding in memory
                form = datasets.ParquetFileFormat(dictionary_columns=[each.source for each in columns if each.values])
            dataset = place.open_dataset(form)
        return File(
            place.display_name,
            dataset,
            tuple(dataset.schema.names),
            place.read_stamp,
            stamp,
            place,
            dialect,
            numeric,
            keep_text=as_bytes,
            is_text=place.format in ("csv", "excel"),
            detects_changes=bool(stamp) and place.filesystem is None,
        )
    except VeilwoodError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise unreadable_error(place.display_name, place.open, error, dialect) from None
    except Exception as error:  # from a remote file system
        raise redacted_error(place.display_name, error) from None


def _csv_options(
    names: Collection[str], numeric: Collection[str], dialect: Dialect, as_bytes: bool, drops_rows: bool
) -> dict[str, Any]:
    """Return Arrow's CSV options: strings are unchanged ("NA" and "?" are categories), null words are missing."""
    types = dict.fromkeys(names, pa.binary() if as_bytes else pa.string())
    if dialect.plain_numbers and not as_bytes:
        types |= dict.fromkeys(numeric, pa.float64())
    nulls = ["", *dialect.nulls]
    convert = pa.csv.ConvertOptions(column_types=types, null_values=nulls, strings_can_be_null=True)
    handler = {"invalid_row_handler": lambda row: "skip"} if drops_rows else {}
    return {
        "convert_options": convert,
        # Without this option, a block may end at a line break inside a cell, and the rest of the cell is read as rows.
        "parse_options": pa.csv.ParseOptions(delimiter=dialect.sep, newlines_in_values=True, **handler),
        # Arrow fails on a row longer than its blocks, measured after conversion to UTF-8.
        "read_options": pa.csv.ReadOptions(
            block_size=MAX_ROW_BYTES * (1 if dialect.encoding == "utf-8" else _UTF8_GROWTH), encoding=dialect.codec
        ),
    }
