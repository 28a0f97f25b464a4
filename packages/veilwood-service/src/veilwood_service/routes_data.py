# SPDX-License-Identifier: Apache-2.0
"""Routes about data sets: tables, schemas, budgets and ledgers. Rows go in by them, and never out."""

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

__all__ = [
    "Answer",
    "NewAllowance",
    "NewDataset",
    "Reason",
    "Reconciliation",
    "ReviewStep",
    "add_allowance",
    "add_dataset",
    "copy_database_table",
    "create_private_file",
    "draft_schema",
    "expected",
    "get_dataset",
    "get_ledger",
    "get_schema",
    "list_allowances",
    "list_datasets",
    "reconcile_ledger",
    "remove_allowance",
    "resolve_entry",
    "resolve_source",
    "review_schema",
    "router",
    "set_schema",
    "upload_table",
    "verify_ledger",
]


_DATABASE_SCHEMES: Final = ("postgresql://", "postgres://")
_TABLE_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_CONNECT_TIMEOUT: Final = 10


def resolve_source(settings: Settings, name: str, source: str) -> str:
    """Return the path of a table that a custodian names: as it is, links followed, or copied from a database."""
    if source.startswith(_DATABASE_SCHEMES):
        return str(copy_database_table(settings, name, source))
    path = Path(os.path.realpath(source))
    for folder in settings.allowed:
        inside = not folder.startswith(_DATABASE_SCHEMES) and path.is_relative_to(os.path.realpath(folder))
        if inside and path.exists():
            return str(path)
    raise ParameterError("source", "...", "is not in a folder that the operator allows", "upload the table instead")


def copy_database_table(settings: Settings, name: str, source: str) -> Path:
    """Copy ``postgresql://host/database#table`` into a file; everything before # must be on the operator's list."""
    address, table = urldefrag(source)
    if address not in settings.allowed:
        raise ParameterError("source", "...", "is not a database that the operator allows", "upload the table instead")
    if not _TABLE_PATTERN.fullmatch(table):
        raise ParameterError("source", "...", "names no table", "postgresql://host/database#schema.table")
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
                        most = f"at most {settings.limits.upload_bytes} bytes"
                        raise ParameterError("table", "...", "is longer than the limit", most)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except psycopg.Error as error:  # its text may hold the address, and a password in it
        kind = type(error).__name__
        raise ParameterError("source", "...", f"cannot be read ({kind})", "ask the operator") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def create_private_file(path: Path) -> int:
    """Make a file that its owner alone can read."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


router = APIRouter(prefix="/v1/datasets", tags=["data"])

_NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]{0,29}")
_TABLE_MEDIA_TYPES: Final = {"text/csv": "csv", "application/vnd.apache.parquet": "parquet"}
_MAX_UNPACK_RATIO: Final = 16  # times the limit of an upload


class NewDataset(BaseModel):
    """A data set: whose rows, under which budget."""

    name: Annotated[str, Field(max_length=30)]
    people: Annotated[str, Field(max_length=1000, min_length=1)]
    epsilon: float | str
    delta: float | str = 0
    source: Annotated[str, Field(max_length=4000)] | None = None


class NewAllowance(BaseModel):
    """A narrower limit: of one account, or of everybody together; for good, or anew every year or month."""

    account: Annotated[str, Field(max_length=64)] = ""
    period: Literal["", "year", "month"] = ""
    epsilon: float | str
    delta: float | str = 0


class Answer(BaseModel):
    """What a person says about the column that was asked about."""

    kind: Literal["accept", "state", "leave out", "later"]
    source: Annotated[str, Field(max_length=1000)] = ""
    bounds: dict[str, Any] = Field(default_factory=dict, max_length=8)


class ReviewStep(BaseModel):
    """A draft as it is now, and what the person says about the next column; at first nothing."""

    draft: dict[str, Any]
    answer: Answer | None = None
    later: list[Annotated[str, Field(max_length=1000)]] = Field(default_factory=list, max_length=10_000)


class Reason(BaseModel):
    """Why, in words that are recorded."""

    reason: Annotated[str, Field(max_length=1000, min_length=1)]


class Reconciliation(Reason):
    """Why an older copy is there, and the certificates issued since that the service itself no longer knows of.

    Where these leave gaps in the numbers of events, the custodian says what the missing releases may have cost.
    """

    certificates: list[dict[str, Any]] = Field(default_factory=list, max_length=10_000)
    missing_epsilon: float | str | None = None
    missing_delta: float | str = 0


@router.get("")
def list_datasets(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List the data sets, with what is left of each for who asks."""
    service = get_service(request)
    return [_dataset_summary(service, caller, found) for found in service.database.find_all(store.datasets)]


