# SPDX-License-Identifier: Apache-2.0
"""Sources for tables in a database: every pass is an aggregate query, and rows stay in the database.

The caller receives exact sums, which are as private as rows in memory; the release door draws the noise in the process
that called ``fit``. A keyed hash of a row's contents, under a fresh secret key, decides whether it counts for
its id; with its number among equal rows, it decides which tree a row is assigned to and whether it is held out. No row
moves another one, as the guarantees require (proofs/counting-in-sql.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from veilwood.data.batches import Batch, Count, RowFilter, Source, Sums
from veilwood.data.contributions import missing_id_column_error, unknown_id_error
from veilwood.data.counts import CellQuery, DeclarativeCount, KeyedRowHash, SumKind
from veilwood.data.encoding import TARGET_LEVELS, Encoding, check_names
from veilwood.data.problems import Invalid, Problem, ProblemMessage, raise_problems
from veilwood.errors import OutOfSchemaError, UseError
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.neighbours import RowsOf
from veilwood_engines.sql import encode
from veilwood_engines.sql.cell_sql import CellSqlWriter
from veilwood_engines.sql.dialects import SqlDialect, SqlKind, column_kind
from veilwood_engines.sql.session import Session, open_session

if TYPE_CHECKING:
    from veilwood.forests.adaptive.contingency import BinnedColumn
    from veilwood_engines.sql.backend import SqlBackend

ROWS_TABLE: Final = "veilwood_rows"
MAX_DIRECT_QUERIES: Final = 4  # with more queries per pass, encoded rows are stored in a temporary table
_PER_MILLE: Final = 1000  # unit of the holdout fraction


@dataclass(frozen=True, repr=False)
class EncodedRows:
    """Encoding of a table's rows as SQL: expressions of their values, and a query. Contains no rows."""

    dialect: SqlDialect
    encoding: Encoding
    relation: str
    features: tuple[encode.ValueExpression, ...]
    target: encode.ValueExpression
    id_value: encode.ValueExpression | None
    cap: RowsOf | None
    invalid: Invalid
    key: bytes

    @classmethod
    def for_table(
        cls, dialect: SqlDialect, relation: str, types: dict[str, tuple[SqlKind | None, str]], encoding: Encoding,
        cap: RowsOf | None, invalid: Invalid, key: bytes,
    ) -> EncodedRows:  # fmt: skip
        """Compile the schema's rules for these types. Raise OutOfSchemaError for columns that cannot be read."""

        def typed_column(name: str) -> encode.TypedColumn:
            kind, type_name = types[name]
            if kind is None:
                raise OutOfSchemaError(
                    f"column {name!r} has the type {type_name}, which cannot be read in a database. "
                    "Hint: cast it in a view.",
                    column=name,
                )
            x = f"veilwood_table.{dialect.quote_name(name)}"
            # Some collations of PostgreSQL support no pattern matching: without this, an error would depend on rows.
            return encode.TypedColumn(dialect.with_exact_collation(x) if kind == "text" else x, kind, type_name)

        features = tuple(
            (encode.number_expression if column.kind == "numeric" else encode.category_expression)(
                column, typed_column(column.source), dialect
            )
            for column in encoding.schema.features
        )
        target = encoding.schema.target
        read = (encode.category_expression if target.kind == "categorical" else encode.target_level_expression)(
            target, typed_column(target.source), dialect
        )
        person = None if cap is None else encode.id_expression(cap.id, typed_column(cap.id), dialect)
        return cls(dialect, encoding, relation, features, read, person, cap, invalid, key)

    @property
    def feature_names(self) -> list[str]:
        """Names of the feature columns."""
        return [f"f{i}" for i in range(len(self.features))]

    @property
    def _value_expressions(self) -> list[tuple[str, encode.ValueExpression]]:
        return [*((f"f{i}", read) for i, read in enumerate(self.features)), ("t", self.target)]

    def _select_all(self) -> str:
        """Return the query of all rows, with their problems."""
        out = []
        for name, read in self._value_expressions:
            out.append(f"{read.value} AS {name}")
            if read.problem:
                out.append(f"{read.problem} AS p{name}")
        if self.id_value is not None:
            out += [f"{self.id_value.value} AS u", f"{self.id_value.problem} AS pu"]
        return f"SELECT {', '.join(out)} FROM {self.relation} AS veilwood_table"

    def _problem_conditions(self) -> list[tuple[str, Problem, str]]:
        """Return every column and kind of problem, with its condition."""
        conditions = []
        for name, read in self._value_expressions:
            for kind in read.kinds:
                conditions.append((name, kind, f"p{name} = {int(kind)}" if read.problem else f"{name} = {-kind}"))
        if self.id_value is not None:
            conditions += [("u", kind, f"pu = {int(kind)}") for kind in self.id_value.kinds]
        return conditions

    def problem_query(self) -> str:
        """Return the statement that checks whether there are rows, and which problems occur in any row."""
        tests = [f"MAX(CASE WHEN {where} THEN 1 ELSE 0 END) AS a{i}"
                 for i, (_, _, where) in enumerate(self._problem_conditions())]  # fmt: skip
        return f"SELECT {', '.join(['MAX(1) AS a', *tests])} FROM ({self._select_all()}) AS veilwood_read"

    def raise_found_problems(self, flags: Sequence[Any]) -> None:
        """Raise OutOfSchemaError if rows violate the schema, with the same messages as other sources."""
        if flags[0] is None:
            raise OutOfSchemaError("the table holds no rows. Hint: check how it was created.")
        schema = self.encoding.schema
        columns = {**{f"f{i}": column for i, column in enumerate(schema.features)}, "t": schema.target}
        wrong = [
            (name, kind)
            for (name, kind, _), any_row in zip(self._problem_conditions(), flags[1:], strict=True)
            if any_row
        ]
        raise_problems(
            [ProblemMessage.from_kind(columns[name], kind, schema.target) for name, kind in wrong if name != "u"]
        )
        if wrong and self.cap is not None:
            raise unknown_id_error(self.cap, missing=wrong[0][1] == Problem.MISSING)

    def rows_query(self) -> str:
        """Return the query of the valid rows, k per id: codes of categories, raw numbers, and the target.

        Every id counts k times (``contributions.copies_per_row``): row i of m is taken i, i + m, i + 2m, ... up to k.
        """
        wanted = ", ".join([*self.feature_names, "t"])
        person = ", u" if self.id_value is not None else ""
        rows = f"SELECT {wanted}{person} FROM ({self._select_all()}) AS veilwood_read"
        if self.invalid == "drop":
            fits = [
                f"p{name} = 0" if read.problem else f"{name} >= 0"
                for name, read in self._value_expressions
                if read.kinds
            ] + (["pu = 0"] if self.id_value is not None else [])
            rows += f" WHERE {' AND '.join(fits)}" if fits else ""
        if self.cap is None:
            return rows
        # Ordered by hash, then by its inputs: an engine may format two floats alike. Only equal rows are then tied.
        time = "" if self.encoding.time_index is None else f"f{self.encoding.time_index}, "
        hashed = CellSqlWriter(self.dialect, self.encoding).row_hash_expression(self.key, self.feature_names)
        order = f"{time}{hashed}, {wanted}"
        ranked = (
            f"SELECT {wanted}, ROW_NUMBER() OVER (PARTITION BY u ORDER BY {order}) AS veilwood_rank, "
            f"COUNT(*) OVER (PARTITION BY u) AS veilwood_of_id FROM ({rows}) AS veilwood_fit"
        )
        if self.cap.at_most == 1 or self.encoding.time_index is not None:  # the first rows in time count once each
            return f"SELECT {wanted} FROM ({ranked}) AS veilwood_ranked WHERE veilwood_rank <= {self.cap.at_most}"
        copies = _numbers_query(self.cap.at_most)
        return (
            f"SELECT {wanted} FROM ({ranked}) AS veilwood_ranked, ({copies}) AS veilwood_copies "
            f"WHERE veilwood_rank + veilwood_of_id * veilwood_copy <= {self.cap.at_most}"
        )

    def create_statement(self) -> str:
        """Return the statement that creates the temporary table of encoded rows."""
        types = self.dialect.type_names
        kinds = [types.double if column.ordered else types.int32 for column in self.encoding.columns]
        columns = [f"{name} {kind}" for name, kind in zip(self.feature_names, kinds, strict=True)]
        return f"CREATE TEMPORARY TABLE {ROWS_TABLE} ({', '.join([*columns, f't {types.int64}'])})"


