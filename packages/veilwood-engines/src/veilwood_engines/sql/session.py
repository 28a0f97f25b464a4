# SPDX-License-Identifier: Apache-2.0
"""Database sessions: a read-only connection, one snapshot, and a record of every statement.

Statements contain public constants and no row. Error messages of engines are redacted, since they may contain values.
"""

from __future__ import annotations

import hashlib
import math
import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote

import numpy as np

from veilwood.arrays import Ints
from veilwood.data.problems import redact_errors_of
from veilwood.data.relations import inferred_types_error, reads_text_files
from veilwood.errors import SetupError, UnreadableError, UseError
from veilwood_engines.sql.dialects import SqlDialect, SqlEngine

T = TypeVar("T")
ResultRows: TypeAlias = "list[tuple[Any, ...]]"

_ENGINES: Final[dict[str, SqlEngine]] = {
    "duckdb": "duckdb", "postgresql": "postgres", "postgres": "postgres", "sqlite": "sqlite",
}  # fmt: skip
_SNAPSHOT: Final = {
    "duckdb": "BEGIN TRANSACTION",
    "postgres": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "sqlite": "BEGIN",
}
# Component of a table name: quoted, with "" for a quote, or bare.
_NAME_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


@dataclass(repr=False, eq=False)
class Session:
    """A connection with its snapshot and its record of statements."""

    dialect: SqlDialect
    """SQL dialect of the engine."""
    relation: str
    """Expression of the table, as used after FROM."""
    _run_statement: Callable[[str], tuple[list[tuple[str, str]], ResultRows]]
    statement_hashes: list[str] = field(default_factory=list)
    """SHA-256 of every statement, in the order in which they were sent."""
    can_create_tables: bool = True
    """Whether the account can create temporary tables, which only this session sees."""
    on_statement: Callable[[str], None] | None = None
    close: Callable[[], object] = lambda: None
    _run_integers: Callable[[str], Ints] | None = None
    """Runs a statement and returns its integers without creating a Python object for each."""

    def execute(self, statement: str) -> ResultRows:
        """Run a statement and return its rows."""
        return self._send_statement(statement, self._run_statement)[1]

    def execute_integers(self, statement: str, n_columns: int) -> Ints:
        """Run a statement that selects integers of 64 bits, and return them as an array with one row per result row."""
        run = self._run_integers or (lambda statement: np.array(self._run_statement(statement)[1], np.int64))
        return self._send_statement(statement, run).reshape(-1, n_columns)

    def column_types(self) -> list[tuple[str, str]]:
        """Return the names and types of the columns. Views of text files are rejected: their types depend on rows."""
        if self.dialect.engine == "duckdb":
            plan = self.execute(f"EXPLAIN SELECT * FROM {self.relation} AS veilwood_table")
            if any(reads_text_files(str(text)) for _, text in plan):
                raise inferred_types_error("a view")
        empty = f"SELECT * FROM {self.relation} AS veilwood_table WHERE 1 = 0"
        return self._send_statement(empty, self._run_statement)[0]

    def create_scratch_tables(self, statements: Sequence[str]) -> None:
        """Create temporary tables before the snapshot, if the engine allows it."""
        try:
            for statement in statements:
                self.execute(statement)
        except UnreadableError:
            self.can_create_tables = False

    def begin_snapshot(self) -> None:
        """Begin the snapshot: all later statements see the same rows and cannot change them."""
        self.execute(_SNAPSHOT[self.dialect.engine])

    def _send_statement(self, statement: str, run: Callable[[str], T]) -> T:
        self.statement_hashes.append(hashlib.sha256(statement.encode()).hexdigest())
        if self.on_statement is not None:
            self.on_statement(statement)
        hint = "check the address, the table and your permission to read it"
        with redact_errors_of(self.dialect.engine, "could not run a statement", hint):
            return run(statement)


