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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from veilwood.errors import BudgetExceededError, LedgerError
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.ledger import (
    RECONCILIATION,
    Balance,
    Entry,
    FinalState,
    Ledger,
    Purpose,
    Reservation,
)
from veilwood.privacy.ledger_stores import PostgresLedger, SQLiteLedger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import Plan
from veilwood.safe_io import read_json, write_file
from veilwood_service import store
from veilwood_service.settings import Settings
from veilwood_service.store import DatabaseRow, Store

__all__ = [
    "RESTORED",
    "CompositeLedger",
    "GuardedLedger",
    "IssuedRelease",
    "as_issued",
    "dataset_ledger_name",
    "issued_releases",
    "min_remaining",
    "open_allowance_ledger",
    "open_guarded",
    "open_ledgers_for",
    "reconcile",
    "unrecorded_releases",
]


RESTORED: Final = "restored"  # noted in place of a hash: no event has it, so the ledger is frozen


@dataclass(frozen=True)
class GuardedLedger:
    """One ledger of the service, and the note of its last event beside it."""

    ledger: Ledger
    checkpoint: Path

    def require_unfrozen(self) -> None:
        """Refuse a ledger that no longer holds the event that was noted last."""
        if self.is_frozen():
            raise LedgerError(
                f"{self.ledger.name} is frozen: it no longer holds the last event that was noted, as if an older copy "
                "had been put back. Hint: a custodian reconciles it with the certificates issued since."
            )

    def is_frozen(self) -> bool:
        """Whether the ledger lacks the event that was noted last."""
        noted = self._read_checkpoint()
        return noted is not None and not self.ledger.holds(noted["number"], noted["hash"])

    def write_checkpoint(self, *, reconciled: bool = False) -> None:
        """Note the last event; before anything is computed, so that no spend can be forgotten with its ledger.

        What was noted never goes back, and a frozen ledger is noted only once it is reconciled.
        """
        number, digest = self.ledger.head()
        noted = self._read_checkpoint()
        if noted is not None and not reconciled:
            self.require_unfrozen()
            if noted["number"] >= number:
                return
        write_file(self.checkpoint, json.dumps({"number": number, "hash": digest}).encode())

    def checkpoint_number(self) -> int:
        """The number of the last event that was noted; 0 where none was, or where the note came back with the copy."""
        noted = self._read_checkpoint()
        return 0 if noted is None or noted["hash"] == RESTORED else int(noted["number"])

    def _read_checkpoint(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self.checkpoint.read_text())
        except FileNotFoundError:
            return None
        return found


def open_guarded(
    settings: Settings, name: str, epsilon: object = None, delta: object = None, population: str | None = None
) -> GuardedLedger:
    """Open a ledger of the service, which is made if it is not there."""
    if settings.database:
        ledger: Ledger = PostgresLedger(f"{settings.database}#{name}", epsilon, delta, population)
    else:
        ledger = SQLiteLedger(settings.ledgers_folder / f"{name}.db", epsilon, delta, population)
    return GuardedLedger(ledger, settings.ledgers_folder / f"{name}.head.json")


def dataset_ledger_name(dataset: str) -> str:
    """The name of the ledger of a data set."""
    return f"data_{dataset}"


def open_ledgers_for(settings: Settings, database: Store, dataset: str, account: str) -> list[GuardedLedger]:
    """Return every ledger that must grant a spend of this person on this data set, that of the data set first."""
    books = [open_guarded(settings, dataset_ledger_name(dataset))]
    for allowance in database.find_all(store.allowances, dataset=dataset):
        if allowance["account"] in ("", account):
            books.append(open_allowance_ledger(settings, allowance))
    return books


def open_allowance_ledger(settings: Settings, allowance: DatabaseRow) -> GuardedLedger:
    """The ledger of a narrower limit."""
    return open_guarded(settings, _allowance_ledger_name(allowance), allowance["epsilon"], allowance["delta"])


def _allowance_ledger_name(allowance: DatabaseRow) -> str:
    """The ledger of an allowance: a new one every period."""
    today = datetime.now(UTC)
    period = {"year": f"{today:%Y}", "month": f"{today:%Y%m}", "": "all"}[allowance["period"]]
    return f"a{allowance['id'][:24]}_{period}"


