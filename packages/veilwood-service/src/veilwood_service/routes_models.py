# SPDX-License-Identifier: Apache-2.0
"""Routes of plans, jobs, models, free predictions and private queries."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from veilwood.errors import NotFoundError, ParameterError, UseError
from veilwood.models.onnx import export_onnx
from veilwood.privacy.loss import guarantee_strength
from veilwood.privacy.plan import Plan
from veilwood.reporting import report
from veilwood_service import responses, store
from veilwood_service.access import (
    AskCaller,
    AuthenticatedCaller,
    PlanCaller,
    RunCaller,
    RunningService,
    Service,
    SignCaller,
)
from veilwood_service.accounts import Caller
from veilwood_service.budgets import grant_of
from veilwood_service.predictions import parse_csv_rows, predict_rows
from veilwood_service.routes_data import Amount, body_of, parse_body
from veilwood_service.routes_people import PageCursor, PageLength
from veilwood_service.store import DatabaseRow
from veilwood_service.training import Grant, RunRequest, describe_estimators

router = APIRouter(prefix="/v1", tags=["models"])
RetryKey = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]
ModelName = Annotated[str, Field(max_length=100)]
Note = Annotated[str, Field(max_length=2000)]


class NewPlan(responses.RequestBody):
    """Request body for planning a training run: estimator, budget, parameters, and name and note of the model."""

    estimator: Annotated[str, Field(max_length=64)] = "private-forest"
    epsilon: Amount = 1.0
    delta: Amount = 0.0
    parameters: dict[str, Any] = Field(default_factory=dict, max_length=32)
    name: ModelName = ""
    note: Note = ""


class NewEvaluation(responses.RequestBody):
    """Request body for planning an evaluation: its budget."""

    epsilon: Amount = 0.1
    delta: Amount = 0.0


class Signature(responses.RequestBody):
    """Request body for signing a plan: the hash that the signer has read, and the amount that the signature allows.

    ``runs`` is a number of runs. For predictors, ``total_epsilon`` bounds the sum over all batches (by default, one
    batch), and ``askers`` names the accounts that may query: by default, the account that planned it; all by "*".
    """

    fingerprint: Annotated[str, Field(max_length=64)]
    runs: int = Field(1, strict=True)
    total_epsilon: Amount | None = None
    askers: list[Annotated[str, Field(max_length=64)]] | None = Field(None, max_length=100)


class ChangedModel(responses.RequestBody):
    """Request body for changing the name and the note of a model."""

    name: ModelName | None = None
    note: Note | None = None


class Questions(responses.RequestBody):
    """Request body for private queries: public rows, and the epsilon of the batch."""

    rows: list[dict[str, Any]] = Field(max_length=10_000)
    epsilon: Amount | None = None


# -- plans -----------------------------------------------------------------------------------------------------------


@router.get("/estimators")
def list_estimators(caller: AuthenticatedCaller) -> list[responses.Estimator]:
    """List the estimators with their parameters."""
    return [responses.Estimator(**facts) for facts in describe_estimators()]


@router.get("/plans")
def list_plans(
    service: RunningService, caller: AuthenticatedCaller, limit: PageLength = 100, after: PageCursor = None
) -> responses.Page[responses.PlanSummary]:
    """List the caller's plans, newest first; all plans for custodians and auditors."""
    rows, cursor = service.database.find_page(store.plans, limit, after, *_visible_to(caller, store.plans))
    return responses.Page[responses.PlanSummary](
        items=[responses.PlanSummary(**_plan_facts(service, caller, plan)) for plan in rows], next=cursor
    )


@router.post("/datasets/{name}/plans", status_code=201)
async def add_plan(service: RunningService, caller: PlanCaller, name: str, body: NewPlan) -> responses.PlanSummary:
    """Plan a training run: the measurements and their loss. Reads no row and spends nothing."""
    run = RunRequest(body.estimator, body.epsilon, body.delta, body.parameters, body.name, body.note)
    plan = await service.lanes.plans.run(service.plans.propose_training, caller.name, name, run)
    return responses.PlanSummary(**_plan_facts(service, caller, plan))


