# SPDX-License-Identifier: Apache-2.0
"""Problems of private values: their kinds, their rows, and error messages that show no value without consent.

An error names every column and kind of problem at once, and nothing else: tables that differ only in their invalid
values give the same message. Problems are detected in ``encoding`` and ``numbers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from veilwood.arrays import Bools, Indices, NDArray
from veilwood.data.canonical import NoText
from veilwood.data.columns import Column, did_you_mean
from veilwood.errors import OutOfSchemaError, UnreadableError, VeilwoodError, short_repr, shorten_text

_SHOWS_VALUES: ContextVar[bool] = ContextVar("veilwood_shows_private_values", default=False)


@contextmanager
def show_private_values(show: bool = True) -> Iterator[None]:
    """Allow messages to show private rows and values, in this context and process only.

    Examples
    --------
    >>> with show_private_values():
    ...     may_show_values()
    True
    >>> may_show_values()
    False
    """
    before = _SHOWS_VALUES.set(show)
    try:
        yield
    finally:
        _SHOWS_VALUES.reset(before)


@contextmanager
def redact_errors_of(
    program: str, problem: str = "could not be read", hint: str = "read it by itself"
) -> Iterator[None]:
    """Replace errors of another library, which may contain rows, with redacted ones. Veilwood's own errors pass."""
    try:
        yield
    except VeilwoodError:
        raise
    except Exception as error:
        raise redacted_error(program, error, problem, hint) from None


def redacted_error(
    program: str, error: Exception, problem: str = "could not be read", hint: str = "read it by itself"
) -> UnreadableError:
    """Return an error for a failure of another library, without that library's message."""
    if may_show_values():
        raise error
    return UnreadableError(
        f"{program} {problem} ({type(error).__name__}). Its message is omitted because it may contain rows. "
        f"Hint: {hint}, or fit within veilwood.data.problems.show_private_values."
    )


def may_show_values() -> bool:
    """Return True if the data holder has enabled ``show_private_values``."""
    return _SHOWS_VALUES.get()


Invalid: TypeAlias = Literal["refuse", "drop"]
"""Treatment of rows that do not fit the schema."""
Kinds: TypeAlias = NDArray[np.uint8]
"""Problem kind of each row of a column; 0 if the value is valid."""

_MAX_EXAMPLES: Final = 5  # values per column and kind, if values may be shown


def unusable_kinds(codes: Indices) -> Kinds | None:
    """Return the unusable values of a column from its codes (``canonical.factorize_texts``), or None."""
    unusable = codes == NoText.UNUSABLE.value
    return unusable.astype(np.uint8) * np.uint8(Problem.UNUSABLE) if unusable.any() else None


class Problem(IntEnum):
    """Kind of problem of a value."""

    MISSING = 1
    UNKNOWN = 2
    NOT_A_NUMBER = 3
    TOO_LARGE = 4
    UNUSABLE = 5
    INFINITE = 6

    @property
    def label(self) -> str:
        """Short name of the kind."""
        return _LABELS[self]


_LABELS: Final = {
    Problem.MISSING: "missing value",
    Problem.UNKNOWN: "unknown category",
    Problem.NOT_A_NUMBER: "not a number",
    Problem.TOO_LARGE: "number too large",
    Problem.UNUSABLE: "unusable cell",
    Problem.INFINITE: "infinite number",
}


@dataclass(frozen=True, repr=False)  # the object is as private as the rows
class Problems:
    """Problems of the rows of one table: the affected columns, and the kind in each row."""

    features: tuple[Column, ...]
    target: Column
    kinds_by_column: dict[str, Kinds] = field(default_factory=dict)

    def add(self, name: str, kinds: Kinds | None) -> None:
        """Record the problems of a column, if any."""
        if kinds is not None and kinds.any():
            self.kinds_by_column[name] = kinds

    def valid_rows(self, n_rows: int) -> Bools | None:
        """Return a mask of the rows without problems, or None if all rows are valid."""
        if not self.kinds_by_column:
            return None
        good = np.ones(n_rows, dtype=bool)
        for kinds in self.kinds_by_column.values():
            good &= kinds == 0
        return good

    def iter_problems(self) -> Iterator[tuple[Column, Problem, Indices]]:
        """Iterate over columns and kinds of problems, with the affected rows."""
        for column in (*self.features, self.target):
            kinds = self.kinds_by_column.get(column.name)
            for kind in () if kinds is None else Problem:
                rows = np.flatnonzero(kinds == kind)
                if rows.size:
                    yield column, kind, rows

    def raise_if_any(self, get_column: Callable[[str], Any], first_row: int = 0) -> None:
        """Raise OutOfSchemaError if there are problems. ``get_column`` returns a column by name, to show its values."""
        raise_problems(self.messages(get_column, first_row))

    def messages(self, get_column: Callable[[str], Any], first_row: int = 0) -> list[ProblemMessage]:
        """Return one message per column and kind of problem."""
        return [
            ProblemMessage.from_rows(
                column,
                kind,
                (rows + first_row).tolist(),
                partial(_example_values, get_column, column.name, rows),
                self.target,
            )
            for column, kind, rows in self.iter_problems()
        ]


