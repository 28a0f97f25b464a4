# SPDX-License-Identifier: Apache-2.0
"""Routes about people: sessions, accounts, tokens."""

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
from veilwood_service.access import COOKIE, Service, WhoAsks, service_of
from veilwood_service.accounts import DeniedError

openid_router = APIRouter(prefix="/v1/openid", tags=["people"])

_ATTEMPT: Final = "veilwood_openid"
_MINUTES: Final = 10
_ALGORITHMS: Final = ["RS256", "ES256", "PS256", "EdDSA"]
_SECONDS: Final = 10.0


@openid_router.get("/start")
async def start(request: Request) -> Response:
    """Go to the provider."""
    service = service_of(request)
    found = await run_in_threadpool(_discover, service)
    attempt = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt["verifier"].encode()).digest()).rstrip(b"=").decode()
    asked = {
        "response_type": "code",
        "client_id": service.settings.client_id,
        "redirect_uri": _back(service),
        "scope": "openid",
        "state": attempt["state"],
        "nonce": attempt["nonce"],
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    response = RedirectResponse(str(httpx.URL(found["authorization_endpoint"], params=asked)))
    # Lax: the provider sends the person back from another site. Strict would leave the cookie behind.
    secure = service.settings.is_secure
    path = openid_router.prefix
    response.set_cookie(
        _ATTEMPT, json.dumps(attempt), httponly=True, samesite="lax", secure=secure, max_age=60 * _MINUTES, path=path
    )
    return response


@openid_router.get("/back")
async def back(request: Request, code: str = "", state: str = "") -> Response:
    """Come back from the provider: check who it is, and begin a session."""
    service = service_of(request)
    try:
        attempt = json.loads(request.cookies.get(_ATTEMPT, ""))
        expected, nonce, verifier = (str(attempt[name]) for name in ("state", "nonce", "verifier"))
    except (ValueError, KeyError, TypeError):
        raise DeniedError("the attempt to log in is not known or too old. Hint: begin again.", known=False) from None
    if not code or not secrets.compare_digest(state.encode(), expected.encode()):
        raise DeniedError("the answer of the provider does not belong to this attempt.", known=False)
    claims = await run_in_threadpool(_claims, service, code, verifier, nonce)
    account = await run_in_threadpool(service.records.find, store.accounts, subject=str(claims["sub"]))
    if account is None or account["disabled"]:
        raise DeniedError("nobody here has this identity. Hint: an operator adds an account for it.", known=False)
    word, _ = await run_in_threadpool(service.accounts.open_session, account["name"])
    response = RedirectResponse("/page/index.html", status_code=303)
    response.delete_cookie(_ATTEMPT, path=openid_router.prefix)
    secure = service.settings.is_secure
    response.set_cookie(COOKIE, word, httponly=True, samesite="strict", secure=secure, path="/", max_age=12 * 3600)
    return response


def _back(service: Service) -> str:
    return f"{service.settings.address.rstrip('/')}{router.prefix}/back"


def _discover(service: Service) -> dict[str, Any]:
    issuer = service.settings.issuer.rstrip("/")
    if not issuer:
        raise UseError("no OpenID provider is configured. Hint: log in with a password.")
    found = _get(f"{issuer}/.well-known/openid-configuration")
    if str(found.get("issuer", "")).rstrip("/") != issuer:
        raise DeniedError("the OpenID provider calls itself by another name.", known=False)
    return found


def _claims(service: Service, code: str, verifier: str, nonce: str) -> dict[str, Any]:
    """Exchange the code for a token, and check it: signature, issuer, audience, time, nonce."""
    found = _discover(service)
    asked = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": _back(service),
        "code_verifier": verifier,
    }
    who = (service.settings.client_id, service.settings.client_secret)
    try:
        answer = httpx.post(found["token_endpoint"], data=asked, auth=who, timeout=_SECONDS).raise_for_status().json()
        keys = KeySet.import_key_set(_get(found["jwks_uri"]))  # type: ignore[arg-type]
        claims = jwt.decode(answer["id_token"], keys, algorithms=_ALGORITHMS).claims
        jwt.JWTClaimsRegistry(
            iss={"essential": True, "value": found["issuer"]},
            aud={"essential": True, "value": service.settings.client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        ).validate(claims)
    except (httpx.HTTPError, JoseError, ValueError, KeyError, TypeError):
        raise DeniedError("the OpenID provider does not vouch for this person.", known=False) from None
    return dict(claims)


def _get(address: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = httpx.get(address, timeout=_SECONDS).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        raise DeniedError("the OpenID provider does not answer.", known=False) from None
    return found


router = APIRouter(prefix="/v1", tags=["people"])
AccountName = Annotated[str, Field(max_length=64)]
Password = Annotated[str, Field(max_length=1000)]


class LogIn(BaseModel):
    """A name and a password."""

    name: AccountName
    password: Password


class FirstAccount(LogIn):
    """The invitation that the service printed when it started, and the account to make."""

    invitation: Annotated[str, Field(max_length=200)]


class NewAccount(BaseModel):
    """An account with its roles; without a password for somebody who comes from an OpenID provider."""

    name: AccountName
    roles: list[str] = Field(max_length=8)
    password: Password | None = None
    subject: Annotated[str, Field(max_length=255)] | None = None


class ChangedAccount(BaseModel):
    """What to change."""

    roles: list[str] | None = Field(None, max_length=8)
    password: Password | None = None
    disabled: bool | None = None


class NewPassword(BaseModel):
    """The password that one has, and the one to have from now on."""

    old: Password
    new: Password


class NewToken(BaseModel):
    """What a token is for, what it may do, and how long."""

    name: Annotated[str, Field(max_length=200)]
    scopes: list[str] = Field(max_length=16)
    days: int = Field(30, ge=1, le=366)


def _address(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _set_session(request: Request, response: Response, word: str) -> None:
    secure = service_of(request).settings.is_secure
    response.set_cookie(COOKIE, word, httponly=True, samesite="strict", secure=secure, path="/", max_age=12 * 3600)


@router.post("/accounts/first")
def first_account(request: Request, response: Response, asked: FirstAccount) -> dict[str, str]:
    """Make the first account by the invitation, and log in."""
    accounts = service_of(request).accounts
    accounts.accept(asked.invitation, asked.name, asked.password)
    word, csrf = accounts.log_in(asked.name, asked.password, _address(request))
    _set_session(request, response, word)
    return {"csrf": csrf}


@router.post("/session")
def log_in(request: Request, response: Response, asked: LogIn) -> dict[str, str]:
    """Log in; changes in this session repeat the word that is returned, in the header X-CSRF-Token."""
    word, csrf = service_of(request).accounts.log_in(asked.name, asked.password, _address(request))
    _set_session(request, response, word)
    return {"csrf": csrf}


@router.get("/session")
def who_am_i(request: Request, caller: WhoAsks) -> dict[str, Any]:
    """Say who is logged in, and what they may do."""
    return {
        "name": caller.name,
        "roles": sorted(caller.roles),
        "scopes": sorted(caller.scopes),
        "csrf": caller.csrf,
        "has_password": service_of(request).accounts.has_password(caller.name),
    }


@router.put("/session/password")
def change_password(request: Request, response: Response, caller: WhoAsks, asked: NewPassword) -> dict[str, str]:
    """Change one's own password, in a session. All tokens and sessions end, and a new session begins."""
    accounts = service_of(request).accounts
    word, csrf = accounts.change_password(caller, asked.old, asked.new, _address(request))
    _set_session(request, response, word)
    return {"csrf": csrf}


@router.delete("/session", status_code=204)
def log_out(request: Request, caller: WhoAsks) -> Response:
    """Log out."""
    service_of(request).accounts.log_out(request.cookies.get(COOKIE, ""))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response


@router.get("/accounts")
def list_accounts(request: Request, caller: WhoAsks) -> list[dict[str, Any]]:
    """List all accounts."""
    caller.require("accounts")
    found = service_of(request).records.every(store.accounts)
    return [{"name": a["name"], "roles": a["roles"].split(), "disabled": bool(a["disabled"])} for a in found]


@router.post("/accounts", status_code=201)
def add_account(request: Request, caller: WhoAsks, asked: NewAccount) -> dict[str, str]:
    """Make an account, in a session."""
    caller.require("accounts")
    caller.require_session("make accounts")
    service_of(request).accounts.create(asked.name, asked.password, asked.roles, asked.subject)
    return {"name": asked.name}


@router.patch("/accounts/{name}")
def change_account(request: Request, caller: WhoAsks, name: str, asked: ChangedAccount) -> dict[str, str]:
    """Change an account, in a session; its tokens and sessions end."""
    caller.require("accounts")
    caller.require_session("change accounts")
    service_of(request).accounts.change(name, password=asked.password, roles=asked.roles, disabled=asked.disabled)
    return {"name": name}


@router.get("/tokens")
def list_tokens(request: Request, caller: WhoAsks) -> list[dict[str, Any]]:
    """List one's own tokens, without their words."""
    return [dict(token) for token in service_of(request).accounts.tokens(caller)]


@router.post("/tokens", status_code=201)
def add_token(request: Request, caller: WhoAsks, asked: NewToken) -> dict[str, str]:
    """Make a token, in a session; its word is shown this once."""
    word, number = service_of(request).accounts.issue_token(caller, asked.name, asked.scopes, asked.days)
    return {"id": number, "token": word}


@router.delete("/tokens/{number}", status_code=204)
def revoke_token(request: Request, caller: WhoAsks, number: str) -> Response:
    """Take a token back."""
    service_of(request).accounts.revoke(caller, number)
    return Response(status_code=204)
