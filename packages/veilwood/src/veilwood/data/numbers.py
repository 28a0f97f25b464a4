# SPDX-License-Identifier: Apache-2.0
"""Parsing of numbers: each value of a numeric column is parsed independently, whatever the type of its column.

| cell | its number |
|---|---|
| number, boolean, decimal | itself, in 64 bits |
| null, None, NaN, NaT, empty text | missing |
| text written as a number | that number where texts are parsed (files of text, ``invalid="drop"``), else none |
| anything else | none |

The texts by which ids and categories are compared are in ``canonical``.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from veilwood.arrays import Floats
from veilwood.data.canonical import ColumnValues, NoText, iter_values, to_canonical_text
from veilwood.data.columns import Column
from veilwood.data.dialect import Dialect
from veilwood.data.problems import Kinds, Problem

_TEXT_TYPES: Final = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
_PLAIN_TYPES: Final = ("integer", "floating", "mixed-integer-float", "empty")
_NUMBER_TEXT: Final = re.compile(
    r"[ \t]*([+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf|infinity))[ \t]*", re.I | re.A
)
LIMIT: Final = re.compile(r"\s*(?:[<>]=?|=[<>]|[≤≥])\s*(.*)")  # a value below or above the measurable range
_COMMON_NUMBER: Final = (
    r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$"  # of which Arrow makes the same number as Python, only faster
)


def read_number(value: Any, parse: bool = False) -> float | Problem:
    """Return the number of a value, NaN if it is missing, or its problem. Never raises.

    Examples
    --------
    >>> read_number(7), read_number(True), read_number(None)
    (7.0, 1.0, nan)
    >>> read_number("7,5", parse=True), read_number("7.5", parse=True)
    (<Problem.NOT_A_NUMBER: 3>, 7.5)
    >>> read_number("7.5"), read_number(10**400), read_number([7])
    (<Problem.NOT_A_NUMBER: 3>, <Problem.TOO_LARGE: 4>, <Problem.NOT_A_NUMBER: 3>)
    """
    match value:
        case np.timedelta64() | datetime.timedelta() | complex() | np.complexfloating():
            pass  # numpy treats the first as integers
        case bool() | np.bool_() | float() | np.floating():
            with np.errstate(all="ignore"):
                return float(value)
        case int() | np.integer() | Decimal():
            return _exact_to_float(value)
        case str() | bytes() if parse and value:
            text = value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
            written = _NUMBER_TEXT.fullmatch(text)
            return Problem.NOT_A_NUMBER if written is None else float(written[1])
    return float("nan") if to_canonical_text(value) is NoText.MISSING else Problem.NOT_A_NUMBER


def _exact_to_float(value: Any) -> float | Problem:
    if isinstance(value, Decimal) and not value.is_finite():
        return float("nan") if value.is_nan() else float(value)
    try:
        number = float(value)
    except OverflowError:
        return Problem.TOO_LARGE
    return Problem.TOO_LARGE if np.isinf(number) else number


def read_numbers(values: ColumnValues, parse: bool = False) -> tuple[Floats, Kinds | None]:
    """Read a numeric column. Return its numbers (NaN for other values), and the problems of non-missing values.

    Examples
    --------
    >>> read_numbers(pd.Series([1, None, "x"], dtype=object))
    (array([ 1., nan, nan]), array([0, 0, 3], dtype=uint8))
    """
    with np.errstate(all="ignore"):
        try:
            found = _read_column(values, parse)
        except Exception:  # a value that its column cannot convert: then one by one, with the same result
            found = None
        if found is not None:
            return found
    return _read_each(iter_values(values), parse)


def read_column(
    values: ColumnValues, column: Column, dialect: Dialect, parse: bool = False
) -> tuple[Floats, Kinds | None]:
    """Read a numeric column according to the schema."""
    if column.texts is None:
        return read_numbers(values, parse)
    return read_mixed_numbers(values, dialect.of(column.source), limits=column.texts == "limit")


def read_mixed_numbers(values: ColumnValues, dialect: Dialect, *, limits: bool) -> tuple[Floats, Kinds | None]:
    """Read numbers mixed with text. Other text is missing; with ``limits``, text such as <0.6 is the number 0.6.

    Examples
    --------
    >>> cells = pd.Series([0.5, "0,7", "<0,6", "n.a."], dtype=object)
    >>> read_mixed_numbers(cells, Dialect(decimal=","), limits=True)
    (array([0.5, 0.7, 0.6, nan]), None)
    """
    known: dict[str, float] = {}

    def read_value(value: Any) -> float | Problem:
        text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        if not isinstance(text, str):
            number = read_number(value)
            return float("nan") if number is Problem.NOT_A_NUMBER else number
        if text not in known:
            known[text] = _mixed_number(text, dialect, limits)
        return known[text]

    if isinstance(values, pa.ChunkedArray):
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if any(is_text(values.type) for is_text in _TEXT_TYPES):
            coded = pa.chunked_array([values.combine_chunks()]).dictionary_encode().chunk(0)
            numbers, _ = _collect_numbers([*map(read_value, coded.dictionary.to_pylist()), float("nan")])
            return numbers[coded.indices.fill_null(-1).to_numpy()], None
    elif isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf":
        return read_numbers(values)
    return _collect_numbers(read_value(value) for value in iter_values(values))


def _mixed_number(text: str, dialect: Dialect, limits: bool) -> float:
    stated = LIMIT.fullmatch(text) if limits else None
    number = dialect.number(text if stated is None else stated[1])
    return float("nan") if number is None else float(number)


def _read_column(values: ColumnValues, parse: bool) -> tuple[Floats, Kinds | None] | None:
    """Read all values of a column of one type at once, or return None if they must be read one by one."""
    if not isinstance(values, pa.ChunkedArray):
        dtype = values.dtype
        if isinstance(dtype, pd.ArrowDtype):
            return _read_column(pa.chunked_array(pa.array(values.array)), parse)
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
        return _parse_texts(values)
    return None


def _parse_texts(values: pa.ChunkedArray) -> tuple[Floats, Kinds | None]:
    """Parse numbers in text: common forms at once, the others one by one."""
    usual = pc.fill_null(pc.match_substring_regex(values, _COMMON_NUMBER), False)
    out = pc.if_else(usual, values, None).cast(pa.string()).cast(pa.float64()).to_numpy().copy()
    rest = np.flatnonzero(~usual.to_numpy().astype(bool))
    if not rest.size:
        return out, None
    kinds = np.zeros(len(out), np.uint8)
    out[rest], odd = _read_each(values.take(pa.array(rest)).to_pylist(), parse=True)
    if odd is not None:
        kinds[rest] = odd
    return out, kinds


def _read_each(values: Iterable[Any], parse: bool) -> tuple[Floats, Kinds | None]:
    return _collect_numbers(read_number(cell, parse) for cell in values)


def _collect_numbers(read: Iterable[float | Problem]) -> tuple[Floats, Kinds | None]:
    found = list(read)
    kinds = np.array([each if isinstance(each, Problem) else 0 for each in found], np.uint8)
    out = np.array([np.nan if isinstance(each, Problem) else each for each in found], np.float64)
    return out, kinds if kinds.any() else None
