# SPDX-License-Identifier: Apache-2.0
"""What every ledger does, wherever it is kept: reserve before noise is drawn, commit after, refuse beyond the budget.

No noise is drawn here and no data is seen; how losses add up is decided in ``privacy.loss``.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, Protocol, Self

from veilwood.charts import html_card
from veilwood.errors import (
    BudgetExceededError,
    LedgerError,
    NotPrivateError,
    UnreadableError,
    VeilwoodError,
    short_repr,
    shorten_text,
)
from veilwood.privacy.loss import Loss, check_budget, exact_fraction, requested_loss, zcdp_rho
from veilwood.safe_io import MAX_SUM_DIGITS, parse_fraction, read_json

__all__ = [
    "APPLICATION_ID",
    "SCHEMA_OBJECTS",
    "Balance",
    "Connection",
    "Entry",
    "EntryState",
    "HashChain",
    "Ledger",
    "Reservation",
    "ResultRows",
    "append_event",
    "append_genesis",
    "build_loss",
    "create_tables",
    "event_hash",
    "exact_loss",
    "read_loss",
    "replace_surrogates",
    "requested_budget",
    "require_line",
    "store_balance",
    "total_loss",
]


EntryState = Literal["reserved", "committed", "cancelled", "resolved"]

SCHEMA_OBJECTS = {
    ("table", "events"),
    ("index", "events_of_entry"),
    ("table", "balance"),
}  # no view or trigger runs code
APPLICATION_ID = 0x5645494C  # "VEIL", in the file header: tells a ledger from any other database
_FORMAT_VERSION = (
    3  # of the records; 1 knew neither tables, schemas nor whom the ledger protects, 2 no keys of their own
)
_LEGACY_KEY_PATTERN = re.compile(
    r" \[([^\[\]]+)\]"
)  # where records of versions 1 and 2 have it: at the end of what was released
_CREATE_TABLES = f"""
    BEGIN IMMEDIATE;
    PRAGMA application_id = {APPLICATION_ID};
    CREATE TABLE events (number INTEGER PRIMARY KEY, entry INTEGER NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL);
    CREATE INDEX events_of_entry ON events (entry);
    CREATE TABLE balance (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL);
