# SPDX-License-Identifier: Apache-2.0
"""Budgets of the service: of a data set, of a person, of a year; and spends that a retry does not pay twice.

A spend has a key, which stands in its entry. Nothing of a run is shown before the whole of it is stored; so a run that
died, and is started again under the same key, shows one outcome only, and goes on under the reservation that it has
(proofs/service.md). Beside every ledger its last event is noted in a file, so that an older copy that was put back is
frozen rather than spent from again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from veilwood.errors import BudgetExceededError, LedgerError
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.ledger import Connection, Entry, Ledger, Reservation
from veilwood.privacy.ledger_stores import PostgresLedger, SQLiteLedger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import Plan
from veilwood.safe_io import read_json, write_file
from veilwood_service import store
from veilwood_service.settings import Settings
from veilwood_service.store import Record, Store

__all__ = [
    "RESTORED",
    "Book",
    "Issued",
    "KeyedLedger",
    "allowance_book",
    "book_of",
    "dataset_ledger",
    "handed_in_since",
    "issued_by",
    "ledgers_for",
    "reconcile",
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


_MARK = "reconciled: "


@dataclass(frozen=True)
class Issued:
    """A release that somebody may hold: the hash of its plan, what it cost, and whom it protects.

    Its certificate names the event that charged it, by number and hash; those of older versions do not.
    """

    plan: str
    loss: Loss
    neighbours: str
    entry: int = 0
    digest: str = ""


def issued_by(records: Store, dataset: str) -> list[Issued]:
    """Every release that was made from a data set, as far as the service has it."""
    found = []
    for model in records.every(store.models, dataset=dataset):
        plan = records.find(store.plans, id=model["plan"])
        if plan is not None and plan["body"] is not None and model["certificate"] is not None:
            read, facts = Plan.from_dict(read_json(plan["body"])), json.loads(model["certificate"])
            found.append(Issued(read.fingerprint(), read.loss, str(read.neighbours), *_event(facts)))
        for answer in records.every(store.answers, model=model["id"]):
            if answer["certificate"] is not None and (facts := json.loads(answer["certificate"])) is not None:
                loss = requested_loss(answer["epsilon"], facts["delta"])
                found.append(Issued(facts["plan_hash"], loss, _neighbours(facts), *_event(facts)))
    return found


def unknown_loss(epsilon: object, delta: object) -> Loss:
    """Return the loss of releases of which only epsilon and delta are known, one or several that add up to them.

    Their rho may be that of pure epsilon, which is more than delta would allow: of several, squares add up to less.
    """
    loss = requested_loss(epsilon, delta)
    return Loss.pure_or_zcdp(loss.epsilon, loss.delta) if loss.delta > 0 and loss.epsilon is not None else loss


def handed_in_since(book: Book, known: Sequence[Issued], certificates: Sequence[dict[str, Any]]) -> list[Issued]:
    """Return the releases that people hold certificates of and the service does not know."""
    by_event = {(release.entry, release.digest) for release in known if release.digest}
    by_plan = Counter(release.plan for release in known)
    found, losses = [], {entry.plan: entry.loss for entry in book.ledger.entries()}
    for facts in certificates:
        event = _event(facts)
        certificate = PrivacyStatement.from_dict({n: v for n, v in facts.items() if n != "ledger_hash"})
        plan = certificate.plan_hash
        if event in by_event:
            continue
        if not event[1] and by_plan[plan] > 0:
            by_plan[plan] -= 1
            continue
        if certificate.epsilon is None:
            raise LedgerError("a certificate without a guarantee cannot be charged.")
        loss = losses.get(plan) or unknown_loss(certificate.epsilon, certificate.delta or 0)
        found.append(Issued(plan, loss, _neighbours(certificate.to_dict()), *event))
        by_event |= {event} if event[1] else set()
    return found


def reconcile(book: Book, issued: Sequence[Issued], reason: str, missing: Loss | None = None) -> list[int]:
    """Charge every release that the ledger does not hold, note the last event, and so thaw the ledger.

    Parameters
    ----------
    book : Book
        A ledger that is frozen.
    issued : list of Issued
        All releases that were made from this data set.
    reason : str
        Why the older copy is there, in the custodian's words; recorded with each entry.
    missing : Loss, optional
        What all releases may have cost that left a gap in the numbers of events, and that nobody has a certificate of.
        Without it a gap is refused.
    """
    forgotten = _forgotten(book, issued)
    gap = _gap(book, forgotten)
    if gap > 0 and missing is None:
        raise LedgerError(
            f"{gap} events of {book.ledger.name} after this copy are not accounted for. Hint: hand in the certificates "
            "of all releases since, or say what the missing ones may have cost (missing_epsilon)."
        )
    for entry in book.ledger.entries():
        if entry.state == "reserved":  # of a run that will not go on: spent, and set off against nothing
            book.ledger.resolve(entry.id, _MARK + reason)
    charged = [_charge(book, release, _MARK + reason) for release in forgotten]
    if gap > 0 and missing is not None:
        of = next((e.neighbours for e in book.ledger.entries() if e.counts), "one row, added or removed")
        charged.append(_charge(book, Issued("", missing, of), f"{_MARK}not accounted for: {reason}"))
    book.note(reconciled=True)
    return charged


def _forgotten(book: Book, issued: Sequence[Issued]) -> list[Issued]:
    """Return the releases that the ledger does not hold: by their events, and without those by plan and loss.

    What an earlier reconciliation has charged counts for one release of that plan and loss.
    """
    settled = {entry.id: entry for entry in book.ledger.entries() if entry.state in ("committed", "resolved")}
    known = {release for release in issued if release.digest and book.ledger.holds(release.entry, release.digest)}
    for release in known:
        settled.pop(release.entry, None)
    forgotten = []
    for release in issued:
        if release in known:
            continue
        found = next((entry.id for entry in settled.values() if _stands_for(entry, release)), None)
        if found is None:
            forgotten.append(release)
        else:
            del settled[found]
    return forgotten


def _stands_for(entry: Entry, release: Issued) -> bool:
    same = (entry.plan, entry.loss) == (release.plan, release.loss)
    return same and (not release.digest or entry.what.startswith(_MARK))


def _gap(book: Book, forgotten: Sequence[Issued]) -> int:
    """Return how many events came after this copy at least that nothing known explains.

    A release makes two events: its charge, and that it was settled; those that were open in the copy make one.
    """
    head = book.ledger.head()[0]
    last = max([head, book.last_noted(), *(release.entry for release in forgotten)])
    settled_later = sum(entry.state == "reserved" for entry in book.ledger.entries())
    return last - head - 2 * len(forgotten) - settled_later


def _charge(book: Book, release: Issued, what: str) -> int:
    try:
        charge = book.ledger.reserve(release.loss, what=what, neighbours=release.neighbours, plan=release.plan)
    except BudgetExceededError as error:
        raise LedgerError(
            f"{book.ledger.name} has no room for a release that was made already. Hint: put the newest copy back."
        ) from error
    charge.commit()
    return charge.id


def _event(facts: dict[str, Any]) -> tuple[int, str]:
    number, digest = facts.get("ledger_entry"), facts.get("ledger_hash")
    known = isinstance(number, int) and isinstance(digest, str) and 0 < number < 2**53
    return (number, digest) if known and isinstance(number, int) and isinstance(digest, str) else (0, "")


def _neighbours(facts: dict[str, Any]) -> str:
    verb = "added or removed" if facts["adjacency"] == "add-remove" else "replaced"
    return f"{facts['unit']}, {verb}"
