# SPDX-License-Identifier: Apache-2.0
"""The events of a ledger: how they are written, chained by hashes, read back and checked.

Who may spend what is decided in ``ledger``; here nothing is granted.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, Protocol

from veilwood.bounded import MOST_DIGITS_OF_A_SUM, rational, read_json
from veilwood.errors import LedgerError, UnreadableError
from veilwood.privacy.loss import Loss, check_budget, zcdp_rho

State = Literal["reserved", "committed", "cancelled", "resolved"]

PARTS = {("table", "events"), ("index", "events_of_entry"), ("table", "balance")}  # no view or trigger runs code
APPLICATION_ID = 0x5645494C  # "VEIL", in the file header: tells a ledger from any other database
_VERSION = 3  # of the records; 1 knew neither tables, schemas nor whom the ledger protects, 2 no keys of their own
_OLDER_KEY = re.compile(
    r" \[([^\[\]]+)\]"
)  # where records of versions 1 and 2 have it: at the end of what was released
_TABLES = f"""
    BEGIN IMMEDIATE;
    PRAGMA application_id = {APPLICATION_ID};
    CREATE TABLE events (number INTEGER PRIMARY KEY, entry INTEGER NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL);
    CREATE INDEX events_of_entry ON events (entry);
    CREATE TABLE balance (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL);
"""
_LARGEST_PART = 10**30  # of a loss: far more than all releases together can cost
_BEFORE_ALL = -(2**63)


class StatementRows(Protocol):
    """The rows that a statement gives."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A database in the middle of a transaction, whose statements mark their parameters by question marks."""

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> StatementRows:
        """Carry out one statement."""


