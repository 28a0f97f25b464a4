# SPDX-License-Identifier: Apache-2.0
"""Common view of in-memory tables of any library: named columns and their values.

Independent of any schema. Each value is read independently of other rows: ids and categories in ``canonical``, numbers
in ``numbers``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import narwhals as nw
import numpy as np
import pandas as pd
import pyarrow as pa
from scipy import sparse

from veilwood.arrays import AnyArray
from veilwood.data.canonical import NO_VALUE, ColumnValues
from veilwood.errors import OutOfSchemaError

_FEW_ROWS: Final = 1024  # up to this many rows may be copied at once
_COLUMN_VECTOR: Final = "A column-vector y was passed when a 1d array was expected. Hint: y.ravel()."


@dataclass(frozen=True, repr=False)
class Table:
    """Table in memory. ``names`` is None if columns are identified by position only."""

    names: tuple[str, ...] | None
    n_rows: int
    n_columns: int
    column: Callable[[int], pd.Series[Any]]
    array: AnyArray | None = None  # the table itself, if it is a numeric array
    arrow: pa.Table | None = None  # the table itself, if it is an Arrow table

    def column_by_name(self, name: str) -> ColumnValues | None:
        """Return a column by name, as an Arrow array if the table is an Arrow table, or None if it does not exist."""
        if not self.names or name not in self.names:
            return None
        place = self.names.index(name)
        return self.column(place) if self.arrow is None else self.arrow.column(place)

    @classmethod
    def from_data(cls, X: Any, *, width: int | None = None) -> Table:
        """View a dataframe (pandas, polars, pyarrow, ...), a 2-D array or a list of rows.

        With ``width``, the number of values per row, no rows are rejected: a table may be empty, and list rows of a
        different length have no usable values.
        """
        if isinstance(X, Table):
            return X
        X = _as_list(X)
        if width is not None and isinstance(X, list | tuple):
            return _view_rows(X, width)
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
            table = replace(_view_frame(X, frame), arrow=arrow)
        elif isinstance(nw.from_native(X, pass_through=True), nw.LazyFrame):
            raise OutOfSchemaError(f"{type(X).__name__} is lazy. Hint: pass X.collect().")
        else:
            table = _view_array(X)
        if table.n_columns == 0:  # in the words of scikit-learn, and without the number of rows
            raise OutOfSchemaError("Found array with 0 feature(s) (shape=(, 0)) while a minimum of 1 is required.")
        if table.n_rows == 0 and width is None:
            shape = f"(shape=(0, {table.n_columns}))"
            raise OutOfSchemaError(f"Found array with 0 sample(s) {shape} while a minimum of 1 is required.")
        return table


def is_frame(X: Any) -> bool:
    """Return True if the object is an in-memory dataframe of any library."""
    return isinstance(nw.from_native(X, eager_only=True, pass_through=True), nw.DataFrame)


def is_dataset(X: Any) -> bool:
    """Return True if the object is an Arrow dataset.

    >>> import pyarrow.dataset
    >>> is_dataset("visits.csv"), is_dataset(pyarrow.dataset.dataset([pa.table({"age": [1]})]))
    (False, True)
    """
    return _is_arrow_class("Dataset", X)


def is_scanner(X: Any) -> bool:
    """Return True if the object is an Arrow scanner."""
    return _is_arrow_class("Scanner", X)


def _is_arrow_class(kind: str, X: Any) -> bool:
    """Check for a class of ``pyarrow.dataset`` without importing it: if it is not imported, no instance exists."""
    loaded = sys.modules.get("pyarrow.dataset")
    return loaded is not None and isinstance(X, getattr(loaded, kind))


def _view_frame(native: Any, frame: nw.DataFrame[Any]) -> Table:
    names: list[Any] = list(native.columns) if isinstance(native, pd.DataFrame) else frame.columns
    n_text = sum(isinstance(name, str) for name in names)
    if 0 < n_text < len(names):
        raise OutOfSchemaError(
            "some column names are strings and some are not. Hint: set X.columns = X.columns.astype(str)."
        )
    if isinstance(native, pd.DataFrame):
        if n_text:  # names are unique, and lookup by name is fastest
            few = len(native) <= _FEW_ROWS and all(dtype == np.float64 for dtype in native.dtypes)
            array = native.to_numpy() if few else None  # selecting columns one by one would take longer than predicting
            return Table(tuple(names), *native.shape, lambda place: native[names[place]], array)
        return Table(None, *native.shape, lambda place: native.iloc[:, place])
    return Table(tuple(names), *frame.shape, lambda place: _to_pandas(frame[:, place]))


def to_pandas(values: pa.ChunkedArray) -> pd.Series[Any]:
    """Convert an Arrow column."""
    return _to_pandas(nw.from_native(values, series_only=True))


def as_series(values: Any) -> pd.Series[Any] | None:
    """Return a column of any dataframe library as a series of unchanged values, or None for other objects."""
    if isinstance(values, pd.api.extensions.ExtensionArray):
        return pd.Series(values)
    column = nw.from_native(values, allow_series=True, pass_through=True)
    return _to_pandas(column) if isinstance(column, nw.Series) else None


def _to_pandas(column: nw.Series[Any]) -> pd.Series[Any]:
    """Convert a column to pandas. Integers stay integers if the column has nulls; the default would be floats."""
    if column.dtype in (nw.Int128, nw.UInt128):  # pandas and Arrow do not have these types
        return pd.Series(column.to_list(), dtype=object)
    if column.dtype.is_integer() and column.null_count():
        nullable: Any = str(column.dtype)  # Int8 to UInt64 are called the same in pandas
        return pd.Series(pd.array(column.to_list(), dtype=nullable))
    if column.dtype == nw.Time:  # Python times have no nanoseconds, and the error would show the value
        return pd.Series(pd.array(column.to_arrow(), dtype=pd.ArrowDtype(pa.time64("ns"))))
    return column.to_pandas()


def _view_array(X: Any) -> Table:
    if isinstance(X, np.ma.MaskedArray):
        raise OutOfSchemaError(
            "X is a masked array. Hint: pass X.filled(np.nan), and declare nullable columns in the schema."
        )
    # In a list, every value keeps its type: NumPy would turn True into 1 if another row contains a number.
    array = np.array(X, dtype=object) if isinstance(X, list | tuple) else np.asarray(X)
    if array.ndim == 1 and array.size and isinstance(array[0], list | tuple | np.ndarray):
        raise OutOfSchemaError("the rows are not all of the same length. Hint: pass a rectangular table.")
    if array.dtype.kind == "c":
        raise OutOfSchemaError("Complex data not supported: tables contain real numbers and categories.")
    if array.ndim != 2:
        raise OutOfSchemaError(
            f"Expected 2D array, got {array.ndim}D array instead. Reshape your data: "
            "X.reshape(-1, 1) if it has one column, X.reshape(1, -1) if it is one row."
        )
    numeric = array if array.dtype.kind in "biuf" else None
    n_rows, n_columns = array.shape
    return Table(None, n_rows, n_columns, lambda place: _array_to_series(array[:, place]), numeric)


def _as_list(values: Any) -> Any:
    """Return a list for a sequence that numpy would convert to one type; other objects unchanged."""
    if isinstance(values, list | tuple | str | bytes | bytearray | memoryview | pd.api.extensions.ExtensionArray):
        return values
    return list(values) if isinstance(values, Sequence) else values


def _view_rows(rows: Sequence[Any], width: int) -> Table:
    """View a list of rows, each read independently."""
    array = np.full((len(rows), width), NO_VALUE, dtype=object)
    for place, row in enumerate(rows):
        is_row = isinstance(row, list | tuple) or (isinstance(row, np.ndarray) and row.ndim == 1)
        if is_row and len(row) == width:
            for column, cell in enumerate(row):
                array[place, column] = cell
    return Table(None, len(rows), width, lambda place: _array_to_series(array[:, place]))


def _array_to_series(values: AnyArray) -> pd.Series[Any]:
    """Return a column of an array as unchanged values: the string type of pandas cannot hold every string."""
    return pd.Series(values, dtype=object if values.dtype.kind in "OU" else values.dtype)


def target_values(y: Any, *, every_entry_is_label: bool = False) -> ColumnValues:
    """Return the target as a column in which no row influences how other rows are read.

    With ``every_entry_is_label``, every entry of a list is a label. Otherwise a list of lists is a table.
    """
    y = _as_list(pd.Series(y) if isinstance(y, pd.Index) else y)
    if isinstance(y, pd.Series | pa.ChunkedArray):
        return y
    if isinstance(y, pa.Array):
        return pa.chunked_array([y])
    if isinstance(y, np.ma.MaskedArray):
        raise OutOfSchemaError("y is a masked array. Hint: drop the masked rows and pass y.data.")
    if (column := as_series(y)) is not None:
        return column
    if isinstance(y, list | tuple):  # NumPy would convert all values to one type
        labels = every_entry_is_label or not y or not all(isinstance(cell, list | tuple | np.ndarray) for cell in y)
        return pd.Series(list(y) if labels else _single_values(y), dtype=object)
    if is_frame(y) and (table := Table.from_data(y)).n_columns == 1:
        _warn_column_vector()
        return table.column(0) if table.arrow is None else table.arrow.column(0)
    from sklearn.utils.validation import column_or_1d  # scikit-learn takes long to import

    try:
        values = column_or_1d(y, warn=True)
        return pd.Series(values, dtype=object if values.dtype.kind in "OU" else values.dtype)
    except (TypeError, ValueError):
        raise OutOfSchemaError("y should be a 1d array: one value for each row.") from None


def _single_values(rows: Sequence[Any]) -> list[Any]:
    """Return the single value of each row."""
    if any((row.shape[:1] if isinstance(row, np.ndarray) else (len(row),)) != (1,) for row in rows):
        raise OutOfSchemaError("y should be a 1d array: one value for each row.")
    _warn_column_vector()
    return [row[0] for row in rows]


def _warn_column_vector() -> None:
    """Warn, as scikit-learn does, that a table with one column is used as the target."""
    from sklearn.exceptions import DataConversionWarning  # scikit-learn takes long to import

    warnings.warn(_COLUMN_VECTOR, DataConversionWarning, stacklevel=4)
