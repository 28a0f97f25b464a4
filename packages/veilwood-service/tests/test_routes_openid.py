# SPDX-License-Identifier: Apache-2.0
"""People who come from an OpenID provider: a real one on loopback, which can also lie."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("joserfc")
from joserfc import jwt
from joserfc.jwk import RSAKey

from veilwood_testing.running_service import Running, serving

KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER = RSAKey.generate_key(2048, {"kid": "one"})


class Provider:
    """Hands out a token for each code; what it says can be bent by ``lie``."""

    def __init__(self) -> None:
        self.lie: dict[str, Any] = {}
        self.key: Any = KEY
        self.challenges: dict[str, tuple[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place = provider.address
                if self.path.endswith("configuration"):
                    self.say({"issuer": place, "authorization_endpoint": f"{place}/authorize",
                              "token_endpoint": f"{place}/token", "jwks_uri": f"{place}/keys"})  # fmt: skip
                else:
                    self.say({"keys": [KEY.as_dict(private=False)]})

            def do_POST(self) -> None:
                text = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                challenge, nonce = provider.challenges.pop(text["code"][0], ("", ""))
                digest = hashlib.sha256(text["code_verifier"][0].encode()).digest()
                right = base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == challenge
                who = base64.b64encode(b"veilwood:hush").decode()
                if not right or self.headers["authorization"] != f"Basic {who}":
                    self.send_error(400)
                    return
                claims: dict[str, Any] = {
                    "iss": provider.address,
                    "aud": "veilwood",
                    "sub": "anna@clinic",
                    "nonce": nonce,
                }
                claims |= {"sub": "anna@clinic", "exp": int(time.time()) + 60, **provider.lie}
                header = {"alg": provider.lie.get("alg", "RS256"), "kid": "one"}
                self.say({"id_token": jwt.encode(header, claims, provider.key)})

            def say(self, content: Any) -> None:
                body = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.server.shutdown()


@pytest.fixture
def running(tmp_path: Path, provider: Provider) -> Iterator[Running]:
    facts = {"issuer": provider.address, "client_id": "veilwood", "client_secret": "hush"}
    with serving(tmp_path, **facts) as found:
        found.service.accounts.invite("test", "anna", ["analyst"], "anna@clinic")
        yield found


def come_back(running: Running, provider: Provider, **bent: str) -> Any:
    client = running.test_client
    client.cookies.clear()
    went = client.get("/v1/openid/start", follow_redirects=False)
    request = {name: values[0] for name, values in parse_qs(urlsplit(went.headers["location"]).query).items()}
    assert request["code_challenge_method"] == "S256"
    provider.challenges["good"] = (request["code_challenge"], request["nonce"])
    answer = {"code": "good", "state": request["state"], **bent}
    return client.get("/v1/openid/back", params=answer, follow_redirects=False)


def test_somebody_the_provider_vouches_for_is_logged_in(running: Running, provider: Provider) -> None:
    assert come_back(running, provider).status_code == 303
    me = running.test_client.get("/v1/session").json()
    assert (me["name"], me["roles"]) == ("anna", ["analyst"])


@pytest.mark.parametrize(
    "lie",
    [
        {"aud": "another"},
        {"aud": ["veilwood", "another"]},
        {"aud": ["veilwood", "another"], "azp": "another"},
        {"iss": "http://elsewhere"},
        {"nonce": "old"},
        {"exp": 1},
        {"sub": "eve@clinic"},
    ],
    ids=str,
)
def test_a_token_that_is_not_for_us_is_refused(running: Running, provider: Provider, lie: dict[str, Any]) -> None:
    provider.lie = lie
    assert come_back(running, provider).status_code == 401
    assert running.test_client.get("/v1/session").status_code == 401


def test_a_token_for_several_audiences_that_was_issued_to_us_is_taken(running: Running, provider: Provider) -> None:
    provider.lie = {"aud": ["another", "veilwood"], "azp": "veilwood"}
    assert come_back(running, provider).status_code == 303


def test_a_token_of_another_key_another_state_and_a_used_code_are_refused(running: Running, provider: Provider) -> None:
    assert come_back(running, provider, state="x").status_code == 401
    assert come_back(running, provider, code="used").status_code == 401
    provider.key = OTHER
    assert come_back(running, provider).status_code == 401


def test_without_a_cookie_or_a_provider_nobody_comes_back(running: Running, tmp_path: Path) -> None:
    running.test_client.cookies.clear()
    assert running.test_client.get("/v1/openid/back?code=a&state=b").status_code == 401
    with serving(tmp_path / "alone") as alone:
        assert alone.test_client.get("/v1/openid/start").status_code == 422