@dataclass(frozen=True)
class Entry:
    """One spend as recorded: public facts only.

    Attributes
    ----------
    id, time, what, plan : int, str, str, str
        Its number, when it was reserved, what was released and the hash of the plan.
    loss : Loss
        What it was said to cost.
    state : str
        ``reserved``: charged, and not settled yet; ``committed``: noise was drawn; ``resolved``: a custodian settled as
        spent what a crash had left; all three count. ``cancelled``: given back, as nothing had been released.
    neighbours : str
        Whom it protects.
    not_private : str or None
        Why it carries no guarantee, if it carries none.
    table, schema : str
        The public handle of the rows (a path, or the kind of object) and the hash of the schema; empty where not said.
    resolution : str or None
        The custodian's reason; of a cancelled entry, why the rows were refused: columns and kinds of problems.
    key : str
        Under which a retry is known and charged no second time; empty for a spend that is not tried again.
    """

    id: int
    time: str
    what: str
    loss: Loss
    state: State
    neighbours: str
    plan: str
    not_private: str | None
    table: str = ""
    schema: str = ""
    resolution: str | None = None
    key: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is part of what was spent."""
        return self.state != "cancelled"


def total(entries: Iterable[Entry]) -> Loss:
    """Return what the entries that count cost together; unbounded if one of them carries no guarantee."""
    counted = [entry for entry in entries if entry.counts]
    if any(entry.not_private is not None for entry in counted):
        return Loss.unbounded()
    return Loss.total(entry.loss for entry in counted)


@dataclass(frozen=True)
class Balance:
    """What a spend needs to know of all events before it."""

    budget: Loss | None
    charged: Loss  # the sum of the entries that count, each at the loss it was given
    neighbours: str | None  # of the first entry that counts
    head: str  # the hash of the last event
    unbounded_by: Entry | None = None  # the first entry that counts and carries no guarantee

    @property
    def spent(self) -> Loss:
        """The sum, which an entry without a guarantee makes unbounded."""
        return self.charged if self.unbounded_by is None else Loss.unbounded()

    def fits(self, loss: Loss) -> bool:
        """Whether the budget has room for another loss."""
        return self.budget is None or (self.spent + loss).fits(self.budget)

    @property
    def remaining(self) -> Loss | None:
        """The larger of what plain sums leave and what zCDP leaves."""
        budget, spent = self.budget, self.spent
        if budget is None or budget.epsilon is None:
            return None
        left = [Loss.zero()]
        if spent.epsilon is not None and spent.epsilon <= budget.epsilon and spent.delta <= budget.delta:
            left.append(Loss(budget.epsilon - spent.epsilon, budget.delta - spent.delta))
        if budget.delta > 0 and spent.rho is not None:
            rho = zcdp_rho(budget.epsilon, budget.delta) - spent.rho
            left += [Loss.zcdp(rho, budget.delta)] if rho > 0 else []
        return max(left, key=lambda loss: loss.epsilon or 0)

    def record(self) -> dict[str, Any]:
        """What stands in the file beside the events."""
        spent = asdict(self.charged)
        return {
            "budget": self.budget and asdict(self.budget),
            "spent": spent,
            "neighbours": self.neighbours,
            "head": self.head,
        }


class Chain:
    """The events of one ledger as far as they were read, each checked against those before it.

    It is the only source of totals: they are sums of events that were hashed, never a row that was kept. What was read
    once is remembered, so that a spend reads only what was added since, and a file that no longer holds what was read
    is refused.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[int, Entry] = {}
        self.budget: Loss | None = None
        self.of: str | None = None
        self._number, self._head = 0, ""
        self._charged: Loss | None = Loss.zero()  # None after a cancelled entry, until it is added up anew
        self._unbounded: list[int] = []  # the entries that count and carry no guarantee

    def read(self, connection: Connection) -> Balance:
        """Read what was added since the last time; return what all events add up to."""
        if self._number:
            query = "SELECT hash FROM events WHERE number = ?"
            if connection.execute(query, (self._number,)).fetchone() != (self._head,):
                raise LedgerError(
                    f"{self.name} was altered: it no longer ends with the events that were read before, as if an "
                    "older copy had been put back."
                )
        query = "SELECT number, entry, body, hash FROM events WHERE number > ? ORDER BY number"
        for row in connection.execute(query, (self._number or _BEFORE_ALL,)):
            self._take(*row)
        balance = self.balance()
        kept = connection.execute("SELECT body FROM balance").fetchone()
        as_written = kept is not None and kept[0] == _canonical(balance.record())
        if not as_written and (kept is None or _read_record(kept[0]) != balance.record()):
            raise LedgerError(f"{self.name} was altered: its running total is not the sum of its events.")
        return balance

    @property
    def last(self) -> tuple[int, str]:
        """The number and the hash of the last event that was read."""
        return self._number, self._head

    def balance(self) -> Balance:
        """What the events add up to."""
        if self._charged is None:
            # An unbounded loss cannot be subtracted, so a cancelled one is left out of a new sum.
            self._charged = Loss.total(entry.loss for entry in self.entries.values() if entry.counts)
        first = next((entry.neighbours for entry in self.entries.values() if entry.counts), None)
        unbounded = self.entries[self._unbounded[0]] if self._unbounded else None
        return Balance(self.budget, self._charged, first, self._head, unbounded)

    def _take(self, number: int, entry: int, body: str, digest: str) -> None:
        """Take in the next event, or refuse it and change nothing."""
        event = read_json(body)
        state, known = event.pop("event"), self.entries.get(entry)
        expected = self._number + 1
        if number != expected or event.pop("entry") != entry or digest != hash_of(self._head, body):
            raise LedgerError(f"{self.name} was altered: event {expected} does not follow the one before it.")
        if state == "opened" and number == 1:
            self.budget, self.of = _read_budget(event["budget"]), _text(event.get("of"))
        elif state == "named" and self.of is None and entry == number:
            self.of = _text(event["of"])
        elif state == "reserved" and known is None:
            loss = read_loss(event.pop("loss"))
            if not isinstance(entry, int) or not all(isinstance(fact, str | None) for fact in event.values()):
                raise TypeError("a fact of an entry is not text")
            made = Entry(id=entry, state=state, loss=loss, **{"key": _older_key(event["what"]), **event})
            self._charged = None if self._charged is None else Loss.total((self._charged, loss))
            self._unbounded += [] if made.not_private is None else [entry]
            self.entries[entry] = made
        elif state in ("committed", "cancelled", "resolved") and known is not None and known.state == "reserved":
            reason = _text(event["reason"] if state == "resolved" else event.get("reason"))
            self.entries[entry] = replace(known, state=state, resolution=reason)
            if state == "cancelled":
                self._charged = None
                self._unbounded = [number for number in self._unbounded if number != entry]
        else:
            raise LedgerError(f"{self.name} was altered: event {expected} is out of place.")
        self._number, self._head = number, digest


