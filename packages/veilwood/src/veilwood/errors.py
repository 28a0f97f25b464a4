# SPDX-License-Identifier: Apache-2.0
"""Errors and warnings of the library, and safe one-line texts for their messages.

::

    VeilwoodError (ValueError)          exit code 2: the input must change
    ├── ParameterError                  name, value
    ├── NotFoundError                   kind, name
    ├── UseError                        the call is not valid here
    ├── SetupError                      the installation lacks something
    ├── UnreadableError                 malformed text or number
    ├── MechanismError                  a mechanism rejects its input
    ├── PlanError                       a plan is malformed or does not match
    ├── SchemaError                     a schema is malformed
    │   └── UndeclaredSchemaError       no schema
    ├── OutOfSchemaError                column, value, problems
    ├── DomainTooLargeError             a table, forest or matrix is too large
    ├── PartyError                      party
    ├── LedgerError                     exit code 4
    │   └── BudgetExceededError         exit code 3: requested, remaining
    │       └── NotPrivateError
    └── FileError                       exit code 4
        ├── ModelFileError
        └── SignatureError
    PrivacyWarning, UtilityWarning (UserWarning)
    └── WeakGuaranteeWarning (PrivacyWarning)

``exit_code`` is the exit code of the command line. No message contains a value of a private row unless the custodian
enabled the display of values (``data.problems``).
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

_MAX_REPR_LENGTH: Final = 120  # characters


def short_repr(value: object) -> str:
    """Return a short one-line representation of any value. Never raises.

    >>> short_repr("row"), short_repr([0] * 1000)[-12:], short_repr(10**5000)
    ("'row'", ' 0, 0, 0,...', 'a value of type int')
    """
    try:
        return shorten_text(repr(value))
    except Exception:  # an integer with more digits than Python prints, a list nested too deeply
        return f"a value of type {type(value).__name__}"


def shorten_text(text: str, max_length: int = _MAX_REPR_LENGTH) -> str:
    """Return a text as a single printable line of at most ``max_length`` characters, plus an ellipsis if shortened."""
    line = " ".join(text[: 2 * max_length].split()).encode(errors="backslashreplace").decode()
    return line if len(line) <= max_length else f"{line[:max_length]}..."


def redact_url(address: str) -> str:
    """Return an address without its secrets: user and password before the host, and everything after a question mark.

    The name of a database table is not removed.

    >>> redact_url("https://me:secret@example.org/visits.csv?token=1"), redact_url("visits.csv")
    ('https://example.org/visits.csv', 'visits.csv')
    >>> redact_url("postgresql://me:secret@example.org/claims?sslmode=require#visits")
    'postgresql://example.org/claims#visits'
    >>> redact_url("postgresql://me:not/quoted#or?so@example.org/claims#visits")
    'postgresql://example.org/claims#visits'
    """
    if "://" not in address:
        return address
    if address.startswith("postgres"):  # handles unquoted slashes in a password, which must not be recorded
        address = re.sub("//.*@", "//", address)
    location, _, table = address.partition("#")
    redacted = re.sub("//[^/]*@", "//", location.partition("?")[0])
    return f"{redacted}#{table}" if table and not address.startswith("http") else redacted


class VeilwoodError(ValueError):
    """Base of all errors that the library raises on purpose."""

    exit_code: ClassVar[int] = 2


class ParameterError(VeilwoodError):
    """A parameter has an invalid value. ``name`` is the parameter, ``value`` is what was passed."""

    def __init__(self, name: str, value: object, problem: str, hint: str = "") -> None:
        super().__init__(f"{name}={short_repr(value)} {problem}." + (f" Hint: {hint}." if hint else ""))
        self.name = name
        self.value = value


class NotFoundError(VeilwoodError):
    """A named resource does not exist. ``kind`` is the kind of resource, ``name`` the name that was requested."""

    def __init__(self, kind: str, name: object, *, where: str = "", hint: str = "") -> None:
        location = f" in {where}" if where else ""
        hint = hint or f"choose one from the list of {_plural_of(kind)}"
        end = "" if hint.endswith(("?", ".")) else "."
        super().__init__(f"there is no {kind} {short_repr(name)}{location}. Hint: {hint}{end}")
        self.kind = kind
        self.name = name


def _plural_of(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


class UseError(VeilwoodError):
    """A call is not valid for this object or in its present state; the message says what to call instead."""


class SetupError(VeilwoodError):
    """The installation lacks a requirement: the packages of an extra, a GPU, or the system's entropy source."""


class UnreadableError(VeilwoodError):
    """A text or number from outside is malformed, too long or nested too deeply."""


class MechanismError(VeilwoodError):
    """A mechanism was given input for which its exact guarantee does not hold."""


class PlanError(VeilwoodError):
    """A plan is malformed, claims a smaller privacy loss than its steps have, or is not the plan of this fit."""


class SchemaError(VeilwoodError):
    """A schema is malformed: unknown kind, duplicate name, lower bound above upper bound."""


class UndeclaredSchemaError(SchemaError):
    """A guarantee was requested without a declared schema."""


class OutOfSchemaError(VeilwoodError):
    """The data does not fit the schema.

    ``column`` names the first column with a problem; ``problems`` lists every such column and the kind of its problem.
    ``value`` is None unless the custodian enabled the display of values (``data.problems``).
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
        """Return the columns and the kinds of their problems, as recorded in a ledger."""
        listed = ", ".join(f"{column!r}: {kind}" for column, kind in self.problems)
        subject = "the table" if self.column is None else f"{self.column!r}"
        return listed or f"{subject}: does not fit the schema"


class DomainTooLargeError(VeilwoodError):
    """A table, a forest or an explicit matrix would be too large; the message says what to choose instead."""


class PartyError(VeilwoodError):
    """A party of a secure computation disconnected, timed out, is unknown or misbehaved. ``party`` names it."""

    def __init__(self, message: str, *, party: str | None = None) -> None:
        super().__init__(message)
        self.party = party


class LedgerError(VeilwoodError):
    """A ledger cannot be opened, is damaged, or rejects an operation."""

    exit_code = 4


class BudgetExceededError(LedgerError):
    """A charge would exceed the budget; nothing was charged."""

    exit_code = 3

    def __init__(self, message: str, *, requested: object = None, remaining: object = None) -> None:
        super().__init__(message)
        self.requested = requested
        self.remaining = remaining


class NotPrivateError(BudgetExceededError):
    """A ledger with a budget cannot charge a release without a guarantee; nothing was charged."""


class FileError(VeilwoodError):
    """A file cannot be read or written."""

    exit_code = 4


class ModelFileError(FileError):
    """A model file is truncated, altered, of an unknown version, or not a model file."""


class SignatureError(FileError):
    """A signature is missing or invalid, or belongs to another key or another file."""


class PrivacyWarning(UserWarning):
    """No guarantee holds (infinite epsilon, inferred schema, seeded noise), or the budget may not be enforced."""


class WeakGuaranteeWarning(PrivacyWarning):
    """The guarantee holds, but its epsilon is so large that it protects little."""


class UtilityWarning(UserWarning):
    """The guarantee holds, but the noise is expected to exceed the signal."""
