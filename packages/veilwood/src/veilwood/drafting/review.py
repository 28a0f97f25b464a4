# SPDX-License-Identifier: Apache-2.0
"""Review of a draft, one question per column, until every bound is public. Independent of any user interface.

The command line and the service show the questions and submit the answers. All state is in the draft itself, so that a
review can be saved after any answer and continued later.
"""

from __future__ import annotations

import copy
import csv
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

from veilwood.data.columns import Column, TextRule
from veilwood.data.dialect import Dialect
from veilwood.data.schema import UNREVIEWED_MARK, Schema, is_unreviewed
from veilwood.drafting.catalogue import KnownColumn, known_bounds, known_values
from veilwood.errors import UseError, short_repr
from veilwood.safe_io import read_json, read_text, write_file

MIN_SOURCE_LENGTH: Final = 3  # characters: an answer such as "y" is not a source
_MAX_LISTED: Final = 12  # categories shown in a question
_KEYS_OF_BOUNDS: Final = ("values", "lower", "upper", "other", "prefix")
_MARKS: Final = ("bounds", "odd")  # keys of a column that is not reviewed
_MARKS_OF_DRAFT: Final = ("notes", "inferred", "table", "drop")


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
    missing: bool
    """Whether missing values are allowed."""
    texts: TextRule | None
    """Rule for reading text values of a numeric column, if there are any."""
    odd: tuple[str, ...]
    """Frequent text values of a numeric column."""
    other: str | None
    """Category that stands for unknown values, or None."""


