# SPDX-License-Identifier: Apache-2.0
"""One view of whatever table a user holds: named columns, their cells, and the texts of categories.

Nothing here knows a schema; every value is read by itself, never in the light of other rows. What text an id or a
category has is decided in ``canonical``, what number a cell has in ``numbers``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import narwhals as nw
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from scipy import sparse

from veilwood.data.canonical import Nothing, Read, text_of, texts_of
from veilwood.errors import OutOfSchemaError

__all__ = [
    "NO_CELL",
    "Table",
    "category_codes",
    "cells_of",
    "is_dataset",
    "is_frame",
    "is_scanner",
    "series_of",
    "to_pandas",
]

Floats = npt.NDArray[np.float64]
Cells: TypeAlias = "pd.Series[Any] | pa.ChunkedArray"

NO_CELL: Final = object()  # stands where there is no cell: neither text, nor number, nor missing

_FEW_ROWS: Final = 1024  # so many may be copied at once


@dataclass(frozen=True, repr=False)
class Table:
    """A table held in memory; ``names`` is None where columns are known by position only."""

    names: tuple[str, ...] | None
    n_rows: int
    n_columns: int
    column: Callable[[int], pd.Series[Any]]
    array: npt.NDArray[Any] | None = None  # the table itself, where it is an array of numbers
    arrow: pa.Table | None = None  # the table itself, where it is Arrow's

    def named(self, name: str) -> Cells | None:
        """Return the column of that name, in Arrow's form where the table is Arrow's, or None where there is none."""
        if not self.names or name not in self.names:
            return None
        place = self.names.index(name)
        return self.column(place) if self.arrow is None else self.arrow.column(place)

    @classmethod
    def of(cls, X: Any, *, width: int | None = None) -> Table:
        """View a dataframe (pandas, polars, pyarrow, ...), a 2-D array or a list of rows.

        With ``width``, the number of cells of a row, nothing about rows is refused: there may be none, and in a list
        those of another length are rows without usable cells.
        """
        if isinstance(X, Table):
            return X
        if width is not None and isinstance(X, list | tuple):
            return _of_rows(X, width)
        if isinstance(X, pa.RecordBatch):
            X = pa.Table.from_batches([X])
        arrow = X if isinstance(X, pa.Table) else None
        if sparse.issparse(X):
            raise OutOfSchemaError("sparse tables are not supported. Hint: pass X.toarray().")
        try:
            frame = nw.from_native(X, eager_only=True, pass_through=True)
        except nw.exceptions.DuplicateError as error:
            raise OutOfSchemaError(f"two columns share a name. {' '.join(str(error).split())}") from None
        if isinstance(frame, nw.DataFrame):
            table = replace(_of_frame(X, frame), arrow=arrow)
        elif isinstance(nw.from_native(X, pass_through=True), nw.LazyFrame):
            raise OutOfSchemaError(f"{type(X).__name__} is lazy. Hint: pass X.collect().")
        else:
            table = _of_array(X)
        if table.n_columns == 0:  # in the words of scikit-learn, and without the number of rows
            raise OutOfSchemaError("Found array with 0 feature(s) (shape=(, 0)) while a minimum of 1 is required.")
        if table.n_rows == 0 and width is None:
            shape = f"(shape=(0, {table.n_columns}))"
            raise OutOfSchemaError(f"Found array with 0 sample(s) {shape} while a minimum of 1 is required.")
        return table


def is_frame(X: Any) -> bool:
    """Whether this is a dataframe in memory, of whatever library."""
    return isinstance(nw.from_native(X, eager_only=True, pass_through=True), nw.DataFrame)


def is_dataset(X: Any) -> bool:
    """Whether rows are given as a dataset of Arrow.

    >>> import pyarrow.dataset
    >>> is_dataset("visits.csv"), is_dataset(pyarrow.dataset.dataset([pa.table({"age": [1]})]))
    (False, True)
    """
    return _is_arrows("Dataset", X)


def is_scanner(X: Any) -> bool:
    """Whether rows are given as a scanner of Arrow."""
    return _is_arrows("Scanner", X)


def _is_arrows(kind: str, X: Any) -> bool:
    """Compare with a class of ``pyarrow.dataset``; where nobody loaded that, nothing can be of it."""
    loaded = sys.modules.get("pyarrow.dataset")
    return loaded is not None and isinstance(X, getattr(loaded, kind))


def _of_frame(native: Any, frame: nw.DataFrame[Any]) -> Table:
    names: list[Any] = list(native.columns) if isinstance(native, pd.DataFrame) else frame.columns
    n_text = sum(isinstance(name, str) for name in names)
    if 0 < n_text < len(names):
        raise OutOfSchemaError("some column names are texts and some are not. Hint: X.columns = X.columns.astype(str)")
    if isinstance(native, pd.DataFrame):
        if n_text:  # names are of one column each, and by name columns are found fastest
            few = len(native) <= _FEW_ROWS and all(dtype == np.float64 for dtype in native.dtypes)
            array = native.to_numpy() if few else None  # taking columns one by one would cost more than predicting
            return Table(tuple(names), *native.shape, lambda place: native[names[place]], array)
        return Table(None, *native.shape, lambda place: native.iloc[:, place])
    return Table(tuple(names), *frame.shape, lambda place: _to_pandas(frame[:, place]))


def to_pandas(values: pa.ChunkedArray) -> pd.Series[Any]:
    """Convert an Arrow column."""
    return _to_pandas(nw.from_native(values, series_only=True))


def series_of(values: Any) -> pd.Series[Any] | None:
    """View one column of pandas, polars and others, each cell as it is; None where it is none."""
    if isinstance(values, pd.api.extensions.ExtensionArray):
        return pd.Series(values)
    column = nw.from_native(values, allow_series=True, pass_through=True)
    return _to_pandas(column) if isinstance(column, nw.Series) else None


def _to_pandas(column: nw.Series[Any]) -> pd.Series[Any]:
    """Convert a column; whole numbers stay whole beside a null, which would make all of them floats by default."""
    if column.dtype in (nw.Int128, nw.UInt128):  # pandas and Arrow have no such type
        return pd.Series(column.to_list(), dtype=object)
    if column.dtype.is_integer() and column.null_count():
        nullable: Any = str(column.dtype)  # Int8 to UInt64 are called the same in pandas
        return pd.Series(pd.array(column.to_list(), dtype=nullable))
    return column.to_pandas()


def _of_array(X: Any) -> Table:
    if isinstance(X, np.ma.MaskedArray):
        raise OutOfSchemaError("X is a masked array. Hint: X.filled(np.nan), and nullable columns in the schema.")
    # In a list every value keeps its own type: numpy would turn True into 1 where another row holds a number.
    array = np.array(X, dtype=object) if isinstance(X, list | tuple) else np.asarray(X)
    if array.ndim == 1 and array.size and isinstance(array[0], list | tuple | np.ndarray):
        raise OutOfSchemaError("the rows are not all of the same length. Hint: pass a rectangular table.")
    if array.dtype.kind == "c":
        raise OutOfSchemaError("Complex data not supported: tables hold real numbers and categories.")
    if array.ndim != 2:
        raise OutOfSchemaError(
            f"Expected 2D array, got {array.ndim}D array instead. Reshape your data: "
            "X.reshape(-1, 1) if it has one column, X.reshape(1, -1) if it is one row."
        )
    numeric = array if array.dtype.kind in "biuf" else None
    n_rows, n_columns = array.shape
    return Table(None, n_rows, n_columns, lambda place: _series(array[:, place]), numeric)


def _of_rows(rows: Sequence[Any], width: int) -> Table:
    """View a list of rows, each by itself."""
    array = np.full((len(rows), width), NO_CELL, dtype=object)
    for place, row in enumerate(rows):
        is_row = isinstance(row, list | tuple) or (isinstance(row, np.ndarray) and row.ndim == 1)
        if is_row and len(row) == width:
            for column, cell in enumerate(row):
                array[place, column] = cell
    return Table(None, len(rows), width, lambda place: _series(array[:, place]))


def _series(values: npt.NDArray[Any]) -> pd.Series[Any]:
    """Take an array's column as it is: pandas would make texts its own type, which cannot hold every text."""
    return pd.Series(values, dtype=object if values.dtype.kind in "OU" else values.dtype)


