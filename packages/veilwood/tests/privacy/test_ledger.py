# SPDX-License-Identifier: Apache-2.0
"""Ledgers: rules of charges, scikit-learn, edits and damage, the chain of events, files of earlier versions."""

from __future__ import annotations

import copy
import json
import math
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

import veilwood as vw
from veilwood.errors import BudgetExceededError, LedgerError, NotPrivateError, ParameterError, VeilwoodError
from veilwood.privacy import entropy, hash_chain
from veilwood.privacy.ledger import (
    NO_LEDGER,
    RECONCILIATION,
    RELEASE,
    SECURE_TRAINING,
    Balance,
    Ledger,
    Purpose,
    Reservation,
    total_loss,
)
from veilwood.privacy.ledger_stores import MemoryLedger, SQLiteLedger, open_ledger
from veilwood.privacy.loss import Loss, exact_fraction, requested_loss
from veilwood_testing import FILES, SOURCES
from veilwood_testing.errors import rejects
from veilwood_testing.plans import ONE_ROW, ChargingClassifier, pure_loss, spend


def test_reserve_commit_cancel(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    kept, dropped = spend(ledger, pure_loss(0.3)), spend(ledger, pure_loss(0.5))
    assert ledger.spent.epsilon == Fraction(8, 10)
    kept.commit()
    dropped.cancel()
    assert ledger.spent == pure_loss(0.3)
    assert ledger.remaining == Loss(Fraction(7, 10))
    assert [(e.id, e.state, e.loss) for e in ledger.entries()] == [
        (kept.id, "committed", pure_loss(0.3)),
        (dropped.id, "cancelled", pure_loss(0.5)),
    ]
    assert "committed" in str(ledger)
    assert "spent epsilon=0.3, budget epsilon=1" in str(ledger)
    assert len(ledger.verify()) == 64


def test_entries_carry_the_facts(make: Callable[..., Ledger]) -> None:
    ledger = make()
    ledger.reserve(Loss.unbounded(), what="Blätter", neighbours=ONE_ROW, plan="ab", not_private="epsilon=inf")
    (entry,) = ledger.entries()
    assert (entry.what, entry.neighbours, entry.plan, entry.not_private) == ("Blätter", ONE_ROW, "ab", "epsilon=inf")
    assert entry.time.endswith("+00:00")
    assert entry.loss == Loss.unbounded()
    assert "NOT PRIVATE: epsilon=inf" in str(ledger)
    with pytest.raises(AttributeError):
        entry.state = "cancelled"  # type: ignore[misc]


def test_a_refusal_says_what_is_left_and_writes_nothing(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    spend(ledger, pure_loss(0.7))
    before = ledger.verify()
    with pytest.raises(BudgetExceededError) as caught:
        spend(ledger, pure_loss(1))
    assert caught.value.requested == pure_loss(1)
    assert caught.value.remaining == Loss(Fraction(3, 10))
    assert ledger.verify() == before
    assert not ledger.can_afford(pure_loss(1))
    assert ledger.can_afford(pure_loss(0.3))


def test_the_last_of_the_budget_can_be_spent_exactly(make: Callable[..., Ledger]) -> None:
    ledger = make(0.3)
    for _ in range(3):
        spend(ledger, pure_loss(0.1))  # in binary floats the sum would be 0.30000000000000004
    assert ledger.remaining == Loss.zero()
    with pytest.raises(BudgetExceededError) as caught:
        spend(ledger, pure_loss(Fraction(1, 10**30)))
    assert caught.value.remaining == Loss.zero()


def test_unbounded_loss_needs_a_ledger_without_limit(make: Callable[..., Ledger]) -> None:
    with rejects(BudgetExceededError, raised_in="ChainedLedger._reserve_loss"):
        spend(make(1), Loss.unbounded())


def test_a_cancelled_unbounded_loss_leaves_no_trace(make: Callable[..., Ledger]) -> None:
    ledger = make()
    spend(ledger, pure_loss(1))
    spend(ledger, Loss.unbounded()).cancel()
    assert ledger.spent == pure_loss(1)
    assert ledger.remaining is None
    ledger.verify()


def test_a_reservation_is_settled_once(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    done = spend(ledger, pure_loss(0.1))
    done.commit()
    for again in (done.commit, done.cancel):
        with rejects(LedgerError, raised_in="ChainedLedger.settle"):
            again()
    dropped = spend(ledger, pure_loss(0.1))
    dropped.cancel()
    for again in (dropped.commit, dropped.cancel):
        with rejects(LedgerError, raised_in="ChainedLedger.settle"):
            again()
    for nothing in (1, 99):  # 1 is the event that opened the ledger
        with rejects(LedgerError, raised_in="ChainedLedger.settle"):
            Reservation(ledger, nothing).cancel()


def test_a_spend_cannot_be_negative_or_undefined(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    with rejects(ParameterError, name="rho"):
        spend(ledger, Loss(Fraction(1, 2), rho=Fraction(-5)))
    with pytest.raises(VeilwoodError):
        spend(ledger, Loss(float("nan")))  # type: ignore[arg-type]
    assert ledger.entries() == []


def test_one_budget_protects_one_kind_of_neighbours(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    spend(ledger, pure_loss(0.1), "any 3 rows, replaced").cancel()
    spend(ledger, pure_loss(0.1))
    with rejects(LedgerError, raised_in="ChainedLedger._reserve_loss"):
        spend(ledger, pure_loss(0.1), "any 3 rows, replaced")
    assert ledger.spent == pure_loss(0.1)
    ledger.verify()


def test_pure_and_concentrated_losses_compose_through_loss(make: Callable[..., Ledger]) -> None:
    ledger = make(1, 1e-6)
    part = Loss.zcdp(Fraction(requested_loss(1, 1e-6).rho or 0) / 9, exact_fraction(1e-6))
    losses = [part] * 8
    for loss in losses:
        spend(ledger, loss)
    # Plain sums would be at 8e-6 in delta and nearly 3 in epsilon; zCDP has room for one more, not for two.
    assert ledger.spent == sum(losses, start=Loss.zero())
    left = ledger.remaining
    assert left is not None
    assert left.rho == pytest.approx(part.rho)
    assert ledger.can_afford(Loss(None, rho=left.rho * Fraction(999, 1000)))  # type: ignore[operator]
    with rejects(BudgetExceededError, raised_in="ChainedLedger._reserve_loss"):
        spend(ledger, part + part)
    mixed = make(1, 1e-6) if isinstance(ledger, MemoryLedger) else MemoryLedger(1, 1e-6)
    spend(mixed, pure_loss(0.3))
    spend(mixed, requested_loss(0.5, 1e-6))
    assert mixed.spent == pure_loss(0.3) + requested_loss(0.5, 1e-6)
    assert mixed.remaining == Loss(Fraction(2, 10), Fraction(0))


losses = st.one_of(
    st.fractions(0, 1, max_denominator=1000).map(Loss.pure),
    st.fractions(0, 1, max_denominator=50).map(Loss),
    st.tuples(st.integers(1, 50), st.integers(5, 9)).map(
        lambda p: Loss.zcdp(Fraction(p[0], 5000), Fraction(1, 10 ** p[1]))
    ),
    st.just(Loss.unbounded()),
)


steps = st.lists(st.tuples(st.sampled_from(["reserve", "commit", "cancel"]), losses, st.integers(0, 9)), max_size=15)


@settings(max_examples=150, deadline=None)
@given(steps=steps, budget=st.sampled_from([None, (1, 0), (2, 1e-6)]))
def test_spent_is_the_sum_of_what_was_not_cancelled(
    steps: list[tuple[str, Loss, int]], budget: tuple[int, float] | None
) -> None:
    ledger = MemoryLedger(*(budget or ()))
    live: list[tuple[Reservation, Loss]] = []
    settled_entry: set[int] = set()
    for action, loss, which in steps:
        if action == "reserve":
            try:
                live.append((spend(ledger, loss), loss))
            except BudgetExceededError:
                assert not ledger.can_afford(loss)
        elif live:
            reservation, _ = live[which % len(live)]
            if reservation.id in settled_entry:
                with pytest.raises(LedgerError):
                    reservation.cancel()
                continue
            getattr(reservation, action)()
            settled_entry.add(reservation.id)
            if action == "cancel":
                live = [pair for pair in live if pair[0] is not reservation]
    assert ledger.spent == sum((loss for _, loss in live), start=Loss.zero())
    if ledger.budget is not None:
        assert ledger.spent.is_within(ledger.budget)
        assert ledger.remaining is not None
    ledger.verify()


FORK = multiprocessing.get_context("fork")


# -- spending ------------------------------------------------------------------------------------------------


def test_the_refusal_crosses_processes() -> None:
    with pytest.raises(BudgetExceededError) as caught:
        spend(MemoryLedger(1), pure_loss(2))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.requested, again.remaining) == (str(caught.value), pure_loss(2), Loss(Fraction(1)))


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
    first = spend(ledger, pure_loss(Fraction(1, 2)))
    first.commit()
    spend(ledger, pure_loss(Fraction(1, 4)))
    spend(ledger, pure_loss(Fraction(1, 8))).cancel()
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
    spend(ledger, pure_loss(Fraction(1, 8)))
    noted = ledger.verify()
    ledger.path.write_bytes(old)
    assert SQLiteLedger(ledger.path).verify() != noted
    for use in (
        ledger.verify,
        lambda: spend(ledger, pure_loss(Fraction(1, 8))),
    ):  # what has read more is not fooled at all
        with rejects(LedgerError, raised_in="HashChain.read_new_events"):
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
    with rejects(LedgerError, raised_in="ChainedLedger._translate_errors"):
        SQLiteLedger(text)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE events (number)")
    connection.close()
    content = other.read_bytes()
    with rejects(LedgerError, raised_in="SQLiteLedger.__init__"):
        SQLiteLedger(other, 1)
    assert other.read_bytes() == content
    with rejects(LedgerError, raised_in="SQLiteLedger.__init__"):
        SQLiteLedger(tmp_path)
    with rejects(LedgerError, raised_in="SQLiteLedger._create_file"):
        SQLiteLedger(tmp_path / "nowhere" / "x.db")


def test_a_ledger_that_was_removed_is_not_born_again(tmp_path: Path) -> None:
    ledger = written(tmp_path / "x.db")
    ledger.path.unlink()
    for use in (lambda: spend(ledger, pure_loss(0.1)), lambda: pickle.loads(pickle.dumps(ledger)).spent):
        with rejects(LedgerError, raised_in="ChainedLedger._translate_errors"):
            use()
    assert not ledger.path.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is writable for the superuser")
def test_a_read_only_ledger_can_be_read(tmp_path: Path) -> None:
    ledger = written(tmp_path / "x.db")
    ledger.path.chmod(0o400)
    assert SQLiteLedger(ledger.path).spent.epsilon == Fraction(3, 4)
    with pytest.raises(LedgerError, match="cannot be written"):
        spend(ledger, pure_loss(0.1))


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
                spend(ledger, pure_loss(1))
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
    spend(SQLiteLedger(path, 1), pure_loss(0.5))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SQLiteLedger(path).remaining == Loss(Fraction(1, 2))
    assert SQLiteLedger(path, 1.0, 0).spent == pure_loss(0.5)
    for epsilon, delta in ((2, None), (1, 1e-6)):
        with rejects(LedgerError, raised_in="ChainedLedger._check_settings"):
            SQLiteLedger(path, epsilon, delta)
    free = SQLiteLedger(tmp_path / "free.db")
    assert free.budget is None
    with rejects(LedgerError, raised_in="ChainedLedger._check_settings"):
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
    spend(open_ledger("a b#c.db"), pure_loss(1))
    for same in (tmp_path / "a b#c.db", "sqlite:///a b#c.db", f"sqlite:///{tmp_path}/a b#c.db"):
        assert open_ledger(same).spent == pure_loss(1)
    for wrong in ("mysql://host/db", "", 3, "sqlite:///"):
        with rejects(LedgerError, raised_in="open_ledger"):
            open_ledger(wrong)  # type: ignore[arg-type]
    monkeypatch.chdir("/")
    assert repr(open_ledger(tmp_path / "a b#c.db")) == f"SQLiteLedger('{tmp_path}/a b#c.db')"


# -- scikit-learn ------------------------------------------------------------------------------------------------


X, Y = np.zeros((12, 1)), np.arange(12) % 2


def test_copies_are_the_ledger_itself(make: Callable[..., Ledger]) -> None:
    ledger = make(1)
    assert clone(ChargingClassifier(ledger)).ledger is ledger
    assert copy.copy(ledger) is ledger
    assert copy.deepcopy({"ledger": ledger})["ledger"] is ledger


def test_model_selection_is_charged(make: Callable[..., Ledger]) -> None:
    ledger = make()
    cross_val_score(ChargingClassifier(ledger), X, Y, cv=3)
    assert ledger.spent == pure_loss(0.1) + pure_loss(0.1) + pure_loss(0.1)
    GridSearchCV(ChargingClassifier(ledger), {"epsilon": [0.1, 0.2]}, cv=2).fit(X, Y)
    assert len(ledger.entries()) == 3 + 4 + 1


def test_parallel_model_selection_is_charged(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    GridSearchCV(ChargingClassifier(ledger), {"epsilon": [0.1, 0.2]}, cv=2, n_jobs=2).fit(X, Y)
    assert ledger.spent.epsilon in (Fraction(7, 10), Fraction(8, 10))  # two fits of each, and the refit
    with pytest.raises(BudgetExceededError, match="insufficient privacy budget"):
        cross_val_score(ChargingClassifier(ledger, 0.4), X, Y, cv=2, n_jobs=2, error_score="raise")
    ledger.verify()


def test_a_ledger_in_memory_does_not_follow_into_other_processes() -> None:
    ledger = MemoryLedger(1)
    message = "a ledger in memory cannot be used in another process"
    with pytest.raises(LedgerError, match=message):
        pickle.dumps(ledger)
    with pytest.raises(Exception, match=r"process|pickle"):
        cross_val_score(ChargingClassifier(ledger), X, Y, cv=2, n_jobs=2, error_score="raise")
    assert ledger.entries() == []
    results = FORK.SimpleQueue()

    def work() -> None:
        try:
            spend(ledger, pure_loss(1))
            results.put("granted")
        except LedgerError as error:
            results.put(str(error))

    worker = FORK.Process(target=work)
    worker.start()
    worker.join()
    assert message in results.get()


def test_a_sqlite_ledger_pickles_as_its_path(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    spend(pickle.loads(pickle.dumps(ledger)), pure_loss(0.5))
    assert ledger.spent == pure_loss(0.5)


def test_the_module_is_light() -> None:
    # An empty stand-in for the package, so that only what the ledger itself imports is seen.
    code = (
        "import sys, types; package = sys.modules['veilwood'] = types.ModuleType('veilwood'); "
        "package.__path__ = [sys.argv[1]]; import veilwood.privacy.ledger_stores; "
        "sys.exit(bool({'sklearn', 'pandas', 'numba', 'pyarrow'} & set(sys.modules)))"
    )
    folder = str(SOURCES["veilwood"])
    assert subprocess.run([sys.executable, "-c", code, folder], check=False).returncode == 0


def test_a_spend_reads_only_what_was_added_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, other = SQLiteLedger(tmp_path / "x.db", 100), SQLiteLedger(tmp_path / "x.db")
    for _ in range(50):
        spend(ledger, pure_loss(0.1)).commit()
    assert ledger.spent == other.spent
    taken: list[int] = []
    take = hash_chain.HashChain._apply_event
    monkeypatch.setattr(
        hash_chain.HashChain, "_apply_event", lambda self, *row: (taken.append(row[0]), take(self, *row))[1]
    )
    spend(ledger, pure_loss(0.1))
    assert taken == []  # everything before was read already
    spend(other, pure_loss(0.1))
    assert taken == [102]
    assert SQLiteLedger(ledger.path).spent.epsilon == Fraction(52, 10)
    assert len(taken) == 1 + 103


def test_names_and_resolutions_out_of_place_are_found(tmp_path: Path) -> None:
    """A chain with right hashes whose events make no sense: a second name, an entry settled twice, a number."""
    events: list[dict[str, Any]] = [
        {"event": "named", "of": "others"},
        {"event": "resolved", "reason": "x"},
        {"event": "named", "of": 7},
    ]
    for number, event in enumerate(events):
        path = tmp_path / f"{number}.db"
        ledger = SQLiteLedger(path, 1, population=None if event.get("of") == 7 else "people")
        spend(ledger, pure_loss(0.5)).commit()
        with closing(sqlite3.connect(path)) as connection:
            head, balance = ledger.verify(), json.loads(connection.execute("SELECT body FROM balance").fetchone()[0])
            new = hash_chain.append_event(connection, head, event, 2 if event["event"] == "resolved" else None)[1]
            connection.execute("UPDATE balance SET body = ?", (json.dumps(balance | {"head": new}),))
            connection.commit()
        with pytest.raises(LedgerError, match=r"altered|damaged"):
            _ = SQLiteLedger(path).spent


def test_keys_of_older_records_are_known_where_they_stand(tmp_path: Path) -> None:
    """Versions before had a key at the end of the text: a retry of such a spend is not charged twice."""
    ledger = SQLiteLedger(tmp_path / "spends.db", epsilon=1)
    event = {"event": "reserved", "loss": {"epsilon": "1/2", "delta": "0", "rho": "1/8"}, "not_private": None}
    event |= {"what": "leaf counts [59ab]", "neighbours": ONE_ROW, "plan": "1f3a", "table": "", "schema": ""}
    with ledger._open_transaction(write=True) as connection:
        before = ledger._chain.read_new_events(connection)
        _, head = hash_chain.append_event(connection, before.head, event)
        hash_chain.store_balance(connection, Balance(before.budget, pure_loss("1/2"), ONE_ROW, head))
    again = SQLiteLedger(tmp_path / "spends.db")
    assert [entry.key for entry in again.entries()] == ["59ab"]
    assert not spend(again, pure_loss("0.5"), key="59ab").is_new
    assert spend(again, pure_loss("0.5"), key="9ab").is_new
    again.verify()


def test_entries_are_found_by_their_purpose(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "spends.db")
    training = Purpose(SECURE_TRAINING, "scale", "0123456789ab")
    for purpose in (RELEASE, training, Purpose(SECURE_TRAINING, "scale", "ba9876543210"), Purpose(RECONCILIATION)):
        spend(ledger, pure_loss("0.5"), purpose=purpose).commit()
    again = SQLiteLedger(tmp_path / "spends.db")
    assert [entry.purpose for entry in again.entries()][:2] == [RELEASE, training]
    assert len(again.entries_for(SECURE_TRAINING, "scale")) == 2
    assert [entry.purpose for entry in again.entries_for(SECURE_TRAINING, "scale", "0123456789ab")] == [training]
    assert again.entries_for(SECURE_TRAINING, "other") == []
    assert len(again.entries_for(RECONCILIATION)) == 1
    again.verify()


@pytest.mark.parametrize(
    ("what", "purpose"),
    [
        ("leaf counts", RELEASE),
        ("secure training of scale (0123456789ab)", Purpose(SECURE_TRAINING, "scale", "0123456789ab")),
        ("secure training of scale (0123456789ab) [59ab]", Purpose(SECURE_TRAINING, "scale", "0123456789ab")),
        ("secure training of scale", RELEASE),
        ("reconciled: the disk failed", Purpose(RECONCILIATION)),
    ],
)
def test_purposes_of_older_records_are_read_off_their_text(tmp_path: Path, what: str, purpose: Purpose) -> None:
    ledger = SQLiteLedger(tmp_path / "spends.db")
    event = {"event": "reserved", "loss": {"epsilon": "1/2", "delta": "0", "rho": "1/8"}, "not_private": None}
    event |= {"what": what, "neighbours": ONE_ROW, "plan": "1f3a", "table": "", "schema": "", "key": ""}
    with ledger._open_transaction(write=True) as connection:
        before = ledger._chain.read_new_events(connection)
        _, head = hash_chain.append_event(connection, before.head, event)
        hash_chain.store_balance(connection, Balance(before.budget, pure_loss("1/2"), ONE_ROW, head))
    assert [entry.purpose for entry in SQLiteLedger(tmp_path / "spends.db").entries()] == [purpose]
    spend(ledger, pure_loss("0.5"), purpose=RELEASE)
    assert ledger.entries()[-1].purpose == RELEASE  # a record that has a purpose is not read by its text


@pytest.mark.parametrize("purpose", [7, {"kind": 7}, {"kind": "release", "more": ""}])
def test_a_purpose_that_is_not_text_is_damage(tmp_path: Path, purpose: object) -> None:
    ledger = SQLiteLedger(tmp_path / "spends.db")
    event: dict[str, Any] = {"event": "reserved", "loss": {"epsilon": "1/2", "delta": "0", "rho": "1/8"}}
    event |= {
        "what": "x",
        "neighbours": ONE_ROW,
        "plan": "1f3a",
        "table": "",
        "schema": "",
        "key": "",
        "purpose": purpose,
    }
    event["not_private"] = None
    with ledger._open_transaction(write=True) as connection:
        before = ledger._chain.read_new_events(connection)
        _, head = hash_chain.append_event(connection, before.head, event)
        hash_chain.store_balance(connection, Balance(before.budget, pure_loss("1/2"), ONE_ROW, head))
    with rejects(LedgerError, raised_in="ChainedLedger._translate_errors"):
        SQLiteLedger(tmp_path / "spends.db").entries()


SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
ROWS = np.linspace(0, 1, 80).reshape(40, 2)
LABELS = np.where(ROWS[:, 0] > 0.5, "yes", "no")


def forest(**parameters: Any) -> vw.RandomTreesClassifier:
    usual: dict[str, Any] = {"schema": SCHEMA, "n_estimators": 2, "max_depth": 2, "random_state": 0}
    return vw.RandomTreesClassifier(**usual | parameters)


# -- a total is never taken from a row that could have been edited --------------------------------------------


def edit(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(statement).rowcount > 0
        connection.commit()


EDITS_OF_TOTALS = {
    "total": 'UPDATE balance SET body = replace(body, \'"epsilon":"1/2"\', \'"epsilon":"0"\')',
    "budget of the total": 'UPDATE balance SET body = replace(body, \'"epsilon":"1"\', \'"epsilon":"9"\')',
    "budget": "UPDATE events SET body = replace(body, '\"1\"', '\"9\"') WHERE number = 1",
    "last event": "DELETE FROM events WHERE number = 3",
    "last entry": "DELETE FROM events WHERE number > 1",
    "loss": "UPDATE events SET body = replace(body, '\"1/2\"', '\"0\"') WHERE number = 2",
    "cancelled": "UPDATE events SET body = replace(body, 'committed', 'cancelled') WHERE number = 3",
    "no total": "DELETE FROM balance",
}
USES: dict[str, Callable[[SQLiteLedger], object]] = {
    "reserve": lambda ledger: spend(ledger, pure_loss(0.9)),
    "small reserve": lambda ledger: spend(ledger, pure_loss(0.1)),
    "spent": lambda ledger: ledger.spent,
    "remaining": lambda ledger: ledger.remaining,
    "can_afford": lambda ledger: ledger.can_afford(pure_loss(0.1)),
    "verify": lambda ledger: ledger.verify(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", EDITS_OF_TOTALS)
def test_what_verify_rejects_is_not_relied_on(name: str, use: str, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    spend(SQLiteLedger(path, 1), pure_loss(0.5)).commit()
    edit(path, EDITS_OF_TOTALS[name])
    with pytest.raises(LedgerError, match=r"x\.db (was altered|is damaged)"):
        USES[use](SQLiteLedger(path))


@pytest.mark.parametrize("name", EDITS_OF_TOTALS)
def test_an_open_ledger_is_not_fooled_by_edits_either(name: str, tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    spend(ledger, pure_loss(0.5)).commit()
    assert ledger.spent == pure_loss(0.5)
    edit(ledger.path, EDITS_OF_TOTALS[name])
    with pytest.raises(LedgerError):
        spend(ledger, pure_loss(0.9))


def test_a_spend_that_could_not_be_written_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    with monkeypatch.context() as patch:
        patch.setattr(
            hash_chain, "store_balance", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("disk full"))
        )
        with rejects(LedgerError, raised_in="ChainedLedger._translate_errors"):
            spend(ledger, pure_loss(1))
    assert ledger.spent == Loss.zero()
    spend(ledger, pure_loss(1)).commit()
    ledger.verify()


# -- releases without a guarantee ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")
@pytest.mark.parametrize("cause", ["inferred", "seeded", "no noise"])
def test_a_budget_refuses_what_is_not_private(cause: str) -> None:
    reason = {"inferred": "the schema was inferred", "seeded": "a seeded test stream", "no noise": "no noise was added"}
    ledger = MemoryLedger(10)

    def fit(ledger: Ledger) -> None:
        if cause == "seeded":
            with entropy.seeded_for_tests(1):
                forest(ledger=ledger).fit(ROWS, LABELS)
        else:
            more = {"schema": "infer"} if cause == "inferred" else {"epsilon": math.inf}
            forest(ledger=ledger, **more).fit(ROWS, LABELS)

    with pytest.raises(NotPrivateError, match=rf"NOT PRIVATE: .*{reason[cause]}.*Hint: .*ledger without a budget"):
        fit(ledger)
    assert ledger.spent == Loss.zero()
    assert ledger.entries() == []
    free = MemoryLedger()
    forest(ledger=free).fit(ROWS, LABELS)
    assert free.spent == pure_loss(1)
    fit(free)
    assert free.spent == Loss.unbounded()
    assert free.unbounded_by is not None
    assert free.unbounded_by.id == 4
    assert f"The total is unbounded because of entry 4: {free.unbounded_by.not_private}" in str(free)
    free.verify()


def test_a_cancelled_release_without_a_guarantee_bounds_the_total_again() -> None:
    ledger = MemoryLedger()
    spend(ledger, pure_loss(1))
    spend(ledger, pure_loss(1), not_private="seeded").cancel()
    assert (ledger.spent, ledger.unbounded_by) == (pure_loss(1), None)


# -- whom it protects, and of which table an entry is -----------------------------------------------------------------


def test_a_ledger_knows_whom_it_protects(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    ledger = SQLiteLedger(path, 1, population="patients of clinic X")
    assert (
        ledger.population
        == SQLiteLedger(path).population
        == SQLiteLedger(path, population="patients of clinic X").population
    )
    assert str(ledger).startswith("ledger x.db of patients of clinic X: spent epsilon=0, budget epsilon=1")
    with rejects(LedgerError, raised_in="ChainedLedger._check_settings"):
        SQLiteLedger(path, population="pupils")
    assert MemoryLedger(1, population="pupils").population == "pupils"
    for wrong in ("", "  ", "x" * 2000, 3):
        with rejects(LedgerError, raised_in="require_line"):
            SQLiteLedger(tmp_path / "y.db", population=wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "y.db").exists()


def test_an_edit_of_whom_it_protects_is_found(tmp_path: Path) -> None:
    SQLiteLedger(tmp_path / "x.db", 1, population="patients of clinic X")
    edit(tmp_path / "x.db", "UPDATE events SET body = replace(body, 'clinic X', 'clinic Y')")
    with rejects(LedgerError, raised_in="HashChain._apply_event"):
        _ = SQLiteLedger(tmp_path / "x.db").population


def test_entries_record_table_and_schema_and_are_shown_by_table(tmp_path: Path) -> None:
    ledger = MemoryLedger(9)
    header = [*SCHEMA.feature_names, SCHEMA.target.name]
    table = tmp_path / "rows.csv"
    table.write_text(
        "\n".join([",".join(header), *(f"{a},{b},{label}" for (a, b), label in zip(ROWS, LABELS, strict=True))])
    )
    forest(ledger=ledger).fit(str(table))
    forest(ledger=ledger).fit(ROWS, LABELS)
    wider = vw.Schema.numeric((0, 2), classes=["no", "yes"], n_features=2)
    forest(schema=wider, ledger=ledger).fit(str(table))
    entries = ledger.entries()
    assert [entry.table for entry in entries] == [str(table), "numpy ndarray in memory", str(table)]
    assert [entry.schema for entry in entries] == [SCHEMA.fingerprint(), SCHEMA.fingerprint(), wider.fingerprint()]
    text = str(ledger)
    assert "\nrows.csv: epsilon=2" in text  # without the folders of its path
    assert "numpy ndarray in memory: epsilon=1" in text
    assert "same people, so their losses add up" in text
    assert ledger.spent.epsilon == 3


# -- what a crash left -------------------------------------------------------------------------------------------------


def test_a_custodian_settles_what_a_crash_left_as_spent() -> None:
    ledger = MemoryLedger(1)
    left = spend(ledger, pure_loss(0.5))
    assert "reserved: charged before noise was drawn" in str(ledger)
    ledger.resolve(left.id, "power failure")
    (entry,) = ledger.entries()
    assert (entry.state, entry.resolution, ledger.spent) == ("resolved", "power failure", pure_loss(0.5))
    assert "resolved by a custodian: power failure" in str(ledger)
    assert "reserved: charged" not in str(ledger)
    head = ledger.verify()
    left.commit()  # whoever was late finds it settled as they would have
    assert ledger.verify() == head
    with rejects(LedgerError, raised_in="ChainedLedger.settle"):
        left.cancel()
    with rejects(LedgerError, raised_in="ChainedLedger.settle"):
        ledger.resolve(left.id, "again")
    done = spend(ledger, pure_loss(0.1))
    done.commit()
    for wrong in (done.id, 1, 99):
        with rejects(LedgerError, raised_in="ChainedLedger.settle"):
            ledger.resolve(wrong, "reason")
    for reason in ("", " ", None):
        with rejects(LedgerError, raised_in="require_line"):
            ledger.resolve(left.id, reason)  # type: ignore[arg-type]


# -- files of version 0.1.0 --------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(FILES / "ledger-0.1.0.db", tmp_path / "old.db"))


def test_a_ledger_of_an_earlier_version_goes_on(old: Path) -> None:
    ledger = SQLiteLedger(old)
    assert (ledger.budget, ledger.population) == (Loss(Fraction(3)), None)
    assert [(entry.state, entry.table, entry.schema, entry.purpose) for entry in ledger.entries()] == [
        ("committed", "", "", RELEASE),
        ("reserved", "", "", RELEASE),
    ]
    assert ledger.spent.epsilon == Fraction(3, 4)
    assert len(ledger.verify()) == 64
    ledger = SQLiteLedger(old, 3, population="owners of cars")
    ledger.resolve(ledger.entries()[1].id, "the machine was switched off")
    spend(ledger, pure_loss(2.25), table="cars.csv", schema="ab").commit()
    with pytest.raises(BudgetExceededError):
        spend(ledger, pure_loss(0.1))
    again = SQLiteLedger(old)
    assert again.population == "owners of cars"
    assert again.spent.epsilon == 3
    assert [entry.table for entry in again.entries()] == ["", "", "cars.csv"]
    assert "table not recorded: epsilon=0.75" in str(again)
    again.verify()


def test_an_earlier_ledger_that_counted_what_is_not_private_spends_no_more(tmp_path: Path) -> None:
    path = Path(shutil.copy(FILES / "ledger-0.1.0-not-private.db", tmp_path / "old.db"))
    ledger = SQLiteLedger(path)
    ledger.verify()  # nobody altered it
    assert ledger.spent == Loss.unbounded()
    assert ledger.remaining == Loss.zero()
    with rejects(BudgetExceededError, raised_in="ChainedLedger._reserve_loss"):
        spend(ledger, pure_loss(0.1))
    assert "because of entry 4" in str(ledger)


def test_an_edited_file_of_an_earlier_version_is_found(old: Path) -> None:
    edit(old, 'UPDATE balance SET body = replace(body, \'"epsilon":"3/4"\', \'"epsilon":"0"\')')
    with rejects(LedgerError, raised_in="HashChain.read_new_events"):
        spend(SQLiteLedger(old), pure_loss(0.1))


# -- keys and texts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [({"what": "x", "key": "a] [b"}, "b"), ({"what": "x [b]"}, "b"), ({"what": "x [b]", "key": "a"}, "b")],
)
def test_a_spend_is_not_taken_for_one_of_another_key(first: dict[str, str], second: str) -> None:
    """Keys stood at the end of the text: one that ended like another was not charged, and a second release was free."""
    ledger = MemoryLedger(epsilon=1)
    facts = {"neighbours": ONE_ROW, "plan": "1f3a"}
    ledger.reserve(pure_loss("0.5"), **first, **facts).commit()  # type: ignore[arg-type]
    assert ledger.find(second) is None
    assert ledger.reserve(pure_loss("0.5"), what="y", key=second, **facts).is_new  # type: ignore[arg-type]
    assert ledger.spent.epsilon == 1
    assert not ledger.reserve(pure_loss("0.5"), what="y", key=second, **facts).is_new  # type: ignore[arg-type]
    assert ledger.find("") is None


@pytest.mark.parametrize("name", ["what", "table", "plan", "schema"])
def test_half_of_a_pair_of_code_units_does_not_spoil_the_ledger(name: str, tmp_path: Path) -> None:
    """A schema of such a name had made the ledger unreadable, for everybody and for good."""
    ledger = SQLiteLedger(tmp_path / "spends.db", epsilon=1)
    facts = {"what": "leaf counts", "neighbours": ONE_ROW, "plan": "1f3a", name: "x\ud800"}
    ledger.reserve(pure_loss("0.5"), **facts).commit()  # type: ignore[arg-type]
    spend(ledger, pure_loss("0.25")).cancel("\udc80")
    assert SQLiteLedger(tmp_path / "spends.db", population="people \ud83d").spent == pure_loss("0.5")
    ledger.verify()
    with rejects(LedgerError, raised_in="Ledger.reserve"):  # nothing is put in its place: two keys could become one
        spend(ledger, pure_loss("0.25"), key="\ud800")


def test_a_total_with_an_entry_that_is_not_private_is_unbounded() -> None:
    book = MemoryLedger()
    for reason in (None, "no noise was added"):
        book.reserve(Loss.pure(Fraction(1)), what="w", neighbours="n", plan="p", not_private=reason).commit()
    assert total_loss(book.entries()[:1]) == Loss.pure(Fraction(1))
    assert not total_loss(book.entries()).is_bounded
