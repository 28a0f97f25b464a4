# SPDX-License-Identifier: Apache-2.0
"""Routes of accounts, sessions, tokens and OpenID logins."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import Annotated, Any, Final

import httpx
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from pydantic import BaseModel, Field

from veilwood.errors import UseError
from veilwood_service import store
from veilwood_service.access import SESSION_COOKIE, AuthenticatedCaller, Service, get_service
from veilwood_service.accounts import SESSION_HOURS, DeniedError

openid_router = APIRouter(prefix="/v1/openid", tags=["people"])

_ATTEMPT_COOKIE: Final = "veilwood_openid"
_ATTEMPT_MINUTES: Final = 10
_ALGORITHMS: Final = ["RS256", "ES256", "PS256", "EdDSA"]
_TIMEOUT_SECONDS: Final = 10.0


@openid_router.get("/start")
async def start(request: Request) -> Response:
    """Redirect to the OpenID provider."""
    service = get_service(request)
    provider = await run_in_threadpool(_discover_provider, service)
    attempt = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt["verifier"].encode()).digest()).rstrip(b"=").decode()
    params = {
        "response_type": "code",
        "client_id": service.settings.client_id,
        "redirect_uri": _redirect_uri(service),
        "scope": "openid",
        "state": attempt["state"],
        "nonce": attempt["nonce"],
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    response = RedirectResponse(str(httpx.URL(provider["authorization_endpoint"], params=params)))
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


@openid_router.get("/back")
async def back(request: Request, code: str = "", state: str = "") -> Response:
    """Complete a login: verify the identity that the provider returns, and open a session."""
    service = get_service(request)
    try:
        attempt = json.loads(request.cookies.get(_ATTEMPT_COOKIE, ""))
        expected, nonce, verifier = (str(attempt[name]) for name in ("state", "nonce", "verifier"))
    except (ValueError, KeyError, TypeError):
        raise DeniedError("the login attempt is not known or has expired. Hint: log in again.") from None
    if not code or not secrets.compare_digest(state.encode(), expected.encode()):
        raise DeniedError("the response of the provider does not belong to this login attempt. Hint: log in again.")
    claims = await run_in_threadpool(_verified_claims, service, code, verifier, nonce)
    account = await run_in_threadpool(service.database.find, store.accounts, subject=str(claims["sub"]))
    if account is None or account["disabled"]:
        raise DeniedError("no account is linked to this identity. Hint: ask an operator to create one.")
    token, _ = await run_in_threadpool(service.accounts.open_session, account["name"])
    response = RedirectResponse("/page/index.html", status_code=303)
    response.delete_cookie(_ATTEMPT_COOKIE, path=openid_router.prefix)
    _set_session_cookie(service, response, token)
    return response


def _redirect_uri(service: Service) -> str:
    return f"{service.settings.address.rstrip('/')}{router.prefix}/back"


def _discover_provider(service: Service) -> dict[str, Any]:
    issuer = service.settings.issuer.rstrip("/")
    if not issuer:
        raise UseError("no OpenID provider is configured. Hint: log in with a password.")
    provider = _get_json(f"{issuer}/.well-known/openid-configuration")
    if str(provider.get("issuer", "")).rstrip("/") != issuer:
        raise DeniedError("the OpenID provider declares another issuer. Hint: ask the operator to check --issuer.")
    return provider


def _verified_claims(service: Service, code: str, verifier: str, nonce: str) -> dict[str, Any]:
    """Exchange the code for an ID token, and verify its signature, issuer, audience, time and nonce."""
    provider = _discover_provider(service)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": _redirect_uri(service),
        "code_verifier": verifier,
    }
    credentials = (service.settings.client_id, service.settings.client_secret)
    try:
        response = httpx.post(provider["token_endpoint"], data=form, auth=credentials, timeout=_TIMEOUT_SECONDS)
        id_token = response.raise_for_status().json()["id_token"]
        keys = KeySet.import_key_set(_get_json(provider["jwks_uri"]))  # type: ignore[arg-type]
        claims = jwt.decode(id_token, keys, algorithms=_ALGORITHMS).claims
        jwt.JWTClaimsRegistry(
            iss={"essential": True, "value": provider["issuer"]},
            aud={"essential": True, "value": service.settings.client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        ).validate(claims)
    except (httpx.HTTPError, JoseError, ValueError, KeyError, TypeError):
        raise DeniedError("the OpenID provider did not confirm the identity.") from None
    return dict(claims)


def _get_json(address: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = httpx.get(address, timeout=_TIMEOUT_SECONDS).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        raise DeniedError("the OpenID provider does not respond. Hint: try again.") from None
    return content


router = APIRouter(prefix="/v1", tags=["people"])
AccountName = Annotated[str, Field(max_length=64)]
Password = Annotated[str, Field(max_length=1000)]


class LogIn(BaseModel):
    """Request body for logging in."""

    name: AccountName
    password: Password


class FirstAccount(LogIn):
    """Request body for creating the first account, with the invitation that the service printed at its start."""

    invitation: Annotated[str, Field(max_length=200)]


class NewAccount(BaseModel):
    """Request body for creating an account. Users of an OpenID provider need a subject and no password."""

    name: AccountName
    roles: list[str] = Field(max_length=8)
    password: Password | None = None
    subject: Annotated[str, Field(max_length=255)] | None = None


class ChangedAccount(BaseModel):
    """Request body for updating an account."""

    roles: list[str] | None = Field(None, max_length=8)
    password: Password | None = None
    disabled: bool | None = None


class NewPassword(BaseModel):
    """Request body for changing a password."""

    old: Password
    new: Password


class NewToken(BaseModel):
    """Request body for creating a token: purpose, scopes and days to live."""

    name: Annotated[str, Field(max_length=200)]
    scopes: list[str] = Field(max_length=16)
    days: int = Field(30, ge=1, le=366)


def _client_address(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _set_session_cookie(service: Service, response: Response, token: str) -> None:
    response.set_cookie(
        SESSION_COOKIE,
        token,
        httponly=True,
        samesite="strict",
        secure=service.settings.is_secure,
        path="/",
        max_age=SESSION_HOURS * 3600,
    )


@router.post("/accounts/first")
def first_account(request: Request, response: Response, body: FirstAccount) -> dict[str, str]:
    """Create the first account from the invitation, and log in."""
    accounts = get_service(request).accounts
    accounts.accept_invitation(body.invitation, body.name, body.password)
    token, csrf = accounts.log_in(body.name, body.password, _client_address(request))
    _set_session_cookie(get_service(request), response, token)
    return {"csrf": csrf}


@router.post("/session")
def log_in(request: Request, response: Response, body: LogIn) -> dict[str, str]:
    """Log in. Changes in this session must send the returned CSRF token in the header X-CSRF-Token."""
    token, csrf = get_service(request).accounts.log_in(body.name, body.password, _client_address(request))
    _set_session_cookie(get_service(request), response, token)
    return {"csrf": csrf}


@router.get("/session")
def who_am_i(request: Request, caller: AuthenticatedCaller) -> dict[str, Any]:
    """Return the account that is logged in, with its roles and scopes."""
    return {
        "name": caller.name,
        "roles": sorted(caller.roles),
        "scopes": sorted(caller.scopes),
        "csrf": caller.csrf,
        "has_password": get_service(request).accounts.has_password(caller.name),
    }


@router.put("/session/password")
def change_password(
    request: Request, response: Response, caller: AuthenticatedCaller, body: NewPassword
) -> dict[str, str]:
    """Change the caller's password, in a session. Ends all tokens and sessions, and opens a new session."""
    accounts = get_service(request).accounts
    token, csrf = accounts.change_password(caller, body.old, body.new, _client_address(request))
    _set_session_cookie(get_service(request), response, token)
    return {"csrf": csrf}


