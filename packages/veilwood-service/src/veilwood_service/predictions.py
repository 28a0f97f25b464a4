# SPDX-License-Identifier: Apache-2.0
"""Rows of JSON or CSV to codes: at once where they are plain, by a table of pandas where they are not."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from veilwood.data.columns import Column
from veilwood.data.numbers import number_of
from veilwood.data.problems import Problem
from veilwood.data.schema import Schema
from veilwood.errors import ModelFileError, ParameterError, VeilwoodError
from veilwood.models.file import load
from veilwood_service import store
from veilwood_service.settings import Settings
from veilwood_service.store import Store
from veilwood_service.training import digest_of, model_path

__all__ = ["Loaded", "Predicting", "RowCodes", "answer", "frame_of", "rows_of_csv"]


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


_MOST_LOADED: Final = 32
_MORE_COLUMNS: Final = 100  # ids, the target, and what the schema ignores
_AT_ONCE: Final = 400  # rows: a few milliseconds, in which no other request is looked at


@dataclass
class _Request:
    rows: list[dict[str, Any]]
    done: asyncio.Future[dict[str, Any]]


@dataclass(frozen=True)
class Loaded:
    """A model in memory, and what encodes rows for it."""

    model: Any
    codes: RowCodes


class Predicting:
    """Models that were trained privately: what they say costs nothing."""

    def __init__(self, settings: Settings, records: Store) -> None:
        self._settings, self._records = settings, records
        self._models: OrderedDict[str, Loaded] = OrderedDict()
        self._waiting: dict[str, list[_Request]] = {}

    def model(self, number: str) -> Any:
        """Return a trained model; its file must be the one that was made."""
        return self.loaded(number).model

    def loaded(self, number: str) -> Loaded:
        """Return a trained model with what encodes rows for it."""
        if number in self._models:
            self._models.move_to_end(number)
            return self._models[number]
        found = self._records.find(store.models, id=number)
        if found is None or found["kind"] != "trained":
            raise ParameterError("model", number, "is not a trained model", "see the list of models")
        path = model_path(self._settings, number)
        if digest_of(path) != found["digest"]:
            raise ModelFileError("the file of this model is not the one that was made. Hint: restore it.")
        model = load(path)
        loaded = Loaded(model, RowCodes(model))
        model.set_params(n_jobs=1)  # requests share the cores: each is answered on one
        model.answers_for(np.zeros((1, model.n_features_in_), np.uint16))  # compiled here, and not amid requests
        self._models[number] = loaded
        if len(self._models) > _MOST_LOADED:
            self._models.popitem(last=False)
        return loaded

    async def predict(self, number: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Predict for some rows, together with whoever asks the same model now."""
        loop = asyncio.get_running_loop()
        if number not in self._models:
            await loop.run_in_executor(None, self.model, number)
        loaded = self.loaded(number)
        if rows and len(rows[0]) > loaded.model.n_features_in_ + _MORE_COLUMNS:
            raise ParameterError("rows", "...", "have more columns than the schema", "name those of the schema")
        if len(rows) > _AT_ONCE:
            return await loop.run_in_executor(None, answer, loaded, rows)
        request = _Request(rows, loop.create_future())
        waiting = self._waiting.setdefault(number, [])
        waiting.append(request)
        if len(waiting) == 1:
            loop.call_soon(self._flush, number)
        return await request.done

    def _flush(self, number: str) -> None:
        requests, loaded = self._waiting.pop(number), self.loaded(number)
        while requests:
            taken, count = list[_Request](), 0
            while requests and (not taken or count + len(requests[0].rows) <= _AT_ONCE):
                count += len(requests[0].rows)
                taken.append(requests.pop(0))
            _answer_together(loaded, taken)


def answer(loaded: Loaded, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Predict for rows; probabilities too where there are classes."""
    codes = loaded.codes.of(rows)
    if not hasattr(loaded.model, "predict_proba"):
        return {"predictions": loaded.model.answers_for(codes).tolist()}
    shares, labels = loaded.model.answers_for(codes)
    return {"predictions": labels.tolist(), "probabilities": shares.round(6).tolist()}


def _answer_together(loaded: Loaded, requests: list[_Request]) -> None:
    try:
        whole = answer(loaded, [row for request in requests for row in request.rows])
    except VeilwoodError:
        for request in requests:  # one of them asks for what cannot be: each for itself
            if request.done.cancelled():
                continue
            try:
                request.done.set_result(answer(loaded, request.rows))
            except VeilwoodError as error:
                request.done.set_exception(error)
        return
    except Exception as error:
        for request in requests:
            if not request.done.cancelled():
                request.done.set_exception(error)
        return
    begin = 0
    for request in requests:
        end = begin + len(request.rows)
        if not request.done.cancelled():
            request.done.set_result({name: values[begin:end] for name, values in whole.items()})
        begin = end
