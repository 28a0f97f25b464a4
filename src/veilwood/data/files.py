# SPDX-License-Identifier: Apache-2.0
"""Tables on disk: finding the files a user means, and reading them in batches of bounded memory, again in each pass."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset

from veilwood.data.batches import Batch, Source
from veilwood.data.dialect import DIALECT, SEPARATORS, Dialect, header_of
from veilwood.data.encode_rows import encode_rows, kept_of
from veilwood.data.encoding import Encoding, check_names
from veilwood.data.excel import excel_dataset
from veilwood.data.frames import Cells, Table
from veilwood.data.long_rows import GROWTH, MOST_ROW_BYTES, ShortRows
from veilwood.data.numbers import numbers_of
from veilwood.data.private_text import may_show_values
from veilwood.data.problems import Invalid, Problem, Told, refuse
from veilwood.data.row_cap import Keeps, choose_rows, no_id
from veilwood.data.schema import Schema
from veilwood.errors import FileError, OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf
from veilwood.wording import shorten

__all__ = ["File", "find_files", "find_paths", "is_csv", "open_files"]

FORMATS: Final = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".parquet": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
    ".xlsx": "excel",
    ".xls": "excel",
    ".ods": "excel",
}
_ENDINGS: Final = ", ".join(FORMATS)


def open_files(
    X: Any, encoding: Encoding, *, cap: RowsOf | None, invalid: Invalid, batch_rows: int, keeps: Keeps | None = None
) -> Source:
    """Make a source of a file, folder, glob or Arrow dataset; each file is a partition."""
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
    if cap is not None:
        kept = choose_rows((file.column(cap.id, batch_rows) for file in files), cap, invalid, keeps)

    def read() -> Iterator[Callable[[], Batch]]:
        empty = True
        for partition, file in enumerate(files):
            row = 0
            for table in _tables(file, encoding, batch_rows, X, extra):
                chosen = None if kept is None else kept[partition][row : row + table.n_rows]
                if chosen is not None and len(chosen) < table.n_rows:
                    raise FileError(f"{file.where} changed while it was read. Hint: work on a copy.")
                yield partial(_encode, encoding, table, partition, row, chosen, invalid, X, extra)
                row += table.n_rows
                empty = False
        if empty and invalid == "refuse":
            raise OutOfSchemaError(f"{files[0].where} holds no rows. Hint: check the path.")
        if empty:
            yield partial(Batch, np.empty((0, len(encoding.columns)), np.uint16), np.empty(0, np.int32), 0, 0)

    return Source(read, n_partitions=len(files))


def _encode(
    encoding: Encoding,
    table: Table,
    partition: int,
    first_row: int,
    chosen: npt.NDArray[np.bool_] | None,
    invalid: Invalid,
    X: Any,
    extra: Collection[str],
) -> Batch:
    try:
        batch, fits = encode_rows(encoding, table, None, invalid=invalid, partition=partition, first_row=first_row)
    except OutOfSchemaError as error:
        if error.problems:
            _refuse_all(X, encoding, extra, max(table.n_rows, 1))
        raise
    return kept_of(batch, chosen, fits)


def _tables(file: File, encoding: Encoding, batch_rows: int, X: Any, extra: Collection[str]) -> Iterator[Table]:
    """Read features and target of a file."""
    try:
        yield from file.batches(list(encoding.schema.sources), batch_rows)
    except OutOfSchemaError as error:
        if error.problems:
            _refuse_all(X, encoding, extra, batch_rows)
        raise


def _refuse_all(X: Any, encoding: Encoding, extra: Collection[str], batch_rows: int) -> None:
    """Read all rows once more and tell every column and kind of problem, wherever it is; the order is the schema's."""
    wanted, target = list(encoding.schema.sources), encoding.schema.target.name
    told: dict[tuple[str, Problem], Told] = {}
    for file in find_files(X, encoding.schema, as_bytes=True, skip_rows=False):
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


