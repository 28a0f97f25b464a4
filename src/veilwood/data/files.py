# SPDX-License-Identifier: Apache-2.0
"""The partitions a user means, each read in batches of bounded memory, again in each pass: mostly files.

Where files are is found in ``places``; what another library hands over comes from ``relations`` and ``lakes``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv

from veilwood.data.arrow_datasets import arrow_datasets, is_dataset
from veilwood.data.dialect import DIALECT, SEPARATORS, Dialect, header_of
from veilwood.data.encoding import check_names
from veilwood.data.excel import excel_dataset
from veilwood.data.frames import Table
from veilwood.data.long_rows import GROWTH, MOST_ROW_BYTES, CsvRows
from veilwood.data.numbers import numbers_of
from veilwood.data.places import ENDINGS, Place, find_places, place_of
from veilwood.data.private_text import failed, may_show_values
from veilwood.data.problems import Problem
from veilwood.data.relations import (
    Relation,
    in_batches,
    is_relation,
    relation_of,
    takes_types_from_rows,
    types_from_rows,
)
from veilwood.data.schema import Schema
from veilwood.errors import FileError, OutOfSchemaError, VeilwoodError
from veilwood.wording import shorten

__all__ = ["File", "are_files", "find_files"]


class File(NamedTuple):
    """One partition of a data set: a file, a dataset, or what another library hands over."""

    where: str
    dataset: Any
    names: tuple[str, ...]
    state: Callable[[], Any] = tuple  # what changes when the file does: size and time of change
    stamp: Any = ()  # the state when it was opened
    place: Place | None = None
    dialect: Dialect = DIALECT
    numeric: frozenset[str] = frozenset()  # columns whose numbers stand in the file as texts of the dialect
    keep_text: bool = False  # they stay texts, for someone who reads each cell by itself
    is_text: bool = False  # cells are texts, of which some are numbers

    @property
    def settled(self) -> bool:
        """Whether its stamp tells every change: then its rows need not be compared between passes."""
        return bool(self.stamp) and (self.place is None or self.place.filesystem is None)

    def check(self, schema: Schema, extra: Collection[str] = (), *, target: bool = True) -> None:
        """Refuse a file with other columns than the schema's."""
        try:
            check_names(schema, self.names, allowed_extra=extra, target=target)
        except OutOfSchemaError as error:
            hint = self._written_otherwise(schema)
            raise OutOfSchemaError(f"{self.where}: {hint or error}", column=error.column) from None

    def _written_otherwise(self, schema: Schema) -> str | None:
        """Tell by the header alone, which is public, that a file has another separator or encoding than was said."""
        if self.place is None or self.place.format != "csv":
            return None
        if any("\ufffd" in name for name in header_of(self.place.open, self.where, self.dialect)):
            return (
                "the names of its columns are not in UTF-8. Hint: say how the file is written, as "
                '"dialect": {"encoding": "latin-1"} in the schema or as --encoding latin-1.'
            )
        return _other_separator(self.place, self.dialect, schema.sources)

    def batches(self, columns: list[str], batch_rows: int) -> Iterator[Table]:
        """Read some columns, a bounded number of rows at a time."""
        bounded: dict[str, Any] = {"batch_size": batch_rows, "batch_readahead": 2, "fragment_readahead": 1}
        if isinstance(getattr(self.dataset, "format", None), arrow_datasets().ParquetFileFormat):
            # By default memory grows with the file.
            bounded["fragment_scan_options"] = arrow_datasets().ParquetFragmentScanOptions(
                pre_buffer=False, use_buffered_stream=True
            )
        try:
            pieces = self.dataset.to_batches(columns=columns, **bounded)
            for piece in pieces if self.settled else in_batches(pieces, batch_rows):
                if len(piece):
                    table = pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece
                    yield Table.of(self._with_numbers(table))
            # Rows are known by their place: which ones a person may contribute was decided in an earlier pass.
            if self.state() != self.stamp:
                raise FileError(f"{self.where} changed while it was read. Hint: work on a copy.")
        except VeilwoodError:
            raise
        except Exception as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> VeilwoodError:
        if isinstance(error, pa.ArrowException | OSError):
            return _unreadable(self.where, self.place, error, self.dialect)
        return failed(self.where, error)

    def _with_numbers(self, table: pa.Table) -> pa.Table:
        """Read the numbers of a dialect, each cell by itself; one that is none is refused, or stays a text."""
        for place, name in enumerate(table.column_names if self.numeric else ()):
            if name not in self.numeric:
                continue
            texts = self.dialect.of(name).numbers(table.column(place))
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

    def load(self, columns: list[str]) -> Any:
        """Read some columns whole, as a table of Arrow, or of pandas where another library hands over cells."""
        try:
            return self._with_numbers(self.dataset.to_table(columns=columns))
        except VeilwoodError:
            raise
        except Exception as error:
            raise self._unreadable(error) from None


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
    if is_dataset(X):
        if takes_types_from_rows(X):
            raise types_from_rows("a dataset")
        return [File("the dataset", X, tuple(X.schema.names), partial(_stamp, X), _stamp(X))]
    dialect = dialect or (DIALECT if schema is None else schema.dialect)
    found: list[File] = []
    for each in X if isinstance(X, list | tuple) else [X]:
        if isinstance(each, str | PathLike) or not is_relation(each):
            places = [each] if isinstance(each, Place) else find_places(each)
        else:
            places = relation_of(each)
        if isinstance(places, Relation):
            found.append(File(places.where, places, places.names))
        else:
            found += [_open_file(place, schema, texts, dialect, _Mode(as_bytes, skip_rows)) for place in places]
    return found