def cells_of(values: Cells) -> Iterable[Any]:
    """Return the cells of a column one by one; one that its library cannot hand over is an object of no use."""
    try:
        if isinstance(values, pa.ChunkedArray):
            return [cell for chunk in values.chunks for cell in _arrow_cells(chunk)]
        return values.to_numpy(dtype=object)
    except Exception:
        return [_cell(values, row) for row in range(len(values))]


def _cell(values: Cells, row: int) -> Any:
    try:
        return values[row].as_py() if isinstance(values, pa.ChunkedArray) else values.iloc[row]
    except Exception:
        return NO_CELL


def category_codes(values: Cells, read: Read = text_of) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Number the categories of a column: a code for each row, and the text of each code.

    The code is -1 where a value is missing and -2 where it is unusable. Several codes may have the same text.

    Examples
    --------
    >>> category_codes(pd.Series([7, "7.0", None, [7]], dtype=object))
    (array([ 0,  0, -1, -2]), ['7'])
    """
    try:
        return _codes_at_once(values, read)
    except Exception:  # a cell that its column cannot convert or compare: then each by itself, with the same result
        return _codes_of_each(cells_of(values), read)


def _codes_at_once(values: Cells, read: Read) -> tuple[npt.NDArray[np.intp], list[str]]:
    if not isinstance(values, pa.ChunkedArray) and isinstance(values.dtype, pd.ArrowDtype):
        values = pa.chunked_array(pa.array(values.array))
    if isinstance(values, pa.ChunkedArray):
        return _arrow_codes(values, read)
    # True == 1 == 1.0 to a hash table, so which text such a value gets would depend on the rows before it.
    mixed = values.dtype == object and pd.api.types.infer_dtype(values, skipna=True) not in ("string", "integer")
    if mixed or values.dtype in (np.float16, np.longdouble):  # of which pandas changes the precision
        return _codes_of_each(values.to_numpy(), read)
    codes, uniques = pd.factorize(values)
    return _checked(codes, texts_of(np.asarray(uniques), read))


def _arrow_codes(values: pa.ChunkedArray, read: Read) -> tuple[npt.NDArray[np.intp], list[str]]:
    try:
        coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        coded = coded.chunk(0) if coded.num_chunks == 1 else coded.combine_chunks()
        codes = coded.indices.cast(pa.int64()).fill_null(-1).to_numpy()  # they may be unsigned
    except (pa.ArrowException, AttributeError):  # a type that cannot be numbered, or one that holds nulls alone
        return _codes_of_each((cell for chunk in values.chunks for cell in _arrow_cells(chunk)), read)
    return _checked(codes.astype(np.intp), texts_of(_arrow_cells(coded.dictionary), read))


def _arrow_cells(values: Any) -> Any:
    """Return Arrow's cells without losing their precision, their nanoseconds or their time zone."""
    types, kind = pa.types, values.type
    if types.is_timestamp(kind) and kind.tz is not None:
        return [None if np.isnat(moment) else f"{moment}+00:00" for moment in values.to_numpy(zero_copy_only=False)]
    if types.is_floating(kind) or types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return values.to_numpy(zero_copy_only=False)
    if types.is_time(kind):
        return values.cast(pa.string()).to_pylist()
    return values.to_pylist()


def _codes_of_each(cells: Iterable[Any], read: Read) -> tuple[npt.NDArray[np.intp], list[str]]:
    numbering: dict[str | Nothing, int] = {}
    codes = np.array([numbering.setdefault(read(cell), len(numbering)) for cell in cells], np.intp)
    return _checked(codes, list(numbering))


def _checked(codes: npt.NDArray[np.intp], texts: list[str | Nothing]) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Give what has no text the code of its reason."""
    kept = [text for text in texts if isinstance(text, str)]
    if len(kept) < len(texts):
        place = iter(range(len(kept)))
        moved = [text.value if isinstance(text, Nothing) else next(place) for text in texts]
        codes = np.array([*moved, Nothing.MISSING.value], np.intp)[codes]
    return codes, kept
