# SPDX-License-Identifier: Apache-2.0
"""Privacy ledgers: entries, totals, limits, and the interface of every ledger.

A release is reserved before its noise is drawn, committed afterwards, and rejected if it would exceed the budget.
``privacy.loss`` composes losses, and ``privacy.hash_chain`` stores the events of a ledger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final, Literal, Self

from veilwood import errors
from veilwood.errors import LedgerError, short_repr, shorten_text
from veilwood.privacy.loss import Loss, exact_fraction, requested_loss, zcdp_rho

EntryState = Literal["reserved", "committed", "cancelled", "resolved"]
FinalState = Literal["committed", "cancelled", "resolved"]
Durability = Literal["file", "memory", "not"]
"""Durability of a ledger: in a file or database, as long as the process, or not at all (no ledger was given)."""

MAX_FACT_LENGTH = 1000  # characters of a string that a person or caller passes: population, reason, key
_MAX_LOSS_PART = 10**30  # of epsilon, delta or rho: far above the sum of any real releases

SECURE_TRAINING: Final = "secure training"
"""Purpose of a training run on three servers. The entry names the task and the first 12 digits of its fingerprint."""
RECONCILIATION: Final = "reconciliation"
"""Purpose of a charge made again because a restored copy of a ledger had lost it."""


@dataclass(frozen=True)
class Purpose:
    """Machine-readable purpose of an entry; ``Entry.what`` describes the entry for readers.

    ``kind`` is ``release``, ``SECURE_TRAINING`` or ``RECONCILIATION``; later versions may add others. ``name`` and
    ``fingerprint`` identify the training task and are empty for other kinds.
    """

    kind: str = "release"
    name: str = ""
    fingerprint: str = ""


RELEASE: Final = Purpose()
"""An ordinary release: a fit, an evaluation, a search, an answer."""


@dataclass(frozen=True)
class Entry:
    """Charge in a ledger. Contains public facts only.

    ``state`` has four values. ``reserved``: charged but not settled yet. ``committed``: noise was drawn. ``resolved``:
    left by a crash and settled as spent by a custodian. ``cancelled``: refunded because nothing was released. Entries
    in all states except ``cancelled`` count as spent.
    """

    id: int
    time: str  # of the reservation
    what: str  # description of the release
    loss: Loss
    state: EntryState
    neighbours: str  # the protected unit and the adjacency
    plan: str  # hash
    not_private: str | None  # why the release carries no guarantee; None if it carries one
    table: str = ""  # public handle of the rows: a path, or the kind of object
    schema: str = ""  # hash
    resolution: str | None = None  # the custodian's reason, or why the rows of a cancelled entry were rejected
    key: str = ""  # identifies retries of one charge, which are charged once
    purpose: Purpose = RELEASE  # derived from ``what`` in ledgers of earlier formats
    account: str = ""  # account that made the release, in a ledger shared by several people
    grant: str = ""  # the permission under which it was made, such as a signed plan

    @property
    def is_counted(self) -> bool:
        """Whether the entry counts as spent."""
        return self.state != "cancelled"


@dataclass(frozen=True)
class Part:
    """Subset of a ledger's entries: one account, one grant, one period. Empty fields match all entries.

    ``period`` is a prefix of the reservation time in UTC, such as ``2031`` or ``2031-05``.
    """

    account: str = ""
    grant: str = ""
    period: str = ""

    def includes_entry(self, entry: Entry) -> bool:
        """Return True if an entry belongs to this subset."""
        return (
            self.account in ("", entry.account)
            and self.grant in ("", entry.grant)
            and entry.time.startswith(self.period)
        )


@dataclass(frozen=True)
class Limit:
    """Allowance for a subset of a ledger's entries, within the total budget: a loss, a number of releases, or both."""

    name: str  # in messages
    part: Part
    budget: Loss | None = None
    max_releases: int | None = None


def total_loss(entries: Iterable[Entry]) -> Loss:
    """Return the composed loss of the counted entries; unbounded if an entry has no guarantee."""
    counted = [entry for entry in entries if entry.is_counted]
    is_private = all(entry.not_private is None for entry in counted)
    return Loss.total(entry.loss for entry in counted) if is_private else Loss.unbounded()


