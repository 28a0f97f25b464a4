# SPDX-License-Identifier: Apache-2.0
"""Rows that stay in a database: a source whose passes are aggregate queries.

The caller gets sums, exact ones, and is trusted with them as with rows in memory; noise is drawn by the door, where
``fit`` was called. Which rows of an id are kept, and which tree a row is given to, follows from a keyed hash of what
the row holds, under a fresh secret key: from the row alone, as the guarantees need (proofs/counting-in-sql.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from veilwood.data.batches import Batch, Count, Source, Sums
from veilwood.data.contributions import no_id, nobody
from veilwood.data.counts import Cells, Coins, SaidCount, What
from veilwood.data.encoding import TARGET_LEVELS, Encoding, check_names
from veilwood.data.problems import Invalid, Problem, ToldProblem, refuse
from veilwood.engines.sql.cell_sql import Writer
from veilwood.engines.sql.dialects import EngineWords, SqlKind, kind_of
from veilwood.engines.sql.encode import ReadCell, Typed, id_read, level_of, number_of, place_of
from veilwood.engines.sql.session import Session, open_session
from veilwood.errors import OutOfSchemaError, UseError
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.neighbours import RowsOf

__all__ = ["EncodedRows", "SqlCount", "SqlSource", "assumed_types", "open_sql"]

ROWS: Final = "veilwood_rows"
FEW_TABLES: Final = 4  # that are counted without a temporary table
_PARTS: Final = 1000


@dataclass(frozen=True, repr=False)
class EncodedRows:
    """The rows of a table as the schema reads them: expressions, and the query that they make. No row is in it."""

    words: EngineWords
    encoding: Encoding
    relation: str
    features: tuple[ReadCell, ...]
    target: ReadCell
    person: ReadCell | None
    cap: RowsOf | None
    invalid: Invalid
    key: bytes

    @classmethod
    def of(
        cls, words: EngineWords, relation: str, types: dict[str, tuple[SqlKind | None, str]], encoding: Encoding,
        cap: RowsOf | None, invalid: Invalid, key: bytes,
    ) -> EncodedRows:  # fmt: skip
        """Write the schema's rules for columns of these types; columns that cannot be read are refused."""

        def typed(name: str) -> Typed:
            kind, type_name = types[name]
            if kind is None:
                raise OutOfSchemaError(
                    f"column {name!r} has the type {type_name}, which cannot be read in a database. "
                    "Hint: cast it in a view.",
                    column=name,
                )
            x = f"veilwood_table.{words.name(name)}"
            # Some collations of PostgreSQL cannot be searched, which would be told by the first row that holds a text.
            return Typed(words.exactly(x) if kind == "text" else x, kind, type_name)

        features = tuple(
            (number_of if column.kind == "numeric" else place_of)(column, typed(column.source), words)
            for column in encoding.schema.features
        )
        target = encoding.schema.target
        read = (place_of if target.kind == "categorical" else level_of)(target, typed(target.source), words)
        person = None if cap is None else id_read(cap.id, typed(cap.id), words)
        return cls(words, encoding, relation, features, read, person, cap, invalid, key)

    @property
    def names(self) -> list[str]:
        """Columns of the features."""
        return [f"f{i}" for i in range(len(self.features))]

    @property
    def _reads(self) -> list[tuple[str, ReadCell]]:
        return [*((f"f{i}", read) for i, read in enumerate(self.features)), ("t", self.target)]

    def _read(self) -> str:
        """All rows, with what is wrong with them."""
        out = []
        for name, read in self._reads:
            out.append(f"{read.value} AS {name}")
            if read.problem:
                out.append(f"{read.problem} AS p{name}")
        if self.person is not None:
            out += [f"{self.person.value} AS u", f"{self.person.problem} AS pu"]
        return f"SELECT {', '.join(out)} FROM {self.relation} AS veilwood_table"

    def _conditions(self) -> list[tuple[str, Problem, str]]:
        """Every column and kind of problem, and where a row has it."""
        found = []
        for name, read in self._reads:
            for kind in read.kinds:
                found.append((name, kind, f"p{name} = {int(kind)}" if read.problem else f"{name} = {-kind}"))
        if self.person is not None:
            found += [("u", kind, f"pu = {int(kind)}") for kind in self.person.kinds]
        return found

    def check(self) -> str:
        """Ask, in one statement, whether there are rows, and what is wrong with any of them."""
        tests = [f"MAX(CASE WHEN {where} THEN 1 ELSE 0 END) AS a{i}"
                 for i, (_, _, where) in enumerate(self._conditions())]  # fmt: skip
        return f"SELECT {', '.join(['MAX(1) AS a', *tests])} FROM ({self._read()}) AS veilwood_read"

    def refuse(self, found: Sequence[Any]) -> None:
        """Raise where rows do not fit the schema, in the words of every other source."""
        if found[0] is None:
            raise OutOfSchemaError("the table holds no rows. Hint: check how it was made.")
        schema = self.encoding.schema
        columns = {**{f"f{i}": column for i, column in enumerate(schema.features)}, "t": schema.target}
        wrong = [
            (name, kind) for (name, kind, _), any_row in zip(self._conditions(), found[1:], strict=True) if any_row
        ]
        refuse([ToldProblem.of_kind(columns[name], kind, schema.target) for name, kind in wrong if name != "u"])
        if wrong and self.cap is not None:
            raise nobody(self.cap, missing=wrong[0][1] == Problem.MISSING)

    def query(self) -> str:
        """The rows that fit, at most k of each id: codes of categories, raw numbers, and the target."""
        wanted = ", ".join([*self.names, "t"])
        person = ", u" if self.person is not None else ""
        rows = f"SELECT {wanted}{person} FROM ({self._read()}) AS veilwood_read"
        if self.invalid == "drop":
            fits = [f"p{name} = 0" if read.problem else f"{name} >= 0" for name, read in self._reads if read.kinds] + (
                ["pu = 0"] if self.person is not None else []
            )
            rows += f" WHERE {' AND '.join(fits)}" if fits else ""
        if self.cap is None:
            return rows
        # Behind the hash what it was made of, as an engine may write two floats alike: then only equal rows are tied.
        order = f"{Writer(self.words, self.encoding).hashed(self.key, self.names)}, {wanted}"
        ranked = (
            f"SELECT {wanted}, ROW_NUMBER() OVER (PARTITION BY u ORDER BY {order}) AS veilwood_rank "
            f"FROM ({rows}) AS veilwood_fit"
        )
        return f"SELECT {wanted} FROM ({ranked}) AS veilwood_ranked WHERE veilwood_rank <= {self.cap.at_most}"

    def create(self) -> str:
        """Make the temporary table of encoded rows."""
        types = self.words.types
        kinds = [types.double if column.ordered else types.small for column in self.encoding.columns]
        columns = [f"{name} {kind}" for name, kind in zip(self.names, kinds, strict=True)]
        return f"CREATE TEMPORARY TABLE {ROWS} ({', '.join([*columns, f't {types.whole}'])})"


