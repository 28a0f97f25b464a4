# SPDX-License-Identifier: Apache-2.0
"""Routes of data sets: tables, schemas, budgets and ledgers. They accept rows and never return any."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal, TypeVar

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field, StrictFloat, StrictInt

from veilwood.data.schema import Schema
from veilwood.drafting.draft import draft_from_table
from veilwood.drafting.review import Review
from veilwood.errors import LedgerError, NotFoundError, ParameterError, UseError
from veilwood.forests.expected_skill import estimate_skill
from veilwood.privacy.ledger import Limit, Part
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.safe_io import read_json
from veilwood_service import responses, store
from veilwood_service.access import AuthenticatedCaller, DataCaller, RecordsCaller, RunningService, Service
from veilwood_service.accounts import Caller
from veilwood_service.budgets import end_unfinished_runs, get_dataset, limit_of, loss_from_certificate
from veilwood_service.routes_people import PageCursor, PageLength
from veilwood_service.store import DatabaseRow, new_id
from veilwood_service.tables import TABLE_MEDIA_TYPES, delete_table, resolve_source, save_upload

router = APIRouter(prefix="/v1/datasets", tags=["data"])

T = TypeVar("T", bound=BaseModel)
_NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]{0,29}")
Amount = StrictFloat | StrictInt | Annotated[str, Field(max_length=40)]
"""A number, or an exact decimal or fraction as text."""


class NewDataset(responses.RequestBody):
    """Request body for registering a data set: name, protected population, budget and source."""

    name: Annotated[str, Field(max_length=30)]
    people: Annotated[str, Field(max_length=1000, min_length=1)]
    epsilon: Amount
    delta: Amount = 0
    source: Annotated[str, Field(max_length=4000)] | None = None


class NewAllowance(responses.RequestBody):
    """Request body for an allowance: a limit for one account or all, permanent or renewed each year or month."""

    account: Annotated[str, Field(max_length=64)] = ""
    period: Literal["", "year", "month"] = ""
    epsilon: Amount
    delta: Amount = 0


class Answer(responses.RequestBody):
    """A reviewer's answer about the column of the last question."""

    kind: Literal["accept", "state", "leave out", "later"]
    source: Annotated[str, Field(max_length=1000)] = ""
    bounds: dict[str, Any] = Field(default_factory=dict, max_length=8)


class ReviewStep(responses.RequestBody):
    """Request body for one review step: the current draft, and the answer about the next column, if any."""

    draft: dict[str, Any]
    answer: Answer | None = None
    later: list[Annotated[str, Field(max_length=1000)]] = Field(default_factory=list, max_length=10_000)


class Reason(responses.RequestBody):
    """Request body with a reason, which is recorded."""

    reason: Annotated[str, Field(max_length=1000, min_length=1)]


class Certificates(responses.RequestBody):
    """Request body with certificates of releases that a restored ledger may lack."""

    certificates: list[dict[str, Any]] = Field(max_length=10_000)


class Thaw(Reason):
    """Request body for thawing a ledger: the reason, and a bound on the loss of all releases without a certificate.

    The bound must be given. 0 states that no other release was made since the copy.
    """

    missing_epsilon: Amount
    missing_delta: Amount = 0


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that the route parses itself, in a thread."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    inlined = json.loads(json.dumps(schema).replace('"#/components/schemas/', '"#/$defs/'))
    for name, definition in definitions.items():  # one level suffices: the models above have no deeper nesting
        inlined = json.loads(json.dumps(inlined).replace(f'{{"$ref": "#/$defs/{name}"}}', json.dumps(definition)))
    return {"requestBody": {"content": {"application/json": {"schema": inlined}}, "required": True}}


def parse_body(model: type[T], body: bytes) -> T:
    """Parse and validate a long JSON body. Raise ParameterError if it does not match the model."""
    try:
        return model.model_validate(orjson.loads(body))
    except ValueError as error:
        errors = getattr(error, "errors", lambda: [{"loc": ("body",), "msg": "is not JSON"}])()
        problem = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors[:10])
        raise ParameterError("body", "...", f"is not valid: {problem[:800]}", "read the API documentation") from None


