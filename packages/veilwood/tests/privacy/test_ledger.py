# SPDX-License-Identifier: Apache-2.0
"""The ledger: never overspent, never forgetful, never silently copied."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import GridSearchCV, cross_val_score

from veilwood.errors import BudgetExceededError, LedgerError, VeilwoodError
from veilwood.privacy.ledger import NO_LEDGER, Ledger
from veilwood.privacy.ledger_stores import MemoryLedger, SQLiteLedger, open_ledger
from veilwood.privacy.loss import Loss
from veilwood_testing import SOURCES
from veilwood_testing.ledgers import pure, spend

FORK = multiprocessing.get_context("fork")


# -- spending ------------------------------------------------------------------------------------------------


def test_the_refusal_crosses_processes() -> None:
    with pytest.raises(BudgetExceededError) as caught:
        spend(MemoryLedger(1), pure(2))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.requested, again.remaining) == (str(caught.value), pure(2), Loss(Fraction(1)))


# -- tampering and damage -----------------------------------------------------------------------------------------

EDITS = {
    "event": "UPDATE events SET body = replace(body, '\"1/2\"', '\"1/4\"') WHERE number = 2",
    "budget": "UPDATE events SET body = replace(body, '\"1\"', '\"9\"') WHERE number = 1",
    # One digit of the hash, changed for certain: a fixed new value would now and then be the old one.
    "hash": "UPDATE events SET hash = (CASE substr(hash, 1, 1) WHEN 'a' THEN 'b' ELSE 'a' END) || substr(hash, 2) "
    "WHERE number = 3",
    "gap": "DELETE FROM events WHERE number = 3",
    "tail": "DELETE FROM events WHERE number = 5",
    "all": "DELETE FROM events",
    "order": "UPDATE events SET number = 99 WHERE number = 5",
    "entry": "UPDATE events SET entry = 2 WHERE number = 4",
    "total": 'UPDATE balance SET body = replace(body, \'"epsilon":"3/4"\', \'"epsilon":"0"\')',
    "budget kept": 'UPDATE balance SET body = replace(body, \'"epsilon":"1"\', \'"epsilon":"9"\')',
    "no total": "DELETE FROM balance",
    "words": "UPDATE balance SET body = 'none'",
}


def written(path: Path) -> SQLiteLedger:
    ledger = SQLiteLedger(path, 1)
    first = spend(ledger, pure(Fraction(1, 2)))
    first.commit()
    spend(ledger, pure(Fraction(1, 4)))
    spend(ledger, pure(Fraction(1, 8))).cancel()
    ledger.verify()
    return ledger


@pytest.mark.parametrize("edit", EDITS)
def test_edits_are_found(edit: str, tmp_path: Path) -> None:
    ledger = written(tmp_path / "x.db")
    with sqlite3.connect(ledger.path) as connection:
        assert connection.execute(EDITS[edit]).rowcount > 0
    connection.close()
    with pytest.raises(LedgerError, match=r"x\.db (was altered|is damaged)"):
        ledger.verify()


def test_a_flipped_byte_in_a_record_is_found(tmp_path: Path) -> None:
    ledger = written(tmp_path / "x.db")
    content = ledger.path.read_bytes()
    records = [content.index(b'"budget"'), content.index(b"leaf counts"), content.index(b"1/8"), content.index(b"1f3a")]
    for place in records:
        ledger.path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(LedgerError):
            ledger.verify()
    ledger.path.write_bytes(content)
    ledger.verify()


def test_an_older_copy_shows_in_the_returned_hash(tmp_path: Path) -> None:
    ledger = written(tmp_path / "x.db")
    old = ledger.path.read_bytes()
    spend(ledger, pure(Fraction(1, 8)))
    noted = ledger.verify()
    ledger.path.write_bytes(old)
    assert SQLiteLedger(ledger.path).verify() != noted
    for use in (ledger.verify, lambda: spend(ledger, pure(Fraction(1, 8)))):  # what has read more is not fooled at all
        with pytest.raises(LedgerError, match="older copy"):
            use()


@pytest.mark.parametrize("size", [0, 50, 100, 4096, 9000])
def test_truncated_files_are_refused(size: int, tmp_path: Path) -> None:
    path = written(tmp_path / "x.db").path
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(LedgerError) as caught:
        SQLiteLedger(path).verify()
    assert "\n" not in str(caught.value)


def test_files_that_are_no_ledger_are_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("spent nothing, honestly\n" * 100)
    with pytest.raises(LedgerError, match="cannot be read: file is not a database"):
        SQLiteLedger(text)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE events (number)")
    connection.close()
    content = other.read_bytes()
    with pytest.raises(LedgerError, match="is not a ledger"):
        SQLiteLedger(other, 1)
    assert other.read_bytes() == content
    with pytest.raises(LedgerError, match="is a folder"):
        SQLiteLedger(tmp_path)
    with pytest.raises(LedgerError, match="cannot be created in"):
        SQLiteLedger(tmp_path / "nowhere" / "x.db")


def test_a_ledger_that_was_removed_is_not_born_again(tmp_path: Path) -> None:
    ledger = written(tmp_path / "x.db")
    ledger.path.unlink()
    for use in (lambda: spend(ledger, pure(0.1)), lambda: pickle.loads(pickle.dumps(ledger)).spent):
        with pytest.raises(LedgerError, match="unable to open"):
            use()
    assert not ledger.path.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is writable for the superuser")
def test_a_read_only_ledger_can_be_read(tmp_path: Path) -> None:
    ledger = written(tmp_path / "x.db")
    ledger.path.chmod(0o400)
    assert SQLiteLedger(ledger.path).spent.epsilon == Fraction(3, 4)
    with pytest.raises(LedgerError, match="cannot be written"):
        spend(ledger, pure(0.1))


def test_a_full_disk_refuses_and_keeps_the_ledger_whole(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db")
    results = FORK.SimpleQueue()

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = ledger.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        granted = 0
        try:
            while True:
                spend(ledger, pure(1))
                granted += 1
        except LedgerError as error:
            results.put((granted, str(error)))

    worker = FORK.Process(target=work)
    worker.start()
    worker.join()
    granted, message = results.get()
    assert message.startswith("ledger x.db cannot be written: ")
    assert ledger.spent.epsilon == granted
    ledger.verify()


# -- opening -----------------------------------------------------------------------------------------------------


def test_an_existing_ledger_keeps_its_budget(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    spend(SQLiteLedger(path, 1), pure(0.5))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SQLiteLedger(path).remaining == Loss(Fraction(1, 2))
    assert SQLiteLedger(path, 1.0, 0).spent == pure(0.5)
    for epsilon, delta in ((2, None), (1, 1e-6)):
        with pytest.raises(LedgerError, match="with the budget epsilon=1, not"):
            SQLiteLedger(path, epsilon, delta)
    free = SQLiteLedger(tmp_path / "free.db")
    assert free.budget is None
    with pytest.raises(LedgerError, match=r"free\.db was created with no budget, not epsilon=1"):
        SQLiteLedger(free.path, 1)


@pytest.mark.parametrize("arguments", [(float("inf"),), (0,), (-1,), (1, 1), (None, 1e-6), ("much",)])
def test_budgets_that_are_none_are_refused(arguments: tuple[Any, ...], tmp_path: Path) -> None:
    with pytest.raises(VeilwoodError):
        MemoryLedger(*arguments)
    with pytest.raises(VeilwoodError):
        SQLiteLedger(tmp_path / "x.db", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_open_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_ledger(None) is NO_LEDGER
    ledger = MemoryLedger(1)
    assert open_ledger(ledger) is ledger
    monkeypatch.chdir(tmp_path)
    spend(open_ledger("a b#c.db"), pure(1))
    for same in (tmp_path / "a b#c.db", "sqlite:///a b#c.db", f"sqlite:///{tmp_path}/a b#c.db"):
        assert open_ledger(same).spent == pure(1)
    for wrong in ("mysql://host/db", "", 3, "sqlite:///"):
        with pytest.raises(LedgerError, match="is not a ledger"):
            open_ledger(wrong)  # type: ignore[arg-type]
    monkeypatch.chdir("/")
    assert repr(open_ledger(tmp_path / "a b#c.db")) == f"SQLiteLedger('{tmp_path}/a b#c.db')"


# -- scikit-learn ------------------------------------------------------------------------------------------------


class Spender(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The least estimator that spends."""

    def __init__(self, ledger: Ledger | None = None, epsilon: float = 0.1) -> None:
        self.ledger = ledger
        self.epsilon = epsilon

    def fit(self, X: np.ndarray, y: np.ndarray) -> Spender:
        spend(open_ledger(self.ledger), pure(self.epsilon)).commit()
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X), dtype=int)