"""
_MAX_LOSS_PART = 10**30  # of a loss: far more than all releases together can cost
_BEFORE_FIRST_EVENT = -(2**63)


class ResultRows(Protocol):
    """The rows that a statement gives."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A database in the middle of a transaction, whose statements mark their parameters by question marks."""

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> ResultRows:
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
    state: EntryState
    neighbours: str
    plan: str
    not_private: str | None
    table: str = ""
    schema: str = ""
    resolution: str | None = None
    key: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether it is part of what was spent."""
        return self.state != "cancelled"


def total_loss(entries: Iterable[Entry]) -> Loss:
    """Return what the entries that count cost together; unbounded if one of them carries no guarantee."""
    counted = [entry for entry in entries if entry.is_counted]
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

    def can_afford(self, loss: Loss) -> bool:
        """Whether the budget has room for another loss."""
        return self.budget is None or (self.spent + loss).is_within(self.budget)

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

    def to_dict(self) -> dict[str, Any]:
        """What stands in the file beside the events."""
        spent = asdict(self.charged)
        return {
            "budget": self.budget and asdict(self.budget),
            "spent": spent,
            "neighbours": self.neighbours,
            "head": self.head,
        }


class HashChain:
    """The events of one ledger as far as they were read, each checked against those before it.

    It is the only source of totals: they are sums of events that were hashed, never a row that was kept. What was read
    once is remembered, so that a spend reads only what was added since, and a file that no longer holds what was read
    is refused.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[int, Entry] = {}
        self.budget: Loss | None = None
        self.population: str | None = None
        self._number, self._head = 0, ""
        self._charged: Loss | None = Loss.zero()  # None after a cancelled entry, until it is added up anew
        self._unbounded: list[int] = []  # the entries that count and carry no guarantee

    def read_new_events(self, connection: Connection) -> Balance:
        """Read what was added since the last time; return what all events add up to."""
        if self._number:
            query = "SELECT hash FROM events WHERE number = ?"
            if connection.execute(query, (self._number,)).fetchone() != (self._head,):
                raise LedgerError(
                    f"{self.name} was altered: it no longer ends with the events that were read before, as if an "
                    "older copy had been put back."
                )
        query = "SELECT number, entry, body, hash FROM events WHERE number > ? ORDER BY number"
        for row in connection.execute(query, (self._number or _BEFORE_FIRST_EVENT,)):
            self._apply_event(*row)
        balance = self.compute_balance()
        kept = connection.execute("SELECT body FROM balance").fetchone()
        as_written = kept is not None and kept[0] == _canonical_json(balance.to_dict())
        if not as_written and (kept is None or _parse_balance(kept[0]) != balance.to_dict()):
            raise LedgerError(f"{self.name} was altered: its running total is not the sum of its events.")
        return balance

    @property
    def last_event(self) -> tuple[int, str]:
        """The number and the hash of the last event that was read."""
        return self._number, self._head

    def compute_balance(self) -> Balance:
        """What the events add up to."""
        if self._charged is None:
            # An unbounded loss cannot be subtracted, so a cancelled one is left out of a new sum.
            self._charged = Loss.total(entry.loss for entry in self.entries.values() if entry.is_counted)
        first = next((entry.neighbours for entry in self.entries.values() if entry.is_counted), None)
        unbounded = self.entries[self._unbounded[0]] if self._unbounded else None
        return Balance(self.budget, self._charged, first, self._head, unbounded)

    def _apply_event(self, number: int, entry: int, body: str, digest: str) -> None:
        """Take in the next event, or refuse it and change nothing."""
        event = read_json(body)
        state, known = event.pop("event"), self.entries.get(entry)
        expected = self._number + 1
        if number != expected or event.pop("entry") != entry or digest != event_hash(self._head, body):
            raise LedgerError(f"{self.name} was altered: event {expected} does not follow the one before it.")
        if state == "opened" and number == 1:
            self.budget, self.population = _parse_budget(event["budget"]), _require_text(event.get("of"))
        elif state == "named" and self.population is None and entry == number:
            self.population = _require_text(event["of"])
        elif state == "reserved" and known is None:
            loss = read_loss(event.pop("loss"))
            if not isinstance(entry, int) or not all(isinstance(fact, str | None) for fact in event.values()):
                raise TypeError("a fact of an entry is not text")
            made = Entry(id=entry, state=state, loss=loss, **{"key": _legacy_key(event["what"]), **event})
            self._charged = None if self._charged is None else Loss.total((self._charged, loss))
            self._unbounded += [] if made.not_private is None else [entry]
            self.entries[entry] = made
        elif state in ("committed", "cancelled", "resolved") and known is not None and known.state == "reserved":
            reason = _require_text(event["reason"] if state == "resolved" else event.get("reason"))
            self.entries[entry] = replace(known, state=state, resolution=reason)
            if state == "cancelled":
                self._charged = None
                self._unbounded = [number for number in self._unbounded if number != entry]
        else:
            raise LedgerError(f"{self.name} was altered: event {expected} is out of place.")
        self._number, self._head = number, digest


def create_tables(connection: sqlite3.Connection, budget: Loss | None, population: str | None) -> None:
    """Make the tables and the first event."""
    connection.executescript(_CREATE_TABLES)
    append_genesis(connection, budget, population)
    connection.execute("COMMIT")


def append_genesis(connection: Connection, budget: Loss | None, population: str | None) -> None:
    """Write the first event."""
    event = {"event": "opened", "version": _FORMAT_VERSION, "budget": budget and asdict(budget), "of": population}
    store_balance(connection, Balance(budget, Loss.zero(), None, append_event(connection, "", event)[1]))


def append_event(
    connection: Connection, head: str, event: Mapping[str, object], entry: int | None = None
) -> tuple[int, str]:
    """Write an event, which without ``entry`` starts an entry of its own number; return entry and hash."""
    number = int(connection.execute("SELECT coalesce(max(number), 0) + 1 FROM events").fetchone()[0])
    entry = number if entry is None else entry
    body = _canonical_json({**event, "entry": entry, "time": datetime.now(UTC).isoformat(timespec="milliseconds")})
    digest = event_hash(head, body)
    connection.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (number, entry, body, digest))
    return entry, digest


def store_balance(connection: Connection, balance: Balance) -> None:
    """Write the running total beside the events: a second witness of them, never their substitute."""
    query = "INSERT INTO balance VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET body = excluded.body"
    connection.execute(query, (_canonical_json(balance.to_dict()),))


