# SPDX-License-Identifier: Apache-2.0
"""Encoding rules as SQL: the rules of ``encoding`` as expressions of one column.

Each row is read independently, and no value can make a statement fail: no text is cast to a number, numbers too large
for a float are detected before the conversion, and bounds are compared as constants of the column's own type. Columns
of unsupported types are rejected when the table is opened, by name and type alone.

| column | value in ``veilwood_rows`` |
|---|---|
| number | the number as a float of 64 bits, or null if missing |
| category, class | its index among the declared values; missing values after the last |
| numeric target | its level, 0 to ``TARGET_LEVELS`` |

An invalid value is encoded as a negative code, or as a ``Problem`` number in a separate column.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

import numpy as np

from veilwood.data.canonical import to_canonical_text
from veilwood.data.columns import Column
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.data.problems import Problem
from veilwood.errors import OutOfSchemaError
from veilwood_engines.sql.dialects import SqlDialect, SqlKind

_MAX_FLOAT: Final = 1.7976931348623157e308  # largest finite float of 64 bits
# Half of the smallest positive float, rounded up: decimals up to it become 0.
_MAX_ZERO_DECIMAL: Final = "2.470328229206232720882843964341106861826e-324"
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_ISO_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EXACT_DIGITS: Final = 16  # digits and a point; a float with more digits may be a rounded integer
_PARTS: Final = {"year": "YEAR", "month": "MONTH", "hour": "HOUR"}


@dataclass(frozen=True)
class TypedColumn:
    """A column of the table: its expression, the kind of its values, and the name of its type."""

    expression: str
    kind: SqlKind
    type_name: str = ""


@dataclass(frozen=True)
class ValueExpression:
    """Expressions of an encoded value and of the code of its problem (0: none)."""

    value: str
    problem: str
    kinds: tuple[Problem, ...]  # problems that can occur


def number_expression(
    column: Column, typed: TypedColumn, dialect: SqlDialect, *, finite: bool = False
) -> ValueExpression:
    """Encode a number; ``finite`` rejects infinities, as targets require."""
    value, wrong, kinds = _numeric_expression(column, typed, dialect)
    cases = [f"WHEN {condition} THEN {int(kind)}" for kind, condition in wrong.items()]
    if not column.nullable:
        cases.append(f"WHEN {value} IS NULL THEN {int(Problem.MISSING)}")
        kinds = (*kinds, Problem.MISSING)
    if finite:
        largest = dialect.float_literal(_MAX_FLOAT)
        cases.append(f"WHEN {value} > {largest} OR {value} < -{largest} THEN {int(Problem.INFINITE)}")
        kinds = (*kinds, Problem.INFINITE)
    return ValueExpression(value, f"CASE {' '.join(cases)} ELSE 0 END" if cases else "0", kinds)


def _numeric_expression(
    column: Column, typed: TypedColumn, dialect: SqlDialect
) -> tuple[str, dict[Problem, str], tuple[Problem, ...]]:
    """Return the expression of a float or null, and the tests for other problems."""
    x = typed.expression
    if column.part is not None:
        part, unusable = _date_part_expression(column, typed, dialect)
        wrong = {Problem.UNUSABLE: unusable}
        nothing = f"{x} IS NULL OR {unusable}"
        return (
            f"CASE WHEN {nothing} THEN NULL ELSE CAST({part} AS {dialect.type_names.double}) END",
            wrong,
            tuple(wrong),
        )
    match typed.kind:
        case "whole":
            return f"CAST({x} AS {dialect.type_names.double})", {}, ()
        case "boolean":
            one, zero = dialect.float_literal(1.0), dialect.float_literal(0.0)
            return f"CASE WHEN {x} THEN {one} WHEN NOT {x} THEN {zero} END", {}, ()
        case "double":
            return _nan_to_null(x, dialect), {}, ()
        case "single":
            return _nan_to_null(f"CAST({x} AS {dialect.type_names.double})", dialect), {}, ()
        case "decimal" if dialect.engine == "postgres":
            large = f"CAST({dialect.quote_text(repr(_MAX_FLOAT))} AS NUMERIC)"
            small = f"CAST({dialect.quote_text(_MAX_ZERO_DECIMAL)} AS NUMERIC)"
            endless = f"CAST({x} AS TEXT) IN ('Infinity', '-Infinity')"
            value = (
                f"CASE WHEN {x} BETWEEN -{small} AND {small} THEN {dialect.float_literal(0.0)} "
                f"WHEN {x} BETWEEN -{large} AND {large} OR {endless} THEN CAST({x} AS {dialect.type_names.double}) END"
            )
            too_large = f"NOT {x} BETWEEN -{large} AND {large} AND NOT {endless} AND CAST({x} AS TEXT) <> 'NaN'"
            return value, {Problem.TOO_LARGE: too_large}, (Problem.TOO_LARGE,)
        case "decimal":
            # Converted by its digits, because a division by a power of ten would round twice.
            exact = f"CAST({x} AS {dialect.type_names.text})" if dialect.engine == "duckdb" else x
            return f"CAST({exact} AS {dialect.type_names.double})", {}, ()
        case "any" if column.texts is None:
            # Compared with '', because LENGTH would end at a NUL.
            some_text = f"TYPEOF({x}) = 'text' AND {dialect.cast_to_text(x)} <> ''"
            no_number = f"({some_text} OR TYPEOF({x}) = 'blob' AND LENGTH({x}) > 0)"
            value = f"CASE TYPEOF({x}) WHEN 'integer' THEN CAST({x} AS REAL) WHEN 'real' THEN {x} END"
            return value, {Problem.NOT_A_NUMBER: no_number}, (Problem.NOT_A_NUMBER,)
    raise _wrong_type_error(column, typed, "numbers", "cast it in a view")


def _nan_to_null(x: str, dialect: SqlDialect) -> str:
    return f"CASE WHEN {dialect.is_nan(x)} THEN NULL ELSE {x} END"


def target_level_expression(column: Column, typed: TypedColumn, dialect: SqlDialect) -> ValueExpression:
    """Encode a numeric target as a level, with the same arithmetic as ``Encoding.read_target``, to the last bit."""
    number = number_expression(column, typed, dialect, finite=True)
    lower, upper = column.bounds
    scale = dialect.float_literal(TARGET_LEVELS / (upper - lower))
    least, most = dialect.float_literal(lower), dialect.float_literal(upper)
    # Below this number, which is level 0, products may underflow, and some engines reject that.
    near = dialect.float_literal(lower + (upper - lower) * 1e-6)
    exact = f"(({number.value}) - {least}) * {scale}"
    below = dialect.floor_integer(exact)
    odd = f"({exact}) - CAST({below} AS {dialect.type_names.double})"
    half = dialect.float_literal(0.5)
    value = (
        f"CASE WHEN {number.value} >= {most} THEN {TARGET_LEVELS} WHEN {number.value} < {near} THEN 0 "
        f"WHEN {number.value} IS NULL THEN 0 "
        f"WHEN {odd} > {half} THEN {below} + 1 WHEN {odd} < {half} THEN {below} "
        f"ELSE {below} + {below} % 2 END"
    )
    if dialect.engine in ("bigquery", "snowflake"):
        value = value.replace(f"{below} % 2", f"MOD({below}, 2)")
    return ValueExpression(value, number.problem, number.kinds)


# -- categories ------------------------------------------------------------------------------------------------------


def category_expression(column: Column, typed: TypedColumn, dialect: SqlDialect) -> ValueExpression:
    """Encode a category as its code, or as the negative code of its problem."""
    missing = str(len(column.values)) if column.nullable else str(-Problem.MISSING)
    known = {text: str(place) for place, text in enumerate(column.values)}
    known |= {spelling: known[category] for spelling, category in column.aliases.items()}
    unknown = str(-Problem.UNKNOWN) if column.other is None else known[column.other]
    kinds: tuple[Problem, ...] = () if column.nullable else (Problem.MISSING,)
    kinds += (Problem.UNKNOWN,) if column.other is None else ()
    value, more = _category_cases(column, typed, dialect, known, missing, unknown)
    return ValueExpression(value, "", (*kinds, *more))


def _category_cases(
    column: Column, typed: TypedColumn, dialect: SqlDialect, known: Mapping[str, str], missing: str, unknown: str
) -> tuple[str, tuple[Problem, ...]]:
    x = typed.expression
    if column.part is not None:
        part, unusable = _date_part_expression(column, typed, dialect)
        cases = f"WHEN {x} IS NULL THEN {missing} WHEN {unusable} THEN {-Problem.UNUSABLE}"
        return _case_expression(part, _integer_constants(known), unknown, cases), (Problem.UNUSABLE,)
    if column.prefix is not None and typed.kind not in ("whole", "text", "as text", "any"):
        raise _wrong_type_error(column, typed, "texts or integers, to take a prefix of", "cast it in a view")
    if column.prefix is not None:
        text = x if typed.kind == "text" else dialect.cast_to_text(x)
        placed, kinds = _text_cases(text, dialect, known, missing, unknown, column.prefix)
        if typed.kind == "any":
            placed = f"CASE WHEN TYPEOF({x}) IN ('real', 'blob') THEN {-Problem.UNUSABLE} ELSE {placed} END"
        return placed, kinds
    null = f"WHEN {x} IS NULL THEN {missing}"
    match typed.kind:
        case "whole":
            return _case_expression(x, _integer_constants(known), unknown, null), ()
        case "boolean":
            yes, no = known.get("True", unknown), known.get("False", unknown)
            return f"CASE {null} WHEN {x} THEN {yes} ELSE {no} END", ()
        case "double" | "single":
            value = _nan_to_null(x if typed.kind == "double" else f"CAST({x} AS {dialect.type_names.double})", dialect)
            floats = _float_constants(known, dialect, np.float64 if typed.kind == "double" else np.float32)
            return _case_expression(value, floats, unknown, f"WHEN {value} IS NULL THEN {missing}"), ()
        case "decimal":
            if dialect.engine == "postgres":
                null += f" WHEN CAST({x} AS TEXT) = 'NaN' THEN {missing}"
            return _case_expression(x, _decimal_constants(known, typed, dialect), unknown, null), ()
        case "date":
            days = {
                f"CAST({dialect.quote_text(text)} AS DATE)": place
                for text, place in known.items()
                if _is_iso_date(text)
            }
            return _case_expression(x, days, unknown, null), ()
        case "text":
            _reject_date_categories(column, typed)
            return _text_cases(x, dialect, known, missing, unknown)
        case "as text":
            _reject_date_categories(column, typed)
            return _text_cases(dialect.cast_to_text(x), dialect, known, missing, unknown)
        case "any":
            _reject_date_categories(column, typed)
            texts, _ = _text_cases(dialect.cast_to_text(x), dialect, known, missing, unknown)
            return (
                f"CASE TYPEOF({x}) WHEN 'null' THEN {missing} "
                f"WHEN 'integer' THEN {_case_expression(x, _integer_constants(known), unknown)} "
                f"WHEN 'real' THEN {_case_expression(x, _float_constants(known, dialect, np.float64), unknown)} "
                f"WHEN 'text' THEN {texts} ELSE {-Problem.UNUSABLE} END"
            ), (Problem.UNUSABLE,)  # fmt: skip
    raise _wrong_type_error(column, typed, "categories", "cast it to a text in a view, or declare a part of the date")


def _case_expression(x: str, known: Mapping[str, str], otherwise: str, first: str = "") -> str:
    """Map each constant to its code."""
    tests = " ".join(f"WHEN {x} = {constant} THEN {place}" for constant, place in known.items())
    return f"CASE {first} {tests} ELSE {otherwise} END" if first or tests else otherwise


def _integer_constants(known: Mapping[str, str]) -> dict[str, str]:
    """Return the categories that are the text of an integer; '007' is not the text of 7."""
    numbers = {text: int(text) for text in known if re.fullmatch(r"-?[0-9]{1,19}", text)}
    return {text: known[text] for text, number in numbers.items() if str(number) == text and abs(number) < 2**63}


def _float_constants(known: Mapping[str, str], dialect: SqlDialect, kind: type[np.floating]) -> dict[str, str]:
    """Return the categories that are the text of a float of this precision, to be compared as numbers."""
    constants = {}
    for text, place in known.items():
        if _NUMBER.fullmatch(text):
            with np.errstate(over="ignore"):
                number = kind(text)
            if np.isfinite(number) and to_canonical_text(number) == text:
                constants[dialect.float_literal(float(number))] = place
    return constants


def _decimal_constants(known: Mapping[str, str], typed: TypedColumn, dialect: SqlDialect) -> dict[str, str]:
    """Return categories that the column can hold exactly, as constants of its type, so that no value is converted."""
    size = re.search(r"\((\d+)\s*,\s*(\d+)\)", typed.type_name)
    type_name = "NUMERIC" if dialect.engine == "postgres" else typed.type_name or "DECIMAL(38, 9)"
    precision, scale = (int(size[1]), int(size[2])) if size else (38, 0 if "HUGEINT" in typed.type_name else 9)
    constants = {}
    for text, place in known.items():
        if not _NUMBER.fullmatch(text):
            continue
        try:
            _, digits, exponent = Decimal(text).as_tuple()
        except InvalidOperation:
            continue
        fits = -int(exponent) <= scale and len(digits) + int(exponent) <= precision - scale
        fits = fits and not (text.startswith("-") and typed.type_name == "UHUGEINT")
        if dialect.engine == "postgres" or fits:
            constants[f"CAST({dialect.quote_text(text)} AS {type_name})"] = place
    return constants


def _is_iso_date(text: str) -> bool:
    try:
        return bool(_ISO_DATE.fullmatch(text)) and bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def _reject_date_categories(column: Column, typed: TypedColumn) -> None:
    if any(_ISO_DATE.match(text) for text in column.values):
        raise _wrong_type_error(column, typed, "dates", "cast it to DATE in a view")


def _text_cases(
    x: str, dialect: SqlDialect, known: Mapping[str, str], missing: str, unknown: str, prefix: int | None = None
) -> tuple[str, tuple[Problem, ...]]:
    """Compare texts as ``canonical`` does. A number with an exponent is unusable if it could be a category."""
    null = f"WHEN {x} IS NULL THEN {missing} WHEN {x} = '' THEN {missing}"
    listed = {text: place for text, place in known.items() if "\0" not in text}
    kinds: tuple[Problem, ...] = ()
    canonical = x
    if prefix is not None or any(_NUMBER.fullmatch(text) or text in ("True", "False") for text in known):
        null += f" WHEN {dialect.has_exponent(x)} THEN {-Problem.UNUSABLE}"
        canonical, kinds = canonical_text_sql(x, dialect), (Problem.UNUSABLE,)
    if prefix is not None:
        null += f" WHEN {dialect.is_timestamp(x)} THEN {-Problem.UNUSABLE}"
        canonical = canonical_text_sql(f"SUBSTR({canonical}, 1, {prefix})", dialect)
        null += f" WHEN {dialect.has_exponent(canonical)} THEN {-Problem.UNUSABLE}"
    exact = dialect.with_exact_collation(canonical)
    return _case_expression(
        exact, {dialect.quote_text(text): place for text, place in listed.items()}, unknown, null
    ), kinds


def canonical_text_sql(x: str, dialect: SqlDialect) -> str:
    """Return the canonical form of a text without an exponent: no trailing zeros of a number, no sign of zero."""
    short = f"RTRIM(RTRIM({x}, '0'), '.')"
    point = f"REPLACE({x}, '.', '') <> {x}"
    exact = dialect.with_exact_collation(x)
    return (
        f"(CASE WHEN {exact} = 'true' THEN 'True' WHEN {exact} = 'false' THEN 'False' "
        f"WHEN {dialect.is_number(x)} AND {point} AND {short} = '-0' THEN '0' "
        f"WHEN {dialect.is_number(x)} AND {point} THEN {short} WHEN {x} = '-0' THEN '0' ELSE {x} END)"
    )


def _date_part_expression(column: Column, typed: TypedColumn, dialect: SqlDialect) -> tuple[str, str]:
    """Return the expression of a date's part as an integer, and of the test whether the date is out of range."""
    x, part = typed.expression, column.part
    if typed.kind not in ("date", "moment", "zoned moment"):
        raise _wrong_type_error(column, typed, "dates", "cast it to DATE or TIMESTAMP in a view")
    zoned = typed.kind == "zoned moment"
    if zoned and dialect.engine not in ("duckdb", "postgres"):
        raise _wrong_type_error(column, typed, "dates without a time zone", "cast it to TIMESTAMP in a view")
    if typed.type_name == "TIMESTAMP_NS":  # this type cannot hold the bounds below
        x = f"CAST({x} AS TIMESTAMP)"
    # Compared in their own type, because a timestamp may go out of range when it is converted.
    kind, zone = ("TIMESTAMPTZ", " 00:00:00+00") if zoned else ("TIMESTAMP", "")
    if typed.kind == "date" or typed.type_name in ("TIMESTAMP_S", "TIMESTAMP_MS"):
        kind = typed.type_name if typed.kind == "moment" else "DATE"
    last = "9999-12-31" if typed.kind == "date" else "9999-12-31 23:59:59"
    outside = f"({x} < CAST('0001-01-01{zone}' AS {kind}) OR {x} > CAST('{last}{zone[-3:]}' AS {kind}))"
    x = f"({x} AT TIME ZONE 'UTC')" if zoned else x
    if part == "hour" and typed.kind == "date":
        return "0", outside
    if part == "weekday":
        name = {"bigquery": "DAYOFWEEK", "snowflake": "DAYOFWEEKISO", "spark": "DAYOFWEEK_ISO"}.get(dialect.engine)
        day = f"EXTRACT({name or 'ISODOW'} FROM {x})"
        return (f"(MOD({day} + 5, 7) + 1)" if dialect.engine == "bigquery" else day), outside
    return f"EXTRACT({_PARTS[str(part)]} FROM {x})", outside