@router.get("")
def list_datasets(
    service: RunningService, caller: AuthenticatedCaller, limit: PageLength = 100, after: PageCursor = None
) -> responses.Page[responses.Dataset]:
    """List the data sets, with the remaining budget of each and of the caller."""
    rows, cursor = service.database.find_page(store.datasets, limit, after)
    return responses.Page[responses.Dataset](
        items=[_dataset_summary(service, caller, dataset) for dataset in rows], next=cursor
    )


@router.post("", status_code=201)
def add_dataset(service: RunningService, caller: DataCaller, body: NewDataset) -> responses.Dataset:
    """Register a data set and create its ledger. A path must be in a folder that the operator allows."""
    source = None if body.source is None else resolve_source(service.settings, body.source)
    register_dataset(service, caller.name, body.name, body.people, body.epsilon, body.delta, source)
    return _dataset_summary(service, caller, get_dataset(service.database, body.name))


def register_dataset(
    service: Service,
    account: str,
    name: str,
    people: str,
    epsilon: object,
    delta: object = 0,
    source: str | None = None,
    existing_ledger: str | None = None,
) -> None:
    """Register a data set and create its ledger, or continue an existing one."""
    if not _NAME_PATTERN.fullmatch(name):
        hint = "use a lower-case letter, then up to 29 lower-case letters, digits and underscores"
        raise ParameterError("name", name, "is not a valid name of a data set", hint)
    if not requested_loss(epsilon, delta).is_bounded:
        raise ParameterError("epsilon", epsilon, "is not a budget", "pass a finite number")
    with service.database.transaction():
        if not service.database.add(store.datasets, name=name, people=people, source=source, account=account):
            raise ParameterError("name", name, "is taken", "choose another name")
        service.ledgers.open(name).create(epsilon, delta, people, existing_ledger)
        service.database.record_event(account, "dataset.create", name, epsilon=str(epsilon), delta=str(delta))


@router.get("/{name}")
def get_one_dataset(service: RunningService, caller: AuthenticatedCaller, name: str) -> responses.Dataset:
    """Return one data set."""
    return _dataset_summary(service, caller, get_dataset(service.database, name))


@router.post("/{name}/retire")
def retire_dataset(service: RunningService, caller: DataCaller, name: str, body: Reason) -> responses.Dataset:
    """Delete the rows of a data set, end its runs, and reject all further releases. The ledger stays."""
    with service.database.transaction():
        _delete_rows(service, caller, name)
        end_unfinished_runs(service.database, service.ledgers.open(name), name)
        service.database.update(store.datasets, {"name": name}, retired=1)
        service.database.record_event(caller.name, "dataset.retire", name, reason=body.reason)
    return _dataset_summary(service, caller, get_dataset(service.database, name))


_TABLE_BODY: Final = {
    "requestBody": {
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in TABLE_MEDIA_TYPES},
        "required": True,
    }
}


@router.put("/{name}/table", openapi_extra=_TABLE_BODY)
async def upload_table(request: Request, service: RunningService, caller: DataCaller, name: str) -> responses.Name:
    """Upload the table as text/csv or application/vnd.apache.parquet, without further compression."""
    dataset = await run_in_threadpool(get_dataset, service.database, name)
    kind = TABLE_MEDIA_TYPES.get(request.headers.get("content-type", "").partition(";")[0].strip())
    if kind is None:
        hint = f"send one of {', '.join(TABLE_MEDIA_TYPES)}"
        raise ParameterError("Content-Type", "...", "is not the type of a table", hint)
    path = await save_upload(request.stream(), service.settings, service.database, name, kind)

    def store_path() -> None:
        with service.database.transaction():
            if not service.database.update(store.datasets, {"name": name, "retired": 0}, source=str(path)):
                delete_table(service.settings, str(path))
                raise UseError("the data set is retired. Hint: register another one.")
            service.database.record_event(caller.name, "table.upload", name, kind=kind)
        delete_table(service.settings, dataset["source"], keep=path)

    await run_in_threadpool(store_path)
    return responses.Name(name=name)


@router.delete("/{name}/table", status_code=204)
def remove_table(service: RunningService, caller: DataCaller, name: str) -> Response:
    """Delete the rows of a data set. Released models stay; private predictors no longer answer."""
    _delete_rows(service, caller, name)
    return Response(status_code=204)