@runtime_checkable
class SqlCount(Protocol):
    """A ``batches.Count`` that writes its own queries."""

    def count_in_sql(self, source: SqlSource) -> Sums:
        """Return the sums of a source's rows."""


@dataclass(repr=False, eq=False)
class _Pass:
    """What a session has come to."""

    passes: int = 0
    filled: bool = False


@dataclass(frozen=True, repr=False, kw_only=True)
class SqlSource(Source):
    """The rows of a table in a database; passes are aggregate queries, and rows never come here.

    Attributes
    ----------
    session : Session
        The connection.
    rows : EncodedRows
        How the table is read.
    share : tuple or None
        Which part of the rows this is, where a key has set some aside: the key, how many thousandths, and which part.
    """

    session: Session
    rows: EncodedRows
    share: tuple[bytes, int, bool] | None = None
    _at: _Pass = field(default_factory=_Pass)

    @classmethod
    def of(cls, session: Session, rows: EncodedRows) -> SqlSource:
        """Make a source out of a session and the way its rows are read."""
        return cls(_read=_stays, session=session, rows=rows)

    @property
    def record(self) -> list[str]:
        """The SHA-256 of every statement so far."""
        return self.session.record

    def part(self, key: bytes, thousandths: int, aside: bool) -> SqlSource:
        """Keep the rows that a key sets aside, or the others: by what a row holds, in every pass the same."""
        share = (key, thousandths, aside)
        return SqlSource(_read=self._read, session=self.session, rows=self.rows, share=share, one_for_one=False)

    def writer(self) -> Writer:
        """Writes cells of the encoded rows."""
        return Writer(self.rows.words, self.rows.encoding)

    def query(self) -> str:
        """The rows of this source, encoded."""
        if self.share is None:
            return self.rows.query()
        key, thousandths, aside = self.share
        writer = self.writer()
        limit = self.rows.words.text(f"{-(-thousandths * 16**8 // _PARTS):08x}")
        drawn = f"{writer.hashed(key, self.rows.names)} {'<' if aside else '>='} {limit}"
        return f"SELECT * FROM ({self.rows.query()}) AS veilwood_share WHERE {drawn}"

    def relation(self, n_tables: int = 1) -> str:
        """Where queries find the rows: a temporary table if they are read several times, where one can be made."""
        at = self._at
        several = at.passes > 0 or n_tables > FEW_TABLES or self.rows.cap is not None
        at.passes += 1
        if several and self.session.scratch and not at.filled and self.share is None:
            self.session.ask(f"INSERT INTO {ROWS} {self.query()}")
            at.filled = True
        return ROWS if at.filled else f"({self.query()})"

    def add_up(self, count: Count, doing: str = "counting", *, n_jobs: int | None = 1) -> Sums:
        """Count in the database; threads are its own, so ``n_jobs`` has no effect."""
        if isinstance(count, SqlCount):
            return self.hand_over(count.count_in_sql(self))
        if not isinstance(count, SaidCount):
            raise UseError(
                "this cannot be counted in a database, where no code of ours runs. Hint: pass files, or a table in "
                "memory."
            )
        return self.hand_over(count.by_cells(self.answer, self.rows.encoding.n_codes))

    def answer(self, tables: Sequence[Cells], what: What, coins: Coins | None = None) -> list[Sums]:
        """Add up the rows of tables (``cells.Answer``)."""
        n_classes = len(self.rows.encoding.schema.classes)
        width = n_classes if what == "classes" else 3
        found = [np.zeros((table.n_cells, width), np.int64) for table in tables]
        writer = self.writer()
        rows = self.relation(len(tables)) if tables else ROWS
        for statement in writer.statements(tables, what, rows, coins, len(self.rows.features)):
            for number, cell, *sums in self.session.ask(statement):
                if cell < 0:
                    continue
                if what == "classes":
                    found[number][int(cell), int(sums[0])] = int(sums[1])
                else:
                    found[number][int(cell)] = [int(value) for value in sums]
        if what != "pair":
            return found
        return [np.stack([sums[:, 1], TARGET_LEVELS * sums[:, 0] - sums[:, 1]], axis=1) for sums in found]


