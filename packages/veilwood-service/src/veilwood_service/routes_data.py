# SPDX-License-Identifier: Apache-2.0
"""Routes of data sets: tables, schemas, budgets and ledgers. They accept rows and never return any."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urldefrag

import psycopg
import pyarrow.parquet as pq
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from psycopg import sql
from pydantic import BaseModel, Field

from veilwood.data.schema import Schema
from veilwood.drafting.draft import draft_from_table
from veilwood.drafting.review import Review
from veilwood.errors import LedgerError, NotFoundError, ParameterError, UseError
from veilwood.forests.expected_skill import estimate_skill
from veilwood.privacy.loss import requested_loss
from veilwood.safe_io import read_json
from veilwood_service import store
from veilwood_service.access import AuthenticatedCaller, Service, get_service
from veilwood_service.accounts import Caller
from veilwood_service.backup import end_unfinished_runs
from veilwood_service.budgets import (
    GuardedLedger,
    dataset_ledger_name,
    issued_releases,
    loss_from_certificate,
    min_remaining,
    open_allowance_ledger,
    open_guarded,
    open_ledgers_for,
    reconcile,
    unrecorded_releases,
)
from veilwood_service.settings import Settings
from veilwood_service.store import DatabaseRow, current_timestamp, new_id

_DATABASE_SCHEMES: Final = ("postgresql://", "postgres://")
_TABLE_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_CONNECT_TIMEOUT: Final = 10  # seconds


def resolve_source(settings: Settings, name: str, source: str) -> str:
    """Return the path of a table that a custodian names, with links resolved; copy a table from a database first."""
    if source.startswith(_DATABASE_SCHEMES):
        return str(copy_database_table(settings, name, source))
    path = Path(os.path.realpath(source))
    for folder in settings.allowed:
        inside = not folder.startswith(_DATABASE_SCHEMES) and path.is_relative_to(os.path.realpath(folder))
        if inside and path.exists():
            return str(path)
    raise ParameterError("source", "...", "must be in a folder that the operator allows", "upload the table instead")


def copy_database_table(settings: Settings, name: str, source: str) -> Path:
    """Copy ``postgresql://host/database#table`` to a file. The operator must have allowed the address before #."""
    address, table = urldefrag(source)
    if address not in settings.allowed:
        raise ParameterError("source", "...", "must be a database that the operator allows", "upload the table instead")
    if not _TABLE_PATTERN.fullmatch(table):
        raise ParameterError("source", "...", "names no table", "pass postgresql://host/database#schema.table")
    query = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT (FORMAT csv, HEADER)").format(sql.Identifier(*table.split(".")))
    path = settings.tables_folder / f"{name}.csv"
    unfinished = path.with_name(f".{path.name}.{new_id()}")
    try:
        with psycopg.connect(address, connect_timeout=_CONNECT_TIMEOUT) as connection, connection.cursor() as cursor:
            connection.read_only = True
            with cursor.copy(query) as rows, os.fdopen(create_private_file(unfinished), "wb") as file:
                size = 0
                for piece in rows:
                    size += len(piece)
                    if size > settings.limits.upload_bytes:
                        hint = f"reduce it to {settings.limits.upload_bytes} bytes"
                        raise ParameterError("table", "...", "exceeds the size limit", hint)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except psycopg.Error as error:  # its text may contain the address with a password
        kind = type(error).__name__
        raise ParameterError("source", "...", f"cannot be read ({kind})", "ask the operator") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def create_private_file(path: Path) -> int:
    """Create a file that only its owner can read, and return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


router = APIRouter(prefix="/v1/datasets", tags=["data"])

_NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]{0,29}")
_TABLE_MEDIA_TYPES: Final = {"text/csv": "csv", "application/vnd.apache.parquet": "parquet"}
_MAX_UNPACK_RATIO: Final = 16  # maximum size of an unpacked Parquet file, as a multiple of the upload limit


class NewDataset(BaseModel):
    """Request body for registering a data set: name, protected population, budget and source."""

    name: Annotated[str, Field(max_length=30)]
    people: Annotated[str, Field(max_length=1000, min_length=1)]
    epsilon: float | str
    delta: float | str = 0
    source: Annotated[str, Field(max_length=4000)] | None = None


class NewAllowance(BaseModel):
    """Request body for an allowance: a budget of one account or of all, permanent or renewed each year or month."""

    account: Annotated[str, Field(max_length=64)] = ""
    period: Literal["", "year", "month"] = ""
    epsilon: float | str
    delta: float | str = 0


class Answer(BaseModel):
    """A reviewer's answer about the column of the last question."""

    kind: Literal["accept", "state", "leave out", "later"]
    source: Annotated[str, Field(max_length=1000)] = ""
    bounds: dict[str, Any] = Field(default_factory=dict, max_length=8)


