# SPDX-License-Identifier: Apache-2.0
"""What every route begins with: the parts of the running service, and who is asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from veilwood.service import store
from veilwood.service.accounts import Accounts, Caller, DeniedError, Throttle
from veilwood.service.answering import Predictors
from veilwood.service.jobs import Jobs
from veilwood.service.metrics import Metrics
from veilwood.service.migrations import make_tables
from veilwood.service.predicting import Predicting
from veilwood.service.settings import Settings
from veilwood.service.store import Store
from veilwood.service.training import Plans

__all__ = ["COOKIE", "Service", "WhoAsks", "caller_of", "service_of"]

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
