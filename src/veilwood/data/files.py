# SPDX-License-Identifier: Apache-2.0
"""Tables on disk: finding the files a user means, and reading them in batches of bounded memory, again in each pass."""

from __future__ import annotations

import csv
import glob
import io
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset

from veilwood.data.batches import Batch, Source
from veilwood.data.encode_rows import encode_rows, kept_of
from veilwood.data.encoding import Encoding, check_names
from veilwood.data.frames import Cells, Table
from veilwood.data.private_text import may_show_values
from veilwood.data.problems import Invalid, Problem
from veilwood.data.row_cap import choose_rows, no_id
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError, VeilwoodError
from veilwood.privacy.neighbours import RowsOf
from veilwood.wording import shorten

__all__ = ["File", "find_files", "open_files"]

FORMATS: Final = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".parquet": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
}
_ENDINGS: Final = ", ".join(FORMATS)
_CSV_BLOCK_BYTES: Final = 4 << 20


def open_files(X: Any, encoding: Encoding, *, cap: RowsOf | None, invalid: Invalid, batch_rows: int) -> Source:
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
        kept = choose_rows((file.column(cap.id, batch_rows) for file in files), cap, invalid)

    def read() -> Iterator[Callable[[], Batch]]:
        empty = True
        for partition, file in enumerate(files):
            row = 0
            for table in _tables(file, encoding, batch_rows):
                chosen = None if kept is None else kept[partition][row : row + table.n_rows]
                if chosen is not None and len(chosen) < table.n_rows:
                    raise VeilwoodError(f"{file.where} changed while it was read. Hint: work on a copy.")
                yield partial(_encode, encoding, table, partition, row, chosen, invalid)
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
) -> Batch:
    batch, fits = encode_rows(encoding, table, None, invalid=invalid, partition=partition, first_row=first_row)
    return kept_of(batch, chosen, fits)


def _tables(file: File, encoding: Encoding, batch_rows: int) -> Iterator[Table]:
    """Read features and target of a file."""
    try:
        yield from file.batches([*encoding.schema.feature_names, encoding.schema.target.name], batch_rows)
    except OutOfSchemaError as error:
        if error.problems:
            _refuse_all(file.where, encoding, file.names, batch_rows)
        raise


def _refuse_all(X: Any, encoding: Encoding, extra: Collection[str], batch_rows: int) -> None:
    """Look closer at CSV in which Arrow found a cell that is no number, and tell everything that is wrong with it."""
    wanted, target = [*encoding.schema.feature_names, encoding.schema.target.name], encoding.schema.target.name
    for file in find_files(X, encoding.schema, as_bytes=True, skip_rows=False):
        file.check(encoding.schema, extra)
        row = 0
        for table in file.batches(wanted, batch_rows):
            _, problems = encoding.read(table, parse=file.is_csv)
            problems.add(target, encoding.read_target(encoding.cells(table, target), parse=file.is_csv)[1])
            problems.refuse(partial(encoding.cells, table), row)
            row += table.n_rows


class File(NamedTuple):
    """One partition of a data set on disk."""

    where: str
    dataset: Any
    names: tuple[str, ...]
    stamp: tuple[tuple[int, int], ...]  # size and time of change when it was opened

    @property
    def is_csv(self) -> bool:
        """Whether it is a file of text."""
        return isinstance(getattr(self.dataset, "format", None), pa.dataset.CsvFileFormat)

    def check(self, schema: Schema, extra: Collection[str] = (), *, target: bool = True) -> None:
        """Refuse a file with other columns than the schema's."""
        try:
            check_names(schema, self.names, allowed_extra=extra, target=target)
        except OutOfSchemaError as error:
            raise OutOfSchemaError(f"{self.where}: {error}", column=error.column) from None

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
                    yield Table.of(piece)
            # Rows are known by their place: which ones a person may contribute was decided in an earlier pass.
            if _stamp(self.dataset) != self.stamp:
                raise VeilwoodError(f"{self.where} changed while it was read. Hint: work on a copy.")
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.where, error) from None

    def column(self, name: str, batch_rows: int) -> Iterator[Cells]:
        """Read one column."""
        for table in self.batches([name], batch_rows):
            yield table.arrow.column(0)  # type: ignore[union-attr]

    def load(self, columns: list[str]) -> Any:
        """Read some columns whole, as an Arrow table."""
        try:
            return self.dataset.to_table(columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.where, error) from None


