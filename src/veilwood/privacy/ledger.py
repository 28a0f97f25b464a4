# SPDX-License-Identifier: Apache-2.0
"""The record of what was spent: reserve before noise is drawn, commit after, refuse beyond the budget.

No noise is drawn here and no data is seen; how losses add up is decided in ``privacy``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import tempfile
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from veilwood.bounded import MOST_DIGITS_OF_A_SUM, rational, read_json
from veilwood.errors import BudgetExceededError, LedgerError, PrivacyWarning, VeilwoodError
from veilwood.privacy.loss import Loss, check_budget, exact, requested_loss, zcdp_rho
from veilwood.wording import shorten, shown

__all__ = ["Entry", "Ledger", "MemoryLedger", "Reservation", "SQLiteLedger", "open_ledger"]

_BUSY_SECONDS = 120.0  # each of 50 waiting processes needs a few milliseconds of disk time
_LARGEST_PART = 10**30  # of a loss: far more than all releases together can cost
_LONGEST_RECORD = 1 << 20  # bytes; SQLite refuses to read or write a longer one
_PARTS = {("table", "events"), ("index", "events_of_entry"), ("table", "balance")}  # no view or trigger runs code
_APPLICATION_ID = 0x5645494C  # "VEIL", in the file header: tells a ledger from any other database
_TABLES = f"""
    BEGIN IMMEDIATE;
    PRAGMA application_id = {_APPLICATION_ID};
    CREATE TABLE events (number INTEGER PRIMARY KEY, entry INTEGER NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL);
    CREATE INDEX events_of_entry ON events (entry);
    CREATE TABLE balance (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL);