def _delete_rows(service: Service, caller: Caller, name: str) -> None:
    dataset = get_dataset(service.database, name)
    with service.database.transaction():
        service.database.update(store.datasets, {"name": name}, source=None)
        service.database.record_event(caller.name, "table.delete", name)
    service.private_queries.forget(name)
    delete_table(service.settings, dataset["source"])


@router.post("/{name}/draft")
async def draft_schema(
    service: RunningService, caller: DataCaller, name: str, target: str | None = None
) -> dict[str, Any]:
    """Draft a schema from the private rows, for custodians only. Every bound is marked as not reviewed."""

    def draft_table() -> dict[str, Any]:
        source = get_dataset(service.database, name)["source"]
        if source is None:
            raise UseError("the data set has no table yet. Hint: upload a table first.")
        drafted: dict[str, Any] = draft_from_table(source, target=target) if target else draft_from_table(source)
        service.database.record_event(caller.name, "schema.draft", name)
        return drafted

    return await service.lanes.plans.run(draft_table)


@router.post("/{name}/review", openapi_extra=body_of(ReviewStep))
async def review_schema(request: Request, service: RunningService, caller: DataCaller, name: str) -> responses.Question:
    """Apply an answer to a draft, and return the question about the next column. Nothing is stored."""
    body = await request.body()

    def apply_answer() -> responses.Question:
        get_dataset(service.database, name)
        step = parse_body(ReviewStep, body)
        review, later = Review(read_json(json.dumps(step.draft)), step.later), list(step.later)
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
        return responses.Question(draft=review.to_dict(), question=payload, later=later)

    return await service.lanes.files.run(apply_answer)


@router.get("/{name}/expected")
def expected(service: RunningService, caller: AuthenticatedCaller, name: str, rows: int = 10_000) -> responses.Expected:
    """Return the expected skill at several budgets, from public tables of similar size. ``rows`` is an estimate."""
    schema = service.plans.get_reviewed_dataset(name)[1]
    n_columns, n_rows = len(schema.feature_names), min(max(rows, 1), 10**12)
    skills = {e: estimate_skill(schema.task, n_rows, n_columns, e) for e in (0.1, 0.3, 1.0, 3.0, 10.0)}
    points = [{"epsilon": e, "skill": (q.low + q.high) / 2, "low": q.low, "high": q.high} for e, q in skills.items()]
    note = (
        f"The range holds half of the public tables whose rows times epsilon per column equal yours with {n_rows:,} "
        "rows. 0 is a constant prediction of the most frequent class or the mean, 1 is a model without privacy."
    )
    return responses.Expected(title="Expected quality", axis="skill", words=note, points=points)


_JSON_OBJECT: Final = {"application/json": {"schema": {"type": "object"}}}
_SCHEMA_BODY: Final = {"requestBody": {"content": _JSON_OBJECT, "required": True}}


@router.put("/{name}/schema", openapi_extra=_SCHEMA_BODY)
async def set_schema(request: Request, service: RunningService, caller: DataCaller, name: str) -> dict[str, Any]:
    """Declare the schema. A schema with draft markers is rejected: no model fitted with it would be private."""
    body = await request.body()

    def declare_schema() -> dict[str, Any]:
        get_dataset(service.database, name)
        declared = Schema.from_dict(read_json(body))
        if declared.inferred:
            raise UseError("the schema still has draft markers. Hint: review every bound and name its public source.")
        with service.database.transaction():
            service.database.update(store.datasets, {"name": name}, schema=json.dumps(declared.to_dict()))
            service.database.record_event(caller.name, "schema.set", name, fingerprint=declared.fingerprint())
        return declared.to_dict()

    return await service.lanes.files.run(declare_schema)


@router.get("/{name}/schema")
def get_schema(service: RunningService, caller: AuthenticatedCaller, name: str) -> dict[str, Any]:
    """Return the schema, which is public."""
    schema = get_dataset(service.database, name)["schema"]
    if schema is None:
        raise NotFoundError("schema of", name, hint="ask a custodian to declare one")
    declared: dict[str, Any] = json.loads(schema)
    return declared


# -- allowances ------------------------------------------------------------------------------------------------------


