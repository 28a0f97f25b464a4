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
from veilwood.data.numbers import read_number
from veilwood.data.problems import Problem
from veilwood.data.schema import Schema
from veilwood.errors import ModelFileError, NotFoundError, ParameterError, VeilwoodError
from veilwood.models.file import load
from veilwood_service import store
from veilwood_service.settings import Settings
from veilwood_service.store import Store
from veilwood_service.training import file_digest, model_path

__all__ = ["LoadedModel", "Predictions", "RowEncoder", "parse_csv_rows", "predict_rows", "rows_to_frame"]


_INTEGER_PATTERN: Final = re.compile(r"-?\d{1,15}")
_MAX_EXACT_INTEGER: Final = 2**53  # whole numbers up to here are floats without rounding
InputValue = Any
CodeTable = dict[InputValue, int]


class RowEncoder:
    """The codes of rows to predict for.

    What a category is encoded as is looked up in tables that are made once, from the schema alone: how long a request
    takes does not tell what others have asked. Whatever is not plain goes the long way, which knows all kinds of cells
    and words of refusal; both ways give the same codes.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._columns: tuple[Column, ...] = tuple(model.schema_.features)
        self._code_tables = self._build_code_tables()

    def encode(self, rows: list[dict[str, Any]]) -> npt.NDArray[np.uint16]:
        """Encode rows."""
        codes = None if self._code_tables is None else self._encode_plain_rows(rows, self._code_tables)
        if codes is None:
            codes = self._model._encode_rows(rows_to_frame(rows, self._model.schema_))
        return codes

    def _encode_plain_rows(
        self, rows: list[dict[str, Any]], code_tables: list[CodeTable | None]
    ) -> npt.NDArray[np.uint16] | None:
        names = {column.source for column in self._columns}
        if not rows or any(row.keys() != names for row in rows):
            return None
        codes = np.empty((len(self._columns), len(rows)), np.uint16)
        for feature, (column, known) in enumerate(zip(self._columns, code_tables, strict=True)):
            cells = [row[column.source] for row in rows]
            if known is None:
                if not all(
                    type(cell) is float or (type(cell) is int and -_MAX_EXACT_INTEGER < cell < _MAX_EXACT_INTEGER)
                    for cell in cells
                ):
                    return None
                codes[feature] = self._model.model_.encoding.encode_numbers(feature, np.array(cells, np.float64))
                continue
            try:
                codes[feature] = [known[cell if type(cell) is str else (type(cell), cell)] for cell in cells]
            except (KeyError, TypeError):  # another way to write it, or not a category
                return None
        return codes.T

    def _build_code_tables(self) -> list[CodeTable | None] | None:
        """Return the code of every category as JSON may write it; None for numbers. None if there is no quick way."""
        if any(column.part is not None for column in self._columns):
            return None
        candidates = [_json_spellings(column) for column in self._columns]
        length = max(len(cells) for cells in candidates)
        rows = [
            {column.source: cells[i % len(cells)] for column, cells in zip(self._columns, candidates, strict=True)}
            for i in range(length)
        ]
        try:
            codes = self._model._encode_rows(rows_to_frame(rows, self._model.schema_))
        except VeilwoodError:
            return None
        return [
            None if column.kind == "numeric" else {
                cell if type(cell) is str else (type(cell), cell): int(codes[i, feature])
                for i, cell in enumerate(candidates[feature])
            }
            for feature, column in enumerate(self._columns)
        ]  # fmt: skip


def _json_spellings(column: Column) -> list[InputValue]:
    """Return the ways in which a cell of a column is usually written."""
    if column.kind == "numeric":
        return [column.bounds[0]]
    texts = [str(value) for value in column.values]
    whole = [int(text) for text in texts if _INTEGER_PATTERN.fullmatch(text) and str(int(text)) == text]
    return [*texts, *whole, *([None] if column.nullable else [])]


def rows_to_frame(rows: list[dict[str, Any]], schema: Schema) -> pd.DataFrame:
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
        cells[name] = [_parse_number(cell, schema) if isinstance(cell, str) else cell for cell in cells[name]]
    return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in cells.items()})


def _parse_number(text: str, schema: Schema) -> InputValue:
    """Read the text of a number as the schema's dialect writes it; what is none stays, to be refused by its column."""
    dialect = schema.dialect
    if text in dialect.nulls:
        return None
    plain = text if dialect.plain_numbers else dialect.number(text)
    found = Problem.NOT_A_NUMBER if plain is None else read_number(plain, parse=True)
    return text if isinstance(found, Problem) else found


