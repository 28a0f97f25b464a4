# SPDX-License-Identifier: Apache-2.0
"""Canonical text of a value: the only place that decides whether two values are the same id or the same category.

Every source, engine and format uses this module, so that ids and categories match across file formats. Each value is
read independently: neither the type of its column nor other rows matter.

| value | text |
|---|---|
| integer, float, decimal | the number in plain digits, without trailing zeros: 7, 7.0, Decimal("7.00") give ``7`` |
| text in a program's number notation | as that number: ``7.0``, ``7.00``, ``7e+0`` give ``7``; ``-0`` gives ``0`` |
| any other text | itself: ``007``, ``+7``, ``.5``, ``7e0``, and `` 7`` with a space, are not ``7`` |
| boolean; text ``true`` or ``false`` | ``True`` or ``False`` |
| bytes | as their text in UTF-8; other bytes as ``\\xff`` |
| date, time stamp, also as text | ``2026-01-31``, or ``2026-01-31 09:30:00``; UTC where there is a time zone |
| time, duration, period, interval, UUID | as pandas formats it |
| null, None, NaN, NaT, empty text | missing |
| list, array, dict, complex number, anything else | unusable: rejected |

Details:

* A float has the shortest decimal text that reads back as the same float of its precision, as in CSV: 0.1 is ``0.1`` in
  32 and in 64 bits, and 0.1 converted from 32 to 64 bits is another number.
* A text is a number if it has the form -12.50e+3: no plus sign, no spaces, no leading zeros. An exponent needs a
  point or a sign, as programs write it: ``1.0E7`` and ``1e+16`` are numbers, ``12e4`` may be a hash.
* Numbers whose last digit is more than 400 places from the point keep an exponent, so that work stays bounded.
* An unpaired surrogate is escaped, so it has the text of that escape: ``\\ud800``.
* As a number, the text 250.10 is 250.1. If these are two different codes, prefix them with a letter.
* An id must be exact: a float of 2^53 or more (2^24 in 32 bits), or its text, was rounded and is rejected as an id.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

ColumnValues: TypeAlias = "pd.Series[Any] | pa.ChunkedArray"

NO_VALUE: Final = object()  # stands for a value that cannot be read: neither text, nor number, nor missing

_MAX_ZEROS: Final = 400  # digits; enough for every 64-bit float
_LONG_INTEGER: Final = 10**_MAX_ZEROS
_FIRST_ROUNDED: Final = str(2**53)  # below this number, a 64-bit float represents every integer exactly

# ASCII digits only: \d would match others.
_NUMBER: Final = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]{1,20}))?")
_MOMENT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(Z|[+-][0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2})?)?)?"
)
_YEAR_FIRST: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAY_FIRST: Final = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{4})(?: ([0-9]{2}:[0-9]{2}(?::[0-9]{2})?))?")
_BOOLEAN_TEXTS: Final = {"true": "True", "false": "False"}


class NoText(Enum):
    """Reason why a value has no canonical text."""

    MISSING = -1
    UNUSABLE = -2


TextReader: TypeAlias = Callable[[Any], str | NoText]


def to_canonical_text(value: Any) -> str | NoText:
    """Return the canonical text of a value, by the table above. Never raises.

    Examples
    --------
    >>> [to_canonical_text(value) for value in (7, 7.0, "7.0", Decimal("7.00"), b"7", np.float32(7), "007")]
    ['7', '7', '7', '7', '7', '7', '007']
    >>> [to_canonical_text(value) for value in (True, "true", 0.1)]
    ['True', 'True', '0.1']
    >>> to_canonical_text(float("nan")), to_canonical_text([7])
    (<NoText.MISSING: -1>, <NoText.UNUSABLE: -2>)
    >>> to_canonical_text(Decimal("1e999999999"))
    '1e+999999999'
    """
    match value:
        case str():
            return _canonicalize_text(str.__str__(value))
        case bool() | np.bool_():
            return str(bool(value))
        case np.timedelta64() | datetime.timedelta():  # before np.integer, of which np.timedelta64 is a subclass
            return _format_duration(value)
        case int() | np.integer():
            return _format_integer(int(value))
        case float() | np.floating():
            return _format_float(value)
        case Decimal():
            return _format_decimal(value)
        case bytes() | bytearray() | memoryview():
            return _canonicalize_text(_decode_bytes(value))
        case datetime.datetime() if value is not pd.NaT:  # includes pd.Timestamp
            return _canonicalize_text(str(_to_utc(value)))
        case datetime.date() if value is not pd.NaT:
            return value.isoformat()
        case np.datetime64() if not np.isnat(value):
            return _canonicalize_text(_format_datetime64(value))
        case datetime.time():
            return _format_time(str(value))
        case pd.Period() | pd.Interval() | uuid.UUID():
            return str(value)
    missing = value is None or value is pd.NA or value is pd.NaT or isinstance(value, np.datetime64)
    return NoText.MISSING if missing else NoText.UNUSABLE


def to_canonical_id(value: Any) -> str | NoText:
    """Return the canonical text of an id, as ``to_canonical_text`` does, but reject numbers that a float has rounded.

    A rounded id could belong to two people: it is unusable.

    Examples
    --------
    >>> to_canonical_id(2**60), to_canonical_id(2.0**60), to_canonical_id("1.152921504606847e+18")
    ('1152921504606846976', <NoText.UNUSABLE: -2>, <NoText.UNUSABLE: -2>)
    """
    text = to_canonical_text(value)
    return NoText.UNUSABLE if isinstance(text, str) and _may_be_rounded(value, text) else text


@cache
def prefix_reader(length: int) -> TextReader:
    """Return a function that reads the first ``length`` characters of the text of a value.

    Examples
    --------
    >>> [prefix_reader(2)(cell) for cell in ("01067", 99084, None)]
    ['01', '99', <NoText.MISSING: -1>]
    """

    def read_prefix(cell: Any) -> str | NoText:
        text = to_canonical_text(cell)
        return to_canonical_text(text[:length]) if isinstance(text, str) else text

    return read_prefix


@cache
def date_part_reader(part: str) -> TextReader:
    """Return a function that reads the year, month, weekday or hour of a date. Values other than dates are unusable.

    Examples
    --------
    >>> [date_part_reader(part)("2026-01-31 09:30") for part in DATE_PARTS]
    ['2026', '1', '6', '9']
    >>> date_part_reader("month")("31.1.2026"), date_part_reader("year")("soon")
    ('1', <NoText.UNUSABLE: -2>)
    """

    def read_date_part(cell: Any) -> str | NoText:
        text = to_canonical_text(cell)
        if isinstance(text, NoText):
            return text
        if day := _DAY_FIRST.fullmatch(text):
            text = f"{day[3]}-{day[2]:0>2}-{day[1]:0>2} {day[4] or '00:00'}"
        elif not _YEAR_FIRST.match(text):
            return NoText.UNUSABLE
        try:
            return str(DATE_PARTS[part](datetime.datetime.fromisoformat(text)))
        except ValueError:  # no such day
            return NoText.UNUSABLE

    return read_date_part


DATE_PARTS: Final[dict[str, Callable[[datetime.datetime], int]]] = {
    "year": lambda moment: moment.year,
    "month": lambda moment: moment.month,
    "weekday": lambda moment: moment.isoweekday(),
    "hour": lambda moment: moment.hour,
}


def to_canonical_texts(values: Iterable[Any], read: TextReader = to_canonical_text) -> list[str | NoText]:
    """Return the texts of many values. Integer arrays are read at once if digits are the canonical text.

    Examples
    --------
    >>> to_canonical_texts(np.array([7.0, 8.0])), to_canonical_texts(["7.0", None])
    (['7', '8'], ['7', <NoText.MISSING: -1>])
    >>> to_canonical_texts(np.array([78]), prefix_reader(1))
    ['7']
    """
    array: Any = (
        values
        if isinstance(values, np.ndarray) and read in (to_canonical_text, to_canonical_id)
        else np.empty(0, object)
    )
    if array.dtype in (np.float32, np.float64) and (np.abs(array) < 2.0**24).all():  # exact in either precision
        whole = array.astype(np.int64)
        array = whole if np.array_equal(whole, array) else array
    if array.dtype.kind in "iu":
        return list(map(str, array.tolist()))
    return [read(cell) for cell in values]


def _may_be_rounded(value: Any, text: str) -> bool:
    if isinstance(value, float | np.floating):
        bits = 52 if isinstance(value, float) else int(np.finfo(type(value)).nmant)
        return abs(float(value)) >= 2.0 ** (bits + 1)
    if isinstance(value, str | bytes | bytearray | memoryview):
        given = value if isinstance(value, str) else _decode_bytes(value)
        # A float does not write digits alone, and a number with a fraction was not rounded to an integer.
        if text != given and "." not in text and _NUMBER.fullmatch(given):
            digits = text.removeprefix("-")
            return (len(digits), digits) >= (len(_FIRST_ROUNDED), _FIRST_ROUNDED)
    return False


def _canonicalize_text(text: str) -> str | NoText:
    if not text:
        return NoText.MISSING
    if text[0] in "-0123456789":
        if text.isdecimal() and text[0] != "0" and len(text) <= _MAX_ZEROS and text.isascii():
            return text  # the usual id
        if number := _NUMBER.fullmatch(text):
            sign, whole, fraction, exponent_sign, exponent = number.groups("")
            if fraction or exponent_sign or not exponent:
                return _format_digits(sign, whole + fraction, int(exponent_sign + (exponent or "0")) - len(fraction))
        elif moment := _MOMENT.fullmatch(text):
            return _format_timestamp(text, *moment.groups())
    if text.isascii():
        return _BOOLEAN_TEXTS.get(text, text)
    return text.encode("utf-8", "backslashreplace").decode()  # engines reject an unpaired surrogate


def _format_digits(sign: str, digits: str, exponent: int) -> str:
    """Format the number whose digits, without a point, are followed by ``exponent`` zeros."""
    digits = digits.lstrip("0")
    if not digits:
        return "0"
    short = digits.rstrip("0")
    exponent += len(digits) - len(short)
    if abs(exponent) > _MAX_ZEROS:
        return f"{sign}{short}e{exponent:+d}"
    if exponent >= 0:
        return f"{sign}{short}{'0' * exponent}"
    short = short.rjust(1 - exponent, "0")
    return f"{sign}{short[:exponent]}.{short[exponent:]}"


def _format_integer(number: int) -> str:
    return (
        str(number) if abs(number) < _LONG_INTEGER else _format_number_text(str(Decimal(number)))
    )  # ``str`` raises for very long integers


def _format_float(number: Any) -> str | NoText:
    if number != number:
        return NoText.MISSING
    if not np.isfinite(number):
        return "inf" if number > 0 else "-inf"
    if isinstance(number, float):  # includes np.float64
        return _format_number_text(float.__repr__(number))
    return _format_number_text(np.format_float_scientific(number, trim="-"))


def _format_decimal(number: Decimal) -> str | NoText:
    if number.is_nan():
        return NoText.MISSING
    if number.is_infinite():
        return "inf" if number > 0 else "-inf"
    return _format_number_text(str(number))


def _format_number_text(number: str) -> str:
    """Format a number that ``repr`` or ``str`` has written, in any of their notations."""
    sign, whole, fraction, exponent_sign, exponent = _NUMBER.fullmatch(number).groups("")  # type: ignore[union-attr]
    return _format_digits(sign, whole + fraction, int(exponent_sign + exponent or "0") - len(fraction))


def _decode_bytes(value: bytes | bytearray | memoryview) -> str:
    return bytes(value).decode("utf-8", "backslashreplace")


def _format_timestamp(
    text: str, day: str, minutes: str, seconds: str | None, fraction: str | None, zone: str | None
) -> str:
    """Format a timestamp: no trailing zeros of seconds, no midnight, and UTC if there is a time zone."""
    rest = (fraction or "").rstrip("0")
    time = f"{minutes}:{seconds or '00'}"
    if zone is not None:
        try:
            local = datetime.datetime.fromisoformat(f"{day} {time}{'+00:00' if zone == 'Z' else zone}")
            day, time = str(local.astimezone(datetime.UTC).replace(tzinfo=None)).split(" ")
        except (ValueError, OverflowError):
            return text  # no such day
    elif time == "00:00:00" and not rest:
        return day
    return f"{day} {time}{'.' + rest if rest else ''}{'+00:00' if zone is not None else ''}"


def _to_utc(moment: datetime.datetime) -> datetime.datetime:
    """Convert to UTC. Done before formatting, because offsets may have fractions of seconds, which text cannot show."""
    try:
        return moment if moment.tzinfo is None else moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):  # before year 1
        return moment


def _format_datetime64(moment: np.datetime64) -> str:
    unit = np.datetime_data(moment.dtype)[0]
    return str(
        moment.astype("M8[D]") if unit in ("Y", "M", "W") else moment.astype("M8[s]") if unit in "hm" else moment
    )


def _format_time(text: str) -> str:
    """Format a time of day without trailing zeros in its seconds, whatever the resolution of the column."""
    time, point, rest = text.partition(".")
    parts = rest.rstrip("0") if rest.isdecimal() else rest  # a zone may follow
    return f"{time}{point if parts else ''}{parts}"


def _format_duration(duration: Any) -> str | NoText:
    try:
        return NoText.MISSING if pd.isna(duration) else str(pd.Timedelta(duration))
    except (ValueError, OverflowError):  # months have no fixed length
        return NoText.UNUSABLE


# -- columns of cells --------------------------------------------------------------------------------------------------


class Categories(NamedTuple):
    """Codes of the texts of one column; a negative code names a problem."""

    read: TextReader
    known: Mapping[str, int]
    unknown: int
    unusable: int
    missing: int


def write_categories(
    columns: Iterable[tuple[Categories, ColumnValues, npt.NDArray[Any]]],
) -> list[npt.NDArray[np.uint8] | None]:
    """Write the codes of several columns into arrays. Return, for each column, the kinds of problems, if any.

    Examples
    --------
    >>> out = np.zeros(3, int)
    >>> values = pd.Series([7, "7.0", None], dtype=object)
    >>> write_categories([(Categories(to_canonical_text, {"7": 0}, -1, -2, -3), values, out)])
    [array([0, 0, 3], dtype=uint8)]
    """
    return [_write_codes(categories, values, out) for categories, values, out in columns]


def _write_codes(categories: Categories, values: ColumnValues, out: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | None:
    codes, texts = factorize_texts(values, categories.read)
    numbers = [categories.known.get(text, categories.unknown) for text in texts]
    numbers += [categories.unusable, categories.missing]  # these entries are for the codes -2 and -1
    found: npt.NDArray[np.int32] = np.array(numbers, np.int32).take(codes)
    if not found.size or found.min() >= 0:
        out[:] = found
        return None
    out[:] = np.maximum(found, 0)
    return np.maximum(-found, 0).astype(np.uint8)


def iter_values(values: ColumnValues) -> Iterable[Any]:
    """Iterate over the values of a column. A value that its library cannot convert becomes an unusable object."""
    try:
        if isinstance(values, pa.ChunkedArray):
            return [cell for chunk in values.chunks for cell in _arrow_values(chunk)]
        return values.to_numpy(dtype=object)
    except Exception:
        return [_value_at(values, row) for row in range(len(values))]


def _value_at(values: ColumnValues, row: int) -> Any:
    try:
        return values[row].as_py() if isinstance(values, pa.ChunkedArray) else values.iloc[row]
    except Exception:
        return NO_VALUE


def factorize_texts(
    values: ColumnValues, read: TextReader = to_canonical_text
) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Factorize a column: return a code for each row, and the text of each code.

    The code is -1 where a value is missing and -2 where it is unusable. Several codes may have the same text.

    Examples
    --------
    >>> factorize_texts(pd.Series([7, "7.0", None, [7]], dtype=object))
    (array([ 0,  0, -1, -2]), ['7'])
    """
    try:
        return _factorize_column(values, read)
    except Exception:  # some value cannot be converted or compared: read one by one, with the same result
        return _factorize_each(iter_values(values), read)


