# SPDX-License-Identifier: Apache-2.0
"""What every route begins with: the parts of the running service, and who is asking."""

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
from veilwood_service.migrations import make_tables
from veilwood_service.predictions import Predicting
from veilwood_service.private_queries import Predictors
from veilwood_service.settings import Settings
from veilwood_service.store import Store
from veilwood_service.training import Plans

__all__ = ["COOKIE", "JSONLines", "Metrics", "Service", "WhoAsks", "caller_of", "log_to_standard_error", "service_of"]


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    """The counts of one process."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # when the first answer was ready may tell sizes
        self._registry = CollectorRegistry()
        names = ["method", "route"]
        self._requests = Counter(
            "veilwood_requests", "Requests by route and status.", [*names, "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "veilwood_prediction_seconds", "Time of a free prediction.", registry=self._registry, buckets=_BUCKETS
        )

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. Times are kept for predictions alone: those of fits and answers tell sizes."""
        named = method if method in _METHODS else "other"  # a client may invent any, and each would be kept
        self._requests.labels(named, route, str(status)).inc()
        if route.endswith("/predict"):
            self._seconds.observe(seconds)

    def text(self) -> bytes:
        """All counts, in Prometheus' format."""
        return generate_latest(self._registry)


COOKIE: Final = "veilwood_session"
_CSRF_HEADER: Final = "x-csrf-token"


@dataclass
class Service:
    """The parts of a running service."""

    settings: Settings
    records: Store
    accounts: Accounts
    plans: Plans
    jobs: Jobs
    answering: Predictors
    predicting: Predicting
    metrics: Metrics
    callers: Throttle

    @classmethod
    def open(cls, settings: Settings) -> Service:
        """Open the folder and the database; both are made if they are not there."""
        settings.make_folders()
        records = Store(settings)
        make_tables(records)
        return cls(
            settings,
            records,
            Accounts(records, settings.limits.logins_a_minute),
            Plans(settings, records),
            Jobs(settings, records),
            Predictors(settings, records),
            Predicting(settings, records),
            Metrics(),
            Throttle(60.0),
        )

    def is_new(self) -> bool:
        """Whether nobody has an account yet."""
        return not self.records.every(store.accounts)


def service_of(request: Request) -> Service:
    """The service that a request is made to."""
    found: Service = request.app.state.service
    return found


async def caller_of(request: Request) -> Caller:
    """Who makes a request: by the token in its header, or by the session in its cookie."""
    service = service_of(request)
    kind, _, word = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        caller = await _who(service, word.strip(), "token")
    elif cookie := request.cookies.get(COOKIE):
        caller = await _who(service, cookie, "session")
        changes = request.method not in ("GET", "HEAD")
        if changes and request.headers.get(_CSRF_HEADER) != caller.csrf:
            raise DeniedError("the request does not repeat the word of its session.", known=True)
    else:
        raise DeniedError("who is asking? Hint: log in, or send Authorization: Bearer TOKEN.", known=False)
    service.callers.check(caller.name, service.settings.limits.requests_a_minute)
    service.callers.count(caller.name)
    return caller


async def _who(service: Service, word: str, kind: str) -> Caller:
    known = service.accounts.known(word, kind)
    return await run_in_threadpool(service.accounts.who, word, kind) if known is None else known


WhoAsks = Annotated[Caller, Depends(caller_of)]


_FACTS: Final = ("method", "route", "status")


class JSONLines(logging.Formatter):
    """A record as JSON. Of an error its kind and place are told, and never its text, which may hold what was read."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        told |= {name: getattr(record, name) for name in _FACTS if hasattr(record, name)}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            told |= {"event": "broken", "error": type(error).__name__, "place": _place(error)}
        return json.dumps(told)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def log_to_standard_error(level: str = "info") -> None:
    """Write what the service and its server say as JSON lines, from a level on; others, where something is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel("ERROR" if level == "error" else "WARNING")
    for name in ("veilwood", "uvicorn"):
        logging.getLogger(name).setLevel(level.upper())
