# SPDX-License-Identifier: Apache-2.0
"""Rows of other libraries that can be read again in each pass: DuckDB, polars, scanners, queries, lake tables.

Errors of other libraries are redacted, since they may contain values. ``file_source.ChangeDetector`` checks that each
pass returns the same rows in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pandas as pd
import pyarrow as pa

from veilwood.data.frames import is_scanner
from veilwood.data.problems import redact_errors_of
from veilwood.errors import OutOfSchemaError, UseError
from veilwood.siblings import find_lake

FramePiece: TypeAlias = "pa.RecordBatch | pa.Table | pd.DataFrame"

_TEXT_READERS: Final = ("CSVStreamingReader", "TextFileReader", "JsonReader")  # of Arrow and pandas
# Operators that read text files, as DuckDB and polars name them in plans.
_TEXT_SCANS: Final = re.compile(r"READ_(CSV|JSON|NDJSON|XLSX)|^\W*(Csv|NDJson|LazyJsonLineReader) SCAN", re.M)
_OBJECT_SCAN: Final = "PANDAS_SCAN"  # also the name of a scan of NumPy arrays


@dataclass(frozen=True, repr=False, eq=False)
class Relation:
    """Rereadable rows with named columns, and the ``to_batches`` method of an Arrow dataset."""

    display_name: str  # for messages
    names: tuple[str, ...]
    _start: Callable[
        [list[str], int], Iterable[FramePiece]
    ]  # called with the columns and the approximate number of rows per batch

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            raise OutOfSchemaError(f"two columns of {self.display_name} have the same name. Hint: rename one of them.")

    def to_batches(self, columns: list[str], batch_size: int, **scanning: Any) -> Iterator[FramePiece]:
        """Read the given columns in batches of about ``batch_size`` rows."""
        with redact_errors_of(self.display_name):
            yield from self._start(columns, batch_size)


def rebatch_rows(pieces: Iterable[FramePiece], batch_rows: int) -> Iterator[FramePiece]:
    """Cut and join pieces so that every batch except the last is full: a row's position then determines its batch.

    >>> [len(batch) for batch in rebatch_rows([pa.table({"a": range(5)}), pa.table({"a": range(2)})], 3)]
    [3, 3, 1]
    """
    held: list[Any] = []
    rows = 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            missing = batch_rows - rows
            end = start + missing
            part = piece[start:end] if isinstance(piece, pd.DataFrame) else piece.slice(start, missing)
            held.append(part)
            start += len(part)
            rows += len(part)
            if rows == batch_rows:
                yield concat_pieces(held)
                held, rows = [], 0
    if held:
        yield concat_pieces(held)


def concat_pieces(pieces: list[Any]) -> FramePiece:
    """Concatenate pieces of one relation, all of them from pandas or all from Arrow."""
    if isinstance(pieces[0], pd.DataFrame):
        return pieces[0] if len(pieces) == 1 else pd.concat(pieces, ignore_index=True)
    return pa.concat_tables([pa.Table.from_batches([p]) if isinstance(p, pa.RecordBatch) else p for p in pieces])


# -- objects of other libraries ---------------------------------------------------------------------------------------


def is_relation(X: Any) -> bool:
    """Return True if the object is a relation of another library, without importing that library."""
    return _find_opener(X) is not None


def open_relation(X: Any) -> Relation:
    """Open an object for which ``is_relation`` is True."""
    opener = _find_opener(X)
    assert opener is not None
    with redact_errors_of(f"the {type(X).__name__}"):
        return opener(X)


def _find_opener(X: Any) -> Callable[[Any], Relation] | None:
    if isinstance(X, Query):
        return _open_query
    if is_scanner(X):
        return _open_scanner
    if (sibling := find_lake(X)) is not None:
        return sibling.load().open_lake  # type: ignore[no-any-return]
    package, kind = type(X).__module__.split(".")[0], type(X).__name__
    return {
        ("duckdb", "DuckDBPyRelation"): _open_duckdb,
        ("_duckdb", "DuckDBPyRelation"): _open_duckdb,
        ("polars", "LazyFrame"): _open_lazy_frame,
    }.get((package, kind))


def as_batch_stream(X: Any) -> Iterator[Any] | None:
    """Return an iterator unchanged, an iterator over the batches of an Arrow stream, or None for other objects."""
    if type(X).__name__ in _TEXT_READERS:
        raise inferred_types_error("a reader")
    if isinstance(X, Iterator):
        return X
    return _read_stream(X) if hasattr(X, "__arrow_c_stream__") else None


def _read_stream(X: Any) -> Iterator[Any]:
    with redact_errors_of("the stream"):
        yield from pa.RecordBatchReader.from_stream(X)


def _open_duckdb(relation: Any) -> Relation:
    plan = relation.explain()
    if reads_text_files(plan):
        raise inferred_types_error("a DuckDB relation")
    if _OBJECT_SCAN in plan:
        raise OutOfSchemaError(
            "DuckDB infers the types of a pandas frame's objects from some of its rows. Hint: pass the frame itself, "
            "or a relation of an Arrow table."
        )
    running: list[Any] = []

    def scan_relation(columns: list[str], batch_rows: int) -> Iterator[FramePiece]:
        while running:  # left by an abandoned pass: a connection has one open result at a time
            running.pop().close()
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        running.append(pa.RecordBatchReader.from_stream(relation.project(quoted)))
        yield from running[-1]

    return Relation("the DuckDB relation", tuple(relation.columns), scan_relation)


def _open_lazy_frame(frame: Any) -> Relation:
    if reads_text_files(frame.explain(optimized=False)):
        raise inferred_types_error("a lazy frame")

    def collect_frame(columns: list[str], batch_rows: int) -> Iterator[FramePiece]:
        for piece in frame.select(columns).collect_batches(chunk_size=batch_rows, maintain_order=True):
            yield pa.table(piece)

    return Relation("the lazy frame", tuple(frame.collect_schema().names()), collect_frame)


def _open_scanner(scanner: Any) -> Relation:
    """Open an Arrow scanner. Reads its beginning twice, to reject scanners of text files and single-use scanners."""
    for _ in range(2):
        try:
            for tagged in scanner.scan_batches():
                _check_fragment(tagged)
                break
        except pa.ArrowInvalid as error:
            if "already scanned" not in str(error):
                raise
            raise UseError(
                "this scanner's batches can be read only once. Hint: pass vw.spool(scanner.to_reader())."
            ) from None

    def scan_fragments(columns: list[str], batch_rows: int) -> Iterator[FramePiece]:
        for tagged in scanner.scan_batches():
            _check_fragment(tagged)
            yield tagged.record_batch.select(columns)

    return Relation("the scanner", tuple(scanner.projected_schema.names), scan_fragments)


def _check_fragment(tagged: Any) -> None:
    if infers_types_from_rows(tagged.fragment):
        raise inferred_types_error("a scanner")


def infers_types_from_rows(files: Any) -> bool:
    """Return True if one row can change how other rows are read, in a dataset or in any dataset of a union."""
    import pyarrow.dataset as datasets  # slow to load

    own = isinstance(getattr(files, "format", None), datasets.CsvFileFormat | datasets.JsonFileFormat)
    return own or any(infers_types_from_rows(child) for child in getattr(files, "children", ()))


def reads_text_files(plan: str) -> bool:
    """Return True if a plan of DuckDB or polars reads text files, whose types are inferred from rows.

    >>> [reads_text_files(plan) for plan in ("Csv SCAN [visits.csv]", "Function: READ_CSV_AUTO", "SEQ_SCAN")]
    [True, True, False]
    """
    return _TEXT_SCANS.search(plan) is not None


def inferred_types_error(source_kind: str) -> OutOfSchemaError:
    """Return the error for a source in which one row could change how other rows are read."""
    return OutOfSchemaError(
        f"{source_kind} of CSV or JSON files infers its types from the rows. Hint: pass the path of CSV files, so that "
        "the schema decides, or write Parquet."
    )


# -- queries ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False)
class Query:
    """Rows of a database query, which is run again in each pass.

    The rows are fetched batch by batch and counted in this process. If no row may leave the database, pass the address
    of a table to ``fit`` instead.

    Parameters
    ----------
    query : str or SQLAlchemy select
        Must return the columns of the schema and the target. If a forest reads the rows several times, their order must
        be the same each time (ORDER BY); otherwise the fit fails before anything more is released.
    connection : ADBC, SQLAlchemy, DuckDB or other DB-API connection, or SQLAlchemy engine
        Never closed or written to.

    Examples
    --------
    >>> import sqlite3
    >>> import veilwood as vw
    >>> database = sqlite3.connect(":memory:")
    >>> _ = database.execute("CREATE TABLE visits (age REAL, ill TEXT)")
    >>> _ = database.executemany("INSERT INTO visits VALUES (?, ?)", [(30, "no"), (70, "yes")] * 500)
    >>> schema = vw.Schema.from_dict({"name": "visits", "task": "classification", "target": "ill", "columns": [
    ...     {"name": "age", "kind": "numeric", "lower": 0, "upper": 110},
    ...     {"name": "ill", "kind": "categorical", "values": ["no", "yes"]}]})
    >>> forest = vw.PrivateForestClassifier(schema, epsilon=1.0, random_state=0)
    >>> forest.fit(vw.Query("SELECT age, ill FROM visits ORDER BY rowid", database)).n_features_in_
    1
    """

    query: Any
    connection: Any


def _open_query(request: Query) -> Relation:
    connection = request.connection
    if type(connection).__module__.split(".")[0] in ("duckdb", "_duckdb"):
        return _open_duckdb(connection.sql(request.query))
    if hasattr(connection, "adbc_get_info"):
        return _open_adbc(request)
    if type(connection).__module__.split(".")[0] == "sqlalchemy":
        return _open_untyped_query(request, _run_sqlalchemy)
    if hasattr(connection, "cursor"):
        return _open_untyped_query(request, _run_cursor)
    raise UseError(
        f"the query's connection is a {type(connection).__name__}, which is not a connection. Hint: pass an ADBC, "
        "SQLAlchemy, DuckDB or other DB-API connection."
    )


def _open_adbc(request: Query) -> Relation:
    if "SQLite" in str(request.connection.adbc_get_info().get("driver_name")):
        raise OutOfSchemaError(
            "the ADBC driver of SQLite infers types from the rows. Hint: pass a connection of sqlite3 or SQLAlchemy."
        )

    def read_cursor(columns: list[str] | None) -> Iterator[FramePiece]:
        with request.connection.cursor() as cursor:
            cursor.execute(request.query)
            reader = cursor.fetch_record_batch()
            if columns is None:
                yield reader.schema.empty_table()
                return
            for batch in reader:
                yield batch.select(columns)

    (empty,) = read_cursor(None)
    return Relation("the query", tuple(empty.schema.names), lambda columns, batch_rows: read_cursor(columns))


NamedRows: TypeAlias = tuple[list[str], Iterator[list[Any]]]  # names, and lists of rows


def _open_untyped_query(request: Query, run: Callable[[Query, int], Iterator[NamedRows]]) -> Relation:
    """Open a query over a connection whose driver returns each value with its own type."""

    def run_query(columns: list[str], batch_rows: int) -> Iterator[FramePiece]:
        for names, batches in run(request, batch_rows):
            for rows in batches:  # dtype=object: pandas would infer one type from all rows
                cells = {name: [row[names.index(name)] for row in rows] for name in columns}
                yield pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in cells.items()})

    names = next(names for names, _ in run(request, 1))
    return Relation("the query", tuple(names), run_query)


def _run_sqlalchemy(request: Query, batch_rows: int) -> Iterator[NamedRows]:
    from sqlalchemy import Connection, text

    query = text(request.query) if isinstance(request.query, str) else request.query
    own = not isinstance(request.connection, Connection)
    connection = request.connection.connect() if own else request.connection
    try:
        with connection.execution_options(yield_per=batch_rows).execute(query) as result:
            yield list(result.keys()), (list(rows) for rows in result.partitions(batch_rows))
    finally:
        if own:
            connection.close()


def _run_cursor(request: Query, batch_rows: int) -> Iterator[NamedRows]:
    cursor = request.connection.cursor()
    try:
        cursor.execute(request.query)
        yield [column[0] for column in cursor.description], iter(lambda: list(cursor.fetchmany(batch_rows)), [])
    finally:
        cursor.close()
