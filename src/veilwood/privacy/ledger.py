# SPDX-License-Identifier: Apache-2.0
"""Where the record of what was spent is kept: in memory or in a file of SQLite; PostgreSQL is in ``ledger_postgres``.

What is granted and refused is decided in ``ledger_rules``.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import threading
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from veilwood.errors import LedgerError, PrivacyWarning
from veilwood.privacy import chain
from veilwood.privacy.chain import Balance, Chain, Connection, Entry
from veilwood.privacy.ledger_rules import Ledger, Reservation, checked, checked_budget, fact
from veilwood.privacy.loss import Loss
from veilwood.wording import shorten, shown

__all__ = ["Entry", "Ledger", "MemoryLedger", "Reservation", "SQLiteLedger", "open_ledger"]

_BUSY_SECONDS = 120.0  # each of 50 waiting processes needs a few milliseconds of disk time
_LONGEST_RECORD = 1 << 20  # bytes; SQLite refuses to read or write a longer one
# One operation at a time in a process, and no fork in the middle of one: what SQLite remembers of the locks
# it holds must not be copied into a child.
_OPERATION = threading.RLock()
if hasattr(os, "register_at_fork"):
    _done = _OPERATION.release
    os.register_at_fork(before=_OPERATION.acquire, after_in_parent=_done, after_in_child=_done)


class _Local(Ledger):
    """A ledger of SQLite."""

    @abstractmethod
    def _connection(self) -> AbstractContextManager[sqlite3.Connection]: ...

    def _is_whole(self, connection: Connection) -> bool:
        return bool(connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok")

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        with self._readable(write, sqlite3.Error), _OPERATION, self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")


class MemoryLedger(_Local):
    """A ledger that lives as long as this process; it refuses to follow work into other processes.

    Parameters
    ----------
    epsilon, delta : number, optional
        The budget. Without epsilon, spends are recorded and nothing is refused.
    of : str, optional
        Whom it protects, in words.

    Examples
    --------
    >>> from fractions import Fraction
    >>> ledger = MemoryLedger(epsilon=1)
    >>> spend = ledger.reserve(Loss.pure(Fraction(7, 10)), what="leaves", neighbours="one row", plan="1f3a")
    >>> spend.commit()
    >>> ledger.reserve(Loss.pure(Fraction(1)), what="leaves", neighbours="one row", plan="1f3a")
    Traceback (most recent call last):
    ...
    veilwood.errors.BudgetExceededError: insufficient privacy budget: requested epsilon=1, \
