# SPDX-License-Identifier: Apache-2.0
"""FastAPI application: routers, middleware, security headers and error responses.

The middleware authenticates a request before its body is read. The routes of data sets, models and accounts are in the
modules ``routes_...``.
"""

from __future__ import annotations

import asyncio
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
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from veilwood._version import __version__
from veilwood.errors import BudgetExceededError, FileError, LedgerError, NotFoundError, VeilwoodError
from veilwood_service import routes_data, routes_models, routes_people
from veilwood_service.access import OperateCaller, RunningService, Service
from veilwood_service.accounts import DeniedError, TooManyError
from veilwood_service.responses import Health, Problem, Readiness
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
    # Browsers check whether a file has changed, and load it again only then.
    return FileResponse(path, media_type=_CONTENT_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})


state_router = APIRouter(tags=["state"])

_MAX_POLL_AGE: Final = 15.0  # seconds since the last poll of the job thread, after which the service is not ready


@state_router.get("/healthz")
async def health() -> Health:
    """Return the status of the process and its version."""
    return Health(status="alive", version=__version__)


@state_router.get("/readyz", responses={503: {"model": Readiness}})
async def ready(service: RunningService, response: Response) -> Readiness:
    """Return whether the job thread has reached the database in the last few seconds. Never waits."""
    is_ready = time.monotonic() - service.jobs.last_poll < _MAX_POLL_AGE
    response.status_code = 200 if is_ready else 503
    return Readiness(status="ready" if is_ready else "not ready", has_provider=bool(service.settings.issuer))


@state_router.get("/v1/metrics", response_class=Response)
async def metrics(service: RunningService, caller: OperateCaller) -> Response:
    """Return request counts in the format of Prometheus."""
    return Response(service.metrics.to_prometheus_text(), media_type="text/plain; version=0.0.4")


_LOG: Final = logging.getLogger("veilwood.service")
_UPLOAD_PATH: Final = re.compile(r"/v1/datasets/[^/]+/table")
_LONG_BODY_PATH: Final = re.compile(
    r"/v1/datasets/[^/]+/(schema|review|ledger/certificates)|/v1/models/[^/]+/(predict|predict\.csv|quote|answers)"
)
_OPEN_PATHS: Final = frozenset(
    {"/v1/session", "/v1/accounts/accept", "/v1/openid/start", "/v1/openid/back", "/v1/openapi.json"}
)
"""Paths that need no account; of ``/v1/session``, only the login."""
_BODY_SECONDS: Final = 30.0  # for a whole body, except an upload
_UPLOAD_PAUSE_SECONDS: Final = 60.0  # between two pieces of an upload
_HEADER_SECONDS: Final = 10.0  # for the headers of a request
_SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
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
    app.openapi = lambda: _describe_api(app)  # type: ignore[method-assign]
    return app


def _describe_api(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, including the authentication schemes and the format of errors."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        components = document["components"]
        components["schemas"]["Problem"] = Problem.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(name, None)
        cookie = app.state.service.cookie_name
        components["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": cookie},
        }
        problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                is_open = not path.startswith("/v1/") or _is_open(method.upper(), path)
                operation["security"] = [] if is_open else [{"token": []}, {"session": []}]
                operation["responses"]["default"] = {"description": "Problem (RFC 9457)", "content": problem}
                operation["responses"].pop("422", None)
                for status in (401, 403, 404, 409, 411, 413, 415, 422, 429):
                    described = {"description": "Problem (RFC 9457)", "content": problem}
                    operation["responses"].setdefault(str(status), described)
        app.openapi_schema = document
    return app.openapi_schema


def _is_open(method: str, path: str) -> bool:
    return path in _OPEN_PATHS and (path != "/v1/session" or method == "POST")


