# SPDX-License-Identifier: Apache-2.0
"""Rows of JSON or CSV to codes: at once where they are plain, by a table of pandas where they are not."""

from __future__ import annotations

import csv
import io
import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from veilwood.data.columns import Column
from veilwood.data.numbers import number_of
from veilwood.data.problems import Problem
from veilwood.data.schema import Schema
from veilwood.errors import ParameterError, VeilwoodError

__all__ = ["RowCodes", "frame_of", "rows_of_csv"]

_WHOLE: Final = re.compile(r"-?\d{1,15}")
_EXACT: Final = 2**53  # whole numbers up to here are floats without rounding
CellValue = Any
Places = dict[CellValue, int]


class RowCodes:
    """The codes of rows to predict for.

    What a category is encoded as is looked up in tables that are made once, from the schema alone: how long a request
    takes does not tell what others have asked. Whatever is not plain goes the long way, which knows all kinds of cells
    and words of refusal; both ways give the same codes.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._columns: tuple[Column, ...] = tuple(model.schema_.features)
        self._places = self._tables()

    def of(self, rows: list[dict[str, Any]]) -> npt.NDArray[np.uint16]:
        """Encode rows."""
        codes = None if self._places is None else self._at_once(rows, self._places)
        if codes is None:
            codes = self._model.encode(frame_of(rows, self._model.schema_))
        return codes

    def _at_once(self, rows: list[dict[str, Any]], places: list[Places | None]) -> npt.NDArray[np.uint16] | None:
        names = {column.source for column in self._columns}
        if not rows or any(row.keys() != names for row in rows):
            return None
        codes = np.empty((len(self._columns), len(rows)), np.uint16)
        for feature, (column, known) in enumerate(zip(self._columns, places, strict=True)):
            cells = [row[column.source] for row in rows]
            if known is None:
                if not all(type(cell) is float or (type(cell) is int and -_EXACT < cell < _EXACT) for cell in cells):
                    return None
                codes[feature] = self._model.model_.encoding.encode_numbers(feature, np.array(cells, np.float64))
                continue
            try:
                codes[feature] = [known[cell if type(cell) is str else (type(cell), cell)] for cell in cells]
            except (KeyError, TypeError):  # another way to write it, or not a category
                return None
        return codes.T

    def _tables(self) -> list[Places | None] | None:
        """Return the code of every category as JSON may write it; None for numbers. None if there is no quick way."""
        if any(column.part is not None for column in self._columns):
            return None
        candidates = [_written(column) for column in self._columns]
        length = max(len(cells) for cells in candidates)
        rows = [
            {column.source: cells[i % len(cells)] for column, cells in zip(self._columns, candidates, strict=True)}
            for i in range(length)
        ]
        try:
            codes = self._model.encode(frame_of(rows, self._model.schema_))
        except VeilwoodError:
            return None
        return [
            None if column.kind == "numeric" else {
                cell if type(cell) is str else (type(cell), cell): int(codes[i, feature])
                for i, cell in enumerate(candidates[feature])
            }
            for feature, column in enumerate(self._columns)
        ]  # fmt: skip


def _written(column: Column) -> list[CellValue]:
    """Return the ways in which a cell of a column is usually written."""
    if column.kind == "numeric":
        return [column.bounds[0]]
    texts = [str(value) for value in column.values]
    whole = [int(text) for text in texts if _WHOLE.fullmatch(text) and str(int(text)) == text]
    return [*texts, *whole, *([None] if column.nullable else [])]


def frame_of(rows: list[dict[str, Any]], schema: Schema) -> pd.DataFrame:
    """Put rows of JSON into a table; all must have the same columns. Texts of numbers are read as in files."""
    if not rows:
        raise ParameterError("rows", "[]", "are none", "give at least one row")
    names = list(rows[0])
    if any(len(row) != len(names) for row in rows) or len(names) == 0:
        raise ParameterError("rows", "...", "do not all have the same columns", "name every column in every row")
    numeric = {column.source for column in schema.features if column.kind == "numeric" and column.part is None}
    try:
        cells = {name: [row[name] for row in rows] for name in names}
    except KeyError:
        raise ParameterError(
            "rows", "...", "do not all have the same columns", "name every column in every row"
        ) from None
    for name in numeric.intersection(names):
        cells[name] = [_number(cell, schema) if isinstance(cell, str) else cell for cell in cells[name]]
    return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in cells.items()})


def _number(text: str, schema: Schema) -> CellValue:
    """Read the text of a number as the schema's dialect writes it; what is none stays, to be refused by its column."""
    dialect = schema.dialect
    if text in dialect.nulls:
        return None
    plain = text if dialect.plain_numbers else dialect.number(text)
    found = Problem.NO_NUMBER if plain is None else number_of(plain, parse=True)
    return text if isinstance(found, Problem) else found


def rows_of_csv(body: bytes, schema: Schema) -> list[dict[str, Any]]:
    """Read the rows of a CSV file as the schema's dialect writes it; cells that mean nothing are None."""
    dialect = schema.dialect
    codec = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.codec
    try:
        rows = list(csv.DictReader(io.StringIO(body.decode(codec)), delimiter=dialect.sep, strict=True))
    except (UnicodeDecodeError, csv.Error):
        raise ParameterError("table", "...", "is not a CSV file as the schema says", "save it as CSV UTF-8") from None
    nothing = {"", *dialect.nulls}
    target = schema.target.source
    return [
        {name: None if cell in nothing else cell for name, cell in row.items() if name not in (None, target)}
        for row in rows
    ]