def read_loss(parts: Mapping[str, Any]) -> Loss:
    """Read a loss as it stands in a record."""
    return build_loss({name: part if part is None else _parse_loss_part(part, name) for name, part in parts.items()})


@lru_cache(maxsize=4096)  # most entries of a ledger cost the same
def _parse_loss_part(text: str, name: str) -> Fraction:
    return parse_fraction(text, name, MAX_SUM_DIGITS)


def build_loss(parts: Mapping[str, Fraction | None]) -> Loss:
    """Put a loss together, within what a ledger can hold."""
    if any(part is not None and part > _MAX_LOSS_PART for part in parts.values()):
        raise UnreadableError("a loss is larger than that of any release.")
    return Loss(**parts)  # type: ignore[arg-type]


def event_hash(previous: str, body: str) -> str:
    """The hash of an event, which covers all before it."""
    return hashlib.sha256((previous + body).encode()).hexdigest()


def _parse_balance(body: str) -> dict[str, Any]:
    fields = read_json(body)
    budget = _parse_budget(fields["budget"])
    return Balance(budget, read_loss(fields["spent"]), fields["neighbours"], fields["head"]).to_dict()


def _parse_budget(parts: Mapping[str, Any] | None) -> Loss | None:
    """Read a budget as it stands in a record."""
    budget = None if parts is None else read_loss(parts)
    if budget is not None and budget.epsilon is not None:
        check_budget(budget.epsilon, budget.delta)
    return budget


def _legacy_key(what: str) -> str:
    """The key of a record that does not say it by itself."""
    found = _LEGACY_KEY_PATTERN.search(what, max(what.rfind(" ["), 0))
    return found[1] if found and found.end() == len(what) else ""


def _require_text(value: object) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError("a fact of the ledger is not text")
    return value


def _canonical_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


_MAX_FACT_LENGTH = 1000  # characters that a person gives: whom a ledger protects, why an entry is settled


@dataclass(frozen=True)
class Reservation:
    """A spend that already counts; settle it once, by ``commit`` or ``cancel``."""

    ledger: Ledger
    id: int
    is_new: bool = True  # or one that was taken up again by its key

    def commit(self) -> None:
        """Record that noise was drawn."""
        self.ledger._settle(self.id, "committed")

    def cancel(self, reason: str | None = None) -> None:
        """Give the spend back. Only for input refused before any noise was drawn; ``reason`` says why, for custodians.

        A refusal tells something about the rows and costs nothing, so it must not go unseen.
        """
        self.ledger._settle(
            self.id, "cancelled", None if reason is None else replace_surrogates(shorten_text(reason, _MAX_FACT_LENGTH))
        )


