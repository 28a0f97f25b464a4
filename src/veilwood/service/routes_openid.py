# SPDX-License-Identifier: Apache-2.0
"""Routes for people who come from an OpenID provider: code flow with PKCE, state and nonce.

The provider says who somebody is; what they may do is decided here, by the roles of the account with that subject.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import Any, Final

import httpx
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from veilwood.errors import UseError
from veilwood.service import store
from veilwood.service.access import COOKIE, Service, service_of
from veilwood.service.accounts import DeniedError

router = APIRouter(prefix="/v1/openid", tags=["people"])

_ATTEMPT: Final = "veilwood_openid"
_MINUTES: Final = 10
_ALGORITHMS: Final = ["RS256", "ES256", "PS256", "EdDSA"]
_SECONDS: Final = 10.0


@router.get("/start")
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
    path = router.prefix
    response.set_cookie(
        _ATTEMPT, json.dumps(attempt), httponly=True, samesite="lax", secure=secure, max_age=60 * _MINUTES, path=path
    )
    return response


@router.get("/back")
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
    response.delete_cookie(_ATTEMPT, path=router.prefix)
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
