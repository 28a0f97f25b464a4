# SPDX-License-Identifier: Apache-2.0
"""A ledger in PostgreSQL, shared by any number of machines; needs the extra ``service``.

Every ledger has a schema of its own in the database, with the same two tables, the same events and the same chain of
hashes as a file of SQLite. What is granted and refused is decided in ``ledger_rules``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag

from veilwood.errors import LedgerError, SetupError
from veilwood.privacy import chain
from veilwood.privacy.chain import Chain, Connection
from veilwood.privacy.ledger_rules import Ledger, checked_budget, fact
from veilwood.privacy.loss import Loss
from veilwood.wording import shown

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresLedger"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_FIRST_WAIT_SECONDS = 10
_LOCK_WAIT = "120s"
_LOCK_OF_MAKERS = 0x5645494C  # one process at a time makes a ledger
_TABLES = (
    "CREATE TABLE events (number BIGINT PRIMARY KEY, entry BIGINT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE INDEX events_of_entry ON events (entry)",
    "CREATE TABLE balance (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL)",
)


@dataclass(frozen=True)
class _Statements:
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
    of : str, optional
        Whom it protects, in words. Recorded once; a different one is refused.
    create : bool
        Make the ledger if it is not there; otherwise that is an error.
    """

    def __init__(
        self, address: str, epsilon: object = None, delta: object = None, of: str | None = None, *, create: bool = True
    ) -> None:
        self._address, name = urldefrag(address)
        if not _NAME.fullmatch(name):
            raise LedgerError(
                f"a ledger in PostgreSQL is not called {shown(name)}. Hint: postgresql://host/database#claims, with a "
                "name of up to 40 small letters, digits and underscores."
            )
        self.name, self._schema = f"ledger {name}", f"veilwood_ledger_{name}"
        self._chain, self._one_at_a_time = Chain(self.name), threading.RLock()
        asked = checked_budget(epsilon, delta or 0)
        of = None if of is None else fact(of, "of")
        if not self._exists():
            if not create:
                raise LedgerError(f"there is no {self.name} in this database. Hint: veilwood ledger create ADDRESS")
            self._make(asked, of)
        self._open(asked, of)

    def _exists(self) -> bool:
        with self._session(write=False) as session:
            query = "SELECT 1 FROM information_schema.schemata WHERE schema_name = ?"
            return session.execute(query, (self._schema,)).fetchone() is not None

    def _make(self, budget: Loss | None, of: str | None) -> None:
        with self._session(write=True) as session:
            session.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK_OF_MAKERS,))
            if self._exists():
                return  # another process was faster: use its ledger
            session.execute(f"CREATE SCHEMA {self._schema}")
            session.execute(f"SET LOCAL search_path TO {self._schema}")
            for statement in _TABLES:
                session.execute(statement)
            chain.begin(session, budget, of)

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[Connection]:
        with self._one_at_a_time, self._session(write) as session:
            session.execute(f"SET LOCAL search_path TO {self._schema}")
            if write and session.execute("SELECT 1 FROM balance WHERE one = 1 FOR UPDATE").fetchone() is None:
                raise LedgerError(f"{self.name} is damaged: it has no running total.")
            yield session

    @contextmanager
    def _session(self, write: bool) -> Iterator[_Statements]:
        """One transaction on a connection of its own: committed at the end, or undone."""
        psycopg = _driver()
        with self._readable(write, psycopg.Error):
            connection = psycopg.connect(self._address, connect_timeout=_FIRST_WAIT_SECONDS, prepare_threshold=None)
            with connection:
                # A writer sees what others commit while it waits for the lock; a reader sees one moment.
                connection.isolation_level = (
                    psycopg.IsolationLevel.READ_COMMITTED if write else psycopg.IsolationLevel.REPEATABLE_READ
                )
                connection.read_only = not write
                session = _Statements(connection)
                session.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
                if write:
                    session.execute("SET LOCAL synchronous_commit = on")
                    if session.execute("SHOW fsync").fetchone() != ("on",):
                        raise LedgerError(
                            f"{self.name} is on a server that runs with fsync off: a power failure would lose spends. "
                            "Hint: set fsync = on in postgresql.conf."
                        )
                yield session

    def _is_whole(self, connection: Connection) -> bool:
        query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = ?"
        return bool(connection.execute(query, (self._schema,)).fetchone() == (2,))

    def __getstate__(self) -> dict[str, Any]:
        return {"_address": self._address, "name": self.name, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _chain=Chain(state["name"]))  # a copy reads for itself
        self._one_at_a_time = threading.RLock()

    def __repr__(self) -> str:
        return f"PostgresLedger({self.name!r})"  # the address may hold a password


def _driver() -> Any:
    try:
        import psycopg
    except ImportError:
        raise SetupError("a ledger in PostgreSQL needs psycopg. Hint: pip install 'veilwood[service]'") from None
    return psycopg
