# SPDX-License-Identifier: Apache-2.0
"""Routes of accounts, invitations, sessions, tokens, OpenID logins and the record of who did what."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from veilwood_service import responses, store
from veilwood_service.access import (
    AccountsCaller,
    AuthenticatedCaller,
    RecordsCaller,
    RunningService,
    Service,
)
from veilwood_service.accounts import SESSION_HOURS, DeniedError, network_of


async def _find_address(request: Request) -> str:
    return "" if request.client is None else request.client.host


ClientAddress = Annotated[str, Depends(_find_address)]
openid_router = APIRouter(prefix="/v1/openid", tags=["people"])

_ATTEMPT_COOKIE: Final = "veilwood_openid"
_ATTEMPT_MINUTES: Final = 10
_ATTEMPTS_PER_MINUTE: Final = 30  # per network


@openid_router.get("/start", status_code=307, response_class=RedirectResponse)
async def start(service: RunningService, address: ClientAddress) -> Response:
    """Redirect to the OpenID provider."""
    service.request_limit.count(f"openid {network_of(address)}", _ATTEMPTS_PER_MINUTE)
    facts = await service.lanes.openid.run(service.provider.discover)
    attempt = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
    with service.provider.open_client() as client:
        target, _ = client.create_authorization_url(
            facts["authorization_endpoint"],
            state=attempt["state"],
            code_verifier=attempt["verifier"],
            nonce=attempt["nonce"],
        )
    response = RedirectResponse(target)
    response.set_cookie(
        _ATTEMPT_COOKIE,
        json.dumps(attempt),
        httponly=True,
        samesite="lax",  # the provider redirects the user back from another site: a strict cookie would not be sent
        secure=service.settings.is_secure,
        max_age=60 * _ATTEMPT_MINUTES,
        path=openid_router.prefix,
    )
    return response


@openid_router.get("/back", status_code=303, response_class=RedirectResponse)
async def back(
    request: Request, service: RunningService, address: ClientAddress, code: str = "", state: str = ""
) -> Response:
    """Complete a login: verify the identity that the provider returns, and open a session."""
    service.request_limit.count(f"openid {network_of(address)}", _ATTEMPTS_PER_MINUTE)
    try:
        attempt = json.loads(request.cookies.get(_ATTEMPT_COOKIE, ""))
        expected, nonce, verifier = (str(attempt[name]) for name in ("state", "nonce", "verifier"))
    except (ValueError, KeyError, TypeError):
        raise DeniedError("the login attempt is unknown or has expired. Hint: log in again.") from None
    if not code or not secrets.compare_digest(state.encode(), expected.encode()):
        raise DeniedError("the response of the provider does not belong to this login attempt. Hint: log in again.")
    token = await service.lanes.openid.run(_log_in_by_openid, service, code, verifier, nonce)
    response = RedirectResponse("/page/index.html", status_code=303)
    response.delete_cookie(_ATTEMPT_COOKIE, path=openid_router.prefix)
    _set_session_cookie(service, response, token)
    return response


def _log_in_by_openid(service: Service, code: str, verifier: str, nonce: str) -> str:
    subject = service.provider.verify_login(code, verifier, nonce)
    account = service.database.find(store.accounts, subject=subject)
    if account is None or account["disabled"]:
        raise DeniedError("no account is linked to this identity. Hint: ask an operator to create one.")
    return service.accounts.open_session(account["name"])[0]


router = APIRouter(prefix="/v1", tags=["people"])
AccountName = Annotated[str, Field(max_length=64)]
Password = Annotated[str, Field(max_length=1000)]
PageLength = Annotated[int, Query(ge=1, le=store.MAX_PAGE_LENGTH)]
PageCursor = Annotated[str | None, Query(max_length=100)]


class LogIn(responses.RequestBody):
    """Request body for logging in."""

    name: AccountName
    password: Password


class AcceptedInvitation(responses.RequestBody):
    """Request body for accepting an invitation. The first account chooses its name too."""

    invitation: Annotated[str, Field(max_length=200)]
    password: Password
    name: AccountName | None = None


class NewAccount(responses.RequestBody):
    """Request body for creating an account. Users of an OpenID provider have a subject."""

    name: AccountName
    roles: list[str] = Field(max_length=8)
    subject: Annotated[str, Field(max_length=255)] | None = None


class ChangedAccount(responses.RequestBody):
    """Request body for updating an account."""

    roles: list[str] | None = Field(None, max_length=8)
    disabled: bool | None = None


class NewPassword(responses.RequestBody):
    """Request body for changing a password."""

    old: Password
    new: Password


class NewToken(responses.RequestBody):
    """Request body for creating a token: purpose, scopes and days to live."""

    name: Annotated[str, Field(max_length=200)]
    scopes: list[str] = Field(max_length=16)
    days: int = Field(30, ge=1, le=366, strict=True)


def _set_session_cookie(service: Service, response: Response, token: str) -> None:
    response.set_cookie(
        service.cookie_name,
        token,
        httponly=True,
        samesite="strict",
        secure=service.settings.is_secure,
        path="/",
        max_age=SESSION_HOURS * 3600,
    )


async def _log_in(
    service: Service, response: Response, address: str, log_in: Callable[..., tuple[str, str]], *given: Any
) -> responses.SessionOpened:
    """Open a session with ``log_in``, which hashes a password, in a thread for logins from this address."""
    lanes = service.lanes
    lane = lanes.known_logins if service.accounts.is_known(address) else lanes.other_logins
    token, csrf = await lane.run(log_in, *given, address)
    _set_session_cookie(service, response, token)
    return responses.SessionOpened(csrf=csrf)


@router.post("/accounts/accept")
async def accept_invitation(
    service: RunningService, response: Response, address: ClientAddress, body: AcceptedInvitation
) -> responses.SessionOpened:
    """Set the password of an invited account, and log in. An invitation works once."""
    service.request_limit.count(f"accept {network_of(address)}", _ATTEMPTS_PER_MINUTE)

    def accept_and_log_in(address: str) -> tuple[str, str]:
        name = service.accounts.accept_invitation(body.invitation, body.password, body.name)
        return service.accounts.log_in(name, body.password, address)

    return await _log_in(service, response, address, accept_and_log_in)


@router.post("/session")
async def log_in(
    service: RunningService, response: Response, address: ClientAddress, body: LogIn
) -> responses.SessionOpened:
    """Log in. Changes in this session must send the returned CSRF token in the header X-CSRF-Token."""
    return await _log_in(service, response, address, service.accounts.log_in, body.name, body.password)


@router.get("/session")
def who_am_i(service: RunningService, caller: AuthenticatedCaller) -> responses.Me:
    """Return the account that is logged in, with its roles and scopes."""
    return responses.Me(
        name=caller.name,
        roles=sorted(caller.roles),
        scopes=sorted(caller.scopes),
        csrf=caller.csrf,
        has_password=service.accounts.has_password(caller.name),
    )


@router.put("/session/password")
async def change_password(
    service: RunningService, caller: AuthenticatedCaller, response: Response, address: ClientAddress, body: NewPassword
) -> responses.SessionOpened:
    """Change the caller's password. Requires a session. Ends all tokens and sessions, and opens a new session."""
    change = service.accounts.change_password
    return await _log_in(service, response, address, change, caller, body.old, body.new)


