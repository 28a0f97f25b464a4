# SPDX-License-Identifier: Apache-2.0
"""A ledger among many processes, and when one of them dies: never overspent, never forgetful."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from veilwood.errors import BudgetExceededError, LedgerError
from veilwood.privacy.ledger import Ledger, Reservation
from veilwood.privacy.ledger_stores import MemoryLedger, SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood_testing.ledgers import pure, spend

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
    assert race(ledger, pure(Fraction(1, 7) + Fraction(1, 10**6)), 50) == 6
    assert race(ledger, pure(Fraction(1, 100)), 50) == 14
    assert ledger.spent.epsilon == 6 * (Fraction(1, 7) + Fraction(1, 10**6)) + Fraction(14, 100)
    assert {entry.state for entry in ledger.entries()} == {"committed"}
    ledger.verify()


def test_the_race_catches_a_check_outside_the_transaction(tmp_path: Path) -> None:
    ledger = CheckThenWrite(tmp_path / "x.db", 1)
    assert race(ledger, pure(1), 4) == 4
    with pytest.raises(LedgerError, match="altered"):
        ledger.verify()


def test_processes_that_open_the_same_new_ledger_share_it(tmp_path: Path) -> None:
    start = FORK.Event()

    def work() -> None:
        start.wait()
        spend(SQLiteLedger(tmp_path / "x.db", 100), pure(1)).commit()

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
                granted.append(spend(ledger, pure(0.15)))
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
        reservation = spend(ledger, pure(1))
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
    assert spent_after_death(ledger, die) == pure(1)
    assert [entry.state for entry in ledger.entries()] == ["reserved"]
    with pytest.raises(BudgetExceededError):
        spend(ledger, pure(1))


@pytest.mark.parametrize("die", DEATHS, ids=["exit", "kill", "exception"])
def test_the_death_test_catches_a_ledger_not_charged_on_an_exception_path(
    die: Callable[[], object], tmp_path: Path
) -> None:
    mutant = WrittenAtCommit(tmp_path / "x.db", 1)
    spend(mutant, pure(Fraction(1, 2))).commit()
    assert mutant.spent == pure(Fraction(1, 2))  # it looks right as long as nothing fails
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
                    reservation = spend(ledger, pure(1))
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
