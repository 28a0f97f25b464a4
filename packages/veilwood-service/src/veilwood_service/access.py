# SPDX-License-Identifier: Apache-2.0
"""Access to the running service: its components, authentication of requests, threads, metrics and logging."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec, TypeVar

import anyio
from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from starlette.datastructures import Headers
from starlette.types import Scope

from veilwood_service import store
from veilwood_service.accounts import Accounts, Caller, DeniedError, RateLimit, TooManyError
from veilwood_service.budgets import Ledgers
from veilwood_service.jobs import Jobs
from veilwood_service.openid import OpenIdProvider
from veilwood_service.predictions import Predictions
from veilwood_service.private_queries import PrivateQueries
from veilwood_service.settings import Settings
from veilwood_service.store import Store
from veilwood_service.tables import clean_tables
from veilwood_service.training import Plans

_HTTP_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
P = ParamSpec("P")
T = TypeVar("T")


class Metrics:
    """Request counts and prediction times of one process, for Prometheus."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the time of the first response may reveal sizes
        self._registry = CollectorRegistry()
        names = ["method", "route"]
        self._requests = Counter(
            "veilwood_requests", "Requests by route and status.", [*names, "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "veilwood_prediction_seconds",
            "Time of a prediction.",
            registry=self._registry,
            buckets=_SECONDS_BUCKETS,
        )

    def record_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. Only predictions are timed: the duration of fits and answers reveals sizes."""
        # A client can send any method name, and each would become a label of its own.
        method_label = method if method in _HTTP_METHODS else "other"
        self._requests.labels(method_label, route, str(status)).inc()
        if route.endswith("/predict"):
            self._seconds.observe(seconds)

    def to_prometheus_text(self) -> bytes:
        """Return all counts in the text format of Prometheus."""
        return generate_latest(self._registry)


class Lane:
    """Threads for one kind of slow request, so that it delays no other kind."""

    def __init__(self, n_threads: int, max_waiting: int) -> None:
        self._n_threads, self._max_present, self._n_present = n_threads, n_threads + max_waiting, 0
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a thread of this lane. Raise TooManyError if too many calls wait for a thread."""
        if self._n_present >= self._max_present:
            raise TooManyError("too many requests of this kind at the moment. Hint: try again later.")
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._n_threads)
        self._n_present += 1
        try:
            return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs), limiter=self._limiter)
        finally:
            self._n_present -= 1


@dataclass
class Lanes:
    """Threads for each kind of slow request. All other requests share the thread pool of the framework."""

    # Each login takes a core and memory for its hash. Networks with an earlier login have threads of their own, so that
    # password guessing does not lock users out.
    known_logins: Lane = field(default_factory=lambda: Lane(2, 32))
    other_logins: Lane = field(default_factory=lambda: Lane(1, 8))
    answers: Lane = field(default_factory=lambda: Lane(32, 256))
    openid: Lane = field(default_factory=lambda: Lane(4, 32))
    plans: Lane = field(default_factory=lambda: Lane(4, 8))  # some take minutes
    files: Lane = field(default_factory=lambda: Lane(4, 32))  # reports, exports, large bodies


SESSION_COOKIE: Final = "veilwood_session"
_CSRF_HEADER: Final = "x-csrf-token"