@router.post("/models/{number}/evaluations", status_code=201)
async def add_evaluation(
    service: RunningService, caller: PlanCaller, number: str, body: NewEvaluation
) -> responses.PlanSummary:
    """Plan an evaluation of a model on the private rows. It is signed and run like a training run."""
    run = RunRequest("", body.epsilon, body.delta)
    plan = await service.lanes.plans.run(service.plans.propose_evaluation, caller.name, number, run)
    return responses.PlanSummary(**_plan_facts(service, caller, plan))


@router.get("/plans/{number}")
def get_plan(service: RunningService, caller: AuthenticatedCaller, number: str) -> responses.PlanDetail:
    """Return a plan, as text and as JSON."""
    plan = _get_visible_plan(service, caller, number)
    body = None if plan["body"] is None else json.loads(plan["body"])
    text = None if body is None else Plan.from_dict(body).explain()
    warnings, epsilon = list[str](), _as_number(json.loads(plan["asked"])["epsilon"])
    if verdict := guarantee_strength(epsilon).verdict:
        warnings.append(verdict)
    remaining = service.ledgers.remaining_for(plan["dataset"], caller.name)
    if remaining is not None and epsilon > (remaining.epsilon or 0):
        warnings.append(f"only {remaining} of the budget is left for you, so this plan cannot run")
    return responses.PlanDetail(**_plan_facts(service, caller, plan), words=text, body=body, warnings=warnings)


@router.post("/plans/{number}/signature")
def sign_plan(service: RunningService, caller: SignCaller, number: str, body: Signature) -> responses.PlanSummary:
    """Sign a plan by its hash, for a number of runs or, for predictors, a total loss and accounts that may query."""
    grant = Grant(body.runs, body.total_epsilon, body.askers)
    plan = service.plans.sign_plan(caller.name, number, body.fingerprint, grant)
    return responses.PlanSummary(**_plan_facts(service, caller, plan))


@router.post("/plans/{number}/jobs", status_code=202)
def run_plan(service: RunningService, caller: RunCaller, number: str, retry_key: RetryKey = None) -> responses.Job:
    """Run a signed plan in the background. A retry with the same Idempotency-Key returns the same job."""
    plan = _get_visible_plan(service, caller, number)
    return _job_summary(caller, service.jobs.add(caller.name, plan, retry_key), service.jobs.places())


# -- jobs ------------------------------------------------------------------------------------------------------------


@router.get("/jobs")
def list_jobs(
    service: RunningService,
    caller: AuthenticatedCaller,
    limit: PageLength = 100,
    after: PageCursor = None,
    plan: Annotated[str | None, Query(max_length=32)] = None,
) -> responses.Page[responses.Job]:
    """List the caller's jobs, newest first; all jobs for custodians, auditors and operators."""
    conditions = [] if "operate" in caller.scopes else _visible_to(caller, store.jobs)
    where = {} if plan is None else {"plan": plan}
    rows, cursor = service.database.find_page(store.jobs, limit, after, *conditions, **where)
    places = service.jobs.places() if any(job["state"] == "queued" for job in rows) else {}
    return responses.Page[responses.Job](items=[_job_summary(caller, job, places) for job in rows], next=cursor)


@router.get("/jobs/{number}")
def get_job(service: RunningService, caller: AuthenticatedCaller, number: str) -> responses.Job:
    """Return a job and its state: queued, running, done, failed or cancelled."""
    job = service.jobs.get(number)
    if not _may_see(caller, job) and "operate" not in caller.scopes:
        raise NotFoundError("job", number)
    return _job_summary(caller, job, service.jobs.places() if job["state"] == "queued" else {})


@router.delete("/jobs/{number}")
def cancel_job(service: RunningService, caller: RunCaller, number: str) -> responses.Job:
    """Cancel a job. Its reservation counts as spent."""
    if not _may_see(caller, service.jobs.get(number)):
        raise NotFoundError("job", number)
    return _job_summary(caller, service.jobs.cancel(caller.name, number), {})


# -- models ----------------------------------------------------------------------------------------------------------


@router.get("/models")
def list_models(
    service: RunningService, caller: AuthenticatedCaller, limit: PageLength = 100, after: PageCursor = None
) -> responses.Page[responses.Model]:
    """List the releases, newest first: models, predictors and evaluations. All accounts may see released values."""
    rows, cursor = service.database.find_page(store.models, limit, after)
    return responses.Page[responses.Model](items=_model_summaries(service, rows), next=cursor)