X, Y = np.zeros((12, 1)), np.arange(12) % 2


def test_copies_are_the_ledger_itself(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    assert clone(Spender(ledger)).ledger is ledger
    assert copy.copy(ledger) is ledger
    assert copy.deepcopy({"ledger": ledger})["ledger"] is ledger


def test_model_selection_is_charged(make: Callable[..., Ledger]) -> None:
    ledger = make()
    cross_val_score(Spender(ledger), X, Y, cv=3)
    assert ledger.spent == pure(0.1) + pure(0.1) + pure(0.1)
    GridSearchCV(Spender(ledger), {"epsilon": [0.1, 0.2]}, cv=2).fit(X, Y)
    assert len(ledger.entries()) == 3 + 4 + 1


def test_parallel_model_selection_is_charged(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    GridSearchCV(Spender(ledger), {"epsilon": [0.1, 0.2]}, cv=2, n_jobs=2).fit(X, Y)
    assert ledger.spent.epsilon in (Fraction(7, 10), Fraction(8, 10))  # two fits of each, and the refit
    with pytest.raises(BudgetExceededError, match="insufficient privacy budget"):
        cross_val_score(Spender(ledger, 0.4), X, Y, cv=2, n_jobs=2, error_score="raise")
    ledger.verify()


def test_a_ledger_in_memory_does_not_follow_into_other_processes() -> None:
    ledger = MemoryLedger(1)
    message = "a ledger in memory cannot be used in another process"
    with pytest.raises(LedgerError, match=message):
        pickle.dumps(ledger)
    with pytest.raises(Exception, match=r"process|pickle"):
        cross_val_score(Spender(ledger), X, Y, cv=2, n_jobs=2, error_score="raise")
    assert ledger.entries() == []
    results = FORK.SimpleQueue()

    def work() -> None:
        try:
            spend(ledger, pure(1))
            results.put("granted")
        except LedgerError as error:
            results.put(str(error))

    worker = FORK.Process(target=work)
    worker.start()
    worker.join()
    assert message in results.get()


def test_a_sqlite_ledger_pickles_as_its_path(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    spend(pickle.loads(pickle.dumps(ledger)), pure(0.5))
    assert ledger.spent == pure(0.5)


def test_the_module_is_light() -> None:
    # An empty stand-in for the package, so that only what the ledger itself imports is seen.
    code = (
        "import sys, types; package = sys.modules['veilwood'] = types.ModuleType('veilwood'); "
        "package.__path__ = [sys.argv[1]]; import veilwood.privacy.ledger_stores; "
        "sys.exit(bool({'sklearn', 'pandas', 'numba', 'pyarrow'} & set(sys.modules)))"
    )
    folder = str(SOURCES["veilwood"])
    assert subprocess.run([sys.executable, "-c", code, folder], check=False).returncode == 0
