# SPDX-License-Identifier: Apache-2.0
"""Storage of ledgers in memory, SQLite files and PostgreSQL.

``privacy.ledger`` decides which charges are granted. This module makes a granted charge durable before it is used, and
allows only one writer at a time.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urldefrag

from veilwood.errors import LedgerError, PrivacyWarning, SetupError, short_repr, shorten_text
from veilwood.privacy import hash_chain
from veilwood.privacy import ledger as ledgers
from veilwood.privacy.hash_chain import ChainedLedger, Connection, HashChain
from veilwood.privacy.ledger import Durability, Ledger
from veilwood.privacy.loss import Loss

if TYPE_CHECKING:
    import psycopg


# A view or trigger in a ledger's database would run code, so a file with any other object is rejected.
_SCHEMA_OBJECTS = {("table", "events"), ("index", "events_of_entry"), ("table", "balance")}
_CREATE_TABLES = (
    "CREATE TABLE events ("
    "number {integer} PRIMARY KEY, entry {integer} NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE INDEX events_of_entry ON events (entry)",
    "CREATE TABLE balance (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL)",
)
_APPLICATION_ID = 0x5645494C  # "VEIL", in the file header: distinguishes a ledger from other SQLite databases
_BUSY_TIMEOUT_SECONDS = 120.0  # enough for 50 waiting processes, each of which needs a few milliseconds of disk time
_MAX_RECORD_BYTES = 1 << 20  # bytes; SQLite refuses to read or write a longer one
# One operation at a time in a process, and no fork during one: SQLite's record of the locks that it holds must not be
# copied into a child.
_OPERATION_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    _done = _OPERATION_LOCK.release
    os.register_at_fork(before=_OPERATION_LOCK.acquire, after_in_parent=_done, after_in_child=_done)


class _SqliteLedgerBase(ChainedLedger):
    """Ledger in an SQLite database."""

    @abstractmethod
    def _open_connection(self) -> AbstractContextManager[sqlite3.Connection]: ...

    def _is_intact(self, connection: Connection) -> bool:
        return bool(connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok")

    @contextmanager
    def _open_transaction(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        with self._translate_errors(write, sqlite3.Error), _OPERATION_LOCK, self._open_connection() as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")


class MemoryLedger(_SqliteLedgerBase):
    """Ledger that exists only in this process. It cannot be used in another process.

    Parameters
    ----------
    epsilon, delta : number, optional
        The budget. Without epsilon, charges are recorded and none is rejected.
    population : str, optional
        Description of the people whom the ledger protects.

    Examples
    --------
    >>> from fractions import Fraction
    >>> ledger = MemoryLedger(epsilon=1)
    >>> spend = ledger.reserve(Loss.pure(Fraction(7, 10)), what="leaves", neighbours="one row", plan="1f3a")
    >>> spend.commit()
    >>> ledger.reserve(Loss.pure(Fraction(1)), what="leaves", neighbours="one row", plan="1f3a")
    Traceback (most recent call last):
    ...
    veilwood.errors.BudgetExceededError: insufficient privacy budget in ledger in memory: requested epsilon=1, \
