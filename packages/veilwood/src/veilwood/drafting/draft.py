# SPDX-License-Identifier: Apache-2.0
"""Drafts of a schema, inferred from a table. A draft is marked until a person has reviewed every bound.

This module guesses the profiles of columns and the dialect of a CSV file. Publicly known bounds are in ``catalogue``,
the review is in ``review``.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from veilwood.arrays import Floats, Indices, Ints
from veilwood.data.canonical import DATE_PARTS, ColumnValues, NoText, date_part_reader, factorize_texts
from veilwood.data.columns import TextRule, did_you_mean
from veilwood.data.dialect import CURRENCIES, DIALECT, MONEY, SEPARATORS, SPACES, Dialect
from veilwood.data.files import find_files
from veilwood.data.frames import Table
from veilwood.data.numbers import LIMIT, read_mixed_numbers, read_numbers
from veilwood.data.places import find_locations
from veilwood.data.relations import Relation
from veilwood.data.schema import UNREVIEWED_MARK, Schema
from veilwood.drafting.catalogue import known_bounds, known_values
from veilwood.errors import OutOfSchemaError, SchemaError
from veilwood.privacy.neighbours import RowsOf

MIN_UNITS: Final = 20
"""Minimum number of people with a category in a draft."""
_MAX_VALUES: Final = 100  # categories per column: the most frequent ones
# Matches "1,5" and "1,50 EUR", but not "1,500".
_FRACTION: Final = re.compile("[^.,]*[0-9][.,](?![0-9]{3}(?![0-9]))[0-9]+[^.,]*")
_MAX_NUMERIC_CLASSES: Final = 20  # a target with at most this many distinct numbers has classes
_NEARLY_ALL: Final = 0.95  # fraction of values that must fit a guess; the rest may be typing errors
# Fractions of numbers and limits from which on a column among whose values are texts is numeric: in general, and if the
# catalogue knows its bounds; and the smallest number of different numbers.
_MOSTLY, _MOST, _MIN_NUMBERS = 0.8, 0.5, 3
_SAMPLE: Final = 10_000  # distinct texts from which the decimal sign is guessed
_ID_NAMES: Final = re.compile(  # the end of a name, or a name that is a person: "patient" holds ids, "patients" a count
    r"(?:^|[\W_])(?:id|ids|uuid|guid|mrn|nr|no|number|nummer|key|fallnummer|ssn|iban)$"
    r"|^(?:patient|person|customer|kunde|client|user|subject|proband)$",
    re.I,
)
_PERSON_NAMES: Final = re.compile(
    r"patient|person|people|customer|kunde|client|member|mitglied|user|subject|proband|mrn", re.I
)
_CONTACT_NAMES: Final = re.compile(
    r"(?:^|[\W_])(?:name|vorname|nachname|firstname|lastname|surname|e?mail|phone|telefon|tel|address|adresse|stra(?:ss|ß)e"
    r"|street|anschrift)(?:$|[\W_])",
    re.I,
)
_NULL_WORDS: Final = (
    "NA",
    "N/A",
    "n/a",
    "NULL",
    "null",
    "NaN",
    "nan",
    "None",
    "-",
    "--",
    "?",
    "k.A.",
    "k. A.",
    "n.a.",
    "N.A.",
    "n. a.",
    "missing",
)
_PREVIEW_BYTES: Final = 1 << 20  # bytes at the beginning of a file
_DATE: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{4}|[0-9]{1,2}/[0-9]{1,2}/[0-9]{2,4}"
)
_TIME: Final = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?")


@dataclass(repr=False)  # it is as private as the rows
class ColumnProfile:
    """Inferred profile of one column."""

    name: str
    kind: Literal["id", "date", "time", "text", "people", "unique", "number", "category", "nothing", "unnamed"]
    nullable: bool
    codes: Indices  # category of each row, negative if the row has no category
    texts: list[str]
    numbers: _Numbers | None = None


@dataclass(repr=False)
class _Numbers:
    """Numbers of a column (NaN for other values), and the rules by which they were read."""

    values: Floats
    decimal: str | None = None  # decimal sign, if it differs from the file's
    rule: TextRule | None = None  # how text values are read, if there are any
    odd: tuple[str, ...] = ()  # these text values


def profile_column(name: str, table: Table, dialect: Dialect, *, is_target: bool) -> ColumnProfile:
    """Infer the profile of a column."""
    values = table.column_by_name(name)
    assert values is not None  # the name is from the table
    codes, texts = _merge_duplicates(*factorize_texts(values))
    there = codes >= 0
    n_rows, n_values = int(there.sum()), len(texts)
    numbers = _read_numbers(name, values, codes, texts, dialect)
    nullable = bool((codes == NoText.MISSING.value).any()) or (numbers is not None and numbers.rule is not None)

    def make_profile(kind: Any) -> ColumnProfile:
        return ColumnProfile(name, kind, nullable, codes, texts, numbers)

    if not name or not n_rows:
        return make_profile("nothing" if name else "unnamed")
    if is_target:
        few = numbers is None or n_values <= _MAX_NUMERIC_CLASSES
        return make_profile("category" if few else "number")
    shape = _guess_date_or_time(texts)
    if shape is not None:
        return make_profile(shape)
    many = n_values > _NEARLY_ALL * n_rows and n_values > MIN_UNITS
    if _ID_NAMES.search(name) and n_values > _MAX_NUMERIC_CLASSES:
        return make_profile("id")
    if numbers is not None:
        if many and known_bounds(name) is None and _is_sequential(numbers.values[np.isfinite(numbers.values)]):
            return make_profile("unique")
        return make_profile("category" if n_values <= 2 and known_bounds(name) is None else "number")
    if known_values(name, texts) is not None:  # for example postcodes
        return make_profile("category")
    if _CONTACT_NAMES.search(name) and n_values > MIN_UNITS:
        return make_profile("people")
    lengths = [len(text) for text in texts]
    if n_values > MIN_UNITS and np.mean(lengths) > 12 and np.mean([" " in text.strip() for text in texts]) > 0.5:
        return make_profile("text")
    many = n_values > 0.5 * n_rows and n_values > MIN_UNITS
    return make_profile("unique" if many else "category")


def _merge_duplicates(codes: Indices, texts: list[str]) -> tuple[Indices, list[str]]:
    """Map equal texts to one code."""
    known = list(dict.fromkeys(texts))
    places = {text: place for place, text in enumerate(known)}
    moved = np.array([*(places[text] for text in texts), NoText.UNUSABLE.value, NoText.MISSING.value], np.intp)
    return moved[codes], known


def _read_numbers(
    name: str, values: ColumnValues, codes: Indices, texts: list[str], dialect: Dialect
) -> _Numbers | None:
    """Return the numbers of a column, or None if it is not numeric, for example codes with leading zeros."""
    if not texts or any(re.match("0[0-9]", text) for text in texts) or {"True", "False"} & set(texts):
        return None
    exact, kinds = read_numbers(values)
    if kinds is None:  # numbers, not texts
        return _Numbers(exact)
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    sign = _guess_decimal_sign(name, texts, counts, dialect)
    own = dialect if sign is None else replace(dialect, decimals={name: sign})
    are_numbers = np.array([own.of(name).number(text) is not None for text in texts])
    numbers, _ = read_mixed_numbers(values, own.of(name), limits=True)
    if are_numbers.all():
        in_file = isinstance(values, pa.ChunkedArray)  # texts of a frame are read as numbers by a rule only
        return _Numbers(numbers, sign, None if in_file else "missing")
    limits = np.array([bool(LIMIT.fullmatch(text)) for text in texts]) & ~are_numbers
    usual = known_bounds(name) is not None
    fraction = counts[are_numbers | limits].sum() / max(counts.sum(), 1)
    if fraction < (_MOST if usual else _MOSTLY) or are_numbers.sum() < _MIN_NUMBERS:
        return None
    odd = tuple(text for text, is_number in zip(texts, are_numbers, strict=True) if not is_number)
    return _Numbers(numbers, sign, "limit" if limits.any() else "missing", odd)


def _guess_decimal_sign(name: str, texts: Sequence[str], counts: Ints, dialect: Dialect) -> str | None:
    """Return the decimal sign that reads more rows than the file's own sign, or None."""
    some = texts[:_SAMPLE]
    if not any(_FRACTION.fullmatch(text.strip().lstrip("<>=≤≥ ")) for text in some):
        return None
    # A value such as 1,500 may be 1.5 or 1500: no guess.
    ambiguous = any(re.fullmatch(r"[^0-9]*[0-9]{1,3}[.,][0-9]{3}", text.strip()) for text in some)
    signs = [None, "." if dialect.decimal == "," else ",", *([] if ambiguous else ["either"])]

    def n_rows(sign: str | None) -> int:
        own = (dialect if sign is None else replace(dialect, decimals={name: sign})).of(name)
        return sum(int(n) for text, n in zip(some, counts, strict=False) if own.number(text) is not None)

    return max(signs, key=n_rows)  # ties go to the first


