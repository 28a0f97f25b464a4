# SPDX-License-Identifier: Apache-2.0
"""One look at a database: a connection that only reads, a snapshot that stands still, and a record of every statement.

Statements hold public constants and no row. What an engine says when one fails is never shown, as it may hold cells.
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
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from veilwood.data.problems import without_words_of
from veilwood.data.relations import reads_texts, types_from_rows
from veilwood.engines.sql.dialects import EngineWords, SqlEngine
from veilwood.errors import SetupError, UnreadableError, UseError

__all__ = ["Session", "is_database", "is_ibis", "open_session"]

ResultRows: TypeAlias = "list[tuple[Any, ...]]"

_ENGINES: Final[dict[str, SqlEngine]] = {
    "duckdb": "duckdb", "postgresql": "postgres", "postgres": "postgres", "sqlite": "sqlite",
}  # fmt: skip
_SNAPSHOT: Final = {
    "duckdb": "BEGIN TRANSACTION",
    "postgres": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "sqlite": "BEGIN",
}
_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def is_database(X: Any) -> bool:
    """Whether this is the address of a table in a database.

    >>> is_database("duckdb:///claims.db#visits"), is_database("visits.csv")
    (True, False)
    """
    return isinstance(X, str) and X.partition("://")[0] in _ENGINES and "://" in X


def is_ibis(X: Any) -> bool:
    """Whether this is a table of Ibis."""
    return type(X).__module__.split(".")[0] == "ibis" and hasattr(X, "compile") and hasattr(X, "schema")


@dataclass(repr=False, eq=False)
class Session:
    """A connection with its snapshot and its record."""

    words: EngineWords
    """How the engine writes."""
    relation: str
    """The table, as it stands after FROM."""
    _run: Callable[[str], tuple[list[tuple[str, str]], ResultRows]]
    record: list[str] = field(default_factory=list)
    """The SHA-256 of every statement that was sent, in order."""
    scratch: bool = True
    """Whether temporary tables can be made, of which the engine keeps one copy for this session alone."""
    listening: Callable[[str], None] | None = None
    close: Callable[[], object] = lambda: None

    def ask(self, statement: str) -> ResultRows:
        """Send a statement; return what comes back."""
        return self._sent(statement)[1]

    def columns(self) -> list[tuple[str, str]]:
        """Names and types of the table's columns; views of text files are refused, since a row decides the types."""
        if self.words.engine == "duckdb":
            plan = self.ask(f"EXPLAIN SELECT * FROM {self.relation} AS veilwood_table")
            if any(reads_texts(str(text)) for _, text in plan):
                raise types_from_rows("a view")
        return self._sent(f"SELECT * FROM {self.relation} AS veilwood_table WHERE 1 = 0")[0]

    def prepare(self, statements: Sequence[str]) -> None:
        """Make temporary tables, before the snapshot is taken; without them where the engine refuses."""
        try:
            for statement in statements:
                self.ask(statement)
        except UnreadableError:
            self.scratch = False

    def look(self) -> None:
        """Take the snapshot: from now on all statements see the same rows, and can change none."""
        self.ask(_SNAPSHOT[self.words.engine])

    def _sent(self, statement: str) -> tuple[list[tuple[str, str]], ResultRows]:
        self.record.append(hashlib.sha256(statement.encode()).hexdigest())
        if self.listening is not None:
            self.listening(statement)
        hint = "check the address, the table and your rights to read it"
        with without_words_of(self.words.engine, "could not carry out a statement", hint):
            return self._run(statement)


def open_session(X: Any, listening: Callable[[str], None] | None = None) -> Session:
    """Open a table by its address, or a table of Ibis."""
    if is_ibis(X):
        return _of_ibis(X, listening)
    scheme, _, rest = str(X).partition("://")
    bare, _, table = rest.partition("#")
    engine = _ENGINES[scheme]
    words = EngineWords(engine)
    if not table:
        raise UseError("the address names no table. Hint: duckdb:///claims.db#visits, with # and the name of a table.")
    relation = _relation(unquote(table), words)
    with without_words_of(engine, "cannot be reached", "check the address and your rights to read it"):
        opened = _CONNECT[engine](scheme, bare)
    return _opened(words, relation, *opened, listening)


def _relation(table: str, words: EngineWords) -> str:
    """Quote the parts of a name, such as public.visits; a part in double quotes may hold points."""
    parts = [quoted.replace('""', '"') or bare for quoted, bare in _PART.findall(table)]
    if not parts:
        raise UseError("the address names no table. Hint: duckdb:///claims.db#visits.")
    return ".".join(map(words.name, parts))


def _close(connection: Any) -> None:
    with suppress(Exception):
        connection.close()


# -- engines ---------------------------------------------------------------------------------------------------------

RunStatement: TypeAlias = "Callable[[str], tuple[list[tuple[str, str]], ResultRows]]"


def _path(bare: str, engine: str) -> str:
    path = unquote(bare.partition("?")[0])
    if not path.startswith("/"):
        raise UseError(f"the address has a host, and {engine} is a file. Hint: {engine}:///claims.db#visits.")
    if not Path(path[1:]).is_file():
        raise UseError(
            f"there is no file {path[1:]}. Hint: {engine}:///claims.db is relative, {engine}:////a/b.db not."
        )
    return path[1:]