def are_files(X: Any) -> bool:
    """Whether rows are given as something that can be read again in each pass: paths, datasets, relations.

    >>> are_files("visits.csv"), are_files(["a.parquet", "b.parquet"]), are_files([[1, 2]]), are_files([])
    (True, True, False, False)
    """
    if isinstance(X, list | tuple):
        return bool(X) and all(isinstance(each, str | PathLike) for each in X)
    return isinstance(X, str | PathLike) or is_dataset(X) or is_relation(X)


def _stamp(dataset: Any) -> tuple[tuple[Any, ...], ...]:
    """Return size and time of change of the files behind a dataset, where it has any on this computer."""
    found = [state for child in getattr(dataset, "children", ()) for state in _stamp(child)]  # of a union
    for name in getattr(dataset, "files", ()):
        found += place_of(name).stamp()
    return tuple(found)


def _open_file(place: Place, schema: Schema | None, texts: Collection[str], dialect: Dialect, mode: _Mode) -> File:
    form: Any = (kind := place.format)
    if kind is None:
        raise OutOfSchemaError(f"{place.where!r} is not a table. Hint: its name must end in one of {ENDINGS}.")
    if place.is_tsv and dialect.sep == DIALECT.sep:
        dialect = replace(dialect, sep="\t")
    columns = () if schema is None else (*schema.features, schema.target)
    numeric = frozenset(column.source for column in columns if column.kind == "numeric" and column.part is None)
    try:
        stamp = place.stamp()
        if form == "excel":
            dataset: Any = excel_dataset(place, dialect.nulls)
        elif form == "csv":
            named = [*texts, *(() if schema is None else schema.sources)]
            if schema is None or mode.as_bytes:
                named = header_of(place.open, place.where, dialect)
            options = _csv_options(named, numeric, dialect, mode)
            numeric = frozenset() if dialect.plain_numbers else numeric
            if (mode.as_bytes and mode.skip_rows) or place.filesystem is not None:
                dataset = CsvRows(place.open, options, short=mode.as_bytes and mode.skip_rows)
            else:
                dataset = place.dataset(arrow_datasets().CsvFileFormat(**options))
        else:
            numeric = frozenset()
            if form == "parquet":
                coded = [column.source for column in columns if column.values]
                form = arrow_datasets().ParquetFileFormat(dictionary_columns=coded)  # a text stored once stays so
            dataset = place.dataset(form)
        return File(
            place.where,
            dataset,
            tuple(dataset.schema.names),
            place.stamp,
            stamp,
            place,
            dialect,
            numeric,
            keep_text=mode.as_bytes,
            is_text=kind in ("csv", "excel"),
        )
    except VeilwoodError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(place.where, place, error, dialect) from None
    except Exception as error:  # of a file system elsewhere
        raise failed(place.where, error) from None


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


def _skip(row: object) -> str:
    return "skip"


def _other_separator(place: Place, dialect: Dialect, wanted: Collection[str] = ()) -> str | None:
    """Say by the header alone that a file has another separator: it gives more names, those that are wanted."""
    names = header_of(place.open, place.where, dialect)
    for sep in SEPARATORS:
        others = header_of(place.open, place.where, replace(dialect, sep=sep))
        better = len(set(wanted).intersection(others)) > len(set(wanted).intersection(names)) or not wanted
        if better and len(others) > len(names):
            return (
                f"its header is separated by {sep!r} and not by {dialect.sep!r}. Hint: say so, as "
                f'"dialect": {{"sep": {json.dumps(sep)}}} in the schema or as --sep {json.dumps(sep)}.'
            )
    return None


def _unreadable(where: str, place: Place | None, error: Exception, dialect: Dialect) -> OutOfSchemaError:
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
        names = [] if place is None else header_of(place.open, where, dialect)
        name = dict(enumerate(names)).get(int(number[1]))
        return OutOfSchemaError(
            f"cannot read {where!r}: column {name!r} has a cell that is not a number or not text{detail}. "
            "Hint: numbers have a decimal point and missing cells are empty, unless the schema's dialect says else.",
            column=name,
            problems=() if name is None else ((name, Problem.NO_NUMBER.in_short),),
        )
    if re.search(r"Expected \d+ columns, got \d+", text):
        if place is not None and (other := _other_separator(place, dialect)):
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