def _is_sequential(numbers: Floats) -> bool:
    """Return True if distinct numbers look like row or card numbers: integers with small gaps or many digits."""
    are_integers = bool((numbers == np.floor(numbers)).all())
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    return are_integers and (high - low < 3 * len(numbers) or low >= 1e7)


def _guess_date_or_time(texts: Sequence[str]) -> Literal["date", "time"] | None:
    """Return "date" or "time" if the texts look like dates or times of day, else None."""
    some = texts[:1000]
    dates = [text for text in some if _DATE.match(text)]
    if len(dates) >= _NEARLY_ALL * len(some):
        read = date_part_reader("year")
        return "date" if sum(isinstance(read(text), str) for text in dates) >= _NEARLY_ALL * len(dates) else "time"
    return "time" if sum(bool(_TIME.fullmatch(text)) for text in some) >= _NEARLY_ALL * len(some) else None


def guess_privacy_unit(profiles: Sequence[ColumnProfile]) -> ColumnProfile | None:
    """Return the id column to protect: an id of people if there is one, otherwise the first id with repeated values."""
    ids = [
        look for look in profiles if look.kind == "id" or (look.kind == "unique" and _PERSON_NAMES.search(look.name))
    ]
    people = [look for look in ids if _PERSON_NAMES.search(look.name)]
    repeated = [look for look in ids if len(look.texts) < _NEARLY_ALL * (look.codes >= 0).sum()]
    return next(iter([*people, *repeated]), None)


