# SPDX-License-Identifier: Apache-2.0
"""From rows to small integers: every cell becomes a uint16 code, by the public schema alone.

Each row is encoded by itself, as the guarantees need; where rows come from is in ``sources``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal, overload

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from sklearn.utils.validation import column_or_1d

from veilwood.data.canonical import Nothing
from veilwood.data.columns import TRANSFORMS, Column, closest
from veilwood.data.frames import Cells, Floats, Table, category_codes, numbers, to_pandas
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError

__all__ = ["DEFAULT_BINS", "GRID_CELLS", "TARGET_LEVELS", "EncodedColumn", "Encoding", "class_labels"]

Codes = npt.NDArray[np.uint16]

GRID_CELLS: Final = 65535
"""Cells of equal width into which a numeric range is divided; one uint16 code is left for missing values."""
DEFAULT_BINS: Final = 5
"""Bins of a numeric column whose schema gives neither ``bins`` nor ``cutoffs``, where a method needs few."""
TARGET_LEVELS: Final = 65535
"""A regression target is rounded to the integers 0 (its lower bound) to TARGET_LEVELS (its upper bound)."""

_LABEL_TYPES: Final[dict[str, Any]] = {"text": object, "int": np.int64, "float": np.float64, "bool": np.bool_}

HAVE_NUMBA: Final = importlib.util.find_spec("numba") is not None
_BLOCK_ROWS: Final = 8192  # a block of an array with a few dozen columns stays in the cache


@dataclass(frozen=True)
class EncodedColumn:
    """What the codes of one column mean.

    Attributes
    ----------
    name : str
        The name of the column.
    ordered : bool
        Whether the order of codes means something (numeric columns).
    n_codes : int
        Codes are ``0 .. n_codes - 1``, the code of missing values included.
    missing_code : int or None
        The code of a missing value, always the last; None where missing values are refused.
    """

    name: str
    ordered: bool
    n_codes: int
    missing_code: int | None


class _Coder:
    """Gives the values of one column their codes."""

    def __init__(self, column: Column, numeric: Literal["grid", "bins"]) -> None:
        self.column = column
        # Raw values where the code goes up by one. None: cells of equal width, found by arithmetic.
        self.edges: Floats | None = None
        self.n_cells = len(column.values)
        if column.kind == "numeric":
            self.n_cells = GRID_CELLS if numeric == "grid" else (column.bins or DEFAULT_BINS)
            if numeric == "bins" and column.cutoffs:
                self.edges = np.array(column.cutoffs)
                self.n_cells = len(self.edges) + 1
            elif numeric == "bins" or column.transform is not None:
                self.edges = _equal_edges(column, self.n_cells)

    @property
    def meaning(self) -> EncodedColumn:
        name, nullable = self.column.name, self.column.nullable
        missing_code = self.n_cells if nullable else None
        return EncodedColumn(name, self.column.kind == "numeric", self.n_cells + nullable, missing_code)

    def encode(self, values: pd.Series[Any]) -> Codes:
        """Encode one column of a table."""
        if self.column.kind == "numeric":
            return self.encode_numbers(numbers(values, self.column.name))
        return _category_places(self.column, values).astype(np.uint16)

    def encode_arrow(self, values: pa.ChunkedArray, codes: Codes) -> None:
        """Encode one column of an Arrow table without a detour, where its type allows."""
        if self.column.kind == "categorical":
            codes[:] = _category_places(self.column, values)
        elif self.edges is None and HAVE_NUMBA and _is_plain_number(values.type):
            from veilwood.data.encoding_kernels import grid_codes

            lower, upper = self.column.bounds
            array = _one_chunk(values).to_numpy(zero_copy_only=False)  # nulls are NaN
            if grid_codes(array, lower, GRID_CELLS / (upper - lower), float(GRID_CELLS - 1), codes):
                if not self.column.nullable:
                    raise _missing(self.column)
                codes[np.isnan(array)] = self.n_cells
        else:
            codes[:] = self.encode(to_pandas(values))

    def encode_numbers(self, values: Floats) -> Codes:
        """Encode numbers, NaN meaning missing; infinities are clamped like everything outside the bounds."""
        missing = np.isnan(values)
        any_missing = bool(missing.any())
        if any_missing and not self.column.nullable:
            raise _missing(self.column)
        if self.edges is not None:
            codes = np.searchsorted(self.edges, values, side="right").astype(np.uint16)
        else:
            # Each step is monotone after rounding, so the code never falls as the number grows.
            lower, upper = self.column.bounds
            with np.errstate(over="ignore", invalid="ignore"):
                cells = values - lower
                cells *= GRID_CELLS / (upper - lower)
                np.clip(cells, 0, GRID_CELLS - 1, out=cells)
                codes = cells.astype(np.uint16)
        if any_missing:
            codes[missing] = self.n_cells
        return codes

    def thresholds(self, wanted: npt.NDArray[np.integer[Any]]) -> Floats:
        """Return, for each code, the smallest float64 that gets this code or a higher one (-inf for 0)."""
        if self.column.kind != "numeric" or wanted.min(initial=0) < 0 or wanted.max(initial=0) >= self.n_cells:
            raise ValueError(f"{self.column.name!r} has no such threshold: give codes of numbers, 0 to the last")
        if self.edges is not None:
            return np.asarray(np.concatenate([[-np.inf], self.edges])[wanted])
        # Bisection over all float64 between the bounds, in their own order: at most 64 steps, exact.
        lower, upper = self.column.bounds
        ends = _flip(np.array([np.nextafter(lower, -np.inf), upper]).view(np.int64))
        below, reached = np.full(wanted.shape, ends[0]), np.full(wanted.shape, ends[1])
        while np.any(reached > below + 1):
            middle = (below >> 1) + (reached >> 1) + (below & reached & 1)  # no overflow
            enough = self.encode_numbers(_flip(middle).view(np.float64)) >= wanted
            reached, below = np.where(enough, middle, reached), np.where(enough, below, middle)
        exact = _flip(reached).view(np.float64) + 0.0  # + 0.0: no negative zero
        return np.where(wanted == 0, -np.inf, exact)


def _equal_edges(column: Column, cells: int) -> Floats:
    """Cut the range into cells of equal width on the column's scale, and return the inner edges."""
    lower, upper = column.bounds
    share = np.arange(1, cells) / cells
    if column.transform is None:
        return np.asarray(lower + (upper - lower) * share)
    scale = TRANSFORMS[column.transform]
    low, high = scale.forward(np.array([lower, upper]))
    # Above lower, so that numbers clamped to it keep code 0.
    return np.sort(np.clip(scale.inverse(low + (high - low) * share), np.nextafter(lower, upper), upper))


