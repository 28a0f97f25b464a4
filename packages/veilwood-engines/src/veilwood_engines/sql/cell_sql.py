# SPDX-License-Identifier: Apache-2.0
"""Cell queries as SQL: tests of codes become nested CASE expressions over raw values, and tables become GROUP BY.

A number is compared with the smallest float of each code, as a constant. A row therefore falls into the same cell in
SQL and in Python, and no arithmetic is done on values of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from veilwood.data.counts import ROW_HASH, CellQuery, CellRule, KeyedRowHash, Split, SumKind
from veilwood.data.encoding import Encoding
from veilwood.errors import DomainTooLargeError
from veilwood_engines.sql.dialects import SqlDialect

MAX_BATCH_LENGTH: Final = 250_000  # characters of a statement that joins queries
MAX_QUERY_LENGTH: Final = 8_000_000  # characters of a single query, the upper limit of a statement
MAX_SELECTS: Final = 64  # queries per statement; SQLite allows 500
NOT_COUNTED: Final = -(1 << 40)  # cell of a row that is not counted: stays negative if other terms are added
_HASH_DIGITS: Final = 8  # hexadecimal digits of a row's hash that decide its bucket


class CellSqlWriter:
    """Compiler of cell rules of an encoding to SQL. Columns are f0, f1, ..., the target is t, the row hash h."""

    _has_integers_only = False

    def __init__(self, dialect: SqlDialect, encoding: Encoding) -> None:
        self.dialect, self._encoding = dialect, encoding
        self._constants: dict[tuple[int, int], str] = {}
        self._n_buckets = 1

    def cell_expression(self, query: CellQuery, row_hash: KeyedRowHash | None = None) -> str:
        """Return the expression of a row's cell."""
        self._n_buckets = 1 if row_hash is None else row_hash.n_buckets
        self._find_constants(query.rules)
        return " + ".join(self.rule_sql(part) for part in query.rules) or "0"

    def rule_sql(self, cell_rule: CellRule) -> str:
        """Return the expression of a rule: a number, or the tests that select a number."""
        if isinstance(cell_rule, float):
            return self.dialect.float_literal(cell_rule)
        if not isinstance(cell_rule, Split):
            return str(NOT_COUNTED if cell_rule is None else cell_rule)
        x, missing = self._column_name(cell_rule.column), self._missing_code(cell_rule.column)
        pieces = list(zip(cell_rule.starts, cell_rule.targets, strict=True))
        if self._is_integer_column(cell_rule.column):
            return self._rule_of_codes(x, cell_rule)
        if missing is not None and len(pieces) > 1 and pieces[-1][0] == missing:
            rest = self._binary_search(x, cell_rule.column, pieces[:-1])
            return f"CASE WHEN {x} IS NULL THEN {self.rule_sql(pieces[-1][1])} ELSE {rest} END"
        # A comparison with null is not true, so missing numbers reach the last piece.
        return self._binary_search(x, cell_rule.column, pieces)

    def row_bucket(self, row_hash: KeyedRowHash) -> str:
        """Return the expression of a row's bucket, from its hash h."""
        self._n_buckets = row_hash.n_buckets
        return self.rule_sql(Split(ROW_HASH, tuple(range(row_hash.n_buckets)), tuple(range(row_hash.n_buckets))))

    def _binary_search(self, x: str, column: int, pieces: list[tuple[int, CellRule]]) -> str:
        if len(pieces) == 1:
            return self.rule_sql(pieces[0][1])
        half = len(pieces) // 2
        below, above = (self._binary_search(x, column, part) for part in (pieces[:half], pieces[half:]))
        return f"CASE WHEN {x} < {self._split_constant(column, pieces[half][0])} THEN {below} ELSE {above} END"

    def _rule_of_codes(self, x: str, split: Split) -> str:
        """Return tests of integers: a product for consecutive cells, a binary search, or lists of codes."""
        targets = {_rule_key(to): to for to in split.targets}
        if (
            len(split.targets) > 2
            and self._separates_all_codes(split)
            and all(isinstance(to, int) for to in split.targets)
        ):
            numbers = np.array(split.targets, np.int64)
            steps = np.unique(np.diff(numbers))
            if len(steps) == 1:
                return f"({x} * {steps[0]} + {numbers[0]})"
        if len(split.targets) <= 2 * len(targets):
            return self._binary_search(x, split.column, list(zip(split.starts, split.targets, strict=True)))
        ends = [*split.starts[1:], self._n_codes(split.column)]
        codes: dict[float, list[int]] = {}
        for start, end, to in zip(split.starts, ends, split.targets, strict=True):
            codes.setdefault(_rule_key(to), []).extend(range(start, end))
        last = max(codes, key=lambda key: len(codes[key]))
        tests = "".join(
            f" WHEN {x} IN ({', '.join(map(str, listed))}) THEN {self.rule_sql(targets[key])}"
            for key, listed in codes.items()
            if key != last
        )
        return f"CASE{tests} ELSE {self.rule_sql(targets[last])} END" if tests else self.rule_sql(targets[last])

    def _separates_all_codes(self, split: Split) -> bool:
        """Return True if each piece is a single code; the last piece would otherwise be open-ended."""
        return len(split.starts) == self._n_codes(split.column)

    # -- columns -----------------------------------------------------------------------------------------------------

    def _column_name(self, column: int) -> str:
        return "h" if column == ROW_HASH else f"f{column}"

    def _is_integer_column(self, column: int) -> bool:
        return column != ROW_HASH and not self._encoding.columns[column].ordered

    def _n_codes(self, column: int) -> int:
        return self._encoding.columns[column].n_codes

    def _missing_code(self, column: int) -> int | None:
        return None if column == ROW_HASH else self._encoding.columns[column].missing_code

    # -- constants ---------------------------------------------------------------------------------------------------

    def _split_constant(self, column: int, code: int) -> str:
        if column == ROW_HASH:
            return self.dialect.quote_text(f"{-(-code * 16**_HASH_DIGITS // self._n_buckets):0{_HASH_DIGITS}x}")
        if self._is_integer_column(column):
            return str(code)
        if (column, code) not in self._constants:
            self._store_constants(column, [code])
        return self._constants[column, code]

    def _find_constants(self, parts: Iterable[CellRule]) -> None:
        """Compute the constants of all tests at once, column by column."""
        wanted: dict[int, set[int]] = {}
        pending = list(parts)
        while pending:
            way = pending.pop()
            if isinstance(way, Split):
                pending.extend(way.targets)
                if way.column != ROW_HASH and not self._is_integer_column(way.column):
                    wanted.setdefault(way.column, set()).update(way.starts[1:])
        for column, codes in wanted.items():
            missing = self._encoding.columns[column].missing_code
            self._store_constants(
                column, sorted(c for c in codes if c != missing and (column, c) not in self._constants)
            )

    def _store_constants(self, column: int, codes: Sequence[int]) -> None:
        values = self._encoding.threshold(column, np.array(codes, np.int64))
        for code, value in zip(codes, values.tolist(), strict=True):
            self._constants[column, code] = self.dialect.float_literal(value)

    # -- statements --------------------------------------------------------------------------------------------------

    def query_statements(
        self,
        queries: Sequence[CellQuery],
        kind: SumKind,
        rows: str,
        row_hash: KeyedRowHash | None = None,
        columns: int = 0,
    ) -> Iterator[str]:
        """Return the queries that compute contingency tables; ``rows`` is a table or a query."""
        if row_hash is not None:
            rows = self.hashed_rows(rows, row_hash.key, [f"f{i}" for i in range(columns)])
        inner, before = rows, ""
        if rows.startswith("("):  # compute a query once for all selects; a table needs no copy
            inner = "veilwood_in"
            before = f"WITH {inner} AS {self.dialect.materialized_keyword}(SELECT * FROM {rows} AS veilwood_from) "
        sums = "t AS k, COUNT(*) AS n" if kind == "classes" else "COUNT(*) AS n, SUM(t) AS s, SUM(t * t) AS q"
        group = "2, 3" if kind == "classes" else "2"
        selects = (
            f"SELECT {number} AS b, {self.cell_expression(table, row_hash)} AS c, {sums} FROM {inner} GROUP BY {group}"
            for number, table in enumerate(queries)
        )
        yield from join_selects(selects, before)

    def row_hash_expression(self, key: bytes, columns: Sequence[str], *further: str) -> str:
        """Return the expression of the keyed hash of a row's contents and of any further integers."""
        texts = [self.dialect.quote_text(key.hex()), *self._texts_of((*columns, "t", *further))]
        return self.dialect.text_hash(" || '|' || ".join(texts))

    def hashed_rows(self, relation: str, key: bytes, columns: Sequence[str]) -> str:
        """Return a query of the rows with a keyed hash ``h``, which is drawn for each row.

        Rows of a table have no position, but equal rows can be numbered. In whatever order they are numbered, the set
        of hashes is the same. An added row gets the next number and changes no other hash (proofs/counting-in-sql).
        """
        # Engines compare 0.0 and -0.0 as equal and print them differently: number by texts as well as values.
        texts = [] if self._has_integers_only else self._texts_of(columns)
        equal = ", ".join([*columns, "t", *texts])
        numbered = (
            f"SELECT veilwood_all.*, ROW_NUMBER() OVER (PARTITION BY {equal}) AS veilwood_copy "
            f"FROM {relation} AS veilwood_all"
        )
        hashed = self.row_hash_expression(key, columns, "veilwood_copy")
        return f"(SELECT veilwood_numbered.*, {hashed} AS h FROM ({numbered}) AS veilwood_numbered)"

    def _texts_of(self, columns: Iterable[str]) -> list[str]:
        return [f"COALESCE(CAST({name} AS {self.dialect.type_names.text}), '')" for name in columns]


