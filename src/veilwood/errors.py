# SPDX-License-Identifier: Apache-2.0
"""The errors and warnings of the library, each carrying the offending thing; no logic lives here."""

from __future__ import annotations

from veilwood.wording import shown

__all__ = [
    "BudgetExceededError",
    "DomainTooLargeError",
    "FileError",
    "LedgerError",
    "ModelFileError",
    "OutOfSchemaError",
    "ParameterError",
    "PartyError",
    "PlanError",
    "PrivacyWarning",
    "SchemaError",
    "UndeclaredSchemaError",
    "UtilityWarning",
    "VeilwoodError",
]


class VeilwoodError(ValueError):
    """Base of every error the library raises on purpose."""


class ParameterError(VeilwoodError):
    """A parameter has a value that cannot be used. ``name`` and ``value`` are the parameter's."""

    def __init__(self, name: str, value: object, problem: str, hint: str = "") -> None:
        super().__init__(f"{name}={shown(value)} {problem}." + (f" Hint: {hint}." if hint else ""))
        self.name = name
        self.value = value


class PlanError(VeilwoodError):
    """A plan is malformed, promises more than its steps keep, or is not the one that would be carried out."""


class SchemaError(VeilwoodError):
    """A schema is malformed: unknown kind, duplicate name, bounds the wrong way round."""


class UndeclaredSchemaError(SchemaError):
    """A guarantee was asked for without saying what is public about the data."""


class OutOfSchemaError(VeilwoodError):
    """The data does not fit the schema. ``column`` and ``value`` name the place."""

    def __init__(self, message: str, *, column: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.column = column
        self.value = value


class LedgerError(VeilwoodError):
    """A ledger cannot be opened, or its records do not add up."""


class BudgetExceededError(LedgerError):
    """A spend would exceed the budget; nothing was spent."""

    def __init__(self, message: str, *, requested: object = None, remaining: object = None) -> None:
        super().__init__(message)
        self.requested = requested
        self.remaining = remaining


class DomainTooLargeError(VeilwoodError):
    """A table, a forest or an explicit matrix would be too large; the message says what to choose instead."""


class FileError(VeilwoodError):
    """A file cannot be read or written."""


class ModelFileError(FileError):
    """A model file is truncated, altered, of an unknown version, or no model file at all."""


class PartyError(VeilwoodError):
    """A server, owner or user of a secure computation is lost, slow, unknown or lying. ``party`` names it."""

    def __init__(self, message: str, *, party: str | None = None) -> None:
        super().__init__(message)
        self.party = party


class PrivacyWarning(UserWarning):
    """No guarantee holds (infinite epsilon, inferred schema, seeded noise), or a budget may not be enforced."""


class UtilityWarning(UserWarning):
    """The guarantee holds, but the noise is expected to exceed the signal."""
