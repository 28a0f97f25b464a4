# SPDX-License-Identifier: Apache-2.0
"""Predictions of trained models, which spend no budget: parsing and encoding of rows, batching of requests."""

from __future__ import annotations

import asyncio
import csv
import io
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from veilwood.arrays import Codes
from veilwood.data.columns import Column
from veilwood.data.dialect import Dialect
from veilwood.data.numbers import read_number
from veilwood.data.problems import Problem
from veilwood.data.schema import Schema
from veilwood.errors import ParameterError, VeilwoodError
from veilwood_service.store import Store
from veilwood_service.training import load_model

_INTEGER_PATTERN: Final = re.compile(r"-?\d{1,15}")
_MAX_EXACT_INTEGER: Final = 2**53  # integers below are exact as floats
InputValue = Any
CodeTable = dict[InputValue, int]


class RowEncoder:
    """Encoder of rows to predict.

    The code of a category is looked up in tables that are built once, from the schema alone. So the time of a request
    does not depend on the requests of others. Values that are not in the tables are encoded with pandas, which
    accepts every valid spelling and rejects invalid values with a message. Both methods return the same codes.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._columns: tuple[Column, ...] = tuple(model.schema_.features)
        self._code_tables = self._build_code_tables()

    def encode(self, rows: list[dict[str, Any]]) -> Codes:
        """Return the codes of rows, one row per row and one column per feature."""
        codes = None if self._code_tables is None else self._encode_plain_rows(rows, self._code_tables)
        if codes is None:
            codes = self._model._encode_rows(rows_to_frame(rows, self._model.schema_))
        return codes

    def _encode_plain_rows(self, rows: list[dict[str, Any]], code_tables: list[CodeTable | None]) -> Codes | None:
        names = {column.source for column in self._columns}
        if not rows or any(row.keys() != names for row in rows):
            return None
        codes = np.empty((len(self._columns), len(rows)), np.uint16)
        for feature, (column, known) in enumerate(zip(self._columns, code_tables, strict=True)):
            values = [row[column.source] for row in rows]
            if known is None:
                if not all(
                    type(value) is float or (type(value) is int and -_MAX_EXACT_INTEGER < value < _MAX_EXACT_INTEGER)
                    for value in values
                ):
                    return None
                codes[feature] = self._model.model_.encoding.encode_numbers(feature, np.array(values, np.float64))
                continue
            try:
                codes[feature] = [known[value if type(value) is str else (type(value), value)] for value in values]
            except (KeyError, TypeError):  # another spelling of a category, or not a category
                return None
        return codes.T

    def _build_code_tables(self) -> list[CodeTable | None] | None:
        """Return one table from JSON value to code per column, None for numeric ones; None if no table applies."""
        if any(column.part is not None for column in self._columns):
            return None
        candidates = [_json_spellings(column) for column in self._columns]
        length = max(len(values) for values in candidates)
        rows = [
            {column.source: values[i % len(values)] for column, values in zip(self._columns, candidates, strict=True)}
            for i in range(length)
        ]
        try:
            codes = self._model._encode_rows(rows_to_frame(rows, self._model.schema_))
        except VeilwoodError:
            return None
        return [
            None if column.kind == "numeric" else {
                value if type(value) is str else (type(value), value): int(codes[i, feature])
                for i, value in enumerate(candidates[feature])
            }
            for feature, column in enumerate(self._columns)
        ]  # fmt: skip


def _json_spellings(column: Column) -> list[InputValue]:
    """Return the usual JSON spellings of a column's values."""
    if column.kind == "numeric":
        return [column.bounds[0]]
    texts = [str(value) for value in column.values]
    integers = [int(text) for text in texts if _INTEGER_PATTERN.fullmatch(text) and str(int(text)) == text]
    return [*texts, *integers, *([None] if column.nullable else [])]


def rows_to_frame(rows: list[dict[str, Any]], schema: Schema) -> pd.DataFrame:
    """Return JSON rows as a frame. All rows must have the same columns; numbers in text are parsed as in files."""
    if not rows:
        raise ParameterError("rows", "[]", "is empty", "send at least one row")
    names = list(rows[0])
    unequal = ParameterError("rows", "...", "must all have the same columns", "name every column in every row")
    if any(len(row) != len(names) for row in rows) or len(names) == 0:
        raise unequal
    # The encoder parses columns that have a rule for text values.
    plain = (column for column in schema.features if column.kind == "numeric" and not column.part and not column.texts)
    numeric = {column.source for column in plain}
    try:
        columns = {name: [row[name] for row in rows] for name in names}
    except KeyError:
        raise unequal from None
    for name in numeric.intersection(names):
        dialect = schema.dialect.of(name)
        columns[name] = [_parse_number(value, dialect) if isinstance(value, str) else value for value in columns[name]]
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