def _duckdb(scheme: str, bare: str) -> tuple[Any, RunStatement]:
    duckdb = _import("duckdb")
    path = _path(bare, "duckdb")
    try:
        connection = duckdb.connect(path, read_only=True)
    except duckdb.ConnectionException:  # open for writing elsewhere in this process: then it stays so
        connection = duckdb.connect(path)
    return connection, _duckdb_run(connection)


def _duckdb_run(connection: Any) -> RunStatement:
    def run(statement: str) -> tuple[list[tuple[str, str]], ResultRows]:
        cursor = connection.execute(statement)
        names = [(str(entry[0]), public_type(str(entry[1]))) for entry in cursor.description or ()]
        return names, [tuple(row) for row in cursor.fetchall()]

    return run


def public_type(name: str) -> str:
    """Write a type without the values of an ENUM, which may have been made of rows.

    >>> public_type("ENUM('a', 'b)')"), public_type("ENUM('a')[]"), public_type("STRUCT(x ENUM('a'))")
    ('ENUM', 'ENUM[]', 'STRUCT')
    """
    before, found, _ = name.partition("ENUM(")
    if not found:
        return name
    return before.partition("(")[0] or ("ENUM[]" if name.endswith("]") else "ENUM")


def _postgres(scheme: str, bare: str) -> tuple[Any, RunStatement]:
    psycopg = _import("psycopg")
    connection = psycopg.connect(f"{scheme}://{bare}", autocommit=True)
    return connection, _postgres_run(connection)


def _postgres_run(connection: Any) -> RunStatement:
    connection.execute("SET jit = off")  # compiling a long expression takes far longer than running it
    connection.execute("SET standard_conforming_strings = on")  # else a backslash could end the quotes of a text

    def run(statement: str) -> tuple[list[tuple[str, str]], ResultRows]:
        cursor = connection.execute(statement)
        if cursor.description is None:
            return [], []
        rows = cursor.fetchall()
        return [(entry.name, _postgres_type(connection, entry)) for entry in cursor.description], rows

    return run


def _postgres_type(connection: Any, entry: Any) -> str:
    known = connection.adapters.types.get(entry.type_code)
    if known is not None and known.oid != entry.type_code:
        return f"{known.name}[]"
    if known is not None:
        return f"{known.name}({entry.precision},{entry.scale})" if entry.precision is not None else str(known.name)
    found = connection.execute(f"SELECT typname, typtype FROM pg_type WHERE oid = {int(entry.type_code)}").fetchall()
    return "enum" if found and found[0][1] == "e" else str(found[0][0]) if found else "unknown"


def _sqlite(scheme: str, bare: str) -> tuple[Any, RunStatement]:
    import sqlite3

    path = Path(_path(bare, "sqlite")).resolve()
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
    return connection, _sqlite_run(connection)


def _sqlite_run(connection: Any) -> RunStatement:
    connection.create_function("VEILWOOD_SHA256", 1, _sha256, deterministic=True)
    connection.create_function("EXP", 1, math.exp, deterministic=True)  # not every build has it

    def run(statement: str) -> tuple[list[tuple[str, str]], ResultRows]:
        cursor = connection.execute(statement)
        return [(str(entry[0]), "any") for entry in cursor.description or ()], cursor.fetchall()

    return run


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


_CONNECT: Final[dict[str, Callable[[str, str], tuple[Any, RunStatement]]]] = {
    "duckdb": _duckdb, "postgres": _postgres, "sqlite": _sqlite,
}  # fmt: skip


def _of_ibis(table: Any, listening: Callable[[str], None] | None) -> Session:
    """Use a connection of its own to where an Ibis table is."""
    backend = table.get_backend()
    engine = _ENGINES.get(backend.name)
    if engine is None:
        raise UseError(
            f"tables of Ibis are counted in DuckDB, PostgreSQL and SQLite, and this one is in {backend.name}. "
            "Hint: pass table.to_pyarrow() to read its rows."
        )
    relation = f"({table.compile()})"
    if engine == "duckdb":
        connection = backend.con.cursor()
        return _opened(EngineWords(engine), relation, connection, _duckdb_run(connection), listening)
    if engine == "sqlite":
        import sqlite3

        ((_, _, path),) = [row for row in backend.con.execute("PRAGMA database_list") if row[1] == "main"]
        if not path:
            raise UseError("this SQLite database is in memory only. Hint: pass table.to_pyarrow().")
        uri = f"{Path(path).resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        return _opened(EngineWords(engine), relation, connection, _sqlite_run(connection), listening)
    psycopg = _import("psycopg")
    information = backend.con.info
    connection = psycopg.connect(information.dsn, password=information.password or None, autocommit=True)
    return _opened(EngineWords(engine), relation, connection, _postgres_run(connection), listening)


def _opened(
    words: EngineWords, relation: str, connection: Any, run: RunStatement, listening: Callable[[str], None] | None
) -> Session:
    session = Session(words, relation, run, listening=listening)
    session.close = weakref.finalize(session, _close, connection)
    return session


def _import(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise SetupError(f"this address needs {name}. Hint: pip install 'veilwood[sql]'.") from None
