# SPDX-License-Identifier: Apache-2.0
"""The application: what is around all routes. Each group of routes is a module named ``routes_...``."""

from __future__ import annotations

import gc
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from veilwood._version import __version__
from veilwood.errors import BudgetExceededError, FileError, LedgerError, NotFoundError, VeilwoodError
from veilwood_service import routes_data, routes_models, routes_people, store
from veilwood_service.access import AuthenticatedCaller, Service, get_service
from veilwood_service.accounts import DeniedError, TooManyError
from veilwood_service.settings import Settings

__all__ = [
    "create_app",
    "get_page_file",
    "health",
    "metrics",
    "page_router",
    "problem_response",
    "ready",
    "redirect_to_page",
    "state_router",
]


page_router = APIRouter(include_in_schema=False)

_MAX_NAME_LENGTH: Final = 64
_PAGES_FOLDER: Final = Path(__file__).parent / "pages"
_CONTENT_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml",
                 ".json": "application/json"}  # fmt: skip


@page_router.get("/")
def redirect_to_page() -> RedirectResponse:
    """Go to the page."""
    return RedirectResponse("/page/index.html")


@page_router.get("/page/{name}")
def get_page_file(name: str) -> FileResponse:
    """Return one file of the page."""
    path = _PAGES_FOLDER / name
    if (
        len(name) > _MAX_NAME_LENGTH
        or path.parent != _PAGES_FOLDER
        or path.suffix not in _CONTENT_TYPES
        or not path.is_file()
    ):
        raise HTTPException(404, "there is no such page.")
    return FileResponse(path, media_type=_CONTENT_TYPES[path.suffix])


state_router = APIRouter(tags=["state"])


@state_router.get("/healthz")
async def health() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "alive", "version": __version__}


@state_router.get("/readyz")
def ready(request: Request) -> dict[str, Any]:
    """Say whether the database answers, and whether somebody has made the first account."""
    accounts = get_service(request).database.find_all(store.accounts)
    return {
        "status": "ready",
        "has_accounts": bool(accounts),
        "has_provider": bool(get_service(request).settings.issuer),
    }


@state_router.get("/v1/metrics")
def metrics(request: Request, caller: AuthenticatedCaller) -> Response:
    """Counts of requests, as Prometheus reads them."""
    caller.require_scope("operate")
    return Response(get_service(request).metrics.to_prometheus_text(), media_type="text/plain; version=0.0.4")


_UPLOAD_PATH: Final = re.compile(r"/v1/datasets/[^/]+/table")
_LOG: Final = logging.getLogger("veilwood.service")
_SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
}


def create_app(settings: Settings) -> FastAPI:
    """Make the application of a service; its jobs run while it is up."""
    service = Service.open(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.jobs.start()
        gc.collect()
        gc.freeze()  # what is loaded by now stays: looking through it again and again would hold requests up
        try:
            yield
        finally:
            service.jobs.stop()
            service.database.close()

    app = FastAPI(
        title="Veilwood",
        version=__version__,
        description="Private answers, training and budgets over HTTP.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    app.state.service = service
    for router in (
        routes_models.predict_router,  # the busiest first: routes are tried in turn
        state_router,
        routes_people.router,
        routes_people.openid_router,
        routes_data.router,
        routes_models.router,
        page_router,
    ):
        app.include_router(router)
    app.add_exception_handler(VeilwoodError, _handle_library_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, _handle_unexpected_error)
    app.add_middleware(RequestMiddleware, service=service)
    return app


class RequestMiddleware:
    """Around every request: refuse bodies that are too long, count, log one line without content, add headers."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._headers = [(name.lower().encode(), value.encode()) for name, value in _SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in self._headers if one[0] not in given)]
            await send(message)

        refusal = self._rejection_response(scope)
        try:
            await (self._app if refusal is None else refusal)(scope, receive, send_on)
        finally:
            self._log_request(
                scope["method"], getattr(scope.get("route"), "path", "none"), status, time.monotonic() - began
            )

    def _log_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._service.metrics.record_request(method, route, status, seconds)
        if _LOG.isEnabledFor(logging.INFO):
            _LOG.info("%s %s %d", method, route, status, extra={"method": method, "route": route, "status": status})

    def _rejection_response(self, scope: Scope) -> Response | None:
        headers, limits = Headers(scope=scope), self._service.settings.limits
        uploads = scope["method"] == "PUT" and _UPLOAD_PATH.fullmatch(scope["path"]) is not None
        most = limits.upload_bytes if uploads else limits.body_bytes
        length = headers.get("content-length", "")
        if "content-encoding" in headers:
            return problem_response(415, "encoding", "compressed bodies are not taken. Hint: send the file as it is.")
        if "transfer-encoding" in headers or len(length) > 18:
            return problem_response(411, "length", "the length of the body is missing. Hint: send Content-Length.")
        if length.isdigit() and int(length) > most:
            return problem_response(413, "too large", f"the body is longer than the limit of {most} bytes.")
        return None


def problem_response(status: int, kind: str, detail: str, **more: Any) -> JSONResponse:
    """Return an error response in the format of RFC 9457."""
    content = {"type": "about:blank", "title": kind, "status": status, "detail": detail, **more}
    return JSONResponse(content, status, media_type="application/problem+json")


_STATUS_OF_ERROR: Final[tuple[tuple[type[VeilwoodError], int, str], ...]] = (
    (DeniedError, 403, "denied"),
    (TooManyError, 429, "too many"),
    (NotFoundError, 404, "not found"),
    (BudgetExceededError, 409, "budget"),  # before LedgerError, its base
    (LedgerError, 409, "ledger"),
    (FileError, 409, "file"),
    (VeilwoodError, 422, "refused"),
)
"""HTTP status and problem title per type of error; the first row that matches counts."""


async def _handle_library_error(_: Request, error: Exception) -> Response:
    _, status, title = next(row for row in _STATUS_OF_ERROR if isinstance(error, row[0]))
    if isinstance(error, DeniedError) and not error.is_authenticated:
        status = 401
    if isinstance(error, BudgetExceededError):
        remaining = None if error.remaining is None else str(error.remaining)
        return problem_response(status, title, str(error), remaining=remaining)
    if isinstance(error, LedgerError) and error.__cause__ is not None:
        # The text of a database's error names host, port or file.
        return problem_response(status, title, "the ledger is unavailable. Hint: ask the operator of the service.")
    return problem_response(status, title, str(error))


async def _handle_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    places = [".".join(str(part) for part in one["loc"]) + ": " + one["msg"] for one in error.errors()[:10]]
    return problem_response(422, "malformed", "; ".join(places)[:1000])


async def _handle_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem_response(
        error.status_code, "not found" if error.status_code == 404 else "refused", str(error.detail)
    )


async def _handle_unexpected_error(_: Request, error: Exception) -> Response:
    _LOG.error("broken: %s", type(error).__name__)  # never its text, which may hold what was being read
    return problem_response(500, "broken", "the service has failed; its operator sees where.")