class ProblemMessage(NamedTuple):
    """Error message and hint for one column and kind of problem, with an example value if values may be shown."""

    column: str
    kind: Problem
    text: str
    hint: str
    value: Any = None

    @classmethod
    def from_rows(
        cls, column: Column, kind: Problem, rows: list[int], values: Callable[[], list[Any]], target: Column
    ) -> ProblemMessage:
        """Return the message for a problem of some rows of a column."""
        words, hint = _describe_problem(column, kind, is_target=column is target)
        if not may_show_values():
            return cls(column.name, kind, words, hint)
        found = values()
        return cls(column.name, kind, f"{words} ({format_examples(column, found, rows)})", hint, found[0])

    @classmethod
    def from_kind(cls, column: Column, kind: Problem, target: Column) -> ProblemMessage:
        """Return the message for a problem whose rows are not available, without examples."""
        return cls(column.name, kind, *_describe_problem(column, kind, is_target=column is target))


def raise_problems(messages: Sequence[ProblemMessage]) -> None:
    """Raise OutOfSchemaError if there are messages, naming every column and kind of problem."""
    if messages:
        texts = "; ".join(each.text for each in messages)
        hints = "; ".join(dict.fromkeys(each.hint for each in messages))
        raise OutOfSchemaError(
            f"{texts}. Hint: {hints}.",
            column=messages[0].column,
            value=next((each.value for each in messages if each.value is not None), None),
            problems=tuple((each.column, each.kind.label) for each in messages),
        )


def _example_values(get_column: Callable[[str], Any], name: str, rows: Indices) -> list[Any]:
    return [value_at(get_column(name), int(row)) for row in rows[:_MAX_EXAMPLES]]


def value_at(column: Any, row: int) -> Any:
    """Return one value of a pandas, Arrow or plain column, for messages. Bytes become text."""
    cell = column.iloc[row] if hasattr(column, "iloc") else column[row]
    cell = cell.as_py() if hasattr(cell, "as_py") else cell
    return cell.decode("utf-8", "backslashreplace") if isinstance(cell, bytes) else cell


def format_examples(column: Column, values: list[Any], rows: list[int]) -> str:
    """Format some values and their row numbers, for the data holder."""
    shown_rows = [f"row {row + 1}: {short_repr(value)}" for row, value in zip(rows, values, strict=False)]
    more = f", and {len(rows) - len(values)} more" if len(rows) > len(values) else ""
    slip = did_you_mean(values[0], column.values) if column.values and isinstance(values[0], str) else ""
    return f"{', '.join(shown_rows)}{more}{slip}"


def _describe_problem(column: Column, kind: Problem, *, is_target: bool) -> tuple[str, str]:
    """Return the text and the hint for a problem, based only on the schema and the kind."""
    where = f"{'target' if is_target else 'column'} {column.name!r}"
    match kind:
        case Problem.MISSING:
            allow = "" if is_target else 'set "nullable": true for it in the schema, or '
            return (
                f"{where} has a missing value (NaN or null), which the schema does not allow",
                f"{allow}fill or drop such rows",
            )
        case Problem.UNKNOWN if is_target:
            return (
                f"{where} contains a label outside the schema's: {shorten_text(', '.join(column.values))}",
                "write the labels as in the schema, or correct the schema's values",
            )
        case Problem.UNKNOWN:
            return (
                f"{where} contains a value outside its {len(column.values)} declared categories",
                "add the category to the schema, or map unknown values to a declared one, for example "
                f'"other": {short_repr(column.values[0])}. Columns of arrays are matched by position',
            )
        case Problem.NOT_A_NUMBER:
            return (
                f"{where} must contain numbers only but contains a value that is not a number",
                "convert the column first, for example with pandas.to_numeric, or declare it "
                "categorical; decimal commas and "
                "currency signs of a file belong in the schema's dialect",
            )
        case Problem.TOO_LARGE:
            return f"{where} contains a number that is too large for a float", "clip it to the bounds of the schema"
        case Problem.UNUSABLE if column.part is not None:
            return (
                f"{where} contains a value that is not a date such as 2026-01-31 or 31.1.2026",
                "write such dates as 2026-01-31",
            )
        case Problem.UNUSABLE:
            return (
                f"{where} contains a value that is neither text nor number nor date, such as a list",
                "convert the column to strings",
            )
        case Problem.INFINITE:
            return f"{where} contains an infinite number", "drop such rows"