class Review:
    """Review of a draft, column by column.

    Parameters
    ----------
    draft : mapping
        JSON form of a drafted or partly reviewed schema.
    deferred : collection of str
        Columns deferred in an earlier session.

    Examples
    --------
    >>> from veilwood.drafting.draft import draft_from_table
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": [31, 58] * 50, "ward": ["A", "B"] * 50, "ill": ["no", "yes"] * 50})
    >>> review = Review(draft_from_table(table))
    >>> review.next_question().proposal
    'age in years: 0 to 120, whole numbers'
    >>> review.accept_known()
    >>> review.declare(source="the list of wards on our web site", values=["A", "B", "C"])
    >>> review.accept_known()
    >>> review.next_question() is None, review.schema().inferred
    (True, False)
    >>> review.undo()
    >>> review.next_question().name
    'ill'
    """

    def __init__(self, draft: Mapping[str, Any], deferred: Collection[str] = ()) -> None:
        Schema.from_dict(draft)  # raises if the draft is not a schema
        self._draft: dict[str, Any] = copy.deepcopy(dict(draft))
        self._deferred = frozenset(deferred)
        self._history: list[tuple[dict[str, Any], frozenset[str], int]] = []
        self._n_columns = len(self._draft["columns"])

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Review:
        """Load a draft, or the result of an earlier review."""
        Schema.load(path)  # its error messages are the most precise
        return cls(read_json(read_text(path)))

    def save(self, path: str | PathLike[str]) -> None:
        """Save the current state of the review. Unreviewed columns stay marked."""
        write_file(Path(path), (format_schema(self.to_dict()) + "\n").encode())

    def to_dict(self) -> dict[str, Any]:
        """Return the current state of the draft. It is a final schema once all questions are answered."""
        return copy.deepcopy(self._draft)

    def schema(self) -> Schema:
        """Return the schema. It counts as inferred from the data until all questions are answered."""
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
        return ColumnQuestion(
            self._n_columns - len(names) + 1,
            self._n_columns,
            column["name"],
            column["kind"],
            _describe_column(column),
            None if usual is None else f"{usual.title}: {_describe_column(_with_bounds(column, usual.to_dict()))}",
            None if usual is None else usual.title,
            column["name"] == self._draft["target"],
            bool(column.get("nullable")),
            column.get("texts"),
            tuple(column.get("odd", ())),
            column.get("other"),
        )

    def summary(self) -> list[tuple[str, str, str]]:
        """Return name, description and public source of every column, for a final check."""
        return [(each["name"], _describe_column(each), each.get("known_from", "")) for each in self._draft["columns"]]

    # -- answers ---------------------------------------------------------------------------------------------------

    def accept_known(self) -> None:
        """Accept the bounds from the catalogue. All other bounds need a source."""
        column = self._current_column()
        usual = self._find_known(column)
        if usual is None:
            raise UseError(
                f"column {column['name']!r} has no usual bounds, and its drafted bounds were inferred from the data. "
                "Hint: name a public source, or exclude the column."
            )
        is_date_part = usual.title in str(column.get("bounds")) and column.get("part")
        self._apply_bounds(column, {} if is_date_part else usual.to_dict(), f"usual: {usual.title}")

    def declare(self, source: str, **bounds: Any) -> None:
        """Declare the bounds of a column and their public source. By default, the bounds are those of the draft.

        Parameters
        ----------
        source : str
            Text for readers of the schema: a standard, a code list, a manual.
        **bounds
            ``lower`` and ``upper``, or ``values`` and optionally ``other`` and ``prefix``. They determine the kind of
            the column, regardless of the draft. A target of the other kind changes the task.
        """
        column = self._current_column()
        if not isinstance(source, str) or len(source.strip()) < MIN_SOURCE_LENGTH:
            raise UseError(
                f"column {column['name']!r} keeps its mark without a source. "
                "Hint: name the public source of its bounds."
            )
        unknown = set(bounds) - set(_KEYS_OF_BOUNDS)
        if unknown:
            raise UseError(f"{short_repr(unknown.pop())} is not a bound. Hint: use {', '.join(_KEYS_OF_BOUNDS)}.")
        self._apply_bounds(column, bounds, " ".join(source.split()))

    def exclude(self) -> None:
        """Exclude the column from the schema. The table may still contain it."""
        column = self._current_column()
        if column["name"] == self._draft["target"]:
            raise UseError("the target cannot be excluded. Hint: draft the schema again with another target.")
        others = [each for each in self._draft["columns"] if each["name"] != column["name"]]
        if len(others) == 1:
            raise UseError("the last feature cannot be excluded. Hint: draft again from a table with more columns.")
        changed = self._draft | {"columns": others}
        source = column.get("of", column["name"])
        if all(each.get("of", each["name"]) != source for each in others):
            changed["ignore"] = [*changed.get("ignore", ()), source]
            changed["left_out"] = changed.get("left_out", {}) | {source: "excluded in the review"}
        self._replace_draft(changed)

    def defer(self) -> bool:
        """Defer the question. Return True if any other question has not been deferred."""
        name = self._current_column()["name"]
        self._replace_draft(self._draft, self._deferred | {name})
        return not self._deferred.issuperset(self.open_columns)

    def allow_missing(self, allowed: bool) -> None:
        """Allow or reject missing values of the column."""
        column = self._current_column()
        rest = {key: value for key, value in column.items() if key not in ("nullable", "texts")}
        self._replace_column(column, column | {"nullable": True} if allowed else rest)

    def set_text_rule(self, rule: TextRule) -> None:
        """Set the rule for reading text values of a numeric column."""
        column = self._current_column()
        self._replace_column(column, column | {"nullable": True, "texts": rule})

    def add_text_column(self) -> None:
        """Add a categorical column for frequent text values of a numeric column. Numbers become ``other``."""
        column = self._current_column()
        name = f"{column['name']}_text"
        if not column.get("odd") or any(each["name"] == name for each in self._draft["columns"]):
            raise UseError(
                f"column {column['name']!r} has no frequent text values for a separate "
                "column. Hint: choose another rule."
            )
        added = {"name": name, "of": column.get("of", column["name"]), "kind": "categorical"}
        added |= {"values": [*column["odd"], "other"], "other": "other", "nullable": True, "bounds": UNREVIEWED_MARK}
        columns = [*self._draft["columns"]]
        columns.insert(columns.index(column) + 1, added)
        self._replace_draft(self._draft | {"columns": columns})
        self._n_columns += 1

    def undo(self) -> None:
        """Undo the last answer of this session."""
        if not self._history:
            raise UseError(
                "there is no answer to undo in this session. Hint: to change a column, "
                "type its name at the end of the review."
            )
        self._draft, self._deferred, self._n_columns = self._history.pop()

    def reopen(self, name: str, drafted: Mapping[str, Any] | None = None, decimal: str | None = None) -> None:
        """Reopen a reviewed column. ``drafted`` and ``decimal`` replace its draft and decimal sign."""
        known = {column["name"]: column for column in self._draft["columns"]}
        if name not in known:
            raise UseError(f"there is no column {short_repr(name)}. Hint: choose one of {', '.join(known)}.")
        column = dict(known[name] if drafted is None else drafted)
        draft = self._draft
        if decimal is not None:
            dialect = Dialect.from_dict(draft.get("dialect", {}))
            signs = {**dialect.decimals, column.get("of", name): decimal}
            draft = draft | {"dialect": replace(dialect, decimals=signs).to_dict()}
        self._replace_column(known[name], {"bounds": f"{UNREVIEWED_MARK} (reopened)"} | column, draft)

    @property
    def privacy_unit(self) -> dict[str, Any] | None:
        """Proposed privacy unit (the id column and the maximum number of rows per id), or None."""
        unit = self._draft.get("privacy_unit")
        return dict(unit) if isinstance(unit, Mapping) else None

    def set_rows_per_unit(self, at_most: int) -> None:
        """Set the maximum number of rows per id. Base it on public knowledge, not on the data."""
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
            raise UseError(
                "all columns are reviewed: there is no question to answer. Hint: reopen a column to change it."
            )
        return self._find_column(question.name)

    def _find_known(self, column: Mapping[str, Any]) -> KnownColumn | None:
        """Return the catalogue entry that matches the name and categories of a column, or None."""
        if column.get("part"):
            return _KNOWN_DATE_PARTS.get(column["part"])
        if column["kind"] == "numeric":
            return known_bounds(column["name"])
        other = column.get("other")
        return known_values(column["name"], [str(value) for value in column["values"] if value != other])

    def _apply_bounds(self, column: dict[str, Any], bounds: dict[str, Any], source: str) -> None:
        reviewed = {key: value for key, value in _with_bounds(column, bounds).items() if key not in _MARKS}
        reviewed["known_from"] = source
        changed = self._draft
        if column["name"] == changed["target"]:
            changed = changed | {"task": "regression" if reviewed["kind"] == "numeric" else "classification"}
        if reviewed["kind"] == "numeric" and column["kind"] != "numeric":
            changed = changed | self._read_as_numbers(column, reviewed)
        self._replace_column(column, reviewed, changed)

    def _read_as_numbers(self, column: Mapping[str, Any], reviewed: dict[str, Any]) -> dict[str, Any]:
        """Return the dialect that reads most drafted categories as numbers. Add a rule for others to ``reviewed``."""
        dialect = Dialect.from_dict(self._draft.get("dialect", {}))
        texts = [str(value) for value in column["values"] if value != column.get("other")]
        texts += column.get("aliases", {})
        name = column.get("of", column["name"])
        own = {sign: replace(dialect, decimals={**dialect.decimals, name: sign}) for sign in (".", ",", "either")}
        options = [dialect, *(own[sign] for sign in (".", ",", "either"))]
        n_read = [sum(each.of(name).number(text) is not None for text in texts) for each in options]
        if not max(n_read, default=0):
            raise UseError(f"no drafted value of column {column['name']!r} is a number. Hint: enter its categories.")
        if max(n_read) < len(texts) and column["name"] != self._draft["target"]:
            reviewed |= {"nullable": True, "texts": "limit"}
        best = options[n_read.index(max(n_read))]
        return {} if best is dialect else {"dialect": best.to_dict()}

    def _replace_column(
        self, column: dict[str, Any], changed: dict[str, Any], draft: dict[str, Any] | None = None
    ) -> None:
        draft = self._draft if draft is None else draft
        columns = [changed if each["name"] == column["name"] else each for each in draft["columns"]]
        self._replace_draft(draft | {"columns": columns})

    def _replace_draft(self, draft: dict[str, Any], deferred: frozenset[str] | None = None) -> None:
        """Replace the draft. If no column is marked any more, remove the marks of the whole draft too."""
        if not any(is_unreviewed(column) for column in draft["columns"]):
            draft = {key: value for key, value in draft.items() if key not in _MARKS_OF_DRAFT}
        Schema.from_dict(draft)  # raises before anything is changed
        self._history.append((self._draft, self._deferred, self._n_columns))
        self._draft, self._deferred = draft, self._deferred if deferred is None else deferred