_REASONS: Final = {
    "id": "looks like an id",
    "date": "a date",
    "time": "a date or time in a format whose parts cannot be used",
    "text": "free text",
    "people": "names or addresses of people",
    "unique": "nearly every row has a value of its own",
    "nothing": "has no values",
    "unnamed": "has no name",
}


def draft_column(
    profile: ColumnProfile, unit: ColumnProfile | None, *, is_target: bool = False
) -> dict[str, Any] | str:
    """Return the JSON form of a column, marked as inferred, or the reason why it is left out."""
    if profile.kind in _REASONS:
        return _REASONS[profile.kind]
    nullable = {"nullable": True} if profile.nullable and not is_target else {}
    if profile.kind == "number":
        assert profile.numbers is not None
        bounds, source = _draft_bounds(profile.name, profile.numbers.values)
        rules: dict[str, Any] = {} if profile.numbers.rule is None or is_target else {"texts": profile.numbers.rule}
        if rules and profile.numbers.odd:  # for the review, which removes it
            held = _count_holders(profile, unit)
            listed = {text for text, n in zip(profile.texts, held, strict=True) if n >= MIN_UNITS}
            rules["odd"] = sorted(listed.intersection(profile.numbers.odd))
        finite = profile.numbers.values[np.isfinite(profile.numbers.values)]
        whole = {"whole": True} if len(finite) and bool((finite == np.floor(finite)).all()) and not is_target else {}
        head = {"name": profile.name, "kind": "numeric"}
        return head | bounds | whole | nullable | rules | {"bounds": UNREVIEWED_MARK + source}
    held = _count_holders(profile, unit)
    order = np.argsort(-held, kind="stable")[:_MAX_VALUES]
    frequent, aliases = _join_spellings([profile.texts[place] for place in order if held[place] >= MIN_UNITS])
    usual = known_values(profile.name, frequent or profile.texts)
    if not frequent and usual is None:
        return f"no category is held by {MIN_UNITS} or more"
    values = _restore_integers(list(usual.values) if usual else frequent, profile)
    column: dict[str, Any] = {"name": profile.name, "kind": "categorical", "values": values}
    prefix = None if usual is None else usual.prefix
    if prefix is not None:
        column["prefix"] = prefix
    elif aliases:
        column["aliases"] = aliases
    known = {*(usual.values if usual else frequent), *(aliases if prefix is None else ())}
    rest = sum(int(n) for text, n in zip(profile.texts, held, strict=True) if text[:prefix] not in known)
    column |= _add_other(values) if rest >= (MIN_UNITS if is_target else 1) else {}
    return column | nullable | {"bounds": UNREVIEWED_MARK + (f" (usual: {usual.title})" if usual else "")}


