# SPDX-License-Identifier: Apache-2.0
"""SQL dialects: quoting, literals, types and functions that differ between engines.

sqlglot quotes names and texts, so that no name or category can break out of its quotes. All other SQL of this package
has the same meaning in every engine.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from veilwood.errors import SetupError, UseError

SqlEngine: TypeAlias = Literal["duckdb", "postgres", "sqlite", "bigquery", "snowflake", "spark"]
ENGINES: Final[tuple[SqlEngine, ...]] = ("duckdb", "postgres", "sqlite", "bigquery", "snowflake", "spark")

SqlKind: TypeAlias = Literal[
    "whole", "decimal", "double", "single", "boolean", "text", "as text", "date", "moment", "zoned moment", "any"
]
"""Kinds of column values that are read differently; "any": each value has its own type (SQLite)."""


class TypeNames(NamedTuple):
    """Type names of one engine."""

    double: str
    """Floats of 64 bits."""
    int64: str
    """Integers of 64 bits."""
    int32: str
    """Integers of 32 bits."""
    text: str
    """Texts."""


_TYPES: Final = {
    "duckdb": TypeNames("DOUBLE", "BIGINT", "INTEGER", "VARCHAR"),
    "postgres": TypeNames("DOUBLE PRECISION", "BIGINT", "INTEGER", "TEXT"),
    "sqlite": TypeNames("REAL", "INTEGER", "INTEGER", "TEXT"),
    "bigquery": TypeNames("FLOAT64", "INT64", "INT64", "STRING"),
    "snowflake": TypeNames("DOUBLE", "BIGINT", "INTEGER", "VARCHAR"),
    "spark": TypeNames("DOUBLE", "BIGINT", "INT", "STRING"),
}
_NAN: Final = {
    "duckdb": "ISNAN({x})",
    "postgres": "({x} = CAST('NaN' AS DOUBLE PRECISION))",
    "sqlite": "({x} <> {x})",  # SQLite has no NaN: it stores null
    "bigquery": "IS_NAN({x})",
    "snowflake": "({x} = CAST('NaN' AS DOUBLE))",
    "spark": "ISNAN({x})",
}
_HASH: Final = {
    "duckdb": "SHA256({x})",
    "postgres": "(ENCODE(SHA256(CONVERT_TO({x}, 'UTF8')), 'hex') COLLATE \"C\")",
    "sqlite": "VEILWOOD_SHA256({x})",  # SQLite has no such function: the session registers it
    "bigquery": "TO_HEX(SHA256({x}))",
    "snowflake": "SHA2({x}, 256)",
    "spark": "SHA2({x}, 256)",
}
_MATCHES: Final = {
    "duckdb": "REGEXP_FULL_MATCH({x}, {p})",
    "postgres": "({x} ~ {p})",
    "bigquery": "REGEXP_CONTAINS({x}, {p})",
    "snowflake": "REGEXP_LIKE({x}, {p})",
    "spark": "({x} RLIKE {p})",
}
_EXACT: Final = {
    "duckdb": '({x} COLLATE "C")', "postgres": '({x} COLLATE "C")', "sqlite": "({x} COLLATE BINARY)",
}  # fmt: skip
_QUOTIENT: Final = {
    "duckdb": "({a} // {b})",
    "bigquery": "DIV({a}, {b})",
    "snowflake": "(({a} - MOD({a}, {b})) / {b})",
    "spark": "({a} DIV {b})",
}

# Notations of texts that compare as numbers (``data.canonical``), with and without an exponent.
_NUMBER: Final = "-?(0|[1-9][0-9]*)([.][0-9]+)?"
_WITH_EXPONENT: Final = "-?(0|[1-9][0-9]*)(([.][0-9]+[eE][+-]?)|([eE][+-]))[0-9]{1,20}"
_TIMESTAMP: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}.*"

_KIND_BY_TYPE: Final[dict[str, SqlKind]] = {
    **dict.fromkeys(
        ["TINYINT", "SMALLINT", "INTEGER", "INT", "BIGINT", "INT2", "INT4", "INT8", "INT64", "BYTEINT", "UTINYINT",
         "USMALLINT", "UINTEGER", "UBIGINT", "SHORT", "LONG", "BYTE"], "whole"),
    **dict.fromkeys(["DECIMAL", "NUMERIC", "HUGEINT", "UHUGEINT", "NUMBER", "BIGNUMERIC"], "decimal"),
    **dict.fromkeys(["DOUBLE", "DOUBLE PRECISION", "FLOAT8", "FLOAT64"], "double"),
    **dict.fromkeys(["REAL", "FLOAT4", "FLOAT"], "single"),
    **dict.fromkeys(["BOOLEAN", "BOOL"], "boolean"),
    **dict.fromkeys(["VARCHAR", "TEXT", "STRING", "CHARACTER VARYING"], "text"),
    **dict.fromkeys(["CHAR", "CHARACTER", "BPCHAR", "ENUM", "NAME", "CITEXT", "UUID"], "as text"),
    "DATE": "date",
    **dict.fromkeys(["TIMESTAMP", "TIMESTAMP WITHOUT TIME ZONE", "DATETIME", "TIMESTAMP_S", "TIMESTAMP_MS",
                     "TIMESTAMP_NS", "TIMESTAMP_NTZ"], "moment"),
    **dict.fromkeys(["TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_TZ", "TIMESTAMP_LTZ"], "zoned moment"),
}  # fmt: skip


def column_kind(type_name: str, engine: SqlEngine) -> SqlKind | None:
    """Return the kind of values of a column type, or None if it cannot be used.

    >>> column_kind("DECIMAL(18,3)", "duckdb"), column_kind("timestamp with time zone", "postgres")
    ('decimal', 'zoned moment')
    >>> column_kind("JSON", "duckdb")
    """
    if engine == "sqlite":
        return "any"
    head, _, rest = type_name.upper().partition("(")
    if type_name.endswith("]"):  # an array
        return None
    name = f"{head.strip()} {rest.partition(')')[2].strip()}".strip()
    if engine == "snowflake" and name == "FLOAT":
        return "double"
    return _KIND_BY_TYPE.get(name)


@cache
def _load_sqlglot() -> Any:
    try:
        from sqlglot import exp
    except ImportError:
        raise SetupError("counting in a database needs sqlglot. Hint: run pip install 'veilwood[sql]'.") from None
    return exp


@dataclass(frozen=True)
class SqlDialect:
    """SQL dialect of one engine.

    >>> dialect = SqlDialect("postgres")
    >>> dialect.quote_name('a"; DROP TABLE x'), dialect.quote_text("O'Neill"), dialect.float_literal(37.5)
    ('"a""; DROP TABLE x"', "'O''Neill'", '3.75e1')
    """

    engine: SqlEngine

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UseError(f"{self.engine!r} is not a supported engine. Hint: choose one of {', '.join(ENGINES)}.")

    # -- names and constants -----------------------------------------------------------------------------------------

    def quote_name(self, text: str) -> str:
        """Quote a name."""
        return str(_load_sqlglot().to_identifier(text, quoted=True).sql(dialect=self.engine))

    def quote_text(self, text: str) -> str:
        """Quote a text."""
        return str(_load_sqlglot().Literal.string(text).sql(dialect=self.engine))

    def float_literal(self, value: float) -> str:
        """Format a float of 64 bits so that the engine reads the same float: its shortest digits, with an exponent."""
        if not math.isfinite(value):
            raise ValueError("constants of a query must be finite")
        sign, digits, exponent = Decimal(repr(float(value) + 0.0)).normalize().as_tuple()
        rest = "".join(map(str, digits[1:])) or "0"
        written = f"{'-' * sign}{digits[0]}.{rest}e{int(exponent) + len(digits) - 1 if any(digits) else 0}"
        if self.engine == "sqlite" and not _sqlite_reads_exactly(written, float(value)):
            written = _by_powers_of_two(float(value))
            if not _sqlite_reads_exactly(written, float(value)):
                raise SetupError("this SQLite does not read constants exactly. Hint: update SQLite to 3.43 or newer.")
        return written

    @property
    def type_names(self) -> TypeNames:
        """Type names of the engine's columns."""
        return _TYPES[self.engine]

    @property
    def materialized_keyword(self) -> str:
        """Keyword that makes an engine compute a common table expression only once."""
        return "MATERIALIZED " if self.engine in ("duckdb", "postgres", "sqlite") else ""

    def array_lookup(self, numbers: Sequence[int], index: str) -> str | None:
        """Return the expression of an array element, from index 0, or None if CASE is faster in this engine."""
        listed = ", ".join(map(str, numbers))
        if self.engine == "duckdb":
            return f"[{listed}][{index} + 1]"
        return f"(ARRAY[{listed}])[{index} + 1]" if self.engine == "postgres" else None

    @property
    def allows_tables_in_snapshot(self) -> bool:
        """Whether temporary tables can be created inside the snapshot; otherwise they are created before it."""
        return self.engine in ("duckdb", "sqlite")

    # -- functions ---------------------------------------------------------------------------------------------------

    def is_nan(self, x: str) -> str:
        """Return the expression that tests whether a float is NaN."""
        return _NAN[self.engine].format(x=x)

    def with_exact_collation(self, x: str) -> str:
        """Return an expression that compares text character by character, whatever the collation of its column."""
        return _EXACT.get(self.engine, "{x}").format(x=x)

    def cast_to_text(self, x: str) -> str:
        """Return the expression of a value cast to text."""
        return self.with_exact_collation(f"CAST({x} AS {self.type_names.text})")

    def text_hash(self, x: str) -> str:
        """Return the expression of the hash of a text, as 64 hexadecimal digits."""
        return _HASH[self.engine].format(x=x)

    def least_of(self, *values: str) -> str:
        """Return the expression of the smallest of several numbers, none of them null."""
        return f"{'MIN' if self.engine == 'sqlite' else 'LEAST'}({', '.join(values)})"

    def greatest_of(self, *values: str) -> str:
        """Return the expression of the largest of several numbers, none of them null."""
        return f"{'MAX' if self.engine == 'sqlite' else 'GREATEST'}({', '.join(values)})"

    def integer_quotient(self, a: str, b: str) -> str:
        """Return the expression of the integer quotient of non-negative integers."""
        return _QUOTIENT.get(self.engine, "({a} / {b})").format(a=a, b=b)

    def floor_integer(self, x: str) -> str:
        """Return the expression of the integer below a float that is not negative and not large."""
        return f"CAST({x} AS INTEGER)" if self.engine == "sqlite" else f"CAST(FLOOR({x}) AS {self.type_names.int64})"

    def is_number(self, x: str) -> str:
        """Return the expression that tests whether a text is a number without an exponent, in the usual notation."""
        if self.engine != "sqlite":
            return self._regex_match(x, _NUMBER)
        bare = f"(CASE WHEN SUBSTR({x}, 1, 1) = '-' THEN SUBSTR({x}, 2) ELSE {x} END)"
        return (
            f"({bare} NOT GLOB '*[^0-9.]*' AND ({bare} GLOB '[1-9]*' OR {bare} = '0' OR {bare} GLOB '0.*') "
            f"AND LENGTH({bare}) - LENGTH(REPLACE({bare}, '.', '')) <= 1 AND {bare} NOT GLOB '*.' "
            f"AND INSTR({x}, CHAR(0)) = 0)"  # GLOB and LENGTH would end at a NUL
        )

    def has_exponent(self, x: str) -> str:
        """Return the expression that tests whether a text is a number with an exponent, which SQL cannot compare."""
        if self.engine != "sqlite":
            return self._regex_match(x, _WITH_EXPONENT)
        return (
            f"({x} NOT GLOB '*[^0-9.eE+-]*' AND {x} GLOB '*[0-9][eE]*' AND ({x} GLOB '*[.+]*' OR {x} GLOB '*[eE]-*'))"
        )

    def is_timestamp(self, x: str) -> str:
        """Return the expression that tests whether a text may be a date with a time, which has several spellings."""
        if self.engine != "sqlite":
            return self._regex_match(x, _TIMESTAMP)
        day = "-".join(["[0-9]" * 4, "[0-9]" * 2, "[0-9]" * 2])
        return f"({x} GLOB '{day}[ T]{'[0-9]' * 2}:{'[0-9]' * 2}*')"

    def _regex_match(self, x: str, pattern: str) -> str:
        full_match = pattern if self.engine in ("duckdb", "snowflake") else f"^({pattern})$"
        return _MATCHES[self.engine].format(x=x, p=self.quote_text(full_match))


@cache
def _sqlite_connection() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


def _sqlite_reads_exactly(written: str, value: float) -> bool:
    return bool(_sqlite_connection().execute(f"SELECT {written}").fetchone()[0] == value)


def _by_powers_of_two(value: float) -> str:
    """Format a float as an integer times or divided by powers of two, for engines that misread decimal digits.

    >>> _by_powers_of_two(0.1)
    '(7205759403792794.0 / 65536.0 / 1099511627776.0)'
    """
    mantissa, exponent = math.frexp(value)
    integer, exponent = int(mantissa * 2**53), exponent - 53
    sign = "/" if exponent < 0 else "*"
    first, rest = abs(exponent) % 40, abs(exponent) // 40
    return f"({integer}.0 {' '.join(f'{sign} {2**power}.0' for power in [first, *[40] * rest])})"
