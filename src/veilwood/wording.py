# SPDX-License-Identifier: Apache-2.0
"""Values of any kind in messages: one line, short, and never a failure of its own."""

from __future__ import annotations

import re
from typing import Final

_MOST_SHOWN: Final = 120


def shown(value: object) -> str:
    """Write a value of any kind for a message: in one line, short, and without ever failing.

    >>> shown("row"), shown([0] * 1000)[-12:], shown(10**5000)
    ("'row'", ' 0, 0, 0,...', 'a value of type int')
    """
    try:
        return shorten(repr(value))
    except Exception:  # a whole number of more digits than Python writes, a list too deep
        return f"a value of type {type(value).__name__}"


def shorten(text: str, most: int = _MOST_SHOWN) -> str:
    """Put a text into one line of bounded length that can be printed anywhere."""
    line = " ".join(text[: 2 * most].split()).encode(errors="backslashreplace").decode()
    return line if len(line) <= most else f"{line[:most]}..."


def without_secrets(address: str) -> str:
    """Leave out of an address what may be secret: a name and password before the host, and all behind a question mark.

    The table of a database stays.

    >>> without_secrets("https://me:secret@example.org/visits.csv?token=1"), without_secrets("visits.csv")
    ('https://example.org/visits.csv', 'visits.csv')
    >>> without_secrets("postgresql://me:secret@example.org/claims?sslmode=require#visits")
    'postgresql://example.org/claims#visits'
    >>> without_secrets("postgresql://me:not/quoted#or?so@example.org/claims#visits")
    'postgresql://example.org/claims#visits'
    """
    if "://" not in address:
        return address
    if address.startswith("postgres"):  # whoever forgot to quote a password must not see it in a ledger
        address = re.sub("//.*@", "//", address)
    place, _, table = address.partition("#")
    bare = re.sub("//[^/]*@", "//", place.partition("?")[0])
    return f"{bare}#{table}" if table and not address.startswith("http") else bare
