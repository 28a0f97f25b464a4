# SPDX-License-Identifier: Apache-2.0
"""The chain of records: read where it grew, and refused where it breaks."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from veilwood.errors import LedgerError
from veilwood.privacy import hash_chain as chain
from veilwood.privacy.ledger import RECONCILIATION, RELEASE, SECURE_TRAINING, Balance, Purpose
from veilwood.privacy.ledger_stores import SQLiteLedger
from veilwood_testing.ledger_trust_cases import ROW, pure, spend


def test_a_spend_reads_only_what_was_added_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, other = SQLiteLedger(tmp_path / "x.db", 100), SQLiteLedger(tmp_path / "x.db")
    for _ in range(50):
        spend(ledger, pure(0.1)).commit()
    assert ledger.spent == other.spent
    taken: list[int] = []
    take = chain.HashChain._apply_event
    monkeypatch.setattr(chain.HashChain, "_apply_event", lambda self, *row: (taken.append(row[0]), take(self, *row))[1])
    spend(ledger, pure(0.1))
    assert taken == []  # everything before was read already
    spend(other, pure(0.1))
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
        spend(ledger, pure(0.5)).commit()
        with closing(sqlite3.connect(path)) as connection:
            head, balance = ledger.verify(), json.loads(connection.execute("SELECT body FROM balance").fetchone()[0])
            new = chain.append_event(connection, head, event, 2 if event["event"] == "resolved" else None)[1]
            connection.execute("UPDATE balance SET body = ?", (json.dumps(balance | {"head": new}),))
            connection.commit()
        with pytest.raises(LedgerError, match=r"altered|damaged"):
            _ = SQLiteLedger(path).spent


def test_keys_of_older_records_are_known_where_they_stand(tmp_path: Path) -> None:
    """Versions before had a key at the end of the text: a retry of such a spend is not charged twice."""
    ledger = SQLiteLedger(tmp_path / "spends.db", epsilon=1)
    event = {"event": "reserved", "loss": {"epsilon": "1/2", "delta": "0", "rho": "1/8"}, "not_private": None}
    event |= {"what": "leaf counts [59ab]", "neighbours": ROW, "plan": "1f3a", "table": "", "schema": ""}
    with ledger._transaction(write=True) as connection:
        before = ledger._chain.read_new_events(connection)
        _, head = chain.append_event(connection, before.head, event)
        chain.store_balance(connection, Balance(before.budget, pure("1/2"), ROW, head))
    again = SQLiteLedger(tmp_path / "spends.db")
    assert [entry.key for entry in again.entries()] == ["59ab"]
    assert not spend(again, pure("0.5"), key="59ab").is_new
    assert spend(again, pure("0.5"), key="9ab").is_new
    again.verify()


def test_entries_are_found_by_their_purpose(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "spends.db")
    training = Purpose(SECURE_TRAINING, "scale", "0123456789ab")
    for purpose in (RELEASE, training, Purpose(SECURE_TRAINING, "scale", "ba9876543210"), Purpose(RECONCILIATION)):
        spend(ledger, pure("0.5"), purpose=purpose).commit()
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
    event |= {"what": what, "neighbours": ROW, "plan": "1f3a", "table": "", "schema": "", "key": ""}
    with ledger._transaction(write=True) as connection:
        before = ledger._chain.read_new_events(connection)
        _, head = chain.append_event(connection, before.head, event)
        chain.store_balance(connection, Balance(before.budget, pure("1/2"), ROW, head))
    assert [entry.purpose for entry in SQLiteLedger(tmp_path / "spends.db").entries()] == [purpose]
    spend(ledger, pure("0.5"), purpose=RELEASE)
    assert ledger.entries()[-1].purpose == RELEASE  # a record that has a purpose is not read by its text


@pytest.mark.parametrize("purpose", [7, {"kind": 7}, {"kind": "release", "more": ""}])
def test_a_purpose_that_is_not_text_is_damage(tmp_path: Path, purpose: object) -> None:
    ledger = SQLiteLedger(tmp_path / "spends.db")
    event: dict[str, Any] = {"event": "reserved", "loss": {"epsilon": "1/2", "delta": "0", "rho": "1/8"}}
    event |= {"what": "x", "neighbours": ROW, "plan": "1f3a", "table": "", "schema": "", "key": "", "purpose": purpose}
    event["not_private"] = None
    with ledger._transaction(write=True) as connection:
        before = ledger._chain.read_new_events(connection)
        _, head = chain.append_event(connection, before.head, event)
        chain.store_balance(connection, Balance(before.budget, pure("1/2"), ROW, head))
    with pytest.raises(LedgerError, match="is damaged"):
        SQLiteLedger(tmp_path / "spends.db").entries()
