# SPDX-License-Identifier: Apache-2.0
"""Routes of plans, jobs, models, free predictions and private queries."""

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
from veilwood.reporting import report
from veilwood_service import store
from veilwood_service.access import AuthenticatedCaller, Service, get_service
from veilwood_service.accounts import Caller
from veilwood_service.predictions import parse_csv_rows, predict_rows
from veilwood_service.store import DatabaseRow
from veilwood_service.training import RunRequest, model_path

router = APIRouter(prefix="/v1", tags=["models"])
RetryKey = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]


class NewPlan(BaseModel):
    """Request body for planning a training: estimator, budget and parameters."""

    estimator: Annotated[str, Field(max_length=64)] = "private-forest"
    epsilon: float | str = 1.0
    delta: float | str = 0.0
    parameters: dict[str, Any] = Field(default_factory=dict, max_length=32)


class NewEvaluation(BaseModel):
    """Request body for planning an evaluation: its budget."""

    epsilon: float = 0.1
    delta: float = 0.0


class Signature(BaseModel):
    """Request body for signing a plan: the hash that the signer has read."""

    fingerprint: Annotated[str, Field(max_length=64)]


class Questions(BaseModel):
    """Request body for private queries: public rows, and the epsilon of the batch."""

    rows: list[dict[str, Any]] = Field(max_length=10_000)
    epsilon: float | None = None


# -- plans -----------------------------------------------------------------------------------------------------------