def create(connection: sqlite3.Connection, budget: Loss | None, of: str | None) -> None:
    """Make the tables and the first event."""
    connection.executescript(_TABLES)
    begin(connection, budget, of)
    connection.execute("COMMIT")


def begin(connection: Connection, budget: Loss | None, of: str | None) -> None:
    """Write the first event."""
    event = {"event": "opened", "version": _VERSION, "budget": budget and asdict(budget), "of": of}
    keep(connection, Balance(budget, Loss.zero(), None, append(connection, "", event)[1]))


def append(connection: Connection, head: str, event: Mapping[str, object], entry: int | None = None) -> tuple[int, str]:
    """Write an event, which without ``entry`` starts an entry of its own number; return entry and hash."""
    number = int(connection.execute("SELECT coalesce(max(number), 0) + 1 FROM events").fetchone()[0])
    entry = number if entry is None else entry
    body = _canonical({**event, "entry": entry, "time": datetime.now(UTC).isoformat(timespec="milliseconds")})
    digest = hash_of(head, body)
    connection.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (number, entry, body, digest))
    return entry, digest


def keep(connection: Connection, balance: Balance) -> None:
    """Write the running total beside the events: a second witness of them, never their substitute."""
    query = "INSERT INTO balance VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET body = excluded.body"
    connection.execute(query, (_canonical(balance.record()),))


def read_loss(parts: Mapping[str, Any]) -> Loss:
    """Read a loss as it stands in a record."""
    return loss_of({name: part if part is None else _part(part, name) for name, part in parts.items()})


@lru_cache(maxsize=4096)  # most entries of a ledger cost the same
def _part(text: str, name: str) -> Fraction:
    return rational(text, name, MOST_DIGITS_OF_A_SUM)


def loss_of(parts: Mapping[str, Fraction | None]) -> Loss:
    """Put a loss together, within what a ledger can hold."""
    if any(part is not None and part > _LARGEST_PART for part in parts.values()):
        raise UnreadableError("a loss is larger than that of any release.")
    return Loss(**parts)  # type: ignore[arg-type]


def hash_of(previous: str, body: str) -> str:
    """The hash of an event, which covers all before it."""
    return hashlib.sha256((previous + body).encode()).hexdigest()


def _read_record(body: str) -> dict[str, Any]:
    fields = read_json(body)
    budget = _read_budget(fields["budget"])
    return Balance(budget, read_loss(fields["spent"]), fields["neighbours"], fields["head"]).record()


def _read_budget(parts: Mapping[str, Any] | None) -> Loss | None:
    """Read a budget as it stands in a record."""
    budget = None if parts is None else read_loss(parts)
    if budget is not None and budget.epsilon is not None:
        check_budget(budget.epsilon, budget.delta)
    return budget


def _older_key(what: str) -> str:
    """The key of a record that does not say it by itself."""
    found = _OLDER_KEY.search(what, max(what.rfind(" ["), 0))
    return found[1] if found and found.end() == len(what) else ""


def _text(value: object) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError("a fact of the ledger is not text")
    return value


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