def _numbers_query(n: int) -> str:
    """Return a query whose result contains the numbers from 0 to n - 1, as sums of powers of two."""
    powers = [1 << place for place in range((n - 1).bit_length())]
    digits = ", ".join(f"(SELECT 0 AS d{power} UNION ALL SELECT {power}) AS veilwood_{power}" for power in powers)
    return f"SELECT {' + '.join(f'd{power}' for power in powers)} AS veilwood_copy FROM {digits}"


@dataclass(repr=False, eq=False)
class _PassState:
    """Progress of a session."""

    n_passes: int = 0
    is_filled: bool = False


@dataclass(frozen=True, repr=False, kw_only=True)
class SqlSource(Source):
    """Rows of a table in a database; passes are aggregate queries.

    Attributes
    ----------
    session : Session
        Connection to the database.
    rows : EncodedRows
        Encoding of the table.
    holdout_part : tuple or None
        Part of the rows that this source has after a split: key, held-out fraction per mille, and whether these are
        the held-out rows.
    """

    session: Session
    rows: EncodedRows
    holdout_part: tuple[bytes, int, bool] | None = None
    _state: _PassState = field(default_factory=_PassState)

    @classmethod
    def from_session(cls, session: Session, rows: EncodedRows) -> SqlSource:
        """Create a source from a session and the encoding of its rows."""
        return cls(_read=_raise_rows_stay, session=session, rows=rows)

    @property
    def executed_statements(self) -> list[str]:
        """SHA-256 of every statement so far; it grows with each pass."""
        return self.session.statement_hashes

    def select_part(self, row_filter: RowFilter) -> SqlSource:
        """Return a source of the rows that a filter selects, which are the same in every pass."""
        drawn = (row_filter.key, row_filter.per_mille, row_filter.held_out)
        return SqlSource(
            _read=self._read, session=self.session, rows=self.rows, holdout_part=drawn, preserves_rows=False
        )

    def make_backend(self, columns: Sequence[BinnedColumn], n_outputs: int) -> SqlBackend:
        """Return a backend that holds the rows and their scores in temporary tables."""
        from veilwood_engines.sql.backend import SqlBackend  # imports this module

        return SqlBackend(columns, self, len(self.rows.encoding.schema.classes))

    def make_writer(self) -> CellSqlWriter:
        """Return the compiler of cell rules for the encoded rows."""
        return CellSqlWriter(self.rows.dialect, self.rows.encoding)

    def rows_query(self) -> str:
        """Return the query of this source's encoded rows."""
        if self.holdout_part is None:
            return self.rows.rows_query()
        key, thousandths, aside = self.holdout_part
        names = self.rows.feature_names
        limit = self.rows.dialect.quote_text(f"{-(-thousandths * 16**8 // _PER_MILLE):08x}")
        drawn = self.make_writer().hashed_rows(f"({self.rows.rows_query()})", key, names)
        return (
            f"SELECT {', '.join([*names, 't'])} FROM {drawn} AS veilwood_share WHERE h {'<' if aside else '>='} {limit}"
        )

    def rows_relation(self, n_queries: int = 1) -> str:
        """Return the relation to query: a temporary table if rows are read several times and it can be created."""
        at = self._state
        several = at.n_passes > 0 or n_queries > MAX_DIRECT_QUERIES or self.rows.cap is not None
        at.n_passes += 1
        if several and self.session.can_create_tables and not at.is_filled and self.holdout_part is None:
            self.session.execute(f"INSERT INTO {ROWS_TABLE} {self.rows_query()}")
            at.is_filled = True
        return ROWS_TABLE if at.is_filled else f"({self.rows_query()})"

    def aggregate(self, count: Count, progress_label: str = "counting", *, n_jobs: int | None = 1) -> Sums:
        """Count in the database, which chooses its own number of threads: ``n_jobs`` has no effect."""
        if isinstance(count, DeclarativeCount):
            return self.share_sums(count.via_cell_queries(self.run_cell_queries, self.rows.encoding.n_codes))
        from veilwood_engines.sql.scoring import count_in_sql  # imports all models, which import sources

        return self.share_sums(count_in_sql(count, self))

    def run_cell_queries(
        self, queries: Sequence[CellQuery], kind: SumKind, row_hash: KeyedRowHash | None = None
    ) -> list[Sums]:
        """Run cell queries (``counts.RunCellQueries``)."""
        n_classes = len(self.rows.encoding.schema.classes)
        width = n_classes if kind == "classes" else 3
        totals = [np.zeros((table.n_cells, width), np.int64) for table in queries]
        writer = self.make_writer()
        rows = self.rows_relation(len(queries)) if queries else ROWS_TABLE
        for statement in writer.query_statements(queries, kind, rows, row_hash, len(self.rows.features)):
            for number, cell, *sums in self.session.execute(statement):
                if cell < 0:
                    continue
                if kind == "classes":
                    totals[number][int(cell), int(sums[0])] = int(sums[1])
                else:
                    totals[number][int(cell)] = [int(value) for value in sums]
        if kind != "pair":
            return totals
        return [np.stack([sums[:, 1], TARGET_LEVELS * sums[:, 0] - sums[:, 1]], axis=1) for sums in totals]


