# SPDX-License-Identifier: Apache-2.0
"""Size-limited parsing of numbers, JSON and files from outside, and atomic writing of files.

A few bytes of input must not take hours or gigabytes to parse. Every number, JSON document or text from a file, a
message or a person is therefore parsed here. The parameters of mechanisms are checked in ``privacy.noise``.

| limit | applies to |
|---|---|
| ``MAX_DIGITS`` | numerator and denominator of a number, integers in JSON |
| ``MAX_SUM_DIGITS`` | numerator and denominator of a sum of such numbers |
| ``MAX_NESTING`` | depth of lists and objects in JSON |
| ``MAX_BYTES`` | size of a JSON document |
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


def write_file(path: str | PathLike[str], content: bytes) -> None:
    """Write a file atomically: write to a temporary name, then rename."""
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
            "Hint: choose another path, or free disk space."
        ) from None


CACHE_VARIABLE = "VEILWOOD_CACHE"  # environment variable: path of the cache folder, or "off" for no cache


def cache_folder(name: str) -> Path | None:
    """Return the folder of the user's cache of this name, or None if caching is off."""
    setting = os.environ.get(CACHE_VARIABLE)
    if setting == "off":
        return None
    if setting:
        return Path(setting) / name
    if sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "veilwood" / name


MAX_DIGITS: Final = 400
MAX_SUM_DIGITS: Final = 4000  # Python converts integers of up to 4,300 digits to text
MAX_NESTING: Final = 64
MAX_BYTES: Final = 1 << 26
_MAX_POWER_OF_TEN: Final = 300  # within the range of a float

_EXPONENT_PATTERN: Final = re.compile(r"[eE]([+-]?[\d_]+)\s*$")
_LONE_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def is_int_in(value: object, minimum: int, maximum: float = math.inf) -> bool:
    """Return True if a value is an integer within the bounds and not a boolean.

    >>> is_int_in(3, 1, 10), is_int_in(True, 1, 10), is_int_in(3.0, 1, 10)
    (True, False, False)
    """
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and minimum <= int(value) <= maximum  # type: ignore[call-overload]


def all_ints_in(values: Iterable[object], minimum: int, maximum: float = math.inf) -> bool:
    """Return True if all values are integers within the bounds and none is a boolean."""
    return all(is_int_in(value, minimum, maximum) for value in values)


def parse_fraction(text: object, name: str = "number", max_digits: int = MAX_DIGITS) -> Fraction:
    """Parse an exact number: a decimal, with or without an exponent, or a fraction of two integers.

    The length is checked before anything is computed, because 1e999999999 has a billion digits.

    >>> parse_fraction("0.1"), parse_fraction("-1e3"), parse_fraction("1/3")
    (Fraction(1, 10), Fraction(-1000, 1), Fraction(1, 3))
    >>> parse_fraction("1e999999999", "epsilon")
    Traceback (most recent call last):
    ...
    veilwood.errors.UnreadableError: epsilon='1e999999999' has more than 400 digits. Hint: round it.
    """
    if not isinstance(text, str):
        raise UnreadableError(f"{name}={short_repr(text)} must be a string. Hint: pass '0.5'.")
    try:
        exponent = _EXPONENT_PATTERN.search(text) if len(text) <= 3 * max_digits else None
        if len(text) > 3 * max_digits or (exponent and not _is_small_exponent(exponent[1], 2 * max_digits)):
            raise _too_long_error(text, name, max_digits)
        value = Fraction(text)
    except VeilwoodError:
        raise
    except (ValueError, ZeroDivisionError):
        raise UnreadableError(
            f"{name}={short_repr(text)} is not a finite number. Hint: write a number such as 0.5 or 1/3."
        ) from None
    return check_digits(value, name, max_digits)


def _is_small_exponent(digits: str, maximum: int) -> bool:
    return len(digits) <= 12 and abs(int(digits)) <= maximum


def check_digits(value: Fraction, name: str = "number", max_digits: int = MAX_DIGITS) -> Fraction:
    """Return the value. Raise UnreadableError if it has too many digits or is outside the range of a float."""
    above, below = value.numerator.bit_length(), value.denominator.bit_length()
    if max(above, below) > max_digits * math.log2(10):
        raise _too_long_error(value, name, max_digits)
    if above and abs(above - below) > _MAX_POWER_OF_TEN * math.log2(10) + 1:
        raise UnreadableError(
            f"{name} must have a magnitude from 10^-{_MAX_POWER_OF_TEN} to 10^{_MAX_POWER_OF_TEN}. Hint: round it."
        )
    return value


def _too_long_error(value: object, name: str, max_digits: int) -> UnreadableError:
    return UnreadableError(f"{name}={short_repr(value)} has more than {max_digits:,} digits. Hint: round it.")


def read_json(text: str | bytes | bytearray, max_bytes: int = MAX_BYTES) -> Any:
    """Parse JSON. Raise UnreadableError if it is too long or too deep, or has a repeated key or a non-finite number.

    >>> read_json('{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    >>> read_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    veilwood.errors.UnreadableError: the JSON cannot be read: the key 'a' occurs twice. Hint: correct the text.
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
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    except RecursionError:
        raise _json_error(_TOO_DEEP) from None
    except ValueError as error:
        raise _json_error(shorten_text(str(error))) from None
    return value


def _json_error(problem: str) -> UnreadableError:
    return UnreadableError(f"the JSON cannot be read: {problem}. Hint: correct the text.")


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
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {short_repr(Counter(keys).most_common(1)[0][0])} occurs twice")
    return fields


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
    """Return the bytes of a regular file: at most ``max_bytes`` + 1, so that callers can detect an oversized file.

    Raise OSError if it cannot be opened, ValueError if the path is invalid, and UnreadableError for a pipe or device,
    which may never end.
    """
    # Without blocking: opening a pipe without a writer would block before its kind can be checked.
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(kind):
            raise UnreadableError("it is not an ordinary file and may never end")
        return file.read(-1 if max_bytes is None else max_bytes + 1)


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 file. Raise OSError if it cannot be read, UnreadableError if it is too long or not UTF-8 text."""
    try:
        content = read_file(path, max_bytes)
        if len(content) > max_bytes:
            raise UnreadableError(f"it has more than {max_bytes:,} bytes")
        return content.decode()
    except VeilwoodError:
        raise
    except ValueError as error:  # not UTF-8, or a null character in the path
        raise UnreadableError(shorten_text(str(error))) from None
