# SPDX-License-Identifier: Apache-2.0
"""Hash chain of ledger events, and the ledger that stores its events in one.

Each event has a hash that covers all events before it, so an edit, a gap or a wrong total is found. The rules of a
charge are applied here, inside one transaction; the interface is in ``privacy.ledger``.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Protocol

from veilwood.charts import html_card
from veilwood.errors import LedgerError, NotPrivateError, VeilwoodError, short_repr
from veilwood.privacy.ledger import (
    MAX_FACT_LENGTH,
    RECONCILIATION,
    RELEASE,
    SECURE_TRAINING,
    Balance,
    Entry,
    FinalState,
    Ledger,
    Purpose,
    Reservation,
    budget_error,
    build_loss,
    entry_with_key,
    exact_loss,
    replace_surrogates,
    total_loss,
)
from veilwood.privacy.loss import Loss, check_budget
from veilwood.safe_io import MAX_SUM_DIGITS, parse_fraction, read_json

# The objects of a ledger's database. A view or trigger would run code, so any other object is refused.
SCHEMA_OBJECTS = {("table", "events"), ("index", "events_of_entry"), ("table", "balance")}
APPLICATION_ID = 0x5645494C  # "VEIL", in the file header: distinguishes a ledger from other SQLite databases
# Of the events. 1 has no tables, schemas or population; 2 has keys at the end of ``what``; 3 has no purposes.
_FORMAT_VERSION = 4
_LEGACY_KEY_PATTERN = re.compile(r" \[([^\[\]]+)\]")  # formats 1 and 2
_LEGACY_TRAINING_PATTERN = re.compile(r"secure training of (.*) \(([0-9a-f]{12})\)")  # formats 1 to 3
_LEGACY_RECONCILIATION = "reconciled: "  # formats 1 to 3
_CREATE_TABLES = f"""
    BEGIN IMMEDIATE;
    PRAGMA application_id = {APPLICATION_ID};
    CREATE TABLE events (number INTEGER PRIMARY KEY, entry INTEGER NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL);
    CREATE INDEX events_of_entry ON events (entry);
    CREATE TABLE balance (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL);
"""
_BEFORE_FIRST_EVENT = -(2**63)  # the smallest integer of SQLite: event numbers below 1 are read, and refused
_ALTERED_HINT: Final = "Hint: restore a copy that verifies."


class ResultRows(Protocol):
    """Result rows of a statement."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A database inside a transaction. Statements mark their parameters by question marks."""

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> ResultRows:
        """Execute one statement."""


