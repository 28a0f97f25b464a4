# SPDX-License-Identifier: Apache-2.0
"""Routes of free predictions. They are asked for most, so they stand before all others."""

from __future__ import annotations

import csv
import io
from typing import Any, Final

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from veilwood.errors import ParameterError
from veilwood.service.access import Service, WhoAsks, service_of
from veilwood.service.predicting import answer
from veilwood.service.rows import rows_of_csv

router = APIRouter(prefix="/v1", tags=["models"])

_RISKY: Final = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run what begins so


@router.post("/models/{number}/predict", openapi_extra={"requestBody": {"content": {"application/json": {"schema": {
    "type": "object", "required": ["rows"], "properties": {"rows": {"type": "array", "items": {"type": "object"}}},
}}}, "required": True}})  # fmt: skip
async def predict(request: Request, caller: WhoAsks, number: str) -> Response:
    """Predict for rows, for free: {"rows": [{"column": value, ...}, ...]}."""
    caller.require("ask")
    service = service_of(request)
    rows = _rows(await request.body(), service.settings.limits.rows_a_request)
    return Response(orjson.dumps(await service.predicting.predict(number, rows)), media_type="application/json")


@router.post("/models/{number}/predict.csv")
async def predict_csv(request: Request, caller: WhoAsks, number: str) -> Response:
    """Predict for the rows of a CSV file in the body, for free; the answer is a CSV file."""
    caller.require("ask")
    service = service_of(request)
    body, most = await request.body(), service.settings.limits.rows_a_request
    text = await run_in_threadpool(_predict_csv, service, number, body, most)
    headers = {"Content-Disposition": f'attachment; filename="{number}.csv"'}
    return Response(text, media_type="text/csv", headers=headers)


def _rows(body: bytes, most: int) -> list[dict[str, Any]]:
    try:
        rows = orjson.loads(body)["rows"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise ParameterError("rows", "...", "cannot be read", 'a body like {"rows": [{"age": 31}]}') from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ParameterError("rows", "...", "are not a list of rows", 'a body like {"rows": [{"age": 31}]}')
    if len(rows) > most:
        raise ParameterError("rows", len(rows), "are too many for one request", f"at most {most}")
    return rows


def _predict_csv(service: Service, number: str, body: bytes, most: int) -> str:
    loaded = service.predicting.loaded(number)
    model = loaded.model
    rows = rows_of_csv(body, model.schema_)
    if len(rows) > most:
        raise ParameterError("rows", len(rows), "are too many for one request", f"at most {most}")
    found = answer(loaded, rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    classes = [str(name) for name in getattr(model, "classes_", [])]
    writer.writerow(["prediction", *(f"probability_{name}" for name in classes)])
    shares = found.get("probabilities", [[]] * len(rows))
    for label, own in zip(found["predictions"], shares, strict=True):
        writer.writerow([_harmless(label), *own])
    return out.getvalue()


def _harmless(value: Any) -> Any:
    """Keep a spreadsheet from running a text: classes come from a schema that somebody wrote."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_RISKY) else value
