# SPDX-License-Identifier: Apache-2.0
"""Batches of encoded rows out of whatever the user has: arrays, dataframes, files, folders, Arrow datasets, iterators.

A pass over them is in ``batches``, counting in ``counting``. A source is private data: no fitted object, file or
message may hold one.
"""

from __future__ import annotations

import csv
import glob
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset

from veilwood.data.batches import Batch, Source
from veilwood.data.canonical import Nothing, id_of
from veilwood.data.columns import Column, closest
from veilwood.data.encoding import Encoding, check_names, class_labels, unusable
from veilwood.data.frames import Cells, Table, category_codes, numbers
from veilwood.data.schema import UNREVIEWED, Schema, Task
from veilwood.errors import OutOfSchemaError, VeilwoodError
from veilwood.privacy import entropy
from veilwood.privacy.neighbours import RowsOf, Unit

__all__ = ["draft", "encode_batch", "open_source", "read_features", "read_table"]

Unread: TypeAlias = Callable[[], Batch]

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
DRAFT: Final = (
    "DRAFT: every bound and category below was read off the data. Replace them by what is publicly known; delete "
    "each column's 'bounds' mark as you do, then this line and 'inferred'. Until then every result is NOT PRIVATE."
)


def open_source(
    X: Any,
    y: Any,
    encoding: Encoding,
    *,
    unit: Unit | None = None,
    batch_rows: int = 65536,
    estimator: str = "the schema",
) -> Source:
    """Make a source of a table and its target.

    Parameters
    ----------
    X : dataframe, array, path, folder, glob, pyarrow dataset, or iterator of tables or of (X, y)
        The rows. What is in memory is encoded at once; files are read again in each pass, in bounded memory; an
        iterator can be read once.
    y : array-like or None
        The target; None where ``X`` has the target column of the schema. Files always have it.
    encoding : Encoding
        How cells become codes.
    unit : Rows or RowsOf, optional
        With ``RowsOf(id, at_most=k)``, k rows of each id are chosen at random and the others dropped; the
        column ``id`` need not be in the schema. The choice is made once and holds for every pass. Ids are
        compared by the rule of ``veilwood.data.canonical``: 7, 7.0, "7" and "7.0" are one id, and "007" is another.
    batch_rows : int
        The most rows in a batch.
    estimator : str
        Who is asking, for the error message.

    Examples
    --------
    >>> from veilwood.data.schema import Schema
    >>> schema = Schema.numeric((0, 10), classes=["a", "b"], n_features=1)
    >>> source = open_source([[1.0], [9.0]], ["a", "b"], Encoding(schema, "bins"))
    >>> next(source.batches())
    Batch(codes=array([[0],
           [4]], dtype=uint16), target=array([0, 1], dtype=int32), partition=0, first_row=0)
    """
    cap = unit if isinstance(unit, RowsOf) else None
    if isinstance(X, str | PathLike | pa.dataset.Dataset):
        if y is not None:
            raise OutOfSchemaError("y was given beside a file. Hint: files hold the target column themselves.")
        return _open_files(X, encoding, cap, batch_rows)
    if isinstance(X, Iterator):
        if y is not None:
            raise OutOfSchemaError(
                "y was given beside an iterator. Hint: let it give tables with the target, or (X, y)."
            )
        return _open_iterator(X, encoding, cap)
    return _open_memory(X, y, encoding, cap, batch_rows, estimator)


def _open_memory(
    X: Any, y: Any, encoding: Encoding, cap: RowsOf | None, batch_rows: int, estimator: str = "the schema"
) -> Source:
    table = Table.of(X)
    if y is None:
        name = encoding.schema.target.name
        y = table.named(name)
        if y is None:
            raise OutOfSchemaError(
                "fit requires y to be passed, but the target y is None. "
                f"Hint: pass y, or a table with the target column {name!r}.",
                column=name,
            )
    codes = encoding.encode(table, allowed_extra=() if cap is None else (cap.id,), estimator=estimator)
    target = encoding.encode_target(y)
    if len(codes) != len(target):
        raise OutOfSchemaError(
            f"Found input variables with inconsistent numbers of samples: [{len(codes)}, {len(target)}]"
        )
    if cap is not None:
        ids = table.named(cap.id)
        if ids is None:
            raise no_id(cap)
        (kept,) = _choose_rows([[ids]], cap)
        codes, target = codes[kept], target[kept]

    def read() -> Iterator[Unread]:
        for start in range(0, len(codes), batch_rows):
            rows = slice(start, start + batch_rows)
            yield partial(Batch, codes[rows], target[rows], 0, start)

    return Source(read)