def _factorize_column(values: ColumnValues, read: TextReader) -> tuple[npt.NDArray[np.intp], list[str]]:
    if not isinstance(values, pa.ChunkedArray) and isinstance(values.dtype, pd.ArrowDtype):
        values = pa.chunked_array(pa.array(values.array))
    if isinstance(values, pa.ChunkedArray):
        return _factorize_arrow(values, read)
    # True == 1 == 1.0 to a hash table, and to that of pandas some texts are one that end at a character of 0 or cannot
    # be written: which text such a value gets would depend on the rows before it.
    dtype = getattr(values.dtype, "subtype", values.dtype)  # of a sparse column
    objects = dtype.kind == "O" if isinstance(dtype, np.dtype) else getattr(dtype, "storage", "") == "python"
    if objects or dtype in (np.float16, np.longdouble):  # pandas changes the precision of these types
        return _factorize_each(values.to_numpy(), read)
    codes, uniques = pd.factorize(values)
    return _mark_missing_codes(codes, to_canonical_texts(np.asarray(uniques), read))


def _factorize_arrow(values: pa.ChunkedArray, read: TextReader) -> tuple[npt.NDArray[np.intp], list[str]]:
    if pa.types.is_dictionary(values.type) and not _can_unify_dictionaries(values.type.value_type):
        values = pa.chunked_array([chunk.dictionary_decode() for chunk in values.chunks], values.type.value_type)
    try:
        coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        coded = coded.chunk(0) if coded.num_chunks == 1 else coded.combine_chunks()
        codes = coded.indices.cast(pa.int64()).fill_null(-1).to_numpy()  # indices may be unsigned
    except (pa.ArrowException, AttributeError):  # a type that cannot be dictionary-encoded, or contains only nulls
        return _factorize_each((cell for chunk in values.chunks for cell in _arrow_values(chunk)), read)
    return _mark_missing_codes(codes.astype(np.intp), to_canonical_texts(_arrow_values(coded.dictionary), read))