class CompositeLedger(Ledger):
    """All of these ledgers, or none: a spend that each of them must grant, known by its key.

    It shows itself as the first, the one of the data set.
    """

    def __init__(self, ledgers: Sequence[GuardedLedger], key: str) -> None:
        self._ledgers, self._key = list(ledgers), key
        self.name, self.durability = ledgers[0].ledger.name, ledgers[0].ledger.durability
        self._entries: list[tuple[Ledger, int]] = []
        self._new_entries: list[tuple[Ledger, int]] = []

    def reserve(self, loss: Loss, *, what: str, **facts: Any) -> Reservation:
        """Reserve in every ledger, or in none; what was reserved under this key before is taken up again."""
        self._entries, self._new_entries = [], []
        try:
            for book in self._ledgers:
                book.require_unfrozen()
                reserved = book.ledger.reserve(loss, what=what, **facts, key=self._key)
                self._entries.append((book.ledger, reserved.id))
                if reserved.is_new:
                    self._new_entries.append((book.ledger, reserved.id))
                book.write_checkpoint()
        except LedgerError:
            for ledger, entry in self._new_entries:
                ledger.settle(entry, "cancelled", "another limit does not allow it")
            self._entries = []
            raise
        return Reservation(self, self._entries[0][1])

    @property
    def was_granted(self) -> bool:
        """Whether this try has its reservations, so that it may have drawn noise."""
        return bool(self._entries)

    def has_spent(self) -> bool:
        """Whether something stands in the ledgers under this key."""
        return any(book.ledger.find(self._key) is not None for book in self._ledgers)

    def check_affordable(self, loss: Loss) -> None:
        """Refuse what one of the ledgers has no room for."""
        for book in self._ledgers:
            if book.ledger.find(self._key) is None:
                book.ledger.check_affordable(loss)

    def settle(self, entry: int, state: FinalState, reason: str | None = None) -> None:
        """Settle in every ledger. A charge that another try has cancelled cannot be committed: nothing is shown then.

        What an earlier try had reserved is never given back, since that try may have drawn noise.
        """
        for ledger, number in self._entries:
            is_spent = state != "cancelled" or (ledger, number) not in self._new_entries
            try:
                if state == "cancelled" and is_spent:
                    ledger.settle(number, "resolved", reason or "refused after an earlier try")
                else:
                    ledger.settle(number, state, reason)
            except LedgerError:
                known = next(e for e in ledger.entries() if e.id == number)
                if known.state in ("committed", "resolved") or (known.state == "cancelled" and not is_spent):
                    continue  # another try was faster, and has said the same or more
                raise

    def entries(self) -> list[Entry]:
        """Return the entries of the data set's ledger."""
        return self._ledgers[0].ledger.entries()

    def balance(self) -> Balance:
        """Return the totals of the data set's ledger."""
        return self._ledgers[0].ledger.balance()


def min_remaining(ledgers: Sequence[GuardedLedger]) -> Loss | None:
    """Return the least that any of the ledgers has left; None where none has a limit."""
    left = [rest for book in ledgers if (rest := book.ledger.remaining) is not None]
    return min(left, key=lambda loss: loss.epsilon or 0) if left else None


def as_issued(certificate: PrivacyCertificate, guarded: GuardedLedger) -> dict[str, Any]:
    """The certificate as it is issued: with the hash of the event that charged it, the head of the chain by then.

    That event is written before a row is read, so its hash tells nothing of rows. A ledger that does not hold it has
    forgotten the release.
    """
    return {**certificate.to_dict(), "ledger_hash": guarded.ledger.hash_of(certificate.ledger_entry)}


_RECONCILED_PREFIX = "reconciled: "


@dataclass(frozen=True)
class IssuedRelease:
    """A release that somebody may hold: the hash of its plan, what it cost, and whom it protects.

    Its certificate names the event that charged it, by number and hash; those of older versions do not.
    """

    plan: str
    loss: Loss
    neighbours: str
    entry: int = 0
    digest: str = ""


def issued_releases(database: Store, dataset: str) -> list[IssuedRelease]:
    """Every release that was made from a data set, as far as the service has it."""
    found = []
    for model in database.find_all(store.models, dataset=dataset):
        plan = database.find(store.plans, id=model["plan"])
        if plan is not None and plan["body"] is not None and model["certificate"] is not None:
            read, facts = Plan.from_dict(read_json(plan["body"])), json.loads(model["certificate"])
            found.append(IssuedRelease(read.fingerprint(), read.loss, str(read.neighbours), *_ledger_event(facts)))
        for answer in database.find_all(store.answers, model=model["id"]):
            if answer["certificate"] is not None and (facts := json.loads(answer["certificate"])) is not None:
                loss = requested_loss(answer["epsilon"], facts["delta"])
                found.append(
                    IssuedRelease(facts["plan_hash"], loss, _describe_neighbours(facts), *_ledger_event(facts))
                )
    return found


def loss_from_certificate(epsilon: object, delta: object) -> Loss:
    """Return the loss of releases of which only epsilon and delta are known, one or several that add up to them.

    Their rho may be that of pure epsilon, which is more than delta would allow: of several, squares add up to less.
    """
    loss = requested_loss(epsilon, delta)
    return Loss.pure_or_zcdp(loss.epsilon, loss.delta) if loss.delta > 0 and loss.epsilon is not None else loss