def _join_spellings(texts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Merge spellings that differ in case or surrounding spaces. Return categories and aliases.

    The first of several spellings becomes the category.

    >>> _join_spellings(["F", "M", "M ", "f"])
    (['F', 'M'], {'M ': 'M', 'f': 'F'})
    """
    categories: dict[str, str] = {}
    aliases: dict[str, str] = {}
    for text in texts:
        category = categories.setdefault(text.strip().casefold(), text.strip() or text)
        if text != category:
            aliases[text] = category
    return sorted(categories.values()), aliases


def _count_holders(profile: ColumnProfile, unit: ColumnProfile | None) -> Ints:
    """Return the number of units with each category, or the number of rows if there is no id."""
    rows = np.flatnonzero(profile.codes >= 0)
    people = rows if unit is None else unit.codes[rows]
    pairs = np.unique(np.column_stack([profile.codes[rows], people])[people >= 0], axis=0)
    return np.bincount(pairs[:, 0].astype(np.int64), minlength=len(profile.texts))


def _add_other(values: list[Any]) -> dict[str, Any]:
    """Return an ``other`` category for values that are not listed."""
    other = next(
        (value for value in values if str(value).casefold() in ("other", "others", "andere", "sonstige")), None
    )
    return {"other": other} if other is not None else {"values": [*map(str, values), "other"], "other": "other"}


def _restore_integers(texts: list[str], profile: ColumnProfile) -> list[Any]:
    """Return integer categories as integers, so that predictions are integers too."""
    are_integers = profile.numbers is not None and all(re.fullmatch("-?(0|[1-9][0-9]{0,15})", text) for text in texts)
    return sorted(int(text) for text in texts) if are_integers else texts


def _draft_bounds(name: str, numbers: Floats) -> tuple[dict[str, Any], str]:
    """Return known bounds that cover nearly all numbers, or else bounds that are not the value of any one unit."""
    finite = np.sort(numbers[np.isfinite(numbers)])
    usual = known_bounds(name)
    if usual is not None and usual.lower is not None and usual.upper is not None:
        inside = (finite >= usual.lower) & (finite <= usual.upper)
        if inside.mean() >= _NEARLY_ALL:
            return usual.to_dict(), f" (usual: {usual.title})"
    beyond = MIN_UNITS - 1 if len(finite) >= 10 * MIN_UNITS else 0
    low, high = float(finite[beyond]), float(finite[-1 - beyond])
    step = 10.0 ** math.floor(math.log10(max(high - low, abs(high) / 10, 1e-9)))
    lower, upper = math.floor(low / step) * step, math.ceil(high / step) * step
    upper += step if lower == upper else 0
    return {"lower": _round_number(lower), "upper": _round_number(upper)}, ""


def _round_number(number: float) -> float | int:
    rounded = float(f"{number:.6g}")
    return int(rounded) if rounded == int(rounded) else rounded


# -- the dialect of a file ---------------------------------------------------------------------------------------------


def guess_dialect(open_file: Callable[[], Any], **given: Any) -> Dialect:
    """Guess the dialect of a file from its first megabyte, except for the given parts.

    The result depends on rows, so it is only for a draft that a person reviews.
    """
    with open_file() as stream:
        raw = bytes(stream.read(_PREVIEW_BYTES))
    known = {key: value for key, value in given.items() if value is not None}
    encoding = known.get("encoding") or _guess_encoding(raw)
    text = raw.decode(Dialect(encoding=encoding).codec, "replace").removeprefix("\ufeff")
    lines = text.splitlines()
    sep = known.get("sep") or _guess_separator(lines)
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=sep) if row]
    rows = rows[1:-1] if len(raw) == _PREVIEW_BYTES else rows[1:]  # the last row may be truncated
    cells = [cell.strip() for row in rows for cell in row]
    if "decimal" not in known or "thousands" not in known:
        decimal, thousands = _guess_number_format(cells, sep, known.get("decimal"))
        known = {"thousands": thousands, "decimal": decimal} | known
    sign = rf"(?:[{MONEY}]|\b(?:{CURRENCIES})\b)"
    known.setdefault("money", any(re.search(f"[0-9].*{sign}|{sign}.*[0-9]", cell) for cell in cells))
    known.setdefault("nulls", _guess_nulls(rows))
    parts: dict[str, Any] = {"sep": sep, "encoding": encoding} | known
    return Dialect(**parts)


def _guess_nulls(rows: list[list[str]]) -> tuple[str, ...]:
    """Return the usual null words that occur, except in columns that consist mainly of null words."""
    columns = [Counter(cell for cell in column if cell) for column in zip_longest(*rows, fillvalue="")]
    words = {word for column in columns for word in _NULL_WORDS if column[word]}
    for column in columns:
        nulls = words.intersection(column)
        if sum(column[word] for word in nulls) > 0.5 * column.total():
            words -= nulls
    return tuple(word for word in _NULL_WORDS if word in words)


def _guess_encoding(raw: bytes) -> str:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(raw)  # incremental: a truncated last character is no error
        return "utf-8"
    except UnicodeDecodeError:
        return "cp1252" if any(0x80 <= byte < 0xA0 for byte in raw) else "latin-1"


def _guess_separator(lines: list[str]) -> str:
    """Return the separator that most often gives lines the same number of values. Ties go to the most values."""
    some = lines[:50]

    def separator_quality(sep: str) -> tuple[float, int]:
        widths = [len(row) for row in csv.reader(some, delimiter=sep)]
        width = widths[0] if widths else 1
        return (sum(w == width for w in widths) / max(len(widths), 1) if width > 1 else 0.0, width)

    return max(SEPARATORS, key=separator_quality) if some else ","


def _guess_number_format(cells: list[str], sep: str, decimal: str | None) -> tuple[str, str]:
    """Return the decimal sign and thousands separator that fit more values: 1.234,5 or 1,234.5."""
    looks = [re.sub(f"[{SPACES}{MONEY}]|{CURRENCIES}", "", cell) for cell in cells if re.search("[0-9]", cell)]
    comma = sum(bool(re.fullmatch(r"[+-]?([0-9]{1,3}(\.[0-9]{3})*|[0-9]+),[0-9]+", cell)) for cell in looks)
    point = sum(bool(re.fullmatch(r"[+-]?([0-9]{1,3}(,[0-9]{3})*|[0-9]+)\.[0-9]+", cell)) for cell in looks)
    if decimal is None:
        decimal = "," if sep != "," and comma > point else "."
    other = "." if decimal == "," else ","
    grouped = re.compile(rf"[+-]?[0-9]{{1,3}}(?:{re.escape(other)}[0-9]{{3}})+(?:{re.escape(decimal)}[0-9]+)?")
    # "1.234" is ambiguous: accept a thousands separator only with a decimal sign or a second separator.
    sure = any(grouped.fullmatch(cell) and (decimal in cell or cell.count(other) > 1) for cell in looks)
    return decimal, other if sure else ""


# -- the draft -------------------------------------------------------------------------------------------------------

DRAFT_NOTE: Final = (
    "DRAFT: bounds and categories below were inferred from the data. Run 'veilwood schema review', or replace them by "
    "public knowledge and delete each column's 'bounds' mark, then this line and 'inferred'. Until then every result "
    "is NOT PRIVATE."
)
DEFAULT_ROWS_PER_UNIT: Final = 3  # a constant, because the true number of rows per person is private


def draft_from_table(
    X: Any,
    target: str | None = None,
    *,
    dates: Collection[str] = (),
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> dict[str, Any]:
    """Draft the JSON form of a schema from a table, for a person to review before it is used.

    Columns that look like an id, a date or free text, or have nearly as many values as rows, are left out with a
    reason. An id becomes the proposed ``privacy_unit``. Categories held by fewer than 20 people (rows, if there is no
    id) are left out, and bounds are rounded outwards. Even so, the draft is as private as the data until a person
    replaces its content with public knowledge and deletes the marks. Models fitted with an unreviewed draft are marked
    NOT PRIVATE.

    Parameters
    ----------
    X : dataframe or path
        The table, including the target.
    target : str, optional
        Name of the target column; the last column by default.
    dates : collection of {"year", "month", "weekday", "hour"}
        Parts of dates to use. By default, dates are left out.
    sep, decimal, encoding : str, optional
        Dialect of a CSV file. Missing parts are guessed from the file and written into the draft.

    Examples
    --------
    >>> import pandas as pd
    >>> draft = draft_from_table(pd.DataFrame({"age": [31, 58] * 50, "name": range(100), "ill": ["no", "yes"] * 50}))
    >>> draft["columns"][0]["upper"], draft["columns"][0]["bounds"]
    (120, 'from data: review (usual: age in years)')
    >>> draft["left_out"]
    {'name': 'nearly every row has a value of its own'}
    """
    unknown = [part for part in dates if part not in DATE_PARTS]
    if unknown:
        raise SchemaError(f"dates have no part {unknown[0]!r}. Hint: use one of {', '.join(DATE_PARTS)}.")
    name, dialect, table = _open_table(X, {"sep": sep, "decimal": decimal, "encoding": encoding})
    if table.names is None:
        raise OutOfSchemaError("a draft needs column names. Hint: pass a dataframe or a file.")
    target = table.names[-1] if target is None else target
    if target not in table.names:
        raise OutOfSchemaError(f"the table has no column {target!r}.{did_you_mean(target, table.names)}", column=target)
    looks = [profile_column(label, table, dialect, is_target=label == target) for label in table.names]
    unit = guess_privacy_unit(looks)
    columns: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    (answers,) = (look for look in looks if look.name == target)
    goal = draft_column(answers, unit, is_target=True)
    if isinstance(goal, str):
        raise SchemaError(
            f"target {target!r} cannot be drafted: {goal}. Hint: choose a numeric target, or a target with at least "
            f"two classes of at least {MIN_UNITS} people each, or write the schema by hand."
        )
    for look in (look for look in looks if look.name != target):
        if look.kind == "date" and dates:
            columns += [_date_part_column(look, part) for part in dates]
            continue
        column = draft_column(look, unit)
        if isinstance(column, str):
            left_out[look.name] = column
        else:
            columns.append(column)
    if not columns:
        raise SchemaError("no column of the table can be used in a draft. Hint: write the schema by hand.")
    task = "regression" if goal["kind"] == "numeric" else "classification"
    head: dict[str, Any] = {"notes": DRAFT_NOTE, "name": name, "task": task, "target": target, "inferred": True}
    if unit is not None:
        head["privacy_unit"] = {"id": unit.name, "at_most": DEFAULT_ROWS_PER_UNIT}
        left_out[unit.name] += ", proposed as the privacy unit"
    used = {column["name"] for column in [*columns, goal] if column["kind"] == "numeric"}
    read = {look.name: look.numbers for look in looks if look.name in used and look.numbers is not None}
    signs = {name: numbers.decimal for name, numbers in read.items() if numbers.decimal}
    if _has_unusable_targets(answers, goal):
        head["drop"] = True  # for the fit command that the review prints
    dialect = replace(dialect, decimals=signs)
    if dialect != DIALECT:
        head["dialect"] = dialect.to_dict()
    if left_out:
        head |= {"ignore": list(left_out), "left_out": left_out}
    return head | {"columns": [*columns, goal]}


def draft_columns_again(
    X: str | PathLike[str], schema: Schema, names: Collection[str]
) -> Iterator[tuple[str, dict[str, Any] | None, str | None]]:
    """Redraft some columns of a schema, from a table that does not fit them.

    Yields three values per column: its name; its JSON form, or None if it cannot be drafted; and its decimal sign, or
    None if it is that of the file.
    """
    files = find_files(X, None, dialect=schema.dialect)
    columns = {column.name: column for column in (*schema.features, schema.target)}
    ids = schema.privacy_unit.id if isinstance(schema.privacy_unit, RowsOf) else None
    for name in names:
        column = columns[name]
        wanted = [label for label in dict.fromkeys((column.source, ids)) if label is not None]
        table = Table.from_data(pa.concat_tables([file.load(wanted).arrow for file in files]))
        profile = profile_column(column.source, table, schema.dialect, is_target=column is schema.target)
        unit = None if ids is None else profile_column(ids, table, schema.dialect, is_target=False)
        drafted = None if column.part else draft_column(profile, unit, is_target=column is schema.target)
        if not isinstance(drafted, dict):
            yield name, None, None
        else:
            own = {"name": name} if column.of is None else {"name": name, "of": column.of}
            yield name, drafted | own, None if profile.numbers is None else profile.numbers.decimal


def _has_unusable_targets(profile: ColumnProfile, goal: dict[str, Any]) -> bool:
    """Return True if any row has no target, or a target that the draft does not list."""
    if goal["kind"] == "numeric":
        return profile.nullable
    listed = {*map(str, goal["values"]), *goal.get("aliases", ())}
    return bool((profile.codes < 0).any()) or ("other" not in goal and not listed.issuperset(profile.texts))


def _open_table(X: Any, written: dict[str, str | None]) -> tuple[str, Dialect, Table]:
    """Read a whole table; return its name, its dialect and its rows."""
    if not isinstance(X, str | PathLike):
        return "draft", DIALECT, Table.from_data(X)
    places, name, dialect = find_locations(X), Path(X).name, Dialect(decimal=written["decimal"] or ".")
    place: Any = X if isinstance(places, Relation) else places[0]
    if not isinstance(places, Relation):
        name = places[0].name.split(".")[0]
        if places[0].format == "csv":  # the guess depends on private rows, so it is for drafts only
            dialect = guess_dialect(places[0].open, **written)
    (file,) = find_files(place, None, dialect=dialect)
    return name, dialect, file.load(list(file.names))


def _date_part_column(profile: ColumnProfile, part: str) -> dict[str, Any]:
    """Return a column for a part of a date. The values of all parts except the year are public."""
    known = {"month": (1, 12), "weekday": (1, 7), "hour": (0, 23), "year": (1900, 2100)}
    kind: dict[str, Any] = {"kind": "numeric", "lower": known[part][0], "upper": known[part][1]}
    if part == "weekday":
        kind = {"kind": "categorical", "values": list(range(1, 8))}
    column = {"name": f"{profile.name}_{part}", "of": profile.name, "part": part} | kind
    return column | ({"nullable": True} if profile.nullable else {}) | {"bounds": f"{UNREVIEWED_MARK} (usual: {part})"}