def find_files(
    X: Any,
    schema: Schema | None,
    texts: Collection[str] = (),
    *,
    as_bytes: bool = False,
    skip_rows: bool = True,
) -> list[File]:
    """Find the files a user means.

    The columns ``texts`` of a CSV file, or all without schema, stay text. With ``as_bytes`` all cells of CSV stay as
    they stand in the file, to be read each by itself, and rows with more or fewer cells than the header are skipped,
    or refused without ``skip_rows``.
    """
    if isinstance(X, pa.dataset.Dataset):
        if _takes_types_from_rows(X):
            raise OutOfSchemaError(
                "a dataset of CSV or JSON files takes its types from the rows. Hint: pass the path of CSV files, so "
                "the schema decides, or write Parquet."
            )
        return [File("the dataset", X, tuple(X.schema.names), _stamp(X))]
    path = Path(X)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file() and _format(p))
    elif path.exists():
        paths = [path]
    else:
        paths = sorted(map(Path, glob.glob(str(X), recursive=True)))
    if not paths:
        raise OutOfSchemaError(f"there is no table at {str(X)!r}. Hint: give a file, folder or glob ({_ENDINGS}).")
    return [_open_file(path, schema, texts, as_bytes, skip_rows) for path in paths]


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


def _open_file(path: Path, schema: Schema | None, texts: Collection[str], as_bytes: bool, skip_rows: bool) -> File:
    form: Any = _format(path)
    if form is None:
        raise OutOfSchemaError(f"{str(path)!r} is not a table. Hint: its name must end in one of {_ENDINGS}.")
    try:
        if form == "csv":
            form = _csv_format(path, schema, texts, as_bytes, skip_rows)
        elif form == "parquet":
            coded = [] if schema is None else [c.name for c in (*schema.features, schema.target) if c.values]
            form = pa.dataset.ParquetFileFormat(dictionary_columns=coded)  # a text stored once stays so
        dataset = pa.dataset.dataset(str(path), format=form)
        return File(str(path), dataset, tuple(dataset.schema.names), _stamp(dataset))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(path), error) from None


def _csv_format(path: Path, schema: Schema | None, texts: Collection[str], as_bytes: bool, skip_rows: bool) -> Any:
    """Read texts as texts ("NA" and "?" are categories), numbers as numbers, and empty cells as missing."""
    if as_bytes or schema is None:
        types = dict.fromkeys(header_of(path), pa.binary() if as_bytes else pa.string())
    else:
        types = dict.fromkeys(texts, pa.string())
        for column in (*schema.features, schema.target):
            types[column.name] = pa.string() if column.kind == "categorical" else pa.float64()
    convert = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    handler = {"invalid_row_handler": _skip} if as_bytes and skip_rows else {}
    return pa.dataset.CsvFileFormat(
        convert_options=convert,
        # Without it a block of the file may end at a line break inside a cell, and the rest of the cell become rows.
        parse_options=pa.csv.ParseOptions(newlines_in_values=True, **handler),
        read_options=pa.csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
    )


def _takes_types_from_rows(dataset: Any) -> bool:
    """Whether one row can change how others are read, here or in a part of a union."""
    texts = (pa.dataset.CsvFileFormat, getattr(pa.dataset, "JsonFileFormat", pa.dataset.CsvFileFormat))
    own = isinstance(getattr(dataset, "format", None), texts)
    return own or any(_takes_types_from_rows(child) for child in getattr(dataset, "children", ()))


def _skip(row: object) -> str:
    return "skip"


def header_of(path: str | Path) -> list[str]:
    """Return the names in the first line of a CSV file."""
    with pa.input_stream(str(path)) as stream:
        return next(csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace")), [])


def _unreadable(where: str, error: Exception) -> OutOfSchemaError:
    """Say in one line why a file cannot be read; Arrow's own words may hold whole records."""
    text = str(error)
    detail = f" ({shorten(text)})" if may_show_values() else ""
    number = re.search(r"In CSV column #(\d+): ", text)
    if number:
        # A damaged header is shorter.
        name = dict(enumerate(header_of(where))).get(int(number[1]))
        return OutOfSchemaError(
            f"cannot read {where!r}: column {name!r} has a cell that is no number or no text{detail}. "
            "Hint: numbers are written with a decimal point; leave missing cells empty.",
            column=name,
            problems=() if name is None else ((name, Problem.NO_NUMBER.in_short),),
        )
    if re.search(r"Expected \d+ columns, got \d+", text):
        problem = "a row has more or fewer cells than the header. Hint: numbers are written with a decimal point"
    elif "Empty CSV file" in text:
        problem = "the file is empty. Hint: its first line must name the columns"
    elif isinstance(error, OSError) and error.errno:
        problem = os.strerror(error.errno)
    else:
        problem = "it is damaged or of another format"
    return OutOfSchemaError(f"cannot read {where!r}: {problem}{detail}.")
