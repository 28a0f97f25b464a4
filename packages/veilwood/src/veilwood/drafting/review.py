# SPDX-License-Identifier: Apache-2.0
"""Review of a draft, one question per column, until every bound is public. Independent of any user interface.

The command line and the service show the questions and submit the answers. All state is in the draft itself, so that a
review can be saved after any answer and continued later.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

from veilwood.data.columns import Column
from veilwood.data.dialect import Dialect
from veilwood.data.schema import Schema, is_unreviewed
from veilwood.drafting.catalogue import KnownColumn, known_bounds, known_values
from veilwood.errors import UseError, short_repr
from veilwood.safe_io import read_json, read_text, write_file

PUBLIC_PREFIX: Final = "public: "  # marks reviewed bounds; the public source follows
_MIN_SOURCE_LENGTH: Final = 3  # characters: an answer such as "y" is not a source
_MAX_LISTED: Final = 12  # categories shown in a question
_KEYS_OF_BOUNDS: Final = ("values", "lower", "upper", "other", "prefix")


@dataclass(frozen=True)
class ColumnQuestion:
    """Question about one column."""

    number: int
    of: int
    """Number of the question, and number of columns."""
    name: str
    kind: str
    """Name and kind of the column."""
    drafted: str
    """Short description of the drafted column. It was inferred from the data."""
    proposal: str | None
    """Description of the catalogue entry, which can be accepted without a source, or None."""
    title: str | None
    """Title of the catalogue entry, or None."""
    is_target: bool
    """Whether the column is the target, which cannot be excluded."""


class Review:
    """Review of a draft, column by column.

    Parameters
    ----------
    draft : mapping
        JSON form of a drafted schema, possibly reviewed in part.
    deferred : collection of str
        Columns deferred in an earlier session.

    Examples
    --------
    >>> from veilwood.drafting.draft import draft_from_table
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": [31, 58] * 50, "ward": ["A", "B"] * 50, "ill": ["no", "yes"] * 50})
    >>> review = Review(draft_from_table(table))
    >>> review.next_question().proposal
    'age in years: 0 to 120'
    >>> review.accept_known()
    >>> review.declare(source="the list of wards on our web site", values=["A", "B", "C"])
    >>> review.accept_known()
    >>> review.next_question() is None, review.schema().inferred
    (True, False)
    """

    def __init__(self, draft: Mapping[str, Any], deferred: Collection[str] = ()) -> None:
        Schema.from_dict(draft)  # raises if the draft is not a schema
        self._draft: dict[str, Any] = copy.deepcopy(dict(draft))
        self._deferred = set(deferred)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Review:
        """Load a draft, or the result of an earlier review."""
        Schema.load(path)  # its error messages are the most precise
        return cls(read_json(read_text(path)))

    def save(self, path: str | PathLike[str]) -> None:
        """Save the review so far; columns that are not reviewed keep their marks."""
        write_file(Path(path), (format_schema(self.to_dict()) + "\n").encode())

    def to_dict(self) -> dict[str, Any]:
        """Return the draft in its present state; without open questions it is a schema."""
        return copy.deepcopy(self._draft)

    def schema(self) -> Schema:
        """Return the schema. While a question is open, it counts as inferred from the data."""
        return Schema.from_dict(self._draft)

    @property
    def open_columns(self) -> tuple[str, ...]:
        """Names of the columns that are not reviewed yet."""
        return tuple(column["name"] for column in self._draft["columns"] if is_unreviewed(column))

    def next_question(self) -> ColumnQuestion | None:
        """Return the next question, deferred ones last, or None if all columns are reviewed."""
        names = sorted(self.open_columns, key=lambda name: name in self._deferred)
        if not names:
            return None
        column = self._find_column(names[0])
        usual = self._find_known(column)
        total = len(self._draft["columns"])
        return ColumnQuestion(
            total - len(names) + 1,
            total,
            column["name"],
            column["kind"],
            _describe_column(column),
            None if usual is None else f"{usual.title}: {_describe_column(_with_bounds(column, usual.to_dict()))}",
            None if usual is None else usual.title,
            column["name"] == self._draft["target"],
        )

    # -- answers ---------------------------------------------------------------------------------------------------

    def accept_known(self) -> None:
        """Accept the catalogue's bounds; only these can be accepted without a source."""
        column = self._current_column()
        usual = self._find_known(column)
        if usual is None:
            raise UseError(
                f"column {column['name']!r} has no usual bounds: those of the draft were inferred from the data. "
                "Hint: name a public source, or exclude the column."
            )
        if usual.title in str(column.get("bounds")) and column.get("part"):
            self._apply_bounds(column, {}, f"{PUBLIC_PREFIX}{usual.title}")
        else:
            self._apply_bounds(column, usual.to_dict(), f"{PUBLIC_PREFIX}usual, {usual.title}")

    def declare(self, source: str, **bounds: Any) -> None:
        """Declare the public source of a column's bounds; without ``bounds``, of those in the draft.

        Parameters
        ----------
        source : str
            Text for readers of the schema: a standard, a code list, a manual.
        **bounds
            ``lower`` and ``upper``, or ``values`` and optionally ``other`` and ``prefix``. They determine the kind of
            the column, whatever the draft says; a target of the other kind changes the task.
        """
        column = self._current_column()
        if not isinstance(source, str) or len(source.strip()) < _MIN_SOURCE_LENGTH:
            raise UseError(
                f"column {column['name']!r} keeps its mark without a source. "
                "Hint: name the public source of its bounds."
            )
        unknown = set(bounds) - set(_KEYS_OF_BOUNDS)
        if unknown:
            raise UseError(f"{short_repr(unknown.pop())} is not a bound. Hint: use {', '.join(_KEYS_OF_BOUNDS)}.")
        self._apply_bounds(column, bounds, PUBLIC_PREFIX + " ".join(source.split()))

    def exclude(self) -> None:
        """Exclude the column; it may stay in the table."""
        column = self._current_column()
        if column["name"] == self._draft["target"]:
            raise UseError("the target cannot be left out. Hint: draft again with another target.")
        others = [each for each in self._draft["columns"] if each["name"] != column["name"]]
        if len(others) == 1:
            raise UseError("the last feature cannot be excluded. Hint: draft again from a table with more columns.")
        source = column.get("of", column["name"])
        if all(each.get("of", each["name"]) != source for each in others):
            self._draft["ignore"] = [*self._draft.get("ignore", ()), source]
        self._draft["columns"] = others
        self._clear_marks()

    def defer(self) -> bool:
        """Defer the question. Return True if another question was not deferred yet."""
        self._deferred.add(self._current_column()["name"])
        return not self._deferred.issuperset(self.open_columns)

    @property
    def privacy_unit(self) -> dict[str, Any] | None:
        """Proposed privacy unit: the id column and the number of rows per id that count, or None."""
        unit = self._draft.get("privacy_unit")
        return dict(unit) if isinstance(unit, Mapping) else None

    def set_rows_per_unit(self, at_most: int) -> None:
        """Set the number of rows per id that count. Choose it from public knowledge, not from the data."""
        if self.privacy_unit is None:
            raise UseError("the draft proposes no privacy unit. Hint: add a privacy_unit to the draft.")
        self._replace_draft(self._draft | {"privacy_unit": self.privacy_unit | {"at_most": at_most}})

    # -- private ---------------------------------------------------------------------------------------------------

    def _find_column(self, name: str) -> dict[str, Any]:
        column: dict[str, Any] = next(column for column in self._draft["columns"] if column["name"] == name)
        return column

    def _current_column(self) -> dict[str, Any]:
        question = self.next_question()
        if question is None:
            raise UseError("all columns are reviewed, so there is no question to answer.")
        return self._find_column(question.name)

    def _find_known(self, column: Mapping[str, Any]) -> KnownColumn | None:
        """Return the catalogue entry of a column, by its name and by the form of its categories, or None."""
        if column.get("part"):
            return _KNOWN_DATE_PARTS.get(column["part"])
        if column["kind"] == "numeric":
            return known_bounds(column["name"])
        other = column.get("other")
        return known_values(column["name"], [str(value) for value in column["values"] if value != other])

    def _apply_bounds(self, column: dict[str, Any], bounds: dict[str, Any], source: str) -> None:
        reviewed = _with_bounds(column, bounds) | {"bounds": source}
        columns = [reviewed if each is column else each for each in self._draft["columns"]]
        changed = self._draft | {"columns": columns}
        if column["name"] == self._draft["target"]:
            changed["task"] = "regression" if reviewed["kind"] == "numeric" else "classification"
        if reviewed["kind"] == "numeric" and column["kind"] != "numeric":
            changed |= self._detect_decimal_sign(column)
        self._replace_draft(changed)
        self._clear_marks()

    def _detect_decimal_sign(self, column: Mapping[str, Any]) -> dict[str, Any]:
        """Return a dialect with the other decimal sign if more texts are numbers in it, else an empty dict."""
        dialect = Dialect.from_dict(self._draft.get("dialect", {}))
        texts = [str(value) for value in column["values"] if value != column.get("other")]
        sign = "." if dialect.decimal == "," else ","
        name = column.get("of", column["name"])
        own = replace(dialect, decimals={**dialect.decimals, name: sign})
        read, other = (sum(each.of(name).number(text) is not None for text in texts) for each in (dialect, own))
        return {"dialect": own.to_dict()} if other > read else {}

    def _replace_draft(self, draft: dict[str, Any]) -> None:
        Schema.from_dict(draft)  # raises before anything is changed
        self._draft = draft

    def _clear_marks(self) -> None:
        """Remove the marks of the whole draft together with that of the last column."""
        if not self.open_columns:
            for key in ("notes", "inferred"):
                self._draft.pop(key, None)