@router.delete("/session", status_code=204)
def log_out(request: Request, service: RunningService, caller: AuthenticatedCaller) -> Response:
    """Log out."""
    service.accounts.log_out(caller, request.cookies.get(service.cookie_name, ""))
    response = Response(status_code=204)
    response.delete_cookie(service.cookie_name, path="/", secure=service.settings.is_secure)
    return response


@router.get("/accounts")
def list_accounts(service: RunningService, caller: AccountsCaller) -> list[responses.Account]:
    """List all accounts."""
    return [
        responses.Account(
            name=row["name"],
            roles=row["roles"].split(),
            disabled=bool(row["disabled"]),
            invited=row["password"] is None and row["subject"] is None,
        )
        for row in service.database.find_all(store.accounts)
    ]


@router.post("/accounts", status_code=201)
def add_account(service: RunningService, caller: AccountsCaller, body: NewAccount) -> responses.Invitation:
    """Create an account. Requires a session. Send the invitation to its owner, who sets the password."""
    caller.require_session("make accounts")
    invitation = service.accounts.invite(caller.name, body.name, body.roles, body.subject)
    return responses.Invitation(name=body.name, invitation=invitation)


@router.post("/accounts/{name}/invitation", status_code=201)
def invite_again(service: RunningService, caller: AccountsCaller, name: str) -> responses.Invitation:
    """Return a new invitation for an account whose password is lost. Requires a session. Recorded as an event."""
    caller.require_session("invite accounts")
    return responses.Invitation(name=name, invitation=service.accounts.invite(caller.name, name))


@router.patch("/accounts/{name}")
def change_account(service: RunningService, caller: AccountsCaller, name: str, body: ChangedAccount) -> responses.Name:
    """Change the roles of another account, or disable it. Requires a session. Ends its tokens and sessions."""
    caller.require_session("change accounts")
    service.accounts.update_account(caller.name, name, body.roles, body.disabled)
    return responses.Name(name=name)


@router.get("/tokens")
def list_tokens(service: RunningService, caller: AuthenticatedCaller) -> list[responses.Token]:
    """List the caller's tokens and sessions by id, without the tokens themselves."""
    return [responses.Token(**token) for token in service.accounts.list_tokens(caller)]


@router.post("/tokens", status_code=201)
def add_token(service: RunningService, caller: AuthenticatedCaller, body: NewToken) -> responses.NewTokenIssued:
    """Create a token. Requires a session. The response is the only place where it is shown."""
    token, number = service.accounts.issue_token(caller, body.name, body.scopes, body.days)
    return responses.NewTokenIssued(id=number, token=token)


@router.delete("/tokens/{number}", status_code=204)
def revoke_token(service: RunningService, caller: AuthenticatedCaller, number: str) -> Response:
    """Revoke a token or end a session. Requires a session."""
    service.accounts.revoke_token(caller, number)
    return Response(status_code=204)


@router.get("/events")
def list_events(
    service: RunningService, caller: RecordsCaller, limit: PageLength = 100, after: PageCursor = None
) -> responses.Page[responses.Event]:
    """List the recorded actions of all accounts, newest first, for custodians and auditors."""
    rows, cursor = service.database.find_page(store.events, limit, after)
    return responses.Page[responses.Event](
        items=[responses.Event(**{**row, "detail": json.loads(row["detail"])}) for row in rows], next=cursor
    )