@router.get("/models/{number}")
def get_model(service: RunningService, caller: AuthenticatedCaller, number: str) -> responses.Model:
    """Return one release with its certificate."""
    return _model_summaries(service, [_get_model_record(service, number)])[0]


@router.patch("/models/{number}")
def change_model(service: RunningService, caller: PlanCaller, number: str, body: ChangedModel) -> responses.Model:
    """Change the name or the note of a model; for its owner and custodians."""
    model = _get_model_record(service, number)
    if model["account"] != caller.name:
        caller.require_scope("data")
    values = body.model_dump(exclude_none=True)
    if values:
        with service.database.transaction():
            service.database.update(store.models, {"id": number}, **values)
            service.database.record_event(caller.name, "model.name", number)
    return _model_summaries(service, [_get_model_record(service, number)])[0]


@router.get("/models/{number}/evaluations")
def list_evaluations(service: RunningService, caller: AuthenticatedCaller, number: str) -> list[responses.Model]:
    """List the evaluations of a model, newest first."""
    _get_model_record(service, number)
    return _model_summaries(service, service.database.find_all(store.models, evaluated=number)[::-1])


@router.get("/models/{number}/effects")
async def get_effects(service: RunningService, caller: AuthenticatedCaller, number: str) -> dict[str, Any]:
    """Return the effect of each column in a model, from released values. Spends no budget."""
    effects: dict[str, Any] = (await service.lanes.files.run(_explain_model, service, number)).to_dict()
    return effects


def _explain_model(service: Service, number: str) -> Any:
    model = service.predictions.get_model(number)
    if not hasattr(model, "explain"):
        raise UseError(f"{type(model).__name__} has no explanation of effects. Hint: train a private-forest.")
    return model.explain()


@router.get("/models/{number}/report", response_class=Response)
async def get_report(service: RunningService, caller: AuthenticatedCaller, number: str) -> Response:
    """Return an HTML report on a model: guarantee, effects, quality and certificate."""
    content = await service.lanes.files.run(_export_model, service, number, "report.html", report)
    # The report contains its own styles and images, and no scripts.
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:"}
    return Response(content, media_type="text/html", headers=policy)


@router.get("/models/{number}/file", response_class=Response)
def get_file(service: RunningService, caller: AskCaller, number: str) -> Response:
    """Download a trained model."""
    stored = service.database.find(store.model_files, model=number)
    if stored is None:
        raise NotFoundError("trained model", number, hint="choose one from the list of models")
    # No Last-Modified header: the time a training ended may depend on rows.
    return _as_download(stored["content"], f"{number}.veilwood")


@router.get("/models/{number}/onnx", response_class=Response)
async def get_onnx(service: RunningService, caller: AskCaller, number: str) -> Response:
    """Download a trained model as ONNX."""
    content = await service.lanes.files.run(_export_model, service, number, "model.onnx", export_onnx)
    return _as_download(content, f"{number}.onnx")


def _export_model(service: Service, number: str, name: str, export: Any) -> bytes:
    model = service.predictions.get_model(number)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        export(model, path)
        with open(path, "rb") as file:
            return file.read()


