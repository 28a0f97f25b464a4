# SPDX-License-Identifier: Apache-2.0
"""Numbers, JSON and files from outside, read within bounds: a few bytes must not cost hours or gigabytes.

Whatever takes a number, JSON or a text from a file, a message or a person reads it through here; callers decide what it
means. What mechanisms take is checked in ``privacy.noise``.

| limit | of |
|---|---|
| ``MAX_DIGITS`` | the numerator and the denominator of a number, and a whole number in JSON |
| ``MAX_SUM_DIGITS`` | the same of a sum of such numbers |
| ``MAX_NESTING`` | lists and objects inside each other in JSON |
| ``MAX_BYTES`` | a JSON text |
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np

from veilwood.errors import FileError, UnreadableError, VeilwoodError, short_repr, shorten_text

__all__ = [
    "CACHE_VARIABLE",
    "MAX_BYTES",
    "MAX_DIGITS",
    "MAX_NESTING",
    "MAX_SUM_DIGITS",
    "all_ints_in",
    "cache_folder",
    "check_digits",
    "is_int_in",
    "parse_fraction",
    "read_file",
    "read_json",
    "read_text",
    "write_file",
]


def write_file(path: str | PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all: under another name first, then renamed."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}.part")
    try:
        with open(unfinished, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise FileError(
            f"cannot write {short_repr(str(path))}: {error.strerror or error}. "
            "Hint: choose another place, or make room there."
        ) from None


CACHE_VARIABLE = "VEILWOOD_CACHE"  # a variable that names the folder; "off" for none


def cache_folder(name: str) -> Path | None:
    """Return where a kind of files that can be made again is kept for this user; None if nothing is to be kept."""
    given = os.environ.get(CACHE_VARIABLE)
    if given == "off":
        return None
    if given:
        return Path(given) / name
    if sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "veilwood" / name


MAX_DIGITS: Final = 400
MAX_SUM_DIGITS: Final = 4000  # Python writes out 4,300 digits
MAX_NESTING: Final = 64
MAX_BYTES: Final = 1 << 26
_MAX_POWER_OF_TEN: Final = 300  # of ten: a float can hold it

_EXPONENT_PATTERN: Final = re.compile(r"[eE]([+-]?[\d_]+)\s*$")
_LONE_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def is_int_in(value: object, minimum: int, maximum: float = math.inf) -> bool:
    """Whether a value is a whole number, no boolean, within bounds.

    >>> is_int_in(3, 1, 10), is_int_in(True, 1, 10), is_int_in(3.0, 1, 10)
    (True, False, False)
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and minimum <= int(value) <= maximum  # type: ignore[call-overload]


def all_ints_in(values: Iterable[object], minimum: int, maximum: float = math.inf) -> bool:
    """Whether all values are whole numbers within bounds."""
    return all(is_int_in(value, minimum, maximum) for value in values)


def parse_fraction(text: object, name: str = "number", max_digits: int = MAX_DIGITS) -> Fraction:
    """Read an exact number: digits with or without a point and an exponent, or one whole number over another.

    The length is checked before anything is computed: 1e999999999 has a billion digits.

    >>> parse_fraction("0.1"), parse_fraction("-1e3"), parse_fraction("1/3")
    (Fraction(1, 10), Fraction(-1000, 1), Fraction(1, 3))
    >>> parse_fraction("1e999999999", "epsilon")
    Traceback (most recent call last):
    ...
    veilwood.errors.UnreadableError: epsilon='1e999999999' has more than 400 digits. Hint: round it.
    """
    if not isinstance(text, str):
        raise UnreadableError(f"{name}={short_repr(text)} is not a number.")
    try:
        exponent = _EXPONENT_PATTERN.search(text) if len(text) <= 3 * max_digits else None
        if len(text) > 3 * max_digits or (exponent and not _is_small_exponent(exponent[1], 2 * max_digits)):
            raise _too_long_error(text, name, max_digits)
        value = Fraction(text)
    except VeilwoodError:
        raise
    except (ValueError, ZeroDivisionError):
        raise UnreadableError(f"{name}={short_repr(text)} is not a finite number.") from None
    return check_digits(value, name, max_digits)


def _is_small_exponent(digits: str, maximum: int) -> bool:
    return len(digits) <= 12 and abs(int(digits)) <= maximum


def check_digits(value: Fraction, name: str = "number", max_digits: int = MAX_DIGITS) -> Fraction:
    """Return a number, refusing one that is too long to be worked with, or too large or small for a float."""
    above, below = value.numerator.bit_length(), value.denominator.bit_length()
    if max(above, below) > max_digits * math.log2(10):
        raise _too_long_error(value, name, max_digits)
    if above and abs(above - below) > _MAX_POWER_OF_TEN * math.log2(10) + 1:
        raise UnreadableError(f"{name} is beyond 10^{_MAX_POWER_OF_TEN}, or closer to 0 than 10^-{_MAX_POWER_OF_TEN}.")
    return value


def _too_long_error(value: object, name: str, max_digits: int) -> UnreadableError:
    return UnreadableError(f"{name}={short_repr(value)} has more than {max_digits:,} digits. Hint: round it.")


def read_json(text: str | bytes | bytearray, max_bytes: int = MAX_BYTES) -> Any:
    """Read JSON from outside; what is too long, too deep, ambiguous or no finite number is refused.

    >>> read_json('{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    >>> read_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    veilwood.errors.UnreadableError: this is not JSON that can be read: the key 'a' stands twice.
    """
    try:
        if len(text) > max_bytes:
            raise ValueError(f"it has more than {max_bytes:,} bytes")
        if not isinstance(text, str):
            text = text.decode()
        value = json.loads(
            text,
            object_pairs_hook=_build_object,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_reject_constant,
        )
        if text.count("[") + text.count("{") > MAX_NESTING:
            _check_depth(value)
        if _LONE_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # half of a pair of code units is no text
    except RecursionError:
        raise UnreadableError(f"this is not JSON that can be read: {_TOO_DEEP}.") from None
    except ValueError as error:
        raise UnreadableError(f"this is not JSON that can be read: {shorten_text(str(error))}.") from None
    return value


_TOO_DEEP: Final = f"lists and objects are nested more than {MAX_NESTING} deep"


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_NESTING + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {short_repr(Counter(keys).most_common(1)[0][0])} stands twice")
    return made


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        _reject_constant(text)
    return value


def _reject_constant(text: str) -> None:
    raise ValueError(f"{shorten_text(text)} is not a finite number")


def read_file(path: str | os.PathLike[str], max_bytes: int | None = None) -> bytes:
    """Read a file, one byte more than allowed at most; what may have no end, as a pipe, is refused.

    OSError where it cannot be opened, ValueError where it is not a path.
    """
    # Without blocking: a pipe that nobody writes to would be waited for before it could be looked at.
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(kind):
            raise UnreadableError("it is not an ordinary file, and may have no end")
        return file.read(-1 if max_bytes is None else max_bytes + 1)


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """Read a text file of UTF-8; OSError where that fails, and an error of ours where it is too long or no text."""
    try:
        content = read_file(path, max_bytes)
        if len(content) > max_bytes:
            raise UnreadableError(f"it has more than {max_bytes:,} bytes")
        return content.decode()
    except VeilwoodError:
        raise
    except ValueError as error:  # no UTF-8, or a path with a null character
        raise UnreadableError(shorten_text(str(error))) from None
