# SPDX-License-Identifier: Apache-2.0
"""FastAPI application: routers, middleware, security headers and error responses.

The routes of data, models and accounts are in the modules ``routes_...``.
"""

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

page_router = APIRouter(include_in_schema=False)

_MAX_NAME_LENGTH: Final = 64
_PAGES_FOLDER: Final = Path(__file__).parent / "pages"
_CONTENT_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml",
                 ".json": "application/json"}  # fmt: skip


@page_router.get("/")
def redirect_to_page() -> RedirectResponse:
    """Redirect to the web page."""
    return RedirectResponse("/page/index.html")


@page_router.get("/page/{name}")
def get_page_file(name: str) -> FileResponse:
    """Return one file of the web page."""
    path = _PAGES_FOLDER / name
    if (
        len(name) > _MAX_NAME_LENGTH
        or path.parent != _PAGES_FOLDER
        or path.suffix not in _CONTENT_TYPES
        or not path.is_file()
    ):
        raise HTTPException(404, "page not found.")
    return FileResponse(path, media_type=_CONTENT_TYPES[path.suffix])


state_router = APIRouter(tags=["state"])


@state_router.get("/healthz")
async def health() -> dict[str, str]:
    """Return the status of the process and its version."""
    return {"status": "alive", "version": __version__}


@state_router.get("/readyz")
def ready(request: Request) -> dict[str, Any]:
    """Return whether the database responds, and whether the first account exists."""
    accounts = get_service(request).database.find_all(store.accounts)
    return {
        "status": "ready",
        "has_accounts": bool(accounts),
        "has_provider": bool(get_service(request).settings.issuer),
    }


@state_router.get("/v1/metrics")
def metrics(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return request counts in the format of Prometheus."""
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
    """Create the application of a service. Its jobs run while the application runs."""
    service = Service.open(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.jobs.start()
        gc.collect()
        gc.freeze()  # objects loaded so far are permanent: scanning them again would delay requests
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
        routes_models.predict_router,  # first, because routes are matched in order and this one is the busiest
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
    """Middleware for every request: size limits, metrics, one log line without content, security headers."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._headers = [(name.lower().encode(), value.encode()) for name, value in _SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.monotonic(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in self._headers if pair[0] not in present)]
            await send(message)

        rejection = self._rejection_response(scope)
        try:
            await (self._app if rejection is None else rejection)(scope, receive, send_with_headers)
        finally:
            self._log_request(
                scope["method"], getattr(scope.get("route"), "path", "none"), status, time.monotonic() - start
            )

    def _log_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._service.metrics.record_request(method, route, status, seconds)
        if _LOG.isEnabledFor(logging.INFO):
            _LOG.info("%s %s %d", method, route, status, extra={"method": method, "route": route, "status": status})

    def _rejection_response(self, scope: Scope) -> Response | None:
        headers, limits = Headers(scope=scope), self._service.settings.limits
        uploads = scope["method"] == "PUT" and _UPLOAD_PATH.fullmatch(scope["path"]) is not None
        max_bytes = limits.upload_bytes if uploads else limits.body_bytes
        length = headers.get("content-length", "")
        if "content-encoding" in headers:
            return problem_response(415, "encoding", "compressed bodies are not accepted. Hint: send the file as is.")
        if "transfer-encoding" in headers or len(length) > 18:  # digits; no length of more is within a limit
            return problem_response(411, "length", "the length of the body is missing. Hint: send Content-Length.")
        if length.isdigit() and int(length) > max_bytes:
            return problem_response(413, "too large", f"the body exceeds the limit of {max_bytes} bytes.")
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
    status, title = next(row[1:] for row in _STATUS_OF_ERROR if isinstance(error, row[0]))
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
    problems = [".".join(str(part) for part in one["loc"]) + ": " + one["msg"] for one in error.errors()[:10]]
    return problem_response(422, "malformed", "; ".join(problems)[:1000])


async def _handle_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem_response(
        error.status_code, "not found" if error.status_code == 404 else "refused", str(error.detail)
    )


async def _handle_unexpected_error(_: Request, error: Exception) -> Response:
    _LOG.error("broken: %s", type(error).__name__)  # never the text of the error, which may contain values of rows
    return problem_response(500, "broken", "internal error. Hint: ask the operator to read the log of the service.")