def _as_download(content: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.post("/models/{number}/quote", openapi_extra=body_of(Questions))
async def quote(request: Request, service: RunningService, caller: AskCaller, number: str) -> responses.Quote:
    """Return the privacy loss and the expected error of a batch of private queries, without charging it."""
    return responses.Quote(**await _ask_privately(request, service, caller, number, "quote_batch"))


@router.post("/models/{number}/answers", openapi_extra=body_of(Questions))
async def ask(request: Request, service: RunningService, caller: AskCaller, number: str) -> responses.Answered:
    """Answer a batch of private queries. It is charged first; repeating the same batch spends nothing."""
    return responses.Answered(**await _ask_privately(request, service, caller, number, "answer_batch"))


async def _ask_privately(
    request: Request, service: Service, caller: Caller, number: str, method: Literal["quote_batch", "answer_batch"]
) -> dict[str, Any]:
    body = await request.body()

    def parse_and_answer() -> dict[str, Any]:
        questions = parse_body(Questions, body)
        return dict(getattr(service.private_queries, method)(caller.name, number, questions.rows, questions.epsilon))

    return await service.lanes.answers.run(parse_and_answer)


# -- inside ----------------------------------------------------------------------------------------------------------


def _may_see(caller: Caller, entry: DatabaseRow) -> bool:
    return entry["account"] == caller.name or bool({"records", "sign"} & caller.scopes)


def _visible_to(caller: Caller, table: Any) -> list[Any]:
    """Return the condition on the records that a caller may see."""
    return [] if {"records", "sign"} & caller.scopes else [table.c.account == caller.name]


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


def _as_number(text: str) -> float:
    numerator, _, denominator = text.partition("/")
    return float(numerator) / float(denominator or 1)


def _plan_facts(service: Service, caller: Caller, plan: DatabaseRow) -> dict[str, Any]:
    facts = {name: plan[name] for name in responses.PlanSummary.model_fields if name in plan}
    facts |= {"asked": json.loads(plan["asked"]), "askers": plan["askers"] and json.loads(plan["askers"])}
    facts |= {"runs_left": None, "remaining": None}
    if plan["signed_by"] is not None:
        facts["runs_left"] = max(service.jobs.runs_left(plan), 0)
        if plan["kind"] == "answer":
            facts["remaining"] = str(service.ledgers.open(plan["dataset"]).part_balance(grant_of(plan)).remaining)
    return facts


def _job_summary(caller: Caller, job: DatabaseRow, places: dict[str, int]) -> responses.Job:
    """Return the fields of a job that a caller may see. Only custodians see end and detail, which depend on rows."""
    facts = {name: job[name] for name in ("id", "plan", "dataset", "account", "state", "message", "created")}
    if "data" in caller.scopes:
        facts |= {"detail": job["detail"], "ended": job["ended"]}
    seconds = None
    if job["state"] == "running" and job["started"]:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(job["started"])).total_seconds()
    return responses.Job(**facts, place=places.get(job["id"]), seconds=seconds)


def _model_summaries(service: Service, models: list[DatabaseRow]) -> list[responses.Model]:
    """Return the public fields of releases, with the latest measured quality."""
    trained = tuple(model["id"] for model in models if model["kind"] == "trained")
    evaluations = service.database.find_all(store.models, evaluated=trained) if trained else []
    measured = {row["evaluated"]: row["result"] for row in evaluations}
    summaries = list[responses.Model]()
    for model in models:
        parsed = {name: None if model[name] is None else json.loads(model[name]) for name in ("certificate", "result")}
        result = json.loads(measured.get(model["id"], "null")) or parsed["result"]
        quality = {} if result is None else {name: score["value"] for name, score in result["scores"].items()}
        summaries.append(responses.Model(**{**model, **parsed, "quality": quality}))
    return summaries


predict_router = APIRouter(prefix="/v1", tags=["models"])

_ROWS_HINT: Final = 'send a body like {"rows": [{"age": 31}]}'
_FORMULA_PREFIXES: Final = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs cells that start with one of these
_MAX_PLAIN_BODY: Final = 256 << 10  # bytes of a body that is parsed in the event loop: about a millisecond


class _Rows(responses.RequestBody):
    """Rows to predict, each with the columns of the schema."""

    rows: list[dict[str, Any]]


@predict_router.post(
    "/models/{number}/predict", openapi_extra=body_of(_Rows), responses={200: {"model": responses.Predictions}}
)
async def predict(request: Request, service: RunningService, caller: AskCaller, number: str) -> Response:
    """Predict rows; spends no budget. The body is {"rows": [{"column": value, ...}, ...]}."""
    body = await request.body()
    parse = partial(_parse_json_rows, body, service.settings.limits.rows_a_request)
    rows = parse() if len(body) <= _MAX_PLAIN_BODY else await service.lanes.files.run(parse)
    return Response(orjson.dumps(await service.predictions.predict(number, rows)), media_type="application/json")


_CSV_BODY: Final = {"requestBody": {"content": {"text/csv": {"schema": {"type": "string"}}}, "required": True}}


@predict_router.post("/models/{number}/predict.csv", openapi_extra=_CSV_BODY, response_class=Response)
async def predict_csv(request: Request, service: RunningService, caller: AskCaller, number: str) -> Response:
    """Predict the rows of a CSV file and return a CSV file. Spends no budget."""
    body, max_rows = await request.body(), service.settings.limits.rows_a_request
    text = await service.lanes.files.run(_predict_to_csv, service, number, body, max_rows)
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