def _open_iterator(pieces: Iterator[Any], encoding: Encoding, cap: RowsOf | None) -> Source:
    if cap is not None:
        raise VeilwoodError(
            f"at most {cap.at_most} rows of each {cap.id!r} cannot be chosen while rows stream by. "
            "Hint: pass files or a table, which can be read twice."
        )

    def read() -> Iterator[Unread]:
        first_row = 0
        for piece in pieces:
            X, y = piece if isinstance(piece, tuple) and len(piece) == 2 else (piece, None)
            # Whoever takes the piece opens it: columns are checked there, and its own numbering is moved on.
            table = Table.of(X)
            yield partial(_encode_piece, table, y, encoding, first_row)
            first_row += table.n_rows
        if not first_row:
            raise OutOfSchemaError("the iterator held no batches. Hint: has it been read before?")

    return Source(read, once=True)


def _encode_piece(table: Table, y: Any, encoding: Encoding, first_row: int) -> Batch:
    (batch,) = _open_memory(table, y, encoding, None, table.n_rows).batches()
    return batch._replace(first_row=first_row)


def _open_files(X: Any, encoding: Encoding, cap: RowsOf | None, batch_rows: int) -> Source:
    schema, extra = encoding.schema, () if cap is None else (cap.id,)
    files = _files(X, schema, extra)
    for file in files:
        file.check(schema, extra)
        if cap is not None and cap.id not in file.names:
            raise no_id(cap)
    kept: list[npt.NDArray[np.bool_]] | None = None
    if cap is not None:
        kept = _choose_rows((file.column(cap.id, batch_rows) for file in files), cap)
    wanted = [*schema.feature_names, schema.target.name]

    def read() -> Iterator[Unread]:
        empty = True
        for partition, file in enumerate(files):
            row = first_row = 0  # rows read, rows passed on
            for table in file.batches(wanted, batch_rows):
                chosen = None if kept is None else kept[partition][row : row + table.n_rows]
                if chosen is not None and len(chosen) < table.n_rows:
                    raise VeilwoodError(f"{file.where} changed while it was read. Hint: work on a copy.")
                yield partial(encode_batch, encoding, table, partition, first_row, chosen)
                row += table.n_rows
                first_row += table.n_rows if chosen is None else int(chosen.sum())
                empty = False
        if empty:
            raise OutOfSchemaError(f"{files[0].where} holds no rows. Hint: check the path.")

    return Source(read, n_partitions=len(files))


def encode_batch(
    encoding: Encoding,
    table: Table,
    partition: int,
    first_row: int,
    chosen: npt.NDArray[np.bool_] | None = None,
    *,
    allowed_extra: Collection[str] = (),
) -> Batch:
    """Encode features and target of a table, or of its chosen rows."""
    target = table.named(encoding.schema.target.name)
    codes = encoding.encode(table, allowed_extra=allowed_extra)
    batch = Batch(codes, encoding.encode_target(target), partition, first_row)
    return batch if chosen is None else batch._replace(codes=batch.codes[chosen], target=batch.target[chosen])


# -- at most k rows of an id ----------------------------------------------------------------------------


def _choose_rows(partitions: Iterable[Iterable[Cells]], cap: RowsOf) -> list[npt.NDArray[np.bool_]]:
    """Choose at random which rows of each id to keep, given the id columns of all partitions.

    The kept rows of one id depend on its own rows and on fresh random bits, so that taking an id away
    leaves the others' choice as it was: all rows of an id then change at most ``at_most`` kept rows.
    """
    numbering: dict[str, int] = {}  # exact, as two ids that share a number would disturb each other
    columns: list[npt.NDArray[np.int64]] = []
    for partition in partitions:
        pieces = [np.empty(0, np.int64)]
        for values in partition:
            codes, texts = id_codes(values, cap)
            ids = np.array([numbering.setdefault(text, len(numbering)) for text in texts])
            pieces.append(ids[codes])
        columns.append(np.concatenate(pieces))
    everyone = np.concatenate(columns)
    order = np.lexsort((entropy.words(len(everyone)), everyone))
    grouped = everyone[order]
    rank = np.arange(len(grouped)) - np.searchsorted(grouped, grouped, side="left")
    kept = np.empty(len(grouped), dtype=bool)
    kept[order] = rank < cap.at_most
    return np.split(kept, np.cumsum([len(column) for column in columns])[:-1])