class HashChain:
    """Verified events of one ledger, each checked against the events before it.

    The only source of totals: they are sums of hashed events, never taken from a stored row. Verified events stay in
    memory, so a charge reads only later ones. A file that no longer contains a verified event is refused.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[int, Entry] = {}
        self.budget: Loss | None = None
        self.population: str | None = None
        self._number, self._head = 0, ""
        self._charged: Loss | None = Loss.zero()  # None after a cancelled entry, until recomputed
        self._unbounded: list[int] = []  # entries that count and carry no guarantee

    def read_new_events(self, connection: Connection) -> Balance:
        """Read and verify the events added since the last call, and return the totals of all events."""
        if self._number:
            query = "SELECT hash FROM events WHERE number = ?"
            if connection.execute(query, (self._number,)).fetchone() != (self._head,):
                raise LedgerError(
                    f"{self.name} was altered: it lacks events that were read before, as if an older copy had been "
                    "restored. Hint: restore the newest copy."
                )
        query = "SELECT number, entry, body, hash FROM events WHERE number > ? ORDER BY number"
        for row in connection.execute(query, (self._number or _BEFORE_FIRST_EVENT,)):
            self._apply_event(*row)
        balance = self.compute_balance()
        stored = connection.execute("SELECT body FROM balance").fetchone()
        is_identical = stored is not None and stored[0] == _canonical_json(balance.to_dict())
        if not is_identical and (stored is None or _parse_balance(stored[0]) != balance.to_dict()):
            raise LedgerError(
                f"{self.name} was altered: its running total is not the sum of its events. {_ALTERED_HINT}"
            )
        return balance

    @property
    def last_event(self) -> tuple[int, str]:
        """Number and hash of the last verified event."""
        return self._number, self._head

    def compute_balance(self) -> Balance:
        """Return the totals of the verified events."""
        if self._charged is None:
            # An unbounded loss cannot be subtracted: a cancellation is handled by summing the other entries again.
            self._charged = Loss.total(entry.loss for entry in self.entries.values() if entry.is_counted)
        first = next((entry.neighbours for entry in self.entries.values() if entry.is_counted), None)
        unbounded = self.entries[self._unbounded[0]] if self._unbounded else None
        return Balance(self.budget, self._charged, first, self._head, unbounded)

    def _apply_event(self, number: int, entry: int, body: str, digest: str) -> None:
        """Apply the next event. Raise LedgerError and change nothing if it does not follow from those before it."""
        event = read_json(body)
        state, known = event.pop("event"), self.entries.get(entry)
        expected = self._number + 1
        if number != expected or event.pop("entry") != entry or digest != event_hash(self._head, body):
            raise LedgerError(
                f"{self.name} was altered: event {expected} does not follow the one before it. {_ALTERED_HINT}"
            )
        if state == "opened" and number == 1:
            self.budget, self.population = _parse_budget(event["budget"]), _require_text(event.get("of"))
        elif state == "named" and self.population is None and entry == number:
            self.population = _require_text(event["of"])
        elif state == "reserved" and known is None:
            loss, purpose = read_loss(event.pop("loss")), _read_purpose(event)
            if not isinstance(entry, int) or not all(isinstance(fact, str | None) for fact in event.values()):
                raise TypeError("a fact of an entry is not text")
            facts = {"key": _legacy_key(event["what"]), **event}
            reserved = Entry(id=entry, state=state, loss=loss, purpose=purpose, **facts)
            self._charged = None if self._charged is None else Loss.total((self._charged, loss))
            self._unbounded += [] if reserved.not_private is None else [entry]
            self.entries[entry] = reserved
        elif state in ("committed", "cancelled", "resolved") and known is not None and known.state == "reserved":
            reason = _require_text(event["reason"] if state == "resolved" else event.get("reason"))
            self.entries[entry] = replace(known, state=state, resolution=reason)
            if state == "cancelled":
                self._charged = None
                self._unbounded = [number for number in self._unbounded if number != entry]
        else:
            raise LedgerError(f"{self.name} was altered: event {expected} is out of order. {_ALTERED_HINT}")
        self._number, self._head = number, digest


def create_tables(connection: sqlite3.Connection, budget: Loss | None, population: str | None) -> None:
    """Create the tables and write the first event."""
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
    """Write an event and return its entry and hash. Without ``entry`` it starts an entry that has its own number."""
    number = int(connection.execute("SELECT coalesce(max(number), 0) + 1 FROM events").fetchone()[0])
    entry = number if entry is None else entry
    body = _canonical_json({**event, "entry": entry, "time": datetime.now(UTC).isoformat(timespec="milliseconds")})
    digest = event_hash(head, body)
    connection.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (number, entry, body, digest))
    return entry, digest


def store_balance(connection: Connection, balance: Balance) -> None:
    """Store the running total next to the events: a second check of them, never a substitute."""
    query = "INSERT INTO balance VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET body = excluded.body"
    connection.execute(query, (_canonical_json(balance.to_dict()),))


def read_loss(parts: Mapping[str, Any]) -> Loss:
    """Read a loss from an event."""
    return build_loss({name: part if part is None else _parse_loss_part(part, name) for name, part in parts.items()})


@lru_cache(maxsize=4096)  # most entries of a ledger have equal losses, and parsing exact fractions is slow
def _parse_loss_part(text: str, name: str) -> Fraction:
    return parse_fraction(text, name, MAX_SUM_DIGITS)


def event_hash(previous: str, body: str) -> str:
    """Return the hash of an event, which covers all events before it."""
    return hashlib.sha256((previous + body).encode()).hexdigest()


def _parse_balance(body: str) -> dict[str, Any]:
    fields = read_json(body)
    budget = _parse_budget(fields["budget"])
    return Balance(budget, read_loss(fields["spent"]), fields["neighbours"], fields["head"]).to_dict()


def _parse_budget(parts: Mapping[str, Any] | None) -> Loss | None:
    """Read a budget from an event."""
    budget = None if parts is None else read_loss(parts)
    if budget is not None and budget.epsilon is not None:
        check_budget(budget.epsilon, budget.delta)
    return budget


def _legacy_key(what: str) -> str:
    """Return the key of an entry of format 1 or 2, which has it at the end of ``what``."""
    match = _LEGACY_KEY_PATTERN.search(what, max(what.rfind(" ["), 0))
    return match[1] if match and match.end() == len(what) else ""


def _read_purpose(event: dict[str, Any]) -> Purpose:
    """Take the purpose out of an event of a reservation. Formats 1 to 3 have it at the beginning of ``what``."""
    if (parts := event.pop("purpose", None)) is not None:
        purpose = Purpose(**parts)
        if not all(isinstance(part, str) for part in asdict(purpose).values()):
            raise TypeError("a purpose is not text")
        return purpose
    if match := _LEGACY_TRAINING_PATTERN.match(event["what"]):
        return Purpose(SECURE_TRAINING, match[1], match[2])
    return Purpose(RECONCILIATION) if event["what"].startswith(_LEGACY_RECONCILIATION) else RELEASE


def _require_text(value: object) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError("a fact of the ledger is not text")
    return value


def _canonical_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


class ChainedLedger(Ledger):
    """Ledger whose events form a hash chain in a database."""

    _chain: HashChain

    @abstractmethod
    def _transaction(self, write: bool = False) -> AbstractContextManager[Connection]:
        """Open a transaction. A writer takes the lock before it reads, so no other charge can come in between."""

    @abstractmethod
    def _is_intact(self, connection: Connection) -> bool:
        """Return True if the database itself finds no damage."""

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
    ) -> Reservation:
        """Record ``loss`` as spent. Raise and record nothing if the budget does not allow it."""
        loss = exact_loss(loss)
        what, neighbours, plan, table, schema = map(replace_surrogates, (what, neighbours, plan, table, schema))
        not_private = None if not_private is None else replace_surrogates(not_private)
        if not isinstance(key, str) or len(key) > MAX_FACT_LENGTH or key != replace_surrogates(key):
            raise LedgerError(
                f"key={short_repr(key)} is not a valid key. Hint: pass text of up to {MAX_FACT_LENGTH} characters."
            )
        with self._transaction(write=True) as connection:
            before = self._chain.read_new_events(connection)
            if (known := entry_with_key(self._chain.entries.values(), key)) is not None:
                if (known.loss, known.plan) != (loss, plan):
                    raise LedgerError(
                        f"{self.name} has a charge of another loss or plan under the same key. Hint: pass a new key."
                    )
                return Reservation(self, known.id, is_new=False)
            if before.budget and not_private is not None:
                raise NotPrivateError(
                    f"{self.name} has a budget, and this release is NOT PRIVATE: {not_private}. No number bounds what "
                    "it reveals, so it cannot be charged. Hint: declare the schema, pass a finite epsilon and seed no "
                    "noise; or use a ledger without a budget, which then shows its total as unbounded.",
                    requested=loss,
                    remaining=before.remaining,
                )
            if not before.can_afford(loss):
                raise budget_error(self.name, before, loss)
            if before.budget and before.neighbours not in (None, neighbours):
                raise LedgerError(
                    f"{self.name} counts losses for neighbours {before.neighbours!r}; a loss for "
                    f"{neighbours!r} cannot be added to them. Hint: use another ledger."
                )
            facts: dict[str, object] = {
                "what": what,
                "neighbours": neighbours,
                "plan": plan,
                "not_private": not_private,
            }
            facts |= {"table": table, "schema": schema, "key": key}
            facts["purpose"] = {name: replace_surrogates(part) for name, part in asdict(purpose).items()}
            try:
                charged = Loss.total((before.charged, loss))
            except VeilwoodError as error:
                raise LedgerError(f"{self.name}: {error}") from None
            entry, head = append_event(connection, before.head, {"event": "reserved", "loss": asdict(loss), **facts})
            store_balance(connection, Balance(before.budget, charged, before.neighbours or neighbours, head))
        return Reservation(self, entry)

    def settle(self, entry: int, state: FinalState, reason: str | None = None) -> None:
        """Settle a reserved entry, once: append the event that ends it."""
        with self._transaction(write=True) as connection:
            before = self._chain.read_new_events(connection)
            known = self._chain.entries.get(entry)
            current = "missing" if known is None else known.state
            if (current, state) == ("resolved", "committed"):
                return  # a custodian has already settled it as spent, which is the same
            if known is None or current != "reserved":
                raise LedgerError(f"entry {entry} of {self.name} is {current}: only a reserved one can be {state}.")
            event = {"event": state} | ({} if reason is None else {"reason": reason})
            after = replace(before, head=append_event(connection, before.head, event, entry)[1])
            if state == "cancelled":
                others = [e for e in self._chain.entries.values() if e.is_counted and e.id != entry]
                # Summed again, as an unbounded loss cannot be subtracted.
                charged = Loss.total(e.loss for e in others)
                after = replace(after, charged=charged, neighbours=others[0].neighbours if others else None)
            store_balance(connection, after)

    @property
    def population(self) -> str | None:
        """Description of the people that the ledger protects, if recorded."""
        with self._transaction() as connection:
            self._chain.read_new_events(connection)
            return self._chain.population

    def balance(self) -> Balance:
        """Return the totals of all events."""
        with self._transaction() as connection:
            return self._chain.read_new_events(connection)

    def entries(self) -> list[Entry]:
        """Return all entries in order, including cancelled ones."""
        with self._transaction() as connection:
            self._chain.read_new_events(connection)
            return list(self._chain.entries.values())

    def head(self) -> tuple[int, str]:
        """Return number and hash of the last event. Noted elsewhere, they expose an older copy."""
        with self._transaction() as connection:
            self._chain.read_new_events(connection)
            return self._chain.last_event

    def hash_of(self, number: int) -> str | None:
        """Return the hash of an event, which covers all events before it, or None if there is no such event."""
        with self._transaction() as connection:
            self._chain.read_new_events(connection)
            row = connection.execute("SELECT hash FROM events WHERE number = ?", (number,)).fetchone()
        return None if row is None else str(row[0])

    def verify(self) -> str:
        """Recompute hashes, states and the running total, and return the hash of the last event."""
        with self._transaction() as connection:
            is_intact = self._is_intact(connection)
            balance = HashChain(self.name).read_new_events(connection)
            is_within = balance.budget is None or balance.charged.is_within(balance.budget)
            if not is_intact or not is_within or self._chain.read_new_events(connection) != balance:
                raise LedgerError(
                    f"{self.name} was altered: its running total is not the sum of its events. {_ALTERED_HINT}"
                )
        return balance.head

    def __str__(self) -> str:
        with self._transaction() as connection:
            balance = self._chain.read_new_events(connection)
            entries, population = list(self._chain.entries.values()), self._chain.population
        limit = "no limit" if balance.budget is None else f"budget {balance.budget}"
        people = "" if population is None else f" of {population}"
        lines = [f"{self.name}{people}: spent {balance.spent}, {limit}"]
        if (cause := balance.unbounded_by) is not None:
            lines.append(f"The total is unbounded because of entry {cause.id}: {cause.not_private}.")
        for table in dict.fromkeys(entry.table for entry in entries):
            of_table = [entry for entry in entries if entry.table == table]
            lines.append(f"{table or 'table not recorded'}: {total_loss(of_table)}")
            for e in of_table:
                mark = "" if e.not_private is None else f", NOT PRIVATE: {e.not_private}"
                cause_of_end = "rejected" if e.state == "cancelled" else "resolved by a custodian"
                mark += "" if e.resolution is None else f", {cause_of_end}: {e.resolution}"
                schema = f" [schema {e.schema[:12]}]" if e.schema else ""
                lines.append(f"{e.id:>6}  {e.time}  {e.state:<9}  {e.loss}  {e.what} ({e.neighbours}){schema}{mark}")
        if len({(entry.table, entry.schema) for entry in entries}) > 1:
            lines.append("All tables and schemas above are taken to be of the same people, so their losses add up.")
        if any(entry.state == "reserved" for entry in entries):
            lines.append(
                "reserved: charged before noise was drawn, and not settled yet. A release is in progress, or a crash "
                "left the entry. It counts as spent. To settle an entry that a crash left: veilwood ledger resolve "
                "LEDGER ENTRY --reason TEXT"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the entries as a card for notebooks."""
        budget, entries = self.budget, self.entries()
        limit = "no limit" if budget is None else f"budget {budget}, {self.remaining} left"
        rows = [(str(e.id), e.time[:16].replace("T", " "), e.state, str(e.loss), e.what, e.table) for e in entries]
        head = ("entry", "time", "state", "loss", "what", "table")
        return html_card(f"{self.name}: spent {self.spent}, {limit}", self.population or "", [head, *rows])

    def _check_settings(self, budget: Loss | None, population: str | None) -> None:
        """Raise LedgerError if budget or population differ from the recorded ones. Record a population if none is."""
        if budget is not None and budget != self.budget:
            limit = "no budget" if self.budget is None else f"the budget {self.budget}"
            raise LedgerError(
                f"{self.name} was created with {limit}, not {budget}. Hint: omit epsilon and delta to open it as it "
                "is, or create a ledger of another name."
            )
        if population is not None:
            self._record_population(population)

    def _record_population(self, population: str) -> None:
        """Record the population of a ledger that has none, such as one of version 0.1.0."""
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
            raise LedgerError(f"{self.name} is a ledger of {known}, not of {population}. Hint: create a new ledger.")

    @contextmanager
    def _translate_errors(self, write: bool, *errors: type[Exception]) -> Iterator[None]:
        """Translate errors of the database, and of records that cannot be parsed, into LedgerError."""
        try:
            yield
        except LedgerError:
            raise
        except errors as error:
            raise LedgerError(
                f"{self.name} cannot be {'written' if write else 'read'}: {error}. Hint: check the path, its "
                "permissions and the free space."
            ) from error
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise LedgerError(
                f"{self.name} is damaged: a record cannot be read ({short_repr(error)}). {_ALTERED_HINT}"
            ) from error