def _parse_number(text: str, dialect: Dialect) -> InputValue:
    """Parse a number in the dialect of its column. Other text is returned as it is, for its column to reject."""
    if text in dialect.nulls:
        return None
    plain = text if dialect.plain_numbers else dialect.number(text)
    number = Problem.NOT_A_NUMBER if plain is None else read_number(plain, parse=True)
    return text if isinstance(number, Problem) else number


def parse_csv_rows(body: bytes, schema: Schema) -> list[dict[str, Any]]:
    """Parse a CSV file in the schema's dialect. Empty and null values become None; the target is dropped."""
    dialect = schema.dialect
    codec = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.codec
    try:
        rows = list(csv.DictReader(io.StringIO(body.decode(codec)), delimiter=dialect.sep, strict=True))
    except (UnicodeDecodeError, csv.Error):
        hint = "save it as CSV UTF-8"
        raise ParameterError("table", "...", "is not a CSV file in the schema's dialect", hint) from None
    nulls = {"", *dialect.nulls}
    target = schema.target.source
    return [
        {name: None if value in nulls else value for name, value in row.items() if name not in (None, target)}
        for row in rows
    ]


_MAX_LOADED_MODELS: Final = 32
_MAX_EXTRA_COLUMNS: Final = 100  # ids, the target, and columns that the schema ignores
_MAX_BATCH_ROWS: Final = 400  # predicted in the event loop: a few milliseconds, in which no other request is handled


@dataclass
class _PendingRequest:
    rows: list[dict[str, Any]]
    future: asyncio.Future[dict[str, Any]]


@dataclass(frozen=True)
class LoadedModel:
    """A trained model in memory, with the encoder of its rows."""

    model: Any
    encoder: RowEncoder


class Predictions:
    """Cache of trained models, and predictions from them."""

    def __init__(self, database: Store) -> None:
        self._database, self._lock = database, threading.Lock()
        self._models: OrderedDict[str, LoadedModel] = OrderedDict()
        self._pending: dict[str, list[_PendingRequest]] = {}

    def get_model(self, number: str) -> Any:
        """Return a trained model."""
        return self.get_loaded(number).model

    def get_loaded(self, number: str) -> LoadedModel:
        """Return a trained model with its encoder; raise NotFoundError if no trained model has this id."""
        with self._lock:
            if number in self._models:
                self._models.move_to_end(number)
                return self._models[number]
        model = load_model(self._database, number)
        loaded = LoadedModel(model, RowEncoder(model))
        model.set_params(n_jobs=1)  # concurrent requests share the cores
        model._predict_encoded(np.zeros((1, model.n_features_in_), np.uint16))  # compile now, not during a request
        with self._lock:
            self._models[number] = loaded
            if len(self._models) > _MAX_LOADED_MODELS:
                self._models.popitem(last=False)
        return loaded

    async def predict(self, number: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Predict rows, in one batch with concurrent requests to the same model."""
        loop = asyncio.get_running_loop()
        if number in self._models:
            loaded = self.get_loaded(number)
        else:
            loaded = await loop.run_in_executor(None, self.get_loaded, number)
        if rows and len(rows[0]) > loaded.model.n_features_in_ + _MAX_EXTRA_COLUMNS:
            raise ParameterError("rows", "...", "have more columns than the schema", "send the schema's columns only")
        if len(rows) > _MAX_BATCH_ROWS:
            return await loop.run_in_executor(None, predict_rows, loaded, rows)
        request = _PendingRequest(rows, loop.create_future())
        waiting = self._pending.setdefault(number, [])
        waiting.append(request)
        if len(waiting) == 1:
            loop.call_soon(self._flush_requests, number, loaded)
        return await request.future

    def _flush_requests(self, number: str, loaded: LoadedModel) -> None:
        requests = self._pending.pop(number)
        while requests:
            batch, n_rows = list[_PendingRequest](), 0
            while requests and (not batch or n_rows + len(requests[0].rows) <= _MAX_BATCH_ROWS):
                n_rows += len(requests[0].rows)
                batch.append(requests.pop(0))
            _predict_batch(loaded, batch)


def predict_rows(loaded: LoadedModel, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the predictions of rows, with class probabilities for classifiers."""
    codes = loaded.encoder.encode(rows)
    if not hasattr(loaded.model, "predict_proba"):
        return {"predictions": loaded.model._predict_encoded(codes).tolist()}
    probabilities, labels = loaded.model._predict_encoded(codes)
    return {"predictions": labels.tolist(), "probabilities": probabilities.round(6).tolist()}


def _predict_batch(loaded: LoadedModel, requests: list[_PendingRequest]) -> None:
    try:
        result = predict_rows(loaded, [row for request in requests for row in request.rows])
    except VeilwoodError:
        for request in requests:  # at least one is invalid: predict each on its own
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
    start = 0
    for request in requests:
        stop = start + len(request.rows)
        if not request.future.cancelled():
            request.future.set_result({name: values[start:stop] for name, values in result.items()})
        start = stop
