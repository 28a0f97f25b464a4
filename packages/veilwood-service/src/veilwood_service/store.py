# SPDX-License-Identifier: Apache-2.0
"""Database of the service: records and ledgers in one place, so that an outcome and its charge commit together.

One SQLAlchemy engine, for SQLite or PostgreSQL. ``Store.transaction`` can be nested: everything inside the outermost
one commits at its end, or nothing does. What people do is recorded in ``events``, to which rows are only added.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Column, Integer, LargeBinary, String, Text, UniqueConstraint

from veilwood.errors import ParameterError, SetupError
from veilwood_service.settings import Settings

DatabaseRow = Mapping[str, Any]
_ADVISORY_LOCK_ID: Final = 0x5645494D  # "VEIM"; any number that other programs on the same server do not use
MAX_PAGE_LENGTH: Final = 500  # records per page of a list

DATABASE_METADATA = sa.MetaData()


def _define_table(name: str, *columns: Any) -> sa.Table:
    created = Column("created", String(40), nullable=False, index=True)  # lists are ordered by it
    return sa.Table(name, DATABASE_METADATA, *columns, created)


accounts = _define_table(
    "accounts",
    Column("name", String(64), primary_key=True),
    Column("password", Text),  # argon2 hash with its parameters; null before an invitation is accepted
    Column("subject", String(255), unique=True),  # identity at an OpenID provider
    Column("roles", Text, nullable=False),
    Column("disabled", Integer, nullable=False, default=0),
)
tokens = _define_table(
    "tokens",
    Column("id", String(32), primary_key=True),
    Column("account", String(64), nullable=False, index=True),
    Column("name", String(200), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("scopes", Text, nullable=False),
    Column("kind", String(16), nullable=False),  # token, session or invitation
    Column("csrf", String(64)),
    Column("expires", String(40), nullable=False),
)
datasets = _define_table(
    "datasets",
    Column("name", String(40), primary_key=True),
    Column("people", Text, nullable=False),  # the protected population
    Column("source", Text),  # path of the table; null until one was uploaded, and after it was deleted
    Column("schema", Text),
    Column("frozen", Text),  # JSON: the reason, and the last event of the restored ledger; null if not frozen
    Column("retired", Integer, nullable=False, default=0),
    Column("account", String(64), nullable=False),
)
allowances = _define_table(
    "allowances",
    Column("id", String(32), primary_key=True),
    Column("dataset", String(40), nullable=False, index=True),
    Column("account", String(64), nullable=False),  # empty: all accounts together
    Column("period", String(8), nullable=False),  # year, month, or empty: never renewed
    Column("epsilon", String(40), nullable=False),
    Column("delta", String(40), nullable=False),
    UniqueConstraint("dataset", "account", "period"),
)
plans = _define_table(
    "plans",
    Column("id", String(32), primary_key=True),
    Column("dataset", String(40), nullable=False, index=True),
    Column("account", String(64), nullable=False),
    Column("kind", String(16), nullable=False),  # train, answer or evaluate
    Column("estimator", String(64), nullable=False),
    Column("asked", Text, nullable=False),
    Column("body", Text),  # the plan as JSON; null for a private predictor
    Column("fingerprint", String(64), nullable=False),
    Column("model", String(32)),  # the model to evaluate
    Column("name", String(100), nullable=False),  # of the future model
    Column("note", Text, nullable=False),
    Column("signed_by", String(64)),
    Column("signed", String(40)),
    Column("runs", Integer),  # number of runs that the signature allows
    Column("total_epsilon", String(40)),  # limit over all batches of a predictor
    Column("total_delta", String(40)),
    Column("askers", Text),  # JSON: accounts that may query a predictor; null for all
)
jobs = _define_table(
    "jobs",
    Column("id", String(32), primary_key=True),
    Column("plan", String(32), nullable=False, index=True),
    Column("dataset", String(40), nullable=False),
    Column("account", String(64), nullable=False),
    Column("state", String(16), nullable=False, index=True),  # queued, running, done, failed or cancelled
    Column("message", Text),  # visible to all who may see the job
    Column("detail", Text),  # visible to custodians only: may depend on rows
    Column("retry_key", String(200)),
    Column("lease", String(32)),  # random per start: every write of a worker names it
    Column("tries", Integer, nullable=False, default=0),
    Column("started", String(40)),  # time of the last start
    Column("seen", String(40)),  # last heartbeat of the process that runs the job
    Column("ended", String(40)),
    UniqueConstraint("account", "retry_key"),
)
models = _define_table(
    "models",
    Column("id", String(32), primary_key=True),  # the id of its job
    Column("plan", String(32), nullable=False),
    Column("dataset", String(40), nullable=False, index=True),
    Column("account", String(64), nullable=False),
    Column("kind", String(16), nullable=False),  # trained, answering or evaluation
    Column("estimator", String(64), nullable=False),
    Column("name", String(100), nullable=False),
    Column("note", Text, nullable=False),
    Column("certificate", Text),
    Column("evaluated", String(32), index=True),  # the model that an evaluation measured
    Column("result", Text),  # measured quality, of an evaluation
)
model_files = _define_table(
    "model_files", Column("model", String(32), primary_key=True), Column("content", LargeBinary, nullable=False)
)
answers = _define_table(
    "answers",
    Column("id", String(32), primary_key=True),
    Column("model", String(32), nullable=False),
    Column("digest", String(64), nullable=False),  # SHA-256 of the encoded batch
    Column("account", String(64), nullable=False),
    Column("epsilon", String(40), nullable=False),
    Column("labels", Text),  # null until the answer is published; JSON null if it failed after the charge
    Column("certificate", Text),
    UniqueConstraint("model", "digest"),
)
events = _define_table(
    "events",
    Column("id", String(32), primary_key=True),
    Column("account", String(64), nullable=False),
    Column("action", String(40), nullable=False, index=True),
    Column("subject", String(255), nullable=False),
    Column("detail", Text, nullable=False),  # JSON
)


_last_times: Final = [datetime.min.replace(tzinfo=UTC)]


def current_timestamp() -> str:
    """Return the current UTC time in ISO format. Times of one process are all different: lists are ordered by them."""
    _last_times[0] = max(datetime.now(UTC), _last_times[0] + timedelta(microseconds=1))
    return _last_times[0].isoformat(timespec="microseconds")


def new_id() -> str:
    """Return a random identifier of 96 bits in hexadecimal."""
    return secrets.token_hex(12)


class Store:
    """Access to the tables above in one database."""

    def __init__(self, settings: Settings) -> None:
        self._open = threading.local()  # the connection of the outermost writing transaction of a thread
        if settings.database:
            url = "postgresql+psycopg://" + settings.database.split("://", 1)[1]
            self._engine = sa.create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=-1)
            sa.event.listen(self._engine, "connect", _require_durable_server)
        else:
            # Created with mode 0600, whatever the rights of the folder: it holds hashes of passwords.
            with suppress(FileExistsError, FileNotFoundError):
                os.close(os.open(settings.folder / "service.db", os.O_CREAT | os.O_EXCL, 0o600))
            self._engine = sa.create_engine(
                f"sqlite:///{settings.folder / 'service.db'}",
                connect_args={"timeout": 60, "check_same_thread": False},
                pool_size=10,
                max_overflow=-1,
            )
            sa.event.listen(self._engine, "connect", _set_durability)
            sa.event.listen(self._engine, "begin", _begin_sqlite)

    @property
    def is_postgres(self) -> bool:
        """Whether the database is PostgreSQL."""
        return self._engine.dialect.name == "postgresql"

    def create_tables(self) -> None:
        """Create the tables that are missing. Raise SetupError if the database cannot be opened."""
        try:
            with self.transaction() as connection:
                if self.is_postgres:  # several processes may start at once
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK_ID})
                is_new = not sa.inspect(connection).has_table("events")
                DATABASE_METADATA.create_all(connection)
                if is_new:
                    for statement in _APPEND_ONLY[self._engine.dialect.name]:
                        connection.exec_driver_sql(statement)
        except sa.exc.OperationalError as error:
            raise SetupError(
                f"the database of the service cannot be opened: {type(error.orig).__name__}. "
                "Hint: check that psql opens the same address."
                if self.is_postgres
                else "the database in the folder of the service cannot be opened. Hint: check who owns the folder."
            ) from None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Open a transaction that may write, or join the one that this thread has open.

        With SQLite it holds the lock of the database from its first moment.
        """
        joined: sa.Connection | None = getattr(self._open, "connection", None)
        if joined is not None:
            yield joined
            return
        try:
            with (
                self._engine.connect().execution_options(write=True) as connection,
                ExitStack() as held,
                connection.begin(),
            ):
                self._open.connection, self._open.held = connection, held
                try:
                    yield connection
                finally:
                    self._open.connection = None
        except sa.exc.DataError:  # PostgreSQL limits the length of texts and stores no null characters
            raise ParameterError(
                "request", "...", "contains a text that cannot be stored", "shorten it, and remove null characters"
            ) from None

    def is_writing(self) -> bool:
        """Return True if this thread has a transaction open that may write."""
        return getattr(self._open, "connection", None) is not None

    def hold(self, lock: AbstractContextManager[Any]) -> None:
        """Hold a lock until the open transaction of this thread has ended."""
        self._open.held.enter_context(lock)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Call a function if the open transaction of this thread is rolled back."""

        def undo_on_error(kind: object, *_: object) -> None:
            if kind is not None:
                undo()

        self._open.held.push(undo_on_error)

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Open a transaction that reads one state of the database, or join the one that this thread has open."""
        if self.is_writing():
            with self.transaction() as connection:
                yield connection
            return
        options = {"isolation_level": "REPEATABLE READ"} if self.is_postgres else {}
        try:
            with self._engine.connect().execution_options(**options) as connection, connection.begin():
                yield connection
        except sa.exc.DataError:
            raise ParameterError("request", "...", "contains a text that cannot be stored", "change it") from None

    def add(self, table: sa.Table, **values: Any) -> bool:
        """Insert a record and return True; return False and change nothing if its key exists."""
        values.setdefault("created", current_timestamp())
        try:
            with self.transaction() as connection, connection.begin_nested():
                connection.execute(sa.insert(table).values(**values))
        except sa.exc.IntegrityError:
            return False
        return True

    def update(self, table: sa.Table, where: Mapping[str, Any], **values: Any) -> int:
        """Update the matching records and return their number."""
        with self.transaction() as connection:
            return connection.execute(_add_conditions(sa.update(table), table, where).values(**values)).rowcount

    def remove(self, table: sa.Table, **where: Any) -> int:
        """Delete the matching records and return their number."""
        with self.transaction() as connection:
            return connection.execute(_add_conditions(sa.delete(table), table, where)).rowcount

    def find(self, table: sa.Table, **where: Any) -> DatabaseRow | None:
        """Return the first matching record, or None."""
        with self.snapshot() as connection:
            row = connection.execute(_add_conditions(sa.select(table), table, where)).mappings().first()
            return None if row is None else dict(row)

    def find_all(self, table: sa.Table, **where: Any) -> list[DatabaseRow]:
        """Return all matching records, oldest first."""
        with self.snapshot() as connection:
            statement = _add_conditions(sa.select(table), table, where).order_by(table.c.created)
            return [dict(row) for row in connection.execute(statement).mappings()]

    def find_page(
        self, table: sa.Table, length: int, after: str | None, *conditions: Any, **where: Any
    ) -> tuple[list[DatabaseRow], str | None]:
        """Return the newest matching records after a cursor, and the cursor of the next page, if there is one."""
        key = next(iter(table.primary_key))
        statement = _add_conditions(sa.select(table), table, where).where(*conditions)
        if after is not None:
            created, _, number = after.partition("~")
            statement = statement.where(sa.tuple_(table.c.created, key) < sa.tuple_(created, number))
        length = min(length, MAX_PAGE_LENGTH)
        with self.snapshot() as connection:
            newest = statement.order_by(table.c.created.desc(), key.desc()).limit(length + 1)
            rows: list[DatabaseRow] = [dict(row) for row in connection.execute(newest).mappings()]
        last = rows[length - 1] if len(rows) > length else None
        return rows[:length], None if last is None else f"{last['created']}~{last[key.name]}"

    def record_event(self, account: str, action: str, subject: str = "", /, **detail: Any) -> None:
        """Record an action of an account. Within a transaction, the event commits with the change."""
        self.add(events, id=new_id(), account=account, action=action, subject=subject[:255], detail=json.dumps(detail))