_KNOWN_DATE_PARTS: Final = {
    "year": KnownColumn("year", "", 1900, 2100),
    "month": KnownColumn("month", "", 1, 12),
    "hour": KnownColumn("hour", "", 0, 23),
    "weekday": KnownColumn("weekday", "", values=("1", "2", "3", "4", "5", "6", "7")),
}


def _with_bounds(column: Mapping[str, Any], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column with other bounds; categories keep an ``other`` that they need."""
    if not bounds:
        return dict(column)
    rest = {key: value for key, value in column.items() if key not in _KEYS_OF_BOUNDS}
    new: dict[str, Any] = dict(bounds)
    if "values" in new:
        new["values"] = list(new["values"])
        drafted = column.get("values", [])
        if {str(value) for value in drafted} == {str(value) for value in new["values"]}:
            new["values"] = drafted  # the same categories, in the drafted type, which predictions keep
        other = new.get("other", column.get("other"))
        if other is not None:
            new["other"] = other
            new["values"] = new["values"] if other in new["values"] else [*map(str, new["values"]), other]
    return rest | {"kind": "categorical" if "values" in new else "numeric"} | new


def _describe_column(column: Mapping[str, Any]) -> str:
    known = {key: value for key, value in column.items() if key in Column.__dataclass_fields__}
    declared = Column(**known)
    if declared.kind == "categorical" and len(declared.values) > _MAX_LISTED:
        return f"{', '.join(declared.values[:_MAX_LISTED])}, ... ({len(declared.values)} values)"
    return declared.describe()


def format_schema(schema: Mapping[str, Any]) -> str:
    """Return the JSON form of a schema as text, one line per column, for easier review."""
    columns = ",\n".join(f"  {json.dumps(column, ensure_ascii=False)}" for column in schema["columns"])
    head = json.dumps({key: value for key, value in schema.items() if key != "columns"}, indent=1, ensure_ascii=False)
    return f'{head[:-2]},\n "columns": [\n{columns}\n ]\n}}'