@router.get("/{name}/allowances")
def list_allowances(service: RunningService, caller: AuthenticatedCaller, name: str) -> list[responses.Allowance]:
    """List the allowances of a data set: all for custodians and auditors, otherwise the caller's."""
    found = list[responses.Allowance]()
    ledger = service.ledgers.open(get_dataset(service.database, name)["name"])
    for row in service.database.find_all(store.allowances, dataset=name):
        if row["account"] in ("", caller.name) or "records" in caller.scopes:
            balance = ledger.part_balance(limit_of(row))
            facts = {field: row[field] for field in ("id", "account", "period", "epsilon", "delta")}
            found.append(
                responses.Allowance(
                    **facts, remaining=str(balance.remaining), epsilon_spent=_epsilon_of(balance.spent) or 0
                )
            )
    return found


@router.post("/{name}/allowances", status_code=201)
def add_allowance(
    service: RunningService, caller: DataCaller, name: str, body: NewAllowance
) -> responses.NewAllowanceAdded:
    """Add an allowance. An allowance that renews limits each period, not the sum over all periods."""
    get_dataset(service.database, name)
    loss, budget = requested_loss(body.epsilon, body.delta), service.ledgers.open(name).balance().budget
    if loss.epsilon is None or (budget is not None and loss.epsilon > (budget.epsilon or 0)):
        raise ParameterError("epsilon", body.epsilon, "exceeds the budget of the data set", f"pass at most {budget}")
    if body.account and service.database.find(store.accounts, name=body.account) is None:
        raise NotFoundError("account", body.account)
    number, facts = new_id(), {"account": body.account, "period": body.period, "epsilon": str(body.epsilon)}
    with service.database.transaction():
        if not service.database.add(store.allowances, id=number, dataset=name, **facts, delta=str(body.delta)):
            raise ParameterError("allowance", "...", "exists already", "remove it first")
        service.database.record_event(caller.name, "allowance.add", name, **facts)
    warning = "this allowance renews: over all periods, losses add up to at most the budget of the data set"
    return responses.NewAllowanceAdded(id=number, warning=warning if body.period else None)


@router.delete("/{name}/allowances/{number}", status_code=204)
def remove_allowance(service: RunningService, caller: DataCaller, name: str, number: str) -> Response:
    """Remove an allowance. Its charges stay in the ledger of the data set."""
    database = service.database
    with database.transaction():
        removed = database.find(store.allowances, id=number, dataset=name)
        if removed is None:
            raise NotFoundError("allowance", number)
        database.remove(store.allowances, id=number)
        database.record_event(caller.name, "allowance.remove", name, **{f: removed[f] for f in ("account", "period")})
    return Response(status_code=204)


# -- ledgers ---------------------------------------------------------------------------------------------------------


@router.get("/{name}/ledger")
def get_ledger(
    service: RunningService, caller: RecordsCaller, name: str, limit: PageLength = 100, after: PageCursor = None
) -> responses.LedgerPage:
    """Return the ledger entries, newest first, and what each account has spent, for custodians and auditors."""
    dataset = get_dataset(service.database, name)
    entries = service.ledgers.open(name).entries()[::-1]
    start = next((i for i, entry in enumerate(entries) if after is not None and str(entry.id) == after), -1) + 1
    shown, page = entries[start : start + limit], list[responses.LedgerEntry]()
    keys = tuple(entry.key for entry in shown)
    paid = {row["id"]: row["id"] for row in service.database.find_all(store.models, id=keys)}
    paid |= {row["id"]: row["model"] for row in service.database.find_all(store.answers, id=keys)}
    for entry in shown:
        facts = {key: value for key, value in asdict(entry).items() if key not in ("loss", "schema", "purpose")}
        if entry.state == "cancelled" and "data" not in caller.scopes:
            facts["resolution"] = None  # only custodians see why rows were rejected
        loss = {"loss": str(entry.loss), "epsilon": _epsilon_of(entry.loss), "model": paid.get(entry.key)}
        page.append(responses.LedgerEntry(**{**facts, **loss, "schema_hash": entry.schema}))
    cursor = str(shown[-1].id) if start + limit < len(entries) else None
    budget, accounts = _budget_summary(service, dataset).model_dump(), _spent_by_account(service, name)
    return responses.LedgerPage(**budget, entries=page, next=cursor, accounts=accounts)