class File(NamedTuple):
    """One partition of a data set on disk."""

    where: str
    dataset: Any
    names: tuple[str, ...]
    stamp: tuple[tuple[int, int], ...]  # size and time of change when it was opened
    dialect: Dialect = DIALECT
    numeric: frozenset[str] = frozenset()  # columns whose numbers stand in the file as texts of the dialect
    keep_text: bool = False  # they stay texts, for someone who reads each cell by itself
    is_text: bool = False  # cells are texts, of which some are numbers

    def check(self, schema: Schema, extra: Collection[str] = (), *, target: bool = True) -> None:
        """Refuse a file with other columns than the schema's."""
        try:
            check_names(schema, self.names, allowed_extra=extra, target=target)
        except OutOfSchemaError as error:
            hint = self._written_otherwise(schema)
            raise OutOfSchemaError(f"{self.where}: {hint or error}", column=error.column) from None

    def _written_otherwise(self, schema: Schema) -> str | None:
        """Tell by the header alone, which is public, that a file has another separator or encoding than was said."""
        if not self.is_text or not is_csv(Path(self.where)):
            return None
        if any("\ufffd" in name for name in header_of(self.where, self.dialect)):
            return (
                "the names of its columns are not in UTF-8. Hint: say how the file is written, as "
                '"dialect": {"encoding": "latin-1"} in the schema or as --encoding latin-1.'
            )
        return _other_separator(self.where, self.dialect, schema.sources)

    def batches(self, columns: list[str], batch_rows: int) -> Iterator[Table]:
        """Read some columns, a bounded number of rows at a time."""
        bounded: dict[str, Any] = {"batch_size": batch_rows, "batch_readahead": 2, "fragment_readahead": 1}
        if isinstance(getattr(self.dataset, "format", None), pa.dataset.ParquetFileFormat):
            # By default memory grows with the file.
            bounded["fragment_scan_options"] = pa.dataset.ParquetFragmentScanOptions(
                pre_buffer=False, use_buffered_stream=True
            )
        try:
            for piece in self.dataset.to_batches(columns=columns, **bounded):
                if piece.num_rows:
                    yield Table.of(self._with_numbers(pa.Table.from_batches([piece])))
            # Rows are known by their place: which ones a person may contribute was decided in an earlier pass.
            if _stamp(self.dataset) != self.stamp:
                raise FileError(f"{self.where} changed while it was read. Hint: work on a copy.")
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.where, error, self.dialect) from None

    def _with_numbers(self, table: pa.Table) -> pa.Table:
        """Read the numbers of a dialect, each cell by itself; one that is none is refused, or stays a text."""
        for place, name in enumerate(table.column_names):
            if name not in self.numeric:
                continue
            texts = self.dialect.numbers(table.column(place))
            if not self.keep_text:
                numbers, kinds = numbers_of(texts, parse=True)
                if kinds is not None and kinds.any():
                    raise OutOfSchemaError(
                        f"{self.where}: column {name!r} has a cell that is not a number. Hint: say how the file writes "
                        'numbers in the schema\'s "dialect".',
                        column=name,
                        problems=((name, Problem.NO_NUMBER.in_short),),
                    )
                texts = pa.chunked_array([pa.array(numbers, from_pandas=True)])
            table = table.set_column(place, name, texts)
        return table

    def column(self, name: str, batch_rows: int) -> Iterator[Cells]:
        """Read one column."""
        for table in self.batches([name], batch_rows):
            yield table.arrow.column(0)  # type: ignore[union-attr]

    def load(self, columns: list[str]) -> Any:
        """Read some columns whole, as an Arrow table."""
        try:
            return self._with_numbers(self.dataset.to_table(columns=columns))
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.where, error, self.dialect) from None


class _Mode(NamedTuple):
    as_bytes: bool
    skip_rows: bool