def parse_csv_rows(body: bytes, schema: Schema) -> list[dict[str, Any]]:
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


_MAX_LOADED_MODELS: Final = 32
_MAX_EXTRA_COLUMNS: Final = 100  # ids, the target, and what the schema ignores
_MAX_BATCH_ROWS: Final = 400  # rows: a few milliseconds, in which no other request is looked at


@dataclass
class _PendingRequest:
    rows: list[dict[str, Any]]
    future: asyncio.Future[dict[str, Any]]


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, and what encodes rows for it."""

    model: Any
    encoder: RowEncoder


class Predictions:
    """Models that were trained privately: what they say costs nothing."""

    def __init__(self, settings: Settings, database: Store) -> None:
        self._settings, self._database = settings, database
        self._models: OrderedDict[str, LoadedModel] = OrderedDict()
        self._pending: dict[str, list[_PendingRequest]] = {}

    def get_model(self, number: str) -> Any:
        """Return a trained model; its file must be the one that was made."""
        return self.get_loaded(number).model

    def get_loaded(self, number: str) -> LoadedModel:
        """Return a trained model with what encodes rows for it."""
        if number in self._models:
            self._models.move_to_end(number)
            return self._models[number]
        found = self._database.find(store.models, id=number)
        if found is None or found["kind"] != "trained":
            raise NotFoundError("trained model", number, hint="choose one from the list of models")
        path = model_path(self._settings, number)
        if file_digest(path) != found["digest"]:
            raise ModelFileError("the file of this model is not the one that was made. Hint: restore it.")
        model = load(path)
        loaded = LoadedModel(model, RowEncoder(model))
        model.set_params(n_jobs=1)  # requests share the cores: each is answered on one
        model._predict_encoded(np.zeros((1, model.n_features_in_), np.uint16))  # compiled here, and not amid requests
        self._models[number] = loaded
        if len(self._models) > _MAX_LOADED_MODELS:
            self._models.popitem(last=False)
        return loaded

    async def predict(self, number: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Predict for some rows, together with whoever asks the same model now."""
        loop = asyncio.get_running_loop()
        if number not in self._models:
            await loop.run_in_executor(None, self.get_model, number)
        loaded = self.get_loaded(number)
        if rows and len(rows[0]) > loaded.model.n_features_in_ + _MAX_EXTRA_COLUMNS:
            raise ParameterError("rows", "...", "have more columns than the schema", "name those of the schema")
        if len(rows) > _MAX_BATCH_ROWS:
            return await loop.run_in_executor(None, predict_rows, loaded, rows)
        request = _PendingRequest(rows, loop.create_future())
        waiting = self._pending.setdefault(number, [])
        waiting.append(request)
        if len(waiting) == 1:
            loop.call_soon(self._flush_requests, number)
        return await request.future

    def _flush_requests(self, number: str) -> None:
        requests, loaded = self._pending.pop(number), self.get_loaded(number)
        while requests:
            taken, count = list[_PendingRequest](), 0
            while requests and (not taken or count + len(requests[0].rows) <= _MAX_BATCH_ROWS):
                count += len(requests[0].rows)
                taken.append(requests.pop(0))
            _predict_batch(loaded, taken)


def predict_rows(loaded: LoadedModel, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Predict for rows; probabilities too where there are classes."""
    codes = loaded.encoder.encode(rows)
    if not hasattr(loaded.model, "predict_proba"):
        return {"predictions": loaded.model._predict_encoded(codes).tolist()}
    shares, labels = loaded.model._predict_encoded(codes)
    return {"predictions": labels.tolist(), "probabilities": shares.round(6).tolist()}


def _predict_batch(loaded: LoadedModel, requests: list[_PendingRequest]) -> None:
    try:
        whole = predict_rows(loaded, [row for request in requests for row in request.rows])
    except VeilwoodError:
        for request in requests:  # one of them asks for what cannot be: each for itself
            if request.future.cancelled():
                continue
            try:
                request.future.set_result(predict_rows(loaded, request.rows))
            except VeilwoodError as error:
                request.future.set_exception(error)
        return
    except Exception as error:
        for request in requests:
            if not request.future.cancelled():
                request.future.set_exception(error)
        return
    begin = 0
    for request in requests:
        end = begin + len(request.rows)
        if not request.future.cancelled():
            request.future.set_result({name: values[begin:end] for name, values in whole.items()})
        begin = end
