# SPDX-License-Identifier: Apache-2.0
"""Routes about people: sessions, accounts, tokens."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from veilwood.service import store
from veilwood.service.access import COOKIE, WhoAsks, service_of

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
