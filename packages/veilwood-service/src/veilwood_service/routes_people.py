# SPDX-License-Identifier: Apache-2.0
"""Routes of accounts, invitations, sessions, tokens, OpenID logins and the record of who did what."""

from __future__ import annotations

import json
import secrets
import threading
import time
from typing import Annotated, Any, Final

import httpx
from authlib.integrations.httpx_client import OAuth2Client, OAuthError
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from pydantic import BaseModel, Field

from veilwood.errors import UseError
from veilwood_service import responses, store
from veilwood_service.access import AuthenticatedCaller, Service, get_service
from veilwood_service.accounts import SESSION_HOURS, DeniedError, network_of

openid_router = APIRouter(prefix="/v1/openid", tags=["people"])

_ATTEMPT_COOKIE: Final = "veilwood_openid"
_ATTEMPT_MINUTES: Final = 10
_ALGORITHMS: Final = ["RS256", "ES256", "PS256", "EdDSA"]
_TIMEOUT_SECONDS: Final = 5.0
_DISCOVERY_SECONDS: Final = 600.0  # for which addresses and keys of the provider are kept
_ATTEMPTS_PER_MINUTE: Final = 30  # per network


class OpenIdProvider:
    """An OpenID provider, with its addresses and keys in memory."""

    def __init__(self, service: Service) -> None:
        self._settings, self._lock, self._until = service.settings, threading.Lock(), 0.0
        self._facts: dict[str, Any] = {}
        self._keys: Any = None

    def open_client(self, state: str | None = None) -> OAuth2Client:
        """Return a client of the provider."""
        return OAuth2Client(
            self._settings.client_id,
            self._settings.client_secret,
            scope="openid",
            state=state,
            redirect_uri=f"{self._settings.address.rstrip('/')}{openid_router.prefix}/back",
            code_challenge_method="S256",
            timeout=_TIMEOUT_SECONDS,
        )

    def discover(self) -> dict[str, Any]:
        """Return the addresses of the provider. Raise DeniedError if it does not respond, or is another issuer."""
        issuer = self._settings.issuer.rstrip("/")
        if not issuer:
            raise UseError("no OpenID provider is configured. Hint: log in with a password.")
        with self._lock:
            if time.monotonic() > self._until:
                facts = _get_json(f"{issuer}/.well-known/openid-configuration")
                if str(facts.get("issuer", "")).rstrip("/") != issuer:
                    raise DeniedError("the OpenID provider declares another issuer. Hint: ask the operator.")
                self._keys = KeySet.import_key_set(_get_json(facts["jwks_uri"]))  # type: ignore[arg-type]
                self._facts, self._until = facts, time.monotonic() + _DISCOVERY_SECONDS
        return self._facts

    def verify_login(self, code: str, verifier: str, nonce: str) -> str:
        """Exchange the code for an ID token; verify it and return its subject."""
        facts, client_id = self.discover(), self._settings.client_id
        try:
            with self.open_client() as client:
                response = client.fetch_token(facts["token_endpoint"], code=code, code_verifier=verifier)
            claims = self._decode_token(response["id_token"])
            jwt.JWTClaimsRegistry(
                iss={"essential": True, "value": facts["issuer"]},
                aud={"essential": True, "value": client_id},
                exp={"essential": True},
                sub={"essential": True},
                nonce={"essential": True, "value": nonce},
                # A token for several audiences names the one that it was issued to.
                azp={"essential": isinstance(claims.get("aud"), list) and len(claims["aud"]) > 1, "value": client_id},
            ).validate(claims)
        except (httpx.HTTPError, OAuthError, JoseError, ValueError, KeyError, TypeError):
            raise DeniedError("the OpenID provider did not confirm the identity.") from None
        return str(claims["sub"])

    def _decode_token(self, token: str) -> dict[str, Any]:
        try:
            return dict(jwt.decode(token, self._keys, algorithms=_ALGORITHMS).claims)
        except JoseError:  # the provider may have new keys
            self._until = 0.0
            self.discover()
            return dict(jwt.decode(token, self._keys, algorithms=_ALGORITHMS).claims)


