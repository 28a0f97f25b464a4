# SPDX-License-Identifier: Apache-2.0
"""Routes about plans, jobs and models: propose, sign, run, ask at a price, download."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from veilwood.errors import NotFoundError, ParameterError, UseError
from veilwood.models.onnx import export_onnx
from veilwood.privacy.plan import Plan
from veilwood.report import report
from veilwood_service import store
from veilwood_service.access import AuthenticatedCaller, Service, get_service
from veilwood_service.accounts import Caller
from veilwood_service.predictions import parse_csv_rows, predict_rows
from veilwood_service.store import DatabaseRow
from veilwood_service.training import RunRequest, model_path

router = APIRouter(prefix="/v1", tags=["models"])
RetryKey = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]


class NewPlan(BaseModel):
    """What to train: an estimator by name, its budget, its parameters."""

    estimator: Annotated[str, Field(max_length=64)] = "private-forest"
    epsilon: float | str = 1.0
    delta: float | str = 0.0
    parameters: dict[str, Any] = Field(default_factory=dict, max_length=32)


class NewEvaluation(BaseModel):
    """What an evaluation may cost."""

    epsilon: float = 0.1
    delta: float = 0.0


class Signature(BaseModel):
    """The hash of the plan, as whoever signs has read it."""

    fingerprint: Annotated[str, Field(max_length=64)]


class Questions(BaseModel):
    """Public questions, as rows, and the price of the batch."""

    rows: list[dict[str, Any]] = Field(max_length=10_000)
    epsilon: float | None = None


# -- plans -----------------------------------------------------------------------------------------------------------


@router.get("/plans")
def list_plans(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List one's own plans; all of them for custodians and auditors."""
    service = get_service(request)
    return [_plan_summary(plan) for plan in service.database.find_all(store.plans) if _may_see(caller, plan)]


@router.post("/datasets/{name}/plans", status_code=201)
def add_plan(request: Request, caller: AuthenticatedCaller, name: str, body: NewPlan) -> dict[str, Any]:
    """Plan a training: what will be measured and what it costs. No row is read, nothing is spent."""
    caller.require_scope("plan")
    wanted = RunRequest(body.estimator, body.epsilon, body.delta, body.parameters)
    return _plan_summary(get_service(request).plans.propose_training(caller.name, name, wanted))


@router.post("/models/{number}/evaluations", status_code=201)
def add_evaluation(request: Request, caller: AuthenticatedCaller, number: str, body: NewEvaluation) -> dict[str, Any]:
    """Plan an evaluation of a model on the private rows; it is signed and run like a training."""
    caller.require_scope("plan")
    wanted = RunRequest("", body.epsilon, body.delta)
    return _plan_summary(get_service(request).plans.propose_evaluation(caller.name, number, wanted))


