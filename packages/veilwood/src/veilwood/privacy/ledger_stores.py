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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urldefrag

from veilwood.errors import LedgerError, PrivacyWarning, SetupError, short_repr, shorten_text
from veilwood.privacy import ledger as chain
from veilwood.privacy.ledger import (
    Balance,
    Connection,
    Entry,
    HashChain,
    Ledger,
    Reservation,
    exact_loss,
    requested_budget,
    require_line,
)
from veilwood.privacy.loss import Loss

if TYPE_CHECKING:
    import psycopg

__all__ = ["Entry", "Ledger", "MemoryLedger", "PostgresLedger", "Reservation", "SQLiteLedger", "open_ledger"]


_BUSY_TIMEOUT_SECONDS = 120.0  # each of 50 waiting processes needs a few milliseconds of disk time
_MAX_RECORD_BYTES = 1 << 20  # bytes; SQLite refuses to read or write a longer one
# One operation at a time in a process, and no fork in the middle of one: what SQLite remembers of the locks
# it holds must not be copied into a child.
_OPERATION_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    _done = _OPERATION_LOCK.release
    os.register_at_fork(before=_OPERATION_LOCK.acquire, after_in_parent=_done, after_in_child=_done)


class _SqliteLedgerBase(Ledger):
    """A ledger of SQLite."""

    @abstractmethod
    def _open_connection(self) -> AbstractContextManager[sqlite3.Connection]: ...

    def _is_intact(self, connection: Connection) -> bool:
        return bool(connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok")

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        with self._translate_errors(write, sqlite3.Error), _OPERATION_LOCK, self._open_connection() as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")


class MemoryLedger(_SqliteLedgerBase):
    """A ledger that lives as long as this process; it refuses to follow work into other processes.

    Parameters
    ----------
    epsilon, delta : number, optional
        The budget. Without epsilon, spends are recorded and nothing is refused.
    population : str, optional
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

    def __init__(self, epsilon: object = None, delta: object = 0, population: str | None = None) -> None:
        self._process_id, self._chain = os.getpid(), HashChain(self.name)
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        chain.create_tables(
            self._database,
            requested_budget(epsilon, delta),
            None if population is None else require_line(population, "of"),
        )

    @contextmanager
    def _open_connection(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process_id:
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
        made = Entry(number, now, what, exact_loss(loss), "reserved", neighbours, plan, facts.pop("not_private", None))
        self._entries[number] = replace(made, **facts)
        return Reservation(self, number)

    def _settle(self, entry: int, state: chain.EntryState, reason: str | None = None) -> None:
        if self._entries[entry].state != "reserved":
            raise LedgerError(f"entry {entry} is settled already.")
        self._entries[entry] = replace(self._entries[entry], state=state, resolution=reason)

    def entries(self) -> list[Entry]:
        """Return every spend in order, the cancelled ones too."""
        return list(self._entries.values())

    def _read_balance(self) -> Balance:
        return Balance(None, chain.total_loss(self.entries()), None, "")

    def _transaction(self, write: bool = False) -> NoReturn:
        raise LedgerError("no ledger was given. Hint: ledger='spends.db' keeps one.")

    def _is_intact(self, connection: Connection) -> bool:
        return True


class SQLiteLedger(_SqliteLedgerBase):
    """A ledger in a file, shared by any number of processes and threads of one machine.

    Every operation opens the file anew, so the object can be forked, pickled and used from any thread.

    Parameters
    ----------
    path : str or path
        The file; it is made, readable by its owner only, if it is not there.
    epsilon, delta : number, optional
        The budget of a new ledger; none means no limit. An existing ledger keeps its own, and a different
        one is refused.
    population : str, optional
        Whom it protects, in words: "patients of clinic X". Recorded once; a different one is refused.
    """

    def __init__(
        self, path: str | os.PathLike[str], epsilon: object = None, delta: object = None, population: str | None = None
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.name = f"ledger {shorten_text(self.path.name)}"
        self._chain = HashChain(self.name)
        asked = requested_budget(epsilon, delta or 0)
        population = None if population is None else require_line(population, "of")
        if os.path.isdir(self.path):
            raise LedgerError(f"{self.path} is a folder. Hint: give the path of a file, such as spends.db.")
        if not os.path.exists(self.path):
            self._create_file(asked, population)
        with self._transaction() as connection:
            if connection.execute("PRAGMA application_id").fetchone()[0] != chain.APPLICATION_ID:
                raise LedgerError(f"{self.path} is not a ledger. Hint: give the path of a new file.")
            if set(connection.execute("SELECT type, name FROM sqlite_master LIMIT 10")) != chain.SCHEMA_OBJECTS:
                raise LedgerError(f"{self.name} is damaged: it holds other tables than a ledger.")
        self._check_settings(asked, population)

    def _create_file(self, budget: Loss | None, population: str | None) -> None:
        """Write the new ledger aside and link it in whole, so that no process ever sees half of one."""
        try:
            handle, draft = tempfile.mkstemp(prefix=self.path.name, suffix=".new", dir=self.path.parent)
            os.close(handle)
            try:
                with closing(_connect_file(Path(draft))) as connection:
                    chain.create_tables(connection, budget, population)
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
            raise LedgerError(
                f"{self.name} cannot be made in {short_repr(str(self.path.parent))}: {reason}."
            ) from error

    @contextmanager
    def _open_connection(self) -> Iterator[sqlite3.Connection]:
        with closing(_connect_file(self.path)) as connection:
            yield connection

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_chain": HashChain(self.name)}  # what was read stays here: a copy reads for itself

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
            return PostgresLedger(path)
        if path and not re.match(r"\w+:", path[1:]):  # from the second letter on: C:\ is a path
            if not os.path.exists(path):
                warnings.warn(
                    f"there was no ledger {short_repr(path)}: a new one without a limit was made. Hint: if the path is "
                    "mistyped, nothing was charged where it should be; SQLiteLedger(path, epsilon=...) makes one with "
                    "a limit.",
                    PrivacyWarning,
                    stacklevel=3,
                )
            return SQLiteLedger(path)
    raise LedgerError(
        f"ledger={short_repr(ledger)} is not understood. Hint: a path such as 'spends.db', or 'postgresql://host/database#name'."
    )


def _connect_file(path: Path) -> sqlite3.Connection:
    """Open an existing file: mode=rw never makes one, so a ledger that was removed is not born again empty."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_RECORD_BYTES)
    # EXTRA also flushes the folder after the rollback journal is deleted: without it a power failure just
    # after COMMIT could bring the journal back and undo a spend whose noise was already drawn.
    connection.execute("PRAGMA synchronous = EXTRA")
    return connection


_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,39}")
_CONNECT_TIMEOUT_SECONDS = 10
_LOCK_TIMEOUT = "120s"
_CREATION_LOCK_ID = 0x5645494C  # one process at a time makes a ledger
_CREATE_TABLES = (
    "CREATE TABLE events (number BIGINT PRIMARY KEY, entry BIGINT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE INDEX events_of_entry ON events (entry)",
    "CREATE TABLE balance (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL)",
)


