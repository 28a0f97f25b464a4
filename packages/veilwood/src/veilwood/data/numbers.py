# SPDX-License-Identifier: Apache-2.0
"""The one number of a cell: every cell of a numeric column is read by itself, whatever the type of its column.

| cell | its number |
|---|---|
| number, boolean, decimal | itself, in 64 bits |
| null, None, NaN, NaT, empty text | missing |
| text written as a number | that number where texts are parsed (files of text, ``invalid="drop"``), else none |
| anything else | none |

The text of a cell, by which ids and categories are compared, is in ``canonical``.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from veilwood.data.canonical import ColumnCells, Nothing, cells_of, text_of
from veilwood.data.problems import Kinds, Problem

__all__ = ["number_of", "numbers_of"]

Floats = npt.NDArray[np.float64]

_PLAIN_TYPES: Final = ("integer", "floating", "mixed-integer-float", "empty")
_WRITTEN: Final = re.compile(
    r"[ \t]*([+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf|infinity))[ \t]*", re.I | re.A
)
_USUAL: Final = r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$"  # of which Arrow makes the same number as Python, only faster


def number_of(cell: Any, parse: bool = False) -> float | Problem:
    """Return the number of a cell, NaN where it is missing, or what is wrong with it; never fails.

    Examples
    --------
    >>> number_of(7), number_of(True), number_of(None), number_of("7,5", parse=True), number_of("7.5", parse=True)
    (7.0, 1.0, nan, <Problem.NO_NUMBER: 3>, 7.5)
    >>> number_of("7.5"), number_of(10**400), number_of([7])
    (<Problem.NO_NUMBER: 3>, <Problem.TOO_LARGE: 4>, <Problem.NO_NUMBER: 3>)
    """
    match cell:
        case np.timedelta64() | datetime.timedelta() | complex() | np.complexfloating():
            pass  # numpy takes the first for whole numbers
        case bool() | np.bool_() | float() | np.floating():
            with np.errstate(all="ignore"):
                return float(cell)
        case int() | np.integer() | Decimal():
            return _of_exact(cell)
        case str() | bytes() if parse and cell:
            text = cell if isinstance(cell, str) else cell.decode("utf-8", "backslashreplace")
            written = _WRITTEN.fullmatch(text)
            return Problem.NO_NUMBER if written is None else float(written[1])
    return float("nan") if text_of(cell) is Nothing.MISSING else Problem.NO_NUMBER


def _of_exact(cell: Any) -> float | Problem:
    if isinstance(cell, Decimal) and not cell.is_finite():
        return float("nan") if cell.is_nan() else float(cell)
    try:
        number = float(cell)
    except OverflowError:
        return Problem.TOO_LARGE
    return Problem.TOO_LARGE if np.isinf(number) else number


def numbers_of(values: ColumnCells, parse: bool = False) -> tuple[Floats, Kinds | None]:
    """Read a column of numbers; return them, NaN where there is none, and what is wrong where it is not missing.

    Examples
    --------
    >>> numbers_of(pd.Series([1, None, "x"], dtype=object))
    (array([ 1., nan, nan]), array([0, 0, 3], dtype=uint8))
    """
    with np.errstate(all="ignore"):
        try:
            found = _all_at_once(values, parse)
        except Exception:  # a cell that its column cannot convert: then each by itself, with the same result
            found = None
        if found is not None:
            return found
    return _one_by_one(cells_of(values), parse)


def _all_at_once(values: ColumnCells, parse: bool) -> tuple[Floats, Kinds | None] | None:
    """Read a column of one type; None where its cells must be read one by one."""
    if not isinstance(values, pa.ChunkedArray):
        dtype = values.dtype
        if isinstance(dtype, pd.ArrowDtype):
            return _all_at_once(pa.chunked_array(pa.array(values.array)), parse)
        if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
            return values.to_numpy(dtype=np.float64), None
        if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
            return values.to_numpy(dtype=np.float64, na_value=np.nan), None
        if pd.api.types.is_object_dtype(dtype) and pd.api.types.infer_dtype(values, skipna=True) in _PLAIN_TYPES:
            there = values.notna().to_numpy(dtype=bool)
            out = np.full(len(values), np.nan)
            out[there] = values[there].to_numpy(dtype=np.float64)
            return out, None
        return None
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return values.to_numpy().astype(np.float64), None
    if parse and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return _parsed(values)
    return None


def _parsed(values: pa.ChunkedArray) -> tuple[Floats, Kinds | None]:
    """Parse texts: the usual ones all at once, the others one by one."""
    usual = pc.fill_null(pc.match_substring_regex(values, _USUAL), False)
    out = pc.if_else(usual, values, None).cast(pa.string()).cast(pa.float64()).to_numpy().copy()
    rest = np.flatnonzero(~usual.to_numpy().astype(bool))
    if not rest.size:
        return out, None
    kinds = np.zeros(len(out), np.uint8)
    out[rest], odd = _one_by_one(values.take(pa.array(rest)).to_pylist(), parse=True)
    if odd is not None:
        kinds[rest] = odd
    return out, kinds


def _one_by_one(cells: Iterable[Any], parse: bool) -> tuple[Floats, Kinds | None]:
    found = [number_of(cell, parse) for cell in cells]
    kinds = np.array([each if isinstance(each, Problem) else 0 for each in found], np.uint8)
    out = np.array([np.nan if isinstance(each, Problem) else each for each in found], np.float64)
    return out, kinds if kinds.any() else None
