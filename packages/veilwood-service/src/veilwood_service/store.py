# SPDX-License-Identifier: Apache-2.0
"""Database of the service: accounts, tokens, data sets, allowances, plans, jobs, models and answers.

One SQLAlchemy engine, for SQLite or PostgreSQL. Charges are in the ledgers, not here. Losing this database costs no
privacy, except for the table ``answers``: it holds the outcomes that batches were charged for.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Integer, String, Text, UniqueConstraint

from veilwood.errors import ParameterError, SetupError
from veilwood_service.settings import Settings

DatabaseRow = Mapping[str, Any]
_ADVISORY_LOCK_ID = 0x5645494D  # "VEIM"; any number that other programs on the same server do not use

DATABASE_METADATA = sa.MetaData()
accounts = sa.Table(
    "accounts",
    DATABASE_METADATA,
    Column("name", String(64), primary_key=True),
    Column("password", Text),  # salted scrypt hash; null for users of an OpenID provider
    Column("subject", String(255), unique=True),
    Column("roles", Text, nullable=False),
    Column("disabled", Integer, nullable=False, default=0),
    Column("created", String(40), nullable=False),
)
tokens = sa.Table(
    "tokens",
    DATABASE_METADATA,
    Column("id", String(32), primary_key=True),
    Column("account", String(64), nullable=False, index=True),
    Column("name", String(200), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("scopes", Text, nullable=False),
    Column("kind", String(16), nullable=False),  # token, session or invitation
    Column("csrf", String(64)),
    Column("expires", String(40), nullable=False),
    Column("created", String(40), nullable=False),
)
datasets = sa.Table(
    "datasets",
    DATABASE_METADATA,
    Column("name", String(40), primary_key=True),
    Column("people", Text, nullable=False),  # the protected population
    Column("source", Text),  # path of the table; null until one was uploaded
    Column("schema", Text),
    Column("account", String(64), nullable=False),
    Column("created", String(40), nullable=False),
)
allowances = sa.Table(
    "allowances",
    DATABASE_METADATA,
    Column("id", String(32), primary_key=True),
    Column("dataset", String(40), nullable=False, index=True),
    Column("account", String(64), nullable=False),  # empty: all accounts together
    Column("period", String(8), nullable=False),  # year, month, or empty: never renewed
    Column("epsilon", String(40), nullable=False),
    Column("delta", String(40), nullable=False),
    UniqueConstraint("dataset", "account", "period"),
)
plans = sa.Table(
    "plans",
    DATABASE_METADATA,
    Column("id", String(32), primary_key=True),
    Column("dataset", String(40), nullable=False, index=True),
    Column("account", String(64), nullable=False),
    Column("kind", String(16), nullable=False),  # train, answer or evaluate
    Column("estimator", String(64), nullable=False),
    Column("asked", Text, nullable=False),
    Column("body", Text),  # the plan as JSON; null for a private predictor
    Column("fingerprint", String(64), nullable=False),
    Column("model", String(32)),  # the model to evaluate
    Column("signed_by", String(64)),
    Column("signed", String(40)),
    Column("created", String(40), nullable=False),
)
jobs = sa.Table(
    "jobs",
    DATABASE_METADATA,
    Column("id", String(32), primary_key=True),
    Column("plan", String(32), nullable=False, index=True),
    Column("account", String(64), nullable=False),
    Column("state", String(16), nullable=False),  # queued, running, done, failed or cancelled
    Column("message", Text),  # visible to all who may see the job
    Column("detail", Text),  # visible to custodians only: may depend on rows
    Column("retry_key", String(200)),
    Column("worker", String(64)),
    Column("seen", String(40)),  # last heartbeat of the process that runs the job
    Column("created", String(40), nullable=False),
    Column("ended", String(40)),
    UniqueConstraint("account", "retry_key"),
)
models = sa.Table(
    "models",
    DATABASE_METADATA,
    Column("id", String(32), primary_key=True),
    Column("job", String(32), nullable=False, unique=True),
    Column("plan", String(32), nullable=False),
    Column("dataset", String(40), nullable=False, index=True),
    Column("kind", String(16), nullable=False),  # trained, answering or evaluation
    Column("estimator", String(64), nullable=False),
    Column("certificate", Text),
    Column("digest", String(64)),  # SHA-256 of the model file
    Column("result", Text),  # measured quality, of an evaluation
    Column("created", String(40), nullable=False),
)
answers = sa.Table(
    "answers",
    DATABASE_METADATA,
    Column("id", String(32), primary_key=True),
    Column("model", String(32), nullable=False),
    Column("digest", String(64), nullable=False),  # SHA-256 of the encoded batch
    Column("account", String(64), nullable=False),
    Column("epsilon", String(40), nullable=False),
    Column("labels", Text),  # null until the answer is stored; JSON null if it failed after the charge
    Column("certificate", Text),
    Column("created", String(40), nullable=False),
    UniqueConstraint("model", "digest"),
)


def current_timestamp() -> str:
    """Return the current UTC time in ISO format, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_id() -> str:
    """Return a random identifier of 96 bits in hexadecimal."""
    return secrets.token_hex(12)


class Store:
    """Access to the tables above in one database."""

    def __init__(self, settings: Settings) -> None:
        if settings.database:
            url = "postgresql+psycopg://" + settings.database.split("://", 1)[1]
            self._engine = sa.create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=20)
        else:
            # Created with mode 0600, whatever the rights of the folder: it holds hashes of passwords.
            with suppress(FileExistsError, FileNotFoundError):
                os.close(os.open(settings.folder / "service.db", os.O_CREAT | os.O_EXCL, 0o600))
            self._engine = sa.create_engine(
                f"sqlite:///{settings.folder / 'service.db'}", connect_args={"timeout": 60, "check_same_thread": False}
            )
            sa.event.listen(self._engine, "connect", _set_durability)

    def create_tables(self) -> None:
        """Create the tables that are missing. Raise SetupError if the database cannot be opened."""
        try:
            with self._engine.begin() as connection:
                if connection.dialect.name == "postgresql":  # several processes may start at once
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK_ID})
                DATABASE_METADATA.create_all(connection)
        except sa.exc.OperationalError as error:
            raise SetupError(
                f"the database of the service cannot be opened: {type(error.orig).__name__}. "
                "Hint: check that psql opens the same address."
                if self._engine.dialect.name == "postgresql"
                else "the database in the folder of the service cannot be opened. Hint: check who owns the folder."
            ) from None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Open a transaction: committed at the end, rolled back on an error."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.DataError:  # PostgreSQL limits the length of texts and stores no null characters
            raise ParameterError(
                "request", "...", "contains a text that cannot be stored", "shorten it, and remove null characters"
            ) from None

    def add(self, table: sa.Table, **values: Any) -> bool:
        """Insert a record and return True; return False and change nothing if its key exists."""
        try:
            with self.transaction() as connection:
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
        with self.transaction() as connection:
            row = connection.execute(_add_conditions(sa.select(table), table, where)).mappings().first()
            return None if row is None else dict(row)

    def find_all(self, table: sa.Table, **where: Any) -> list[DatabaseRow]:
        """Return all matching records, oldest first."""
        order = [table.c.created] if "created" in table.c else [*table.primary_key]
        with self.transaction() as connection:
            rows = connection.execute(_add_conditions(sa.select(table), table, where).order_by(*order)).mappings()
            return [dict(row) for row in rows]


def _add_conditions(statement: Any, table: sa.Table, where: Mapping[str, Any]) -> Any:
    for name, value in where.items():
        statement = statement.where(table.c[name] == value)
    return statement


def _set_durability(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