@dataclass(frozen=True)
class _PsycopgConnection:
    """A connection of psycopg that takes the statements of ``chain``, which hold no percent sign."""

    connection: psycopg.Connection[tuple[Any, ...]]

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.connection.execute(query.replace("?", "%s").encode(), parameters)


class PostgresLedger(Ledger):
    """A ledger in PostgreSQL, for several processes and machines.

    Writers stand in line: each locks the row of the running total before it reads, and reads only what was committed
    by then, so that two callers cannot spend the same rest. A spend is on disk before noise is drawn: every transaction
    asks for ``synchronous_commit``, and a server that runs with ``fsync`` off is refused. Every operation opens a
    connection of its own, so the object can be pickled and used from any thread. A pickle holds the address: keep
    passwords out of it, in a ``.pgpass`` file or the environment.

    Parameters
    ----------
    address : str
        ``postgresql://user@host/database#name``. The name is that of the ledger; one database holds many.
    epsilon, delta : number, optional
        The budget of a new ledger; none means no limit. An existing ledger keeps its own, and a different
        one is refused.
    population : str, optional
        Whom it protects, in words. Recorded once; a different one is refused.
    create : bool
        Make the ledger if it is not there; otherwise that is an error.
    """

    def __init__(
        self,
        address: str,
        epsilon: object = None,
        delta: object = None,
        population: str | None = None,
        *,
        create: bool = True,
    ) -> None:
        self._address, name = urldefrag(address)
        if not _NAME_PATTERN.fullmatch(name):
            raise LedgerError(
                f"a ledger in PostgreSQL is not called {short_repr(name)}. Hint: postgresql://host/database#claims, with a "
                "name of up to 40 small letters, digits and underscores."
            )
        self.name, self._schema = f"ledger {name}", f"veilwood_ledger_{name}"
        self._chain, self._operation_lock = HashChain(self.name), threading.RLock()
        asked = requested_budget(epsilon, delta or 0)
        population = None if population is None else require_line(population, "of")
        if not self._schema_exists():
            if not create:
                raise LedgerError(f"there is no {self.name} in this database. Hint: veilwood ledger create ADDRESS")
            self._create_schema(asked, population)
        self._check_settings(asked, population)

    def _schema_exists(self) -> bool:
        with self._open_session(write=False) as session:
            query = "SELECT 1 FROM information_schema.schemata WHERE schema_name = ?"
            return session.execute(query, (self._schema,)).fetchone() is not None

    def _create_schema(self, budget: Loss | None, population: str | None) -> None:
        with self._open_session(write=True) as session:
            session.execute("SELECT pg_advisory_xact_lock(?)", (_CREATION_LOCK_ID,))
            if self._schema_exists():
                return  # another process was faster: use its ledger
            session.execute(f"CREATE SCHEMA {self._schema}")
            session.execute(f"SET LOCAL search_path TO {self._schema}")
            for statement in _CREATE_TABLES:
                session.execute(statement)
            chain.append_genesis(session, budget, population)

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[Connection]:
        with self._operation_lock, self._open_session(write) as session:
            session.execute(f"SET LOCAL search_path TO {self._schema}")
            if write and session.execute("SELECT 1 FROM balance WHERE one = 1 FOR UPDATE").fetchone() is None:
                raise LedgerError(f"{self.name} is damaged: it has no running total.")
            yield session

    @contextmanager
    def _open_session(self, write: bool) -> Iterator[_PsycopgConnection]:
        """One transaction on a connection of its own: committed at the end, or undone."""
        psycopg = _import_psycopg()
        with self._translate_errors(write, psycopg.Error):
            connection = psycopg.connect(
                self._address, connect_timeout=_CONNECT_TIMEOUT_SECONDS, prepare_threshold=None
            )
            with connection:
                # A writer sees what others commit while it waits for the lock; a reader sees one moment.
                connection.isolation_level = (
                    psycopg.IsolationLevel.READ_COMMITTED if write else psycopg.IsolationLevel.REPEATABLE_READ
                )
                connection.read_only = not write
                session = _PsycopgConnection(connection)
                session.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                if write:
                    session.execute("SET LOCAL synchronous_commit = on")
                    if session.execute("SHOW fsync").fetchone() != ("on",):
                        raise LedgerError(
                            f"{self.name} is on a server that runs with fsync off: a power failure would lose spends. "
                            "Hint: set fsync = on in postgresql.conf."
                        )
                yield session

    def _is_intact(self, connection: Connection) -> bool:
        query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = ?"
        return bool(connection.execute(query, (self._schema,)).fetchone() == (2,))

    def __getstate__(self) -> dict[str, Any]:
        return {"_address": self._address, "name": self.name, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _chain=HashChain(state["name"]))  # a copy reads for itself
        self._operation_lock = threading.RLock()

    def __repr__(self) -> str:
        return f"PostgresLedger({self.name!r})"  # the address may hold a password


def _import_psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise SetupError("a ledger in PostgreSQL needs psycopg. Hint: pip install 'veilwood[service]'") from None
    return psycopg