def open_session(X: Any, on_statement: Callable[[str], None] | None = None) -> Session:
    """Open a table by its address, or an Ibis table."""
    if not isinstance(X, str):
        return _open_ibis(X, on_statement)
    scheme, _, rest = X.partition("://")
    bare, _, table = rest.partition("#")
    engine = _ENGINES[scheme]
    dialect = SqlDialect(engine)
    if not table:
        raise UseError(
            "the address names no table. Hint: append # and the name of a table, as in duckdb:///claims.db#visits."
        )
    relation = _quote_relation(unquote(table), dialect)
    with redact_errors_of(engine, "cannot be reached", "check the address and your permission to read it"):
        opened = _CONNECTORS[engine](scheme, bare)
    return _make_session(dialect, relation, *opened, on_statement)


def _quote_relation(table: str, dialect: SqlDialect) -> str:
    """Quote the parts of a name, such as public.visits; a part in double quotes may contain points."""
    parts = [quoted.replace('""', '"') or bare for quoted, bare in _NAME_PART.findall(table)]
    if not parts:
        raise UseError(
            "the address names no table. Hint: append # and the name of a table, as in duckdb:///claims.db#visits."
        )
    return ".".join(map(dialect.quote_name, parts))


def _close_connection(connection: Any) -> None:
    with suppress(Exception):
        connection.close()


# -- engines ---------------------------------------------------------------------------------------------------------

RunStatement: TypeAlias = "Callable[[str], tuple[list[tuple[str, str]], ResultRows]]"


def _database_file(bare: str, engine: str) -> str:
    path = unquote(bare.partition("?")[0])
    if not path.startswith("/"):
        raise UseError(
            f"the address has a host, but {engine} databases are files. Hint: use {engine}:///claims.db#visits."
        )
    if not Path(path[1:]).is_file():
        raise UseError(
            f"there is no file {path[1:]}. Hint: write {engine}:///claims.db, or "
            f"{engine}:////a/b.db for an absolute path."
        )
    return path[1:]


def _connect_duckdb(scheme: str, bare: str) -> tuple[Any, RunStatement]:
    duckdb = _import_driver("duckdb")
    path = _database_file(bare, "duckdb")
    try:
        connection = duckdb.connect(path, read_only=True)
    except (
        duckdb.ConnectionException
    ):  # already open for writing in this process: DuckDB does not allow both modes at once
        connection = duckdb.connect(path)
    return connection, _duckdb_runner(connection)


def _duckdb_runner(connection: Any) -> RunStatement:
    def run_statement(statement: str) -> tuple[list[tuple[str, str]], ResultRows]:
        cursor = connection.execute(statement)
        names = [(str(entry[0]), redact_enum_values(str(entry[1]))) for entry in cursor.description or ()]
        return names, [tuple(row) for row in cursor.fetchall()]

    return run_statement


def _duckdb_integer_runner(connection: Any) -> Callable[[str], Ints]:
    def run_integers(statement: str) -> Ints:
        return np.column_stack([*connection.execute(statement).fetchnumpy().values()]).astype(np.int64, casting="safe")

    return run_integers


def redact_enum_values(name: str) -> str:
    """Return a type without the values of an ENUM, which may come from rows.

    >>> [redact_enum_values(name) for name in ("ENUM('a', 'b)')", "ENUM('a')[]", "STRUCT(x ENUM('a'))")]
    ['ENUM', 'ENUM[]', 'STRUCT']
    """
    before, separator, _ = name.partition("ENUM(")
    if not separator:
        return name
    return before.partition("(")[0] or ("ENUM[]" if name.endswith("]") else "ENUM")


def _connect_postgres(scheme: str, bare: str) -> tuple[Any, RunStatement]:
    psycopg = _import_driver("psycopg")
    connection = psycopg.connect(f"{scheme}://{bare}", autocommit=True)
    return connection, _postgres_runner(connection)


