# SPDX-License-Identifier: Apache-2.0
"""Accounts, passwords and tokens over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from veilwood_service import store
from veilwood_testing.running_service import PASSWORD, Running, serving


def test_who_loses_a_role_loses_every_token(lasting: Running) -> None:
    accounts = lasting.service.accounts
    accounts.accept_invitation(accounts.invite("test", "eve", ["custodian"]) or "", PASSWORD)
    word, _ = accounts.open_session("eve")
    token, _ = accounts.issue_token(accounts.authenticate(word, "session"), "t", ["data"], 1)
    headers = {"Authorization": f"Bearer {token}"}
    assert lasting.test_client.get("/v1/datasets", headers=headers).status_code == 200
    session, csrf = accounts.open_session("operator")
    page = {"Cookie": f"veilwood_session={session}", "X-CSRF-Token": csrf}
    body = {"roles": ["auditor"]}
    assert lasting.test_client.patch("/v1/accounts/eve", json=body, headers=page).status_code == 200
    assert lasting.test_client.get("/v1/datasets", headers=headers).status_code == 401


def test_an_invitation_makes_one_account_once(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.service.database.remove(store.accounts)
        word = running.service.accounts.invite_first()
        request = {"invitation": word, "name": "anna", "password": PASSWORD}
        client = running.test_client
        assert client.post("/v1/accounts/accept", json={**request, "invitation": "vw_x"}).status_code == 401
        assert client.post("/v1/accounts/accept", json={**request, "password": "short"}).status_code == 422
        assert client.post("/v1/accounts/accept", json=request).status_code == 200
        assert client.post("/v1/accounts/accept", json={**request, "name": "eve"}).status_code == 401