@router.post("", status_code=201)
def add_dataset(request: Request, caller: AuthenticatedCaller, body: NewDataset) -> dict[str, Any]:
    """Register a data set and make its ledger. A path or a database must be on the operator's list."""
    caller.require_scope("data")
    service = get_service(request)
    if not _NAME_PATTERN.fullmatch(body.name):
        raise ParameterError("name", body.name, "is not a name", "up to 30 small letters, digits and underscores")
    budget = requested_loss(body.epsilon, body.delta)
    if not budget.is_bounded:
        raise ParameterError("epsilon", body.epsilon, "is not a budget", "a finite number")
    if service.database.find(store.datasets, name=body.name) is not None:
        raise ParameterError("name", body.name, "is taken", "choose another")
    source = None if body.source is None else resolve_source(service.settings, body.name, body.source)
    book = open_guarded(service.settings, dataset_ledger_name(body.name), body.epsilon, body.delta, body.people)
    book.write_checkpoint()
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
    """Upload the rows: text/csv or application/vnd.apache.parquet, not compressed otherwise."""
    caller.require_scope("data")
    service = get_service(request)
    await run_in_threadpool(_get_dataset, service, name)
    kind = _TABLE_MEDIA_TYPES.get(request.headers.get("content-type", "").partition(";")[0].strip())
    if kind is None:
        raise ParameterError("Content-Type", "...", "is not a table", f"one of {', '.join(_TABLE_MEDIA_TYPES)}")
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
    """Draft a schema from the rows, for the custodian alone: every bound in it is marked as not reviewed."""
    caller.require_scope("data")
    source = _get_dataset(get_service(request), name)["source"]
    if source is None:
        raise UseError("there is no table yet. Hint: upload it first.")
    found: dict[str, Any] = draft_from_table(source, target=target) if target else draft_from_table(source)
    return found


@router.post("/{name}/review")
def review_schema(request: Request, caller: AuthenticatedCaller, name: str, step: ReviewStep) -> dict[str, Any]:
    """Go one step through a draft: take the answer, ask about the next column. Nothing is stored."""
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
        case Answer(kind="later") if (asked := review.next_question()) is not None:
            review.defer()
            later.append(asked.name)
    question = review.next_question()
    shown = None if question is None else asdict(question)
    return {"draft": review.to_dict(), "question": shown, "later": later}


@router.get("/{name}/expected")
def expected(request: Request, caller: AuthenticatedCaller, name: str, rows: int = 10_000) -> dict[str, Any]:
    """Say how good models of public tables like this one were at several budgets; how many rows is for you to say."""
    schema = get_service(request).plans.get_reviewed_dataset(name)[1]
    columns, most = len(schema.feature_names), min(max(rows, 1), 10**12)
    found = {e: estimate_skill(schema.task, most, columns, e) for e in (0.1, 0.3, 1.0, 3.0, 10.0)}
    points = [{"x": e, "y": (q.low + q.high) / 2, "low": q.low, "high": q.high} for e, q in found.items()]
    words = (
        f"Half of the public tables that have as many rows times epsilon per column as {most:,} rows of yours "
        "were inside the band. 0 is the most frequent class or the mean, 1 is no privacy."
    )
    return {"title": "What quality to expect", "axis": "skill", "words": words, "points": points}


