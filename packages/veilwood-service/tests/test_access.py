# SPDX-License-Identifier: Apache-2.0
"""Who may do what: every route with every kind of token; hostile uploads; what is told to whom."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from veilwood.errors import ParameterError
from veilwood_service import store
from veilwood_service.accounts import ROLES, network_of
from veilwood_service.settings import Limits
from veilwood_testing.errors import rejects
from veilwood_testing.running_service import CAR, PASSWORD, TABLE, Running, serving, upload_table

OPEN = {
    ("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/v1/session"), ("POST", "/v1/accounts/accept"),
    ("GET", "/v1/openid/start"), ("GET", "/v1/openid/back"),
}  # fmt: skip
# What a role needs for a route; all other routes are for everybody who has an account.
NEEDED = {
    ("GET", "/v1/metrics"): "operate",
    ("GET", "/v1/accounts"): "accounts",
    ("POST", "/v1/accounts"): "accounts",
    ("PATCH", "/v1/accounts/{name}"): "accounts",
    ("POST", "/v1/accounts/{name}/invitation"): "accounts",
    ("GET", "/v1/events"): "records",
    ("POST", "/v1/datasets"): "data",
    ("PUT", "/v1/datasets/{name}/table"): "data",
    ("POST", "/v1/datasets/{name}/draft"): "data",
    ("PUT", "/v1/datasets/{name}/schema"): "data",
    ("POST", "/v1/datasets/{name}/allowances"): "data",
    ("DELETE", "/v1/datasets/{name}/allowances/{number}"): "data",
    ("GET", "/v1/datasets/{name}/ledger"): "records",
    ("POST", "/v1/datasets/{name}/ledger/verify"): "records",
    ("POST", "/v1/datasets/{name}/ledger/{entry}/resolve"): "data",
    ("POST", "/v1/datasets/{name}/ledger/certificates"): "data",
    ("POST", "/v1/datasets/{name}/ledger/thaw"): "data",
    ("POST", "/v1/datasets/{name}/retire"): "data",
    ("DELETE", "/v1/datasets/{name}/table"): "data",
    ("POST", "/v1/datasets/{name}/plans"): "plan",
    ("POST", "/v1/models/{number}/evaluations"): "plan",
    ("POST", "/v1/plans/{number}/signature"): "sign",
    ("POST", "/v1/plans/{number}/jobs"): "run",
    ("DELETE", "/v1/jobs/{number}"): "run",
    ("PATCH", "/v1/models/{number}"): "plan",
    ("GET", "/v1/models/{number}/file"): "ask",
    ("GET", "/v1/models/{number}/onnx"): "ask",
    ("POST", "/v1/models/{number}/predict"): "ask",
    ("POST", "/v1/models/{number}/predict.csv"): "ask",
    ("POST", "/v1/models/{number}/quote"): "ask",
    ("POST", "/v1/models/{number}/answers"): "ask",
}
BODIES: dict[str, Any] = {
    "/v1/accounts": {"name": "x", "roles": ["auditor"]},
    "/v1/tokens": {"name": "x", "scopes": ["ask"]},
    "/v1/session/password": {"old": "x", "new": "y"},
    "/v1/accounts/{name}": {"disabled": True},
    "/v1/datasets": {"name": "other", "people": "x", "epsilon": 1},
    "/v1/datasets/{name}/allowances": {"epsilon": 1},
    "/v1/datasets/{name}/ledger/{entry}/resolve": {"reason": "x"},
    "/v1/datasets/{name}/ledger/thaw": {"reason": "x", "missing_epsilon": 0},
    "/v1/datasets/{name}/retire": {"reason": "x"},
    "/v1/plans/{number}/signature": {"fingerprint": "x"},
    "/v1/models/{number}/quote": {"rows": [{}]},
    "/v1/models/{number}/answers": {"rows": [{}]},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(
        tmp_path_factory.mktemp("service"),
        limits=Limits(upload_bytes=200_000, body_bytes=100_000, answer_milliseconds=20),
    ) as found:
        found.add_cars()
        yield found


@pytest.fixture(scope="module")
def routes(running: Running) -> list[tuple[str, str]]:
    paths = running.get("analyst", "/v1/openapi.json")["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def call(running: Running, method: str, path: str, headers: dict[str, str]) -> int:
    filled = path.format_map({"name": "cars", "number": "0" * 24, "entry": "2"})
    body = BODIES.get(path, {})
    return int(running.test_client.request(method, filled, headers=headers, json=body).status_code)


def test_the_table_of_rights_names_routes_that_exist(routes: list[tuple[str, str]]) -> None:
    assert set(NEEDED) <= set(routes)
    assert set(OPEN) <= set(routes)


def test_no_route_answers_who_is_not_known(running: Running, routes: list[tuple[str, str]]) -> None:
    records = running.service.database
    expired = running.service.accounts.issue_token(caller(running, "custodian"), "old", ["data"], 1)
    records.update(store.tokens, {"id": expired[1]}, expires="2020-01-01T00:00:00.000+00:00")
    revoked = running.service.accounts.issue_token(caller(running, "custodian"), "gone", ["data"], 1)
    running.service.accounts.revoke_token(caller(running, "custodian"), revoked[1])
    wrong = [{}, *({"Authorization": f"Bearer {word}"} for word in ("", "vw_nothing", expired[0], revoked[0]))]
    wrong += [{"Authorization": "Basic YTpi"}, {"Cookie": "veilwood_session=vw_nothing"}]
    for method, path in set(routes) - OPEN:
        assert {call(running, method, path, headers) for headers in wrong} == {401}, (method, path)


def test_no_route_answers_who_may_not(running: Running, routes: list[tuple[str, str]]) -> None:
    for method, path in set(routes) - OPEN - {("DELETE", "/v1/session")}:
        needed = NEEDED.get((method, path))
        for role, scopes in ROLES.items():
            if needed is not None and needed not in scopes:
                status = call(running, method, path, {"Authorization": f"Bearer {running.tokens[role]}"})
                assert status == 403, (method, path, role)


def test_a_token_can_do_no_more_than_it_says(running: Running) -> None:
    custodian = caller(running, "custodian")
    narrow, _ = running.service.accounts.issue_token(custodian, "narrow", ["plan"], 1)
    headers = {"Authorization": f"Bearer {narrow}"}
    assert call(running, "POST", "/v1/datasets", headers) == 403
    for scopes in (["plan"], ["plan", "data"]):  # nor can it be made to live on
        again = running.test_client.post("/v1/tokens", headers=headers, json={"name": "x", "scopes": scopes})
        assert (again.status_code, "log in" in again.text) == (403, True)
    with rejects(ParameterError, name="scopes"):
        running.service.accounts.issue_token(custodian, "wider", ["accounts"], 1)


def test_a_token_makes_and_changes_no_accounts(running: Running) -> None:
    """What it made would outlive its end: an account with every role, or a password that somebody else knows."""
    made = {"name": "mallory", "roles": list(ROLES)}
    for method, path, body in (
        ("POST", "/v1/accounts", made),
        ("PATCH", "/v1/accounts/operator", {"roles": list(ROLES)}),
        ("POST", "/v1/accounts/custodian/invitation", None),
    ):
        found = running.ask("operator", method, path, json=body)
        assert (found.status_code, "log in" in found.text) == (403, True)
    assert "mallory" not in [one["name"] for one in running.get("operator", "/v1/accounts")]


def caller(running: Running, role: str) -> Any:
    accounts = running.service.accounts
    return accounts.authenticate(accounts.open_session(role)[0], "session")


def test_a_session_of_the_page_repeats_its_word_in_every_change(running: Running) -> None:
    client = running.test_client
    found = client.post("/v1/session", json={"name": "custodian", "password": PASSWORD})
    cookie = found.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/v1/session").json()["name"] == "custodian"
    limit = {"account": "analyst", "epsilon": 1}
    assert client.post("/v1/datasets/cars/allowances", json=limit).status_code == 403
    right = {"X-CSRF-Token": found.json()["csrf"]}
    assert client.post("/v1/datasets/cars/allowances", json=limit, headers=right).status_code == 201
    assert client.delete("/v1/session", headers=right).status_code == 204
    client.cookies.clear()
    assert client.get("/v1/session", headers={"Cookie": cookie.split(";")[0]}).status_code == 401


def test_a_password_is_changed_in_a_session_that_repeats_its_word(running: Running) -> None:
    accounts = running.service.accounts
    accounts.accept_invitation(accounts.invite("test", "pam", ["analyst"]) or "", PASSWORD)
    client, request = running.test_client, {"old": PASSWORD, "new": "another long password"}
    found = client.post("/v1/session", json={"name": "pam", "password": PASSWORD}).json()
    right = {"X-CSRF-Token": found["csrf"]}
    assert client.put("/v1/session/password", json=request).status_code == 403
    wrong = client.put("/v1/session/password", json={**request, "old": "a guess of somebody"}, headers=right)
    assert (wrong.status_code, "a guess" in wrong.text) == (422, False)
    assert client.get("/v1/session").json()["has_password"]
    changed = client.put("/v1/session/password", json=request, headers=right)
    assert changed.status_code == 200
    assert client.get("/v1/session").json()["csrf"] == changed.json()["csrf"] != found["csrf"]
    client.cookies.clear()


def test_passwords_are_not_guessed(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        wrong = {"name": "analyst", "password": "not the password"}
        codes = [running.test_client.post("/v1/session", json=wrong).status_code for _ in range(12)]
        assert codes == [401] * 10 + [429] * 2
        elsewhere = TestClient(running.test_client.app, client=("203.0.113.5", 4000))
        right = {"name": "analyst", "password": PASSWORD}
        assert elsewhere.post("/v1/session", json=right).status_code == 200, "a guesser keeps the person out"
        stored = running.service.database.find(store.accounts, name="analyst")
        assert stored is not None
        assert PASSWORD not in stored["password"]
        kept = running.service.database.find_all(store.tokens)
        assert not any(word in str(kept) for word in running.tokens.values())


def test_guessers_leave_a_place_for_addresses_that_logged_in_before(tmp_path: Path) -> None:
    """24 connections of guessers had kept 23 of 24 people out."""

    def statuses(running: Running) -> list[int]:
        clients = [TestClient(running.test_client.app, client=(f"203.0.113.{i}", 4000)) for i in (5, 6)]
        right = {"name": "analyst", "password": PASSWORD}
        return [client.post("/v1/session", json=right).status_code for client in clients]

    with serving(tmp_path) as running:
        running.service.accounts.log_in("analyst", PASSWORD, "203.0.113.5")
        assert statuses(running) == [200, 200]
        running.service.accounts._known_networks.pop("203.0.113.6")
        lane = running.service.lanes.other_logins
        lane._n_present = lane._max_present  # guessers take every place for strangers
        assert statuses(running) == [200, 429]


def test_one_place_cannot_try_many_names_and_who_is_right_is_not_counted(tmp_path: Path) -> None:
    with serving(tmp_path, limits=Limits(logins_a_minute=1)) as running:
        here = running.test_client
        for _ in range(3):
            assert here.post("/v1/session", json={"name": "analyst", "password": PASSWORD}).status_code == 200
        tries = [{"name": f"name{i}", "password": "not the password"} for i in range(6)]
        assert [here.post("/v1/session", json=one).status_code for one in tries] == [401] * 5 + [429]


def test_a_home_is_one_place() -> None:
    homes = ["203.0.113.5", "::ffff:203.0.113.5", "2001:db8:1:2::7", "2001:db8:1:2:ffff::1", "testclient", ""]
    found = [network_of(address) for address in homes]
    assert found == ["203.0.113.5"] * 2 + ["2001:db8:1:2::/64"] * 2 + ["elsewhere"] * 2


def bomb() -> bytes:
    out = io.BytesIO()
    pd.DataFrame({"x": ["a" * 1000] * 5000}).to_parquet(out, use_dictionary=False, compression="zstd")
    return out.getvalue()


def test_a_file_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    content = bomb()
    with serving(tmp_path, limits=Limits(upload_bytes=len(content) + 1000)) as running:
        running.post("custodian", "/v1/datasets", {"name": "cars", "people": "x", "epsilon": 1})
        answer = upload_table(running, content, "application/vnd.apache.parquet")
        assert (answer.status_code, "when unpacked" in answer.text) == (422, True)


def test_logs_hold_no_token_and_no_value(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        model = running.trained(epsilon=0.01)
        rows = [{**TABLE.iloc[0].to_dict(), "buying": "unheard-of"}]
        assert running.ask("analyst", "POST", f"/v1/models/{model}/predict", json={"rows": rows}).status_code == 422
        running.ask("analyst", "POST", "/v1/models/secret-number/predict", json={"rows": rows})
    text = "".join(
        f"{r.getMessage()}\n" for r in caplog.records if r.name.startswith(("veilwood", "uvicorn", "fastapi"))
    )
    assert "POST /v1/models/{number}/predict 422" in text
    assert not any(word in text for word in (*running.tokens.values(), "unheard-of", "secret-number", PASSWORD))


def test_bad_questions_are_refused_by_name(running: Running) -> None:
    model = running.trained(epsilon=0.01)
    path = f"/v1/models/{model}/predict"
    good = CAR.X[:1].to_dict("records")[0]
    bad: list[Any] = [[], [1], {}, [{}], [{**good, "extra": 1}], [good, {}], [{**good, "doors": [1]}], "x", None]
    for rows in bad:
        assert running.ask("analyst", "POST", path, json={"rows": rows}).status_code == 422, rows
    assert running.ask("analyst", "POST", path, content=b"{").status_code == 422
    assert running.ask("analyst", "POST", path, content=b"[" * 50_000).status_code == 422
    many = {"rows": [{"a": 1}] * 10_001}
    assert running.ask("analyst", "POST", path, json=many).status_code in (413, 422)


def test_a_token_revokes_no_other_and_one_for_metrics_downloads_nothing(running: Running) -> None:
    model, operator = running.trained(epsilon=0.5), caller(running, "operator")
    metrics, _ = running.service.accounts.issue_token(operator, "metrics", ["operate"], 1)
    other = running.get("operator", "/v1/tokens")[0]["id"]
    headers = {"Authorization": f"Bearer {metrics}"}
    for method, path in (("GET", f"/v1/models/{model}/file"), ("DELETE", f"/v1/tokens/{other}")):
        assert running.test_client.request(method, path, headers=headers).status_code == 403
    assert running.ask("analyst", "GET", f"/v1/models/{model}/file").is_success


def test_with_tls_cookies_are_for_this_host_and_browsers_stay_with_tls(tmp_path: Path) -> None:
    with serving(tmp_path, address="https://forest.example") as running:
        opened = running.test_client.post("/v1/session", json={"name": "analyst", "password": PASSWORD})
        cookie = opened.headers["set-cookie"]
        assert cookie.startswith("__Host-veilwood_session=")
        assert {"Secure", "HttpOnly", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "max-age=" in opened.headers["strict-transport-security"]
        assert "unsafe-inline" not in opened.headers["content-security-policy"]
        page = running.test_client.get("/page/app.js")
        assert page.headers["cache-control"] != "no-store"