def _flip(bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Map the bits of a float64 to its rank among all float64s, and back."""
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


@dataclass(frozen=True)
class Encoding:
    """The codes of every column of a schema.

    Parameters
    ----------
    schema : Schema
        The public facts; nothing else decides a code.
    numeric : {"grid", "bins"}
        Numbers go to a fine grid of ``GRID_CELLS`` cells, for threshold splits, or to the few bins that
        the schema's ``bins`` or ``cutoffs`` give (``DEFAULT_BINS`` otherwise), for multiway splits.

    Examples
    --------
    >>> schema = Schema.from_dict({
    ...     "name": "clinic", "task": "classification", "target": "ill",
    ...     "columns": [
    ...         {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
    ...         {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]},
    ...         {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    ...     ],
    ... })
    >>> encoding = Encoding(schema, numeric="bins")
    >>> encoding.encode(pd.DataFrame({"ward": ["C", "A"], "age": [35.0, None]}))
    array([[1, 2],
           [5, 0]], dtype=uint16)
    >>> encoding.threshold(0, 1)
    20.0
    """

    schema: Schema
    numeric: Literal["grid", "bins"] = "grid"
    columns: tuple[EncodedColumn, ...] = field(init=False, repr=False, compare=False)
    _coders: tuple[_Coder, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.numeric not in ("grid", "bins"):
            raise ValueError(f"numeric={self.numeric!r}. Hint: use 'grid' or 'bins'.")
        coders = tuple(_Coder(column, self.numeric) for column in self.schema.features)
        object.__setattr__(self, "_coders", coders)
        object.__setattr__(self, "columns", tuple(coder.meaning for coder in coders))

    @property
    def n_codes(self) -> tuple[int, ...]:
        """Number of codes of each column."""
        return tuple(column.n_codes for column in self.columns)

    def encode(self, X: Any, *, allowed_extra: Collection[str] = (), estimator: str = "the schema") -> Codes:
        """Encode a table.

        Parameters
        ----------
        X : dataframe, 2-D array or list of rows
            Columns of a dataframe are matched by name, in any order, and the target is skipped if it is
            there; columns of an array are matched by position.
        allowed_extra : collection of str
            Further columns that may be there, and are skipped.
        estimator : str
            Who is asking, for the error message.

        Returns
        -------
        ndarray of uint16, shape (rows, features)
            In Fortran order: each column is contiguous.
        """
        table = Table.of(X)
        places = self.places(table, allowed_extra=allowed_extra, estimator=estimator)
        codes = np.empty((len(self.columns), table.n_rows), dtype=np.uint16).T
        for feature, (coder, place) in enumerate(zip(self._coders, places, strict=True)):
            if table.arrow is not None:
                coder.encode_arrow(table.arrow.column(place), codes[:, feature])
            elif table.array is None or coder.column.kind == "categorical":
                codes[:, feature] = coder.encode(table.column(place))
        if table.array is not None:
            self._encode_array(table.array, codes)
        return codes

    def _encode_array(self, array: npt.NDArray[Any], codes: Codes) -> None:
        ordered = [feature for feature, column in enumerate(self.columns) if column.ordered]
        for start in range(0, len(array), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            block = array[rows]
            for feature in ordered:
                values = block[:, feature].astype(np.float64)
                codes[rows, feature] = self._coders[feature].encode_numbers(values)

    def places(self, table: Table, *, allowed_extra: Collection[str] = (), estimator: str = "the schema") -> list[int]:
        """Find each feature's column in a table; raise where columns are missing or unknown."""
        names = self.schema.feature_names
        if table.names is None:
            if table.n_columns != len(names):
                raise OutOfSchemaError(
                    f"X has {table.n_columns} features, but {estimator} is expecting {len(names)} features as input."
                    f" Hint: the columns are {', '.join(names[:20])}."
                )
            return list(range(len(names)))
        check_names(self.schema, table.names, allowed_extra=allowed_extra)
        return [table.names.index(name) for name in names]

    def encode_target(self, y: Any) -> npt.NDArray[np.int32]:
        """Encode the target: class numbers, or integers 0 to ``TARGET_LEVELS`` for regression."""
        target = self.schema.target
        values = _target_values(y)
        if target.kind == "categorical":
            try:
                return _category_places(target, values)
            except OutOfSchemaError as error:
                if error.value is None:
                    raise
                raise OutOfSchemaError(
                    f"target {target.name!r} has the label {error.value!r}, which is not one of the schema's: "
                    f"{', '.join(target.values[:8])}{', ...' if len(target.values) > 8 else ''}."
                    f"{closest(str(error.value), target.values)} "
                    "Hint: give labels in the schema's words, or correct its values.",
                    column=target.name,
                    value=error.value,
                ) from None
        found = numbers(to_pandas(values) if isinstance(values, pa.ChunkedArray) else values, target.name)
        if np.isnan(found).any():
            raise _missing(target)
        if np.isinf(found).any():
            raise OutOfSchemaError(f"target {target.name!r} holds infinity. Hint: drop such rows.", column=target.name)
        lower, upper = target.bounds
        with np.errstate(over="ignore"):
            levels = np.rint((found - lower) * (TARGET_LEVELS / (upper - lower)))
        return np.clip(levels, 0, TARGET_LEVELS).astype(np.int32)

    def decode_target(self, levels: npt.ArrayLike) -> Floats:
        """Turn levels of a regression target (whole or not) back into values."""
        lower, upper = self.schema.target.bounds
        return np.asarray(lower + np.asarray(levels, dtype=np.float64) * ((upper - lower) / TARGET_LEVELS))

    @overload
    def threshold(self, feature: int, code: int) -> float: ...
    @overload
    def threshold(self, feature: int, code: npt.NDArray[np.integer[Any]]) -> Floats: ...
    def threshold(self, feature: int, code: int | npt.NDArray[np.integer[Any]]) -> float | Floats:
        """Return the smallest number of a numeric column that gets this code or a higher one.

        So ``codes[:, feature] >= code`` exactly where ``x >= threshold(feature, code)``, missing values
        apart. Code 0 gives minus infinity; an array of codes gives an array.
        """
        out = self._coders[feature].thresholds(np.atleast_1d(code))
        return out if isinstance(code, np.ndarray) else float(out[0])


def check_names(
    schema: Schema, names: Collection[str], *, allowed_extra: Collection[str] = (), target: bool = False
) -> None:
    """Refuse a table that lacks a feature (or the target), or has a column the schema does not know."""
    allowed = {*schema.feature_names, schema.target.name, *allowed_extra}
    for name in (*schema.feature_names, schema.target.name) if target else schema.feature_names:
        if name not in names:
            hint = closest(name, [other for other in names if other not in allowed])
            raise OutOfSchemaError(
                f"the table has no column {name!r}.{hint} Hint: columns are matched by name; "
                f"the schema has {', '.join(schema.feature_names[:20])}.",
                column=name,
            )
    for name in names:
        if name not in allowed:
            raise OutOfSchemaError(
                f"the table has a column {name!r} that the schema does not. "
                "Hint: drop it from the table, or add it to the schema.",
                column=name,
            )


def class_labels(schema: Schema) -> npt.NDArray[Any]:
    """Return the classes as the schema declares them, in the type that it declares: no row has a say.

    Examples
    --------
    >>> class_labels(Schema.numeric((0, 1), classes=[0, 1], n_features=1))
    array([0, 1])
    >>> class_labels(Schema.numeric((0, 1), classes=["0", "1"], n_features=1))
    array(['0', '1'], dtype=object)
    """
    return np.array(schema.target.labels, dtype=_LABEL_TYPES[schema.target.label_type])


def _target_values(y: Any) -> Cells:
    """Return the target as a column in which no row decides how another is read."""
    if isinstance(y, pd.Series | pa.ChunkedArray):
        return y
    if isinstance(y, pa.Array):
        return pa.chunked_array([y])
    if isinstance(y, np.ma.MaskedArray):
        raise OutOfSchemaError("y is a masked array. Hint: drop the masked rows and pass y.data.")
    if isinstance(y, list | tuple) and not (len(y) and isinstance(y[0], list | tuple | np.ndarray)):
        return pd.Series(list(y), dtype=object)  # numpy would turn all of them into one type
    try:
        values = column_or_1d(y, warn=True)
    except ValueError as error:
        raise OutOfSchemaError(f"y is not one value for each row: {error}") from None
    return pd.Series(values, dtype=object if values.dtype.kind in "OU" else values.dtype)


def _category_places(column: Column, values: Cells) -> npt.NDArray[np.int32]:
    """Return the place of each value among the column's categories; missing values come after the last."""
    codes, texts = category_codes(values)
    known = {text: place for place, text in enumerate(column.values)}
    default = -1 if column.other is None else known[column.other]
    places = [known.get(text, default) for text in texts]
    places += [-1, len(known) if column.nullable else -1]  # these serve the codes -2 (unusable) and -1 (missing)
    out: npt.NDArray[np.int32] = np.array(places, np.int32).take(codes)
    if out.size and out.min() < 0:
        code = int(codes[out.argmin()])
        if code >= 0:
            raise _unknown(column, texts[code])
        raise _missing(column) if code == Nothing.MISSING.value else unusable(column)
    return out


def _one_chunk(values: pa.ChunkedArray) -> Any:
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def _is_plain_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _missing(column: Column) -> OutOfSchemaError:
    return OutOfSchemaError(
        f"column {column.name!r} has a missing value (NaN or null), which the schema does not allow. "
        'Hint: set "nullable": true for it in the schema, or fill or drop such rows.',
        column=column.name,
    )


def unusable(column: Column) -> OutOfSchemaError:
    """Say that a cell can be no category."""
    return OutOfSchemaError(
        f"column {column.name!r} has a cell that is neither text nor number nor date, such as a list. "
        "Hint: turn the column into texts.",
        column=column.name,
    )


def _unknown(column: Column, value: str) -> OutOfSchemaError:
    return OutOfSchemaError(
        f"column {column.name!r} has the value {value!r}, which is not one of its {len(column.values)} values."
        f"{closest(value, column.values)} Hint: add it to the schema, or let unknown values count as a known one: "
        f'"other": {column.values[0]!r}, say. (Columns of an array are taken by position.)',
        column=column.name,
        value=value,
    )