def _postgres_runner(connection: Any) -> RunStatement:
    connection.execute("SET jit = off")  # compiling long expressions takes far longer than running them
    connection.execute("SET standard_conforming_strings = on")  # otherwise a backslash could end a quoted text

    def run_statement(statement: str) -> tuple[list[tuple[str, str]], ResultRows]:
        cursor = connection.execute(statement)
        if cursor.description is None:
            return [], []
        rows = cursor.fetchall()
        return [(entry.name, _postgres_type(connection, entry)) for entry in cursor.description], rows

    return run_statement


def _postgres_type(connection: Any, entry: Any) -> str:
    known = connection.adapters.types.get(entry.type_code)
    if known is not None and known.oid != entry.type_code:
        return f"{known.name}[]"
    if known is not None:
        return f"{known.name}({entry.precision},{entry.scale})" if entry.precision is not None else str(known.name)
    types = connection.execute(f"SELECT typname, typtype FROM pg_type WHERE oid = {int(entry.type_code)}").fetchall()
    return "enum" if types and types[0][1] == "e" else str(types[0][0]) if types else "unknown"


def _connect_sqlite(scheme: str, bare: str) -> tuple[Any, RunStatement]:
    import sqlite3

    path = Path(_database_file(bare, "sqlite")).resolve()
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
    return connection, _sqlite_runner(connection)


def _sqlite_runner(connection: Any) -> RunStatement:
    connection.create_function("VEILWOOD_SHA256", 1, _sha256_hex, deterministic=True)
    connection.create_function("EXP", 1, math.exp, deterministic=True)  # some builds of SQLite lack EXP

    def run_statement(statement: str) -> tuple[list[tuple[str, str]], ResultRows]:
        cursor = connection.execute(statement)
        return [(str(entry[0]), "any") for entry in cursor.description or ()], cursor.fetchall()

    return run_statement


def _sha256_hex(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


_CONNECTORS: Final[dict[str, Callable[[str, str], tuple[Any, RunStatement]]]] = {
    "duckdb": _connect_duckdb, "postgres": _connect_postgres, "sqlite": _connect_sqlite,
}  # fmt: skip


def _open_ibis(table: Any, on_statement: Callable[[str], None] | None) -> Session:
    """Open a separate connection to the database of an Ibis table."""
    backend = table.get_backend()
    engine = _ENGINES.get(backend.name)
    if engine is None:
        raise UseError(
            f"tables of Ibis must be in DuckDB, PostgreSQL or SQLite, but this one is in {backend.name}. "
            "Hint: pass table.to_pyarrow() to read its rows."
        )
    relation = f"({table.compile()})"
    if engine == "duckdb":
        connection = backend.con.cursor()
        return _make_session(SqlDialect(engine), relation, connection, _duckdb_runner(connection), on_statement)
    if engine == "sqlite":
        import sqlite3

        ((_, _, path),) = [row for row in backend.con.execute("PRAGMA database_list") if row[1] == "main"]
        if not path:
            raise UseError("this SQLite database exists in memory only. Hint: pass table.to_pyarrow().")
        uri = f"{Path(path).resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        return _make_session(SqlDialect(engine), relation, connection, _sqlite_runner(connection), on_statement)
    psycopg = _import_driver("psycopg")
    information = backend.con.info
    connection = psycopg.connect(information.dsn, password=information.password or None, autocommit=True)
    return _make_session(SqlDialect(engine), relation, connection, _postgres_runner(connection), on_statement)


def _make_session(
    dialect: SqlDialect, relation: str, connection: Any, run: RunStatement, on_statement: Callable[[str], None] | None
) -> Session:
    integers = _duckdb_integer_runner(connection) if dialect.engine == "duckdb" else None
    session = Session(dialect, relation, run, on_statement=on_statement, _run_integers=integers)
    session.close = weakref.finalize(session, _close_connection, connection)
    return session


def _import_driver(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise SetupError(f"this address needs {name}. Hint: run pip install 'veilwood[sql]'.") from None