def find_files(
    X: Any,
    schema: Schema | None,
    texts: Collection[str] = (),
    *,
    as_bytes: bool = False,
    skip_rows: bool = True,
    dialect: Dialect | None = None,
) -> list[File]:
    """Find the files a user means.

    The columns ``texts`` of a CSV file, or all without schema, stay text. With ``as_bytes`` all cells of CSV stay as
    they stand in the file, to be read each by itself, and rows with more or fewer cells than the header are skipped,
    or refused without ``skip_rows``. CSV is read by ``dialect``, or else by that of the schema.
    """
    if isinstance(X, pa.dataset.Dataset):
        if _takes_types_from_rows(X):
            raise OutOfSchemaError(
                "a dataset of CSV or JSON files takes its types from the rows. Hint: pass the path of CSV files, so "
                "the schema decides, or write Parquet."
            )
        return [File("the dataset", X, tuple(X.schema.names), _stamp(X))]
    paths = find_paths(X)
    dialect = dialect or (DIALECT if schema is None else schema.dialect)
    return [_open_file(path, schema, texts, dialect, _Mode(as_bytes, skip_rows)) for path in paths]


def find_paths(X: str | PathLike[str]) -> list[Path]:
    """Find the files behind a path, folder or glob."""
    path = Path(X)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file() and _format(p))
    elif path.exists():
        paths = [path]
    else:
        paths = sorted(map(Path, glob.glob(str(X), recursive=True)))
    if not paths:
        raise OutOfSchemaError(f"there is no table at {str(X)!r}. Hint: give a file, folder or glob ({_ENDINGS}).")
    for path in paths:
        if not path.is_file():
            raise OutOfSchemaError(f"cannot read {str(path)!r}: it is not an ordinary file, and may have no end.")
    return paths


def is_csv(path: Path) -> bool:
    """Whether a file is CSV, by its name."""
    return _format(path) == "csv"


def _stamp(dataset: Any) -> tuple[tuple[int, int], ...]:
    """Return size and time of change of the files behind a dataset, where it has any on this computer."""
    found = [state for child in getattr(dataset, "children", ()) for state in _stamp(child)]  # of a union
    for name in getattr(dataset, "files", ()):
        with suppress(OSError):
            state = Path(name).stat()
            found.append((state.st_size, state.st_mtime_ns))
    return tuple(found)


def _format(path: Path) -> str | None:
    return next((FORMATS[end] for end in FORMATS if path.name.lower().endswith(end)), None)


def _open_file(path: Path, schema: Schema | None, texts: Collection[str], dialect: Dialect, mode: _Mode) -> File:
    form: Any = _format(path)
    if form is None:
        raise OutOfSchemaError(f"{str(path)!r} is not a table. Hint: its name must end in one of {_ENDINGS}.")
    columns = () if schema is None else (*schema.features, schema.target)
    numeric = frozenset(column.source for column in columns if column.kind == "numeric" and column.part is None)
    try:
        if form == "excel":
            dataset: Any = excel_dataset(path, dialect.nulls)
        else:
            if form == "csv":
                header = header_of(path, dialect)
                named = header if schema is None or mode.as_bytes else [*texts, *schema.sources]
                options = _csv_options(named, numeric, dialect, mode)
                form = pa.dataset.CsvFileFormat(**options)
                numeric = frozenset() if dialect.plain_numbers else numeric
            else:
                numeric = frozenset()
            if form == "parquet":
                coded = [column.source for column in columns if column.values]
                form = pa.dataset.ParquetFileFormat(dictionary_columns=coded)  # a text stored once stays so
            if _format(path) == "csv" and mode.as_bytes and mode.skip_rows:
                dataset = ShortRows(str(path), form, options)
            else:
                dataset = pa.dataset.dataset(str(path), format=form)
        return File(
            str(path),
            dataset,
            tuple(dataset.schema.names),
            _stamp(dataset),
            dialect,
            numeric,
            keep_text=mode.as_bytes,
            is_text=_format(path) in ("csv", "excel"),
        )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(path), error, dialect) from None


