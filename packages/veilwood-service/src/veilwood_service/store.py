# SPDX-License-Identifier: Apache-2.0
"""What the service remembers besides rows, models and spends: accounts, data sets, plans, jobs, answers.

One SQLAlchemy engine, for SQLite or PostgreSQL. Spends are in the ledgers; what is here can be lost without a loss of
privacy, but for the answers: they are what a batch was charged for.
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

from veilwood.errors import ParameterError
from veilwood_service.settings import Settings

__all__ = ["DatabaseRow", "Store", "current_timestamp", "new_id"]

DatabaseRow = Mapping[str, Any]

DATABASE_METADATA = sa.MetaData()
accounts = sa.Table(
    "accounts",
    DATABASE_METADATA,
    Column("name", String(64), primary_key=True),
    Column("password", Text),  # a salted scrypt hash; none for people who come from an OpenID provider
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
    Column("people", Text, nullable=False),  # whom the ledger protects
    Column("source", Text),  # a path; none until a table was uploaded
    Column("schema", Text),
    Column("account", String(64), nullable=False),
    Column("created", String(40), nullable=False),
)
allowances = sa.Table(
    "allowances",
    DATABASE_METADATA,
    Column("id", String(32), primary_key=True),
    Column("dataset", String(40), nullable=False, index=True),
    Column("account", String(64), nullable=False),  # empty: everybody
    Column("period", String(8), nullable=False),  # year, month or empty: for good
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
    Column("body", Text),  # of a training or an evaluation: the whole plan
    Column("fingerprint", String(64), nullable=False),
    Column("model", String(32)),  # what is evaluated
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
    Column("message", Text),  # for everybody
    Column("detail", Text),  # for custodians
    Column("retry_key", String(200)),
    Column("worker", String(64)),
    Column("seen", String(40)),  # when the worker last said that it lives
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
    Column("digest", String(64)),  # of the file of a trained one
    Column("result", Text),  # of an evaluation
    Column("created", String(40), nullable=False),
)
answers = sa.Table(
    "answers",
    DATABASE_METADATA,
    Column("id", String(32), primary_key=True),
    Column("model", String(32), nullable=False),
    Column("digest", String(64), nullable=False),  # of the batch
    Column("account", String(64), nullable=False),
    Column("epsilon", String(40), nullable=False),
    Column("labels", Text),  # none while it is worked on
    Column("certificate", Text),
    Column("created", String(40), nullable=False),
    UniqueConstraint("model", "digest"),
)


def current_timestamp() -> str:
    """The time, as it is recorded."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_id() -> str:
    """A name that cannot be guessed and tells nothing."""
    return secrets.token_hex(12)


class Store:
    """The tables above in one database."""

    def __init__(self, settings: Settings) -> None:
        if settings.database:
            url = "postgresql+psycopg://" + settings.database.split("://", 1)[1]
            self._engine = sa.create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=20)
        else:
            with suppress(
                FileExistsError, FileNotFoundError
            ):  # it holds hashes of passwords, whatever the folder's rights
                os.close(os.open(settings.folder / "service.db", os.O_CREAT | os.O_EXCL, 0o600))
            self._engine = sa.create_engine(
                f"sqlite:///{settings.folder / 'service.db'}", connect_args={"timeout": 60, "check_same_thread": False}
            )
            sa.event.listen(self._engine, "connect", _set_durability)

    @property
    def engine(self) -> sa.Engine:
        """For the steps that bring the database to this version."""
        return self._engine

    def close(self) -> None:
        """Give all connections back."""
        self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """All or nothing."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.DataError:  # of PostgreSQL, which has limits of length and no null characters
            raise ParameterError(
                "request", "...", "holds a text that cannot be kept", "shorter, without null characters"
            ) from None

    def add(self, table: sa.Table, **values: Any) -> bool:
        """Insert a record; return whether it was new. One that exists already is left as it is."""
        try:
            with self.transaction() as connection:
                connection.execute(sa.insert(table).values(**values))
        except sa.exc.IntegrityError:
            return False
        return True

    def update(self, table: sa.Table, where: Mapping[str, Any], **values: Any) -> int:
        """Change the records that match; return how many did."""
        with self.transaction() as connection:
            return connection.execute(_add_conditions(sa.update(table), table, where).values(**values)).rowcount

    def remove(self, table: sa.Table, **where: Any) -> int:
        """Delete the records that match; return how many did."""
        with self.transaction() as connection:
            return connection.execute(_add_conditions(sa.delete(table), table, where)).rowcount

    def find(self, table: sa.Table, **where: Any) -> DatabaseRow | None:
        """Return the one record that matches, if there is one."""
        with self.transaction() as connection:
            row = connection.execute(_add_conditions(sa.select(table), table, where)).mappings().first()
            return None if row is None else dict(row)

    def find_all(self, table: sa.Table, **where: Any) -> list[DatabaseRow]:
        """Return the records that match, oldest first."""
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
