# SPDX-License-Identifier: Apache-2.0
"""CSV dialects: separator, encoding, decimal sign, thousands separator and null words.

A dialect is public and part of the schema. ``fit`` never guesses it, because one row could change the guess. Drafts
guess it, for a person to review (``drafting.draft.guess_dialect``).
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from veilwood.errors import OutOfSchemaError, SchemaError, short_repr

ENCODINGS: Final = ("utf-8", "latin-1", "iso-8859-2", "iso-8859-15", "cp1250", "cp1251", "cp1252", "cp437", "cp850")
SEPARATORS: Final = (",", ";", "\t", "|")
_DECIMAL_SIGNS: Final = {".": ".", ",": ",", "either": ".,"}  # decimal separators
_THOUSANDS: Final = ("", ".", ",", "'", " ")
MONEY: Final = "€$£¥"
CURRENCIES: Final = "EUR|USD|GBP|CHF|JPY|SEK|NOK|DKK|PLN|CZK"
SPACES: Final = " \t\u00a0\u2009\u202f"
_MAX_NUMBER_LENGTH: Final = 400  # characters, including blanks


@dataclass(frozen=True)
class Dialect:
    """Format of the values in a CSV file.

    Parameters
    ----------
    sep : str, default ","
        Separator of values: one character.
    decimal : {".", ",", "either"}, default "."
        The decimal sign of numbers. With "either", both are decimal signs, and there are no thousands separators.
    thousands : {"", ".", ",", "'", " "}, default ""
        Separator of groups of three digits, if any.
    encoding : str, default "utf-8"
        Character encoding, such as "latin-1" or "cp1252".
    nulls : sequence of str
        Words for a missing value in every column, in addition to the empty value.
    money : bool, default False
        Whether numbers may have a currency sign before or after them.
    decimals : mapping
        Decimal signs of columns that differ from ``decimal``. An export often mixes two conventions, sometimes in one
        column ("either").

    Examples
    --------
    >>> german = Dialect(sep=";", decimal=",", thousands=".", money=True)
    >>> german.number("1.234,50 €"), german.number("12,5"), german.number("1.5")
    ('1234.50', '12.5', None)
    >>> Dialect(sep=";", decimals={"dose": ","}).of("dose").number("12,5")
    '12.5'
    >>> mixed = Dialect(decimals={"temp": "either"}).of("temp")
    >>> mixed.number("37,2"), mixed.number("37.2")
    ('37.2', '37.2')
    """

    sep: str = ","
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    nulls: tuple[str, ...] = ()
    money: bool = False
    decimals: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.sep, str) or len(self.sep) != 1 or not self.sep.isascii() or self.sep in '"\r\n':
            raise _dialect_error("sep", self.sep, "one character, such as ';'")
        if not isinstance(self.decimal, str) or self.decimal not in _DECIMAL_SIGNS:
            raise _dialect_error("decimal", self.decimal, "'.', ',' or 'either'")
        if self.thousands not in _THOUSANDS or (self.thousands and self.thousands in self._number_signs):
            raise _dialect_error(
                "thousands", self.thousands, "'', '.', ',', an apostrophe or a space; not a decimal sign"
            )
        if not isinstance(self.encoding, str) or _supported_encoding(self.encoding) is None:
            raise _dialect_error(
                "encoding", self.encoding, f"one of {', '.join(ENCODINGS)}; convert other files to UTF-8"
            )
        words = self.nulls
        if isinstance(words, str) or not isinstance(words, list | tuple) or not all(isinstance(w, str) for w in words):
            raise _dialect_error("nulls", words, "a list of words")
        if not isinstance(self.money, bool):
            raise _dialect_error("money", self.money, "true or false")
        signs = self.decimals
        if not isinstance(signs, Mapping) or not all(isinstance(name, str) for name in signs):
            raise _dialect_error("decimals", signs, 'columns and their decimal signs, such as {"dose": ","}')
        for name, sign in signs.items():
            if not isinstance(sign, str) or sign not in _DECIMAL_SIGNS:
                raise _dialect_error(f"decimals of {name}", sign, "'.', ',' or 'either'")
        object.__setattr__(self, "decimals", FrozenTexts(signs))
        object.__setattr__(self, "nulls", tuple(word for word in dict.fromkeys(words) if word))
        object.__setattr__(self, "encoding", _supported_encoding(self.encoding))

    @classmethod
    def from_dict(cls, data: object) -> Dialect:
        """Build a dialect from its JSON form. Unknown keys are rejected: they could change how rows are read."""
        if isinstance(data, Dialect):
            return data
        known = {entry.name for entry in fields(cls)}
        if not isinstance(data, Mapping) or not known.issuperset(data):
            raise SchemaError(
                f"the schema's 'dialect' must be an object with known keys. Hint: use {', '.join(sorted(known))}."
            )
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without keys at their defaults."""
        given = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {
            key: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            for key, value in given.items()
            if value != getattr(DIALECT, key)
        }

    @cached_property
    def plain_numbers(self) -> bool:
        """Whether numbers need no conversion: decimal point, no thousands separator, no currency signs."""
        return self.decimal == "." and not self.thousands and not self.money and not self.decimals

    def of(self, column: str) -> Dialect:
        """Return the dialect of one column, which may have its own decimal sign."""
        sign = self.decimals.get(column, self.decimal)
        return replace(
            self, decimal=sign, thousands="" if self.thousands in _DECIMAL_SIGNS[sign] else self.thousands, decimals={}
        )

    @property
    def _number_signs(self) -> str:
        return _DECIMAL_SIGNS[self.decimal]

    @cached_property
    def codec(self) -> str:
        """Name of a Python codec that decodes every byte, so that one invalid value does not block the others."""
        return _total_codec(self.encoding)

    def number(self, text: str) -> str | None:
        """Convert a number to Python's notation. Return None if the text is not a number in this dialect."""
        if len(text) > _MAX_NUMBER_LENGTH:  # the time of matching grows with the square of the length
            return None
        found = _number_pattern(self._number_signs, self.thousands, self.money).fullmatch(text)
        if found is None or not (found["whole"] or found["rest"]):
            return None
        whole = re.sub("[^0-9]", "", found["whole"] or "")
        return f"{found['sign']}{whole}{'.' + found['rest'] if found['rest'] else ''}{found['exponent']}"

    def numbers(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Convert the numbers of a text column to Python's notation, value by value. Other texts stay invalid."""
        if self.plain_numbers:
            return values
        # Most values are digits and perhaps a decimal sign: convert them all at once, with the same result.
        plain = pc.match_substring_regex(values, f"^-?[0-9]+([{self._number_signs}][0-9]+)?$")
        usual = pc.fill_null(plain, False).combine_chunks()
        cells = values.combine_chunks()
        out = pc.if_else(usual, pc.replace_substring(cells, ",", "."), None).cast(pa.string())
        odd = pc.invert(usual)
        rest = [self._number(cell) for cell in cells.filter(odd).to_pylist()]
        return pa.chunked_array([pc.replace_with_mask(out, odd, pa.array(rest, pa.string()))])

    def _number(self, cell: str | bytes | None) -> str | None:
        if not cell:
            return None
        text = cell if isinstance(cell, str) else cell.decode("utf-8", "backslashreplace")
        number = self.number(text)
        return f"{text} (not as the dialect writes numbers)" if number is None else number


class FrozenTexts(dict[str, str]):
    """Immutable dict of strings: schemas are compared and hashed."""

    def _reject_change(self, *_: object, **__: object) -> Any:
        raise TypeError("a schema is immutable. Hint: create a new schema.")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = setdefault = clear = _reject_change

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenTexts, (dict(self),)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def _dialect_error(key: str, value: object, hint: str) -> SchemaError:
    return SchemaError(f"the dialect's {key!r} is {short_repr(value)}. Hint: {hint}.")


def _supported_encoding(name: str) -> str | None:
    """Return the supported encoding that has this name or alias, or None."""
    try:
        wanted = codecs.lookup(name.replace("-sig", "")).name
    except LookupError:
        return None
    return next((known for known in ENCODINGS if codecs.lookup(known).name == wanted), None)


@cache
def _total_codec(encoding: str) -> str:
    """Register a variant of a one-byte encoding that decodes every byte. Python's own raises at undefined bytes."""
    if encoding in ("utf-8", "latin-1"):
        return encoding
    table = "".join(bytes([byte]).decode(encoding, "replace").replace("\ufffd", chr(byte)) for byte in range(256))
    name = f"veilwood_{encoding.replace('-', '_')}"

    def decode_bytes(data: Any, errors: str = "strict") -> tuple[str, int]:
        return codecs.charmap_decode(bytes(data), errors, table)

    class Decoder(codecs.IncrementalDecoder):
        def decode(self, data: Any, final: bool = False) -> str:
            return decode_bytes(data)[0]

    def encode_text(text: str, errors: str = "strict") -> tuple[bytes, int]:
        return codecs.charmap_encode(text, errors, codecs.charmap_build(table))

    info = codecs.CodecInfo(encode_text, decode_bytes, incrementaldecoder=Decoder, name=name)
    codecs.register(lambda asked: info if asked == name else None)
    return name


@cache
def _number_pattern(signs: str, thousands: str, money: bool) -> re.Pattern[str]:
    space = f"[{SPACES}]"
    sign = f"(?:{space}*(?:[{MONEY}]|{CURRENCIES}){space}*)?" if money else ""
    digits = "[0-9]+"
    if thousands:
        group = f"[{SPACES}]" if thousands == " " else re.escape(thousands)
        digits = f"(?:[0-9]{{1,3}}(?:{group}[0-9]{{3}})+|[0-9]+)"
    return re.compile(
        f"{space}*(?P<sign>[+-]?){sign}(?P<whole>{digits})?(?:[{signs}](?P<rest>[0-9]*))?"
        f"(?P<exponent>(?:[eE][+-]?[0-9]+)?){sign}{space}*"
    )


DIALECT: Final = Dialect()
"""Default dialect: commas, decimal points, UTF-8, and empty missing values."""


def read_header(open_file: Callable[[], Any], display_name: str, dialect: Dialect = DIALECT) -> list[str]:
    """Open a CSV file and return the names in its first non-empty line."""
    codec = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.codec
    with open_file() as stream:
        text = io.TextIOWrapper(stream, encoding=codec, errors="replace", newline="")
        try:
            names = next(filter(None, csv.reader(text, delimiter=dialect.sep)), [])
        except csv.Error:  # a quoted name without an end
            names = ["\n"]
    if any("\n" in name or "\r" in name for name in names):  # a name may contain rows, which messages must not show
        raise OutOfSchemaError(
            f"cannot read {display_name!r}: a name in its first line is too long or continues in the next line. "
            "Hint: close its quotation mark."
        )
    return names