def open_sql(
    X: Any,
    encoding: Encoding,
    *,
    cap: RowsOf | None,
    invalid: Invalid,
    listening: Callable[[str], None] | None = None,
) -> SqlSource:
    """Make a source of a table in a database (``open_rows``); temporary tables are made, and the snapshot is taken."""
    session = open_session(X, listening)
    try:
        return _opened(session, encoding, cap, invalid)
    except BaseException:
        session.close()  # at once: whoever keeps the error would keep the table locked
        raise


def _opened(session: Session, encoding: Encoding, cap: RowsOf | None, invalid: Invalid) -> SqlSource:
    if taken := re.search(rf"\b({ROWS}|{CELLS}|{JUDGES}|{LOOKUP})\b", session.relation, flags=re.IGNORECASE):
        raise UseError(
            f"a table called {taken[0]} cannot be told from a temporary one of the same name, which is made to count "
            "in. Hint: rename it."
        )
    columns = session.columns()
    names = [name for name, _ in columns]
    check_names(encoding.schema, names, allowed_extra=() if cap is None else (cap.id,), target=True)
    if cap is not None and cap.id not in names:
        raise no_id(cap)
    types = {name: (kind_of(type_name, session.words.engine), type_name) for name, type_name in columns}
    rows = EncodedRows.of(session.words, session.relation, types, encoding, cap, invalid, secret_key())
    session.prepare([rows.create(), *scratch_tables(rows)])
    session.look()
    if invalid == "refuse":
        (found,) = session.ask(rows.check())
        rows.refuse(found)
    return SqlSource.of(session, rows)


def _stays() -> Iterator[Callable[[], Batch]]:
    raise UseError("the rows stay in the database, and they are needed here. Hint: pass files, or a sample in memory.")


CELLS, JUDGES, LOOKUP = "veilwood_cells", "veilwood_judges", "veilwood_lookup"


def scratch_tables(rows: EncodedRows) -> list[str]:
    """Make the temporary tables in which PrivateForest keeps cells and scores: before the snapshot, as all are."""
    words, n_classes = rows.words, len(rows.encoding.schema.classes)
    columns = [f"c{i} {words.types.small}" for i in range(len(rows.features))]
    columns += [
        f"t {words.types.whole}",
        *(f"s{i} {words.types.whole}" for i in range(n_classes if n_classes > 2 else 1)),
    ]
    listed = ", ".join(columns)
    return [
        f"CREATE TEMPORARY TABLE {CELLS} ({listed})",
        f"CREATE TEMPORARY TABLE {JUDGES} ({listed})",
        f"CREATE TEMPORARY TABLE {LOOKUP} (i {words.types.whole}, v {words.types.whole})",
    ]


def assumed_types(words: EngineWords, encoding: Encoding, cap: RowsOf | None) -> dict[str, tuple[SqlKind | None, str]]:
    """The types that columns have by the schema's own words, for templates that are written without a table."""
    if words.engine == "sqlite":
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
