# SPDX-License-Identifier: Apache-2.0
"""Accounts, tokens and how often somebody may come, without a server around them."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from veilwood.errors import ParameterError
from veilwood_service import store
from veilwood_service.accounts import Accounts, DeniedError, Throttle, TooManyError
from veilwood_service.settings import Limits

PASSWORD = "a long enough password"


def test_a_throttle_counts_each_caller_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("veilwood_service.accounts.time.monotonic", lambda: now)
    throttle = Throttle(60)
    for _ in range(3):
        throttle.check_limit("anna", 3)
        throttle.count_request("anna")
    with pytest.raises(TooManyError, match="wait"):
        throttle.check_limit("anna", 3)
    throttle.check_limit("otto", 3)
    now = 61.0
    throttle.check_limit("anna", 3)


@pytest.mark.parametrize("name", ["", "Anna", "a" * 41, "a b", "../x", "1st"])
def test_names_are_simple(accounts: Accounts, name: str) -> None:
    with pytest.raises(ParameterError, match="name"):
        accounts.create_account(name, PASSWORD, ["analyst"])


def test_accounts_need_known_roles_long_passwords_and_names_of_their_own(accounts: Accounts) -> None:
    accounts.create_account("anna", PASSWORD, ["analyst"])
    for name, password, roles in [("anna", PASSWORD, ["analyst"]), ("b", "short", ["analyst"]), ("b", PASSWORD, ["x"]),
                                  ("b", PASSWORD, [])]:  # fmt: skip
        with pytest.raises(ParameterError):
            accounts.create_account(name, password, roles)
    with pytest.raises(ParameterError, match="no change was given"):
        accounts.update_account("anna")
    with pytest.raises(ParameterError, match="not an account"):
        accounts.update_account("nobody", disabled=True)


def test_a_session_ends_and_a_disabled_account_has_none(accounts: Accounts) -> None:
    accounts.create_account("anna", PASSWORD, ["analyst"])
    word, csrf = accounts.log_in("anna", PASSWORD)
    assert accounts.authenticate(word, "session").csrf == csrf
    assert accounts.find_cached_caller(word, "session") is not None
    accounts.log_out(word)
    assert accounts.find_cached_caller(word, "session") is None
    with pytest.raises(DeniedError):
        accounts.authenticate(word, "session")
    accounts.update_account("anna", disabled=True)
    with pytest.raises(DeniedError, match="wrong"):
        accounts.log_in("anna", PASSWORD)
    accounts.update_account("anna", disabled=False, password="another long password")
    accounts.log_in("anna", "another long password")


def test_an_account_of_a_provider_has_no_password(accounts: Accounts) -> None:
    accounts.create_account("otto", None, ["auditor"], "otto@clinic")
    with pytest.raises(DeniedError):
        accounts.log_in("otto", "")
    assert accounts._database.find(store.accounts, subject="otto@clinic") is not None


def test_a_token_is_known_by_its_hash_for_a_moment(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts.create_account("anna", PASSWORD, ["analyst"])
    caller = accounts.authenticate(accounts.open_session("anna")[0], "session")
    word, number = accounts.issue_token(caller, "script", ["plan"], 1)
    assert accounts.authenticate(word, "token").scopes == {"plan"}
    assert word not in str(accounts._caller_cache)
    with pytest.raises(ParameterError, match="time to live"):
        accounts.issue_token(caller, "script", ["plan"], 1000)
    accounts.revoke_token(caller, number)
    with pytest.raises(ParameterError, match="not known"):
        accounts.revoke_token(caller, number)


def test_a_throttle_counts_as_far_as_the_limits_go() -> None:
    throttle, most = Throttle(3600), Limits().requests_a_minute
    for _ in range(most):
        throttle.count_request("anna")
    with pytest.raises(TooManyError):
        throttle.check_limit("anna", most)


def test_the_limit_of_wrong_passwords_is_the_operators(accounts: Accounts) -> None:
    strict = Accounts(accounts._database, max_failures_per_minute=2)
    for _ in range(2):
        with pytest.raises(DeniedError):
            strict.log_in("nobody", PASSWORD)
    with pytest.raises(TooManyError):
        strict.log_in("nobody", PASSWORD)


def test_people_change_their_own_password_by_the_one_they_have(accounts: Accounts) -> None:
    accounts.create_account("anna", PASSWORD, ["analyst"])
    accounts.create_account("otto", None, ["analyst"], subject="otto@provider")
    assert [accounts.has_password(name) for name in ("anna", "otto", "nobody")] == [True, False, False]
    word, _ = accounts.log_in("anna", PASSWORD)
    caller = accounts.authenticate(word, "session")
    token, _ = accounts.issue_token(caller, "script", ["ask"], 1)
    for old, new in [("a wrong password", "another password"), (PASSWORD, "short")]:
        with pytest.raises(ParameterError, match="password"):
            accounts.change_password(caller, old, new)
    assert accounts.authenticate(word, "session").name == "anna", "a mistake ends nothing"
    with pytest.raises(DeniedError, match="token"):
        accounts.change_password(accounts.authenticate(token, "token"), PASSWORD, "another password")
    again, _ = accounts.change_password(caller, PASSWORD, "another password")
    assert accounts.authenticate(again, "session").name == "anna"
    for gone, kind in [(word, "session"), (token, "token")]:
        with pytest.raises(DeniedError, match="not known"):
            accounts.authenticate(gone, kind)
    with pytest.raises(DeniedError, match="wrong"):
        accounts.log_in("anna", PASSWORD)
    accounts.log_in("anna", "another password")