def id_codes(values: Cells, cap: RowsOf) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Number the ids of a column; refuse rows of which it cannot be told whose they are."""
    codes, texts = category_codes(values, id_of)
    worst = codes.min(initial=0)
    if worst < 0:
        problem = "a missing value" if worst == Nothing.MISSING.value else "an id that is no text or whole number"
        rounded = "" if worst == Nothing.MISSING.value else " (floats beyond 2^53 are rounded)"
        raise OutOfSchemaError(
            f"column {cap.id!r} has {problem}{rounded}, so whose row it is cannot be told. "
            "Hint: drop such rows, or give each an id of its own.",
            column=cap.id,
        )
    return codes, texts


def no_id(cap: RowsOf) -> OutOfSchemaError:
    """Say that the column of ids is not there."""
    return OutOfSchemaError(
        f"the table has no column {cap.id!r}, which the privacy unit names. Hint: pass a table that has it.",
        column=cap.id,
    )


# -- files ----------------------------------------------------------------------------------------------


class _File(NamedTuple):
    """One partition of a data set on disk."""

    where: str
    dataset: Any
    names: tuple[str, ...]
    stamp: tuple[tuple[int, int], ...]  # size and time of change when it was opened

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


def _files(X: Any, schema: Schema | None, texts: Collection[str] = ()) -> list[_File]:
    """Find the files a user means; the columns ``texts`` of a CSV file, or all without schema, stay text."""
    if isinstance(X, pa.dataset.Dataset):
        if isinstance(getattr(X, "format", None), pa.dataset.CsvFileFormat):
            raise OutOfSchemaError(
                "a dataset of CSV files takes its types from the rows. Hint: pass the path, so the schema decides."
            )
        return [_File("the dataset", X, tuple(X.schema.names), _stamp(X))]
    path = Path(X)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file() and _format(p))
    elif path.exists():
        paths = [path]
    else:
        paths = sorted(map(Path, glob.glob(str(X), recursive=True)))
    if not paths:
        raise OutOfSchemaError(f"there is no table at {str(X)!r}. Hint: give a file, folder or glob ({_ENDINGS}).")
    return [_open_file(path, schema, texts) for path in paths]


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


def _open_file(path: Path, schema: Schema | None, texts: Collection[str]) -> _File:
    form: Any = _format(path)
    if form is None:
        raise OutOfSchemaError(f"{str(path)!r} is not a table. Hint: its name must end in one of {_ENDINGS}.")
    try:
        if form == "csv":
            form = _csv_format(path, schema, texts)
        elif form == "parquet":
            coded = [] if schema is None else [c.name for c in (*schema.features, schema.target) if c.values]
            form = pa.dataset.ParquetFileFormat(dictionary_columns=coded)  # a text stored once stays so
        dataset = pa.dataset.dataset(str(path), format=form)
        return _File(str(path), dataset, tuple(dataset.schema.names), _stamp(dataset))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(path), error) from None


def _csv_format(path: Path, schema: Schema | None, texts: Collection[str]) -> Any:
    """Read texts as texts ("NA" and "?" are categories), numbers as numbers, and empty cells as missing."""
    types = dict.fromkeys(_csv_header(path) if schema is None else texts, pa.string())
    for column in () if schema is None else (*schema.features, schema.target):
        types[column.name] = pa.string() if column.kind == "categorical" else pa.float64()
    convert = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    return pa.dataset.CsvFileFormat(
        convert_options=convert, read_options=pa.csv.ReadOptions(block_size=_CSV_BLOCK_BYTES)
    )


def _csv_header(path: str | Path) -> list[str]:
    with pa.input_stream(str(path)) as stream:
        return next(csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace")), [])


def _unreadable(where: str, error: Exception) -> OutOfSchemaError:
    """Say in one line why a file cannot be read, with a column's name instead of its number."""
    text = str(error).rsplit("Invalid: ", 1)[-1].rsplit("input source ", 1)[-1].splitlines()[0]
    number = re.match(r"In CSV column #(\d+): ", text)
    name = dict(enumerate(_csv_header(where))).get(int(number[1])) if number else None  # a damaged header is shorter
    if number:
        text = f"column {name!r}: {text[number.end() :]}. Hint: the schema calls it numeric; leave missing cells empty."
    return OutOfSchemaError(f"cannot read {where!r}: {text}", column=name)


# -- whole tables ---------------------------------------------------------------------------------------


