# SPDX-License-Identifier: Apache-2.0
"""The errors and warnings of the library, each carrying the offending thing; no logic lives here."""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "BudgetExceededError",
    "DomainTooLargeError",
    "FileError",
    "LedgerError",
    "MechanismError",
    "ModelFileError",
    "NotFoundError",
    "NotPrivateError",
    "OutOfSchemaError",
    "ParameterError",
    "PartyError",
    "PlanError",
    "PrivacyWarning",
    "SchemaError",
    "SetupError",
    "SignatureError",
    "UndeclaredSchemaError",
    "UnreadableError",
    "UseError",
    "UtilityWarning",
    "VeilwoodError",
    "redact_url",
    "short_repr",
    "shorten_text",
]


_MAX_REPR_LENGTH: Final = 120


def short_repr(value: object) -> str:
    """Write a value of any kind for a message: in one line, short, and without ever failing.

    >>> short_repr("row"), short_repr([0] * 1000)[-12:], short_repr(10**5000)
    ("'row'", ' 0, 0, 0,...', 'a value of type int')
    """
    try:
        return shorten_text(repr(value))
    except Exception:  # a whole number of more digits than Python writes, a list too deep
        return f"a value of type {type(value).__name__}"


def shorten_text(text: str, max_length: int = _MAX_REPR_LENGTH) -> str:
    """Put a text into one line of bounded length that can be printed anywhere."""
    line = " ".join(text[: 2 * max_length].split()).encode(errors="backslashreplace").decode()
    return line if len(line) <= max_length else f"{line[:max_length]}..."


def redact_url(address: str) -> str:
    """Leave out of an address what may be secret: a name and password before the host, and all behind a question mark.

    The table of a database stays.

    >>> redact_url("https://me:secret@example.org/visits.csv?token=1"), redact_url("visits.csv")
    ('https://example.org/visits.csv', 'visits.csv')
    >>> redact_url("postgresql://me:secret@example.org/claims?sslmode=require#visits")
    'postgresql://example.org/claims#visits'
    >>> redact_url("postgresql://me:not/quoted#or?so@example.org/claims#visits")
    'postgresql://example.org/claims#visits'
    """
    if "://" not in address:
        return address
    if address.startswith("postgres"):  # whoever forgot to quote a password must not see it in a ledger
        address = re.sub("//.*@", "//", address)
    place, _, table = address.partition("#")
    bare = re.sub("//[^/]*@", "//", place.partition("?")[0])
    return f"{bare}#{table}" if table and not address.startswith("http") else bare


class VeilwoodError(ValueError):
    """Base of every error the library raises on purpose."""


class ParameterError(VeilwoodError):
    """A parameter has a value that cannot be used. ``name`` and ``value`` are the parameter's."""

    def __init__(self, name: str, value: object, problem: str, hint: str = "") -> None:
        super().__init__(f"{name}={short_repr(value)} {problem}." + (f" Hint: {hint}." if hint else ""))
        self.name = name
        self.value = value


class NotFoundError(VeilwoodError):
    """A named resource does not exist. ``kind`` says what it would be, ``name`` how it was asked for."""

    def __init__(self, kind: str, name: object, *, where: str = "", hint: str = "") -> None:
        location = f" in {where}" if where else ""
        hint = hint or f"choose one from the list of {_plural(kind)}"
        end = "" if hint.endswith(("?", ".")) else "."
        super().__init__(f"there is no {kind} {short_repr(name)}{location}. Hint: {hint}{end}")
        self.kind = kind
        self.name = name


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


class UseError(VeilwoodError):
    """Something was asked for that has no meaning here, or not yet; the message says what to ask for instead."""


class SetupError(VeilwoodError):
    """The machine lacks what is needed: a package of an extra, a GPU, random bits of the operating system."""


class UnreadableError(VeilwoodError):
    """A text or number from outside is malformed, too long or too deep."""


class MechanismError(VeilwoodError):
    """A mechanism was given something that it cannot make private exactly."""


class PlanError(VeilwoodError):
    """A plan is malformed, promises more than its steps keep, or is not the one that would be carried out."""


class SchemaError(VeilwoodError):
    """A schema is malformed: unknown kind, duplicate name, bounds the wrong way round."""


class UndeclaredSchemaError(SchemaError):
    """A guarantee was asked for without saying what is public about the data."""


class OutOfSchemaError(VeilwoodError):
    """The data does not fit the schema.

    ``column`` names the first place, ``problems`` every column and kind of problem. ``value`` is None unless the data
    holder has asked to see values (``data.private_text``).
    """

    def __init__(
        self,
        message: str,
        *,
        column: str | None = None,
        value: object = None,
        problems: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.column = column
        self.value = value
        self.problems = problems

    def in_short(self) -> str:
        """Name columns and kinds of problems in a few words, as a ledger records them."""
        named = [f"{column!r}: {kind}" for column, kind in self.problems]
        unnamed = "the table" if self.column is None else f"{self.column!r}"
        return ", ".join(named) or f"{unnamed}: does not fit the schema"


class LedgerError(VeilwoodError):
    """A ledger cannot be opened, or its records do not add up."""


class BudgetExceededError(LedgerError):
    """A spend would exceed the budget; nothing was spent."""

    def __init__(self, message: str, *, requested: object = None, remaining: object = None) -> None:
        super().__init__(message)
        self.requested = requested
        self.remaining = remaining


class NotPrivateError(BudgetExceededError):
    """A release without a guarantee cannot be counted by a ledger with a budget; nothing was spent."""


class DomainTooLargeError(VeilwoodError):
    """A table, a forest or an explicit matrix would be too large; the message says what to choose instead."""


class FileError(VeilwoodError):
    """A file cannot be read or written."""


class ModelFileError(FileError):
    """A model file is truncated, altered, of an unknown version, or no model file at all."""


class SignatureError(FileError):
    """A signature is missing, broken, of another key, or of something else."""


class PartyError(VeilwoodError):
    """A server, owner or user of a secure computation is lost, slow, unknown or lying. ``party`` names it."""

    def __init__(self, message: str, *, party: str | None = None) -> None:
        super().__init__(message)
        self.party = party


class PrivacyWarning(UserWarning):
    """No guarantee holds (infinite epsilon, inferred schema, seeded noise), or a budget may not be enforced."""


class UtilityWarning(UserWarning):
    """The guarantee holds, but the noise is expected to exceed the signal."""