_KNOWN_DATE_PARTS: Final = {
    "year": KnownColumn("year", "", 1900, 2100),
    "month": KnownColumn("month", "", 1, 12),
    "hour": KnownColumn("hour", "", 0, 23),
    "weekday": KnownColumn("weekday", "", values=("1", "2", "3", "4", "5", "6", "7")),
}

_NUMBER: Final = r"[-+]?(?:\d+(?:[.,]\d+)?|[.,]\d+)(?:[eE][-+]?\d+)?"
_TWO_NUMBERS: Final = re.compile(rf"\s*({_NUMBER})(?:\s*(?:to|bis|\.\.+|[-–—;])\s*|,?\s+)({_NUMBER})\s*", re.I)


def parse_bounds(text: str) -> dict[str, float] | None:
    """Return the bounds in a text such as "0 to 100", "0 - 100" or "0,5 bis 2", or None if it has no two numbers.

    >>> parse_bounds("0 - 500"), parse_bounds("-5..5,5"), parse_bounds("1,000 to 2,000"), parse_bounds("three")
    ({'lower': 0.0, 'upper': 500.0}, {'lower': -5.0, 'upper': 5.5}, None, None)
    """
    found = _TWO_NUMBERS.fullmatch(text)
    if found is None or any(re.search(r"\d,\d{3}(?!\d)", number) for number in found.groups()):  # 1,000 is ambiguous
        return None
    lower, upper = (float(number.replace(",", ".")) for number in found.groups())
    return {"lower": lower, "upper": upper}


