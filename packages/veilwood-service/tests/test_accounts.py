# SPDX-License-Identifier: Apache-2.0
"""Accounts, invitations, sessions and tokens, without a server around them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from argon2 import PasswordHasher
from sqlalchemy.exc import DatabaseError
from typer.testing import CliRunner

from veilwood.errors import NotFoundError, ParameterError, UseError
from veilwood_service import store
from veilwood_service.accounts import ROLES, Accounts, Caller, DeniedError, RateLimit, TooManyError
from veilwood_service.commands import service_commands
from veilwood_testing.running_service import PASSWORD, serving, settings_for_store


def add(accounts: Accounts, name: str, *roles: str) -> None:
    accounts.accept_invitation(accounts.invite("olga", name, roles) or "", PASSWORD)


def caller_of(accounts: Accounts, name: str) -> Caller:
    return accounts.authenticate(accounts.open_session(name)[0], "session")


def test_a_rate_limit_counts_each_key_and_takes_counts_back() -> None:
    limit = RateLimit()
    for _ in range(3):
        limit.count("anna", 3)
    with pytest.raises(TooManyError):
        limit.count("anna", 3)
    limit.count("otto", 3)
    limit.uncount("otto", 3)
    for _ in range(3):
        limit.count("otto", 3)


@pytest.mark.parametrize("name", ["", "Anna", "a" * 41, "a b", "../x", "1st"])
def test_names_are_simple(accounts: Accounts, name: str) -> None:
    with pytest.raises(ParameterError) as refused:
        accounts.invite("olga", name, ["analyst"])
    assert refused.value.name == "name"


def test_accounts_need_known_roles_long_passwords_and_names_of_their_own(accounts: Accounts) -> None:
    add(accounts, "anna", "analyst")
    for name, roles in [("anna", ["analyst"]), ("b", ["x"]), ("b", [])]:
        with pytest.raises(ParameterError):
            accounts.invite("olga", name, roles)
    with pytest.raises(NotFoundError):
        accounts.invite("olga", "nobody")
    invitation = accounts.invite("olga", "b", ["analyst"])
    with pytest.raises(ParameterError):
        accounts.accept_invitation(invitation or "", "short")
    accounts.accept_invitation(invitation or "", PASSWORD)  # a refused password does not use it up


@pytest.mark.parametrize("kind", ["SQLite", pytest.param("PostgreSQL", marks=pytest.mark.slow)])
def test_an_invitation_works_once_even_for_many_at_once(tmp_path: Path, kind: str) -> None:
    """Eight requests at once had made eight first accounts, with all rights."""
    with settings_for_store(kind, tmp_path) as settings:
        database = store.Store(settings)
        database.create_tables()
        race_for_one_invitation(Accounts(database))
        database.close()


def race_for_one_invitation(accounts: Accounts) -> None:
    word, together = accounts.invite_first(), threading.Barrier(8)

    def accept(number: int) -> bool:
        together.wait()
        try:
            accounts.accept_invitation(word, PASSWORD, f"first{number}")
        except (DeniedError, TooManyError):
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(accept, range(8))) == 1
    assert len(accounts._database.find_all(store.accounts)) == 1
    with pytest.raises(DeniedError):
        accounts.accept_invitation(word, PASSWORD, "again")


def test_a_second_invitation_ends_the_first_and_everything_that_was_open(accounts: Accounts) -> None:
    add(accounts, "anna", "analyst")
    word, _ = accounts.log_in("anna", PASSWORD)
    first, second = (accounts.invite("olga", "anna") or "" for _ in range(2))
    with pytest.raises(DeniedError):
        accounts.accept_invitation(first, "another password")
    assert accounts.authenticate(word, "session").name == "anna", "until it is accepted, nothing changes"
    assert accounts.accept_invitation(second, "another password") == "anna"
    accounts._caller_cache.clear()
    with pytest.raises(DeniedError):
        accounts.authenticate(word, "session")
    accounts.log_in("anna", "another password")
    recorded = [event["account"] for event in accounts._database.find_all(store.events, action="account.invite")]
    assert recorded == ["olga"] * 3


def test_the_last_operator_stays_and_nobody_changes_their_own_roles(accounts: Accounts) -> None:
    add(accounts, "olga", "operator")
    add(accounts, "oto", "operator")
    add(accounts, "cust", "custodian")
    with pytest.raises(UseError):
        accounts.update_account("olga", "olga", roles=ROLES)
    accounts.update_account("olga", "oto", disabled=True)
    changes: list[dict[str, Any]] = [{"disabled": True}, {"roles": ["analyst"]}]
    for change in changes:
        with pytest.raises(UseError):
            accounts.update_account("oto", "olga", **change)
    assert accounts._database.find(store.accounts, name="olga", disabled=0, roles="operator")
    accounts.invite("olga", "otto", ["operator"])
    with pytest.raises(UseError):  # who has not set a password yet cannot log in
        accounts.update_account("otto", "olga", disabled=True)
    with pytest.raises(NotFoundError):
        accounts.update_account("olga", "nobody", disabled=True)
    with pytest.raises(NotFoundError):
        accounts.update_account("olga", "cust")


def test_a_session_ends_and_a_disabled_account_has_none(accounts: Accounts) -> None:
    add(accounts, "olga", "operator")
    add(accounts, "anna", "analyst")
    word, csrf = accounts.log_in("anna", PASSWORD)
    caller = accounts.authenticate(word, "session")
    assert caller.csrf == csrf
    assert accounts.find_cached_caller(word, "session") is not None
    accounts.log_out(caller, word)
    assert accounts.find_cached_caller(word, "session") is None
    with pytest.raises(DeniedError):
        accounts.authenticate(word, "session")
    accounts.update_account("olga", "anna", disabled=True)
    with pytest.raises(DeniedError):
        accounts.log_in("anna", PASSWORD)
    accounts.update_account("olga", "anna", disabled=False)
    accounts.log_in("anna", PASSWORD)


def test_a_session_that_is_used_lives_on_for_its_hours_alone(accounts: Accounts) -> None:
    add(accounts, "anna", "analyst")
    word, _ = accounts.log_in("anna", PASSWORD)
    (stored,) = accounts._database.find_all(store.tokens, kind="session")
    now = datetime.now(UTC)

    def hours_left(age: float, left: float) -> float:
        """Use the session at an age, with so many hours left; return how many are left then."""
        times = {
            name: (now + timedelta(hours=hours)).isoformat() for name, hours in (("created", -age), ("expires", left))
        }
        accounts._database.update(store.tokens, {"id": stored["id"]}, **times)
        accounts._caller_cache.clear()
        accounts.authenticate(word, "session")
        kept = accounts._database.find(store.tokens, id=stored["id"])
        assert kept is not None
        return (datetime.fromisoformat(kept["expires"]) - now).total_seconds() / 3600

    assert (datetime.fromisoformat(stored["expires"]) - now).total_seconds() < 2.1 * 3600
    assert 1.9 < hours_left(age=1, left=1) < 2.1, "two more after a use"
    assert 0.9 < hours_left(age=11, left=0.5) < 1.1, "twelve in all"
    with pytest.raises(DeniedError):
        hours_left(age=3, left=-0.1)
    accounts.open_session("anna")
    assert accounts._database.find(store.tokens, id=stored["id"]) is None, "ended sessions are deleted"


def test_an_account_of_a_provider_has_no_password(accounts: Accounts) -> None:
    assert accounts.invite("olga", "otto", ["auditor"], "otto@clinic") is None
    with pytest.raises(DeniedError):
        accounts.log_in("otto", "")
    assert accounts._database.find(store.accounts, subject="otto@clinic") is not None


def test_a_token_is_known_by_its_hash_for_a_moment(accounts: Accounts) -> None:
    add(accounts, "anna", "analyst")
    caller = caller_of(accounts, "anna")
    word, number = accounts.issue_token(caller, "script", ["plan"], 1)
    other, _ = accounts.issue_token(caller, "script", ["plan"], 1)
    by_token = accounts.authenticate(other, "token")
    assert by_token.scopes == {"plan"}
    assert word not in str(accounts._caller_cache)
    with pytest.raises(ParameterError):
        accounts.issue_token(caller, "script", ["plan"], 1000)
    with pytest.raises(DeniedError):  # a token that leaked takes back no other one
        accounts.revoke_token(by_token, number)
    accounts.revoke_token(caller, number)
    with pytest.raises(NotFoundError):
        accounts.revoke_token(caller, number)


def test_the_limit_of_wrong_passwords_is_the_operators(accounts: Accounts) -> None:
    strict = Accounts(accounts._database, max_failures_per_minute=2)
    for _ in range(2):
        with pytest.raises(DeniedError):
            strict.log_in("nobody", PASSWORD)
    with pytest.raises(TooManyError):
        strict.log_in("nobody", PASSWORD)


def test_a_hash_keeps_its_parameters_and_follows_stronger_ones(accounts: Accounts) -> None:
    """Raising the cost of a hash had locked everybody out."""
    add(accounts, "anna", "analyst")
    records = accounts._database
    before = str((records.find(store.accounts, name="anna") or {})["password"])
    assert PASSWORD not in before
    accounts._hasher = PasswordHasher(time_cost=3, memory_cost=20_000, parallelism=1)
    accounts.log_in("anna", PASSWORD)
    after = str((records.find(store.accounts, name="anna") or {})["password"])
    assert "t=2" in before
    assert "t=3" in after
    accounts.log_in("anna", PASSWORD)


def test_people_change_their_own_password_by_the_one_they_have(accounts: Accounts) -> None:
    add(accounts, "anna", "analyst")
    accounts.invite("olga", "otto", ["analyst"], subject="otto@provider")
    assert [accounts.has_password(name) for name in ("anna", "otto", "nobody")] == [True, False, False]
    word, _ = accounts.log_in("anna", PASSWORD)
    caller = accounts.authenticate(word, "session")
    token, _ = accounts.issue_token(caller, "script", ["ask"], 1)
    for old, new in [("a wrong password", "another password"), (PASSWORD, "short")]:
        with pytest.raises(ParameterError):
            accounts.change_password(caller, old, new)
    assert accounts.authenticate(word, "session").name == "anna", "a mistake ends nothing"
    with pytest.raises(DeniedError):
        accounts.change_password(accounts.authenticate(token, "token"), PASSWORD, "another password")
    again, _ = accounts.change_password(caller, PASSWORD, "another password")
    assert accounts.authenticate(again, "session").name == "anna"
    for gone, kind in [(word, "session"), (token, "token")]:
        with pytest.raises(DeniedError):
            accounts.authenticate(gone, kind)
    with pytest.raises(DeniedError):
        accounts.log_in("anna", PASSWORD)
    accounts.log_in("anna", "another password")


def test_who_did_what_is_only_added_to(accounts: Accounts) -> None:
    add(accounts, "anna", "analyst")
    with pytest.raises(DeniedError):
        accounts.log_in("anna", "not the password", "203.0.113.9")
    accounts.log_in("anna", PASSWORD, "203.0.113.9")
    records = accounts._database
    actions = [event["action"] for event in records.find_all(store.events)]
    assert actions == ["account.create", "account.invite", "account.accept", "session.refuse", "session.open"]
    assert "203.0.113.9" in str(records.find(store.events, action="session.refuse"))
    assert PASSWORD not in str(records.find_all(store.events))
    with pytest.raises(DatabaseError, match="append-only"):
        records.remove(store.events)
    with pytest.raises(DatabaseError, match="append-only"):
        records.update(store.events, {}, account="eve")
    assert len(records.find_all(store.events)) == 5


def test_the_owner_of_the_machine_gets_back_in(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.service.accounts.update_account("test", "analyst", disabled=True)
        for name in ("operator", "analyst", "olga"):  # a lost password, a disabled account, a new one
            result = CliRunner().invoke(service_commands, ["invite", str(tmp_path), name])
            assert result.exit_code == 0, result.output
            invitation = result.output.strip().partition("invitation=")[2]
            body = {"invitation": invitation, "password": f"{PASSWORD}, newer"}
            assert running.test_client.post("/v1/accounts/accept", json=body).is_success
            events = running.get("auditor", "/v1/events")["items"]
            assert {"(machine)", name} <= {event["account"] for event in events}