def read_table(
    path: str | PathLike[str], schema: Schema | str | PathLike[str] | dict[str, Any]
) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Read a file, folder or glob into memory as features and target.

    Parameters
    ----------
    path : path
        CSV (also gzipped), Parquet or Arrow files.
    schema : Schema, path or dict
        Says which columns to expect. Values are checked when they are used.

    Returns
    -------
    X : pandas.DataFrame
        The features in the order of the schema: texts as plain ``str`` (object dtype), numbers as float64.
    y : pandas.Series
        The target: floats, or classes as the schema declares them, which is how they are predicted.
    """
    schema = Schema.resolve(schema)
    frame = _read_frame(path, schema, target=True)
    return frame[list(schema.feature_names)], frame[schema.target.name]


def read_features(path: str | PathLike[str], schema: Schema | str | PathLike[str] | dict[str, Any]) -> pd.DataFrame:
    """Read the features alone, from a table with or without the target, as ``read_table`` does."""
    return _read_frame(path, Schema.resolve(schema), target=False)


def _read_frame(path: str | PathLike[str], schema: Schema, *, target: bool) -> pd.DataFrame:
    columns = (*schema.features, schema.target) if target else schema.features
    names = [column.name for column in columns]
    tables = []
    for file in _files(path, schema):
        file.check(schema, target=target)
        tables.append(Table.of(file.load(names)))
    series: dict[str, pd.Series[Any]] = {}
    for place, column in enumerate(columns):
        if column.kind == "categorical":
            values = np.concatenate([_texts(table.named(column.name), column) for table in tables])
            labels = class_labels(schema)
            known = dict(zip(column.values, labels, strict=True)) if column is schema.target else {}
            if known.keys() >= set(values.tolist()):  # others are for the estimator to refuse
                values = np.array([known[text] for text in values], dtype=labels.dtype)
        else:
            values = np.concatenate([numbers(table.column(place), column.name) for table in tables])
        series[column.name] = pd.Series(values, dtype=values.dtype)  # else pandas 3 makes texts its own type
    return pd.DataFrame(series)


def _texts(values: Any, column: Column) -> npt.NDArray[np.object_]:
    """Return a column as plain texts, by which categories are compared, None where missing."""
    codes, texts = category_codes(values)
    if codes.min(initial=0) == Nothing.UNUSABLE.value:
        raise unusable(column)
    out: npt.NDArray[np.object_] = np.array([*texts, None], dtype=object)[codes]
    return out


def draft(X: Any, target: str | None = None) -> dict[str, Any]:
    """Draft the JSON form of a schema from a table, for a person to review before it is used.

    Every bound and category in it is taken from the data and marked so: what the draft says is as private
    as the data until someone replaces it by what is publicly known and deletes the marks (``bounds``, ``notes``,
    ``inferred``). A model made with an unreviewed draft is NOT PRIVATE and says so.

    Parameters
    ----------
    X : dataframe or path
        The table, target included.
    target : str, optional
        Name of the target column; the last column by default.

    Examples
    --------
    >>> found = draft(pd.DataFrame({"age": [31, 58], "ill": ["no", "yes"]}))
    >>> found["columns"][0]
    {'name': 'age', 'kind': 'numeric', 'lower': 31.0, 'upper': 58.0, 'bounds': 'from data: review'}
    """
    name, frame = "draft", X
    if isinstance(X, str | PathLike):
        (file, *_) = _files(X, None)
        name, frame = Path(file.where).name.split(".")[0], file.load(list(file.names))
    table = Table.of(frame)
    if table.names is None:
        raise OutOfSchemaError("a draft needs column names. Hint: pass a dataframe or a file.")
    frame = pd.DataFrame({label: _guess(table.column(place)) for place, label in enumerate(table.names)})
    target = table.names[-1] if target is None else target
    if target not in table.names:
        raise OutOfSchemaError(f"the table has no column {target!r}.{closest(target, table.names)}", column=target)
    y = frame.pop(target)
    many = pd.api.types.is_numeric_dtype(y.dtype) and y.nunique() > 20
    task: Task = "regression" if many else "classification"
    found = Schema.infer(frame, y, task, target=target).to_dict() | {"name": name}
    for column in found["columns"]:
        n_values = len(column.get("values", ()))
        column["bounds"] = UNREVIEWED + f" ({n_values} values: an identifier?)" * (n_values > 100)
    return {"notes": DRAFT} | found


def _guess(values: pd.Series[Any]) -> pd.Series[Any]:
    """Turn a column of texts that are all numbers into numbers."""
    if pd.api.types.infer_dtype(values, skipna=True) != "string":
        return values
    try:
        return pd.to_numeric(values)
    except ValueError:
        return values