@router.get("/plans/{number}")
def get_plan(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Return a plan, in words and whole."""
    plan = _get_visible_plan(get_service(request), caller, number)
    body = None if plan["body"] is None else json.loads(plan["body"])
    words = None if body is None else Plan.from_dict(body).explain()
    return {**_plan_summary(plan), "words": words, "body": body}


@router.post("/plans/{number}/signature")
def sign_plan(request: Request, caller: AuthenticatedCaller, number: str, body: Signature) -> dict[str, Any]:
    """Sign a plan by its hash."""
    caller.require_scope("sign")
    return _plan_summary(get_service(request).plans.sign_plan(caller.name, number, body.fingerprint))


@router.post("/plans/{number}/jobs", status_code=202)
def run_plan(request: Request, caller: AuthenticatedCaller, number: str, retry_key: RetryKey = None) -> dict[str, Any]:
    """Run a signed plan in the background. A retry with the same Idempotency-Key starts nothing twice."""
    caller.require_scope("run")
    service = get_service(request)
    return _job_summary(caller, service.jobs.add(caller.name, _get_visible_plan(service, caller, number), retry_key))


# -- jobs ------------------------------------------------------------------------------------------------------------


@router.get("/jobs")
def list_jobs(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List one's own jobs; all of them for custodians, auditors and operators."""
    found = get_service(request).database.find_all(store.jobs)
    return [_job_summary(caller, job) for job in found if _may_see(caller, job) or "operate" in caller.scopes]


@router.get("/jobs/{number}")
def get_job(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Say whether a job is queued, running, done, failed or cancelled."""
    job = get_service(request).jobs.get(number)
    if not _may_see(caller, job) and "operate" not in caller.scopes:
        raise NotFoundError("job", number)
    return _job_summary(caller, job)


@router.delete("/jobs/{number}")
def cancel_job(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Cancel a job. What it had reserved stays spent."""
    caller.require_scope("run")
    service = get_service(request)
    if not _may_see(caller, service.jobs.get(number)):
        raise NotFoundError("job", number)
    return _job_summary(caller, service.jobs.cancel(number))


# -- models ----------------------------------------------------------------------------------------------------------


@router.get("/models")
def list_models(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List what was released: models, predictors, evaluations. Released values are public to all accounts."""
    return [_model_summary(model) for model in get_service(request).database.find_all(store.models)]


@router.get("/models/{number}")
def get_model(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Return one of them with its certificate."""
    return _model_summary(_get_model_record(get_service(request), number))


@router.get("/models/{number}/effects")
def get_effects(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Return what a model has learned of each column, from released values; free."""
    model = get_service(request).predictions.get_model(number)
    if not hasattr(model, "explain"):
        raise UseError(f"{type(model).__name__} does not explain itself. Hint: train a private-forest.")
    effects: dict[str, Any] = model.explain().to_dict()
    return effects


@router.get("/models/{number}/report")
def get_report(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Return one page about a model, to read or print: guarantee, effects, quality, certificate."""
    service = get_service(request)
    model = service.predictions.get_model(number)
    with tempfile.TemporaryDirectory() as folder:
        path = report(model, os.path.join(folder, "report.html"))
        content = path.read_bytes()
    # The page holds its own style and pictures, and nothing that runs.
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:"}
    return Response(content, media_type="text/html", headers=policy)


@router.get("/models/{number}/file")
def get_file(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Download a trained model."""
    service = get_service(request)
    service.predictions.get_model(number)
    headers = {"Content-Disposition": f'attachment; filename="{number}.veilwood"'}  # no time: that may tell of rows
    content = model_path(service.settings, number).read_bytes()
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.get("/models/{number}/onnx")
def get_onnx(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Download a trained model as ONNX."""
    model = get_service(request).predictions.get_model(number)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        export_onnx(model, path)
        with open(path, "rb") as file:
            content = file.read()
    headers = {"Content-Disposition": f'attachment; filename="{number}.onnx"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.post("/models/{number}/quote")
def quote(request: Request, caller: AuthenticatedCaller, number: str, body: Questions) -> dict[str, Any]:
    """Say what a batch of private answers would cost, and how good they would be. Free."""
    caller.require_scope("ask")
    service = get_service(request)
    return dict(service.private_queries.quote_batch(caller.name, number, body.rows, body.epsilon))


@router.post("/models/{number}/answers")
def ask(request: Request, caller: AuthenticatedCaller, number: str, body: Questions) -> dict[str, Any]:
    """Answer a batch privately. It is charged first; the same batch again is free."""
    caller.require_scope("ask")
    service = get_service(request)
    return dict(service.private_queries.answer_batch(caller.name, number, body.rows, body.epsilon))


# -- inside ----------------------------------------------------------------------------------------------------------


def _may_see(caller: Caller, entry: DatabaseRow) -> bool:
    return entry["account"] == caller.name or bool({"records", "sign"} & caller.scopes)


def _get_visible_plan(service: Service, caller: Caller, number: str) -> DatabaseRow:
    plan = service.plans.get_plan(number)
    if not _may_see(caller, plan):
        raise NotFoundError("plan", number)
    return plan


def _get_model_record(service: Service, number: str) -> DatabaseRow:
    model = service.database.find(store.models, id=number)
    if model is None:
        raise NotFoundError("model", number)
    return model


def _plan_summary(plan: DatabaseRow) -> dict[str, Any]:
    names = ("id", "dataset", "account", "kind", "estimator", "fingerprint", "model", "signed_by", "signed", "created")
    return {**{name: plan[name] for name in names}, "asked": json.loads(plan["asked"])}


def _job_summary(caller: Caller, job: DatabaseRow) -> dict[str, Any]:
    """What a person sees of a job. When it ended, and why it failed, may tell of rows: for custodians alone."""
    shown = {name: job[name] for name in ("id", "plan", "account", "state", "message", "created")}
    if "data" in caller.scopes:
        shown |= {"detail": job["detail"], "ended": job["ended"]}
    return shown


def _model_summary(model: DatabaseRow) -> dict[str, Any]:
    names = ("id", "plan", "dataset", "kind", "estimator", "created")
    read = {name: None if model[name] is None else json.loads(model[name]) for name in ("certificate", "result")}
    return {**{name: model[name] for name in names}, **read}


predict_router = APIRouter(prefix="/v1", tags=["models"])

_FORMULA_PREFIXES: Final = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run what begins so


@predict_router.post("/models/{number}/predict", openapi_extra={"requestBody": {"content": {"application/json": {"schema": {
    "type": "object", "required": ["rows"], "properties": {"rows": {"type": "array", "items": {"type": "object"}}},
}}}, "required": True}})  # fmt: skip
async def predict(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Predict for rows, for free: {"rows": [{"column": value, ...}, ...]}."""
    caller.require_scope("ask")
    service = get_service(request)
    rows = _parse_json_rows(await request.body(), service.settings.limits.rows_a_request)
    return Response(orjson.dumps(await service.predictions.predict(number, rows)), media_type="application/json")


@predict_router.post("/models/{number}/predict.csv")
async def predict_csv(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Predict for the rows of a CSV file in the body, for free; the answer is a CSV file."""
    caller.require_scope("ask")
    service = get_service(request)
    body, most = await request.body(), service.settings.limits.rows_a_request
    text = await run_in_threadpool(_predict_to_csv, service, number, body, most)
    headers = {"Content-Disposition": f'attachment; filename="{number}.csv"'}
    return Response(text, media_type="text/csv", headers=headers)


def _parse_json_rows(body: bytes, max_rows: int) -> list[dict[str, Any]]:
    try:
        rows = orjson.loads(body)["rows"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise ParameterError("rows", "...", "cannot be read", 'a body like {"rows": [{"age": 31}]}') from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ParameterError("rows", "...", "are not a list of rows", 'a body like {"rows": [{"age": 31}]}')
    if len(rows) > max_rows:
        raise ParameterError("rows", len(rows), "are too many for one request", f"at most {max_rows}")
    return rows


def _predict_to_csv(service: Service, number: str, body: bytes, max_rows: int) -> str:
    loaded = service.predictions.get_loaded(number)
    model = loaded.model
    rows = parse_csv_rows(body, model.schema_)
    if len(rows) > max_rows:
        raise ParameterError("rows", len(rows), "are too many for one request", f"at most {max_rows}")
    found = predict_rows(loaded, rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    classes = [str(name) for name in getattr(model, "classes_", [])]
    writer.writerow(["prediction", *(f"probability_{name}" for name in classes)])
    shares = found.get("probabilities", [[]] * len(rows))
    for label, own in zip(found["predictions"], shares, strict=True):
        writer.writerow([_escape_formula(label), *own])
    return out.getvalue()


def _escape_formula(value: Any) -> Any:
    """Keep a spreadsheet from running a text: classes come from a schema that somebody wrote."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_PREFIXES) else value
