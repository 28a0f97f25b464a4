# SPDX-License-Identifier: Apache-2.0
"""Ledgers in files and in PostgreSQL: races, crashes, and what only one of them has."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import veilwood as vw
from veilwood.errors import BudgetExceededError, LedgerError
from veilwood.privacy.ledger import Ledger, Reservation
from veilwood.privacy.ledger_stores import MemoryLedger, PostgresLedger, SQLiteLedger, open_ledger
from veilwood.privacy.loss import Loss
from veilwood_testing.errors import rejects
from veilwood_testing.plans import pure_loss, spend
from veilwood_testing.processes import running_postgres

FORK = multiprocessing.get_context("fork")

# -- many processes --------------------------------------------------------------------------------------------


class CheckThenWrite(SQLiteLedger):
    """Mutant: looks in one transaction and writes in another."""

    def reserve(self, loss: Loss, **facts: object) -> Reservation:  # type: ignore[override]
        if not self.can_afford(loss):
            raise BudgetExceededError("refused", requested=loss, remaining=None)
        BARRIER.wait(60)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("veilwood.privacy.ledger.Balance.can_afford", lambda *_: True)
            return super().reserve(loss, **facts)  # type: ignore[arg-type]


BARRIER = FORK.Barrier(4)


def race(ledger: Ledger, loss: Loss, processes: int) -> int:
    """Let processes spend until they are refused; return how many spends were granted."""
    start, granted = FORK.Event(), FORK.Value("i", 0)

    def work() -> None:
        start.wait()
        try:
            while True:
                reservation = spend(ledger, loss)
                with granted.get_lock():
                    granted.value += 1
                reservation.commit()
        except BudgetExceededError:
            os._exit(0)

    workers = [FORK.Process(target=work) for _ in range(processes)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return int(granted.value)


def test_fifty_processes_race_for_the_last_of_a_budget(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    assert race(ledger, pure_loss(Fraction(1, 7) + Fraction(1, 10**6)), 50) == 6
    assert race(ledger, pure_loss(Fraction(1, 100)), 50) == 14
    assert ledger.spent.epsilon == 6 * (Fraction(1, 7) + Fraction(1, 10**6)) + Fraction(14, 100)
    assert {entry.state for entry in ledger.entries()} == {"committed"}
    ledger.verify()


def test_the_race_catches_a_check_outside_the_transaction(tmp_path: Path) -> None:
    ledger = CheckThenWrite(tmp_path / "x.db", 1)
    assert race(ledger, pure_loss(1), 4) == 4
    with rejects(LedgerError, raised_in="ChainedLedger.verify"):
        ledger.verify()


def test_processes_that_open_the_same_new_ledger_share_it(tmp_path: Path) -> None:
    start = FORK.Event()

    def work() -> None:
        start.wait()
        spend(SQLiteLedger(tmp_path / "x.db", 100), pure_loss(1)).commit()

    workers = [FORK.Process(target=work) for _ in range(10)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join()
    assert SQLiteLedger(tmp_path / "x.db").spent.epsilon == 10
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_threads_share_a_ledger(where: str, tmp_path: Path) -> None:
    ledger = MemoryLedger(1) if where == "memory" else SQLiteLedger(tmp_path / "x.db", 1)
    granted = []

    def work() -> None:
        for _ in range(4):
            try:
                granted.append(spend(ledger, pure_loss(0.15)))
            except BudgetExceededError:
                return

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 6
    ledger.verify()


# -- crashes ---------------------------------------------------------------------------------------------------


class WrittenAtCommit(SQLiteLedger):
    """Mutant: a spend is not charged when something fails between reserve and commit."""

    def reserve(self, loss: Loss, **facts: object) -> Reservation:  # type: ignore[override]
        if not self.can_afford(loss):
            raise BudgetExceededError("refused", requested=loss, remaining=None)
        charge = super().reserve

        class Late(Reservation):
            def commit(self) -> None:
                charge(loss, **facts).commit()  # type: ignore[arg-type]

        return Late(self, 0)


def spent_after_death(ledger: Ledger, die: Callable[[], object]) -> Loss:
    def work() -> None:
        reservation = spend(ledger, pure_loss(1))
        die()
        reservation.commit()

    worker = FORK.Process(target=work)
    worker.start()
    worker.join()
    assert worker.exitcode != 0
    ledger.verify()
    return ledger.spent


DEATHS = [lambda: os._exit(3), lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: sys.exit(3)]


@pytest.mark.parametrize("die", DEATHS, ids=["exit", "kill", "exception"])
def test_death_between_reserve_and_commit_counts_as_spent(die: Callable[[], object], tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    assert spent_after_death(ledger, die) == pure_loss(1)
    assert [entry.state for entry in ledger.entries()] == ["reserved"]
    with pytest.raises(BudgetExceededError):
        spend(ledger, pure_loss(1))


@pytest.mark.parametrize("die", DEATHS, ids=["exit", "kill", "exception"])
def test_the_death_test_catches_a_ledger_not_charged_on_an_exception_path(
    die: Callable[[], object], tmp_path: Path
) -> None:
    mutant = WrittenAtCommit(tmp_path / "x.db", 1)
    spend(mutant, pure_loss(Fraction(1, 2))).commit()
    assert mutant.spent == pure_loss(Fraction(1, 2))  # it looks right as long as nothing fails
    mutant = WrittenAtCommit(tmp_path / "y.db", 1)
    assert spent_after_death(mutant, die) == Loss.zero()


def test_killed_at_any_moment_the_ledger_remembers_what_it_granted(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db")
    moments = random.Random(0)
    before = 0
    for _ in range(20):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                while True:
                    reservation = spend(ledger, pure_loss(1))
                    os.write(writer, b".")
                    reservation.commit()
            finally:
                os._exit(1)
        os.close(writer)
        granted = len(os.read(reader, 1))
        time.sleep(moments.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while chunk := os.read(reader, 4096):
            granted += len(chunk)
        os.close(reader)
        ledger.verify()
        spent = ledger.spent.epsilon
        assert spent is not None
        # The child may die after the spend was written and before it could say so, never the other way round.
        assert before + granted <= spent <= before + granted + 1
        before = int(spent)


psycopg = pytest.importorskip("psycopg")

FACTS: dict[str, Any] = {"what": "leaves", "neighbours": "one row", "plan": "1f3a"}
TENTH = Loss.pure(Fraction(1, 10))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_postgres() as found:
        yield found


@pytest.fixture
def fresh(address: str, request: pytest.FixtureRequest) -> str:
    return f"{address}#{request.node.name.split('[')[0][:40].lower()}"


def change(address: str, statement: str) -> None:
    server, name = address.split("#")
    with psycopg.connect(server) as connection:
        connection.execute(f"SET search_path TO veilwood_ledger_{name}")
        connection.execute(statement)


def count_granted(ledger: Ledger, times: int) -> int:
    granted = 0
    for _ in range(times):
        with suppress(BudgetExceededError):
            ledger.reserve(TENTH, **FACTS).commit()
            granted += 1
    return granted


def test_it_counts_as_a_file_does(fresh: str, tmp_path: Path) -> None:
    there = PostgresLedger(fresh, epsilon=1, population="patients")
    here = vw.SQLiteLedger(tmp_path / "spends.db", epsilon=1, population="patients")
    for ledger in (there, here):
        ledger.reserve(TENTH, **FACTS).commit()
        ledger.reserve(TENTH, **FACTS).cancel("rows refused")
        ledger.reserve(Loss.pure(Fraction(1, 2)), **FACTS)
        ledger.resolve(6, "power failure")
        with pytest.raises(BudgetExceededError) as refused:
            ledger.reserve(Loss.pure(Fraction(1, 2)), **FACTS)
        assert str(refused.value.remaining) == "epsilon=0.4"
    facts = [[(e.id, e.state, e.loss, e.resolution) for e in ledger.entries()] for ledger in (there, here)]
    assert facts[0] == facts[1]
    assert there.verify()
    assert (there.population, there.spent, there.budget) == (here.population, here.spent, here.budget)


def test_it_is_opened_by_its_address_and_follows_work_into_other_processes(fresh: str) -> None:
    PostgresLedger(fresh, epsilon=1).reserve(TENTH, **FACTS).commit()
    assert open_ledger(fresh).spent == TENTH
    copy = pickle.loads(pickle.dumps(open_ledger(fresh)))
    assert copy.spent == TENTH
    assert "host=" not in repr(copy)


def test_a_fit_is_charged_there(fresh: str) -> None:
    data = vw.datasets.car()
    ledger = PostgresLedger(fresh, epsilon=1)
    vw.RandomTreesClassifier(schema=data.schema, epsilon=0.6, n_estimators=2, ledger=ledger).fit(data.X, data.y)
    assert str(ledger.spent) == "epsilon=0.6"
    with pytest.raises(BudgetExceededError):
        vw.RandomTreesClassifier(schema=data.schema, epsilon=0.6, n_estimators=2, ledger=fresh).fit(data.X, data.y)


@pytest.mark.parametrize("name", ["", "Claims", "a;drop schema public", "x" * 41, "1st"])
def test_a_name_that_is_no_name_is_refused(address: str, name: str) -> None:
    with rejects(LedgerError, raised_in="PostgresLedger.__init__"):
        PostgresLedger(f"{address}#{name}")


def test_another_budget_other_people_and_a_missing_ledger_are_refused(fresh: str) -> None:
    with rejects(LedgerError, raised_in="PostgresLedger.__init__"):
        PostgresLedger(fresh, create=False)
    PostgresLedger(fresh, epsilon=1, population="patients")
    with rejects(LedgerError, raised_in="ChainedLedger._check_settings"):
        PostgresLedger(fresh, epsilon=2)
    with rejects(LedgerError, raised_in="ChainedLedger._check_settings"):
        PostgresLedger(fresh, population="nurses")


def test_an_unreachable_server_is_an_error_without_the_password() -> None:
    with rejects(LedgerError, raised_in="ChainedLedger._translate_errors") as refused:
        PostgresLedger("postgresql://me:hush@127.0.0.1:1/claims#visits")
    assert "hush" not in str(refused.value)


def test_a_server_that_may_lose_spends_is_refused() -> None:
    with running_postgres(fsync="off") as address, rejects(LedgerError, raised_in="PostgresLedger._open_session"):
        PostgresLedger(f"{address}#claims", epsilon=1)


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE balance SET body = replace(body, '\"1/10\"', '\"0\"')",
        "UPDATE events SET body = replace(body, '1/10', '1/20') WHERE number = 2",
        "DELETE FROM events WHERE number = 3",
        "DELETE FROM balance",
        "DELETE FROM events",
    ],
)
def test_an_edit_is_found_by_who_verifies_and_by_who_spends(address: str, edit: str) -> None:
    name = f"{address}#edit{abs(hash(edit))}"
    PostgresLedger(name, epsilon=1).reserve(TENTH, **FACTS).commit()
    change(name, edit)
    with pytest.raises(LedgerError):
        PostgresLedger(name).verify()
    with pytest.raises(LedgerError):
        PostgresLedger(name).reserve(TENTH, **FACTS)


def test_an_older_copy_put_back_is_found_by_who_read_the_newer(fresh: str) -> None:
    ledger = PostgresLedger(fresh, epsilon=1)
    ledger.reserve(TENTH, **FACTS).commit()
    change(fresh, "CREATE TABLE public.older AS SELECT * FROM balance")
    ledger.reserve(TENTH, **FACTS).commit()
    change(fresh, "DELETE FROM events WHERE number > 3")
    change(fresh, "UPDATE balance SET body = (SELECT body FROM public.older)")
    assert PostgresLedger(fresh).spent == TENTH  # nothing tells, to somebody who has never seen more
    with rejects(LedgerError, raised_in="HashChain.read_new_events"):
        ledger.reserve(TENTH, **FACTS)


def test_threads_that_race_for_the_rest_never_overspend(fresh: str) -> None:
    PostgresLedger(fresh, epsilon=1)
    with ThreadPoolExecutor(16) as pool:
        granted = list(pool.map(lambda _: count_granted(PostgresLedger(fresh), 2), range(16)))
    assert sum(granted) == 10
    assert str(PostgresLedger(fresh).spent) == "epsilon=1"
    PostgresLedger(fresh).verify()


def test_makers_that_race_make_one_ledger(fresh: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        heads = set(pool.map(lambda _: PostgresLedger(fresh, epsilon=1).verify(), range(8)))
    assert len(heads) == 1


def open_there(place: str) -> Ledger:
    return open_ledger(place)


def spend_in_a_process(place: str, times: int, granted: Any) -> None:
    count = count_granted(open_there(place), times)
    with granted.get_lock():
        granted.value += count


def spend_until_killed(place: str, drawn: str) -> None:
    """Write a line to the file after each reservation: as if noise had been drawn for it."""
    ledger = open_there(place)
    while True:
        entry = ledger.reserve(Loss.pure(Fraction(1, 1000)), **FACTS)
        with open(drawn, "a") as file:
            file.write(f"{entry.id}\n")
        entry.commit()


@pytest.fixture(params=["PostgreSQL", "SQLite"])
def place(request: pytest.FixtureRequest, address: str, tmp_path: Path) -> str:
    if request.param == "SQLite":
        return str(tmp_path / "spends.db")
    return f"{address}#race{os.getpid()}{time.monotonic_ns() % 10**9}"


def make(place: str, epsilon: int) -> None:
    maker: Callable[..., Ledger] = PostgresLedger if "://" in place else vw.SQLiteLedger
    maker(place, epsilon=epsilon)


@pytest.mark.slow
def test_64_processes_that_race_never_overspend(place: str) -> None:
    make(place, 10)
    context = get_context("fork")
    granted = context.Value("i", 0)
    runners = [context.Process(target=spend_in_a_process, args=(place, 3, granted)) for _ in range(64)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert granted.value == 100
    assert str(open_ledger(place).spent) == "epsilon=10"
    open_ledger(place).verify()


@pytest.mark.slow
def test_200_kills_lose_nothing_and_charge_nothing_twice(place: str, tmp_path: Path) -> None:
    make(place, 1000)
    drawn = tmp_path / "drawn"
    drawn.touch()
    context = get_context("fork")
    for kill in range(200):
        runner = context.Process(target=spend_until_killed, args=(place, str(drawn)))
        runner.start()
        time.sleep(0.01 + 0.0007 * (kill % 100))
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGKILL)
        runner.join()
    ledger = open_ledger(place)
    ledger.verify()
    lines = [int(line) for line in drawn.read_text().split()]
    entries = {entry.id: entry for entry in ledger.entries()}
    assert len(lines) == len(set(lines)) > 0  # how many depends on the load of the machine
    assert set(lines) <= set(entries)
    left = [entry for entry in entries.values() if entry.id not in lines or entry.state == "reserved"]
    assert len(left) <= 200  # at most one for each kill
    assert ledger.spent.epsilon == Fraction(len(entries), 1000)
