# SPDX-License-Identifier: Apache-2.0
"""Ledgers of the service: budgets per data set, account and period, charges per run, checkpoints and reconciliation.

Every charge has a key, which its ledger entry records. No part of a run is published before all of it is stored. A run
that crashed and is repeated under its key therefore continues under its reservation and publishes one outcome
(proofs/service.md). The last event of every ledger is recorded in a checkpoint file. A ledger that was restored from an
older copy lacks that event, and is frozen instead of being spent from again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
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
    Limit,
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

RESTORED: Final = "restored"  # replaces the hash in a checkpoint: no event has this hash, so the ledger is frozen


@dataclass(frozen=True)
class GuardedLedger:
    """A ledger of the service with the checkpoint of its last event.

    Attributes
    ----------
    ledger : Ledger
        The ledger, in a file or in PostgreSQL.
    checkpoint : Path
        File with the number and the hash of the last event.
    """

    ledger: Ledger
    checkpoint: Path

    def require_unfrozen(self) -> None:
        """Raise LedgerError if the ledger lacks the event of its checkpoint."""
        if self.is_frozen():
            raise LedgerError(
                f"{self.ledger.name} is frozen: it lacks the event of its checkpoint, as if an older copy had been "
                "restored. Hint: ask a custodian to reconcile it with the certificates issued since."
            )

    def is_frozen(self) -> bool:
        """Return True if the ledger lacks the event of its checkpoint."""
        checkpoint = self._read_checkpoint()
        return checkpoint is not None and not self.ledger.holds(checkpoint["number"], checkpoint["hash"])

    def write_checkpoint(self, *, reconciled: bool = False) -> None:
        """Record the last event of the ledger. Called before anything is computed, so that a charge cannot be lost.

        A checkpoint never moves back to an earlier event. A frozen ledger gets a new one only after reconciliation.
        """
        number, digest = self.ledger.head()
        checkpoint = self._read_checkpoint()
        if checkpoint is not None and not reconciled:
            self.require_unfrozen()
            if checkpoint["number"] >= number:
                return
        write_file(self.checkpoint, json.dumps({"number": number, "hash": digest}).encode())

    def checkpoint_number(self) -> int:
        """Return the number of the event in the checkpoint; 0 without one, or if it was restored with the ledger."""
        checkpoint = self._read_checkpoint()
        return 0 if checkpoint is None or checkpoint["hash"] == RESTORED else int(checkpoint["number"])

    def _read_checkpoint(self) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(self.checkpoint.read_text())
        except FileNotFoundError:
            return None
        return content


def open_guarded(
    settings: Settings, name: str, epsilon: object = None, delta: object = None, population: str | None = None
) -> GuardedLedger:
    """Open a ledger of the service, and create it if it is missing."""
    if settings.database:
        ledger: Ledger = PostgresLedger(f"{settings.database}#{name}", epsilon, delta, population)
    else:
        ledger = SQLiteLedger(settings.ledgers_folder / f"{name}.db", epsilon, delta, population)
    return GuardedLedger(ledger, settings.ledgers_folder / f"{name}.head.json")


def dataset_ledger_name(dataset: str) -> str:
    """Return the name of the ledger of a data set."""
    return f"data_{dataset}"


def open_ledgers_for(settings: Settings, database: Store, dataset: str, account: str) -> list[GuardedLedger]:
    """Return every ledger that must grant a charge of this account on this data set, that of the data set first."""
    ledgers = [open_guarded(settings, dataset_ledger_name(dataset))]
    for allowance in database.find_all(store.allowances, dataset=dataset):
        if allowance["account"] in ("", account):
            ledgers.append(open_allowance_ledger(settings, allowance))
    return ledgers


def open_allowance_ledger(settings: Settings, allowance: DatabaseRow) -> GuardedLedger:
    """Open the ledger of an allowance, for the current period."""
    return open_guarded(settings, _allowance_ledger_name(allowance), allowance["epsilon"], allowance["delta"])


def _allowance_ledger_name(allowance: DatabaseRow) -> str:
    """Return the name of the ledger of an allowance: another one in every period."""
    today = datetime.now(UTC)
    period = {"year": f"{today:%Y}", "month": f"{today:%Y%m}", "": "all"}[allowance["period"]]
    return f"a{allowance['id'][:24]}_{period}"


class CompositeLedger(Ledger):
    """Several ledgers that are charged together under one key: in all of them or in none.

    Name and events are those of the first ledger, which belongs to the data set.

    Parameters
    ----------
    ledgers : sequence of GuardedLedger
        Ledgers that must all grant a charge, that of the data set first.
    key : str
        Key of the run. Its ledger entries record it, so that a repeated run is charged once.
    """

    def __init__(self, ledgers: Sequence[GuardedLedger], key: str) -> None:
        self._ledgers, self._key = list(ledgers), key
        self.name, self.durability = ledgers[0].ledger.name, ledgers[0].ledger.durability
        self._entries: list[tuple[Ledger, int]] = []
        self._new_entries: list[tuple[Ledger, int]] = []  # reserved by this attempt, not by an earlier one

    def _charge(self, loss: Loss, facts: Mapping[str, Any], limits: Sequence[Limit]) -> Reservation:
        """Reserve a loss in every ledger, or in none. Resumes reservations that exist under this key."""
        self._entries, self._new_entries = [], []
        try:
            for guarded in self._ledgers:
                guarded.require_unfrozen()
                reserved = guarded.ledger.reserve(loss, **{**facts, "key": self._key})
                self._entries.append((guarded.ledger, reserved.id))
                if reserved.is_new:
                    self._new_entries.append((guarded.ledger, reserved.id))
                guarded.write_checkpoint()
        except LedgerError:
            for ledger, entry in self._new_entries:
                ledger.settle(entry, "cancelled", "another limit does not allow it")
            self._entries = []
            raise
        return Reservation(self, self._entries[0][1])

    @property
    def was_granted(self) -> bool:
        """Whether this attempt holds its reservations, and so may have drawn noise."""
        return bool(self._entries)

    def has_spent(self) -> bool:
        """Return True if any of the ledgers has an entry under this key."""
        return any(guarded.ledger.find(self._key) is not None for guarded in self._ledgers)

    def check_affordable(self, loss: Loss) -> None:
        """Raise BudgetExceededError if a ledger without an entry under this key cannot grant the loss."""
        for guarded in self._ledgers:
            if guarded.ledger.find(self._key) is None:
                guarded.ledger.check_affordable(loss)

    def settle(self, entry: int, state: FinalState, reason: str | None = None) -> None:
        """Settle the entries in every ledger.

        A charge that another attempt cancelled cannot be committed: LedgerError is raised and nothing is published. A
        reservation of an earlier attempt is never given back, because that attempt may have drawn noise.
        """
        for ledger, number in self._entries:
            is_spent = state != "cancelled" or (ledger, number) not in self._new_entries
            try:
                if state == "cancelled" and is_spent:
                    ledger.settle(number, "resolved", reason or "refused after an earlier attempt")
                else:
                    ledger.settle(number, state, reason)
            except LedgerError:
                entry_now = next(known for known in ledger.entries() if known.id == number)
                if entry_now.state in ("committed", "resolved") or (entry_now.state == "cancelled" and not is_spent):
                    continue  # a concurrent attempt has settled the entry, and charged at least as much
                raise

    def entries(self) -> list[Entry]:
        """Return the entries of the data set's ledger."""
        return self._ledgers[0].ledger.entries()

    def balance(self) -> Balance:
        """Return the totals of the data set's ledger."""
        return self._ledgers[0].ledger.balance()