def unrecorded_releases(
    guarded: GuardedLedger, known: Sequence[IssuedRelease], certificates: Sequence[dict[str, Any]]
) -> list[IssuedRelease]:
    """Return the releases that people hold certificates of and the service does not know."""
    by_event = {(release.entry, release.digest) for release in known if release.digest}
    by_plan = Counter(release.plan for release in known)
    found, losses = [], {entry.plan: entry.loss for entry in guarded.ledger.entries()}
    for facts in certificates:
        event = _ledger_event(facts)
        certificate = PrivacyCertificate.from_dict({n: v for n, v in facts.items() if n != "ledger_hash"})
        plan = certificate.plan_hash
        if event in by_event:
            continue
        if not event[1] and by_plan[plan] > 0:
            by_plan[plan] -= 1
            continue
        if certificate.epsilon is None:
            raise LedgerError("a certificate without a guarantee cannot be charged.")
        loss = losses.get(plan) or loss_from_certificate(certificate.epsilon, certificate.delta or 0)
        found.append(IssuedRelease(plan, loss, _describe_neighbours(certificate.to_dict()), *event))
        by_event |= {event} if event[1] else set()
    return found


def reconcile(
    guarded: GuardedLedger, issued: Sequence[IssuedRelease], reason: str, missing: Loss | None = None
) -> list[int]:
    """Charge every release that the ledger does not hold, note the last event, and so thaw the ledger.

    Parameters
    ----------
    guarded : Book
        A ledger that is frozen.
    issued : list of Issued
        All releases that were made from this data set.
    reason : str
        Why the older copy is there, in the custodian's words; recorded with each entry.
    missing : Loss, optional
        What all releases may have cost that left a gap in the numbers of events, and that nobody has a certificate of.
        Without it a gap is refused.
    """
    forgotten = _uncharged_releases(guarded, issued)
    gap = _count_missing_events(guarded, forgotten)
    if gap > 0 and missing is None:
        raise LedgerError(
            f"{gap} events of {guarded.ledger.name} after this copy are not accounted for. Hint: hand in the "
            "certificates "
            "of all releases since, or say what the missing ones may have cost (missing_epsilon)."
        )
    for entry in guarded.ledger.entries():
        if entry.state == "reserved":  # of a run that will not go on: spent, and set off against nothing
            guarded.ledger.resolve(entry.id, _RECONCILED_PREFIX + reason)
    charged = [_charge_release(guarded, release, _RECONCILED_PREFIX + reason) for release in forgotten]
    if gap > 0 and missing is not None:
        of = next((e.neighbours for e in guarded.ledger.entries() if e.is_counted), "one row, added or removed")
        charged.append(
            _charge_release(guarded, IssuedRelease("", missing, of), f"{_RECONCILED_PREFIX}not accounted for: {reason}")
        )
    guarded.write_checkpoint(reconciled=True)
    return charged


def _uncharged_releases(guarded: GuardedLedger, issued: Sequence[IssuedRelease]) -> list[IssuedRelease]:
    """Return the releases that the ledger does not hold: by their events, and without those by plan and loss.

    What an earlier reconciliation has charged counts for one release of that plan and loss.
    """
    settled = {entry.id: entry for entry in guarded.ledger.entries() if entry.state in ("committed", "resolved")}
    known = {release for release in issued if release.digest and guarded.ledger.holds(release.entry, release.digest)}
    for release in known:
        settled.pop(release.entry, None)
    forgotten = []
    for release in issued:
        if release in known:
            continue
        found = next((entry.id for entry in settled.values() if _entry_matches(entry, release)), None)
        if found is None:
            forgotten.append(release)
        else:
            del settled[found]
    return forgotten


def _entry_matches(entry: Entry, release: IssuedRelease) -> bool:
    same = (entry.plan, entry.loss) == (release.plan, release.loss)
    return same and (not release.digest or entry.purpose.kind == RECONCILIATION)


def _count_missing_events(guarded: GuardedLedger, uncharged: Sequence[IssuedRelease]) -> int:
    """Return how many events came after this copy at least that nothing known explains.

    A release makes two events: its charge, and that it was settled; those that were open in the copy make one.
    """
    head = guarded.ledger.head()[0]
    last = max([head, guarded.checkpoint_number(), *(release.entry for release in uncharged)])
    settled_later = sum(entry.state == "reserved" for entry in guarded.ledger.entries())
    return last - head - 2 * len(uncharged) - settled_later


def _charge_release(guarded: GuardedLedger, release: IssuedRelease, what: str) -> int:
    try:
        charge = guarded.ledger.reserve(
            release.loss,
            what=what,
            neighbours=release.neighbours,
            plan=release.plan,
            purpose=Purpose(RECONCILIATION),
        )
    except BudgetExceededError as error:
        raise LedgerError(
            f"{guarded.ledger.name} has no room for a release that was made already. Hint: put the newest copy back."
        ) from error
    charge.commit()
    return charge.id


def _ledger_event(facts: dict[str, Any]) -> tuple[int, str]:
    number, digest = facts.get("ledger_entry"), facts.get("ledger_hash")
    known = isinstance(number, int) and isinstance(digest, str) and 0 < number < 2**53
    return (number, digest) if known and isinstance(number, int) and isinstance(digest, str) else (0, "")


def _describe_neighbours(facts: dict[str, Any]) -> str:
    verb = "added or removed" if facts["adjacency"] == "add-remove" else "replaced"
    return f"{facts['unit']}, {verb}"