def open_sql(
    X: Any,
    encoding: Encoding,
    *,
    cap: RowsOf | None,
    invalid: Invalid,
    on_statement: Callable[[str], None] | None = None,
) -> SqlSource:
    """Create the source of a table in a database (``open_rows``), with its temporary tables and snapshot."""
    session = open_session(X, on_statement)
    try:
        return _make_source(session, encoding, cap, invalid)
    except BaseException:
        session.close()  # closed now, because the traceback could keep the session, and thus a lock, alive
        raise


def _make_source(session: Session, encoding: Encoding, cap: RowsOf | None, invalid: Invalid) -> SqlSource:
    if taken := re.search(
        rf"\b({ROWS_TABLE}|{BINS_TABLE}|{SAMPLE_TABLE}|{LOOKUP_TABLE})\b", session.relation, flags=re.IGNORECASE
    ):
        raise UseError(f"table {taken[0]} has the name of a temporary table that the fit creates. Hint: rename it.")
    columns = session.column_types()
    names = [name for name, _ in columns]
    check_names(encoding.schema, names, allowed_extra=() if cap is None else (cap.id,), target=True)
    if cap is not None and cap.id not in names:
        raise missing_id_column_error(cap)
    types = {name: (column_kind(type_name, session.dialect.engine), type_name) for name, type_name in columns}
    rows = EncodedRows.for_table(session.dialect, session.relation, types, encoding, cap, invalid, secret_key())
    session.create_scratch_tables([rows.create_statement(), *scratch_table_statements(rows)])
    session.begin_snapshot()
    if invalid == "refuse":
        (flags,) = session.execute(rows.problem_query())
        rows.raise_found_problems(flags)
    return SqlSource.from_session(session, rows)


