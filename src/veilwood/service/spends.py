# SPDX-License-Identifier: Apache-2.0
"""Budgets of the service: of a data set, of a person, of a year; and spends that a retry does not pay twice.

A spend has a key, which stands in its entry. Nothing of a run is shown before the whole of it is stored; so a run that
died, and is started again under the same key, shows one outcome only, and goes on under the reservation that it has
(proofs/service.md). Beside every ledger its last event is noted in a file, so that an older copy that was put back is
frozen rather than spent from again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from veilwood.atomic_file import write_file
from veilwood.errors import LedgerError
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.chain import Connection
from veilwood.privacy.ledger import SQLiteLedger
from veilwood.privacy.ledger_postgres import PostgresLedger
from veilwood.privacy.ledger_rules import Ledger, Reservation
from veilwood.privacy.loss import Loss
from veilwood.service import store
from veilwood.service.settings import Settings
from veilwood.service.store import Record, Store

__all__ = [
    "RESTORED",
    "Book",
    "KeyedLedger",
    "allowance_book",
    "book_of",
    "dataset_ledger",
    "ledgers_for",
    "remaining",
    "signed_off",
]

RESTORED: Final = "restored"  # noted in place of a hash: no event has it, so the ledger is frozen


@dataclass(frozen=True)
class Book:
    """One ledger of the service, and the note of its last event beside it."""

    ledger: Ledger
    witness: Path

    def check(self) -> None:
        """Refuse a ledger that no longer holds the event that was noted last."""
        if self.is_frozen():
            raise LedgerError(
                f"{self.ledger.name} is frozen: it no longer holds the last event that was noted, as if an older copy "
                "had been put back. Hint: a custodian reconciles it with the certificates issued since."
            )

    def is_frozen(self) -> bool:
        """Whether the ledger lacks the event that was noted last."""
        noted = self._noted()
        return noted is not None and not self.ledger.holds(noted["number"], noted["hash"])

    def note(self, *, reconciled: bool = False) -> None:
        """Note the last event; before anything is computed, so that no spend can be forgotten with its ledger.

        What was noted never goes back, and a frozen ledger is noted only once it is reconciled.
        """
        number, digest = self.ledger.head()
        noted = self._noted()
        if noted is not None and not reconciled:
            self.check()
            if noted["number"] >= number:
                return
        write_file(self.witness, json.dumps({"number": number, "hash": digest}).encode())

    def last_noted(self) -> int:
        """The number of the last event that was noted; 0 where none was, or where the note came back with the copy."""
        noted = self._noted()
        return 0 if noted is None or noted["hash"] == RESTORED else int(noted["number"])

    def _noted(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self.witness.read_text())
        except FileNotFoundError:
            return None
        return found


def book_of(settings: Settings, name: str, epsilon: object = None, delta: object = None, of: str | None = None) -> Book:
    """Open a ledger of the service, which is made if it is not there."""
    if settings.database:
        ledger: Ledger = PostgresLedger(f"{settings.database}#{name}", epsilon, delta, of)
    else:
        ledger = SQLiteLedger(settings.ledgers / f"{name}.db", epsilon, delta, of)
    return Book(ledger, settings.ledgers / f"{name}.head.json")


def dataset_ledger(dataset: str) -> str:
    """The name of the ledger of a data set."""
    return f"data_{dataset}"


def ledgers_for(settings: Settings, records: Store, dataset: str, account: str) -> list[Book]:
    """Return every ledger that must grant a spend of this person on this data set, that of the data set first."""
    books = [book_of(settings, dataset_ledger(dataset))]
    for allowance in records.every(store.allowances, dataset=dataset):
        if allowance["account"] in ("", account):
            books.append(allowance_book(settings, allowance))
    return books


def allowance_book(settings: Settings, allowance: Record) -> Book:
    """The ledger of a narrower limit."""
    return book_of(settings, _name_of(allowance), allowance["epsilon"], allowance["delta"])


def _name_of(allowance: Record) -> str:
    """The ledger of an allowance: a new one every period."""
    today = datetime.now(UTC)
    period = {"year": f"{today:%Y}", "month": f"{today:%Y%m}", "": "all"}[allowance["period"]]
    return f"a{allowance['id'][:24]}_{period}"


class KeyedLedger(Ledger):
    """All of these ledgers, or none: a spend that each of them must grant, known by its key.

    It shows itself as the first, the one of the data set.
    """

    def __init__(self, books: Sequence[Book], key: str) -> None:
        self._books, self._key = list(books), key
        self.name, self._chain = books[0].ledger.name, books[0].ledger._chain
        self._entries: list[tuple[Ledger, int]] = []
        self._made: list[tuple[Ledger, int]] = []

    def reserve(self, loss: Loss, *, what: str, **facts: Any) -> Reservation:
        """Reserve in every ledger, or in none; what was reserved under this key before is taken up again."""
        self._entries, self._made = [], []
        try:
            for book in self._books:
                book.check()
                reserved = book.ledger.reserve(loss, what=what, **facts, key=self._key)
                self._entries.append((book.ledger, reserved.id))
                if reserved.is_new:
                    self._made.append((book.ledger, reserved.id))
                book.note()
        except LedgerError:
            for ledger, entry in self._made:
                ledger._settle(entry, "cancelled", "another limit does not allow it")
            self._entries = []
            raise
        return Reservation(self, self._entries[0][1])

    @property
    def was_granted(self) -> bool:
        """Whether this try has its reservations, so that it may have drawn noise."""
        return bool(self._entries)

    def has_spent(self) -> bool:
        """Whether something stands in the ledgers under this key."""
        return any(book.ledger.find(self._key) is not None for book in self._books)

    def check_affordable(self, loss: Loss) -> None:
        """Refuse what one of the ledgers has no room for."""
        for book in self._books:
            if book.ledger.find(self._key) is None:
                book.ledger.check_affordable(loss)

    def _settle(
        self, entry: int, state: Literal["committed", "cancelled", "resolved"], reason: str | None = None
    ) -> None:
        """Settle in every ledger. A charge that another try has cancelled cannot be committed: nothing is shown then.

        What an earlier try had reserved is never given back, since that try may have drawn noise.
        """
        for ledger, number in self._entries:
            is_spent = state != "cancelled" or (ledger, number) not in self._made
            try:
                if state == "cancelled" and is_spent:
                    ledger._settle(number, "resolved", reason or "refused after an earlier try")
                else:
                    ledger._settle(number, state, reason)
            except LedgerError:
                known = next(e for e in ledger.entries() if e.id == number)
                if known.state in ("committed", "resolved") or (known.state == "cancelled" and not is_spent):
                    continue  # another try was faster, and has said the same or more
                raise

    def _transaction(self, write: bool = False) -> AbstractContextManager[Connection]:
        return self._books[0].ledger._transaction(write)

    def _is_whole(self, connection: Connection) -> bool:
        return self._books[0].ledger._is_whole(connection)


def remaining(books: Sequence[Book]) -> Loss | None:
    """Return the least that any of the ledgers has left; None where none has a limit."""
    left = [rest for book in books if (rest := book.ledger.remaining) is not None]
    return min(left, key=lambda loss: loss.epsilon or 0) if left else None


def signed_off(statement: PrivacyStatement, book: Book) -> dict[str, Any]:
    """The certificate as it is issued: with the hash of the event that charged it, the head of the chain by then.

    That event is written before a row is read, so its hash tells nothing of rows. A ledger that does not hold it has
    forgotten the release.
    """
    return {**statement.to_dict(), "ledger_hash": book.ledger.hash_of(statement.ledger_entry)}
