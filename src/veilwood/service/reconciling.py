# SPDX-License-Identifier: Apache-2.0
"""What was released, set against a ledger of which an older copy was put back: what it has forgotten is charged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from veilwood.bounded import read_json
from veilwood.errors import BudgetExceededError, LedgerError
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.chain import Entry
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import Plan
from veilwood.service import store
from veilwood.service.spends import Book
from veilwood.service.store import Store

__all__ = ["Issued", "handed_in_since", "issued_by", "reconcile"]

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