def _raise_rows_stay() -> Iterator[Callable[[], Batch]]:
    raise UseError(
        "the rows stay in the database, but this method needs them here. Hint: pass files, or a sample in memory."
    )


# Temporary tables of PrivateForest: bins and scores of all rows, of the sample, and lookups.
BINS_TABLE, SAMPLE_TABLE, LOOKUP_TABLE = "veilwood_cells", "veilwood_judges", "veilwood_lookup"


def scratch_table_statements(rows: EncodedRows) -> list[str]:
    """Return statements that create PrivateForest's temporary tables of bins and scores, all before the snapshot."""
    dialect, n_classes = rows.dialect, len(rows.encoding.schema.classes)
    columns = [f"c{i} {dialect.type_names.int32}" for i in range(len(rows.features))]
    columns += [
        f"t {dialect.type_names.int64}",
        *(f"s{i} {dialect.type_names.int64}" for i in range(n_classes if n_classes > 2 else 1)),
    ]
    listed = ", ".join(columns)
    return [
        f"CREATE TEMPORARY TABLE {BINS_TABLE} ({listed})",
        f"CREATE TEMPORARY TABLE {SAMPLE_TABLE} ({listed})",
        f"CREATE TEMPORARY TABLE {LOOKUP_TABLE} (i {dialect.type_names.int64}, v {dialect.type_names.int64})",
    ]


def assumed_types(dialect: SqlDialect, encoding: Encoding, cap: RowsOf | None) -> dict[str, tuple[SqlKind | None, str]]:
    """Return the column types that the schema suggests, for previews without a table."""
    if dialect.engine == "sqlite":
        names = [*encoding.schema.sources, *(() if cap is None else (cap.id,))]
        return dict.fromkeys(names, ("any", "any"))
    types: dict[str, tuple[SqlKind | None, str]] = {}
    for column in (*encoding.schema.features, encoding.schema.target):
        kind: SqlKind = "double"
        if column.part is not None:
            kind = "moment"
        elif column.kind == "categorical":
            kind = {"int": "whole", "float": "double", "bool": "boolean"}.get(column.label_type, "text")  # type: ignore[assignment]
        types[column.source] = (kind, kind)
    if cap is not None:
        types[cap.id] = ("text", "text")
    return types
