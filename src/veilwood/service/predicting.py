# SPDX-License-Identifier: Apache-2.0
"""Free predictions of trained models: loaded once, and those asked for at the same moment computed together."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from veilwood.errors import ModelFileError, ParameterError, VeilwoodError
from veilwood.models.file import load
from veilwood.service import store
from veilwood.service.rows import RowCodes
from veilwood.service.settings import Settings
from veilwood.service.store import Store
from veilwood.service.training import digest_of, model_path

__all__ = ["Loaded", "Predicting", "answer"]

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