class Ledger(ABC):
    """What every ledger does; made by ``MemoryLedger``, ``SQLiteLedger`` or ``open_ledger``.

    Notes
    -----
    Guarantee

    Neighbouring tables: those named in the entries, the same for all entries of a ledger with a budget.
    Bound: all releases made under reservations of a ledger with budget (epsilon, 0) are together
    epsilon-private, whoever made them and however each was chosen after the others. With budget
    (epsilon, delta) they are (epsilon, delta)-private when the sequence of losses was fixed beforehand, and
    (epsilon, 2 delta)-private when losses were chosen after seeing earlier answers.
    Proof: proofs/ledger.md. Test: packages/veilwood/tests/privacy/test_ledger.py.
    """

    name: str
    _chain: HashChain

    @abstractmethod
    def _transaction(self, write: bool = False) -> AbstractContextManager[Connection]:
        """All or nothing; a writer holds the lock before it reads, so nobody can spend in between."""

    @abstractmethod
    def _is_intact(self, connection: Connection) -> bool:
        """Whether the database itself finds no damage."""

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
    ) -> Reservation:
        """Record ``loss`` as spent, or refuse and record nothing.

        The spend counts from now on, even if it is never committed. One that counts already under the same key is taken
        up again instead, whichever process made it: a key is charged once.

        Parameters
        ----------
        loss : Loss
            What the release costs.
        what, neighbours, plan : str
            What is released and which tables must look alike, in words; the hash of the plan.
        not_private : str, optional
            Why the release carries no guarantee, if it carries none.
        table, schema : str
            The public handle of the rows, such as a path, and the hash of the schema.
        key : str
            Under which a retry is known.

        Raises
        ------
        BudgetExceededError
            If the budget does not allow it.
        NotPrivateError
            If there is a budget, and the release carries no guarantee.
        """
        loss = exact_loss(loss)
        what, neighbours, plan, table, schema = map(replace_surrogates, (what, neighbours, plan, table, schema))
        not_private = None if not_private is None else replace_surrogates(not_private)
        if not isinstance(key, str) or len(key) > _MAX_FACT_LENGTH or key != replace_surrogates(key):
            raise LedgerError(
                f"key={short_repr(key)} is not understood. Hint: a text of up to {_MAX_FACT_LENGTH} letters."
            )
        with self._transaction(write=True) as connection:
            before = self._chain.read_new_events(connection)
            if key and (known := self._entry_with_key(key)) is not None:
                if (known.loss, known.plan) != (loss, plan):
                    raise LedgerError(f"{self.name} has another spend under the same key.")
                return Reservation(self, known.id, is_new=False)
            if before.budget and not_private is not None:
                raise NotPrivateError(
                    f"{self.name} has a budget, and this release is NOT PRIVATE: {not_private}. No number bounds what "
                    "it reveals, so it cannot be counted. Hint: declare the schema, give a finite epsilon and leave "
                    "seeded noise to tests; or take a ledger without a budget, which shows its total as unbounded "
                    "from then on.",
                    requested=loss,
                    remaining=before.remaining,
                )
            if not before.can_afford(loss):
                raise self._budget_error(before, loss)
            if before.budget and before.neighbours not in (None, neighbours):
                raise LedgerError(
                    f"{self.name} counts losses for neighbours {before.neighbours!r}; a loss for "
                    f"{neighbours!r} cannot be added to them. Hint: use another ledger."
                )
            facts = {"what": what, "neighbours": neighbours, "plan": plan, "not_private": not_private}
            facts |= {"table": table, "schema": schema, "key": key}
            try:
                charged = Loss.total((before.charged, loss))
            except VeilwoodError as error:
                raise LedgerError(f"{self.name}: {error}") from None
            entry, head = append_event(connection, before.head, {"event": "reserved", "loss": asdict(loss), **facts})
            store_balance(connection, Balance(before.budget, charged, before.neighbours or neighbours, head))
        return Reservation(self, entry)

    def _entry_with_key(self, key: str) -> Entry | None:
        """Return what counts under a key, of the entries read last."""
        return next((e for e in self._chain.entries.values() if key and e.is_counted and e.key == key), None)

    def find(self, key: str) -> Entry | None:
        """Return the spend that counts under a key, if there is one."""
        with self._transaction() as connection:
            self._chain.read_new_events(connection)
            return self._entry_with_key(key)

    def _budget_error(self, before: Balance, loss: Loss) -> BudgetExceededError:
        left, budget = before.remaining, str(before.budget)
        of = budget if "delta" in budget else budget.removeprefix("epsilon=")
        message = f"insufficient privacy budget: requested {loss}, remaining {left} of {of} ({self.name})."
        if (cause := before.unbounded_by) is not None:
            message += f" Entry {cause.id} is NOT PRIVATE, so that no number bounds the total. Hint: use a new ledger."
        elif left is None or not left.epsilon:
            message += " Hint: what is spent stays spent; go on with what was released."
        else:
            message += " Hint: ask for no more than remains."
        return BudgetExceededError(message, requested=loss, remaining=left)

    def _settle(
        self, entry: int, state: Literal["committed", "cancelled", "resolved"], reason: str | None = None
    ) -> None:
        """Append the event that ends a reservation, once only."""
        with self._transaction(write=True) as connection:
            before = self._chain.read_new_events(connection)
            known = self._chain.entries.get(entry)
            found = "missing" if known is None else known.state
            if (found, state) == ("resolved", "committed"):
                return  # a custodian was faster, and has said the same
            if known is None or found != "reserved":
                raise LedgerError(f"entry {entry} of {self.name} is {found}: only a reserved one can be {state}.")
            event = {"event": state} | ({} if reason is None else {"reason": reason})
            after = replace(before, head=append_event(connection, before.head, event, entry)[1])
            if state == "cancelled":
                others = [e for e in self._chain.entries.values() if e.is_counted and e.id != entry]
                # An unbounded loss cannot be subtracted, so a cancelled one is left out of a new sum.
                charged = Loss.total(e.loss for e in others)
                after = replace(after, charged=charged, neighbours=others[0].neighbours if others else None)
            store_balance(connection, after)

    def resolve(self, entry: int, reason: str) -> None:
        """Settle what a crash left reserved: always as spent, since noise may have been drawn.

        Parameters
        ----------
        entry : int
            Its number.
        reason : str
            Why, in the words of whoever keeps the ledger; it is recorded.
        """
        reason = require_line(reason, "reason")
        self._settle(entry, "resolved", reason)

    @property
    def population(self) -> str | None:
        """Whom the ledger protects, in words, if that was said."""
        with self._transaction() as connection:
            self._chain.read_new_events(connection)
            return self._chain.population

    @property
    def budget(self) -> Loss | None:
        """The most that can be spent, an (epsilon, delta) pair; None if there is no limit."""
        return self._read_balance().budget

    @property
    def spent(self) -> Loss:
        """The sum of all entries that were not cancelled; unbounded if one of them is NOT PRIVATE."""
        return self._read_balance().spent

    @property
    def unbounded_by(self) -> Entry | None:
        """The first entry that is NOT PRIVATE and makes the total unbounded, if there is one."""
        return self._read_balance().unbounded_by

    @property
    def remaining(self) -> Loss | None:
        """The largest loss known to fit into what is left; None if there is no limit."""
        return self._read_balance().remaining

    def can_afford(self, loss: Loss) -> bool:
        """Whether the budget has room for ``loss`` now; another process may be faster."""
        return self._read_balance().can_afford(exact_loss(loss))

    def check_affordable(self, loss: Loss) -> None:
        """Refuse a loss that the budget has no room for, before any row is read for it."""
        now = self._read_balance()
        if not now.can_afford(exact_loss(loss)):
            raise self._budget_error(now, loss)

    def entries(self) -> list[Entry]:
        """Return every spend in order, the cancelled ones too."""
        with self._transaction() as connection:
            self._chain.read_new_events(connection)
            return list(self._chain.entries.values())

    def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last event: what to note elsewhere, to know an older copy by."""
        with self._transaction() as connection:
            self._chain.read_new_events(connection)
            return self._chain.last_event

    def holds(self, number: int, digest: str) -> bool:
        """Whether the event of this number has this hash; an older copy that was put back does not hold it."""
        return self.hash_of(number) == digest

    def hash_of(self, number: int) -> str | None:
        """Return the hash of an event, which covers all before it; None if there is no such event."""
        with self._transaction() as connection:
            self._chain.read_new_events(connection)
            found = connection.execute("SELECT hash FROM events WHERE number = ?", (number,)).fetchone()
        return None if found is None else str(found[0])

    def verify(self) -> str:
        """Recompute hashes, states and the running total; return the hash of the last event.

        An edit, a gap or a wrong total raises LedgerError. Somebody who rewrites the whole file, or puts back
        an older copy, is found only by comparing the returned hash with one noted elsewhere.
        """
        with self._transaction() as connection:
            whole = self._is_intact(connection)
            balance = HashChain(self.name).read_new_events(connection)
            within = balance.budget is None or balance.charged.is_within(balance.budget)
            if not whole or not within or self._chain.read_new_events(connection) != balance:
                raise LedgerError(f"{self.name} was altered: its running total is not the sum of its events.")
        return balance.head

    def __str__(self) -> str:
        with self._transaction() as connection:
            balance, entries, of = (
                self._chain.read_new_events(connection),
                list(self._chain.entries.values()),
                self._chain.population,
            )
        limit = "no limit" if balance.budget is None else f"budget {balance.budget}"
        whom = "" if of is None else f" of {of}"
        lines = [f"{self.name}{whom}: spent {balance.spent}, {limit}"]
        if (cause := balance.unbounded_by) is not None:
            lines.append(f"The total is unbounded because of entry {cause.id}: {cause.not_private}.")
        for table in dict.fromkeys(entry.table for entry in entries):
            of_table = [entry for entry in entries if entry.table == table]
            lines.append(f"{table or 'table not named'}: {total_loss(of_table)}")
            for e in of_table:
                mark = "" if e.not_private is None else f", NOT PRIVATE: {e.not_private}"
                why = "refused" if e.state == "cancelled" else "settled by hand"
                mark += "" if e.resolution is None else f", {why}: {e.resolution}"
                by = f" [schema {e.schema[:12]}]" if e.schema else ""
                lines.append(f"{e.id:>6}  {e.time}  {e.state:<9}  {e.loss}  {e.what} ({e.neighbours}){by}{mark}")
        if len({(entry.table, entry.schema) for entry in entries}) > 1:
            lines.append(
                "Every table and every schema above is taken to be of the same people, so their losses add up."
            )
        if any(entry.state == "reserved" for entry in entries):
            lines.append(
                "reserved: charged before noise was drawn, and not settled yet. A release is under way, or a crash "
                "left it. It counts as spent. What a crash left is settled by: veilwood ledger resolve LEDGER ENTRY "
                "--reason TEXT"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Show the entries in a notebook."""
        budget, entries = self.budget, self.entries()
        limit = "no limit" if budget is None else f"budget {budget}, {self.remaining} left"
        rows = [(str(e.id), e.time[:16].replace("T", " "), e.state, str(e.loss), e.what, e.table) for e in entries]
        head = ("entry", "time", "state", "loss", "what", "table")
        return html_card(f"{self.name}: spent {self.spent}, {limit}", self.population or "", [head, *rows])

    # One ledger, never a copy of it: scikit-learn clones and deep-copies parameters.
    def __sklearn_clone__(self) -> Self:
        return self

    __copy__ = __sklearn_clone__

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def _read_balance(self) -> Balance:
        with self._transaction() as connection:
            return self._chain.read_new_events(connection)

    def _check_settings(self, budget: Loss | None, population: str | None) -> None:
        """Refuse a budget or people other than those recorded; record the people where none were."""
        if budget is not None and budget != self.budget:
            raise LedgerError(
                f"{self.name} was made with the budget {self.budget or 'without limit'}, not {budget}. "
                "Hint: leave epsilon and delta out to open it as it is, or make a new one under another name."
            )
        if population is not None:
            self._record_population(population)

    def _record_population(self, population: str) -> None:
        """Record whom a ledger protects that did not say so, as those of version 0.1.0."""
        known = self.population
        if known is None:
            with self._transaction(write=True) as connection:
                before = self._chain.read_new_events(connection)
                known = self._chain.population
                if known is None:
                    head = append_event(connection, before.head, {"event": "named", "of": population})[1]
                    store_balance(connection, replace(before, head=head))
                    return
        if known != population:
            raise LedgerError(f"{self.name} is a ledger of {known}, not of {population}. Hint: make a new one.")

    @contextmanager
    def _translate_errors(self, write: bool, *errors: type[Exception]) -> Iterator[None]:
        """Turn what goes wrong between here and the database into an error of the ledger."""
        try:
            yield
        except LedgerError:
            raise
        except errors as error:
            raise LedgerError(f"{self.name} cannot be {'written' if write else 'read'}: {error}.") from error
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise LedgerError(f"{self.name} is damaged: a record cannot be read ({short_repr(error)}).") from error