def _rule_key(rule: CellRule) -> float:
    return id(rule) if rule is None or isinstance(rule, Split) else rule


class BinSqlWriter(CellSqlWriter):
    """Compiler of cell rules for rows of bins, which are integers without nulls: c0, c1, ..."""

    _has_integers_only = True

    def __init__(self, dialect: SqlDialect, encoding: Encoding, n_bins: Sequence[int]) -> None:
        super().__init__(dialect, encoding)
        self._n_bins = n_bins

    def _column_name(self, column: int) -> str:
        return f"c{column}"

    def _is_integer_column(self, column: int) -> bool:
        return True

    def _n_codes(self, column: int) -> int:
        return self._n_bins[column]

    def _missing_code(self, column: int) -> int | None:
        return None

    def _rule_of_codes(self, x: str, split: Split) -> str:
        numbers = [NOT_COUNTED if to is None else to for to in split.targets if not isinstance(to, Split)]
        if 2 < len(split.targets) == len(numbers) and not self._separates_all_codes(split):
            lengths = np.diff([*split.starts, self._n_codes(split.column)])
            found = self.dialect.array_lookup(np.repeat(np.array(numbers, np.int64), lengths).tolist(), x)
            if found is not None:
                return found
        return super()._rule_of_codes(x, split)


def join_selects(selects: Iterable[str], before: str = "") -> Iterator[str]:
    """Join queries into statements that engines accept."""
    held: list[str] = []
    length = 0
    for select in selects:
        if len(select) > MAX_QUERY_LENGTH:
            raise DomainTooLargeError(
                "a tree is too large for one query. Hint: lower max_depth, or read the rows from files."
            )
        if held and (length + len(select) > MAX_BATCH_LENGTH or len(held) >= MAX_SELECTS):
            yield before + " UNION ALL ".join(held)
            held, length = [], 0
        held.append(select)
        length += len(select)
    if held:
        yield before + " UNION ALL ".join(held)