remaining epsilon=0.3 (of 1). Hint: request at most epsilon=0.3.
    """

    name = "ledger in memory"
    durability: Durability = "memory"

    def __init__(self, epsilon: object = None, delta: object = 0, population: str | None = None) -> None:
        self._process_id, self._chain = os.getpid(), HashChain(self.name)
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        _create_tables(self._database, ledgers.requested_budget(epsilon, delta), _optional_line(population))

    @contextmanager
    def _open_connection(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process_id:
            self.__reduce__()
        yield self._database

    def __reduce__(self) -> NoReturn:
        raise LedgerError(
            "a ledger in memory cannot be used in another process: each copy could spend the same budget. Hint: pass a "
            "file, ledger='spends.db'."
        )


class SQLiteLedger(_SqliteLedgerBase):
    """Ledger in a file, shared by any number of processes and threads on one machine.

    Every operation opens the file again, so the object can be forked, pickled and used from any thread.

    Parameters
    ----------
    path : str or path
        The file. A missing file is created, readable by its owner only.
    epsilon, delta : number, optional
        The budget of a new ledger; no epsilon means no limit. An existing ledger keeps its budget, and a different one
        raises LedgerError.
    population : str, optional
        Description of the people whom the ledger protects, such as "patients of clinic X". Recorded once; a different
        description raises LedgerError.

    See Also
    --------
    open_ledger : The ledger at a path or address.
    """

    def __init__(
        self, path: str | os.PathLike[str], epsilon: object = None, delta: object = None, population: str | None = None
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.name = f"ledger {shorten_text(self.path.name)}"
        self._chain = HashChain(self.name)
        budget, population = ledgers.requested_budget(epsilon, delta or 0), _optional_line(population)
        if os.path.isdir(self.path):
            raise LedgerError(f"{self.path} is a folder. Hint: pass the path of a file, such as spends.db.")
        if not os.path.exists(self.path):
            self._create_file(budget, population)
        with self._open_transaction() as connection:
            if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
                raise LedgerError(f"{self.path} is not a ledger. Hint: pass the path of a ledger or of a new file.")
            if set(connection.execute("SELECT type, name FROM sqlite_master LIMIT 10")) != _SCHEMA_OBJECTS:
                raise LedgerError(
                    f"{self.name} is damaged: its tables are not those of a ledger. Hint: restore a copy that verifies."
                )
        self._check_settings(budget, population)

    def _create_file(self, budget: Loss | None, population: str | None) -> None:
        """Write the new ledger to a temporary file and link it, so that no process sees an incomplete ledger."""
        try:
            handle, draft = tempfile.mkstemp(prefix=self.path.name, suffix=".new", dir=self.path.parent)
            os.close(handle)
            try:
                with closing(_connect_file(Path(draft))) as connection:
                    _create_tables(connection, budget, population)
                with suppress(FileExistsError):  # another process was faster: use its ledger
                    os.link(draft, self.path)
            finally:
                os.unlink(draft)
            if os.name == "posix":  # flush the folder, so that the file name survives a power failure like the content
                folder = os.open(self.path.parent, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
        except (OSError, ValueError, sqlite3.Error) as error:  # ValueError: a null character in the path
            reason = getattr(error, "strerror", None) or error
            raise LedgerError(
                f"{self.name} cannot be created in {short_repr(str(self.path.parent))}: {reason}. Hint: choose "
                "another folder."
            ) from error

    @contextmanager
    def _open_connection(self) -> Iterator[sqlite3.Connection]:
        with closing(_connect_file(self.path)) as connection:
            yield connection

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_chain": HashChain(self.name)}  # a copy verifies the events for itself

    def __repr__(self) -> str:
        return f"SQLiteLedger({str(self.path)!r})"


def open_ledger(ledger: Ledger | str | os.PathLike[str] | None) -> Ledger:
    """Return the ledger at a path or address, ``NO_LEDGER`` for None, or the argument if it is a ledger.

    >>> open_ledger(None)
    NO_LEDGER
    """
    if ledger is None:
        return ledgers.NO_LEDGER
    if isinstance(ledger, Ledger):
        return ledger
    if isinstance(ledger, str | os.PathLike):
        path = os.fspath(ledger).removeprefix("sqlite:///")
        if path.startswith(("postgresql://", "postgres://")):
            return PostgresLedger(path)
        if path and not re.match(r"\w+:", path[1:]):  # from the second letter on: C:\ is a path
            if not os.path.exists(path):
                warnings.warn(
                    f"the ledger {short_repr(path)} did not exist: created without a limit. Hint: check the path, "
                    "or create a ledger with a limit, SQLiteLedger(path, epsilon=...).",
                    PrivacyWarning,
                    stacklevel=3,
                )
            return SQLiteLedger(path)
    raise LedgerError(
        f"ledger={short_repr(ledger)} is not a ledger. Hint: pass a path such as 'spends.db', or "
        "'postgresql://host/database#name'."
    )


def _connect_file(path: Path) -> sqlite3.Connection:
    """Open an existing file. mode=rw never creates a file, so a deleted ledger does not reappear empty."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_RECORD_BYTES)
    # EXTRA also flushes the folder after the rollback journal is deleted. Without it a power failure just after COMMIT
    # could restore the journal and undo a charge whose noise was already drawn.
    connection.execute("PRAGMA synchronous = EXTRA")
    return connection


def _create_tables(connection: sqlite3.Connection, budget: Loss | None, population: str | None) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    for statement in _CREATE_TABLES:
        connection.execute(statement.format(integer="INTEGER"))
    hash_chain.append_genesis(connection, budget, population)
    connection.execute("COMMIT")