remaining epsilon=0.3 of 1 (ledger in memory). Hint: ask for no more than remains.
    """

    name = "ledger in memory"

    def __init__(self, epsilon: object = None, delta: object = 0, of: str | None = None) -> None:
        self._process, self._chain = os.getpid(), Chain(self.name)
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        chain.create(self._database, checked_budget(epsilon, delta), None if of is None else fact(of, "of"))

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process:
            self.__reduce__()
        yield self._database

    def __reduce__(self) -> NoReturn:
        raise LedgerError(
            "a ledger in memory cannot follow work into other processes: use a SQLite ledger. Hint: ledger='spends.db'."
        )


class NoLedger(Ledger):
    """Stands in where no ledger was given: it knows of one fit, certificates say so, and nothing is chained or kept."""

    name = "ledger in memory"

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def reserve(self, loss: Loss, *, what: str, neighbours: str, plan: str, **facts: Any) -> Reservation:
        """Write the loss down; there is no budget that could refuse it."""
        number, now = len(self._entries) + 1, datetime.now(UTC).isoformat(timespec="milliseconds")
        made = Entry(number, now, what, checked(loss), "reserved", neighbours, plan, facts.pop("not_private", None))
        self._entries[number] = replace(made, **facts)
        return Reservation(self, number)

    def _settle(self, entry: int, state: chain.State, reason: str | None = None) -> None:
        if self._entries[entry].state != "reserved":
            raise LedgerError(f"entry {entry} is settled already.")
        self._entries[entry] = replace(self._entries[entry], state=state, resolution=reason)

    def entries(self) -> list[Entry]:
        """Return every spend in order, the cancelled ones too."""
        return list(self._entries.values())

    def _look(self) -> Balance:
        return Balance(None, chain.total(self.entries()), None, "")

    def _transaction(self, write: bool = False) -> NoReturn:
        raise LedgerError("no ledger was given. Hint: ledger='spends.db' keeps one.")

    def _is_whole(self, connection: Connection) -> bool:
        return True


class SQLiteLedger(_Local):
    """A ledger in a file, shared by any number of processes and threads of one machine.

    Every operation opens the file anew, so the object can be forked, pickled and used from any thread.

    Parameters
    ----------
    path : str or path
        The file; it is made, readable by its owner only, if it is not there.
    epsilon, delta : number, optional
        The budget of a new ledger; none means no limit. An existing ledger keeps its own, and a different
        one is refused.
    of : str, optional
        Whom it protects, in words: "patients of clinic X". Recorded once; a different one is refused.
    """

    def __init__(
        self, path: str | os.PathLike[str], epsilon: object = None, delta: object = None, of: str | None = None
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.name = f"ledger {shorten(self.path.name)}"
        self._chain = Chain(self.name)
        asked = checked_budget(epsilon, delta or 0)
        of = None if of is None else fact(of, "of")
        if os.path.isdir(self.path):
            raise LedgerError(f"{self.path} is a folder. Hint: give the path of a file, such as spends.db.")
        if not os.path.exists(self.path):
            self._make(asked, of)
        with self._transaction() as connection:
            if connection.execute("PRAGMA application_id").fetchone()[0] != chain.APPLICATION_ID:
                raise LedgerError(f"{self.path} is not a ledger. Hint: give the path of a new file.")
            if set(connection.execute("SELECT type, name FROM sqlite_master LIMIT 10")) != chain.PARTS:
                raise LedgerError(f"{self.name} is damaged: it holds other tables than a ledger.")
        self._open(asked, of)

    def _make(self, budget: Loss | None, of: str | None) -> None:
        """Write the new ledger aside and link it in whole, so that no process ever sees half of one."""
        try:
            handle, draft = tempfile.mkstemp(prefix=self.path.name, suffix=".new", dir=self.path.parent)
            os.close(handle)
            try:
                with closing(_connect(Path(draft))) as connection:
                    chain.create(connection, budget, of)
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

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_chain": Chain(self.name)}  # what was read stays here: a copy reads for itself

    def __repr__(self) -> str:
        return f"SQLiteLedger({str(self.path)!r})"


def open_ledger(ledger: Ledger | str | os.PathLike[str] | None) -> Ledger:
    """Return the ledger a user means: none (a new one in memory, without limit), a ledger, or a file.

    >>> open_ledger(None).budget is None
    True
    """
    if ledger is None:
        return NoLedger()
    if isinstance(ledger, Ledger):
        return ledger
    if isinstance(ledger, str | os.PathLike):
        path = os.fspath(ledger).removeprefix("sqlite:///")
        if path.startswith(("postgresql://", "postgres://")):
            from veilwood.privacy.ledger_postgres import PostgresLedger

            return PostgresLedger(path)
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
        f"ledger={shown(ledger)} is not understood. Hint: a path such as 'spends.db', or 'postgresql://host/database#name'."
    )


def _connect(path: Path) -> sqlite3.Connection:
    """Open an existing file: mode=rw never makes one, so a ledger that was removed is not born again empty."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_RECORD)
    # EXTRA also flushes the folder after the rollback journal is deleted: without it a power failure just
    # after COMMIT could bring the journal back and undo a spend whose noise was already drawn.
    connection.execute("PRAGMA synchronous = EXTRA")
    return connection