def _csv_options(names: Collection[str], numeric: Collection[str], dialect: Dialect, mode: _Mode) -> dict[str, Any]:
    """Read texts as texts ("NA" and "?" are categories), numbers as numbers, and what means nothing as missing."""
    types = dict.fromkeys(names, pa.binary() if mode.as_bytes else pa.string())
    if dialect.plain_numbers and not mode.as_bytes:
        types |= dict.fromkeys(numeric, pa.float64())
    nulls = ["", *dialect.nulls]
    convert = pa.csv.ConvertOptions(column_types=types, null_values=nulls, strings_can_be_null=True)
    handler = {"invalid_row_handler": _skip} if mode.as_bytes and mode.skip_rows else {}
    return {
        "convert_options": convert,
        # Without it a block of the file may end at a line break inside a cell, and the rest of the cell become rows.
        "parse_options": pa.csv.ParseOptions(delimiter=dialect.sep, newlines_in_values=True, **handler),
        # Arrow gives up at a row longer than its blocks, measured after it was turned into UTF-8.
        "read_options": pa.csv.ReadOptions(
            block_size=MOST_ROW_BYTES * (1 if dialect.encoding == "utf-8" else GROWTH), encoding=dialect.codec
        ),
    }


def _takes_types_from_rows(dataset: Any) -> bool:
    """Whether one row can change how others are read, here or in a part of a union."""
    texts = (pa.dataset.CsvFileFormat, getattr(pa.dataset, "JsonFileFormat", pa.dataset.CsvFileFormat))
    own = isinstance(getattr(dataset, "format", None), texts)
    return own or any(_takes_types_from_rows(child) for child in getattr(dataset, "children", ()))


def _skip(row: object) -> str:
    return "skip"


def _other_separator(where: str, dialect: Dialect, wanted: Collection[str] = ()) -> str | None:
    """Say by the header alone that a file has another separator: it gives more names, those that are wanted."""
    names = header_of(where, dialect)
    for sep in SEPARATORS:
        others = header_of(where, replace(dialect, sep=sep))
        better = len(set(wanted).intersection(others)) > len(set(wanted).intersection(names)) or not wanted
        if better and len(others) > len(names):
            return (
                f"its header is separated by {sep!r} and not by {dialect.sep!r}. Hint: say so, as "
                f'"dialect": {{"sep": {json.dumps(sep)}}} in the schema or as --sep {json.dumps(sep)}.'
            )
    return None


def _unreadable(where: str, error: Exception, dialect: Dialect) -> OutOfSchemaError:
    """Say in one line why a file cannot be read; Arrow's own words may hold whole records."""
    text = str(error)
    detail = f" ({shorten(text)})" if may_show_values() else ""
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in text:
        return OutOfSchemaError(
            f"cannot read {where!r}: it is not in UTF-8{detail}. Hint: say how the file is written, as "
            '"dialect": {"encoding": "latin-1"} in the schema or as --encoding latin-1.'
        )
    number = re.search(r"In CSV column #(\d+): ", text)
    if number:
        # A damaged header is shorter, and a dataset has none.
        names = header_of(where, dialect) if Path(where).is_file() else []
        name = dict(enumerate(names)).get(int(number[1]))
        return OutOfSchemaError(
            f"cannot read {where!r}: column {name!r} has a cell that is not a number or not text{detail}. "
            "Hint: numbers have a decimal point and missing cells are empty, unless the schema's dialect says else.",
            column=name,
            problems=() if name is None else ((name, Problem.NO_NUMBER.in_short),),
        )
    if re.search(r"Expected \d+ columns, got \d+", text):
        if other := _other_separator(where, dialect):
            return OutOfSchemaError(f"cannot read {where!r}: {other}")
        problem = (
            f"a row has more or fewer cells than the header. Hint: cells are separated by {dialect.sep!r}; one that "
            "holds it stands in quotation marks"
        )
    elif re.search("multiple (?:matches|columns)", text, re.I):
        problem = "two of its columns have the same name. Hint: rename one"
    elif "Empty CSV file" in text:
        problem = "the file is empty. Hint: its first line must name the columns"
    elif isinstance(error, OSError) and error.errno:
        problem = os.strerror(error.errno)
    else:
        problem = "it is damaged or of another format"
    return OutOfSchemaError(f"cannot read {where!r}: {problem}{detail}.")