def _get_json(address: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = httpx.get(address, timeout=_TIMEOUT_SECONDS).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        raise DeniedError("the OpenID provider does not respond. Hint: try again.") from None
    return content


def _provider_of(request: Request) -> OpenIdProvider:
    state = request.app.state
    if not hasattr(state, "openid_provider"):
        state.openid_provider = OpenIdProvider(state.service)
    return state.openid_provider  # type: ignore[no-any-return]


@openid_router.get("/start", status_code=307, response_class=RedirectResponse)
async def start(request: Request) -> Response:
    """Redirect to the OpenID provider."""
    service, provider = get_service(request), _provider_of(request)
    service.request_limit.count(f"openid {network_of(_client_address(request))}", _ATTEMPTS_PER_MINUTE)
    facts = await service.lanes.openid.run(provider.discover)
    attempt = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
    with provider.open_client() as client:
        address, _ = client.create_authorization_url(
            facts["authorization_endpoint"],
            state=attempt["state"],
            code_verifier=attempt["verifier"],
            nonce=attempt["nonce"],
        )
    response = RedirectResponse(address)
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
async def back(request: Request, code: str = "", state: str = "") -> Response:
    """Complete a login: verify the identity that the provider returns, and open a session."""
    service = get_service(request)
    service.request_limit.count(f"openid {network_of(_client_address(request))}", _ATTEMPTS_PER_MINUTE)
    try:
        attempt = json.loads(request.cookies.get(_ATTEMPT_COOKIE, ""))
        expected, nonce, verifier = (str(attempt[name]) for name in ("state", "nonce", "verifier"))
    except (ValueError, KeyError, TypeError):
        raise DeniedError("the login attempt is not known or has expired. Hint: log in again.") from None
    if not code or not secrets.compare_digest(state.encode(), expected.encode()):
        raise DeniedError("the response of the provider does not belong to this login attempt. Hint: log in again.")
    token = await service.lanes.openid.run(_log_in_by_openid, service, _provider_of(request), code, verifier, nonce)
    response = RedirectResponse("/page/index.html", status_code=303)
    response.delete_cookie(_ATTEMPT_COOKIE, path=openid_router.prefix)
    _set_session_cookie(service, response, token)
    return response


def _log_in_by_openid(service: Service, provider: OpenIdProvider, code: str, verifier: str, nonce: str) -> str:
    subject = provider.verify_login(code, verifier, nonce)
    account = service.database.find(store.accounts, subject=subject)
    if account is None or account["disabled"]:
        raise DeniedError("no account is linked to this identity. Hint: ask an operator to create one.")
    return service.accounts.open_session(account["name"])[0]


router = APIRouter(prefix="/v1", tags=["people"])
AccountName = Annotated[str, Field(max_length=64)]
Password = Annotated[str, Field(max_length=1000)]
PageLength = Annotated[int, Query(ge=1, le=store.MAX_PAGE_LENGTH)]
PageCursor = Annotated[str | None, Query(max_length=100)]


class LogIn(BaseModel):
    """Request body for logging in."""

    name: AccountName
    password: Password


class AcceptedInvitation(BaseModel):
    """Request body for accepting an invitation. The first account chooses its name too."""

    invitation: Annotated[str, Field(max_length=200)]
    password: Password
    name: AccountName | None = None


class NewAccount(BaseModel):
    """Request body for creating an account. Users of an OpenID provider have a subject."""

    name: AccountName
    roles: list[str] = Field(max_length=8)
    subject: Annotated[str, Field(max_length=255)] | None = None


class ChangedAccount(BaseModel):
    """Request body for updating an account."""

    roles: list[str] | None = Field(None, max_length=8)
    disabled: bool | None = None


class NewPassword(BaseModel):
    """Request body for changing a password."""

    old: Password
    new: Password


class NewToken(BaseModel):
    """Request body for creating a token: purpose, scopes and days to live."""

    name: Annotated[str, Field(max_length=200)]
    scopes: list[str] = Field(max_length=16)
    days: int = Field(30, ge=1, le=366, strict=True)


def _client_address(request: Request) -> str:
    return "" if request.client is None else request.client.host


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


async def _log_in(request: Request, response: Response, name: str, password: str) -> responses.SessionOpened:
    service = get_service(request)
    token, csrf = await service.lanes.logins.run(service.accounts.log_in, name, password, _client_address(request))
    _set_session_cookie(service, response, token)
    return responses.SessionOpened(csrf=csrf)


@router.post("/accounts/accept")
async def accept_invitation(request: Request, response: Response, body: AcceptedInvitation) -> responses.SessionOpened:
    """Set the password of an invited account, and log in. An invitation works once."""
    service = get_service(request)
    service.request_limit.count(f"accept {network_of(_client_address(request))}", _ATTEMPTS_PER_MINUTE)
    accept = service.accounts.accept_invitation
    name = await service.lanes.logins.run(accept, body.invitation, body.password, body.name)
    return await _log_in(request, response, name, body.password)


@router.post("/session")
async def log_in(request: Request, response: Response, body: LogIn) -> responses.SessionOpened:
    """Log in. Changes in this session must send the returned CSRF token in the header X-CSRF-Token."""
    return await _log_in(request, response, body.name, body.password)


@router.get("/session")
def who_am_i(request: Request, caller: AuthenticatedCaller) -> responses.Me:
    """Return the account that is logged in, with its roles and scopes."""
    return responses.Me(
        name=caller.name,
        roles=sorted(caller.roles),
        scopes=sorted(caller.scopes),
        csrf=caller.csrf,
        has_password=get_service(request).accounts.has_password(caller.name),
    )


@router.put("/session/password")
async def change_password(
    request: Request, response: Response, caller: AuthenticatedCaller, body: NewPassword
) -> responses.SessionOpened:
    """Change the caller's password, in a session. Ends all tokens and sessions, and opens a new session."""
    service, address = get_service(request), _client_address(request)
    change = service.accounts.change_password
    token, csrf = await service.lanes.logins.run(change, caller, body.old, body.new, address)
    _set_session_cookie(service, response, token)
    return responses.SessionOpened(csrf=csrf)


@router.delete("/session", status_code=204)
def log_out(request: Request, caller: AuthenticatedCaller) -> Response:
    """Log out."""
    service = get_service(request)
    service.accounts.log_out(caller, request.cookies.get(service.cookie_name, ""))
    response = Response(status_code=204)
    response.delete_cookie(service.cookie_name, path="/", secure=service.settings.is_secure)
    return response


@router.get("/accounts")
def list_accounts(request: Request, caller: AuthenticatedCaller) -> list[responses.Account]:
    """List all accounts."""
    caller.require_scope("accounts")
    return [
        responses.Account(
            name=row["name"],
            roles=row["roles"].split(),
            disabled=bool(row["disabled"]),
            invited=row["password"] is None and row["subject"] is None,
        )
        for row in get_service(request).database.find_all(store.accounts)
    ]


@router.post("/accounts", status_code=201)
def add_account(request: Request, caller: AuthenticatedCaller, body: NewAccount) -> responses.Invitation:
    """Create an account, in a session. Send the invitation to its owner, who sets the password."""
    caller.require_scope("accounts")
    caller.require_session("make accounts")
    accounts = get_service(request).accounts
    invitation = accounts.invite(caller.name, body.name, body.roles, body.subject)
    return responses.Invitation(name=body.name, invitation=invitation)


@router.post("/accounts/{name}/invitation", status_code=201)
def invite_again(request: Request, caller: AuthenticatedCaller, name: str) -> responses.Invitation:
    """Return a new invitation for an account whose password is lost, in a session. Auditors see it in the events."""
    caller.require_scope("accounts")
    caller.require_session("invite accounts")
    return responses.Invitation(name=name, invitation=get_service(request).accounts.invite(caller.name, name))


@router.patch("/accounts/{name}")
def change_account(request: Request, caller: AuthenticatedCaller, name: str, body: ChangedAccount) -> responses.Name:
    """Change roles or access of another account, in a session. Ends its tokens and sessions."""
    caller.require_scope("accounts")
    caller.require_session("change accounts")
    get_service(request).accounts.update_account(caller.name, name, body.roles, body.disabled)
    return responses.Name(name=name)


@router.get("/tokens")
def list_tokens(request: Request, caller: AuthenticatedCaller) -> list[responses.Token]:
    """List the caller's tokens and sessions by id, without the tokens themselves."""
    return [responses.Token(**token) for token in get_service(request).accounts.list_tokens(caller)]


@router.post("/tokens", status_code=201)
def add_token(request: Request, caller: AuthenticatedCaller, body: NewToken) -> responses.NewTokenIssued:
    """Create a token, in a session. The response is the only place where it is shown."""
    token, number = get_service(request).accounts.issue_token(caller, body.name, body.scopes, body.days)
    return responses.NewTokenIssued(id=number, token=token)


@router.delete("/tokens/{number}", status_code=204)
def revoke_token(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Revoke a token or end a session, in a session."""
    get_service(request).accounts.revoke_token(caller, number)
    return Response(status_code=204)


@router.get("/events")
def list_events(
    request: Request, caller: AuthenticatedCaller, limit: PageLength = 100, after: PageCursor = None
) -> responses.EventPage:
    """List who did what, newest first, for custodians and auditors."""
    caller.require_scope("records")
    rows, cursor = get_service(request).database.find_page(store.events, limit, after)
    return responses.EventPage(
        items=[responses.Event(**{**row, "detail": json.loads(row["detail"])}) for row in rows], next=cursor
    )
