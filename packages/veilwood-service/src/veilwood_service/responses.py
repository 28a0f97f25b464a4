# SPDX-License-Identifier: Apache-2.0
"""Bodies of responses, as the OpenAPI document describes them, and the base of request bodies."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item", bound=BaseModel)


class RequestBody(BaseModel):
    """Base of request bodies. A field that does not exist is rejected: a misspelt epsilon must not mean the default."""

    model_config = ConfigDict(extra="forbid")


class Page(BaseModel, Generic[Item]):
    """A page of records, newest first. ``next`` is the cursor of the next page, if there is one."""

    items: list[Item]
    next: str | None


class Problem(BaseModel):
    """An error, in the format of RFC 9457. ``field`` names the field of the request that is wrong."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    remaining: str | None = None


class Health(BaseModel):
    """Status of the process."""

    status: str
    version: str


class Readiness(BaseModel):
    """Whether the service can work, and whether people can log in with an OpenID provider."""

    status: str
    has_provider: bool


class SessionOpened(BaseModel):
    """CSRF token of a new session."""

    csrf: str


class Me(BaseModel):
    """The authenticated account."""

    name: str
    roles: list[str]
    scopes: list[str]
    csrf: str | None
    has_password: bool


class Account(BaseModel):
    """An account. It is invited until its owner has set a password."""

    name: str
    roles: list[str]
    disabled: bool
    invited: bool


class Invitation(BaseModel):
    """A link that sets the password of an account, once. Users of an OpenID provider get no link."""

    name: str
    invitation: str | None


class Name(BaseModel):
    """Name of the record that was changed."""

    name: str


class Token(BaseModel):
    """Description of an access token or a session: name, scopes and expiry, without the secret token itself."""

    id: str
    kind: str
    name: str
    scopes: str
    expires: str
    created: str


class NewTokenIssued(BaseModel):
    """A new token. The response is the only place where it is shown."""

    id: str
    token: str


class Event(BaseModel):
    """A recorded action of an account."""

    id: str
    account: str
    action: str
    subject: str
    detail: dict[str, Any]
    created: str


class Budget(BaseModel):
    """Totals of a ledger, as text for readers and as epsilon for charts."""

    budget: str
    spent: str
    remaining: str
    epsilon: float
    epsilon_spent: float
    frozen: str | None


class Dataset(Budget):
    """A data set, with the remaining budget of the caller."""

    name: str
    people: str
    has_table: bool
    has_schema: bool
    retired: bool
    remaining_for_you: str | None
    epsilon_for_you: float | None


class Allowance(BaseModel):
    """A limit within the budget of a data set, with the amount that is left in the current period."""

    id: str
    account: str
    period: str
    epsilon: str
    delta: str
    remaining: str
    epsilon_spent: float


class NewAllowanceAdded(BaseModel):
    """Id of a new allowance, with a warning if it renews."""

    id: str
    warning: str | None


class Question(BaseModel):
    """State of a review: the draft, the question about the next column, and the deferred columns."""

    draft: dict[str, Any]
    question: dict[str, Any] | None
    later: list[str]


class Expected(BaseModel):
    """Expected skill at several budgets: points with epsilon, skill and its range."""

    title: str
    axis: str
    words: str
    points: list[dict[str, float]]


class LedgerEntry(BaseModel):
    """One charge. ``model`` is the release that was charged, or the predictor that answered."""

    id: int
    time: str
    what: str
    loss: str
    epsilon: float | None
    state: Literal["reserved", "committed", "cancelled", "resolved"]
    neighbours: str
    plan: str
    table: str
    schema_hash: str
    resolution: str | None
    key: str
    account: str
    grant: str
    model: str | None


class AccountSpent(BaseModel):
    """Privacy loss that one account has charged to a ledger."""

    account: str
    epsilon: float
    releases: int


class LedgerPage(Budget):
    """A page of a ledger, newest entries first, with what each account has spent."""

    entries: list[LedgerEntry]
    next: str | None
    accounts: list[AccountSpent]


class Verified(BaseModel):
    """Result of a verification: the hash of the last event."""

    intact: bool
    head: str


class Charged(Budget):
    """Ledger entries that were charged for certificates."""

    charged: list[int]


class EstimatorParameter(BaseModel):
    """A parameter that an analyst may choose. ``options`` is empty if other values are possible."""

    name: str
    default: Any
    options: list[str]
    help: str


class Estimator(BaseModel):
    """An estimator for a task, with its parameters."""

    name: str
    task: str
    summary: str
    parameters: list[EstimatorParameter]


class Asked(BaseModel):
    """Request from which a plan was made."""

    epsilon: str
    delta: str
    parameters: dict[str, Any]


class PlanSummary(BaseModel):
    """A plan, with the amount that its signature allows and the amount that is left."""

    id: str
    dataset: str
    account: str
    kind: str
    estimator: str
    name: str
    note: str
    fingerprint: str
    model: str | None
    asked: Asked
    signed_by: str | None
    signed: str | None
    runs: int | None
    runs_left: int | None
    total_epsilon: str | None
    remaining: str | None
    askers: list[str] | None
    created: str


class PlanDetail(PlanSummary):
    """A plan, as text and as JSON, with warnings about its loss."""

    words: str | None
    body: dict[str, Any] | None
    warnings: list[str]


class Job(BaseModel):
    """A job, with its place in the queue and the seconds since its start. Only custodians see detail and end."""

    id: str
    plan: str
    dataset: str
    account: str
    state: str
    message: str | None
    place: int | None
    seconds: float | None
    created: str
    detail: str | None = None
    ended: str | None = None


class Model(BaseModel):
    """A release: a trained model, a private predictor or an evaluation of a model."""

    id: str
    plan: str
    dataset: str
    account: str
    kind: str
    estimator: str
    name: str
    note: str
    evaluated: str | None
    certificate: dict[str, Any] | None
    result: dict[str, Any] | None
    quality: dict[str, float | None]
    created: str


class Predictions(BaseModel):
    """Predicted labels or numbers; class probabilities for classifiers."""

    predictions: list[Any]
    probabilities: list[list[float]] | None = None


class Quote(BaseModel):
    """Privacy loss and expected error of a batch of private queries."""

    epsilon: str
    delta: str
    expected_squared_error: float
    remaining: str | None
    answered_before: bool


class Answered(BaseModel):
    """Private answers with their certificate."""

    labels: list[Any]
    certificate: dict[str, Any]
    answered: str