def parse_categories(text: str) -> list[str]:
    """Return the categories in a comma-separated text. Quotation marks protect commas and spaces.

    >>> parse_categories('A1, B1 , "x, y"')
    ['A1', 'B1', 'x, y']
    """
    return [word for word in map(str.strip, next(csv.reader([text], skipinitialspace=True), [])) if word]


def _with_bounds(column: Mapping[str, Any], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column with new bounds. A category ``other`` is preserved if the new categories need it."""
    if not bounds:
        return dict(column)
    rest = {key: value for key, value in column.items() if key not in _KEYS_OF_BOUNDS}
    new: dict[str, Any] = dict(bounds)
    if "values" in new:
        new["values"] = list(new["values"])
        drafted = column.get("values", [])
        if {str(value) for value in drafted} == {str(value) for value in new["values"]}:
            new["values"] = drafted  # the same categories, in the drafted type, which is that of predictions
        other = new.get("other", column.get("other"))
        if other is not None:
            new["other"] = other
            new["values"] = new["values"] if other in new["values"] else [*map(str, new["values"]), other]
        listed = set(map(str, new["values"]))
        rest["aliases"] = {a: b for a, b in column.get("aliases", {}).items() if b in listed and a not in listed}
        rest.pop("texts", None)
        rest.pop("whole", None)
    if not rest.get("aliases") or "values" not in new:
        rest.pop("aliases", None)
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