@router.put("/{name}/schema")
def set_schema(request: Request, caller: AuthenticatedCaller, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Declare the schema. One that holds unreviewed marks is refused: nothing trained by it would be private."""
    caller.require_scope("data")
    service = get_service(request)
    _get_dataset(service, name)
    declared = Schema.from_dict(read_json(json.dumps(schema)))
    if declared.inferred:
        raise UseError("the schema still has marks of a draft. Hint: review every bound, and say where it is known.")
    service.database.update(store.datasets, {"name": name}, schema=json.dumps(declared.to_dict()))
    return declared.to_dict()


@router.get("/{name}/schema")
def get_schema(request: Request, caller: AuthenticatedCaller, name: str) -> dict[str, Any]:
    """Return the schema, which is public."""
    found = _get_dataset(get_service(request), name)["schema"]
    if found is None:
        raise UseError("the data set has no schema yet.")
    declared: dict[str, Any] = json.loads(found)
    return declared


@router.get("/{name}/allowances")
def list_allowances(request: Request, caller: AuthenticatedCaller, name: str) -> list[dict[str, Any]]:
    """List the narrower limits."""
    service = get_service(request)
    return [
        dict(one) for one in service.database.find_all(store.allowances, dataset=_get_dataset(service, name)["name"])
    ]


@router.post("/{name}/allowances", status_code=201)
def add_allowance(request: Request, caller: AuthenticatedCaller, name: str, body: NewAllowance) -> dict[str, Any]:
    """Add a narrower limit. One that renews bounds each period, and not what is spent over all periods together."""
    caller.require_scope("data")
    service = get_service(request)
    _get_dataset(service, name)
    if not requested_loss(body.epsilon, body.delta).is_bounded:
        raise ParameterError("epsilon", body.epsilon, "is not a budget", "a finite number")
    number = new_id()
    values = {"id": number, "dataset": name, "account": body.account, "period": body.period}
    if not service.database.add(store.allowances, **values, epsilon=str(body.epsilon), delta=str(body.delta)):
        raise ParameterError("allowance", "...", "exists already", "remove it first")
    warning = "each period starts anew: over the years the losses add up, up to the budget of the data set"
    return {"id": number, "warning": warning if body.period else None}


@router.delete("/{name}/allowances/{number}")
def remove_allowance(request: Request, caller: AuthenticatedCaller, name: str, number: str) -> dict[str, bool]:
    """Remove a narrower limit; what was spent under it stays in the ledger of the data set."""
    caller.require_scope("data")
    return {"removed": bool(get_service(request).database.remove(store.allowances, id=number, dataset=name))}


@router.get("/{name}/ledger")
def get_ledger(request: Request, caller: AuthenticatedCaller, name: str) -> dict[str, Any]:
    """Return every spend, for custodians and auditors."""
    caller.require_scope("records")
    book = _open_dataset_ledger(get_service(request), name)
    entries = [{**asdict(entry), "loss": str(entry.loss)} for entry in book.ledger.entries()]
    if "data" not in caller.scopes:  # why rows were refused is for custodians
        entries = [{**one, "resolution": None} if one["state"] == "cancelled" else one for one in entries]
    return {**_budget_summary(book), "entries": entries}


@router.post("/{name}/ledger/verify")
def verify_ledger(request: Request, caller: AuthenticatedCaller, name: str) -> dict[str, Any]:
    """Recompute the chain of hashes; return the last one, to be noted elsewhere."""
    caller.require_scope("records")
    return {"intact": True, "head": _open_dataset_ledger(get_service(request), name).ledger.verify()}


@router.post("/{name}/ledger/{entry}/resolve")
def resolve_entry(request: Request, caller: AuthenticatedCaller, name: str, entry: int, body: Reason) -> dict[str, Any]:
    """Settle as spent what a crash left reserved."""
    caller.require_scope("data")
    book = _open_dataset_ledger(get_service(request), name)
    if not 0 < entry < 2**53:
        raise LedgerError(f"there is no such entry in {book.ledger.name}.")
    book.require_unfrozen()
    book.ledger.resolve(entry, f"{body.reason} ({caller.name})")
    book.write_checkpoint()
    return _budget_summary(book)


@router.post("/{name}/ledger/reconcile")
def reconcile_ledger(request: Request, caller: AuthenticatedCaller, name: str, body: Reconciliation) -> dict[str, Any]:
    """Thaw a ledger of which an older copy was put back: charge every release that it does not hold.

    Narrower limits go on from what their copies hold: they are policy, and the budget of the data set bounds the sum.
    """
    caller.require_scope("data")
    service = get_service(request)
    book = _open_dataset_ledger(service, name)
    limits = [
        open_allowance_ledger(service.settings, one)
        for one in service.database.find_all(store.allowances, dataset=name)
    ]
    if not any(one.is_frozen() for one in (book, *limits)):
        raise UseError("the ledger is not frozen: it holds the last event that was noted.")
    known = issued_releases(service.database, name)
    issued = [*known, *unrecorded_releases(book, known, [read_json(json.dumps(facts)) for facts in body.certificates])]
    missing = None if body.missing_epsilon is None else loss_from_certificate(body.missing_epsilon, body.missing_delta)
    end_unfinished_runs(service.database, name)
    charged = reconcile(book, issued, f"{body.reason} ({caller.name})", missing)
    for limit in limits:
        limit.write_checkpoint(reconciled=True)
    return {"charged": charged, **_budget_summary(book)}


# -- inside ----------------------------------------------------------------------------------------------------------


def _get_dataset(service: Service, name: str) -> DatabaseRow:
    found = service.database.find(store.datasets, name=name)
    if found is None:
        raise NotFoundError("data set", name)
    return found


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
    """What everybody sees of a data set: public facts, and what is left for them."""
    books = open_ledgers_for(service.settings, service.database, dataset["name"], caller.name)
    left = min_remaining(books)
    return {
        "name": dataset["name"],
        "people": dataset["people"],
        "has_table": dataset["source"] is not None,
        "has_schema": dataset["schema"] is not None,
        **_budget_summary(books[0]),
        "remaining_for_you": None if left is None else str(left),
    }


async def _save_upload(stream: AsyncIterator[bytes], path: Path, max_bytes: int) -> None:
    """Write what arrives to a file of its owner alone; the length that was announced is not believed."""
    with os.fdopen(create_private_file(path), "wb") as file:
        size = 0
        async for piece in stream:
            size += len(piece)
            if size > max_bytes:
                raise ParameterError("table", "...", "is longer than the limit", f"at most {max_bytes} bytes")
            await run_in_threadpool(file.write, piece)
        file.flush()
        os.fsync(file.fileno())


def _validate_table(path: Path, kind: str, max_bytes: int) -> None:
    """Refuse what is not a table of its kind, or unpacks to far more than it is. No value of it is told."""
    if kind == "csv":
        if path.stat().st_size == 0:
            raise ParameterError("table", "...", "is empty", "send the rows")
        return
    try:
        groups = pq.ParquetFile(path).metadata
        unpacked = sum(groups.row_group(i).total_byte_size for i in range(groups.num_row_groups))
    except Exception as error:
        raise ParameterError("table", "...", f"is not Parquet ({type(error).__name__})", "send another file") from None
    if unpacked > _MAX_UNPACK_RATIO * max_bytes:
        raise ParameterError("table", "...", "unpacks to more than the limit", "send it in a plain encoding")