def requested_budget(epsilon: object, delta: object) -> Loss | None:
    """Return the budget a person asks for; none means no limit."""
    if epsilon is None:
        if delta:
            raise LedgerError(
                f"delta={short_repr(delta)} was given without epsilon. Hint: a budget is epsilon, or both."
            )
        return None
    budget = requested_loss(epsilon, delta)
    if budget.epsilon is None:
        raise LedgerError(f"epsilon={short_repr(epsilon)} is not a budget. Hint: leave epsilon out for no limit.")
    return Loss(budget.epsilon, budget.delta)


def exact_loss(loss: Loss) -> Loss:
    """Return ``loss`` in exact numbers; a negative part would be a refund and is refused."""
    parts = {name: part if part is None else exact_fraction(part, name) for name, part in asdict(loss).items()}
    if any(part is not None and part < 0 for part in parts.values()):
        raise LedgerError(f"loss={short_repr(loss)} has a negative part: a spend cannot be negative.")
    return build_loss(parts)


def require_line(text: object, name: str) -> str:
    """Return what a person says about a ledger or an entry: one line that is not empty."""
    if not isinstance(text, str) or not text.strip() or len(text) > _MAX_FACT_LENGTH:
        raise LedgerError(
            f"{name}={short_repr(text)} is not understood. Hint: a line of up to {_MAX_FACT_LENGTH} letters."
        )
    return replace_surrogates(shorten_text(text, _MAX_FACT_LENGTH))


def replace_surrogates(text: str) -> str:
    """Return a text as it can be read back: half of a pair of code units is no text, and would spoil the record."""
    return text.encode(errors="replace").decode()