@dataclass(frozen=True)
class Balance:
    """Totals of a ledger, which decide the next charge."""

    budget: Loss | None
    charged: Loss  # sum of the recorded losses of the counted entries
    neighbours: str | None  # of the first counted entry
    head: str  # hash of the last event
    unbounded_by: Entry | None = None  # first counted entry without a guarantee

    @property
    def spent(self) -> Loss:
        """The charged loss, or unbounded if an entry has no guarantee."""
        return self.charged if self.unbounded_by is None else Loss.unbounded()

    def can_afford(self, loss: Loss) -> bool:
        """Return True if the budget has room for another loss."""
        return self.budget is None or (self.spent + loss).is_within(self.budget)

    @property
    def remaining(self) -> Loss | None:
        """The larger of the remainders under basic composition and under zCDP; None if there is no limit."""
        budget, spent = self.budget, self.spent
        if budget is None or budget.epsilon is None:
            return None
        candidates = [Loss.zero()]
        if spent.epsilon is not None and spent.epsilon <= budget.epsilon and spent.delta <= budget.delta:
            candidates.append(Loss(budget.epsilon - spent.epsilon, budget.delta - spent.delta))
        if budget.delta > 0 and spent.rho is not None:
            rho = zcdp_rho(budget.epsilon, budget.delta) - spent.rho
            candidates += [Loss.zcdp(rho, budget.delta)] if rho > 0 else []
        return max(candidates, key=lambda loss: loss.epsilon or 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals in the form that is stored next to the events."""
        return {
            "budget": self.budget and asdict(self.budget),
            "spent": asdict(self.charged),
            "neighbours": self.neighbours,
            "head": self.head,
        }


@dataclass(frozen=True)
class Reservation:
    """Reserved charge, which already counts as spent. Settle it once, with ``commit`` or ``cancel``."""

    ledger: Ledger
    id: int
    is_new: bool = True  # False if an earlier attempt has reserved it under the same key

    def commit(self) -> None:
        """Record that noise was drawn."""
        self.ledger.settle(self.id, "committed")

    def cancel(self, reason: str | None = None) -> None:
        """Refund the charge. Only for input that was rejected before any noise was drawn.

        A rejection reveals something about the rows but spends no budget, so the ledger records the reason.
        """
        text = None if reason is None else replace_surrogates(shorten_text(reason, MAX_FACT_LENGTH))
        self.ledger.settle(self.id, "cancelled", text)


class Ledger(ABC):
    """Interface of every ledger. Create one with ``MemoryLedger``, ``SQLiteLedger`` or ``open_ledger``.

    Notes
    -----
    Guarantee

    Neighbouring tables: those named in the entries, the same for all entries of a ledger with a budget.
    Bound: all releases made under reservations of a ledger with budget (epsilon, 0) are together
    epsilon-private, even if each was chosen after seeing the others. With budget
    (epsilon, delta) they are (epsilon, delta)-private when the sequence of losses was fixed beforehand, and
    (epsilon, 2 delta)-private when losses were chosen after seeing earlier answers.
    Proof: proofs/ledger.md. Test: packages/veilwood/tests/privacy/test_ledger.py.
    """

    name: str  # in messages and certificates
    durability: Durability = "file"

    def reserve(
        self,
        loss: Loss,
        *,
        what: str,
        neighbours: str,
        plan: str,
        not_private: str | None = None,
        table: str = "",
        schema: str = "",
        key: str = "",
        purpose: Purpose = RELEASE,
        account: str = "",
        grant: str = "",
        limits: Sequence[Limit] = (),
    ) -> Reservation:
        """Record ``loss`` as spent, or raise BudgetExceededError and record nothing if the budget does not allow it.

        A ledger with a budget raises NotPrivateError for a release without a guarantee. The charge counts immediately,
        even if it is never committed. If a charge already counts under the same key, from any process, that charge is
        resumed instead: a key is charged once.

        Parameters
        ----------
        loss : Loss
            Privacy loss of the release.
        what, neighbours, plan : str
            Description of the release, description of its neighbouring tables, hash of its plan.
        not_private : str, optional
            Why the release has no guarantee, if so.
        table, schema : str
            Public handle of the rows, such as a path, and hash of the schema.
        key : str
            Identifies retries of this charge.
        purpose : Purpose
            Machine-readable purpose, by which programs find the entry later.
        account, grant : str
            The account that makes the release, and the permission that allows it.
        limits : sequence of Limit
            Further limits that the charge must not exceed.
        """
        # A key is never repaired: two keys could become equal, and the second release would not be charged.
        if not isinstance(key, str) or len(key) > MAX_FACT_LENGTH or key != replace_surrogates(key):
            raise LedgerError(
                f"key={short_repr(key)} must be a valid string. Hint: pass at most {MAX_FACT_LENGTH} characters."
            )
        texts = {"what": what, "neighbours": neighbours, "plan": plan, "table": table, "schema": schema}
        texts |= {"account": account, "grant": grant}
        facts: dict[str, Any] = {name: replace_surrogates(text) for name, text in texts.items()}
        facts["not_private"] = None if not_private is None else replace_surrogates(not_private)
        return self._reserve_loss(exact_loss(loss), {**facts, "key": key, "purpose": purpose}, limits)

    @abstractmethod
    def _reserve_loss(self, loss: Loss, facts: Mapping[str, Any], limits: Sequence[Limit]) -> Reservation:
        """Reserve an exact loss, with the validated arguments of ``reserve``."""

    @abstractmethod
    def settle(self, entry: int, state: FinalState, reason: str | None = None) -> None:
        """Settle a reserved entry. Raise LedgerError if it is not reserved."""

    @abstractmethod
    def entries(self) -> list[Entry]:
        """Return all entries in order, including cancelled ones."""

    @abstractmethod
    def balance(self) -> Balance:
        """Return the totals of the ledger."""

    def entry(self, number: int) -> Entry:
        """Return the entry with this number. Raise NotFoundError if it does not exist."""
        known = next((entry for entry in self.entries() if entry.id == number), None)
        if known is None:
            raise errors.NotFoundError("entry", number, where=self.name)
        return known

    def entries_for(self, kind: str, name: str | None = None, fingerprint: str | None = None) -> list[Entry]:
        """Return the entries with this kind of purpose, optionally of one training task only."""
        return [
            entry
            for entry in self.entries()
            if entry.purpose.kind == kind
            and name in (None, entry.purpose.name)
            and fingerprint in (None, entry.purpose.fingerprint)
        ]

    def find(self, key: str) -> Entry | None:
        """Return the counted entry with this key, or None."""
        return next((entry for entry in self.entries() if key and entry.is_counted and entry.key == key), None)

    @property
    def population(self) -> str | None:
        """Description of the people that the ledger protects, if recorded."""
        return None

    @property
    def budget(self) -> Loss | None:
        """The budget as an (epsilon, delta) loss; None if the ledger has no limit."""
        return self.balance().budget

    @property
    def spent(self) -> Loss:
        """The composed loss of all counted entries; unbounded if one of them is NOT PRIVATE."""
        return self.balance().spent

    @property
    def unbounded_by(self) -> Entry | None:
        """The first entry that is NOT PRIVATE and makes the total unbounded, or None."""
        return self.balance().unbounded_by

    @property
    def remaining(self) -> Loss | None:
        """The largest loss known to be within the remaining budget; None if there is no limit."""
        return self.balance().remaining

    def can_afford(self, loss: Loss) -> bool:
        """Return True if the budget has room for ``loss`` now. Another process may charge it first."""
        return self.balance().can_afford(exact_loss(loss))

    def check_affordable(self, loss: Loss) -> None:
        """Raise BudgetExceededError if ``loss`` exceeds the remaining budget. Call before any row is read."""
        now = self.balance()
        if not now.can_afford(exact_loss(loss)):
            raise budget_error(self.name, now, loss)

    def resolve(self, entry: int, reason: str) -> None:
        """Settle an entry that a crash left reserved. It always counts as spent, because noise may have been drawn.

        The custodian's ``reason`` is recorded.
        """
        self.settle(entry, "resolved", require_line(reason, "reason"))

    def head(self) -> tuple[int, str]:
        """Return the number and hash of the last event. Note them elsewhere to detect a restored older copy."""
        raise self._no_events_error()

    def hash_of(self, number: int) -> str | None:
        """Return the hash of an event, which covers all events before it, or None if there is no such event."""
        raise self._no_events_error()

    def has_event(self, number: int, digest: str) -> bool:
        """Return True if the event of this number has this hash. A restored older copy lacks it."""
        return self.hash_of(number) == digest

    def verify(self) -> str:
        """Recompute hashes, states and the running total, and return the hash of the last event.

        Raises LedgerError after an edit, a gap or a wrong total. A rewritten file or a restored older copy can be
        detected only by comparing the returned hash with a hash noted elsewhere.
        """
        raise self._no_events_error()

    def _no_events_error(self) -> LedgerError:
        return LedgerError(f"{self.name} records no events. Hint: pass ledger='spends.db'.")

    # scikit-learn clones and deep-copies parameters. A copied ledger would spend the same budget again.
    def __sklearn_clone__(self) -> Self:
        return self

    __copy__ = __sklearn_clone__

    def __deepcopy__(self, memo: object) -> Self:
        return self


class _NoLedger(Ledger):
    """Ledger of releases without a ledger: accepts every charge and records nothing. It has no state."""

    name = "no ledger"
    durability: Durability = "not"

    def _reserve_loss(self, loss: Loss, facts: Mapping[str, Any], limits: Sequence[Limit]) -> Reservation:
        return Reservation(self, 1)

    def settle(self, entry: int, state: FinalState, reason: str | None = None) -> None:
        pass

    def entries(self) -> list[Entry]:
        return []

    def balance(self) -> Balance:
        return Balance(None, Loss.zero(), None, "")

    def __repr__(self) -> str:
        return "NO_LEDGER"

    def __reduce__(self) -> str:
        return "NO_LEDGER"  # one object in every process


NO_LEDGER: Final = _NoLedger()


def budget_error(name: str, balance: Balance, loss: Loss) -> errors.BudgetExceededError:
    """Return the error for a charge that exceeds the remaining budget."""
    remaining, budget = balance.remaining, str(balance.budget)
    limit = budget if "delta" in budget else budget.removeprefix("epsilon=")
    message = f"insufficient privacy budget in {name}: requested {loss}, remaining {remaining} (of {limit})."
    if (cause := balance.unbounded_by) is not None:
        message += f" Entry {cause.id} is NOT PRIVATE, so no number bounds the total. Hint: use a new ledger."
    elif remaining is None or not remaining.epsilon:
        message += " Hint: the budget is used up; continue with the values already released."
    else:
        message += f" Hint: request at most {remaining}."
    return errors.BudgetExceededError(message, requested=loss, remaining=remaining)


def requested_budget(epsilon: object, delta: object) -> Loss | None:
    """Return the budget of (epsilon, delta), or None if epsilon is None, which means no limit."""
    if epsilon is None:
        if delta:
            raise LedgerError(f"delta={short_repr(delta)} needs an epsilon. Hint: pass epsilon too, or omit delta.")
        return None
    budget = requested_loss(epsilon, delta)
    if budget.epsilon is None:
        raise LedgerError(f"epsilon={short_repr(epsilon)} is not a budget. Hint: omit epsilon for no limit.")
    return Loss(budget.epsilon, budget.delta)


def exact_loss(loss: Loss) -> Loss:
    """Return ``loss`` as exact numbers. Raise LedgerError if one is negative, which would be a refund."""
    parts = {name: part if part is None else exact_fraction(part, name) for name, part in asdict(loss).items()}
    if any(part is not None and part < 0 for part in parts.values()):
        raise LedgerError(f"loss={short_repr(loss)} must not be negative. Hint: pass numbers of at least 0.")
    return build_loss(parts)


def require_line(text: object, name: str) -> str:
    """Return a text as one line. Raise LedgerError if it is empty or too long."""
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_FACT_LENGTH:
        raise LedgerError(
            f"{name}={short_repr(text)} is not a line of text. Hint: pass 1 to {MAX_FACT_LENGTH} characters."
        )
    return replace_surrogates(shorten_text(text, MAX_FACT_LENGTH))


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded: a record with one could not be read back."""
    return text.encode(errors="replace").decode()


def build_loss(parts: Mapping[str, Fraction | None]) -> Loss:
    """Return a loss from epsilon, delta and rho. Raise UnreadableError if one is larger than a ledger can hold."""
    if any(part is not None and part > _MAX_LOSS_PART for part in parts.values()):
        raise errors.UnreadableError("the loss is larger than 10^30. Hint: check epsilon, delta and rho.")
    return Loss(**parts)  # type: ignore[arg-type]