def _add_conditions(statement: Any, table: sa.Table, where: Mapping[str, Any]) -> Any:
    for name, value in where.items():
        column = table.c[name]
        statement = statement.where(column.in_(value) if isinstance(value, tuple) else column == value)
    return statement


def _set_durability(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions are begun by ``_begin_sqlite``
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk before noise is drawn


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes the lock before it reads: two charges never see the same remaining budget.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("write") else "BEGIN")


def _require_durable_server(connection: Any, _: Any) -> None:
    connection.autocommit = True  # outside any transaction: the setting holds for all later ones
    connection.execute("SET synchronous_commit = on")
    has_fsync = connection.execute("SHOW fsync").fetchone() == ("on",)
    connection.autocommit = False
    if not has_fsync:
        raise SetupError(
            "the database runs with fsync off: a power failure could lose charges. Hint: set fsync = on in "
            "postgresql.conf."
        )


_APPEND_ONLY: Final = {
    "sqlite": [
        f"CREATE TRIGGER events_keep_{verb} BEFORE {verb} ON events BEGIN SELECT RAISE(ABORT, 'append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'append-only'; END $$",
        "CREATE TRIGGER events_keep BEFORE UPDATE OR DELETE ON events EXECUTE FUNCTION refuse_change()",
    ],
}
"""Statements that make the table of events append-only, also for the service itself."""
