# SPDX-License-Identifier: Apache-2.0
"""OpenID provider: its addresses and keys, and the verification of an ID token."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any, Final

import httpx
from authlib.deprecate import AuthlibDeprecationWarning
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from veilwood.errors import UseError
from veilwood_service.accounts import DeniedError
from veilwood_service.settings import Settings

with warnings.catch_warnings():  # Authlib prefers httpx2 and warns if it is missing
    warnings.simplefilter("ignore", AuthlibDeprecationWarning)
    from authlib.integrations.httpx_client import OAuth2Client

_ALGORITHMS: Final = ["RS256", "ES256", "PS256", "EdDSA"]
_TIMEOUT_SECONDS: Final = 5.0
_DISCOVERY_SECONDS: Final = 600.0  # for which addresses and keys of the provider are cached


class OpenIdProvider:
    """An OpenID provider, with its addresses and keys in memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._lock, self._until = settings, threading.Lock(), 0.0
        self._facts: dict[str, Any] = {}
        self._keys: Any = None

    def open_client(self, state: str | None = None) -> OAuth2Client:
        """Return a client of the provider."""
        return OAuth2Client(
            self._settings.client_id,
            self._settings.client_secret,
            scope="openid",
            state=state,
            redirect_uri=f"{self._settings.address.rstrip('/')}/v1/openid/back",
            code_challenge_method="S256",
            timeout=_TIMEOUT_SECONDS,
        )

    def discover(self) -> dict[str, Any]:
        """Return the addresses of the provider. Raise DeniedError if it does not respond or names another issuer."""
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
        except Exception:  # whatever went wrong, and whichever HTTP library Authlib has found
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