# -- ids -------------------------------------------------------------------------------------------------------------


def id_expression(name: str, typed: TypedColumn, dialect: SqlDialect) -> ValueExpression:
    """Encode an id: values that are equal by ``canonical`` are one person; ambiguous values are unusable."""
    x, lost, gone = typed.expression, int(Problem.MISSING), int(Problem.UNUSABLE)
    kinds = (Problem.MISSING, Problem.UNUSABLE)

    def text_expression(text: str) -> ValueExpression:
        nothing = f"{text} IS NULL OR {text} = ''"
        several = (
            f"{dialect.has_exponent(text)} OR {dialect.is_timestamp(text)} OR ({_rounded_float_test(text, dialect)})"
        )
        problem = f"CASE WHEN {nothing} THEN {lost} WHEN {several} THEN {gone} ELSE 0 END"
        return ValueExpression(dialect.with_exact_collation(canonical_text_sql(text, dialect)), problem, kinds)

    match typed.kind:
        case "whole" | "boolean" | "date":
            return ValueExpression(x, f"CASE WHEN {x} IS NULL THEN {lost} ELSE 0 END", kinds[:1])
        case "decimal":
            nan = f" OR CAST({x} AS TEXT) = 'NaN'" if dialect.engine == "postgres" else ""
            return ValueExpression(x, f"CASE WHEN {x} IS NULL{nan} THEN {lost} ELSE 0 END", kinds[:1])
        case "double" | "single":
            value = _nan_to_null(f"CAST({x} AS {dialect.type_names.double})", dialect)
            most = dialect.float_literal(2.0 ** (53 if typed.kind == "double" else 24))
            problem = (
                f"CASE WHEN {value} IS NULL THEN {lost} WHEN {value} >= {most} OR {value} <= -{most} THEN {gone} "
                "ELSE 0 END"
            )
            return ValueExpression(f"({value}) + {dialect.float_literal(0.0)}", problem, kinds)
        case "text":
            return text_expression(x)
        case "as text":
            return text_expression(dialect.cast_to_text(x))
        case "any":
            text = text_expression(dialect.cast_to_text(x))
            most = dialect.float_literal(2.0**53)
            is_integer = f"{x} > -{most} AND {x} < {most} AND {x} = CAST({x} AS INTEGER)"
            value = (
                f"CASE TYPEOF({x}) WHEN 'integer' THEN CAST({x} AS TEXT) "
                f"WHEN 'real' THEN CAST(CAST({x} AS INTEGER) AS TEXT) ELSE {text.value} END"
            )
            problem = (
                f"CASE TYPEOF({x}) WHEN 'null' THEN {lost} WHEN 'integer' THEN 0 "
                f"WHEN 'real' THEN CASE WHEN {is_integer} THEN 0 ELSE {gone} END WHEN 'text' THEN {text.problem} "
                f"ELSE {gone} END"
            )
            return ValueExpression(value, problem, kinds)
    raise OutOfSchemaError(
        f"column {name!r}, which the privacy unit names, has the type {typed.type_name}, which cannot be read as ids. "
        "Hint: cast it to a text or an integer in a view.",
        column=name,
    )


def _rounded_float_test(x: str, dialect: SqlDialect) -> str:
    """Return the expression that tests whether a text is an integer that a float may have rounded."""
    short = f"RTRIM({x}, '0')"
    return f"{dialect.is_number(x)} AND {short} LIKE '%.' AND LENGTH({short}) > {_EXACT_DIGITS}"


def _wrong_type_error(column: Column, typed: TypedColumn, wanted: str, hint: str) -> OutOfSchemaError:
    type_text = typed.type_name or typed.kind
    return OutOfSchemaError(
        f"column {column.source!r} has the type {type_text}, and the schema requires {wanted}. In a database, "
        f"the type of a column matters. Hint: {hint}.",
        column=column.name,
    )