class ReviewStep(BaseModel):
    """Request body for one review step: the current draft, and the answer about the next column, if any."""

    draft: dict[str, Any]
    answer: Answer | None = None
    later: list[Annotated[str, Field(max_length=1000)]] = Field(default_factory=list, max_length=10_000)


class Reason(BaseModel):
    """Request body with a reason, which is recorded."""

    reason: Annotated[str, Field(max_length=1000, min_length=1)]


class Reconciliation(Reason):
    """Request body for reconciling a ledger: the reason, and certificates that the service has no record of.

    If event numbers still have a gap, ``missing_epsilon`` and ``missing_delta`` bound the loss of the missing releases.
    """

    certificates: list[dict[str, Any]] = Field(default_factory=list, max_length=10_000)
    missing_epsilon: float | str | None = None
    missing_delta: float | str = 0


@router.get("")
def list_datasets(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List the data sets, with the remaining budget of each and of the caller."""
    service = get_service(request)
    return [_dataset_summary(service, caller, dataset) for dataset in service.database.find_all(store.datasets)]


@router.post("", status_code=201)
def add_dataset(request: Request, caller: AuthenticatedCaller, body: NewDataset) -> dict[str, Any]:
    """Register a data set and create its ledger. The operator must have allowed a path or database."""
    caller.require_scope("data")
    service = get_service(request)
    if not _NAME_PATTERN.fullmatch(body.name):
        hint = "use a lower-case letter, then up to 29 lower-case letters, digits and underscores"
        raise ParameterError("name", body.name, "is not a valid name of a data set", hint)
    budget = requested_loss(body.epsilon, body.delta)
    if not budget.is_bounded:
        raise ParameterError("epsilon", body.epsilon, "is not a budget", "pass a finite number")
    if service.database.find(store.datasets, name=body.name) is not None:
        raise ParameterError("name", body.name, "is taken", "choose another name")
    source = None if body.source is None else resolve_source(service.settings, body.name, body.source)
    guarded = open_guarded(service.settings, dataset_ledger_name(body.name), body.epsilon, body.delta, body.people)
    guarded.write_checkpoint()
    values = {
        "name": body.name,
        "people": body.people,
        "source": source,
        "account": caller.name,
        "created": current_timestamp(),
    }
    service.database.add(store.datasets, **values)
    return _dataset_summary(service, caller, _get_dataset(service, body.name))


@router.get("/{name}")
def get_dataset(request: Request, caller: AuthenticatedCaller, name: str) -> dict[str, Any]:
    """Return one data set."""
    service = get_service(request)
    return _dataset_summary(service, caller, _get_dataset(service, name))


@router.put("/{name}/table")
async def upload_table(request: Request, caller: AuthenticatedCaller, name: str) -> dict[str, str]:
    """Upload the table as text/csv or application/vnd.apache.parquet, without further compression."""
    caller.require_scope("data")
    service = get_service(request)
    await run_in_threadpool(_get_dataset, service, name)
    kind = _TABLE_MEDIA_TYPES.get(request.headers.get("content-type", "").partition(";")[0].strip())
    if kind is None:
        hint = f"send one of {', '.join(_TABLE_MEDIA_TYPES)}"
        raise ParameterError("Content-Type", "...", "is not the type of a table", hint)
    path = service.settings.tables_folder / f"{name}.{kind}"
    unfinished = path.with_name(f".{path.name}.{new_id()}")
    try:
        await _save_upload(request.stream(), unfinished, service.settings.limits.upload_bytes)
        await run_in_threadpool(_validate_table, unfinished, kind, service.settings.limits.upload_bytes)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    await run_in_threadpool(service.database.update, store.datasets, {"name": name}, source=str(path))
    return {"name": name, "state": "stored"}


@router.post("/{name}/draft")
def draft_schema(request: Request, caller: AuthenticatedCaller, name: str, target: str | None = None) -> dict[str, Any]:
    """Draft a schema from the private rows, for custodians only. Every bound is marked as not reviewed."""
    caller.require_scope("data")
    source = _get_dataset(get_service(request), name)["source"]
    if source is None:
        raise UseError("the data set has no table yet. Hint: upload a table first.")
    draft: dict[str, Any] = draft_from_table(source, target=target) if target else draft_from_table(source)
    return draft


@router.post("/{name}/review")
def review_schema(request: Request, caller: AuthenticatedCaller, name: str, step: ReviewStep) -> dict[str, Any]:
    """Apply an answer to a draft, and return the question about the next column. Nothing is stored."""
    caller.require_scope("data")
    _get_dataset(get_service(request), name)
    review = Review(read_json(json.dumps(step.draft)), step.later)
    later = list(step.later)
    match step.answer:
        case Answer(kind="accept"):
            review.accept_known()
        case Answer(kind="state"):
            review.declare(step.answer.source, **step.answer.bounds)
        case Answer(kind="leave out"):
            review.exclude()
        case Answer(kind="later") if (deferred := review.next_question()) is not None:
            review.defer()
            later.append(deferred.name)
    question = review.next_question()
    payload = None if question is None else asdict(question)
    return {"draft": review.to_dict(), "question": payload, "later": later}


@router.get("/{name}/expected")
def expected(request: Request, caller: AuthenticatedCaller, name: str, rows: int = 10_000) -> dict[str, Any]:
    """Return the expected skill at several budgets, from public tables of similar size. ``rows`` is your estimate."""
    schema = get_service(request).plans.get_reviewed_dataset(name)[1]
    n_columns, n_rows = len(schema.feature_names), min(max(rows, 1), 10**12)
    skills = {e: estimate_skill(schema.task, n_rows, n_columns, e) for e in (0.1, 0.3, 1.0, 3.0, 10.0)}
    points = [{"x": e, "y": (q.low + q.high) / 2, "low": q.low, "high": q.high} for e, q in skills.items()]
    note = (
        f"The band holds half of the public tables with the same rows times epsilon per column as {n_rows:,} rows "
        "of yours. 0 is the most frequent class or the mean, 1 is a model without privacy."
    )
    return {"title": "Expected quality", "axis": "skill", "words": note, "points": points}


@router.put("/{name}/schema")
def set_schema(request: Request, caller: AuthenticatedCaller, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Declare the schema. A schema with unreviewed marks is rejected: no model of it would be private."""
    caller.require_scope("data")
    service = get_service(request)
    _get_dataset(service, name)
    declared = Schema.from_dict(read_json(json.dumps(schema)))
    if declared.inferred:
        raise UseError("the schema still has marks of a draft. Hint: review every bound and name its public source.")
    service.database.update(store.datasets, {"name": name}, schema=json.dumps(declared.to_dict()))
    return declared.to_dict()


@router.get("/{name}/schema")
def get_schema(request: Request, caller: AuthenticatedCaller, name: str) -> dict[str, Any]:
    """Return the schema, which is public."""
    schema = _get_dataset(get_service(request), name)["schema"]
    if schema is None:
        raise UseError("the data set has no schema yet. Hint: ask a custodian to declare one.")
    declared: dict[str, Any] = json.loads(schema)
    return declared


@router.get("/{name}/allowances")
def list_allowances(request: Request, caller: AuthenticatedCaller, name: str) -> list[dict[str, Any]]:
    """List the allowances of a data set."""
    service = get_service(request)
    dataset = _get_dataset(service, name)["name"]
    return [dict(allowance) for allowance in service.database.find_all(store.allowances, dataset=dataset)]


@router.post("/{name}/allowances", status_code=201)
def add_allowance(request: Request, caller: AuthenticatedCaller, name: str, body: NewAllowance) -> dict[str, Any]:
    """Add an allowance. A renewing one bounds each period, and not the sum over all periods."""
    caller.require_scope("data")
    service = get_service(request)
    _get_dataset(service, name)
    if not requested_loss(body.epsilon, body.delta).is_bounded:
        raise ParameterError("epsilon", body.epsilon, "is not a budget", "pass a finite number")
    number = new_id()
    values = {"id": number, "dataset": name, "account": body.account, "period": body.period}
    if not service.database.add(store.allowances, **values, epsilon=str(body.epsilon), delta=str(body.delta)):
        raise ParameterError("allowance", "...", "exists already", "remove it first")
    warning = "this allowance renews: over all periods, losses add up to at most the budget of the data set"
    return {"id": number, "warning": warning if body.period else None}


@router.delete("/{name}/allowances/{number}")
def remove_allowance(request: Request, caller: AuthenticatedCaller, name: str, number: str) -> dict[str, bool]:
    """Remove an allowance. Its charges stay in the ledger of the data set."""
    caller.require_scope("data")
    return {"removed": bool(get_service(request).database.remove(store.allowances, id=number, dataset=name))}


@router.get("/{name}/ledger")
def get_ledger(request: Request, caller: AuthenticatedCaller, name: str) -> dict[str, Any]:
    """Return every ledger entry, for custodians and auditors."""
    caller.require_scope("records")
    guarded = _open_dataset_ledger(get_service(request), name)
    entries = [{**asdict(entry), "loss": str(entry.loss)} for entry in guarded.ledger.entries()]
    if "data" not in caller.scopes:  # only custodians see why rows were rejected
        entries = [{**one, "resolution": None} if one["state"] == "cancelled" else one for one in entries]
    return {**_budget_summary(guarded), "entries": entries}


@router.post("/{name}/ledger/verify")
def verify_ledger(request: Request, caller: AuthenticatedCaller, name: str) -> dict[str, Any]:
    """Verify the hash chain of the ledger, and return its last hash, to be recorded elsewhere."""
    caller.require_scope("records")
    return {"intact": True, "head": _open_dataset_ledger(get_service(request), name).ledger.verify()}


@router.post("/{name}/ledger/{entry}/resolve")
def resolve_entry(request: Request, caller: AuthenticatedCaller, name: str, entry: int, body: Reason) -> dict[str, Any]:
    """Settle a reservation that a crash left open. It counts as spent."""
    caller.require_scope("data")
    guarded = _open_dataset_ledger(get_service(request), name)
    if not 0 < entry < 2**53:  # larger integers are not exact in JSON
        raise LedgerError(f"{guarded.ledger.name} has no such entry. Hint: choose one from the ledger.")
    guarded.require_unfrozen()
    guarded.ledger.resolve(entry, f"{body.reason} ({caller.name})")
    guarded.write_checkpoint()
    return _budget_summary(guarded)


@router.post("/{name}/ledger/reconcile")
def reconcile_ledger(request: Request, caller: AuthenticatedCaller, name: str, body: Reconciliation) -> dict[str, Any]:
    """Unfreeze a ledger that was restored from an older copy: charge every release that it lacks.

    Allowances continue from their restored ledgers. They are policy; the budget of the data set bounds the sum.
    """
    caller.require_scope("data")
    service = get_service(request)
    guarded = _open_dataset_ledger(service, name)
    allowances = [
        open_allowance_ledger(service.settings, allowance)
        for allowance in service.database.find_all(store.allowances, dataset=name)
    ]
    if not any(ledger.is_frozen() for ledger in (guarded, *allowances)):
        raise UseError("the ledger is not frozen and needs no reconciliation.")
    known = issued_releases(service.database, name)
    certificates = [read_json(json.dumps(facts)) for facts in body.certificates]
    issued = [*known, *unrecorded_releases(guarded, known, certificates)]
    missing = None if body.missing_epsilon is None else loss_from_certificate(body.missing_epsilon, body.missing_delta)
    end_unfinished_runs(service.database, name)
    charged = reconcile(guarded, issued, f"{body.reason} ({caller.name})", missing)
    for allowance_ledger in allowances:
        allowance_ledger.write_checkpoint(reconciled=True)
    return {"charged": charged, **_budget_summary(guarded)}


# -- inside ----------------------------------------------------------------------------------------------------------


def _get_dataset(service: Service, name: str) -> DatabaseRow:
    dataset = service.database.find(store.datasets, name=name)
    if dataset is None:
        raise NotFoundError("data set", name)
    return dataset


def _open_dataset_ledger(service: Service, name: str) -> GuardedLedger:
    return open_guarded(service.settings, dataset_ledger_name(_get_dataset(service, name)["name"]))


def _budget_summary(guarded: GuardedLedger) -> dict[str, Any]:
    ledger = guarded.ledger
    return {
        "budget": str(ledger.budget),
        "spent": str(ledger.spent),
        "remaining": str(ledger.remaining),
        "frozen": guarded.is_frozen(),
    }


def _dataset_summary(service: Service, caller: Caller, dataset: DatabaseRow) -> dict[str, Any]:
    """Return the public facts of a data set, with the remaining budget of the caller."""
    ledgers = open_ledgers_for(service.settings, service.database, dataset["name"], caller.name)
    remaining = min_remaining(ledgers)
    return {
        "name": dataset["name"],
        "people": dataset["people"],
        "has_table": dataset["source"] is not None,
        "has_schema": dataset["schema"] is not None,
        **_budget_summary(ledgers[0]),
        "remaining_for_you": None if remaining is None else str(remaining),
    }


async def _save_upload(stream: AsyncIterator[bytes], path: Path, max_bytes: int) -> None:
    """Write an upload to a file that only its owner can read. Counts bytes and ignores Content-Length."""
    with os.fdopen(create_private_file(path), "wb") as file:
        size = 0
        async for piece in stream:
            size += len(piece)
            if size > max_bytes:
                hint = f"reduce it to {max_bytes} bytes"
                raise ParameterError("table", "...", "exceeds the size limit", hint)
            await run_in_threadpool(file.write, piece)
        file.flush()
        os.fsync(file.fileno())


def _validate_table(path: Path, kind: str, max_bytes: int) -> None:
    """Raise ParameterError if a file is empty, not Parquet, or unpacks to too much. The message contains no value."""
    if kind == "csv":
        if path.stat().st_size == 0:
            raise ParameterError("table", "...", "is empty", "upload a table with rows")
        return
    try:
        groups = pq.ParquetFile(path).metadata
        unpacked = sum(groups.row_group(i).total_byte_size for i in range(groups.num_row_groups))
    except Exception as error:
        problem = f"is not a Parquet file ({type(error).__name__})"
        raise ParameterError("table", "...", problem, "upload another file") from None
    if unpacked > _MAX_UNPACK_RATIO * max_bytes:
        raise ParameterError("table", "...", "exceeds the size limit when unpacked", "upload it in a plain encoding")