@dataclass
class Service:
    """Components of a running service."""

    settings: Settings
    database: Store
    ledgers: Ledgers
    accounts: Accounts
    plans: Plans
    jobs: Jobs
    private_queries: PrivateQueries
    predictions: Predictions
    metrics: Metrics
    request_limit: RateLimit
    lanes: Lanes
    provider: OpenIdProvider

    @classmethod
    def open(cls, settings: Settings) -> Service:
        """Open the folder and the database, and create them if they are missing."""
        settings.make_folders()
        database = Store(settings)
        database.create_tables()
        ledgers = Ledgers(settings, database)
        ledgers.freeze_older_copies()
        clean_tables(settings, database)
        return cls(
            settings,
            database,
            ledgers,
            Accounts(database, settings.limits.logins_a_minute),
            Plans(database, ledgers),
            Jobs(settings, database, ledgers),
            PrivateQueries(settings, database, ledgers),
            Predictions(database),
            Metrics(),
            RateLimit(),
            Lanes(),
            OpenIdProvider(settings),
        )

    def has_no_accounts(self) -> bool:
        """Return True if no account exists yet."""
        return not self.database.find_all(store.accounts)

    @property
    def cookie_name(self) -> str:
        """Name of the session cookie. With TLS, browsers accept its prefix from this host only."""
        return f"__Host-{SESSION_COOKIE}" if self.settings.is_secure else SESSION_COOKIE

    async def authenticate(self, scope: Scope) -> Caller:
        """Authenticate a request by the token in its header, or by the session in its cookie.

        Raises
        ------
        DeniedError
            If neither identifies an enabled account, or if a change in a session lacks the CSRF token.
        TooManyError
            If the account exceeds its requests per minute.
        """
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        cookie = _read_cookie(headers.get("cookie", ""), self.cookie_name)
        if scheme.lower() == "bearer":
            caller = await self._find_caller(token.strip(), "token")
        elif cookie:
            caller = await self._find_caller(cookie, "session")
            is_change = scope["method"] not in ("GET", "HEAD")
            if is_change and headers.get(_CSRF_HEADER) != caller.csrf:
                raise DeniedError(
                    "the CSRF token of the session is missing or wrong. Hint: send it in the header X-CSRF-Token.",
                    is_authenticated=True,
                )
        else:
            raise DeniedError("the request is not authenticated. Hint: log in, or send Authorization: Bearer TOKEN.")
        self.request_limit.count(caller.name, self.settings.limits.requests_a_minute)
        return caller

    async def _find_caller(self, token: str, kind: str) -> Caller:
        known = self.accounts.find_cached_caller(token, kind)
        return await anyio.to_thread.run_sync(self.accounts.authenticate, token, kind) if known is None else known


def _read_cookie(header: str, name: str) -> str:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for key, _, value in pairs if key == name), "")


async def _find_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _require(scope: str | None) -> Any:
    """Return a FastAPI dependency that yields the authenticated caller and requires a scope, if one is given."""

    async def get_caller(request: Request) -> Caller:
        caller: Caller = request.state.caller
        if scope is not None:
            caller.require_scope(scope)
        return caller

    return Depends(get_caller)


RunningService = Annotated[Service, Depends(_find_service)]
AuthenticatedCaller = Annotated[Caller, _require(None)]
AskCaller = Annotated[Caller, _require("ask")]
PlanCaller = Annotated[Caller, _require("plan")]
RunCaller = Annotated[Caller, _require("run")]
SignCaller = Annotated[Caller, _require("sign")]
DataCaller = Annotated[Caller, _require("data")]
RecordsCaller = Annotated[Caller, _require("records")]
AccountsCaller = Annotated[Caller, _require("accounts")]
OperateCaller = Annotated[Caller, _require("operate")]


_LOG_FIELDS: Final = ("method", "route", "status", "account", "address")


class JsonLogFormatter(logging.Formatter):
    """Formatter of log records as JSON lines.

    An error is logged by type and source line, never by its text, which may contain values of rows.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        data = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        data |= {name: getattr(record, name) for name in _LOG_FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            data |= {"event": "broken", "error": type(error).__name__, "place": _error_location(error)}
        return json.dumps(data)


def _error_location(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def configure_logging(level: str = "info") -> None:
    """Log to standard error as JSON lines: the service and uvicorn from ``level``, other libraries from WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel("ERROR" if level == "error" else "WARNING")
    for name in ("veilwood", "uvicorn"):
        logging.getLogger(name).setLevel(level.upper())