def min_remaining(ledgers: Sequence[GuardedLedger]) -> Loss | None:
    """Return the smallest remaining budget of the ledgers, by epsilon; None if no ledger has a limit."""
    remaining = [loss for guarded in ledgers if (loss := guarded.ledger.remaining) is not None]
    return min(remaining, key=lambda loss: loss.epsilon or 0) if remaining else None


def as_issued(certificate: PrivacyCertificate, guarded: GuardedLedger) -> dict[str, Any]:
    """Return the payload of a certificate with the hash of the ledger event that charged it.

    That event is written before any row is read, so its hash depends on no row. A ledger without this event has
    forgotten the release.
    """
    return {**certificate.to_dict(), "ledger_hash": guarded.ledger.hash_of(certificate.ledger_entry)}


_RECONCILED_PREFIX = "reconciled: "


@dataclass(frozen=True)
class IssuedRelease:
    """A release of which copies may exist outside the service.

    Attributes
    ----------
    plan : str
        Hash of its plan.
    loss : Loss
        Its privacy loss.
    neighbours : str
        Protected unit and adjacency, as a ledger entry records them.
    entry, digest : int, str
        Number and hash of the event that charged it; 0 and empty in certificates of older versions.
    """

    plan: str
    loss: Loss
    neighbours: str
    entry: int = 0
    digest: str = ""


def issued_releases(database: Store, dataset: str) -> list[IssuedRelease]:
    """Return every release from a data set that the service has a record of."""
    releases = []
    for model in database.find_all(store.models, dataset=dataset):
        plan = database.find(store.plans, id=model["plan"])
        if plan is not None and plan["body"] is not None and model["certificate"] is not None:
            parsed, facts = Plan.from_dict(read_json(plan["body"])), json.loads(model["certificate"])
            event = _ledger_event(facts)
            releases.append(IssuedRelease(parsed.fingerprint(), parsed.loss, str(parsed.neighbours), *event))
        for answer in database.find_all(store.answers, model=model["id"]):
            if answer["certificate"] is not None and (facts := json.loads(answer["certificate"])) is not None:
                loss = requested_loss(answer["epsilon"], facts["delta"])
                neighbours = _describe_neighbours(facts)
                releases.append(IssuedRelease(facts["plan_hash"], loss, neighbours, *_ledger_event(facts)))
    return releases