class RequestMiddleware:
    """Middleware for every request: authentication, limits, metrics, one log line without content, security headers."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        headers = dict(_SECURITY_HEADERS)
        if service.settings.is_secure:
            headers["Strict-Transport-Security"] = "max-age=31536000"
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

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

        is_upload = scope["method"] == "PUT" and _UPLOAD_PATH.fullmatch(scope["path"]) is not None
        rejection = self._reject_body(scope, is_upload)
        try:
            if rejection is None:
                rejection = await self._authenticate_request(scope)
            if rejection is None:
                await self._app(scope, _with_time_limit(receive, is_upload), send_with_headers)
            else:
                # The body is not read: the connection cannot carry another request.
                rejection.headers["Connection"] = "close"
                await rejection(scope, receive, send_with_headers)
        finally:
            self._log_request(scope, status, time.monotonic() - start)

    async def _authenticate_request(self, scope: Scope) -> Response | None:
        if not scope["path"].startswith("/v1/") or _is_open(scope["method"], scope["path"]):
            return None
        try:
            scope.setdefault("state", {})["caller"] = await self._service.authenticate(scope)
        except VeilwoodError as error:
            return _error_response(error)
        return None

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = scope["method"], getattr(scope.get("route"), "path", "none")
        self._service.metrics.record_request(method, route, status, seconds)
        if _LOG.isEnabledFor(logging.INFO):
            caller = scope.get("state", {}).get("caller")
            fields = {"method": method, "route": route, "status": status, "account": getattr(caller, "name", None)}
            fields["address"] = scope["client"][0] if scope.get("client") else None
            _LOG.info("%s %s %d", method, route, status, extra=fields)

    def _reject_body(self, scope: Scope, is_upload: bool) -> Response | None:
        headers, limits = Headers(scope=scope), self._service.settings.limits
        is_long = _LONG_BODY_PATH.fullmatch(scope["path"]) is not None
        max_bytes = limits.upload_bytes if is_upload else limits.body_bytes if is_long else limits.small_body_bytes
        length = headers.get("content-length", "")
        if "content-encoding" in headers:
            return problem_response(415, "encoding", "compressed bodies are not accepted. Hint: send the file as is.")
        if "transfer-encoding" in headers or len(length) > 18:  # digits; any longer number exceeds every limit
            return problem_response(411, "length", "the length of the body is missing. Hint: send Content-Length.")
        if length.isdigit() and int(length) > max_bytes:
            return problem_response(413, "too large", f"the body exceeds the limit of {max_bytes} bytes.")
        return None


def _with_time_limit(receive: Receive, is_upload: bool) -> Receive:
    """Return ``receive`` with a limit on the time that a client takes to send a body."""
    deadline, is_complete = time.monotonic() + _BODY_SECONDS, False

    async def receive_in_time() -> Message:
        nonlocal is_complete
        if is_complete:  # only a disconnection can follow
            return await receive()
        seconds = _UPLOAD_PAUSE_SECONDS if is_upload else deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body did not arrive in time.") from None
        is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return receive_in_time


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """HTTP protocol of uvicorn that closes connections whose headers do not arrive in time."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request."""
        super().connection_made(transport)
        self._header_timer = self.loop.call_later(_HEADER_SECONDS, transport.close)

    def on_message_begin(self) -> None:
        """Start the timer of a later request."""
        super().on_message_begin()
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


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


def _error_response(error: VeilwoodError) -> JSONResponse:
    status, title = next(row[1:] for row in _STATUS_OF_ERROR if isinstance(error, row[0]))
    if isinstance(error, DeniedError) and not error.is_authenticated:
        status = 401
    more: dict[str, Any] = {}
    if isinstance(error, BudgetExceededError):
        more["remaining"] = None if error.remaining is None else str(error.remaining)
    elif isinstance(error, LedgerError) and error.__cause__ is not None:
        # The text of a database error may name a host, port or file.
        return problem_response(status, title, "the ledger is unavailable. Hint: ask the operator of the service.")
    if (field := getattr(error, "name", None)) is not None and status == 422:
        more["field"] = str(field)
    return problem_response(status, title, str(error), **more)


async def _handle_library_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, VeilwoodError)
    return _error_response(error)


async def _handle_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()[:10]
    problems = [".".join(str(part) for part in one["loc"]) + ": " + one["msg"] for one in errors]
    return problem_response(422, "malformed", "; ".join(problems)[:1000], field=str(errors[0]["loc"][-1]))


async def _handle_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = {404: "not found", 408: "too slow"}.get(error.status_code, "refused")
    return problem_response(error.status_code, title, str(error.detail))


async def _handle_unexpected_error(_: Request, error: Exception) -> Response:
    _LOG.error("broken: %s", type(error).__name__)  # never the text of the error, which may contain values of rows
    return problem_response(500, "broken", "internal error. Hint: ask the operator to read the log of the service.")