def _can_unify_dictionaries(kind: Any) -> bool:
    """Return True if Arrow unifies the dictionaries of chunks without changing values, as it may for short floats."""
    return not (pa.types.is_floating(kind) or pa.types.is_temporal(kind))


def _arrow_values(values: Any) -> Any:
    """Return the values of an Arrow column with their full precision, nanoseconds and time zone."""
    types, kind = pa.types, values.type
    if types.is_timestamp(kind) and kind.tz is not None:
        return [None if np.isnat(moment) else f"{moment}+00:00" for moment in values.to_numpy(zero_copy_only=False)]
    if types.is_floating(kind) or types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return values.to_numpy(zero_copy_only=False)
    if types.is_time(kind):
        return [text and _format_time(text) for text in values.cast(pa.string()).to_pylist()]
    if types.is_run_end_encoded(kind):  # otherwise floats would become 64-bit
        import pyarrow.compute as compute  # slow to load

        return _arrow_values(compute.run_end_decode(values))
    return values.to_pylist()


def _factorize_each(values: Iterable[Any], read: TextReader) -> tuple[npt.NDArray[np.intp], list[str]]:
    numbering: dict[str | NoText, int] = {}
    known: dict[str | int, int] = {}  # texts and integers read before; excludes booleans

    def code_of(cell: Any) -> int:
        known_texts = type(cell) in (str, int)
        found = known.get(cell) if known_texts else None
        if found is None:
            found = numbering.setdefault(read(cell), len(numbering))
            if known_texts:
                known[cell] = found
        return found

    codes = np.array([code_of(cell) for cell in values], np.intp)
    return _mark_missing_codes(codes, list(numbering))


def _mark_missing_codes(
    codes: npt.NDArray[np.intp], texts: list[str | NoText]
) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Set the code of each value without a text to that of its reason."""
    known_texts = [text for text in texts if isinstance(text, str)]
    if len(known_texts) < len(texts):
        place = iter(range(len(known_texts)))
        moved = [text.value if isinstance(text, NoText) else next(place) for text in texts]
        codes = np.array([*moved, NoText.MISSING.value], np.intp)[codes]
    return codes, known_texts
