# SPDX-License-Identifier: Apache-2.0
"""One ledger per data set: charges under one key, limits, a transaction with the outcome, copies that were restored."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
import veilwood as vw
from veilwood.errors import BudgetExceededError, LedgerError
from veilwood.privacy.loss import Loss, requested_loss
from veilwood_service import store
from veilwood_service.budgets import Ledgers, RunLedger, loss_from_certificate
from veilwood_service.settings import Settings
from veilwood_service.store import Store
from veilwood_testing import FILES
from veilwood_testing.running_service import ENTRY_FACTS, EPSILON_TENTH, settings_for_store

PLAN = {"id": "p", "dataset": "cars", "kind": "train", "runs": 1000}


class Opened:
    """The ledger of one data set, as one process of a service sees it."""

    def __init__(self, settings: Settings, epsilon: float | None = None) -> None:
        self.database = Store(settings)
        self.ledgers = Ledgers(settings, self.database)
        self.ledger = self.ledgers.open("cars")
        if epsilon is not None:
            settings.make_folders()
            self.database.create_tables()
            with self.database.transaction():
                self.database.add(store.datasets, name="cars", people="makers", account="cust")
                self.ledger.create(epsilon, 0, "makers")

    def run(self, key: str) -> RunLedger:
        return RunLedger(self.ledger, key, "ana", PLAN, [])


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(Settings(tmp_path), 10)


def test_what_one_try_gave_back_another_cannot_show(opened: Opened) -> None:
    first, second = opened.run("k"), opened.run("k")
    own = first.reserve(EPSILON_TENTH, **ENTRY_FACTS)
    second.reserve(EPSILON_TENTH, **ENTRY_FACTS)
    own.cancel("refused")
    with pytest.raises(LedgerError):
        second.publish()


def test_what_an_earlier_try_reserved_is_not_given_back(opened: Opened) -> None:
    first, second = opened.run("k"), opened.run("k")
    first.reserve(EPSILON_TENTH, **ENTRY_FACTS)
    second.reserve(EPSILON_TENTH, **ENTRY_FACTS).cancel("refused")
    first.publish()
    assert opened.ledger.spent == EPSILON_TENTH


def test_tries_that_race_under_one_key_charge_once(opened: Opened, tmp_path: Path) -> None:
    others = [opened, *(Opened(Settings(tmp_path)) for _ in range(3))]

    def spend(key_and_number: tuple[str, int]) -> int:
        key, number = key_and_number
        run = others[number].run(key)
        charge = run.reserve(EPSILON_TENTH, **ENTRY_FACTS)
        run.publish()
        return charge.id

    with ThreadPoolExecutor(4) as pool:
        for key in map(str, range(20)):
            assert len(set(pool.map(spend, [(key, number) for number in range(4)]))) == 1
    assert opened.ledger.spent.epsilon == 2
    opened.ledger.verify()


def test_an_outcome_and_its_charge_commit_together(opened: Opened) -> None:
    run = opened.run("k")
    run.reserve(EPSILON_TENTH, **ENTRY_FACTS)

    def publish_and_fail() -> None:
        with opened.database.transaction():
            run.publish()
            opened.database.add(store.model_files, model="m", content=b"x")
            assert opened.ledger.entries()[0].state == "committed"
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        publish_and_fail()
    assert [entry.state for entry in opened.ledger.entries()] == ["reserved"]
    assert opened.database.find(store.model_files, model="m") is None
    run.publish()
    opened.ledger.verify()
    assert [entry.state for entry in Opened(Settings(opened.ledgers._settings.folder)).ledger.entries()] == [
        "committed"
    ]


def test_readers_beside_a_writer_are_never_told_that_the_ledger_was_altered(opened: Opened) -> None:
    """Verified events in memory and the snapshot of a reader are of the same moment."""
    over, seen = [False], [0]

    def read() -> None:
        while not over[0]:
            opened.ledger.balance()
            seen[0] += 1

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for number in range(60):
            run = opened.run(str(number))
            with opened.database.transaction():
                run.reserve(EPSILON_TENTH, **ENTRY_FACTS)
                run.publish()
        over[0] = True
        for reader in readers:
            reader.result()
    assert seen[0] > 20
    assert opened.ledger.spent.epsilon == 6


@pytest.mark.slow
def test_ledgers_in_postgresql_race_and_roll_back_alike(tmp_path: Path) -> None:
    with settings_for_store("PostgreSQL", tmp_path) as settings:
        opened = Opened(settings, 10)
        others = [opened, *(Opened(settings) for _ in range(3))]

        def spend(number: int) -> int:
            done = 0
            for key in range(40):
                run = others[number].run(str(key))
                run.reserve(EPSILON_TENTH, **ENTRY_FACTS)
                run.publish()
                others[number].ledger.balance()
                done += 1
            return done

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(spend, range(4))) == [40] * 4
        assert opened.ledger.spent.epsilon == 4
        roll_back_and_publish(opened)
        for one in others:
            one.database.close()


def roll_back_and_publish(opened: Opened) -> None:
    run = opened.run("last")
    run.reserve(EPSILON_TENTH, **ENTRY_FACTS)

    def publish_and_fail() -> None:
        with opened.database.transaction():
            run.publish()
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        publish_and_fail()
    assert opened.ledger.entries()[-1].state == "reserved"
    run.publish()
    opened.ledger.verify()


def test_requests_cost_the_same_after_5000_entries(opened: Opened) -> None:
    """Every request had read and hashed the whole ledger: 3 ms became 209."""
    database, ledger = opened.database, opened.ledger

    def seconds() -> float:
        ledger.balance()
        start = time.perf_counter()
        for _ in range(50):
            opened.ledgers.remaining_for("cars", "ana")
        return time.perf_counter() - start

    database.add(store.allowances, id="a", dataset="cars", account="ana", period="year", epsilon="9", delta="0")
    few = seconds()
    with database.transaction():
        for number in range(2500):
            charge = ledger.reserve(Loss.pure(Fraction(1, 1000)), **{**ENTRY_FACTS, "key": str(number)}, account="ana")
            charge.commit()
    assert seconds() < 3 * few + 0.05  # not 50 times; a loaded machine may be slow now and then


def test_an_older_copy_of_the_database_is_frozen_at_the_next_start(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "service.db"
    before = opened.run("before")
    before.reserve(EPSILON_TENTH, **ENTRY_FACTS)
    before.publish()
    opened.database.close()  # with the last connection, SQLite writes its log into the file
    older = path.read_bytes()
    opened.run("after").reserve(EPSILON_TENTH, **ENTRY_FACTS)
    opened.ledgers.note_heads()
    opened.database.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(older)
    again = Opened(Settings(tmp_path))
    assert again.ledgers.freeze_older_copies() == ["cars"]
    assert again.ledgers.freeze_older_copies() == ["cars"]
    with pytest.raises(LedgerError):
        again.run("new").reserve(EPSILON_TENTH, **ENTRY_FACTS)
    with pytest.raises(LedgerError):  # one event is known to be missing
        again.ledgers.thaw("cars", "cust", "the disk broke", None)
    again.ledgers.thaw("cars", "cust", "the disk broke", EPSILON_TENTH)
    again.run("new").reserve(EPSILON_TENTH, **ENTRY_FACTS)
    assert again.ledger.spent.epsilon == Fraction(3, 10)


def test_a_ledger_of_the_library_goes_on_in_the_service(tmp_path: Path) -> None:
    opened, old = Opened(Settings(tmp_path), 1), FILES / "ledger-0.1.0.db"
    (tmp_path / "old.db").write_bytes(old.read_bytes())
    source = vw.SQLiteLedger(tmp_path / "old.db")
    assert source.budget is not None
    ledger = opened.ledgers.open("visits")
    for epsilon, fits in ((999, False), (source.budget.epsilon, True)):
        try:
            with opened.database.transaction():
                opened.database.add(store.datasets, name="visits", people="x", account="cust")
                ledger.create(str(epsilon), str(source.budget.delta), "x", str(tmp_path / "old.db"))
        except LedgerError:
            assert not fits
    assert (ledger.spent, ledger.verify()) == (source.spent, source.verify())
    assert len(ledger.entries()) == len(source.entries()) > 0


def test_the_loss_of_a_certificate_is_never_too_small() -> None:
    for epsilon, delta in ((1, 0), (1, 1e-6), (3, 1e-2), (0.1, 1e-9)):
        bound, request = loss_from_certificate(epsilon, delta), requested_loss(epsilon, delta)
        assert bound.epsilon == request.epsilon
        assert (bound.rho or 0) >= (request.rho or 0)


def test_a_certificate_that_names_no_event_of_this_ledger_is_refused(opened: Opened) -> None:
    opened.run("k").reserve(EPSILON_TENTH, **{**ENTRY_FACTS, "neighbours": "one row, added or removed"})
    good: dict[str, Any] = {
        "is_private": True, "epsilon": 0.1, "delta": 0.0, "adjacency": "add-remove", "unit": "one row",
        "mechanism": "", "released": "", "composition": [], "assumptions": [], "reason": None,
        "ledger": "ledger cars", "ledger_entry": 9, "schema_hash": "", "plan_hash": "f", "version": "0.1.0",
        "chosen": {}, "ledger_hash": "a" * 64,
    }  # fmt: skip
    for bad in ({}, {**good, "ledger": "ledger visits"}, {**good, "ledger_hash": "x"}, {**good, "epsilon": None},
                {**good, "ledger_entry": 0}, {**good, "ledger_entry": 2**60}, {**good, "epsilon": "x"}):  # fmt: skip
        with pytest.raises(LedgerError):
            opened.ledgers.charge_certificates("cars", "cust", [bad])
    assert opened.ledgers.charge_certificates("cars", "cust", [good]) != []
    assert opened.ledgers.charge_certificates("cars", "cust", [json.loads(json.dumps(good))]) == [], "charged once"
    assert opened.ledger.spent.epsilon == Fraction(2, 10)


def test_certificates_beyond_the_budget_freeze_the_ledger(opened: Opened) -> None:
    facts = {
        "is_private": True, "epsilon": 11.0, "delta": 0.0, "adjacency": "add-remove", "unit": "one row",
        "mechanism": "", "released": "", "composition": [], "assumptions": [], "reason": None,
        "ledger": "ledger cars", "ledger_entry": 9, "schema_hash": "", "plan_hash": "f", "version": "0.1.0",
        "chosen": {}, "ledger_hash": "a" * 64,
    }  # fmt: skip
    with pytest.raises(LedgerError) as refused:
        opened.ledgers.charge_certificates("cars", "cust", [facts])
    assert not isinstance(refused.value, BudgetExceededError)
    with pytest.raises(LedgerError):
        opened.run("k").reserve(EPSILON_TENTH, **ENTRY_FACTS)