def loss_from_certificate(epsilon: object, delta: object) -> Loss:
    """Return an upper bound on the loss of releases of which only total epsilon and delta are known.

    With delta > 0, rho is that of pure epsilon, which is larger than the rho that delta would allow. For several
    releases that add up to epsilon, the squares add up to less.
    """
    loss = requested_loss(epsilon, delta)
    return Loss.pure_or_zcdp(loss.epsilon, loss.delta) if loss.delta > 0 and loss.epsilon is not None else loss


def unrecorded_releases(
    guarded: GuardedLedger, known: Sequence[IssuedRelease], certificates: Sequence[dict[str, Any]]
) -> list[IssuedRelease]:
    """Return the releases of the given certificates that the service has no record of."""
    by_event = {(release.entry, release.digest) for release in known if release.digest}
    by_plan = Counter(release.plan for release in known)
    unrecorded, losses = [], {entry.plan: entry.loss for entry in guarded.ledger.entries()}
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
            raise LedgerError("a certificate without a guarantee cannot be charged. Hint: remove it from the list.")
        loss = losses.get(plan) or loss_from_certificate(certificate.epsilon, certificate.delta or 0)
        unrecorded.append(IssuedRelease(plan, loss, _describe_neighbours(certificate.to_dict()), *event))
        by_event |= {event} if event[1] else set()
    return unrecorded


def reconcile(
    guarded: GuardedLedger, issued: Sequence[IssuedRelease], reason: str, missing: Loss | None = None
) -> list[int]:
    """Charge every release that the ledger lacks, and unfreeze the ledger with a new checkpoint.

    Parameters
    ----------
    guarded : GuardedLedger
        A frozen ledger.
    issued : list of IssuedRelease
        All releases from this data set.
    reason : str
        The custodian's explanation of the older copy; recorded with each entry.
    missing : Loss, optional
        Upper bound on the loss of all releases without a certificate, if event numbers have a gap.

    Returns
    -------
    list of int
        Numbers of the new ledger entries.

    Raises
    ------
    LedgerError
        If event numbers have a gap and ``missing`` is not given, or if the budget cannot hold a release.
    """
    uncharged = _uncharged_releases(guarded, issued)
    gap = _count_missing_events(guarded, uncharged)
    if gap > 0 and missing is None:
        raise LedgerError(
            f"{gap} events of {guarded.ledger.name} after this copy are not explained by any certificate. Hint: upload "
            "the certificates of all releases since, or bound the loss of the missing ones with missing_epsilon."
        )
    for entry in guarded.ledger.entries():
        if entry.state == "reserved":  # its run will not continue: spent, and matched with no known release
            guarded.ledger.resolve(entry.id, _RECONCILED_PREFIX + reason)
    charged = [_charge_release(guarded, release, _RECONCILED_PREFIX + reason) for release in uncharged]
    if gap > 0 and missing is not None:
        counted = (entry.neighbours for entry in guarded.ledger.entries() if entry.is_counted)
        release = IssuedRelease("", missing, next(counted, "one row, added or removed"))
        charged.append(_charge_release(guarded, release, f"{_RECONCILED_PREFIX}not accounted for: {reason}"))
    guarded.write_checkpoint(reconciled=True)
    return charged


def _uncharged_releases(guarded: GuardedLedger, issued: Sequence[IssuedRelease]) -> list[IssuedRelease]:
    """Return the releases that the ledger lacks, matched by event, or by plan and loss if they have no event.

    An entry of an earlier reconciliation matches one release of its plan and loss.
    """
    settled = {entry.id: entry for entry in guarded.ledger.entries() if entry.state in ("committed", "resolved")}
    known = {release for release in issued if release.digest and guarded.ledger.holds(release.entry, release.digest)}
    for release in known:
        settled.pop(release.entry, None)
    uncharged = []
    for release in issued:
        if release in known:
            continue
        match = next((entry.id for entry in settled.values() if _entry_matches(entry, release)), None)
        if match is None:
            uncharged.append(release)
        else:
            del settled[match]
    return uncharged


def _entry_matches(entry: Entry, release: IssuedRelease) -> bool:
    same = (entry.plan, entry.loss) == (release.plan, release.loss)
    return same and (not release.digest or entry.purpose.kind == RECONCILIATION)


def _count_missing_events(guarded: GuardedLedger, uncharged: Sequence[IssuedRelease]) -> int:
    """Return a lower bound on the number of events after this copy that no known release explains.

    A release writes two events, its charge and its settlement. A reservation that was open in the copy writes one more.
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
            f"the budget of {guarded.ledger.name} cannot hold a release that was already made. Hint: restore the "
            "newest copy of the ledger."
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
