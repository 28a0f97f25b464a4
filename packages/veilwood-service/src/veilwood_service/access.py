# SPDX-License-Identifier: Apache-2.0
"""Access to the running service: its components, authentication of requests, metrics and logging."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

from veilwood_service import store
from veilwood_service.accounts import Accounts, Caller, DeniedError, Throttle
from veilwood_service.jobs import Jobs
from veilwood_service.predictions import Predictions
from veilwood_service.private_queries import PrivateQueries
from veilwood_service.settings import Settings
from veilwood_service.store import Store
from veilwood_service.training import Plans

_HTTP_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


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
            "Time of a free prediction.",
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


SESSION_COOKIE: Final = "veilwood_session"
_CSRF_HEADER: Final = "x-csrf-token"


@dataclass
class Service:
    """Components of a running service."""

    settings: Settings
    database: Store
    accounts: Accounts
    plans: Plans
    jobs: Jobs
    private_queries: PrivateQueries
    predictions: Predictions
    metrics: Metrics
    request_throttle: Throttle

    @classmethod
    def open(cls, settings: Settings) -> Service:
        """Open the folder and the database, and create them if they are missing."""
        settings.make_folders()
        database = Store(settings)
        database.create_tables()
        return cls(
            settings,
            database,
            Accounts(database, settings.limits.logins_a_minute),
            Plans(settings, database),
            Jobs(settings, database),
            PrivateQueries(settings, database),
            Predictions(settings, database),
            Metrics(),
            Throttle(seconds=60.0),
        )

    def has_no_accounts(self) -> bool:
        """Return True if no account exists yet."""
        return not self.database.find_all(store.accounts)


def get_service(request: Request) -> Service:
    """Return the service that received a request."""
    service: Service = request.app.state.service
    return service


async def get_caller(request: Request) -> Caller:
    """Authenticate a request by the token in its header, or by the session in its cookie.

    Raises
    ------
    DeniedError
        If neither identifies an enabled account, or if a change in a session lacks the CSRF token.
    TooManyError
        If the account exceeds its requests per minute.
    """
    service = get_service(request)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        caller = await _authenticate(service, token.strip(), "token")
    elif cookie := request.cookies.get(SESSION_COOKIE):
        caller = await _authenticate(service, cookie, "session")
        changes = request.method not in ("GET", "HEAD")
        if changes and request.headers.get(_CSRF_HEADER) != caller.csrf:
            raise DeniedError(
                "the CSRF token of the session is missing or wrong. Hint: send it in the header X-CSRF-Token.",
                is_authenticated=True,
            )
    else:
        raise DeniedError("the request is not authenticated. Hint: log in, or send Authorization: Bearer TOKEN.")
    service.request_throttle.check_limit(caller.name, service.settings.limits.requests_a_minute)
    service.request_throttle.count_request(caller.name)
    return caller


async def _authenticate(service: Service, token: str, kind: str) -> Caller:
    known = service.accounts.find_cached_caller(token, kind)
    return await run_in_threadpool(service.accounts.authenticate, token, kind) if known is None else known


AuthenticatedCaller = Annotated[Caller, Depends(get_caller)]


_EXTRA_FIELDS: Final = ("method", "route", "status")


class JsonLogFormatter(logging.Formatter):
    """Formatter of log records as JSON lines.

    An error is logged by type and source line, never by its text, which may contain values of rows.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        payload = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        payload |= {name: getattr(record, name) for name in _EXTRA_FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            payload |= {"event": "broken", "error": type(error).__name__, "place": _error_location(error)}
        return json.dumps(payload)


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