"""
# One operation at a time in a process, and no fork in the middle of one: what SQLite remembers of the locks
# it holds must not be copied into a child.
_OPERATION = threading.RLock()
if hasattr(os, "register_at_fork"):
    _done = _OPERATION.release
    os.register_at_fork(before=_OPERATION.acquire, after_in_parent=_done, after_in_child=_done)


@dataclass(frozen=True)
class Entry:
    """One spend as recorded: public facts only."""

    id: int
    time: str
    what: str
    loss: Loss
    state: Literal["reserved", "committed", "cancelled"]
    neighbours: str
    plan: str
    not_private: str | None


@dataclass(frozen=True)
class Reservation:
    """A spend that already counts; settle it once, by ``commit`` or ``cancel``."""

    ledger: Ledger
    id: int

    def commit(self) -> None:
        """Record that noise was drawn."""
        self.ledger._settle(self.id, "committed")

    def cancel(self) -> None:
        """Give the spend back. Only for input refused before any noise was drawn."""
        self.ledger._settle(self.id, "cancelled")


@dataclass(frozen=True)
class _Balance:
    """What a spend needs to know of all events before it."""

    budget: Loss | None
    spent: Loss
    neighbours: str | None  # of the first entry that counts
    head: str  # the hash of the last event

    def fits(self, loss: Loss) -> bool:
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
    Proof: proofs/ledger.md. Test: tests/privacy/test_ledger.py.
    """

    name: str

    @abstractmethod
    def _connection(self) -> AbstractContextManager[sqlite3.Connection]: ...

    def reserve(
        self, loss: Loss, *, what: str, neighbours: str, plan: str, not_private: str | None = None
    ) -> Reservation:
        """Record ``loss`` as spent, or refuse and record nothing.

        The spend counts from now on, even if it is never committed.

        Parameters
        ----------
        loss : Loss
            What the release costs.
        what, neighbours, plan : str
            What is released and which tables must look alike, in words; the hash of the plan.
        not_private : str, optional
            Why the release carries no guarantee, if it carries none.

        Raises
        ------
        BudgetExceededError
            If the budget does not allow it.
        """
        loss = _checked(loss)
        with self._transaction(write=True) as connection:
            before = _balance(connection)
            if not before.fits(loss):
                left, budget = before.remaining, str(before.budget)
                of = budget if "delta" in budget else budget.removeprefix("epsilon=")
                message = f"insufficient privacy budget: requested {loss}, remaining {left} of {of} ({self.name})."
                raise BudgetExceededError(message, requested=loss, remaining=left)
            if before.budget and before.neighbours not in (None, neighbours):
                raise LedgerError(
                    f"{self.name} counts losses for neighbours {before.neighbours!r}; a loss for "
                    f"{neighbours!r} cannot be added to them. Hint: use another ledger."
                )
            facts = {"what": what, "neighbours": neighbours, "plan": plan, "not_private": not_private}
            try:
                spent = Loss.total((before.spent, loss))
            except VeilwoodError as error:
                raise LedgerError(f"{self.name}: {error}") from None
            entry, head = _append(connection, before.head, {"event": "reserved", "loss": asdict(loss), **facts})
            _keep(connection, _Balance(before.budget, spent, before.neighbours or neighbours, head))
        return Reservation(self, entry)

    def _settle(self, entry: int, state: Literal["committed", "cancelled"]) -> None:
        """Append the event that ends a reservation, once only."""
        with self._transaction(write=True) as connection:
            query = "SELECT body FROM events WHERE entry = ? ORDER BY number DESC LIMIT 1"
            row = connection.execute(query, (entry,)).fetchone()
            found = "missing" if row is None else read_json(row[0])["event"]
            if found != "reserved":
                raise LedgerError(f"entry {entry} of {self.name} is {found}: only a reserved one can be {state}.")
            before = _balance(connection)
            head = _append(connection, before.head, {"event": state}, entry)[1]
            # An unbounded loss cannot be subtracted, so a cancelled one is left out of a new sum.
            after = self._replay(connection)[1] if state == "cancelled" else replace(before, head=head)
            _keep(connection, after)

    @property
    def budget(self) -> Loss | None:
        """The most that can be spent, an (epsilon, delta) pair; None if there is no limit."""
        return self._look().budget

    @property
    def spent(self) -> Loss:
        """The sum of all entries that were not cancelled."""
        return self._look().spent

    @property
    def remaining(self) -> Loss | None:
        """The largest loss known to fit into what is left; None if there is no limit."""
        return self._look().remaining

    def can_afford(self, loss: Loss) -> bool:
        """Whether the budget has room for ``loss`` now; another process may be faster."""
        return self._look().fits(_checked(loss))

    def entries(self) -> list[Entry]:
        """Return every spend in order, the cancelled ones too."""
        with self._transaction() as connection:
            return self._replay(connection)[0]

    def verify(self) -> str:
        """Recompute hashes, states and the running total; return the hash of the last event.

        An edit, a gap or a wrong total raises LedgerError. Somebody who rewrites the whole file, or puts back
        an older copy, is found only by comparing the returned hash with one noted elsewhere.
        """
        with self._transaction() as connection:
            damage = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            balance = self._replay(connection)[1]
            if damage != "ok" or balance != _balance(connection) or not balance.fits(Loss.zero()):
                raise LedgerError(f"{self.name} was altered: its running total is not the sum of its events.")
        return balance.head

    def _replay(self, connection: sqlite3.Connection) -> tuple[list[Entry], _Balance]:
        """Read all events, checking that each follows from those before it."""
        entries: dict[int, Entry] = {}
        budget, head = None, ""
        rows = connection.execute("SELECT number, entry, body, hash FROM events ORDER BY number")
        for expected, (number, entry, body, digest) in enumerate(rows, start=1):
            event = read_json(body)
            state, known = event.pop("event"), entries.get(entry)
            if number != expected or event.pop("entry") != entry or digest != _hash(head, body):
                raise LedgerError(f"{self.name} was altered: event {expected} does not follow the one before it.")
            if state == "opened" and number == 1:
                budget = _read_budget(event["budget"])
            elif state == "reserved" and known is None:
                loss = _loss(event.pop("loss"))
                if not isinstance(entry, int) or not all(isinstance(fact, str | None) for fact in event.values()):
                    raise TypeError("a fact of an entry is no text")
                entries[entry] = Entry(id=entry, state=state, loss=loss, **event)
            elif state in ("committed", "cancelled") and known is not None and known.state == "reserved":
                entries[entry] = replace(known, state=state)
            else:
                raise LedgerError(f"{self.name} was altered: event {expected} is out of place.")
            head = digest
        counted = [entry for entry in entries.values() if entry.state != "cancelled"]
        spent = Loss.total(entry.loss for entry in counted)
        neighbours = counted[0].neighbours if counted else None
        return list(entries.values()), _Balance(budget, spent, neighbours, head)

    def __str__(self) -> str:
        budget = self.budget
        lines = [f"{self.name}: spent {self.spent}, {'no limit' if budget is None else f'budget {budget}'}"]
        for e in self.entries():
            mark = "" if e.not_private is None else f", NOT PRIVATE: {e.not_private}"
            lines.append(f"{e.id:>6}  {e.time}  {e.state:<9}  {e.loss}  {e.what} ({e.neighbours}){mark}")
        return "\n".join(lines)

    # One ledger, never a copy of it: scikit-learn clones and deep-copies parameters.
    def __sklearn_clone__(self) -> Self:
        return self

    __copy__ = __sklearn_clone__

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def _look(self) -> _Balance:
        with self._transaction() as connection:
            return _balance(connection)

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        """All or nothing; a writer holds the lock before it reads, so nobody can spend in between."""
        try:
            with _OPERATION, self._connection() as connection:
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except LedgerError:
            raise
        except sqlite3.Error as error:
            raise LedgerError(f"{self.name} cannot be {'written' if write else 'read'}: {error}.") from error
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise LedgerError(f"{self.name} is damaged: a record cannot be read ({shown(error)}).") from error