def _spent_by_account(service: Service, dataset: str) -> list[responses.AccountSpent]:
    ledger = service.ledgers.open(dataset)
    counts = Counter(entry.account for entry in ledger.entries() if entry.is_counted)
    spent = {account: ledger.part_balance(Limit(account, Part(account))).spent for account in sorted(counts) if account}
    return [
        responses.AccountSpent(account=a, epsilon=_epsilon_of(loss) or 0, releases=counts[a])
        for a, loss in spent.items()
    ]


@router.post("/{name}/ledger/verify")
def verify_ledger(service: RunningService, caller: RecordsCaller, name: str) -> responses.Verified:
    """Verify the hash chain of the ledger, and return its last hash, to be recorded elsewhere."""
    get_dataset(service.database, name)
    return responses.Verified(intact=True, head=service.ledgers.open(name).verify())


@router.post("/{name}/ledger/certificates", openapi_extra=body_of(Certificates))
async def charge_certificates(
    request: Request, service: RunningService, caller: DataCaller, name: str
) -> responses.Charged:
    """Charge certificates of releases that a restored ledger has lost. Releases that it holds are not charged again."""
    body = await request.body()

    def charge_each() -> responses.Charged:
        dataset = get_dataset(service.database, name)
        certificates = parse_body(Certificates, body).certificates
        charged = service.ledgers.charge_certificates(name, caller.name, certificates)
        return responses.Charged(charged=charged, **_budget_summary(service, dataset).model_dump())

    return await service.lanes.files.run(charge_each)


@router.post("/{name}/ledger/thaw")
def thaw_ledger(service: RunningService, caller: DataCaller, name: str, body: Thaw) -> responses.Dataset:
    """Thaw a frozen ledger. The loss of releases without a certificate must be stated, even if it is 0."""
    get_dataset(service.database, name)
    is_zero = str(body.missing_epsilon).strip() in ("0", "0.0")
    missing = None if is_zero else loss_from_certificate(body.missing_epsilon, body.missing_delta)
    service.ledgers.thaw(name, caller.name, body.reason, missing)
    return _dataset_summary(service, caller, get_dataset(service.database, name))


@router.post("/{name}/ledger/{entry}/resolve")
def resolve_entry(service: RunningService, caller: DataCaller, name: str, entry: int, body: Reason) -> responses.Budget:
    """Settle a reservation that a crash left open. Its loss counts as spent."""
    dataset, ledger = get_dataset(service.database, name), service.ledgers.open(name)
    if not 0 < entry < 2**53:  # larger integers are not exact in JSON
        raise LedgerError(f"{ledger.name} has no such entry. Hint: choose one from the ledger.")
    with service.database.transaction():
        if service.database.find(store.jobs, id=ledger.entry(entry).key, state=("queued", "running")) is not None:
            raise UseError("the run of this entry is not finished. Hint: cancel its job, which settles the entry.")
        ledger.resolve(entry, f"{body.reason} ({caller.name})")
        service.database.record_event(caller.name, "ledger.resolve", name, entry=entry, reason=body.reason)
    return _budget_summary(service, dataset)


# -- inside ----------------------------------------------------------------------------------------------------------


def _epsilon_of(loss: Loss | None) -> float | None:
    return None if loss is None or loss.epsilon is None else float(loss.epsilon)


def _budget_summary(service: Service, dataset: DatabaseRow) -> responses.Budget:
    balance = service.ledgers.open(dataset["name"]).balance()
    return responses.Budget(
        budget=str(balance.budget),
        spent=str(balance.spent),
        remaining=str(balance.remaining),
        epsilon=_epsilon_of(balance.budget) or 0,
        epsilon_spent=_epsilon_of(balance.spent) or 0,
        frozen=None if dataset["frozen"] is None else json.loads(dataset["frozen"])["reason"],
    )


def _dataset_summary(service: Service, caller: Caller, dataset: DatabaseRow) -> responses.Dataset:
    """Return the public facts of a data set, with the remaining budget of the caller."""
    remaining = service.ledgers.remaining_for(dataset["name"], caller.name)
    return responses.Dataset(
        **_budget_summary(service, dataset).model_dump(),
        name=dataset["name"],
        people=dataset["people"],
        has_table=dataset["source"] is not None,
        has_schema=dataset["schema"] is not None,
        retired=bool(dataset["retired"]),
        remaining_for_you=None if remaining is None else str(remaining),
        epsilon_for_you=_epsilon_of(remaining),
    )