@router.delete("/session", status_code=204)
def log_out(request: Request, caller: AuthenticatedCaller) -> Response:
    """Log out."""
    get_service(request).accounts.log_out(request.cookies.get(SESSION_COOKIE, ""))
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.get("/accounts")
def list_accounts(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List all accounts."""
    caller.require_scope("accounts")
    rows = get_service(request).database.find_all(store.accounts)
    return [{"name": row["name"], "roles": row["roles"].split(), "disabled": bool(row["disabled"])} for row in rows]


@router.post("/accounts", status_code=201)
def add_account(request: Request, caller: AuthenticatedCaller, body: NewAccount) -> dict[str, str]:
    """Create an account, in a session."""
    caller.require_scope("accounts")
    caller.require_session("make accounts")
    get_service(request).accounts.create_account(body.name, body.password, body.roles, body.subject)
    return {"name": body.name}


@router.patch("/accounts/{name}")
def change_account(request: Request, caller: AuthenticatedCaller, name: str, body: ChangedAccount) -> dict[str, str]:
    """Update an account, in a session. Ends its tokens and sessions."""
    caller.require_scope("accounts")
    caller.require_session("change accounts")
    get_service(request).accounts.update_account(name, password=body.password, roles=body.roles, disabled=body.disabled)
    return {"name": name}


@router.get("/tokens")
def list_tokens(request: Request, caller: AuthenticatedCaller) -> list[dict[str, Any]]:
    """List the caller's tokens by id, without the tokens themselves."""
    return [dict(token) for token in get_service(request).accounts.list_tokens(caller)]


@router.post("/tokens", status_code=201)
def add_token(request: Request, caller: AuthenticatedCaller, body: NewToken) -> dict[str, str]:
    """Create a token, in a session. The response is the only place where it is shown."""
    token, number = get_service(request).accounts.issue_token(caller, body.name, body.scopes, body.days)
    return {"id": number, "token": token}


@router.delete("/tokens/{number}", status_code=204)
def revoke_token(request: Request, caller: AuthenticatedCaller, number: str) -> Response:
    """Revoke a token."""
    get_service(request).accounts.revoke_token(caller, number)
    return Response(status_code=204)