class MemoryLedger(Ledger):
    """A ledger that lives as long as this process; it refuses to follow work into other processes.

    Parameters
    ----------
    epsilon, delta : number, optional
        The budget. Without epsilon, spends are recorded and nothing is refused.

    Examples
    --------
    >>> ledger = MemoryLedger(epsilon=1)
    >>> spend = ledger.reserve(Loss.pure(Fraction(7, 10)), what="leaves", neighbours="one row", plan="1f3a")
    >>> spend.commit()
    >>> ledger.reserve(Loss.pure(Fraction(1)), what="leaves", neighbours="one row", plan="1f3a")
    Traceback (most recent call last):
    ...
    veilwood.errors.BudgetExceededError: insufficient privacy budget: requested epsilon=1, \
remaining epsilon=0.3 of 1 (ledger in memory).
    """

    name = "ledger in memory"

    def __init__(self, epsilon: object = None, delta: object = 0) -> None:
        self._process = os.getpid()
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        _create(self._database, _budget(epsilon, delta))

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process:
            self.__reduce__()
        yield self._database

    def __reduce__(self) -> NoReturn:
        raise LedgerError(
            "a ledger in memory cannot follow work into other processes: use a SQLite ledger. Hint: ledger='spends.db'."
        )


class SQLiteLedger(Ledger):
    """A ledger in a file, shared by any number of processes and threads of one machine.

    Every operation opens the file anew, so the object can be forked, pickled and used from any thread.

    Parameters
    ----------
    path : str or path
        The file; it is made, readable by its owner only, if it is not there.
    epsilon, delta : number, optional
        The budget of a new ledger; none means no limit. An existing ledger keeps its own, and a different
        one is refused.
    """

    def __init__(self, path: str | os.PathLike[str], epsilon: object = None, delta: object = None) -> None:
        self.path = Path(os.path.abspath(path))
        self.name = f"ledger {shorten(self.path.name)}"
        asked = _budget(epsilon, delta or 0)
        if os.path.isdir(self.path):
            raise LedgerError(f"{self.path} is a folder. Hint: give the path of a file, such as spends.db.")
        if not os.path.exists(self.path):
            self._make(asked)
        with self._transaction() as connection:
            if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
                raise LedgerError(f"{self.path} is not a ledger. Hint: give the path of a new file.")
            if set(connection.execute("SELECT type, name FROM sqlite_master LIMIT 10")) != _PARTS:
                raise LedgerError(f"{self.name} is damaged: it holds other tables than a ledger.")
        if asked is not None and asked != self.budget:
            raise LedgerError(
                f"{self.name} was made with the budget {self.budget or 'without limit'}, not {asked}. "
                "Hint: leave epsilon and delta out to open it as it is, or give the path of a new file."
            )

    def _make(self, budget: Loss | None) -> None:
        """Write the new ledger aside and link it in whole, so that no process ever sees half of one."""
        try:
            handle, draft = tempfile.mkstemp(prefix=self.path.name, suffix=".new", dir=self.path.parent)
            os.close(handle)
            try:
                with closing(_connect(Path(draft))) as connection:
                    _create(connection, budget)
                with suppress(FileExistsError):  # another process was faster: use its ledger
                    os.link(draft, self.path)
            finally:
                os.unlink(draft)
            if os.name == "posix":  # the name must survive a power failure, as the content does
                folder = os.open(self.path.parent, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
        except (OSError, ValueError, sqlite3.Error) as error:  # ValueError: the name holds a null character
            reason = getattr(error, "strerror", None) or error
            raise LedgerError(f"{self.name} cannot be made in {shown(str(self.path.parent))}: {reason}.") from error

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(_connect(self.path)) as connection:
            yield connection

    def __repr__(self) -> str:
        return f"SQLiteLedger({str(self.path)!r})"


def open_ledger(ledger: Ledger | str | os.PathLike[str] | None) -> Ledger:
    """Return the ledger a user means: none (a new one in memory, without limit), a ledger, or a file.

    >>> open_ledger(None).budget is None
    True
    """
    if ledger is None:
        return MemoryLedger()
    if isinstance(ledger, Ledger):
        return ledger
    if isinstance(ledger, str | os.PathLike):
        path = os.fspath(ledger).removeprefix("sqlite:///")
        if path and not re.match(r"\w+:", path[1:]):  # from the second letter on: C:\ is a path
            if not os.path.exists(path):
                warnings.warn(
                    f"there was no ledger {shown(path)}: a new one without a limit was made. Hint: if the path is "
                    "mistyped, nothing was charged where it should be; SQLiteLedger(path, epsilon=...) makes one with "
                    "a limit.",
                    PrivacyWarning,
                    stacklevel=3,
                )
            return SQLiteLedger(path)
    raise LedgerError(
        f"ledger={shown(ledger)} is not understood. Hint: a path such as 'spends.db' or 'sqlite:///spends.db'."
    )


def _connect(path: Path) -> sqlite3.Connection:
    """Open an existing file: mode=rw never makes one, so a ledger that was removed is not born again empty."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_RECORD)
    # EXTRA also flushes the folder after the rollback journal is deleted: without it a power failure just
    # after COMMIT could bring the journal back and undo a spend whose noise was already drawn.
    connection.execute("PRAGMA synchronous = EXTRA")
    return connection


def _create(connection: sqlite3.Connection, budget: Loss | None) -> None:
    connection.executescript(_TABLES)
    event = {"event": "opened", "version": 1, "budget": budget and asdict(budget)}
    _keep(connection, _Balance(budget, Loss.zero(), None, _append(connection, "", event)[1]))
    connection.execute("COMMIT")


def _append(
    connection: sqlite3.Connection, head: str, event: Mapping[str, object], entry: int | None = None
) -> tuple[int, str]:
    """Write an event, which without ``entry`` starts an entry of its own number; return entry and hash."""
    number = int(connection.execute("SELECT coalesce(max(number), 0) + 1 FROM events").fetchone()[0])
    entry = number if entry is None else entry
    body = _canonical({**event, "entry": entry, "time": datetime.now(UTC).isoformat(timespec="milliseconds")})
    digest = _hash(head, body)
    connection.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (number, entry, body, digest))
    return entry, digest


def _keep(connection: sqlite3.Connection, balance: _Balance) -> None:
    connection.execute("INSERT OR REPLACE INTO balance VALUES (1, ?)", (_canonical(asdict(balance)),))


def _balance(connection: sqlite3.Connection) -> _Balance:
    fields = read_json(connection.execute("SELECT body FROM balance").fetchone()[0])
    return _Balance(_read_budget(fields["budget"]), _loss(fields["spent"]), fields["neighbours"], fields["head"])


def _budget(epsilon: object, delta: object) -> Loss | None:
    if epsilon is None:
        if delta:
            raise LedgerError(f"delta={shown(delta)} was given without epsilon. Hint: a budget is epsilon, or both.")
        return None
    budget = requested_loss(epsilon, delta)
    if budget.epsilon is None:
        raise LedgerError(f"epsilon={shown(epsilon)} is no budget. Hint: leave epsilon out for a ledger without limit.")
    return Loss(budget.epsilon, budget.delta)


def _checked(loss: Loss) -> Loss:
    """Return ``loss`` in exact numbers; a negative part would be a refund and is refused."""
    parts = {name: part if part is None else exact(part, name) for name, part in asdict(loss).items()}
    if any(part is not None and part < 0 for part in parts.values()):
        raise LedgerError(f"loss={shown(loss)} has a negative part: a spend cannot be negative.")
    return _loss({name: part if part is None else str(part) for name, part in parts.items()})


def _loss(parts: Mapping[str, Any]) -> Loss:
    """Read a loss as it stands in a record."""
    read = {name: part if part is None else rational(part, name, MOST_DIGITS_OF_A_SUM) for name, part in parts.items()}
    if any(part is not None and part > _LARGEST_PART for part in read.values()):
        raise VeilwoodError("a loss is larger than that of any release.")
    return Loss(**read)  # type: ignore[arg-type]


def _read_budget(parts: Mapping[str, Any] | None) -> Loss | None:
    """Read a budget as it stands in a record."""
    budget = None if parts is None else _loss(parts)
    if budget is not None and budget.epsilon is not None:
        check_budget(budget.epsilon, budget.delta)
    return budget


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _hash(previous: str, body: str) -> str:
    return hashlib.sha256((previous + body).encode()).hexdigest()