@router.get("/plans")
def list_plans(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List the caller's plans; all plans for custodians and auditors."""
    service = get_service(request)
    return [_plan_summary(plan) for plan in service.database.find_all(store.plans) if _may_see(caller, plan)]


@router.post("/datasets/{name}/plans", status_code=201)
def add_plan(request: Request, caller: AuthenticatedCaller, name: str, body: NewPlan) -> dict[str, Any]:
    """Plan a training: the measurements and their loss. Reads no row and spends nothing."""
    caller.require_scope("plan")
    run = RunRequest(body.estimator, body.epsilon, body.delta, body.parameters)
    return _plan_summary(get_service(request).plans.propose_training(caller.name, name, run))


@router.post("/models/{number}/evaluations", status_code=201)
def add_evaluation(request: Request, caller: AuthenticatedCaller, number: str, body: NewEvaluation) -> dict[str, Any]:
    """Plan an evaluation of a model on the private rows. It is signed and run like a training."""
    caller.require_scope("plan")
    run = RunRequest("", body.epsilon, body.delta)
    return _plan_summary(get_service(request).plans.propose_evaluation(caller.name, number, run))


@router.get("/plans/{number}")
def get_plan(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Return a plan, as text and as JSON."""
    plan = _get_visible_plan(get_service(request), caller, number)
    body = None if plan["body"] is None else json.loads(plan["body"])
    text = None if body is None else Plan.from_dict(body).explain()
    return {**_plan_summary(plan), "words": text, "body": body}


@router.post("/plans/{number}/signature")
def sign_plan(request: Request, caller: AuthenticatedCaller, number: str, body: Signature) -> dict[str, Any]:
    """Sign a plan by its hash."""
    caller.require_scope("sign")
    return _plan_summary(get_service(request).plans.sign_plan(caller.name, number, body.fingerprint))


@router.post("/plans/{number}/jobs", status_code=202)
def run_plan(request: Request, caller: AuthenticatedCaller, number: str, retry_key: RetryKey = None) -> dict[str, Any]:
    """Run a signed plan in the background. A retry with the same Idempotency-Key returns the same job."""
    caller.require_scope("run")
    service = get_service(request)
    return _job_summary(caller, service.jobs.add(caller.name, _get_visible_plan(service, caller, number), retry_key))


# -- jobs ------------------------------------------------------------------------------------------------------------


@router.get("/jobs")
def list_jobs(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List the caller's jobs; all jobs for custodians, auditors and operators."""
    jobs = get_service(request).database.find_all(store.jobs)
    return [_job_summary(caller, job) for job in jobs if _may_see(caller, job) or "operate" in caller.scopes]


@router.get("/jobs/{number}")
def get_job(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Return a job and its state: queued, running, done, failed or cancelled."""
    job = get_service(request).jobs.get(number)
    if not _may_see(caller, job) and "operate" not in caller.scopes:
        raise NotFoundError("job", number)
    return _job_summary(caller, job)


@router.delete("/jobs/{number}")
def cancel_job(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Cancel a job. Its reservation counts as spent."""
    caller.require_scope("run")
    service = get_service(request)
    if not _may_see(caller, service.jobs.get(number)):
        raise NotFoundError("job", number)
    return _job_summary(caller, service.jobs.cancel(number))


# -- models ----------------------------------------------------------------------------------------------------------


@router.get("/models")
def list_models(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List the releases: models, predictors and evaluations. All accounts may see released values."""
    return [_model_summary(model) for model in get_service(request).database.find_all(store.models)]


@router.get("/models/{number}")
def get_model(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Return one release with its certificate."""
    return _model_summary(_get_model_record(get_service(request), number))


@router.get("/models/{number}/effects")
def get_effects(request: Request, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Return the effect of each column in a model, from released values. Free."""
    model = get_service(request).predictions.get_model(number)
    if not hasattr(model, "explain"):
        raise UseError(f"{type(model).__name__} has no explanation of effects. Hint: train a private-forest.")
    effects: dict[str, Any] = model.explain().to_dict()
    return effects


@router.get("/models/{number}/report")
def get_report(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Return an HTML report on a model: guarantee, effects, quality and certificate."""
    service = get_service(request)
    model = service.predictions.get_model(number)
    with tempfile.TemporaryDirectory() as folder:
        path = report(model, os.path.join(folder, "report.html"))
        content = path.read_bytes()
    # The report contains its own styles and images, and no scripts.
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:"}
    return Response(content, media_type="text/html", headers=policy)


@router.get("/models/{number}/file")
def get_file(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Download a trained model."""
    service = get_service(request)
    service.predictions.get_model(number)
    # No Last-Modified header: the time a training ended may depend on rows.
    headers = {"Content-Disposition": f'attachment; filename="{number}.veilwood"'}
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
    """Return the loss and the expected error of a batch of private answers. Free."""
    caller.require_scope("ask")
    service = get_service(request)
    return dict(service.private_queries.quote_batch(caller.name, number, body.rows, body.epsilon))


@router.post("/models/{number}/answers")
def ask(request: Request, caller: AuthenticatedCaller, number: str, body: Questions) -> dict[str, Any]:
    """Answer a batch privately. It is charged first; repeating the same batch is free."""
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
    """Return what a caller may see of a job. Only custodians see its end and detail, which may depend on rows."""
    summary = {name: job[name] for name in ("id", "plan", "account", "state", "message", "created")}
    if "data" in caller.scopes:
        summary |= {"detail": job["detail"], "ended": job["ended"]}
    return summary


def _model_summary(model: DatabaseRow) -> dict[str, Any]:
    names = ("id", "plan", "dataset", "kind", "estimator", "created")
    parsed = {name: None if model[name] is None else json.loads(model[name]) for name in ("certificate", "result")}
    return {**{name: model[name] for name in names}, **parsed}


predict_router = APIRouter(prefix="/v1", tags=["models"])

_ROWS_HINT: Final = 'send a body like {"rows": [{"age": 31}]}'
_FORMULA_PREFIXES: Final = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs cells that start with one of these


# The route parses its body itself, so the schema of the body is declared here.
_ROWS_SCHEMA: Final = {
    "type": "object",
    "required": ["rows"],
    "properties": {"rows": {"type": "array", "items": {"type": "object"}}},
}
_PREDICT_BODY: Final = {"requestBody": {"content": {"application/json": {"schema": _ROWS_SCHEMA}}, "required": True}}


@predict_router.post("/models/{number}/predict", openapi_extra=_PREDICT_BODY)
async def predict(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Predict rows, for free. The body is {"rows": [{"column": value, ...}, ...]}."""
    caller.require_scope("ask")
    service = get_service(request)
    rows = _parse_json_rows(await request.body(), service.settings.limits.rows_a_request)
    return Response(orjson.dumps(await service.predictions.predict(number, rows)), media_type="application/json")


@predict_router.post("/models/{number}/predict.csv")
async def predict_csv(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Predict the rows of a CSV file, for free, and return a CSV file."""
    caller.require_scope("ask")
    service = get_service(request)
    body, max_rows = await request.body(), service.settings.limits.rows_a_request
    text = await run_in_threadpool(_predict_to_csv, service, number, body, max_rows)
    headers = {"Content-Disposition": f'attachment; filename="{number}.csv"'}
    return Response(text, media_type="text/csv", headers=headers)


def _parse_json_rows(body: bytes, max_rows: int) -> list[dict[str, Any]]:
    try:
        rows = orjson.loads(body)["rows"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise ParameterError("rows", "...", "cannot be read", _ROWS_HINT) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ParameterError("rows", "...", "is not a list of rows", _ROWS_HINT)
    _check_row_count(rows, max_rows)
    return rows


def _check_row_count(rows: list[dict[str, Any]], max_rows: int) -> None:
    if len(rows) > max_rows:
        raise ParameterError("rows", len(rows), "exceeds the limit of one request", f"send at most {max_rows} rows")


def _predict_to_csv(service: Service, number: str, body: bytes, max_rows: int) -> str:
    loaded = service.predictions.get_loaded(number)
    model = loaded.model
    rows = parse_csv_rows(body, model.schema_)
    _check_row_count(rows, max_rows)
    result = predict_rows(loaded, rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    classes = [str(name) for name in getattr(model, "classes_", [])]
    writer.writerow(["prediction", *(f"probability_{name}" for name in classes)])
    probabilities = result.get("probabilities", [[]] * len(rows))
    for label, of_row in zip(result["predictions"], probabilities, strict=True):
        writer.writerow([_escape_formula(label), *of_row])
    return out.getvalue()


def _escape_formula(value: Any) -> Any:
    """Quote a text that a spreadsheet would run as a formula: class names come from an uploaded schema."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_PREFIXES) else value