def _optional_line(population: str | None) -> str | None:
    return None if population is None else ledgers.require_line(population, "population")


_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,39}")
_CONNECT_TIMEOUT_SECONDS = 10
_LOCK_TIMEOUT = "120s"  # as _BUSY_TIMEOUT_SECONDS
_CREATION_LOCK_ID = 0x5645494C  # of the advisory lock: one process at a time creates a ledger


@dataclass(frozen=True)
class _PsycopgConnection:
    """Psycopg connection for the statements of ``privacy.ledger``, which contain no percent sign."""

    connection: psycopg.Connection[tuple[Any, ...]]

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.connection.execute(query.replace("?", "%s").encode(), parameters)


class PostgresLedger(ChainedLedger):
    """Ledger in PostgreSQL, for several processes and machines.

    Each writer locks the row of the running total before it reads, and reads only committed events, so two callers
    cannot spend the same remainder. A charge is on disk before noise is drawn: every writing transaction requires
    ``synchronous_commit``, and a server with ``fsync`` off is rejected. Each operation opens its own connection, so the
    object can be pickled and used from any thread. A pickle contains the address: keep passwords in a ``.pgpass`` file
    or the environment instead.

    Parameters
    ----------
    address : str
        ``postgresql://user@host/database#name``, where name is the ledger's name. A database can hold many ledgers.
    epsilon, delta : number, optional
        The budget of a new ledger; no epsilon means no limit. An existing ledger keeps its budget, and a different one
        raises LedgerError.
    population : str, optional
        Description of the people whom the ledger protects. Recorded once; a different one raises LedgerError.
    create : bool
        Create the ledger if it does not exist; otherwise raise LedgerError.
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
                f"{short_repr(name)} is not a valid ledger name in PostgreSQL. Hint: use up to 40 lowercase "
                "letters, digits and underscores, as in postgresql://host/database#claims."
            )
        self.name, self._schema = f"ledger {name}", f"veilwood_ledger_{name}"
        self._chain, self._operation_lock = HashChain(self.name), threading.RLock()
        budget, population = ledgers.requested_budget(epsilon, delta or 0), _optional_line(population)
        if not self._schema_exists():
            if not create:
                raise LedgerError(
                    f"there is no {self.name} in this database. Hint: run veilwood ledger create ADDRESS."
                )
            self._create_schema(budget, population)
        self._check_settings(budget, population)

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
                session.execute(statement.format(integer="BIGINT"))
            hash_chain.append_genesis(session, budget, population)

    @contextmanager
    def _open_transaction(self, write: bool = False) -> Iterator[Connection]:
        with self._operation_lock, self._open_session(write) as session:
            session.execute(f"SET LOCAL search_path TO {self._schema}")
            if write and session.execute("SELECT 1 FROM balance WHERE one = 1 FOR UPDATE").fetchone() is None:
                raise LedgerError(
                    f"{self.name} is damaged: it has no running total. Hint: restore a copy that verifies."
                )
            yield session

    @contextmanager
    def _open_session(self, write: bool) -> Iterator[_PsycopgConnection]:
        """Open a transaction on a new connection. Commit at the end, or roll back after an error."""
        try:
            import psycopg
        except ImportError:
            raise SetupError(
                "a ledger in PostgreSQL needs psycopg. Hint: run pip install 'veilwood[service]'."
            ) from None
        with self._translate_errors(write, psycopg.Error):
            connection = psycopg.connect(
                self._address, connect_timeout=_CONNECT_TIMEOUT_SECONDS, prepare_threshold=None
            )
            with connection:
                # A writer sees commits made while it waits for the lock; a reader sees one snapshot.
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
                            f"{self.name} is on a server that runs with fsync off: a power failure could lose charges. "
                            "Hint: set fsync = on in postgresql.conf."
                        )
                yield session

    def _is_intact(self, connection: Connection) -> bool:
        query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = ?"
        return bool(connection.execute(query, (self._schema,)).fetchone() == (2,))

    def __getstate__(self) -> dict[str, Any]:
        return {"_address": self._address, "name": self.name, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _chain=HashChain(state["name"]))  # a copy verifies the events for itself
        self._operation_lock = threading.RLock()

    def __repr__(self) -> str:
        return f"PostgresLedger({self.name!r})"  # the address may hold a password
